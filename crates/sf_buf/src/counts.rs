//! What ephemeral mappings cost.

/// Counts since start-up.
///
/// ```
/// use sf_buf::Counts;
/// let counts = Counts { opened: 4, hits: 3, ..Counts::default() };
/// assert_eq!(counts.hit_rate(), 0.75);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Mappings that were opened.
    pub opened: u64,
    /// Those of them that the cache had.
    pub hits: u64,
    /// Invalidations of an address on the CPU that asked.
    pub local: u64,
    /// Invalidations of an address on other CPUs, a CPU each.
    pub remote: u64,
    /// Times that other CPUs were told, some or all at once.
    pub rounds: u64,
}

impl Counts {
    /// The sum of two.
    ///
    /// ```
    /// use sf_buf::Counts;
    /// let one = Counts { opened: 1, ..Counts::default() };
    /// assert_eq!(one.plus(one).opened, 2);
    /// ```
    #[must_use]
    pub const fn plus(self, other: Counts) -> Counts {
        Counts {
            opened: self.opened + other.opened,
            hits: self.hits + other.hits,
            local: self.local + other.local,
            remote: self.remote + other.remote,
            rounds: self.rounds + other.rounds,
        }
    }

    /// What has come since.
    ///
    /// ```
    /// use sf_buf::Counts;
    /// let (before, now) = (Counts::default(), Counts { local: 1, ..Counts::default() });
    /// assert_eq!(now.since(before).local, 1);
    /// ```
    #[must_use]
    pub const fn since(self, before: Counts) -> Counts {
        Counts {
            opened: self.opened - before.opened,
            hits: self.hits - before.hits,
            local: self.local - before.local,
            remote: self.remote - before.remote,
            rounds: self.rounds - before.rounds,
        }
    }

    /// Which part of the mappings the cache had; 0 if there were none.
    ///
    /// ```
    /// assert_eq!(sf_buf::Counts::default().hit_rate(), 0.0);
    /// ```
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.opened == 0 {
            0.0
        } else {
            self.hits as f64 / self.opened as f64
        }
    }
}
