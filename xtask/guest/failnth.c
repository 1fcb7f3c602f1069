// Each allocation of a system call that can fail fails once: the call succeeds nevertheless, or says that there is no memory and
// leaves everything as it was, so that it succeeds the next time. By /proc/thread-self/fail-nth, as Linux has it (where a kernel was
// built for it). What is lost on the way `flat` finds, which runs this twice.
#include "check.h"
#include "uvm.h"
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
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/swap.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>

enum { MOST = 12000, MANY_FDS = 3000, SHARE_A_PORT = 1024 };

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

// Has each allocation of a call fail, one after another, until none is left; there are so many at least. Of hundreds some are left out.
static void sweep(const char *name, long (*call)(void), void (*undo)(long), int least) {
    long usual = call();
    if (usual < 0) printf("  %s: %s\n", name, strerror(errno));
    NEED(usual >= 0);
    if (undo) undo(usual);
    calls++;
    for (int n = 1; n < MOST; n += 1 + n / 200) {
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
            if (!CHECK(n > least)) printf("  %s: none has failed\n", name);
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
static long rename_new(void) { return rename("there", "new"); }
static void rename_back(long r) { (void)r; CHECK(rename("new", "there") == 0); }
static long rename_over(void) { return rename("there", "other"); }
static void make_there(long r) { (void)r; close(open("there", O_CREAT | O_WRONLY, 0644)), close(open("other", O_CREAT | O_WRONLY, 0644)); }
static long exchange(void) { return syscall(SYS_renameat2, AT_FDCWD, "there", AT_FDCWD, "other", 2); }
static long remove_there(void) { return unlink("there"); }
static long remove_there_folder(void) { return rmdir("there-folder"); }
static void make_there_folder(long r) { (void)r; CHECK(mkdir("there-folder", 0755) == 0); }
static long make_here(void) { return open("here", O_CREAT | O_EXCL | O_RDWR, 0644); }
static void remove_here(long fd) { close(fd), CHECK(unlink("here") == 0); }
static long make_here_folder(void) { return mkdir("here", 0755); }
static void remove_here_folder(long r) { (void)r; CHECK(rmdir("here") == 0); }
static long link_here(void) { return link("there", "here"); }
static long symlink_here(void) { return symlink("a text that has no room in the node itself, since it is longer than sixty bytes", "here"); }
static void unlink_here(long r) { (void)r; CHECK(unlink("here") == 0); }
static long make_nameless(void) { return open(".", O_TMPFILE | O_RDWR, 0644); }
static long list_here(void) {
    DIR *dir = opendir(".");
    if (!dir) return -1;
    errno = 0;
    while (readdir(dir)) {}
    int error = errno;
    closedir(dir);
    return (errno = error) ? -1 : 0;
}

static void fill_file(long r) { (void)r; CHECK(pwrite(file, data, sizeof data, 0) == sizeof data); }
static long cut_file(void) { return ftruncate(file, 100); }
static long punch_file(void) { return fallocate(file, 3, PAGE, 8 * PAGE); }
static long sync_file(void) { return fsync(file); }
// What an attempt in vain has left unwritten, the next one has written.
static void synced(long r) {
    static char back[sizeof data];
    CHECK(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
    CHECK(pread(file, back, sizeof back, 0) == sizeof back && !memcmp(back, data, sizeof back));
    memset(data, data[0] + 1, sizeof data), fill_file(r);
}
static char *mapped;
static long sync_mapped(void) { return msync(mapped, sizeof data, MS_SYNC); }
static void dirty_mapped(long r) { (void)r; memset(mapped, 1, sizeof data); }
// What was read before memory ran out is told.
static long read_cold(void) {
    long got = pread(file, data, sizeof data, 0);
    return got == sizeof data ? 0 : (errno = got > 0 ? ENOMEM : errno, -1);
}
static void chill(long r) {
    (void)r;
    CHECK(fsync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0);
}

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
static int pipe2_in, pipe2_out;
static void fill_pipe(long n) { drain_pipe(n), CHECK(write(out, data, 1 << 16) == 1 << 16); }
static void drain_other(long n) { while (n > 0) { long got = read(pipe2_in, data, n); if (got <= 0) break; n -= got; } }
static void refill_pipe(long n) { drain_other(n), CHECK(write(out, data, n) == n); }
static void fill_pipe_only(long n) { CHECK(write(out, data, n) == n); }
static void refill_from_socket(long n);
static long tee_pipe(void) { return tee(in, pipe2_out, 1 << 16, SPLICE_F_NONBLOCK); }
static long splice_pipes(void) { return splice(in, 0, pipe2_out, 0, 1 << 16, SPLICE_F_NONBLOCK); }
static long splice_to_file(void) { loff_t at = 0; return splice(in, 0, file, &at, 1 << 16, SPLICE_F_NONBLOCK); }
static long splice_to_socket(void) { return splice(in, 0, pair[0], 0, 1 << 16, SPLICE_F_NONBLOCK); }
static long send_file(void) { off_t at = 0; return sendfile(pair[0], file, &at, 1 << 16); }
static long send_file_to_pipe(void) { off_t at = 0; return sendfile(out, file, &at, 1 << 15); }
static int fresh = -1;
static long set_option(void) { int one = 1; return setsockopt(fresh, SOL_SOCKET, SO_PRIORITY, &one, sizeof one); }
static void make_fresh(long r) { (void)r, close(fresh), CHECK((fresh = socket(AF_INET, SOCK_STREAM, 0)) >= 0); }
static long make_socket(void) { return socket(AF_UNIX, SOCK_STREAM, 0); }
static long make_pair(void) { int ends[2]; return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0 ? -1 : ends[0] | ends[1] << 16; }
static long connect_to(const void *name, socklen_t length, int family) {
    int server = socket(family, SOCK_STREAM, 0), client = socket(family, SOCK_STREAM, 0), accepted = -1;
    int done = server >= 0 && client >= 0 && bind(server, name, length) == 0 && listen(server, 5) == 0
        && connect(client, name, length) == 0 && (accepted = accept(server, 0, 0)) >= 0;
    int error = errno;
    close(server), close(client), close(accepted);
    errno = error;
    return done ? 0 : -1;
}
static long connect_sockets(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0failnth"};
    return connect_to(&name, offsetof(struct sockaddr_un, sun_path) + 8, AF_UNIX);
}
static long connect_ports(void) {
    static int port = 20000; // one that was used waits
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(++port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return connect_to(&at, sizeof at, AF_INET);
}
static int datagrams = -1;
static void bind_datagrams(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(5002), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    NEED((datagrams = socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
    NEED(!bind(datagrams, (struct sockaddr *)&at, sizeof at) && !connect(datagrams, (struct sockaddr *)&at, sizeof at));
}
static long send_datagram(void) { return send(datagrams, data, 100, 0); }
static void receive_datagram(long n) { CHECK(recv(datagrams, data, 100, MSG_DONTWAIT) == n); }
static long send_much(void) { return send(pair[0], data, 1 << 16, MSG_DONTWAIT); }
static void receive_much(long n) { while (n > 0) { long got = recv(pair[1], data, n, MSG_DONTWAIT); if (got <= 0) break; n -= got; } }
static void refill_from_socket(long n) { receive_much(n), fill_pipe_only(n); }
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
static void send_again(long r) { (void)r; CHECK(send_rights() == 1); }
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
static char resident[1 << 16];
enum { SOME = 1 << 18, RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };
// What may be moved, and where something else is: each holds bytes of its own.
static char *range, *elsewhere;
static void fill(char *at, int byte) { memset(at, byte, SOME); }
static int holds(const char *at, int byte) { return at[0] == byte && !memcmp(at, at + 1, SOME - 1); }
static int as_filled(void) { return holds(range, 5) && holds(elsewhere, 6) ? 0 : (errno = EILSEQ, -1); }
static void fill_again(long r) {
    (void)r;
    CHECK(mmap(range, SOME, RW, ANON | MAP_FIXED, -1, 0) == range && mmap(elsewhere, SOME, RW, ANON | MAP_FIXED, -1, 0) == elsewhere);
    fill(range, 5), fill(elsewhere, 6);
}
static long remap(size_t length, int flags) {
    return as_filled() ? -1 : (long)mremap(range, SOME, length, flags, elsewhere);
}
static long grow_range(void) { return remap(4 * SOME, MREMAP_MAYMOVE); }
static void cut_range(long at) { munmap((void *)at, 4 * SOME), fill_again(0); }
static long move_range(void) { return remap(SOME, MREMAP_MAYMOVE | MREMAP_FIXED); }
static long keep_range(void) { return remap(SOME, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED); }
static long forget_pages(void) { return as_filled() ? -1 : madvise(range, SOME, MADV_DONTNEED); }
static long lock_all(void) { return mlockall(MCL_CURRENT); }
static long unlock_all(void) { return munlockall(); }
static void unlocked(long r) { (void)r; CHECK(munlockall() == 0); }
static void locked(long r) { (void)r; CHECK(mlockall(MCL_CURRENT) == 0); }

// --- calls for programs that move memory ---
static long donate(void) { return as_filled() ? -1 : uvm_donate_write(out, range, 1 << 16); }
static long donate_little(void) { return as_filled() ? -1 : uvm_donate_write(out, range, 2 * PAGE); }
static void undonate(long n) { drain_pipe(n), fill_again(0); }
static struct uvm_piece pieces[64];
static long take_pages(void) { return uvm_transfer_read(in, pieces, 64, 1 << 16); }
static void send_pages(long count) {
    for (int n = 0; n < count; n++) CHECK(((char *)pieces[n].start)[0] == 6 && !uvm_anflush(pieces[n].start, pieces[n].length));
    CHECK(write(out, elsewhere, 1 << 16) == 1 << 16);
}
static void donate_pages(long count) {
    for (int n = 0; n < count; n++) CHECK(((char *)pieces[n].start)[0] == 5 && !uvm_anflush(pieces[n].start, pieces[n].length));
    fill_again(0);
    CHECK(uvm_donate_write(out, range, 1 << 16) == 1 << 16);
}
// What a limit keeps out stays in the pipe, whatever else fails.
static long take_beyond_limit(void) {
    struct rlimit old, none;
    CHECK(getrlimit(RLIMIT_AS, &old) == 0);
    none = (struct rlimit){PAGE, old.rlim_max};
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    long got = uvm_transfer_read(in, pieces, 64, 1 << 16);
    int error = errno, left = 0;
    CHECK(setrlimit(RLIMIT_AS, &old) == 0 && ioctl(in, FIONREAD, &left) == 0);
    CHECK(got == -1 && is_no_memory(error));
    if (left == 1 << 16) return 0;
    donate_pages(0);
    return errno = EIO, -1;
}
static void donate_again(long nothing) {
    (void)nothing, drain_pipe(1 << 16);
    CHECK(data[0] == 5 && !memcmp(data, data + 1, (1 << 16) - 1));
    donate_pages(0);
}
static long flush(void) { return as_filled() ? -1 : uvm_anflush(range + PAGE, 8 * PAGE); }
static int export_mode, exported = -1;
static long export(void) { return as_filled() ? -1 : uvm_export(range, SOME, export_mode, RW); }
static void unexport(long fd) { close(fd), fill_again(0); }
static long import(void) { return holds(elsewhere, 6) ? (long)uvm_import(exported, elsewhere, UVM_FIXED) : (errno = EILSEQ, -1); }
static void export_again(long at) {
    CHECK(at == -1 || holds((char *)at, 5));
    close(exported), fill_again(0);
    CHECK((exported = uvm_export(range, SOME, export_mode, RW)) >= 0);
}
static long inherit(void) { return uvm_minherit(range + 8 * PAGE, PAGE, UVM_INHERIT_ZERO); }
static void inherit_again(long r) { (void)r; CHECK(!uvm_minherit(range, SOME, UVM_INHERIT_COPY)); }

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
static int timer, posix_timer;
static const struct itimerspec far = {.it_value.tv_sec = 1000}, off;
static long set_timerfd(void) { return timerfd_settime(timer, 0, &far, 0); }
static void unset_timerfd(long r) { (void)r; CHECK(timerfd_settime(timer, 0, &off, 0) == 0); }
static long set_posix_timer(void) { return syscall(SYS_timer_settime, posix_timer, 0, &far, 0); }
static void unset_posix_timer(long r) { (void)r; CHECK(syscall(SYS_timer_settime, posix_timer, 0, &off, 0) == 0); }
static long set_itimer(void) { return setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_sec = 1000}, 0); }
static void unset_itimer(long r) { (void)r; CHECK(setitimer(ITIMER_REAL, &(struct itimerval){0}, 0) == 0); }
static long wait_futex(void) { static int word; struct timespec soon = {.tv_nsec = 1000}; long r = syscall(SYS_futex, &word, 0, 0, &soon, 0, 0); return r < 0 && errno == ETIMEDOUT ? 0 : r; }
static long sleep_shortly(void) { struct timespec soon = {.tv_nsec = 1000}; return nanosleep(&soon, 0); }

#define SWEEP(call, undo) sweep(#call, call, undo, 1)
// One that may ask for small pieces only, which never fail.
#define SMALL(call, undo) sweep(#call, call, undo, 0)

static void calls_fail_cleanly(void) {
    begin();
    struct rlimit files = {8192, 8192};
    NEED(setrlimit(RLIMIT_NOFILE, &files) == 0);
    int ends[2];
    NEED(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    in = ends[0], out = ends[1];
    NEED(pipe(ends) == 0 && (timer = make_timer()) >= 0 && (posix_timer = make_posix_timer()) >= 0);
    pipe2_in = ends[0], pipe2_out = ends[1];
    range = mmap(0, SOME, RW, ANON, -1, 0), elsewhere = mmap(0, SOME, RW, ANON, -1, 0);
    fill_again(0), make_fresh(0);
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
    SWEEP(open_new, remove_new), SWEEP(make_folder, remove_folder), SWEEP(make_symlink, remove_link), SWEEP(make_link, remove_hard_link);
    SWEEP(follow, 0), SMALL(where, 0), SWEEP(read_a_link, 0), SWEEP(write_much, empty_file), SMALL(grow_file, empty_file);
    SWEEP(reserve_file, empty_file), SWEEP(list_folder, 0), SWEEP(lock_file, unlock_file), SWEEP(flock_file, funlock_file);
    SWEEP(mount_one, unmount_one), SMALL(dup_far, close_it), SWEEP(make_memfd, close_it), SMALL(make_event, close_it);
    SMALL(make_timer, close_it), SMALL(make_signalfd, close_it), SMALL(make_epoll, close_it), SWEEP(add_to_epoll, remove_from_epoll);
    SWEEP(wait_epoll, 0), SWEEP(poll_many, 0), SWEEP(select_many, 0), SMALL(make_pipe, close_pipe), SMALL(write_pipe, drain_pipe);
    SMALL(resize_pipe, resize_pipe_back), SMALL(make_socket, close_it), SMALL(make_pair, close_pipe), SWEEP(connect_sockets, 0), SWEEP(connect_ports, 0);
    bind_datagrams(), SWEEP(send_datagram, receive_datagram);
    SWEEP(send_much, receive_much), SWEEP(send_rights, receive_sent), send_again(0), SMALL(receive_rights, send_again), receive_sent(0);
    SWEEP(set_option, make_fresh);
    NEED(pwrite(file, data, sizeof data, 0) == sizeof data);
    SWEEP(splice_file, drain_pipe), SWEEP(vmsplice_memory, drain_pipe), SWEEP(send_file, receive_much), SWEEP(send_file_to_pipe, drain_pipe);
    fill_pipe(0), SMALL(tee_pipe, drain_other), SMALL(splice_pipes, refill_pipe), SWEEP(splice_to_file, fill_pipe_only);
    SWEEP(splice_to_socket, refill_from_socket), drain_pipe(1 << 16);
    SWEEP(map_some, unmap_some), SWEEP(map_shared, unmap_shared), SWEEP(split, unsplit), SWEEP(punch, refill), SWEEP(lock_some, unlock_some);
    SWEEP(break_up, break_down), SWEEP(make_segment, remove_segment), SWEEP(attach, detach), SMALL(look_resident, 0);
    SWEEP(grow_range, cut_range), SWEEP(move_range, fill_again), SWEEP(keep_range, fill_again), SWEEP(forget_pages, fill_again);
    SWEEP(lock_all, unlocked), locked(0), SWEEP(unlock_all, locked), unlocked(0);
    SWEEP(donate, undonate), SWEEP(donate_little, undonate), SWEEP(flush, fill_again), SWEEP(inherit, inherit_again);
    send_pages(0), SWEEP(take_pages, send_pages), drain_pipe(1 << 16), donate_pages(0), SWEEP(take_pages, donate_pages);
    drain_pipe(1 << 16), donate_pages(0), SMALL(take_beyond_limit, donate_again), drain_pipe(1 << 16);
    for (export_mode = UVM_SHARE; export_mode <= UVM_DONATE_ZERO; export_mode++) {
        fill_again(0);
        SWEEP(export, unexport), export_again(-1), SWEEP(import, export_again), close(exported), exported = -1;
    }
    SWEEP(fork_one, wait_for), SWEEP(share_all, wait_for), SWEEP(set_groups, unset_groups), SWEEP(queue_signal, take_signal);
    SMALL(make_posix_timer, remove_posix_timer), SMALL(set_timerfd, unset_timerfd), SMALL(set_posix_timer, unset_posix_timer);
    SMALL(set_itimer, unset_itimer), SMALL(wait_futex, 0), SMALL(sleep_shortly, 0);
    shmctl(segment, IPC_RMID, 0);
    unlink("/tmp/failnth-file");
    printf("  %ld allocations of %ld calls have failed\n", points, calls);
    CHECK(points > calls);
}

// --- another program ---
static pid_t other_program;
static char *theirs; // of the other's memory, untouched
static void next_page(long r) { (void)r, theirs += 16 * PAGE; }
static long attach_other(void) { return ptrace(PTRACE_ATTACH, other_program, 0, 0); }
static void detach_other(long r) {
    (void)r;
    CHECK(waitpid(other_program, 0, 0) == other_program && ptrace(PTRACE_DETACH, other_program, 0, 0) == 0);
}
static long peek(void) { long word; return syscall(SYS_ptrace, PTRACE_PEEKDATA, other_program, theirs, &word); }
static long poke(void) { return ptrace(PTRACE_POKEDATA, other_program, theirs, 7); }
static struct iovec ours = {data, 1 << 16};
static long read_other(void) { return process_vm_readv(other_program, &ours, 1, &(struct iovec){theirs, 1 << 16}, 1, 0); }
static long write_other(void) { return process_vm_writev(other_program, &ours, 1, &(struct iovec){theirs, 1 << 16}, 1, 0); }

static void calls_on_others_fail_cleanly(void) {
    theirs = mmap(0, 1 << 28, RW, ANON | MAP_NORESERVE, -1, 0);
    NEED(theirs != MAP_FAILED && (other_program = fork()) >= 0);
    if (other_program == 0) for (;;) pause();
    begin();
    SWEEP(read_other, next_page), SWEEP(write_other, next_page), SWEEP(attach_other, detach_other);
    CHECK(attach_other() == 0 && waitpid(other_program, 0, 0) == other_program);
    SWEEP(peek, next_page), SWEEP(poke, next_page);
    kill(other_program, SIGKILL);
    CHECK(waitpid(other_program, 0, 0) == other_program);
}

// --- swap ---
static const char *area;
static long swap_on(void) { return swapon(area, 0); }
static void swapped_off(long r) { (void)r; CHECK(swapoff(area) == 0); }
static long swap_off(void) { return swapoff(area); }
static void swapped_on(long r) {
    (void)r;
    CHECK(swapon(area, 0) == 0 && madvise(range, SOME, MADV_PAGEOUT) == 0);
}

static void swap_fails_cleanly(void) {
    range = mmap(0, SOME, RW, ANON, -1, 0);
    NEED(range != MAP_FAILED);
    NEED(system("/bin/busybox dd if=/dev/zero of=/mnt/area bs=1M count=2 2>/dev/null && /bin/busybox mkswap /mnt/area >/dev/null") == 0);
    begin();
    for (int n = 0; n < 2; n++) {
        area = n ? "/mnt/area" : "/dev/vdb";
        fill(range, 5);
        SWEEP(swap_on, swapped_off), swapped_on(0), SWEEP(swap_off, swapped_on), swapped_off(0);
        CHECK(holds(range, 5));
    }
    unlink("/mnt/area");
}

// In a folder on a tmpfs and in one on a disk.
static void files_fail_cleanly(const char *folder, int on_disk) {
    begin();
    rmdir(folder);
    NEED(mkdir(folder, 0755) == 0 && chdir(folder) == 0);
    make_there(0), make_there_folder(0);
    NEED((file = open("file", O_CREAT | O_RDWR | O_TRUNC, 0644)) >= 0);
    memset(data, 1, sizeof data);
    SWEEP(make_here, remove_here), SWEEP(make_here_folder, remove_here_folder), SWEEP(link_here, unlink_here), SWEEP(symlink_here, unlink_here);
    SWEEP(rename_new, rename_back), SWEEP(rename_over, make_there), SWEEP(exchange, 0), SWEEP(remove_there, make_there);
    SWEEP(remove_there_folder, make_there_folder), SWEEP(list_here, 0);
    if (!on_disk) SWEEP(make_nameless, close_it);
    SWEEP(write_much, empty_file), SMALL(grow_file, empty_file), SWEEP(reserve_file, empty_file);
    fill_file(0), SWEEP(cut_file, fill_file), sweep("punch_file", punch_file, fill_file, on_disk), sweep("sync_file", sync_file, synced, on_disk), chill(0), SWEEP(read_cold, chill);
    NEED((mapped = mmap(0, sizeof data, RW, MAP_SHARED, file, 0)) != MAP_FAILED);
    dirty_mapped(0), sweep("sync_mapped", sync_mapped, dirty_mapped, on_disk), munmap(mapped, sizeof data);
    close(file), unlink("file"), unlink("there"), unlink("other"), rmdir("there-folder");
    CHECK(chdir("/") == 0 && rmdir(folder) == 0);
}

static void files_in_memory_fail_cleanly(void) { files_fail_cleanly("/tmp/failnth-files", 0); }
static void files_on_a_disk_fail_cleanly(void) { files_fail_cleanly("/mnt/failnth-files", 1); }

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
        if (strstr(path, "fail-nth") || strstr(path, "sysrq") || !strcmp(entry->d_name, "mem") || !strcmp(entry->d_name, "pagemap") || !strncmp(entry->d_name, "k", 1)) continue;
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
        SYS_restart_syscall, SYS_arch_prctl, SYS_brk, SYS_chroot, SYS_kill, SYS_shmat, SYS_vhangup,
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
    sweep("futex(FUTEX_REQUEUE)", move_waiters, move_back, 1);
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
    {"calls on others fail cleanly", calls_on_others_fail_cleanly},
    {"files in memory fail cleanly", files_in_memory_fail_cleanly},
    {"files on a disk fail cleanly", files_on_a_disk_fail_cleanly},
    {"swap fails cleanly", swap_fails_cleanly},
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
