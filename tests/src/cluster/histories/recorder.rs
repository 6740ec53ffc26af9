//! The record of a round: the keys that clients use, the values that they store, and all operations with
//! their outcomes.
//!
//! An operation is recorded once, after its end. A key gets a limited number of operations; then another key
//! takes its place, so each history stays short enough to be decided.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use md5::{Digest, Md5};
use mlgw_common::time::Instant;

use super::linearize::OPERATIONS_MAX;
use super::register::{KeyMoment, KeyOperation, ValueId};
use crate::cluster::testbed::SPREAD;
use crate::content::{TestContent, hex};

/// Keys in use at a time, in each bucket.
const KEYS_PER_BUCKET: usize = 2;
/// Buckets that clients create in a round. They stay until the end of the cluster.
const NEW_BUCKETS: usize = 3;
/// Operations on a key before another one takes its place. The rest is for the reads at the end of a round.
const KEY_OPERATIONS: usize = 200;

/// A slot has one key at a time. The slots of all buckets have consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeySlot(usize);

/// Number of all slots.
pub(super) const SLOTS: usize = KEYS_PER_BUCKET * SPREAD.len();

/// The name of an object. No key of a round is the begin of another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ObjectName {
    pub(super) bucket: String,
    pub(super) key: String,
}

impl ObjectName {
    /// The path of the object in requests.
    pub(super) fn path(&self) -> String {
        format!("/{self}")
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.bucket, self.key)
    }
}

impl KeySlot {
    pub(super) const fn new(at: usize) -> Self {
        Self(at % SLOTS)
    }

    const fn bucket(self) -> &'static str {
        SPREAD[self.0 % SPREAD.len()]
    }
}

/// A value that is, or was, stored: its content and ETag.
#[derive(Clone, Debug)]
pub(super) struct StoredValue {
    pub(super) id: ValueId,
    /// One content of an object that one PUT stores, or those of the parts of an upload.
    pub(super) parts: Vec<TestContent>,
    /// True for a multipart upload, whose copies would have another ETag.
    pub(super) is_upload: bool,
    pub(super) etag: String,
}

impl StoredValue {
    /// True if a body is that of this value.
    fn is_body(&self, body: &[u8]) -> bool {
        let length: usize = self.parts.iter().map(|part| part.length).sum();
        if body.len() != length {
            return false;
        }
        if !self.is_upload {
            return hex(&Md5::digest(body)) == self.etag;
        }
        let (mut all, mut begin) = (Md5::new(), 0);
        for part in &self.parts {
            all.update(Md5::digest(&body[begin..begin + part.length]));
            begin += part.length;
        }
        format!("{}-{}", hex(&all.finalize()), self.parts.len()) == self.etag
    }
}

/// The key in use at a slot.
struct SlotKey {
    name: ObjectName,
    number: usize,
    operations: usize,
    /// The value that a client wrote or read last.
    last_seen: Option<StoredValue>,
}

/// All operations of a round, by key.
#[derive(Default)]
struct RecordedHistory {
    keys: BTreeMap<ObjectName, Vec<KeyOperation>>,
    /// Responses that no state of a key allows.
    failures: Vec<String>,
    /// Nodes that stored bytes of objects.
    primaries: BTreeSet<usize>,
}

/// The record of a round. Clients share it.
pub(super) struct HistoryRecorder {
    label: String,
    started: Instant,
    order: AtomicU64,
    slots: Vec<Mutex<SlotKey>>,
    next_value: AtomicU64,
    values: Mutex<HashMap<String, StoredValue>>,
    history: Mutex<RecordedHistory>,
    buckets: AtomicUsize,
    /// True from the first fault of a clock on.
    have_clocks_jumped: AtomicBool,
}

impl HistoryRecorder {
    /// Returns an empty record. `label` begins the names of all keys, and `first_value` is the id of the
    /// first value.
    pub(super) fn new(label: &str, first_value: u64) -> Self {
        let slots = (0..SLOTS).map(|at| Mutex::new(SlotKey::new(label, KeySlot(at), 0)));
        Self {
            label: label.to_owned(),
            started: Instant::now(),
            order: AtomicU64::new(0),
            slots: slots.collect(),
            next_value: AtomicU64::new(first_value),
            values: Mutex::default(),
            history: Mutex::default(),
            buckets: AtomicUsize::new(0),
            have_clocks_jumped: AtomicBool::new(false),
        }
    }

    /// The present moment, after all moments returned before.
    pub(super) fn now(&self) -> KeyMoment {
        let order = self.order.fetch_add(1, Ordering::SeqCst);
        KeyMoment { order, at: self.started.elapsed() }
    }

    /// The key at a slot, for one operation.
    pub(super) fn take_key(&self, slot: KeySlot) -> ObjectName {
        let mut present = self.slots[slot.0].lock().expect("lock is not poisoned");
        if present.operations == KEY_OPERATIONS {
            *present = SlotKey::new(&self.label, slot, present.number + 1);
        }
        present.operations += 1;
        present.name.clone()
    }

    /// The value that a client saw last at a key, if that is still in use.
    pub(super) fn last_seen(&self, slot: KeySlot, name: &ObjectName) -> Option<StoredValue> {
        let present = self.slots[slot.0].lock().expect("lock is not poisoned");
        present.last_seen.clone().filter(|_| present.name == *name)
    }

    /// Records the value that a client wrote or read at a key.
    pub(super) fn saw(&self, slot: KeySlot, name: &ObjectName, value: Option<StoredValue>) {
        let mut present = self.slots[slot.0].lock().expect("lock is not poisoned");
        if present.name == *name {
            present.last_seen = value;
        }
    }

    /// Returns a new value for a PUT, of this length.
    pub(super) fn new_value(&self, length: usize) -> StoredValue {
        let id = self.next_value.fetch_add(1, Ordering::Relaxed);
        let content = TestContent { id, length };
        self.add_value(StoredValue {
            id: ValueId(id),
            parts: vec![content],
            is_upload: false,
            etag: content.etag(),
        })
    }

    /// Returns a new value for a multipart upload, with parts of these lengths.
    pub(super) fn new_upload(&self, lengths: &[usize]) -> StoredValue {
        let first = self.next_value.fetch_add(lengths.len() as u64, Ordering::Relaxed);
        let contents = (first..).zip(lengths).map(|(id, length)| TestContent { id, length: *length });
        let parts: Vec<TestContent> = contents.collect();
        let etag = TestContent::etag_of_parts(&parts);
        self.add_value(StoredValue { id: ValueId(first), parts, is_upload: true, etag })
    }

    fn add_value(&self, value: StoredValue) -> StoredValue {
        let mut values = self.values.lock().expect("lock is not poisoned");
        values.insert(value.etag.clone(), value.clone());
        value
    }

    /// The value with this ETag.
    ///
    /// # Errors
    /// No client ever sent such a value.
    pub(super) fn value_of(&self, etag: &str) -> Result<StoredValue, String> {
        let values = self.values.lock().expect("lock is not poisoned");
        values.get(etag).cloned().ok_or_else(|| format!("the ETag {etag:?} of no value that was written"))
    }

    /// The value with this ETag and this body.
    ///
    /// # Errors
    /// No client ever sent such a value, or the body is another one.
    pub(super) fn value_of_body(&self, etag: &str, body: &[u8]) -> Result<StoredValue, String> {
        let value = self.value_of(etag)?;
        if value.is_body(body) {
            return Ok(value);
        }
        let claimed = TestContent::parse_identity(body);
        Err(format!("{} bytes that claim {claimed:?} with the ETag of {}", body.len(), value.id))
    }

    /// Returns the name of an object in a bucket that a client is to create; `None` if there are enough.
    pub(super) fn new_bucket(&self) -> Option<ObjectName> {
        let number = self.buckets.fetch_add(1, Ordering::Relaxed);
        let Self { label, .. } = self;
        (number < NEW_BUCKETS).then(|| ObjectName {
            bucket: format!("round-{label}-{number}"),
            key: format!("{label}-new-{number}"),
        })
    }

    /// Records that a clock is wrong from now on, so that its node may refuse signatures.
    pub(super) fn clocks_jump(&self) {
        self.have_clocks_jumped.store(true, Ordering::SeqCst);
    }

    /// True if a clock was wrong.
    pub(super) fn have_clocks_jumped(&self) -> bool {
        self.have_clocks_jumped.load(Ordering::SeqCst)
    }

    /// Records that a node stored the bytes of an object, so it is the primary of their segment.
    pub(super) fn stored_by(&self, node: usize) {
        self.history.lock().expect("lock is not poisoned").primaries.insert(node);
    }

    /// The nodes that stored bytes of objects.
    pub(super) fn primaries(&self) -> BTreeSet<usize> {
        self.history.lock().expect("lock is not poisoned").primaries.clone()
    }

    /// Records an operation that has ended.
    pub(super) fn record(&self, name: &ObjectName, operation: KeyOperation) {
        let mut history = self.history.lock().expect("lock is not poisoned");
        history.keys.entry(name.clone()).or_default().push(operation);
    }

    /// Records a response that no state of a key allows.
    pub(super) fn fail(&self, failure: String) {
        self.history.lock().expect("lock is not poisoned").failures.push(failure);
    }

    /// The keys with operations.
    pub(super) fn names(&self) -> Vec<ObjectName> {
        self.history.lock().expect("lock is not poisoned").keys.keys().cloned().collect()
    }

    /// All operations, by key.
    pub(super) fn histories(&self) -> BTreeMap<ObjectName, Vec<KeyOperation>> {
        self.history.lock().expect("lock is not poisoned").keys.clone()
    }

    /// The responses that no state of a key allows.
    pub(super) fn failures(&self) -> Vec<String> {
        self.history.lock().expect("lock is not poisoned").failures.clone()
    }
}

impl SlotKey {
    fn new(label: &str, slot: KeySlot, number: usize) -> Self {
        let key = format!("{label}-{}-{number:04}", slot.0);
        let name = ObjectName { bucket: slot.bucket().to_owned(), key };
        Self { name, number, operations: 0, last_seen: None }
    }
}

const _: () = assert!(KEY_OPERATIONS + 40 < OPERATIONS_MAX, "the reads at the end of a round fit");

#[test]
fn a_key_gets_a_limited_number_of_operations() {
    let recorder = HistoryRecorder::new("limited", 1);
    let taken = |_| recorder.take_key(KeySlot(1));
    let first: Vec<ObjectName> = (0..KEY_OPERATIONS).map(taken).collect();
    assert!(first.iter().all(|name| *name == first[0]));
    let next = recorder.take_key(KeySlot(1));
    assert_ne!(next, first[0]);
    assert_eq!(next.bucket, first[0].bucket);
    // What was seen at the key before is not a value of this one.
    recorder.saw(KeySlot(1), &first[0], Some(recorder.new_value(20)));
    assert!(recorder.last_seen(KeySlot(1), &next).is_none());
}

#[test]
fn a_value_is_known_by_its_etag_and_its_body() {
    let recorder = HistoryRecorder::new("values", 1);
    for value in [recorder.new_value(40), recorder.new_value(1), recorder.new_upload(&[100, 7])] {
        let body = value.parts.iter().map(|part| part.bytes()).collect::<Vec<_>>().concat();
        let known = recorder.value_of_body(&value.etag, &body).expect("it is known");
        assert_eq!(known.id, value.id);
        let torn = [&body[1..], &[0]].concat();
        assert!(recorder.value_of_body(&value.etag, &torn).is_err());
        assert!(recorder.value_of_body(&value.etag, &body[1..]).is_err());
    }
    assert!(recorder.value_of("d41d8cd98f00b204e9800998ecf8427e").is_err());
}
