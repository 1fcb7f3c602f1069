// A parent keeps a secret from its children and shares a counter with them, in one piece of private memory. On kernels without
// minherit the two parts are mapped and advised each for itself.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "uvm.h"

enum { PAGE = 4096 };

int main(void) {
    char *secret = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (secret == MAP_FAILED) return perror("mmap"), 1;
    int *counter = (int *)(secret + PAGE);
    int unknown = uvm_minherit(secret, PAGE, UVM_INHERIT_ZERO) || uvm_minherit(counter, PAGE, UVM_INHERIT_SHARE);
    if (unknown && errno != ENOSYS) return perror("uvm_minherit"), 1;
    if (unknown) {
        madvise(secret, PAGE, MADV_WIPEONFORK);
        mmap(counter, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    strcpy(secret, "password");
    pid_t child = fork();
    if (child == 0) {
        *counter = 1;
        return *secret ? 2 : 0;
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return perror("fork"), 1;
    printf("the child counted to %d and %s the secret\n", *counter, status ? "saw" : "did not see");
    return status != 0 || *counter != 1;
}
