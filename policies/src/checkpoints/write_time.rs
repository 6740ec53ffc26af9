//! Time of an object's write.
//!
//! Invariant: the order of two writes is that of the catalogue's sequence, in which no two are equal. Clocks
//! do not decide it: two writes in one millisecond have an order, and a clock that is set back changes none.
//! Times serve for durations of a minute or more. Where no sequence number is known (objects of remote-backed
//! buckets, and accesses observed by the engine), the order is that of times; no deletion depends on it.

/// Position and time of a write; see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteTime {
    /// Position in the catalogue's sequence of writes; 0 if unknown.
    pub seq: u64,
    /// Time, in microseconds.
    pub at_us: u64,
}

impl WriteTime {
    /// Returns a time without a position in the sequence.
    #[must_use]
    pub const fn at(at_us: u64) -> Self {
        Self { seq: 0, at_us }
    }
}

#[cfg(test)]
mod tests {
    use super::WriteTime;
    use proptest::prelude::{any, proptest};
    use proptest::prop_assert_eq;

    proptest! {
        #[test]
        fn the_sequence_decides_regardless_of_clocks(a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let moment = |(seq, at_us): (u64, u64)| WriteTime { seq, at_us };
            if a.0 != b.0 {
                prop_assert_eq!(moment(a).cmp(&moment(b)), a.0.cmp(&b.0));
            }
            prop_assert_eq!(WriteTime::at(a.1).cmp(&WriteTime::at(b.1)), a.1.cmp(&b.1));
        }
    }
}
