//! Actions found by a scan over all objects.

use super::compressing::CompressionCandidate;
use super::groups::RetentionMatches;
use super::segments::SpillCandidates;
use mlgw_common::limits::{PASS_EVICTIONS_MAX, PASS_OBJECTS_MAX, RULE_PINS_MAX};
use mlgw_common::{BucketId, ObjectKey, SegmentId};
use mlgw_policies::at_rest::{AreaRuleMatches, PinAction, PinCandidate};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Result of a scan.
#[derive(Default)]
pub(super) struct ReconcilerScanResult {
    /// Rule matches on more than one object.
    pub(super) areas: AreaRuleMatches,
    pub(super) retained: RetentionMatches,
    /// Objects of local buckets that rules pin, and the segments that hold them.
    pub(super) own_pins: PinCandidates,
    pub(super) segments_of: HashMap<(u64, Box<str>), Vec<SegmentId>>,
    /// Objects of remote-backed buckets whose copies rules pin.
    pub(super) copy_pins: PinCandidates,
    /// Segments to promote, by rule.
    pub(super) promoting: BTreeMap<Arc<str>, BTreeSet<SegmentId>>,
    /// Objects to spill to the next lower tier, and those to spill to an upstream.
    pub(super) spilling: SpillCandidates,
    pub(super) spilling_upstream: SpillCandidates,
    /// Objects to compress.
    pub(super) compressing: Vec<CompressionCandidate>,
    /// Objects whose copies are evicted.
    pub(super) evicted: Vec<EvictionCandidate>,
    promoting_objects: usize,
}

/// State of a pin that a rule demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PinState {
    Active,
    /// Its time is over, or it found no room in an earlier pass.
    Inactive,
}

/// Pins that rules demand. Inactive pins have a limit of their own, so they take no place of active ones.
#[derive(Default)]
pub(super) struct PinCandidates {
    pub(super) all: Vec<PinCandidate>,
    unheld: usize,
}

impl PinCandidates {
    /// Adds a pin. Returns false if there is no place for it.
    pub(super) fn add(&mut self, one: PinCandidate, state: PinState) -> bool {
        assert!(self.unheld <= self.all.len(), "inactive pins are among all pins");
        let of_its_like = match state {
            PinState::Active => self.all.len() - self.unheld,
            PinState::Inactive => self.unheld,
        };
        let has_room = of_its_like < RULE_PINS_MAX;
        if has_room {
            self.unheld += usize::from(state == PinState::Inactive);
            self.all.push(one);
        }
        has_room
    }
}

/// An object whose copies are evicted.
pub(super) struct EvictionCandidate {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) bytes: u64,
    pub(super) rule: Arc<str>,
}

impl ReconcilerScanResult {
    /// Pins an object of a local bucket, if there is a place for it.
    pub(super) fn pin_own(&mut self, one: PinCandidate, segments: Vec<SegmentId>, state: PinState) {
        let name = (one.bucket, one.key.clone());
        if self.own_pins.add(one, state) {
            self.segments_of.insert(name, segments);
        }
    }

    pub(super) fn promote(&mut self, rule: &Arc<str>, segments: impl Iterator<Item = SegmentId>) {
        if self.promoting_objects < PASS_OBJECTS_MAX {
            self.promoting_objects += 1;
            self.promoting.entry(Arc::clone(rule)).or_default().extend(segments);
        }
    }

    /// Adds an object to compress. Returns false if there is no place for it.
    pub(super) fn compress(&mut self, one: CompressionCandidate) -> bool {
        let has_room = self.compressing.len() < PASS_OBJECTS_MAX;
        if has_room {
            self.compressing.push(one);
        }
        has_room
    }

    pub(super) fn evict(&mut self, one: EvictionCandidate) {
        if self.evicted.len() < PASS_EVICTIONS_MAX {
            self.evicted.push(one);
        }
    }
}

/// Returns the pin candidate for an object.
pub(super) fn pin_candidate(bucket: u64, key: &str, bytes: u64, pin: PinAction) -> PinCandidate {
    let PinAction { by, period, bytes_max } = pin;
    PinCandidate { bucket, key: key.into(), bytes, rule: by.rule, period, bytes_max }
}
