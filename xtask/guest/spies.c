// A program that its user may run and not read, started over and over, and spies of that user on another CPU, who read through every
// door that leads into a process: no byte of it is to be seen, whatever moment they come at.
#include "check.h"
#include <elf.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/uio.h>

enum { USER = 1000, ROUNDS = 400, MARK = 16, OWN_FD = 9, MUCH = 8 << 20, DOORS = 5 };

// In the copy that root makes, this says something else.
static volatile char mark[MARK] __attribute__((aligned(MARK))) = "open to my user";
static const char hidden[MARK] = "kept from a use";
static const char *const kept = "/tmp/kept", own_folder[] = "/var";

static void copy_with_other_mark(void) {
    static char bytes[1 << 20];
    int from = open("/proc/self/exe", O_RDONLY), to = open(kept, O_CREAT | O_TRUNC | O_WRONLY, 0700), found = 0;
    ssize_t length = read(from, bytes, sizeof bytes);
    NEED(from >= 0 && to >= 0 && length > 0 && length < (ssize_t)sizeof bytes);
    for (ssize_t at = 0; at + MARK <= length; at++)
        if (!memcmp(bytes + at, (char *)mark, MARK)) memcpy(bytes + at, hidden, MARK), found++;
    NEED(found == 1 && write(to, bytes, length) == length && !fchmod(to, 0711) && !close(to) && !close(from));
}

// What a spy shares with those who start him.
struct shared { volatile pid_t target; volatile int is_over, seen[DOORS], looks, successes; };
static struct shared *shared;

static void look_at(pid_t target) {
    char path[64], bytes[MARK] = "", text[4096];
    struct iovec here = {bytes, MARK}, there = {(void *)mark, MARK};
    if (process_vm_readv(target, &here, 1, &there, 1, 0) == MARK) {
        shared->successes++;
        if (!memcmp(bytes, hidden, MARK)) shared->seen[0]++;
    }
    snprintf(path, sizeof path, "/proc/%d/mem", target);
    int fd = open(path, O_RDONLY);
    for (int i = 0; fd >= 0 && i < 20; i++)
        if (pread(fd, bytes, MARK, (off_t)(uintptr_t)mark) == MARK && !memcmp(bytes, hidden, MARK)) shared->seen[1]++;
    close(fd);
    snprintf(path, sizeof path, "/proc/%d/maps", target);
    fd = open(path, O_RDONLY);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (length > 0) {
        text[length] = 0;
        if (strstr(text, kept)) shared->seen[2]++;
    }
    close(fd);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", target, OWN_FD);
    if (readlink(path, text, sizeof text) > 0) shared->seen[3]++;
    snprintf(path, sizeof path, "/proc/%d/cwd", target);
    length = readlink(path, text, sizeof text - 1);
    if (length == sizeof own_folder - 1 && !memcmp(text, own_folder, length)) shared->seen[4]++;
    shared->looks++;
}

static void spy(void) {
    while (!shared->is_over) if (shared->target) look_at(shared->target);
    _exit(0);
}

static void start_kept(void) {
    int go[2];
    char byte;
    NEED(!pipe(go));
    pid_t child = fork();
    if (child == 0) {
        // It can be looked into until it runs the other program.
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        if (read(go[0], &byte, 1) != 1) _exit(1);
        for (volatile int i = 0; i < 2000; i++) {}
        execl(kept, kept, "run", (char *)0);
        _exit(1);
    }
    NEED(child > 0);
    shared->target = child;
    for (volatile int i = 0; i < 2000; i++) {}
    NEED(write(go[1], "x", 1) == 1);
    int status;
    NEED(waitpid(child, &status, 0) == child && status == 5 << 8);
    shared->target = 0;
    close(go[0]), close(go[1]);
}

static void no_byte_of_a_kept_program_is_seen(void) {
    copy_with_other_mark();
    shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(shared != MAP_FAILED && !setresgid(USER, USER, USER) && !setresuid(USER, USER, USER));
    pid_t spies[2];
    for (int i = 0; i < 2; i++) {
        spies[i] = fork();
        NEED(spies[i] >= 0);
        if (spies[i] == 0) spy();
    }
    for (int i = 0; i < ROUNDS; i++) start_kept();
    shared->is_over = 1;
    for (int i = 0; i < 2; i++) waitpid(spies[i], 0, 0);
    CHECK(shared->looks > ROUNDS && shared->successes > 0);
    for (int i = 0; i < DOORS; i++) CHECK(!shared->seen[i]);
    printf("  %d looks, %d into the program before, seen %d %d %d %d %d\n", shared->looks, shared->successes, shared->seen[0],
           shared->seen[1], shared->seen[2], shared->seen[3], shared->seen[4]);
}

// A page that is a whole program, which goes round and round: with an interpreter, or one itself.
static void make_program(const char *path, const char *interpreter, mode_t mode) {
    static unsigned char bytes[PAGE];
    Elf64_Ehdr *head = (Elf64_Ehdr *)bytes;
    Elf64_Phdr *part = (Elf64_Phdr *)(head + 1);
    unsigned long base = interpreter ? 0x400000 : 0;
    memset(bytes, 0, sizeof bytes);
    *head = (Elf64_Ehdr){.e_ident = "\177ELF\2\1\1", .e_type = interpreter ? ET_EXEC : ET_DYN, .e_machine = EM_X86_64,
                         .e_version = 1, .e_entry = base + 0x400, .e_phoff = sizeof *head, .e_ehsize = sizeof *head,
                         .e_phentsize = sizeof *part, .e_phnum = interpreter ? 2 : 1};
    part[0] = (Elf64_Phdr){.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_vaddr = base, .p_filesz = PAGE, .p_memsz = PAGE,
                           .p_align = PAGE};
    if (interpreter) {
        part[1] = (Elf64_Phdr){.p_type = PT_INTERP, .p_flags = PF_R, .p_offset = 0x300, .p_vaddr = base + 0x300,
                               .p_filesz = strlen(interpreter) + 1, .p_memsz = strlen(interpreter) + 1, .p_align = 1};
        strcpy((char *)bytes + 0x300, interpreter);
    }
    memcpy(bytes + 0x400, "\xeb\xfe", 2);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0700);
    NEED(fd >= 0 && write(fd, bytes, PAGE) == PAGE && !fchmod(fd, mode) && !close(fd));
}

// A program that a user may run and not read is no more to be seen as the interpreter of one that may be read.
static void an_interpreter_that_may_not_be_read_is_kept(void) {
    char path[64], text[256];
    struct iovec here = {text, 16}, there = {(void *)0x400300, 16};
    make_program("/tmp/hidden", 0, 0711);
    make_program("/tmp/shown", 0, 0755);
    make_program("/tmp/with_hidden", "/tmp/hidden", 0755);
    make_program("/tmp/with_shown", "/tmp/shown", 0755);
    NEED(!setresgid(USER, USER, USER) && !setresuid(USER, USER, USER));
    for (int is_shown = 0; is_shown < 2; is_shown++) {
        const char *program = is_shown ? "/tmp/with_shown" : "/tmp/with_hidden";
        pid_t child = fork();
        if (child == 0) {
            execl(program, program, (char *)0);
            _exit(1);
        }
        // Until it has another name, it is this one yet.
        sprintf(path, "/proc/%d/comm", child);
        for (*text = 0; memcmp(text, "with_", 5);) {
            int fd = open(path, O_RDONLY);
            NEED(fd >= 0 && read(fd, text, 16) > 0 && !close(fd));
        }
        CHECK(process_vm_readv(child, &here, 1, &there, 1, 0) == (is_shown ? 16 : -1));
        CHECK(ptrace(PTRACE_ATTACH, child, 0, 0) == (is_shown ? 0 : -1));
        NEED(!kill(child, SIGKILL) && waitpid(child, 0, 0) == child);
    }
}

// To run what may not be run opens nothing: a fifo has no reader by that, and nobody waits for a writer.
static void what_may_not_be_run_is_not_opened(void) {
    umask(0);
    unlink("/tmp/fifo"), unlink("/tmp/script");
    NEED(!mkfifo("/tmp/fifo", 0600));
    int script = open("/tmp/script", O_CREAT | O_WRONLY, 0755);
    NEED(script >= 0 && write(script, "#!/tmp/fifo\n", 12) == 12 && !close(script));
    make_program("/tmp/by_fifo", "/tmp/fifo", 0755);
    NEED(!setresgid(USER, USER, USER) && !setresuid(USER, USER, USER));
    const char *const programs[] = {"/tmp/fifo", "/tmp/script", "/tmp/by_fifo"};
    for (int i = 0; i < 3; i++) FAILS(execl(programs[i], "x", (char *)0), EACCES);
}

static const struct test_case cases[] = {
    {"no byte of a kept program is seen", no_byte_of_a_kept_program_is_seen},
    {"an interpreter that may not be read is kept", an_interpreter_that_may_not_be_read_is_kept},
    {"what may not be run is not opened", what_may_not_be_run_is_not_opened},
};

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "run")) {
        // Not `mark` itself, so that it is read here too.
        if (dup2(0, OWN_FD) != OWN_FD || chdir(own_folder)) return 8;
        for (volatile int i = 0; i < 20000; i++) {}
        // Its end takes long, too: its memory goes before its files.
        char *much = mmap(0, MUCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (much == MAP_FAILED) return 7;
        return mark[0] == hidden[0] ? 5 : 6;
    }
    return RUN(cases, argc, argv);
}
