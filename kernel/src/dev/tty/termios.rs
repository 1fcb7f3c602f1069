//! The settings of a terminal, as `TCGETS` hands them out.

use linux_raw_sys::general as abi;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct termios` of the kernel interface.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Termios {
    pub iflag: u32,
    pub oflag: u32,
    pub cflag: u32,
    pub lflag: u32,
    pub line: u8,
    pub cc: [u8; 19],
}

/// `struct winsize`.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct WinSize {
    pub rows: u16,
    pub cols: u16,
    pub xpixel: u16,
    pub ypixel: u16,
}

impl Termios {
    pub const NONE: Termios =
        Termios { iflag: 0, oflag: 0, cflag: 0, lflag: 0, line: 0, cc: [0; 19] };

    /// The settings that a Linux console starts with.
    pub const fn new() -> Termios {
        let mut cc = [0; 19];
        cc[abi::VINTR as usize] = ctrl(b'C');
        cc[abi::VQUIT as usize] = ctrl(b'\\');
        cc[abi::VERASE as usize] = 0x7f;
        cc[abi::VKILL as usize] = ctrl(b'U');
        cc[abi::VEOF as usize] = ctrl(b'D');
        cc[abi::VMIN as usize] = 1;
        cc[abi::VSTART as usize] = ctrl(b'Q');
        cc[abi::VSTOP as usize] = ctrl(b'S');
        cc[abi::VSUSP as usize] = ctrl(b'Z');
        cc[abi::VREPRINT as usize] = ctrl(b'R');
        cc[abi::VDISCARD as usize] = ctrl(b'O');
        cc[abi::VWERASE as usize] = ctrl(b'W');
        cc[abi::VLNEXT as usize] = ctrl(b'V');
        Termios {
            iflag: abi::ICRNL | abi::IXON | abi::IUTF8,
            oflag: abi::OPOST | abi::ONLCR,
            cflag: abi::B38400 | abi::CS8 | abi::CREAD | abi::HUPCL,
            lflag: abi::ISIG
                | abi::ICANON
                | abi::ECHO
                | abi::ECHOE
                | abi::ECHOK
                | abi::ECHOCTL
                | abi::ECHOKE
                | abi::IEXTEN,
            line: 0,
            cc,
        }
    }

    /// The settings that a pseudo-terminal starts with.
    pub const fn of_pty() -> Termios {
        let mut termios = Termios::new();
        termios.iflag &= !abi::IUTF8;
        termios.cflag &= !abi::HUPCL;
        termios
    }

    /// These settings, but those of `old` where a bit or a character of `locked` is set.
    pub fn kept_by(&self, locked: &Termios, old: &Termios) -> Termios {
        let keep = |new: u32, old: u32, locked: u32| new & !locked | old & locked;
        let mut cc = self.cc;
        for ((byte, old), locked) in cc.iter_mut().zip(old.cc).zip(locked.cc) {
            if locked != 0 {
                *byte = old;
            }
        }
        Termios {
            iflag: keep(self.iflag, old.iflag, locked.iflag),
            oflag: keep(self.oflag, old.oflag, locked.oflag),
            cflag: keep(self.cflag, old.cflag, locked.cflag),
            lflag: keep(self.lflag, old.lflag, locked.lflag),
            line: if locked.line != 0 { old.line } else { self.line },
            cc,
        }
    }

    /// A pseudo-terminal's bytes are whole, whatever was asked for.
    pub fn whole_bytes(&mut self) {
        self.cflag = self.cflag & !(abi::CSIZE | abi::PARENB) | abi::CS8 | abi::CREAD;
    }

    /// For input from a pipe or a file of the host: only what marks the end and quotes is left.
    pub fn read_from_stream(&mut self) {
        self.iflag = 0;
        self.lflag = abi::ICANON | abi::IEXTEN;
    }

    pub fn local(&self, flag: u32) -> bool {
        self.lflag & flag != 0
    }

    pub fn input(&self, flag: u32) -> bool {
        self.iflag & flag != 0
    }

    /// Whether `byte` is the control character at `index`; 0 switches one off.
    pub fn is(&self, byte: u8, index: u32) -> bool {
        byte != 0 && self.cc[index as usize] == byte
    }

    /// Whether reads get lines.
    pub fn is_canonical(&self) -> bool {
        self.local(abi::ICANON) && !self.local(abi::EXTPROC)
    }

    /// Bits a second by the flags.
    fn speed(&self) -> u32 {
        const LOW: [u32; 16] =
            [0, 50, 75, 110, 134, 150, 200, 300, 600, 1200, 1800, 2400, 4800, 9600, 19200, 38400];
        const HIGH: [u32; 15] = [
            57_600, 115_200, 230_400, 460_800, 500_000, 576_000, 921_600, 1_000_000, 1_152_000,
            1_500_000, 2_000_000, 2_500_000, 3_000_000, 3_500_000, 4_000_000,
        ];
        let index = (self.cflag & 0xf) as usize;
        match self.cflag & abi::CBAUDEX {
            0 => LOW[index],
            _ => index.checked_sub(1).map_or(0, |index| HIGH[index]),
        }
    }
}

/// `struct termio`: the flags' lower halves and the first control characters.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Termio {
    flags: [u16; 4],
    line: u8,
    cc: [u8; 8],
    pad: u8,
}

impl Termio {
    pub fn of(termios: &Termios) -> Termio {
        let flags = [termios.iflag, termios.oflag, termios.cflag, termios.lflag];
        let mut cc = [0; 8];
        cc.copy_from_slice(&termios.cc[..8]);
        Termio { flags: flags.map(|flags| flags as u16), line: termios.line, cc, pad: 0 }
    }

    /// These settings with what they don't have from `rest`.
    pub fn with(&self, rest: &Termios) -> Termios {
        let join = |flags: u32, half: u16| flags & 0xffff_0000 | u32::from(half);
        let [iflag, oflag, cflag, lflag] = self.flags;
        let mut cc = rest.cc;
        cc[..8].copy_from_slice(&self.cc);
        Termios {
            iflag: join(rest.iflag, iflag),
            oflag: join(rest.oflag, oflag),
            cflag: join(rest.cflag, cflag),
            lflag: join(rest.lflag, lflag),
            line: self.line,
            cc,
        }
    }
}

/// `struct termios2`: with the speeds as numbers.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Termios2 {
    pub termios: Termios,
    ispeed: u32,
    ospeed: u32,
}

impl Termios2 {
    pub fn of(termios: &Termios) -> Termios2 {
        let speed = termios.speed();
        Termios2 { termios: *termios, ispeed: speed, ospeed: speed }
    }
}

/// The byte that a key sends together with Ctrl.
const fn ctrl(key: u8) -> u8 {
    key & 0x1f
}
