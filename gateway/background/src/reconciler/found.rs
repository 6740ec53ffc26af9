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
    pub(super) own_pins: Wanted,
    pub(super) segments_of: HashMap<(u64, Box<str>), Vec<SegmentId>>,
    /// Objects whose copies rules want pinned.
    pub(super) copy_pins: Wanted,
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

/// Pins that rules want. Those that do not hold have a limit of their own: they take no place of those that
/// do.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) all: Vec<Candidate>,
    unheld: usize,
}

impl Wanted {
    /// One more, and whether it holds. Says whether there is a place for it.
    pub(super) fn add(&mut self, one: Candidate, holds: bool) -> bool {
        let of_its_like = if holds { self.all.len() - self.unheld } else { self.unheld };
        let has_room = of_its_like < RULE_PINS_MAX;
        if has_room {
            self.unheld += usize::from(!holds);
            self.all.push(one);
        }
        has_room
    }
}

/// An object whose copies go.
pub(super) struct Evicted {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) bytes: u64,
    pub(super) rule: Arc<str>,
}

impl Found {
    /// One of our own is pinned, if there is room for it.
    pub(super) fn pin_own(&mut self, one: Candidate, segments: Vec<SegmentId>, holds: bool) {
        let name = (one.bucket, one.key.clone());
        if self.own_pins.add(one, holds) {
            self.segments_of.insert(name, segments);
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
