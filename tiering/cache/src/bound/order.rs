//! The order of writes and of what origins say: who asked before a write of ours was through does not know
//! what is there now.
//!
//! A reader takes a ticket before it asks. What it is told holds only if no write of its key is under way
//! then, and none near it ended since the ticket was taken. Writes of a key are told from each other; that
//! one ended is noted for a stripe of keys, so now and then somebody is asked once more for nothing. A write
//! of which nobody knows whether it was done may be done later: for a while nothing that is said of its key
//! holds.
//!
//! All of it is in memory. After a crash it is not known which writes were under way: what was said before
//! the start does not hold for a bucket that is written through.

use mlgw_common::ids::BucketId;
use mlgw_common::{ObjectKey, Timestamp};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::time::Duration;

/// Groups of keys of which it is known how many writes ended.
const STRIPES: usize = 256;
/// How long an origin may have had all of a write before it carries it out. Those that queue give up on a
/// request within a minute.
const DOUBT: Duration = Duration::from_mins(1);
/// Keys of a stripe that are doubted by themselves; with more, all of its keys are.
const DOUBTED_MAX: usize = 256;

type Place = (BucketId, ObjectKey);

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was done.
    Done,
    /// It was surely not done.
    Refused,
    /// It may have been done, or be done later.
    Unknown,
}

/// The writes of a node.
pub(super) struct Order {
    hasher: RandomState,
    stripes: [Mutex<Stripe>; STRIPES],
}

#[derive(Default)]
struct Stripe {
    /// Writes that ended, but for those that were refused.
    ended: u64,
    under_way: HashMap<Place, u32>,
    /// Until when what is said of these keys does not hold.
    doubted: HashMap<Place, Timestamp>,
    /// And of all keys.
    all_doubted: Timestamp,
}

/// What had ended when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket(u64);

impl Ticket {
    /// One that never holds.
    pub(super) const VOID: Self = Self(u64::MAX);
}

impl Default for Order {
    fn default() -> Self {
        Self { hasher: RandomState::new(), stripes: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Order {
    /// To be taken before an origin is asked for a key.
    pub(super) fn ticket(&self, bucket: BucketId, key: &ObjectKey) -> Ticket {
        Ticket(self.stripe(bucket, key).lock().ended)
    }

    /// What was asked for before does not hold: it was another origin that was asked.
    pub(super) fn expire_all(&self) {
        self.stripes.iter().for_each(|stripe| stripe.lock().ended += 1);
    }

    /// Does something with what an origin said of a key, and says whether it holds. No write of the key
    /// begins or ends meanwhile.
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

    /// A write of a key begins; `then` sees to what is known of it.
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

    /// A write of a key has ended, which began with `ticket`. `then` sees to what is known of it, and is told
    /// whether that changed: it did not when the write was refused, and all others of the key meanwhile.
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
    /// Whether nothing is under way or doubted: it is so nearly always.
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

    /// A write ends; whether what is known has changed, if that is known.
    fn end(order: &Order, began: Ticket, name: &str, outcome: Outcome) -> Option<bool> {
        let mut told = None;
        order.end(began, (BUCKET, &key(name)), outcome, NOW, |changed| told = Some(changed));
        told
    }

    #[test]
    fn what_was_asked_before_a_write_was_through_does_not_hold() {
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
    fn what_another_origin_was_asked_for_does_not_hold() {
        let order = Order::default();
        let before = order.ticket(BUCKET, &key("k"));
        order.expire_all();
        assert!(!holds(&order, before, "k", NOW) && !holds(&order, Ticket::VOID, "k", NOW));
        assert!(holds(&order, order.ticket(BUCKET, &key("k")), "k", NOW));
    }

    #[test]
    fn a_write_that_was_refused_changes_nothing() {
        let order = Order::default();
        let before = order.ticket(BUCKET, &key("k"));
        let began = begin(&order, "k");
        assert_eq!(end(&order, began, "k", Outcome::Refused), Some(false));
        assert!(holds(&order, before, "k", NOW));
    }

    #[test]
    fn a_write_that_may_be_done_later_is_doubted_for_a_while() {
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
    fn doubts_are_bounded_and_none_is_lost() {
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
