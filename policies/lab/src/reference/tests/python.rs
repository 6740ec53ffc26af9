//! The random numbers of Python's `random.Random`, so that traces match those of this project's reference
//! simulator event for event.
//!
//! Matsumoto and Nishimura, "Mersenne Twister" (1998), with the seeding and derived functions of CPython.

const LENGTH: usize = 624;
const SHIFT: usize = 397;

pub(super) struct Random {
    state: [u32; LENGTH],
    at: usize,
}

impl Random {
    /// `random.Random(seed)`.
    pub(super) fn new(seed: u32) -> Self {
        let mut state = [0; LENGTH];
        state[0] = 19_650_218_u32;
        for i in 1..LENGTH {
            state[i] = scramble(state[i - 1]).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        let mut i = 1;
        for _ in 0..LENGTH {
            let mixed = scramble(state[i - 1]).wrapping_mul(1_664_525);
            state[i] = (state[i] ^ mixed).wrapping_add(seed);
            i = step(&mut state, i);
        }
        for _ in 0..LENGTH - 1 {
            let mixed = scramble(state[i - 1]).wrapping_mul(1_566_083_941);
            state[i] = (state[i] ^ mixed).wrapping_sub(i as u32);
            i = step(&mut state, i);
        }
        state[0] = 0x8000_0000;
        Self { state, at: LENGTH }
    }

    fn next(&mut self) -> u32 {
        if self.at == LENGTH {
            for i in 0..LENGTH {
                let joined = self.state[i] & 0x8000_0000 | self.state[(i + 1) % LENGTH] & 0x7fff_ffff;
                let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + SHIFT) % LENGTH] ^ joined >> 1 ^ odd;
            }
            self.at = 0;
        }
        let mut value = self.state[self.at];
        self.at += 1;
        value ^= value >> 11;
        value ^= value << 7 & 0x9d2c_5680;
        value ^= value << 15 & 0xefc6_0000;
        value ^ value >> 18
    }

    /// `randrange(n)`.
    pub(super) fn below(&mut self, n: u32) -> u32 {
        let bits = 32 - n.leading_zeros();
        loop {
            let value = self.next() >> (32 - bits);
            if value < n {
                return value;
            }
        }
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u32 + 1) as usize);
        }
    }

    /// `expovariate(rate)`.
    pub(super) fn exponential(&mut self, rate: f64) -> f64 {
        let (high, low) = (self.next() >> 5, self.next() >> 6);
        let uniform = (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0;
        -(1.0 - uniform).ln() / rate
    }
}

fn scramble(word: u32) -> u32 {
    word ^ word >> 30
}

fn step(state: &mut [u32; LENGTH], i: usize) -> usize {
    if i + 1 == LENGTH {
        state[0] = state[LENGTH - 1];
        return 1;
    }
    i + 1
}

#[test]
fn shuffles_like_python() {
    let mut random = Random::new(42);
    let mut items: Vec<u32> = (0..10).collect();
    random.shuffle(&mut items);
    assert_eq!(items, [7, 3, 2, 8, 5, 6, 9, 4, 0, 1]);
}
