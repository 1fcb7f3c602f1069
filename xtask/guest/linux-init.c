// The first process on Debian's Linux: makes that kernel speak our own kernel's protocol.
//
// Mounts what ours has from the start, takes the settings and the program from the kernel's command line (see
// xtask/src/run.rs), runs the program on the console, and reports `user`, `exit CODE` on the second serial port.
// `root=/dev/vda` or `root=/dev/vda:ro` makes an ext4 file system the root, `mount=/dev/vda:/mnt` or
// `mount=/dev/vda:/mnt:ro` mounts one, `swapon=/dev/vdb` or `swapon=/dev/vdb:5` (a priority) switches swap on. What
// can't be had ends the machine with exit code 69.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static char line[65536];
static char *arguments[4096];

static void decode(char *word) {
    char *out = word;
    for (char *in = word; *in; in++) {
        if (*in == '%' && in[1] && in[2]) {
            char hex[3] = {in[1], in[2], 0};
            *out++ = strtol(hex, 0, 16);
            in += 2;
        } else {
            *out++ = *in;
        }
    }
    *out = 0;
}

static void loopback_up(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    ioctl(fd, SIOCSIFFLAGS, &request);
    close(fd);
}

static void console_mode(int rows, int columns, int stdin_pipe, int stdout_pipe) {
    struct termios mode;
    tcgetattr(0, &mode);
    if (stdin_pipe) {
        mode.c_lflag = ICANON | IEXTEN;
        mode.c_iflag = 0;
    }
    if (stdout_pipe) mode.c_oflag = 0;
    tcsetattr(0, TCSANOW, &mode);
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (rows) ioctl(0, TIOCSWINSZ, &size);
}

static void load_drivers(void) {
    for (int index = 0;; index++) {
        char path[64];
        snprintf(path, sizeof path, "/.uvm-drivers/%d.ko", index);
        int fd = open(path, O_RDONLY);
        if (fd < 0) return;
        if (syscall(SYS_finit_module, fd, "", 0)) dprintf(2, "uvm: can't load %s: %s\n", path, strerror(errno));
        close(fd);
    }
}

static void end(int control, int code) {
    int fd = open("/dev/ttyS0", O_RDWR | O_NOCTTY);
    tcdrain(fd);
    dprintf(control, "exit %d\n", code);
    tcdrain(control);
    iopl(3);
    outl(0x10, 0xf4);
    for (;;) pause();
}

static void refuse(int control, const char *what, const char *where) {
    dprintf(2, "uvm: %s can't be used%s (%s), so nothing is started\n", what, where, strerror(errno));
    sync();
    end(control, 69);
}

static void mount_disk(int control, char *disk) {
    char *folder = strchr(disk, ':');
    if (!folder) return;
    *folder++ = 0;
    char *mode = strchr(folder, ':');
    if (mode) *mode++ = 0;
    mkdir(folder, 0755);
    if (mount(disk, folder, "ext4", mode && !strcmp(mode, "ro") ? MS_RDONLY : 0, 0))
        refuse(control, disk, ": it can't be mounted");
}

// Takes the mounts of the root in memory along.
static void change_root(int control, char *disk) {
    static const char *const along[] = {"dev", "proc", "sys"};
    char *mode = strchr(disk, ':');
    if (mode) *mode++ = 0;
    mkdir("/.uvm-root", 0755);
    if (mount(disk, "/.uvm-root", "ext4", mode ? MS_RDONLY : 0, 0)) refuse(control, disk, ": it can't be mounted");
    for (int i = 0; i < 3; i++) {
        char from[32], to[32];
        snprintf(from, sizeof from, "/%s", along[i]);
        snprintf(to, sizeof to, "/.uvm-root/%s", along[i]);
        mkdir(to, 0755);
        if (mount(from, to, 0, MS_MOVE, 0)) refuse(control, to, ": a folder for it is missing");
    }
    if (chdir("/.uvm-root") || mount(".", "/", 0, MS_MOVE, 0) || chroot(".")) refuse(control, disk, " as the root");
}

static void swap_on(int control, char *device) {
    char *priority = strchr(device, ':');
    int flags = 0;
    if (priority) {
        *priority++ = 0;
        flags = SWAP_FLAG_PREFER | (atoi(priority) & SWAP_FLAG_PRIO_MASK);
    }
    if (swapon(device, flags)) refuse(control, device, " to swap on");
}

// The program that a disk starts with.
static char *usual(void) {
    static char *const names[] = {"/sbin/init", "/etc/init", "/bin/init"};
    for (int i = 0; i < 3; i++)
        if (!access(names[i], X_OK)) return names[i];
    return "/bin/sh";
}

int main(void) {
    mount("devtmpfs", "/dev", "devtmpfs", 0, 0);
    mount("proc", "/proc", "proc", 0, 0);
    mount("sysfs", "/sys", "sysfs", 0, 0);
    // What was packed there would be hidden.
    if (!rmdir("/tmp")) mkdir("/tmp", 01777), mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777");
    mkdir("/dev/shm", 01777);
    mount("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777");
    symlink("/proc/self/fd", "/dev/fd");
    symlink("/proc/self/fd/0", "/dev/stdin");
    symlink("/proc/self/fd/1", "/dev/stdout");
    symlink("/proc/self/fd/2", "/dev/stderr");
    mkdir("/dev/pts", 0755);
    mount("devpts", "/dev/pts", "devpts", 0, 0);
    loopback_up();
    load_drivers();

    int control = open("/dev/ttyS1", O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios raw;
    tcgetattr(control, &raw);
    cfmakeraw(&raw);
    cfsetspeed(&raw, B115200);
    tcsetattr(control, TCSANOW, &raw);

    int fd = open("/proc/cmdline", O_RDONLY);
    ssize_t length = read(fd, line, sizeof line - 1);
    close(fd);
    line[length > 0 ? length : 0] = 0;

    int rows = 0, columns = 0, stdin_pipe = 0, stdout_pipe = 0, count = 0, in_program = 0, uid = 0, gid = 0;
    const char *folder = "/";
    clearenv();
    for (char *word = strtok(line, " \n"); word; word = strtok(0, " \n")) {
        if (in_program) {
            decode(word);
            arguments[count++] = word;
        } else if (!strcmp(word, "--")) {
            in_program = 1;
        } else if (!strncmp(word, "env=", 4)) {
            decode(word);
            putenv(word + 4);
        } else if (!strncmp(word, "cwd=", 4)) {
            decode(word);
            folder = word + 4;
        } else if (!strncmp(word, "rows=", 5)) {
            rows = atoi(word + 5);
        } else if (!strncmp(word, "cols=", 5)) {
            columns = atoi(word + 5);
        } else if (!strncmp(word, "user=", 5)) {
            sscanf(word + 5, "%d:%d", &uid, &gid);
        } else if (!strncmp(word, "mount=", 6)) {
            mount_disk(control, word + 6);
        } else if (!strncmp(word, "root=", 5)) {
            change_root(control, word + 5);
        } else if (!strncmp(word, "swapon=", 7)) {
            swap_on(control, word + 7);
        } else if (!strcmp(word, "stdin=pipe")) {
            stdin_pipe = 1;
        } else if (!strcmp(word, "stdout=pipe")) {
            stdout_pipe = 1;
        }
    }

    if (count == 0) {
        // It wants to be the first process.
        arguments[0] = usual();
        unshare(CLONE_NEWPID | CLONE_NEWNS);
    }
    pid_t child = fork();
    if (child == 0) {
        setsid();
        for (int i = 0; i < 3; i++) close(i);
        open("/dev/ttyS0", O_RDWR);
        ioctl(0, TIOCSCTTY, 0);
        dup(0);
        dup(0);
        console_mode(rows, columns, stdin_pipe, stdout_pipe);
        if (count == 0) mount("proc", "/proc", "proc", 0, 0);
        if (chdir(folder)) chdir("/");
        if (uid && (setgroups(0, 0) || setgid(gid) || setuid(uid))) _exit(126);
        dprintf(control, "user 0\n");
        execvp(arguments[0], arguments);
        int error = errno;
        dprintf(2, "uvm: can't run %s: %s\n", arguments[0], strerror(error));
        _exit(error == ENOENT ? 127 : 126);
    }
    int status = 0;
    while (wait(&status) != child) {
    }
    sync();
    end(control, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}
