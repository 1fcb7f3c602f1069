// The end of what a program prints.
#include <stdio.h>
#include <termios.h>

// Has all that was printed sent: on Linux a terminal throws away what it has not when the leader of its session ends.
static void drain(void) {
    fflush(stdout);
    tcdrain(1);
}
