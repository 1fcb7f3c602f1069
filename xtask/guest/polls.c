// Sets of files to wait for (epoll): what is reported when, by levels and by edges, files that leave, sets that are large, and threads
// that change a set, wait for it and close what is in it at once.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
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

#define CASE(name) {#name, name}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(levels_are_told_while_they_last), CASE(edges_are_told_once), CASE(one_shot_waits_to_be_set),
        CASE(the_set_can_be_changed), CASE(closed_files_leave), CASE(a_set_can_be_polled), CASE(many_sets_hear_of_one_file),
        CASE(large_sets_cost_by_what_is_ready), CASE(no_edge_is_lost), CASE(sets_change_while_they_are_waited_for),
    };
    return RUN(cases, argc, argv);
}
