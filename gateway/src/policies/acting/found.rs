//! What a walk over all objects has found to be done.

use super::compressing::Loose;
use super::groups::Retained;
use super::segments::Going;
use mlgw_common::limits::{ROUND_EVICTIONS_MAX, ROUND_OBJECTS_MAX, RULE_PINS_MAX};
use mlgw_common::{BucketId, ObjectKey, SegmentId};
use mlgw_policies::at_rest::{Areas, Candidate, Pin};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub(super) struct Found {
    /// What rules say of more than one object.
    pub(super) areas: Areas,
    pub(super) retained: Retained,
    /// Our own objects that rules want pinned, and the segments that hold them.
    pub(super) own_pins: Vec<Candidate>,
    pub(super) segments_of: HashMap<(u64, Box<str>), Vec<SegmentId>>,
    /// Objects whose copies rules want pinned.
    pub(super) copy_pins: Vec<Candidate>,
    /// Segments that hold what is to come up, by rule.
    pub(super) rising: BTreeMap<Arc<str>, BTreeSet<SegmentId>>,
    /// What goes to the tier below, and what goes to an upstream.
    pub(super) falling: Going,
    pub(super) falling_far: Going,
    /// Objects that are to be compressed.
    pub(super) loose: Vec<Loose>,
    /// Objects whose copies go.
    pub(super) evicted: Vec<Evicted>,
    rising_objects: usize,
}

/// An object whose copies go.
pub(super) struct Evicted {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) bytes: u64,
    pub(super) rule: Arc<str>,
}

impl Found {
    /// Whether there is room for one of our own that is pinned.
    pub(super) fn pin_own(&mut self, one: Candidate, segments: Vec<SegmentId>) {
        if self.own_pins.len() < RULE_PINS_MAX {
            self.segments_of.insert((one.bucket, one.key.clone()), segments);
            self.own_pins.push(one);
        }
    }

    pub(super) fn pin_copies(&mut self, one: Candidate) {
        if self.copy_pins.len() < RULE_PINS_MAX {
            self.copy_pins.push(one);
        }
    }

    pub(super) fn raise(&mut self, rule: &Arc<str>, segments: impl Iterator<Item = SegmentId>) {
        if self.rising_objects < ROUND_OBJECTS_MAX {
            self.rising_objects += 1;
            self.rising.entry(Arc::clone(rule)).or_default().extend(segments);
        }
    }

    /// Whether there is room for one that is to be compressed.
    pub(super) fn compress(&mut self, one: Loose) -> bool {
        let has_room = self.loose.len() < ROUND_OBJECTS_MAX;
        if has_room {
            self.loose.push(one);
        }
        has_room
    }

    pub(super) fn evict(&mut self, one: Evicted) {
        if self.evicted.len() < ROUND_EVICTIONS_MAX {
            self.evicted.push(one);
        }
    }
}

/// What is to be pinned.
pub(super) fn candidate(bucket: u64, key: &str, bytes: u64, pin: Pin) -> Candidate {
    let Pin { by, period, bytes_max } = pin;
    Candidate { bucket, key: key.into(), bytes, rule: by.rule, period, bytes_max }
}
