// Who gets the CPU: sleeps and answers beside programs that compute, and what share each program has. Time is virtual: run with
// instructions for a clock.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { MOST_PROGRAMS = 80 };
static const int64_t MILLI = 1000000, SECOND = 1000 * MILLI;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static void sleep_for(int64_t time) {
    nanosleep(&(struct timespec){time / SECOND, time % SECOND}, 0);
}

static pid_t programs[MOST_PROGRAMS];
static int there;

static void computes(int which) {
    (void)which;
    for (;;) continue;
}

// So many programs more, which have all begun when this returns.
static void add(int count, void (*body)(int)) {
    for (int i = 0; i < count; i++) {
        int which = there;
        programs[there] = fork();
        NEED(programs[there] >= 0);
        if (programs[there] == 0) {
            body(which);
            _exit(1);
        }
        there++;
    }
    sleep_for(50 * MILLI);
}

static void end_all(void) {
    for (int i = 0; i < there; i++) kill(programs[i], SIGKILL);
    for (int i = 0; i < there; i++) NEED(waitpid(programs[i], 0, 0) == programs[i]);
    there = 0;
}

// What a program has run, in nanoseconds.
static int64_t has_run(pid_t program) {
    clockid_t clock;
    struct timespec t;
    NEED(!clock_getcpuclockid(program, &clock) && !clock_gettime(clock, &t));
    return t.tv_sec * SECOND + t.tv_nsec;
}

static int64_t latest_sleep(int times) {
    int64_t latest = 0;
    for (int i = 0; i < times; i++) {
        int64_t due = now() + MILLI;
        sleep_for(MILLI);
        int64_t late = now() - due;
        if (late > latest) latest = late;
    }
    return latest;
}

static int there_and_back[2][2];

static void answers(int which) {
    char byte;
    (void)which;
    while (read(there_and_back[0][0], &byte, 1) == 1) NEED(write(there_and_back[1][1], &byte, 1) == 1);
}

// A round trip, on the average of so many.
static int64_t ping_pong(int times) {
    char byte = 0;
    NEED(!pipe(there_and_back[0]) && !pipe(there_and_back[1]));
    add(1, answers);
    int64_t begun = now();
    for (int i = 0; i < times; i++)
        NEED(write(there_and_back[0][1], &byte, 1) == 1 && read(there_and_back[1][0], &byte, 1) == 1);
    int64_t each = (now() - begun) / times;
    for (int i = 0; i < 4; i++) close(there_and_back[i / 2][i % 2]);
    return each;
}

static void sleeps_end_in_time(void) {
    for (int count = 0; count <= 10; count += count ? 9 : 1) {
        add(count, computes);
        int64_t late = latest_sleep(300);
        printf("  beside %d programs that compute a sleep of 1 ms ends at most %lld us late\n", count, (long long)late / 1000);
        CHECK(late <= MILLI / 10);
        end_all();
    }
}

static void answers_come_soon(void) {
    for (int count = 0; count <= 10; count += count ? 9 : 1) {
        add(count, computes);
        int64_t each = ping_pong(2000);
        printf("  beside %d programs that compute a round trip through pipes takes %lld ns\n", count, (long long)each);
        CHECK(each <= MILLI / 50);
        end_all();
    }
}

static volatile int *turn_of;

static void yields_until_its_turn(int which) {
    (void)which;
    for (;;) {
        while (!(*turn_of & 1)) {
            sched_yield();
            ++turn_of[1];
        }
        ++*turn_of;
    }
}

// One that yields doesn't come back before the other one has run.
static void yields_let_others_run(void) {
    enum { SWITCHES = 2000 };
    turn_of = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(turn_of != MAP_FAILED);
    add(1, yields_until_its_turn);
    turn_of[1] = 0;
    int64_t begun = now();
    while (*turn_of < SWITCHES) {
        if (!(*turn_of & 1)) ++*turn_of;
        sched_yield();
    }
    int64_t each = (now() - begun) / SWITCHES;
    printf("  a switch by sched_yield takes %lld ns; the other program yields %d times for %d turns\n", (long long)each, turn_of[1],
           SWITCHES / 2);
    CHECK(each <= 10000 && turn_of[1] <= SWITCHES / 2 + 20);
    end_all();
}

// The least and the most that a program has of its share, in thousandths.
static void shares(int first, int count, int64_t meanwhile, int64_t *least, int64_t *most) {
    int64_t before[MOST_PROGRAMS], sum = 0;
    for (int i = 0; i < count; i++) before[i] = has_run(programs[first + i]);
    sleep_for(meanwhile);
    for (int i = 0; i < count; i++) sum += before[i] = has_run(programs[first + i]) - before[i];
    *least = INT64_MAX, *most = 0;
    for (int i = 0; i < count; i++) {
        int64_t part = before[i] * count * 1000 / (sum ? sum : 1);
        if (part < *least) *least = part;
        if (part > *most) *most = part;
    }
}

static void equal_programs_have_equal_shares(void) {
    int64_t least, most;
    for (int count = 2; count <= 10; count += 4) {
        add(count, computes);
        shares(0, count, 2 * SECOND, &least, &most);
        printf("  each of %d programs has %lld to %lld thousandths of its share\n", count, (long long)least, (long long)most);
        CHECK(least >= 990 && most <= 1010);
        end_all();
    }
}

static void nice_programs_have_less(void) {
    add(2, computes);
    NEED(!setpriority(PRIO_PROCESS, programs[1], 5));
    int64_t first = has_run(programs[0]), second = has_run(programs[1]);
    sleep_for(2 * SECOND);
    first = has_run(programs[0]) - first, second = has_run(programs[1]) - second;
    printf("  a program has %lld hundredths of what one has that is nicer by 5\n", (long long)(first * 100 / (second ? second : 1)));
    CHECK(first * 100 > second * 295 && first * 100 < second * 315);
    end_all();
}

static int gets_policy(pid_t program, int policy, int priority) {
    struct sched_param parameter = {.sched_priority = priority};
    return syscall(SYS_sched_setscheduler, program, policy, &parameter);
}

// What programs have run, in thousandths of all, in so long a time.
static void parts(int count, int64_t meanwhile, int64_t *part) {
    for (int i = 0; i < count; i++) part[i] = has_run(programs[i]);
    sleep_for(meanwhile);
    for (int i = 0; i < count; i++) part[i] = (has_run(programs[i]) - part[i]) * 1000 / meanwhile;
    for (int i = 0; i < count; i++) printf("%s%lld", i ? ", " : "  thousandths: ", (long long)part[i]);
    printf("\n");
}

static void computes_as_others_do(int which) {
    NEED(!gets_policy(0, SCHED_OTHER, 0));
    computes(which);
}

static void real_time_goes_first(void) {
    int64_t part[3];
    NEED(!gets_policy(0, SCHED_FIFO, 50));
    add(3, computes_as_others_do);
    NEED(!gets_policy(programs[1], SCHED_FIFO, 1) && !gets_policy(programs[2], SCHED_FIFO, 2));
    parts(3, 2 * SECOND, part);
    // Others have a twentieth.
    CHECK(part[0] >= 20 && part[0] <= 60 && part[1] <= 10 && part[2] >= 930);
    // A change of those that wait is seen at once.
    NEED(!gets_policy(programs[1], SCHED_FIFO, 3));
    parts(3, SECOND, part);
    CHECK(part[1] >= 920 && part[2] <= 10);
    NEED(!gets_policy(programs[1], SCHED_RR, 2) && !gets_policy(programs[2], SCHED_RR, 2));
    parts(3, 2 * SECOND, part);
    CHECK(part[1] >= 400 && part[2] >= 400);
    end_all();
    NEED(!gets_policy(0, SCHED_OTHER, 0));
}

static void idle_programs_have_the_rest(void) {
    int64_t part[2];
    add(2, computes);
    NEED(!gets_policy(programs[0], SCHED_IDLE, 0));
    parts(2, 2 * SECOND, part);
    CHECK(part[0] >= 1 && part[0] <= 10 && part[1] >= 980);
    end_all();
}

struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static int reads_back(int policy, int nice, int priority, int flags) {
    struct attributes set = {sizeof set, policy, flags, nice, priority, 0, 0, 0}, got = {0};
    struct sched_param parameter;
    NEED(!syscall(SYS_sched_setattr, 0, &set, 0) && !syscall(SYS_sched_getattr, 0, &got, sizeof got, 0));
    NEED(!syscall(SYS_sched_getparam, 0, &parameter));
    return !memcmp(&set, &got, sizeof set) && parameter.sched_priority == priority && syscall(SYS_sched_getscheduler, 0) == (policy | flags << 30);
}

static int turn(int policy, int priority) {
    struct timespec turn;
    NEED(!gets_policy(0, policy, priority) && !syscall(SYS_sched_rr_get_interval, 0, &turn));
    return turn.tv_sec * 1000 + turn.tv_nsec / MILLI;
}

// Which policies a program without rights may have, by its limit.
static void limited(int which) {
    NEED(!setrlimit(RLIMIT_RTPRIO, &(struct rlimit){which, which}) && !setgid(1000) && !setuid(1000));
    int may = !gets_policy(0, SCHED_FIFO, 10), may_more = !gets_policy(0, SCHED_FIFO, 11);
    _exit(may | may_more << 1);
}

static int policies_with_limit(int limit) {
    int status;
    pid_t it = fork();
    NEED(it >= 0);
    if (it == 0) limited(limit);
    NEED(waitpid(it, &status, 0) == it && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void policies_are_told(void) {
    CHECK(reads_back(SCHED_OTHER, 3, 0, 0) && getpriority(PRIO_PROCESS, 0) == 3);
    CHECK(reads_back(SCHED_BATCH, 0, 0, 0) && reads_back(SCHED_IDLE, 0, 0, 0));
    CHECK(reads_back(SCHED_FIFO, 0, 7, 0) && reads_back(SCHED_RR, 0, 99, 1));
    // A child begins anew.
    pid_t it = fork();
    if (it == 0) _exit(syscall(SYS_sched_getscheduler, 0));
    int status;
    CHECK(waitpid(it, &status, 0) == it && status == 0);
    CHECK(turn(SCHED_RR, 1) == 100 && turn(SCHED_FIFO, 1) == 0 && turn(SCHED_OTHER, 0) > 0);
    FAILS(gets_policy(0, SCHED_FIFO, 100), EINVAL);
    FAILS(gets_policy(0, SCHED_RR, 0), EINVAL);
    FAILS(gets_policy(0, 6, 0), EINVAL);
    struct attributes odd = {sizeof odd, SCHED_OTHER, 0x100, 0, 0, 0, 0, 0};
    FAILS(syscall(SYS_sched_setattr, 0, &odd, 0), EINVAL);
    odd = (struct attributes){.size = 16};
    FAILS(syscall(SYS_sched_setattr, 0, &odd, 0), E2BIG);
    CHECK(odd.size == sizeof odd);
    FAILS(syscall(SYS_sched_getattr, 0, &odd, 16, 0), EINVAL);
    CHECK(policies_with_limit(0) == 0 && policies_with_limit(10) == 1 && policies_with_limit(20) == 3);
}

static void sleeps_shortly(int which) {
    (void)which;
    for (;;) sleep_for(1);
}

static void computes_and_sleeps(int which) {
    for (;;) {
        for (int64_t begun = now(); now() - begun < MILLI * 9 / 10;) continue;
        sleep_for(which + 1);
    }
}

static void yields(int which) {
    (void)which;
    for (;;) sched_yield();
}

static void forks(int which) {
    (void)which;
    for (;;) {
        pid_t it = fork();
        if (it == 0) {
            for (int64_t begun = now(); now() - begun < MILLI;) continue;
            _exit(0);
        }
        if (it > 0) waitpid(it, 0, 0);
    }
}

static void *thread_computes(void *unused) {
    for (;;) continue;
    return unused;
}

static void computes_by_threads(int which) {
    pthread_t thread;
    for (int i = 0; i < 10; i++) NEED(!pthread_create(&thread, 0, thread_computes, 0));
    computes(which);
}

// Nothing that others do keeps a program from its share for long; what they have of theirs isn't asked for.
static void no_program_starves(void) {
    static const struct {
        const char *what;
        void (*body)(int);
        int count;
        // Hundredths of one of them's share that a program that computes has at least.
        int least;
    } mixes[] = {
        {"programs that sleep for a nanosecond", sleeps_shortly, 20, 90},
        {"programs that compute and sleep", computes_and_sleeps, 20, 70},
        {"programs that yield", yields, 20, 90},
        {"programs that fork", forks, 10, 90},
        {"a program of many threads", computes_by_threads, 1, 8},
    };
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        add(mixes[i].count, mixes[i].body);
        add(1, computes);
        int64_t before = has_run(programs[there - 1]), longest = 0, last = before;
        for (int64_t begun = now(), since = begun; now() - begun < SECOND;) {
            sleep_for(5 * MILLI);
            int64_t run = has_run(programs[there - 1]);
            if (run != last) last = run, since = now();
            else if (now() - since > longest) longest = now() - since;
        }
        int64_t part = (last - before) * 100 * (mixes[i].count + 1) / SECOND;
        printf("  beside %d %s one that computes has %lld hundredths of its share and waits at most %lld ms\n", mixes[i].count, mixes[i].what, (long long)part, (long long)(longest / MILLI));
        CHECK(part >= mixes[i].least && longest <= 200 * MILLI);
        end_all();
    }
}

static void is_nice_and_brief(int which) {
    (void)which;
    NEED(!setpriority(PRIO_PROCESS, 0, 19));
    for (;;) {
        for (int64_t begun = now(); now() - begun < 55000;) continue;
        sleep_for(1);
    }
}

// What may run at once for a moment isn't more than its share for long, if it has said that others matter more.
static void nice_programs_sleep_to_no_avail(void) {
    int64_t part[11];
    add(10, computes);
    add(1, is_nice_and_brief);
    sleep_for(SECOND);
    parts(11, 2 * SECOND, part);
    CHECK(part[10] <= 20);
    end_all();
}

static int64_t nanos(struct timeval t) {
    return t.tv_sec * SECOND + t.tv_usec * 1000;
}

// Computes without a call, for a time that was measured before.
static int64_t loops_in_a_milli;

static __attribute__((noinline)) void compute_for(int64_t millis) {
    for (volatile int64_t i = 0; i < millis * loops_in_a_milli; i++) continue;
}

// Time in a program is the program's and time in the kernel the kernel's, however short its turns are and however soon it ends.
static void times_are_measured(void) {
    struct rusage before, after;
    loops_in_a_milli = 100000;
    int64_t begun = now();
    compute_for(10);
    loops_in_a_milli = loops_in_a_milli * 10 * MILLI / (now() - begun);

    NEED(!getrusage(RUSAGE_SELF, &before));
    begun = now();
    for (int i = 0; i < 100; i++) {
        compute_for(1);
        sched_yield();
    }
    int64_t took = now() - begun;
    NEED(!getrusage(RUSAGE_SELF, &after));
    int64_t user = nanos(after.ru_utime) - nanos(before.ru_utime), system = nanos(after.ru_stime) - nanos(before.ru_stime);
    printf("  100 times 1 ms and a yield in %lld us: %lld us user, %lld us system\n", (long long)took / 1000, (long long)user / 1000, (long long)system / 1000);
    CHECK(user >= 99 * MILLI && user <= took && system <= 2 * MILLI && user + system <= took + MILLI / 10);

    static char bytes[1 << 20];
    int zeroes = open("/dev/zero", O_RDONLY);
    NEED(zeroes >= 0 && !getrusage(RUSAGE_SELF, &before));
    begun = now();
    for (int i = 0; i < 100; i++) NEED(read(zeroes, bytes, sizeof bytes) == sizeof bytes);
    took = now() - begun;
    NEED(!getrusage(RUSAGE_SELF, &after) && !close(zeroes));
    user = nanos(after.ru_utime) - nanos(before.ru_utime), system = nanos(after.ru_stime) - nanos(before.ru_stime);
    printf("  100 reads of 1 MiB in %lld us: %lld us user, %lld us system\n", (long long)took / 1000, (long long)user / 1000,
           (long long)system / 1000);
    CHECK(system >= took * 95 / 100 && system <= took * 101 / 100 && user <= took / 20);

    NEED(!getrusage(RUSAGE_CHILDREN, &before));
    begun = now();
    for (int i = 0; i < 300; i++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            compute_for(1);
            _exit(0);
        }
        NEED(waitpid(child, 0, 0) == child);
    }
    took = now() - begun;
    NEED(!getrusage(RUSAGE_CHILDREN, &after));
    user = nanos(after.ru_utime) - nanos(before.ru_utime), system = nanos(after.ru_stime) - nanos(before.ru_stime);
    printf("  300 children of 1 ms in %lld us: %lld us user, %lld us system\n", (long long)took / 1000, (long long)user / 1000,
           (long long)system / 1000);
    CHECK(user >= 299 * MILLI && user <= 306 * MILLI && user + system <= took && user + system >= took * 95 / 100);

    struct timespec t;
    NEED(!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t));
    int64_t cpu = t.tv_sec * SECOND + t.tv_nsec;
    NEED(!getrusage(RUSAGE_THREAD, &after));
    CHECK(nanos(after.ru_utime) + nanos(after.ru_stime) >= cpu - 2000);
}

// Three programs on two CPUs each have two thirds of one.
static void shares_of_two_cpus_are_equal(void) {
    int64_t part[5];
    for (int count = 3; count <= 5; count += 2) {
        add(count, computes);
        sleep_for(SECOND);
        parts(count, 4 * SECOND, part);
        for (int i = 0; i < count; i++) CHECK(part[i] >= 2000 / count * 85 / 100 && part[i] <= 2000 / count * 115 / 100);
        end_all();
    }
}

// Of two real-time programs that have slept on one CPU the second one runs on the other CPU.
static void real_time_finds_a_cpu(void) {
    int64_t part[4];
    NEED(!gets_policy(0, SCHED_FIFO, 50));
    add(4, computes_as_others_do);
    NEED(!gets_policy(programs[2], SCHED_FIFO, 2) && !gets_policy(programs[3], SCHED_FIFO, 1));
    for (int i = 2; i < 4; i++) NEED(!kill(programs[i], SIGSTOP));
    sleep_for(50 * MILLI);
    for (int i = 2; i < 4; i++) NEED(!kill(programs[i], SIGCONT));
    sleep_for(50 * MILLI);
    parts(4, 2 * SECOND, part);
    CHECK(part[2] >= 900 && part[3] >= 900);
    end_all();
    NEED(!gets_policy(0, SCHED_OTHER, 0));
}

static pthread_barrier_t both_have_begun;
static volatile pid_t nicer;
static volatile int64_t has_counted[2];

static void *counts(void *which) {
    if (which) nicer = syscall(SYS_gettid);
    pthread_barrier_wait(&both_have_begun);
    for (;;) ++has_counted[which != 0];
    return 0;
}

// Niceness is a thread's own, and counts at once for one that computes.
static void threads_have_their_niceness(void) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        pthread_t threads[2];
        NEED(!pthread_barrier_init(&both_have_begun, 0, 3));
        for (int i = 0; i < 2; i++) NEED(!pthread_create(&threads[i], 0, counts, i ? threads : 0));
        pthread_barrier_wait(&both_have_begun);
        NEED(!setpriority(PRIO_PROCESS, nicer, 5));
        CHECK(getpriority(PRIO_PROCESS, 0) == 0 && getpriority(PRIO_PROCESS, nicer) == 5);
        int64_t first = has_counted[0], second = has_counted[1];
        sleep_for(2 * SECOND);
        first = has_counted[0] - first, second = has_counted[1] - second;
        printf("  a thread counts %lld hundredths of what one counts that is nicer by 5\n", (long long)(first * 100 / (second ? second : 1)));
        CHECK(first * 100 > second * 290 && first * 100 < second * 320);
        // The least nice one's stands for a group's.
        NEED(!setpgid(0, 0) && !setpriority(PRIO_PGRP, 0, 7));
        CHECK(getpriority(PRIO_PGRP, 0) == 7 && getpriority(PRIO_PROCESS, 0) == 7 && getpriority(PRIO_PROCESS, nicer) == 7);
        fflush(stdout);
        _exit(failed_checks != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    FAILS(getpriority(PRIO_PROCESS, -1), ESRCH);
    FAILS(getpriority(3, 0), EINVAL);
    cpu_set_t set;
    FAILS(sched_getaffinity(-1, sizeof set, &set), ESRCH);
}

static const struct test_case several[] = {
    {"shares_of_two_cpus_are_equal", shares_of_two_cpus_are_equal},
    {"real_time_finds_a_cpu", real_time_finds_a_cpu},
};

static const struct test_case cases[] = {
    {"sleeps_end_in_time", sleeps_end_in_time},
    {"answers_come_soon", answers_come_soon},
    {"yields_let_others_run", yields_let_others_run},
    {"equal_programs_have_equal_shares", equal_programs_have_equal_shares},
    {"nice_programs_have_less", nice_programs_have_less},
    {"threads_have_their_niceness", threads_have_their_niceness},
    {"real_time_goes_first", real_time_goes_first},
    {"idle_programs_have_the_rest", idle_programs_have_the_rest},
    {"policies_are_told", policies_are_told},
    {"no_program_starves", no_program_starves},
    {"nice_programs_sleep_to_no_avail", nice_programs_sleep_to_no_avail},
    {"times_are_measured", times_are_measured},
};

int main(int argc, char **argv) {
    // On two CPUs.
    if (argc > 1 && !strcmp(argv[1], "several")) return RUN(several, argc - 1, argv + 1);
    return RUN(cases, argc, argv);
}
