// System V shared memory: keys and numbers, attaching and detaching, who may, what outlives what, what the tables say.
#include "check.h"
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/resource.h>
#ifndef SHM_STAT_ANY
#define SHM_STAT_ANY 15
#endif
// The C library hides these.
struct info { int used, pad; unsigned long total, resident, swapped, attempts, successes; };
struct limits { unsigned long max, min, segments, per_process, all, unused[4]; };

enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };
static volatile char sink;

static int segment(size_t bytes) {
    int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
    NEED(id >= 0);
    return id;
}

static char *attach(int id, void *at, int flags) {
    char *address = shmat(id, at, flags);
    NEED(address != (void *)-1);
    return address;
}

static struct shmid_ds stat_of(int id) {
    struct shmid_ds ds;
    NEED(!shmctl(id, IPC_STAT, &ds));
    return ds;
}

static unsigned long attachments(int id) { return stat_of(id).shm_nattch; }

static void remove_it(int id) { CHECK(!shmctl(id, IPC_RMID, 0)); }

static void keys(void) {
    key_t key = 0x5e61 + getpid();
    FAILS(shmget(key, PAGE, 0600), ENOENT);
    int id = shmget(key, PAGE + 1, IPC_CREAT | 0600);
    NEED(id >= 0);
    CHECK(shmget(key, 0, 0) == id && shmget(key, PAGE + 1, IPC_CREAT | 0600) == id);
    FAILS(shmget(key, PAGE, IPC_CREAT | IPC_EXCL | 0600), EEXIST);
    FAILS(shmget(key, 2 * PAGE, 0600), EINVAL);
    FAILS(shmget(IPC_PRIVATE, 0, IPC_CREAT | 0600), EINVAL);
    CHECK(stat_of(id).shm_segsz == PAGE + 1);
    remove_it(id);
    FAILS(shmget(key, PAGE, 0600), ENOENT);
    struct shmid_ds ds;
    errno = 0;
    CHECK(shmctl(id, IPC_STAT, &ds) == -1 && (errno == EINVAL || errno == EIDRM));
    int again = shmget(key, PAGE, IPC_CREAT | 0600);
    CHECK(again >= 0 && again != id);
    remove_it(again);
}

static void one_memory_at_two_addresses(void) {
    int id = segment(3 * PAGE);
    char *one = attach(id, 0, 0), *other = attach(id, 0, 0);
    CHECK(one != other && one[0] == 0 && one[3 * PAGE - 1] == 0);
    one[2 * PAGE] = 'x';
    CHECK(other[2 * PAGE] == 'x' && attachments(id) == 2);
    CHECK(!shmdt(one) && attachments(id) == 1);
    FAILS(shmdt(one), EINVAL);
    CHECK(!shmdt(other) && attachments(id) == 0);
    char *back = attach(id, 0, 0);
    CHECK(back[2 * PAGE] == 'x'); // it lives without any attachment
    remove_it(id);
    shmdt(back);
}

static void where_it_goes(void) {
    int id = segment(2 * PAGE);
    char *room = mmap(0, 8 * PAGE, RW, ANON, -1, 0);
    NEED(room != MAP_FAILED);
    FAILS(shmat(id, room, 0), EINVAL); // occupied
    CHECK(shmat(id, room, SHM_REMAP) == room && room[0] == 0);
    munmap(room + 4 * PAGE, 4 * PAGE);
    CHECK(shmat(id, room + 4 * PAGE, 0) == room + 4 * PAGE);
    FAILS(shmat(id, room + 6 * PAGE + 1, 0), EINVAL);
    CHECK(shmat(id, room + 6 * PAGE + 1, SHM_RND) == room + 6 * PAGE);
    FAILS(shmat(id, 0, SHM_REMAP), EINVAL);
    FAILS(shmat(-1, 0, 0), EINVAL);
    FAILS(shmat(123456789, 0, 0), EINVAL);
    CHECK(attachments(id) == 3);
    remove_it(id);
}

static void read_only(void) {
    catch_faults();
    int id = segment(PAGE);
    char *writer = attach(id, 0, 0), *reader = attach(id, 0, SHM_RDONLY);
    writer[5] = 7;
    CHECK(reader[5] == 7);
    RAISES(reader[0] = 1, SIGSEGV, SEGV_ACCERR, reader);
    FAILS(mprotect(reader, PAGE, RW), EACCES);
    remove_it(id);
}

static int shared_id;
static char *shared_at;
static void child_uses(void) {
    CHECK(shared_at[0] == 1 && attachments(shared_id) == 2);
    shared_at[0] = 2;
    CHECK(!shmdt(shared_at) && attachments(shared_id) == 1);
    shared_at = attach(shared_id, 0, 0);
    shared_at[1] = 3;
}
static void fork_and_exit(void) {
    shared_id = segment(PAGE);
    shared_at = attach(shared_id, 0, 0);
    shared_at[0] = 1;
    CHECK(in_child(child_uses) == 0);
    CHECK(shared_at[0] == 2 && shared_at[1] == 3 && attachments(shared_id) == 1);
    remove_it(shared_id);
}

static void exec_detaches(void) {
    int id = segment(PAGE);
    attach(id, 0, 0);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "sysv", "nothing", (char *)0);
        _exit(9);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(attachments(id) == 1);
    remove_it(id);
}

static void removed_but_attached(void) {
    int id = segment(4 * PAGE);
    char *at = attach(id, 0, 0);
    at[0] = 1;
    remove_it(id);
    struct shmid_ds ds = stat_of(id);
    CHECK(ds.shm_perm.mode & 01000);
    CHECK(ds.shm_perm.__key == IPC_PRIVATE && ds.shm_nattch == 1);
    char *second = attach(id, 0, 0); // Linux allows it as long as somebody has it
    CHECK(second[0] == 1);
    second[1] = 2;
    CHECK(!shmdt(at) && second[1] == 2);
    CHECK(!shmdt(second));
    errno = 0;
    CHECK(shmat(id, 0, 0) == (void *)-1 && (errno == EINVAL || errno == EIDRM));
}

static void parts_of_an_attachment(void) {
    int id = segment(6 * PAGE);
    char *at = attach(id, 0, 0);
    CHECK(!munmap(at + 2 * PAGE, PAGE));
    CHECK(attachments(id) == 2);
    CHECK(!mprotect(at + 4 * PAGE, PAGE, PROT_READ));
    CHECK(!shmdt(at)); // all that is left of it
    CHECK(attachments(id) == 0);
    unsigned char resident;
    FAILS(mincore(at + 4 * PAGE, PAGE, &resident), ENOMEM);
    remove_it(id);
}

static void times_and_makers(void) {
    time_t before = time(0);
    int id = segment(PAGE);
    struct shmid_ds ds = stat_of(id);
    CHECK(ds.shm_cpid == getpid() && ds.shm_lpid == 0 && ds.shm_atime == 0 && ds.shm_dtime == 0);
    CHECK(ds.shm_ctime >= before && ds.shm_ctime <= time(0));
    CHECK(ds.shm_perm.uid == getuid() && ds.shm_perm.cgid == getgid() && (ds.shm_perm.mode & 0777) == 0600);
    char *at = attach(id, 0, 0);
    ds = stat_of(id);
    CHECK(ds.shm_lpid == getpid() && ds.shm_atime >= before && ds.shm_dtime == 0);
    shmdt(at);
    CHECK(stat_of(id).shm_dtime >= before);
    ds.shm_perm.mode = 0640, ds.shm_perm.uid = 77;
    CHECK(!shmctl(id, IPC_SET, &ds));
    ds = stat_of(id);
    CHECK((ds.shm_perm.mode & 0777) == 0640 && ds.shm_perm.uid == 77 && ds.shm_perm.cuid == getuid());
    FAILS(shmctl(id, IPC_STAT, (void *)1), EFAULT);
    FAILS(shmctl(id, 12345, 0), EINVAL);
    remove_it(id);
}

static void strangers(void) {
    int mine = segment(PAGE), readable = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0644);
    NEED(readable >= 0 && !setgid(4321) && !setuid(4321));
    FAILS(shmat(mine, 0, 0), EACCES);
    FAILS(shmat(mine, 0, SHM_RDONLY), EACCES);
    FAILS(shmat(readable, 0, 0), EACCES);
    CHECK(shmat(readable, 0, SHM_RDONLY) != (void *)-1);
    struct shmid_ds ds;
    FAILS(shmctl(mine, IPC_STAT, &ds), EACCES);
    CHECK(!shmctl(readable, IPC_STAT, &ds));
    FAILS(shmctl(readable, IPC_SET, &ds), EPERM);
    FAILS(shmctl(readable, IPC_RMID, 0), EPERM);
    FAILS(shmctl(readable, SHM_LOCK, 0), EPERM);
    int own = segment(PAGE);
    CHECK(shmat(own, 0, 0) != (void *)-1);
    remove_it(own);
}
static void permissions(void) {
    int before = shmctl(0, SHM_INFO, (struct shmid_ds *)&(struct info){0});
    CHECK(before >= 0 && in_child(strangers) == 0);
    // What the child left is root's to remove.
    for (int slot = 0; slot <= before + 4; slot++) {
        struct shmid_ds ds;
        int id = shmctl(slot, SHM_STAT, &ds);
        if (id >= 0 && ds.shm_nattch == 0) shmctl(id, IPC_RMID, 0);
    }
}

static void locking(void) {
    int id = segment(4 * PAGE);
    char *at = attach(id, 0, 0);
    CHECK(!shmctl(id, SHM_LOCK, 0));
    CHECK(stat_of(id).shm_perm.mode & 02000);
    CHECK(!shmctl(id, SHM_LOCK, 0)); // again is no error
    memset(at, 4, 4 * PAGE);
    CHECK(!shmctl(id, SHM_UNLOCK, 0) && !(stat_of(id).shm_perm.mode & 02000));
    CHECK(at[3 * PAGE] == 4);
    CHECK(!shmctl(id, SHM_LOCK, 0));
    remove_it(id); // and the memory comes back when it is locked, too
    CHECK(at[0] == 4);
}

enum { LOCKED_PAGES = 8, LOCKER = 4322, LOCKS = 200 };

static void become_locker(int uid, rlim_t bytes) {
    struct rlimit limit = {bytes, bytes};
    NEED(!setrlimit(RLIMIT_MEMLOCK, &limit) && !setgid(uid) && !setuid(uid));
}

static int is_locked(int id) { return (stat_of(id).shm_perm.mode & 02000) != 0; }

static void locks_one(void) {
    int id = segment(LOCKED_PAGES * PAGE);
    CHECK(!shmctl(id, SHM_LOCK, 0) && !shmctl(id, SHM_UNLOCK, 0));
    remove_it(id);
}
static void locks_as_another(void) {
    become_locker(LOCKER + 1, LOCKED_PAGES * PAGE);
    locks_one();
}
static void locks_none(void) {
    become_locker(LOCKER, 0);
    int id = segment(PAGE);
    FAILS(shmctl(id, SHM_LOCK, 0), EPERM);
    remove_it(id);
}
static void locks_all_as_root(void) {
    struct rlimit limit = {PAGE, PAGE};
    NEED(!setrlimit(RLIMIT_MEMLOCK, &limit));
    locks_one();
}
static void is_refused_one(void) {
    int id = segment(PAGE);
    FAILS(shmctl(id, SHM_LOCK, 0), ENOMEM);
    CHECK(!is_locked(id));
    remove_it(id);
}

// All of a user's locked segments count together, in whichever process.
static void one_user_locks(void) {
    become_locker(LOCKER, LOCKED_PAGES * PAGE);
    int one = segment(LOCKED_PAGES * PAGE), other = segment(LOCKED_PAGES * PAGE);
    CHECK(!shmctl(one, SHM_LOCK, 0) && !shmctl(one, SHM_LOCK, 0));
    FAILS(shmctl(other, SHM_LOCK, 0), ENOMEM);
    CHECK(is_locked(one) && !is_locked(other) && in_child(is_refused_one) == 0);
    CHECK(!shmctl(one, SHM_UNLOCK, 0) && !shmctl(other, SHM_LOCK, 0));
    remove_it(other);
    CHECK(!shmctl(one, SHM_LOCK, 0));
    is_refused_one();
    remove_it(one);
    locks_one();
}

static int raced[2];
static pthread_barrier_t both;
static void *locks_its_own(void *number) {
    int id = raced[(long)number];
    long locked = 0;
    for (int i = 0; i < LOCKS; i++) {
        pthread_barrier_wait(&both);
        int done = !shmctl(id, SHM_LOCK, 0);
        if (!done) CHECK(errno == ENOMEM && !is_locked(id));
        pthread_barrier_wait(&both);
        if (number) CHECK(is_locked(raced[0]) + is_locked(raced[1]) <= 1);
        pthread_barrier_wait(&both);
        if (done) CHECK(!shmctl(id, SHM_UNLOCK, 0));
        locked += done;
    }
    return (void *)locked;
}
static void *locks_it_too(void *none) {
    for (int i = 0; i < LOCKS; i++) {
        pthread_barrier_wait(&both);
        CHECK(!shmctl(raced[0], SHM_LOCK, 0));
        pthread_barrier_wait(&both);
        CHECK(!shmctl(raced[0], SHM_UNLOCK, 0));
    }
    return none;
}
static void two_threads_lock(void) {
    become_locker(LOCKER, LOCKED_PAGES * PAGE);
    pthread_t other;
    for (int i = 0; i < 2; i++) raced[i] = segment(LOCKED_PAGES * PAGE);
    NEED(!pthread_barrier_init(&both, 0, 2) && !pthread_create(&other, 0, locks_its_own, 0));
    long mine = (long)locks_its_own((void *)1);
    void *others;
    CHECK(!pthread_join(other, &others) && mine + (long)others > 0);
    // Nothing has stayed counted.
    for (int i = 0; i < 2; i++) CHECK(!shmctl(raced[i], SHM_LOCK, 0) && !shmctl(raced[i], SHM_UNLOCK, 0));
    // Both lock one segment: it counts once.
    remove_it(raced[0]);
    raced[0] = raced[1];
    NEED(!pthread_create(&other, 0, locks_it_too, 0));
    locks_it_too(0);
    CHECK(!pthread_join(other, 0));
    remove_it(raced[1]);
    locks_one();
}

// Root's count for root, and without bound.
static void locked_segments_count_together(void) {
    int id = segment(LOCKED_PAGES * PAGE);
    CHECK(!shmctl(id, SHM_LOCK, 0));
    CHECK(in_child(one_user_locks) == 0 && in_child(locks_as_another) == 0 && in_child(two_threads_lock) == 0);
    CHECK(in_child(locks_none) == 0 && in_child(locks_all_as_root) == 0);
    remove_it(id);
}

static void what_the_tables_say(void) {
    int id = shmget(IPC_PRIVATE, 5 * PAGE, IPC_CREAT | 0604);
    NEED(id >= 0);
    char *at = attach(id, 0, 0), line[512];
    memset(at, 1, 3 * PAGE);
    struct info info;
    int highest = shmctl(0, SHM_INFO, (struct shmid_ds *)&info);
    CHECK(highest >= 0 && info.used >= 1 && info.total >= 5 && info.resident >= 3);
    struct limits limits;
    CHECK(shmctl(0, IPC_INFO, (struct shmid_ds *)&limits) == highest);
    CHECK(limits.min == 1 && limits.segments == 4096 && limits.max > 1ul << 40);
    int seen = 0;
    struct shmid_ds ds;
    for (int slot = 0; slot <= highest; slot++) seen += shmctl(slot, SHM_STAT, &ds) == id && ds.shm_segsz == 5 * PAGE;
    CHECK(seen == 1);
    CHECK(shmctl(highest, SHM_STAT_ANY, &ds) >= 0);
    FAILS(shmctl(highest + 100, SHM_STAT, &ds), EINVAL);
    FILE *table = fopen("/proc/sysvipc/shm", "r");
    NEED(table && fgets(line, sizeof line, table) && strstr(line, "nattch"));
    int found = 0;
    while (fgets(line, sizeof line, table)) {
        int key, number, creator, last;
        unsigned perms, uid, gid, cuid, cgid;
        unsigned long size, count, attached, detached, changed, rss, swap;
        int fields = sscanf(line, "%d %d %o %lu %d %d %lu %u %u %u %u %lu %lu %lu %lu %lu", &key, &number, &perms, &size,
            &creator, &last, &count, &uid, &gid, &cuid, &cgid, &attached, &detached, &changed, &rss, &swap);
        if (!CHECK(fields == 16) || number != id) continue;
        found++;
        CHECK(perms == 0604 && size == 5 * PAGE && creator == getpid() && last == getpid() && count == 1);
        CHECK(rss + swap == 3 * PAGE);
    }
    fclose(table);
    CHECK(found == 1);
    snprintf(line, sizeof line, "/proc/self/maps");
    FILE *maps = fopen(line, "r");
    found = 0;
    while (maps && fgets(line, sizeof line, maps)) found += strstr(line, "/SYSV00000000 (deleted)") != 0;
    CHECK(found == 1);
    remove_it(id);
}

static long setting(const char *name, const char *value) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/sys/kernel/%s", name);
    int fd = open(path, value ? O_RDWR : O_RDONLY);
    NEED(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    if (value) CHECK(pwrite(fd, value, strlen(value), 0) == (ssize_t)strlen(value));
    close(fd);
    return (long)strtoul(text, 0, 10);
}
static void limits_are_kept(void) {
    char old[32];
    snprintf(old, sizeof old, "%lu", setting("shmmax", "8192"));
    FAILS(shmget(IPC_PRIVATE, 8193, IPC_CREAT | 0600), EINVAL);
    int id = segment(8192);
    remove_it(id);
    CHECK(setting("shmmax", old) == 8192);
    snprintf(old, sizeof old, "%lu", setting("shmmni", "0"));
    FAILS(shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600), ENOSPC);
    setting("shmmni", old);
    snprintf(old, sizeof old, "%lu", setting("shmall", "2"));
    FAILS(shmget(IPC_PRIVATE, 3 * PAGE, IPC_CREAT | 0600), ENOSPC);
    setting("shmall", old);
    id = segment(3 * PAGE);
    remove_it(id);
    struct rlimit limit = {64 << 20, 64 << 20};
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    id = segment(128 << 20);
    FAILS(shmat(id, 0, 0), ENOMEM);
    remove_it(id);
}

static void many_segments(void) {
    enum { COUNT = 500 };
    static int ids[COUNT];
    for (int i = 0; i < COUNT; i++) {
        ids[i] = segment(PAGE);
        *(int *)attach(ids[i], 0, 0) = i;
    }
    for (int i = 0; i < COUNT; i += 2) remove_it(ids[i]);
    for (int i = 0; i < COUNT; i++) {
        int *at = (int *)attach(ids[i], 0, 0);
        CHECK(*at == i);
    }
    for (int i = 1; i < COUNT; i += 2) remove_it(ids[i]);
}

static void posix_shared_memory(void) {
    struct stat about;
    CHECK(!stat("/dev/shm", &about) && S_ISDIR(about.st_mode) && (about.st_mode & 07777) == 01777);
    int fd = shm_open("/pool", O_RDWR | O_CREAT | O_EXCL, 0600);
    NEED(fd >= 0 && !ftruncate(fd, 4 * PAGE));
    char *one = mmap(0, 4 * PAGE, RW, MAP_SHARED, fd, 0), *other = mmap(0, 4 * PAGE, RW, MAP_SHARED, fd, 0);
    NEED(one != MAP_FAILED && other != MAP_FAILED);
    one[PAGE] = 3;
    CHECK(other[PAGE] == 3 && !shm_unlink("/pool"));
    FAILS(shm_open("/pool", O_RDWR, 0), ENOENT);
    CHECK(other[PAGE] == 3);
}

static void sealed_memory_files(void) {
    int fd = memfd_create("sealed", MFD_ALLOW_SEALING), plain = memfd_create("plain", 0);
    NEED(fd >= 0 && plain >= 0 && !ftruncate(fd, 2 * PAGE));
    CHECK(fcntl(plain, F_GET_SEALS) == F_SEAL_SEAL);
    FAILS(fcntl(plain, F_ADD_SEALS, F_SEAL_GROW), EPERM);
    char *at = mmap(0, 2 * PAGE, RW, MAP_SHARED, fd, 0);
    NEED(at != MAP_FAILED);
    FAILS(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), EBUSY); // somebody can write it
    munmap(at, 2 * PAGE);
    CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
    FAILS(ftruncate(fd, 3 * PAGE), EPERM);
    FAILS(ftruncate(fd, PAGE), EPERM);
    CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL));
    FAILS(pwrite(fd, "x", 1, 0), EPERM);
    FAILS(mmap(0, PAGE, RW, MAP_SHARED, fd, 0), EPERM);
    at = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    FAILS(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), EPERM);
    at = mmap(0, PAGE, RW, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED);
    if (at != MAP_FAILED) at[0] = 1;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "nothing")) return 0;
    static const struct test_case cases[] = {
        {"keys", keys},
        {"one_memory_at_two_addresses", one_memory_at_two_addresses},
        {"where_it_goes", where_it_goes},
        {"read_only", read_only},
        {"fork_and_exit", fork_and_exit},
        {"exec_detaches", exec_detaches},
        {"removed_but_attached", removed_but_attached},
        {"parts_of_an_attachment", parts_of_an_attachment},
        {"times_and_makers", times_and_makers},
        {"permissions", permissions},
        {"locking", locking},
        {"locked_segments_count_together", locked_segments_count_together},
        {"what_the_tables_say", what_the_tables_say},
        {"limits_are_kept", limits_are_kept},
        {"many_segments", many_segments},
        {"posix_shared_memory", posix_shared_memory},
        {"sealed_memory_files", sealed_memory_files},
    };
    return RUN(cases, argc, argv);
}
