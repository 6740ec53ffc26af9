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

use std::collections::{BTreeMap, BTreeSet};
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

#[derive(Clone, Debug)]
struct Act {
    thing: Thing,
    value: Value,
    sent: Stamp,
    acknowledged: Option<Stamp>,
    /// When its server was known to be dead: without an answer by then, it happened before or never.
    died: Option<Stamp>,
    /// Of the end of an upload by a complete: the act that made the object, which happens with it or not
    /// at all.
    made: Option<usize>,
}

impl Act {
    /// Whether it may have had an effect by `at`. What changes nothing on the disk, as showing a value,
    /// begins and ends at one position.
    fn counts(&self, at: usize) -> bool {
        self.sent.position < at || self.acknowledged.is_some_and(|stamp| stamp.position <= at)
    }
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
        notes.acts.push(Act { thing, value, sent, acknowledged: None, died: None, made: None });
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
                act.thing == made.thing && act.sent.order != made.sent.order && act.counts(at) && !before
            };
            let (upload, object, value) = (end.thing.clone(), made.thing.clone(), made.value.clone());
            Some(Complete { upload, object, value, contested: notes.acts.iter().any(rival) })
        };
        notes.acts.iter().filter(|act| act.counts(at)).filter_map(complete).collect()
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

    /// Notes what a server showed that was started after another one died: what had no answer is decided,
    /// and what was shown once may not be lost later.
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

    /// The history of a disk that a power cut at `at` left: what was promised by then was promised
    /// before its recording begins, what had no answer is still open.
    pub(crate) fn after_cut(&self, at: usize, clock: Clock) -> Self {
        let notes = self.notes.lock().expect("no panic while held");
        let past = |stamp: Stamp| Stamp { position: 0, ..stamp };
        let kept = |stamp: &Stamp| stamp.position <= at;
        let acts = notes.acts.iter().map(|act| {
            // What was sent later has not happened at all: kept in place, so that indexes stay true.
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

    /// Forgets how a thing came to be: a crash is over and this is what was found.
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
