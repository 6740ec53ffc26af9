//! Separation of bodies that leave the hot tier because of a rule from bodies that stay in the same segments.
//!
//! Open segments are sealed first. Then either the staying bodies are appended elsewhere while the segment is
//! spilled, or the leaving bodies are gathered in segments of their own, which a later order spills.
//! Invariant: no chunk leaves its old location before the catalogue names the new one, chunk by chunk, by
//! compare and set. After a power loss some chunks are moved and others are not; the author of the order
//! examines the segments again and orders the rest.

use mlgw_common::time::Instant;
use std::sync::Arc;

use mlgw_common::ids::SegmentId;
use mlgw_metadata::Catalogue;

use super::RuleSpill;
use super::driver::{PASS_MAX, PlacingDriver};
use super::stoppable_wait::STOP_CHECK;
use crate::hot::claims::ClaimOwner;
use crate::hot::compaction::choose::SegmentStats;
use crate::hot::compaction::{MoveStepError, RelocationLog, RelocationTarget, move_matching, seal};
use crate::hot::{HotTierInner, OwnerPredicate};
use mlgw_common::SegmentTier;
use mlgw_formats::decision_entry::DecisionCause;
use mlgw_formats::segment_record::RecordOwner;

impl RuleSpill {
    pub(super) fn why(&self) -> DecisionCause {
        DecisionCause::rule(self.rule.as_str())
    }

    fn leaving_chunks(&self) -> OwnerPredicate {
        let bodies = self.bodies.clone();
        Arc::new(move |owner: &RecordOwner| bodies.contains(&owner.body))
    }

    /// Returns the predicate of the bodies in its segments that stay.
    pub(super) fn staying_chunks(&self) -> OwnerPredicate {
        let goes = self.leaving_chunks();
        Arc::new(move |owner| !goes(owner))
    }
}

impl PlacingDriver {
    /// Seals the order's open segments, once per order. Returns true if there were any: then all segments
    /// must be examined again.
    pub(super) async fn seal_open(
        &mut self,
        inner: &HotTierInner,
        catalogue: &Catalogue,
        facts: &[SegmentStats],
        leaving: &RuleSpill,
    ) -> bool {
        if std::mem::replace(&mut self.has_sealed, true) {
            return false;
        }
        let open = facts.iter().filter(|segment| !segment.sealed && leaving.segments.contains(&segment.id));
        let open: Vec<SegmentId> = open.map(|segment| segment.id).collect();
        seal(inner, catalogue, &open).await;
        !open.is_empty()
    }

    /// Gathers the leaving bodies, segment by segment, for a limited time. Returns true if the order is
    /// complete.
    pub(super) async fn gather(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        leaving: &RuleSpill,
        facts: &[SegmentStats],
    ) -> Result<bool, MoveStepError> {
        let (begun, mut is_left_out) = (Instant::now(), false);
        let wanted = |segment: &&SegmentStats| leaving.segments.contains(&segment.id);
        for segment in facts.iter().filter(wanted) {
            let is_free = segment.is_idle() && segment.tier == SegmentTier::Hot;
            // Each segment is tried once per order.
            if !is_free || self.skipped.contains(&segment.id) {
                continue;
            }
            let claim = inner.claims.claim(segment.id, ClaimOwner::Placing, 0);
            if claim.is_none() && !inner.claims.is_parked(segment.id) {
                is_left_out = true;
                continue;
            }
            self.skipped.insert(segment.id);
            if claim.is_none() {
                continue;
            }
            if inner.compaction.is_stopped() {
                return Err(MoveStepError::Stopping);
            }
            let picked = RelocationLog::start(segment.id);
            let (wanted, to) = (leaving.leaving_chunks(), RelocationTarget::Leaving);
            let done = move_matching(inner, catalogue, &picked, wanted, to, &self.pace).await;
            picked.record(inner, leaving.why(), done.as_ref().err());
            match done {
                Err(MoveStepError::Stopping) => return Err(MoveStepError::Stopping),
                Err(error) => {
                    tracing::warn!(segment = %segment.id, %error,
                        "failed to collect the chunks that leave a segment");
                }
                Ok(()) => {}
            }
            if begun.elapsed() > PASS_MAX {
                return Ok(false);
            }
        }
        if is_left_out {
            // Compaction has claimed a segment and will soon be done.
            mlgw_common::time::sleep(STOP_CHECK).await;
            return Ok(false);
        }
        let gathered: Vec<SegmentId> = inner.placing.take_leaving_segments().into_iter().collect();
        seal(inner, catalogue, &gathered).await;
        Ok(true)
    }
}
