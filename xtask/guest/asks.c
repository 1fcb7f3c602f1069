// Which capability a call asks for. A row is a call on something of root's or of the machine's: what a
// user without capabilities is told, then each capability that alone changes the answer, and what is told
// then. Calls that this kernel refuses to all have no row: policies in real time, setting the clock, pipes
// above the bound.
#include "callers.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/swap.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>

enum { USER = 1000, NONE = -1 };
static const char *const others_file = "/tmp/asks-file", *const own_file = "/tmp/asks-own";
static const char *const place = "/tmp/asks-place", *const mounted = "/tmp/asks-mounted";
static int segment, pages[2];

static int set_int(int family, int type, int level, int name, int value) {
    int fd = socket(family, type, 0);
    MUST(fd >= 0);
    return setsockopt(fd, level, name, &value, sizeof value);
}
#define OPTION(called, name, value) \
    static int called(void) { return set_int(AF_INET, SOCK_STREAM, SOL_SOCKET, name, value); } \
    static int called##_local(void) { return set_int(AF_UNIX, SOCK_STREAM, SOL_SOCKET, name, value); }
OPTION(send_buffer, SO_SNDBUF, 1 << 20)
OPTION(send_buffer_force, SO_SNDBUFFORCE, 1 << 20)
OPTION(receive_buffer, SO_RCVBUF, 1 << 20)
OPTION(receive_buffer_force, SO_RCVBUFFORCE, 1 << 20)
OPTION(mark, SO_MARK, 7)
OPTION(mark_0, SO_MARK, 0)
OPTION(priority_6, SO_PRIORITY, 6)
OPTION(priority_7, SO_PRIORITY, 7)
OPTION(priority_less, SO_PRIORITY, -1)
OPTION(debug, SO_DEBUG, 1)
OPTION(debug_off, SO_DEBUG, 0)
OPTION(busy_poll, SO_BUSY_POLL, 50)
OPTION(busy_poll_0, SO_BUSY_POLL, 0)
OPTION(busy_poll_less, SO_BUSY_POLL, -1)

// What a forced buffer may hold, as far as it is told.
static int forced(int name, int asked, int told) {
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0), value = asked;
    socklen_t length = sizeof value;
    MUST(fd >= 0);
    if (setsockopt(fd, SOL_SOCKET, name, &value, sizeof value)) return -1;
    MUST(!getsockopt(fd, SOL_SOCKET, told, &value, &length));
    errno = value >= 0 && value / 2 >= asked ? 0 : ERANGE;
    return errno ? -1 : 0;
}
static int forces_send(void) { return forced(SO_SNDBUFFORCE, 1 << 20, SO_SNDBUF); }
static int forces_receive(void) { return forced(SO_RCVBUFFORCE, 1 << 20, SO_RCVBUF); }

static int binds_port(int type, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return bind(socket(AF_INET, type, 0), (void *)&at, sizeof at);
}
static int binds_1023(void) { return binds_port(SOCK_STREAM, 1023); }
static int binds_1023_datagrams(void) { return binds_port(SOCK_DGRAM, 1023); }
static int binds_1024(void) { return binds_port(SOCK_STREAM, 1024); }

static int sends_as(pid_t pid, uid_t uid, gid_t gid) {
    int pair[2];
    MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    char room[CMSG_SPACE(sizeof(struct ucred))] = {0}, byte = 'x';
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_CREDENTIALS, head->cmsg_len = CMSG_LEN(sizeof(struct ucred));
    struct ucred claimed = {pid, uid, gid};
    memcpy(CMSG_DATA(head), &claimed, sizeof claimed);
    return sendmsg(pair[0], &message, 0) == 1 ? 0 : -1;
}
static int sends_as_itself(void) { return sends_as(getpid(), getuid(), getgid()); }
static int sends_as_process_1(void) { return sends_as(1, getuid(), getgid()); }
static int sends_as_root(void) { return sends_as(getpid(), 0, getgid()); }
static int sends_as_roots_group(void) { return sends_as(getpid(), getuid(), 0); }

static int schedules(int policy, int priority) {
    struct sched_param parameters = {.sched_priority = priority};
    return syscall(SYS_sched_setscheduler, 0, policy, &parameters);
}
static int idles(void) { return schedules(SCHED_IDLE, 0); }
static int batches(void) { return schedules(SCHED_BATCH, 0); }
static int without_reset(void) { return schedules(SCHED_OTHER | 0x40000000, 0) ? -1 : schedules(SCHED_OTHER, 0); }
static int ends_idling(void) { return idles() ? -1 : schedules(SCHED_OTHER, 0); }
static int ends_idling_in_batches(void) { return idles() ? -1 : schedules(SCHED_BATCH, 0); }
static int allows_nice(int least) {
    struct rlimit limit = {20 - least, 20 - least};
    return setrlimit(RLIMIT_NICE, &limit);
}
static int ends_idling_limited(void) { return allows_nice(19) || setpriority(PRIO_PROCESS, 0, 19) || idles() ? -1 : schedules(SCHED_OTHER, 0); }
static int stops_batches(void) { return batches() ? -1 : schedules(SCHED_OTHER, 0); }
static int bad_policy(void) { return schedules(77, 0); }
static int bad_priority(void) { return schedules(SCHED_OTHER, 1); }
static int no_priority(void) { return schedules(SCHED_FIFO, 0); }
static int nicer(void) { return setpriority(PRIO_PROCESS, 0, 5); }
static int hastier(void) { return setpriority(PRIO_PROCESS, 0, -5); }
static int back(void) { return nicer() ? -1 : setpriority(PRIO_PROCESS, 0, 0); }
static int all_of_root(void) { return setpriority(PRIO_USER, 0, 0); }

static int limit_to(int what, rlim_t soft, rlim_t hard) {
    struct rlimit limit = {soft, hard};
    return setrlimit(what, &limit);
}
static int raises_limit(void) { return limit_to(RLIMIT_CORE, 5, 5) ? -1 : limit_to(RLIMIT_CORE, 5, 6); }
static int unlimits_files(void) { return limit_to(RLIMIT_NOFILE, 64, RLIM_INFINITY); }
static int locks_memory(void) { return limit_to(RLIMIT_MEMLOCK, 0, 0) ? -1 : mlock(pages, 4); }
static int locks_all(void) { return limit_to(RLIMIT_MEMLOCK, 4096, 4096) ? -1 : mlockall(MCL_CURRENT); }
static int maps_locked(void) {
    MUST(!limit_to(RLIMIT_MEMLOCK, 4096, 4096));
    return mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0) == MAP_FAILED ? -1 : 0;
}
static int maps_low(void) {
    return mmap((void *)4096, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0;
}
static int forks_beyond_limit(void) {
    MUST(!limit_to(RLIMIT_NPROC, 0, 0));
    pid_t child = fork();
    if (child == 0) _exit(0);
    return child < 0 ? -1 : 0;
}

static int names_host(void) { return sethostname("uvm", 3); }
static int sets_bad_clock(void) { struct timespec none = {0, -1}; return clock_settime(CLOCK_REALTIME, &none); }
static int sets_monotonic(void) { struct timespec one = {1, 0}; return clock_settime(CLOCK_MONOTONIC, &one); }
static int wakes(clockid_t clock) {
    timer_t timer;
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    return syscall(SYS_timer_create, clock, &none, &timer);
}
static int wakes_timer(void) { return wakes(8); }
static int waits_awake(void) { return syscall(SYS_timerfd_create, 8, 0) < 0 ? -1 : 0; }

static int mounts(void) { return mount("none", place, "tmpfs", 0, 0); }
static int unmounts(void) { return umount2(mounted, 0); }
static int unmounts_nothing(void) { return umount2("/nowhere", 0); }
static int swaps_on(void) { return swapon(own_file, 0); }
static int swaps_off(void) { return swapoff(own_file); }
static int roots(void) { return chroot("/tmp"); }
static int roots_nowhere(void) { return chroot("/nowhere"); }
static int makes_node(mode_t kind) {
    unlink("/tmp/asks-node");
    int error = mknod("/tmp/asks-node", kind | 0600, 0x103), kept = errno;
    unlink("/tmp/asks-node");
    errno = kept;
    return error;
}
static int makes_device(void) { return makes_node(S_IFCHR); }
static int makes_disk(void) { return makes_node(S_IFBLK); }
static int makes_fifo(void) { return makes_node(S_IFIFO); }

static int opened(const char *path, int flags) { int fd = open(path, flags); if (fd < 0) return -1; close(fd); return 0; }
static int reads_untold(void) { return opened(others_file, O_RDONLY | O_NOATIME); }
static int writes_untold(void) { return opened(others_file, O_WRONLY | O_NOATIME); }
static int reads_own_untold(void) { return opened(own_file, O_RDONLY | O_NOATIME); }
static int lists_untold(void) { return opened("/", O_RDONLY | O_DIRECTORY | O_NOATIME); }
static int names_untold(void) { return opened(others_file, O_PATH | O_NOATIME); }
static int creates_untold(void) { return opened("/tmp/asks-new", O_RDWR | O_CREAT | O_NOATIME) ? -1 : unlink("/tmp/asks-new"); }
static int turns(const char *path, int flags) { int fd = open(path, O_RDONLY); MUST(fd >= 0); return fcntl(fd, F_SETFL, flags); }
static int turns_untold(void) { return turns(others_file, O_NOATIME); }
static int turns_own_untold(void) { return turns(own_file, O_NOATIME); }
static int turns_nothing(void) { return turns(others_file, O_NONBLOCK); }
static int stays_untold(void) { return opened("/dev/null", O_RDONLY | O_NOATIME); }

static int pipe_of(int bytes) { int ends[2]; MUST(!pipe(ends)); return fcntl(ends[0], F_SETPIPE_SZ, bytes) < 0 ? -1 : 0; }
static int pipe_in_bounds(void) { return pipe_of(1 << 20); }

static int segment_removed(void) { return shmctl(segment, IPC_RMID, 0); }
static int segment_looked_at(void) { struct shmid_ds all; return shmctl(segment, IPC_STAT, &all); }
static int segment_changed(void) { struct shmid_ds all = {.shm_perm = {.uid = 0, .gid = 0, .mode = 0600}}; return shmctl(segment, IPC_SET, &all); }
static int segment_locked(void) { return shmctl(segment, SHM_LOCK, 0); }
static int segment_attached(void) { return shmat(segment, 0, 0) == (void *)-1 ? -1 : 0; }
static int segment_found(void) { return shmget(4711, 4096, 0600) < 0 ? -1 : 0; }

static int secure_bits(void) { return prctl(PR_SET_SECUREBITS, 1, 0, 0, 0); }
static int drops_bound(void) { return prctl(PR_CAPBSET_DROP, CAP_KILL, 0, 0, 0); }
static int raises_ambient(void) { return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0); }
static int sets_uid(void) { return syscall(SYS_setuid, 0); }
static int sets_gid(void) { return syscall(SYS_setgid, 0); }
static int sets_groups(void) { gid_t group = 0; return syscall(SYS_setgroups, 1, &group); }
static int sets_fsuid(void) { syscall(SYS_setfsuid, 0); errno = syscall(SYS_setfsuid, -1) == 0 ? 0 : EPERM; return errno ? -1 : 0; }

static int kills_init(void) { return kill(1, 0); }
static int reads_init(void) {
    char byte;
    struct iovec here = {&byte, 1}, there = {pages, 1};
    return process_vm_readv(1, &here, 1, &there, 1, 0) < 0 && errno == EPERM ? -1 : 0;
}

static int tells(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0) return -1;
    return write(fd, text, strlen(text)) < 0 ? -1 : 0;
}
static int drops_caches(void) { return tells("/proc/sys/vm/drop_caches", "1"); }
static int sets_max_maps(void) { return tells("/proc/sys/vm/max_map_count", "65530"); }
static int spares_itself(void) { prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); return tells("/proc/self/oom_score_adj", "-500"); }
static int offers_itself(void) { prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); return tells("/proc/self/oom_score_adj", "500"); }
static int takes_offer_back(void) { return offers_itself() ? -1 : tells("/proc/self/oom_score_adj", "0"); }
static int touches_init(void) { return tells("/proc/1/oom_score_adj", "0"); }


struct row { const char *name; int (*call)(void); };
#define ROW(call) {#call, call}
#define ROWS(call) {#call, call}, {#call "_local", call##_local}
static const struct row rows[] = {
    ROWS(send_buffer), ROWS(send_buffer_force), ROWS(receive_buffer), ROWS(receive_buffer_force), ROWS(mark), ROWS(mark_0),
    ROWS(priority_6), ROWS(priority_7), ROWS(priority_less), ROWS(debug), ROWS(debug_off), ROWS(busy_poll), ROWS(busy_poll_0),
    ROWS(busy_poll_less), ROW(forces_send), ROW(forces_receive), ROW(binds_1023), ROW(binds_1023_datagrams), ROW(binds_1024),
    ROW(sends_as_itself), ROW(sends_as_process_1), ROW(sends_as_root), ROW(sends_as_roots_group),
    ROW(idles), ROW(batches), ROW(without_reset), ROW(ends_idling), ROW(ends_idling_in_batches),
    ROW(ends_idling_limited), ROW(stops_batches), ROW(bad_policy), ROW(bad_priority), ROW(no_priority), ROW(nicer), ROW(hastier),
    ROW(back), ROW(all_of_root), ROW(raises_limit), ROW(unlimits_files), ROW(locks_memory), ROW(locks_all), ROW(maps_locked),
    ROW(maps_low), ROW(forks_beyond_limit), ROW(names_host), ROW(sets_bad_clock), ROW(sets_monotonic),
    ROW(wakes_timer), ROW(waits_awake), ROW(mounts), ROW(unmounts), ROW(unmounts_nothing), ROW(swaps_on), ROW(swaps_off), ROW(roots),
    ROW(roots_nowhere), ROW(makes_device), ROW(makes_disk), ROW(makes_fifo), ROW(reads_untold), ROW(writes_untold),
    ROW(reads_own_untold), ROW(lists_untold), ROW(names_untold), ROW(creates_untold), ROW(stays_untold), ROW(turns_untold),
    ROW(turns_own_untold), ROW(turns_nothing), ROW(pipe_in_bounds), ROW(segment_looked_at), ROW(segment_changed),
    ROW(segment_locked), ROW(segment_attached), ROW(segment_found), ROW(segment_removed), ROW(secure_bits), ROW(drops_bound),
    ROW(raises_ambient), ROW(sets_uid), ROW(sets_gid), ROW(sets_groups), ROW(sets_fsuid), ROW(kills_init), ROW(reads_init),
    ROW(drops_caches), ROW(sets_max_maps), ROW(spares_itself), ROW(offers_itself), ROW(takes_offer_back), ROW(touches_init),
};

static void make(const char *path, uid_t owner) {
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0600);
    MUST(fd >= 0 && !fchmod(fd, 0666) && !fchown(fd, owner, owner) && !close(fd));
}

// As a user with one capability or none; the error, or 0.
static int told(const struct row *row, int capability) {
    struct caller who = {"one", USER, USER, USER, USER, USER, -1, capability < 0 ? 0 : UINT64_C(1) << capability, 0};
    segment = shmget(4711, 4096, IPC_CREAT | 0600);
    MUST(segment >= 0);
    MUST(!mount("none", mounted, "tmpfs", 0, 0));
    fflush(stdout);
    int error = answer_to(&who, row->call);
    shmctl(segment, IPC_RMID, 0);
    umount2(mounted, 0);
    umount2(place, 0);
    return error;
}

int main(void) {
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    umask(0);
    make(others_file, 0);
    make(own_file, USER);
    MUST(!mkdir(place, 0777) && !mkdir(mounted, 0777));
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int none = told(&rows[r], NONE);
        printf("%-28s %s", rows[r].name, error_name(none));
        for (int capability = 0; capability <= CAP_LAST_CAP; capability++) {
            int error = told(&rows[r], capability);
            if (error != none) printf(" %d:%s", capability, error_name(error));
        }
        printf("\n");
    }
    printf("the table is whole\n");
    return 0;
}
