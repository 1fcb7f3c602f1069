// Pipes and waiting for descriptors: order, ends, limits, poll and select, descriptor flags.
#include "check.h"
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>

static int ends[2];

static void make(int flags) { NEED(!pipe2(ends, flags)); }

static void bytes_in_order(void) {
    make(0);
    enum { TOTAL = 1 << 20 };
    pid_t child = fork();
    if (child == 0) {
        static unsigned char block[5000];
        unsigned next = 0;
        for (int sent = 0; sent < TOTAL;) {
            int part = TOTAL - sent < (int)sizeof block ? TOTAL - sent : (int)sizeof block;
            for (int i = 0; i < part; i++) block[i] = next++ * 7;
            for (int done = 0; done < part;) {
                ssize_t put = write(ends[1], block + done, part - done);
                if (put <= 0) _exit(1);
                done += put;
            }
            sent += part;
        }
        _exit(0);
    }
    close(ends[1]);
    static unsigned char block[7001];
    unsigned next = 0;
    ssize_t got;
    while ((got = read(ends[0], block, sizeof block)) > 0) {
        for (int i = 0; i < got; i++) if (block[i] != (unsigned char)(next++ * 7)) NEED(!"the right byte");
    }
    CHECK(got == 0 && next == TOTAL);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void ends_of_pipes(void) {
    char bytes[10];
    make(0);
    CHECK(write(ends[1], "abc", 3) == 3 && !close(ends[1]));
    CHECK(read(ends[0], bytes, 10) == 3 && read(ends[0], bytes, 10) == 0 && read(ends[0], bytes, 10) == 0);
    make(0);
    signal(SIGPIPE, SIG_IGN);
    close(ends[0]);
    FAILS(write(ends[1], "x", 1), EPIPE);
    make(0);
    FAILS(write(ends[0], "x", 1), EBADF);
    FAILS(read(ends[1], bytes, 1), EBADF);
    FAILS(lseek(ends[0], 0, SEEK_SET), ESPIPE);
    FAILS(pread(ends[0], bytes, 1, 0), ESPIPE);
    CHECK(write(ends[1], bytes, 0) == 0);
}

static void without_blocking(void) {
    make(O_NONBLOCK);
    static char block[4096];
    char byte;
    FAILS(read(ends[0], &byte, 1), EAGAIN);
    long filled = 0;
    ssize_t put;
    while ((put = write(ends[1], block, sizeof block)) > 0) filled += put;
    CHECK(put == -1 && errno == EAGAIN && filled == 65536);
    int ready;
    CHECK(!ioctl(ends[0], FIONREAD, &ready) && ready == 65536);
    // A small write is whole or not at all.
    CHECK(read(ends[0], block, 100) == 100);
    FAILS(write(ends[1], block, 4096), EAGAIN);
    CHECK(read(ends[0], block, 4000) == 4000);
    CHECK(write(ends[1], block, 4096) == 4096);
    CHECK(!(fcntl(ends[0], F_SETFL, 0)) && !(fcntl(ends[0], F_GETFL) & O_NONBLOCK));
}

static void vectors(void) {
    make(0);
    char a[3] = {0}, b[4] = {0};
    struct iovec out[] = {{"ab", 2}, {"", 0}, {"cdef", 4}}, in[] = {{a, 2}, {b, 3}};
    CHECK(writev(ends[1], out, 3) == 6);
    CHECK(readv(ends[0], in, 2) == 5 && !strcmp(a, "ab") && !strcmp(b, "cde"));
}

static void polling(void) {
    make(0);
    struct pollfd both[] = {{ends[0], POLLIN, 0}, {ends[1], POLLOUT, 0}, {-1, POLLIN, 9}};
    CHECK(poll(both, 3, 0) == 1 && !both[0].revents && both[1].revents == POLLOUT && !both[2].revents);
    CHECK(write(ends[1], "x", 1) == 1);
    CHECK(poll(both, 1, -1) == 1 && both[0].revents == POLLIN);
    close(ends[1]);
    CHECK(poll(both, 1, 0) == 1 && both[0].revents == (POLLIN | POLLHUP));
    both[0].fd = 99;
    CHECK(poll(both, 1, 0) == 1 && both[0].revents == POLLNVAL);
    make(0);
    both[0].fd = ends[0];
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(poll(both, 1, 50) == 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long waited = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    CHECK(waited >= 49 && waited < 5000);
    pid_t child = fork();
    if (child == 0) {
        usleep(30000);
        _exit(write(ends[1], "x", 1) != 1);
    }
    CHECK(poll(both, 1, 20000) == 1);
    waitpid(child, 0, 0);
    close(ends[0]);
    both[1].fd = ends[1];
    CHECK(poll(&both[1], 1, 0) == 1 && both[1].revents & POLLERR);
}

static void selecting(void) {
    make(0);
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(ends[0], &in);
    FD_SET(ends[1], &out);
    struct timeval none = {0, 0};
    CHECK(select(ends[1] + 1, &in, &out, 0, &none) == 1 && !FD_ISSET(ends[0], &in) && FD_ISSET(ends[1], &out));
    CHECK(write(ends[1], "x", 1) == 1);
    FD_SET(ends[0], &in);
    CHECK(select(ends[1] + 1, &in, 0, 0, 0) == 1 && FD_ISSET(ends[0], &in));
    FD_ZERO(&in);
    FD_SET(60, &in);
    FAILS(select(61, &in, 0, 0, &none), EBADF);
    sigset_t all;
    sigfillset(&all);
    struct timespec short_time = {0, 1000000};
    CHECK(pselect(0, 0, 0, 0, &short_time, &all) == 0);
}

static void descriptors(void) {
    make(O_CLOEXEC);
    CHECK(fcntl(ends[0], F_GETFD) == FD_CLOEXEC);
    int copy = dup(ends[0]);
    CHECK(copy >= 0 && fcntl(copy, F_GETFD) == 0);
    CHECK(dup2(ends[0], 50) == 50 && dup2(50, 50) == 50 && dup3(ends[0], 51, O_CLOEXEC) == 51);
    FAILS(dup3(50, 50, 0), EINVAL);
    CHECK(fcntl(ends[0], F_DUPFD, 60) >= 60 && fcntl(fcntl(ends[0], F_DUPFD_CLOEXEC, 70), F_GETFD) == FD_CLOEXEC);
    close(ends[0]);
    CHECK(write(ends[1], "x", 1) == 1); // other readers are left
    FAILS(close(ends[0]), EBADF);
    FAILS(close(-1), EBADF);
    FAILS(fcntl(99, F_GETFL), EBADF);
}

// A pipe that would keep packets apart is made, or refused.
static void packets(void) {
    int fds[2];
    if (pipe2(fds, O_DIRECT)) {
        CHECK(errno == EINVAL);
        NEED(!pipe(fds));
        FAILS(fcntl(fds[1], F_SETFL, O_DIRECT), EINVAL);
        return;
    }
    char bytes[8];
    CHECK(write(fds[1], "ab", 2) == 2 && write(fds[1], "c", 1) == 1);
    CHECK(read(fds[0], bytes, sizeof bytes) == 2 && read(fds[0], bytes, sizeof bytes) == 1);
}

static void many_pipes(void) {
    // A token goes round a ring of processes.
    enum { RING = 30 };
    int ring[RING][2];
    for (int i = 0; i < RING; i++) NEED(!pipe(ring[i]));
    pid_t children[RING];
    for (int i = 1; i < RING; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            int value;
            while (read(ring[i - 1][0], &value, sizeof value) == sizeof value) {
                value++;
                if (write(ring[i][1], &value, sizeof value) != sizeof value) _exit(1);
            }
            _exit(0);
        }
    }
    int value = 0;
    for (int round = 0; round < 10; round++) {
        value++;
        NEED(write(ring[0][1], &value, sizeof value) == sizeof value);
        NEED(read(ring[RING - 1][0], &value, sizeof value) == sizeof value);
    }
    CHECK(value == RING * 10);
    for (int i = 1; i < RING; i++) {
        CHECK(!kill(children[i], SIGKILL) && waitpid(children[i], 0, 0) == children[i]);
    }
}

static void a_full_pipe_blocks_its_writer(void) {
    make(0);
    static char block[100000];
    pid_t child = fork();
    if (child == 0) _exit(write(ends[1], block, sizeof block) != sizeof block);
    usleep(30000);
    int status;
    CHECK(waitpid(child, &status, WNOHANG) == 0);
    long got = 0;
    while (got < (long)sizeof block) {
        ssize_t part = read(ends[0], block, 9999);
        NEED(part > 0);
        got += part;
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"bytes_in_order", bytes_in_order},
        {"ends_of_pipes", ends_of_pipes},
        {"without_blocking", without_blocking},
        {"vectors", vectors},
        {"polling", polling},
        {"selecting", selecting},
        {"descriptors", descriptors},
        {"packets", packets},
        {"many_pipes", many_pipes},
        {"a_full_pipe_blocks_its_writer", a_full_pipe_blocks_its_writer},
    };
    return RUN(cases, argc, argv);
}
