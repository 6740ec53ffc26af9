//! In which manner objects are asked for that are read in no order: all about as often as each other or some
//! much more often, and one by one or many at once.
//!
//! How evenly: of those whose keys have the smallest hashes, which are as good a sample as any, each opening
//! is counted. Counts of objects that are all alike vary as those of rain drops do, their variance is about
//! their mean; where some are dearer it is many times that, and in passes next to nothing. In groups: pauses
//! cut the requests, and it is averaged how many there are between two. Always: bounded, and nothing is said
//! before there is enough to tell.

/// Objects whose openings are counted, and as few of them as say something.
const SAMPLED: usize = 32;
const SAMPLED_MIN: usize = 8;
/// Openings of each on average before anything is said; when they have reached the other all are halved.
const OPENS_MIN: f32 = 3.0;
const OPENS_MAX: u16 = 1 << 12;
/// Objects are read evenly as long as the variance of these counts is less than so many times their mean.
const EVEN: f32 = 1.8;
/// And in passes with less than so many times, from as many openings of each on.
const IN_PASSES: f32 = 0.5;
const OPENS_OF_PASSES_MIN: f32 = 2.0;
/// A pause is so many times as long as requests are apart, on average over so many of them.
const PAUSE: f32 = 3.0;
const GAPS: f32 = 64.0;
/// Groups over which their size is averaged, as few as say something, and the fewest requests that are one.
const GROUPS: f32 = 16.0;
const GROUPS_MIN: f32 = 8.0;
const GROUP_MIN: f32 = 4.0;
/// Groups are of one size when they deviate from the mean by no more than this share of it.
const DEVIATION: f32 = 0.3;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Manner {
    /// The smallest hashes of keys, in their order, and how often each was opened since it was among them.
    hashes: [u32; SAMPLED],
    opens: [u16; SAMPLED],
    sampled: u8,
    /// Mean time between requests, and how many they are, up to a few.
    gap_us: f32,
    gaps: f32,
    /// Requests since the last pause, and pauses, up to a few.
    group: f32,
    groups: f32,
    /// Means of the sizes of groups and of their squares.
    mean: f32,
    square: f32,
}

impl Manner {
    /// An object is opened, whose key has this hash, so long after the one before.
    pub(super) fn open(&mut self, key: u64, gap_us: u64) {
        self.sample(key as u32);
        self.note_gap(gap_us as f32);
    }

    fn sample(&mut self, hash: u32) {
        let sampled = usize::from(self.sampled);
        match self.hashes[..sampled].binary_search(&hash) {
            Ok(at) => {
                self.opens[at] += 1;
                if self.opens[at] == OPENS_MAX {
                    self.opens.iter_mut().for_each(|opens| *opens /= 2);
                }
            }
            Err(SAMPLED) => {}
            Err(at) => {
                let sampled = (sampled + 1).min(SAMPLED);
                self.sampled = sampled as u8;
                self.hashes[at..sampled].rotate_right(1);
                self.opens[at..sampled].rotate_right(1);
                (self.hashes[at], self.opens[at]) = (hash, 1);
            }
        }
    }

    fn note_gap(&mut self, gap_us: f32) {
        let is_known = self.gap_us > 0.0;
        if is_known && gap_us > PAUSE * self.gap_us {
            self.groups = (self.groups + 1.0).min(GROUPS);
            self.mean += (self.group - self.mean) / self.groups;
            self.square += (self.group * self.group - self.square) / self.groups;
            self.group = 0.0;
        }
        self.group += 1.0;
        self.gaps = (self.gaps + 1.0).min(GAPS);
        // A stop for good is no gap between requests.
        let counted = if is_known { gap_us.min(GAPS * self.gap_us) } else { gap_us };
        self.gap_us += (counted - self.gap_us) / self.gaps;
    }

    /// Whether all objects are read about as often as each other, as far as that can be told; not before it
    /// can.
    pub(super) fn is_even(&self) -> bool {
        self.variance(OPENS_MIN).is_some_and(|times| times < EVEN)
    }

    /// Whether they are not; not before that can be told either.
    pub(super) fn is_uneven(&self) -> bool {
        self.variance(OPENS_MIN).is_some_and(|times| times >= EVEN)
    }

    /// Whether each object is read as often as the others, as passes do; not before that can be told.
    pub(super) fn is_in_passes(&self) -> bool {
        self.variance(OPENS_OF_PASSES_MIN).is_some_and(|times| times < IN_PASSES)
    }

    /// How many times their mean the variance of the counts is, when that is at least so much.
    fn variance(&self, mean_min: f32) -> Option<f32> {
        let opens = &self.opens[..self.sampled.into()];
        let count = opens.len() as f32;
        let mean = opens.iter().map(|opens| f32::from(*opens)).sum::<f32>() / count.max(1.0);
        if opens.len() < SAMPLED_MIN || mean < mean_min {
            return None;
        }
        let squares: f32 = opens.iter().map(|opens| (f32::from(*opens) - mean).powi(2)).sum();
        Some(squares / (mean * (count - 1.0)))
    }

    /// Whether they are asked for in groups of about one size, with pauses between them; not before that can
    /// be told.
    pub(super) fn is_in_groups(&self) -> bool {
        let variance = self.square - self.mean * self.mean;
        self.groups >= GROUPS_MIN && self.mean >= GROUP_MIN && variance <= (DEVIATION * self.mean).powi(2)
    }
}

#[cfg(test)]
mod tests {
    use super::Manner;

    /// A number that looks like chance.
    fn chance(n: u64) -> u64 {
        crate::block::mixed(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Openings of these objects, so far apart.
    fn manner(opens: impl Iterator<Item = (u64, u64)>) -> (bool, bool) {
        let mut manner = Manner::default();
        for (object, gap_us) in opens {
            manner.open(chance(object << 20), gap_us);
        }
        (manner.is_even(), manner.is_in_groups())
    }

    #[test]
    fn what_is_read_evenly_is_told_from_what_is_not() {
        let mut right = [0; 2];
        for seed in 0..50_u64 {
            let at = |n: u64| chance(seed << 32 | n);
            let even = manner((0..5000).map(|n| (at(n) % 500, 10)));
            // The third power of what is even: a few are asked for most of the time.
            let skewed =
                manner((0..5000).map(|n| ((((at(n) % 1000) as f64 / 1000.0).powi(3) * 500.0) as u64, 10)));
            right[0] += u32::from(even.0);
            right[1] += u32::from(!skewed.0);
        }
        assert!(right[0] >= 45 && right[1] >= 48, "{right:?}");
        assert!(!manner((0..1000).map(|n| (n, 10))).0, "each once says nothing");
        assert!(!manner((0..1000).map(|n| (n % 5, 10))).0, "five are too few");
    }

    #[test]
    fn groups_are_told_from_an_even_flow_and_from_chance() {
        let in_groups = |of: u64, within_us: u64| {
            manner((0..1200).map(|n| (n, if n % of == 0 { 100_000 } else { within_us }))).1
        };
        assert!(in_groups(8, 1000) && in_groups(32, 0) && in_groups(64, 300));
        assert!(!in_groups(1, 0) && !in_groups(2, 1000));
        assert!(!manner((0..400).map(|n| (n, 1000 + chance(n) % 500))).1);
        // As calls that do not know of each other come.
        let alone = |n: u64| (-((chance(n) >> 11) as f64 / (1_u64 << 53) as f64).ln() * 1000.0) as u64;
        assert!(!manner((0..4000).map(|n| (n, alone(n)))).1);
        let uneven =
            |n: u64| if chance(n / 3).is_multiple_of(6) && n.is_multiple_of(3) { 100_000 } else { 500 };
        assert!(!manner((0..4000).map(|n| (n, uneven(n)))).1);
    }
}
