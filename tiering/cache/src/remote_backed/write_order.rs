//! Ordering of writes and origin responses: a response to a request that began before a write of this gateway
//! ended may be older than the write.
//!
//! A reader takes a ticket before it contacts the origin. The response is valid only if no write of its key
//! is in flight when it arrives, and no write of its stripe ended since the ticket was taken. Writes in
//! flight are tracked per key; ended writes are counted per stripe of keys, so that a response is
//! occasionally discarded without need. A write whose outcome is unknown may be executed later: for a while
//! no response about its key is valid. Nor is a response to a request that began while writes of another node
//! might still be executed. A write that the origin did not answer in time may even be executed after a later
//! write of its key, and undo it: write-back waits before it sends the later one.
//!
//! All state is in memory. After a crash the writes in flight are unknown: for a bucket that is written
//! through, metadata from before the start is not valid.

use mlgw_common::ids::BucketId;
use mlgw_common::limits::ORIGIN_CHANGE_MS_MAX;
use mlgw_common::{ObjectKey, Timestamp};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::time::Duration;

/// Number of groups of keys for which ended writes are counted.
const STRIPES: usize = 256;
/// Time after which an origin that received a write has executed it or never will. Origins that queue
/// requests give up on them within a minute.
const UNCERTAINTY: Duration = Duration::from_mins(1);

const _: () = assert!(UNCERTAINTY.as_millis() >= ORIGIN_CHANGE_MS_MAX as u128);

/// Maximum number of uncertain keys of a stripe; with more, all keys of the stripe are uncertain.
const UNCERTAIN_MAX: usize = 256;

type StripedKey = (BucketId, ObjectKey);

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OriginWriteOutcome {
    /// Executed.
    Done,
    /// Certainly not executed.
    Refused,
    /// May have been executed, or may be executed later.
    Unknown,
    /// As [`Self::Unknown`]: the origin still had the request when its time was over.
    Unanswered,
}

/// Writes of a node.
pub(super) struct WriteOrdering {
    hasher: RandomState,
    stripes: [Mutex<WriteStripe>; STRIPES],
}

#[derive(Default)]
struct WriteStripe {
    /// Number of writes that ended, except for rejected ones.
    ended_writes: u64,
    in_flight: HashMap<StripedKey, u32>,
    /// Keys of uncertain writes.
    uncertain: HashMap<StripedKey, UncertainKey>,
    /// Time until which all keys of the stripe count as unanswered.
    all_uncertain_until: Timestamp,
}

#[derive(Clone, Copy)]
struct UncertainKey {
    /// Time until which responses about the key are not valid.
    until: Timestamp,
    /// True if the origin did not answer a write of the key in time.
    is_unanswered: bool,
}

/// State of a stripe when the ticket was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct WriteTicket {
    /// Number of ended writes.
    ended_writes: u64,
    /// False if the ticket is never valid.
    is_usable: bool,
}

impl WriteTicket {
    /// Ticket that is never valid.
    pub(super) const VOID: Self = Self { ended_writes: u64::MAX, is_usable: false };

    /// Returns a ticket of the same moment that is never valid.
    pub(super) const fn voided(self) -> Self {
        Self { is_usable: false, ..self }
    }
}

impl Default for WriteOrdering {
    fn default() -> Self {
        Self { hasher: RandomState::new(), stripes: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl WriteOrdering {
    /// Takes a ticket, before an origin is contacted about a key.
    pub(super) fn ticket(&self, bucket: BucketId, key: &ObjectKey) -> WriteTicket {
        self.stripe(bucket, key).lock().ticket()
    }

    /// Invalidates all tickets, because the bucket was moved to another origin.
    pub(super) fn invalidate_all(&self) {
        self.stripes.iter().for_each(|stripe| stripe.lock().ended_writes += 1);
    }

    /// Calls `then` with whether a response about a key is valid. No write of the key begins or ends during
    /// the call.
    pub(super) fn apply<T>(
        &self,
        ticket: WriteTicket,
        bucket: BucketId,
        key: &ObjectKey,
        now: Timestamp,
        then: impl FnOnce(bool) -> T,
    ) -> T {
        let stripe = self.stripe(bucket, key).lock();
        let is_current = ticket.is_usable && stripe.ended_writes == ticket.ended_writes;
        then(is_current && (stripe.is_quiet() || stripe.is_certain(bucket, key, now)))
    }

    /// Begins a write of a key; `then` updates the local metadata.
    pub(super) fn begin<T>(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        then: impl FnOnce() -> T,
    ) -> (WriteTicket, T) {
        let mut stripe = self.stripe(bucket, key).lock();
        *stripe.in_flight.entry((bucket, key.clone())).or_default() += 1;
        (stripe.ticket(), then())
    }

    /// Ends a write of a key that began with `ticket`. `then` updates the local metadata; its argument is
    /// true if the object may have changed. If the write was rejected, `then` is called with false, and only
    /// if no other write of the stripe ended and no write of the key is in flight or uncertain.
    pub(super) fn end(
        &self,
        ticket: WriteTicket,
        bucket: BucketId,
        key: &ObjectKey,
        outcome: OriginWriteOutcome,
        now: Timestamp,
        then: impl FnOnce(bool),
    ) {
        let mut stripe = self.stripe(bucket, key).lock();
        let place = (bucket, key.clone());
        assert!(ticket.ended_writes <= stripe.ended_writes, "a write began no later than it ends");
        let is_last = stripe.in_flight.get_mut(&place).map(|count| {
            *count -= 1;
            *count == 0
        });
        assert!(is_last.is_some(), "a write that ends has begun");
        if is_last == Some(true) {
            stripe.in_flight.remove(&place);
        }
        if outcome == OriginWriteOutcome::Refused {
            if stripe.ended_writes == ticket.ended_writes && stripe.is_certain(bucket, key, now) {
                then(false);
            }
            return;
        }
        stripe.ended_writes += 1;
        if matches!(outcome, OriginWriteOutcome::Unknown | OriginWriteOutcome::Unanswered) {
            stripe.mark_uncertain(place, now, outcome);
        }
        then(true);
    }

    /// Returns the time for which the origin may still execute a write of a key that it did not answer.
    pub(super) fn unanswered_for(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        now: Timestamp,
    ) -> Option<Duration> {
        let until = self.stripe(bucket, key).lock().unanswered_until(bucket, key);
        let left_ms = u64::try_from(until.as_millis().saturating_sub(now.as_millis())).ok()?;
        // The clock may have been set back.
        (left_ms > 0).then(|| Duration::from_millis(left_ms).min(UNCERTAINTY))
    }

    fn stripe(&self, bucket: BucketId, key: &ObjectKey) -> &Mutex<WriteStripe> {
        let hash = self.hasher.hash_one(KeyHash(bucket, key));
        &self.stripes[hash as usize % STRIPES]
    }
}

impl WriteStripe {
    const fn ticket(&self) -> WriteTicket {
        WriteTicket { ended_writes: self.ended_writes, is_usable: true }
    }

    /// True if no write is in flight or uncertain, which is the usual case.
    fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
            && self.uncertain.is_empty()
            && self.all_uncertain_until == Timestamp::default()
    }

    fn is_certain(&self, bucket: BucketId, key: &ObjectKey, now: Timestamp) -> bool {
        let place = (bucket, key.clone());
        let doubted = self.uncertain.get(&place).is_some_and(|key| now < key.until);
        !doubted && now >= self.all_uncertain_until && !self.in_flight.contains_key(&place)
    }

    fn unanswered_until(&self, bucket: BucketId, key: &ObjectKey) -> Timestamp {
        let of_key = self.uncertain.get(&(bucket, key.clone())).filter(|of_key| of_key.is_unanswered);
        of_key.map_or(self.all_uncertain_until, |of_key| of_key.until.max(self.all_uncertain_until))
    }

    fn mark_uncertain(&mut self, place: StripedKey, now: Timestamp, outcome: OriginWriteOutcome) {
        let is_unanswered = outcome == OriginWriteOutcome::Unanswered;
        let until = Timestamp(now.as_millis().saturating_add(UNCERTAINTY.as_millis() as i64));
        self.uncertain.retain(|_, key| now < key.until);
        if self.uncertain.len() < UNCERTAIN_MAX {
            let key = self.uncertain.entry(place).or_insert(UncertainKey { until, is_unanswered });
            key.until = until;
            key.is_unanswered |= is_unanswered;
        } else {
            self.all_uncertain_until = until;
        }
    }
}

#[derive(Hash)]
struct KeyHash<'a>(BucketId, &'a ObjectKey);

#[cfg(test)]
mod tests {
    use super::{OriginWriteOutcome, UNCERTAIN_MAX, UNCERTAINTY, WriteOrdering, WriteTicket};
    use mlgw_common::ids::BucketId;
    use mlgw_common::{ObjectKey, Timestamp};
    use std::time::Duration;

    const BUCKET: BucketId = BucketId(7);
    const NOW: Timestamp = Timestamp(1_000_000);

    fn key(name: &str) -> ObjectKey {
        ObjectKey::from_bytes(name.as_bytes()).unwrap()
    }

    fn is_valid(order: &WriteOrdering, ticket: WriteTicket, name: &str, now: Timestamp) -> bool {
        order.apply(ticket, BUCKET, &key(name), now, |holds| holds)
    }

    fn begin(order: &WriteOrdering, name: &str) -> WriteTicket {
        order.begin(BUCKET, &key(name), || ()).0
    }

    /// Ends a write. Returns the argument of the callback, if it was called.
    fn end(
        order: &WriteOrdering,
        began: WriteTicket,
        name: &str,
        outcome: OriginWriteOutcome,
    ) -> Option<bool> {
        let mut reported = None;
        order.end(began, BUCKET, &key(name), outcome, NOW, |changed| reported = Some(changed));
        reported
    }

    #[test]
    fn a_response_requested_before_a_write_ended_is_invalid() {
        let order = WriteOrdering::default();
        let before = order.ticket(BUCKET, &key("k"));
        assert!(is_valid(&order, before, "k", NOW));
        let (one, other) = (begin(&order, "k"), begin(&order, "k"));
        let during = order.ticket(BUCKET, &key("k"));
        assert!(!is_valid(&order, before, "k", NOW) && !is_valid(&order, during, "k", NOW));
        assert_eq!(end(&order, one, "k", OriginWriteOutcome::Refused), None);
        assert!(!is_valid(&order, before, "k", NOW), "the other write is in progress");
        assert_eq!(end(&order, other, "k", OriginWriteOutcome::Done), Some(true));
        assert!(!is_valid(&order, before, "k", NOW) && !is_valid(&order, during, "k", NOW));
        assert!(is_valid(&order, order.ticket(BUCKET, &key("k")), "k", NOW));
    }

    #[test]
    fn a_response_requested_from_an_earlier_origin_is_invalid() {
        let order = WriteOrdering::default();
        let before = order.ticket(BUCKET, &key("k"));
        order.invalidate_all();
        assert!(!is_valid(&order, before, "k", NOW) && !is_valid(&order, WriteTicket::VOID, "k", NOW));
        let current = order.ticket(BUCKET, &key("k"));
        assert!(is_valid(&order, current, "k", NOW) && !is_valid(&order, current.voided(), "k", NOW));
    }

    #[test]
    fn a_rejected_write_changes_nothing() {
        let order = WriteOrdering::default();
        let before = order.ticket(BUCKET, &key("k"));
        let began = begin(&order, "k");
        assert_eq!(end(&order, began, "k", OriginWriteOutcome::Refused), Some(false));
        assert!(is_valid(&order, before, "k", NOW));
    }

    #[test]
    fn a_write_that_may_be_executed_later_is_uncertain_for_a_while() {
        let order = WriteOrdering::default();
        let began = begin(&order, "k");
        assert_eq!(end(&order, began, "k", OriginWriteOutcome::Unknown), Some(true));
        let began = begin(&order, "k");
        assert_eq!(
            end(&order, began, "k", OriginWriteOutcome::Refused),
            None,
            "the previous copy is in doubt"
        );
        let ticket = order.ticket(BUCKET, &key("k"));
        assert!(!is_valid(&order, ticket, "k", Timestamp(NOW.as_millis() + 59_999)));
        assert!(is_valid(&order, ticket, "k", Timestamp(NOW.as_millis() + 60_000)));
    }

    #[test]
    fn a_write_without_an_answer_counts_as_unanswered_for_a_while_whatever_follows() {
        let order = WriteOrdering::default();
        let left = |after_ms| order.unanswered_for(BUCKET, &key("k"), Timestamp(NOW.as_millis() + after_ms));
        let ended = |outcome| end(&order, begin(&order, "k"), "k", outcome);
        for outcome in [OriginWriteOutcome::Done, OriginWriteOutcome::Refused, OriginWriteOutcome::Unknown] {
            ended(outcome);
            assert_eq!(left(0), None, "{outcome:?}");
        }
        ended(OriginWriteOutcome::Unanswered);
        for outcome in [OriginWriteOutcome::Done, OriginWriteOutcome::Refused, OriginWriteOutcome::Unknown] {
            ended(outcome);
            assert_eq!(left(59_999), Some(Duration::from_millis(1)), "{outcome:?}");
        }
        assert_eq!(left(60_000), None);
        assert_eq!(left(-1_000_000), Some(UNCERTAINTY), "the clock was set back");
        assert_eq!(order.unanswered_for(BUCKET, &key("other"), NOW), None);
        let ticket = order.ticket(BUCKET, &key("k"));
        assert!(!is_valid(&order, ticket, "k", NOW), "reads are uncertain too");
    }

    #[test]
    fn uncertain_writes_are_bounded_and_none_is_lost() {
        let order = WriteOrdering::default();
        let names: Vec<String> = (0..300 * UNCERTAIN_MAX).map(|n| n.to_string()).collect();
        for name in &names {
            let began = begin(&order, name);
            end(&order, began, name, OriginWriteOutcome::Unanswered);
        }
        for name in &names {
            assert!(!is_valid(&order, order.ticket(BUCKET, &key(name)), name, NOW), "{name}");
            assert!(order.unanswered_for(BUCKET, &key(name), NOW).is_some(), "{name}");
        }
        assert!(order.stripes.iter().all(|stripe| stripe.lock().uncertain.len() <= UNCERTAIN_MAX));
    }
}
