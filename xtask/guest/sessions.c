// The terminal's foreground group, when its number would be another's. To be run as the first program.
#include "check.h"
#include <grp.h>
#include <sys/ioctl.h>

static void most_numbers(const char *count) {
    int fd = open("/proc/sys/kernel/pid_max", O_WRONLY);
    NEED(fd >= 0 && write(fd, count, strlen(count)) > 0 && !close(fd));
}

// A session of another user's has the terminal. The group in its foreground ends, a process of root's comes by its number
// or by another, and the session ends: root's process is told nothing.
static void numbers_come_round(void) {
    enum { TRIES = 3000 };
    int told[2], go[2], status;
    NEED(!pipe(told) && !pipe(go));
    signal(SIGTTOU, SIG_IGN), signal(SIGHUP, SIG_IGN);
    ioctl(0, TIOCNOTTY, 0);
    int console = open("/dev/console", O_RDWR | O_NOCTTY);
    NEED(console >= 0);
    most_numbers("400");
    for (pid_t child = 0; child <= 310;) {
        child = fork();
        if (!child) _exit(0);
        NEED(child > 0 && waitpid(child, 0, 0) == child);
    }
    pid_t group, leader = fork();
    if (!leader) {
        NEED(setsid() > 0 && !ioctl(console, TIOCSCTTY, 0) && !setgroups(0, 0) && !setgid(1000) && !setuid(1000));
        group = fork();
        if (!group) setpgid(0, 0), pause(), _exit(0);
        setpgid(group, group);
        NEED(!ioctl(console, TIOCSPGRP, &group) && !kill(group, SIGKILL) && waitpid(group, 0, 0) == group);
        char byte;
        NEED(write(told[1], &group, sizeof group) == sizeof group && read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    NEED(read(told[0], &group, sizeof group) == sizeof group);
    pid_t heir = 0;
    for (int i = 0; i < TRIES && heir != group; i++) {
        heir = fork();
        if (!heir) {
            if (getpid() != group) _exit(0);
            signal(SIGHUP, SIG_DFL);
            setsid();
            for (;;) pause();
        }
        NEED(heir > 0);
        if (heir != group) NEED(waitpid(heir, 0, 0) == heir);
    }
    usleep(50000);
    NEED(write(go[1], "x", 1) == 1 && waitpid(leader, &status, 0) == leader && status == 0);
    usleep(50000);
    if (heir == group) CHECK(!waitpid(heir, &status, WNOHANG) && !kill(heir, SIGKILL) && waitpid(heir, &status, 0) == heir);
    most_numbers("32768");
}

int main(void) {
    numbers_come_round();
    printf(failed_checks ? "FAILED\n" : "the terminal holds\n");
    return failed_checks != 0;
}
