// Time, limits and the small questions a program asks its kernel.
#include "check.h"
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/utsname.h>

static long long now(clockid_t clock) {
    struct timespec time;
    NEED(!clock_gettime(clock, &time));
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void clocks_run_forward(void) {
    long long last = now(CLOCK_MONOTONIC);
    for (int i = 0; i < 20000; i++) {
        long long time = now(CLOCK_MONOTONIC);
        NEED(time >= last);
        last = time;
    }
    CHECK(now(CLOCK_REALTIME) > 1700000000ll * 1000000000);
    struct timeval day;
    CHECK(!gettimeofday(&day, 0) && llabs(day.tv_sec - now(CLOCK_REALTIME) / 1000000000) <= 1 && time(0) - day.tv_sec <= 1);
    struct timespec resolution;
    CHECK(!clock_getres(CLOCK_MONOTONIC, &resolution) && resolution.tv_sec == 0);
    FAILS(clock_gettime(12345, &resolution), EINVAL);
}

static void sleeping(void) {
    for (int milliseconds = 1; milliseconds <= 64; milliseconds *= 4) {
        long long start = now(CLOCK_MONOTONIC);
        CHECK(!nanosleep(&(struct timespec){0, milliseconds * 1000000}, 0));
        long long spent = now(CLOCK_MONOTONIC) - start;
        CHECK(spent >= milliseconds * 1000000ll && spent < milliseconds * 1000000ll + 2000000000);
    }
    long long until = now(CLOCK_MONOTONIC) + 20000000;
    struct timespec time = {until / 1000000000, until % 1000000000};
    CHECK(!clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, 0) && now(CLOCK_MONOTONIC) >= until);
    FAILS(nanosleep(&(struct timespec){0, 1000000000}, 0), EINVAL);
    FAILS(nanosleep(&(struct timespec){-1, 0}, 0), EINVAL);
    CHECK(!nanosleep(&(struct timespec){0, 0}, 0));
}

static void processor_time(void) {
    long long start = now(CLOCK_PROCESS_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);
    volatile long sum = 0;
    while (now(CLOCK_MONOTONIC) - wall < 100000000) sum++;
    long long spent = now(CLOCK_PROCESS_CPUTIME_ID) - start;
    CHECK(spent > 10000000 && spent < 5000000000);
    start = now(CLOCK_PROCESS_CPUTIME_ID);
    usleep(50000);
    CHECK(now(CLOCK_PROCESS_CPUTIME_ID) - start < 40000000);
    // It goes on with each instruction, not by ticks.
    clockid_t own[] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID};
    for (int i = 0; i < 2; i++) {
        long long steps[20];
        for (int k = 0; k < 20; k++) {
            for (int spins = 0; spins < 10000; spins++) sum++;
            steps[k] = now(own[i]);
        }
        for (int k = 1; k < 20; k++) CHECK(steps[k] > steps[k - 1]);
    }
    struct rusage usage;
    CHECK(!getrusage(RUSAGE_SELF, &usage) && usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec > 0);
    struct tms times_now;
    CHECK(times(&times_now) > 0);
}

// A child that has a child which touches many pages, and waits for it.
static void use_pages(void) {
    enum { PAGES = 4096 };
    pid_t child = fork();
    if (child == 0) {
        char *at = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(at, PAGES * PAGE, MADV_NOHUGEPAGE);
        // Downwards: upwards a fault may bring several.
        for (int i = PAGES; i-- > 0;) at[i * PAGE] = 1;
        _exit(0);
    }
    waitpid(child, 0, 0);
}

static void usage_counts_grandchildren(void) {
    struct rusage usage, all;
    pid_t child = fork();
    if (child == 0) {
        use_pages();
        _exit(0);
    }
    CHECK(wait4(child, 0, 0, &usage) == child && usage.ru_minflt >= 4096 && usage.ru_minflt < 8192);
    CHECK(!getrusage(RUSAGE_CHILDREN, &all) && all.ru_minflt == usage.ru_minflt);
}

static void limits(void) {
    struct rlimit limit, again;
    CHECK(!getrlimit(RLIMIT_STACK, &limit) && limit.rlim_cur == 8 << 20);
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur >= 256);
    limit.rlim_cur = 100;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit) && !getrlimit(RLIMIT_NOFILE, &again) && again.rlim_cur == 100);
    limit.rlim_cur = limit.rlim_max + 1;
    FAILS(setrlimit(RLIMIT_NOFILE, &limit), EINVAL);
    FAILS(getrlimit(99, &limit), EINVAL);
    CHECK(sysconf(_SC_PAGESIZE) == PAGE && sysconf(_SC_NPROCESSORS_ONLN) >= 1);
}

static void about_the_system(void) {
    struct utsname names;
    struct sysinfo info;
    CHECK(!uname(&names) && !strcmp(names.sysname, "Linux") && !strcmp(names.machine, "x86_64") && names.release[0]);
    CHECK(!sysinfo(&info) && info.totalram * info.mem_unit > 30 << 20 && info.freeram <= info.totalram && info.procs > 0);
    unsigned char a[32] = {0}, b[32] = {0};
    CHECK(getrandom(a, 32, 0) == 32 && getrandom(b, 32, GRND_NONBLOCK) == 32 && memcmp(a, b, 32));
    FAILS(syscall(SYS_getrandom, a, 32, 0xff), EINVAL);
    FAILS(syscall(9999), ENOSYS);
    FAILS(syscall(-1), ENOSYS);
    CHECK(syscall(SYS_gettid) == getpid());
}

static volatile int ticks;
static void tick(int signal) {
    (void)signal;
    ticks++;
}
static void a_busy_loop_is_interrupted(void) {
    signal(SIGALRM, tick);
    struct itimerval timer = {{0, 20000}, {0, 20000}};
    CHECK(!setitimer(ITIMER_REAL, &timer, 0));
    volatile long spins = 0;
    while (ticks < 3) spins++;
    CHECK(spins > 0);
}

// Two busy processes share the processor: neither waits for the other's end.
static void busy_processes_share(void) {
    volatile long *progress = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0) for (;;) progress[i * 64]++;
    }
    long long limit = now(CLOCK_MONOTONIC) + 20000000000;
    while ((progress[0] < 100000 || progress[64] < 100000) && now(CLOCK_MONOTONIC) < limit) usleep(5000);
    CHECK(progress[0] >= 100000 && progress[64] >= 100000);
    for (int i = 0; i < 2; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], 0, 0);
    }
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"clocks_run_forward", clocks_run_forward},
        {"sleeping", sleeping},
        {"processor_time", processor_time},
        {"usage_counts_grandchildren", usage_counts_grandchildren},
        {"limits", limits},
        {"about_the_system", about_the_system},
        {"a_busy_loop_is_interrupted", a_busy_loop_is_interrupted},
        {"busy_processes_share", busy_processes_share},
    };
    return RUN(cases, argc, argv);
}
