// Who may do what to a file: every call that names one, for every caller of callers.h, on files and in folders of many owners and
// modes. Each cell is an error, `.` for none, or what the call left: mode and owner. `RIGHTS_AT` names another file system.
#include "callers.h"
#include <sys/socket.h>
#include <sys/un.h>

static char at[40], victim[64], beside[64], elsewhere[64], folder[64];

struct kind { uid_t owner; gid_t group; mode_t mode; };

static void discard(const char *path) {
    if (unlink(path) && errno != ENOENT && errno != ENOTDIR) rmdir(path);
}

static void clean(void) {
    const char *left[] = {victim, beside, elsewhere, folder};
    MUST(!chdir("/"));
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"f", "new"};
        char path[80];
        for (int n = 0; n < 2; n++) {
            snprintf(path, sizeof path, "%.60s/%s", left[i], names[n]);
            discard(path);
        }
        discard(left[i]);
    }
}

static void give(const char *path, const struct kind *kind) {
    MUST(!lchown(path, kind->owner, kind->group));
    MUST(!chmod(path, kind->mode));
}

static void make_file(const char *path, const struct kind *kind) {
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    MUST(fd >= 0 && write(fd, "#!/none\n", 8) == 8 && !close(fd));
    give(path, kind);
}

static void make_folder(const char *path, const struct kind *kind) {
    MUST(!mkdir(path, 0700));
    give(path, kind);
}

// Calls on `victim`, which lies in a folder that everybody may write to.
static int opened(int flags) { int fd = open(victim, flags); if (fd < 0) return -1; close(fd); return 0; }
static int reads(void) { return opened(O_RDONLY); }
static int writes(void) { return opened(O_WRONLY); }
static int truncates_open(void) { return opened(O_RDWR | O_TRUNC); }
static int runs(void) { char *none[] = {victim, 0}; execv(victim, none); if (errno == ENOENT) return 0; return -1; }
static int asks_r(void) { return access(victim, R_OK); }
static int asks_w(void) { return access(victim, W_OK); }
static int asks_x(void) { return access(victim, X_OK); }
static int asks_as_files(void) { return syscall(439, AT_FDCWD, victim, R_OK | W_OK, AT_EACCESS); }
static int truncates(void) { return truncate(victim, 4); }
static int writes_byte(void) { int fd = open(victim, O_WRONLY); if (fd < 0) return -1; return write(fd, "x", 1) == 1 ? 0 : -1; }
static int mode_644(void) { return chmod(victim, 0644); }
static int mode_6777(void) { return chmod(victim, 06777); }
static int owner_none(void) { return chown(victim, -1, -1); }
static int owner_own(void) { return chown(victim, geteuid(), -1); }
static int owner_1001(void) { return chown(victim, 1001, -1); }
static int group_1000(void) { return chown(victim, -1, 1000); }
static int group_1001(void) { return chown(victim, -1, 1001); }
static int times_now(void) { return utimensat(AT_FDCWD, victim, 0, 0); }
static int times_set(void) { struct timespec t[2] = {{1, 0}, {1, 0}}; return utimensat(AT_FDCWD, victim, t, 0); }
static int times_half(void) { struct timespec t[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}}; return utimensat(AT_FDCWD, victim, t, 0); }
static int times_omit(void) { struct timespec t[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}}; return utimensat(AT_FDCWD, victim, t, 0); }
static int links(void) { return link(victim, beside); }
static int links_open(void) { int fd = open(victim, O_PATH); if (fd < 0) return -1; return linkat(fd, "", AT_FDCWD, beside, AT_EMPTY_PATH); }
static int links_proc(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", open(victim, O_PATH));
    return linkat(AT_FDCWD, path, AT_FDCWD, beside, AT_SYMLINK_FOLLOW);
}
static int enters(void) { return chdir(victim); }
static int enters_open(void) { int fd = open(victim, O_PATH); return fd < 0 ? -1 : fchdir(fd); }
static int roots(void) { return chroot(victim); }
static int lists(void) { return opened(O_RDONLY | O_DIRECTORY); }
static int looks_at(const char *name) {
    char path[300];
    struct stat stat;
    snprintf(path, sizeof path, "%s/%s", victim, name);
    return lstat(path, &stat);
}
static int looks_here(void) { return looks_at("."); }
static int looks_above(void) { return looks_at(".."); }
static int looks(void) { return looks_at("f"); }
static int moves_out(void) { return rename(victim, elsewhere); }
static int unnamed(void) { int fd = open(victim, O_TMPFILE | O_WRONLY, 0600); return fd < 0 ? -1 : 0; }

#define CALL(call, shows) {#call, call, shows}
static const struct call { const char *name; int (*make)(void); int shows; } on_files[] = {
    CALL(reads, 0), CALL(writes, 0), CALL(truncates_open, 1), CALL(runs, 0), CALL(asks_r, 0), CALL(asks_w, 0), CALL(asks_x, 0),
    CALL(asks_as_files, 0), CALL(truncates, 1), CALL(writes_byte, 1), CALL(mode_644, 1), CALL(mode_6777, 1), CALL(owner_none, 1),
    CALL(owner_own, 1), CALL(owner_1001, 1), CALL(group_1000, 1), CALL(group_1001, 1), CALL(times_now, 0), CALL(times_set, 0),
    CALL(times_half, 0), CALL(times_omit, 0), CALL(links, 0), CALL(links_open, 0), CALL(links_proc, 0),
}, on_folders[] = {
    CALL(lists, 0), CALL(looks, 0), CALL(looks_here, 0), CALL(looks_above, 0), CALL(enters, 0), CALL(enters_open, 0), CALL(roots, 0), CALL(asks_w, 0), CALL(asks_x, 0),
    CALL(mode_6777, 1), CALL(owner_1001, 1), CALL(group_1000, 1), CALL(times_set, 0), CALL(moves_out, 0), CALL(unnamed, 0),
};

// Calls on names in `folder`, which has a file or folder `f`.
static char inside[80], fresh[80];
static int makes(void) { int fd = open(fresh, O_CREAT | O_WRONLY, 06777); return fd < 0 ? -1 : 0; }
static int makes_there(void) { int fd = open(inside, O_CREAT | O_WRONLY, 0600); return fd < 0 ? -1 : 0; }
static int makes_folder(void) { return mkdir(fresh, 0777); }
static int makes_folder_there(void) { return mkdir(inside, 0777); }
static int makes_fifo(void) { return mknod(fresh, S_IFIFO | 0666, 0); }
static int makes_device(void) { return mknod(fresh, S_IFCHR | 0666, 0x103); }
static int makes_link(void) { return symlink("f", fresh); }
static int makes_socket(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s", fresh);
    return bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&name, sizeof name);
}
static int removes(void) { return unlink(inside); }
static int removes_folder(void) { return rmdir(inside); }
static int removes_absent(void) { return unlink(fresh); }
static int renames(void) { return rename(inside, fresh); }
static int renames_away(void) { return rename(inside, elsewhere); }
static int renames_onto(void) { return rename(beside, inside); }
static int swaps(void) { return syscall(SYS_renameat2, AT_FDCWD, beside, AT_FDCWD, inside, 2); }
static int links_into(void) { return link(beside, fresh); }
static int looks_inside(void) { struct stat stat; return lstat(inside, &stat); }

static const struct call in_folders[] = {
    CALL(makes, 2), CALL(makes_there, 0), CALL(makes_folder, 2), CALL(makes_folder_there, 0), CALL(makes_fifo, 2),
    CALL(makes_device, 2), CALL(makes_link, 2), CALL(makes_socket, 2), CALL(removes, 0), CALL(removes_folder, 0),
    CALL(removes_absent, 0), CALL(renames, 0), CALL(renames_away, 0), CALL(renames_onto, 0), CALL(swaps, 0), CALL(links_into, 0),
    CALL(looks_inside, 0),
};

static void show(const char *path) {
    struct stat stat;
    if (lstat(path, &stat)) { printf(" gone"); return; }
    printf(" %o:%u:%u", stat.st_mode, stat.st_uid, stat.st_gid);
}

static const struct kind open_place = {0, 0, 0777}, any_file = {1000, 1000, 0666};

static void row(const struct call *call, const char *what, const struct kind *kind, void (*before)(const struct kind *)) {
    printf("%-18s %s %4o %u:%u ", call->name, what, kind->mode, kind->owner, kind->group);
    for (int i = 0; i < CALLERS; i++) {
        before(kind);
        int error = answer_to(&callers[i], call->make);
        if (error || !call->shows) printf(" %s", error_name(error));
        else show(call->shows == 1 ? victim : fresh);
        clean();
    }
    printf("\n");
}

static void one_file(const struct kind *kind) { make_file(victim, kind); }
static void one_folder(const struct kind *kind) {
    char path[300];
    make_folder(victim, kind);
    snprintf(path, sizeof path, "%s/f", victim);
    make_file(path, &any_file);
}
static uid_t inner_owner;
static void folder_and_file(const struct kind *kind) {
    struct kind inner = {inner_owner, inner_owner, 0666};
    make_folder(folder, kind);
    make_file(inside, &inner);
    make_file(beside, &any_file);
}
static void folder_and_folder(const struct kind *kind) {
    struct kind inner = {inner_owner, inner_owner, 0755};
    make_folder(folder, kind);
    make_folder(inside, &inner);
    make_folder(beside, &any_file);
}

#define EACH(call, list) for (const struct call *call = list; call < list + sizeof list / sizeof *list; call++)

static void links_of_strangers(void) {
    // A link in a sticky folder that all may write to leads its owner and the folder's owner alone.
    static const struct kind places[] = {{0, 0, 01777}, {1000, 1000, 01777}, {0, 0, 0777}, {1000, 1000, 01775}};
    static const uid_t owners[] = {0, 1000, 1001};
    for (int p = 0; p < 4; p++) for (int o = 0; o < 3; o++) {
        printf("follows %o:%u link of %u ", places[p].mode, places[p].owner, owners[o]);
        for (int i = 0; i < CALLERS; i++) {
            make_folder(folder, &places[p]);
            make_file(beside, &any_file);
            MUST(!symlink(beside, inside) && !lchown(inside, owners[o], owners[o]));
            snprintf(victim, sizeof victim, "%.60s", inside);
            printf(" %s", error_name(answer_to(&callers[i], reads)));
            snprintf(victim, sizeof victim, "%s/victim", at);
            clean();
        }
        printf("\n");
    }
}

int main(void) {
    const char *base = getenv("RIGHTS_AT");
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    umask(0);
    snprintf(at, sizeof at, "%s/rights", base ? base : "/tmp");
    MUST(!mkdir(at, 0777));
    snprintf(victim, sizeof victim, "%s/victim", at);
    snprintf(beside, sizeof beside, "%s/beside", at);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", at);
    snprintf(folder, sizeof folder, "%s/folder", at);
    snprintf(inside, sizeof inside, "%s/f", folder);
    snprintf(fresh, sizeof fresh, "%s/new", folder);
    give(at, &open_place);
    static const struct kind files[] = {
        {0, 0, 0600}, {0, 0, 0644}, {0, 0, 0666}, {0, 0, 0700}, {0, 0, 0755}, {0, 1000, 0640}, {1000, 1000, 0600}, {1000, 1000, 0},
        {1000, 1000, 0077}, {1000, 1000, 0707}, {1000, 1000, 0111}, {0, 0, 06777}, {1000, 1000, 06777}, {1000, 1000, 02666},
        {1001, 1000, 06777}, {1001, 1001, 0755},
    }, folders[] = {
        {0, 0, 0700}, {0, 0, 0755}, {0, 0, 0777}, {1000, 1000, 0700}, {1000, 1000, 0300}, {1000, 1000, 0500}, {1000, 1000, 0070},
        {1000, 1000, 02755}, {1001, 1000, 0750},
    }, places[] = {
        {0, 0, 0755}, {0, 0, 0777}, {0, 0, 01777}, {0, 1000, 02777}, {1000, 1000, 0755}, {1000, 1000, 01777}, {1000, 1000, 0300},
        {1000, 1000, 0600}, {1001, 1001, 01755},
    };
    print_callers(30);
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) EACH(call, on_files) row(call, "file", &files[k], one_file);
    for (size_t k = 0; k < sizeof folders / sizeof *folders; k++) EACH(call, on_folders) row(call, "folder", &folders[k], one_folder);
    for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
        static const uid_t owners[] = {0, 1000, 1001};
        for (int o = 0; o < 3; o++) {
            char what[32];
            inner_owner = owners[o];
            snprintf(what, sizeof what, "file of %u in", inner_owner);
            EACH(call, in_folders) if (o == 0 || !call->shows) row(call, what, &places[k], folder_and_file);
            snprintf(what, sizeof what, "folder of %u in", inner_owner);
            EACH(call, in_folders) if (!call->shows) row(call, what, &places[k], folder_and_folder);
        }
    }
    if (!base) links_of_strangers();
    printf("the table is whole\n");
    return 0;
}
