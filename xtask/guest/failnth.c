// Each allocation of a system call that can fail fails once: the call succeeds nevertheless, or says that there is no memory and
// leaves everything as it was, so that it succeeds the next time. By /proc/thread-self/fail-nth, as Linux has it (where a kernel was
// built for it). What is lost on the way `flat` finds, which runs this twice.
#include "check.h"
#include <dirent.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>

enum { MOST = 3000, MANY_FDS = 3000, SHARE_A_PORT = 1024 };

static int fail_nth = -1;

// Of the calling thread.
static void begin(void) { NEED((fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC)) >= 0); }

static void arm(int nth) {
    char text[16];
    int length = sprintf(text, "%d", nth);
    NEED(pwrite(fail_nth, text, length, 0) == length);
}

// What is left to count; 0 if something has failed.
static int armed(void) {
    char text[16] = "";
    NEED(pread(fail_nth, text, sizeof text - 1, 0) > 0);
    return atoi(text);
}

static int is_no_memory(int error) {
    return error == ENOMEM || error == ENOBUFS || error == EAGAIN || error == ENFILE || error == ENOLCK || error == EPERM || error == ENOSPC;
}

static long points, calls;

// Has each allocation of a call fail, one after another, until none is left.
static void sweep(const char *name, long (*call)(void), void (*undo)(long)) {
    long usual = call();
    if (usual < 0) printf("  %s: %s\n", name, strerror(errno));
    NEED(usual >= 0);
    if (undo) undo(usual);
    calls++;
    for (int n = 1; n < MOST; n++) {
        arm(n);
        errno = 0;
        long result = call();
        int error = errno, left = armed();
        arm(0);
        if (result >= 0 && undo) undo(result);
        if (result < 0 && !is_no_memory(error)) {
            printf("  %s, allocation %d: %s\n", name, n, strerror(error));
            CHECK(is_no_memory(error));
        }
        if (left != 0) {
            CHECK(result >= 0);
            return;
        }
        points++;
    }
    printf("  %s has no end\n", name);
    CHECK(0);
}

static void close_it(long fd) { close(fd); }

static char data[1 << 17];
static int in, out, pair[2], set = -1, file = -1;
static char *place;

// --- files ---
static long open_new(void) { return open("/tmp/failnth", O_CREAT | O_EXCL | O_RDWR, 0644); }
static void remove_new(long fd) { close(fd), unlink("/tmp/failnth"); }
static long make_folder(void) { return mkdir("/tmp/failnth-folder", 0755); }
static void remove_folder(long result) { (void)result, rmdir("/tmp/failnth-folder"); }
static long make_symlink(void) { return symlink("/tmp", "/tmp/failnth-link"); }
static void remove_link(long result) { (void)result, unlink("/tmp/failnth-link"); }
static long make_link(void) { return link("/bin/failnth", "/bin/failnth-link"); }
static void remove_hard_link(long result) { (void)result, unlink("/bin/failnth-link"); }
static long follow(void) { struct stat s; return stat("/proc/self/root/bin/./..", &s); }
static long where(void) { char text[200]; return getcwd(text, sizeof text) ? 0 : -1; }
static long read_a_link(void) { char text[200]; return readlink("/proc/self/exe", text, sizeof text); }
static long write_much(void) { return pwrite(file, data, sizeof data, 0); }
static void empty_file(long result) { (void)result, CHECK(ftruncate(file, 0) == 0); }
static long grow_file(void) { return ftruncate(file, 1 << 24); }
static long reserve_file(void) { return posix_fallocate(file, 0, 1 << 18) ? (errno = ENOMEM, -1) : 0; }
static long list_folder(void) {
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) return -1;
    errno = 0;
    long count = 0;
    while (readdir(dir)) count++;
    int error = errno;
    closedir(dir);
    return (errno = error) ? -1 : count;
}
static long lock_file(void) { struct flock l = {.l_type = F_WRLCK, .l_start = 10, .l_len = 10}; return fcntl(file, F_SETLK, &l); }
static void unlock_file(long r) { (void)r; struct flock l = {.l_type = F_UNLCK}; fcntl(file, F_SETLK, &l); }
static long flock_file(void) { return flock(file, LOCK_EX); }
static void funlock_file(long r) { (void)r, flock(file, LOCK_UN); }
static long mount_one(void) { mkdir("/tmp/mount", 0755); return mount("none", "/tmp/mount", "tmpfs", 0, "size=1m"); }
static void unmount_one(long r) { (void)r; CHECK(umount("/tmp/mount") == 0); }

// --- descriptors ---
static long dup_far(void) { return dup2(0, 4000); }
static long make_memfd(void) { return syscall(SYS_memfd_create, "failnth", 0); }
static long make_event(void) { return eventfd(0, 0); }
static long make_timer(void) { return timerfd_create(CLOCK_MONOTONIC, 0); }
static long make_signalfd(void) { sigset_t s; sigemptyset(&s); return signalfd(-1, &s, 0); }
static long make_epoll(void) { return epoll_create1(0); }
static long add_to_epoll(void) { struct epoll_event e = {.events = EPOLLIN}; return epoll_ctl(set, EPOLL_CTL_ADD, in, &e); }
static void remove_from_epoll(long r) { (void)r; epoll_ctl(set, EPOLL_CTL_DEL, in, 0); }
static long wait_epoll(void) { static struct epoll_event e[500]; return epoll_wait(set, e, 500, 0); }
static struct pollfd polled[MANY_FDS];
static long poll_many(void) { return poll(polled, MANY_FDS, 0); }
static long select_many(void) {
    fd_set read_set;
    FD_ZERO(&read_set);
    for (int fd = 0; fd < 1000; fd++) if (fcntl(fd, F_GETFD) >= 0) FD_SET(fd, &read_set);
    struct timeval none = {0};
    return select(1000, &read_set, 0, 0, &none);
}

// --- pipes and sockets ---
static long make_pipe(void) { int ends[2]; return pipe(ends) < 0 ? -1 : ends[0] | ends[1] << 16; }
static void close_pipe(long ends) { close(ends & 0xffff), close(ends >> 16); }
static long write_pipe(void) { return write(out, data, 1 << 16); }
static void drain_pipe(long n) { while (n > 0) { long got = read(in, data, n); if (got <= 0) break; n -= got; } }
static long resize_pipe(void) { return fcntl(out, F_SETPIPE_SZ, 1 << 19); }
static void resize_pipe_back(long r) { (void)r; CHECK(fcntl(out, F_SETPIPE_SZ, 1 << 16) > 0); }
static long splice_file(void) { loff_t at = 0; return syscall(SYS_splice, file, &at, out, 0, 1 << 16, SPLICE_F_NONBLOCK); }
static long vmsplice_memory(void) { struct iovec v = {place, 1 << 16}; return syscall(SYS_vmsplice, out, &v, 1, SPLICE_F_NONBLOCK); }
static long make_socket(void) { return socket(AF_UNIX, SOCK_STREAM, 0); }
static long make_pair(void) { int ends[2]; return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0 ? -1 : ends[0] | ends[1] << 16; }
static long connect_sockets(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0failnth"};
    socklen_t length = offsetof(struct sockaddr_un, sun_path) + 8;
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0), accepted = -1;
    int done = server >= 0 && client >= 0 && bind(server, (void *)&name, length) == 0 && listen(server, 5) == 0
        && connect(client, (void *)&name, length) == 0 && (accepted = accept(server, 0, 0)) >= 0;
    int error = errno;
    close(server), close(client), close(accepted);
    errno = error;
    return done ? 0 : -1;
}
static long send_much(void) { return send(pair[0], data, 1 << 16, MSG_DONTWAIT); }
static void receive_much(long n) { while (n > 0) { long got = recv(pair[1], data, n, MSG_DONTWAIT); if (got <= 0) break; n -= got; } }
static long send_rights(void) {
    return send_files(pair[0], (int[]){0, 1, pair[0], in}, 4, "x", 1, MSG_DONTWAIT);
}
static long receive_rights(void) {
    static char control[200];
    struct iovec v = {data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    long got = recvmsg(pair[1], &m, MSG_DONTWAIT);
    struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : 0;
    if (c) for (int *fd = (int *)CMSG_DATA(c); (char *)fd < (char *)c + c->cmsg_len; fd++) close(*fd);
    return got;
}
static void receive_sent(long r) { (void)r; CHECK(receive_rights() == 1); }

// --- memory ---
static long map_some(void) { return (long)mmap(0, 1 << 22, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0); }
static long map_shared(void) { return (long)mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0); }
static void unmap_some(long at) { munmap((void *)at, 1 << 22); }
static void unmap_shared(long at) { munmap((void *)at, 1 << 20); }
static long split(void) { return mprotect(place + 8 * PAGE, PAGE, PROT_NONE); }
static void unsplit(long r) { (void)r; CHECK(mprotect(place, 1 << 18, PROT_READ | PROT_WRITE) == 0); }
static long punch(void) { return munmap(place + 8 * PAGE, PAGE); }
static void refill(long r) { (void)r; CHECK(mmap(place + 8 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED); }
static long lock_some(void) { return mlock(place, 1 << 18); }
static void unlock_some(long r) { (void)r; munlock(place, 1 << 18); }
static long break_up(void) { char *now = (void *)syscall(SYS_brk, 0); return (char *)syscall(SYS_brk, now + (1 << 20)) == now + (1 << 20) ? 0 : (errno = ENOMEM, -1); }
static void break_down(long r) { (void)r; syscall(SYS_brk, syscall(SYS_brk, 0) - (1 << 20)); }
static long make_segment(void) { return shmget(IPC_PRIVATE, 1 << 20, 0600 | IPC_CREAT); }
static void remove_segment(long id) { CHECK(shmctl(id, IPC_RMID, 0) == 0); }
static int segment;
static long attach(void) { return (long)shmat(segment, 0, 0); }
static void detach(long at) { CHECK(shmdt((void *)at) == 0); }
static long read_other(void) { struct iovec a = {data, sizeof data}, b = {place, sizeof data}; return syscall(SYS_process_vm_readv, getpid(), &a, 1, &b, 1, 0); }
static char resident[1 << 16];
static long look_resident(void) { return mincore(place, 1 << 18, (void *)resident); }

// --- processes, signals ---
static long fork_one(void) { pid_t child = syscall(SYS_fork); if (child == 0) syscall(SYS_exit_group, 0); return child; }
static void wait_for(long child) {
    int status = -1;
    if (!CHECK(waitpid(child, &status, 0) == child && status == 0)) printf("  status %x\n", status);
}
static long share_all(void) {
    static char stack[1 << 14] __attribute__((aligned(16)));
    register long r10 asm("r10") = 0, r8 asm("r8") = 0;
    long child = SYS_clone;
    asm volatile("syscall; test %%rax, %%rax; jnz 1f; mov $231, %%eax; xor %%edi, %%edi; syscall; 1:"
                 : "+a"(child) : "D"(CLONE_VM | CLONE_VFORK | SIGCHLD), "S"(stack + sizeof stack), "d"(0), "r"(r10), "r"(r8)
                 : "rcx", "r11", "memory");
    return child < 0 ? (errno = -child, -1) : child;
}
static gid_t groups[1000];
static long set_groups(void) { return setgroups(1000, groups); }
static void unset_groups(long r) { (void)r; setgroups(0, 0); }
static long queue_signal(void) { union sigval v = {.sival_int = 1}; return sigqueue(getpid(), SIGRTMIN + 3, v); }
static void take_signal(long r) { (void)r; sigset_t s; sigemptyset(&s), sigaddset(&s, SIGRTMIN + 3); struct timespec none = {0}; sigtimedwait(&s, 0, &none); }
static long make_posix_timer(void) { struct sigevent e = {.sigev_notify = SIGEV_NONE}; int id; return syscall(SYS_timer_create, CLOCK_MONOTONIC, &e, &id) < 0 ? -1 : id; }
static void remove_posix_timer(long id) { syscall(SYS_timer_delete, (int)id); }
static long wait_futex(void) { static int word; struct timespec soon = {.tv_nsec = 1000}; long r = syscall(SYS_futex, &word, 0, 0, &soon, 0, 0); return r < 0 && errno == ETIMEDOUT ? 0 : r; }
static long sleep_shortly(void) { struct timespec soon = {.tv_nsec = 1000}; return nanosleep(&soon, 0); }

static void calls_fail_cleanly(void) {
    begin();
    struct rlimit files = {8192, 8192};
    NEED(setrlimit(RLIMIT_NOFILE, &files) == 0);
    int ends[2];
    NEED(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    in = ends[0], out = ends[1];
    NEED((file = open("/tmp/failnth-file", O_CREAT | O_RDWR | O_TRUNC, 0644)) >= 0 && (set = epoll_create1(0)) >= 0);
    NEED((segment = shmget(IPC_PRIVATE, 1 << 18, 0600 | IPC_CREAT)) >= 0);
    place = mmap(0, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    NEED(place != MAP_FAILED);
    memset(data, 1, sizeof data);
    sigset_t blocked;
    sigemptyset(&blocked), sigaddset(&blocked, SIGRTMIN + 3);
    sigprocmask(SIG_BLOCK, &blocked, 0);
    for (int n = 0; n < MANY_FDS; n++) {
        polled[n] = (struct pollfd){1000 + n, POLLOUT, 0};
        NEED(dup2(out, 1000 + n) >= 0);
        struct epoll_event event = {.events = EPOLLOUT};
        if (n < 1000) NEED(epoll_ctl(set, EPOLL_CTL_ADD, 1000 + n, &event) == 0);
    }
#define SWEEP(call, undo) sweep(#call, call, undo)
    SWEEP(open_new, remove_new), SWEEP(make_folder, remove_folder), SWEEP(make_symlink, remove_link), SWEEP(make_link, remove_hard_link);
    SWEEP(follow, 0), SWEEP(where, 0), SWEEP(read_a_link, 0), SWEEP(write_much, empty_file), SWEEP(grow_file, empty_file);
    SWEEP(reserve_file, empty_file), SWEEP(list_folder, 0), SWEEP(lock_file, unlock_file), SWEEP(flock_file, funlock_file);
    SWEEP(mount_one, unmount_one), SWEEP(dup_far, close_it), SWEEP(make_memfd, close_it), SWEEP(make_event, close_it);
    SWEEP(make_timer, close_it), SWEEP(make_signalfd, close_it), SWEEP(make_epoll, close_it), SWEEP(add_to_epoll, remove_from_epoll);
    SWEEP(wait_epoll, 0), SWEEP(poll_many, 0), SWEEP(select_many, 0), SWEEP(make_pipe, close_pipe), SWEEP(write_pipe, drain_pipe);
    SWEEP(resize_pipe, resize_pipe_back), SWEEP(make_socket, close_it), SWEEP(make_pair, close_pipe), SWEEP(connect_sockets, 0);
    SWEEP(send_much, receive_much), SWEEP(send_rights, receive_sent);
    NEED(pwrite(file, data, sizeof data, 0) == sizeof data);
    SWEEP(splice_file, drain_pipe), SWEEP(vmsplice_memory, drain_pipe);
    SWEEP(map_some, unmap_some), SWEEP(map_shared, unmap_shared), SWEEP(split, unsplit), SWEEP(punch, refill), SWEEP(lock_some, unlock_some);
    SWEEP(break_up, break_down), SWEEP(make_segment, remove_segment), SWEEP(attach, detach), SWEEP(read_other, 0), SWEEP(look_resident, 0);
    SWEEP(fork_one, wait_for), SWEEP(share_all, wait_for), SWEEP(set_groups, unset_groups), SWEEP(queue_signal, take_signal);
    SWEEP(make_posix_timer, remove_posix_timer), SWEEP(wait_futex, 0), SWEEP(sleep_shortly, 0);
    shmctl(segment, IPC_RMID, 0);
    unlink("/tmp/failnth-file");
    printf("  %ld allocations of %ld calls have failed\n", points, calls);
    CHECK(points > calls);
}

// A program starts, or it doesn't, and its parent is told which.
static void programs_start_or_do_not(void) {
    int started = 0, refused = 0;
    for (int n = 1; n < 150; n++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            begin();
            char *arguments[] = {"failnth", "nothing", 0}, *environment[] = {"A=b", 0};
            arm(n);
            execve("/bin/failnth", arguments, environment);
            _exit(is_no_memory(errno) ? 42 : 43);
        }
        int status;
        NEED(waitpid(child, &status, 0) == child);
        started += status == 0, refused += status == 42 << 8;
        CHECK(status == 0 || status == 42 << 8 || WIFSIGNALED(status));
    }
    CHECK(started > 0);
    printf("  of 149 programs %d were refused\n", refused);
}

static void read_text(const char *path) {
    for (int n = 1; n < MOST; n++) {
        int fd = open(path, O_RDONLY | O_NONBLOCK);
        if (fd < 0) return;
        arm(n);
        errno = 0;
        ssize_t got;
        while ((got = read(fd, data, sizeof data)) > 0) {}
        int error = errno, left = armed();
        arm(0);
        close(fd);
        if (got < 0 && error == EISDIR) return;
        if (got < 0 && left == 0 && error != ENOMEM) printf("  %s, allocation %d: %s\n", path, n, strerror(error));
        if (got < 0 && left == 0) CHECK(error == ENOMEM);
        if (left != 0) return;
        points++;
    }
    CHECK(!"it has an end");
}

static void read_folder(const char *folder) {
    DIR *dir = opendir(folder);
    NEED(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        struct stat what;
        // Nobody types, and an audit stops everything.
        if (lstat(path, &what) != 0 || !S_ISREG(what.st_mode) || !strcmp(entry->d_name, "audit")) continue;
        if (strstr(path, "fail-nth") || strstr(path, "sysrq") || !strcmp(entry->d_name, "mem") || !strncmp(entry->d_name, "k", 1)) continue;
        read_text(path);
    }
    closedir(dir);
}

static void texts_fail_cleanly(void) {
    begin();
    points = 0;
    read_folder("/proc"), read_folder("/proc/self"), read_folder("/proc/thread-self"), read_folder("/proc/net");
    read_folder("/proc/sysvipc"), read_folder("/proc/sys/kernel"), read_folder("/proc/sys/vm"), read_folder("/proc/sys/fs");
    printf("  %ld allocations for texts have failed\n", points);
    CHECK(points > 20);
}

// Calls that mean nothing, but for those that end or stop the caller or the machine, or wait.
static void every_number_fails_cleanly(void) {
    static const int left_out[] = {
        SYS_exit, SYS_exit_group, SYS_fork, SYS_vfork, SYS_clone, SYS_rt_sigreturn, SYS_pause, SYS_reboot, SYS_rt_sigsuspend, SYS_select,
        SYS_pselect6, SYS_poll, SYS_ppoll, SYS_setsid, SYS_munmap, SYS_close_range, SYS_sync, SYS_read, SYS_wait4, SYS_waitid,
        SYS_restart_syscall, SYS_arch_prctl, SYS_brk, SYS_chroot, SYS_kill, SYS_shmat,
    };
    for (int number = 0; number < 600; number++) {
        int is_left_out = 0;
        for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) is_left_out |= left_out[i] == number;
        if (is_left_out) continue;
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            alarm(20);
            begin();
            int own = dup2(fail_nth, 50);
            fail_nth = own;
            for (int n = 1; n < 6; n++) {
                char text = '0' + n;
                // A call may have made this another user.
                if (pwrite(fail_nth, &text, 1, 0) != 1) _exit(0);
                syscall(number, 3, data, 64, 0, 0, 0);
                syscall(number, "/tmp", data, 64, 0, 0, 0);
            }
            _exit(0);
        }
        int status;
        NEED(waitpid(child, &status, 0) == child);
    }
}

// --- what many others make large ----------------------------------------------------------------------------------------

static int *words;

static long move_waiters(void) {
    long moved = syscall(SYS_futex, &words[0], 3, 0, 100, &words[100], 0);
    // None is left behind by a call that has failed.
    if (moved >= 0 && moved != 6) errno = ESRCH;
    return moved == 6 ? 0 : -1;
}

static void move_back(long result) {
    (void)result;
    CHECK(syscall(SYS_futex, &words[100], 3, 0, 100, &words[0], 0) == 6);
}

static void waiters_are_moved_or_not(void) {
    words = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(words != MAP_FAILED);
    for (int i = 0; i < 6; i++)
        if (fork() == 0) _exit(syscall(SYS_futex, &words[0], 0, 0, 0, 0, 0) != 0);
    usleep(200000);
    begin();
    points = 0;
    sweep("futex(FUTEX_REQUEUE)", move_waiters, move_back);
    CHECK(points > 0);
    CHECK(syscall(SYS_futex, &words[0], 1, 6, 0, 0, 0) == 6);
    for (int i = 0, status; i < 6; i++) CHECK(wait(&status) > 0 && status == 0);
}

enum { CROWD = 2048 };
static int crowded[2];

static void *reads(void *none) {
    char byte;
    CHECK(read(crowded[0], &byte, 1) == 0);
    return none;
}

// The queue has to be larger for it, and can't be.
static void *reads_nevertheless(void *none) {
    char byte;
    begin();
    arm(1);
    CHECK(read(crowded[0], &byte, 1) == 0);
    CHECK(armed() == 0);
    arm(0);
    return none;
}

static void waits_in_a_crowd(void) {
    static pthread_t threads[CROWD + 1];
    long large = vmstat("heap_unannounced");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    NEED(pipe(crowded) == 0);
    for (int i = 0; i < CROWD; i++) NEED(!pthread_create(&threads[i], &attributes, reads, 0));
    usleep(500000);
    NEED(!pthread_create(&threads[CROWD], &attributes, reads_nevertheless, 0));
    usleep(500000);
    close(crowded[1]);
    for (int i = 0; i <= CROWD; i++) NEED(!pthread_join(threads[i], 0));
    CHECK(vmstat("heap_unannounced") == large);
}

static void many_share_a_port(void) {
    struct rlimit most = {MANY_FDS + 100, MANY_FDS + 100};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(5000), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    long large = vmstat("heap_unannounced");
    int fd, one = 1;
    NEED(!setrlimit(RLIMIT_NOFILE, &most));
    for (int i = 0; i <= SHARE_A_PORT; i++) {
        NEED((fd = socket(AF_INET, SOCK_DGRAM, 0)) >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one));
        if (i < SHARE_A_PORT) NEED(!bind(fd, (struct sockaddr *)&at, sizeof at));
        else FAILS(bind(fd, (struct sockaddr *)&at, sizeof at), EADDRINUSE);
    }
    CHECK(sendto(fd, "x", 1, 0, (struct sockaddr *)&at, sizeof at) == 1);
    CHECK(vmstat("heap_unannounced") == large);
}

static void nobody_else_may(void) {
    if (setuid(1000) != 0) exit(1);
    int fd = open("/proc/thread-self/fail-nth", O_RDWR);
    if (fd >= 0) CHECK(write(fd, "1", 1) == -1 && (errno == EPERM || errno == EACCES));
}

static const struct test_case cases[] = {
    {"calls fail cleanly", calls_fail_cleanly},
    {"programs start or do not", programs_start_or_do_not},
    {"texts fail cleanly", texts_fail_cleanly},
    {"every number fails cleanly", every_number_fails_cleanly},
    {"waiters are moved or not", waiters_are_moved_or_not},
    {"nobody else may", nobody_else_may},
};

static const struct test_case crowds[] = {
    {"waits_in_a_crowd", waits_in_a_crowd},
    {"many_share_a_port", many_share_a_port},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "nothing")) return 0;
    if (argc > 1 && !strcmp(argv[1], "crowds")) return RUN(crowds, 1, argv);
    return RUN(cases, argc, argv);
}
