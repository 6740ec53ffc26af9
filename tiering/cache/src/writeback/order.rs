//! The order in which an origin gets what was written here: pure.
//!
//! A write may become visible there once everything in its bucket is that was acknowledged before its request
//! began. Those that overlapped go at once. Each write has a number, in the order in which the catalogue took
//! them, and knows the greatest number that was acknowledged when it began: it waits for whatever has that
//! number or a lesser one. Those never have its own number or a greater one, so that none waits for itself.
//! Writes of one key go one after the other.

use super::record::{Facts, UploadBegins};
use super::room::Place;
use mlgw_common::ObjectKey;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// Writes that are looked at for one that may go. Those that overlapped the first that is not there stand
/// close behind it.
const LOOKED_AT_MAX: usize = 1024;

/// A write that its origin has not.
#[derive(Debug)]
pub struct Write {
    /// Its number.
    pub seq: u64,
    /// The name of its record.
    pub name: ObjectKey,
    /// What it is a write of.
    pub facts: Facts,
    /// Bytes of the object.
    pub size: u64,
    /// When its request came, as milliseconds since 1970.
    pub began_ms: i64,
    /// The ETag that its client was told.
    pub etag: String,
    /// Its share of what may be dirty.
    pub place: Option<Place>,
    /// The upload at the origin that it is sent by.
    pub upload: Mutex<Option<String>>,
    /// The upload at the origin that was about to be begun, and may have been.
    pub begins: Mutex<Option<UploadBegins>>,
}

impl Write {
    /// The upload at the origin that it is sent by, if there is one now.
    pub fn upload_there(&self) -> Option<String> {
        self.upload.lock().clone()
    }

    /// It is sent by this one from now on.
    pub fn set_upload_there(&self, id: Option<String>) {
        *self.upload.lock() = id;
    }

    /// The upload that was about to be begun, and may have been.
    pub fn upload_begins(&self) -> Option<UploadBegins> {
        self.begins.lock().clone()
    }

    /// This one is about to be begun; or none is.
    pub fn set_upload_begins(&self, begins: Option<UploadBegins>) {
        *self.begins.lock() = begins;
    }
}

/// The writes of a bucket that its origin has not.
#[derive(Debug, Default)]
pub(super) struct Order {
    writes: BTreeMap<u64, Arc<Write>>,
    /// Their numbers, by key.
    of_key: BTreeMap<String, BTreeSet<u64>>,
    /// Those on their way.
    started: BTreeSet<u64>,
    /// Those that met something foreign, and wait for somebody to decide, with its ETag where that is known.
    foreign: BTreeMap<u64, Option<String>>,
    acked: u64,
    bytes: u64,
}

impl Order {
    /// The greatest number that was acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    /// A write is durable here, and is acknowledged now.
    pub(super) fn add(&mut self, write: Arc<Write>) {
        self.acked = self.acked.max(write.seq);
        self.bytes += write.size;
        if let Some(foreign) = &write.facts.foreign {
            self.foreign.insert(write.seq, foreign.etag.clone());
        }
        self.of_key.entry(write.facts.key.as_str().to_owned()).or_default().insert(write.seq);
        self.writes.insert(write.seq, write);
    }

    /// The next write that may go; it is on its way then.
    pub(super) fn start(&mut self) -> Option<Arc<Write>> {
        let next = self.next()?.clone();
        self.started.insert(next.seq);
        Some(next)
    }

    /// The next write that may go.
    fn next(&self) -> Option<&Arc<Write>> {
        let mut waiting =
            self.writes.values().filter(|write| !self.foreign.contains_key(&write.seq)).peekable();
        let first = waiting.peek()?.seq;
        waiting.take(LOOKED_AT_MAX).find(|write| {
            write.facts.after < first && !self.started.contains(&write.seq) && self.is_first_of_key(write)
        })
    }

    fn is_first_of_key(&self, write: &Write) -> bool {
        let of_key = self.of_key.get(write.facts.key.as_str());
        let first = of_key.and_then(|seqs| seqs.iter().find(|seq| !self.foreign.contains_key(seq)));
        first == Some(&write.seq)
    }

    /// A write met something foreign with this ETag: nothing waits for it any more.
    pub(super) fn set_aside(&mut self, seq: u64, etag: &str) {
        self.started.remove(&seq);
        self.foreign.insert(seq, Some(etag.to_owned()));
    }

    /// The ETag of what a write of the key met last that was foreign, if one did.
    pub(super) fn met(&self, key: &str) -> Option<&str> {
        let seqs = self.of_key.get(key)?;
        seqs.iter().rev().find_map(|seq| self.foreign.get(seq)?.as_deref())
    }

    /// A write is no more: the origin has it, or it was given up.
    pub(super) fn remove(&mut self, seq: u64) {
        self.started.remove(&seq);
        self.foreign.remove(&seq);
        let Some(write) = self.writes.remove(&seq) else { return };
        self.bytes -= write.size;
        let key = write.facts.key.as_str();
        if let Some(of_key) = self.of_key.get_mut(key) {
            of_key.remove(&seq);
            if of_key.is_empty() {
                self.of_key.remove(key);
            }
        }
    }

    /// Those that met something foreign: of one key before the number `before`, or all.
    pub(super) fn foreign(&self, of: Option<(&ObjectKey, u64)>) -> Vec<Arc<Write>> {
        let writes = self.foreign.keys().filter_map(|seq| self.writes.get(seq));
        let wanted = |write: &&Arc<Write>| {
            of.is_none_or(|(key, before)| write.facts.key == *key && write.seq < before)
        };
        writes.filter(wanted).cloned().collect()
    }

    /// Whether the origin has everything up to a number, but for what met something foreign.
    pub(super) fn is_through(&self, until: u64) -> bool {
        self.writes.range(..=until).all(|(seq, _)| self.foreign.contains_key(seq))
    }

    /// The last write of a key.
    pub(super) fn latest(&self, key: &str) -> Option<&Arc<Write>> {
        let seq = self.of_key.get(key)?.last()?;
        self.writes.get(seq)
    }

    /// The last write of each key behind `after` that begins with `prefix`, by key.
    pub(super) fn behind<'a>(
        &'a self,
        after: Bound<&'a str>,
        prefix: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Write>> {
        let from = match after {
            Bound::Excluded(after) | Bound::Included(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let keys = self.of_key.range::<str, _>((from, Bound::Unbounded));
        keys.take_while(move |(key, _)| key.starts_with(prefix))
            .filter_map(|(_, seqs)| self.writes.get(seqs.last()?))
    }

    /// A write, by its number.
    pub(super) fn get(&self, seq: u64) -> Option<&Arc<Write>> {
        self.writes.get(&seq)
    }

    /// Whether some are on their way, all of them among `these`, and no other may go before they are there.
    pub(super) fn waits_only_for(&self, these: &BTreeSet<u64>) -> bool {
        !self.started.is_empty() && self.started.is_subset(these) && self.next().is_none()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Their bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the oldest began.
    pub(super) fn oldest_ms(&self) -> Option<i64> {
        self.writes.values().next().map(|write| write.began_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::{Facts, Order, Write};
    use mlgw_common::ObjectKey;
    use proptest::prelude::{any, prop};
    use proptest::{prop_assert, proptest};
    use std::collections::BTreeSet;
    use std::ops::Bound;
    use std::sync::Arc;

    fn write(seq: u64, after: u64, key: &str) -> Arc<Write> {
        let facts = Facts::of_write(ObjectKey::new(key).unwrap(), after, false, None);
        let name = ObjectKey::new(&seq.to_string()).unwrap();
        let (began_ms, etag) = (seq as i64, String::new());
        let (upload, begins) = Default::default();
        Arc::new(Write { seq, name, facts, size: 1, began_ms, etag, place: None, upload, begins })
    }

    fn started(order: &mut Order) -> Vec<u64> {
        std::iter::from_fn(|| order.start().map(|write| write.seq)).collect()
    }

    #[test]
    fn what_began_after_an_acknowledgment_waits_and_what_overlapped_does_not() {
        let mut order = Order::default();
        for (seq, after) in [(1, 0), (2, 0), (3, 2), (4, 1), (5, 4)] {
            order.add(write(seq, after, &seq.to_string()));
        }
        assert_eq!(started(&mut order), [1, 2]);
        order.remove(1);
        assert_eq!(started(&mut order), [4], "it began when only 1 was acknowledged");
        order.remove(4);
        assert_eq!(started(&mut order), [0; 0]);
        order.remove(2);
        assert_eq!(started(&mut order), [3]);
        assert!(!order.is_through(3) && order.is_through(2));
        order.remove(3);
        assert_eq!((started(&mut order), order.acked(), order.len(), order.bytes()), (vec![5], 5, 1, 1));
    }

    #[test]
    fn writes_of_a_key_go_one_after_the_other() {
        let mut order = Order::default();
        for seq in [1, 2, 3] {
            order.add(write(seq, 0, if seq == 3 { "other" } else { "k" }));
        }
        assert_eq!(started(&mut order), [1, 3]);
        order.remove(1);
        assert_eq!(started(&mut order), [2]);
        assert_eq!(order.latest("k").unwrap().seq, 2);
    }

    #[test]
    fn what_met_something_foreign_holds_nobody_up_and_stays() {
        let mut order = Order::default();
        for (seq, after, key) in [(1, 0, "k"), (2, 1, "other"), (3, 2, "k")] {
            order.add(write(seq, after, key));
        }
        assert_eq!(started(&mut order), [1]);
        order.set_aside(1, "theirs");
        assert_eq!((order.met("k"), order.met("other")), (Some("theirs"), None));
        assert_eq!(started(&mut order), [2]);
        order.remove(2);
        assert_eq!(started(&mut order), [3], "who writes after it knows what there is");
        let obsolete = order.foreign(Some((&ObjectKey::new("k").unwrap(), 3)));
        assert_eq!(obsolete.iter().map(|write| write.seq).collect::<Vec<_>>(), [1]);
        order.remove(3);
        assert!(order.is_through(3) && order.len() == 1);
    }

    #[test]
    fn nothing_goes_on_when_all_that_went_is_in_doubt() {
        let mut order = Order::default();
        for (seq, after, key) in [(1, 0, "a"), (2, 0, "b"), (3, 2, "c")] {
            order.add(write(seq, after, key));
        }
        let all = BTreeSet::from([1, 2]);
        assert!(!order.waits_only_for(&all), "nothing went yet");
        order.start();
        assert!(!order.waits_only_for(&all), "another may go");
        order.start();
        assert!(order.waits_only_for(&all), "the third waits for them");
        assert!(!order.waits_only_for(&BTreeSet::from([1])), "one is on its way");
        order.remove(1);
        order.remove(2);
        assert!(!order.waits_only_for(&all), "the third may go");
    }

    #[test]
    fn the_last_writes_of_keys_come_in_byte_order() {
        let mut order = Order::default();
        for (seq, key) in ["b/1", "a", "b/2", "b/1", "b", "c"].into_iter().enumerate() {
            order.add(write(seq as u64 + 1, 0, key));
        }
        let names = |after: Bound<&str>, prefix: &str| -> Vec<u64> {
            order.behind(after, prefix).map(|write| write.seq).collect()
        };
        assert_eq!(names(Bound::Unbounded, ""), [2, 5, 4, 3, 6]);
        assert_eq!(names(Bound::Unbounded, "b/"), [4, 3]);
        assert_eq!(names(Bound::Excluded("b/1"), "b"), [3]);
        assert_eq!(names(Bound::Excluded("a"), "b/"), [4, 3]);
        assert_eq!(names(Bound::Excluded("z"), ""), [0; 0]);
    }

    proptest! {
        /// Whatever overlaps and in whichever order writes arrive there: none is there before one that was
        /// acknowledged when it began.
        #[test]
        fn none_is_there_before_what_was_acknowledged_when_it_began(
            steps in prop::collection::vec((any::<u8>(), any::<u8>()), 1..120),
        ) {
            let (mut order, mut seq) = (Order::default(), 0);
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
                    2 => going.extend(order.start().map(|write| write.seq)),
                    3 if !going.is_empty() => {
                        let seq = going.swap_remove(which as usize % going.len());
                        prop_assert!(acked_before[&seq].is_subset(&there), "{seq} of {there:?}");
                        there.insert(seq);
                        order.remove(seq);
                    }
                    _ => {}
                }
            }
            // And none waits for ever.
            loop {
                going.extend(order.start().map(|write| write.seq));
                let Some(seq) = going.pop() else { break };
                order.remove(seq);
            }
            prop_assert!(order.len() == 0);
        }
    }
}
