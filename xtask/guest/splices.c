// splice, tee, vmsplice, sendfile and copy_file_range: what moves, in which order, and what they refuse.
#include "check.h"
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
    };
    return RUN(tests, argc, argv);
}
