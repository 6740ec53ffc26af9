//! The operations that clients sent and the responses they received, and the states that keep every promise.
//!
//! Each operation (a PUT, a delete, a part, a complete) is recorded before it is sent and again when its
//! response arrived. From that follows, for any moment, the set of values that an item may have:
//!
//! - an operation that was not yet sent had no effect;
//! - an operation that was acknowledged took effect, unless a later one replaced it: one that was *sent*
//!   after this one was acknowledged, and that was acknowledged itself;
//! - an operation without a response may or may not have taken effect, now or at any time before the server
//!   died;
//! - operations that overlap took effect in any order.
//!
//! Moments have two coordinates: `order` is the order of the entries in this history; `position` is the
//! number of events in the recording at that moment, so that a power cut in the middle of the recording can
//! be compared with the promises made by then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use crate::content::TestContent;

mod tests;

/// An item that can be written and lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HistoryItem {
    Bucket,
    Object(String),
    Upload { key: String, id: String },
    Part { key: String, id: String, number: u32 },
}

/// A body of one or more pieces, and its ETag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedBody {
    pub(crate) pieces: Vec<TestContent>,
    pub(crate) etag: String,
}

impl ExpectedBody {
    pub(crate) fn plain(content: TestContent) -> Self {
        Self { pieces: vec![content], etag: content.etag() }
    }

    pub(crate) fn of_parts(pieces: Vec<TestContent>) -> Self {
        let etag = TestContent::etag_of_parts(&pieces);
        Self { pieces, etag }
    }

    pub(crate) fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.length as u64).sum()
    }

    pub(crate) fn bytes(&self) -> Bytes {
        match self.pieces.as_slice() {
            [only] => only.bytes(),
            pieces => {
                let mut all = BytesMut::new();
                pieces.iter().for_each(|piece| all.extend_from_slice(&piece.bytes()));
                all.freeze()
            }
        }
    }
}

/// A value that an item may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ItemValue {
    Absent,
    /// Present, with a body; a bucket or an upload has no body.
    Present(Option<ExpectedBody>),
}

#[derive(Clone, Copy, Debug)]
struct HistoryStamp {
    order: u64,
    position: usize,
}

#[derive(Clone, Debug)]
struct ClientOperation {
    item: HistoryItem,
    value: ItemValue,
    sent: HistoryStamp,
    acknowledged: Option<HistoryStamp>,
    /// The moment when the server was known to be dead: without a response by then, the operation took effect
    /// before or never.
    died: Option<HistoryStamp>,
    /// For the end of an upload by a complete: the operation that created the object, which takes effect
    /// together with this one or not at all.
    object_operation: Option<usize>,
}

impl ClientOperation {
    /// True if the operation may have had an effect by `at`. An operation that changes nothing on the disk,
    /// such as the observation of a value, begins and ends at one position.
    fn may_have_effect(&self, at: usize) -> bool {
        self.sent.position < at || self.acknowledged.is_some_and(|stamp| stamp.position <= at)
    }
}

/// A complete that was sent: the upload is gone and the object exists, or neither.
#[derive(Debug)]
pub(crate) struct SentComplete {
    pub(crate) upload: HistoryItem,
    pub(crate) object: HistoryItem,
    pub(crate) value: ItemValue,
    /// True if another operation was sent for the same key that may have replaced the object since.
    pub(crate) contested: bool,
}

/// Identifies an operation until its response arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationId(usize);

/// Returns the current position in a recording; constant for a history without a recording.
pub(crate) type PositionClock = Box<dyn Fn() -> usize + Send + Sync>;

/// All operations on one data directory.
pub(crate) struct History {
    clock: PositionClock,
    log: Mutex<OperationLog>,
    answers: watch::Sender<usize>,
}

#[derive(Default)]
struct OperationLog {
    order: u64,
    operations: Vec<ClientOperation>,
}

/// The moment after all operations recorded so far.
pub(crate) const NOW: usize = usize::MAX;

impl History {
    pub(crate) fn new(clock: PositionClock) -> Self {
        Self { clock, log: Mutex::new(OperationLog::default()), answers: watch::Sender::new(0) }
    }

    fn stamp(&self, notes: &mut OperationLog) -> HistoryStamp {
        notes.order += 1;
        HistoryStamp { order: notes.order, position: (self.clock)() }
    }

    /// Records that an operation is about to be sent.
    pub(crate) fn send(&self, item: HistoryItem, value: ItemValue) -> OperationId {
        let mut notes = self.log.lock().expect("lock is not poisoned");
        let sent = self.stamp(&mut notes);
        notes.operations.push(ClientOperation {
            item,
            value,
            sent,
            acknowledged: None,
            died: None,
            object_operation: None,
        });
        OperationId(notes.operations.len() - 1)
    }

    /// Records that a complete is about to be sent: one operation on the object and one on the upload.
    pub(crate) fn send_complete(
        &self,
        upload: HistoryItem,
        object: HistoryItem,
        value: ItemValue,
    ) -> [OperationId; 2] {
        let object = self.send(object, value);
        let end = self.send(upload, ItemValue::Absent);
        self.log.lock().expect("lock is not poisoned").operations[end.0].object_operation = Some(object.0);
        [object, end]
    }

    /// Every complete that was sent by `at`.
    pub(crate) fn completes(&self, at: usize) -> Vec<SentComplete> {
        let notes = self.log.lock().expect("lock is not poisoned");
        let complete = |end: &ClientOperation| {
            let made = &notes.operations[end.object_operation?];
            let is_rival = |act: &ClientOperation| {
                let before = act.acknowledged.is_some_and(|stamp| stamp.order < made.sent.order);
                act.item == made.item
                    && act.sent.order != made.sent.order
                    && act.may_have_effect(at)
                    && !before
            };
            let (upload, object, value) = (end.item.clone(), made.item.clone(), made.value.clone());
            Some(SentComplete { upload, object, value, contested: notes.operations.iter().any(is_rival) })
        };
        notes.operations.iter().filter(|act| act.may_have_effect(at)).filter_map(complete).collect()
    }

    /// Records that the response of an operation arrived: from here on its effect is promised.
    pub(crate) fn acknowledge(&self, act: OperationId) {
        let mut notes = self.log.lock().expect("lock is not poisoned");
        let stamp = self.stamp(&mut notes);
        notes.operations[act.0].acknowledged = Some(stamp);
        self.answers.send_modify(|answers| *answers += 1);
    }

    /// Number of responses so far, to read or to wait for.
    pub(crate) fn answers(&self) -> watch::Receiver<usize> {
        self.answers.subscribe()
    }

    /// Positions at which clients received their responses: the positions at which a missing sync shows.
    pub(crate) fn answer_positions(&self) -> Vec<usize> {
        let notes = self.log.lock().expect("lock is not poisoned");
        notes.operations.iter().filter_map(|act| act.acknowledged).map(|stamp| stamp.position).collect()
    }

    /// Every item that an operation up to `at` touched, uploads and parts after objects.
    pub(crate) fn items(&self, at: usize) -> BTreeSet<HistoryItem> {
        let notes = self.log.lock().expect("lock is not poisoned");
        notes.operations.iter().filter(|act| act.may_have_effect(at)).map(|act| act.item.clone()).collect()
    }

    /// The values that `thing` may have after a crash at position `at`.
    pub(crate) fn allowed(&self, item: &HistoryItem, at: usize) -> Vec<ItemValue> {
        let notes = self.log.lock().expect("lock is not poisoned");
        let acts: Vec<&ClientOperation> =
            notes.operations.iter().filter(|act| act.item == *item && act.may_have_effect(at)).collect();
        let promised = |act: &ClientOperation| act.acknowledged.filter(|stamp| stamp.position <= at);
        let replaced = |act: &ClientOperation| {
            let over = act.acknowledged.or(act.died).filter(|stamp| stamp.position <= at);
            let Some(over) = over else { return false };
            acts.iter().any(|later| promised(later).is_some() && later.sent.order > over.order)
        };
        let mut values = Vec::new();
        if !acts.iter().any(|act| promised(act).is_some()) {
            values.push(ItemValue::Absent);
        }
        for act in acts.iter().filter(|act| !replaced(act)) {
            if !values.contains(&act.value) {
                values.push(act.value.clone());
            }
        }
        values
    }

    /// Records the values shown by a server that was started after another one died: operations without a
    /// response are decided, and a value that was shown once may not be lost later.
    pub(crate) fn observe(&self, found: &BTreeMap<HistoryItem, ItemValue>) {
        let open = |item: &HistoryItem| self.allowed(item, NOW).len() > 1;
        let decided: Vec<_> = found.iter().filter(|(thing, _)| open(thing)).collect();
        let mut notes = self.log.lock().expect("lock is not poisoned");
        let died = self.stamp(&mut notes);
        for act in notes.operations.iter_mut().filter(|act| act.acknowledged.is_none() && act.died.is_none())
        {
            act.died = Some(died);
        }
        drop(notes);
        for (item, value) in decided {
            self.acknowledge(self.send(item.clone(), value.clone()));
        }
    }

    /// The history of the disk that a power cut at `at` left: operations acknowledged by then were promised
    /// before the new recording begins; operations without a response are still undecided.
    pub(crate) fn after_cut(&self, at: usize, clock: PositionClock) -> Self {
        let notes = self.log.lock().expect("lock is not poisoned");
        let past = |stamp: HistoryStamp| HistoryStamp { position: 0, ..stamp };
        let kept = |stamp: &HistoryStamp| stamp.position <= at;
        let acts = notes.operations.iter().map(|act| {
            // Operations sent after the cut have not happened. Their entries stay in place, so that indexes
            // stay valid.
            let unsent = act.sent.position >= at;
            ClientOperation {
                sent: if unsent { HistoryStamp { position: NOW, ..act.sent } } else { past(act.sent) },
                acknowledged: act.acknowledged.filter(kept).filter(|_| !unsent).map(past),
                died: act.died.filter(kept).map(past),
                ..act.clone()
            }
        });
        let notes = OperationLog { order: notes.order, operations: acts.collect() };
        Self { clock, log: Mutex::new(notes), answers: watch::Sender::new(0) }
    }

    /// Replaces the operations by the values found after a crash.
    pub(crate) fn reset_to(&self, found: impl IntoIterator<Item = (HistoryItem, ItemValue)>) {
        let mut notes = self.log.lock().expect("lock is not poisoned");
        notes.operations.clear();
        for (item, value) in found {
            if value != ItemValue::Absent {
                let sent = self.stamp(&mut notes);
                let acknowledged = Some(self.stamp(&mut notes));
                notes.operations.push(ClientOperation {
                    item,
                    value,
                    sent,
                    acknowledged,
                    died: None,
                    object_operation: None,
                });
            }
        }
    }
}
