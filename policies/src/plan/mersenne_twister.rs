//! Random number generator of PyTorch and of NumPy's `RandomState`: MT19937.
//!
//! Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform pseudo-random
//! number generator" (1998), seeded like their `init_genrand` of 2002. The same seed gives the same numbers
//! everywhere.

const LENGTH: usize = 624;
const SHIFT: usize = 397;

/// A generator; see the module.
#[derive(Clone, Debug)]
pub(super) struct MersenneTwister {
    state: Vec<u32>,
    at: usize,
}

impl MersenneTwister {
    /// Creates a generator from the low 32 bits of the seed, which are all that both libraries use.
    pub(super) fn new(seed: u64) -> Self {
        let next = |(before, number): &(u32, u32)| {
            let number = number + 1;
            let mixed = 1_812_433_253_u32.wrapping_mul(before ^ before >> 30).wrapping_add(number);
            Some((mixed, number))
        };
        let state = std::iter::successors(Some((seed as u32, 0)), next).take(LENGTH);
        Self { state: state.map(|(word, _)| word).collect(), at: LENGTH }
    }

    fn refill(&mut self) {
        for at in 0..LENGTH {
            let joined = self.state[at] & 0x8000_0000 | self.state[(at + 1) % LENGTH] & 0x7fff_ffff;
            let twist = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[at] = self.state[(at + SHIFT) % LENGTH] ^ joined >> 1 ^ twist;
        }
        self.at = 0;
    }

    pub(super) fn next(&mut self) -> u32 {
        if self.at == LENGTH {
            self.refill();
        }
        let mut word = self.state[self.at];
        self.at += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9d2c_5680;
        word ^= word << 15 & 0xefc6_0000;
        word ^ word >> 18
    }

    /// Permutation of `torch.randperm`: Fisher-Yates from the front, by remainder. PyTorch uses it for fewer
    /// than 2³² / 20 items.
    pub(super) fn torch_permutation(&mut self, count: u32) -> Vec<u32> {
        let mut items: Vec<u32> = (0..count).collect();
        for at in 0..count.saturating_sub(1) {
            let other = at + self.next() % (count - at);
            items.swap(at as usize, other as usize);
        }
        items
    }

    /// Permutation of `numpy.random.RandomState.permutation`: Fisher-Yates from the back; numbers that are
    /// too large are drawn again.
    pub(super) fn numpy_permutation(&mut self, count: u32) -> Vec<u32> {
        let mut items: Vec<u32> = (0..count).collect();
        for at in (1..count).rev() {
            let mask = u32::MAX >> at.leading_zeros();
            let other = loop {
                let drawn = self.next() & mask;
                if drawn <= at {
                    break drawn;
                }
            };
            items.swap(at as usize, other as usize);
        }
        items
    }

    /// Skips numbers that are drawn for another purpose.
    pub(super) fn skip(&mut self, numbers: u32) {
        for _ in 0..numbers {
            self.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MersenneTwister;

    /// Checks the ten thousandth number of the default seed, which the C++ standard gives for `std::mt19937`
    /// (26.6.5).
    #[test]
    fn generator_equals_that_of_the_cpp_standard() {
        let mut numbers = MersenneTwister::new(5489);
        numbers.skip(9999);
        assert_eq!(numbers.next(), 4_123_659_995);
    }

    #[test]
    fn permutations_of_one_item_or_none_draw_no_number() {
        let mut numbers = MersenneTwister::new(1);
        assert!(numbers.torch_permutation(0).is_empty());
        assert_eq!(numbers.numpy_permutation(1), [0]);
        assert_eq!(numbers.next(), 1_791_095_845);
    }
}
