// Sockets: pairs, local names, TCP and UDP over loopback, messages with descriptors and credentials, ends and errors.
#include "check.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>

static int pair[2];

static void make_pair(int type) { NEED(!socketpair(AF_UNIX, type, 0, pair)); }

static int events(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    return poll(&p, 1, 0) < 0 ? -1 : p.revents;
}

static socklen_t local(struct sockaddr_un *at, const char *name) {
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    // A name that begins with @ is abstract.
    strcpy(at->sun_path, name);
    if (name[0] == '@') at->sun_path[0] = 0;
    return offsetof(struct sockaddr_un, sun_path) + strlen(name) + (name[0] != '@');
}

static struct sockaddr_in inet(uint32_t ip, int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(ip)}};
}

static int port_of(int fd) {
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    NEED(!getsockname(fd, (void *)&at, &len) && len == sizeof at && at.sin_family == AF_INET);
    return ntohs(at.sin_port);
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    return getsockopt(fd, level, name, &value, &len) ? -errno : value;
}

// --- pairs ----------------------------------------------------------------------------------------------------------

static void stream_pairs(void) {
    make_pair(SOCK_STREAM);
    char bytes[100];
    CHECK(write(pair[0], "abc", 3) == 3 && send(pair[0], "def", 3, 0) == 3);
    int ready;
    CHECK(!ioctl(pair[1], FIONREAD, &ready) && ready == 6);
    CHECK(recv(pair[1], bytes, 4, MSG_PEEK) == 4 && !memcmp(bytes, "abcd", 4));
    CHECK(read(pair[1], bytes, 100) == 6 && !memcmp(bytes, "abcdef", 6));
    FAILS(recv(pair[1], bytes, 1, MSG_DONTWAIT), EAGAIN);
    CHECK(events(pair[0]) == POLLOUT);
    CHECK(write(pair[1], "x", 1) == 1 && events(pair[0]) == (POLLOUT | POLLIN));
    CHECK(read(pair[0], bytes, 9) == 1);
    FAILS(lseek(pair[0], 0, SEEK_SET), ESPIPE);
    struct stat st;
    CHECK(!fstat(pair[0], &st) && S_ISSOCK(st.st_mode));
    CHECK(send(pair[0], "", 0, 0) == 0);
    FAILS(recv(pair[1], bytes, 1, MSG_DONTWAIT), EAGAIN);
}

static void all_bytes_in_order(void) {
    make_pair(SOCK_STREAM);
    enum { TOTAL = 3 << 20 };
    pid_t child = fork();
    if (child == 0) {
        close(pair[1]);
        static unsigned char block[70001];
        unsigned next = 0;
        for (int sent = 0, size = 1; sent < TOTAL; size = size * 3 % 70001 + 1) {
            int part = TOTAL - sent < size ? TOTAL - sent : size;
            for (int i = 0; i < part; i++) block[i] = next++ * 7;
            if (send(pair[0], block, part, 0) != part) _exit(1);
            sent += part;
        }
        _exit(0);
    }
    close(pair[0]);
    static unsigned char block[50021];
    unsigned next = 0;
    ssize_t got;
    for (int size = 1; (got = read(pair[1], block, size)) > 0; size = size * 5 % 50021 + 1) {
        for (int i = 0; i < got; i++) if (block[i] != (unsigned char)(next++ * 7)) NEED(!"the right byte");
    }
    CHECK(got == 0 && next == TOTAL);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void many_small_sends(void) {
    make_pair(SOCK_STREAM);
    CHECK(!fcntl(pair[0], F_SETFL, O_NONBLOCK));
    long sent = 0, got = 0;
    while (write(pair[0], "z", 1) == 1) sent++;
    CHECK(errno == EAGAIN && sent > 100 && !(events(pair[0]) & POLLOUT));
    char bytes[1000];
    while (got < sent) {
        ssize_t n = read(pair[1], bytes, sizeof bytes);
        NEED(n > 0);
        got += n;
    }
    CHECK(events(pair[0]) & POLLOUT);
}

static void ends_of_pairs(void) {
    char bytes[10];
    signal(SIGPIPE, SIG_IGN);
    make_pair(SOCK_STREAM);
    CHECK(write(pair[0], "abc", 3) == 3 && !close(pair[0]));
    CHECK(events(pair[1]) == (POLLIN | POLLOUT | POLLRDHUP | POLLHUP));
    CHECK(read(pair[1], bytes, 10) == 3 && read(pair[1], bytes, 10) == 0);
    FAILS(write(pair[1], "x", 1), EPIPE);
    close(pair[1]);
    // Closing with bytes unread resets.
    make_pair(SOCK_STREAM);
    CHECK(write(pair[0], "abc", 3) == 3 && !close(pair[1]));
    CHECK(events(pair[0]) & POLLERR);
    FAILS(read(pair[0], bytes, 1), ECONNRESET);
    CHECK(read(pair[0], bytes, 1) == 0);
    close(pair[0]);
    // Each direction by itself.
    make_pair(SOCK_STREAM);
    CHECK(!shutdown(pair[0], SHUT_WR) && read(pair[1], bytes, 1) == 0);
    CHECK(events(pair[1]) == (POLLIN | POLLOUT | POLLRDHUP) && events(pair[0]) == POLLOUT);
    FAILS(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK(write(pair[1], "y", 1) == 1 && read(pair[0], bytes, 9) == 1);
    CHECK(!shutdown(pair[0], SHUT_RD) && read(pair[0], bytes, 1) == 0);
    FAILS(send(pair[1], "x", 1, MSG_NOSIGNAL), EPIPE);
    FAILS(shutdown(pair[0], 3), EINVAL);
    CHECK(!shutdown(pair[0], SHUT_RDWR));
    close(pair[0]), close(pair[1]);
}

static volatile sig_atomic_t signals;
static void count_signal(int number) { (void)number, signals++; }

static void broken_pipes_signal(void) {
    signal(SIGPIPE, count_signal);
    make_pair(SOCK_STREAM);
    close(pair[1]);
    FAILS(write(pair[0], "x", 1), EPIPE);
    CHECK(signals == 1);
    FAILS(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    FAILS(sendto(pair[0], "x", 1, 0, 0, 0), EPIPE);
    CHECK(signals == 2);
}

static void packets_keep_their_bounds(void) {
    int types[] = {SOCK_SEQPACKET, SOCK_DGRAM};
    for (int i = 0; i < 2; i++) {
        make_pair(types[i]);
        char bytes[10];
        CHECK(send(pair[0], "abcdef", 6, 0) == 6 && send(pair[0], "", 0, 0) == 0 && send(pair[0], "xy", 2, 0) == 2);
        int ready;
        // All that is there, or the next message.
        CHECK(!ioctl(pair[1], FIONREAD, &ready) && ready == (i ? 6 : 8));
        CHECK(recv(pair[1], bytes, 3, MSG_PEEK | MSG_TRUNC) == 6 && !memcmp(bytes, "abc", 3));
        struct iovec piece = {bytes, 4};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
        CHECK(recvmsg(pair[1], &message, 0) == 4 && message.msg_flags & MSG_TRUNC);
        CHECK(recv(pair[1], bytes, 10, 0) == 0 && recv(pair[1], bytes, 10, 0) == 2 && bytes[0] == 'x');
        FAILS(recv(pair[1], bytes, 1, MSG_DONTWAIT), EAGAIN);
        static char big[1 << 20];
        FAILS(send(pair[0], big, sizeof big, 0), EMSGSIZE);
        CHECK(send(pair[0], big, 100000, 0) == 100000 && recv(pair[1], big, sizeof big, 0) == 100000);
        close(pair[0]), close(pair[1]);
    }
    make_pair(SOCK_SEQPACKET);
    char byte;
    close(pair[0]);
    CHECK(recv(pair[1], &byte, 1, 0) == 0);
    FAILS(send(pair[1], "x", 1, MSG_NOSIGNAL), EPIPE);
    make_pair(SOCK_DGRAM);
    close(pair[0]);
    errno = 0;
    CHECK(send(pair[1], "x", 1, 0) == -1 && (errno == ECONNREFUSED || errno == ECONNRESET || errno == ENOTCONN));
}

static void full_queues_wait(void) {
    int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
    for (int i = 0; i < 3; i++) {
        make_pair(types[i]);
        static char block[3000];
        int sent = 0;
        // A stream may take a part of the last.
        while (send(pair[0], block, sizeof block, MSG_DONTWAIT) > 0) sent++;
        CHECK(errno == EAGAIN);
        CHECK(sent > 3 && sent < 1000 && !(events(pair[0]) & POLLOUT));
        pid_t child = fork();
        if (child == 0) {
            usleep(20000);
            struct pollfd p = {.fd = pair[1], .events = POLLIN};
            while (poll(&p, 1, 200) > 0) recv(pair[1], block, sizeof block, 0);
            _exit(0);
        }
        struct pollfd p = {.fd = pair[0], .events = POLLOUT};
        CHECK(poll(&p, 1, 5000) == 1 && p.revents == POLLOUT);
        for (int n = 0; n < 200; n++) NEED(send(pair[0], block, sizeof block, 0) == sizeof block);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        close(pair[0]), close(pair[1]);
    }
}

static void waiting_for_all(void) {
    make_pair(SOCK_STREAM);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 10; i++) usleep(2000), (void)!write(pair[0], "0123456789", 10);
        _exit(0);
    }
    char bytes[100];
    CHECK(recv(pair[1], bytes, 100, MSG_WAITALL) == 100);
    wait(0);
    struct timeval time = {0, 20000};
    CHECK(!setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    FAILS(recv(pair[1], bytes, 1, 0), EAGAIN);
    socklen_t len = sizeof time;
    CHECK(!getsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &time, &len) && len == sizeof time && time.tv_usec == 20000);
    time.tv_usec = 2000000;
    FAILS(setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), EDOM);
    CHECK(!setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){0, 20000}, sizeof time));
    static char block[1 << 16];
    ssize_t put;
    while ((put = send(pair[0], block, sizeof block, 0)) == sizeof block) {
    }
    CHECK(put > 0 || errno == EAGAIN);
}

// --- messages with something along ------------------------------------------------------------------------------------

// Receives up to `room` bytes; fills `fds` and returns how many came.
static int receive_fds(int socket, int *fds, int room_for, int flags, ssize_t *bytes, int *out) {
    char control[CMSG_SPACE(300 * sizeof(int))], data[64];
    struct iovec piece = {data, sizeof data};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room_for ? CMSG_LEN(room_for * sizeof(int)) : 0};
    *bytes = recvmsg(socket, &message, flags);
    *out = message.msg_flags;
    struct cmsghdr *header = *bytes < 0 || !message.msg_controllen ? 0 : CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS) return 0;
    int count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(header), count * sizeof(int));
    return count;
}

static void descriptors_travel(void) {
    int types[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
    for (int i = 0; i < 3; i++) {
        make_pair(types[i]);
        int ends[2], got[300], flags;
        ssize_t bytes;
        NEED(!pipe(ends));
        CHECK(send_files(pair[0], ends, 2, "ab", 2, 0) == 2);
        CHECK(receive_fds(pair[1], got, 10, MSG_CMSG_CLOEXEC, &bytes, &flags) == 2 && bytes == 2);
        CHECK(flags == MSG_CMSG_CLOEXEC && fcntl(got[0], F_GETFD) == FD_CLOEXEC);
        char byte;
        CHECK(write(got[1], "q", 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == 'q');
        close(got[0]), close(got[1]);
        // Without room they are lost, and so are those that a plain read passes by.
        CHECK(send_files(pair[0], ends, 2, "c", 1, 0) == 1);
        CHECK(receive_fds(pair[1], got, 1, 0, &bytes, &flags) == 1 && flags == MSG_CTRUNC && fcntl(got[0], F_GETFD) == 0);
        close(got[0]);
        CHECK(send_files(pair[0], ends, 2, "c", 1, 0) == 1 && recv(pair[1], &byte, 1, 0) == 1);
        // A look leaves them there.
        CHECK(send_files(pair[0], ends + 1, 1, "d", 1, 0) == 1);
        CHECK(receive_fds(pair[1], got, 4, MSG_PEEK, &bytes, &flags) == 1 && bytes == 1);
        close(got[0]);
        CHECK(receive_fds(pair[1], got, 4, 0, &bytes, &flags) == 1);
        close(got[0]);
        // Nothing is lost with a receiver that never looks.
        CHECK(send_files(pair[0], ends, 2, "e", 1, 0) == 1);
        close(ends[1]), close(pair[0]), close(pair[1]);
        CHECK(read(ends[0], &byte, 1) == 0);
        close(ends[0]);
    }
    make_pair(SOCK_STREAM);
    int fds[300], count, got[300], flags;
    for (int i = 0; i < 300; i++) fds[i] = pair[0];
    ssize_t bytes;
    CHECK(send_files(pair[0], fds, 253, "f", 1, 0) == 1);
    CHECK((count = receive_fds(pair[1], got, 253, 0, &bytes, &flags)) == 253 && !(flags & MSG_CTRUNC));
    for (int i = 0; i < count; i++) close(got[i]);
    FAILS(send_files(pair[0], fds, 254, "f", 1, 0), EINVAL);
    fds[3] = 999;
    FAILS(send_files(pair[0], fds, 5, "f", 1, 0), EBADF);
}

static void descriptors_bound_streams(void) {
    make_pair(SOCK_STREAM);
    int ends[2], got[4], flags;
    ssize_t bytes;
    NEED(!pipe(ends));
    CHECK(write(pair[0], "abc", 3) == 3 && send_files(pair[0], ends, 1, "def", 3, 0) == 3 && write(pair[0], "ghi", 3) == 3);
    // Bytes before a message with descriptors may be read with it, and none behind.
    CHECK(receive_fds(pair[1], got, 4, 0, &bytes, &flags) <= 1);
    CHECK(bytes == 3 || bytes == 6);
    if (bytes == 3) CHECK(receive_fds(pair[1], got, 4, 0, &bytes, &flags) == 1 && bytes == 3);
    CHECK(receive_fds(pair[1], got, 4, 0, &bytes, &flags) == 0 && bytes == 3);
}

// Rings of sockets that only their own messages refer to.
static void rings_are_found(void) {
    struct rlimit before, few = {64, 64};
    NEED(!getrlimit(RLIMIT_NOFILE, &before));
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, before.rlim_max}), (void)few;
    for (int round = 0; round < 500; round++) {
        int other[2];
        make_pair(SOCK_STREAM);
        NEED(!socketpair(AF_UNIX, SOCK_DGRAM, 0, other));
        NEED(send_files(pair[0], pair, 2, "a", 1, 0) == 1);
        NEED(send_files(other[0], other + 1, 1, "b", 1, 0) == 1);
        NEED(send_files(pair[1], other, 2, "c", 1, 0) == 1);
        NEED(send_files(other[1], pair, 2, "d", 1, 0) == 1);
        close(pair[0]), close(pair[1]), close(other[0]), close(other[1]);
    }
    setrlimit(RLIMIT_NOFILE, &before);
}

// A file with a record lock and a lock of its own, and without a name.
static int locked_file(void) {
    char name[] = "/tmp/ring.XXXXXX";
    int file = mkstemp(name);
    struct flock all = {.l_type = F_WRLCK};
    NEED(file >= 0 && !unlink(name) && !fcntl(file, F_OFD_SETLK, &all) && !flock(file, LOCK_EX));
    NEED(!ftruncate(file, 1 << 20));
    return file;
}

// A poll set with a file in it.
static int poll_set(int of) {
    int set = epoll_create1(0);
    NEED(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, of, &(struct epoll_event){.events = EPOLLIN}));
    return set;
}

static int listening(void) {
    struct sockaddr_in at = inet(INADDR_LOOPBACK, 0);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    NEED(listener >= 0 && !bind(listener, (void *)&at, sizeof at) && !listen(listener, 4));
    return listener;
}

// A ring may hold files of any kind; they are closed with it, though no thread of a program does it.
static void rings_hold_files_of_all_kinds(void) {
    int ends[2], files[32], n = 0;
    sigset_t none;
    sigemptyset(&none);
    NEED(!pipe(ends));
    make_pair(SOCK_STREAM);
    files[n++] = ends[1];
    files[n++] = locked_file();
    files[n++] = poll_set(ends[0]);
    files[n++] = eventfd(1, 0);
    files[n++] = timerfd_create(CLOCK_MONOTONIC, 0);
    NEED(!timerfd_settime(files[n - 1], 0, &(struct itimerspec){{0, 1000}, {0, 1000}}, 0));
    files[n++] = signalfd(-1, &none, 0);
    files[n++] = memfd_create("ring", 0);
    files[n++] = inotify_init1(0);
    files[n++] = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    files[n++] = open("/proc/self/maps", O_RDONLY);
    files[n++] = open("/proc/self/mem", O_RDWR);
    files[n++] = open("/proc/self", O_RDONLY | O_DIRECTORY);
    files[n++] = open("/", O_PATH);
    files[n++] = open("/dev/null", O_RDWR);
    files[n++] = open("/dev/urandom", O_RDONLY);
    files[n++] = syscall(SYS_pidfd_open, getpid(), 0);
    files[n++] = socket(AF_INET, SOCK_DGRAM, 0);
    int listener = files[n++] = listening();
    struct sockaddr_in at = inet(INADDR_LOOPBACK, port_of(listener));
    // The connection waits to be accepted, and its client goes, too.
    int client = files[n++] = socket(AF_INET, SOCK_STREAM, 0);
    NEED(!connect(client, (void *)&at, sizeof at) && send(client, "x", 1, 0) == 1);
    int held = 0;
    for (int i = 0; i < n; i++) {
        if (files[i] >= 0 && send_files(pair[0], files + i, 1, "f", 1, 0) == 1) held++;
        close(files[i]);
    }
    // Some kinds there are on Linux alone.
    CHECK(held >= 16);
    NEED(send_files(pair[0], pair, 2, "r", 1, 0) == 1);
    CHECK(events(ends[0]) == 0);
    close(pair[0]), close(pair[1]);
    // No other close asks for a collection here; Linux looks at the next one.
    struct pollfd last = {.fd = ends[0]};
    for (int i = 0; i < 200 && poll(&last, 1, 50) == 0; i++) rings_are_found();
    CHECK(last.revents == POLLHUP);
    close(ends[0]);
}

// Listens under a name that nobody else has.
static int listens(struct sockaddr_un *at, socklen_t *len) {
    static int number;
    char name[40];
    sprintf(name, "@ring.%d.%d", getpid(), number++);
    *len = local(at, name);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    NEED(listener >= 0 && !bind(listener, (void *)at, *len) && !listen(listener, 5));
    return listener;
}

// A listener, and a client that it has not accepted.
static void unaccepted(int *listener, int *client) {
    struct sockaddr_un at;
    socklen_t len;
    *listener = listens(&at, &len), *client = socket(AF_UNIX, SOCK_STREAM, 0);
    NEED(*client >= 0 && !connect(*client, (void *)&at, len));
}

enum { RING_KIB = 16 << 10 };

// Sends a socket and much memory.
static void send_with_memory(int over, int what) {
    int memory = memfd_create("ring", 0);
    NEED(memory >= 0 && !ftruncate(memory, RING_KIB << 10));
    char *at = mmap(0, RING_KIB << 10, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    NEED(at != MAP_FAILED);
    memset(at, 1, RING_KIB << 10);
    NEED(send_files(over, (int[]){what, memory}, 2, "m", 1, 0) == 1);
    munmap(at, RING_KIB << 10), close(memory);
}

// Whether the memory of so many rings is there after some descriptors were closed.
static int rings_there(long before) {
    long now = 0;
    int pair[2];
    for (int i = 0; i < 20; i++) {
        NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        close(pair[0]), close(pair[1]), usleep(10000);
        now = number_after("/proc/meminfo", "Shmem:") - before;
    }
    return (now + RING_KIB / 2) / RING_KIB;
}

// Rings through connections that nobody has accepted.
static void rings_of_listeners_are_found(void) {
    long before = number_after("/proc/meminfo", "Shmem:");
    int listeners[2], clients[2];
    for (int i = 0; i < 2; i++) unaccepted(listeners + i, clients + i);
    send_with_memory(clients[0], listeners[0]);
    close(listeners[0]), close(clients[0]), close(listeners[1]), close(clients[1]);
    CHECK(rings_there(before) == 0);
    for (int i = 0; i < 2; i++) unaccepted(listeners + i, clients + i);
    for (int i = 0; i < 2; i++) send_with_memory(clients[i], listeners[!i]);
    for (int i = 0; i < 2; i++) close(listeners[i]), close(clients[i]);
    CHECK(rings_there(before) == 0);
    // The client itself is on its way, too.
    unaccepted(listeners, clients);
    send_with_memory(clients[0], listeners[0]);
    NEED(send_files(clients[0], clients, 1, "c", 1, 0) == 1);
    close(listeners[0]), close(clients[0]);
    CHECK(rings_there(before) == 0);
}

// Accepts a connection and takes the memory out of it.
static void accept_memory(int listener) {
    int server = accept(listener, 0, 0), got[4], flags;
    struct stat st;
    ssize_t bytes;
    NEED(server >= 0 && receive_fds(server, got, 4, 0, &bytes, &flags) == 2);
    CHECK(!fstat(got[1], &st) && st.st_size == RING_KIB << 10);
    close(got[0]), close(got[1]), close(server);
}

static void living_listeners_keep_their_rings(void) {
    long before = number_after("/proc/meminfo", "Shmem:");
    int listener, client, got[4], flags;
    ssize_t bytes;
    // A program has the listener.
    unaccepted(&listener, &client);
    send_with_memory(client, listener);
    close(client);
    CHECK(rings_there(before) == 1);
    accept_memory(listener);
    close(listener);
    // A message has it that a program can receive.
    make_pair(SOCK_STREAM);
    unaccepted(&listener, &client);
    send_with_memory(client, listener);
    NEED(send_files(pair[0], &listener, 1, "l", 1, 0) == 1);
    close(listener), close(client);
    CHECK(rings_there(before) == 1);
    NEED(receive_fds(pair[1], got, 4, 0, &bytes, &flags) == 1);
    accept_memory(got[0]);
    close(got[0]);
    // Who has accepted the connection doesn't need the listener.
    unaccepted(&listener, &client);
    send_with_memory(client, listener);
    int server = accept(listener, 0, 0);
    close(listener), close(client);
    CHECK(rings_there(before) == 1);
    NEED(server >= 0 && receive_fds(server, got, 4, 0, &bytes, &flags) == 2);
    close(got[0]), close(got[1]), close(server);
    CHECK(rings_there(before) == 0);
}

// A connection that no thread can accept ends, though a program has its client.
static void clients_keep_no_rings(void) {
    long before = number_after("/proc/meminfo", "Shmem:");
    int listener, client;
    unaccepted(&listener, &client);
    send_with_memory(client, listener);
    close(listener);
    CHECK(rings_there(before) == 0);
    CHECK(send(client, "x", 1, MSG_NOSIGNAL) < 0);
    close(client);
}

// A long row of sockets, each in the queue of the next.
static void rows_cost_no_stack(void) {
    int inner = open("/dev/null", O_RDONLY);
    for (int i = 0; i < 300; i++) {
        make_pair(SOCK_STREAM);
        if (send_files(pair[0], &inner, 1, "r", 1, 0) != 1) {
            CHECK(errno == ETOOMANYREFS);
            break;
        }
        close(inner), close(pair[0]);
        inner = pair[1];
    }
    CHECK(!close(inner));
}

static void too_many_on_their_way(void) {
    make_pair(SOCK_DGRAM);
    if (setgid(1000) || setuid(1000)) return;
    struct rlimit limit;
    NEED(!getrlimit(RLIMIT_NOFILE, &limit));
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){100, limit.rlim_max});
    int fds[50];
    for (int i = 0; i < 50; i++) fds[i] = pair[0];
    int sent = 0;
    while (sent < 20 && send_files(pair[0], fds, 50, "x", 1, 0) == 1) sent++;
    CHECK(sent >= 1 && sent <= 4 && errno == ETOOMANYREFS);
}

static void who_sends(void) {
    make_pair(SOCK_DGRAM);
    int one = 1;
    char control[200], byte;
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    CHECK(!setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &one, sizeof one) && option(pair[1], SOL_SOCKET, SO_PASSCRED) == 1);
    CHECK(send(pair[0], "x", 1, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    struct ucred *cred = header ? (void *)CMSG_DATA(header) : 0;
    CHECK(header && header->cmsg_type == SCM_CREDENTIALS && header->cmsg_len == CMSG_LEN(sizeof *cred));
    CHECK(cred && cred->pid == getpid() && cred->uid == getuid() && cred->gid == getgid());
    // A receiver with no memory for it is told that it was cut; one with room for a header gets a header.
    message.msg_control = 0;
    CHECK(send(pair[0], "x", 1, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
    CHECK(message.msg_flags == MSG_CTRUNC && message.msg_controllen == 0);
    struct cmsghdr only;
    message.msg_control = &only, message.msg_controllen = sizeof only;
    CHECK(send(pair[0], "x", 1, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
    CHECK(message.msg_flags == MSG_CTRUNC && message.msg_controllen == sizeof only && only.cmsg_len == CMSG_LEN(0));
    message.msg_control = control;
    // The superuser may say that he is another; others may not.
    message.msg_controllen = CMSG_SPACE(sizeof *cred);
    cred->uid = 77;
    CHECK(sendmsg(pair[0], &message, 0) == 1);
    message.msg_controllen = sizeof control;
    CHECK(recvmsg(pair[1], &message, 0) == 1 && ((struct ucred *)CMSG_DATA(CMSG_FIRSTHDR(&message)))->uid == 77);
    if (setgid(1000) || setuid(1000)) return;
    FAILS(sendmsg(pair[0], &message, 0), EPERM);
    socklen_t len = sizeof *cred;
    struct ucred peer;
    CHECK(!getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &peer, &len) && peer.pid == getpid() && peer.uid == 0);
}

static void many_messages(void) {
    make_pair(SOCK_DGRAM);
    struct mmsghdr messages[5];
    struct iovec pieces[5];
    char bytes[5][10] = {"a", "bb", "ccc", "dddd", "eeeee"};
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 5; i++) {
        pieces[i] = (struct iovec){bytes[i], i + 1};
        messages[i].msg_hdr.msg_iov = &pieces[i], messages[i].msg_hdr.msg_iovlen = 1;
    }
    CHECK(sendmmsg(pair[0], messages, 5, 0) == 5 && messages[3].msg_len == 4);
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 5; i++) pieces[i].iov_len = 10, messages[i].msg_len = 0;
    CHECK(recvmmsg(pair[1], messages, 5, MSG_DONTWAIT, 0) == 5 && messages[4].msg_len == 5 && !strcmp(bytes[4], "eeeee"));
    FAILS(recvmmsg(pair[1], messages, 5, MSG_DONTWAIT, 0), EAGAIN);
    CHECK(send(pair[0], "1", 1, 0) == 1 && recvmmsg(pair[1], messages, 5, MSG_WAITFORONE, 0) == 1);
}

// --- local names --------------------------------------------------------------------------------------------------------

static void local_names(void) {
    struct sockaddr_un at, got;
    socklen_t len = local(&at, "/tmp/socket.a"), got_len;
    unlink("/tmp/socket.a");
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    NEED(server >= 0 && client >= 0);
    CHECK(fcntl(server, F_GETFD) == FD_CLOEXEC);
    FAILS(connect(client, (void *)&at, len), ENOENT);
    FAILS(listen(server, 1), EINVAL);
    CHECK(!bind(server, (void *)&at, len));
    CHECK(bind(server, (void *)&at, len) == -1 && (errno == EINVAL || errno == EADDRINUSE));
    FAILS(bind(client, (void *)&at, len), EADDRINUSE);
    struct stat st;
    CHECK(!stat("/tmp/socket.a", &st) && S_ISSOCK(st.st_mode));
    FAILS(open("/tmp/socket.a", O_RDWR), ENXIO);
    FAILS(connect(client, (void *)&at, len), ECONNREFUSED);
    FAILS(accept(server, 0, 0), EINVAL);
    CHECK(!listen(server, 5) && option(server, SOL_SOCKET, SO_ACCEPTCONN) == 1);
    CHECK(!(events(server) & POLLIN));
    CHECK(!connect(client, (void *)&at, len));
    CHECK(events(server) & POLLIN);
    FAILS(connect(client, (void *)&at, len), EISCONN);
    // Sent before anybody accepts.
    CHECK(write(client, "early", 5) == 5);
    got_len = sizeof got;
    int peer = accept4(server, (void *)&got, &got_len, SOCK_NONBLOCK);
    NEED(peer >= 0);
    CHECK(got_len == 2 && got.sun_family == AF_UNIX && fcntl(peer, F_GETFL) & O_NONBLOCK);
    char bytes[10];
    CHECK(read(peer, bytes, 10) == 5);
    got_len = sizeof got;
    CHECK(!getpeername(client, (void *)&got, &got_len) && got_len == len && !strcmp(got.sun_path, "/tmp/socket.a"));
    got_len = sizeof got;
    CHECK(!getsockname(peer, (void *)&got, &got_len) && got_len == len);
    got_len = sizeof got;
    CHECK(!getsockname(client, (void *)&got, &got_len) && got_len == 2);
    FAILS(getpeername(server, (void *)&got, &got_len), ENOTCONN);
    struct ucred cred;
    got_len = sizeof cred;
    CHECK(!getsockopt(client, SOL_SOCKET, SO_PEERCRED, &cred, &got_len) && cred.pid == getpid());
    int dgram = socket(AF_UNIX, SOCK_DGRAM, 0);
    FAILS(connect(dgram, (void *)&at, len), EPROTOTYPE);
    FAILS(accept(dgram, 0, 0), EOPNOTSUPP);
    FAILS(listen(dgram, 1), EOPNOTSUPP);
    // The name stays when its socket goes, and leads to nobody.
    close(server), close(client), close(peer);
    client = socket(AF_UNIX, SOCK_STREAM, 0);
    FAILS(connect(client, (void *)&at, len), ECONNREFUSED);
    FAILS(bind(client, (void *)&at, len), EADDRINUSE);
    CHECK(!unlink("/tmp/socket.a") && !bind(client, (void *)&at, len) && !unlink("/tmp/socket.a"));
}

static void abstract_names(void) {
    struct sockaddr_un at, got;
    socklen_t len = local(&at, "@uvm-test"), got_len = sizeof got;
    int server = socket(AF_UNIX, SOCK_SEQPACKET, 0), client = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CHECK(!bind(server, (void *)&at, len) && !listen(server, 1) && !connect(client, (void *)&at, len));
    CHECK(!getsockname(server, (void *)&got, &got_len) && got_len == len && !memcmp(&got, &at, len));
    int other = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    FAILS(bind(other, (void *)&at, len), EADDRINUSE);
    int peer = accept(server, 0, 0);
    char bytes[10];
    CHECK(send(peer, "one", 3, 0) == 3 && send(peer, "two", 3, 0) == 3);
    CHECK(recv(client, bytes, 10, 0) == 3 && recv(client, bytes, 10, 0) == 3 && !memcmp(bytes, "two", 3));
    close(server);
    FAILS(connect(other, (void *)&at, len), ECONNREFUSED);
    CHECK(!bind(other, (void *)&at, len));
    // Without a name, the kernel finds one.
    int unnamed = socket(AF_UNIX, SOCK_DGRAM, 0);
    got_len = sizeof got;
    CHECK(!bind(unnamed, (void *)&at, 2) && !getsockname(unnamed, (void *)&got, &got_len) && got_len == 8 && !got.sun_path[0]);
}

static void local_datagrams(void) {
    struct sockaddr_un a, b, from;
    socklen_t a_len = local(&a, "@dgram-a"), b_len = local(&b, "@dgram-b"), from_len = sizeof from;
    int one = socket(AF_UNIX, SOCK_DGRAM, 0), two = socket(AF_UNIX, SOCK_DGRAM, 0), three = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK(!bind(one, (void *)&a, a_len) && !bind(two, (void *)&b, b_len));
    CHECK(sendto(one, "hi", 2, 0, (void *)&b, b_len) == 2);
    char bytes[10];
    CHECK(recvfrom(two, bytes, 10, 0, (void *)&from, &from_len) == 2 && from_len == a_len && !memcmp(&from, &a, a_len));
    FAILS(send(one, "x", 1, 0), ENOTCONN);
    CHECK(!connect(one, (void *)&b, b_len) && send(one, "y", 1, 0) == 1 && recv(two, bytes, 10, 0) == 1);
    CHECK(!connect(two, (void *)&a, a_len));
    FAILS(sendto(three, "z", 1, 0, (void *)&b, b_len), EPERM);
    from_len = sizeof from;
    CHECK(!connect(three, (void *)&(struct sockaddr_un){0}, 2) || errno == EINVAL);
    close(two);
    FAILS(sendto(three, "z", 1, 0, (void *)&b, b_len), ECONNREFUSED);
}

static void full_backlogs(void) {
    struct sockaddr_un at;
    socklen_t len = local(&at, "@backlog");
    int server = socket(AF_UNIX, SOCK_STREAM, 0), clients[20], connected = 0;
    NEED(!bind(server, (void *)&at, len) && !listen(server, 2));
    for (int i = 0; i < 20; i++) {
        clients[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connected += !connect(clients[i], (void *)&at, len);
    }
    CHECK(connected == 3 && errno == EAGAIN);
    pid_t child = fork();
    if (child == 0) {
        int client = socket(AF_UNIX, SOCK_STREAM, 0);
        _exit(connect(client, (void *)&at, len) || write(client, "w", 1) != 1);
    }
    usleep(20000);
    char byte = 0;
    int peer = -1;
    for (int i = 0; i < 4; i++) peer = accept(server, 0, 0);
    CHECK(read(peer, &byte, 1) == 1 && byte == 'w');
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    // Who was never accepted hears of the end.
    NEED(!connect(clients[10], (void *)&at, len));
    close(server);
    FAILS(read(clients[10], &byte, 1), ECONNRESET);
}

// --- TCP -------------------------------------------------------------------------------------------------------------------

static int tcp_server(int backlog) {
    int server = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = inet(INADDR_LOOPBACK, 0);
    NEED(server >= 0 && !bind(server, (void *)&at, sizeof at) && !listen(server, backlog));
    return server;
}

static int tcp_client(int server) {
    int client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = inet(INADDR_LOOPBACK, port_of(server));
    NEED(client >= 0 && !connect(client, (void *)&at, sizeof at));
    return client;
}

static void tcp_connections(void) {
    int server = tcp_server(5), client = tcp_client(server);
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    int peer = accept(server, (void *)&at, &len);
    NEED(peer >= 0);
    CHECK(len == sizeof at && ntohl(at.sin_addr.s_addr) == INADDR_LOOPBACK && ntohs(at.sin_port) == port_of(client));
    CHECK(port_of(peer) == port_of(server));
    CHECK(!getpeername(client, (void *)&at, &len) && ntohs(at.sin_port) == port_of(server));
    char bytes[100];
    CHECK(write(client, "request", 7) == 7 && read(peer, bytes, 100) == 7);
    CHECK(write(peer, "answer", 6) == 6 && recv(client, bytes, 100, MSG_PEEK) == 6 && recv(client, bytes, 100, 0) == 6);
    int one = 1;
    CHECK(!setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) && option(client, IPPROTO_TCP, TCP_NODELAY) == 1);
    CHECK(!setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) && option(client, SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(option(client, SOL_SOCKET, SO_TYPE) == SOCK_STREAM && option(client, SOL_SOCKET, SO_DOMAIN) == AF_INET);
    CHECK(option(client, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP && option(client, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(option(client, SOL_SOCKET, 12345) == -ENOPROTOOPT);
    // Half of it ends.
    CHECK(!shutdown(client, SHUT_WR) && read(peer, bytes, 1) == 0 && write(peer, "late", 4) == 4 && read(client, bytes, 9) == 4);
    FAILS(send(client, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK(events(peer) == (POLLIN | POLLOUT | POLLRDHUP));
    CHECK(!shutdown(peer, SHUT_WR) && events(peer) & POLLHUP && read(client, bytes, 1) == 0);
    close(client), close(peer);
    // What is sent to an end that has gone is lost, and the next call hears of it.
    client = tcp_client(server), peer = accept(server, 0, 0);
    close(peer), usleep(1000);
    CHECK(send(client, "lost", 4, MSG_NOSIGNAL) == 4);
    usleep(1000);
    FAILS(send(client, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK(read(client, bytes, 1) == 0 && events(client) & POLLHUP);
    close(client);
    // Only as much is lost as is on the way at a time.
    client = tcp_client(server), peer = accept(server, 0, 0);
    int small = 1;
    CHECK(!setsockopt(client, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
    close(peer), usleep(1000);
    static char much[1 << 20];
    ssize_t sent = send(client, much, sizeof much, MSG_NOSIGNAL);
    CHECK(sent > 0 && sent < (ssize_t)sizeof much);
    FAILS(send(client, much, sizeof much, MSG_NOSIGNAL), EPIPE);
    close(client);
    // An end with bytes unread is a reset.
    client = tcp_client(server), peer = accept(server, 0, 0);
    CHECK(write(client, "unread", 6) == 6);
    usleep(1000), close(peer), usleep(1000);
    CHECK(events(client) & POLLERR && events(client) & POLLHUP);
    FAILS(read(client, bytes, 1), ECONNRESET);
    CHECK(read(client, bytes, 1) == 0);
    close(client);
    // So is lingering for no time.
    client = tcp_client(server), peer = accept(server, 0, 0);
    struct linger linger = {1, 0};
    CHECK(!setsockopt(peer, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) && !close(peer));
    usleep(1000);
    FAILS(read(client, bytes, 1), ECONNRESET);
}

static void tcp_refusals(void) {
    int server = tcp_server(5), port = port_of(server), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = inet(INADDR_LOOPBACK, port);
    close(server);
    FAILS(connect(client, (void *)&at, sizeof at), ECONNREFUSED);
    close(client);
    char byte;
    client = socket(AF_INET, SOCK_STREAM, 0);
    FAILS(read(client, &byte, 1), ENOTCONN);
    FAILS(send(client, "x", 1, MSG_NOSIGNAL), EPIPE);
    FAILS(shutdown(client, SHUT_WR), ENOTCONN);
    FAILS(getpeername(client, (void *)&at, &(socklen_t){sizeof at}), ENOTCONN);
    FAILS(bind(client, (void *)&at, 4), EINVAL);
    at.sin_family = AF_INET6;
    FAILS(bind(client, (void *)&at, sizeof at), EAFNOSUPPORT);
    at = inet(0x08080808, 5000);
    FAILS(bind(client, (void *)&at, sizeof at), EADDRNOTAVAIL);
    FAILS(connect(client, (void *)&at, sizeof at), ENETUNREACH);
    FAILS(socket(AF_INET, SOCK_SEQPACKET, 0), ESOCKTNOSUPPORT);
    FAILS(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    FAILS(socket(12345, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(listen(0, 1), ENOTSOCK);
    // One port, one server; with their consent, one after the other.
    server = tcp_server(1);
    int other = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    at = inet(INADDR_ANY, port_of(server));
    FAILS(bind(other, (void *)&at, sizeof at), EADDRINUSE);
    CHECK(!setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    FAILS(bind(other, (void *)&at, sizeof at), EADDRINUSE);
}

static int with_options(int address, int port_too) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    NEED(fd >= 0);
    NEED(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &address, sizeof address));
    NEED(!setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &port_too, sizeof port_too));
    return fd;
}

// Of one user, sockets share a port by SO_REUSEPORT; nobody takes another user's connections.
static void ports_are_not_taken_over(void) {
    for (int shared = 0; shared < 2; shared++) {
        int server = with_options(1, shared);
        struct sockaddr_in at = inet(INADDR_ANY, 0), exact;
        NEED(!bind(server, (void *)&at, sizeof at) && !listen(server, 5));
        at = inet(INADDR_ANY, port_of(server)), exact = inet(INADDR_LOOPBACK, port_of(server));
        int own = with_options(1, 1);
        if (shared) CHECK(!bind(own, (void *)&exact, sizeof exact) && !listen(own, 5));
        else FAILS(bind(own, (void *)&exact, sizeof exact), EADDRINUSE);
        pid_t child = fork();
        if (child == 0) {
            NEED(!setresuid(1000, 1000, 1000));
            for (int port_too = 0; port_too < 2; port_too++) {
                FAILS(bind(with_options(1, port_too), (void *)&at, sizeof at), EADDRINUSE);
                FAILS(bind(with_options(1, port_too), (void *)&exact, sizeof exact), EADDRINUSE);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        close(own), close(server);
    }
    // Two that have an address together: one of them listens.
    int first = with_options(1, 0), second = with_options(1, 0);
    struct sockaddr_in at = inet(INADDR_LOOPBACK, 0);
    NEED(!bind(first, (void *)&at, sizeof at));
    at = inet(INADDR_LOOPBACK, port_of(first));
    CHECK(!bind(second, (void *)&at, sizeof at) && !listen(first, 5));
    FAILS(listen(second, 5), EADDRINUSE);
    close(first);
    CHECK(!listen(second, 5));
    close(second);
}

static void tcp_without_waiting(void) {
    int server = tcp_server(5), client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(!fcntl(server, F_SETFL, O_NONBLOCK));
    FAILS(accept(server, 0, 0), EAGAIN);
    struct sockaddr_in at = inet(INADDR_LOOPBACK, port_of(server));
    FAILS(connect(client, (void *)&at, sizeof at), EINPROGRESS);
    struct pollfd p = {.fd = client, .events = POLLOUT};
    CHECK(poll(&p, 1, 1000) == 1 && p.revents == POLLOUT && option(client, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(!connect(client, (void *)&at, sizeof at));
    FAILS(connect(client, (void *)&at, sizeof at), EISCONN);
    p = (struct pollfd){.fd = server, .events = POLLIN};
    CHECK(poll(&p, 1, 1000) == 1);
    int peer = accept(server, 0, 0);
    CHECK(peer >= 0 && !(fcntl(peer, F_GETFL) & O_NONBLOCK));
    char byte;
    FAILS(read(client, &byte, 1), EAGAIN);
    close(server), close(client), close(peer);
    client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    FAILS(connect(client, (void *)&at, sizeof at), EINPROGRESS);
    p = (struct pollfd){.fd = client, .events = POLLOUT};
    CHECK(poll(&p, 1, 1000) == 1 && p.revents & POLLERR && option(client, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
}

static void *serve(void *server) {
    for (int n = 0; n < 200; n++) {
        int peer = accept((int)(intptr_t)server, 0, 0);
        char bytes[4096];
        ssize_t got;
        while ((got = read(peer, bytes, sizeof bytes)) > 0) if (write(peer, bytes, got) != got) break;
        close(peer);
    }
    return 0;
}

static void a_server_and_clients(void) {
    int server = tcp_server(3);
    pthread_t thread;
    NEED(!pthread_create(&thread, 0, serve, (void *)(intptr_t)server));
    for (int n = 0; n < 200; n++) {
        int client = tcp_client(server);
        char out[3000], in[3000];
        memset(out, n, sizeof out);
        NEED(write(client, out, sizeof out) == sizeof out);
        NEED(recv(client, in, sizeof in, MSG_WAITALL) == sizeof in && !memcmp(in, out, sizeof in));
        close(client);
    }
    pthread_join(thread, 0);
}

static void epoll_on_sockets(void) {
    int server = tcp_server(5), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = server}, got[4];
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, server, &event) && epoll_wait(set, got, 4, 0) == 0);
    int client = tcp_client(server);
    CHECK(epoll_wait(set, got, 4, 1000) == 1 && got[0].data.fd == server && got[0].events == EPOLLIN);
    int peer = accept(server, 0, 0);
    event = (struct epoll_event){.events = EPOLLIN | EPOLLRDHUP, .data.fd = peer};
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, peer, &event) && epoll_wait(set, got, 4, 0) == 0);
    CHECK(write(client, "x", 1) == 1 && epoll_wait(set, got, 4, 1000) == 1 && got[0].events == EPOLLIN);
    char byte;
    CHECK(read(peer, &byte, 1) == 1 && epoll_wait(set, got, 4, 0) == 0);
    close(client);
    CHECK(epoll_wait(set, got, 4, 1000) == 1 && got[0].events == (EPOLLIN | EPOLLRDHUP));
}

static void version_six(void) {
    int server = socket(AF_INET6, SOCK_STREAM, 0);
    if (server < 0) return;
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any}, from;
    if (bind(server, (void *)&at, sizeof at)) {
        // A machine may have been started without version 6.
        CHECK(errno == EADDRNOTAVAIL);
        return;
    }
    socklen_t len = sizeof at;
    CHECK(!listen(server, 5) && !getsockname(server, (void *)&at, &len) && len == sizeof at && at.sin6_port);
    int client = socket(AF_INET6, SOCK_STREAM, 0);
    at.sin6_addr = in6addr_loopback;
    CHECK(!connect(client, (void *)&at, sizeof at));
    len = sizeof from;
    int peer = accept(server, (void *)&from, &len);
    CHECK(peer >= 0 && len == sizeof from && !memcmp(&from.sin6_addr, &in6addr_loopback, 16));
    // Version 4 comes in as well, under a name of version 6.
    int four = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at4 = inet(INADDR_LOOPBACK, ntohs(at.sin6_port));
    CHECK(!connect(four, (void *)&at4, sizeof at4));
    peer = accept(server, (void *)&from, &len);
    CHECK(peer >= 0 && IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
    CHECK(write(four, "4", 1) == 1 && read(peer, &(char){0}, 1) == 1);
}

// --- UDP -------------------------------------------------------------------------------------------------------------------

static void udp_datagrams(void) {
    int one = socket(AF_INET, SOCK_DGRAM, 0), two = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = inet(INADDR_LOOPBACK, 0), from;
    socklen_t len = sizeof from;
    NEED(!bind(one, (void *)&at, sizeof at));
    at = inet(INADDR_LOOPBACK, port_of(one));
    CHECK(sendto(two, "hello", 5, 0, (void *)&at, sizeof at) == 5);
    char bytes[10];
    CHECK(recvfrom(one, bytes, 10, 0, (void *)&from, &len) == 5 && len == sizeof from);
    CHECK(ntohs(from.sin_port) == port_of(two) && ntohl(from.sin_addr.s_addr) == INADDR_LOOPBACK);
    CHECK(sendto(one, "back", 4, 0, (void *)&from, len) == 4 && recv(two, bytes, 10, 0) == 4);
    FAILS(send(two, "x", 1, 0), EDESTADDRREQ);
    CHECK(!connect(two, (void *)&at, sizeof at) && send(two, "abc", 3, 0) == 3);
    CHECK(recv(one, bytes, 2, MSG_TRUNC) == 3);
    // A connected one hears its peer only.
    int three = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = inet(INADDR_LOOPBACK, port_of(two));
    CHECK(sendto(three, "no", 2, 0, (void *)&to, sizeof to) == 2);
    FAILS(recv(two, bytes, 10, MSG_DONTWAIT), EAGAIN);
    static char big[70000];
    FAILS(send(two, big, sizeof big, 0), EMSGSIZE);
    CHECK(send(two, big, 60000, 0) == 60000 && recv(one, big, sizeof big, 0) == 60000);
    // Nobody there: the next call hears of it.
    close(one);
    CHECK(send(two, "x", 1, 0) == 1);
    usleep(1000);
    FAILS(send(two, "x", 1, 0), ECONNREFUSED);
    // A queue that nobody reads loses what is too much.
    for (int i = 0; i < 2000; i++) NEED(sendto(three, big, 1000, 0, (void *)&to, sizeof to) == 1000);
    at = inet(0x08080808, 53);
    FAILS(sendto(three, "x", 1, 0, (void *)&at, sizeof at), ENETUNREACH);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    CHECK(!connect(two, &none, sizeof none));
    FAILS(send(two, "x", 1, 0), EDESTADDRREQ);
}

// --- bad input -------------------------------------------------------------------------------------------------------------

// The control messages of a datagram, as `level:type=value` for numbers and `level:type` for others.
static const char *arrival(int fd, int room) {
    static char text[200];
    char bytes[10], control[200];
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    if (recvmsg(fd, &message, 0) < 0) return "nothing";
    *text = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&message); h; h = CMSG_NXTHDR(&message, h)) {
        int value = 0, len = h->cmsg_len - CMSG_LEN(0);
        memcpy(&value, CMSG_DATA(h), len < 4 ? len : 4);
        char *end = text + strlen(text);
        if (len <= 4) sprintf(end, "%d:%d=%d ", h->cmsg_level, h->cmsg_type, value);
        else sprintf(end, "%d:%d ", h->cmsg_level, h->cmsg_type);
    }
    if (message.msg_flags & MSG_CTRUNC) strcat(text, "cut");
    return text;
}

static int set(int fd, int level, int name, int value) { return setsockopt(fd, level, name, &value, sizeof value); }

// Sends a byte to where `fd` is connected with a number as its control message.
static int send_with(int fd, int level, int type, int value) {
    char control[CMSG_SPACE(4)];
    struct iovec piece = {"x", 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(4), .cmsg_level = level, .cmsg_type = type};
    memcpy(CMSG_DATA(header), &value, 4);
    return sendmsg(fd, &message, 0);
}

static void datagrams_tell_how_they_came(void) {
    int one = socket(AF_INET, SOCK_DGRAM, 0), two = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = inet(INADDR_LOOPBACK, 0);
    NEED(!bind(one, (void *)&at, sizeof at));
    at = inet(INADDR_LOOPBACK, port_of(one));
    NEED(!connect(two, (void *)&at, sizeof at));
    CHECK(send(two, "x", 1, 0) == 1 && !strcmp(arrival(one, 200), ""));
    CHECK(!set(one, IPPROTO_IP, IP_RECVTTL, 1) && !set(one, IPPROTO_IP, IP_PKTINFO, 1) && !set(one, IPPROTO_IP, IP_RECVTOS, 1));
    CHECK(option(one, IPPROTO_IP, IP_RECVTTL) == 1);
    CHECK(send(two, "x", 1, 0) == 1 && !strcmp(arrival(one, 200), "0:8 0:2=64 0:1=0 "));
    CHECK(!set(two, IPPROTO_IP, IP_TTL, 7) && !set(two, IPPROTO_IP, IP_TOS, 0x20) && !set(one, IPPROTO_IP, IP_PKTINFO, 0));
    CHECK(send(two, "x", 1, 0) == 1 && !strcmp(arrival(one, 200), "0:2=7 0:1=32 "));
    CHECK(send_with(two, IPPROTO_IP, IP_TTL, 9) == 1 && !strcmp(arrival(one, CMSG_SPACE(4)), "0:2=9 cut"));
    FAILS(send_with(two, IPPROTO_IP, IP_TTL, 0), EINVAL);
    FAILS(send_with(two, IPPROTO_IP, 99, 0), EINVAL);
    FAILS(send_with(two, SOL_SOCKET, 99, 0), EINVAL);
    FAILS(set(two, IPPROTO_IP, IP_TTL, 0), EINVAL);
    CHECK(!set(two, IPPROTO_IP, IP_TTL, -1) && option(two, IPPROTO_IP, IP_TTL) == 64);
    // Times: one kind at a time.
    CHECK(!set(one, IPPROTO_IP, IP_RECVTTL, 0) && !set(one, IPPROTO_IP, IP_RECVTOS, 0));
    CHECK(!set(one, SOL_SOCKET, SO_TIMESTAMP, 1) && !set(one, SOL_SOCKET, SO_TIMESTAMPNS, 1) && option(one, SOL_SOCKET, SO_TIMESTAMP) == 0);
    CHECK(send(two, "x", 1, 0) == 1 && strstr(arrival(one, 200), "1:35 "));
    close(one), close(two);
    one = socket(AF_INET6, SOCK_DGRAM, 0), two = socket(AF_INET6, SOCK_DGRAM, 0);
    struct sockaddr_in6 at6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    NEED(!bind(one, (void *)&at6, sizeof at6));
    NEED(!getsockname(one, (void *)&at6, &(socklen_t){sizeof at6}) && !connect(two, (void *)&at6, sizeof at6));
    CHECK(!set(one, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1) && !set(one, IPPROTO_IPV6, IPV6_RECVTCLASS, 1) && !set(one, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1));
    CHECK(send(two, "x", 1, 0) == 1 && !strcmp(arrival(one, 200), "41:50 41:52=64 41:67=0 "));
    CHECK(!set(two, IPPROTO_IPV6, IPV6_TCLASS, 5) && send_with(two, IPPROTO_IPV6, IPV6_HOPLIMIT, 3) == 1);
    CHECK(!strcmp(arrival(one, 200), "41:50 41:52=3 41:67=5 "));
    FAILS(send_with(two, IPPROTO_IPV6, IPV6_HOPLIMIT, 256), EINVAL);
    close(one), close(two);
}

static void bad_pointers(void) {
    char *bad = mmap(0, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), bytes[10];
    make_pair(SOCK_STREAM);
    FAILS(socketpair(AF_UNIX, SOCK_STREAM, 0, (void *)bad), EFAULT);
    FAILS(send(pair[0], bad, 5, 0), EFAULT);
    FAILS(recv(pair[1], bytes, 10, MSG_DONTWAIT), EAGAIN);
    CHECK(send(pair[0], "abc", 3, 0) == 3);
    FAILS(recv(pair[1], bad, 5, 0), EFAULT);
    CHECK(recv(pair[1], bytes, 10, 0) == 3);
    FAILS(bind(pair[0], (void *)bad, 10), EFAULT);
    FAILS(syscall(SYS_sendmsg, pair[0], bad, 0), EFAULT);
    FAILS(syscall(SYS_recvmsg, pair[0], bad, 0), EFAULT);
    FAILS(getsockname(pair[0], (void *)bytes, (void *)bad), EFAULT);
    FAILS(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, bad, 4), EFAULT);
    FAILS(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, bytes, 2), EINVAL);
    FAILS(ioctl(pair[0], SIOCGIFNAME, -8l), EFAULT);
    FAILS(ioctl(pair[0], SIOCGIFCONF, -8l), EFAULT);
    struct sockaddr_un at;
    local(&at, "/tmp/x");
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    FAILS(bind(fd, (void *)&at, 1), EINVAL);
    FAILS(bind(fd, (void *)&at, 1000), EINVAL);
    FAILS(connect(fd, (void *)&at, (socklen_t)-1), EINVAL);
    struct iovec piece = {"x", 1};
    struct cmsghdr header = {.cmsg_len = 5, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &header, .msg_controllen = sizeof header};
    FAILS(syscall(SYS_sendmsg, pair[0], &message, 0), EINVAL);
    uint64_t too_long = 1ul << 40;
    memcpy(&header, &too_long, sizeof too_long);
    FAILS(syscall(SYS_sendmsg, pair[0], &message, 0), EINVAL);
    header = (struct cmsghdr){.cmsg_len = sizeof header, .cmsg_level = SOL_SOCKET, .cmsg_type = 99};
    FAILS(syscall(SYS_sendmsg, pair[0], &message, 0), EINVAL);
}

static void buffers_have_limits(void) {
    make_pair(SOCK_STREAM);
    int small = 1, large = 1 << 30;
    CHECK(!setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small) && option(pair[0], SOL_SOCKET, SO_SNDBUF) == 4608);
    CHECK(!setsockopt(pair[0], SOL_SOCKET, SO_RCVBUF, &small, sizeof small) && option(pair[0], SOL_SOCKET, SO_RCVBUF) == 2304);
    CHECK(!setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &large, sizeof large) && option(pair[0], SOL_SOCKET, SO_SNDBUF) == 425984);
    CHECK(option(pair[1], SOL_SOCKET, SO_SNDBUF) == 212992);
}

// A machine may come up with its loopback down.
static void loopback_up(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq request = {.ifr_name = "lo"};
    if (!ioctl(fd, SIOCGIFFLAGS, &request) && !(request.ifr_flags & IFF_UP)) {
        request.ifr_flags |= IFF_UP;
        ioctl(fd, SIOCSIFFLAGS, &request);
    }
    close(fd);
}

// Sockets that nobody reads must not take all memory: at some point sending fails, and works again once something was read.
static void unread_bytes_are_bounded(void) {
    struct rlimit many = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &many);
    static char block[100000];
    static int ends[1500][2];
    int made = 0, errors = 0;
    while (made < 1500 && !errors && !socketpair(AF_UNIX, SOCK_STREAM, 0, ends[made])) {
        errno = 0;
        while (send(ends[made][0], block, sizeof block, MSG_DONTWAIT) > 0) {
        }
        errors += errno != EAGAIN;
        made++;
    }
    // The machine still works.
    char *memory = mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && made > 10);
    memset(memory, 1, 16 << 20);
    for (int i = 0; i < made; i++) close(ends[i][0]), close(ends[i][1]);
    make_pair(SOCK_STREAM);
    CHECK(send(pair[0], block, sizeof block, MSG_DONTWAIT) == sizeof block);
}

// What answers a question about all interfaces comes whole, or not at all, however little room there is.
static void dumps_have_their_ends(void) {
    enum { NEWLINK = 16, GETLINK = 18, DONE = 3 };
    struct { unsigned len; unsigned short type, flags; unsigned sequence, port; char body[16]; } ask = {32, GETLINK, 0x301, 0, 0, {0}};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, 0), small = 1;
    unsigned open = 0, whole = 0;
    NEED(fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small));
    for (ask.sequence = 1; ask.sequence < 50; ask.sequence++) CHECK(send(fd, &ask, 32, 0) == 32);
    static _Alignas(8) char buffer[32768];
    for (ssize_t got; (got = recv(fd, buffer, sizeof buffer, 0)) > 0 || errno == ENOBUFS;) {
        struct head { unsigned len; unsigned short type, flags; unsigned sequence, port; } *one;
        for (ssize_t at = 0; at + 16 <= got; at += (one->len + 3) & ~3u) {
            one = (void *)(buffer + at);
            NEED(one->len >= 16);
            if (one->type == NEWLINK) CHECK(!open || open == one->sequence), open = one->sequence;
            if (one->type == DONE) CHECK(open == one->sequence), open = 0, whole++;
        }
    }
    CHECK(errno == EAGAIN && !open && whole > 0);
    close(fd);
}

int main(int argc, char **argv) {
    loopback_up();
    static const struct test_case cases[] = {
        {"stream pairs", stream_pairs},
        {"dumps have their ends", dumps_have_their_ends},
        {"all bytes in order", all_bytes_in_order},
        {"many small sends", many_small_sends},
        {"ends of pairs", ends_of_pairs},
        {"broken pipes signal", broken_pipes_signal},
        {"packets keep their bounds", packets_keep_their_bounds},
        {"full queues wait", full_queues_wait},
        {"waiting for all", waiting_for_all},
        {"descriptors travel", descriptors_travel},
        {"descriptors bound streams", descriptors_bound_streams},
        {"rings are found", rings_are_found},
        {"rings hold files of all kinds", rings_hold_files_of_all_kinds},
        {"rings of listeners are found", rings_of_listeners_are_found},
        {"living listeners keep their rings", living_listeners_keep_their_rings},
        {"clients keep no rings", clients_keep_no_rings},
        {"rows cost no stack", rows_cost_no_stack},
        {"too many on their way", too_many_on_their_way},
        {"who sends", who_sends},
        {"many messages", many_messages},
        {"local names", local_names},
        {"abstract names", abstract_names},
        {"local datagrams", local_datagrams},
        {"full backlogs", full_backlogs},
        {"TCP connections", tcp_connections},
        {"TCP refusals", tcp_refusals},
        {"ports are not taken over", ports_are_not_taken_over},
        {"TCP without waiting", tcp_without_waiting},
        {"a server and clients", a_server_and_clients},
        {"epoll on sockets", epoll_on_sockets},
        {"version six", version_six},
        {"UDP datagrams", udp_datagrams},
        {"datagrams tell how they came", datagrams_tell_how_they_came},
        {"bad pointers", bad_pointers},
        {"buffers have limits", buffers_have_limits},
        {"unread bytes are bounded", unread_bytes_are_bounded},
    };
    return RUN(cases, argc, argv);
}
