// Sets of files to wait for (epoll): what is reported when, by levels and by edges, files that leave, sets that are large, and threads
// that change a set, wait for it and close what is in it at once. Sets in sets, and sets of which one is to be woken.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

static const uint64_t one = 1;

static int add(int set, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static int modify(int set, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

// How many are ready at once; the first one's file and events.
static int ready(int set, int *fd, uint32_t *events) {
    struct epoll_event got[8];
    int count = epoll_wait(set, got, 8, 0);
    if (count > 0 && fd) *fd = got[0].data.fd;
    if (count > 0 && events) *events = got[0].events;
    return count;
}

static void put(int fd) {
    CHECK(write(fd, &one, sizeof one) == sizeof one);
}

static void levels_are_told_while_they_last(void) {
    int set = epoll_create1(0), a = eventfd(1, 0), b = eventfd(0, 0), fd = -1;
    uint64_t value;
    NEED(!add(set, a, EPOLLIN) && !add(set, b, EPOLLIN));
    for (int i = 0; i < 3; i++) CHECK(ready(set, &fd, 0) == 1 && fd == a);
    put(b);
    for (int i = 0; i < 3; i++) CHECK(ready(set, 0, 0) == 2);
    CHECK(read(a, &value, 8) == 8 && ready(set, &fd, 0) == 1 && fd == b);
    CHECK(read(b, &value, 8) == 8 && ready(set, 0, 0) == 0);
    // One at a time, each in its turn.
    put(a), put(b);
    struct epoll_event first, second;
    CHECK(epoll_wait(set, &first, 1, 0) == 1 && epoll_wait(set, &second, 1, 0) == 1 && first.data.fd != second.data.fd);
}

static void edges_are_told_once(void) {
    int set = epoll_create1(0), ends[2], pair[2], counter = eventfd(0, 0), fd = -1;
    uint64_t value;
    NEED(!pipe(ends) && !socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    NEED(!add(set, ends[1], EPOLLOUT | EPOLLET));
    CHECK(ready(set, &fd, 0) == 1 && fd == ends[1] && ready(set, 0, 0) == 0);
    NEED(!epoll_ctl(set, EPOLL_CTL_DEL, ends[1], 0));
    int readers[] = {counter, ends[0], pair[0]}, writers[] = {counter, ends[1], pair[1]};
    for (int i = 0; i < 3; i++) {
        NEED(!add(set, readers[i], EPOLLIN | EPOLLET));
        CHECK(ready(set, 0, 0) == 0);
        // Each write is an edge, though nobody has read.
        for (int n = 0; n < 3; n++) {
            put(writers[i]);
            CHECK(ready(set, &fd, 0) == 1 && fd == readers[i] && ready(set, 0, 0) == 0);
        }
        CHECK(!modify(set, readers[i], EPOLLIN | EPOLLET) && ready(set, 0, 0) == 1 && ready(set, 0, 0) == 0);
        CHECK(read(readers[i], &value, 8) == 8);
        NEED(!epoll_ctl(set, EPOLL_CTL_DEL, readers[i], 0));
    }
}

static void one_shot_waits_to_be_set(void) {
    int set = epoll_create1(0), a = eventfd(1, 0), b = eventfd(0, 0), fd = -1;
    NEED(!add(set, a, EPOLLIN | EPOLLONESHOT) && !add(set, b, EPOLLIN | EPOLLONESHOT));
    CHECK(ready(set, &fd, 0) == 1 && fd == a && ready(set, 0, 0) == 0);
    put(a);
    CHECK(ready(set, 0, 0) == 0);
    put(b);
    CHECK(ready(set, &fd, 0) == 1 && fd == b);
    CHECK(!modify(set, a, EPOLLIN | EPOLLONESHOT) && ready(set, &fd, 0) == 1 && fd == a && ready(set, 0, 0) == 0);
}

static void the_set_can_be_changed(void) {
    int set = epoll_create1(0), a = eventfd(0, 0);
    uint32_t events = 0;
    NEED(!add(set, a, EPOLLIN));
    FAILS(add(set, a, EPOLLIN), EEXIST);
    CHECK(ready(set, 0, 0) == 0);
    CHECK(!modify(set, a, EPOLLIN | EPOLLOUT) && ready(set, 0, &events) == 1 && events == EPOLLOUT);
    put(a);
    CHECK(ready(set, 0, &events) == 1 && events == (EPOLLIN | EPOLLOUT));
    CHECK(!modify(set, a, 0) && ready(set, 0, 0) == 0);
    CHECK(!modify(set, a, EPOLLIN) && ready(set, 0, &events) == 1 && events == EPOLLIN);
    CHECK(!epoll_ctl(set, EPOLL_CTL_DEL, a, 0) && ready(set, 0, 0) == 0);
    FAILS(epoll_ctl(set, EPOLL_CTL_DEL, a, 0), ENOENT);
    FAILS(modify(set, a, EPOLLIN), ENOENT);
    put(a);
    CHECK(ready(set, 0, 0) == 0 && !add(set, a, EPOLLIN) && ready(set, 0, 0) == 1);
}

static void closed_files_leave(void) {
    int set = epoll_create1(0), a = eventfd(1, 0), other = dup(a), fd = -1;
    NEED(!add(set, a, EPOLLIN) && !add(set, other, EPOLLIN));
    CHECK(ready(set, 0, 0) == 2);
    // The file is open as long as one descriptor is.
    close(a);
    CHECK(ready(set, 0, 0) == 2);
    close(other);
    CHECK(ready(set, 0, 0) == 0);
    // A new file under the old number is none of the set's.
    int again = eventfd(1, 0);
    CHECK(again == a && ready(set, 0, 0) == 0);
    CHECK(!add(set, again, EPOLLIN) && ready(set, &fd, 0) == 1 && fd == again);
    close(set);
    put(again);
}

static void a_set_can_be_polled(void) {
    int set = epoll_create1(0), a = eventfd(0, 0);
    struct pollfd polled = {.fd = set, .events = POLLIN};
    uint64_t value;
    NEED(!add(set, a, EPOLLIN | EPOLLET));
    CHECK(poll(&polled, 1, 0) == 0);
    put(a);
    // To look takes no edge away.
    for (int i = 0; i < 3; i++) CHECK(poll(&polled, 1, 0) == 1 && polled.revents == POLLIN);
    CHECK(ready(set, 0, 0) == 1 && poll(&polled, 1, 0) == 0);
    put(a);
    CHECK(read(a, &value, 8) == 8 && poll(&polled, 1, 0) == 0 && ready(set, 0, 0) == 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(20000);
        put(a);
        _exit(0);
    }
    CHECK(poll(&polled, 1, 5000) == 1);
    waitpid(child, 0, 0);
}

static void many_sets_hear_of_one_file(void) {
    int a = eventfd(0, 0), sets[200];
    for (int i = 0; i < 200; i++) NEED((sets[i] = epoll_create1(0)) >= 0 && !add(sets[i], a, EPOLLIN | EPOLLET));
    put(a);
    for (int i = 0; i < 200; i++) CHECK(ready(sets[i], 0, 0) == 1 && ready(sets[i], 0, 0) == 0);
    for (int i = 0; i < 200; i += 2) close(sets[i]);
    put(a);
    for (int i = 1; i < 200; i += 2) CHECK(ready(sets[i], 0, 0) == 1);
}

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

enum { MANY = 16000, FEW = 500 };
static int fds[MANY];

// Microseconds for FEW calls on descriptors of the set from one on.
static long add_few(int set, int from) {
    long start = now();
    for (int i = from; i < from + FEW; i++) NEED(!add(set, fds[i], EPOLLIN));
    return now() - start;
}

static long remove_few(int set, int from) {
    long start = now();
    for (int i = from; i < from + FEW; i++) NEED(!epoll_ctl(set, EPOLL_CTL_DEL, fds[i], 0));
    return now() - start;
}

static long wait_often(int set, int unused) {
    long start = now();
    (void)unused;
    for (int i = 0; i < FEW; i++) NEED(ready(set, 0, 0) == 1);
    return now() - start;
}

// Whether something costs as much with one set as with another, about; other programs of the machine below may be in the way.
static int costs_alike(long (*what)(int, int), int small, int large, int from) {
    long few = 0, many = 0;
    for (int i = 0; i < 10; i++) {
        few = what(small, from), many = what(large, from);
        if (many < 6 * few) return 1;
        if (what == add_few) remove_few(small, from), remove_few(large, from);
        if (what == remove_few) add_few(small, from), add_few(large, from);
    }
    printf("  %ld us with few files, %ld with many\n", few, many);
    return 0;
}

// To add to a large set, to wait for it, and to take from it costs what it does for a small one.
static void large_sets_cost_by_what_is_ready(void) {
    struct rlimit limit = {MANY + 100, MANY + 100};
    NEED(!setrlimit(RLIMIT_NOFILE, &limit));
    int large = epoll_create1(0), small = epoll_create1(0);
    for (int i = 0; i < MANY; i++) NEED((fds[i] = eventfd(0, 0)) >= 0);
    for (int i = 0; i < MANY - FEW; i += FEW) add_few(large, i);
    NEED(!add(small, fds[0], EPOLLIN));
    put(fds[0]);
    CHECK(costs_alike(wait_often, small, large, 0));
    CHECK(costs_alike(add_few, small, large, MANY - FEW));
    CHECK(costs_alike(remove_few, small, large, MANY - FEW));
}

enum { ROUNDS = 20000 };
static int raced_set, raced_fd;

static void *puts_often(void *unused) {
    for (int i = 0; i < ROUNDS; i++) put(raced_fd);
    return unused;
}

// No edge is lost between a look and the next write.
static void no_edge_is_lost(void) {
    pthread_t threads[2];
    uint64_t sum = 0, value;
    raced_set = epoll_create1(0), raced_fd = eventfd(0, EFD_NONBLOCK);
    NEED(!add(raced_set, raced_fd, EPOLLIN | EPOLLET));
    for (int i = 0; i < 2; i++) NEED(!pthread_create(&threads[i], 0, puts_often, 0));
    while (sum < 2 * ROUNDS) {
        struct epoll_event got;
        if (!CHECK(epoll_wait(raced_set, &got, 1, 5000) == 1)) break;
        while (read(raced_fd, &value, 8) == 8) sum += value;
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    CHECK(sum == 2 * ROUNDS);
}

static volatile int over;

static void *adds_and_closes(void *unused) {
    for (int i = 0; i < 3000; i++) {
        int fd = eventfd(0, EFD_NONBLOCK), other = dup(fd);
        if (fd < 0 || other < 0) return (void *)1;
        add(raced_set, fd, EPOLLIN | (i % 2 ? EPOLLET : 0));
        add(raced_set, other, EPOLLIN | EPOLLONESHOT);
        put(fd);
        if (i % 3 == 0) epoll_ctl(raced_set, EPOLL_CTL_DEL, fd, 0);
        if (i % 5 == 0) modify(raced_set, other, EPOLLIN);
        close(fd);
        close(other);
    }
    return unused;
}

static void *waits(void *unused) {
    struct epoll_event got[8];
    while (!over) epoll_wait(raced_set, got, 8, 1);
    return unused;
}

static void sets_change_while_they_are_waited_for(void) {
    pthread_t threads[4];
    void *result;
    for (int round = 0; round < 3; round++) {
        over = 0;
        raced_set = epoll_create1(0);
        for (int i = 0; i < 4; i++) NEED(!pthread_create(&threads[i], 0, i < 2 ? adds_and_closes : waits, 0));
        for (int i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], &result) && !result);
        CHECK(ready(raced_set, 0, 0) == 0);
        over = 1;
        for (int i = 2; i < 4; i++) pthread_join(threads[i], 0);
        close(raced_set);
    }
}

static void sets_lie_in_sets(void) {
    int inner = epoll_create1(0), outer = epoll_create1(0), edges = epoll_create1(0), a = eventfd(0, 0), b = eventfd(0, 0), fd = -1;
    uint64_t value;
    NEED(!add(outer, inner, EPOLLIN) && !add(edges, inner, EPOLLIN | EPOLLET) && !add(inner, a, EPOLLIN) && !add(inner, b, EPOLLIN));
    CHECK(ready(outer, 0, 0) == 0 && ready(edges, 0, 0) == 0);
    put(a);
    for (int i = 0; i < 3; i++) CHECK(ready(outer, &fd, 0) == 1 && fd == inner);
    CHECK(ready(edges, &fd, 0) == 1 && fd == inner && ready(edges, 0, 0) == 0);
    // The inner set was not read; what comes next is an edge all the same.
    put(b);
    CHECK(ready(edges, 0, 0) == 1 && ready(edges, 0, 0) == 0 && ready(inner, 0, 0) == 2 && ready(outer, 0, 0) == 1);
    CHECK(read(a, &value, 8) == 8 && read(b, &value, 8) == 8 && ready(outer, 0, 0) == 0 && ready(inner, 0, 0) == 0);
    // An edge that the inner set has told is no level of the outer one.
    CHECK(!modify(inner, a, EPOLLIN | EPOLLET));
    put(a);
    CHECK(ready(outer, 0, 0) == 1 && ready(inner, 0, 0) == 1 && ready(outer, 0, 0) == 0);
    CHECK(!epoll_ctl(outer, EPOLL_CTL_DEL, inner, 0));
    put(a);
    CHECK(ready(outer, 0, 0) == 0 && ready(inner, 0, 0) == 1);
    FAILS(add(outer, outer, EPOLLIN), EINVAL);
    FAILS(add(outer, inner, EPOLLIN | EPOLLEXCLUSIVE), EINVAL);
}

static int chain[6];

static void *waits_at_the_top(void *timeout) {
    struct epoll_event got;
    return (void *)(long)(epoll_wait(chain[4], &got, 1, (int)(long)timeout) == 1 && got.data.fd == chain[3]);
}

static void rows_of_sets_end(void) {
    int a = eventfd(0, 0);
    for (int i = 0; i < 6; i++) NEED((chain[i] = epoll_create1(0)) >= 0);
    NEED(!add(chain[0], a, EPOLLIN));
    for (int i = 1; i < 5; i++) CHECK(!add(chain[i], chain[i - 1], EPOLLIN));
    for (int i = 1; i < 5; i++) FAILS(add(chain[0], chain[i], EPOLLIN), ELOOP);
    FAILS(add(chain[2], chain[4], EPOLLIN), ELOOP);
    pthread_t thread;
    void *woken = 0;
    NEED(!pthread_create(&thread, 0, waits_at_the_top, (void *)5000));
    usleep(20000);
    put(a);
    CHECK(!pthread_join(thread, &woken) && woken);
    struct pollfd polled = {.fd = chain[4], .events = POLLIN};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(chain[4], &set);
    CHECK(poll(&polled, 1, 0) == 1 && polled.revents == POLLIN && select(chain[4] + 1, &set, 0, 0, 0) == 1 && FD_ISSET(chain[4], &set));
    // The middle goes: what was above hears no more.
    close(chain[2]);
    CHECK(poll(&polled, 1, 0) == 0 && ready(chain[1], 0, 0) == 1);
}

// Six sets in a row are too many, whichever link comes last. (Linux asks this only in versions from 2025 on.)
static void long_rows_of_sets_are_refused(void) {
    for (int last = 0; last < 5; last++) {
        for (int i = 0; i < 6; i++) NEED((chain[i] = epoll_create1(0)) >= 0);
        for (int i = 0; i < 5; i++)
            if (i != last) NEED(!add(chain[i + 1], chain[i], EPOLLIN));
        FAILS(add(chain[last + 1], chain[last], EPOLLIN), ELOOP);
        for (int i = 0; i < 6; i++) close(chain[i]);
    }
}

static void signals_wake_outer_sets(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGUSR1), sigprocmask(SIG_BLOCK, &set, 0);
    int inner = epoll_create1(0), outer = epoll_create1(0), signals = signalfd(-1, &set, 0);
    NEED(!add(outer, inner, EPOLLIN) && !add(inner, signals, EPOLLIN) && ready(outer, 0, 0) == 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        usleep(50000), kill(parent, SIGUSR1);
        _exit(0);
    }
    struct epoll_event got;
    struct pollfd polled = {.fd = outer, .events = POLLIN};
    CHECK(poll(&polled, 1, 5000) == 1 && epoll_wait(outer, &got, 1, 0) == 1);
    struct signalfd_siginfo info;
    CHECK(read(signals, &info, sizeof info) == sizeof info && ready(outer, 0, 0) == 0);
    waitpid(child, 0, 0);
}

// What has to be asked each time is told once a wait, and has its turn among the others.
static void signals_are_told_once(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGUSR1), sigprocmask(SIG_BLOCK, &set, 0);
    int ready_set = epoll_create1(0), signals = signalfd(-1, &set, 0), a = eventfd(1, 0), fd = -1, seen[2] = {0};
    NEED(!add(ready_set, signals, EPOLLIN) && !add(ready_set, a, EPOLLIN));
    kill(getpid(), SIGUSR1);
    for (int i = 0; i < 3; i++) CHECK(ready(ready_set, 0, 0) == 2);
    struct epoll_event got;
    for (int i = 0; i < 4; i++) CHECK(epoll_wait(ready_set, &got, 1, 0) == 1 && ++seen[got.data.fd == signals]);
    CHECK(seen[0] == 2 && seen[1] == 2);
    struct signalfd_siginfo info;
    CHECK(read(signals, &info, sizeof info) == sizeof info && ready(ready_set, &fd, 0) == 1 && fd == a);
}

static int shared_file, woken_sets, own_sets[4];
static uint32_t shared_events;

static void *waits_for_its_own(void *number) {
    struct epoll_event got;
    if (epoll_wait(own_sets[(long)number], &got, 1, 300) == 1) __atomic_add_fetch(&woken_sets, 1, __ATOMIC_SEQ_CST);
    return 0;
}

// How many of four threads, each with a set of its own, hear of what `happens`.
static int hear(int file, uint32_t events, void (*happens)(void)) {
    pthread_t threads[4];
    shared_file = file, shared_events = events, woken_sets = 0;
    for (long i = 0; i < 4; i++) {
        NEED((own_sets[i] = epoll_create1(0)) >= 0 && !add(own_sets[i], file, events));
        NEED(!pthread_create(&threads[i], 0, waits_for_its_own, (void *)i));
    }
    usleep(100000);
    happens();
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0), close(own_sets[i]);
    return woken_sets;
}

static int hung_up;
static void puts_one(void) { put(shared_file); }
static void hangs_up(void) { close(hung_up); }

static void one_set_of_several_is_woken(void) {
    int set = epoll_create1(0), a = eventfd(0, 0), ends[2];
    uint64_t value;
    FAILS(add(set, a, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT), EINVAL);
    FAILS(add(set, a, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP), EINVAL);
    FAILS(add(set, a, EPOLLPRI | EPOLLEXCLUSIVE), EINVAL);
    NEED(!add(set, a, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET | EPOLLWAKEUP));
    FAILS(modify(set, a, EPOLLIN), EINVAL);
    FAILS(modify(set, a, EPOLLIN | EPOLLEXCLUSIVE), EINVAL);
    CHECK(!epoll_ctl(set, EPOLL_CTL_DEL, a, 0) && !add(set, a, EPOLLIN));
    FAILS(modify(set, a, EPOLLIN | EPOLLEXCLUSIVE), EINVAL);
    close(set);
    CHECK(hear(a, EPOLLIN | EPOLLET, puts_one) == 4 && read(a, &value, 8) == 8);
    CHECK(hear(a, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE, puts_one) == 1 && read(a, &value, 8) == 8);
    CHECK(hear(a, EPOLLIN | EPOLLEXCLUSIVE, puts_one) == 1 && read(a, &value, 8) == 8);
    NEED(!pipe(ends));
    hung_up = ends[1];
    CHECK(hear(ends[0], EPOLLIN | EPOLLEXCLUSIVE, hangs_up) == 4);
}

static void *waits_for_the_set(void *unused) {
    struct epoll_event got;
    if (epoll_wait(raced_set, &got, 1, 300) == 1) __atomic_add_fetch(&woken_sets, 1, __ATOMIC_SEQ_CST);
    return unused;
}

static void one_thread_takes_an_edge(void) {
    pthread_t threads[4];
    raced_set = epoll_create1(0), raced_fd = eventfd(0, 0), woken_sets = 0;
    NEED(!add(raced_set, raced_fd, EPOLLIN | EPOLLET));
    for (int i = 0; i < 4; i++) NEED(!pthread_create(&threads[i], 0, waits_for_the_set, 0));
    usleep(100000);
    put(raced_fd);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    CHECK(woken_sets == 1);
}

// A mount is told to every file that is open on the table.
static void mounts_are_told(void) {
    uint32_t events = 0;
    int set = epoll_create1(0), mounts = open("/proc/mounts", O_RDONLY), info = open("/proc/self/mountinfo", O_RDONLY);
    int status = open("/proc/self/status", O_RDONLY), dir = open("/", O_RDONLY);
    NEED(mounts >= 0 && info >= 0 && status >= 0 && dir >= 0);
    FAILS(add(set, status, EPOLLIN), EPERM);
    FAILS(add(set, dir, EPOLLIN), EPERM);
    NEED(!add(set, mounts, EPOLLPRI));
    struct pollfd polled = {.fd = info, .events = POLLPRI};
    CHECK(ready(set, 0, 0) == 0 && poll(&polled, 1, 0) == 0);
    mkdir("/told", 0755);
    pid_t child = fork();
    if (child == 0) {
        usleep(50000);
        _exit(mount("none", "/told", "tmpfs", 0, 0) != 0);
    }
    CHECK(poll(&polled, 1, 5000) == 1 && polled.revents == (POLLPRI | POLLERR) && poll(&polled, 1, 0) == 0);
    CHECK(ready(set, 0, &events) == 1 && events == (EPOLLPRI | EPOLLERR) && ready(set, 0, 0) == 0);
    int done = -1;
    CHECK(waitpid(child, &done, 0) == child && done == 0);
    CHECK(!umount("/told") && ready(set, 0, &events) == 1 && poll(&polled, 1, 0) == 1 && ready(set, 0, 0) == 0);
    fd_set urgent;
    FD_ZERO(&urgent);
    FD_SET(info, &urgent);
    struct timeval now = {0};
    CHECK(select(info + 1, 0, 0, &urgent, &now) == 0);
    rmdir("/told");
}

static void what_is_not_delivered_stays(void) {
    uint32_t modes[] = {0, EPOLLET, EPOLLONESHOT};
    for (int i = 0; i < 3; i++) {
        int set = epoll_create1(0), a = eventfd(1, 0), fd = -1;
        NEED(!add(set, a, EPOLLIN | modes[i]));
        FAILS(epoll_wait(set, (void *)8, 1, 0), EFAULT);
        CHECK(ready(set, &fd, 0) == 1 && fd == a);
    }
}

static void each_has_its_turn(void) {
    enum { FILES = 10, AT_ONCE = 3 };
    int set = epoll_create1(0), seen = 0;
    for (int i = 0; i < FILES; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        NEED(!epoll_ctl(set, EPOLL_CTL_ADD, eventfd(1, 0), &event));
    }
    struct epoll_event got[AT_ONCE];
    for (int i = 0; i < (FILES + AT_ONCE - 1) / AT_ONCE; i++) {
        CHECK(epoll_wait(set, got, AT_ONCE, 0) == AT_ONCE);
        for (int k = 0; k < AT_ONCE; k++) seen |= 1 << got[k].data.u32;
    }
    CHECK(seen == (1 << FILES) - 1);
}

static void ends_of_connections_are_told(void) {
    int set = epoll_create1(0), pair[2], ends[2];
    uint32_t events = 0;
    NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !pipe(ends));
    NEED(!add(set, pair[0], EPOLLRDHUP) && ready(set, 0, 0) == 0 && !shutdown(pair[1], SHUT_WR));
    CHECK(ready(set, 0, &events) == 1 && events == EPOLLRDHUP);
    CHECK(!epoll_ctl(set, EPOLL_CTL_DEL, pair[0], 0));
    // Hang-ups and errors come unasked.
    NEED(!add(set, ends[0], 0) && ready(set, 0, 0) == 0 && !close(ends[1]));
    CHECK(ready(set, 0, &events) == 1 && events == EPOLLHUP && !modify(set, ends[0], 0) && ready(set, 0, 0) == 1);
}

static void waits_end_to_the_nanosecond(void) {
    int set = epoll_create1(0);
    struct epoll_event got;
    struct timespec wait = {0, 30000000}, wrong = {0, 1000000000};
    long start = now();
    CHECK(syscall(SYS_epoll_pwait2, set, &got, 1, &wait, 0, 8) == 0 && now() - start >= 30000);
    FAILS(syscall(SYS_epoll_pwait2, set, &got, 1, &wrong, 0, 8), EINVAL);
    FAILS(syscall(SYS_epoll_pwait2, set, &got, 0, &wait, 0, 8), EINVAL);
    FAILS(syscall(SYS_epoll_pwait2, 0, &got, 1, &wait, 0, 8), EINVAL);
    int null = open("/dev/null", O_RDWR), a = eventfd(0, 0);
    FAILS(epoll_ctl(set, 7, a, &got), EINVAL);
    FAILS(epoll_ctl(set, 7, null, &got), EPERM);
    FAILS(epoll_ctl(null, EPOLL_CTL_ADD, a, &got), EINVAL);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, 99, &got), EBADF);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, set, 0), EFAULT);
}

// A server as the runtimes of Go and of tokio have it: sockets without waiting, edges of both directions, and an eventfd by which
// other threads wake the one that waits. With one idle connection it uses no CPU time.
static int served_set, served_wake, served_listener;

static void *serves(void *rounds) {
    struct epoll_event got[64];
    char bytes[512];
    for (;;) {
        int count = epoll_wait(served_set, got, 64, -1);
        ++*(volatile long *)rounds;
        for (int i = 0; i < count; i++) {
            int fd = got[i].data.fd;
            if (fd == served_wake) {
                uint64_t value;
                if (read(fd, &value, 8) == 8 && value >= 1000) return 0;
            } else if (fd == served_listener) {
                for (int one; (one = accept4(fd, 0, 0, SOCK_NONBLOCK)) >= 0;) add(served_set, one, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
            } else {
                ssize_t n;
                while ((n = read(fd, bytes, sizeof bytes)) > 0) CHECK(write(fd, bytes, n) == n);
                if (n == 0) close(fd);
            }
        }
    }
}

static double used(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void idle_servers_use_no_time(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    volatile long rounds = 0;
    char bytes[512] = "echo", back[512];
    served_set = epoll_create1(EPOLL_CLOEXEC), served_wake = eventfd(0, EFD_NONBLOCK);
    served_listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    NEED(!bind(served_listener, (void *)&address, length) && !listen(served_listener, 16) && !getsockname(served_listener, (void *)&address, &length));
    NEED(!add(served_set, served_wake, EPOLLIN | EPOLLET) && !add(served_set, served_listener, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET));
    // Linux begins with the loopback device down.
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    ioctl(served_listener, SIOCSIFFLAGS, &loopback);
    pthread_t server;
    NEED(!pthread_create(&server, 0, serves, (void *)&rounds));
    int idle = socket(AF_INET, SOCK_STREAM, 0), busy = socket(AF_INET, SOCK_STREAM, 0);
    NEED(!connect(idle, (void *)&address, length) && !connect(busy, (void *)&address, length));
    for (int i = 0; i < 1000; i++) {
        if (i % 10 == 0) put(served_wake);
        ssize_t got = 0;
        NEED(write(busy, bytes, sizeof bytes) == sizeof bytes);
        while (got < (ssize_t)sizeof back) {
            ssize_t n = read(busy, back + got, sizeof back - got);
            NEED(n > 0);
            got += n;
        }
        NEED(!memcmp(bytes, back, sizeof back));
    }
    // The server may have a round to end. What a host that is busy takes from this thread while it looks at the clocks counts
    // as its own time. So one second of several tells: where a server isn't idle, each has a round.
    int is_idle = 0;
    for (int i = 0; i < 10 && !is_idle; i++) {
        double cpu = used(CLOCK_PROCESS_CPUTIME_ID), wall = used(CLOCK_MONOTONIC);
        long before = rounds;
        sleep(1);
        cpu = used(CLOCK_PROCESS_CPUTIME_ID) - cpu, wall = used(CLOCK_MONOTONIC) - wall;
        printf("  idle: %.3f %% of a CPU, %ld rounds\n", cpu / wall * 100, rounds - before);
        is_idle = cpu < wall / 100 && rounds == before;
    }
    CHECK(is_idle);
    uint64_t end = 1000;
    CHECK(write(served_wake, &end, 8) == 8);
    pthread_join(server, 0);
}

#define CASE(name) {#name, name}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(levels_are_told_while_they_last), CASE(edges_are_told_once), CASE(one_shot_waits_to_be_set),
        CASE(the_set_can_be_changed), CASE(closed_files_leave), CASE(a_set_can_be_polled), CASE(many_sets_hear_of_one_file),
        CASE(large_sets_cost_by_what_is_ready), CASE(no_edge_is_lost), CASE(sets_change_while_they_are_waited_for),
        CASE(sets_lie_in_sets), CASE(rows_of_sets_end), CASE(long_rows_of_sets_are_refused), CASE(signals_wake_outer_sets), CASE(signals_are_told_once),
        CASE(one_set_of_several_is_woken), CASE(one_thread_takes_an_edge), CASE(mounts_are_told), CASE(what_is_not_delivered_stays),
        CASE(each_has_its_turn), CASE(ends_of_connections_are_told), CASE(waits_end_to_the_nanosecond), CASE(idle_servers_use_no_time),
    };
    return RUN(cases, argc, argv);
}
