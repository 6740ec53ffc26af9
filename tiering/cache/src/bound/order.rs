//! Ordering of writes and origin responses: a response to a request that began before a write of this gateway
//! ended may be older than the write.
//!
//! A reader takes a ticket before it contacts the origin. The response is valid only if no write of its key
//! is in flight when it arrives, and no write of its stripe ended since the ticket was taken. Writes in
//! flight are tracked per key; ended writes are counted per stripe of keys, so that a response is
//! occasionally discarded without need. A write whose outcome is unknown may be executed later: for a while
//! no response about its key is valid.
//!
//! All state is in memory. After a crash the writes in flight are unknown: for a bucket that is written
//! through, metadata from before the start is not valid.

use mlgw_common::ids::BucketId;
use mlgw_common::{ObjectKey, Timestamp};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::time::Duration;

/// Number of groups of keys for which ended writes are counted.
const STRIPES: usize = 256;
/// Time after which an origin that received a write has executed it or never will. Origins that queue
/// requests give up on them within a minute.
const DOUBT: Duration = Duration::from_mins(1);
/// Maximum number of uncertain keys of a stripe; with more, all keys of the stripe are uncertain.
const DOUBTED_MAX: usize = 256;

type Place = (BucketId, ObjectKey);

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Executed.
    Done,
    /// Certainly not executed.
    Refused,
    /// May have been executed, or may be executed later.
    Unknown,
}

/// Writes of a node.
pub(super) struct Order {
    hasher: RandomState,
    stripes: [Mutex<Stripe>; STRIPES],
}

#[derive(Default)]
struct Stripe {
    /// Number of writes that ended, except for rejected ones.
    ended: u64,
    under_way: HashMap<Place, u32>,
    /// Keys of uncertain writes, with the time until which responses about them are not valid.
    doubted: HashMap<Place, Timestamp>,
    /// Time until which responses about all keys of the stripe are not valid.
    all_doubted: Timestamp,
}

/// Number of ended writes of a stripe when the ticket was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket(u64);

impl Ticket {
    /// Ticket that is never valid.
    pub(super) const VOID: Self = Self(u64::MAX);
}

impl Default for Order {
    fn default() -> Self {
        Self { hasher: RandomState::new(), stripes: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Order {
    /// Takes a ticket, before an origin is contacted about a key.
    pub(super) fn ticket(&self, bucket: BucketId, key: &ObjectKey) -> Ticket {
        Ticket(self.stripe(bucket, key).lock().ended)
    }

    /// Invalidates all tickets, because the bucket was moved to another origin.
    pub(super) fn expire_all(&self) {
        self.stripes.iter().for_each(|stripe| stripe.lock().ended += 1);
    }

    /// Calls `then` with whether a response about a key is valid. No write of the key begins or ends during
    /// the call.
    pub(super) fn with<T>(
        &self,
        ticket: Ticket,
        bucket: BucketId,
        key: &ObjectKey,
        now: Timestamp,
        then: impl FnOnce(bool) -> T,
    ) -> T {
        let stripe = self.stripe(bucket, key).lock();
        let holds = stripe.ended == ticket.0 && (stripe.is_quiet() || stripe.is_sure(bucket, key, now));
        then(holds)
    }

    /// Begins a write of a key; `then` updates the local metadata.
    pub(super) fn begin<T>(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        then: impl FnOnce() -> T,
    ) -> (Ticket, T) {
        let mut stripe = self.stripe(bucket, key).lock();
        *stripe.under_way.entry((bucket, key.clone())).or_default() += 1;
        (Ticket(stripe.ended), then())
    }

    /// Ends a write of a key that began with `ticket`. `then` updates the local metadata; its argument is
    /// true if the object may have changed. If the write was rejected, `then` is called with false, and only
    /// if no other write of the stripe ended and no write of the key is in flight or uncertain.
    pub(super) fn end(
        &self,
        ticket: Ticket,
        (bucket, key): (BucketId, &ObjectKey),
        outcome: Outcome,
        now: Timestamp,
        then: impl FnOnce(bool),
    ) {
        let mut stripe = self.stripe(bucket, key).lock();
        let place = (bucket, key.clone());
        if let Some(count) = stripe.under_way.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                stripe.under_way.remove(&place);
            }
        }
        if outcome == Outcome::Refused {
            if stripe.ended == ticket.0 && stripe.is_sure(bucket, key, now) {
                then(false);
            }
            return;
        }
        stripe.ended += 1;
        if outcome == Outcome::Unknown {
            stripe.doubt(place, now);
        }
        then(true);
    }

    fn stripe(&self, bucket: BucketId, key: &ObjectKey) -> &Mutex<Stripe> {
        let hash = self.hasher.hash_one(HashOf(bucket, key));
        &self.stripes[hash as usize % STRIPES]
    }
}

impl Stripe {
    /// True if no write is in flight or uncertain, which is the usual case.
    fn is_quiet(&self) -> bool {
        self.under_way.is_empty() && self.doubted.is_empty() && self.all_doubted == Timestamp::default()
    }

    fn is_sure(&self, bucket: BucketId, key: &ObjectKey, now: Timestamp) -> bool {
        let place = (bucket, key.clone());
        let doubted = self.doubted.get(&place).is_some_and(|until| now < *until);
        !doubted && now >= self.all_doubted && !self.under_way.contains_key(&place)
    }

    fn doubt(&mut self, place: Place, now: Timestamp) {
        let until = Timestamp(now.as_millis().saturating_add(DOUBT.as_millis() as i64));
        self.doubted.retain(|_, until| now < *until);
        if self.doubted.len() < DOUBTED_MAX {
            self.doubted.insert(place, until);
        } else {
            self.all_doubted = until;
        }
    }
}

#[derive(Hash)]
struct HashOf<'a>(BucketId, &'a ObjectKey);

#[cfg(test)]
mod tests {
    use super::{DOUBTED_MAX, Order, Outcome, Ticket};
    use mlgw_common::ids::BucketId;
    use mlgw_common::{ObjectKey, Timestamp};

    const BUCKET: BucketId = BucketId(7);
    const NOW: Timestamp = Timestamp(1_000_000);

    fn key(name: &str) -> ObjectKey {
        ObjectKey::from_bytes(name.as_bytes()).unwrap()
    }

    fn holds(order: &Order, ticket: Ticket, name: &str, now: Timestamp) -> bool {
        order.with(ticket, BUCKET, &key(name), now, |holds| holds)
    }

    fn begin(order: &Order, name: &str) -> Ticket {
        order.begin(BUCKET, &key(name), || ()).0
    }

    /// Ends a write. Returns the argument of the callback, if it was called.
    fn end(order: &Order, began: Ticket, name: &str, outcome: Outcome) -> Option<bool> {
        let mut told = None;
        order.end(began, (BUCKET, &key(name)), outcome, NOW, |changed| told = Some(changed));
        told
    }

    #[test]
    fn a_response_requested_before_a_write_ended_is_invalid() {
        let order = Order::default();
        let before = order.ticket(BUCKET, &key("k"));
        assert!(holds(&order, before, "k", NOW));
        let (one, other) = (begin(&order, "k"), begin(&order, "k"));
        let during = order.ticket(BUCKET, &key("k"));
        assert!(!holds(&order, before, "k", NOW) && !holds(&order, during, "k", NOW));
        assert_eq!(end(&order, one, "k", Outcome::Refused), None);
        assert!(!holds(&order, before, "k", NOW), "the other one is under way");
        assert_eq!(end(&order, other, "k", Outcome::Done), Some(true));
        assert!(!holds(&order, before, "k", NOW) && !holds(&order, during, "k", NOW));
        assert!(holds(&order, order.ticket(BUCKET, &key("k")), "k", NOW));
    }

    #[test]
    fn a_response_requested_from_an_earlier_origin_is_invalid() {
        let order = Order::default();
        let before = order.ticket(BUCKET, &key("k"));
        order.expire_all();
        assert!(!holds(&order, before, "k", NOW) && !holds(&order, Ticket::VOID, "k", NOW));
        assert!(holds(&order, order.ticket(BUCKET, &key("k")), "k", NOW));
    }

    #[test]
    fn a_rejected_write_changes_nothing() {
        let order = Order::default();
        let before = order.ticket(BUCKET, &key("k"));
        let began = begin(&order, "k");
        assert_eq!(end(&order, began, "k", Outcome::Refused), Some(false));
        assert!(holds(&order, before, "k", NOW));
    }

    #[test]
    fn a_write_that_may_be_executed_later_is_uncertain_for_a_while() {
        let order = Order::default();
        let began = begin(&order, "k");
        assert_eq!(end(&order, began, "k", Outcome::Unknown), Some(true));
        let began = begin(&order, "k");
        assert_eq!(end(&order, began, "k", Outcome::Refused), None, "the one before is doubted");
        let ticket = order.ticket(BUCKET, &key("k"));
        assert!(!holds(&order, ticket, "k", Timestamp(NOW.as_millis() + 59_999)));
        assert!(holds(&order, ticket, "k", Timestamp(NOW.as_millis() + 60_000)));
    }

    #[test]
    fn uncertain_writes_are_bounded_and_none_is_lost() {
        let order = Order::default();
        let names: Vec<String> = (0..300 * DOUBTED_MAX).map(|n| n.to_string()).collect();
        for name in &names {
            let began = begin(&order, name);
            end(&order, began, name, Outcome::Unknown);
        }
        for name in &names {
            assert!(!holds(&order, order.ticket(BUCKET, &key(name)), name, NOW), "{name}");
        }
        assert!(order.stripes.iter().all(|stripe| stripe.lock().doubted.len() <= DOUBTED_MAX));
    }
}
