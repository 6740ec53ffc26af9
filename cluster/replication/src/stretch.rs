//! Stretches of a file, and sets of them: sorted, disjoint and not adjacent.

use std::ops::Range;

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch {
    /// Offset of the first byte.
    pub from: u64,
    /// Offset after the last byte.
    pub to: u64,
}

impl Stretch {
    /// Number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.to - self.from
    }
}

impl From<Range<u64>> for Stretch {
    fn from(range: Range<u64>) -> Self {
        assert!(range.start <= range.end, "a stretch does not end before it begins");
        Self { from: range.start, to: range.end }
    }
}

/// A set of stretches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StretchSet(Vec<Stretch>);

impl StretchSet {
    /// The union of stretches in any order.
    pub(crate) fn of(stretches: impl IntoIterator<Item = Stretch>) -> Self {
        let mut sorted: Vec<Stretch> = stretches.into_iter().filter(|stretch| stretch.bytes() > 0).collect();
        sorted.sort_unstable();
        let mut set: Vec<Stretch> = Vec::new();
        for stretch in sorted {
            match set.last_mut().filter(|last| stretch.from <= last.to) {
                Some(last) => last.to = last.to.max(stretch.to),
                None => set.push(stretch),
            }
        }
        Self(set)
    }

    /// The stretch from the beginning to a length.
    pub(crate) fn prefix(length: u64) -> Self {
        Self::of([Stretch::from(0..length)])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Stretch> + '_ {
        self.0.iter().copied()
    }

    /// Offset after the last byte; 0 if there is none.
    pub(crate) fn end(&self) -> u64 {
        self.0.last().map_or(0, |last| last.to)
    }

    /// Adds a stretch.
    pub(crate) fn insert(&mut self, stretch: Stretch) {
        *self = Self::of(self.iter().chain([stretch]));
    }

    /// The bytes that are in both sets.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let pairs = self.iter().flat_map(|one| other.iter().map(move |two| (one, two)));
        let shared = pairs.filter_map(|(one, two)| {
            let (from, to) = (one.from.max(two.from), one.to.min(two.to));
            (from < to).then_some(Stretch { from, to })
        });
        Self::of(shared)
    }

    /// The bytes of this set that are not in the other one.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for stretch in self.iter() {
            let mut from = stretch.from;
            for gone in other.iter() {
                if gone.to > from && gone.from < stretch.to {
                    left.push(Stretch { from, to: gone.from.max(from) });
                    from = gone.to.min(stretch.to);
                }
            }
            left.push(Stretch { from, to: stretch.to });
        }
        Self::of(left)
    }
}

#[cfg(test)]
mod tests {
    use super::{Stretch, StretchSet};

    fn set(stretches: &[(u64, u64)]) -> StretchSet {
        StretchSet::of(stretches.iter().map(|(from, to)| Stretch { from: *from, to: *to }))
    }

    /// Bit `at` is set if byte `at` is in the set.
    fn bits(of: &StretchSet) -> u16 {
        of.iter().flat_map(|stretch| stretch.from..stretch.to).map(|at| 1 << at).sum()
    }

    fn of_bits(bits: u16) -> StretchSet {
        StretchSet::of((0..16).filter(|at| bits & (1 << at) != 0).map(|at| Stretch::from(at..at + 1)))
    }

    #[test]
    fn stretches_are_merged_and_sorted() {
        assert_eq!(set(&[(5, 7), (0, 2), (2, 3), (6, 9), (4, 4)]), set(&[(0, 3), (5, 9)]));
        assert_eq!((set(&[(5, 7)]).end(), set(&[]).end()), (7, 0));
        let mut grown = set(&[(0, 2), (4, 6)]);
        grown.insert(Stretch::from(2..4));
        assert_eq!(grown, StretchSet::prefix(6));
    }

    #[test]
    fn sets_behave_like_sets_of_bytes() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..2_000 {
            let (one, two) = (rng.u16(..), rng.u16(..));
            assert_eq!(bits(&of_bits(one)), one);
            assert_eq!(of_bits(one).intersection(&of_bits(two)), of_bits(one & two));
            assert_eq!(of_bits(one).without(&of_bits(two)), of_bits(one & !two));
        }
    }
}
