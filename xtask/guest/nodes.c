// What the kernel keeps of a file system on a disk: of files that nobody uses any more as many as it likes, however many were looked
// at; of folders in use as many as their user may have kept, while root goes on. Needs an ext4 on /mnt and little memory.
#include "check.h"
#include <sys/mount.h>

enum { USER = 1000, SEVERAL = 300, SOME = 2 << 20, LOOKED = 500, SPARE = 600, MANY = 5000, FEW = 2 << 10 };

static long before;

static void as_user(const char *folder) {
    NEED(mkdir(folder, 0777) == 0 && chown(folder, USER, USER) == 0 && chdir(folder) == 0);
    NEED(setgid(USER) == 0 && setuid(USER) == 0);
}

// KiB; `status` was opened before: who has all that it may opens nothing.
static long kept_of_user(int status) {
    static char text[8192];
    NEED(pread(status, text, sizeof text - 1, 0) > 0);
    char *line = strstr(text, "KernelKeptOfUser:");
    NEED(line);
    return atol(line + strlen("KernelKeptOfUser:"));
}

// What is kept for the user is within a quarter of what was free.
static void within_bounds(int status) {
    long kept = kept_of_user(status);
    if (!CHECK(kept <= before / 4)) printf("  %ld KiB are kept, of %ld\n", kept, before);
}

// Whether root can start a program that needs some memory, and make a file.
static void root_goes_on(void) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        char *some = mmap(0, SOME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (some == MAP_FAILED || creat("/mnt/roots", 0600) < 0) _exit(1);
        for (int i = 0; i < SOME; i += PAGE) some[i] = 1;
        execl("/bin/busybox", "true", (char *)0);
        _exit(2);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(unlink("/mnt/roots") == 0);
}

// Each folder keeps the one above it, and the last one is a working directory.
static void goes_deep(int said) {
    int status = open("/proc/self/status", O_RDONLY);
    NEED(status >= 0);
    as_user("/mnt/hog");
    long n = 0;
    while (mkdir("f", 0700) == 0 && chdir("f") == 0) n++;
    long words[2] = {n, errno};
    within_bounds(status);
    if (failed_checks == 0 && write(said, words, sizeof words) == sizeof words) for (;;) pause();
    _exit(1);
}

static void makes_files(void) {
    int status = open("/proc/self/status", O_RDONLY);
    NEED(status >= 0);
    as_user("/mnt/files");
    for (int i = 0; i < SEVERAL; i++) {
        char name[16];
        sprintf(name, "%d", i);
        NEED(close(open(name, O_CREAT | O_EXCL | O_WRONLY, 0600)) == 0);
    }
    within_bounds(status);
}

// What is in use may be as much as is allowed, and no more; what isn't any more makes room.
static void folders_in_use(void) {
    int said[2];
    long words[2];
    NEED(pipe(said) == 0);
    pid_t hog = fork();
    NEED(hog >= 0);
    if (hog == 0) goes_deep(said[1]);
    close(said[1]);
    NEED(read(said[0], words, sizeof words) == sizeof words);
    if (!CHECK(words[0] > 1000 && words[1] == ENOMEM)) printf("  %ld folders, then error %ld\n", words[0], words[1]);
    root_goes_on();
    NEED(kill(hog, SIGKILL) == 0 && waitpid(hog, 0, 0) == hog);
    CHECK(in_child(makes_files) == 0);
}

static const char *numbered(int n) {
    static char name[32];
    sprintf(name, "/mnt/looked/%d", n);
    return name;
}

// A program looks at more files than the kernel is to remember, within the time between two looks of the flusher.
static void looked_at(void) {
    NEED(mkdir("/mnt/looked", 0700) == 0);
    for (int i = 0; i < MANY; i++) NEED(mknod(numbered(i), S_IFREG | 0600, 0) == 0);
    NEED(umount("/mnt") == 0 && mount("/dev/vda", "/mnt", "ext4", 0, "") == 0);
    struct stat about;
    for (int i = 0; i < MANY / 10; i++) NEED(stat(numbered(i), &about) == 0);
    long first = number_after("/proc/meminfo", "MemFree:");
    for (int i = MANY / 10; i < MANY; i++) NEED(stat(numbered(i), &about) == 0);
    long kept = first - number_after("/proc/meminfo", "MemFree:");
    if (!CHECK(kept < FEW)) printf("  %ld KiB were kept\n", kept);
}

// Touches memory until little is left of it, for a moment.
static void takes_memory(void) {
    size_t most = (size_t)number_after("/proc/meminfo", "MemTotal:") << 10;
    char *at = mmap(0, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(at != MAP_FAILED);
    for (size_t i = 0; i < most && number_after("/proc/meminfo", "MemFree:") > SPARE; i += 16 * PAGE)
        for (size_t j = i; j < i + 16 * PAGE; j += PAGE) at[j] = 1;
    usleep(500000);
}

static void looks_at_folders(void) {
    int status = open("/proc/self/status", O_RDONLY);
    NEED(status >= 0);
    as_user("/mnt/folders");
    long first = kept_of_user(status);
    for (int i = 0; i < LOOKED; i++) {
        char name[16];
        sprintf(name, "%d", i);
        NEED(mkdir(name, 0700) == 0);
    }
    long kept = kept_of_user(status) - first;
    CHECK(in_child(takes_memory) == 0);
    long left = kept_of_user(status) - first;
    if (!CHECK(kept > LOOKED / 2 && left < kept / 2)) printf("  %ld KiB were kept, and then %ld\n", kept, left);
}

// What was looked at goes when others need the memory, though it is no more than may stay.
static void makes_room(void) {
    CHECK(in_child(looks_at_folders) == 0);
}

static void kept_is_own(void) {
    NEED(setgid(USER) == 0 && setuid(USER) == 0);
    CHECK(number_after("/proc/self/status", "KernelKept:") == number_after("/proc/self/status", "KernelKeptOfUser:"));
}

// With the file system goes what was kept of it.
static void nothing_is_left(void) {
    NEED(chdir("/") == 0 && umount("/mnt") == 0);
    CHECK(in_child(kept_is_own) == 0);
    NEED(mount("/dev/vda", "/mnt", "ext4", 0, "") == 0);
}

static const struct test_case cases[] = {
    {"looked_at", looked_at},
    {"makes_room", makes_room},
    {"folders_in_use", folders_in_use},
    {"nothing_is_left", nothing_is_left},
};

int main(int argc, char **argv) {
    before = number_after("/proc/meminfo", "MemTotal:");
    return RUN(cases, argc, argv);
}
