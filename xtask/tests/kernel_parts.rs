//! The kernel's parts that touch no machine, tested on the host: the terminal's line discipline,
//! the ring of a pipe, the archive reader, a set of ranges, the header of a swap area, the garbage
//! collector of sockets. The kernel itself has no test harness; these files name nothing of it.

extern crate alloc;

#[path = "../../kernel/src/fs/cpio.rs"]
#[allow(dead_code)]
mod cpio;
#[path = "../../kernel/src/devnum.rs"]
#[allow(dead_code)]
mod devnum;
#[path = "../../kernel/src/net/garbage.rs"]
#[allow(dead_code)]
mod garbage;
#[path = "../../kernel/src/fs/swap/header.rs"]
mod header;
#[path = "../../kernel/src/fs/ext4/ranges.rs"]
mod ranges;
#[path = "../../kernel/src/chain/ring.rs"]
#[allow(dead_code)]
mod ring;
#[path = "../../kernel/src/dev/tty"]
#[allow(dead_code)]
mod tty {
    pub mod line;
    pub mod output;
    pub mod termios;
}

/// What they name of the kernel's memory: allocations that can fail, of which none does on purpose
/// here.
mod mem {
    pub mod fault {
        use machine::NoMemory;

        pub fn attempt<T, E>(grow: impl FnOnce() -> Result<T, E>) -> Result<T, NoMemory> {
            grow().map_err(|_| NoMemory)
        }

        pub trait Room {
            fn room(&mut self, more: usize) -> Result<(), NoMemory>;
        }

        impl<T> Room for Vec<T> {
            fn room(&mut self, more: usize) -> Result<(), NoMemory> {
                self.try_reserve(more).map_err(|_| NoMemory)
            }
        }

        impl<T> Room for std::collections::VecDeque<T> {
            fn room(&mut self, more: usize) -> Result<(), NoMemory> {
                self.try_reserve(more).map_err(|_| NoMemory)
            }
        }
    }
}

use linux_raw_sys::general as abi;
use ring::Ring;
use tty::line::{Line, Screen};

/// The longest line, as Linux has it.
const MAX_INPUT: usize = 4096;

/// Keeps what is echoed.
struct Paper(Vec<u8>);

impl Screen for Paper {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn flush(&mut self) {}
}

/// Types bytes; returns the echo and the last signal.
fn type_in(line: &mut Line, bytes: &[u8]) -> (Vec<u8>, Option<u32>) {
    let mut echo = Paper(Vec::new());
    let mut signal = None;
    for &byte in bytes {
        signal = line.typed(byte, &mut echo).or(signal);
    }
    (echo.0, signal)
}

fn read(line: &mut Line, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let looked = line.peek(&mut buf);
    line.take(looked);
    buf.truncate(looked.bytes);
    buf
}

#[test]
fn a_line_is_ready_when_it_is_ended() {
    let mut line = Line::new();
    assert_eq!(type_in(&mut line, b"ls").0, b"ls");
    assert!(!line.has_input(1));
    assert_eq!(type_in(&mut line, b"\r").0, b"\r\n");
    assert!(line.has_input(1));
    assert_eq!(read(&mut line, 100), b"ls\n");
    assert!(!line.has_input(1));
}

#[test]
fn erase_takes_back_a_whole_character() {
    let mut line = Line::new();
    type_in(&mut line, "aé\x7fb\n".as_bytes());
    assert_eq!(read(&mut line, 100), b"ab\n");
}

#[test]
fn kill_and_word_erase_take_back_words() {
    let mut line = Line::new();
    type_in(&mut line, b"gone\x15one two \x17three\n");
    assert_eq!(read(&mut line, 100), b"one three\n");
}

#[test]
fn end_of_file_ends_a_read_without_a_newline() {
    let mut line = Line::new();
    type_in(&mut line, b"ab\x04\x04");
    assert_eq!(read(&mut line, 100), b"ab");
    assert!(line.has_input(1));
    assert_eq!(read(&mut line, 100), b"");
    assert!(!line.has_input(1));
}

#[test]
fn interrupt_asks_for_a_signal_and_drops_the_line() {
    let mut line = Line::new();
    let (echo, signal) = type_in(&mut line, b"abc\x03");
    assert_eq!((echo.as_slice(), signal), (b"abc^C".as_slice(), Some(abi::SIGINT)));
    type_in(&mut line, b"\n");
    assert_eq!(read(&mut line, 100), b"\n");
}

#[test]
fn short_reads_leave_the_rest_of_the_line() {
    let mut line = Line::new();
    type_in(&mut line, b"abcdef\ngh\n");
    assert_eq!(read(&mut line, 4), b"abcd");
    assert_eq!(read(&mut line, 100), b"ef\n");
    assert_eq!(read(&mut line, 100), b"gh\n");
}

#[test]
fn raw_mode_passes_bytes_on_at_once() {
    let mut line = Line::new();
    let mut termios = line.termios;
    termios.lflag &= !(abi::ICANON | abi::ECHO | abi::ISIG);
    type_in(&mut line, b"typed");
    line.set_termios(termios);
    assert_eq!(type_in(&mut line, b"\x03").0, b"");
    assert!(line.has_input(6) && !line.has_input(7));
    assert_eq!(read(&mut line, 100), b"typed\x03");
}

#[test]
fn too_long_a_line_comes_in_pieces_and_its_port_waits() {
    let mut line = Line::new();
    let sent = (b'a'..=b'z').cycle().take(30_000).chain([b'\n']).collect::<Vec<u8>>();
    let mut got = Vec::new();
    for &byte in &sent {
        if line.room() == 0 {
            let piece = read(&mut line, 20_000);
            assert_eq!(piece.len(), MAX_INPUT);
            got.extend(piece);
        }
        type_in(&mut line, &[byte]);
    }
    while line.has_input(1) {
        got.extend(read(&mut line, 20_000));
    }
    assert!(got == sent, "{} bytes of {} came", got.len(), sent.len());
}

#[test]
fn a_port_that_does_not_wait_fills_no_memory() {
    for canonical in [true, false] {
        let mut line = Line::new();
        let mut termios = line.termios;
        termios.lflag = if canonical { abi::ICANON } else { 0 };
        line.set_termios(termios);
        type_in(&mut line, &[b'x'; 100_000]);
        assert!(line.peek(&mut [0; 100_000]).bytes <= 4 * MAX_INPUT && line.room() == 0);
    }
}

#[test]
fn a_ring_gives_back_what_was_put_in() {
    let mut ring = Ring::new();
    ring.resize(7).unwrap();
    let mut next_in = 0u8;
    let mut next_out = 0u8;
    for step in 0..1000usize {
        let room = ring.writable();
        let n = room.len().min(step % 5 + 1);
        for byte in &mut room[..n] {
            *byte = next_in;
            next_in = next_in.wrapping_add(1);
        }
        ring.produced(n);
        let n = ring.readable().len().min(step % 3 + 1);
        for &byte in &ring.readable()[..n] {
            assert_eq!(byte, next_out);
            next_out = next_out.wrapping_add(1);
        }
        ring.consume(n);
        if step % 100 == 50 {
            ring.resize(7 + step / 100).unwrap();
        }
    }
}

#[test]
fn an_archive_is_read_member_by_member() {
    let mut archive = Vec::new();
    for (name, mode, data) in
        [("dir", 0o40755, ""), ("dir/file", 0o100644, "hello"), ("TRAILER!!!", 0, "")]
    {
        let fields = [7, mode, 1, 2, 1, 99, data.len(), 0, 0, 5, 1, name.len() + 1, 0];
        archive.extend_from_slice(b"070701");
        fields
            .iter()
            .for_each(|field| archive.extend_from_slice(format!("{field:08x}").as_bytes()));
        archive.extend_from_slice(name.as_bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend_from_slice(data.as_bytes());
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    let entries: Vec<_> = cpio::Reader::new(&archive).collect();
    assert_eq!(entries.len(), 2);
    assert_eq!((entries[0].name, entries[0].mode), (b"dir".as_slice(), 0o40755));
    assert_eq!((entries[1].name, entries[1].data), (b"dir/file".as_slice(), b"hello".as_slice()));
    assert_eq!(entries[1].rdev, devnum::device_number(5, 1));
}

#[test]
fn a_damaged_archive_ends_early() {
    for text in
        ["", "070701", "070701zzzzzzzz", &format!("070701{}", "f".repeat(104)), "junk junk junk"]
    {
        assert_eq!(cpio::Reader::new(text.as_bytes()).count(), 0);
    }
}

#[test]
fn ranges_are_a_set_of_numbers() {
    let mut ranges = ranges::Ranges::new();
    let mut model = std::collections::BTreeSet::new();
    let mut state = 7u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    for _ in 0..20_000 {
        let start = below(200);
        let range = start..start + below(30);
        let there = model.range(range.clone()).count() as u64;
        assert_eq!(ranges.count(range.clone()), there);
        if below(2) == 0 {
            assert_eq!(ranges.insert(range.clone()), range.end - range.start - there);
            model.extend(range);
        } else {
            assert_eq!(ranges.remove(range.clone()), there);
            model.retain(|n| !range.contains(n));
        }
        assert_eq!(ranges.count(0..300), model.len() as u64);
        assert_eq!(ranges.total(), model.len() as u64);
        let begin = |range: std::ops::Range<u64>| {
            range.filter(|&n| model.contains(&n) && (n == 0 || !model.contains(&(n - 1)))).count()
        };
        assert_eq!(ranges.pieces(), begin(0..300));
        let (mut at, most) = (0, 1 + below(3) as usize);
        while at < 300 {
            let part = ranges.part(&(at..300), most);
            assert!(part.start == at && part.end > at);
            assert_eq!(begin(part.clone()), if part.end < 300 { most } else { begin(at..300) });
            at = part.end;
        }
    }
}

/// The first page of an area with pages up to `last`, some of them bad.
fn swap_header(last: u32, bad: &[u32]) -> Vec<u8> {
    let mut page = vec![0; 4096];
    let mut put = |at: usize, word: u32| page[at..at + 4].copy_from_slice(&word.to_le_bytes());
    put(1024, 1);
    put(1028, last);
    put(1032, bad.len() as u32);
    bad.iter().enumerate().for_each(|(n, &bad)| put(1536 + 4 * n, bad));
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    page
}

fn good_pages(page: &[u8], part: std::ops::Range<u64>) -> Vec<(u64, u64)> {
    let mut good = Vec::new();
    header::Header::parse(page).unwrap().good(part, |range| good.push((range.start, range.end)));
    good
}

#[test]
fn a_swap_area_has_good_pages() {
    assert_eq!(good_pages(&swap_header(9, &[]), 0..10), [(1, 10)]);
    assert_eq!(good_pages(&swap_header(5, &[]), 0..10), [(1, 6)]);
    assert_eq!(good_pages(&swap_header(9, &[7, 3, 4]), 0..10), [(1, 3), (5, 7), (8, 10)]);
    assert_eq!(good_pages(&swap_header(9, &[1, 9]), 0..5), [(2, 5)]);
    assert_eq!(good_pages(&swap_header(9, &[1, 9]), 5..20), [(5, 9)]);
    assert_eq!(good_pages(&swap_header(9, &[]), 12..20), []);
}

#[test]
fn what_is_no_swap_area_is_refused() {
    assert!(header::Header::parse(&swap_header(0, &[])).is_none());
    assert!(header::Header::parse(&swap_header(9, &[10])).is_none());
    assert!(header::Header::parse(&swap_header(9, &[0])).is_none());
    assert!(header::Header::parse(&[0; 4096]).is_none());
    assert!(header::Header::parse(&[0; 100]).is_none());
    let mut many = swap_header(9, &[]);
    many[1032..1036].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(header::Header::parse(&many).is_none());
}

/// Programs that send sockets to each other, beside a garbage collection.
mod sockets_in_flight {
    use super::garbage::InFlight;
    use std::collections::{BTreeSet, HashMap};
    use std::sync::{Arc, Weak};

    /// A socket's number, which stands for its address.
    struct File(usize);

    /// What a queue or a backlog holds.
    enum Held {
        Message(Arc<File>),
        /// A server's end that waits to be accepted.
        Server(usize),
    }

    struct World {
        seed: u64,
        in_flight: InFlight<File>,
        descriptors: Vec<Arc<File>>,
        /// By holder, with the edges' numbers.
        held: HashMap<usize, Vec<(u64, Held)>>,
        sockets: usize,
        closed: BTreeSet<usize>,
    }

    impl World {
        fn below(&mut self, bound: usize) -> usize {
            self.seed =
                self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.seed >> 33) as usize % bound
        }

        fn a_descriptor(&mut self) -> Option<Arc<File>> {
            let at = (!self.descriptors.is_empty()).then(|| self.below(self.descriptors.len()))?;
            Some(self.descriptors[at].clone())
        }

        fn new_socket(&mut self) -> usize {
            self.sockets += 1;
            self.sockets
        }

        fn hold(&mut self, holder: usize, socket: usize, file: Weak<File>, what: Held) {
            let number = self.in_flight.take_numbers(1);
            self.in_flight.add(holder, number, socket, file);
            self.held.entry(holder).or_default().push((number, what));
        }

        /// A random operation of some program.
        fn act(&mut self) {
            let what = self.below(8);
            let Some(file) = self.a_descriptor().filter(|_| what != 0) else {
                let new = self.new_socket();
                return self.descriptors.push(Arc::new(File(new)));
            };
            let held = self.held.get(&file.0).map_or(0, Vec::len);
            match what {
                // It goes into any queue: a program may have the other end of a socket that none
                // has.
                1 | 2 => {
                    let holder = self.below(self.sockets) + 1;
                    if self.closed.contains(&holder) {
                        return;
                    }
                    self.hold(holder, file.0, Arc::downgrade(&file), Held::Message(file.clone()));
                }
                3 => {
                    let server = self.new_socket();
                    self.hold(file.0, server, Weak::new(), Held::Server(server));
                }
                4 if held != 0 => {
                    let (number, what) = self.held.get_mut(&file.0).unwrap().remove(0);
                    self.in_flight.remove(file.0, number);
                    self.descriptors.push(match what {
                        Held::Message(file) => file,
                        Held::Server(server) => Arc::new(File(server)),
                    });
                }
                5 if held != 0 => {
                    let at = self.below(held);
                    if let (_, Held::Message(peeked)) = &self.held[&file.0][at] {
                        self.in_flight.mark(peeked.0);
                        self.descriptors.push(peeked.clone());
                    }
                }
                _ => {
                    drop(file);
                    let at = self.below(self.descriptors.len());
                    self.close(at);
                }
            }
        }

        fn close(&mut self, at: usize) {
            let file = self.descriptors.swap_remove(at);
            self.release(file);
        }

        fn release(&mut self, file: Arc<File>) {
            let mut files = vec![file];
            while let Some(file) = files.pop() {
                if Arc::strong_count(&file) == 1 {
                    self.closed.insert(file.0);
                    files.extend(self.empty(file.0));
                }
            }
        }

        /// Drops what a socket holds; returns the files.
        fn empty(&mut self, holder: usize) -> Vec<Arc<File>> {
            let mut holders = vec![holder];
            let mut files = Vec::new();
            while let Some(holder) = holders.pop() {
                for (number, what) in self.held.remove(&holder).unwrap_or_default() {
                    self.in_flight.remove(holder, number);
                    match what {
                        Held::Message(file) => files.push(file),
                        Held::Server(server) => {
                            self.closed.insert(server);
                            holders.push(server);
                        }
                    }
                }
            }
            files
        }

        fn reachable(&self) -> BTreeSet<usize> {
            let mut reachable = BTreeSet::new();
            let mut left: Vec<usize> = self.descriptors.iter().map(|file| file.0).collect();
            while let Some(socket) = left.pop() {
                if reachable.insert(socket) {
                    left.extend(self.held.get(&socket).into_iter().flatten().map(|(_, what)| {
                        match what {
                            Held::Message(file) => file.0,
                            Held::Server(server) => *server,
                        }
                    }));
                }
            }
            reachable
        }

        fn collect(&mut self, steps: usize, garbage: &mut Vec<Arc<File>>) -> bool {
            garbage.reserve(1024);
            let before = garbage.len();
            let is_over = self.in_flight.step(steps, garbage);
            let reachable = self.reachable();
            assert!(garbage[before..].iter().all(|file| !reachable.contains(&file.0)));
            is_over
        }

        fn cut(&mut self, garbage: &mut Vec<Arc<File>>) {
            for file in garbage.drain(..) {
                let files = self.empty(file.0);
                files.into_iter().for_each(|file| self.release(file));
                self.release(file);
            }
        }
    }

    #[test]
    fn garbage_is_found_and_nothing_else() {
        for seed in 0..2000 {
            let mut world = World {
                seed,
                in_flight: InFlight::new(),
                descriptors: Vec::new(),
                held: HashMap::new(),
                sockets: 0,
                closed: BTreeSet::new(),
            };
            let mut garbage = Vec::new();
            for _ in 0..200 {
                world.act();
                let steps = world.below(4);
                if world.collect(steps, &mut garbage) {
                    world.cut(&mut garbage);
                }
            }
            while !world.descriptors.is_empty() {
                world.close(0);
            }
            // The rest of a cycle, and a whole one.
            for _ in 0..2 {
                while !world.collect(1, &mut garbage) {}
                world.cut(&mut garbage);
            }
            assert_eq!(world.in_flight.len(), 0, "seed {seed}");
        }
    }
    /// Threads that send new sockets all the time pay for the collection's end themselves.
    #[test]
    fn senders_do_not_prolong_a_collection() {
        const LIVE: usize = 1000;
        let mut in_flight = InFlight::<File>::new();
        let file = Arc::new(File(1));
        let add = |in_flight: &mut InFlight<File>, socket| {
            let number = in_flight.take_numbers(1);
            in_flight.add(1, number, socket, Arc::downgrade(&file));
            number
        };
        for socket in 2..2 + LIVE {
            add(&mut in_flight, socket);
        }
        let mut garbage = Vec::new();
        assert!(!in_flight.step(1, &mut garbage));
        for socket in 2 + LIVE..2 + 3 * LIVE {
            let number = add(&mut in_flight, socket);
            in_flight.remove(1, number);
        }
        // Nothing is left but a look at each.
        assert!(in_flight.step(LIVE + 1, &mut garbage));
    }
}
