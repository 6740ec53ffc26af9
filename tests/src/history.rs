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

use crate::content::Content;

mod tests;

/// An item that can be written and lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Thing {
    Bucket,
    Object(String),
    Upload { key: String, id: String },
    Part { key: String, id: String, number: u32 },
}

/// A body of one or more pieces, and its ETag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) pieces: Vec<Content>,
    pub(crate) etag: String,
}

impl Stored {
    pub(crate) fn plain(content: Content) -> Self {
        Self { pieces: vec![content], etag: content.etag() }
    }

    pub(crate) fn of_parts(pieces: Vec<Content>) -> Self {
        let etag = Content::etag_of_parts(&pieces);
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
pub(crate) enum Value {
    Absent,
    /// Present, with a body; a bucket or an upload has no body.
    Present(Option<Stored>),
}

#[derive(Clone, Copy, Debug)]
struct Stamp {
    order: u64,
    position: usize,
}

#[derive(Clone, Debug)]
struct Act {
    thing: Thing,
    value: Value,
    sent: Stamp,
    acknowledged: Option<Stamp>,
    /// The moment when the server was known to be dead: without a response by then, the operation took effect
    /// before or never.
    died: Option<Stamp>,
    /// For the end of an upload by a complete: the operation that created the object, which takes effect
    /// together with this one or not at all.
    made: Option<usize>,
}

impl Act {
    /// True if the operation may have had an effect by `at`. An operation that changes nothing on the disk,
    /// such as the observation of a value, begins and ends at one position.
    fn counts(&self, at: usize) -> bool {
        self.sent.position < at || self.acknowledged.is_some_and(|stamp| stamp.position <= at)
    }
}

/// A complete that was sent: the upload is gone and the object exists, or neither.
#[derive(Debug)]
pub(crate) struct Complete {
    pub(crate) upload: Thing,
    pub(crate) object: Thing,
    pub(crate) value: Value,
    /// True if another operation was sent for the same key that may have replaced the object since.
    pub(crate) contested: bool,
}

/// Identifies an operation until its response arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActId(usize);

/// Returns the current position in a recording; constant for a history without a recording.
pub(crate) type Clock = Box<dyn Fn() -> usize + Send + Sync>;

/// All operations on one data directory.
pub(crate) struct History {
    clock: Clock,
    notes: Mutex<Notes>,
    answers: watch::Sender<usize>,
}

#[derive(Default)]
struct Notes {
    order: u64,
    acts: Vec<Act>,
}

/// The moment after all operations recorded so far.
pub(crate) const NOW: usize = usize::MAX;

impl History {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, notes: Mutex::new(Notes::default()), answers: watch::Sender::new(0) }
    }

    fn stamp(&self, notes: &mut Notes) -> Stamp {
        notes.order += 1;
        Stamp { order: notes.order, position: (self.clock)() }
    }

    /// Records that an operation is about to be sent.
    pub(crate) fn send(&self, thing: Thing, value: Value) -> ActId {
        let mut notes = self.notes.lock().expect("no panic while held");
        let sent = self.stamp(&mut notes);
        notes.acts.push(Act { thing, value, sent, acknowledged: None, died: None, made: None });
        ActId(notes.acts.len() - 1)
    }

    /// Records that a complete is about to be sent: one operation on the object and one on the upload.
    pub(crate) fn send_complete(&self, upload: Thing, object: Thing, value: Value) -> [ActId; 2] {
        let object = self.send(object, value);
        let end = self.send(upload, Value::Absent);
        self.notes.lock().expect("no panic while held").acts[end.0].made = Some(object.0);
        [object, end]
    }

    /// Every complete that was sent by `at`.
    pub(crate) fn completes(&self, at: usize) -> Vec<Complete> {
        let notes = self.notes.lock().expect("no panic while held");
        let complete = |end: &Act| {
            let made = &notes.acts[end.made?];
            let rival = |act: &Act| {
                let before = act.acknowledged.is_some_and(|stamp| stamp.order < made.sent.order);
                act.thing == made.thing && act.sent.order != made.sent.order && act.counts(at) && !before
            };
            let (upload, object, value) = (end.thing.clone(), made.thing.clone(), made.value.clone());
            Some(Complete { upload, object, value, contested: notes.acts.iter().any(rival) })
        };
        notes.acts.iter().filter(|act| act.counts(at)).filter_map(complete).collect()
    }

    /// Records that the response of an operation arrived: from here on its effect is promised.
    pub(crate) fn acknowledge(&self, act: ActId) {
        let mut notes = self.notes.lock().expect("no panic while held");
        let stamp = self.stamp(&mut notes);
        notes.acts[act.0].acknowledged = Some(stamp);
        self.answers.send_modify(|answers| *answers += 1);
    }

    /// Number of responses so far, to read or to wait for.
    pub(crate) fn answers(&self) -> watch::Receiver<usize> {
        self.answers.subscribe()
    }

    /// Positions at which clients received their responses: the positions at which a missing sync shows.
    pub(crate) fn answer_positions(&self) -> Vec<usize> {
        let notes = self.notes.lock().expect("no panic while held");
        notes.acts.iter().filter_map(|act| act.acknowledged).map(|stamp| stamp.position).collect()
    }

    /// Every item that an operation up to `at` touched, uploads and parts after objects.
    pub(crate) fn things(&self, at: usize) -> BTreeSet<Thing> {
        let notes = self.notes.lock().expect("no panic while held");
        notes.acts.iter().filter(|act| act.counts(at)).map(|act| act.thing.clone()).collect()
    }

    /// The values that `thing` may have after a crash at position `at`.
    pub(crate) fn allowed(&self, thing: &Thing, at: usize) -> Vec<Value> {
        let notes = self.notes.lock().expect("no panic while held");
        let acts: Vec<&Act> = notes.acts.iter().filter(|act| act.thing == *thing && act.counts(at)).collect();
        let promised = |act: &Act| act.acknowledged.filter(|stamp| stamp.position <= at);
        let replaced = |act: &Act| {
            let over = act.acknowledged.or(act.died).filter(|stamp| stamp.position <= at);
            let Some(over) = over else { return false };
            acts.iter().any(|later| promised(later).is_some() && later.sent.order > over.order)
        };
        let mut values = Vec::new();
        if !acts.iter().any(|act| promised(act).is_some()) {
            values.push(Value::Absent);
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
    pub(crate) fn observe(&self, found: &BTreeMap<Thing, Value>) {
        let open = |thing: &Thing| self.allowed(thing, NOW).len() > 1;
        let decided: Vec<_> = found.iter().filter(|(thing, _)| open(thing)).collect();
        let mut notes = self.notes.lock().expect("no panic while held");
        let died = self.stamp(&mut notes);
        for act in notes.acts.iter_mut().filter(|act| act.acknowledged.is_none() && act.died.is_none()) {
            act.died = Some(died);
        }
        drop(notes);
        for (thing, value) in decided {
            self.acknowledge(self.send(thing.clone(), value.clone()));
        }
    }

    /// The history of the disk that a power cut at `at` left: operations acknowledged by then were promised
    /// before the new recording begins; operations without a response are still undecided.
    pub(crate) fn after_cut(&self, at: usize, clock: Clock) -> Self {
        let notes = self.notes.lock().expect("no panic while held");
        let past = |stamp: Stamp| Stamp { position: 0, ..stamp };
        let kept = |stamp: &Stamp| stamp.position <= at;
        let acts = notes.acts.iter().map(|act| {
            // Operations sent after the cut have not happened. Their entries stay in place, so that indexes
            // stay valid.
            let unsent = act.sent.position >= at;
            Act {
                sent: if unsent { Stamp { position: NOW, ..act.sent } } else { past(act.sent) },
                acknowledged: act.acknowledged.filter(kept).filter(|_| !unsent).map(past),
                died: act.died.filter(kept).map(past),
                ..act.clone()
            }
        });
        let notes = Notes { order: notes.order, acts: acts.collect() };
        Self { clock, notes: Mutex::new(notes), answers: watch::Sender::new(0) }
    }

    /// Replaces the operations by the values found after a crash.
    pub(crate) fn settle(&self, found: impl IntoIterator<Item = (Thing, Value)>) {
        let mut notes = self.notes.lock().expect("no panic while held");
        notes.acts.clear();
        for (thing, value) in found {
            if value != Value::Absent {
                let sent = self.stamp(&mut notes);
                let acknowledged = Some(self.stamp(&mut notes));
                notes.acts.push(Act { thing, value, sent, acknowledged, died: None, made: None });
            }
        }
    }
}
