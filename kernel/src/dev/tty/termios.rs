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
