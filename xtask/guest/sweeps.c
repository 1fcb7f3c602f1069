// Every system call with one argument at the edge: descriptors of each kind, pointers to nothing, flags a bit each. A row is a call
// and the argument that varies, and groups its values by what the call answered; `sweeps -l [CALL]` prints a line for each value.
// The answers in the tree come from Linux. Calls that differ stand in `absent` and `left`, and are swept only if they are named.
#include "callers.h"
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>

#define BASE 0x20000000l
enum { PAGE = 4096 };
#define GOOD BASE
#define STRINGS (BASE + 1 * PAGE)
#define STRUCTS (BASE + 2 * PAGE)
#define PARTLY (BASE + 4 * PAGE - 8)
#define GONE (BASE + 4 * PAGE)
#define READONLY (BASE + 8 * PAGE)
#define CLOSED_PAGE (BASE + 9 * PAGE)
#define MAPPING (BASE + 16 * PAGE)
#define OUTSIDE (BASE + 64 * PAGE)

struct value { const char *name; long value; };
struct kind { const char *name; const struct value *values; int count; };

// Values that only a child knows.
#define SPECIAL 0x7e000000l
enum {
    CLOSED, FILE_, READER, WRITER, APPENDER, FOLDER, PATH_ONLY, PIPE_IN, PIPE_OUT, STREAM, DATAGRAM, TCP, LISTENER, UDP, EPOLL, EVENT,
    TIMER, SIGNALS, MEMFD, SEALED, INOTIFY, PIDFD, NULL_, ZERO, FULL_PIPE, EMPTY_PIPE, PROC, UNCONNECTED, SELF, SHARED_MAPPING,
    FILE_MAPPING, OWN_GROUP,
};
#define S(what) (SPECIAL + what)

#define DESCRIPTORS \
    {"closed", 900}, {"-1", -1}, {"cwd", -100}, {"high", 0x100000000}, {"reader", S(READER)}, {"writer", S(WRITER)}, {"appender", \
        S(APPENDER)}, \
    {"path", S(PATH_ONLY)}, {"tcp", S(TCP)}, {"listener", S(LISTENER)}, {"udp", S(UDP)}, {"unconnected", S(UNCONNECTED)}, {"datagram", \
        S(DATAGRAM)}, \
    {"epoll", S(EPOLL)}, {"event", S(EVENT)}, {"timer", S(TIMER)}, {"signals", S(SIGNALS)}, {"memfd", S(MEMFD)}, {"sealed", S(SEALED)}, \
    {"null", S(NULL_)}, {"zero", S(ZERO)}, {"full", S(FULL_PIPE)}, {"empty", S(EMPTY_PIPE)}, {"proc", S(PROC)}
// The first ones are also tried with each value of the other arguments.
static const struct value fds[] = {{"file", S(FILE_)}, {"folder", S(FOLDER)}, {"pipe", S(PIPE_IN)}, {"pipeout", S(PIPE_OUT)}, {"stream",
    S(STREAM)}, DESCRIPTORS};
enum { CROSSED = 5 };
static const struct value dirs[] = {{"cwd", -100}, {"closed", 900}, {"-1", -1}, {"file", S(FILE_)}, {"folder", S(FOLDER)}, {"path",
    S(PATH_ONLY)}, {"pipe", S(PIPE_IN)}};
static const struct value sockets[] = {{"stream", S(STREAM)}, {"datagram", S(DATAGRAM)}, {"tcp", S(TCP)}, {"udp", S(UDP)}, {"listener",
    S(LISTENER)}, {"unconnected", S(UNCONNECTED)}, {"file", S(FILE_)}, {"closed", 900}, {"path", S(PATH_ONLY)}, {"pipe", S(PIPE_IN)}};
static const struct value epolls[] = {{"epoll", S(EPOLL)}, {"file", S(FILE_)}, {"closed", 900}, {"path", S(PATH_ONLY)}};
static const struct value pipes[] = {{"pipe", S(PIPE_IN)}, {"full", S(FULL_PIPE)}, {"pipeout", S(PIPE_OUT)}, {"file", S(FILE_)},
    {"stream", S(STREAM)}, {"folder", S(FOLDER)}, DESCRIPTORS};
static const struct value outs[] = {{"pipeout", S(PIPE_OUT)}, {"file", S(FILE_)}, {"stream", S(STREAM)}, {"folder", S(FOLDER)},
    DESCRIPTORS};
static const struct value timers[] = {{"timer", S(TIMER)}, {"event", S(EVENT)}, {"file", S(FILE_)}, {"closed", 900}, {"path",
    S(PATH_ONLY)}};
static const struct value inotifies[] = {{"event", S(EVENT)}, {"file", S(FILE_)}, {"closed", 900}, {"path", S(PATH_ONLY)}};
static const struct value pidfds[] = {{"file", S(FILE_)}, {"closed", 900}, {"path", S(PATH_ONLY)}};
static const struct value newfds[] = {{"20", 20}, {"-1", -1}, {"same", S(FILE_)}, {"limit", 1 << 20}, {"big", 1 << 30}};
#define BAD_POINTERS {"null", 0}, {"gone", GONE}, {"partly", PARTLY}, {"readonly", READONLY}, {"closed", CLOSED_PAGE}, {"kernel", \
    (long)0xffff800000000000}, {"noncanonical", 1l << 62}
static const struct value buffers[] = {{"good", GOOD}, {"odd", GOOD + 1}, BAD_POINTERS};
static const struct value optional[] = {{"null", 0}, {"good", GOOD}, {"odd", GOOD + 1}, {"gone", GONE}, {"partly", PARTLY}, {"readonly",
    READONLY}, {"kernel", (long)0xffff800000000000}};
static const struct value lengths[] = {{"16", 16}, {"0", 0}, {"1", 1}, {"7", 7}, {"100", 100}, {"4096", 4096}, {"9000", 9000}, {"-1",
    -1}, {"2^31", 1l << 31}, {"2^32", 1l << 32}, {"2^62", 1l << 62}, {"2^63", (long)(1ul << 63)}};
static const struct value zeroes[] = {{"0", 0}, {"1", 1}, {"2", 2}, {"-1", -1}, {"16", 16}, {"4096", 4096}, {"max", (long)(~0ul >> 1)},
    {"2^31", 1l << 31}, {"2^32", 1l << 32}};
static const struct value flags[] = {
    {"0", 0}, {"b0", 1}, {"b1", 2}, {"b2", 4}, {"b3", 8}, {"b4", 16}, {"b5", 32}, {"b6", 64}, {"b7", 128}, {"b8", 256}, {"b9", 512},
        {"b10", 1 << 10}, {"b11", 1 << 11}, {"b12", 1 << 12},
    {"b13", 1 << 13}, {"b14", 1 << 14}, {"b15", 1 << 15}, {"b16", 1 << 16}, {"b17", 1 << 17}, {"b18", 1 << 18}, {"b19", 1 << 19}, {"b20",
        1 << 20}, {"b21", 1 << 21}, {"b22", 1 << 22}, {"b23", 1 << 23},
    {"b24", 1 << 24}, {"b25", 1 << 25}, {"b26", 1 << 26}, {"b27", 1 << 27}, {"b28", 1 << 28}, {"b29", 1 << 29}, {"b30", 1 << 30}, {"b31",
        1l << 31}, {"b32", 1l << 32}, {"b63", (long)(1ul << 63)}, {"-1", -1},
};
#define NUMBERS {"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}, {"5", 5}, {"6", 6}, {"7", 7}, {"8", 8}, {"9", 9}, {"10", 10}, {"11", \
    11}, {"12", 12}, {"13", 13}, {"14", 14}, {"15", 15}, {"16", 16}, \
    {"17", 17}, {"18", 18}, {"19", 19}, {"20", 20}, {"21", 21}, {"22", 22}, {"23", 23}, {"24", 24}, {"25", 25}, {"26", 26}, {"27", 27}, \
        {"28", 28}, {"29", 29}, {"30", 30}, {"31", 31}, {"32", 32}, {"33", 33}, {"34", 34}, {"35", 35}, {"36", 36}, \
    {"37", 37}, {"38", 38}, {"39", 39}, {"40", 40}, {"41", 41}, {"42", 42}, {"43", 43}, {"44", 44}, {"45", 45}, {"46", 46}, {"47", 47}, \
        {"48", 48}, {"49", 49}, {"50", 50}, {"51", 51}, {"52", 52}, {"53", 53}, {"54", 54}, {"55", 55}, {"56", 56}, {"57", 57}, \
    {"58", 58}, {"59", 59}, {"60", 60}, {"61", 61}, {"62", 62}, {"63", 63}, {"64", 64}, {"65", 65}, {"66", 66}, {"67", 67}, {"68", 68}, \
        {"69", 69}, {"70", 70}, {"71", 71}, {"72", 72}, {"73", 73}, {"74", 74}, {"75", 75}, {"100", 100}, {"1000", 1000}, {"-1", -1}
static const struct value numbers[] = {NUMBERS};
static const struct value commands[] = {NUMBERS, {"1024", 1024}, {"1025", 1025}, {"1026", 1026}, {"1028", 1028}, {"1029", 1029}, {"1030",
    1030}, {"1031", 1031}, {"1032", 1032}, {"1033", 1033}, {"1034", 1034}, {"1035", 1035}, {"1036", 1036}, {"1037", 1037}, {"1038",
    1038}};
static const struct value controls[] = {
    {"FIONREAD", 0x541B}, {"FIONBIO", 0x5421}, {"FIOASYNC", 0x5452}, {"FIOCLEX", 0x5451}, {"FIONCLEX", 0x5450}, {"FIOQSIZE", 0x5460},
        {"TCGETS", 0x5401}, {"TCSETS", 0x5402}, {"TIOCGWINSZ", 0x5413},
    {"TIOCSWINSZ", 0x5414}, {"TIOCGPGRP", 0x540F}, {"TIOCSPGRP", 0x5410}, {"TIOCSCTTY", 0x540E}, {"TIOCNOTTY", 0x5422}, {"TIOCOUTQ",
        0x5411}, {"TIOCSTI", 0x5412}, {"FIGETBSZ", 2}, {"FIBMAP", 1}, {"FS_GETFLAGS", 0x80086601}, {"FS_SETFLAGS", 0x40086602},
    {"FIFREEZE", 0xC0045877}, {"FITHAW", 0xC0045878}, {"FICLONE", 0x40049409}, {"FIEMAP", 0xC020660B}, {"SIOCATMARK", 0x8905},
        {"SIOCGIFCONF", 0x8912}, {"SIOCGIFFLAGS", 0x8913}, {"SIOCSPGRP", 0x8902}, {"SIOCGPGRP", 0x8904}, {"SIOCGSTAMP", 0x8906},
    {"BLKGETSIZE", 0x1260}, {"BLKGETSIZE64", 0x80081272}, {"unknown", 0x12345678}, {"0", 0}, {"-1", -1},
};
static const struct value paths[] = {
    {"file", STRINGS}, {"folder", STRINGS + 16}, {"missing", STRINGS + 32}, {"link", STRINGS + 48}, {"loop", STRINGS + 64}, {"dangling",
        STRINGS + 80}, {"fifo", STRINGS + 96}, {"socket", STRINGS + 112}, {"file/", STRINGS + 128},
    {"folder/", STRINGS + 144}, {"file/x", STRINGS + 160}, {"missing/x", STRINGS + 176}, {"link/", STRINGS + 192}, {"missing/",
        STRINGS + 208}, {"dot", STRINGS + 224}, {"dotdot", STRINGS + 240}, {"root", STRINGS + 256}, {"empty", STRINGS + 272},
    {"folder/.", STRINGS + 288}, {"folder/..", STRINGS + 304}, {"dangling/", STRINGS + 320}, {"null-device", STRINGS + 336}, {"proc",
        STRINGS + 352}, {"file/.", STRINGS + 368}, {"dirlink", STRINGS + 384}, {"dirlink/", STRINGS + 400},
    {"fd", STRINGS + 432}, {"full-folder", STRINGS + 448}, {"longname", STRINGS + 512}, {"longpath", OUTSIDE}, BAD_POINTERS,
};
// As above, for calls that make what the path names.
static const struct value fresh[] = {
    {"missing", STRINGS + 32}, {"file", STRINGS}, {"folder", STRINGS + 16}, {"link", STRINGS + 48}, {"loop", STRINGS + 64}, {"dangling",
        STRINGS + 80}, {"fifo", STRINGS + 96}, {"file/", STRINGS + 128}, {"folder/", STRINGS + 144}, {"file/x", STRINGS + 160},
    {"missing/x", STRINGS + 176}, {"missing/", STRINGS + 208}, {"dot", STRINGS + 224}, {"dotdot", STRINGS + 240}, {"root",
        STRINGS + 256}, {"empty", STRINGS + 272}, {"folder/.", STRINGS + 288}, {"folder/..", STRINGS + 304}, {"dangling/",
        STRINGS + 320}, {"proc", STRINGS + 352},
    {"dirlink", STRINGS + 384}, {"dirlink/", STRINGS + 400}, {"full-folder", STRINGS + 448}, {"longname", STRINGS + 512}, {"longpath",
        OUTSIDE}, BAD_POINTERS,
};
static const struct value spans[] = {{"1ms", STRUCTS}, {"-1s", STRUCTS + 32}, {"10^9ns", STRUCTS + 64}, {"-1ns", STRUCTS + 96}, {"zero",
    STRUCTS + 128}, {"max", STRUCTS + 160}, BAD_POINTERS};
static const struct value sets[] = {{"set", STRUCTS + 192}, {"null", 0}, {"gone", GONE}, {"partly", PARTLY + 4}, {"kernel",
    (long)0xffff800000000000}};
static const struct value set_sizes[] = {{"8", 8}, {"0", 0}, {"4", 4}, {"16", 16}, {"128", 128}, {"-1", -1}};
static const struct value vectors[] = {{"one", STRUCTS + 256}, {"gone-first", STRUCTS + 288}, {"gone-second", STRUCTS + 320},
    {"partly-piece", STRUCTS + 352}, {"negative", STRUCTS + 384}, {"empty", STRUCTS + 416}, BAD_POINTERS};
static const struct value counts[] = {{"1", 1}, {"0", 0}, {"2", 2}, {"1024", 1024}, {"1025", 1025}, {"-1", -1}, {"2^31", 1l << 31}};
static const struct value messages[] = {{"one", STRUCTS + 448}, {"no-pieces", STRUCTS + 512}, {"gone-piece", STRUCTS + 576},
    {"gone-name", STRUCTS + 640}, {"gone-control", STRUCTS + 704}, {"many", STRUCTS + 768}, {"long-name", STRUCTS + 832}, {"bad-control",
    STRUCTS + 896}, BAD_POINTERS};
static const struct value names[] = {{"inet", STRUCTS + 1024}, {"unix", STRUCTS + 1056}, {"missing", STRUCTS + 1184}, {"unspecified",
    STRUCTS + 1312}, {"family", STRUCTS + 1344}, {"not-socket", STRUCTS + 1376}, BAD_POINTERS};
static const struct value name_lengths[] = {{"16", 16}, {"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {"15", 15}, {"110", 110}, {"111", 111},
    {"128", 128}, {"129", 129}, {"-1", -1}, {"4096", 4096}};
static const struct value told_lengths[] = {{"16", STRUCTS + 1536}, {"0", STRUCTS + 1540}, {"4", STRUCTS + 1544}, {"1", STRUCTS + 1548},
    {"-1", STRUCTS + 1552}, {"4096", STRUCTS + 1556}, BAD_POINTERS};
static const struct value offsets[] = {{"null", 0}, {"0", STRUCTS + 1600}, {"-1", STRUCTS + 1608}, {"max", STRUCTS + 1616}, {"gone",
    GONE}, {"readonly", READONLY}, {"odd", STRUCTS + 1601}};
static const struct value words[] = {{"word", GOOD}, {"odd", GOOD + 1}, {"half", GOOD + 2}, {"mapping", MAPPING}, {"shared",
    S(SHARED_MAPPING)}, BAD_POINTERS};
static const struct value pids[] = {{"self", S(SELF)}, {"0", 0}, {"none", 999999}, {"-1", -1}, {"min", -2147483648l}, {"group",
    S(OWN_GROUP)}};
static const struct value own_pids[] = {{"self", S(SELF)}, {"0", 0}, {"none", 999999}, {"-2", -2}, {"min", -2147483648l}, {"group",
    S(OWN_GROUP)}};
static const struct value others[] = {{"none", 999999}, {"0", 0}, {"-1", -1}, {"min", -2147483648l}, {"self", S(SELF)}};
static const struct value mappings[] = {{"anonymous", MAPPING}, {"shared", S(SHARED_MAPPING)}, {"file", S(FILE_MAPPING)}, {"inside",
    MAPPING + 1}, {"over-hole", MAPPING + 6 * PAGE}, {"null", 0}, {"gone", GONE}, {"readonly", READONLY}, {"closed", CLOSED_PAGE},
    {"kernel", (long)0xffff800000000000}, {"end", 0x7ffffffff000}, {"-4096", -4096}};
static const struct value sizes[] = {{"2pages", 2 * PAGE}, {"0", 0}, {"1", 1}, {"page+1", PAGE + 1}, {"8pages", 8 * PAGE}, {"2^46",
    1l << 46}, {"2^47", 1l << 47}, {"2^62", 1l << 62}, {"-1", -1}, {"-4096", -4096}, {"-4095", -4095}};
static const struct value new_places[] = {{"outside", OUTSIDE + 16 * PAGE}, {"null", 0}, {"inside", OUTSIDE + 1}, {"overlap",
    MAPPING + PAGE}, {"same", MAPPING}, {"kernel", (long)0xffff800000000000}, {"end", 0x7ffffffff000}, {"low", PAGE}};
static const struct value map_kinds[] = {{"private", 2}, {"shared", 1}, {"validate", 3}, {"none", 0}, {"anonymous", 0x22},
    {"shared-anonymous", 0x21}};
static const struct value modes[] = {{"0644", 0644}, {"0", 0}, {"07777", 07777}, {"010000", 010000}, {"file", 0100644}, {"folder",
    040755}, {"fifo", 010644}, {"socket", 0140644}, {"char", 020644}, {"block", 060644}, {"link", 0120644}, {"-1", -1}};
static const struct value owners[] = {{"0", 0}, {"1", 1}, {"1000", 1000}, {"-1", -1}, {"-2", -2}, {"2^32", 1l << 32}};
static const struct value signals_[] = {{"0", 0}, {"28", 28}, {"17", 17}, {"18", 18}, {"64", 64}, {"65", 65}, {"-1", -1}, {"9", 9},
    {"19", 19}, {"32", 32}};
static const struct value clocks[] = {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}, {"5", 5}, {"6", 6}, {"7", 7}, {"8", 8}, {"9", 9},
    {"10", 10}, {"11", 11}, {"12", 12}, {"-1", -1}, {"-2", -2}, {"-6", -6}, {"-5", -5}, {"-8", -8}, {"2^32", 1l << 32}};
static const struct value attributes[] = {{"user.a", STRINGS + 464}, {"none.a", STRINGS + 480}, {"trusted.a", STRINGS + 496}, {"empty",
    STRINGS + 272}, BAD_POINTERS};
static const struct value hows[] = {{"read", STRUCTS + 2048}, {"write", STRUCTS + 2080}, {"mode", STRUCTS + 2112}, {"bad-flag",
    STRUCTS + 2144}, {"bad-resolve", STRUCTS + 2176}, {"beneath", STRUCTS + 2208}, {"in-root", STRUCTS + 2240}, {"no-links",
    STRUCTS + 2272}, {"no-xdev", STRUCTS + 2304}, {"cached", STRUCTS + 2336}, {"both", STRUCTS + 2368}, BAD_POINTERS};
static const struct value how_sizes[] = {{"24", 24}, {"0", 0}, {"23", 23}, {"32", 32}, {"4096", 4096}, {"4097", 4097}, {"-1", -1}};
static const struct value levels[] = {{"socket", 1}, {"ip", 0}, {"tcp", 6}, {"udp", 17}, {"ipv6", 41}, {"-1", -1}, {"999", 999}};
static const struct value families[] = {{"unix", 1}, {"inet", 2}, {"inet6", 10}, {"netlink", 16}, {"packet", 17}, {"0", 0}, {"-1", -1},
    {"45", 45}, {"46", 46}, {"1000", 1000}};
static const struct value types[] = {{"stream", 1}, {"datagram", 2}, {"raw", 3}, {"rdm", 4}, {"seq", 5}, {"packet", 10}, {"0", 0}, {"11",
    11}, {"b11", 1 | 1 << 11}, {"b19", 1 | 1 << 19}, {"b12", 1 | 1 << 12}, {"-1", -1}};
static const struct value protocols[] = {{"0", 0}, {"1", 1}, {"6", 6}, {"17", 17}, {"255", 255}, {"256", 256}, {"-1", -1}};
static const struct value zero[] = {{"0", 0}};
static const struct value advices[] = {NUMBERS, {"101", 101}};
static const struct value lock_pointers[] = {{"read", STRUCTS + 2560}, {"whence", STRUCTS + 2592}, {"type", STRUCTS + 2624}, {"negative",
    STRUCTS + 2656}, {"too-long", STRUCTS + 2688}, {"20", 20}, {"1", 1}, {"4096", 4096}, {"9000", 9000}, {"2^21", 1 << 21}, {"2^31",
    1l << 31}, {"-1", -1}, {"0", 0}, {"gone", GONE}};
static const struct value pollsets[] = {{"one", STRUCTS + 2816}, {"none", STRUCTS + 2832}, {"negative", STRUCTS + 2840}, BAD_POINTERS};
static const struct value futex_ops[] = {NUMBERS, {"128", 128}, {"129", 129}, {"256", 256}, {"257", 257}, {"265", 265}, {"393", 393},
    {"138", 138}, {"137", 137}, {"134", 134}};
static const struct value events[] = {{"in", STRUCTS + 2880}, {"exclusive", STRUCTS + 2896}, {"bad-exclusive", STRUCTS + 2912}, {"none",
    STRUCTS + 2928}, BAD_POINTERS};
static const struct value sigevents[] = {{"none", STRUCTS + 3072}, {"signal", STRUCTS + 3136}, {"bad-signal", STRUCTS + 3200}, {"thread",
    STRUCTS + 3264}, {"bad-notify", STRUCTS + 3328}, {"no-thread", STRUCTS + 3392}, BAD_POINTERS};
static const struct value keys[] = {{"private", 0}, {"key", 0x1234}, {"-1", -1}};
static const struct value fill[] = {{"3", 3}, {"0", 0}, {"1", 1}, {"-1", -1}, {"1024", 1024}, {"1048577", 1048577}};
static const struct value clone_flags[] = {
    {"0", 17}, {"b31", 17 | 1l << 31}, {"bad-signal", 65}, {"signal-255", 255}, {"thread", 0x10000 | 17}, {"sighand", 0x800 | 17},
        {"thread-sighand", 0x10800}, {"fs-newns", 0x20200 | 17}, {"newuser-fs", 0x10000200 | 17}, {"pidfd", 0x1000 | 17},
        {"pidfd-settid", 0x101000 | 17},
    {"pidfd-detached", 0x401000 | 17}, {"detached", 0x400000 | 17}, {"settls", 0x80000 | 17}, {"cleartid", 0x200000 | 17},
        {"child-settid", 0x1000000 | 17}, {"parent-settid", 0x100000 | 17}, {"ptrace", 0x2000 | 17}, {"untraced", 0x800000 | 17},
        {"parent", 0x8000 | 17}, {"io", 0x80000000l | 17}, {"files", 0x400 | 17}, {"fs", 0x200 | 17}, {"sysvsem", 0x40000 | 17},
        {"clear-sighand", 0x100000011}, {"into-cgroup", 0x200000011},
};

#define KIND(name) {#name, name, sizeof name / sizeof *name}
enum {
    END, FD, DIR, SOCK, EP, PIN, OUT, TFD, IFD, PFD, NEWFD, BUF, OPT, LEN, ZEROES, FLAG, NUM, CMD, CTL, PATH, FRESH, SPAN, SET, SETSIZE,
        VEC, COUNT, MSG, NAME, NAMELEN, TOLD, OFF, WORD, PID, OWNPID, OTHER, MAP, SIZE,
    PLACE, MAPKIND, MODE, OWNER, SIG, CLOCK, ATTR, HOW, HOWSIZE, LEVEL, FAMILY, TYPE, PROTOCOL, Z, ADVICE, LOCK, POLLS, FUTEX, EVENTS,
        SIGEV, KEY, FILL, CLONE,
};
static const struct kind kinds[] = {
    {0}, KIND(fds), KIND(dirs), KIND(sockets), KIND(epolls), KIND(pipes), KIND(outs), KIND(timers), KIND(inotifies), KIND(pidfds),
        KIND(newfds), KIND(buffers), KIND(optional), KIND(lengths), KIND(zeroes), KIND(flags), KIND(numbers), KIND(commands),
        KIND(controls), KIND(paths), KIND(fresh),
    KIND(spans), KIND(sets), KIND(set_sizes), KIND(vectors), KIND(counts), KIND(messages), KIND(names), KIND(name_lengths),
        KIND(told_lengths), KIND(offsets), KIND(words), KIND(pids), KIND(own_pids), KIND(others), KIND(mappings), KIND(sizes),
        KIND(new_places), KIND(map_kinds), KIND(modes), KIND(owners),
    KIND(signals_), KIND(clocks), KIND(attributes), KIND(hows), KIND(how_sizes), KIND(levels), KIND(families), KIND(types),
        KIND(protocols), KIND(zero), KIND(advices), KIND(lock_pointers), KIND(pollsets), KIND(futex_ops), KIND(events), KIND(sigevents),
        KIND(keys), KIND(fill), KIND(clone_flags),
};

// A call, its arguments, and the argument whose values each go with all values of the others (0: none; else its position + 1), the
// number of such values.
struct call { const char *name; int number, args[6], crossed, values; };
#define C(name, ...) {#name, SYS_##name, {__VA_ARGS__}, 0, 0}
#define X(name, at, values, ...) {#name, SYS_##name, {__VA_ARGS__}, at, values}
static const struct call calls[] = {
    X(read, 1, CROSSED, FD, BUF, LEN), X(write, 1, CROSSED, FD, BUF, LEN), X(open, 1, 3, PATH, FLAG, MODE), C(close, FD), C(stat, PATH,
        BUF), C(fstat, FD, BUF), C(lstat, PATH, BUF),
    C(poll, POLLS, FILL, ZEROES), X(lseek, 1, CROSSED, FD, ZEROES, NUM), X(mmap, 4, 6, PLACE, SIZE, FLAG, MAPKIND, FD, ZEROES), X(mmap,
        4, 2, Z, SIZE, NUM, FLAG, FD, ZEROES), X(mprotect, 1, 4, MAP, SIZE, FLAG), X(munmap, 1, 5, MAP, SIZE), C(brk, ZEROES),
    C(rt_sigaction, SIG, OPT, OPT, SETSIZE), C(rt_sigprocmask, NUM, SET, OPT, SETSIZE), X(ioctl, 1, CROSSED, FD, CTL, BUF), X(pread64, 1,
        CROSSED, FD, BUF, LEN, ZEROES), X(pwrite64, 1, CROSSED, FD, BUF, LEN, ZEROES),
    X(readv, 1, CROSSED, FD, VEC, COUNT), X(writev, 1, CROSSED, FD, VEC, COUNT), C(access, PATH, FLAG), C(pipe, BUF), C(select, FILL,
        OPT, OPT, OPT, SPAN), C(sched_yield, END), X(mremap, 1, 5, MAP, SIZE, SIZE, FLAG, PLACE), X(mremap, 1, 3, MAP, SIZE, SIZE, NUM,
        PLACE), X(msync, 1, 4, MAP, SIZE, FLAG),
    X(mincore, 1, 4, MAP, SIZE, BUF), X(madvise, 1, 5, MAP, SIZE, ADVICE), C(shmget, KEY, SIZE, FLAG), C(shmat, ZEROES, PLACE, FLAG),
        C(shmctl, ZEROES, NUM, BUF), C(dup, FD), C(dup2, FD, NEWFD), C(nanosleep, SPAN, OPT), C(getitimer, NUM, BUF), C(alarm, ZEROES),
        C(setitimer, NUM, SPAN, OPT), C(getpid, END),
    C(sendfile, OUT, FD, OFF, LEN), C(socket, FAMILY, TYPE, PROTOCOL), X(socket, 1, 6, FAMILY, TYPE, PROTOCOL), X(connect, 1, 4, SOCK,
        NAME, NAMELEN), X(accept, 1, 3, SOCK, BUF, TOLD), X(sendto, 1, 4, SOCK, BUF, LEN, FLAG, NAME, NAMELEN), X(recvfrom, 1, 4, SOCK,
        BUF, LEN, FLAG, BUF, TOLD),
    X(sendmsg, 1, 4, SOCK, MSG, FLAG), X(recvmsg, 1, 4, SOCK, MSG, FLAG), X(shutdown, 1, 6, SOCK, NUM), X(bind, 1, 6, SOCK, NAME,
        NAMELEN), C(listen, SOCK, ZEROES), X(getsockname, 1, 4, SOCK, BUF, TOLD), X(getpeername, 1, 4, SOCK, BUF, TOLD), X(socketpair, 1,
        4, FAMILY, TYPE, PROTOCOL, BUF),
    X(setsockopt, 2, 5, SOCK, LEVEL, NUM, BUF, NAMELEN), X(getsockopt, 2, 5, SOCK, LEVEL, NUM, BUF, TOLD), X(setsockopt, 1, 4, SOCK,
        LEVEL, NUM, BUF, NAMELEN), X(getsockopt, 1, 4, SOCK, LEVEL, NUM, BUF, TOLD),
    X(clone, 1, 5, CLONE, Z, OPT, OPT, OPT), C(execve, PATH, OPT, OPT), C(wait4, PID, OPT, FLAG, OPT), C(kill, OWNPID, SIG), C(uname,
        BUF), C(shmdt, MAP),
    X(fcntl, 1, CROSSED, FD, CMD, LOCK), X(fcntl, 2, 15, FD, CMD, LOCK), C(flock, FD, NUM), C(fsync, FD), C(fdatasync, FD), C(truncate,
        PATH, ZEROES), C(ftruncate, FD, ZEROES), X(getdents64, 1, 2, FD, BUF, LEN), X(getdents, 1, 2, FD, BUF, LEN), C(getcwd, BUF, LEN),
        C(chdir, PATH), C(fchdir, FD), X(rename, 1, 12, PATH, FRESH), C(mkdir, FRESH, MODE),
    C(rmdir, PATH), C(creat, FRESH, MODE), X(link, 1, 12, PATH, FRESH), C(unlink, PATH), C(symlink, PATH, FRESH), C(readlink, PATH, BUF,
        LEN), C(chmod, PATH, MODE), C(fchmod, FD, MODE), C(chown, PATH, OWNER, OWNER), C(fchown, FD, OWNER, OWNER), C(lchown, PATH,
        OWNER, OWNER), C(umask, ZEROES), C(gettimeofday, BUF, OPT), C(getrlimit, NUM, BUF), C(getrusage, NUM, BUF), C(sysinfo, BUF),
        C(times, BUF),
    C(getuid, END), C(setuid, OWNER), C(setgid, OWNER), C(setpgid, OWNPID, OWNPID), C(getppid, END), C(setsid, END), C(setreuid, OWNER,
        OWNER), C(getgroups, ZEROES, BUF), C(setgroups, ZEROES, BUF), C(setresuid, OWNER, OWNER, OWNER), C(getresuid, BUF, BUF, BUF),
        C(getpgid, PID), C(setfsuid, OWNER), C(setfsgid, OWNER), C(getsid, PID), C(capget, BUF, BUF), C(capset, BUF, BUF),
    C(rt_sigpending, BUF, SETSIZE), C(rt_sigtimedwait, SET, OPT, SPAN, SETSIZE), C(rt_sigqueueinfo, OWNPID, SIG, BUF), C(rt_sigsuspend,
        SET, SETSIZE), C(sigaltstack, OPT, OPT), C(utime, PATH, OPT), C(mknod, FRESH, MODE, ZEROES), C(personality, FLAG), C(ustat,
        ZEROES, BUF), C(statfs, PATH, BUF), C(fstatfs, FD, BUF), C(sysfs, NUM, BUF, BUF), C(getpriority, NUM, PID), C(setpriority, NUM,
        PID, ZEROES), C(sched_setparam, PID, BUF), C(sched_getparam, PID, BUF),
    C(sched_setscheduler, PID, NUM, BUF), C(sched_getscheduler, PID), C(sched_get_priority_max, NUM), C(sched_get_priority_min, NUM),
        C(sched_rr_get_interval, PID, BUF), X(mlock, 1, 4, MAP, SIZE), X(munlock, 1, 4, MAP, SIZE), C(mlockall, FLAG), C(munlockall,
        END), C(pivot_root, PATH, PATH), X(prctl, 1, 79, NUM, ZEROES, Z, Z, Z), C(prctl, NUM, BUF, Z, Z, Z), C(arch_prctl, NUM, BUF),
        C(adjtimex, BUF), C(setrlimit, NUM, BUF), C(chroot, PATH), C(umount2, PATH, FLAG), C(swapon, PATH, FLAG), C(swapoff, PATH),
    C(sethostname, BUF, LEN), C(setdomainname, BUF, LEN), C(iopl, ZEROES), C(ioperm, ZEROES, ZEROES, ZEROES), C(init_module, BUF, LEN,
        BUF), C(delete_module, PATH, FLAG), C(quotactl, NUM, PATH, ZEROES, BUF), C(gettid, END), C(readahead, FD, ZEROES, LEN),
        C(setxattr, PATH, ATTR, BUF, LEN, FLAG), C(lsetxattr, PATH, ATTR, BUF, LEN, FLAG), C(fsetxattr, FD, ATTR, BUF, LEN, FLAG),
        C(getxattr, PATH, ATTR, BUF, LEN), C(fgetxattr, FD, ATTR, BUF, LEN), C(listxattr, PATH, BUF, LEN), C(flistxattr, FD, BUF, LEN),
        C(removexattr, PATH, ATTR), C(fremovexattr, FD, ATTR), C(tkill, PID, SIG), C(time, OPT),
    X(futex, 2, 14, WORD, FUTEX, ZEROES, SPAN, WORD, ZEROES), C(futex, WORD, FUTEX, ZEROES, Z, WORD, ZEROES), C(sched_setaffinity, PID,
        LEN, BUF), C(sched_getaffinity, PID, LEN, BUF), C(modify_ldt, NUM, BUF, LEN), C(set_thread_area, BUF), C(get_thread_area, BUF),
        C(epoll_create, ZEROES), C(remap_file_pages, MAP, SIZE, NUM, ZEROES, FLAG), C(set_tid_address, BUF), C(restart_syscall, END),
        C(fadvise64, FD, ZEROES, LEN, NUM), C(timer_create, CLOCK, SIGEV, BUF), C(timer_settime, ZEROES, FLAG, BUF, OPT),
        C(timer_gettime, ZEROES, BUF), C(timer_getoverrun, ZEROES), C(timer_delete, ZEROES),
    C(clock_gettime, CLOCK, BUF), C(clock_getres, CLOCK, OPT), X(clock_nanosleep, 1, 3, CLOCK, FLAG, SPAN, OPT), C(epoll_wait, EP, BUF,
        ZEROES, ZEROES), C(epoll_ctl, EP, NUM, FD, EVENTS), X(epoll_ctl, 2, 4, EP, NUM, PIN, EVENTS), C(tgkill, PID, PID, SIG), C(utimes,
        PATH, OPT), C(mbind, MAP, SIZE, NUM, BUF, LEN, FLAG), C(set_mempolicy, NUM, OPT, ZEROES), C(get_mempolicy, OPT, OPT, ZEROES, MAP,
        FLAG), C(mq_open, PATH, FLAG, MODE, OPT), C(kexec_load, ZEROES, ZEROES, BUF, FLAG), C(waitid, NUM, PID, OPT, FLAG, OPT),
        C(add_key, BUF, BUF, BUF, LEN, ZEROES), C(keyctl, NUM, ZEROES),
    C(ioprio_set, NUM, PID, NUM), C(ioprio_get, NUM, PID), C(inotify_add_watch, IFD, PATH, FLAG), C(inotify_rm_watch, IFD, ZEROES),
        C(migrate_pages, PID, ZEROES, BUF, BUF), C(openat, DIR, PATH, FLAG, MODE), C(mkdirat, DIR, FRESH, MODE), C(mknodat, DIR, FRESH,
        MODE, ZEROES), C(fchownat, DIR, PATH, OWNER, OWNER, FLAG), C(futimesat, DIR, PATH, OPT), C(newfstatat, DIR, PATH, BUF, FLAG),
        C(unlinkat, DIR, PATH, FLAG), C(renameat, DIR, PATH, DIR, FRESH), C(linkat, DIR, PATH, DIR, FRESH, FLAG), C(symlinkat, PATH, DIR,
        FRESH), C(readlinkat, DIR, PATH, BUF, LEN), C(fchmodat, DIR, PATH, MODE), C(faccessat, DIR, PATH, FLAG),
    C(pselect6, FILL, OPT, OPT, OPT, SPAN, OPT), C(ppoll, POLLS, FILL, SPAN, SET, SETSIZE), C(unshare, FLAG), C(set_robust_list, BUF,
        LEN), C(get_robust_list, PID, BUF, BUF), X(splice, 1, 4, PIN, OFF, OUT, OFF, LEN, FLAG), C(splice, FD, OFF, OUT, OFF, LEN, FLAG),
        X(tee, 1, 3, PIN, OUT, LEN, FLAG), C(sync_file_range, FD, ZEROES, ZEROES, FLAG), X(vmsplice, 1, 3, OUT, VEC, COUNT, FLAG),
        C(move_pages, PID, ZEROES, BUF, OPT, BUF, FLAG), C(utimensat, DIR, PATH, OPT, FLAG), C(epoll_pwait, EP, BUF, COUNT, ZEROES, SET,
        SETSIZE), C(signalfd, FD, SET, SETSIZE), C(timerfd_create, CLOCK, FLAG), C(eventfd, ZEROES), C(fallocate, FD, FLAG, ZEROES, LEN),
    C(timerfd_settime, TFD, FLAG, BUF, OPT), C(timerfd_gettime, TFD, BUF), X(accept4, 1, 3, SOCK, BUF, TOLD, FLAG), C(signalfd4, FD, SET,
        SETSIZE, FLAG), C(eventfd2, ZEROES, FLAG), C(epoll_create1, FLAG), C(dup3, FD, NEWFD, FLAG), C(pipe2, BUF, FLAG),
        C(inotify_init1, FLAG), X(preadv, 1, CROSSED, FD, VEC, COUNT, ZEROES, ZEROES), X(pwritev, 1, CROSSED, FD, VEC, COUNT, ZEROES,
        ZEROES), C(rt_tgsigqueueinfo, PID, PID, SIG, BUF), C(perf_event_open, BUF, PID, NUM, FD, FLAG), X(recvmmsg, 1, 3, SOCK, MSG,
        COUNT, FLAG, OPT), C(fanotify_init, FLAG, FLAG), C(prlimit64, PID, NUM, OPT, OPT),
    C(name_to_handle_at, DIR, PATH, BUF, BUF, FLAG), C(open_by_handle_at, FD, BUF, FLAG), C(syncfs, FD), X(sendmmsg, 1, 3, SOCK, MSG,
        COUNT, FLAG), C(setns, FD, FLAG), C(getcpu, OPT, OPT, OPT), X(process_vm_readv, 1, 2, PID, VEC, COUNT, VEC, COUNT, FLAG),
        X(process_vm_writev, 1, 2, PID, VEC, COUNT, VEC, COUNT, FLAG), C(kcmp, PID, PID, NUM, FD, FD), C(finit_module, FD, PATH, FLAG),
        C(sched_setattr, PID, BUF, FLAG), C(sched_getattr, PID, BUF, LEN, FLAG), C(renameat2, DIR, PATH, DIR, FRESH, FLAG), C(seccomp,
        NUM, FLAG, BUF), C(getrandom, BUF, LEN, FLAG), C(memfd_create, PATH, FLAG), C(bpf, NUM, BUF, LEN), C(execveat, DIR, PATH, OPT,
        OPT, FLAG), C(userfaultfd, FLAG),
    C(membarrier, FLAG, FLAG, NUM), C(membarrier, NUM, FLAG, NUM), X(mlock2, 1, 4, MAP, SIZE, FLAG), C(copy_file_range, FD, OFF, FD, OFF,
        LEN, FLAG), X(preadv2, 1, CROSSED, FD, VEC, COUNT, ZEROES, Z, FLAG), X(pwritev2, 1, CROSSED, FD, VEC, COUNT, ZEROES, Z, FLAG),
        C(pkey_mprotect, MAP, SIZE, FLAG, NUM), C(pkey_alloc, FLAG, FLAG), C(pkey_free, NUM), C(statx, DIR, PATH, FLAG, FLAG, BUF),
        C(rseq, BUF, LEN, FLAG, ZEROES), C(io_setup, COUNT, BUF),
    {"pidfd_send_signal", 424, {PFD, SIG, OPT, FLAG}, 0, 0}, {"open_tree", 428, {DIR, PATH, FLAG}, 0, 0}, {"pidfd_open", 434, {PID,
        FLAG}, 0, 0}, {"clone3", 435, {BUF, LEN}, 0, 0}, {"close_range", 436, {FILL, FILL, FLAG}, 0, 0}, {"openat2", 437, {DIR, PATH,
        HOW, HOWSIZE}, 3, 11}, {"pidfd_getfd", 438, {PFD, FILL, FLAG}, 0, 0}, {"faccessat2", 439, {DIR, PATH, FLAG, FLAG}, 0, 0},
        {"process_madvise", 440, {PFD, VEC, COUNT, NUM, FLAG}, 0, 0}, {"epoll_pwait2", 441, {EP, BUF, COUNT, SPAN, SET, SETSIZE}, 0, 0},
        {"quotactl_fd", 443, {FD, NUM, ZEROES, BUF}, 0, 0}, {"landlock_create_ruleset", 444, {BUF, LEN, FLAG}, 0, 0},
    {"memfd_secret", 447, {FLAG}, 0, 0}, {"process_mrelease", 448, {PFD, FLAG}, 0, 0}, {"futex_waitv", 449, {BUF, COUNT, FLAG, SPAN,
        CLOCK}, 0, 0}, {"set_mempolicy_home_node", 450, {MAP, SIZE, NUM, FLAG}, 0, 0}, {"unused-335", 335, {ZEROES}, 0, 0},
        {"unused-451", 451, {ZEROES}, 0, 0},
};

static void put(long at, const char *text) { strcpy((char *)at, text); }
static void put_long(long at, long a, long b, long c, long d) { long *to = (long *)at; to[0] = a, to[1] = b, to[2] = c, to[3] = d; }

static void fill_memory(void) {
    MUST(mmap((void *)BASE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)BASE);
    MUST(mmap((void *)READONLY, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)READONLY);
    MUST(mmap((void *)CLOSED_PAGE, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)CLOSED_PAGE);
    MUST(mmap((void *)MAPPING, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)MAPPING);
    MUST(mmap((void *)OUTSIDE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)OUTSIDE);
    static const char *const texts[] = {
        "file", "folder", "missing", "link", "loop", "dangling", "fifo", "socket", "file/", "folder/", "file/x", "missing/x", "link/",
            "missing/", ".", "..", "/", "", "folder/.", "folder/..", "dangling/",
        "/dev/null", "/proc/version", "file/.", "dirlink", "dirlink/", "/bin", "/proc/self/fd", "full", "user.a", "none.a", "trusted.a",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) put(STRINGS + 16 * i, texts[i]);
    memset((char *)STRINGS + 512, 'n', 256);
    memset((char *)OUTSIDE, '/', 2 * PAGE - 1);
    put_long(STRUCTS, 0, 1000000, 0, 1000000), put_long(STRUCTS + 32, -1, 0, -1, 0), put_long(STRUCTS + 64, 0, 1000000000, 0,
        1000000000), put_long(STRUCTS + 96, 0, -1, 0, -1), put_long(STRUCTS + 160, ~0ul >> 1, 999999999, ~0ul >> 1, 0);
    put_long(STRUCTS + 192, 1 << 9, 0, 0, 0);
    put_long(STRUCTS + 256, GOOD, 16, GOOD + 16, 16), put_long(STRUCTS + 288, GONE, 16, GOOD, 16), put_long(STRUCTS + 320, GOOD, 16,
        GONE, 16), put_long(STRUCTS + 352, PARTLY, 16, GOOD, 16), put_long(STRUCTS + 384, GOOD, -1, GOOD, 16), put_long(STRUCTS + 416,
        GOOD, 0, GONE, 0);
    struct msghdr *message = (void *)(STRUCTS + 448), good = {.msg_iov = (void *)(STRUCTS + 256), .msg_iovlen = 1};
    for (int i = 0; i < 8; i++) *(struct msghdr *)((char *)message + 64 * i) = good;
    *(size_t *)(STRUCTS + 512 + offsetof(struct msghdr, msg_iovlen)) = 0;
    ((struct msghdr *)(STRUCTS + 576))->msg_iov = (void *)GONE;
    ((struct msghdr *)(STRUCTS + 640))->msg_name = (void *)GONE, ((struct msghdr *)(STRUCTS + 640))->msg_namelen = 16;
    ((struct msghdr *)(STRUCTS + 704))->msg_control = (void *)GONE, ((struct msghdr *)(STRUCTS + 704))->msg_controllen = 32;
    ((struct msghdr *)(STRUCTS + 768))->msg_iovlen = 1025;
    ((struct msghdr *)(STRUCTS + 832))->msg_name = (void *)GOOD, ((struct msghdr *)(STRUCTS + 832))->msg_namelen = 4096;
    ((struct msghdr *)(STRUCTS + 896))->msg_control = (void *)GOOD, ((struct msghdr *)(STRUCTS + 896))->msg_controllen = 32;
    *(struct sockaddr_in *)(STRUCTS + 1024) = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(9),
        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    *(struct sockaddr_un *)(STRUCTS + 1056) = (struct sockaddr_un){AF_UNIX, "socket"};
    *(struct sockaddr_un *)(STRUCTS + 1184) = (struct sockaddr_un){AF_UNIX, "missing"};
    *(short *)(STRUCTS + 1344) = 77;
    *(struct sockaddr_un *)(STRUCTS + 1376) = (struct sockaddr_un){AF_UNIX, "file"};
    int told[] = {16, 0, 4, 1, -1, 4096};
    memcpy((void *)(STRUCTS + 1536), told, sizeof told);
    put_long(STRUCTS + 1600, 0, -1, ~0ul >> 1, 0);
    put_long(STRUCTS + 2048, O_RDONLY, 0, 0, 0), put_long(STRUCTS + 2080, O_RDWR, 0, 0, 0), put_long(STRUCTS + 2112, O_RDONLY, 0644, 0,
        0), put_long(STRUCTS + 2144, 1l << 40, 0, 0, 0), put_long(STRUCTS + 2176, 0, 0, 1l << 40, 0), put_long(STRUCTS + 2208, 0, 0, 8,
        0),
        put_long(STRUCTS + 2240, 0, 0, 16, 0), put_long(STRUCTS + 2272, 0, 0, 4, 0), put_long(STRUCTS + 2304, 0, 0, 1, 0),
            put_long(STRUCTS + 2336, 0, 0, 32, 0), put_long(STRUCTS + 2368, 0, 0, 24, 0);
    *(struct flock *)(STRUCTS + 2560) = (struct flock){.l_type = F_RDLCK, .l_len = 10},
        *(struct flock *)(STRUCTS + 2592) = (struct flock){.l_type = F_RDLCK, .l_whence = 9},
        *(struct flock *)(STRUCTS + 2624) = (struct flock){.l_type = 9};
    *(struct flock *)(STRUCTS + 2656) = (struct flock){.l_type = F_RDLCK, .l_start = -5},
        *(struct flock *)(STRUCTS + 2688) = (struct flock){.l_type = F_RDLCK, .l_start = 5, .l_len = ~0ul >> 1};
    *(int *)(STRUCTS + 2816) = 0, *(short *)(STRUCTS + 2820) = 4, *(int *)(STRUCTS + 2832) = 900, *(int *)(STRUCTS + 2840) = -1;
    *(int *)(STRUCTS + 2880) = 1, *(unsigned *)(STRUCTS + 2896) = 1u << 28 | 1, *(unsigned *)(STRUCTS + 2912) = 1u << 28 | 1u << 30 | 1;
    static const int notify[][2] = {{0, 1}, {14, 0}, {65, 0}, {14, 2}, {14, 9}, {14, 4}};
    for (int i = 0; i < 6; i++) *(int *)(STRUCTS + 3072 + 64 * i + 8) = notify[i][0], *(int *)(STRUCTS + 3072 + 64 * i + 12) = notify[i][1];
}

static void fill_folder(void) {
    MUST(!system("cd /tmp; chmod -R u+rwx sweep 2>/dev/null; rm -rf sweep; mkdir sweep; cd sweep; mkdir folder full;"
        "echo x >full/x; head -c 8192 /dev/zero >file; ln -s file link; ln -s loop loop; ln -s nowhere dangling;"
        "ln -s folder dirlink; mkfifo fifo"));
    MUST(!chdir("/tmp/sweep"));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un at = {AF_UNIX, "socket"};
    MUST(!bind(fd, (void *)&at, sizeof at) && !close(fd));
}

static int a_socket(int what) {
    int ends[2], fd;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    switch (what) {
    case STREAM: MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && write(ends[1], "0123456789", 10) == 10); return ends[0];
    case DATAGRAM: MUST(!socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) && write(ends[1], "0123456789", 10) == 10); return ends[0];
    case UNCONNECTED: return socket(AF_INET, SOCK_STREAM, 0);
    case UDP: return socket(AF_INET, SOCK_DGRAM, 0);
    default:
        MUST((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && !bind(fd, (void *)&at, length) && !listen(fd, 3) && !getsockname(fd,
            (void *)&at, &length));
        if (what == LISTENER) return fd;
        MUST((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && !connect(ends[0], (void *)&at, length) && (ends[1] = accept(fd, 0,
            0)) >= 0 && write(ends[1], "0123456789", 10) == 10);
        return ends[0];
    }
}

static long special(long what) {
    int ends[2], fd;
    sigset_t none;
    switch (what) {
    case FILE_: return open("/tmp/sweep/file", O_RDWR);
    case READER: return open("/tmp/sweep/file", O_RDONLY);
    case WRITER: return open("/tmp/sweep/file", O_WRONLY);
    case APPENDER: return open("/tmp/sweep/file", O_RDWR | O_APPEND);
    case FOLDER: return open("/tmp/sweep/folder", O_RDONLY);
    case PATH_ONLY: return open("/tmp/sweep/file", O_PATH);
    case PIPE_IN: MUST(!pipe(ends) && write(ends[1], "0123456789", 10) == 10); return ends[0];
    case PIPE_OUT: MUST(!pipe(ends)); return ends[1];
    case FULL_PIPE: MUST(!pipe2(ends, O_NONBLOCK)); while (write(ends[1], (char *)BASE, PAGE) > 0) {} fcntl(ends[1], F_SETFL, 0);
        return ends[1];
    case EMPTY_PIPE: MUST(!pipe(ends)); return ends[0];
    case EPOLL: return epoll_create1(0);
    case EVENT: return eventfd(3, 0);
    case TIMER: return timerfd_create(CLOCK_MONOTONIC, 0);
    case SIGNALS: sigemptyset(&none); sigaddset(&none, SIGUSR2); return signalfd(-1, &none, 0);
    case SEALED: case MEMFD:
        MUST((fd = memfd_create("sweep", MFD_ALLOW_SEALING)) >= 0 && !ftruncate(fd, 8192));
        if (what == SEALED) MUST(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
        return fd;
    case INOTIFY: return inotify_init();
    case PIDFD: return syscall(434, getpid(), 0);
    case NULL_: return open("/dev/null", O_RDWR);
    case ZERO: return open("/dev/zero", O_RDWR);
    case PROC: return open("/proc/self/status", O_RDONLY);
    case SELF: return getpid();
    case OWN_GROUP: return -getpid();
    case SHARED_MAPPING: return (long)mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    case FILE_MAPPING: return (long)mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, open("/tmp/sweep/file", O_RDWR), 0);
    default: return a_socket(what);
    }
}

static void rings(int signal) { (void)signal; }

// A process that the call makes leaves at once: it may stand on the caller's stack.
static long make(long number, const long *a) {
    long result;
    register long d __asm__("r10") = a[3], e __asm__("r8") = a[4], f __asm__("r9") = a[5];
    __asm__ volatile("syscall\n\ttest %0, %0\n\tjnz 1f\n\tcmp $56, %7\n\tjne 1f\n\tmov $60, %%eax\n\txor %%edi, %%edi\n\tsyscall\n1:"
        : "=a"(result) : "0"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(d), "r"(e), "r"(number), "r"(f) : "rcx", "r11", "memory");
    return result;
}

static volatile long *told;
static volatile pid_t running;

static void ends_it(int signal) { (void)signal; kill(running, SIGKILL); }

static void child(const struct call *call, const struct value *const *values) {
    long args[6] = {0};
    alarm(0), setpgid(0, 0);
    signal(SIGALRM, SIG_DFL);
    int null = open("/dev/null", O_RDWR);
    MUST(null >= 0 && dup2(null, 0) == 0);
    for (int i = 0; i < 6; i++) {
        if (!values[i]) break;
        args[i] = values[i]->value;
        if ((args[i] & ~0xffl) == SPECIAL) MUST((args[i] = special(args[i] & 0xff)) != -1);
    }
    struct sigaction action = {.sa_handler = rings};
    sigaction(SIGALRM, &action, 0);
    struct itimerval soon = {{0, 60000}, {0, 20000}};
    setitimer(ITIMER_REAL, &soon, 0);
    told[0] = make(call->number, args), told[1] = 1;
    syscall(SYS_exit_group, 0);
}

static const char *answer(const struct call *call, const struct value *const *values) {
    static char text[32];
    told[1] = 0;
    // A call before may have removed what the next one is about.
    if (access("/dev/null", F_OK)) MUST(!mknod("/dev/null", S_IFCHR | 0666, makedev(1, 3)));
    if (access("/tmp/sweep/file", F_OK) || access("/tmp/sweep/folder", F_OK)) fill_folder();
    pid_t pid = fork();
    int status;
    MUST(pid >= 0);
    if (!pid) child(call, values);
    running = pid, alarm(3);
    while (waitpid(pid, &status, 0) != pid) MUST(errno == EINTR);
    alarm(0);
    long result = told[0];
    if (!told[1] && WIFSIGNALED(status)) snprintf(text, sizeof text, "signal%d", WTERMSIG(status));
    else if (!told[1]) snprintf(text, sizeof text, "exit%d", WEXITSTATUS(status));
    else if (result == -EINTR) return "sleeps";
    else if (result == -512 || result == -516 || result == -514 || result == -513) return "restarts";
    else if (result < 0 && result > -4096) return error_name(-result);
    else if (result == pid) return "pid";
    else if (result < 0 || result > 10000) return "ok";
    else snprintf(text, sizeof text, "%ld", result);
    return text;
}

// Not there on this kernel, which says ENOSYS, or there for what it lacks: other namespaces, huge pages, asynchronous I/O, keys, NUMA.
static const char *const absent[] = {
    "ustat", "sysfs", "pivot_root", "adjtimex", "iopl", "ioperm", "init_module", "delete_module", "quotactl",
    "modify_ldt", "mbind", "set_mempolicy", "get_mempolicy", "mq_open", "kexec_load", "add_key",
    "keyctl", "ioprio_set", "ioprio_get", "inotify_add_watch", "inotify_rm_watch", "migrate_pages",
    "move_pages", "inotify_init1", "perf_event_open", "fanotify_init", "name_to_handle_at", "open_by_handle_at",
    "setns", "kcmp", "finit_module", "seccomp", "bpf", "userfaultfd", "pkey_mprotect", "pkey_alloc", "pkey_free",
    "rseq", "io_setup", "pidfd_send_signal", "open_tree", "pidfd_open", "pidfd_getfd", "process_madvise",
    "quotactl_fd", "landlock_create_ruleset", "process_mrelease", "futex_waitv", "set_mempolicy_home_node",
};

// Not compared as a whole; `sweeps -l CALL` on both kernels tells which of their values differ.
static const char *const left[] = {
    // What the machine is, what else runs, and where the swept folder lies decide on some answers.
    "getrandom", "prlimit64", "setrlimit", "times", "getppid", "getsid", "getrusage", "sysinfo", "time", "swapon", "swapoff",
    "rename", "renameat", "renameat2", "rmdir", "umount2", "clock_nanosleep", "epoll_pwait", "epoll_pwait2", "select", "pselect6",
    "setgroups", "prctl", "memfd_create", "clone", "clone3", "process_vm_readv", "process_vm_writev", "rt_tgsigqueueinfo",
    // Mappings: of sockets, of growing stacks, and moves that Linux checks in another order.
    "mmap", "mprotect", "mremap", "msync", "rt_sigaction",
    // Conditions that lend priorities, namespaces, schedulers' other policies.
    "futex", "unshare", "sched_get_priority_max", "sched_get_priority_min", "membarrier",
    // Walks that don't wait, hints, copies between special files.
    "openat2", "fcntl", "pipe2", "write", "pwrite64", "pwritev", "pwritev2", "ioctl",
    "sendfile", "splice", "vmsplice", "readahead",
    // Nodes behind files that have no path, those of /proc, times before 1970 and of birth.
    "chmod", "fchmod", "fchmodat", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat", "utimensat",
    "newfstatat", "setxattr", "lsetxattr", "fsetxattr", "getxattr", "fgetxattr", "flistxattr",
    "removexattr", "fremovexattr",
    // Kinds of sockets and options that are missing, and the order in which mistakes are found.
    "socket", "connect", "sendto", "recvfrom", "sendmsg", "recvmsg", "socketpair", "setsockopt", "getsockopt", "recvmmsg",
    "sendmmsg",
    // The order in which mistakes are found.
    "shmget", "shmat", "shmctl", "timer_create", "waitid",
};

static int is_skipped(const char *name) {
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) if (!strcmp(absent[i], name)) return 1;
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) if (!strcmp(left[i], name)) return 1;
    return 0;
}

static int one_each;

static void row(const struct call *call, int varied, const struct value **values) {
    char head[256] = "";
    const struct kind *kind = &kinds[call->args[varied]];
    for (int i = 0; i < 6 && call->args[i]; i++) {
        strcat(head, i ? ", " : "");
        strcat(head, i == varied ? "*" : values[i]->name);
    }
    static char groups[100][32];
    static char members[100][4096];
    int count = 0;
    for (int i = 0; i < kind->count; i++) {
        values[varied] = &kind->values[i];
        const char *said = answer(call, values);
        if (one_each) { printf("%s(%s) * = %s: %s\n", call->name, head, kind->values[i].name, said); fflush(stdout); continue; }
        int at = 0;
        while (at < count && strcmp(groups[at], said)) at++;
        if (at == count) strcpy(groups[count], said), members[count++][0] = 0;
        strcat(strcat(members[at], " "), kind->values[i].name);
    }
    if (!one_each) {
        printf("%s(%s):", call->name, head);
        for (int i = 0; i < count; i++) printf(" %s:%s%s", groups[i], members[i], i + 1 < count ? ";" : "");
        printf("\n");
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "-l")) one_each = 1, argv++, argc--;
    told = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_handler = ends_it};
    sigaction(SIGALRM, &action, 0);
    signal(SIGPIPE, SIG_IGN), signal(SIGXFSZ, SIG_IGN);
    umask(022);
    for (int fd = 3; fd < 100; fd++) close(fd);
    struct rlimit files = {1024, 4096}, stack = {8 << 20, 8 << 20};
    setrlimit(RLIMIT_NOFILE, &files), setrlimit(RLIMIT_STACK, &stack);
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCSIFFLAGS, &loopback), close(3);
    fill_memory();
    for (size_t n = 0; n < sizeof calls / sizeof *calls; n++) {
        const struct call *call = &calls[n];
        if (argc > 1 ? !!strcmp(call->name, argv[1]) : is_skipped(call->name)) continue;
        fill_folder();
        int crossed = call->crossed ? call->crossed - 1 : 0, rounds = call->crossed ? call->values : 1;
        if (!call->args[0]) { const struct value *none[6] = {0}; printf("%s(): %s\n", call->name, answer(call, none)); continue; }
        for (int round = 0; round < rounds; round++) {
            const struct value *values[6] = {0};
            for (int varied = 0; varied < 6 && call->args[varied]; varied++) {
                if (varied == crossed && round) continue;
                for (int i = 0; i < 6 && call->args[i]; i++) values[i] = &kinds[call->args[i]].values[0];
                if (call->crossed) values[crossed] = &kinds[call->args[crossed]].values[round];
                if (kinds[call->args[varied]].count > 1) row(call, varied, values);
            }
        }
    }
    printf("done\n");
    return 0;
}
