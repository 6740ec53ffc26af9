//! When an object was written.
//!
//! Always: the order of two writes is that of the catalogue's sequence, in which no two are equal. Clocks
//! do not decide it: two writes of one
//! millisecond have an order, and a clock that is set back changes none. Times serve for durations of a
//! minute or more. Where no sequence is known (objects
//! of bound buckets, and what the engine has observed), the order is that of times; no deletion rests on it.

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// The place in the catalogue's sequence of writes; 0 where it is not known.
    pub seq: u64,
    /// The time, in microseconds.
    pub at_us: u64,
}

impl Moment {
    /// A time without a place in the sequence.
    #[must_use]
    pub const fn at(at_us: u64) -> Self {
        Self { seq: 0, at_us }
    }
}

#[cfg(test)]
mod tests {
    use super::Moment;
    use proptest::prelude::{any, proptest};
    use proptest::prop_assert_eq;

    proptest! {
        #[test]
        fn the_sequence_decides_whatever_clocks_show(a in any::<(u64, u64)>(), b in any::<(u64, u64)>()) {
            let moment = |(seq, at_us): (u64, u64)| Moment { seq, at_us };
            if a.0 != b.0 {
                prop_assert_eq!(moment(a).cmp(&moment(b)), a.0.cmp(&b.0));
            }
            prop_assert_eq!(Moment::at(a.1).cmp(&Moment::at(b.1)), a.1.cmp(&b.1));
        }
    }
}
