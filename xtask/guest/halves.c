// Buffers of which a part is bad: what pipes, packets and sockets give and keep, where their bytes lie in pages and where they don't.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAGE = 4096, GOOD = 3 };
static char *edge; // GOOD bytes before what isn't mapped
static char text[2 * PAGE];

static void need(int holds, const char *what) {
    if (!holds) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void say(const char *name, ssize_t n) {
    if (n < 0) printf("%-44s %s\n", name, errno == EFAULT ? "EFAULT" : errno == EAGAIN ? "EAGAIN" : strerror(errno));
    else printf("%-44s %zd\n", name, n);
}

// What is left, to the last byte.
static void rest(const char *name, int fd, size_t most) {
    static char bytes[4 * PAGE];
    ssize_t n = read(fd, bytes, most);
    if (n < 0) say(name, n);
    else printf("%-44s %zd '%c'\n", name, n, n ? bytes[0] : '-');
}

// A pipe that has bytes moved in, so that what follows is on pages.
static void pipes(int flags, size_t size, const char *kind) {
    char name[64];
    for (int moved = 0; moved < 2; moved++) {
        int to[2], from[2];
        need(!pipe2(to, flags | O_NONBLOCK) && !pipe2(from, O_NONBLOCK), "pipe2");
        if (moved) {
            need(write(from[1], "m", 1) == 1 && splice(from[0], 0, to[1], 0, 1, 0) == 1, "splice");
        }
        snprintf(name, sizeof name, "%s%s, %zu bytes: write", kind, moved ? ", moved" : "", size);
        say(name, write(to[1], text, size));
        if (moved) rest("  the moved byte", to[0], 1);
        say("  read to half a buffer", read(to[0], edge, size));
        rest("  what is left", to[0], sizeof text);
        if (!flags) {
            say("  write from half a buffer", write(to[1], edge, 100));
            rest("  what came", to[0], sizeof text);
        }
        close(to[0]), close(to[1]), close(from[0]), close(from[1]);
    }
}

static void sockets(int type, size_t size, const char *kind) {
    char name[64];
    int ends[2];
    need(!socketpair(AF_UNIX, type | SOCK_NONBLOCK, 0, ends), "socketpair");
    snprintf(name, sizeof name, "%s, %zu bytes: send", kind, size);
    say(name, send(ends[0], text, size, 0));
    say("  peek to half a buffer", recv(ends[1], edge, size, MSG_PEEK));
    say("  receive to half a buffer", recv(ends[1], edge, size, 0));
    rest("  what is left", ends[1], sizeof text);
    need(send(ends[0], text, 40, 0) == 40 && send(ends[0], text, 40, 0) == 40, "send");
    say("  two sent, receive to half a buffer", recv(ends[1], edge, 80, 0));
    rest("  what is left", ends[1], sizeof text);
    rest("  and then", ends[1], sizeof text);
    say("  send from half a buffer", send(ends[0], edge, 100, 0));
    rest("  what came", ends[1], sizeof text);
    close(ends[0]), close(ends[1]);
}

int main(void) {
    char *at = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(at != MAP_FAILED && !munmap(at + PAGE, PAGE), "mmap");
    edge = at + PAGE - GOOD;
    memset(edge, 'e', GOOD);
    for (size_t i = 0; i < sizeof text; i++) text[i] = 'a' + i % 26;
    size_t sizes[] = {20, 100, 5000};
    for (int i = 0; i < 3; i++) {
        pipes(0, sizes[i], "pipe");
        if (sizes[i] <= PAGE) pipes(O_DIRECT, sizes[i], "packets");
        sockets(SOCK_STREAM, sizes[i], "stream");
        sockets(SOCK_DGRAM, sizes[i], "datagram");
        sockets(SOCK_SEQPACKET, sizes[i], "records");
    }
    puts("the table is whole");
}
