// Texts of /proc: in pieces of any size and at any offset they are what they are whole, they are tied to what they were opened on, and
// they cost the kernel little memory, however long they are and however many are open.
#include "check.h"
#include <dirent.h>
#include <stddef.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

static char whole[1 << 20], parts[1 << 20];

static ssize_t read_all(const char *path, char *to, size_t piece) {
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    ssize_t length = 0, n;
    while ((n = read(fd, to + length, piece)) > 0) length += n;
    CHECK(n == 0);
    close(fd);
    return length;
}

static void texts_are_the_same_in_pieces(void) {
    const char *texts[] = {"/proc/self/maps", "/proc/self/mounts", "/proc/self/limits", "/proc/cpuinfo", "/proc/version"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ssize_t length = read_all(texts[i], whole, sizeof whole);
        CHECK(length > 0);
        for (size_t piece = 1; piece < 300; piece = piece * 3 + 1) {
            memset(parts, 0, length);
            CHECK(read_all(texts[i], parts, piece) == length);
            CHECK(!memcmp(whole, parts, length));
        }
    }
}

static void texts_are_the_same_at_any_offset(void) {
    ssize_t length = read_all("/proc/self/maps", whole, sizeof whole);
    int fd = open("/proc/self/maps", O_RDONLY);
    NEED(fd >= 0 && length > 0);
    srand(1);
    for (int n = 0; n < 300; n++) {
        size_t at = rand() % (length + 100), most = rand() % 400;
        ssize_t got = pread(fd, parts, most, at);
        size_t expected = at >= (size_t)length ? 0 : (size_t)length - at < most ? (size_t)length - at : most;
        // A read may end with a record.
        CHECK(got >= 0 && (size_t)got <= expected && (got > 0 || expected == 0));
        if (got > 0) CHECK(!memcmp(whole + at, parts, got));
    }
    CHECK(lseek(fd, 10, SEEK_SET) == 10);
    CHECK(read(fd, parts, 5) == 5 && !memcmp(whole + 10, parts, 5));
    CHECK(pread(fd, parts, 100, 1l << 40) == 0);
    close(fd);
}

static void a_text_begins_anew_at_its_start(void) {
    int fd = open("/proc/self/maps", O_RDONLY);
    NEED(fd >= 0);
    ssize_t before = read(fd, whole, sizeof whole);
    void *more = mmap((void *)0x700000000000, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    NEED(more != MAP_FAILED);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    ssize_t after = read(fd, whole, sizeof whole - 1);
    whole[after] = 0;
    CHECK(after > before && strstr(whole, "700000000000-"));
    close(fd);
}

static void bad_memory_is_refused(void) {
    int fd = open("/proc/self/maps", O_RDONLY);
    FAILS(read(fd, (void *)8, 100), EFAULT);
    CHECK(read(fd, whole, 10) == 10);
    close(fd);
}

enum { PIECES = 30000 };

static char *scatter(void) {
    char *base = mmap(0, PIECES * 2ul * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(base != MAP_FAILED);
    for (long i = 0; i < PIECES; i++) NEED(mprotect(base + i * 2 * PAGE, PAGE, PROT_READ) == 0);
    return base;
}

static long lines_of(const char *path, const char *with) {
    static char text[1 << 16];
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    long count = 0;
    ssize_t n, kept = 0;
    while ((n = read(fd, text + kept, sizeof text - 1 - kept)) > 0) {
        text[kept + n] = 0;
        char *line = text, *end;
        while ((end = strchr(line, '\n'))) {
            *end = 0;
            count += strstr(line, with) != 0;
            line = end + 1;
        }
        kept = strlen(line);
        memmove(text, line, kept);
    }
    CHECK(n == 0);
    close(fd);
    return count;
}

static void many_mappings_are_all_shown(void) {
    scatter();
    long count = lines_of("/proc/self/maps", " r--p 00000000 00:00 0");
    CHECK(count >= PIECES && count < PIECES + 20);
    count = lines_of("/proc/self/smaps", "Rss:");
    CHECK(count >= 2 * PIECES && count < 2 * PIECES + 30);
    if (access("/proc/self/uvm", R_OK) == 0) CHECK(lines_of("/proc/self/uvm", "-") >= 2 * PIECES);
}

// With a byte read of each, so that each has begun.
static void many_descriptors_cost_little(void) {
    scatter();
    enum { OPENED = 900 };
    const char *texts[] = {"/proc/self/smaps", "/proc/self/maps", "/proc/self/uvm", "/proc/vmstat", "/proc/self/status"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (access(texts[i], R_OK) != 0) continue;
        // Two begin with sums over all mappings, which take their time.
        int opened = strstr(texts[i], "uvm") || strstr(texts[i], "status") ? 10 : OPENED, fds[OPENED];
        char byte;
        long before = number_after("/proc/meminfo", "MemFree:");
        for (int n = 0; n < opened; n++) {
            fds[n] = open(texts[i], O_RDONLY);
            NEED(fds[n] >= 0);
            NEED(read(fds[n], &byte, 1) == 1);
        }
        CHECK(before - number_after("/proc/meminfo", "MemFree:") < 24 * 1024);
        for (int n = 0; n < opened; n++) close(fds[n]);
    }
}

static void nothing_is_read_of_another_program(void) {
    int pipes[2];
    NEED(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(pipes[1]);
        if (read(pipes[0], &byte, 1) < 0) _exit(1);
        execl("/proc/self/exe", "proctext", "wait", (char *)0);
        _exit(1);
    }
    char path[64];
    sprintf(path, "/proc/%d/maps", child);
    int before = open(path, O_RDONLY);
    NEED(before >= 0);
    CHECK(read(before, whole, 20) == 20);
    close(pipes[1]);
    usleep(300000);
    CHECK(read(before, whole, sizeof whole) <= 4096);
    CHECK(read(before, whole, sizeof whole) == 0);
    CHECK(pread(before, whole, sizeof whole, 0) == 0);
    int after = open(path, O_RDONLY);
    CHECK(read(after, whole, sizeof whole) > 0);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    FAILS(pread(after, whole, sizeof whole, 0), ESRCH);
}

static void what_is_gone_has_no_text(void) {
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    char path[64];
    sprintf(path, "/proc/%d/stat", child);
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    CHECK(read(fd, whole, sizeof whole) > 0);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    errno = 0;
    CHECK(pread(fd, whole, sizeof whole, 0) == -1 && errno == ESRCH);
    close(fd);
}

static void names_of_sockets_are_all_shown(void) {
    enum { SOCKETS = 300 };
    int fds[SOCKETS];
    for (int n = 0; n < SOCKETS; n++) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        int length = sprintf(name.sun_path + 1, "proctext-%03d", n);
        fds[n] = socket(AF_UNIX, SOCK_STREAM, 0);
        NEED(bind(fds[n], (void *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + length) == 0);
    }
    CHECK(lines_of("/proc/net/unix", "@proctext-") == SOCKETS);
    for (int n = 0; n < SOCKETS; n += 2) close(fds[n]);
    CHECK(lines_of("/proc/net/unix", "@proctext-") == SOCKETS / 2);
    CHECK(lines_of("/proc/net/unix", "@proctext-123") == 1);
    CHECK(lines_of("/proc/net/unix", "@proctext-124") == 0);
}

static int entries_of(const char *path, int least) {
    DIR *dir = opendir(path);
    NEED(dir);
    int count = 0, last = -1;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        int number = atoi(entry->d_name);
        CHECK(number > last);
        last = number;
        count += number >= least;
    }
    closedir(dir);
    return count;
}

static void *nothing(void *barrier) {
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    return 0;
}

static void folders_of_numbers_are_whole(void) {
    enum { FDS = 600, THREADS = 100 };
    for (int n = 0; n < FDS; n++) NEED(dup2(0, 300 + n) == 300 + n);
    CHECK(entries_of("/proc/self/fd", 300) == FDS);
    for (int n = 0; n < FDS; n += 3) close(300 + n);
    CHECK(entries_of("/proc/self/fd", 300) == FDS * 2 / 3);
    CHECK(entries_of("/proc/self/fdinfo", 300) == FDS * 2 / 3);
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    pthread_t threads[THREADS];
    for (int n = 0; n < THREADS; n++) NEED(pthread_create(&threads[n], 0, nothing, &barrier) == 0);
    pthread_barrier_wait(&barrier);
    CHECK(entries_of("/proc/self/task", 1) == THREADS + 1);
    CHECK(lines_of("/proc/self/status", "Threads:\t101") == 1);
    pthread_barrier_wait(&barrier);
    for (int n = 0; n < THREADS; n++) pthread_join(threads[n], 0);
}

static const struct test_case cases[] = {
    {"texts are the same in pieces", texts_are_the_same_in_pieces},
    {"texts are the same at any offset", texts_are_the_same_at_any_offset},
    {"a text begins anew at its start", a_text_begins_anew_at_its_start},
    {"bad memory is refused", bad_memory_is_refused},
    {"many mappings are all shown", many_mappings_are_all_shown},
    {"many descriptors cost little", many_descriptors_cost_little},
    {"nothing is read of another program", nothing_is_read_of_another_program},
    {"what is gone has no text", what_is_gone_has_no_text},
    {"names of sockets are all shown", names_of_sockets_are_all_shown},
    {"folders of numbers are whole", folders_of_numbers_are_whole},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "wait")) {
        pause();
        return 0;
    }
    return RUN(cases, argc, argv);
}
