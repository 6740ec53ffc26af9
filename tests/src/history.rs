//! What clients asked for and what they were promised, and which states keep every promise.
//!
//! Each act (a PUT, a delete, a part, a complete) is noted before it is sent and again when its answer
//! came. From that follows, for any moment, the set of values a thing may have:
//!
//! - an act that was not yet sent had no effect;
//! - an act that was acknowledged took effect, unless a later one replaced it: one that was *sent* after
//!   this one was acknowledged, and acknowledged itself;
//! - an act without an answer may or may not have taken effect, now or at any time before the server died;
//! - acts that overlap took effect in any order.
//!
//! Moments are counted twice: `order` is the order of the notes themselves, `position` is how much of a
//! recording had happened, so that a power cut in the middle of it knows what was promised by then.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use crate::content::Content;

mod tests;

/// What can be written and lost.
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

/// What a thing may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Absent,
    /// There, with a body; a bucket or an upload has none.
    Present(Option<Stored>),
}

#[derive(Clone, Copy, Debug)]
struct Stamp {
    order: u64,
    position: usize,
}

#[derive(Debug)]
struct Act {
    thing: Thing,
    value: Value,
    sent: Stamp,
    acknowledged: Option<Stamp>,
    /// Of the end of an upload by a complete: the act that made the object, which happens with it or not
    /// at all.
    made: Option<usize>,
}

/// A complete that was sent: the upload is gone and the object made, or neither.
#[derive(Debug)]
pub(crate) struct Complete {
    pub(crate) upload: Thing,
    pub(crate) object: Thing,
    pub(crate) value: Value,
    /// Something else was sent for the same key that may have replaced the object since.
    pub(crate) contested: bool,
}

/// Names an act until its answer comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActId(usize);

/// How much of a recording has happened; for a history without one, everything always has.
pub(crate) type Clock = Box<dyn Fn() -> usize + Send + Sync>;

/// All acts of one data directory.
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

/// The moment that sees everything noted so far.
pub(crate) const NOW: usize = usize::MAX;

impl History {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, notes: Mutex::new(Notes::default()), answers: watch::Sender::new(0) }
    }

    fn stamp(&self, notes: &mut Notes) -> Stamp {
        notes.order += 1;
        Stamp { order: notes.order, position: (self.clock)() }
    }

    /// Notes that an act is about to be sent.
    pub(crate) fn send(&self, thing: Thing, value: Value) -> ActId {
        let mut notes = self.notes.lock().expect("no panic while held");
        let sent = self.stamp(&mut notes);
        notes.acts.push(Act { thing, value, sent, acknowledged: None, made: None });
        ActId(notes.acts.len() - 1)
    }

    /// Notes that a complete is about to be sent: acts on the object and on the upload.
    pub(crate) fn send_complete(&self, upload: Thing, object: Thing, value: Value) -> [ActId; 2] {
        let object = self.send(object, value);
        let end = self.send(upload, Value::Absent);
        self.notes.lock().expect("no panic while held").acts[end.0].made = Some(object.0);
        [object, end]
    }

    /// Every complete that had been sent by `at`.
    pub(crate) fn completes(&self, at: usize) -> Vec<Complete> {
        let notes = self.notes.lock().expect("no panic while held");
        let complete = |end: &Act| {
            let made = &notes.acts[end.made?];
            let rival = |act: &Act| {
                let before = act.acknowledged.is_some_and(|stamp| stamp.order < made.sent.order);
                act.thing == made.thing
                    && act.sent.order != made.sent.order
                    && act.sent.position < at
                    && !before
            };
            let (upload, object, value) = (end.thing.clone(), made.thing.clone(), made.value.clone());
            Some(Complete { upload, object, value, contested: notes.acts.iter().any(rival) })
        };
        notes.acts.iter().filter(|act| act.sent.position < at).filter_map(complete).collect()
    }

    /// Notes that an act's answer came: from here on it is promised.
    pub(crate) fn acknowledge(&self, act: ActId) {
        let mut notes = self.notes.lock().expect("no panic while held");
        let stamp = self.stamp(&mut notes);
        notes.acts[act.0].acknowledged = Some(stamp);
        self.answers.send_modify(|answers| *answers += 1);
    }

    /// Answers that came so far, to read or to wait for.
    pub(crate) fn answers(&self) -> watch::Receiver<usize> {
        self.answers.subscribe()
    }

    /// Positions at which clients got their answers: where a missing sync shows.
    pub(crate) fn answer_positions(&self) -> Vec<usize> {
        let notes = self.notes.lock().expect("no panic while held");
        notes.acts.iter().filter_map(|act| act.acknowledged).map(|stamp| stamp.position).collect()
    }

    /// Everything any act up to `at` touched, uploads and parts after objects.
    pub(crate) fn things(&self, at: usize) -> BTreeSet<Thing> {
        let notes = self.notes.lock().expect("no panic while held");
        notes.acts.iter().filter(|act| act.sent.position < at).map(|act| act.thing.clone()).collect()
    }

    /// The values that `thing` may have after a crash at position `at`.
    pub(crate) fn allowed(&self, thing: &Thing, at: usize) -> Vec<Value> {
        let notes = self.notes.lock().expect("no panic while held");
        let acts: Vec<&Act> =
            notes.acts.iter().filter(|act| act.thing == *thing && act.sent.position < at).collect();
        let promised = |act: &Act| act.acknowledged.filter(|stamp| stamp.position <= at);
        let replaced = |act: &Act| {
            let Some(answered) = promised(act) else { return false };
            acts.iter().any(|later| promised(later).is_some() && later.sent.order > answered.order)
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

    /// Forgets how a thing came to be: a crash is over and this is what was found.
    pub(crate) fn settle(&self, found: impl IntoIterator<Item = (Thing, Value)>) {
        let mut notes = self.notes.lock().expect("no panic while held");
        notes.acts.clear();
        for (thing, value) in found {
            if value != Value::Absent {
                let sent = self.stamp(&mut notes);
                let acknowledged = Some(self.stamp(&mut notes));
                notes.acts.push(Act { thing, value, sent, acknowledged, made: None });
            }
        }
    }
}
