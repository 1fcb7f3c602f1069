//! How busy this machine was while something was measured on it.

use std::fmt;

/// What the CPUs had done by a moment, in ticks.
#[derive(Clone, Copy, Default)]
struct Ticks {
    all: u64,
    idle: u64,
    /// Taken by a hypervisor below us.
    stolen: u64,
    /// By this process and the children that have ended.
    ours: u64,
}

/// A measurement under way.
pub struct Watch {
    begin: Ticks,
    /// The load averages of a minute, at the begin and at each look.
    loads: Vec<f64>,
}

impl Watch {
    pub fn begin() -> Watch {
        let mut watch = Watch { begin: Ticks::now(), loads: Vec::new() };
        watch.look();
        watch
    }

    /// Notes the load of this moment.
    pub fn look(&mut self) {
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        self.loads.extend(text.split(' ').next().and_then(|load| load.parse::<f64>().ok()));
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let now = Ticks::now();
        let all = now.all.saturating_sub(self.begin.all).max(1) as f64;
        let part = |now: u64, then: u64| now.saturating_sub(then) as f64 / all;
        let (idle, stolen) = (part(now.idle, self.begin.idle), part(now.stolen, self.begin.stolen));
        let ours = part(now.ours, self.begin.ours);
        // The kernel counts the two by different clocks.
        let others = (1.0 - idle - stolen - ours).max(0.0);
        let least = self.loads.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.loads.iter().copied().fold(0.0, f64::max);
        write!(
            to,
            "The host's CPUs meanwhile: {:.0} % of their time for this, {:.0} % for other programs, {:.1} % stolen; \
             load average {least:.1} to {most:.1}.",
            100.0 * ours,
            100.0 * others,
            100.0 * stolen
        )
    }
}

impl Ticks {
    /// All zero where there is no `/proc`.
    fn now() -> Ticks {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Ticks::of(&read("/proc/stat"), &read("/proc/self/stat"))
    }

    fn of(system: &str, process: &str) -> Ticks {
        let line = system.lines().next().unwrap_or_default();
        let cpu: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let at = |index: usize| cpu.get(index).copied().unwrap_or(0);
        // The name in brackets may contain anything.
        let rest = process.rsplit_once(')').map_or("", |(_, rest)| rest);
        let own =
            rest.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u64>().ok());
        // What virtual machines of the host used stands in the first two columns as well.
        Ticks { all: cpu.iter().take(8).sum(), idle: at(3) + at(4), stolen: at(7), ours: own.sum() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_proc_are_found() {
        let system = "cpu  10 20 30 400 50 6 7 8 90 100\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let process = "42 (a) b) S 1 42 42 0 -1 4194304 9 9 9 9 1 2 30 40 20 0 1";
        let ticks = Ticks::of(system, process);
        assert_eq!((ticks.all, ticks.idle, ticks.stolen, ticks.ours), (531, 450, 8, 73));
    }
}
