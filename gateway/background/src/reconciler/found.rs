//! Actions found by a scan over all objects.

use super::compressing::Loose;
use super::groups::Retained;
use super::segments::Going;
use mlgw_common::limits::{ROUND_EVICTIONS_MAX, ROUND_OBJECTS_MAX, RULE_PINS_MAX};
use mlgw_common::{BucketId, ObjectKey, SegmentId};
use mlgw_policies::at_rest::{Areas, Candidate, Pin};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Result of a scan.
#[derive(Default)]
pub(super) struct Found {
    /// Rule matches on more than one object.
    pub(super) areas: Areas,
    pub(super) retained: Retained,
    /// Objects of own buckets that rules pin, and the segments that hold them.
    pub(super) own_pins: Wanted,
    pub(super) segments_of: HashMap<(u64, Box<str>), Vec<SegmentId>>,
    /// Objects of remote-backed buckets whose copies rules pin.
    pub(super) copy_pins: Wanted,
    /// Segments to promote, by rule.
    pub(super) rising: BTreeMap<Arc<str>, BTreeSet<SegmentId>>,
    /// Objects to spill to the next lower tier, and those to spill to an upstream.
    pub(super) falling: Going,
    pub(super) falling_far: Going,
    /// Objects to compress.
    pub(super) loose: Vec<Loose>,
    /// Objects whose copies are evicted.
    pub(super) evicted: Vec<Evicted>,
    rising_objects: usize,
}

/// Pins that rules demand. Inactive pins have a limit of their own, so they take no place of active ones.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) all: Vec<Candidate>,
    unheld: usize,
}

impl Wanted {
    /// Adds a pin. Returns false if there is no place for it.
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

/// An object whose copies are evicted.
pub(super) struct Evicted {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) bytes: u64,
    pub(super) rule: Arc<str>,
}

impl Found {
    /// Pins an object of an own bucket, if there is a place for it.
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

    /// Adds an object to compress. Returns false if there is no place for it.
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

/// Returns the pin candidate for an object.
pub(super) fn candidate(bucket: u64, key: &str, bytes: u64, pin: Pin) -> Candidate {
    let Pin { by, period, bytes_max } = pin;
    Candidate { bucket, key: key.into(), bytes, rule: by.rule, period, bytes_max }
}
