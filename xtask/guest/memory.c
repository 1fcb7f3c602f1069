// Running out: processes that take all memory or all processes there are. Some of them lose; the system stays.
//
// A kernel may refuse (ENOMEM, EAGAIN) or kill the taker. It may not kill the others, hang, or forget what it gets back.
#include "check.h"
#include <sys/sysinfo.h>

static long free_pages(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    return (long)(info.freeram * info.mem_unit / PAGE);
}

static void take_everything(void) {
    for (;;) {
        size_t length = 4 << 20;
        char *at = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) _exit(3);
        memset(at, 1, length);
    }
}

static int ended_as_it_may(int status) {
    return (WIFEXITED(status) && WEXITSTATUS(status) == 3) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void one_takes_all_memory(void) {
    CHECK(ended_as_it_may(in_child(take_everything)));
    char *at = mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    memset(at, 2, 16 << 20); // there is memory again
}

static void copy_everything(void) {
    // Memory that is all shared after fork: the copies can't all be had.
    long pages = free_pages() * 7 / 10;
    char *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) _exit(3);
    memset(at, 1, pages * PAGE);
    pid_t child = fork();
    if (child < 0) _exit(3);
    memset(at, 2, pages * PAGE);
    if (child == 0) _exit(3);
    int status;
    waitpid(child, &status, 0);
    _exit(ended_as_it_may(status) ? 3 : 1);
}
static void copies_of_all_memory(void) { CHECK(ended_as_it_may(in_child(copy_everything))); }

static void fill_files(void) {
    static char block[1 << 16];
    int fd = open("/tmp/filler", O_RDWR | O_CREAT | O_TRUNC, 0600);
    memset(block, 1, sizeof block);
    long wrote = 0;
    while (write(fd, block, sizeof block) == sizeof block && wrote < 1l << 32) wrote += sizeof block;
    unlink("/tmp/filler");
    _exit(3);
}
static void files_that_fill_memory(void) {
    CHECK(ended_as_it_may(in_child(fill_files)));
    unlink("/tmp/filler");
    int fd = open("/tmp/after", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    unlink("/tmp/after");
}

// A fork bomb: every process forks until it can't. All of them live in one group, which is killed after a while.
static void bomb(void) {
    setpgid(0, 0);
    signal(SIGALRM, SIG_DFL);
    char *weight = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (;;) {
        pid_t child = fork();
        if (child < 0) usleep(1000);
        if (child == 0 && weight != MAP_FAILED) memset(weight, 1, 1 << 20);
    }
}
static void a_fork_bomb(void) {
    fflush(stdout);
    pid_t leader = fork();
    if (leader == 0) bomb();
    setpgid(leader, leader);
    sleep(5);
    // Until none is left: those that were being born when the signal came are caught by the next.
    for (int i = 0; i < 200 && !kill(-leader, SIGKILL); i++) usleep(20000);
    while (waitpid(leader, 0, WNOHANG) == 0) usleep(1000);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) _exit(4);
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 4);
    }
}

static void spend(void) {
    char *at = mmap(0, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, 8 << 20);
    int fd = memfd_create("spend", 0);
    if (ftruncate(fd, 4 << 20)) _exit(1);
    char *shared = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memset(shared, 1, 4 << 20);
    if (fork() == 0) memset(at, 2, 4 << 20);
    _exit(0);
}
static void what_was_spent_comes_back(void) {
    for (int i = 0; i < 3; i++) in_child(spend);
    usleep(200000);
    long before = free_pages();
    for (int i = 0; i < 60; i++) in_child(spend);
    usleep(200000);
    CHECK(free_pages() > before - 512);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"what_was_spent_comes_back", what_was_spent_comes_back},
        {"one_takes_all_memory", one_takes_all_memory},
        {"copies_of_all_memory", copies_of_all_memory},
        {"files_that_fill_memory", files_that_fill_memory},
        {"a_fork_bomb", a_fork_bomb},
    };
    return RUN(cases, argc, argv);
}
