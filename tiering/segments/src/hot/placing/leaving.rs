//! Separation of bodies that leave the hot tier because of a rule from bodies that stay in the same segments.
//!
//! Open segments are sealed first. Then either the staying bodies are appended elsewhere while the segment is
//! spilled, or the leaving bodies are gathered in segments of their own, which a later order spills.
//! Invariant: no chunk leaves its old location before the catalogue names the new one, chunk by chunk, by
//! compare and set. After a power loss some chunks are moved and others are not; the author of the order
//! examines the segments again and orders the rest.

use std::sync::Arc;
use std::time::Instant;

use mlgw_common::ids::SegmentId;
use mlgw_metadata::Catalogue;

use super::Leaving;
use super::driver::{Placer, STOP_CHECK, TURN};
use crate::hot::catalogue::HOT;
use crate::hot::compaction::choose::SegmentFacts;
use crate::hot::compaction::{Picked, StepError, To, pick_out, seal};
use crate::hot::in_hand::Hand;
use crate::hot::{Inner, Wanted};
use mlgw_formats::decision_entry::Why;
use mlgw_formats::segment_record::Owner;

impl Leaving {
    pub(super) fn why(&self) -> Why {
        Why::rule(self.rule.as_str())
    }

    fn goes(&self) -> Wanted {
        let bodies = self.bodies.clone();
        Arc::new(move |owner: &Owner| bodies.contains(&owner.body))
    }

    /// Returns the predicate of the bodies in its segments that stay.
    pub(super) fn stays(&self) -> Wanted {
        let goes = self.goes();
        Arc::new(move |owner| !goes(owner))
    }
}

impl Placer {
    /// Seals the order's open segments, once per order. Returns true if there were any: then all segments
    /// must be examined again.
    pub(super) async fn seal_open(
        &mut self,
        inner: &Inner,
        catalogue: &Catalogue,
        facts: &[SegmentFacts],
        leaving: &Leaving,
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
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        leaving: &Leaving,
        facts: &[SegmentFacts],
    ) -> Result<bool, StepError> {
        let (begun, mut is_left_out) = (Instant::now(), false);
        let wanted = |segment: &&SegmentFacts| leaving.segments.contains(&segment.id);
        for segment in facts.iter().filter(wanted) {
            let is_free = segment.is_at_rest() && segment.tier == HOT;
            // Each segment is tried once per order.
            if !is_free || self.given_up.contains(&segment.id) {
                continue;
            }
            let claim = inner.in_hand.claim(segment.id, Hand::Placing, 0);
            if claim.is_none() && !inner.in_hand.is_parked(segment.id) {
                is_left_out = true;
                continue;
            }
            self.given_up.insert(segment.id);
            if claim.is_none() {
                continue;
            }
            if inner.compaction.is_stopped() {
                return Err(StepError::Stopping);
            }
            let picked = Picked::begin(segment.id);
            let those = (leaving.goes(), To::Leaving);
            let done = pick_out(inner, catalogue, &picked, those, &mut self.pace).await;
            picked.end(inner, leaving.why(), done.as_ref().err());
            match done {
                Err(StepError::Stopping) => return Err(StepError::Stopping),
                Err(error) => {
                    tracing::warn!(segment = %segment.id, %error, "what leaves a segment was not gathered");
                }
                Ok(()) => {}
            }
            if begun.elapsed() > TURN {
                return Ok(false);
            }
        }
        if is_left_out {
            // Compaction has claimed a segment and will soon be done.
            tokio::time::sleep(STOP_CHECK).await;
            return Ok(false);
        }
        let gathered: Vec<SegmentId> = inner.placing.take_gathered().into_iter().collect();
        seal(inner, catalogue, &gathered).await;
        Ok(true)
    }
}
