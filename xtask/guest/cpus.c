// Several CPUs: threads and processes that really run at once, where they may run, and what one CPU tells another.
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/prctl.h>

enum { SPINNERS = 8 };

static int cpus(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }

static uint64_t nanos(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

static int here(void) {
    unsigned cpu = ~0u;
    syscall(SYS_getcpu, &cpu, 0, 0);
    return (int)cpu;
}

static atomic_int ready, stop;

static void *spinning(void *argument) {
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&stop)) {}
    return argument;
}

static void spin_up(pthread_t *threads, int count) {
    atomic_store(&ready, 0);
    atomic_store(&stop, 0);
    for (int i = 0; i < count; i++) NEED(!pthread_create(&threads[i], 0, spinning, 0));
    while (atomic_load(&ready) < count) sched_yield();
}

// What all CPUs spend on a process is more than the time that passes. A kernel counts by its own clock, so a busy host is no matter.
static void threads_run_at_once(void) {
    pthread_t threads[2];
    NEED(cpus() > 1);
    spin_up(threads, 2);
    uint64_t wall = nanos(CLOCK_MONOTONIC), used = nanos(CLOCK_PROCESS_CPUTIME_ID);
    usleep(500000);
    used = nanos(CLOCK_PROCESS_CPUTIME_ID) - used;
    wall = nanos(CLOCK_MONOTONIC) - wall;
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    CHECK(used > wall + wall / 2);
}

// What a file of `/proc` says of the CPUs that a thread may run on, as a set and as a list, and of its number and name.
static void status_says(const char *path, unsigned set, const char *list, int number, const char *called) {
    char line[256], listed[64] = "", name[64] = "";
    unsigned allowed = 0;
    int pid = 0;
    FILE *file = fopen(path, "r");
    NEED(file);
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "Name: %63s", name);
        sscanf(line, "Pid: %d", &pid);
        sscanf(line, "Cpus_allowed: %x", &allowed);
        sscanf(line, "Cpus_allowed_list: %63s", listed);
    }
    fclose(file);
    int is_so = allowed == set && !strcmp(listed, list) && pid == number && !strcmp(name, called);
    if (!CHECK(is_so)) printf("  %s: %x, %s, %d, %s\n", path, allowed, listed, pid, name);
}

static void *is_pinned(void *nothing) {
    char path[64];
    NEED(!pin(1) && !prctl(PR_SET_NAME, "pinned"));
    sprintf(path, "/proc/self/task/%d/status", (int)syscall(SYS_gettid));
    status_says(path, 2, "1", (int)syscall(SYS_gettid), "pinned");
    status_says("/proc/thread-self/status", 2, "1", (int)syscall(SYS_gettid), "pinned");
    status_says("/proc/self/status", 0xd, "0,2-3", getpid(), "cpus");
    sprintf(path, "/proc/self/task/%d/status", getpid());
    status_says(path, 0xd, "0,2-3", getpid(), "cpus");
    return nothing;
}

static void the_cpus_of_a_thread_are_told(void) {
    NEED(cpus() == 4);
    status_says("/proc/self/status", 0xf, "0-3", getpid(), "cpus");
    NEED(!pin(2));
    status_says("/proc/self/status", 4, "2", getpid(), "cpus");
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < 4; i++) if (i != 1) CPU_SET(i, &set);
    NEED(!sched_setaffinity(0, sizeof set, &set));
    status_says("/proc/self/status", 0xd, "0,2-3", getpid(), "cpus");
    pthread_t thread;
    NEED(!pthread_create(&thread, 0, is_pinned, 0) && !pthread_join(thread, 0));
}

static void a_thread_runs_where_it_may(void) {
    for (int round = 0; round < 20; round++) {
        for (int cpu = 0; cpu < cpus(); cpu++) {
            cpu_set_t set;
            NEED(!pin(cpu));
            CHECK(here() == cpu);
            CHECK(!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) == 1 && CPU_ISSET(cpu, &set));
        }
    }
    pid_t child = fork();
    if (child == 0) _exit(here() == cpus() - 1 ? 4 : 5);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 4);
    cpu_set_t none;
    CPU_ZERO(&none);
    FAILS(sched_setaffinity(0, sizeof none, &none), EINVAL);
    CPU_SET(1000, &none);
    FAILS(sched_setaffinity(0, sizeof none, &none), EINVAL);
    FAILS(sched_setaffinity(999999, sizeof none, &none), ESRCH);
}

static atomic_int its_tid, its_cpu;
static void *wandering(void *argument) {
    atomic_store(&its_tid, (int)syscall(SYS_gettid));
    while (!atomic_load(&stop)) atomic_store(&its_cpu, here());
    return argument;
}
static void a_running_thread_is_sent_elsewhere(void) {
    pthread_t thread;
    atomic_store(&stop, 0);
    NEED(!pthread_create(&thread, 0, wandering, 0));
    while (!atomic_load(&its_tid)) sched_yield();
    for (int round = 0; round < 5; round++) {
        for (int cpu = 0; cpu < cpus(); cpu++) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(cpu, &set);
            CHECK(!sched_setaffinity(atomic_load(&its_tid), sizeof set, &set));
            while (atomic_load(&its_cpu) != cpu) sched_yield();
        }
    }
    atomic_store(&stop, 1);
    pthread_join(thread, 0);
}

// A thread that runs, sleeps shortly and yields by turns.
static void *does_all(void *argument) {
    atomic_store(&its_tid, (int)syscall(SYS_gettid));
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        atomic_store(&its_cpu, here());
        if (i % 3 == 0) sched_yield();
        if (i % 7 == 0) nanosleep(&(struct timespec){.tv_nsec = 1}, 0);
    }
    return argument;
}

static void *sleeps_beside(void *argument) {
    pin(*(int *)argument);
    while (!atomic_load(&stop)) nanosleep(&(struct timespec){.tv_nsec = 1}, 0);
    return argument;
}

// Where a thread may run, and how, changes while it is being taken from a queue. Afterwards it runs where it was sent last.
static void what_is_set_last_holds(void) {
    pthread_t threads[3];
    int beside[2] = {0, 1};
    atomic_store(&stop, 0);
    atomic_store(&its_tid, 0);
    NEED(!pthread_create(&threads[0], 0, does_all, 0));
    for (int i = 0; i < 2; i++) NEED(!pthread_create(&threads[1 + i], 0, sleeps_beside, &beside[i]));
    while (!atomic_load(&its_tid)) sched_yield();
    static const int policies[] = {SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, SCHED_FIFO, SCHED_RR};
    for (unsigned round = 0; round < 20000; round++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        if (round % 3 != 2) CPU_SET(0, &set);
        if (round % 3 != 0) CPU_SET(1, &set);
        CHECK(!sched_setaffinity(atomic_load(&its_tid), sizeof set, &set));
        if (round % 4 == 0) {
            int policy = policies[round / 4 % 5];
            struct sched_param parameter = {.sched_priority = policy == SCHED_FIFO || policy == SCHED_RR};
            CHECK(!syscall(SYS_sched_setscheduler, atomic_load(&its_tid), policy, &parameter));
        }
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(1, &set);
    NEED(!sched_setaffinity(atomic_load(&its_tid), sizeof set, &set));
    usleep(100000);
    for (int i = 0; i < 1000; i++) {
        CHECK(atomic_load(&its_cpu) == 1);
        sched_yield();
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
}

static atomic_int signals;
static void count_signal(int signal) {
    (void)signal;
    atomic_fetch_add(&signals, 1);
}
static void a_signal_reaches_a_running_thread(void) {
    pthread_t thread;
    struct sigaction action = {.sa_handler = count_signal};
    sigaction(SIGUSR1, &action, 0);
    spin_up(&thread, 1);
    for (int i = 1; i <= 200; i++) {
        CHECK(!pthread_kill(thread, SIGUSR1));
        while (atomic_load(&signals) < i) sched_yield();
    }
    atomic_store(&stop, 1);
    pthread_join(thread, 0);
}

static void exits_while_others_spin(void) {
    pthread_t threads[SPINNERS];
    spin_up(threads, SPINNERS);
    _exit(7);
}
static void *exiting(void *argument) {
    (void)argument;
    _exit(8);
}
static void exits_from_another_thread(void) {
    pthread_t threads[SPINNERS], last;
    spin_up(threads, SPINNERS);
    NEED(!pthread_create(&last, 0, exiting, 0));
    for (;;) {}
}
static void execs_while_others_spin(void) {
    pthread_t threads[SPINNERS];
    spin_up(threads, SPINNERS);
    execl("/proc/self/exe", "cpus", "exits_with_nine", (char *)0);
}
static void exits_with_nine(void) { _exit(9); }
static void spins_until_killed(void) {
    pthread_t threads[SPINNERS];
    spin_up(threads, SPINNERS);
    kill(getpid(), SIGKILL);
    for (;;) {}
}
static void the_end_of_running_threads(void) {
    for (int round = 0; round < 10; round++) {
        int status = in_child(exits_while_others_spin);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        status = in_child(exits_from_another_thread);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 8);
        status = in_child(execs_while_others_spin);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9);
        status = in_child(spins_until_killed);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
}

// Each child forks children of its own; none may be lost, whichever CPU it ends on.
static void forks_and_waits(void) {
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        if (child == 0) _exit(i);
        int status;
        NEED(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == i);
    }
}
static void many_fork_at_once(void) {
    pid_t children[SPINNERS];
    for (int i = 0; i < SPINNERS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            forks_and_waits();
            _exit(failed_checks != 0);
        }
    }
    for (int i = 0; i < SPINNERS; i++) {
        int status = -1;
        CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
    }
    FAILS(waitpid(-1, 0, 0), ECHILD);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static long total, turn;
static void *torturing(void *argument) {
    long own = (long)argument;
    for (long i = 0; i < 300; i++) {
        for (int j = 0; j < 50; j++) {
            pthread_mutex_lock(&lock);
            total++;
            pthread_mutex_unlock(&lock);
        }
        if (i % 10 == 0) {
            pthread_mutex_lock(&lock);
            while (turn % SPINNERS != own) pthread_cond_wait(&changed, &lock);
            turn++;
            pthread_cond_broadcast(&changed);
            pthread_mutex_unlock(&lock);
        }
        if (i % 30 == 0) pthread_barrier_wait(&barrier);
    }
    return 0;
}
static void locks_conditions_and_barriers(void) {
    pthread_t threads[SPINNERS];
    NEED(!pthread_barrier_init(&barrier, 0, SPINNERS));
    for (long i = 0; i < SPINNERS; i++) NEED(!pthread_create(&threads[i], 0, torturing, (void *)i));
    for (int i = 0; i < SPINNERS; i++) CHECK(!pthread_join(threads[i], 0));
    CHECK(total == SPINNERS * 300L * 50 && turn == SPINNERS * 30L);
}

// A thread's vector registers and its thread-local storage, as it moves from CPU to CPU: alone, so that each CPU's registers still
// hold what it left there, and while others do the same.
static __thread uint64_t local;
static void *moving(void *argument) {
    for (int i = 0; i < 400; i++) {
        uint64_t mask = 1ull << ((i + (int)(long)argument) % cpus()), found;
        uint64_t pattern = ((uint64_t)argument + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i;
        long result = SYS_sched_setaffinity;
        local = pattern;
        __asm__ volatile("movq %[pattern], %%xmm7\n\tsyscall\n\tmovq %%xmm7, %[found]"
                         : [found] "=&r"(found), "+a"(result)
                         : [pattern] "r"(pattern), "D"(0), "S"(sizeof mask), "d"(&mask)
                         : "rcx", "r11", "xmm7", "memory");
        if (result != 0 || found != pattern || local != pattern) return (void *)1;
    }
    return 0;
}
static void registers_move_along(void) {
    CHECK(!moving(0));
    pthread_t threads[SPINNERS];
    for (long i = 0; i < SPINNERS; i++) NEED(!pthread_create(&threads[i], 0, moving, (void *)i));
    for (int i = 0; i < SPINNERS; i++) {
        void *result;
        CHECK(!pthread_join(threads[i], &result) && !result);
    }
}

static _Atomic uint64_t latest;
static void *telling(void *argument) {
    pin((int)(long)argument % cpus());
    for (int i = 0; i < 20000; i++) {
        uint64_t before = atomic_load(&latest), now = nanos(CLOCK_MONOTONIC);
        if (now < before) return (void *)1;
        // Whoever is later wins; a loser has told nothing.
        atomic_compare_exchange_strong(&latest, &before, now);
    }
    return 0;
}
static void clocks_agree(void) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) NEED(!pthread_create(&threads[i], 0, telling, (void *)i));
    for (int i = 0; i < 4; i++) {
        void *result;
        CHECK(!pthread_join(threads[i], &result) && !result);
    }
}

// A process that ends while its threads make others: a new one must not outlive it.
static void *pausing(void *argument) {
    for (;;) pause();
    return argument;
}
static void *breeding(void *argument) {
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        if (!pthread_create(&thread, 0, pausing, 0)) pthread_detach(thread);
    }
    return argument;
}
static void ends_while_threads_are_made(void) {
    for (long i = 0; i < 4; i++) {
        pthread_t thread;
        NEED(!pthread_create(&thread, 0, breeding, 0));
    }
    usleep(500);
    _exit(3);
}
static void a_process_ends_whole(void) {
    for (int round = 0; round < 40; round++) {
        int status = in_child(ends_while_threads_are_made);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    }
}

// Parent and child end at the same moment: whoever takes orphans must hear of the child.
static void orphans_are_heard_of(void) {
    NEED(!prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    for (int round = 0; round < 300; round++) {
        pid_t parent = fork();
        if (parent == 0) {
            int ends[2];
            NEED(!pipe(ends));
            if (fork() == 0) {
                char byte;
                close(ends[1]);
                (void)!read(ends[0], &byte, 1);
                _exit(2);
            }
            // The child's read ends as this process does.
            _exit(1);
        }
        int status, sum = 0;
        for (int i = 0; i < 2; i++) {
            NEED(wait(&status) > 0);
            sum += WEXITSTATUS(status);
        }
        CHECK(sum == 3);
    }
}

// A thread that gives its rights up doesn't get them back by what another thread changes.
static void *changing_groups(void *argument) {
    while (!atomic_load(&stop)) syscall(SYS_setresgid, -1, -1, -1);
    return argument;
}
static void drops_its_rights(void) {
    pthread_t thread;
    atomic_store(&stop, 0);
    NEED(!pthread_create(&thread, 0, changing_groups, 0));
    usleep(500);
    NEED(!syscall(SYS_setresuid, 1000, 1000, 1000));
    for (int i = 0; i < 2000; i++) {
        if (geteuid() != 1000) _exit(1);
    }
    _exit(0);
}
static void a_drop_of_rights_stays(void) {
    if (geteuid() != 0) return;
    for (int round = 0; round < 60; round++) CHECK(in_child(drops_its_rights) == 0);
}

static int its_ends[2];
static void *resizing(void *argument) {
    for (unsigned i = 0; !atomic_load(&stop); i++) fcntl(its_ends[0], F_SETPIPE_SZ, PAGE << i % 5);
    return argument;
}
static void *pouring(void *argument) {
    static char bytes[16 * PAGE];
    for (int i = 0; i < 1500; i++) {
        if (write(its_ends[1], bytes, 1 + (size_t)i * 997 % sizeof bytes) < 0) return (void *)1;
    }
    close(its_ends[1]);
    return argument;
}
static void a_pipe_is_resized_in_use(void) {
    pthread_t writer, resizer;
    atomic_store(&stop, 0);
    NEED(!pipe(its_ends));
    NEED(!pthread_create(&writer, 0, pouring, 0) && !pthread_create(&resizer, 0, resizing, 0));
    static char bytes[5 * PAGE];
    size_t sum = 0, want = 0;
    for (int i = 0; i < 1500; i++) want += 1 + (size_t)i * 997 % (16 * PAGE);
    for (ssize_t got; (got = read(its_ends[0], bytes, sizeof bytes)) > 0;) sum += (size_t)got;
    atomic_store(&stop, 1);
    void *result;
    pthread_join(resizer, 0);
    CHECK(!pthread_join(writer, &result) && !result && sum == want);
}

// A signal to a group reaches the children that its members are just making, whichever CPU they are made on.
// Not the library's fork, which may block signals meanwhile: one that waits for its parent is not the child's.
static pid_t plain_fork(void) { return (pid_t)syscall(SYS_fork); }
static void forks_for_ever(void) {
    for (;;) {
        pid_t child = plain_fork();
        if (child == 0) {
            for (;;) pause();
        }
        if (child < 0) usleep(1000);
    }
}
static void a_group_ends_whole_by(int signal) {
    // Whoever survives becomes a child of this process.
    NEED(!prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    for (int round = 0; round < 40; round++) {
        pid_t leader = fork();
        if (leader == 0) {
            setpgid(0, 0);
            for (int i = 0; i < 3; i++) {
                if (plain_fork() == 0) break;
            }
            forks_for_ever();
        }
        setpgid(leader, leader);
        usleep(2000 + (unsigned)round * 700 % 5000);
        CHECK(!kill(-leader, signal));
        int left = 1;
        for (int i = 0; i < 2000 && left; i++) {
            while ((left = waitpid(-1, 0, WNOHANG)) > 0) {}
            left = left == 0;
            if (left) usleep(1000);
        }
        CHECK(!left);
        if (left) kill(-leader, SIGKILL);
        while (waitpid(-1, 0, 0) > 0) {}
    }
}
static void a_group_is_killed_whole(void) { a_group_ends_whole_by(SIGKILL); }
static void a_group_is_ended_whole(void) { a_group_ends_whole_by(SIGTERM); }

// A mutex whose owner dies on another CPU, at any moment, goes to the next with the news of it.
static struct {
    pthread_mutex_t mutex;
    atomic_int rounds;
    int inside;
} *robust;
static void robust_begin(void) {
    pthread_mutexattr_t kind;
    robust = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(robust != MAP_FAILED && !pthread_mutexattr_init(&kind));
    NEED(!pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST));
    NEED(!pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED));
    NEED(!pthread_mutex_init(&robust->mutex, &kind));
}
static int robust_round(void) {
    int error = pthread_mutex_lock(&robust->mutex);
    if (error == EOWNERDEAD) {
        robust->inside = 0;
        if (pthread_mutex_consistent(&robust->mutex)) return 0;
    } else if (error) {
        return 0;
    }
    if (robust->inside++) return 0;
    atomic_fetch_add(&robust->rounds, 1);
    robust->inside--;
    return !pthread_mutex_unlock(&robust->mutex);
}
static void robust_mutexes_of_the_killed(void) {
    robust_begin();
    pid_t children[4];
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 4; i++) {
            children[i] = fork();
            if (children[i] == 0) {
                pin(i % cpus());
                while (robust_round()) {}
                _exit(1);
            }
        }
        int before = atomic_load(&robust->rounds);
        while (atomic_load(&robust->rounds) == before) usleep(100);
        for (int i = 0; i < 4; i++) kill(children[i], SIGKILL);
        for (int i = 0; i < 4; i++) {
            int status;
            CHECK(waitpid(children[i], &status, 0) == children[i] && WIFSIGNALED(status));
        }
        CHECK(robust_round());
    }
}
static void *ends_as_owner(void *argument) {
    pin(cpus() - 1);
    pthread_mutex_lock(&robust->mutex);
    return argument;
}
static void robust_mutexes_of_ended_threads(void) {
    robust_begin();
    pin(0);
    for (int round = 0; round < 100; round++) {
        pthread_t thread;
        NEED(!pthread_create(&thread, 0, ends_as_owner, 0));
        if (round & 1) pthread_join(thread, 0);
        int error = pthread_mutex_lock(&robust->mutex);
        // The lock may also come first.
        if (error == EOWNERDEAD) CHECK(!pthread_mutex_consistent(&robust->mutex));
        else CHECK(!error && !(round & 1));
        CHECK(!pthread_mutex_unlock(&robust->mutex));
        if (!(round & 1)) {
            pthread_join(thread, 0);
            error = pthread_mutex_lock(&robust->mutex);
            CHECK(error == 0 || (error == EOWNERDEAD && !pthread_mutex_consistent(&robust->mutex)));
            CHECK(!pthread_mutex_unlock(&robust->mutex));
        }
    }
}

// A signal to a process goes to the one thread that doesn't block it, wherever that runs; many lose none of a counting kind.
static atomic_int taken_by[4];
static __thread int own_number;
static void note_taker(int signal) {
    (void)signal;
    atomic_fetch_add(&taken_by[own_number], 1);
}
static void *taking(void *argument) {
    own_number = (int)(long)argument;
    pin(own_number % cpus());
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    pthread_sigmask(own_number == 2 ? SIG_UNBLOCK : SIG_BLOCK, &set, 0);
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&stop)) {}
    return 0;
}
static void a_signal_finds_the_thread_that_takes_it(void) {
    pthread_t threads[4];
    sigset_t set;
    struct sigaction action = {.sa_handler = note_taker};
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    sigaction(SIGRTMIN, &action, 0);
    atomic_store(&ready, 0);
    atomic_store(&stop, 0);
    for (long i = 0; i < 4; i++) NEED(!pthread_create(&threads[i], 0, taking, (void *)i));
    while (atomic_load(&ready) < 4) sched_yield();
    for (int i = 0; i < 500; i++) {
        if (sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = i})) {
            CHECK(errno == EAGAIN);
            i--;
            sched_yield();
        }
    }
    while (atomic_load(&taken_by[2]) < 500) sched_yield();
    atomic_store(&stop, 1);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    CHECK(taken_by[0] + taken_by[1] + taken_by[3] == 0 && taken_by[2] == 500);
}

// A broadcast wakes all that wait, on all CPUs.
static int generation, woken;
static void *waiting_for_all(void *argument) {
    pin((int)(long)argument % cpus());
    pthread_mutex_lock(&lock);
    for (int i = 1; i <= 200; i++) {
        woken++;
        pthread_cond_broadcast(&changed);
        while (generation < i) pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
static void a_broadcast_wakes_all(void) {
    pthread_t threads[SPINNERS];
    for (long i = 0; i < SPINNERS; i++) NEED(!pthread_create(&threads[i], 0, waiting_for_all, (void *)i));
    pthread_mutex_lock(&lock);
    for (int i = 1; i <= 200; i++) {
        while (woken < SPINNERS) pthread_cond_wait(&changed, &lock);
        woken = 0;
        generation = i;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < SPINNERS; i++) CHECK(!pthread_join(threads[i], 0));
}

// A pipe between CPUs: what comes out is what went in.
static void pipes_between_cpus(void) {
    int ends[2];
    NEED(!pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        pin(cpus() - 1);
        close(ends[0]);
        unsigned char bytes[3000];
        unsigned at = 0;
        for (int i = 0; i < 400; i++) {
            size_t size = 1 + (size_t)i * 37 % sizeof bytes;
            for (size_t j = 0; j < size; j++) bytes[j] = (unsigned char)(at++ * 31 >> 3);
            if (write(ends[1], bytes, size) != (ssize_t)size) _exit(1);
        }
        _exit(0);
    }
    pin(0);
    close(ends[1]);
    unsigned char bytes[4096];
    unsigned at = 0, wrong = 0;
    for (ssize_t got; (got = read(ends[0], bytes, 1 + at % sizeof bytes)) > 0;) {
        for (ssize_t j = 0; j < got; j++) wrong += bytes[j] != (unsigned char)(at++ * 31 >> 3);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(wrong == 0 && at > 100000);
}

// Each call finds the other CPU a little longer without work: still looking for some, about to halt, halted.
static void a_cpu_without_work_is_called(void) {
    int there[2], back[2];
    char byte = 0;
    NEED(!pipe(there) && !pipe(back));
    pid_t child = fork();
    if (child == 0) {
        pin(cpus() - 1);
        close(there[1]);
        while (read(there[0], &byte, 1) == 1) NEED(write(back[1], &byte, 1) == 1);
        _exit(0);
    }
    pin(0);
    close(there[0]);
    for (int round = 0; round < 3000; round++) {
        uint64_t until = nanos(CLOCK_MONOTONIC) + (uint64_t)(round % 300) * 1000;
        while (nanos(CLOCK_MONOTONIC) < until) {}
        NEED(write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1);
        // Timers call, too.
        if (round % 100 == 0) usleep((unsigned)round / 10);
    }
    close(there[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// What follows a word in a file of /proc.
static long behind(const char *path, const char *word) {
    static char text[1 << 16];
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    ssize_t length = 0, got;
    while ((got = read(fd, text + length, sizeof text - 1 - (size_t)length)) > 0) length += got;
    close(fd);
    text[length] = 0;
    char *at = strstr(text, word);
    NEED(at);
    return atol(at + strlen(word));
}

static void interrupts_and_switches_are_counted(void) {
    long interrupts = behind("/proc/stat", "\nintr "), switches = behind("/proc/stat", "\nctxt ");
    pin(0);
    long here = behind("/proc/interrupts", "LOC:");
    for (int i = 0; i < 50; i++) usleep(1000);
    CHECK(behind("/proc/stat", "\nintr ") >= interrupts + 50);
    CHECK(behind("/proc/stat", "\nctxt ") >= switches + 50);
    CHECK(behind("/proc/interrupts", "LOC:") >= here + 50);
}

static atomic_int go, mine, theirs, over_there;
static int saw_mine;

// Stores, then loads, with nothing between but the compiler's order: a CPU may do the load first.
static void *stores_without_a_barrier(void *argument) {
    pin(1);
    for (int i = 1;; i++) {
        int round;
        while ((round = atomic_load_explicit(&go, memory_order_relaxed)) < i) {
            if (round < 0) return argument;
        }
        atomic_store_explicit(&theirs, i, memory_order_relaxed);
        __asm__ volatile("" : : : "memory");
        saw_mine = atomic_load_explicit(&mine, memory_order_relaxed) == i;
        atomic_store(&over_there, i);
    }
}

// Who stores and then loads beside one that calls membarrier between the two: one of them sees the other, always.
static void a_barrier_for_all_threads(void) {
    enum { QUERY = 0, PRIVATE = 8, REGISTER_PRIVATE = 16, ROUNDS = 20000 };
    pthread_t other;
    NEED(cpus() > 1);
    long commands = syscall(SYS_membarrier, QUERY, 0, 0);
    CHECK(commands > 0 && (commands & PRIVATE) && (commands & REGISTER_PRIVATE));
    CHECK(syscall(SYS_membarrier, 1 << 30, 0, 0) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_membarrier, PRIVATE, 1, 0) == -1 && errno == EINVAL);
    NEED(!syscall(SYS_membarrier, REGISTER_PRIVATE, 0, 0));
    atomic_store(&go, 0), atomic_store(&mine, 0), atomic_store(&theirs, 0), atomic_store(&over_there, 0);
    pin(0);
    NEED(!pthread_create(&other, 0, stores_without_a_barrier, 0));
    int neither = 0, refused = 0;
    uint64_t until = nanos(CLOCK_MONOTONIC) + 3000000000u;
    for (int i = 1; i <= ROUNDS && nanos(CLOCK_MONOTONIC) < until; i++) {
        atomic_store(&go, i);
        // So that the two stores meet now and then.
        for (volatile int wait = i % 256; wait > 0; wait--) {}
        atomic_store_explicit(&mine, i, memory_order_relaxed);
        refused += syscall(SYS_membarrier, PRIVATE, 0, 0) != 0;
        int saw_theirs = atomic_load_explicit(&theirs, memory_order_relaxed) == i;
        for (int looks = 0; atomic_load(&over_there) < i; looks++) {
            if (looks > 100000) sched_yield();
        }
        neither += !saw_mine && !saw_theirs;
    }
    atomic_store(&go, -1);
    pthread_join(other, 0);
    CHECK(refused == 0 && neither == 0);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"threads_run_at_once", threads_run_at_once},
        {"a_thread_runs_where_it_may", a_thread_runs_where_it_may},
        {"the_cpus_of_a_thread_are_told", the_cpus_of_a_thread_are_told},
        {"a_running_thread_is_sent_elsewhere", a_running_thread_is_sent_elsewhere},
        {"what_is_set_last_holds", what_is_set_last_holds},
        {"a_signal_reaches_a_running_thread", a_signal_reaches_a_running_thread},
        {"the_end_of_running_threads", the_end_of_running_threads},
        {"many_fork_at_once", many_fork_at_once},
        {"locks_conditions_and_barriers", locks_conditions_and_barriers},
        {"registers_move_along", registers_move_along},
        {"clocks_agree", clocks_agree},
        {"a_process_ends_whole", a_process_ends_whole},
        {"orphans_are_heard_of", orphans_are_heard_of},
        {"a_drop_of_rights_stays", a_drop_of_rights_stays},
        {"a_pipe_is_resized_in_use", a_pipe_is_resized_in_use},
        {"a_group_is_killed_whole", a_group_is_killed_whole},
        {"a_group_is_ended_whole", a_group_is_ended_whole},
        {"robust_mutexes_of_the_killed", robust_mutexes_of_the_killed},
        {"robust_mutexes_of_ended_threads", robust_mutexes_of_ended_threads},
        {"a_signal_finds_the_thread_that_takes_it", a_signal_finds_the_thread_that_takes_it},
        {"a_broadcast_wakes_all", a_broadcast_wakes_all},
        {"pipes_between_cpus", pipes_between_cpus},
        {"a_cpu_without_work_is_called", a_cpu_without_work_is_called},
        {"interrupts_and_switches_are_counted", interrupts_and_switches_are_counted},
        {"a_barrier_for_all_threads", a_barrier_for_all_threads},
    };
    if (argc > 1 && !strcmp(argv[1], "exits_with_nine")) exits_with_nine();
    return RUN(cases, argc, argv);
}
