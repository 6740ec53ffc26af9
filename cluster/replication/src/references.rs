//! The last way to seal a segment too few of whose replicas answer: at the length of what is left, if every
//! reference lies within it.
//!
//! The caller fences the segment in every group that may refer to it, so that no reference is added any more;
//! then sums the references of all of them; and only then looks up, for each record of the surviving prefix,
//! if it is referenced. References can only end meanwhile. So if as many records of the prefix are still
//! referenced as there were references in all, none was beyond the prefix. If the numbers differ, nothing is
//! decided, and the caller may count again or wait for replicas.

use mlgw_common::GroupId;

/// A group that may refer to the segment, as read at one index of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReferrerFacts {
    /// Id of the group.
    pub group: GroupId,
    /// True if the group has applied the fence: it adds no reference to the segment.
    pub is_fenced: bool,
    /// Number of extents in the segment that the group's rows refer to.
    pub extents: u64,
}

/// Decision about the surviving prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixDecision {
    /// Every reference lies within the prefix: the segment is sealed at its length.
    SealAtSurvivor,
    /// A reference may lie beyond: the segment stays open.
    Wait,
}

/// Sum of the references of all referrers. Records are looked up after this value was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummedExtents(u64);

/// Sums the references of all referrers; `None` while one of them is not fenced.
#[must_use]
pub fn sum_extents(referrers: &[ReferrerFacts]) -> Option<SummedExtents> {
    let is_fenced = referrers.iter().all(|referrer| referrer.is_fenced);
    is_fenced.then(|| SummedExtents(referrers.iter().map(|referrer| referrer.extents).sum()))
}

impl SummedExtents {
    /// Decides, given the number of records of the surviving prefix that were found referenced by looking
    /// them up after the sum was made.
    #[must_use]
    pub const fn decide(self, referenced_records: u64) -> PrefixDecision {
        if self.0 == referenced_records { PrefixDecision::SealAtSurvivor } else { PrefixDecision::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::{PrefixDecision, ReferrerFacts, sum_extents};
    use mlgw_common::GroupId;

    #[test]
    fn equal_numbers_mean_contained_and_only_when_all_are_fenced() {
        let referrer =
            |group, is_fenced, extents| ReferrerFacts { group: GroupId(group), is_fenced, extents };
        assert_eq!(sum_extents(&[referrer(1, true, 2), referrer(2, false, 0)]), None);
        let summed = sum_extents(&[referrer(1, true, 2), referrer(2, true, 3)]).unwrap();
        assert_eq!(summed.decide(5), PrefixDecision::SealAtSurvivor);
        assert_eq!(summed.decide(4), PrefixDecision::Wait);
        assert_eq!(summed.decide(6), PrefixDecision::Wait);
        assert_eq!(sum_extents(&[]).unwrap().decide(0), PrefixDecision::SealAtSurvivor);
    }
}
