//! Order in which writes are sent to an origin. Pure.
//!
//! A write may become visible at the origin once every write of its bucket is there that was acknowledged
//! before its request began. Overlapping writes are sent concurrently. Each write has a number, in the order
//! in which the catalogue accepted them, and records the greatest number that was acknowledged when it began:
//! it waits for the writes up to that number. That number is always less than its own, so no write waits for
//! itself. Writes of one key are sent one after the other.

use super::dirty_budget::DirtyShare;
use super::record::{PendingOriginUpload, WriteFacts};
use mlgw_common::ObjectKey;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Maximum number of writes that are examined for one that may be sent. Writes that overlap the first missing
/// one follow soon after it.
const EXAMINED_MAX: usize = 1024;

/// Write that is not at its origin yet.
#[derive(Debug)]
pub struct DirtyWrite {
    /// Number.
    pub seq: u64,
    /// Name of its record.
    pub name: ObjectKey,
    /// Facts of the write.
    pub facts: WriteFacts,
    /// Bytes of the object.
    pub size: u64,
    /// Arrival of its request in milliseconds since 1970.
    pub began_ms: i64,
    /// ETag returned to the client.
    pub etag: String,
    /// Share of the dirty budget.
    pub share: Option<DirtyShare>,
    /// Id of the upload at the origin by which it is sent.
    pub upload: Mutex<Option<String>>,
    /// Upload at the origin that was about to be created, and may have been.
    pub pending_upload: Mutex<Option<PendingOriginUpload>>,
}

impl DirtyWrite {
    /// Returns the id of the upload at the origin by which it is currently sent.
    pub fn origin_upload(&self) -> Option<String> {
        self.upload.lock().clone()
    }

    /// Sets the id of the upload at the origin.
    pub fn set_origin_upload(&self, id: Option<String>) {
        *self.upload.lock() = id;
    }

    /// Returns the upload that was about to be created, and may have been.
    pub fn pending_upload(&self) -> Option<PendingOriginUpload> {
        self.pending_upload.lock().clone()
    }

    /// Sets or clears the upload that is about to be created.
    pub fn set_pending_upload(&self, begins: Option<PendingOriginUpload>) {
        *self.pending_upload.lock() = begins;
    }
}

/// Writes of a bucket that are not at its origin.
#[derive(Debug, Default)]
pub(super) struct SendOrder {
    writes: BTreeMap<u64, Arc<DirtyWrite>>,
    /// Numbers of the writes by key.
    seqs_by_key: BTreeMap<String, BTreeSet<u64>>,
    /// Writes in flight.
    in_flight: BTreeSet<u64>,
    /// Writes that conflict with a foreign object and wait for a decision, with the foreign ETag if it is
    /// known.
    foreign: BTreeMap<u64, Option<String>>,
    acked: u64,
    bytes: u64,
}

impl SendOrder {
    /// Returns the greatest acknowledged number.
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// Adds a durable write, which is acknowledged now.
    pub(super) fn add(&mut self, write: Arc<DirtyWrite>) {
        self.acked = self.acked.max(write.seq);
        self.bytes += write.size;
        if let Some(foreign) = &write.facts.foreign {
            self.foreign.insert(write.seq, foreign.etag.clone());
        }
        self.seqs_by_key.entry(write.facts.key.as_str().to_owned()).or_default().insert(write.seq);
        self.writes.insert(write.seq, write);
    }

    /// Returns the next write that may be sent, and marks it as in flight.
    pub(super) fn start_next(&mut self) -> Option<Arc<DirtyWrite>> {
        let next = self.next_sendable()?.clone();
        self.in_flight.insert(next.seq);
        Some(next)
    }

    /// Returns the next write that may be sent.
    fn next_sendable(&self) -> Option<&Arc<DirtyWrite>> {
        let mut waiting =
            self.writes.values().filter(|write| !self.foreign.contains_key(&write.seq)).peekable();
        let first = waiting.peek()?.seq;
        waiting.take(EXAMINED_MAX).find(|write| {
            write.facts.after < first && !self.in_flight.contains(&write.seq) && self.is_first_of_key(write)
        })
    }

    fn is_first_of_key(&self, write: &DirtyWrite) -> bool {
        let of_key = self.seqs_by_key.get(write.facts.key.as_str());
        let first = of_key.and_then(|seqs| seqs.iter().find(|seq| !self.foreign.contains_key(seq)));
        first == Some(&write.seq)
    }

    /// Records that a write conflicts with a foreign object with this ETag: no other write waits for it any
    /// more.
    pub(super) fn set_aside(&mut self, seq: u64, etag: &str) {
        let was_in_flight = self.in_flight.remove(&seq);
        assert!(was_in_flight, "only a write in flight is set aside");
        self.foreign.insert(seq, Some(etag.to_owned()));
    }

    /// Returns the ETag of the last foreign object that conflicts with a write of the key, if there is one.
    pub(super) fn foreign_etag(&self, key: &str) -> Option<&str> {
        let seqs = self.seqs_by_key.get(key)?;
        seqs.iter().rev().find_map(|seq| self.foreign.get(seq)?.as_deref())
    }

    /// Removes a write: the origin has it, or it was discarded.
    pub(super) fn remove(&mut self, seq: u64) {
        self.in_flight.remove(&seq);
        self.foreign.remove(&seq);
        let Some(write) = self.writes.remove(&seq) else { return };
        assert!(self.bytes >= write.size, "the bytes of a write are counted until it is removed");
        self.bytes -= write.size;
        let key = write.facts.key.as_str();
        if let Some(of_key) = self.seqs_by_key.get_mut(key) {
            let was_listed = of_key.remove(&seq);
            assert!(was_listed, "a write is listed under its key");
            if of_key.is_empty() {
                self.seqs_by_key.remove(key);
            }
        }
    }

    /// Returns the writes that conflict with a foreign object: of one key before the number `before`, or all.
    pub(super) fn foreign(&self, of: Option<(&ObjectKey, u64)>) -> Vec<Arc<DirtyWrite>> {
        let writes = self.foreign.keys().filter_map(|seq| self.writes.get(seq));
        let wanted = |write: &&Arc<DirtyWrite>| {
            of.is_none_or(|(key, before)| write.facts.key == *key && write.seq < before)
        };
        writes.filter(wanted).cloned().collect()
    }

    /// True if the origin has every write up to a number, except for those that conflict with foreign
    /// objects.
    pub(super) fn is_sent_up_to(&self, until: u64) -> bool {
        self.writes.range(..=until).all(|(seq, _)| self.foreign.contains_key(seq))
    }

    /// Returns the last write of a key.
    pub(super) fn latest(&self, key: &str) -> Option<&Arc<DirtyWrite>> {
        let seq = self.seqs_by_key.get(key)?.last()?;
        self.writes.get(seq)
    }

    /// Returns the last write of each key after `after` that begins with `prefix`, by key.
    pub(super) fn latest_after<'a>(
        &'a self,
        after: Bound<&'a str>,
        prefix: &'a str,
    ) -> impl Iterator<Item = &'a Arc<DirtyWrite>> {
        let from = match after {
            Bound::Excluded(after) | Bound::Included(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let keys = self.seqs_by_key.range::<str, _>((from, Bound::Unbounded));
        keys.take_while(move |(key, _)| key.starts_with(prefix))
            .filter_map(|(_, seqs)| self.writes.get(seqs.last()?))
    }

    /// Returns a write by its number.
    pub(super) fn get(&self, seq: u64) -> Option<&Arc<DirtyWrite>> {
        self.writes.get(&seq)
    }

    /// True if writes are in flight, all of them among `these`, and no other may be sent before they arrive.
    pub(super) fn is_waiting_only_for(&self, these: &BTreeSet<u64>) -> bool {
        !self.in_flight.is_empty() && self.in_flight.is_subset(these) && self.next_sendable().is_none()
    }

    /// Returns the number of writes.
    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Returns the bytes of the writes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the start of the oldest write.
    pub(super) fn oldest_ms(&self) -> Option<i64> {
        self.writes.values().next().map(|write| write.began_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::{DirtyWrite, SendOrder, WriteFacts};
    use mlgw_common::ObjectKey;
    use proptest::prelude::{any, prop};
    use proptest::{prop_assert, proptest};
    use std::collections::BTreeSet;
    use std::ops::Bound;
    use std::sync::Arc;

    fn write(seq: u64, after: u64, key: &str) -> Arc<DirtyWrite> {
        let facts = WriteFacts::of_write(ObjectKey::new(key).unwrap(), after, None);
        let name = ObjectKey::new(&seq.to_string()).unwrap();
        let (began_ms, etag) = (seq as i64, String::new());
        let (upload, begins) = Default::default();
        Arc::new(DirtyWrite {
            seq,
            name,
            facts,
            size: 1,
            began_ms,
            etag,
            share: None,
            upload,
            pending_upload: begins,
        })
    }

    fn started(order: &mut SendOrder) -> Vec<u64> {
        std::iter::from_fn(|| order.start_next().map(|write| write.seq)).collect()
    }

    #[test]
    fn a_write_waits_for_writes_acknowledged_before_it_began_only() {
        let mut order = SendOrder::default();
        for (seq, after) in [(1, 0), (2, 0), (3, 2), (4, 1), (5, 4)] {
            order.add(write(seq, after, &seq.to_string()));
        }
        assert_eq!(started(&mut order), [1, 2]);
        order.remove(1);
        assert_eq!(started(&mut order), [4], "it began when only write 1 was acknowledged");
        order.remove(4);
        assert_eq!(started(&mut order), [0; 0]);
        order.remove(2);
        assert_eq!(started(&mut order), [3]);
        assert!(!order.is_sent_up_to(3) && order.is_sent_up_to(2));
        order.remove(3);
        assert_eq!((started(&mut order), order.acked(), order.len(), order.bytes()), (vec![5], 5, 1, 1));
    }

    #[test]
    fn writes_of_a_key_are_sent_one_after_the_other() {
        let mut order = SendOrder::default();
        for seq in [1, 2, 3] {
            order.add(write(seq, 0, if seq == 3 { "other" } else { "k" }));
        }
        assert_eq!(started(&mut order), [1, 3]);
        order.remove(1);
        assert_eq!(started(&mut order), [2]);
        assert_eq!(order.latest("k").unwrap().seq, 2);
    }

    #[test]
    fn a_conflicting_write_delays_no_other_and_stays() {
        let mut order = SendOrder::default();
        for (seq, after, key) in [(1, 0, "k"), (2, 1, "other"), (3, 2, "k")] {
            order.add(write(seq, after, key));
        }
        assert_eq!(started(&mut order), [1]);
        order.set_aside(1, "theirs");
        assert_eq!((order.foreign_etag("k"), order.foreign_etag("other")), (Some("theirs"), None));
        assert_eq!(started(&mut order), [2]);
        order.remove(2);
        assert_eq!(started(&mut order), [3], "a later write depends on it");
        let obsolete = order.foreign(Some((&ObjectKey::new("k").unwrap(), 3)));
        assert_eq!(obsolete.iter().map(|write| write.seq).collect::<Vec<_>>(), [1]);
        order.remove(3);
        assert!(order.is_sent_up_to(3) && order.len() == 1);
    }

    #[test]
    fn a_queue_whose_writes_in_flight_are_unconfirmed_is_stuck() {
        let mut order = SendOrder::default();
        for (seq, after, key) in [(1, 0, "a"), (2, 0, "b"), (3, 2, "c")] {
            order.add(write(seq, after, key));
        }
        let all = BTreeSet::from([1, 2]);
        assert!(!order.is_waiting_only_for(&all), "nothing was sent yet");
        order.start_next();
        assert!(!order.is_waiting_only_for(&all), "another write may be sent");
        order.start_next();
        assert!(order.is_waiting_only_for(&all), "the third write waits for them");
        assert!(!order.is_waiting_only_for(&BTreeSet::from([1])), "one write is in flight");
        order.remove(1);
        order.remove(2);
        assert!(!order.is_waiting_only_for(&all), "the third write may be sent");
    }

    #[test]
    fn the_last_writes_of_keys_are_listed_in_byte_order() {
        let mut order = SendOrder::default();
        for (seq, key) in ["b/1", "a", "b/2", "b/1", "b", "c"].into_iter().enumerate() {
            order.add(write(seq as u64 + 1, 0, key));
        }
        let names = |after: Bound<&str>, prefix: &str| -> Vec<u64> {
            order.latest_after(after, prefix).map(|write| write.seq).collect()
        };
        assert_eq!(names(Bound::Unbounded, ""), [2, 5, 4, 3, 6]);
        assert_eq!(names(Bound::Unbounded, "b/"), [4, 3]);
        assert_eq!(names(Bound::Excluded("b/1"), "b"), [3]);
        assert_eq!(names(Bound::Excluded("a"), "b/"), [4, 3]);
        assert_eq!(names(Bound::Excluded("z"), ""), [0; 0]);
    }

    proptest! {
        /// Whatever overlaps and in whichever order writes arrive at the origin: none arrives before one that
        /// was acknowledged when it began.
        #[test]
        fn no_write_arrives_before_one_that_was_acknowledged_when_it_began(
            steps in prop::collection::vec((any::<u8>(), any::<u8>()), 1..120),
        ) {
            let (mut order, mut seq) = (SendOrder::default(), 0);
            let (mut begun, mut going, mut there) = (Vec::new(), Vec::new(), BTreeSet::new());
            let mut acked_before = std::collections::BTreeMap::new();
            let mut acked = BTreeSet::new();
            for (what, which) in steps {
                match what % 4 {
                    0 => begun.push((order.acked(), acked.clone())),
                    1 if !begun.is_empty() => {
                        let (after, before) = begun.swap_remove(which as usize % begun.len());
                        seq += 1;
                        acked_before.insert(seq, before);
                        order.add(write(seq, after, &(which % 5).to_string()));
                        acked.insert(seq);
                    }
                    2 => going.extend(order.start_next().map(|write| write.seq)),
                    3 if !going.is_empty() => {
                        let seq = going.swap_remove(which as usize % going.len());
                        prop_assert!(acked_before[&seq].is_subset(&there), "{seq} of {there:?}");
                        there.insert(seq);
                        order.remove(seq);
                    }
                    _ => {}
                }
            }
            // No write waits for ever.
            loop {
                going.extend(order.start_next().map(|write| write.seq));
                let Some(seq) = going.pop() else { break };
                order.remove(seq);
            }
            prop_assert!(order.len() == 0);
        }
    }
}
