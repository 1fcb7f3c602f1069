// What it costs to move data: through sinks and sources, pipes, and by passing memory itself; copied, and not. The same static
// program on every kernel, counting instructions as count.h has it. The rows are those of the paper's figures 5 to 9, and, under
// both kernels, what an unchanged program does and what each kernel's own best calls do.
//
// Both ends of a transfer run on the one CPU, so a row's value is all that sender, receiver and kernel do for it.
// On our kernel a row sets by knobs what writes do, and whether reads take pages: copy always, or never; rows called `unchanged`
// leave it to the kernel. Transfers are asked for by a call. Rows that need calls that a kernel doesn't have are left out there.
// Usage: move RUNS [PART OF A NAME]
#include "count.h"
#include "drain.h"
#include "uvm.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { LARGEST = 2 << 20, PASSED = 64 << 20, PIECES = 64 };

// What the row in hand does.
static size_t size;
static const char *loans = "", *transfers = ""; // for the knobs; empty: as the kernel likes
static int touches;                             // whoever has the data writes to each page of it
static int reads;                               // whoever has the data loads from each page of it

static char *buffer; // LARGEST bytes, touched

// --- parts ------------------------------------------------------------------------------------------------------

static void set(const char *knob, const char *value) {
    static const char usual[] = "default";
    int fd = open(knob, O_WRONLY);
    if (fd < 0) return;
    const char *text = *value ? value : usual;
    if (write(fd, text, strlen(text)) < 0) give_up(knob);
    close(fd);
}

static void touch(char *at, size_t length) {
    for (size_t i = 0; i < length; i += PAGE) *(volatile char *)(at + i) += 1;
}

static void look(const char *at, size_t length) {
    for (size_t i = 0; i < length; i += PAGE) (void)*(const volatile char *)(at + i);
}

// Large memory begins where a page table does: programs that pass much of it do well to have it so.
static char *memory(size_t length) {
    enum { TABLE = 2 << 20 };
    size_t more = length >= TABLE ? TABLE : 0;
    char *at = mmap(0, length + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return give_up("mmap"), NULL;
    if (more) {
        char *first = (char *)(((uintptr_t)at + TABLE - 1) & -(uintptr_t)TABLE);
        if (first > at) munmap(at, first - at);
        munmap(first + length, at + more - first);
        at = first;
    }
    madvise(at, length, MADV_NOHUGEPAGE);
    return at;
}

static int write_all(int fd, const char *from, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t put = write(fd, from + done, length - done);
        if (put <= 0) return -1;
        done += put;
    }
    return 0;
}

// Takes so many bytes by transfer, touches them if the row says so, and gives them up.
static int transfer_all(int fd, size_t length) {
    struct uvm_piece pieces[PIECES];
    for (size_t done = 0; done < length;) {
        ssize_t count = uvm_transfer_read(fd, pieces, PIECES, length - done);
        if (count <= 0) return -1;
        for (ssize_t i = 0; i < count; i++) {
            done += pieces[i].length;
            if (touches) touch(pieces[i].start, pieces[i].length);
            if (reads) look(pieces[i].start, pieces[i].length);
            if (uvm_anflush(pieces[i].start, pieces[i].length)) return -1;
        }
    }
    return 0;
}

// Has a child do `send` with one end of a channel, `count` times, and itself `take` with the other; what both cost.
static uint64_t between(size_t count, int ends[2], int (*send)(int fd), int (*take)(int fd)) {
    int go[2];
    if (pipe(go)) return give_up("pipe");
    pid_t child = fork();
    if (child < 0) return give_up("fork");
    if (child == 0) {
        char byte;
        close(ends[0]), close(go[1]);
        touch(buffer, LARGEST); // the child's own copies
        if (read(go[0], &byte, 1) != 1) _exit(1);
        for (size_t i = 0; i < count; i++) {
            if (send(ends[1])) _exit(1);
        }
        _exit(read(go[0], &byte, 1) != 0); // its end isn't measured
    }
    close(ends[1]);
    touch(buffer, LARGEST);
    sched_yield();
    uint64_t start = ticks();
    int bad = write(go[1], "g", 1) != 1;
    for (size_t i = 0; i < count && !bad; i++) bad = take(ends[0]);
    uint64_t spent = ticks() - start;
    if (bad) give_up("the data did not come through");
    close(ends[0]), close(go[0]), close(go[1]);
    int status;
    if (waitpid(child, &status, 0) != child || (status && !bad)) return give_up("the sender failed");
    return spent;
}

static int send_written(int fd) {
    if (touches) touch(buffer, size);
    return write_all(fd, buffer, size);
}

static int take_read(int fd) {
    if (read_all(fd, buffer, size)) return -1;
    if (reads) look(buffer, size);
    return 0;
}

static int take_transferred(int fd) {
    return transfer_all(fd, size);
}

// --- figures 5 and 6: a sink and a source -----------------------------------------------------------------------

// The paper's null protocol: what is sent is dropped, and there is always something to receive.
static int null_socket(void) {
    enum { AF_NULL = 63 };
    return socket(AF_NULL, SOCK_STREAM, 0);
}

static uint64_t null_write(size_t count) {
    int fd = null_socket();
    if (fd < 0) return give_up("socket");
    uint64_t start = ticks();
    int bad = 0;
    for (size_t i = 0; i < count && !bad; i++) bad = send_written(fd);
    uint64_t spent = ticks() - start;
    close(fd);
    return bad ? give_up("write") : spent;
}

static uint64_t null_read(size_t count) {
    int fd = null_socket();
    if (fd < 0) return give_up("socket");
    uint64_t start = ticks();
    int bad = 0;
    for (size_t i = 0; i < count && !bad; i++) bad = *transfers == '1' ? take_transferred(fd) : take_read(fd);
    uint64_t spent = ticks() - start;
    close(fd);
    return bad ? give_up("read") : spent;
}

// --- figure 7: a pipe -------------------------------------------------------------------------------------------

static uint64_t through_pipe(size_t count, int (*send)(int), int (*take)(int)) {
    int ends[2];
    if (pipe(ends)) return give_up("pipe");
    return between(count, ends, send, take);
}

static uint64_t pipe_plain(size_t count) {
    return through_pipe(count, send_written, *transfers == '1' ? take_transferred : take_read);
}

static uint64_t pipe_wide(size_t count) {
    int ends[2];
    if (pipe(ends)) return give_up("pipe");
    if (size > 65536 && fcntl(ends[1], F_SETPIPE_SZ, 1 << 20) < 0) return give_up("F_SETPIPE_SZ");
    return between(count, ends, send_written, take_read);
}

static uint64_t through_socket(size_t count) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return give_up("socketpair");
    return between(count, ends, send_written, *transfers == '1' ? take_transferred : take_read);
}

// Memory that the sender gives away, written anew each time.
static int send_donated(int fd) {
    touch(buffer, size);
    for (size_t done = 0; done < size;) {
        ssize_t put = uvm_donate_write(fd, buffer + done, size - done);
        if (put <= 0) return -1;
        done += put;
    }
    return 0;
}

static uint64_t donated_to_socket(size_t count) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return give_up("socketpair");
    return between(count, ends, send_donated, *transfers == '1' ? take_transferred : take_read);
}

// Two programs of one machine over TCP.
static int connect_tcp(int ends[2]) {
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    ioctl(listener, SIOCSIFFLAGS, &loopback); // it may be up
    int bad = bind(listener, (void *)&at, length) || listen(listener, 1);
    bad = bad || getsockname(listener, (void *)&at, &length);
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    bad = bad || connect(ends[1], (void *)&at, length);
    ends[0] = bad ? -1 : accept(listener, 0, 0);
    close(listener);
    return ends[0] < 0;
}

static uint64_t through_tcp(size_t count) {
    int ends[2];
    if (connect_tcp(ends)) return give_up("TCP");
    return between(count, ends, send_written, take_read);
}

// As Linux's <linux/errqueue.h> has it.
struct ended {
    uint32_t error;
    uint8_t origin, type, code, padding;
    uint32_t first, last;
};

// Linux's own way to send pages as they are: it says by the socket's queue of errors when it has done with them.
static int send_in_place(int fd) {
    unsigned sent = 0;
    for (size_t done = 0; done < size; sent++) {
        ssize_t put = send(fd, buffer + done, size - done, MSG_ZEROCOPY);
        if (put <= 0) return -1;
        done += put;
    }
    for (unsigned ended = 0; ended < sent;) {
        char control[128];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        struct pollfd wait = {.fd = fd};
        poll(&wait, 1, -1);
        if (recvmsg(fd, &message, MSG_ERRQUEUE) < 0) return -1;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (!head) return -1;
        struct ended *done = (void *)CMSG_DATA(head);
        ended += done->last - done->first + 1;
    }
    return 0;
}

static uint64_t through_tcp_in_place(size_t count) {
    int ends[2], on = 1;
    if (connect_tcp(ends)) return give_up("TCP");
    if (setsockopt(ends[1], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on)) return give_up("SO_ZEROCOPY");
    return between(count, ends, send_in_place, take_read);
}

// The pages themselves go into the pipe, and from there to nobody.
static int sink_fd;

static int send_spliced(int fd) {
    struct iovec vector = {buffer, size};
    while (vector.iov_len) {
        ssize_t put = vmsplice(fd, &vector, 1, 0);
        if (put <= 0) return -1;
        vector.iov_base = (char *)vector.iov_base + put;
        vector.iov_len -= put;
    }
    return 0;
}

static int take_spliced(int fd) {
    for (size_t done = 0; done < size;) {
        ssize_t got = splice(fd, 0, sink_fd, 0, size - done, 0);
        if (got <= 0) return -1;
        done += got;
    }
    return 0;
}

static uint64_t spliced(size_t count) {
    sink_fd = open("/dev/null", O_WRONLY);
    uint64_t spent = through_pipe(count, send_spliced, take_spliced);
    close(sink_fd);
    return spent;
}

// --- figure 8: memory passed there and back ---------------------------------------------------------------------

static int send_fd(int to, int fd) {
    char byte = 'f', space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
    return sendmsg(to, &message, 0) == 1 ? 0 : -1;
}

static int receive_fd(int from) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(from, &message, 0) != 1) return -1;
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (control && control->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(control), sizeof fd);
    return fd;
}

static char *in_hand; // where the memory is that goes to and fro

static int pass(int to) {
    int fd = uvm_export(in_hand, size, UVM_DONATE, PROT_READ | PROT_WRITE);
    if (fd < 0) return -1;
    int bad = send_fd(to, fd);
    close(fd);
    return bad;
}

static int accept_passed(int from) {
    int fd = receive_fd(from);
    if (fd < 0) return -1;
    void *at = uvm_import(fd, 0, 0);
    close(fd);
    if (at == (void *)-1) return -1;
    in_hand = at;
    if (touches) touch(in_hand, size);
    return 0;
}

static int pass_copied(int to) {
    return write_all(to, buffer, size);
}

static int accept_copied(int from) {
    if (read_all(from, buffer, size)) return -1;
    if (touches) touch(buffer, size);
    return 0;
}

// A channel in both directions: what goes in at one side's second end comes out at the other's first.
struct sides {
    int here[2], there[2];
};

static int by_socket(struct sides *sides) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return -1;
    *sides = (struct sides){{ends[0], ends[0]}, {ends[1], ends[1]}};
    return 0;
}

static int by_pipes(struct sides *sides) {
    int to[2], fro[2];
    if (pipe(to) || pipe(fro)) return -1;
    *sides = (struct sides){{fro[0], to[1]}, {to[0], fro[1]}};
    return 0;
}

// There and back counts as two operations.
static uint64_t to_and_fro(size_t count, int (*open)(struct sides *), int (*give)(int), int (*take)(int)) {
    struct sides sides;
    if (open(&sides)) return give_up("socketpair or pipe");
    int *here = sides.here, *there = sides.there;
    in_hand = memory(size);
    if (!in_hand) return 0;
    touch(in_hand, size);
    pid_t child = fork();
    if (child == 0) {
        close(here[0]), close(here[1]);
        munmap(in_hand, size);
        touch(buffer, LARGEST);
        while (!take(there[0]) && !give(there[1])) {
        }
        _exit(0);
    }
    if (child < 0) return give_up("fork");
    close(there[0]), close(there[1]);
    touch(in_hand, size);
    touch(buffer, LARGEST);
    int bad = give(here[1]) || take(here[0]); // the child is up
    uint64_t start = ticks();
    for (size_t i = 0; i < count && !bad; i++) bad = give(here[1]) || take(here[0]);
    uint64_t spent = ticks() - start;
    if (bad) give_up("the memory did not come back");
    else munmap(in_hand, size);
    close(here[0]), close(here[1]);
    waitpid(child, 0, 0);
    return spent / 2;
}

static uint64_t passed(size_t count) {
    return to_and_fro(count, by_socket, pass, accept_passed);
}

static uint64_t passed_by_copy(size_t count) {
    return to_and_fro(count, by_socket, pass_copied, accept_copied);
}

static uint64_t piped_by_copy(size_t count) {
    return to_and_fro(count, by_pipes, pass_copied, accept_copied);
}

// The same by donations: what was received is given on.
static int donate(int to) {
    return uvm_donate_write(to, in_hand, size) == (ssize_t)size ? 0 : -1;
}

static int accept_donated(int from) {
    struct uvm_piece piece;
    if (uvm_transfer_read(from, &piece, 1, size) != 1 || piece.length != size) return -1;
    in_hand = piece.start;
    if (touches) touch(in_hand, size);
    return 0;
}

static uint64_t donated(size_t count) {
    return to_and_fro(count, by_pipes, donate, accept_donated);
}

// A descriptor of shared memory passed, and mapped by whoever gets it.
static int pass_memfd(int to) {
    int fd = memfd_create("passed", 0);
    if (fd < 0 || ftruncate(fd, size)) return -1;
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return -1;
    touch(at, size);
    int bad = send_fd(to, fd) || munmap(at, size);
    close(fd);
    return bad;
}

static int accept_memfd(int from) {
    int fd = receive_fd(from);
    if (fd < 0) return -1;
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return -1;
    if (touches) touch(at, size);
    int bad = munmap(at, size);
    close(fd);
    return bad;
}

static uint64_t passed_by_memfd(size_t count) {
    return to_and_fro(count, by_socket, pass_memfd, accept_memfd);
}

// A parent reads its child's memory.
static uint64_t read_remotely(size_t count) {
    int done[2];
    if (pipe(done)) return give_up("pipe");
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(done[1]);
        touch(buffer, size);
        (void)!read(done[0], &byte, 1);
        _exit(0);
    }
    if (child < 0) return give_up("fork");
    struct iovec vector = {buffer, size};
    touch(buffer, size);
    int bad = process_vm_readv(child, &vector, 1, &vector, 1, 0) != (ssize_t)size;
    uint64_t start = ticks();
    for (size_t i = 0; i < count && !bad; i++) bad = process_vm_readv(child, &vector, 1, &vector, 1, 0) != (ssize_t)size;
    uint64_t spent = ticks() - start;
    if (bad) give_up("process_vm_readv");
    close(done[0]), close(done[1]);
    waitpid(child, 0, 0);
    return spent;
}

// --- figure 9: three processes in a row -------------------------------------------------------------------------

// The first fills a buffer, the second changes it, the third writes it to a sink and tells the first, or gives it the buffer
// back where that is memory which was passed.
static uint64_t pipeline(size_t count, int (*give)(int), int (*take)(int), int own) {
    int first[2], second[2], turn[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, first) || socketpair(AF_UNIX, SOCK_STREAM, 0, second) ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, turn)) {
        return give_up("socketpair");
    }
    pid_t middle = fork();
    if (middle == 0) {
        close(first[0]), close(second[1]), close(turn[0]), close(turn[1]);
        touch(buffer, LARGEST);
        touches = 1;
        while (!take(first[1]) && !give(second[0])) {
        }
        _exit(0);
    }
    pid_t last = fork();
    if (last == 0) {
        close(first[0]), close(first[1]), close(second[0]), close(turn[0]);
        touch(buffer, LARGEST);
        touches = 0;
        int sink = null_socket();
        while (!take(second[1]) && !write_all(sink, own ? in_hand : buffer, size)) {
            if (own ? give(turn[1]) : write(turn[1], "t", 1) != 1) break;
        }
        _exit(0);
    }
    if (middle < 0 || last < 0) return give_up("fork");
    close(first[1]), close(second[0]), close(second[1]), close(turn[1]);
    touch(buffer, LARGEST);
    touches = 0;
    if (own) in_hand = memory(size);
    char byte;
    int bad = 0;
    uint64_t start = 0;
    for (size_t i = 0; i <= count && !bad; i++) {
        if (i == 1) start = ticks();
        touch(own ? in_hand : buffer, size);
        bad = give(first[0]) || (own ? take(turn[0]) : read(turn[0], &byte, 1) != 1);
    }
    uint64_t spent = ticks() - start;
    if (bad) give_up("the pipeline broke");
    else if (own) munmap(in_hand, size);
    close(first[0]), close(turn[0]);
    waitpid(middle, 0, 0), waitpid(last, 0, 0);
    return spent;
}

static uint64_t pipeline_passed(size_t count) {
    return pipeline(count, pass, accept_passed, 1);
}

static uint64_t pipeline_copied(size_t count) {
    return pipeline(count, pass_copied, accept_copied, 0);
}

// --- a file, through a pipe ---------------------------------------------------------------------------------------

static int the_file = -1; // LARGEST bytes

static int send_file(int fd) {
    off_t at = 0;
    while ((size_t)at < size) {
        if (sendfile(fd, the_file, &at, size - at) <= 0) return -1;
    }
    return 0;
}

static int take_and_use(int fd) {
    if (take_read(fd)) return -1;
    if (touches) touch(buffer, size);
    return 0;
}

static uint64_t file_through_pipe(size_t count) {
    if (the_file < 0) {
        the_file = memfd_create("file", 0);
        if (the_file < 0 || write_all(the_file, buffer, LARGEST)) return give_up("memfd");
    }
    int ends[2];
    if (pipe(ends)) return give_up("pipe");
    return between(count, ends, send_file, take_and_use);
}

// --- the table --------------------------------------------------------------------------------------------------

enum { ONLY_OURS = 1, TOUCHES = 2, COPY_OUT = 4, COPY_IN = 8, LOAN = 16, TRANSFER = 32, READS = 64, ONLY_LINUX = 128 };

static const struct kind {
    const char *name;
    uint64_t (*batch)(size_t count);
    size_t least, most; // sizes
    int how;
} kinds[] = {
    {"null write, copied", null_write, 1024, LARGEST, ONLY_OURS | COPY_OUT},
    {"null write, loaned", null_write, 1024, LARGEST, ONLY_OURS | LOAN},
    {"null write, unchanged", null_write, 1024, LARGEST, ONLY_OURS},
    {"null write, unchanged, refilled", null_write, 1024, LARGEST, ONLY_OURS | TOUCHES},
    {"null write, copied, refilled", null_write, 1024, LARGEST, ONLY_OURS | TOUCHES | COPY_OUT},
    {"null read, copied", null_read, 1024, LARGEST, ONLY_OURS | COPY_IN},
    {"null read, transferred", null_read, 4096, LARGEST, ONLY_OURS | TRANSFER},
    {"null read, transferred, looked at", null_read, 4096, LARGEST, ONLY_OURS | TRANSFER | READS},
    {"null read, unchanged", null_read, 1024, LARGEST, ONLY_OURS},
    {"null read, copied, looked at", null_read, 4096, LARGEST, ONLY_OURS | COPY_IN | READS},
    {"null read, unchanged, looked at", null_read, 4096, LARGEST, ONLY_OURS | READS},
    {"pipe, copied", pipe_plain, 1024, LARGEST, ONLY_OURS | COPY_OUT | COPY_IN},
    {"pipe, loaned", pipe_plain, 4096, LARGEST, ONLY_OURS | LOAN | COPY_IN},
    {"pipe, transferred", pipe_plain, 4096, LARGEST, ONLY_OURS | COPY_OUT | TRANSFER},
    {"pipe, loaned and transferred", pipe_plain, 4096, LARGEST, ONLY_OURS | LOAN | TRANSFER},
    {"pipe, both, looked at", pipe_plain, 4096, LARGEST, ONLY_OURS | LOAN | TRANSFER | READS},
    {"pipes, to and fro, untouched", piped_by_copy, 4096, LARGEST, 0},
    {"pipes, to and fro, touched", piped_by_copy, 4096, LARGEST, TOUCHES},
    {"pipes, to and fro, donated", donated, 32768, LARGEST, ONLY_OURS},
    {"pipes, to and fro, donated, touched", donated, 32768, LARGEST, ONLY_OURS | TOUCHES},
    {"pipe of 1 MiB, unchanged", pipe_wide, 4096, LARGEST, 0},
    {"pipe, unchanged", pipe_plain, 1024, LARGEST, 0},
    {"pipe, unchanged, refilled", pipe_plain, 1024, LARGEST, TOUCHES},
    {"pipe, copied, refilled", pipe_plain, 1024, LARGEST, ONLY_OURS | TOUCHES | COPY_OUT | COPY_IN},
    {"socket, unchanged", through_socket, 1024, LARGEST, 0},
    {"socket, copied", through_socket, 1024, LARGEST, ONLY_OURS | COPY_OUT | COPY_IN},
    {"socket, unchanged, refilled", through_socket, 1024, LARGEST, TOUCHES},
    {"socket, copied, refilled", through_socket, 1024, LARGEST, ONLY_OURS | TOUCHES | COPY_OUT | COPY_IN},
    {"socket, donated, refilled", donated_to_socket, 4096, LARGEST, ONLY_OURS | COPY_IN},
    {"socket, donated and transferred, refilled", donated_to_socket, 4096, LARGEST, ONLY_OURS | TRANSFER},
    {"TCP, unchanged", through_tcp, 4096, LARGEST, 0},
    {"TCP, MSG_ZEROCOPY", through_tcp_in_place, 4096, LARGEST, ONLY_LINUX},
    {"pipe, vmsplice and splice", spliced, 4096, LARGEST, 0},
    {"file through a pipe, copied", file_through_pipe, 4096, LARGEST, ONLY_OURS | COPY_IN},
    {"file through a pipe, unchanged", file_through_pipe, 4096, LARGEST, 0},
    {"file through a pipe, copied, looked at", file_through_pipe, 4096, LARGEST, ONLY_OURS | COPY_IN | READS},
    {"file through a pipe, unchanged, looked at", file_through_pipe, 4096, LARGEST, READS},
    {"file through a pipe, copied, stored to", file_through_pipe, 4096, LARGEST, ONLY_OURS | COPY_IN | TOUCHES},
    {"file through a pipe, unchanged, stored to", file_through_pipe, 4096, LARGEST, TOUCHES},
    {"process_vm_readv", read_remotely, 4096, LARGEST, 0},
    {"memfd passed", passed_by_memfd, 4096, LARGEST, TOUCHES},
    {"socket, to and fro, untouched", passed_by_copy, 4096, LARGEST, 0},
    {"socket, to and fro, touched", passed_by_copy, 4096, LARGEST, TOUCHES},
    {"entries passed, untouched", passed, 4096, PASSED, ONLY_OURS},
    {"entries passed, touched", passed, 4096, LARGEST, ONLY_OURS | TOUCHES},
    {"pipeline, copied", pipeline_copied, 4096, LARGEST, ONLY_OURS | COPY_OUT | COPY_IN},
    {"pipeline, passed and loaned", pipeline_passed, 4096, LARGEST, ONLY_OURS | LOAN},
};

static const char *in_words(size_t bytes) {
    static char text[32];
    if (bytes < 1 << 20) snprintf(text, sizeof text, "%zu KiB", bytes >> 10);
    else snprintf(text, sizeof text, "%zu MiB", bytes >> 20);
    return text;
}

static size_t next_size(void) {
    return size * (size < LARGEST ? 2 : 32);
}

static const char *name_of(const struct kind *kind) {
    static char name[80];
    snprintf(name, sizeof name, "%s, %s", kind->name, in_words(size));
    return name;
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "list")) {
        for (const struct kind *kind = kinds; kind < kinds + sizeof kinds / sizeof *kinds; kind++) {
            for (size = kind->least; size <= kind->most; size = next_size()) puts(name_of(kind));
        }
        return 0;
    }
    size_t runs = count > 1 ? strtoul(arguments[1], 0, 10) : 5;
    if (runs < 1 || runs > MAX_RUNS) return 2;
    const char *wanted = count > 2 ? arguments[2] : "";
    buffer = memory(LARGEST);
    if (!buffer) return 1;
    touch(buffer, LARGEST);
    int ours = null_socket() >= 0;
    calibrate();
    for (const struct kind *kind = kinds; kind < kinds + sizeof kinds / sizeof *kinds; kind++) {
        if (kind->how & (ours ? ONLY_LINUX : ONLY_OURS)) continue;
        for (size = kind->least; size <= kind->most; size = next_size()) {
            const char *name = name_of(kind);
            if (!strstr(name, wanted)) continue;
            touches = kind->how & TOUCHES ? 1 : 0;
            reads = kind->how & READS ? 1 : 0;
            loans = kind->how & LOAN ? "1" : kind->how & COPY_OUT ? "never" : "";
            transfers = kind->how & TRANSFER ? "1" : kind->how & COPY_IN ? "never" : "";
            failure = 0;
            if (ours) set("/proc/sys/vm/loan_bytes", loans), set("/proc/sys/vm/pipe_loan_bytes", loans);
            if (ours) set("/proc/sys/vm/receive_bytes", kind->how & COPY_IN ? "never" : "");
            size_t batch = (4 << 20) / size;
            struct row row = {name, kind->batch, batch < 4 ? 4 : batch > 64 ? 64 : batch};
            measure(&row, runs);
        }
    }
    puts("end");
    drain();
    return 0;
}
