// Threads of one process: creation, locks, conditions, thread-local storage, signals to threads, exec and exit with many.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#pragma GCC diagnostic ignored "-Warray-bounds"

enum { THREADS = 16, ROUNDS = 2000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long total;
static __thread long own;

static void *adding(void *argument) {
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&lock);
        total++;
        pthread_mutex_unlock(&lock);
        own++;
        if (i % 500 == 0) sched_yield();
    }
    return (void *)(own == ROUNDS ? (long)argument : -1L);
}
static void creation_and_joining(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) NEED(!pthread_create(&threads[i], 0, adding, (void *)i));
    for (long i = 0; i < THREADS; i++) {
        void *result;
        CHECK(!pthread_join(threads[i], &result) && result == (void *)i);
    }
    CHECK(total == THREADS * ROUNDS && own == 0);
}

static void *nothing(void *argument) { return argument; }
static void many_short_threads(void) {
    for (int i = 0; i < 300; i++) {
        pthread_t thread;
        NEED(!pthread_create(&thread, 0, nothing, 0));
        CHECK(!pthread_join(thread, 0));
    }
}

static int turn;
static void *turning(void *argument) {
    long me = (long)argument;
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&lock);
        while (turn % 4 != me) pthread_cond_wait(&changed, &lock);
        turn++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}
static void conditions(void) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) NEED(!pthread_create(&threads[i], 0, turning, (void *)i));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    CHECK(turn == 800);
}

static void timed_waits(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 30000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&lock);
    CHECK(pthread_cond_timedwait(&changed, &lock, &until) == ETIMEDOUT);
    pthread_mutex_unlock(&lock);
    sem_t semaphore;
    CHECK(!sem_init(&semaphore, 0, 1) && !sem_wait(&semaphore));
    FAILS(sem_trywait(&semaphore), EAGAIN);
    FAILS(sem_timedwait(&semaphore, &until), ETIMEDOUT);
}

static void futexes_between_processes(void) {
    int *word = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(30000);
        __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, word, 1 /* wake */, 10, 0, 0, 0);
        _exit(0);
    }
    while (!__atomic_load_n(word, __ATOMIC_SEQ_CST)) syscall(SYS_futex, word, 0 /* wait */, 0, 0, 0, 0);
    CHECK(*word == 1);
    FAILS(syscall(SYS_futex, word, 0, 99, 0, 0, 0), EAGAIN);
    FAILS(syscall(SYS_futex, (char *)word + 1, 0, 0, 0, 0, 0), EINVAL);
    waitpid(child, 0, 0);
}

static pthread_t signalled;
static void note_thread(int signal) {
    (void)signal;
    signalled = pthread_self();
}
static volatile int ready;
static void *until_signalled(void *argument) {
    (void)argument;
    ready = 1;
    while (!signalled) usleep(1000);
    return 0;
}
static void a_signal_for_one_thread(void) {
    signal(SIGUSR1, note_thread);
    pthread_t thread;
    NEED(!pthread_create(&thread, 0, until_signalled, 0));
    while (!ready) usleep(1000);
    CHECK(!pthread_kill(thread, SIGUSR1));
    CHECK(!pthread_join(thread, 0) && pthread_equal(signalled, thread));
}

static void *endless(void *argument) {
    for (;;) total++;
    return argument;
}
static void *sleeping(void *argument) {
    for (;;) pause();
    return argument;
}
static void threads_of_all_kinds(void) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) NEED(!pthread_create(&thread, 0, endless, 0) && !pthread_create(&thread, 0, sleeping, 0));
    usleep(10000);
}
static void exits_with_threads(void) {
    threads_of_all_kinds();
    _exit(5);
}
static void faults_with_threads(void) {
    threads_of_all_kinds();
    volatile char *null = (volatile char *)8;
    *null = 1;
}
static void execs_with_threads(void) {
    threads_of_all_kinds();
    execl("/bin/busybox", "sh", "-c", "exit 6", (char *)0);
}
static void *exec_here(void *argument) {
    execl("/bin/busybox", "sh", "-c", "exit 7", (char *)0);
    return argument;
}
static void execs_from_a_thread(void) {
    pthread_t thread;
    pthread_create(&thread, 0, exec_here, 0);
    for (;;) pause();
}
static void the_end_of_all_threads(void) {
    int status = in_child(exits_with_threads);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    status = in_child(faults_with_threads);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    status = in_child(execs_with_threads);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 6);
    status = in_child(execs_from_a_thread);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void *forking(void *argument) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) _exit(3);
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) return (void *)1;
    }
    return argument;
}
static void forks_from_threads(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) NEED(!pthread_create(&threads[i], 0, forking, 0));
    for (int i = 0; i < 4; i++) {
        void *result;
        CHECK(!pthread_join(threads[i], &result) && !result);
    }
}

// Threads that fault, map and unmap one address space at once.
static void *mapping(void *argument) {
    for (int i = 0; i < 200; i++) {
        volatile char *at = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) return (void *)1;
        for (int page = 0; page < 8; page++) {
            if (at[page * PAGE]) return (void *)2;
            at[page * PAGE] = (char)i;
        }
        if (i % 20 == 0) sched_yield();
        for (int page = 0; page < 8; page++) if (at[page * PAGE] != (char)i) return (void *)3;
        munmap((void *)at, 8 * PAGE);
    }
    return argument;
}
static void threads_share_one_map(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) NEED(!pthread_create(&threads[i], 0, mapping, 0));
    for (int i = 0; i < 8; i++) {
        void *result;
        CHECK(!pthread_join(threads[i], &result) && !result);
    }
}

static void *detached(void *argument) {
    sem_post(argument);
    return 0;
}
static void detached_threads(void) {
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    for (int i = 0; i < 50; i++) NEED(!pthread_create(&thread, &attributes, detached, &semaphore));
    for (int i = 0; i < 50; i++) CHECK(!sem_wait(&semaphore));
}

// Kilobytes of kernel stacks.
static long kernel_stacks(void) {
    char line[128];
    long kilobytes = -1;
    FILE *file = fopen("/proc/meminfo", "r");
    NEED(file);
    while (fgets(line, sizeof line, file)) sscanf(line, "KernelStack: %ld", &kilobytes);
    fclose(file);
    NEED(kilobytes >= 0);
    return kilobytes;
}
static sem_t leave;
static void *standing_about(void *argument) {
    while (sem_wait(&leave)) {}
    return argument;
}
// What the stacks of a crowd took is free again, but for some that are kept; and another crowd finds stacks.
static void a_crowd_leaves_no_stacks(void) {
    enum { CROWD = 600, LEFT = 5000 };
    static pthread_t threads[CROWD];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    NEED(!pthread_attr_setstacksize(&attributes, 64 * 1024));
    sem_init(&leave, 0, 0);
    long before = kernel_stacks();
    for (int crowd = 0; crowd < 3; crowd++) {
        for (long i = 0; i < CROWD; i++) NEED(!pthread_create(&threads[i], &attributes, standing_about, (void *)i));
        CHECK(kernel_stacks() > before + LEFT);
        for (int i = 0; i < CROWD; i++) sem_post(&leave);
        for (long i = 0; i < CROWD; i++) {
            void *result;
            CHECK(!pthread_join(threads[i], &result) && result == (void *)i);
        }
        for (int tries = 0; tries < 500 && kernel_stacks() > before + LEFT; tries++) usleep(10000);
        CHECK(kernel_stacks() <= before + LEFT);
    }
}

static long futex(void *word, int what, long value, const void *more, void *other, long last) {
    return syscall(SYS_futex, word, what, value, more, other, last);
}

static void *waits_on(void *word) {
    while (!futex(word, 128, 0, 0, 0, 0) && !*(volatile int *)word) {}
    return 0;
}

// A word that processes may share is looked at by each call; one that wakes nothing wakes one.
static void words_without_memory(void) {
    static int word;
    struct timespec soon = {0, 1000000};
    char *at = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED && !munmap(at + PAGE, PAGE) && !mprotect(at + 2 * PAGE, PAGE, PROT_READ));
    FAILS(futex(at + PAGE, 1, 1, 0, 0, 0), EFAULT);
    CHECK(futex(at + PAGE, 1 | 128, 1, 0, 0, 0) == 0);
    FAILS(futex((void *)0xffff800000000000, 1 | 128, 1, 0, 0, 0), EFAULT);
    FAILS(futex(&word, 3, 0, 0, at + PAGE, 0), EFAULT);
    FAILS(futex(&word, 3, 0, 0, at + 2 * PAGE, 0), EFAULT);
    FAILS(futex(at + PAGE, 5, 0, 0, &word, 0), EFAULT);
    FAILS(futex(&word, 3, -1, 0, at + PAGE, 0), EINVAL);
    FAILS(futex(&word, 256, 0, &soon, 0, 0), ENOSYS);
    FAILS(futex(&word, 1 | 256, 0, 0, 0, 0), ENOSYS);
    FAILS(futex(&word, 10 | 256, 1, 0, 0, -1), ENOSYS);
    pthread_t thread;
    NEED(!pthread_create(&thread, 0, waits_on, &word));
    while (futex(&word, 1 | 128, 0, 0, 0, 0) == 0) sched_yield();
    word = 1;
    futex(&word, 1 | 128, -1, 0, 0, 0);
    pthread_join(thread, 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"creation_and_joining", creation_and_joining},
        {"many_short_threads", many_short_threads},
        {"conditions", conditions},
        {"timed_waits", timed_waits},
        {"futexes_between_processes", futexes_between_processes},
        {"a_signal_for_one_thread", a_signal_for_one_thread},
        {"the_end_of_all_threads", the_end_of_all_threads},
        {"forks_from_threads", forks_from_threads},
        {"threads_share_one_map", threads_share_one_map},
        {"detached_threads", detached_threads},
        {"a_crowd_leaves_no_stacks", a_crowd_leaves_no_stacks},
        {"words_without_memory", words_without_memory},
    };
    return RUN(cases, argc, argv);
}
