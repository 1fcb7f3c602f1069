// Far more processes than memory and swap together have room for, each of which writes its part: some are killed, no
// more than must be, and the one that started them goes on.
#include "check.h"
#include <sys/sysinfo.h>

enum { MOST = 2000, WEIGHT = 1 << 20 };

// What one process has come to, in memory that all share.
enum { STARTED, WROTE, GONE };
static volatile char *state;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static long kills(void) {
    FILE *file = fopen("/proc/vmstat", "r");
    NEED(file);
    char name[64];
    long value, found = -1;
    while (fscanf(file, "%63s %ld", name, &value) == 2)
        if (!strcmp(name, "oom_kill")) found = value;
    fclose(file);
    return found;
}

// All that memory and swap have, in processes of this size.
static int room(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    return (int)((info.freeram + info.freeswap) * info.mem_unit / WEIGHT);
}

static pid_t start(int number, int gate[2]) {
    pid_t child = fork();
    if (child != 0) return child;
    char byte;
    close(gate[1]);
    if (read(gate[0], &byte, 1) != 0) _exit(1);
    char *weight = mmap(0, WEIGHT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (weight == MAP_FAILED) _exit(1);
    for (int i = 0; i < WEIGHT; i += PAGE) memset(weight + i, number + i / PAGE, PAGE);
    for (int i = 0; i < WEIGHT; i++)
        if (weight[i] != (char)(number + i / PAGE)) _exit(1);
    state[number] = WROTE;
    for (;;) pause();
}

// Collects those that have gone; with their numbers.
static int collect(const pid_t *pids, int count) {
    int status, many = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0; many++) {
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        for (int i = 0; i < count; i++)
            if (pids[i] == pid) state[i] = GONE;
    }
    return many;
}

static int unsettled(int count) {
    int many = 0;
    for (int i = 0; i < count; i++) many += state[i] == STARTED;
    return many;
}

// As many processes as there can be, once: what the kernel needs for each it may keep for the next.
static void start_all(void) {
    setpgid(0, 0);
    for (pid_t child = 1; child > 0;)
        if ((child = fork()) == 0) for (;;) pause();
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    while (wait(0) > 0) {}
}

// What is free in memory and on swap.
static long free_pages(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    return (long)((info.freeram + info.freeswap) * info.mem_unit / PAGE);
}

// What lies on swap and in memory too counts twice: some of it is the rest of the machine's, the files of its root among it. What is in use
// for good is counted to the page when the program has ended (leftover.c).
enum { DOUBLE = 2048 };
static void memory_is_back(long before) {
    for (int i = 0; i < 5000 && free_pages() < before - DOUBLE; i++) usleep(20000);
    printf("  free pages %ld, before %ld\n", free_pages(), before);
    CHECK(free_pages() >= before - DOUBLE);
}

static void all_write_at_once(void) {
    static pid_t pids[MOST];
    int gate[2], count = 0, gone = 0, enough = room() * 4;
    in_child(start_all);
    long pages = free_pages(), before = kills();
    alarm(0);
    state = mmap(0, MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(state != MAP_FAILED && !pipe(gate));
    for (; count < MOST && count < enough; count++)
        if ((pids[count] = start(count, gate)) < 0) break;
    close(gate[0]);
    int fit = room();
    printf("  %d processes of 1 MiB, and room for %d\n", count, fit);
    fflush(stdout);
    CHECK(count > 2 * fit);
    double began = now(), late = 0;
    close(gate[1]);
    while (unsettled(count)) {
        double asleep = now();
        usleep(10000);
        if (now() - asleep > late) late = now() - asleep;
        gone += collect(pids, count);
    }
    double took = now() - began;
    long killed = kills() - before;
    for (int i = 0; i < count; i++)
        if (state[i] != GONE) kill(pids[i], SIGKILL);
    while (gone < count) {
        gone += collect(pids, count);
        usleep(10000);
    }
    double ended = now() - began - took;
    printf("  %ld killed in %.1f s, at worst %.2f s to wake up; the others ended in %.1f s\n", killed, took, late, ended);
    // At most one for each that has no room, and a few more, since they grow together. How many have room in the end is the machine's affair.
    CHECK(killed > 0 && killed <= count - fit + fit / 2);
    memory_is_back(pages);
}

// Every process forks until it can't, and each new one writes its part.
static void bomb(void) {
    setpgid(0, 0);
    char *weight = mmap(0, WEIGHT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (;;) {
        pid_t child = fork();
        if (child < 0) usleep(1000);
        if (child == 0 && weight != MAP_FAILED) memset(weight, 1, WEIGHT);
    }
}

static void a_fork_bomb(void) {
    in_child(start_all);
    long pages = free_pages(), before = kills();
    alarm(0);
    pid_t leader = fork();
    if (leader == 0) bomb();
    setpgid(leader, leader);
    double began = now(), late = 0;
    while (now() - began < 20 || kills() - before <= 20) {
        double asleep = now();
        usleep(10000);
        if (now() - asleep > late) late = now() - asleep;
    }
    long killed = kills() - before;
    double stop = now();
    // Until none is left: a child that was being made as the signal came is caught by the next signal. A group has its zombies, too, so
    // its leader is waited for on the way.
    for (; !kill(-leader, SIGKILL); usleep(20000)) waitpid(leader, 0, WNOHANG);
    // How late it wakes up is told, not judged: hundreds of programs are ready to run.
    printf("  %ld killed in %.1f s, at worst %.2f s to wake up; all ended in %.1f s\n", killed, stop - began, late, now() - stop);
    memory_is_back(pages);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"all_write_at_once", all_write_at_once},
        {"a_fork_bomb", a_fork_bomb},
    };
    return RUN(cases, argc, argv);
}
