//! What `bench paging`, `bench smp` and `bench move` should show, row by row, and whether they do.

use super::bare::EXCEPTIONS;
use super::smp::{NO_KERNEL, TWO_MACHINES};
use super::table::number;
use super::{Document, Verdict};

/// A bar for our kernel's value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bar {
    /// At most this part of Linux's.
    OfLinux(f64),
    /// At least this many times Linux's.
    TimesLinux(f64),
    AtLeast(f64),
    AtMost(f64),
    /// At least this part of another row on our kernel.
    OfRow(&'static str, f64),
}

pub const WRITER: &str = "one sequential writer";
pub const RAW_READ: &str = "raw sequential read";
pub const MAPPED_READ: &str = "sequential read of a mapped file";

fn bar(name: &str) -> Option<Bar> {
    match name {
        "write 2x of memory" => Some(Bar::OfLinux(0.7)),
        name if name.starts_with("mean swap write") => Some(Bar::AtLeast(256.0)),
        name if name.starts_with("page-out bandwidth") => Some(Bar::OfRow(WRITER, 0.8)),
        MAPPED_READ => Some(Bar::OfRow(RAW_READ, 0.9)),
        name if name.starts_with("random")
            && name.ends_with("per page touched")
            && !name.contains("time") =>
        {
            // Two touches in a thousand may be neighbours by chance, and are then taken for the
            // start of a stream.
            Some(Bar::AtMost(if name.contains("pages read") { 1.01 } else { 1.0 }))
        }
        name if name.ends_with("second pass: disk reads") => Some(Bar::AtMost(0.0)),
        name if name.starts_with("1,000 pages over 1 TiB") => Some(Bar::AtMost(1024.0)),
        "left to programs of 64 MiB" => Some(Bar::AtLeast(75.0)),
        name if name.starts_with(NO_KERNEL)
            || name.ends_with(TWO_MACHINES)
            || name.ends_with(EXCEPTIONS) =>
        {
            None
        }
        // Each unmapping interrupts the other CPU, and both change one part of the map.
        "mmap, touch, munmap: two threads" => Some(Bar::TimesLinux(3.0)),
        "mmap, touch, munmap: two threads / one" => Some(Bar::AtLeast(1.4)),
        name if name.ends_with(": two processes") || name.ends_with(": two threads") => {
            Some(Bar::TimesLinux(1.5))
        }
        name if name.ends_with(": two threads / one") => Some(Bar::AtLeast(1.7)),
        name if name.ends_with(" / one") => Some(Bar::AtLeast(1.85)),
        "null write, copied / loaned, 1 MiB" => Some(Bar::AtLeast(4.0)),
        "null read, copied / transferred, 1 MiB" => Some(Bar::AtLeast(5.0)),
        "pipe, copied / both, 1 MiB" => Some(Bar::AtLeast(6.0)),
        "pipeline, copied / passed and loaned, 1 MiB" => Some(Bar::AtLeast(2.4)),
        "pipe, Linux / unchanged, 64 KiB" => Some(Bar::AtLeast(2.0)),
        "pipe, Linux / unchanged, 1 MiB" => Some(Bar::AtLeast(4.0)),
        "Linux's pipe / donated, 1 MiB" => Some(Bar::AtLeast(20.0)),
        "entries passed, untouched, 64 MiB" => Some(Bar::AtMost(100_000.0)),
        name if name.ends_with(" / copied, at the worst size") && !name.starts_with("time") => {
            Some(Bar::AtMost(1.02))
        }
        name if name.starts_with("remote TLB invalidations") => Some(Bar::AtMost(0.0)),
        _ => None,
    }
}

/// A bar's number with all of its digits: 1.02 is no 1.0.
fn bound(value: f64) -> String {
    if value < 100.0 {
        return value.to_string();
    }
    number(value)
}

pub fn verdict(document: &Document, name: &str) -> Verdict {
    let Some(bar) = bar(name) else { return Verdict::NoBar };
    let ours = document.value(name, "uvm").map(|row| row.value);
    let text = match bar {
        Bar::OfLinux(part) => format!("at most {part} of Linux"),
        Bar::TimesLinux(times) => format!("at least {times} of Linux"),
        Bar::AtLeast(least) => format!("at least {}", bound(least)),
        Bar::AtMost(most) => format!("at most {}", bound(most)),
        Bar::OfRow(other, part) => format!("at least {part} of {other}"),
    };
    let met = match bar {
        Bar::OfLinux(part) => document.ratio(name).map(|ratio| ratio <= part),
        Bar::TimesLinux(times) => document.ratio(name).map(|ratio| ratio >= times),
        Bar::AtLeast(least) => ours.map(|value| value >= least),
        Bar::AtMost(most) => ours.map(|value| value <= most),
        Bar::OfRow(other, part) => {
            let other = document.value(other, "uvm").map(|row| row.value);
            ours.zip(other).map(|(value, other)| value >= part * other)
        }
    };
    match met {
        None => Verdict::NotMeasured(text),
        Some(true) => Verdict::Met(text),
        Some(false) => Verdict::Missed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Row;

    fn document(rows: &[(&str, &str, f64)]) -> Document {
        let rows = rows
            .iter()
            .map(|(name, system, value)| Row::of(name, system, "ms", &[*value]))
            .collect();
        Document { about: String::new(), rows }
    }

    #[test]
    fn a_bar_against_linux_needs_both() {
        let name = "write 2x of memory";
        let ours = document(&[(name, "uvm", 7.0)]);
        assert!(matches!(verdict(&ours, name), Verdict::NotMeasured(_)));
        let both = document(&[(name, "uvm", 7.0), (name, "linux", 10.0)]);
        assert!(matches!(verdict(&both, name), Verdict::Met(_)));
        let slow = document(&[(name, "uvm", 8.0), (name, "linux", 10.0)]);
        assert!(matches!(verdict(&slow, name), Verdict::Missed(_)));
    }

    #[test]
    fn a_bar_against_another_row_is_about_the_same_kernel() {
        let name = "page-out bandwidth, 3x";
        let rows = [(name, "uvm", 200.0), (WRITER, "uvm", 250.0), (WRITER, "linux", 500.0)];
        assert!(matches!(verdict(&document(&rows), name), Verdict::Met(_)));
    }

    #[test]
    fn two_cpus_have_bars_where_a_kernel_takes_part() {
        assert_eq!(bar("anonymous fault: two threads"), Some(Bar::TimesLinux(1.5)));
        assert_eq!(bar("anonymous fault: two threads / one"), Some(Bar::AtLeast(1.7)));
        assert_eq!(bar("mmap, touch, munmap: two threads / one"), Some(Bar::AtLeast(1.4)));
        assert_eq!(bar("anonymous fault: one thread"), None);
        assert_eq!(bar("a loop without the kernel: two threads / one"), None);
        assert_eq!(bar(&format!("anonymous fault{EXCEPTIONS}")), None);
        let name = "anonymous fault: two threads";
        let rows = [(name, "uvm", 3.0), (name, "linux", 2.0)];
        assert!(matches!(verdict(&document(&rows), name), Verdict::Met(_)));
    }

    #[test]
    fn times_of_random_reads_have_no_bar() {
        assert_eq!(bar("random, advised: time per page touched"), None);
        assert_eq!(bar("random, advised: requests per page touched"), Some(Bar::AtMost(1.0)));
    }
}
