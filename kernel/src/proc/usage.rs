//! What a thread, a process or its children have used.

/// Times and fault counts; sums of these make `getrusage`, `times` and `wait4`.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    pub user_ns: u64,
    pub kernel_ns: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    /// The largest resident set, in pages: a maximum, not a sum.
    pub max_resident: u64,
}

impl Usage {
    pub fn add(&mut self, other: &Usage) {
        self.user_ns += other.user_ns;
        self.kernel_ns += other.kernel_ns;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.max_resident = self.max_resident.max(other.max_resident);
    }

    /// Time on a CPU in all.
    pub fn cpu_ns(&self) -> u64 {
        self.user_ns + self.kernel_ns
    }
}
