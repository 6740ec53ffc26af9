//! Statistics of the opens of a dataset that is read in no order: evenly or unevenly distributed, and
//! singly or in groups.
//!
//! Evenness: the opens of the objects with the smallest key hashes, a uniform sample, are counted. For
//! uniformly random reads the counts follow a Poisson distribution, so that their variance is about their
//! mean. If some objects are more popular, the variance is a multiple of the mean; in passes it is near 0.
//! Groups: pauses split the requests, and the number of requests between two pauses is averaged. Memory is
//! bounded, and no result is given before there are enough observations.

/// Number of objects whose opens are counted; the next constant is the minimum for a result.
const SAMPLED: usize = 32;
const SAMPLED_MIN: usize = 8;
/// Mean number of opens per object that is needed for a result; when one count reaches `OPENS_MAX`, all are
/// halved.
const OPENS_MIN: f32 = 3.0;
const OPENS_MAX: u16 = 1 << 12;
/// Upper bound of variance divided by mean for an even distribution.
const EVEN: f32 = 1.8;
/// Upper bound of variance divided by mean for reads in passes; the next constant is the mean number of
/// opens needed for that result.
const IN_PASSES: f32 = 0.5;
const OPENS_OF_PASSES_MIN: f32 = 2.0;
/// Minimum length of a pause, as a multiple of the mean gap between requests; the next constant is the
/// number of gaps in the mean.
const PAUSE: f32 = 3.0;
const GAPS: f32 = 64.0;
/// Number of groups in the mean group size, minimum number of groups for a result, and minimum mean size of
/// a group.
const GROUPS: f32 = 16.0;
const GROUPS_MIN: f32 = 8.0;
const GROUP_MIN: f32 = 4.0;
/// Maximum standard deviation of equal group sizes, as a fraction of their mean.
const DEVIATION: f32 = 0.3;

/// Running statistics of opens.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenStatistics {
    /// The smallest key hashes in ascending order; the next field is the number of opens of each since it
    /// was added.
    hashes: [u32; SAMPLED],
    opens: [u16; SAMPLED],
    sampled: u8,
    /// Mean time between requests, and the number of gaps in the mean, at most [`GAPS`].
    gap_us: f32,
    gaps: f32,
    /// Requests since the last pause, and the number of pauses, at most [`GROUPS`].
    group: f32,
    groups: f32,
    /// Mean group size; the next field is the mean of the squared sizes.
    mean: f32,
    square: f32,
}

impl OpenStatistics {
    /// Records an open of the object with this key hash, `gap_us` after the previous one.
    pub(super) fn open(&mut self, key: u64, gap_us: u64) {
        self.sample(key as u32);
        self.record_gap(gap_us as f32);
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

    fn record_gap(&mut self, gap_us: f32) {
        let is_known = self.gap_us > 0.0;
        if is_known && gap_us > PAUSE * self.gap_us {
            self.groups = (self.groups + 1.0).min(GROUPS);
            self.mean += (self.group - self.mean) / self.groups;
            self.square += (self.group * self.group - self.square) / self.groups;
            self.group = 0.0;
        }
        self.group += 1.0;
        self.gaps = (self.gaps + 1.0).min(GAPS);
        // The time of a final stop is not a gap between requests, hence the upper bound.
        let counted = if is_known { gap_us.min(GAPS * self.gap_us) } else { gap_us };
        self.gap_us += (counted - self.gap_us) / self.gaps;
    }

    /// True if all objects are read about equally often; false if there are too few observations.
    pub(super) fn is_even(&self) -> bool {
        self.relative_variance(OPENS_MIN).is_some_and(|times| times < EVEN)
    }

    /// True if some objects are read much more often than others; false if there are too few observations.
    pub(super) fn is_uneven(&self) -> bool {
        self.relative_variance(OPENS_MIN).is_some_and(|times| times >= EVEN)
    }

    /// True if each object is read as often as the others, as in passes; false if there are too few
    /// observations.
    pub(super) fn is_in_passes(&self) -> bool {
        self.relative_variance(OPENS_OF_PASSES_MIN).is_some_and(|times| times < IN_PASSES)
    }

    /// Variance of the counts divided by their mean; `None` if the mean is less than `mean_min` or there
    /// are too few objects.
    fn relative_variance(&self, mean_min: f32) -> Option<f32> {
        let opens = &self.opens[..self.sampled.into()];
        let count = opens.len() as f32;
        let mean = opens.iter().map(|opens| f32::from(*opens)).sum::<f32>() / count.max(1.0);
        if opens.len() < SAMPLED_MIN || mean < mean_min {
            return None;
        }
        let squares: f32 = opens.iter().map(|opens| (f32::from(*opens) - mean).powi(2)).sum();
        Some(squares / (mean * (count - 1.0)))
    }

    /// True if objects are requested in groups of about one size, with pauses between them; false if there
    /// are too few observations.
    pub(super) fn is_in_groups(&self) -> bool {
        let variance = self.square - self.mean * self.mean;
        self.groups >= GROUPS_MIN && self.mean >= GROUP_MIN && variance <= (DEVIATION * self.mean).powi(2)
    }
}

#[cfg(test)]
mod tests {
    use super::OpenStatistics;

    /// A pseudorandom number.
    fn pseudorandom(n: u64) -> u64 {
        crate::block::mix_hash(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Evaluates opens of these objects with these gaps: even, and in groups.
    fn even_and_grouped(opens: impl Iterator<Item = (u64, u64)>) -> (bool, bool) {
        let mut manner = OpenStatistics::default();
        for (object, gap_us) in opens {
            manner.open(pseudorandom(object << 20), gap_us);
        }
        (manner.is_even(), manner.is_in_groups())
    }

    #[test]
    fn even_reads_are_distinguished_from_skewed_ones() {
        let mut right = [0; 2];
        for seed in 0..50_u64 {
            let at = |n: u64| pseudorandom(seed << 32 | n);
            let even = even_and_grouped((0..5000).map(|n| (at(n) % 500, 10)));
            // The third power of a uniform distribution: a few objects get most requests.
            let skewed = even_and_grouped(
                (0..5000).map(|n| ((((at(n) % 1000) as f64 / 1000.0).powi(3) * 500.0) as u64, 10)),
            );
            right[0] += u32::from(even.0);
            right[1] += u32::from(!skewed.0);
        }
        assert!(right[0] >= 45 && right[1] >= 48, "{right:?}");
        assert!(!even_and_grouped((0..1000).map(|n| (n, 10))).0, "single reads are not evidence");
        assert!(!even_and_grouped((0..1000).map(|n| (n % 5, 10))).0, "five are too few");
    }

    #[test]
    fn groups_are_distinguished_from_an_even_flow_and_from_random_arrivals() {
        let in_groups = |of: u64, within_us: u64| {
            even_and_grouped((0..1200).map(|n| (n, if n % of == 0 { 100_000 } else { within_us }))).1
        };
        assert!(in_groups(8, 1000) && in_groups(32, 0) && in_groups(64, 300));
        assert!(!in_groups(1, 0) && !in_groups(2, 1000));
        assert!(!even_and_grouped((0..400).map(|n| (n, 1000 + pseudorandom(n) % 500))).1);
        // Independent arrivals have exponentially distributed gaps.
        let alone = |n: u64| (-((pseudorandom(n) >> 11) as f64 / (1_u64 << 53) as f64).ln() * 1000.0) as u64;
        assert!(!even_and_grouped((0..4000).map(|n| (n, alone(n)))).1);
        let uneven =
            |n: u64| if pseudorandom(n / 3).is_multiple_of(6) && n.is_multiple_of(3) { 100_000 } else { 500 };
        assert!(!even_and_grouped((0..4000).map(|n| (n, uneven(n)))).1);
    }
}
