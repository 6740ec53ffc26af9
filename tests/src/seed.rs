//! The only source of randomness in these tests.
//!
//! A seed comes from `MLGW_SEED` or is fixed in the test, is printed, and determines everything that a test
//! chooses. The decisions of the machine (the order of threads) are recorded instead.

pub(crate) use mlgw_schedules::setting;

/// SplitMix64: tiny, and good enough to choose operations and sectors.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent generator for `label`, so that the choices of one part never shift those of another.
    pub(crate) fn fork(&self, label: u64) -> Self {
        Self(mix(self.0 ^ mix(label.wrapping_add(0x5851_f42d_4c95_7f2d))))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which must not be zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "values are not negative");
        self.next() % bound
    }

    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("an index fits")
    }

    /// True `numerator` times in `denominator`.
    pub(crate) fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

/// SplitMix64's finalizer: also a hash of one number.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A generator with the seed of the test: `MLGW_SEED` if set, otherwise the test's default. Prints the seed.
pub(crate) fn seeded_rng(test: &str, default: u64) -> Rng {
    let seed = setting("MLGW_SEED", default);
    eprintln!("{test}: seed {seed} (repeat with MLGW_SEED={seed})");
    Rng::new(seed)
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn a_seed_repeats_its_sequence_and_a_fork_is_independent() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
        let before = Rng::new(7).fork(1).next();
        assert_eq!(Rng::new(7).fork(1).next(), before);
        assert_ne!(Rng::new(7).fork(2).next(), before);
    }
}
