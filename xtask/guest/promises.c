// How much memory is promised (vm.overcommit_memory): what each mode refuses, of which calls, and that a refusal leaves all as it was.
#include "check.h"
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/sysinfo.h>

enum { RW = PROT_READ | PROT_WRITE, MIB = 1 << 20 };

static void set(const char *name, long number) {
    char path[64], text[32];
    sprintf(path, "/proc/sys/vm/%s", name);
    int fd = open(path, O_WRONLY), length = sprintf(text, "%ld\n", number);
    NEED(fd >= 0 && write(fd, text, length) == length);
    close(fd);
}

static long get(const char *name) {
    char path[64];
    sprintf(path, "/proc/sys/vm/%s", name);
    return number_after(path, "");
}

static void *map(size_t bytes, int prot, int flags) { return mmap(0, bytes, prot, MAP_ANONYMOUS | flags, -1, 0); }
static long promised(void) { return number_after("/proc/meminfo", "Committed_AS:"); }
static long limit(void) { return number_after("/proc/meminfo", "CommitLimit:"); }

static size_t all(void) {
    struct sysinfo info;
    NEED(!sysinfo(&info));
    return (size_t)(info.totalram + info.totalswap) * info.mem_unit;
}

#define REFUSED(call) check_((errno = 0, (void *)(call) == MAP_FAILED) && errno == ENOMEM, #call " is refused", __FILE__, __LINE__)

static void settings_are_kept(void) {
    CHECK(get("overcommit_memory") == 0 && get("overcommit_ratio") == 50 && get("overcommit_kbytes") == 0);
    int fd = open("/proc/sys/vm/overcommit_memory", O_WRONLY);
    FAILS(write(fd, "3\n", 2), EINVAL);
    CHECK(get("overcommit_memory") == 0);
    long memory = number_after("/proc/meminfo", "MemTotal:"), swap = number_after("/proc/meminfo", "SwapTotal:");
    CHECK(labs(limit() - (memory / 2 + swap)) < 2048);
    set("overcommit_ratio", 80);
    CHECK(labs(limit() - (memory * 80 / 100 + swap)) < 2048);
    set("overcommit_kbytes", 65536);
    CHECK(limit() == 65536 + swap && get("overcommit_ratio") == 0);
    set("overcommit_ratio", 50);
    CHECK(get("overcommit_kbytes") == 0 && labs(limit() - (memory / 2 + swap)) < 2048);
}

static void guesses_refuse_the_obvious(void) {
    size_t most = all() / PAGE * PAGE;
    CHECK(get("overcommit_memory") == 0);
    // One promise of more than there is, and no other.
    REFUSED(map(most + PAGE, RW, MAP_PRIVATE));
    REFUSED(map(most + PAGE, RW, MAP_SHARED));
    char *at = map(most, RW, MAP_PRIVATE), *more = map(most, RW, MAP_PRIVATE);
    CHECK(at != MAP_FAILED && more != MAP_FAILED);
    munmap(at, most), munmap(more, most);
    // What is not to be stored to, or asks for no promise, is none.
    CHECK((at = map(4 * most, PROT_READ, MAP_PRIVATE)) != MAP_FAILED);
    FAILS(mprotect(at, 4 * most, RW), ENOMEM);
    CHECK(*at == 0 && mprotect(at, most, RW) == 0);
    munmap(at, 4 * most);
    CHECK((at = map(4 * most, RW, MAP_PRIVATE | MAP_NORESERVE)) != MAP_FAILED && !munmap(at, 4 * most));
    CHECK((at = map(4 * most, RW, MAP_SHARED | MAP_NORESERVE)) != MAP_FAILED && !munmap(at, 4 * most));
    at = map(PAGE, RW, MAP_PRIVATE);
    REFUSED(mremap(at, PAGE, most + 2 * PAGE, MREMAP_MAYMOVE));
    CHECK(*at == 0);
    void *end = sbrk(0);
    CHECK(sbrk(most + PAGE) == (void *)-1 && sbrk(0) == end);
}

static void all_is_promised_always(void) {
    size_t most = all() / PAGE * PAGE;
    set("overcommit_memory", 1);
    char *at = map(4 * most, RW, MAP_PRIVATE), *shared = map(4 * most, RW, MAP_SHARED);
    CHECK(at != MAP_FAILED && shared != MAP_FAILED);
    CHECK(mprotect(at, most, PROT_READ) == 0 && mprotect(at, 4 * most, RW) == 0);
    munmap(at, 4 * most), munmap(shared, 4 * most);
    set("overcommit_memory", 0);
}

static void strict(long mib) {
    set("overcommit_memory", 2);
    set("overcommit_kbytes", promised() + mib * 1024 - number_after("/proc/meminfo", "SwapTotal:"));
    set("user_reserve_kbytes", 0);
}

static void lenient(void) {
    set("overcommit_memory", 0);
    set("overcommit_ratio", 50);
    set("user_reserve_kbytes", 131072);
}

static void no_more_is_promised_than_there_is(void) {
    strict(64);
    long before = promised();
    char *at = map(48 * MIB, RW, MAP_PRIVATE);
    CHECK(at != MAP_FAILED && labs(promised() - before - 48 * 1024) < 1024);
    REFUSED(map(20 * MIB, RW, MAP_PRIVATE));
    REFUSED(map(20 * MIB, RW, MAP_PRIVATE | MAP_NORESERVE));
    REFUSED(map(20 * MIB, RW, MAP_SHARED));
    FAILS(shmget(IPC_PRIVATE, 20 * MIB, IPC_CREAT | 0600), ENOMEM);
    // In place of what is promised it goes, and what was given back can be had again.
    CHECK(mmap(at, 48 * MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    CHECK(!munmap(at + 24 * MIB, 24 * MIB) && labs(promised() - before - 24 * 1024) < 1024);
    char *more = map(20 * MIB, RW, MAP_SHARED);
    CHECK(more != MAP_FAILED);
    REFUSED(mremap(at, 24 * MIB, 48 * MIB, MREMAP_MAYMOVE));
    char *still = map(40 * MIB, PROT_READ, MAP_PRIVATE);
    CHECK(still != MAP_FAILED);
    FAILS(mprotect(still, 40 * MIB, RW), ENOMEM);
    CHECK(!mprotect(still, 8 * MIB, RW));
    void *end = sbrk(0);
    CHECK(sbrk(40 * MIB) == (void *)-1 && sbrk(0) == end);
    // Memory that was stored to stays promised, though it can't be stored to any more.
    memset(at, 1, 24 * MIB);
    long now = promised();
    CHECK(!mprotect(at, 24 * MIB, PROT_READ) && labs(promised() - now) < 1024);
    munmap(at, 24 * MIB), munmap(more, 20 * MIB), munmap(still, 40 * MIB);
    CHECK(labs(promised() - before) < 1024);
    lenient();
}

static void children_and_programs_are_promised(void) {
    strict(64);
    long before = promised();
    char *at = map(40 * MIB, RW, MAP_PRIVATE);
    NEED(at != MAP_FAILED);
    FAILS(fork(), ENOMEM);
    CHECK(!munmap(at + 20 * MIB, 20 * MIB));
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) pause();
    CHECK(labs(promised() - before - 2 * 20 * 1024) < 4096);
    kill(child, SIGKILL), waitpid(child, 0, 0);
    CHECK(labs(promised() - before - 20 * 1024) < 2048);
    // A shared mapping is promised once.
    munmap(at, 20 * MIB);
    at = map(40 * MIB, RW, MAP_SHARED);
    NEED(at != MAP_FAILED);
    child = fork();
    NEED(child >= 0);
    if (child == 0) {
        execl("/bin/busybox", "true", (char *)0);
        _exit(1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    munmap(at, 40 * MIB);
    CHECK(labs(promised() - before) < 1024);
    lenient();
}

// Threads and processes that map, change and unmap at once: nothing is left promised.
static void *maps_often(void *gate) {
    char byte;
    CHECK(read(*(int *)gate, &byte, 1) == 0);
    for (int i = 0; i < 300; i++) {
        char *at = map(4 * MIB, RW, MAP_PRIVATE);
        if (at == MAP_FAILED) continue;
        *at = 1;
        mprotect(at + MIB, MIB, i % 2 ? PROT_NONE : RW);
        at = mremap(at, 4 * MIB, 5 * MIB, MREMAP_MAYMOVE) == MAP_FAILED ? at : MAP_FAILED;
        if (at != MAP_FAILED) munmap(at, 4 * MIB);
    }
    return 0;
}

#include <pthread.h>

static void promises_race(void) {
    strict(60);
    long before = promised();
    // None maps before all are there: a fork may be refused beside those that have mapped.
    int gate[2];
    NEED(!pipe(gate));
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            pthread_t threads[2];
            for (int n = 0; n < 2; n++) {
                if (pthread_create(&threads[n], 0, maps_often, &gate[0])) _exit(1);
            }
            close(gate[1]);
            for (int n = 0; n < 2; n++) pthread_join(threads[n], 0);
            _exit(0);
        }
    }
    close(gate[1]), close(gate[0]);
    for (int status = -1; wait(&status) > 0;) CHECK(status == 0);
    CHECK(labs(promised() - before) < 2048);
    lenient();
}

#define CASE(name) {#name, name}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        CASE(settings_are_kept), CASE(guesses_refuse_the_obvious), CASE(all_is_promised_always), CASE(no_more_is_promised_than_there_is),
        CASE(children_and_programs_are_promised), CASE(promises_race),
    };
    return RUN(cases, argc, argv);
}
