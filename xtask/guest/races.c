// What two threads or processes do at once is as if one had come first. Run with several CPUs.
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/uio.h>

enum { ROUNDS = 2000, KEEP = 4 };

static volatile int stop;
static volatile int *shared;

static void share(void) {
    shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED);
}

// Both come here before either goes on.
static void meet(int round) {
    __atomic_add_fetch(&shared[0], 1, __ATOMIC_SEQ_CST);
    for (int n = 0; __atomic_load_n(&shared[0], __ATOMIC_SEQ_CST) < 2 * (round + 1); n++)
        if (n > 1000) sched_yield();
}

// One makes the file, the other opens it; neither is told that it exists.
static void open_creates_or_opens(void) {
    share();
    pid_t child = fork();
    NEED(child >= 0);
    for (int i = 0; i < ROUNDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "/tmp/race%d", i);
        meet(i);
        int fd = open(name, O_CREAT | O_RDWR, 0600);
        if (fd < 0) __atomic_add_fetch(&shared[1], 1, __ATOMIC_SEQ_CST);
        else close(fd);
        if (child && i >= KEEP) {
            snprintf(name, sizeof name, "/tmp/race%d", i - KEEP);
            unlink(name);
        }
    }
    if (!child) _exit(0);
    waitpid(child, 0, 0);
    CHECK(shared[1] == 0);
}

// Whoever waits for a lock gets it in the end, and alone: between two of them the file has none.
static void a_lock_is_one_processs(void) {
    enum { LOCKERS = 4 };
    share();
    int fd = memfd_create("locked", 0);
    for (int i = 0; i < LOCKERS; i++) {
        pid_t child = fork();
        NEED(fd >= 0 && child >= 0);
        if (child) continue;
        struct flock lock = {.l_type = F_WRLCK}, none = {.l_type = F_UNLCK};
        for (int n = 0; n < ROUNDS; n++) {
            if (fcntl(fd, F_SETLKW, &lock)) _exit(1);
            shared[0]++;
            if (n % 64 == 0) sched_yield();
            if (fcntl(fd, F_SETLKW, &none)) _exit(1);
        }
        _exit(0);
    }
    for (int status; wait(&status) > 0;) CHECK(status == 0);
    CHECK(shared[0] == LOCKERS * ROUNDS);
}

static volatile int round_of[2], segment[2], go;

static void *gets(void *argument) {
    long own = (long)argument;
    for (int i = 1; i <= ROUNDS; i++) {
        for (int n = 0; go < i; n++) if (n > 1000) sched_yield();
        segment[own] = shmget(7000 + i, PAGE, IPC_CREAT | IPC_EXCL | 0600);
        round_of[own] = i;
    }
    return 0;
}

static void one_key_is_one_segment(void) {
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, gets, (void *)i);
    int both = 0, neither = 0;
    for (int i = 1; i <= ROUNDS; i++) {
        go = i;
        while (round_of[0] < i || round_of[1] < i) sched_yield();
        both += segment[0] >= 0 && segment[1] >= 0;
        neither += segment[0] < 0 && segment[1] < 0;
        for (int k = 0; k < 2; k++) if (segment[k] >= 0) shmctl(segment[k], IPC_RMID, 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    CHECK(both == 0);
    CHECK(neither == 0);
}

static void *maps(void *argument) {
    long lost = 0;
    while (!stop) {
        int *at = mmap(0, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) continue;
        *at = 1;
        for (volatile int n = 0; n < 200; n++) {}
        lost += *at != 1;
        munmap(at, 16 * PAGE);
    }
    *(long *)argument = lost;
    return 0;
}

// What moves and stays takes no place from what others map meanwhile.
static void mappings_that_stay_destroy_nothing(void) {
    pthread_t threads[2];
    long lost[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, maps, &lost[i]);
    for (int i = 0; i < 3 * ROUNDS; i++) {
        int *at = mmap(0, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(at != MAP_FAILED);
        *at = i + 1;
        int *moved = mremap(at, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
        NEED(moved != MAP_FAILED);
        if (!CHECK(*moved == i + 1 && *at == 0)) break;
        munmap(at, 16 * PAGE);
        munmap(moved, 16 * PAGE);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    CHECK(lost[0] == 0 && lost[1] == 0);
}

static void what_is_shared_stays_shared(void) {
    int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    int *at = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    *at = 1;
    int *moved = mremap(at, 4 * PAGE, 4 * PAGE, flags, 0);
    NEED(moved != MAP_FAILED);
    CHECK(*at == 1 && *moved == 1);
    *at = 2;
    CHECK(*moved == 2);
    // A private file mapping's copies go along, and its file stays.
    int fd = open("/tmp/stays", O_CREAT | O_RDWR, 0600);
    NEED(fd >= 0 && ftruncate(fd, PAGE) == 0 && pwrite(fd, "file", 4, 0) == 4);
    char *file = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    NEED(file != MAP_FAILED);
    memcpy(file, "mine", 4);
    char *copies = mremap(file, PAGE, PAGE, flags, 0);
    NEED(copies != MAP_FAILED);
    CHECK(!memcmp(file, "file", 4) && !memcmp(copies, "mine", 4));
    // At a place of its own, in place of what is there; and with another length not at all.
    char *place = mmap(0, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mremap(copies, PAGE, PAGE, flags | MREMAP_FIXED, place) == place && !memcmp(place, "mine", 4));
    FAILS((long)mremap(place, PAGE, 2 * PAGE, flags, 0), EINVAL);
    unlink("/tmp/stays");
}

static void *looks(void *argument) {
    long seen = 0;
    int first = *(int *)argument;
    while (!stop)
        for (int fd = first; fd < first + 4; fd++) seen += fcntl(fd, F_GETFD) >= 0;
    return (void *)seen;
}

// A call that can't say a number opens none: no thread sees one that is taken back.
static void numbers_are_told_before_they_are_open(void) {
    int pair[2], got = 0;
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    int first = dup(0);
    close(first);
    pthread_t thread;
    NEED(pthread_create(&thread, 0, looks, &first) == 0);
    void *bad = (void *)16;
    for (int i = 0; i < 3 * ROUNDS; i++) {
        got += syscall(SYS_pipe2, bad, 0) == 0;
        got += syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, bad) == 0;
        NEED(send_files(pair[0], pair, 1, "x", 1, 0) == 1);
        char byte;
        struct iovec piece = {&byte, 1};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = bad, .msg_controllen = CMSG_SPACE(sizeof(int))};
        recvmsg(pair[1], &message, MSG_DONTWAIT);
    }
    stop = 1;
    void *seen;
    pthread_join(thread, &seen);
    CHECK(got == 0);
    CHECK(seen == 0);
}

// A number that a call waits to open is nobody else's, and not open.
static void *accepts(void *argument) { return (void *)(long)accept(*(int *)argument, 0, 0); }

static void a_number_waits_for_its_file(void) {
    struct sockaddr name = {AF_UNIX, "/tmp/waits"};
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    unlink("/tmp/waits");
    NEED(bind(listener, &name, sizeof name) == 0 && listen(listener, 1) == 0);
    int next = dup(0);
    close(next);
    pthread_t thread;
    NEED(pthread_create(&thread, 0, accepts, &listener) == 0);
    usleep(200000);
    FAILS(fcntl(next, F_GETFD), EBADF);
    FAILS(close(next), EBADF);
    // The library's own call would try again.
    FAILS(syscall(SYS_dup2, 0, next), EBUSY);
    int other = dup(0);
    CHECK(other == next + 1);
    // In a child it is free.
    pid_t child = fork();
    if (child == 0) _exit(dup(0) != next);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    NEED(connect(client, &name, sizeof name) == 0);
    void *accepted;
    pthread_join(thread, &accepted);
    CHECK((long)accepted == next && fcntl(next, F_GETFD) == 0);
    unlink("/tmp/waits");
}

// A call that gets no number makes no file.
static void no_file_without_a_number(void) {
    unlink("/tmp/unmade");
    struct rlimit few = {32, 32};
    NEED(setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (dup(0) >= 0) {}
    CHECK(errno == EMFILE);
    FAILS(open("/tmp/unmade", O_CREAT | O_WRONLY, 0600), EMFILE);
    FAILS(access("/tmp/unmade", F_OK), ENOENT);
}

static int receive_with(int from, int flags) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room};
    message.msg_controllen = sizeof room;
    if (recvmsg(from, &message, flags | MSG_DONTWAIT) != 1 || !message.msg_controllen) return -1;
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void *close_sockets(void *none) {
    while (!stop) close(socket(AF_UNIX, SOCK_DGRAM, 0));
    return none;
}

// A socket's ring is looked for while one who holds an end peeks at the other and lets the first go: the
// ring is his all the time. Many others lie between the two for a look to pass.
static void peeked_rings_are_alive(void) {
    enum { OTHERS = 200, TIMES = 4, RINGS = 300 };
    pthread_t closer;
    int others[OTHERS], fill[2], lost = 0;
    NEED(!socketpair(AF_UNIX, SOCK_DGRAM, 0, fill) && !pthread_create(&closer, 0, close_sockets, 0));
    for (int i = 0; i < OTHERS; i++) others[i] = fill[1];
    for (int i = 0; i < RINGS; i++) {
        int a[2], b[2];
        NEED(!socketpair(AF_UNIX, SOCK_DGRAM, 0, a) && !socketpair(AF_UNIX, SOCK_DGRAM, 0, b));
        NEED(send_files(a[1], &b[0], 1, "x", 1, 0) == 1);
        for (int n = 0; n < TIMES; n++) NEED(send_files(fill[1], others, OTHERS, "x", 1, 0) == 1);
        NEED(send_files(b[1], &a[0], 1, "x", 1, 0) == 1);
        close(b[0]), close(a[1]), close(b[1]);
        for (volatile int n = i * 37 % 1000; n > 0; n--) {}
        int peeked = receive_with(a[0], MSG_PEEK);
        close(a[0]);
        NEED(peeked >= 0);
        usleep(300);
        int back = receive_with(peeked, 0);
        if (back < 0) lost++;
        else close(back);
        close(peeked);
        for (char byte; recv(fill[0], &byte, 1, MSG_DONTWAIT) == 1;) {}
    }
    stop = 1;
    pthread_join(closer, 0);
    CHECK(lost == 0);
    if (lost) printf("  %d of %d rings were emptied under their owner\n", lost, RINGS);
}

static int growing[2][2];

static void *grows(void *which) {
    int pipe = growing[which != 0][1];
    for (int i = 0; i < 10 * ROUNDS; i++) {
        meet(3 * i);
        if (fcntl(pipe, F_SETPIPE_SZ, 64 * PAGE) >= 0) __atomic_add_fetch(&shared[1], 1, __ATOMIC_SEQ_CST);
        meet(3 * i + 1);
        if (shared[1] > 1) shared[2]++;
        fcntl(pipe, F_SETPIPE_SZ, 16 * PAGE);
        meet(3 * i + 2);
        if (!which) shared[1] = 0;
    }
    return 0;
}

static void set_pages_of_pipes(const char *soft) {
    int fd = open("/proc/sys/fs/pipe-user-pages-soft", O_WRONLY);
    NEED(fd >= 0 && write(fd, soft, strlen(soft)) > 0);
    close(fd);
}

// Two pipes of a user who may have pages for one to grow.
static void pipes_do_not_grow_together(void) {
    share();
    set_pages_of_pipes("100");
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        pthread_t other;
        NEED(!setgid(4715) && !setuid(4715) && !pipe(growing[0]) && !pipe(growing[1]));
        NEED(!pthread_create(&other, 0, grows, growing));
        grows(0);
        NEED(!pthread_join(other, 0));
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if (!CHECK(shared[2] == 0)) printf("  both grew in %d rounds\n", shared[2] / 2);
    set_pages_of_pipes("16384");
}

static const size_t HELD = 16 * PAGE, MAPPED = 5ul << 29;
static int at_once, most_at_once;

// What one thread of two may have, and not both. Each goes on until it has had it: the CPU of the other may stand still
// for as long as all its rounds take.
static void hold(void) {
    int now = __atomic_add_fetch(&at_once, 1, __ATOMIC_SEQ_CST);
    for (volatile int n = 0; n < 300; n++) {}
    if (now > most_at_once) most_at_once = now;
    __atomic_sub_fetch(&at_once, 1, __ATOMIC_SEQ_CST);
}

static void *locks_in_memory(void *done) {
    void *at = mmap(0, HELD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(at != MAP_FAILED);
    for (int i = 0; i < 3 * ROUNDS || !*(int *)done; i++) {
        if (mlock(at, HELD)) continue;
        ++*(int *)done;
        hold();
        munlock(at, HELD);
    }
    return 0;
}

static void *maps_much(void *done) {
    for (int i = 0; i < 3 * ROUNDS || !*(int *)done; i++) {
        void *at = mmap(0, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) continue;
        ++*(int *)done;
        hold();
        munmap(at, MAPPED);
    }
    return 0;
}

static void limited(int which, size_t most, void *(*takes)(void *)) {
    pid_t child = fork();
    NEED(child >= 0);
    if (child == 0) {
        struct rlimit limit = {most, most};
        pthread_t threads[2];
        int done[2] = {0};
        NEED(!setresuid(1000, 1000, 1000));
        for (int i = 0; i < 2; i++) NEED(!pthread_create(&threads[i], 0, takes, &done[i]) && (i || !setrlimit(which, &limit)));
        for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
        _exit(most_at_once == 1 && done[0] && done[1] ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// Two threads have no more than a limit says, though each alone would keep to it.
static void limits_hold_for_two(void) {
    limited(RLIMIT_MEMLOCK, HELD, locks_in_memory);
    limited(RLIMIT_AS, MAPPED + MAPPED / 2, maps_much);
}

enum { PUNCHED = 64 };

static char *punched;
static int own_file, read_file;

static void *shows_one_or_the_other(void *argument) {
    while (!stop) {
        mmap(punched, PUNCHED * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own_file, 0);
        mmap(punched, PUNCHED * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, read_file, 0);
    }
    return argument;
}

// Addresses that show a file that may be written, or one that may only be read, while a hole is punched there.
static void what_may_only_be_read_has_no_holes(void) {
    static char page[PAGE] = "kept";
    own_file = open("/tmp/own", O_RDWR | O_CREAT, 0600);
    int fd = open("/tmp/kept", O_RDWR | O_CREAT, 0600);
    NEED(own_file >= 0 && fd >= 0 && !ftruncate(own_file, PUNCHED * PAGE));
    for (int i = 0; i < PUNCHED; i++) NEED(write(fd, page, PAGE) == PAGE);
    close(fd);
    read_file = open("/tmp/kept", O_RDONLY);
    punched = mmap(0, PUNCHED * PAGE, PROT_READ, MAP_SHARED, read_file, 0);
    NEED(read_file >= 0 && punched != MAP_FAILED);
    pthread_t other;
    stop = 0;
    NEED(!pthread_create(&other, 0, shows_one_or_the_other, 0));
    for (int i = 0; i < 20 * ROUNDS; i++) madvise(punched, PUNCHED * PAGE, MADV_REMOVE);
    stop = 1;
    NEED(!pthread_join(other, 0));
    int holes = 0;
    for (int i = 0; i < PUNCHED; i++) {
        NEED(pread(read_file, page, PAGE, i * PAGE) == PAGE);
        holes += page[0] == 0;
    }
    if (!CHECK(holes == 0)) printf("  %d of %d pages are gone\n", holes, PUNCHED);
    munmap(punched, PUNCHED * PAGE);
    close(own_file);
    close(read_file);
    unlink("/tmp/own");
    unlink("/tmp/kept");
}

static void notes(int signal) { (void)signal, shared[1]++; }

// A child that comes to be traced as its parent ends goes on: either nobody traces it, or who lets go of it.
static void who_has_ended_traces_nobody(void) {
    share();
    NEED(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    for (int i = 0; i < ROUNDS; i++) {
        pid_t parent = fork();
        NEED(parent >= 0);
        if (parent == 0) {
            if (fork() == 0) {
                signal(SIGUSR1, notes);
                meet(i);
                for (volatile int n = i % 200 * 20; n > 0; n--) {}
                ptrace(PTRACE_TRACEME, 0, 0, 0);
                raise(SIGUSR1);
                _exit(0);
            }
            meet(i);
            _exit(0);
        }
        time_t late = time(0) + 10;
        for (int left = 2, status; left;) {
            pid_t pid = waitpid(-1, &status, WNOHANG);
            // The next tracer of one whose parent has gone is this program.
            if (pid > 0 && WIFSTOPPED(status)) ptrace(PTRACE_CONT, pid, 0, 0);
            else if (pid > 0) left--;
            else if (!CHECK(time(0) < late)) return printf("  round %d\n", i), (void)kill(0, SIGKILL);
        }
    }
}

// --- the last thread ---

enum { NOW, MOST, GO, OVER, MADE, ENDED };

static void *is_alive(void *none) {
    int now = __atomic_add_fetch(&shared[NOW], 1, __ATOMIC_SEQ_CST);
    if (now > shared[MOST]) shared[MOST] = now;
    usleep(500);
    __atomic_sub_fetch(&shared[NOW], 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&shared[ENDED], 1, __ATOMIC_SEQ_CST);
    return none;
}

static void makes_threads(void) {
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small), pthread_attr_setstacksize(&small, 16384), pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    while (!shared[GO]) usleep(1000);
    for (time_t end = time(0) + 2; time(0) < end;)
        if (!pthread_create(&thread, &small, is_alive, 0)) __atomic_add_fetch(&shared[MADE], 1, __ATOMIC_SEQ_CST);
    // Nobody makes room by going first, or takes a thread along that has not ended.
    __atomic_add_fetch(&shared[OVER], 1, __ATOMIC_SEQ_CST);
    while (shared[OVER] < 2 || shared[ENDED] < shared[MADE]) usleep(1000);
    _exit(0);
}

static int held_back[2];

static void *stays(void *none) {
    char byte;
    return read(held_back[0], &byte, 1) == 1 ? none : 0;
}

// There is room for one more thread in the machine, which two processes make. Linux lets both.
static void the_last_thread_is_one(void) {
    if (vmstat("heap_unannounced") < 0) return;
    share();
    pid_t makers[2];
    for (int i = 0; i < 2; i++) if ((makers[i] = fork()) == 0) makes_threads();
    pthread_attr_t small;
    pthread_t thread;
    int count = 0, error;
    pthread_attr_init(&small), pthread_attr_setstacksize(&small, 16384);
    NEED(!pipe(held_back));
    // Others of before may be on their way out.
    for (int n = 0; n < 5; n++, usleep(100000)) while (!(error = pthread_create(&thread, &small, stays, 0))) count++;
    CHECK(error == EAGAIN && count > 100);
    NEED(write(held_back[1], "x", 1) == 1);
    usleep(100000);
    shared[GO] = 1;
    for (int i = 0, status; i < 2; i++) CHECK(waitpid(makers[i], &status, 0) == makers[i] && status == 0);
    if (!CHECK(shared[MOST] == 1 && shared[MADE] > 100)) printf("  %d at once, %d in all, beside %d\n", shared[MOST], shared[MADE], count);
}

// Pages that are asked to leave memory, while other threads free them and make page tables of what is free.
enum { LEAVING = 64, SPAN = 2 << 20, TABLES = 200 };
static char *leaving;

static void *pages_out(void *none) {
    while (!stop) CHECK(!madvise(leaving, LEAVING * PAGE, 21));
    return none;
}

static void *frees_pages(void *none) {
    while (!stop) {
        for (int i = 0; i < LEAVING; i++) leaving[i * PAGE] = 1;
        CHECK(!madvise(leaving, LEAVING * PAGE, MADV_DONTNEED));
    }
    return none;
}

static void *makes_tables(void *none) {
    while (!stop) {
        char *at = mmap(0, (size_t)TABLES * SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        NEED(at != MAP_FAILED);
        for (size_t i = 0; i < TABLES; i++) at[i * SPAN] = 1;
        NEED(!munmap(at, (size_t)TABLES * SPAN));
        pid_t child = fork();
        if (child == 0) _exit(0);
        NEED(child > 0 && waitpid(child, 0, 0) == child);
    }
    return none;
}

static void *stops_all(void *none) {
    usleep(6000000);
    stop = 1;
    return none;
}

static void pages_that_become_tables(void) {
    static void *(*const all[])(void *) = {pages_out, pages_out, frees_pages, makes_tables, stops_all};
    pid_t children[6];
    for (int i = 0; i < 6; i++) {
        if ((children[i] = fork())) continue;
        leaving = mmap(0, LEAVING * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(leaving != MAP_FAILED);
        pthread_t threads[5];
        for (int n = 0; n < 5; n++) NEED(!pthread_create(&threads[n], 0, all[n], 0));
        for (int n = 0; n < 5; n++) NEED(!pthread_join(threads[n], 0));
        _exit(failed_checks != 0);
    }
    for (int i = 0, status; i < 6; i++) CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
}

static const struct test_case cases[] = {
    {"open_creates_or_opens", open_creates_or_opens},
    {"a_lock_is_one_processs", a_lock_is_one_processs},
    {"one_key_is_one_segment", one_key_is_one_segment},
    {"mappings_that_stay_destroy_nothing", mappings_that_stay_destroy_nothing},
    {"what_is_shared_stays_shared", what_is_shared_stays_shared},
    {"numbers_are_told_before_they_are_open", numbers_are_told_before_they_are_open},
    {"a_number_waits_for_its_file", a_number_waits_for_its_file},
    {"no_file_without_a_number", no_file_without_a_number},
    {"peeked_rings_are_alive", peeked_rings_are_alive},
    {"pipes_do_not_grow_together", pipes_do_not_grow_together},
    {"limits_hold_for_two", limits_hold_for_two},
    {"what_may_only_be_read_has_no_holes", what_may_only_be_read_has_no_holes},
    {"who_has_ended_traces_nobody", who_has_ended_traces_nobody},
    {"the_last_thread_is_one", the_last_thread_is_one},
};

// With little memory, where what is freed is used again at once.
static const struct test_case with_little_memory[] = {
    {"pages_that_become_tables", pages_that_become_tables},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "little")) return RUN(with_little_memory, argc - 1, argv + 1);
    return RUN(cases, argc, argv);
}
