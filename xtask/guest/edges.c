// Numbers at the edges: offsets and lengths that no file has, and pieces of memory that lie in the kernel's half. A row is a call, a
// cell what it is told for one number: an error, or what it returned.
#include "callers.h"
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define TOP ((long)(~0UL >> 1))
// At and beyond the end of what an offset can say.
static const long offsets[] = {0, -1, -2, -4096, TOP, TOP - 1, TOP - 4095, TOP - 8191, -TOP - 1, 1L << 62, 1L << 44};
static const char *const offset_names[] = {"0", "-1", "-2", "-4096", "max", "max-1", "max-4095", "max-8191", "min", "2^62", "2^44"};
enum { OFFSETS = sizeof offsets / sizeof *offsets };

static const char *const kinds[] = {"file", "pipe", "socket", "folder", "zero"};
enum { FILE_, PIPE, SOCKET, FOLDER, ZERO, KINDS };
static int in, out, memory;
static char buffer[16384];

static void set_up(int kind) {
    int ends[2];
    unlink("/tmp/edges");
    int fd = open("/tmp/edges", O_RDWR | O_CREAT, 0600);
    MUST(fd >= 0 && write(fd, buffer, 8192) == 8192 && lseek(fd, 0, SEEK_SET) == 0);
    memory = fd;
    in = out = fd;
    if (kind == PIPE) {
        MUST(!pipe2(ends, O_NONBLOCK) && write(ends[1], buffer, 4096) == 4096);
        in = ends[0], out = ends[1];
    }
    if (kind == SOCKET) {
        MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) && write(ends[1], buffer, 4096) == 4096);
        in = ends[0], out = ends[1];
    }
    if (kind == FOLDER) in = out = open("/tmp", O_RDONLY);
    if (kind == ZERO) in = out = open("/dev/zero", O_RDWR);
    MUST(in >= 0 && out >= 0);
}

static int other_pipe(int full) {
    int ends[2];
    MUST(!pipe2(ends, O_NONBLOCK));
    if (full) MUST(write(ends[1], buffer, 16) == 16);
    return ends[!full];
}

#define CALL(name, call) static long name(long at) { return call; }
CALL(preads, syscall(SYS_pread64, in, buffer, 16, at))
CALL(preads_nothing, syscall(SYS_pread64, in, buffer, 0, at))
CALL(pwrites, syscall(SYS_pwrite64, out, buffer, 16, at))
CALL(pwrites_nothing, syscall(SYS_pwrite64, out, buffer, 0, at))
static const struct iovec one = {buffer, 16};
CALL(preadvs, syscall(SYS_preadv, in, &one, 1, at, 0))
CALL(pwritevs, syscall(SYS_pwritev, out, &one, 1, at, 0))
CALL(preadv2s, syscall(SYS_preadv2, in, &one, 1, at, 0, 0))
CALL(pwritev2s, syscall(SYS_pwritev2, out, &one, 1, at, 0, 0))
CALL(preadvs_none, syscall(SYS_preadv, in, &one, 0, at, 0))
CALL(sends_from, syscall(SYS_sendfile, other_pipe(0), in, &at, 16))
CALL(splices_from, syscall(SYS_splice, in, &at, other_pipe(0), 0, 16, 0))
CALL(splices_to, syscall(SYS_splice, other_pipe(1), 0, out, &at, 16, 0))
CALL(splices_long, syscall(SYS_splice, in, 0, other_pipe(0), 0, at, 0))
CALL(sends_long, syscall(SYS_sendfile, other_pipe(0), in, 0, at))
static long copies(long from, long to, long length) {
    int fd = open("/tmp/edges-2", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0 && write(fd, buffer, 16) == 16 && !unlink("/tmp/edges-2"));
    return syscall(SYS_copy_file_range, in, &from, fd, &to, length, 0);
}
CALL(copies_from, copies(at, 0, 16))
CALL(copies_to, copies(0, at, 16))
CALL(copies_long, copies(0, 0, at))
CALL(truncates, syscall(SYS_ftruncate, out, at))
CALL(allocates_at, syscall(SYS_fallocate, out, 1, at, 16))
CALL(punches_at, syscall(SYS_fallocate, out, 3, at, 16))
CALL(punches_long, syscall(SYS_fallocate, out, 3, 16, at))
CALL(syncs_at, syscall(SYS_sync_file_range, out, at, 16, 2))
CALL(syncs_long, syscall(SYS_sync_file_range, out, 16, at, 2))
CALL(advises_at, syscall(SYS_fadvise64, in, at, 16, 4))
CALL(advises_long, syscall(SYS_fadvise64, in, 16, at, 4))
CALL(wants_at, syscall(SYS_fadvise64, in, at, 16, 3))
CALL(wants_long, syscall(SYS_fadvise64, in, 16, at, 3))
CALL(reads_ahead_at, syscall(SYS_readahead, in, at, 16))
CALL(reads_ahead_long, syscall(SYS_readahead, in, 0, at))
CALL(seeks, syscall(SYS_lseek, in, at, SEEK_SET) < 0 ? -1 : 0)
CALL(seeks_from_end, syscall(SYS_lseek, in, at, SEEK_END) < 0 ? -1 : 0)
CALL(seeks_twice, syscall(SYS_lseek, in, 100, SEEK_SET) < 0 || syscall(SYS_lseek, in, at, SEEK_CUR) < 0 ? -1 : 0)
CALL(seeks_data, syscall(SYS_lseek, in, at, SEEK_DATA) < 0 ? -1 : 0)
CALL(seeks_hole, syscall(SYS_lseek, in, at, SEEK_HOLE) < 0 ? -1 : 0)
CALL(seeks_and_reads, syscall(SYS_lseek, in, at, SEEK_SET) < 0 ? -1 : read(in, buffer, 16))
CALL(seeks_and_writes, syscall(SYS_lseek, out, at, SEEK_SET) < 0 ? -1 : write(out, buffer, 16))
CALL(maps_at, mmap(0, 4096, PROT_READ, MAP_SHARED, in, at) == MAP_FAILED ? -1 : 0)
CALL(maps_long, mmap(0, at, PROT_READ, MAP_SHARED, in, 0) == MAP_FAILED ? -1 : 0)
static long locks_part(long start, long length) { struct flock part = {F_RDLCK, SEEK_SET, start, length, 0}; return fcntl(in, F_SETLK, &part); }
CALL(locks_at, locks_part(at, 16))
CALL(locks_long, locks_part(16, at))

enum { ON_FILE = 1 << FILE_, SEEKS = ON_FILE | 1 << PIPE | 1 << SOCKET | 1 << ZERO, MOVES = ON_FILE | 1 << PIPE | 1 << FOLDER, ALL = 31 };
// A row, and the kinds of files on which the answer is the call's own and not the file system's.
struct call { const char *name; long (*make)(long); int kinds; };
#define ROW(name) {#name, name, ALL}
#define ROW_ON(kinds, name) {#name, name, kinds}
static const struct call on_offsets[] = {
    ROW(preads), ROW(preads_nothing), ROW(pwrites), ROW(pwrites_nothing), ROW(preadvs),
    ROW_ON(SEEKS, preadvs_none), ROW(pwritevs), ROW(preadv2s), ROW(pwritev2s),
    ROW_ON(MOVES, sends_from), ROW_ON(MOVES, sends_long), ROW_ON(MOVES | 1 << SOCKET, splices_from),
    ROW_ON(MOVES | 1 << SOCKET, splices_to), ROW_ON(ON_FILE | 1 << PIPE, splices_long),
    ROW(copies_from), ROW(copies_to), ROW(copies_long), ROW(truncates), ROW(allocates_at),
    ROW(punches_at), ROW(punches_long), ROW(syncs_at), ROW(syncs_long), ROW(advises_at),
    ROW(advises_long), ROW(wants_at), ROW(wants_long), ROW(reads_ahead_at), ROW(reads_ahead_long),
    ROW(seeks), ROW_ON(SEEKS, seeks_from_end), ROW(seeks_twice), ROW_ON(SEEKS, seeks_data),
    ROW_ON(SEEKS, seeks_hole), ROW_ON(SEEKS, seeks_and_reads), ROW(seeks_and_writes),
    ROW_ON(ON_FILE, maps_at), ROW_ON(ON_FILE, maps_long), ROW(locks_at), ROW(locks_long),
};

// Pieces whose address or length no program has, alone, behind a good one and before one.
static const struct iovec pieces[] = {
    {(void *)8, 0}, {(void *)0x8000000000000000, 4}, {(void *)0x8000000000000000, 0},
    {(void *)0xffff800000000000, 4}, {(void *)0xffff800000000000, 0}, {(void *)0xffffffff80000000, 4096}, {(void *)-1, 1},
    {(void *)-1, 0}, {buffer, -1}, {buffer, TOP}, {buffer, 1L << 62},
};
enum { PIECES = sizeof pieces / sizeof *pieces };

static struct iovec vector[3];
static int count;
CALL(reads_v, ((void)at, readv(in, vector, count)))
CALL(writes_v, ((void)at, writev(out, vector, count)))
CALL(preads_v, ((void)at, preadv(in, vector, count, 0)))
CALL(pwrites_v, ((void)at, pwritev(out, vector, count, 0)))
CALL(copies_v_in, ((void)at, process_vm_readv(getpid(), vector, count, &one, 1, 0)))
CALL(copies_v_from, ((void)at, process_vm_readv(getpid(), &one, 1, vector, count, 0)))
CALL(copies_v_out, ((void)at, process_vm_writev(getpid(), vector, count, &one, 1, 0)))
CALL(copies_v_to, ((void)at, process_vm_writev(getpid(), &one, 1, vector, count, 0)))
CALL(splices_v, ((void)at, syscall(SYS_vmsplice, out, vector, count, 0)))
static long receives(long at) { struct msghdr message = {.msg_iov = vector, .msg_iovlen = count}; return (void)at, recvmsg(in, &message, 0); }
static long sends(long at) { struct msghdr message = {.msg_iov = vector, .msg_iovlen = count}; return (void)at, sendmsg(out, &message, 0); }

static const struct call on_pieces[] = {
    ROW(reads_v), ROW(writes_v), ROW(preads_v), ROW(pwrites_v), ROW(copies_v_in),
    ROW(copies_v_from), ROW(copies_v_out), ROW(copies_v_to), ROW_ON(1 << PIPE, splices_v),
    ROW(receives), ROW(sends),
};

static void tell(long result) {
    if (result < 0 && result != -1) printf(" odd%ld", result);
    else if (result < 0) printf(" %s", error_name(errno));
    else printf(" %ld", result);
}

// In a child, since a row changes files, and the call may be the last one.
static void row(const char *name, int kind, const struct call *call, int cells, int shape) {
    printf("%-18s %-7s", name, kinds[kind]);
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        signal(SIGPIPE, SIG_IGN);
        for (int i = 0; i < cells; i++) {
            set_up(kind);
            if (shape < 0) { errno = 0; tell(call->make(offsets[i])); }
            else {
                struct iovec good = {buffer, 4};
                count = shape == 0 ? 1 : 2;
                vector[0] = shape == 1 ? good : pieces[i];
                vector[1] = shape == 2 ? good : pieces[i];
                errno = 0;
                tell(call->make(0));
            }
            close(in), close(out), close(memory);
        }
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (status) printf(" ended %x", status);
    printf("\n");
}

int main(void) {
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    printf("%-26s", "");
    for (int i = 0; i < OFFSETS; i++) printf(" %s", offset_names[i]);
    printf("\n");
    for (size_t c = 0; c < sizeof on_offsets / sizeof *on_offsets; c++)
        for (int kind = 0; kind < KINDS; kind++)
            if (on_offsets[c].kinds & 1 << kind) row(on_offsets[c].name, kind, &on_offsets[c], OFFSETS, -1);
    for (int i = 0; i < PIECES; i++) {
        if (pieces[i].iov_base == buffer) printf(" good:%lx", (long)pieces[i].iov_len);
        else printf(" %lx:%lx", (long)pieces[i].iov_base, (long)pieces[i].iov_len);
    }
    printf("\n");
    static const char *const shapes[] = {"", "then", "first"};
    for (size_t c = 0; c < sizeof on_pieces / sizeof *on_pieces; c++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int shape = 0; on_pieces[c].kinds & 1 << kind && kind != FOLDER && shape < 3; shape++) {
                char name[32];
                snprintf(name, sizeof name, "%s %s", on_pieces[c].name, shapes[shape]);
                row(name, kind, &on_pieces[c], PIECES, shape);
            }
    printf("the table is whole\n");
    return 0;
}
