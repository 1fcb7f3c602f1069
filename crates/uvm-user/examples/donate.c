// A child makes images and gives them to its parent through a pipe. Where the kernel can, the pages themselves go: the child donates
// them, the parent has them mapped, and nobody copies. Elsewhere they are written and read.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "uvm.h"

enum { IMAGE = 1 << 20, IMAGES = 4, PIECES = 16 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static unsigned char colour(int image, size_t at) {
    return (unsigned char)(image * 37 + at / 4096);
}

static int donates = 1;

static void send_image(int fd, char *image) {
    for (size_t sent = 0; sent < IMAGE;) {
        ssize_t count = -1;
        if (donates) {
            count = uvm_donate_write(fd, image + sent, IMAGE - sent);
            if (count < 0 && errno == ENOSYS) donates = 0;
            else if (count < 0) fail("uvm_donate_write");
        }
        if (!donates && (count = write(fd, image + sent, IMAGE - sent)) < 0) fail("write");
        sent += count;
    }
}

// Adds up differences of bytes that should be at `at` of an image.
static int wrong(const char *bytes, size_t length, int image, size_t at) {
    int count = 0;
    for (size_t i = 0; i < length; i++) count += (unsigned char)bytes[i] != colour(image, at + i);
    return count;
}

static int receive_image(int fd, int image) {
    static char copy[65536];
    struct uvm_piece pieces[PIECES];
    int bad = 0;
    for (size_t got = 0; got < IMAGE;) {
        ssize_t count = uvm_transfer_read(fd, pieces, PIECES, IMAGE - got);
        if (count < 0 && errno == ENOSYS) {
            ssize_t length = read(fd, copy, sizeof copy < IMAGE - got ? sizeof copy : IMAGE - got);
            if (length <= 0) fail("read");
            bad += wrong(copy, length, image, got);
            got += length;
            continue;
        }
        if (count <= 0) fail("uvm_transfer_read");
        for (ssize_t i = 0; i < count; i++) {
            bad += wrong(pieces[i].start, pieces[i].length, image, got);
            got += pieces[i].length;
            if (uvm_anflush(pieces[i].start, pieces[i].length)) fail("uvm_anflush");
        }
    }
    return bad;
}

int main(void) {
    int ends[2];
    if (pipe(ends)) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        char *image = mmap(0, IMAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (image == MAP_FAILED) fail("mmap");
        for (int i = 0; i < IMAGES; i++) {
            for (size_t at = 0; at < IMAGE; at++) image[at] = (char)colour(i, at);
            send_image(ends[1], image);
            if (donates && image[0]) fprintf(stderr, "a donated page still shows its bytes\n"), exit(1);
        }
        return 0;
    }
    close(ends[1]);
    int bad = 0, status;
    for (int i = 0; i < IMAGES; i++) bad += receive_image(ends[0], i);
    if (waitpid(child, &status, 0) != child || status) bad++;
    printf("%d images came, %d bytes of them wrong\n", IMAGES, bad);
    return bad != 0;
}
