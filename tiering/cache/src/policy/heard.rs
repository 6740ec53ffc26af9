//! Reads that ask for no decision wait here, each near the thread that it came to, until some have come
//! together or somebody asks the engine.
//!
//! What the engine touches for one access is a few dozen lines of memory. With a thread on each processor
//! telling it of every read for itself, each would fetch them from the one before; told of many at once, one
//! fetches them once, and waits for what it looks up of all of them together. Always: whoever asks the engine
//! has it hear everything first, in the order of time; a place holds [`TOGETHER_MAX`] reads, and of
//! [`KNOWN_MAX`] families who they are.
//!
//! When power fails what waits is lost, as what the engine has not written down yet is.

use super::Request;
use mlgw_policies::workloads::Identity;
use mlgw_policies::{Access, Caller, Op};
use parking_lot::Mutex;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Reads that wait in one place at most.
pub(super) const TOGETHER_MAX: usize = 32;
/// Families of which a place remembers who they are.
const KNOWN_MAX: usize = 64;
/// Places: whoever asks looks into all of them.
const PLACES_MAX: usize = 8;

/// Reads that were not told to the engine yet.
pub(super) struct Heard {
    places: Box<[Place]>,
}

/// Where the reads of some threads wait; alone on its lines of memory.
#[repr(align(128))]
#[derive(Default)]
struct Place(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    reads: Reads,
    /// Families whose reads may wait, and who they are should the engine ask; those that come often are in
    /// front.
    known: Vec<(u64, Identity)>,
}

/// Reads and their keys.
#[derive(Default)]
pub(super) struct Reads {
    reads: Vec<Read>,
    keys: String,
}

/// A read, without its key.
struct Read {
    /// Microseconds since the process began to count.
    at_us: u64,
    caller: Caller,
    bucket: u64,
    size: u64,
    range: Range<u64>,
    key: Range<usize>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It waits.
    Waits,
    /// It waits, and the engine should hear of all that do.
    Enough,
    /// It is to be told to the engine at once.
    No,
}

impl Heard {
    /// Places for the threads of this process.
    pub(super) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { places: (0..threads.min(PLACES_MAX)).map(|_| Place::default()).collect() }
    }

    /// Has a request wait, if nothing depends on it and its family has been told to the engine.
    pub(super) fn take(&self, request: &Request<'_>, at_us: u64, range: &Range<u64>) -> Taken {
        let Request { asking, bucket, key, op, size } = *request;
        if op != Op::Read || asking.may_wait {
            return Taken::No;
        }
        let mut place = self.place().lock();
        let Some(at) = place.known.iter().position(|(family, _)| *family == asking.caller.family) else {
            return Taken::No;
        };
        place.known.swap(at, at.saturating_sub(1));
        let access = Access {
            at_us,
            caller: asking.caller,
            bucket: bucket.0,
            key: key.as_str(),
            op,
            size,
            range: range.clone(),
        };
        place.reads.push(&access);
        if place.reads.reads.len() < TOGETHER_MAX { Taken::Waits } else { Taken::Enough }
    }

    /// From now on reads of a family may wait, which says who it is.
    pub(super) fn know(&self, family: u64, identity: Identity) {
        let known = &mut self.place().lock().known;
        known.retain(|(other, _)| *other != family);
        known.truncate(KNOWN_MAX - 1);
        known.push((family, identity));
    }

    /// Who a family is whose reads waited.
    pub(super) fn identity(&self, family: u64) -> Identity {
        let found = |place: &Place| {
            let place = place.0.lock();
            place.known.iter().find(|(known, _)| *known == family).map(|(_, identity)| identity.clone())
        };
        self.places.iter().find_map(found).unwrap_or_default()
    }

    /// Adds all that wait to `reads`, in the order of time.
    pub(super) fn drain(&self, reads: &mut Reads) {
        for place in &self.places {
            let waiting = &mut place.0.lock().reads;
            waiting.all().for_each(|read| reads.push(&read));
            waiting.clear();
        }
        reads.reads.sort_by_key(|read| read.at_us);
    }

    /// That of this thread.
    fn place(&self) -> &Mutex<Waiting> {
        thread_local! {
            static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.with(|number| {
            if number.get() == usize::MAX {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        });
        &self.places[number % self.places.len()].0
    }
}

impl Reads {
    fn push(&mut self, read: &Access<'_>) {
        let begin = self.keys.len();
        self.keys.push_str(read.key);
        let key = begin..self.keys.len();
        let Access { at_us, caller, bucket, size, ref range, .. } = *read;
        self.reads.push(Read { at_us, caller, bucket, size, range: range.clone(), key });
    }

    /// All of them, in their order.
    pub(super) fn all(&self) -> impl Iterator<Item = Access<'_>> {
        self.reads.iter().map(|read| {
            let Read { at_us, caller, bucket, size, ref range, ref key } = *read;
            let key = &self.keys[key.clone()];
            Access { at_us, caller, bucket, key, op: Op::Read, size, range: range.clone() }
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Asking, Keeper, Piece};
    use mlgw_common::ObjectKey;
    use mlgw_common::SystemClock;
    use mlgw_common::ids::BucketId;
    use mlgw_policies::language::Program;
    use mlgw_policies::trace::TraceReader;
    use std::sync::Arc;

    const BUCKET: BucketId = BucketId(7);
    const CALLER: Caller = Caller { id: 1, family: 2 };

    fn keeper() -> Keeper {
        Keeper::new(1 << 12, Arc::new(Program::built_in().unwrap()), &SystemClock)
    }

    fn read(keeper: &Keeper, caller: Caller, key: &str) {
        let identity = || Identity { name: Some("train".into()), ..Identity::default() };
        let asking = Asking { identity: &identity, ..Asking::plain(caller) };
        let key = ObjectKey::new(key).unwrap();
        let request = Request { asking, bucket: BUCKET, key: &key, op: Op::Read, size: 100 };
        assert_eq!(keeper.note(&request, 0..100), None);
    }
    /// The keys of what the engine was told of while `act` went on.
    fn told(keeper: &Keeper, act: impl FnOnce()) -> Vec<String> {
        let (pieces, taken) = std::sync::mpsc::channel();
        assert!(keeper.record(1 << 20, Box::new(move |piece| pieces.send(piece).is_ok())));
        act();
        keeper.end_recording();
        let mut reader = TraceReader::new();
        for piece in taken.try_iter() {
            if let Piece::Bytes(bytes) = piece {
                reader.push(&bytes);
            }
        }
        let mut keys = Vec::new();
        while let Some(access) = reader.read().unwrap() {
            keys.push(access.key.to_owned());
        }
        keys
    }

    #[test]
    fn reads_of_many_threads_are_told_in_the_order_of_time() {
        let keeper = keeper();
        let keys: Vec<String> = (0..300).map(|n| format!("set/{n:04}")).collect();
        let told = told(&keeper, || {
            // One connection, whose requests come to one thread after the other.
            let turn = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (keeper, keys, turn) = (&keeper, &keys, &turn);
                    scope.spawn(move || {
                        loop {
                            let at = turn.load(Ordering::Acquire);
                            let Some(key) = keys.get(at) else { return };
                            if at % 3 == thread {
                                read(keeper, CALLER, key);
                                std::thread::sleep(std::time::Duration::from_micros(2));
                                turn.store(at + 1, Ordering::Release);
                            }
                            std::thread::yield_now();
                        }
                    });
                }
            });
        });
        assert_eq!(told, keys);
        assert_eq!(keeper.metrics().accesses, 300);
    }

    #[test]
    fn whoever_asks_has_the_engine_hear_everything_first() {
        let keeper = keeper();
        for n in 0..TOGETHER_MAX * 3 + 5 {
            read(&keeper, CALLER, &format!("set/{n:04}"));
            if n.is_multiple_of(7) {
                assert_eq!(keeper.metrics().accesses, n as u64 + 1);
            }
        }
        let bytes = keeper.ask(|decider, _| decider.workloads.get(CALLER.family).unwrap().bytes_read);
        assert_eq!(bytes, 100 * (TOGETHER_MAX as u64 * 3 + 5));
    }

    #[test]
    fn a_read_that_waited_waits_no_longer_than_for_so_many_others() {
        let keeper = keeper();
        for n in 0..=TOGETHER_MAX * 3 {
            read(&keeper, CALLER, &format!("set/{n:04}"));
        }
        let state = keeper.inner.state.lock();
        assert_eq!(state.metrics.accesses, 1 + TOGETHER_MAX as u64 * 3, "the first says who it is");
    }

    #[test]
    fn who_was_forgotten_meanwhile_is_told_again_who_it_is() {
        let keeper = keeper();
        read(&keeper, CALLER, "set/0");
        keeper.ask(|decider, _| assert!(decider.workloads.knows(CALLER.family)));
        let (name, others) = (Some("train"), 3000);
        for family in 0..others {
            let access = Access {
                at_us: 1 << 40,
                caller: Caller { id: family, family: 100 + family },
                bucket: 1,
                key: "other",
                op: Op::Read,
                size: 1,
                range: 0..1,
            };
            let _ = keeper.ask(|decider, _| decider.observe(&access, Identity::default));
        }
        keeper.ask(|decider, _| assert!(!decider.workloads.knows(CALLER.family)));
        read(&keeper, CALLER, "set/1");
        keeper.ask(|decider, _| {
            let workload = decider.workloads.get(CALLER.family).unwrap();
            assert_eq!(workload.identity.name.as_deref(), name);
        });
    }

    #[test]
    fn writes_and_deletions_wait_for_nobody_and_come_behind_what_was_read() {
        let keeper = keeper();
        let told = told(&keeper, || {
            read(&keeper, CALLER, "a");
            read(&keeper, CALLER, "b");
            let key = ObjectKey::new("b").unwrap();
            let asking = Asking::plain(CALLER);
            let delete = Request { asking, bucket: BUCKET, key: &key, op: Op::Delete, size: 0 };
            keeper.note(&delete, 0..0);
            read(&keeper, CALLER, "c");
            assert_eq!(keeper.inner.state.lock().metrics.accesses, 3);
        });
        assert_eq!(told, ["a", "b", "b", "c"]);
    }
}
