//! Debian's programs, shells and the examples for programs.

use super::super::prepare;
use super::Expect::{Contains, Exactly, Lacks, Matches};
use super::{Case, Expect, CASE};
use crate::guest::Libc;

pub const CASES: &[Case] = &[
    Case {
        name: "gcc compiles and runs hello world",
        command: &["/bin/busybox", "sh", "-c", "cd /root && gcc -O2 -o hello hello.c && ./hello"],
        prepare: prepare::compiler,
        expect: &[Exactly("hello, world\n")],
        code: 42,
        memory: "1G",
        seconds: 300,
        ..CASE
    },
    Case {
        name: "python with multiprocessing",
        command: &["python3", "-c", PYTHON_PROCESSES],
        expect: &[Exactly("[0, 1, 4, 9, 16, 25, 36, 49]\n[('child', 7)]\n")],
        seconds: 300,
        ..CASE
    },
    Case {
        name: "python with sockets",
        command: &["python3", "-c", PYTHON_SOCKETS],
        expect: &[Exactly("{'a': 1}\nhello over http\n[(4, b'udp')]\n")],
        seconds: 300,
        ours_only: true,
        ..CASE
    },
    Case {
        name: "python with threads",
        command: &["python3", "-c", PYTHON_THREADS],
        expect: &[Exactly("8000 [0, 1, 2, 3, 4, 5, 6, 7]\n{\"ok\": 499500}\nhello\n")],
        code: 6,
        seconds: 300,
        ..CASE
    },
    Case {
        name: "sort of ten million bytes",
        command: &["/bin/bash", "-c", "LC_ALL=C sort /data/unsorted.txt >/tmp/sorted && cksum </tmp/sorted"],
        add: &["/usr/bin/sort", "/usr/bin/cksum"],
        prepare: prepare::data_to_sort,
        expect: &[Expect::Prepared],
        seconds: 300,
        ..CASE
    },
    Case {
        name: "ps, top, pgrep, pidof, free, vmstat and pmap",
        guests: &[("procfiles", Libc::Musl)],
        command: &["/bin/bash", "-c", PROCPS],
        add: &[
            "/usr/bin/ps",
            "/usr/bin/top",
            "/usr/bin/pgrep",
            "/usr/bin/pidof",
            "/usr/bin/free",
            "/usr/bin/vmstat",
            "/usr/bin/uptime",
            "/usr/bin/pmap",
            "/usr/bin/prlimit",
            "/usr/bin/head",
            "/usr/bin/tail",
            "/bin/sleep",
            "/lib/terminfo/d/dumb",
        ],
        expect: &[
            Matches(r"(?m)^ +3 +Sl.? +leader\r?\n +3 +Sl.? +waiter\r?\n +3 +Rl.? +worker\r?$"),
            Matches(r"(?m)^waiter +0\r?\nworker +[1-9]\d*\r?$"),
            Matches(r"(?m)^root .* Sl.? .*/bin/procfiles threads\r?$"),
            Matches(r"(?m)^Tasks: +3 total, +1 running, +2 sleeping|^Threads: +3 total, +1 running, +2 sleeping"),
            Matches(r"(?m)^ *\d+ root .* R +\d+\.\d +\d+\.\d +\d+:0\d\.\d\d worker *\r?$"),
            Matches(r"(?m)^same same same\r?$"),
            Matches(r"(?m)^Mem: +\d+ +\d+ +\d+ +\d+ +\d+ +\d+\r?$"),
            Matches(r"(?m)^ *[1-9]\d* +0 +0 +\d+ +0 +\d+( +\d+){6} +[5-9]\d.*\r?$|^ *[1-9]\d* +0 +0 +\d+ +0 +\d+( +\d+){6} +100 "),
            Matches(r"load average: \d+\.\d\d, \d+\.\d\d, \d+\.\d\d"),
            Matches(r"(?m)^total kB +\d+ +[1-9]\d* +[1-9]\d*\r?$"),
            Matches(r"(?m)^NOFILE +max number of open files +\d+"),
            Matches(r"(?m)^123 +8\r?$"),
        ],
        seconds: 300,
        ..CASE
    },
    Case {
        name: "example: a secret kept from children",
        guests: &[("secret", Libc::Musl)],
        command: &["/bin/secret"],
        expect: &[Exactly("the child counted to 1 and did not see the secret\n")],
        ..CASE
    },
    Case {
        name: "example: pages donated through a pipe",
        guests: &[("donate", Libc::Musl)],
        command: &["/bin/donate"],
        expect: &[Exactly("4 images came, 0 bytes of them wrong\n")],
        ..CASE
    },
    Case {
        name: "example: a table passed to a child",
        guests: &[("pass", Libc::Musl)],
        command: &["/bin/pass"],
        expect: &[Exactly("1048576 rows came, 0 of them wrong\n")],
        ..CASE
    },
    Case {
        name: "script, and what runs in it",
        command: &["/bin/bash", "-c", SCRIPT],
        prepare: prepare::terminal_programs,
        expect: &[Contains("/dev/pts/0"), Matches(r"\npts/0 "), Contains("typed: hello"), Contains("code 7")],
        memory: "1G",
        ..CASE
    },
    Case {
        name: "expect",
        command: &["/usr/bin/expect", "-c", EXPECT],
        prepare: prepare::terminal_programs,
        expect: &[Contains("interrupted"), Contains("size 33 100"), Contains("ended 3")],
        memory: "1G",
        ..CASE
    },
    Case {
        name: "tmux with two panes",
        command: &["/bin/bash", "-c", TMUX],
        prepare: prepare::terminal_programs,
        expect: &[Contains("pane 0 is /dev/pts/"), Contains("pane 1 is /dev/pts/"), Contains("panes 2"), Contains("none left")],
        memory: "1G",
        ..CASE
    },
    Case {
        name: "screen",
        command: &["/bin/bash", "-c", SCREEN],
        prepare: prepare::terminal_programs,
        expect: &[Contains("window is /dev/pts/"), Contains("none left")],
        memory: "1G",
        ..CASE
    },
    Case {
        name: "python makes terminals",
        command: &["/usr/bin/python3", "-c", PYTHON_PTY],
        prepare: prepare::terminal_programs,
        expect: &[Contains("200000 bytes came, the same: True"), Contains("spawned on /dev/pts/"), Contains("status 5")],
        memory: "1G",
        ..CASE
    },
    Case {
        name: "strace -f",
        command: &["/bin/bash", "-c", STRACE],
        prepare: prepare::debuggers,
        expect: &[
            Contains("execve(\"/bin/true\""),
            Contains("write(1, \"from a child"),
            Contains("openat(AT_FDCWD, \"/nope\", O_RDONLY) = -1 ENOENT"),
            Contains("+++ exited with 7 +++"),
            Contains("code 7"),
        ],
        memory: "1G",
        ..CASE
    },
    Case {
        name: "gdb watches a program with threads",
        command: &["/bin/bash", "-c", GDB],
        prepare: prepare::debugged,
        expect: &[
            Contains("hit Breakpoint 1, work (arg=0x1)"),
            Contains("hit Hardware watchpoint 2: watched"),
            Contains("New value = 1"),
            Contains("watched is 33"),
            Contains("exited with code 03"),
        ],
        memory: "1G",
        cpus: 2,
        ..CASE
    },
    Case {
        name: "gdb and gdbserver",
        command: &["/bin/bash", "-c", GDBSERVER],
        prepare: prepare::debugged,
        expect: &[
            Contains("hit Breakpoint 1, work (arg=0x1)"),
            Contains("$1 = 0"),
            Contains("Hardware watchpoint 2: watched"),
            Contains("New value = 1"),
            Contains("$2 = 2"),
            Contains("exited with code 03"),
            Contains("$3 = 11"),
        ],
        memory: "1G",
        cpus: 2,
        ..CASE
    },
    Case {
        name: "valgrind, and gdb through it",
        command: &["/bin/bash", "-c", VALGRIND],
        prepare: prepare::valgrind,
        expect: &[
            Contains("true is clean, 0"),
            Matches(r"Invalid read of size 1\r?\n==\d+== +at 0x[0-9A-F]+: look \(leaky.c:4\)"),
            Contains("123 bytes in 1 blocks are definitely lost"),
            Contains("ERROR SUMMARY: 2 errors from 2 contexts"),
            Contains("found 1"),
            Contains("code 9"),
            Contains("Breakpoint 1, look"),
            Contains("$1 = 7"),
            Contains("received signal SIGTRAP"),
            Contains("exited with code 03"),
        ],
        memory: "1G",
        seconds: 600,
        ..CASE
    },
    Case {
        name: "ltrace",
        command: &["/bin/bash", "-c", "ltrace -f /bin/watched 2>&1"],
        prepare: prepare::debugged,
        expect: &[Contains("pthread_create("), Contains("exited (status 3)")],
        memory: "1G",
        ..CASE
    },
    Case {
        name: "an echo server in Go is idle",
        command: &["/bin/echo-go"],
        prepare: prepare::go_echo,
        expect: &[Contains("under one hundredth"), Lacks("FAILED")],
        ..CASE
    },
    Case {
        name: "an echo server on tokio is idle",
        command: &["/bin/echo-tokio"],
        prepare: prepare::tokio_echo,
        expect: &[Contains("under one hundredth"), Lacks("FAILED")],
        ..CASE
    },
    Case {
        name: "MariaDB",
        command: &["/bin/bash", "-c", MARIADB],
        prepare: prepare::mariadb,
        expect: &[Contains("3\tone,two\t1000"), Contains("the server ended with 0")],
        memory: "2G",
        seconds: 600,
        ..CASE
    },
    Case {
        name: "htop, top and ps -L",
        command: &["/bin/bash", "-c", VIEWERS],
        prepare: prepare::process_viewers,
        expect: &[
            Contains("Load average: "),
            Contains("F10"),
            Matches(r"(?m)^\s*\d+ root .* top$"),
            Matches(r"(?m)^Tasks: +\d+ total"),
            Matches(r"(?m)^ *\d+ +\d+ +1 ps$"),
        ],
        memory: "1G",
        ..CASE
    },
    Case {
        name: "empty words",
        command: &["/bin/busybox", "sh", "-c", "echo $# [$0] [$1] [$2] [$3]", "", "", "a b", ""],
        expect: &[Exactly("3 [] [] [a b] []\n")],
        ..CASE
    },
    Case {
        name: "a shell ends with its exit code",
        command: &["/bin/busybox", "sh", "-c", "echo hi; ls /; exit 3"],
        expect: &[Matches(r"(?s)^hi\nbin\s.*proc\s.*tmp\s")],
        code: 3,
        ..CASE
    },
    Case {
        name: "a death by signal is told",
        command: &["/bin/busybox", "sh", "-c", "kill -SEGV $$"],
        code: 139,
        ..CASE
    },
    Case {
        name: "shell pipes",
        command: &["/bin/busybox", "sh", "-c", "echo b a c | tr ' ' '\\n' | sort | cat -n | tail -n 2; seq 1 20000 | wc -l; yes | head -n 1"],
        expect: &[Exactly("     2\tb\n     3\tc\n20000\ny\n")],
        ..CASE
    },
    Case {
        name: "shell redirections",
        command: &["/bin/busybox", "sh", "-c", REDIRECTIONS],
        expect: &[Exactly("one\ntwo\n2\nabsent\nby number\nhere 7\n0\n")],
        ..CASE
    },
    Case {
        name: "shell background jobs",
        // The shell says "Terminated" only if the job still lives when it begins to wait: no test
        // of the kernel.
        command: &["/bin/busybox", "sh", "-c", "exec 2>&-; (sleep 0.3; echo late) & echo early; wait; sleep 50 & kill $!; wait $!; echo $?"],
        expect: &[Exactly("early\nlate\n143\n")],
        ..CASE
    },
    Case {
        name: "bash",
        command: &["/bin/bash", "-c", BASH],
        expect: &[Exactly("0 1 4\nz\ndiffer\nHELLO\n3\n")],
        code: 5,
        ..CASE
    },
    Case {
        name: "ls -lR",
        command: &["ls", "-lR", "/etc", "/usr", "/dev"],
        expect: &[Matches(r"(?m)^-rw-r--r-- +1 root root +\d+ .* passwd\r?$"), Matches(r"(?m)^crw.* 1, +3 .* null\r?$")],
        ..CASE
    },
    Case {
        name: "grep",
        command: &["/bin/bash", "-c", "grep -n root /etc/passwd; grep -rl nogroup /etc; grep -c '^[0-9]*7$' <(seq 1000); grep -q nothing /etc/passwd"],
        add: &["/bin/grep", "/usr/bin/seq"],
        expect: &[Exactly("1:root:x:0:0:root:/root:/bin/sh\n/etc/group\n100\n")],
        code: 1,
        ..CASE
    },
    Case {
        name: "tar and gzip",
        command: &["/bin/bash", "-c", TAR],
        add: &["/bin/tar", "/bin/gzip"],
        expect: &[Exactly("same\nintact\n")],
        seconds: 300,
        ..CASE
    },
];

const REDIRECTIONS: &str =
    "cd /tmp; echo one >f; echo two >>f; cat <f; wc -l <f; ls /nope 2>/dev/null || echo absent; \
exec 3>g; echo by number >&3; exec 3>&-; cat g; x=7; cat <<END
here $x
END
ls /nope >h 2>&1; wc -l </dev/null; test -s h";

const SCRIPT: &str = "script -qec 'tty; /usr/bin/ps -o tty,comm; read line; echo typed: $line; exit 7' /dev/null <<<hello; echo code $?";

const EXPECT: &str = "set timeout 20
spawn -noecho bash --norc
expect -- {# }
send {bash -c 'trap \"echo inter\"\"rupted; exit\" INT; while :; do sleep 0.2; done'}
send \\r
sleep 1
send \\003
expect interrupted
stty rows 33 columns 100 < $spawn_out(slave,name)
send {echo size $(stty size)}
send \\r
expect {size 33 100}
send {exit 3}
send \\r
expect eof
puts \"ended [lindex [wait] 3]\"
";

const MARIADB: &str = r#"
mkdir -p /tmp/db && cd /tmp
mariadb-install-db --no-defaults --user=root --datadir=/tmp/db --skip-test-db \
    --auth-root-authentication-method=normal >install.txt 2>&1 || { cat install.txt; exit 1; }
mariadbd --no-defaults --user=root --datadir=/tmp/db --socket=/tmp/s --skip-networking >server.txt 2>&1 &
for i in {1..100}; do mariadb-admin --no-defaults -uroot -S /tmp/s ping 2>/dev/null && break; sleep 0.3; done
mariadb --no-defaults -uroot -S /tmp/s -N <<END || cat server.txt
create database d; use d;
create table t (a int primary key, b varchar(20)) engine=innodb;
insert into t values (1, 'one'), (2, 'two');
create table n as select seq from seq_1_to_1000;
select sum(a), group_concat(b order by a), (select count(*) from n) from t;
END
mariadb-admin --no-defaults -uroot -S /tmp/s shutdown
wait $!
echo the server ended with $?
"#;

const VIEWERS: &str = r#"
export TERM=xterm LINES=30 COLUMNS=100
(sleep 2; printf q) | script -qec 'stty cols 100 rows 30; htop -d 5' /dev/null
top -b -n 1
ps -eLo pid,lwp,nlwp,comm
"#;

const TMUX: &str = "export TERM=screen LC_ALL=C.UTF-8; tmux -f /dev/null new-session -d -x 100 -y 30 'bash --norc' && tmux split-window 'bash --norc'; \
for pane in 0 1; do tmux send-keys -t $pane 'echo pane '$pane' is $(tty)' Enter; done; sleep 2; tmux list-panes | wc -l | sed 's/^/panes /'; \
for pane in 0 1; do tmux capture-pane -p -t $pane | grep '^pane'; done; /usr/bin/ps -eo tty,comm | grep pts; tmux kill-server; sleep 1; \
/usr/bin/pgrep -l bash | grep -v $$ || echo none left";

const SCREEN: &str = "export TERM=screen LC_ALL=C SCREENDIR=/tmp/screens; mkdir -m 700 /tmp/screens; screen -d -m -S one bash --norc; sleep 1; \
screen -S one -X stuff $'echo window is $(tty) >/tmp/said\\n'; for i in 1 2 3 4 5 6 7 8; do test -s /tmp/said && break; sleep 0.5; done; cat /tmp/said; \
screen -ls | grep one; screen -S one -X quit; sleep 1; /usr/bin/pgrep -l bash | grep -v $$ || echo none left";

const PYTHON_PTY: &str = "import os, pty, select, threading, tty
m, s = pty.openpty()
tty.setraw(s)
text = bytes(i * 7 % 251 for i in range(200000))
def feed():
    done = 0
    while done < len(text): done += os.write(m, text[done:])
feeder = threading.Thread(target=feed); feeder.start()
got = b''
while len(got) < len(text): got += os.read(s, 5000)
feeder.join()
print(len(got), 'bytes came, the same:', got == text, flush=True)
said = []
def reader(fd):
    data = os.read(fd, 1024); said.append(data); return b''
pid, fd = pty.fork()
if pid == 0:
    print('spawned on', os.ttyname(0)); os._exit(5)
try:
    while True: print(os.read(fd, 1000).decode().strip())
except OSError as error: print(error)
print('status', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

const STRACE: &str = "strace -f -o /tmp/log bash -c 'cat /nope; (echo from a child; exit 3); /bin/true; exit 7' 2>/tmp/said; echo code $?; \
grep -E 'execve|from a child|nope|exited' /tmp/log; cat /tmp/said; wc -l </tmp/log";

const GDB: &str = "gdb -nx -batch -ex 'set debuginfod enabled off' -ex 'break work' -ex run -ex bt -ex 'watch watched' \
-ex continue -ex continue -ex 'info threads' -ex delete -ex continue /bin/watched 2>&1";

/// `$3` is what a function of the program returns that the debugger calls.
const GDBSERVER: &str = "gdbserver 127.0.0.1:2345 /bin/watched 2>/dev/null & for i in $(seq 50); do sleep 0.1; \
grep -q ':0929 ' /proc/net/tcp && break; done
gdb -nx -batch -ex 'set debuginfod enabled off' -ex 'set sysroot /' -ex 'file /bin/watched' -ex 'target remote 127.0.0.1:2345' \
-ex 'break work' -ex continue -ex 'print watched' -ex 'watch watched' -ex continue -ex continue -ex 'print watched' -ex delete \
-ex 'print ((int(*)(int))abs)(-11)' -ex continue 2>&1; wait";

const VALGRIND: &str = "valgrind -q --error-exitcode=1 /bin/true; echo true is clean, $?
valgrind --leak-check=full --error-exitcode=9 /bin/leaky 2>&1; echo code $?
valgrind --vgdb=yes --vgdb-error=0 /bin/leaky >/tmp/said 2>&1 & gdb -nx -batch -ex 'set debuginfod enabled off' \
-ex 'file /bin/leaky' -ex 'target remote | vgdb --wait=60 --max-invoke-ms=1000' -ex 'break look' -ex continue -ex 'print 3 + 4' \
-ex delete -ex continue -ex continue 2>&1; wait; grep SUMMARY /tmp/said";

const BASH: &str = "for ((i = 0; i < 3; i++)); do printf '%s ' $((i * i)); done | sed 's/ $/\\n/'; a=(x y z); echo ${a[@]: -1}; \
diff <(echo a) <(echo b) >/dev/null || echo differ; s=hello; echo ${s^^}; wc -l <<<$'1\\n2\\n3'; (exit 5)";

const TAR: &str = "cd /tmp && mkdir in out && for i in $(seq 1 60); do seq $i 4000 >in/$i; done && ln -s 1 in/link && chmod 600 in/2 \
&& tar -czf a.tgz in && tar -xzf a.tgz -C out && diff -r in out/in && echo same && gzip -t a.tgz && [ -L out/in/link ] \
&& [ $(stat -c %a out/in/2) = 600 ] && echo intact";

/// A process with a thread that computes and two that wait.
const PROCPS: &str = "/bin/procfiles threads & p=$!; sleep 2
ps -L -o nlwp,stat,comm -p $p; ps -L -o comm,cputimes -p $p | tail -n 2; ps auxww; top -b -H -n 2 -d 1 -p $p
s() { [ \"$1\" = $p ] && echo -n same; }
echo $(s $(pidof procfiles)) $(s $(pgrep -x leader)) $(s $(pgrep -f ^/bin/procfiles))
free; vmstat 1 2; uptime; pmap -x $p | tail -n 1; prlimit -p $p
echo 123 >/proc/$p/oom_score_adj; echo $(cat /proc/$p/oom_score_adj) $(($(cat /proc/$p/oom_score_adj) / 15)); kill $p";

const PYTHON_THREADS: &str = "
import threading, queue, json, subprocess, sys
total, lock, q = 0, threading.Lock(), queue.Queue()
def work(n):
    global total
    for _ in range(1000):
        with lock: total += 1
    q.put(n)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(total, sorted(q.get() for _ in threads))
print(json.dumps({'ok': sum(range(1000))}), flush=True)
subprocess.run(['/bin/busybox', 'echo', 'hello'], check=True)
sys.exit(6)";

/// A server behind a local name, one behind `localhost`, and datagrams. Linux comes up here without
/// its loopback.
const PYTHON_SOCKETS: &str = "
import multiprocessing as mp, threading, http.server, urllib.request, socket
mp.set_start_method('fork')
with mp.Manager() as manager:
    d = manager.dict(); p = mp.Process(target=d.update, args=({'a': 1},)); p.start(); p.join(); print(dict(d))
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'hello over http')
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(('localhost', 0), Hello)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen('http://localhost:%d/' % server.server_port).read().decode())
a, b = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
a.bind(('localhost', 0)); b.sendto(b'udp', a.getsockname()); data, _ = a.recvfrom(9)
print([(a.family + 2, data)])";

const PYTHON_PROCESSES: &str = "
import multiprocessing as mp
def square(x): return x * x
def child(q): q.put(('child', 7))
mp.set_start_method('fork')
with mp.Pool(4) as pool: print(pool.map(square, range(8)))
q = mp.Queue(); p = mp.Process(target=child, args=(q,)); p.start()
print([q.get()]); p.join()";
