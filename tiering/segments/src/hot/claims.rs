//! Claims on segments by background workers.
//!
//! Compaction, placing and the driver of replicas run in parallel. Each claims a segment before it works on
//! it, so that no two work on the same one. A claim ends when its owner drops it; claims are not persisted.

use std::collections::HashMap;
use std::sync::Arc;

use mlgw_common::ids::SegmentId;
use parking_lot::Mutex;

/// A worker that claims segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimOwner {
    /// Empties and releases segments.
    Compaction,
    /// Moves segments between tiers.
    Placing,
    /// Copies segments from other nodes, and removes redundant copies.
    Replication,
}

#[derive(Clone, Copy, Debug)]
struct SegmentClaimState {
    by: ClaimOwner,
    /// Bytes of the hot tier that become free when the work is done.
    frees_bytes: u64,
    /// True if the work waits for readers, for an unknown time.
    is_parked: bool,
}

/// The claimed segments of a tier.
#[derive(Debug, Default)]
pub(super) struct SegmentClaims(Mutex<HashMap<SegmentId, SegmentClaimState>>);

/// The exclusive right to work on one segment.
#[derive(Debug)]
pub(super) struct SegmentClaim {
    claims: Arc<SegmentClaims>,
    segment: SegmentId,
}

impl SegmentClaims {
    /// Claims a segment, unless it is claimed already. `frees_bytes` of the hot tier become free when the
    /// work is done.
    pub(super) fn claim(
        self: &Arc<Self>,
        segment: SegmentId,
        by: ClaimOwner,
        frees_bytes: u64,
    ) -> Option<SegmentClaim> {
        use std::collections::hash_map::Entry;
        match self.0.lock().entry(segment) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(SegmentClaimState { by, frees_bytes, is_parked: false });
                Some(SegmentClaim { claims: self.clone(), segment })
            }
        }
    }

    /// True if another worker than `by` has claimed the segment.
    pub(super) fn is_claimed_by_other(&self, segment: SegmentId, by: ClaimOwner) -> bool {
        self.0.lock().get(&segment).is_some_and(|held| held.by != by)
    }

    /// True if the segment is claimed.
    pub(super) fn is_claimed(&self, segment: SegmentId) -> bool {
        self.0.lock().contains_key(&segment)
    }

    /// True if the segment is claimed and the work on it waits for readers.
    pub(super) fn is_parked(&self, segment: SegmentId) -> bool {
        self.0.lock().get(&segment).is_some_and(|held| held.is_parked)
    }

    /// Bytes of the hot tier that become free when all work in progress is done, without work that waits for
    /// readers.
    pub(super) fn expected_free_bytes(&self) -> u64 {
        self.0.lock().values().filter(|held| !held.is_parked).map(|held| held.frees_bytes).sum()
    }
}

impl SegmentClaim {
    /// Marks the work as waiting for readers.
    pub(super) fn parked(self) -> Self {
        if let Some(held) = self.claims.0.lock().get_mut(&self.segment) {
            held.is_parked = true;
        }
        self
    }
}

impl Drop for SegmentClaim {
    fn drop(&mut self) {
        let ended = self.claims.0.lock().remove(&self.segment);
        assert!(ended.is_some(), "a claim on a segment ends once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_one_claim_at_a_time() {
        let (all, one) = (Arc::new(SegmentClaims::default()), SegmentId(1));
        let claim = all.claim(one, ClaimOwner::Compaction, 10).unwrap();
        assert!(
            all.claim(one, ClaimOwner::Placing, 10).is_none()
                && all.claim(one, ClaimOwner::Compaction, 10).is_none()
        );
        let other = all.claim(SegmentId(2), ClaimOwner::Placing, 5).unwrap();
        assert_eq!(all.expected_free_bytes(), 15);
        assert!(
            all.is_claimed_by_other(one, ClaimOwner::Placing)
                && !all.is_claimed_by_other(one, ClaimOwner::Compaction)
        );
        let claim = claim.parked();
        assert_eq!((all.expected_free_bytes(), all.is_claimed(one), all.is_parked(one)), (5, true, true));
        drop((claim, other));
        assert!(!all.is_claimed(one) && all.claim(one, ClaimOwner::Placing, 0).is_some());
    }
}
