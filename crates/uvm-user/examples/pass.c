// A parent gives a large table to a child that was made before the table was: as a range of addresses, through a socket. On kernels
// without exports it passes a descriptor of shared memory instead.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "uvm.h"

enum { ROWS = 1 << 20 };
static const size_t TABLE = ROWS * sizeof(unsigned);

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void send_fd(int to, int fd) {
    char byte = 'f', space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
    if (sendmsg(to, &message, 0) != 1) fail("sendmsg");
}

static int receive_fd(int from) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(from, &message, 0) != 1) fail("recvmsg");
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    if (!control || control->cmsg_type != SCM_RIGHTS) errno = EPROTO, fail("no descriptor came");
    int fd;
    memcpy(&fd, CMSG_DATA(control), sizeof fd);
    return fd;
}

// Both ways to a table that can be given away: our own memory, or a file of memory.
static unsigned *make_table(int *fd) {
    *fd = -1;
    int memory = memfd_create("table", MFD_CLOEXEC);
    int has_exports = uvm_export(0, 0, UVM_DONATE, PROT_READ) >= 0 || errno != ENOSYS;
    if (!has_exports && (memory < 0 || ftruncate(memory, TABLE))) fail("memfd");
    int flags = has_exports ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    unsigned *table = mmap(0, TABLE, PROT_READ | PROT_WRITE, flags, has_exports ? -1 : memory, 0);
    if (table == MAP_FAILED) fail("mmap");
    for (unsigned i = 0; i < ROWS; i++) table[i] = i * i;
    if (has_exports) close(memory);
    else *fd = memory;
    return table;
}

static int child(int socket) {
    int fd = receive_fd(socket);
    unsigned *table = uvm_import(fd, 0, 0);
    if (table == (void *)-1 && errno == ENOSYS) table = mmap(0, TABLE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (table == (void *)-1) fail("uvm_import");
    unsigned bad = 0;
    for (unsigned i = 0; i < ROWS; i++) bad += table[i] != i * i;
    table[0] = 1; // it is ours
    printf("%d rows came, %u of them wrong\n", ROWS, bad);
    return bad != 0;
}

int main(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) fail("socketpair");
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid == 0) return child(ends[1]);
    int fd;
    unsigned *table = make_table(&fd);
    // The memory leaves here, and takes no time that grows with what it holds.
    if (fd < 0 && (fd = uvm_export(table, TABLE, UVM_DONATE, PROT_READ | PROT_WRITE)) < 0) fail("uvm_export");
    send_fd(ends[0], fd);
    close(fd);
    int status;
    if (waitpid(pid, &status, 0) != pid) fail("waitpid");
    return status != 0;
}
