// What calls about mappings answer, and what is at the addresses afterwards; a line each, the same on every kernel: the answers in
// the tree come from Linux.
#include "callers.h"
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/uio.h>

#ifndef MAP_32BIT
#define MAP_32BIT 0x40
#endif
#define GROWSDOWN 0x01000000
#define GROWSUP 0x02000000
#define DONTUNMAP 4
#define PAGE 4096L
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define SHARED_ANON (MAP_SHARED | MAP_ANONYMOUS)
#define RW (PROT_READ | PROT_WRITE)

static sigjmp_buf back;
static int code;
static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    code = signal * 100 + info->si_code;
    siglongjmp(back, 1);
}
// The byte at an address, or minus the signal and its code.
static int peek(volatile char *at) { return sigsetjmp(back, 1) ? -code : *at; }
static int poke(volatile char *at, char value) { return sigsetjmp(back, 1) ? -code : (*at = value); }

static char *at(long address, long length, int protection, int flags, int fd) {
    return mmap((void *)address, length, protection, flags, fd, 0);
}
// Whether a call gave an address; else its error.
static long ok(void *address) { return address == MAP_FAILED ? -1 : 0; }
// Addresses that nothing else is close to.
static char *room(long length) {
    static long next = 1L << 45;
    next += length + (1L << 30);
    return (char *)(next - length);
}
// The protection and sharing that /proc/self/maps shows for an address, and how far the mapping reaches below and above it.
static void shown(const char *name, char *address) {
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    char line[512], kind[8];
    unsigned long start, end;
    int found = 0;
    while (!found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%lx-%lx %4s", &start, &end, kind) == 3 && start <= (unsigned long)address && (unsigned long)address < end;
    fclose(maps);
    if (found) printf("%s: %s, %ld below, %ld above\n", name, kind, ((long)address - (long)start) / PAGE, ((long)end - (long)address) / PAGE);
    else printf("%s: nothing\n", name);
}
static int file(long pages) {
    int fd = open("/tmp/addresses", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(fd >= 0 && !unlink("/tmp/addresses"));
    char page[PAGE];
    for (long i = 0; i < pages; i++) {
        memset(page, 'a' + i, PAGE);
        MUST(write(fd, page, PAGE) == PAGE);
    }
    return fd;
}
static long resident(char *address, long pages) {
    unsigned char there[64];
    MUST(pages <= 64);
    if (mincore(address, pages * PAGE, there)) return -1;
    long sum = 0;
    for (long i = 0; i < pages; i++) sum += there[i] & 1;
    return sum;
}

static void grows_down(void) {
    char *all = room(4096 * PAGE), *top = all + 4096 * PAGE, *stack = top - PAGE;
    say("stack of one page", ok(at((long)stack, PAGE, RW, ANON | MAP_GROWSDOWN | MAP_FIXED, -1)));
    say("store in it", poke(stack, 1));
    say("store a page below", poke(stack - PAGE, 2));
    shown("it has grown", stack);
    say("load 16 pages below", peek(stack - 16 * PAGE));
    shown("it has grown", stack);
    say("what was stored stays", peek(stack - PAGE));
    say("store far below", poke(stack - 1000 * PAGE, 3));
    shown("it has grown", stack);
    say("a read call below it", read(open("/dev/zero", O_RDONLY), stack - 1100 * PAGE, 16));
    shown("it has grown", stack);
    say("beyond the limit", poke(stack - 2100 * PAGE, 4));
    say("another mapping close below", ok(at((long)stack - 1400 * PAGE, PAGE, RW, ANON | MAP_FIXED, -1)));
    say("inside the guard", poke(stack - 1200 * PAGE, 5));
    say("outside the guard", poke(stack - 1143 * PAGE, 5));
    say("at the guard", poke(stack - 1144 * PAGE, 5));
    say("beyond the other", poke(stack - 1401 * PAGE, 5));
    shown("the other", stack - 1400 * PAGE);
    say("that isn't accessible", mprotect(stack - 1400 * PAGE, PAGE, PROT_NONE));
    say("inside its guard", poke(stack - 1200 * PAGE, 5));
    shown("it has grown", stack);
    say("half the stack read-only", mprotect(stack - 600 * PAGE, PAGE, PROT_READ));
    shown("the half", stack - 600 * PAGE);
    say("protect downwards", mprotect(stack - 100 * PAGE, PAGE, PROT_READ | GROWSDOWN));
    shown("protected", stack - 100 * PAGE);
    shown("protected", stack - 599 * PAGE);
    shown("protected", stack - 99 * PAGE);
    say("protect upwards", mprotect(stack, PAGE, PROT_READ | GROWSUP));
    say("protect both ways", mprotect(stack, PAGE, PROT_READ | GROWSUP | GROWSDOWN));
    char *plain = at(0, PAGE, RW, ANON, -1);
    say("protect what doesn't grow", mprotect(plain, PAGE, PROT_READ | GROWSDOWN));
    MUST(!munmap(all, 4096 * PAGE));
    say("a shared stack", ok(at((long)stack, PAGE, RW, SHARED_ANON | MAP_GROWSDOWN | MAP_FIXED, -1)));
    int fd = file(2);
    say("a stack of a file", ok(at((long)stack, PAGE, RW, MAP_PRIVATE | MAP_GROWSDOWN | MAP_FIXED, fd)));
    MUST(!munmap(stack, PAGE));
    close(fd);
    // A child's stack grows too.
    say("stack of one page", ok(at((long)stack, PAGE, RW, ANON | MAP_GROWSDOWN | MAP_FIXED, -1)));
    pid_t child = fork();
    MUST(child >= 0);
    if (!child) _exit(poke(stack - 3 * PAGE, 7) == 7 ? 0 : 1);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    say("a child's", status);
    say("a stack at once", ok(at((long)stack - 8 * PAGE, PAGE, PROT_NONE, ANON | MAP_FIXED, -1)));
    say("grows up to what isn't accessible", poke(stack - 7 * PAGE, 1));
    shown("it has grown", stack);
    struct rlimit limit = {64 * PAGE, RLIM_INFINITY}, old;
    MUST(!getrlimit(RLIMIT_STACK, &old) && !munmap(all, 4096 * PAGE));
    say("stack of one page", ok(at((long)stack, PAGE, RW, ANON | MAP_GROWSDOWN | MAP_FIXED, -1)));
    MUST(!setrlimit(RLIMIT_STACK, &limit));
    say("below the limit", poke(stack - 62 * PAGE, 1));
    say("at the limit", poke(stack - 63 * PAGE, 1));
    say("above the limit", poke(stack - 64 * PAGE, 1));
    MUST(!setrlimit(RLIMIT_STACK, &old) && !munmap(all, 4096 * PAGE));
}

static int __attribute__((noinline)) deep(long bytes) {
    volatile char here[PAGE * 4];
    here[0] = 1;
    return bytes <= 0 ? here[0] : deep(bytes - (long)sizeof here) + here[0];
}
static void the_main_stack(void) {
    volatile char here;
    struct rlimit limit = {16 << 20, RLIM_INFINITY};
    say("a megabyte deep", deep(1 << 20) > 0);
    say("raise the limit", setrlimit(RLIMIT_STACK, &limit));
    say("twelve megabytes deep", deep(12 << 20) > 0);
    (void)here;
}

static void low(void) {
    char *page = at(0, PAGE, RW, ANON | MAP_32BIT, -1);
    say("MAP_32BIT", ok(page));
    say("in the first two GiB", (unsigned long)page < 1UL << 31);
    page = at(0, 64 << 20, RW, ANON | MAP_32BIT, -1);
    say("64 MiB there", (unsigned long)page < 1UL << 31);
    page = at(0, 1L << 31, PROT_NONE, ANON | MAP_32BIT, -1);
    say("more than there is", ok(page));
    page = at(0x7f0000000000, PAGE, RW, ANON | MAP_32BIT, -1);
    say("a hint above", (unsigned long)page < 1UL << 31);
    page = at(0x50000000, PAGE, RW, ANON | MAP_32BIT, -1);
    say("a hint inside", (long)page == 0x50000000);
    page = at(-PAGE, PAGE, RW, ANON | MAP_32BIT, -1);
    say("a hint at the end of all", (unsigned long)page < 1UL << 31);
    page = at((long)room(PAGE), PAGE, RW, ANON | MAP_32BIT | MAP_FIXED, -1);
    say("fixed", (unsigned long)page > 1UL << 32);
}

static void remaps(void) {
    int fd = file(8);
    char *shared = at(0, 4 * PAGE, RW, MAP_SHARED, fd);
    char *copy = mremap(shared, 0, 2 * PAGE, MREMAP_MAYMOVE);
    say("old size 0 of a shared mapping", ok(copy));
    say("both are there", (peek(shared) == 'a') + (peek(copy) == 'a'));
    poke(copy + PAGE, 'z');
    say("and one", peek(shared + PAGE));
    say("from its second page", ok(copy = mremap(shared + PAGE, 0, PAGE, MREMAP_MAYMOVE)));
    say("shows", peek(copy));
    say("old size 0 in place", ok(mremap(shared, 0, PAGE, 0)));
    char *private = at(0, 4 * PAGE, RW, MAP_PRIVATE, fd);
    say("old size 0 of a private mapping", ok(mremap(private, 0, PAGE, MREMAP_MAYMOVE)));
    char *to = room(4 * PAGE);
    say("shared with DONTUNMAP", ok(mremap(shared, PAGE, PAGE, MREMAP_MAYMOVE | DONTUNMAP)));
    shown("the old one", shared);
    say("is there", peek(shared));
    char *anon = at(0, 4 * PAGE, RW, ANON, -1);
    poke(anon, 5);
    say("anonymous with DONTUNMAP", ok(copy = mremap(anon, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | DONTUNMAP)));
    say("moved", peek(copy));
    say("the old one", peek(anon));
    say("DONTUNMAP of another length", ok(mremap(anon, 4 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | DONTUNMAP)));
    say("DONTUNMAP without MAYMOVE", ok(mremap(anon, 4 * PAGE, 4 * PAGE, DONTUNMAP)));
    say("private file with DONTUNMAP", ok(mremap(private, PAGE, PAGE, MREMAP_MAYMOVE | DONTUNMAP)));
    char *two = at(0, 4 * PAGE, RW, ANON, -1);
    MUST(!mprotect(two + 2 * PAGE, 2 * PAGE, PROT_READ));
    say("grow over two mappings", ok(mremap(two, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE)));
    say("move two mappings", ok(mremap(two, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to)));
    say("the same size over two", ok(mremap(two, 4 * PAGE, 4 * PAGE, 0)));
    say("shrink over two", ok(mremap(two, 4 * PAGE, PAGE, 0)));
    shown("what stays", two);
    say("what went", peek(two + 3 * PAGE));
    char *holes = at(0, 4 * PAGE, RW, ANON, -1);
    MUST(!munmap(holes + PAGE, PAGE));
    say("shrink over a hole", ok(mremap(holes, 4 * PAGE, PAGE, 0)));
    say("what went", peek(holes + 3 * PAGE));
    holes = at(0, 4 * PAGE, RW, ANON, -1);
    MUST(!munmap(holes + PAGE, PAGE));
    say("grow over a hole", ok(mremap(holes, 4 * PAGE, 5 * PAGE, MREMAP_MAYMOVE)));
    say("from a hole", ok(mremap(holes + PAGE, PAGE, 2 * PAGE, MREMAP_MAYMOVE)));
    say("shrink from a hole", ok(mremap(holes + PAGE, 3 * PAGE, PAGE, 0)));
    say("to no length", ok(mremap(holes, PAGE, 0, 0)));
    say("an odd address", ok(mremap(holes + 1, PAGE, PAGE, 0)));
    say("an odd place", ok(mremap(holes, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to + 1)));
    say("fixed without MAYMOVE", ok(mremap(holes, PAGE, PAGE, MREMAP_FIXED, to)));
    say("onto itself", ok(mremap(holes, PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, holes)));
    say("an unknown flag", ok(mremap(holes, PAGE, PAGE, 64)));
    char *last = at(0, 2 * PAGE, RW, MAP_SHARED, fd);
    say("grow behind a file's end", ok(last = mremap(last, 2 * PAGE, 20 * PAGE, MREMAP_MAYMOVE)));
    say("inside", peek(last + 7 * PAGE));
    say("behind", peek(last + 9 * PAGE));
    close(fd);
}

static void frees(void) {
    char *page = at(0, 16 * PAGE, RW, ANON, -1);
    memset(page, 7, 16 * PAGE);
    say("MADV_FREE", madvise(page, 8 * PAGE, 8));
    long kept = 0;
    for (int i = 0; i < 8; i++) kept += peek(page + i * PAGE) == 7;
    say("kept while there is memory", kept);
    say("resident", resident(page, 16));
    say("a store keeps the page", poke(page, 9));
    say("and the rest of it", peek(page + 1));
    // More than there is memory for: the first half makes room for the second.
    long half = 300 << 20;
    char *much = at(0, half, RW, ANON, -1), *more = at(0, half, RW, ANON, -1);
    for (long i = 0; i < half; i += PAGE) much[i] = 5;
    say("MADV_FREE of much", madvise(much, half, 8));
    for (long i = 0; i < half; i += 64 * PAGE) much[i] = 6;
    for (long i = 0; i < half; i += PAGE) more[i] = 7;
    long lost = 0, odd = 0;
    for (long i = 0; i < half; i += 64 * PAGE) odd += much[i] != 6 || (much[i + 8 * PAGE] != 5 && much[i + 8 * PAGE]);
    for (long i = 0; i < half; i += PAGE) lost += more[i] != 7;
    say("stores that are lost", lost + odd);
    MUST(!munmap(much, half) && !munmap(more, half));
    int fd = file(4);
    char *private = at(0, 4 * PAGE, RW, MAP_PRIVATE, fd), *shared = at(0, PAGE, RW, MAP_SHARED, fd);
    say("of a private file", madvise(private, 4 * PAGE, 8));
    say("of a shared file", madvise(shared, PAGE, 8));
    say("of shared memory", madvise(at(0, PAGE, RW, SHARED_ANON, -1), PAGE, 8));
    say("of nothing", madvise(room(PAGE), PAGE, 8));
    char *locked = at(0, PAGE, RW, ANON | MAP_LOCKED, -1);
    say("of locked memory", madvise(locked, PAGE, 8));
    close(fd);
}

static void protections(void) {
    char *page = at((long)room(PAGE), PAGE, PROT_WRITE, ANON, -1);
    shown("PROT_WRITE alone", page);
    say("store", poke(page, 1));
    say("load", peek(page));
    MUST(!mprotect(page, PAGE, PROT_EXEC));
    shown("PROT_EXEC alone", page);
    MUST(!mprotect(page, PAGE, PROT_WRITE | PROT_EXEC));
    shown("both", page);
    MUST(!mprotect(page, PAGE, PROT_NONE));
    shown("none", page);
    say("load", peek(page));
    char *next = at((long)room(2 * PAGE), PAGE, PROT_WRITE, ANON | MAP_FIXED, -1);
    MUST(at((long)next + PAGE, PAGE, PROT_WRITE, ANON | MAP_FIXED, -1) != MAP_FAILED);
    shown("two side by side", next);
    say("an unknown bit", mprotect(page, PAGE, 0x10));
    say("a high bit", syscall(SYS_mprotect, page, PAGE, 1L << 40));
    say("no length", mprotect(page, 0, PROT_READ));
    say("no length, odd", mprotect(page + 1, 0, PROT_READ));
    int fd = open("/tmp/addresses-2", O_WRONLY | O_CREAT, 0600);
    MUST(fd >= 0);
    say("shared of what is open to write", ok(at(0, PAGE, PROT_WRITE, MAP_SHARED, fd)));
    close(fd);
    fd = open("/tmp/addresses-2", O_RDONLY);
    say("shared store of what is open to read", ok(at(0, PAGE, PROT_WRITE, MAP_SHARED, fd)));
    char *read_only = at(0, PAGE, PROT_READ, MAP_SHARED, fd);
    say("shared load of it", ok(read_only));
    say("made writable", mprotect(read_only, PAGE, RW));
    say("private of it", ok(at(0, PAGE, RW, MAP_PRIVATE, fd)));
    close(fd);
    unlink("/tmp/addresses-2");
    say("of descriptor -1", ok(at(0, PAGE, RW, MAP_PRIVATE, -1)));
    say("of nothing open", ok(at(0, PAGE, RW, MAP_SHARED, 99)));
    say("anonymous of nothing open", ok(at(0, PAGE, RW, ANON, 99)));
    say("no kind", ok(at(0, PAGE, RW, MAP_ANONYMOUS, -1)));
    say("no length", ok(at(0, 0, RW, ANON, -1)));
    say("no length of nothing open", ok(at(0, 0, RW, MAP_PRIVATE, 99)));
    say("an odd offset", (long)syscall(SYS_mmap, 0, PAGE, RW, ANON, -1, 1) == -1 ? -1 : 0);
    fd = open("/tmp", O_RDONLY);
    say("of a folder", ok(at(0, PAGE, PROT_READ, MAP_PRIVATE, fd)));
    close(fd);
    int ends[2];
    MUST(!pipe(ends));
    say("of a pipe", ok(at(0, PAGE, PROT_READ, MAP_PRIVATE, ends[0])));
    say("of a pipe's other end", ok(at(0, PAGE, PROT_READ, MAP_PRIVATE, ends[1])));
    fd = open("/tmp", O_PATH);
    say("of a path", ok(at(0, PAGE, PROT_READ, MAP_PRIVATE, fd)));
    close(fd);
    fd = open("/dev/null", O_RDWR);
    say("of /dev/null", ok(at(0, PAGE, RW, MAP_PRIVATE, fd)));
    close(fd);
    fd = open("/dev/zero", O_RDWR);
    char *zero = at(0, PAGE, RW, MAP_SHARED, fd);
    say("of /dev/zero", ok(zero));
    say("store", poke(zero, 3));
    close(fd);
    say("MAP_HUGETLB without any", ok(at(0, 2 << 20, RW, ANON | 0x40000, -1)));
    say("validated with an unknown flag", ok(at(0, PAGE, RW, 3 | 1 << 25, fd = file(1))));
    say("validated", ok(at(0, PAGE, RW, 3, fd)));
    say("MAP_SYNC", ok(at(0, PAGE, RW, 3 | 0x80000, fd)));
    close(fd);
    say("anonymous and validated", ok(at(0, PAGE, RW, 3 | MAP_ANONYMOUS, -1)));
}

static long differs(const struct timespec *a, const struct timespec *b) { return a->tv_sec != b->tv_sec || a->tv_nsec != b->tv_nsec; }
static void times(void) {
    int fd = file(2);
    const struct timespec old[2] = {{1000, 0}, {1000, 0}};
    struct stat before, after;
    MUST(!futimens(fd, old) && !fstat(fd, &before));
    char *shared = at(0, 2 * PAGE, RW, MAP_SHARED, fd);
    MUST(!fstat(fd, &after));
    say("mapped: read", differs(&before.st_atim, &after.st_atim));
    say("mapped: changed", differs(&before.st_mtim, &after.st_mtim));
    peek(shared);
    MUST(!fstat(fd, &after));
    say("load: changed", differs(&before.st_mtim, &after.st_mtim));
    poke(shared, 1);
    MUST(!fstat(fd, &after));
    say("store: changed", differs(&before.st_mtim, &after.st_mtim));
    say("store: status", differs(&before.st_ctim, &after.st_ctim));
    MUST(!futimens(fd, old) && !fstat(fd, &before));
    poke(shared, 2);
    say("synced", msync(shared, PAGE, MS_SYNC));
    MUST(!fstat(fd, &after));
    say("store again: changed", differs(&before.st_mtim, &after.st_mtim));
    MUST(!futimens(fd, old) && !fstat(fd, &before));
    char *private = at(0, PAGE, RW, MAP_PRIVATE, fd);
    poke(private, 1);
    MUST(!fstat(fd, &after));
    say("private store: changed", differs(&before.st_mtim, &after.st_mtim));
    close(fd);
}

static void locks(void) {
    char *page = at(0, 4 * PAGE, RW, ANON, -1);
    say("mlock2 of an unknown flag", syscall(SYS_mlock2, page, PAGE, 2));
    say("mlock", mlock(page, PAGE));
    say("resident", resident(page, 4));
    say("mlock2 on touch", syscall(SYS_mlock2, page, 4 * PAGE, 1));
    say("resident", resident(page, 4));
    say("munlock", munlock(page, 4 * PAGE));
    say("mlock of a hole", mlock(room(PAGE), PAGE));
    say("mlockall of nothing", mlockall(0));
    say("mlockall on touch alone", mlockall(4));
    say("mlockall", mlockall(8));
    say("msync of a hole", msync(room(PAGE), PAGE, MS_ASYNC));
    say("msync of nothing said", msync(page, PAGE, 0));
    say("msync both", msync(page, PAGE, MS_ASYNC | MS_SYNC));
    say("msync odd", msync(page + 1, PAGE, MS_SYNC));
    say("mincore odd", resident(page + 1, 1));
    say("mincore of a hole", resident(room(PAGE), 1));
    say("madvise unknown", madvise(page, PAGE, 77));
    say("madvise odd", madvise(page + 1, PAGE, 4));
    say("madvise unknown, odd", madvise(page + 1, PAGE, 77));
    say("madvise of no length", madvise(page, 0, 4));
    say("madvise beyond", madvise(page, -PAGE, 4));
    char *holes = at(0, 4 * PAGE, RW, ANON, -1);
    memset(holes, 3, 4 * PAGE);
    MUST(!munmap(holes + PAGE, PAGE));
    say("DONTNEED over a hole", madvise(holes, 4 * PAGE, MADV_DONTNEED));
    say("behind it", peek(holes + 2 * PAGE));
    say("munmap of a hole", munmap(room(PAGE), PAGE));
    say("munmap of no length", munmap(page, 0));
    say("munmap odd", munmap(page + 1, PAGE));
    say("munmap beyond", munmap((void *)-PAGE, PAGE));
    say("remap_file_pages of anonymous", syscall(SYS_remap_file_pages, page, PAGE, 0, 0, 0));
    int fd = file(4);
    char *shared = at(0, 4 * PAGE, RW, MAP_SHARED, fd);
    say("remap_file_pages", syscall(SYS_remap_file_pages, shared, PAGE, 0, 2, 0));
    say("shows", peek(shared));
    say("and its neighbour", peek(shared + PAGE));
    close(fd);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
    MUST(!sigaltstack(&other, 0) && !sigaction(SIGSEGV, &action, 0) && !sigaction(SIGBUS, &action, 0));
    static const struct part parts[] = {
        {"stacks that grow", grows_down}, {"the main stack", the_main_stack}, {"low addresses", low}, {"moving", remaps},
        {"freeing lazily", frees}, {"protections", protections}, {"times", times}, {"locking and advice", locks}};
    run_parts(parts, sizeof parts / sizeof *parts, 0);
    return 0;
}
