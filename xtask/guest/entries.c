// Map entries: how many the paper's table 1 operations take (1999, section 3.2), and that wiring splits none but mlock's.
//
// `entries PROGRAM...` gets the programs for the table: a static cat, a dynamic od, a dynamic shell.
#include "check.h"
#include <dirent.h>

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };
static char *cat_program, *od_program, *shell_program;

// The entries of a process, from the first line of its /proc/PID/uvm; 0 if it has gone.
static int entries_of(int pid) {
    char path[64], text[128] = "";
    snprintf(path, sizeof path, "/proc/%d/uvm", pid);
    int fd = open(path, O_RDONLY), count = 0;
    if (fd < 0) return 0;
    if (read(fd, text, sizeof text - 1) > 0) sscanf(text, "map: %d", &count);
    close(fd);
    return count;
}

static int entries_of_all(void) {
    int sum = 0;
    DIR *all = opendir("/proc");
    NEED(all);
    for (struct dirent *entry; (entry = readdir(all));) {
        int pid = atoi(entry->d_name);
        if (pid > 0) sum += entries_of(pid);
    }
    closedir(all);
    return sum;
}

// Starts a program that waits for its standard input; returns its pid once it waits.
static int waiting(char *const *command, int *input) {
    int ends[2];
    NEED(!pipe2(ends, O_CLOEXEC));
    fflush(stdout);
    int pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(ends[0], 0), dup2(null, 1), dup2(null, 2);
        execv(command[0], command);
        _exit(127);
    }
    close(ends[0]);
    *input = ends[1];
    // It waits when it has been asleep at the same place twice.
    char path[64], text[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    for (int calm = 0, i = 0; calm < 5 && i < 500; i++) {
        usleep(10000);
        int fd = open(path, O_RDONLY);
        ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        if (fd >= 0) close(fd);
        text[length > 0 ? length : 0] = 0;
        char *after = strrchr(text, ')');
        state = after ? after[2] : 0;
        calm = state == 'S' ? calm + 1 : 0;
    }
    CHECK(state == 'S');
    return pid;
}

static void finish(int pid, int input) {
    close(input);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void the_tables_operations(void) {
    int before = entries_of_all(), input;
    printf("  table 1: %3d entries after boot (the first process and this test)\n", before);
    int pid = waiting((char *[]){cat_program, "cat", 0}, &input);
    int cat = entries_of(pid);
    printf("  table 1: %3d entries for cat, static\n", cat);
    CHECK(cat > 0 && cat <= 11 /* BSD's, UVM's was 6 */);
    finish(pid, input);
    pid = waiting((char *[]){od_program, 0}, &input);
    int od = entries_of(pid);
    printf("  table 1: %3d entries for od, dynamic\n", od);
    CHECK(od > 0 && od <= 21 /* UVM's was 12, of a smaller C library */);
    finish(pid, input);
    enum { SESSION = 9 };
    int pids[SESSION], inputs[SESSION], sum = 0;
    for (int i = 0; i < SESSION; i++) {
        char *const commands[3][4] = {{shell_program, "-c", "read line", 0}, {od_program, 0}, {cat_program, "cat", 0}};
        pids[i] = waiting(commands[i % 3], &inputs[i]);
        sum += entries_of(pids[i]);
    }
    printf("  table 1: %3d entries for a session of nine processes\n", sum);
    CHECK(sum <= 275 && entries_of_all() == before + sum);
    for (int i = 0; i < SESSION; i++) {
        if (write(inputs[i], "end\n", 4) != 4) failed_checks++;
        close(inputs[i]);
        int status;
        CHECK(waitpid(pids[i], &status, 0) == pids[i] && WIFEXITED(status));
    }
    CHECK(entries_of_all() == before);
}

// A system call that reads or writes user memory for a while wires nothing in the map: sysctl and physio (3.2).
static void calls_split_nothing(void) {
    char *at = mmap(0, 64 * PAGE, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    memset(at, 1, 64 * PAGE);
    int before = entries_of(getpid());
    for (int i = 0; i < 50; i++) {
        char *place = at + (i % 60) * PAGE + 100;
        int fd = open("/proc/self/status", O_RDONLY);
        CHECK(read(fd, place, 2 * PAGE) > 0);
        close(fd);
        fd = open("/tmp/entries.data", O_RDWR | O_CREAT, 0600);
        CHECK(pwrite(fd, place, 3 * PAGE, 0) == 3 * PAGE && pread(fd, place, 3 * PAGE, 0) == 3 * PAGE);
        close(fd);
    }
    unlink("/tmp/entries.data");
    CHECK(entries_of(getpid()) == before);
    // A disk reads and writes whole pages of the program without a copy.
    int disk = open("/dev/vda", O_RDWR | O_DIRECT);
    if (disk >= 0) {
        memset(at, 7, 64 * PAGE);
        CHECK(pwrite(disk, at + 8 * PAGE, 16 * PAGE, 0) == 16 * PAGE);
        CHECK(pread(disk, at + 32 * PAGE, 16 * PAGE, 0) == 16 * PAGE);
        CHECK(!memcmp(at + 8 * PAGE, at + 32 * PAGE, 16 * PAGE));
        close(disk);
        CHECK(entries_of(getpid()) == before);
    }
}

static void locks_are_kept_in_the_map(void) {
    char *at = mmap(0, 9 * PAGE, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    memset(at, 1, 9 * PAGE);
    int before = entries_of(getpid());
    CHECK(!mlock(at + 4 * PAGE, PAGE));
    CHECK(entries_of(getpid()) == before + 2);
    CHECK(!munlock(at + 4 * PAGE, PAGE));
    CHECK(entries_of(getpid()) == before);
}

static void attributes_come_and_go(void) {
    char *at = mmap(0, 32 * PAGE, RW, ANON, -1, 0);
    NEED(at != MAP_FAILED);
    memset(at, 1, 32 * PAGE);
    int before = entries_of(getpid());
    for (int i = 1; i < 31; i++) {
        CHECK(!mprotect(at + i * PAGE, PAGE, PROT_READ) && !madvise(at + i * PAGE, PAGE, MADV_RANDOM));
        CHECK(!mprotect(at + i * PAGE, PAGE, RW) && !madvise(at + i * PAGE, PAGE, MADV_NORMAL));
    }
    CHECK(entries_of(getpid()) == before);
    for (int i = 0; i < 200; i++) { // a heap that grows page by page is one entry
        char *heap = (char *)syscall(SYS_brk, 0);
        NEED((char *)syscall(SYS_brk, heap + PAGE) == heap + PAGE);
        heap[PAGE - 1] = 1;
    }
    CHECK(entries_of(getpid()) <= before + 1);
}

int main(int argc, char **argv) {
    static const struct test_case cases[] = {
        {"the_tables_operations", the_tables_operations},
        {"calls_split_nothing", calls_split_nothing},
        {"locks_are_kept_in_the_map", locks_are_kept_in_the_map},
        {"attributes_come_and_go", attributes_come_and_go},
    };
    NEED(argc > 3);
    cat_program = argv[1], od_program = argv[2], shell_program = argv[3];
    return RUN(cases, 1, argv);
}
