// Pseudo-terminals: the line discipline, job control, hang-ups, packets, rights, and what hostile programs do to them.
#include "check.h"
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <termios.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

static int master, slave;
static char slave_name[32];

static void open_master(void) {
    int zero = 0, number = -1;
    master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    NEED(master >= 0 && !ioctl(master, TIOCSPTLCK, &zero) && !ioctl(master, TIOCGPTN, &number));
    sprintf(slave_name, "/dev/pts/%d", number);
}

static void open_pair(void) {
    open_master();
    slave = open(slave_name, O_RDWR | O_NOCTTY);
    NEED(slave >= 0);
}

// Without echo and output processing, as most cases want it.
static void plain(void) {
    struct termios now;
    NEED(!tcgetattr(slave, &now));
    now.c_lflag &= ~ECHO, now.c_oflag = 0;
    NEED(!tcsetattr(slave, TCSANOW, &now));
}

static void raw(int min, int time) {
    struct termios now;
    NEED(!tcgetattr(slave, &now));
    cfmakeraw(&now);
    now.c_cc[VMIN] = min, now.c_cc[VTIME] = time;
    NEED(!tcsetattr(slave, TCSANOW, &now));
}

static void change(tcflag_t *flags, struct termios *now, tcflag_t set, tcflag_t clear) {
    *flags = (*flags | set) & ~clear;
    NEED(!tcsetattr(slave, TCSANOW, now));
}

static int says(int fd, const char *text) {
    char got[8192];
    size_t length = strlen(text), done = 0;
    while (done < length) {
        struct pollfd ready = {fd, POLLIN, 0};
        if (poll(&ready, 1, 2000) != 1) break;
        ssize_t n = read(fd, got + done, sizeof got - done);
        if (n <= 0) break;
        done += n;
    }
    if (done == length && !memcmp(got, text, length)) return 1;
    printf("  got %zu bytes:", done);
    for (size_t i = 0; i < done && i < 60; i++) printf(" %02x", (unsigned char)got[i]);
    printf("\n");
    return 0;
}

static int silent(int fd) {
    struct pollfd ready = {fd, POLLIN, 0};
    return poll(&ready, 1, 30) == 0;
}

static void put(int fd, const char *text) { NEED(write(fd, text, strlen(text)) == (ssize_t)strlen(text)); }

static int events(int fd) {
    struct pollfd ready = {fd, POLLIN | POLLOUT | POLLPRI, 0};
    poll(&ready, 1, 0);
    return ready.revents;
}

static void nodes(void) {
    struct stat of_slave, of_path, of_ptmx;
    struct statfs fs;
    open_master();
    NEED(!stat(slave_name, &of_path) && !stat("/dev/ptmx", &of_ptmx));
    CHECK(S_ISCHR(of_path.st_mode) && of_path.st_uid == getuid());
    CHECK(of_path.st_rdev == (136 << 8 | (unsigned)atoi(slave_name + 9)) && of_ptmx.st_rdev == (5 << 8 | 2));
    CHECK((of_ptmx.st_mode & 0777) == 0666);
    slave = open(slave_name, O_RDWR | O_NOCTTY);
    NEED(slave >= 0 && !fstat(slave, &of_slave) && !statfs(slave_name, &fs));
    CHECK(of_slave.st_ino == of_path.st_ino && of_slave.st_dev == of_path.st_dev && fs.f_type == 0x1cd1);
    CHECK(isatty(slave) && isatty(master));
    char link[64] = "", path[64];
    sprintf(path, "/proc/self/fd/%d", slave);
    CHECK(readlink(path, link, 63) > 0 && !strcmp(link, slave_name));
    sprintf(path, "/proc/self/fd/%d", master);
    memset(link, 0, sizeof link);
    CHECK(readlink(path, link, 63) > 0 && !strcmp(link, "/dev/ptmx"));
    CHECK(!chmod(slave_name, 0600) && !stat(slave_name, &of_path) && (of_path.st_mode & 07777) == 0600);
    CHECK(!chown(slave_name, 1000, 5) && !stat(slave_name, &of_path) && of_path.st_uid == 1000 && of_path.st_gid == 5);
    FAILS(unlink(slave_name), EPERM);
    int locked = 1;
    CHECK(!ioctl(master, TIOCSPTLCK, &locked));
    FAILS(open(slave_name, O_RDWR | O_NOCTTY), EIO);
    int peer = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
    if (peer >= 0) close(peer);
    locked = 0;
    CHECK(!ioctl(master, TIOCSPTLCK, &locked));
    peer = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    NEED(peer >= 0 && !fstat(peer, &of_slave));
    CHECK(of_slave.st_ino == of_path.st_ino && fcntl(peer, F_GETFD) == FD_CLOEXEC);
    put(master, "to the peer\n");
    CHECK(says(peer, "to the peer\n"));
    close(master);
    FAILS(open(slave_name, O_RDWR | O_NOCTTY), ENOENT);
    FAILS(stat(slave_name, &of_path), ENOENT);
    FAILS(ioctl(peer, TIOCGPTN, &locked), EIO);
}

static void lines(void) {
    open_pair();
    plain();
    put(master, "one\ntwo\n");
    CHECK(says(slave, "one\n") && says(slave, "two\n"));
    put(master, "par");
    CHECK(silent(slave));
    put(master, "\x7ft\n");
    CHECK(says(slave, "pat\n"));
    put(master, "gone \x15kept word\x17gone\n");
    CHECK(says(slave, "kept gone\n"));
    put(master, "a\x16\x03z\r");
    CHECK(says(slave, "a\x03z\n"));
    char two[2];
    put(master, "abc\n");
    CHECK(read(slave, two, 2) == 2 && !memcmp(two, "ab", 2) && read(slave, two, 2) == 2 && !memcmp(two, "c\n", 2));
    put(master, "ab\x04");
    CHECK(read(slave, two, 2) == 2);
    CHECK(silent(slave));
    put(master, "\x04");
    CHECK(read(slave, two, 2) == 0);
    put(master, "x\x04\x04");
    CHECK(read(slave, two, 2) == 1 && read(slave, two, 2) == 0);
    int available = -1;
    put(master, "12345\n");
    CHECK(!ioctl(slave, FIONREAD, &available) && available == 6);
    CHECK(!tcflush(slave, TCIFLUSH) && silent(slave));
    fcntl(slave, F_SETFL, O_NONBLOCK);
    FAILS(read(slave, two, 2), EAGAIN);
    fcntl(master, F_SETFL, O_NONBLOCK);
    FAILS(read(master, two, 2), EAGAIN);
}

static void echoes(void) {
    struct termios now;
    open_pair();
    put(master, "ab\x7f\x01\tz\r");
    CHECK(says(master, "ab\x08 \x08^A\tz\r\n"));
    CHECK(says(slave, "a\x01\tz\n"));
    put(master, "ab\x15");
    CHECK(says(master, "ab\x08 \x08\x08 \x08"));
    put(master, "ab\tc\x7f\x7f\x7f");
    CHECK(says(master, "ab\tc\x08 \x08\x08\x08\x08\x08\x08\x08\x08 \x08"));
    put(master, "\x15");
    CHECK(says(master, "\x08 \x08"));
    put(master, "a\t\t\x7f\x7f\x15");
    CHECK(says(master, "a\t\t\x08\x08\x08\x08\x08\x08\x08\x08\x08\x08\x08\x08\x08\x08\x08\x08 \x08"));
    put(master, "\x16");
    CHECK(says(master, "^\x08"));
    put(master, "\x03\n");
    CHECK(says(master, "^C\r\n") && says(slave, "\x03\n"));
    put(slave, "a\nb\rc\td");
    CHECK(says(master, "a\r\nb\rc\td"));
    NEED(!tcgetattr(slave, &now));
    change(&now.c_oflag, &now, XTABS | OCRNL, ONLCR);
    put(slave, "\rx\ty\n");
    CHECK(says(master, "\nx      y\n"));
    change(&now.c_oflag, &now, 0, OPOST);
    put(slave, "a\nb\r");
    CHECK(says(master, "a\nb\r"));
    change(&now.c_lflag, &now, 0, ECHO);
    put(master, "quiet\n");
    CHECK(silent(master) && says(slave, "quiet\n"));
    change(&now.c_lflag, &now, ECHONL, 0);
    put(master, "q\n");
    CHECK(says(master, "\n") && says(slave, "q\n"));
    change(&now.c_lflag, &now, ECHO, ECHOCTL | ECHONL);
    put(master, "\x01\n");
    CHECK(says(master, "\x01\n") && says(slave, "\x01\n"));
    change(&now.c_lflag, &now, 0, ECHOE);
    put(master, "a\x7f\n");
    CHECK(says(master, "a\x7f\n") && says(slave, "\n"));
}

static void input_flags(void) {
    struct termios now;
    open_pair();
    plain();
    NEED(!tcgetattr(slave, &now));
    change(&now.c_iflag, &now, INLCR, ICRNL);
    put(master, "a\nb\r\x04");
    CHECK(says(slave, "a\rb\r"));
    change(&now.c_iflag, &now, IGNCR, INLCR);
    put(master, "a\rb\n");
    CHECK(says(slave, "ab\n"));
    change(&now.c_iflag, &now, ISTRIP, IGNCR);
    put(master, "\xe1\n");
    CHECK(says(slave, "a\n"));
    change(&now.c_iflag, &now, IUCLC, ISTRIP);
    put(master, "ABC\n");
    CHECK(says(slave, "abc\n"));
    change(&now.c_iflag, &now, IUTF8, IUCLC);
    put(master, "a\xc3\xa4\x7f\n");
    CHECK(says(slave, "a\n"));
    now.c_cc[VEOL] = ';', now.c_cc[VERASE] = 'e';
    change(&now.c_iflag, &now, 0, 0);
    put(master, "be;ne\n");
    CHECK(says(slave, ";") && says(slave, "\n"));
    now.c_cc[VEOF] = 0;
    change(&now.c_iflag, &now, 0, 0);
    put(master, "x\x04\n");
    CHECK(says(slave, "x\x04\n"));
}

static void raw_reads(void) {
    char got[64];
    open_pair();
    raw(1, 0);
    put(master, "a\x03\x04\r\n");
    CHECK(says(slave, "a\x03\x04\r\n"));
    raw(0, 0);
    CHECK(read(slave, got, 9) == 0);
    put(master, "abc");
    CHECK(read(slave, got, 9) == 3);
    raw(0, 2);
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(read(slave, got, 9) == 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    CHECK(ms >= 195 && ms < 2000);
    raw(4, 0);
    put(master, "abc");
    CHECK(!(events(slave) & POLLIN));
    fcntl(slave, F_SETFL, O_NONBLOCK);
    CHECK(read(slave, got, 9) == 3);
    fcntl(slave, F_SETFL, 0);
    put(master, "abcd");
    CHECK(events(slave) & POLLIN && read(slave, got, 9) == 4);
    raw(10, 1);
    put(master, "ab");
    CHECK(events(slave) & POLLIN && read(slave, got, 9) == 2);
    // Input that waits stays when the mode changes.
    plain();
    raw(1, 0);
    put(master, "kept");
    CHECK(says(slave, "kept"));
}

static void flow_control(void) {
    open_pair();
    plain();
    put(master, "\x13");
    fcntl(slave, F_SETFL, O_NONBLOCK);
    CHECK(!(events(slave) & POLLOUT));
    FAILS(write(slave, "x", 1), EAGAIN);
    put(master, "\x11");
    put(slave, "y");
    CHECK(says(master, "y") && silent(slave));
    CHECK(!tcflow(slave, TCOOFF));
    FAILS(write(slave, "x", 1), EAGAIN);
    CHECK(!tcflow(slave, TCOON));
    put(slave, "z");
    CHECK(says(master, "z"));
    CHECK(!tcflow(slave, TCIOFF) && says(master, "\x13") && !tcflow(slave, TCION) && says(master, "\x11"));
}

static void sizes_and_settings(void) {
    struct winsize size = {1, 1, 1, 1}, new = {33, 77, 5, 6};
    struct termios now, again;
    open_pair();
    CHECK(!ioctl(slave, TIOCGWINSZ, &size) && !size.ws_row && !size.ws_col);
    CHECK(!ioctl(master, TIOCSWINSZ, &new) && !ioctl(slave, TIOCGWINSZ, &size) && !memcmp(&size, &new, sizeof size));
    CHECK(!tcgetattr(slave, &now) && !tcgetattr(master, &again) && !memcmp(&now, &again, 36));
    CHECK(now.c_iflag == (ICRNL | IXON) && now.c_oflag == (OPOST | ONLCR) && now.c_cflag == (B38400 | CS8 | CREAD));
    CHECK(now.c_lflag == (ISIG | ICANON | ECHO | ECHOE | ECHOK | ECHOCTL | ECHOKE | IEXTEN));
    CHECK(!memcmp(now.c_cc, "\x03\x1c\x7f\x15\x04\0\1\0\x11\x13\x1a\0\x12\x0f\x17\x16\0\0\0", 19));
    now.c_lflag &= ~ECHO, now.c_cflag = (now.c_cflag & ~CSIZE) | CS5 | PARENB;
    CHECK(!tcsetattr(master, TCSANOW, &now) && !tcgetattr(slave, &again) && !(again.c_lflag & ECHO));
    CHECK((again.c_cflag & (CSIZE | PARENB)) == CS8);
    int number = 0;
    FAILS(ioctl(slave, TIOCGPTN, &number), ENOTTY);
    FAILS(ioctl(slave, TIOCSPTLCK, &number), ENOTTY);
    FAILS(ioctl(slave, 0x5499, &number), ENOTTY);
    FAILS(ioctl(master, TIOCGPTN, 8), EFAULT);
    FAILS(ioctl(slave, TIOCGPGRP, &number), ENOTTY);
    CHECK(!ioctl(master, TIOCGPGRP, &number) && number == 0);
    FAILS(ioctl(master, TIOCGSID, &number), ENOTTY);
    number = 5;
    FAILS(ioctl(slave, TIOCSETD, &number), EINVAL);
    FAILS(tcflush(slave, 7), EINVAL);
    CHECK(!ioctl(slave, TIOCEXCL, 0));
    int also = open(slave_name, O_RDWR | O_NOCTTY);
    CHECK(also >= 0 || geteuid());
    FAILS(lseek(slave, 0, SEEK_CUR), ESPIPE);
}

// Nothing of a paste is lost: the writer waits.
static void *paster(void *count) {
    static char text[1 << 20];
    size_t length = (size_t)count;
    for (size_t i = 0; i < length; i++) text[i] = i % 61 == 60 ? '\n' : 'a' + i % 23;
    for (size_t done = 0; done < length;) {
        ssize_t n = write(master, text + done, length - done);
        if (n <= 0) return "a write failed";
        done += n;
    }
    return 0;
}

static void pastes(void) {
    for (int is_raw = 0; is_raw < 2; is_raw++) {
        enum { LENGTH = 61 * 4000 };
        open_pair();
        plain();
        if (is_raw) raw(1, 0);
        pthread_t thread;
        void *failed;
        NEED(!pthread_create(&thread, 0, paster, (void *)LENGTH));
        usleep(20000);
        size_t wrong = 0, done = 0;
        while (done < LENGTH) {
            char got[1000];
            struct pollfd ready = {slave, POLLIN, 0};
            if (!CHECK(poll(&ready, 1, 5000) == 1)) break;
            ssize_t n = read(slave, got, sizeof got);
            if (!CHECK(n > 0)) break;
            for (ssize_t i = 0; i < n; i++, done++) wrong += got[i] != (done % 61 == 60 ? '\n' : (char)('a' + done % 23));
        }
        CHECK(done == LENGTH && wrong == 0);
        NEED(!pthread_join(thread, &failed));
        CHECK(!failed);
        // A writer that doesn't wait gets a short count, and then EAGAIN.
        static char much[1 << 18];
        memset(much, '\n', sizeof much);
        fcntl(master, F_SETFL, O_NONBLOCK);
        ssize_t first = write(master, much, sizeof much), total = first;
        CHECK(first >= 4096 && first < (ssize_t)sizeof much);
        for (ssize_t n; (n = write(master, much, sizeof much)) > 0;) total += n;
        CHECK(errno == EAGAIN && !(events(master) & POLLOUT));
        ssize_t came = 0;
        fcntl(slave, F_SETFL, O_NONBLOCK);
        for (ssize_t n; (n = read(slave, much, sizeof much)) > 0 || events(slave) & POLLIN;) came += n > 0 ? n : 0;
        CHECK(came == total && events(master) & POLLOUT);
        // And so the other way.
        memset(much, 'o', sizeof much);
        total = 0;
        for (ssize_t n; (n = write(slave, much, sizeof much)) > 0 || events(slave) & POLLOUT;) total += n > 0 ? n : 0;
        CHECK(errno == EAGAIN && total >= 4096);
        came = 0;
        for (ssize_t n; (n = read(master, much, sizeof much)) > 0 || events(master) & POLLIN;) came += n > 0 ? n : 0;
        CHECK(came == total);
        close(master), close(slave);
    }
}

static volatile sig_atomic_t hups, conts, ints, winches, ttous;
static void count(int number) {
    if (number == SIGHUP) hups++;
    if (number == SIGCONT) conts++;
    if (number == SIGINT) ints++;
    if (number == SIGWINCH) winches++;
    if (number == SIGTTOU) ttous++;
}

static void counted(int number) {
    struct sigaction action = {.sa_handler = count};
    NEED(!sigaction(number, &action, 0));
}

// The body runs as the leader of a session whose terminal is the slave, without the master.
static pid_t session(void (*body)(void)) {
    fflush(stdout);
    pid_t child = fork();
    NEED(child >= 0);
    if (!child) {
        close(master);
        failed_checks = 0;
        NEED(setsid() > 0);
        if (slave >= 0) close(slave);
        slave = open(slave_name, O_RDWR);
        NEED(slave >= 0);
        alarm(60);
        body();
        fflush(stdout);
        _exit(failed_checks != 0);
    }
    return child;
}

static void is_fine(pid_t child) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static long stat_field(int field) {
    char text[1024], *at;
    int fd = open("/proc/self/stat", O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    NEED(n > 0);
    text[n] = 0;
    at = strrchr(text, ')') + 2;
    for (int i = 3; i < field; i++) at = strchr(at, ' ') + 1;
    return atol(at);
}

static void in_session(void) {
    pid_t group = 0, sid = 0;
    struct stat of_slave;
    NEED(!fstat(slave, &of_slave));
    CHECK(stat_field(7) == (long)of_slave.st_rdev && stat_field(8) == getpid());
    CHECK(!ioctl(slave, TIOCGSID, &sid) && sid == getpid() && !ioctl(slave, TIOCGPGRP, &group) && group == getpid());
    int tty = open("/dev/tty", O_RDWR);
    NEED(tty >= 0);
    put(tty, "by /dev/tty");
    counted(SIGINT), counted(SIGWINCH), counted(SIGTTOU);
    put(slave, "ready");
    for (int i = 0; i < 500 && !(ints && winches); i++) usleep(10000);
    CHECK(ints == 1 && winches == 1);
    // A group of the background.
    pid_t child = fork();
    if (!child) {
        setpgid(0, 0);
        struct termios now;
        NEED(!tcgetattr(slave, &now));
        signal(SIGTTOU, SIG_IGN), signal(SIGTTIN, SIG_IGN);
        CHECK(!tcsetattr(slave, TCSANOW, &now));
        char byte;
        FAILS(read(slave, &byte, 1), EIO);
        signal(SIGTTIN, SIG_DFL);
        put(slave, "reading");
        CHECK(read(slave, &byte, 1) == 1);
        _exit(failed_checks != 0);
    }
    int status;
    NEED(waitpid(child, &status, WUNTRACED) == child && CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTTIN));
    CHECK(!tcsetpgrp(slave, child) && !ioctl(slave, TIOCGPGRP, &group) && group == child);
    NEED(!kill(child, SIGCONT));
    put(slave, "type");
    NEED(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    signal(SIGTTOU, SIG_IGN);
    CHECK(!tcsetpgrp(slave, getpgrp()));
    FAILS(tcsetpgrp(slave, 1), EPERM);
    FAILS(tcsetpgrp(slave, 4000000), ESRCH);
    FAILS(tcsetpgrp(slave, -3), EINVAL);
    CHECK(!ioctl(slave, TIOCSCTTY, 0));
    CHECK(!ioctl(slave, TIOCNOTTY, 0));
    FAILS(open("/dev/tty", O_RDWR), ENXIO);
    FAILS(tcsetpgrp(slave, getpgrp()), ENOTTY);
    CHECK(stat_field(7) == 0 && stat_field(8) == -1);
    CHECK(!ioctl(slave, TIOCSCTTY, 0) && !ioctl(slave, TIOCGSID, &sid) && sid == getpid());
}

// The one file system keeps its settings when it is mounted once more.
static void mounted_again(void) {
    struct stat before, after;
    open_pair();
    NEED(!fstat(slave, &before) && (before.st_mode & 07777) == 0620);
    FAILS(mount("devpts", "/nowhere", "devpts", 0, "mode=666"), ENOENT);
    FAILS(mount("devpts", "/dev/pts", "devpts", 0, "mode=x"), EINVAL);
    NEED(!mkdir("/tmp/pts", 0755) && !mount("devpts", "/tmp/pts", "devpts", 0, NULL));
    open_pair();
    CHECK(!fstat(slave, &after) && after.st_mode == before.st_mode && after.st_gid == before.st_gid);
    CHECK(!umount("/tmp/pts") && !rmdir("/tmp/pts"));
}

// What comes before a fault is read, and the rest stays.
static void faults(void) {
    static char text[700], got[700];
    for (int i = 0; i < 700; i++) text[i] = 'a' + i % 23;
    char *two = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(two != MAP_FAILED && !munmap(two + 4096, 4096));
    open_pair();
    raw(1, 0);
    CHECK(write(master, text, 700) == 700);
    FAILS(read(slave, two + 4096, 700), EFAULT);
    CHECK(read(slave, two + 4096 - 512, 700) == 512 && !memcmp(two + 4096 - 512, text, 512));
    struct iovec parts[2] = {{got, 100}, {two + 4096, 88}};
    CHECK(readv(slave, parts, 2) == 100 && !memcmp(got, text + 512, 100));
    CHECK(read(slave, got, 700) == 88 && !memcmp(got, text + 612, 88));
    munmap(two, 4096);
}

// What is costly to type lets others run, and the writer end.
static void costly_keys(void) {
    static char line[4095], keys[255];
    static struct iovec all[1024];
    open_pair();
    plain();
    struct termios now;
    NEED(!tcgetattr(slave, &now));
    now.c_lflag |= ECHO;
    NEED(!tcsetattr(slave, TCSANOW, &now));
    memset(line, 'x', sizeof line), memset(keys, 0x12, sizeof keys);
    for (int i = 0; i < 1024; i++) all[i] = (struct iovec){keys, sizeof keys};
    CHECK(write(master, line, sizeof line) == sizeof line);
    pid_t child = fork();
    if (!child) {
        while (writev(master, all, 1024) > 0) {}
        _exit(0);
    }
    usleep(50000);
    struct timespec start, end;
    int status;
    clock_gettime(CLOCK_MONOTONIC, &start);
    NEED(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK(WIFSIGNALED(status) && end.tv_sec - start.tv_sec < 5);
}

static void job_control(void) {
    open_pair();
    plain();
    signal(SIGHUP, SIG_IGN);
    pid_t child = session(in_session), group = 0;
    CHECK(says(master, "by /dev/ttyready"));
    CHECK(!ioctl(master, TIOCGPGRP, &group) && group == child && !ioctl(master, TIOCGSID, &group) && group == child);
    FAILS(ioctl(slave, TIOCSCTTY, 0), EPERM);
    put(master, "\x03");
    struct winsize size = {10, 20, 0, 0};
    CHECK(!ioctl(master, TIOCSWINSZ, &size) && !ioctl(master, TIOCSWINSZ, &size));
    CHECK(says(master, "readingtype"));
    put(master, "k\n");
    is_fine(child);
}

static void until_hung_up(void) {
    char byte;
    counted(SIGHUP), counted(SIGCONT);
    put(slave, "x");
    for (int i = 0; i < 500 && !(hups && conts); i++) usleep(10000);
    CHECK(hups == 1 && conts == 1);
    CHECK(read(slave, &byte, 1) == 0 && read(slave, &byte, 1) == 0);
    FAILS(write(slave, "x", 1), EIO);
    struct termios now;
    FAILS(tcgetattr(slave, &now), EIO);
    FAILS(tcsetpgrp(slave, getpgrp()), ENOTTY);
    CHECK((events(slave) & (POLLIN | POLLOUT | POLLERR | POLLHUP)) == (POLLIN | POLLOUT | POLLERR | POLLHUP));
    FAILS(open("/dev/tty", O_RDWR), ENXIO);
    CHECK(stat_field(7) == 0);
}

static void reads_until_hung_up(void) {
    char byte;
    signal(SIGHUP, SIG_IGN);
    put(slave, "x");
    FAILS(read(slave, &byte, 1), EIO);
}

static void the_master_goes(void) {
    for (int i = 0; i < 2; i++) {
        open_master();
        slave = -1;
        pid_t child = session(i ? reads_until_hung_up : until_hung_up);
        CHECK(says(master, "x"));
        usleep(50000);
        close(master);
        is_fine(child);
    }
    // The group in the foreground hears of it when the leader ends.
    int ends[2];
    NEED(!pipe(ends));
    open_master();
    pid_t child = fork();
    NEED(child >= 0);
    if (!child) {
        close(master);
        signal(SIGHUP, SIG_IGN), signal(SIGTTOU, SIG_IGN);
        setsid();
        slave = open(slave_name, O_RDWR);
        pid_t job = fork();
        if (!job) {
            setpgid(0, 0);
            counted(SIGHUP);
            NEED(write(ends[1], "r", 1) == 1);
            for (int i = 0; i < 500 && !hups; i++) usleep(10000);
            _exit(write(ends[1], hups ? "h" : "n", 1) != 1);
        }
        setpgid(job, job);
        NEED(slave >= 0 && !tcsetpgrp(slave, job));
        char byte;
        while (read(slave, &byte, 1) > 0 || errno == EINTR) {}
        usleep(100000);
        NEED(write(ends[1], "l", 1) == 1);
        _exit(0);
    }
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'r');
    usleep(50000);
    close(master);
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'l');
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'h');
    is_fine(child);
}

static void the_slave_goes(void) {
    char byte;
    open_master();
    CHECK(!(events(master) & (POLLIN | POLLHUP)) && events(master) & POLLOUT);
    slave = open(slave_name, O_RDWR | O_NOCTTY);
    int also = dup(slave);
    put(slave, "last");
    close(slave);
    CHECK(!(events(master) & POLLHUP));
    close(also);
    CHECK(events(master) & POLLHUP);
    CHECK(says(master, "last"));
    FAILS(read(master, &byte, 1), EIO);
    CHECK(events(master) & POLLHUP);
    // Settings and input stay.
    slave = open(slave_name, O_RDWR | O_NOCTTY);
    CHECK(slave >= 0 && !(events(master) & POLLHUP));
    plain();
    close(slave);
    CHECK(write(master, "early\n", 6) == 6);
    slave = open(slave_name, O_RDWR | O_NOCTTY);
    CHECK(slave >= 0 && says(slave, "early\n") && silent(master));
    // A reader that sleeps is woken.
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        close(master);
        usleep(100000);
        _exit(0);
    }
    close(slave);
    FAILS(read(master, &byte, 1), EIO);
    is_fine(child);
}

static void packets(void) {
    char got[64];
    int on = 1, is = 0;
    open_pair();
    plain();
    CHECK(!ioctl(master, TIOCPKT, &on));
    if (!ioctl(master, 0x80045438, &is)) CHECK(is == 1);
    put(slave, "data");
    CHECK(events(master) & POLLIN && !(events(master) & POLLPRI));
    CHECK(read(master, got, 64) == 5 && !memcmp(got, "\0data", 5));
    NEED(!tcflush(slave, TCIFLUSH));
    CHECK(events(master) & POLLPRI && events(master) & POLLIN);
    CHECK(read(master, got, 64) == 1 && got[0] == TIOCPKT_FLUSHREAD);
    NEED(!tcflush(slave, TCOFLUSH));
    CHECK(read(master, got, 64) == 1 && got[0] & TIOCPKT_FLUSHWRITE);
    struct termios now;
    NEED(!tcgetattr(slave, &now));
    change(&now.c_iflag, &now, 0, IXON);
    CHECK(read(master, got, 64) == 1 && got[0] == TIOCPKT_NOSTOP);
    change(&now.c_iflag, &now, IXON, 0);
    CHECK(read(master, got, 64) == 1 && got[0] == TIOCPKT_DOSTOP);
    NEED(!tcflow(slave, TCOOFF));
    CHECK(read(master, got, 64) == 1 && got[0] == TIOCPKT_STOP);
    NEED(!tcflow(slave, TCOON));
    CHECK(read(master, got, 64) == 1 && got[0] == TIOCPKT_START);
    on = 0;
    CHECK(!ioctl(master, TIOCPKT, &on));
    put(slave, "plain");
    CHECK(says(master, "plain"));
}

static void watched(void) {
    open_pair();
    plain();
    int set = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.fd = master}}, got[4];
    NEED(!epoll_ctl(set, EPOLL_CTL_ADD, master, &event));
    event.data.fd = slave;
    NEED(!epoll_ctl(set, EPOLL_CTL_ADD, slave, &event));
    CHECK(epoll_wait(set, got, 4, 0) == 0);
    put(slave, "x");
    CHECK(epoll_wait(set, got, 4, 1000) == 1 && got[0].data.fd == master && got[0].events == EPOLLIN);
    CHECK(says(master, "x"));
    put(master, "x\n");
    CHECK(epoll_wait(set, got, 4, 1000) == 1 && got[0].data.fd == slave);
    CHECK(says(slave, "x\n"));
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        usleep(50000);
        put(master, "later\n");
        _exit(0);
    }
    CHECK(epoll_wait(set, got, 4, 5000) == 1 && got[0].data.fd == slave);
    is_fine(child);
    close(slave);
    CHECK(epoll_wait(set, got, 4, 1000) == 1 && got[0].events == EPOLLHUP);
}

static void become(int uid) { NEED(!setgroups(0, 0) && !setgid(uid) && !setuid(uid)); }

// A program of another user's neither opens a terminal nor types there.
static void foreigners(void) {
    open_pair();
    NEED(!chmod(slave_name, 0620) && !chown(slave_name, 1000, 5));
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        become(1001);
        FAILS(open(slave_name, O_RDWR | O_NOCTTY), EACCES);
        FAILS(open(slave_name, O_WRONLY | O_NOCTTY), EACCES);
        FAILS(chmod(slave_name, 0666), EPERM);
        FAILS(ioctl(slave, TIOCSTI, "x"), EPERM);
        FAILS(ioctl(slave, TIOCSCTTY, 1), EPERM);
        FAILS(ioctl(slave, TIOCVHANGUP, 0), EPERM);
        CHECK(!ioctl(slave, TIOCEXCL, 0));
        _exit(failed_checks != 0);
    }
    is_fine(child);
    child = fork();
    if (!child) {
        become(1000);
        FAILS(open(slave_name, O_RDWR | O_NOCTTY), EBUSY);
        CHECK(!ioctl(slave, TIOCNXCL, 0));
        int own = open(slave_name, O_RDWR | O_NOCTTY);
        CHECK(own >= 0);
        open_master();
        struct stat of;
        CHECK(!stat(slave_name, &of) && of.st_uid == 1000);
        slave = -1;
        _exit(failed_checks != 0);
    }
    is_fine(child);
}

static void types(void) {
    for (const char *c = "typed\n"; *c; c++) CHECK(!ioctl(slave, TIOCSTI, c));
    CHECK(says(slave, "typed\n"));
    // A leader that may only write doesn't get the terminal.
    CHECK(!ioctl(slave, TIOCNOTTY, 0));
    int only = open(slave_name, O_WRONLY);
    CHECK(only >= 0 && open("/dev/tty", O_RDWR) < 0 && errno == ENXIO);
}

static void typing_for_oneself(void) {
    open_pair();
    plain();
    signal(SIGHUP, SIG_IGN);
    is_fine(session(types));
}

static void hung(void) {
    signal(SIGHUP, SIG_IGN);
    CHECK(!ioctl(slave, TIOCVHANGUP, 0));
    FAILS(write(slave, "x", 1), EIO);
    FAILS(open("/dev/tty", O_RDWR), ENXIO);
    slave = open(slave_name, O_RDWR);
    CHECK(slave >= 0);
    plain();
    put(slave, "again");
    CHECK(open("/dev/tty", O_RDWR) >= 0);
}

static void hang_ups(void) {
    open_pair();
    is_fine(session(hung));
    CHECK(says(master, "again"));
    char byte;
    CHECK(read(slave, &byte, 1) == 0);
    FAILS(write(slave, "x", 1), EIO);
}

// Two threads that do the opposite of each other to both ends, while others open, read, write and close them.
static volatile int over;

static void *one_way(void *unused) {
    (void)unused;
    struct termios cooked, not;
    tcgetattr(slave, &cooked), not = cooked;
    cfmakeraw(&not);
    int zero = 0, one = 1;
    while (!over) {
        tcsetattr(slave, TCSANOW, &cooked), ioctl(master, TIOCPKT, &one), ioctl(master, TIOCSPTLCK, &one);
        tcflow(slave, TCOOFF), tcsetattr(master, TCSAFLUSH, &not), ioctl(master, TIOCPKT, &zero);
        ioctl(master, TIOCSPTLCK, &zero), tcflow(slave, TCOON), ioctl(slave, TIOCEXCL, 0);
    }
    return 0;
}

static void *other_way(void *unused) {
    (void)unused;
    struct winsize size = {0};
    while (!over) {
        size.ws_row++, ioctl(master, TIOCSWINSZ, &size), tcflush(slave, TCIOFLUSH), tcflush(master, TCIOFLUSH);
        ioctl(slave, TIOCNXCL, 0), ioctl(slave, TIOCSTI, "\n"), tcflow(slave, TCOON);
        int fd = open(slave_name, O_RDWR | O_NOCTTY | O_NONBLOCK);
        if (fd >= 0) ioctl(fd, TIOCVHANGUP, 0), close(fd);
        fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
        if (fd >= 0) close(fd);
    }
    return 0;
}

static void *talks(void *fd) {
    char bytes[3000];
    memset(bytes, '\n', sizeof bytes);
    bytes[7] = 0x12, bytes[8] = 0x04, bytes[1000] = 0x13, bytes[2000] = 0x15;
    fcntl(*(int *)fd, F_SETFL, O_NONBLOCK);
    while (!over) {
        ssize_t n = write(*(int *)fd, bytes, sizeof bytes);
        char got[2000];
        if (n <= 0) sched_yield();
        while (read(*(int *)fd, got, sizeof got) > 0 && !over) {}
    }
    return 0;
}

static void opposites(void) {
    open_pair();
    pthread_t threads[6];
    void *(*bodies[6])(void *) = {one_way, other_way, talks, talks, talks, other_way};
    for (int i = 0; i < 6; i++) NEED(!pthread_create(&threads[i], 0, bodies[i], i % 2 ? &slave : &master));
    sleep(2);
    over = 1;
    for (int i = 0; i < 6; i++) NEED(!pthread_join(threads[i], 0));
}

// A descriptor is closed while a thread sleeps in it: on both ends the thread goes on when the other end goes.
static void *reads_master(void *fd) {
    char byte;
    while (read(*(int *)fd, &byte, 1) > 0) {}
    return 0;
}

static void *writes_slave(void *fd) {
    static char much[1 << 16];
    while (write(*(int *)fd, much, sizeof much) > 0) {}
    return 0;
}

static void closed_while_asleep(void) {
    for (int i = 0; i < 50; i++) {
        open_pair();
        int m = master, s = slave;
        raw(1, 0);
        pthread_t reader, writer;
        if (i % 2) {
            NEED(!pthread_create(&writer, 0, writes_slave, &s));
            if (i % 3) usleep(2000);
            close(master);
            NEED(!pthread_join(writer, 0));
            close(slave);
        } else {
            NEED(!pthread_create(&reader, 0, reads_master, &m));
            if (i % 3) usleep(2000);
            close(slave);
            NEED(!pthread_join(reader, 0));
            close(master);
        }
    }
}

// As many as there may be, and then an error; none is left.
static void many(void) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        become(1002);
        int count = 0;
        for (int i = 0; i < 1000; i++) {
            int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY);
            if (fd < 0) {
                CHECK(errno == ENOSPC || errno == EMFILE || errno == ENFILE);
                break;
            }
            count++;
        }
        CHECK(count >= 200);
        _exit(failed_checks != 0);
    }
    is_fine(child);
    int fd = open("/proc/sys/kernel/pty/nr", O_RDONLY);
    char text[32] = "";
    CHECK(fd >= 0 && read(fd, text, 31) > 0);
    CHECK(!strcmp(text, "0\n"));
}

static const struct test_case cases[] = {
    {"nodes", nodes},
    {"lines", lines},
    {"echoes", echoes},
    {"input_flags", input_flags},
    {"raw_reads", raw_reads},
    {"flow_control", flow_control},
    {"sizes_and_settings", sizes_and_settings},
    {"pastes", pastes},
    {"job_control", job_control},
    {"mounted_again", mounted_again},
    {"faults", faults},
    {"costly_keys", costly_keys},
    {"the_master_goes", the_master_goes},
    {"the_slave_goes", the_slave_goes},
    {"packets", packets},
    {"watched", watched},
    {"foreigners", foreigners},
    {"typing_for_oneself", typing_for_oneself},
    {"hang_ups", hang_ups},
    {"opposites", opposites},
    {"closed_while_asleep", closed_while_asleep},
    {"many", many},
};

int main(int argc, char **argv) { return RUN(cases, argc, argv); }
