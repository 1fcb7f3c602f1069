//! What a CPU is, as `/proc/cpuinfo` says it: by CPUID of the CPU that is asked, as all are alike.

use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use core::fmt::{self, Write};

use super::clock;

/// A register of a leaf of CPUID, and the names of its bits that matter to programs; of the bits of
/// states that the kernel doesn't save (`avx`), only where it does.
struct Word {
    leaf: u32,
    register: fn(CpuidResult) -> u32,
    names: &'static [(u32, &'static str)],
}

static WORDS: [Word; 5] = [
    Word {
        leaf: 1,
        register: |found| found.edx,
        names: &[
            (0, "fpu"),
            (1, "vme"),
            (2, "de"),
            (3, "pse"),
            (4, "tsc"),
            (5, "msr"),
            (6, "pae"),
            (7, "mce"),
            (8, "cx8"),
            (9, "apic"),
            (11, "sep"),
            (12, "mtrr"),
            (13, "pge"),
            (14, "mca"),
            (15, "cmov"),
            (16, "pat"),
            (17, "pse36"),
            (19, "clflush"),
            (23, "mmx"),
            (24, "fxsr"),
            (25, "sse"),
            (26, "sse2"),
            (27, "ss"),
            (28, "ht"),
        ],
    },
    Word {
        leaf: 0x8000_0001,
        register: |found| found.edx,
        names: &[
            (11, "syscall"),
            (20, "nx"),
            (22, "mmxext"),
            (25, "fxsr_opt"),
            (26, "pdpe1gb"),
            (27, "rdtscp"),
            (29, "lm"),
            (30, "3dnowext"),
            (31, "3dnow"),
        ],
    },
    Word {
        leaf: 1,
        register: |found| found.ecx,
        names: &[
            (0, "pni"),
            (1, "pclmulqdq"),
            (9, "ssse3"),
            (12, "fma"),
            (13, "cx16"),
            (19, "sse4_1"),
            (20, "sse4_2"),
            (21, "x2apic"),
            (22, "movbe"),
            (23, "popcnt"),
            (25, "aes"),
            (26, "xsave"),
            (28, "avx"),
            (29, "f16c"),
            (30, "rdrand"),
            (31, "hypervisor"),
        ],
    },
    Word {
        leaf: 0x8000_0001,
        register: |found| found.ecx,
        names: &[(0, "lahf_lm"), (5, "abm"), (6, "sse4a"), (8, "3dnowprefetch"), (21, "tbm")],
    },
    Word {
        leaf: 7,
        register: |found| found.ebx,
        names: &[
            (3, "bmi1"),
            (5, "avx2"),
            (7, "smep"),
            (8, "bmi2"),
            (9, "erms"),
            (18, "rdseed"),
            (19, "adx"),
            (20, "smap"),
            (23, "clflushopt"),
            (24, "clwb"),
            (29, "sha_ni"),
        ],
    },
];

/// Flags of instructions that need the upper halves of vector registers, which `xsave` saves.
const WIDE: [&str; 4] = ["avx", "avx2", "fma", "f16c"];

/// The leaf, if the CPU has it; zeroes otherwise.
fn leaf(number: u32) -> CpuidResult {
    let last = __cpuid(number & 0x8000_0000).eax;
    if last < number {
        return CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    __cpuid_count(number, 0)
}

fn put_bytes(words: &[u32], out: &mut dyn Write) -> fmt::Result {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).filter(|&byte| byte != 0);
    bytes
        .filter(|byte| byte.is_ascii_graphic() || *byte == b' ')
        .try_for_each(|byte| out.write_char(char::from(byte)))
}

/// The lines of a CPU.
///
/// # Errors
/// Those of `out`.
pub fn put(cpu: usize, out: &mut dyn Write) -> fmt::Result {
    let (vendor, version) = (leaf(0), leaf(1).eax);
    let part = |shift: u32, bits: u32| version >> shift & ((1 << bits) - 1);
    let (family, model) = (part(8, 4), part(4, 4));
    let is_extended = family == 15 || family == 6;
    let model = if is_extended { model + (part(16, 4) << 4) } else { model };
    let family = if family == 15 { family + part(20, 8) } else { family };
    write!(out, "processor\t: {cpu}\nvendor_id\t: ")?;
    put_bytes(&[vendor.ebx, vendor.edx, vendor.ecx], out)?;
    write!(out, "\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: ")?;
    for brand in [0x8000_0002, 0x8000_0003, 0x8000_0004].map(leaf) {
        put_bytes(&[brand.eax, brand.ebx, brand.ecx, brand.edx], out)?;
    }
    let khz = clock::ticks_per_ms();
    write!(out, "\nstepping\t: {}\ncpu MHz\t\t: {}.{:03}\n", part(0, 4), khz / 1000, khz % 1000)?;
    write!(out, "fpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: {}\n", vendor.eax)?;
    write!(out, "wp\t\t: yes\nflags\t\t:")?;
    const AVX_STATE: u32 = 4;
    let saves_wide = leaf(1).ecx & 1 << 27 != 0 && leaf(13).eax & AVX_STATE != 0;
    for word in &WORDS {
        let bits = (word.register)(leaf(word.leaf));
        let there = word.names.iter().filter(|(bit, _)| bits >> bit & 1 == 1);
        for (_, name) in there.filter(|(_, name)| saves_wide || !WIDE.contains(name)) {
            write!(out, " {name}")?;
        }
    }
    let (line, sizes) = (leaf(1).ebx >> 8 & 0xff, leaf(0x8000_0008).eax);
    let line = line * 8;
    write!(out, "\nclflush size\t: {line}\ncache_alignment\t: {line}\n")?;
    let (physical, linear) = (sizes & 0xff, sizes >> 8 & 0xff);
    write!(out, "address sizes\t: {physical} bits physical, {linear} bits virtual\n\n")
}
