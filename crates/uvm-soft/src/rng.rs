//! A seeded stream of numbers (SplitMix64), the same on every host and in every version, so that a
//! seed replays.

/// The stream; its whole state is one word.
///
/// ```
/// let (mut one, mut two) = (uvm_soft::Rng::new(7), uvm_soft::Rng::new(7));
/// assert_eq!(one.next_u64(), two.next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    ///
    /// ```
    /// let mut rng = uvm_soft::Rng::new(7);
    /// println!("{}", rng.next_u64());
    /// ```
    #[must_use]
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next number.
    ///
    /// ```
    /// let mut rng = uvm_soft::Rng::new(7);
    /// assert_ne!(rng.next_u64(), rng.next_u64());
    /// ```
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not zero.
    ///
    /// ```
    /// assert!(uvm_soft::Rng::new(7).below(10) < 10);
    /// ```
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }

    /// Yes in one of `n` cases; never if `n` is zero.
    ///
    /// ```
    /// let mut rng = uvm_soft::Rng::new(7);
    /// assert!(rng.one_in(1) && !rng.one_in(0));
    /// ```
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    /// One of the choices.
    ///
    /// ```
    /// assert!(uvm_soft::Rng::new(7).pick(&[1, 2, 3]) < &4);
    /// ```
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}
