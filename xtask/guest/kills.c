// Senders and receivers that are killed at any moment: `kills ROUNDS SEED`. Each round has a channel, a sender and a receiver that move
// data in one way or another; after a random time one of them, or both, are killed. What the receiver sees must be what
// was sent, in its order. Run by `flat`, which looks at what is left of memory.
#include "check.h"
#include "uvm.h"
#include <sys/socket.h>
#include <sys/uio.h>

enum { MOST = 256 * 1024 };

static uint64_t state;

static unsigned random_below(unsigned limit) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)(state >> 33) % limit;
}

static char byte_at(size_t at, unsigned seed) {
    return (char)(at * 29 + (at >> 12) * 5 + seed);
}

static char *memory(size_t length) {
    char *at = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) _exit(3);
    return at;
}

enum { WRITE, DONATE, VMSPLICE, SENDERS };
enum { READ, TRANSFER, SPLICE, RECEIVERS };

static void sender(int fd, int how, size_t size, unsigned seed) {
    char *at = memory(MOST);
    signal(SIGPIPE, SIG_DFL);
    for (size_t sent = 0;;) {
        for (size_t i = 0; i < size; i++) at[i] = byte_at(sent + i, seed);
        for (size_t done = 0; done < size;) {
            ssize_t put = -1;
            struct iovec vector = {at + done, size - done};
            if (how == DONATE && done % PAGE == 0) put = uvm_donate_write(fd, at + done, size - done);
            // What is spliced must stay, on Linux: that is what its users promise.
            else if (how == VMSPLICE) put = vmsplice(fd, &vector, 1, 0);
            if (put < 0 && (how == WRITE || how == DONATE || errno == ENOSYS || errno == EBADF)) put = write(fd, at + done, size - done);
            if (put <= 0) _exit(0);
            done += put;
        }
        sent += size;
        if (how == VMSPLICE) at = memory(MOST);
    }
}

static void check(const char *at, size_t length, size_t from, unsigned seed) {
    for (size_t i = 0; i < length; i++) {
        if (at[i] != byte_at(from + i, seed)) _exit(2);
    }
}

static void receiver(int fd, int how, size_t size, unsigned seed) {
    char *at = memory(MOST);
    int ends[2];
    if (pipe(ends)) _exit(3);
    for (size_t seen = 0;;) {
        ssize_t got = -1;
        if (how == TRANSFER) {
            struct uvm_piece pieces[4];
            ssize_t count = uvm_transfer_read(fd, pieces, 4, size);
            if (count == 0) _exit(0);
            for (ssize_t i = 0; i < count; i++) {
                check(pieces[i].start, pieces[i].length, seen, seed);
                memset(pieces[i].start, 0, pieces[i].length);
                seen += pieces[i].length;
                uvm_anflush(pieces[i].start, pieces[i].length);
            }
            if (count > 0) continue;
        } else if (how == SPLICE) {
            got = splice(fd, 0, ends[1], 0, size < 65536 ? size : 65536, 0);
            if (got > 0) got = read(ends[0], at, got);
            if (got == 0) _exit(0);
        }
        if (got < 0) got = read(fd, at, size);
        if (got <= 0) _exit(0);
        check(at, got, seen, seed);
        memset(at, 0x11, got);
        seen += got;
    }
}

static void nap(unsigned microseconds) {
    struct timespec time = {0, microseconds * 1000};
    nanosleep(&time, 0);
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 200, bad = 0;
    state = (argc > 2 ? strtoull(argv[2], 0, 10) : 1) * 0x9e3779b97f4a7c15 | 1;
    for (long round = 0; round < rounds; round++) {
        uint64_t before = state;
        int ends[2], socket = random_below(2);
        if (socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends)) return perror("pipe"), 1;
        int sends = random_below(SENDERS), takes = random_below(RECEIVERS);
        size_t size = random_below(4) ? (1 + random_below(MOST / PAGE)) * PAGE : 1 + random_below(3 * PAGE);
        size_t room = random_below(4) ? (1 + random_below(MOST / PAGE)) * PAGE : 1 + random_below(3 * PAGE);
        pid_t from = fork();
        if (from == 0) close(ends[0]), sender(ends[1], sends, size, round);
        pid_t to = fork();
        if (to == 0) close(ends[1]), receiver(ends[0], takes, room, round);
        close(ends[0]), close(ends[1]);
        if (from < 0 || to < 0) return perror("fork"), 1;
        nap(random_below(8) ? random_below(3000) : random_below(20000));
        int first = random_below(2);
        kill(first ? to : from, SIGKILL);
        if (random_below(4) == 0) kill(first ? from : to, SIGKILL);
        for (int i = 0; i < 2; i++) {
            int status;
            pid_t child = waitpid(i ? to : from, &status, 0);
            int fine = child > 0 && (WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGPIPE : !status);
            if (!fine && bad++ < 5) {
                printf("FAILED round %ld (state %llu): the %s ended with %#x; sends %d takes %d size %zu room %zu socket %d\n", round,
                       (unsigned long long)before, i ? "receiver" : "sender", status, sends, takes, size, room, socket);
            }
        }
    }
    printf("%ld rounds, %ld wrong\n", rounds, bad);
    return bad != 0;
}
