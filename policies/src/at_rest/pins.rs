//! Selection of pins: of the objects that rules request to be pinned, as many as fit, with earlier pins
//! first.
//!
//! Invariants: pinned bytes never exceed the room, nor the pinned bytes of a rule the rule's own maximum. A
//! timed pin ends when its time is over, even if its rule still requests it, and starts again after a pass in
//! which the rule did not request it. A restart of the server starts all times again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// An object that a rule requests to be pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinCandidate {
    /// Bucket id.
    pub bucket: u64,
    /// Object key.
    pub key: Box<str>,
    /// Bytes of the object.
    pub bytes: u64,
    /// The rule.
    pub rule: Arc<str>,
    /// Time until the pin ends; `None` if it has no end.
    pub period: Option<Duration>,
    /// Maximum bytes that the rule may pin.
    pub bytes_max: Option<u64>,
}

/// Bucket, key and rule of a pin.
type PinName = (u64, Box<str>, Arc<str>);

/// Requested pins with their start times.
#[derive(Clone, Debug, Default)]
pub struct PinSelection {
    since: HashMap<PinName, (i64, Option<Duration>)>,
    roomless: HashSet<PinName>,
}

/// Pins that are not in force though their rules still request them.
#[derive(Clone, Debug, Default)]
pub struct InactivePins {
    expired: HashSet<PinName>,
    roomless: HashSet<PinName>,
}

impl InactivePins {
    /// Returns the union of both sets.
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        self.expired.extend(other.expired);
        self.roomless.extend(other.roomless);
        self
    }

    /// True if the pin of this rule on the object is not in force.
    #[must_use]
    pub fn contains(&self, bucket: u64, key: &str, rule: &str) -> bool {
        self.is_expired(bucket, key, rule) || has(&self.roomless, bucket, key, rule)
    }

    /// True if it is not in force because its time is over, not because there was no room.
    #[must_use]
    pub fn is_expired(&self, bucket: u64, key: &str, rule: &str) -> bool {
        has(&self.expired, bucket, key, rule)
    }
}

fn has(names: &HashSet<PinName>, bucket: u64, key: &str, rule: &str) -> bool {
    // Few pins are inactive; for most objects no name is built here.
    !names.is_empty() && names.contains(&(bucket, key.into(), rule.into()))
}

impl PinSelection {
    /// Chooses among the currently requested pins as many as fit in `room_bytes`, and forgets pins that are
    /// no longer requested. Returns the chosen ones and the number of pins that do not fit now but did in the
    /// previous pass or were not requested then. `now_ms` is in milliseconds.
    pub fn choose(
        &mut self,
        now_ms: i64,
        candidates: Vec<PinCandidate>,
        room_bytes: u64,
    ) -> (Vec<PinCandidate>, u64) {
        let before = std::mem::take(&mut self.since);
        let mut by_age: Vec<(i64, PinCandidate)> = Vec::with_capacity(candidates.len());
        for one in candidates {
            let since = before.get(&one.name()).map_or(now_ms, |(since, _)| *since);
            self.since.insert(one.name(), (since, one.period));
            by_age.push((since, one));
        }
        by_age.sort_by_key(|(since, _)| *since);
        by_age.retain(|(since, one)| !is_expired(now_ms, *since, one.period));
        let (mut room_left, mut of_rules) = (room_bytes, HashMap::<Arc<str>, u64>::new());
        let fits = |(_, one): &(i64, PinCandidate)| {
            let rule_bytes = of_rules.entry(Arc::clone(&one.rule)).or_default();
            let is_beyond = one.bytes_max.is_some_and(|most| *rule_bytes + one.bytes > most);
            if is_beyond || one.bytes > room_left {
                return false;
            }
            *rule_bytes += one.bytes;
            room_left -= one.bytes;
            true
        };
        let (chosen, rejected): (Vec<_>, Vec<_>) = by_age.into_iter().partition(fits);
        let roomless: HashSet<PinName> = rejected.iter().map(|(_, one)| one.name()).collect();
        let newly_without_room = roomless.difference(&self.roomless).count() as u64;
        self.roomless = roomless;
        (chosen.into_iter().map(|(_, one)| one).collect(), newly_without_room)
    }

    /// Returns the pins that are not in force.
    #[must_use]
    pub fn inactive(&self, now_ms: i64) -> InactivePins {
        let over = self.since.iter().filter(|(_, (since, period))| is_expired(now_ms, *since, *period));
        InactivePins {
            expired: over.map(|(name, _)| name.clone()).collect(),
            roomless: self.roomless.clone(),
        }
    }

    /// Forgets all requested pins.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl PinCandidate {
    fn name(&self) -> PinName {
        (self.bucket, self.key.clone(), Arc::clone(&self.rule))
    }
}

fn is_expired(now_ms: i64, since_ms: i64, period: Option<Duration>) -> bool {
    let age_ms = u128::try_from(now_ms.saturating_sub(since_ms)).unwrap_or(0);
    period.is_some_and(|period| age_ms >= period.as_millis())
}

#[cfg(test)]
mod tests {
    use super::{PinCandidate, PinSelection};
    use proptest::prelude::*;
    use std::time::Duration;

    fn wanted(key: &str, bytes: u64, rule: &str) -> PinCandidate {
        let (key, rule) = (key.into(), rule.into());
        PinCandidate { bucket: 1, key, bytes, rule, period: None, bytes_max: None }
    }

    fn keys(chosen: &[PinCandidate]) -> Vec<&str> {
        chosen.iter().map(|one| &*one.key).collect()
    }

    #[test]
    fn earlier_pins_stay_and_the_newest_do_not_fit() {
        let mut pins = PinSelection::default();
        assert_eq!(keys(&pins.choose(0, vec![wanted("b", 6, "r")], 10).0), ["b"]);
        let both = || vec![wanted("a", 6, "r"), wanted("b", 6, "r"), wanted("c", 4, "r")];
        assert_eq!(keys(&pins.choose(1, both(), 10).0), ["b", "c"]);
        assert_eq!(keys(&pins.choose(2, vec![wanted("a", 6, "r")], 10).0), ["a"]);
        assert_eq!(keys(&pins.choose(3, both(), 10).0), ["a", "c"], "the pin was released in between");
    }

    #[test]
    fn a_pin_without_room_is_counted_once_and_is_inactive() {
        let mut pins = PinSelection::default();
        let both = || vec![wanted("a", 6, "r"), wanted("b", 6, "r")];
        let mut outcome = |now, room| {
            let (_, fresh) = pins.choose(now, both(), room);
            let unheld = pins.inactive(now);
            (fresh, ["a", "b"].map(|key| unheld.contains(1, key, "r")), unheld.is_expired(1, "b", "r"))
        };
        assert_eq!(outcome(0, 10), (1, [false, true], false));
        assert_eq!(outcome(1, 10), (0, [false, true], false));
        assert_eq!(outcome(2, 12), (0, [false, false], false));
        assert_eq!(outcome(3, 0), (2, [true, true], false));
    }

    #[test]
    fn a_rule_pins_at_most_its_maximum() {
        let mut pins = PinSelection::default();
        let narrow = |key| PinCandidate { bytes_max: Some(10), ..wanted(key, 6, "narrow") };
        let all = vec![narrow("a"), narrow("b"), wanted("c", 6, "wide"), wanted("d", 6, "wide")];
        assert_eq!(keys(&pins.choose(0, all, 100).0), ["a", "c", "d"]);
    }

    #[test]
    fn a_timed_pin_ends_and_starts_again_after_a_pass_without_request() {
        let mut pins = PinSelection::default();
        let timed =
            |rule| vec![PinCandidate { period: Some(Duration::from_millis(5)), ..wanted("a", 1, rule) }];
        let mut is_pinned = |now, wanted| !pins.choose(now, wanted, 10).0.is_empty();
        assert!(is_pinned(10, timed("r")) && is_pinned(14, timed("r")));
        assert!(!is_pinned(15, timed("r")) && !is_pinned(16, timed("r")));
        let both = [timed("r"), timed("other")].concat();
        assert!(is_pinned(17, both.clone()), "each rule has its own pin time");
        assert!(is_pinned(21, both.clone()) && !is_pinned(22, both));
        assert!(!is_pinned(30, vec![]) && is_pinned(31, timed("r")));
        let is_over = |pins: &PinSelection, now, rule: &str| pins.inactive(now).is_expired(1, "a", rule);
        assert_eq!(
            [(35, "r"), (36, "r"), (36, "q")].map(|(now, rule)| is_over(&pins, now, rule)),
            [false, true, false]
        );
    }

    proptest! {
        #[test]
        fn bounds_hold_for_any_requests(
            rounds in prop::collection::vec(prop::collection::vec((0u8..20, 1u64..9, 0u8..3), 0..20), 1..5),
            room in 0u64..60,
            most in 0u64..30,
        ) {
            let mut pins = PinSelection::default();
            for (now, round) in rounds.into_iter().enumerate() {
                let one = |(key, bytes, rule): (u8, u64, u8)| PinCandidate {
                    bytes_max: Some(most),
                    ..wanted(&key.to_string(), bytes, &rule.to_string())
                };
                let (chosen, _) = pins.choose(now as i64, round.into_iter().map(one).collect(), room);
                prop_assert!(chosen.iter().map(|one| one.bytes).sum::<u64>() <= room);
                for rule in ["0", "1", "2"] {
                    let of_rule = chosen.iter().filter(|one| &*one.rule == rule);
                    prop_assert!(of_rule.map(|one| one.bytes).sum::<u64>() <= most);
                }
            }
        }
    }
}
