// splice, tee, vmsplice, sendfile and copy_file_range: what moves, in which order, and what they refuse.
#include "check.h"
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { LARGE = 96 * PAGE + 123 };

static char bytes[LARGE], back[LARGE];

static void fill(char *at, size_t length, unsigned seed) {
    for (size_t i = 0; i < length; i++) at[i] = (char)((i * 31 + (i >> 9) * 7 + seed) ^ (seed >> 8));
}

static int file_of(const char *name, size_t length, unsigned seed) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    NEED(fd >= 0);
    fill(bytes, length, seed);
    NEED(write(fd, bytes, length) == (ssize_t)length && !lseek(fd, 0, SEEK_SET));
    return fd;
}

// Reads so many bytes, however they come.
static void take(int fd, char *to, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t got = read(fd, to + done, length - done);
        NEED(got > 0);
        done += got;
    }
}

static void file_to_pipe_to_file(void) {
    int in = file_of("/tmp/in", LARGE, 1), out = open("/tmp/out", O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2];
    NEED(out >= 0 && !pipe(ends));
    off_t from = 5;
    for (size_t left = LARGE - 5; left;) {
        ssize_t put = splice(in, &from, ends[1], 0, left, 0);
        NEED(put > 0);
        for (ssize_t moved = 0; moved < put;) {
            ssize_t got = splice(ends[0], 0, out, 0, put - moved, 0);
            NEED(got > 0);
            moved += got;
        }
        left -= put;
    }
    CHECK(from == LARGE && lseek(in, 0, SEEK_CUR) == 0 && lseek(out, 0, SEEK_CUR) == LARGE - 5);
    CHECK(pread(out, back, LARGE, 0) == LARGE - 5 && !memcmp(back, bytes + 5, LARGE - 5));
    // The end of the file, and of the pipe.
    CHECK(splice(in, &from, ends[1], 0, 100, 0) == 0);
    close(ends[1]);
    CHECK(splice(ends[0], 0, out, 0, 100, 0) == 0);
    close(in), close(out), close(ends[0]);
}

static void positions_move(void) {
    int in = file_of("/tmp/in", 3 * PAGE, 2), ends[2];
    NEED(!pipe(ends));
    CHECK(splice(in, 0, ends[1], 0, 10, 0) == 10 && lseek(in, 0, SEEK_CUR) == 10);
    take(ends[0], back, 10);
    CHECK(!memcmp(back, bytes, 10));
    CHECK(write(ends[1], "abcdef", 6) == 6);
    off_t at = 2 * PAGE;
    CHECK(splice(ends[0], 0, in, &at, 100, 0) == 6 && at == 2 * PAGE + 6 && lseek(in, 0, SEEK_CUR) == 10);
    CHECK(pread(in, back, 6, 2 * PAGE) == 6 && !memcmp(back, "abcdef", 6));
    close(in), close(ends[0]), close(ends[1]);
}

static void pipe_to_pipe(void) {
    int first[2], second[2];
    NEED(!pipe(first) && !pipe(second));
    fill(bytes, 3 * PAGE, 3);
    NEED(write(first[1], bytes, 3 * PAGE) == 3 * PAGE);
    CHECK(splice(first[0], 0, second[1], 0, PAGE + 7, 0) == PAGE + 7);
    take(second[0], back, PAGE + 7);
    CHECK(!memcmp(back, bytes, PAGE + 7));
    take(first[0], back, 2 * PAGE - 7);
    CHECK(!memcmp(back, bytes + PAGE + 7, 2 * PAGE - 7));
    FAILS(splice(first[0], 0, first[1], 0, 1, 0), EINVAL);
    close(first[0]), close(first[1]), close(second[0]), close(second[1]);
}

static void tee_leaves_what_it_takes(void) {
    int first[2], second[2], third[2];
    NEED(!pipe(first) && !pipe(second) && !pipe(third));
    fill(bytes, 2 * PAGE, 4);
    NEED(write(first[1], bytes, 2 * PAGE) == 2 * PAGE);
    ssize_t got = tee(first[0], second[1], 2 * PAGE, 0);
    CHECK(got == 2 * PAGE && tee(first[0], third[1], 100, 0) == 100);
    take(second[0], back, got);
    CHECK(!memcmp(back, bytes, got));
    take(third[0], back, 100);
    CHECK(!memcmp(back, bytes, 100));
    take(first[0], back, 2 * PAGE);
    CHECK(!memcmp(back, bytes, 2 * PAGE));
    FAILS(tee(first[0], second[1], 1, SPLICE_F_NONBLOCK), EAGAIN);
    FAILS(tee(first[0], first[1], 1, 0), EINVAL);
    close(first[1]);
    CHECK(tee(first[0], second[1], 1, 0) == 0);
    int file = file_of("/tmp/in", 10, 4);
    FAILS(tee(file, second[1], 1, 0), EINVAL);
    close(file), close(first[0]), close(second[0]), close(second[1]), close(third[0]), close(third[1]);
}

static void memory_to_pipe(void) {
    int ends[2];
    NEED(!pipe(ends));
    char *memory = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(memory != MAP_FAILED);
    fill(memory, 4 * PAGE, 5);
    memcpy(bytes, memory, 4 * PAGE);
    struct iovec parts[2] = {{memory, PAGE + 9}, {memory + 2 * PAGE, 100}};
    CHECK(vmsplice(ends[1], parts, 2, 0) == PAGE + 109);
    take(ends[0], back, PAGE + 109);
    CHECK(!memcmp(back, bytes, PAGE + 9) && !memcmp(back + PAGE + 9, bytes + 2 * PAGE, 100));
    // The other way, into memory.
    NEED(write(ends[1], bytes, 300) == 300);
    memset(memory, 0, 400);
    struct iovec to = {memory, 400};
    CHECK(vmsplice(ends[0], &to, 1, 0) == 300 && !memcmp(memory, bytes, 300) && !memory[300]);
    struct iovec bad = {(void *)8, 100};
    FAILS(vmsplice(ends[1], &bad, 1, 0), EFAULT);
    int file = file_of("/tmp/in", 10, 5);
    FAILS(vmsplice(file, &to, 1, 0), EBADF);
    close(file), close(ends[0]), close(ends[1]);
    munmap(memory, 4 * PAGE);
}

static void full_and_empty(void) {
    int ends[2], other[2];
    NEED(!pipe2(ends, O_NONBLOCK) && !pipe(other));
    int in = file_of("/tmp/in", LARGE, 6);
    FAILS(splice(ends[0], 0, other[1], 0, 10, 0), EAGAIN);
    FAILS(splice(other[0], 0, ends[1], 0, 10, SPLICE_F_NONBLOCK), EAGAIN);
    off_t at = 0;
    ssize_t total = 0, put;
    while ((put = splice(in, &at, ends[1], 0, LARGE, 0)) > 0) total += put;
    CHECK(put == -1 && errno == EAGAIN && total == at && total >= 65536 - PAGE);
    take(ends[0], back, total);
    CHECK(!memcmp(back, bytes, total));
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    FAILS(splice(in, 0, ends[1], 0, 10, 0), EPIPE);
    close(in), close(ends[1]), close(other[0]), close(other[1]);
}

static void what_is_refused(void) {
    int in = file_of("/tmp/in", 100, 7), out = file_of("/tmp/out", 100, 7), ends[2];
    NEED(!pipe(ends));
    off_t at = 0;
    FAILS(splice(in, 0, out, 0, 10, 0), EINVAL);
    FAILS(splice(in, 0, ends[1], &at, 10, 0), ESPIPE);
    FAILS(splice(-1, 0, ends[1], 0, 10, 0), EBADF);
    FAILS(splice(in, 0, ends[0], 0, 10, 0), EBADF);
    FAILS(splice(ends[1], 0, out, 0, 10, 0), EBADF);
    FAILS(splice(in, (off_t *)8, ends[1], 0, 10, 0), EFAULT);
    FAILS(splice(in, 0, ends[1], 0, 10, 0x100), EINVAL);
    CHECK(splice(in, 0, ends[1], 0, 0, 0) == 0);
    int append = open("/tmp/out", O_WRONLY | O_APPEND);
    NEED(append >= 0 && write(ends[1], "x", 1) == 1);
    FAILS(splice(ends[0], 0, append, 0, 1, 0), EINVAL);
    close(in), close(out), close(append), close(ends[0]), close(ends[1]);
}

static void sockets_take_part(void) {
    int pair[2], ends[2], in = file_of("/tmp/in", 10 * PAGE, 8);
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !pipe(ends));
    off_t at = 0;
    CHECK(splice(in, &at, ends[1], 0, 4 * PAGE, 0) == 4 * PAGE);
    for (ssize_t moved = 0, got; moved < 4 * PAGE; moved += got) {
        got = splice(ends[0], 0, pair[0], 0, 4 * PAGE - moved, 0);
        NEED(got > 0);
    }
    take(pair[1], back, 4 * PAGE);
    CHECK(!memcmp(back, bytes, 4 * PAGE));
    NEED(write(pair[1], bytes, 2 * PAGE) == 2 * PAGE);
    ssize_t got = splice(pair[0], 0, ends[1], 0, 2 * PAGE, 0);
    CHECK(got > 0);
    take(ends[0], back, got);
    CHECK(!memcmp(back, bytes, got));
    at = 3;
    CHECK(sendfile(pair[0], in, &at, PAGE) == PAGE && at == PAGE + 3);
    if (got < 2 * PAGE) take(pair[0], back, 2 * PAGE - got);
    take(pair[1], back, PAGE);
    CHECK(!memcmp(back, bytes + 3, PAGE));
    close(pair[0]), close(pair[1]), close(ends[0]), close(ends[1]), close(in);
}

static void files_are_sent(void) {
    int in = file_of("/tmp/in", 12 * PAGE + 50, 9), ends[2];
    NEED(!pipe(ends));
    CHECK(sendfile(ends[1], in, 0, 8 * PAGE) == 8 * PAGE && lseek(in, 0, SEEK_CUR) == 8 * PAGE);
    take(ends[0], back, 8 * PAGE);
    CHECK(!memcmp(back, bytes, 8 * PAGE));
    CHECK(sendfile(ends[1], in, 0, 8 * PAGE) == 4 * PAGE + 50 && sendfile(ends[1], in, 0, 8 * PAGE) == 0);
    take(ends[0], back, 4 * PAGE + 50);
    CHECK(!memcmp(back, bytes + 8 * PAGE, 4 * PAGE + 50));
    off_t at = -1;
    FAILS(sendfile(ends[1], in, &at, 1), EINVAL);
    FAILS(sendfile(ends[1], ends[0], 0, 1), EINVAL);
    close(in), close(ends[0]), close(ends[1]);
}

static void files_are_copied(void) {
    int in = file_of("/tmp/in", 20 * PAGE + 7, 10), out = file_of("/tmp/out", 3, 11);
    fill(bytes, 20 * PAGE + 7, 10);
    off_t from = 0, to = 2 * PAGE;
    CHECK(copy_file_range(in, &from, out, &to, 20 * PAGE + 100, 0) == 20 * PAGE + 7);
    CHECK(from == 20 * PAGE + 7 && to == 22 * PAGE + 7);
    CHECK(pread(out, back, LARGE, 2 * PAGE) == 20 * PAGE + 7 && !memcmp(back, bytes, 20 * PAGE + 7));
    CHECK(pread(out, back, PAGE, PAGE) == PAGE && !back[0] && !back[PAGE - 1]);
    // A copy is a copy, whichever changes.
    CHECK(pwrite(in, "changed", 7, PAGE) == 7 && pread(out, back, 7, 3 * PAGE) == 7 && memcmp(back, "changed", 7));
    CHECK(pwrite(out, "changed", 7, 5 * PAGE) == 7 && pread(in, back, 7, 3 * PAGE) == 7 && memcmp(back, "changed", 7));
    close(in), close(out);
}

// Sends a part of a file, and reads it into `to`.
static void send_and_take(int file, size_t from, int ends[2], char *to, size_t length) {
    off_t at = from;
    for (size_t done = 0; done < length;) {
        ssize_t sent = sendfile(ends[1], file, &at, length - done < 16 * PAGE ? length - done : 16 * PAGE);
        NEED(sent > 0);
        take(ends[0], to + done, sent);
        done += sent;
    }
}

static char *pages(size_t count, int prot, int flags) {
    char *at = mmap(0, count * PAGE, prot, flags | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    return at;
}

// What is read into whole pages may be the file's own pages: nobody must be able to tell.
static void what_is_received_is_a_copy(void) {
    enum { COUNT = 64 };
    int in = file_of("/tmp/in", COUNT * PAGE, 12), ends[2];
    NEED(!pipe(ends));
    char *to = pages(COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    char *shared = mmap(0, COUNT * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, in, 0);
    NEED(shared != MAP_FAILED);
    memset(to, 1, 20 * PAGE);
    long before = vmstat("pages_transferred");
    send_and_take(in, 0, ends, to, COUNT * PAGE);
    CHECK(!memcmp(to, bytes, COUNT * PAGE));
    if (before >= 0) CHECK(vmstat("pages_transferred") - before == COUNT);
    // The file changes, by a call and by a mapping, and becomes shorter: what was read doesn't.
    CHECK(pwrite(in, "changed", 7, 3 * PAGE) == 7);
    memcpy(shared + 4 * PAGE, "changed", 7);
    CHECK(!ftruncate(in, 40 * PAGE) && !memcmp(to, bytes, COUNT * PAGE));
    // What was read changes: the file doesn't.
    for (int i = 0; i < COUNT; i += 7) memcpy(to + i * PAGE, "stored", 6), memcpy(bytes + i * PAGE, "stored", 6);
    CHECK(!memcmp(to, bytes, COUNT * PAGE));
    CHECK(pread(in, back, 7, 7 * PAGE) == 7 && memcmp(back, "stored", 6) && memcmp(shared + 7 * PAGE, "stored", 6));
    CHECK(pread(in, back, 7, 3 * PAGE) == 7 && !memcmp(back, "changed", 7));
    // A child has the same, and its own.
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        int same = !memcmp(to, bytes, COUNT * PAGE);
        memset(to, 9, COUNT * PAGE);
        _exit(!same);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!memcmp(to, bytes, COUNT * PAGE));
    munmap(to, COUNT * PAGE), munmap(shared, COUNT * PAGE);
    close(in), close(ends[0]), close(ends[1]);
}

// Memory that can't take pages gets the bytes, and so does what lies beside whole pages.
static void what_is_received_goes_anywhere(void) {
    enum { COUNT = 32 };
    int in = file_of("/tmp/in", COUNT * PAGE, 13), other = file_of("/tmp/out", COUNT * PAGE, 14), ends[2];
    NEED(!pipe(ends));
    fill(bytes, COUNT * PAGE, 13);
    char *plain = pages(2 * COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    char *shared = pages(COUNT, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *mapped = mmap(0, COUNT * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, other, 0);
    char *locked = pages(COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    NEED(mapped != MAP_FAILED && !mlock(locked, COUNT * PAGE));
    char *places[] = {shared, mapped, locked, plain, plain + 1, plain + PAGE - 8};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        send_and_take(in, 0, ends, places[i], COUNT * PAGE);
        CHECK(!memcmp(places[i], bytes, COUNT * PAGE));
        memset(places[i] + 5 * PAGE, 3, PAGE);
        CHECK(pread(in, back, PAGE, 5 * PAGE) == PAGE && !memcmp(back, bytes + 5 * PAGE, PAGE));
        send_and_take(in, 100, ends, places[i], 20 * PAGE);
        CHECK(!memcmp(places[i], bytes + 100, 20 * PAGE));
    }
    CHECK(pread(other, back, PAGE, 0) == PAGE && memcmp(back, bytes, PAGE));
    // Pieces of a vector, whole pages or not.
    struct iovec vector[] = {{plain + 3, 5}, {plain + PAGE, 16 * PAGE}, {plain + 18 * PAGE, 3 * PAGE - 5}};
    CHECK(sendfile(ends[1], in, &(off_t){0}, 16 * PAGE) == 16 * PAGE);
    CHECK(readv(ends[0], vector, 3) == 16 * PAGE);
    CHECK(!memcmp(plain + 3, bytes, 5) && !memcmp(plain + PAGE, bytes + 5, 16 * PAGE - 5));
    vector[0].iov_len = PAGE, vector[0].iov_base = plain + 40 * PAGE;
    CHECK(sendfile(ends[1], in, &(off_t){0}, 16 * PAGE) == 16 * PAGE && readv(ends[0], vector, 2) == 16 * PAGE);
    CHECK(!memcmp(plain + 40 * PAGE, bytes, PAGE) && !memcmp(plain + PAGE, bytes + PAGE, 15 * PAGE));
    // A place that ends early gets what there is room for; the rest is for the next.
    NEED(!mprotect(plain + 10 * PAGE, PAGE, PROT_READ));
    CHECK(sendfile(ends[1], in, &(off_t){0}, 16 * PAGE) == 16 * PAGE);
    ssize_t got = read(ends[0], plain, 16 * PAGE);
    if (got < 0) CHECK(errno == EFAULT), got = 0; // Linux may say so at once
    CHECK(got <= 10 * PAGE && !memcmp(plain, bytes, got));
    int left = -1;
    CHECK(!ioctl(ends[0], FIONREAD, &left));
    if (left > 0) take(ends[0], back, left);
    if (left == 16 * PAGE - got) CHECK(!memcmp(back, bytes + got, left));
    munmap(plain, 2 * COUNT * PAGE), munmap(shared, COUNT * PAGE), munmap(mapped, COUNT * PAGE);
    munmap(locked, COUNT * PAGE);
    close(in), close(other), close(ends[0]), close(ends[1]);
}

// Who stores into what it reads gets copies from then on, and is tried again now and then.
static void who_stores_gets_copies(void) {
    enum { COUNT = 16, ROUNDS = 100 };
    int in = file_of("/tmp/in", COUNT * PAGE, 15), ends[2];
    NEED(!pipe(ends));
    char *to = pages(COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    long before = vmstat("pages_transferred");
    for (int i = 0; i < ROUNDS; i++) {
        send_and_take(in, 0, ends, to, COUNT * PAGE);
        CHECK(!memcmp(to, bytes, COUNT * PAGE));
        for (int n = 0; n < COUNT; n++) to[n * PAGE] ^= 1;
    }
    if (before >= 0) CHECK(vmstat("pages_transferred") - before <= COUNT);
    // Who doesn't gets pages again.
    for (int i = 0; i < 3 * ROUNDS; i++) send_and_take(in, 0, ends, to, COUNT * PAGE);
    if (before >= 0) CHECK(vmstat("pages_transferred") - before > 20 * COUNT);
    CHECK(!memcmp(to, bytes, COUNT * PAGE));
    munmap(to, COUNT * PAGE);
    close(in), close(ends[0]), close(ends[1]);
}

// Sockets do the same; a look leaves what it looks at.
static void sockets_are_received_from(void) {
    enum { COUNT = 16 };
    int in = file_of("/tmp/in", COUNT * PAGE, 16), ends[2];
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    char *to = pages(COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    CHECK(sendfile(ends[1], in, &(off_t){0}, COUNT * PAGE) == COUNT * PAGE);
    CHECK(recv(ends[0], to, COUNT * PAGE, MSG_PEEK) > 0 && !memcmp(to, bytes, PAGE));
    memset(to, 0, COUNT * PAGE);
    long before = vmstat("pages_transferred");
    CHECK(recv(ends[0], to, COUNT * PAGE, MSG_WAITALL) == COUNT * PAGE && !memcmp(to, bytes, COUNT * PAGE));
    if (before >= 0) CHECK(vmstat("pages_transferred") - before == COUNT);
    munmap(to, COUNT * PAGE);
    close(in), close(ends[0]), close(ends[1]);
}

int main(int argc, char **argv) {
    static const struct test_case tests[] = {
        {"file_to_pipe_to_file", file_to_pipe_to_file},
        {"positions_move", positions_move},
        {"pipe_to_pipe", pipe_to_pipe},
        {"tee_leaves_what_it_takes", tee_leaves_what_it_takes},
        {"memory_to_pipe", memory_to_pipe},
        {"full_and_empty", full_and_empty},
        {"what_is_refused", what_is_refused},
        {"sockets_take_part", sockets_take_part},
        {"files_are_sent", files_are_sent},
        {"files_are_copied", files_are_copied},
        {"what_is_received_is_a_copy", what_is_received_is_a_copy},
        {"what_is_received_goes_anywhere", what_is_received_goes_anywhere},
        {"who_stores_gets_copies", who_stores_gets_copies},
        {"sockets_are_received_from", sockets_are_received_from},
    };
    return RUN(tests, argc, argv);
}
