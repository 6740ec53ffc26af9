//! Buffers for reads that need no decision. Each read is buffered near its thread until a batch is complete
//! or the engine is queried.
//!
//! One access touches a few dozen cache lines of the engine. If a thread on each processor passed every read
//! on separately, each would fetch these lines from the previous one. For a batch they are fetched once, and
//! its memory accesses overlap. Invariants: before the engine is queried, all buffered reads are passed to it
//! in the order of time; a buffer holds at most [`BATCH_READS_MAX`] reads, and the identities of at most
//! [`KNOWN_FAMILIES_MAX`] families.
//!
//! After a power failure buffered reads are lost, like accesses that the engine has not journalled yet.

use super::ObservedRequest;
use mlgw_policies::workloads::WorkloadIdentity;
use mlgw_policies::{Access, Caller, Op};
use parking_lot::Mutex;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of reads of a buffer.
pub(super) const BATCH_READS_MAX: usize = 32;
/// Maximum number of families whose identity a buffer remembers.
const KNOWN_FAMILIES_MAX: usize = 64;
/// Maximum number of buffers; a query drains all of them.
const BUFFERS_MAX: usize = 8;

/// Reads that were not yet passed to the engine.
pub(super) struct PolicyReadBuffers {
    buffers: Box<[PolicyReadBuffer]>,
}

/// Buffer of some threads, alone on its cache lines.
#[repr(align(128))]
#[derive(Default)]
struct PolicyReadBuffer(Mutex<PolicyReadBufferState>);

#[derive(Default)]
struct PolicyReadBufferState {
    reads: ReadBatch,
    /// Families whose reads may be buffered, with their identities for the engine; frequent ones are in
    /// front.
    known_families: Vec<(u64, WorkloadIdentity)>,
}

/// Batch of reads with their keys.
#[derive(Default)]
pub(super) struct ReadBatch {
    reads: Vec<BatchedRead>,
    keys: String,
}

/// Read without its key.
struct BatchedRead {
    /// Microseconds since the process began to count.
    at_us: u64,
    caller: Caller,
    bucket: u64,
    size: u64,
    range: Range<u64>,
    key: Range<usize>,
}

/// Result of an attempt to buffer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadBuffering {
    /// Buffered.
    Buffered,
    /// Buffered, and the batch should be passed to the engine.
    BatchComplete,
    /// Not buffered: the request must be passed to the engine at once.
    NotBuffered,
}

impl PolicyReadBuffers {
    /// Creates buffers for the threads of this process.
    pub(super) fn new() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { buffers: (0..threads.min(BUFFERS_MAX)).map(|_| PolicyReadBuffer::default()).collect() }
    }

    /// Buffers a request if no decision depends on it and the engine knows its family.
    pub(super) fn try_buffer(
        &self,
        request: &ObservedRequest<'_>,
        at_us: u64,
        range: &Range<u64>,
    ) -> ReadBuffering {
        let ObservedRequest { context, bucket, key, op, size } = *request;
        if op != Op::Read || context.may_wait_for_disk {
            return ReadBuffering::NotBuffered;
        }
        let mut place = self.buffer_of_thread().lock();
        let Some(at) = place.known_families.iter().position(|(family, _)| *family == context.caller.family)
        else {
            return ReadBuffering::NotBuffered;
        };
        place.known_families.swap(at, at.saturating_sub(1));
        let access = Access {
            at_us,
            caller: context.caller,
            bucket: bucket.0,
            key: key.as_str(),
            op,
            size,
            range: range.clone(),
        };
        place.reads.push(&access);
        if place.reads.reads.len() < BATCH_READS_MAX {
            ReadBuffering::Buffered
        } else {
            ReadBuffering::BatchComplete
        }
    }

    /// Allows buffering of the reads of a family, whose identity is given.
    pub(super) fn add_family(&self, family: u64, identity: WorkloadIdentity) {
        let known = &mut self.buffer_of_thread().lock().known_families;
        known.retain(|(other, _)| *other != family);
        known.truncate(KNOWN_FAMILIES_MAX - 1);
        known.push((family, identity));
    }

    /// Returns the identity of a family whose reads were buffered.
    pub(super) fn identity(&self, family: u64) -> WorkloadIdentity {
        let found = |place: &PolicyReadBuffer| {
            let place = place.0.lock();
            place
                .known_families
                .iter()
                .find(|(known, _)| *known == family)
                .map(|(_, identity)| identity.clone())
        };
        self.buffers.iter().find_map(found).unwrap_or_default()
    }

    /// Moves all buffered reads to `reads`, in the order of time.
    pub(super) fn drain_into(&self, reads: &mut ReadBatch) {
        for place in &self.buffers {
            let waiting = &mut place.0.lock().reads;
            waiting.all().for_each(|read| reads.push(&read));
            waiting.clear();
        }
        reads.reads.sort_by_key(|read| read.at_us);
    }

    /// Returns the buffer of this thread.
    fn buffer_of_thread(&self) -> &Mutex<PolicyReadBufferState> {
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
        &self.buffers[number % self.buffers.len()].0
    }
}

impl ReadBatch {
    fn push(&mut self, read: &Access<'_>) {
        let begin = self.keys.len();
        self.keys.push_str(read.key);
        let key = begin..self.keys.len();
        let Access { at_us, caller, bucket, size, ref range, .. } = *read;
        self.reads.push(BatchedRead { at_us, caller, bucket, size, range: range.clone(), key });
    }

    /// Returns all reads in order.
    pub(super) fn all(&self) -> impl Iterator<Item = Access<'_>> {
        self.reads.iter().map(|read| {
            let BatchedRead { at_us, caller, bucket, size, ref range, ref key } = *read;
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
    use crate::policy_driver::{PolicyDriver, PolicyRequestContext, RecordedTracePiece};
    use mlgw_common::ObjectKey;
    use mlgw_common::SystemClock;
    use mlgw_common::ids::BucketId;
    use mlgw_policies::language::Program;
    use mlgw_policies::trace::TraceReader;
    use std::sync::Arc;

    const BUCKET: BucketId = BucketId(7);
    const CALLER: Caller = Caller { id: 1, family: 2 };

    fn policy_driver() -> PolicyDriver {
        PolicyDriver::new(1 << 12, Arc::new(Program::compile_built_in().unwrap()), &SystemClock)
    }

    fn read(policy_driver: &PolicyDriver, caller: Caller, key: &str) {
        let identity = || WorkloadIdentity { name: Some("train".into()), ..WorkloadIdentity::default() };
        let context = PolicyRequestContext { identity: &identity, ..PolicyRequestContext::of_caller(caller) };
        let key = ObjectKey::new(key).unwrap();
        let request = ObservedRequest { context, bucket: BUCKET, key: &key, op: Op::Read, size: 100 };
        assert_eq!(policy_driver.record_access(&request, 0..100), None);
    }
    /// Returns the keys that the engine received while `act` ran.
    fn received_keys(policy_driver: &PolicyDriver, act: impl FnOnce()) -> Vec<String> {
        let (pieces, taken) = std::sync::mpsc::channel();
        assert!(policy_driver.start_recording(1 << 20, Box::new(move |piece| pieces.send(piece).is_ok())));
        act();
        policy_driver.end_recording();
        let mut reader = TraceReader::new();
        for piece in taken.try_iter() {
            if let RecordedTracePiece::Bytes(bytes) = piece {
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
    fn reads_of_many_threads_are_received_in_the_order_of_time() {
        let policy_driver = policy_driver();
        let keys: Vec<String> = (0..300).map(|n| format!("set/{n:04}")).collect();
        let received = received_keys(&policy_driver, || {
            // Requests of one connection, handled by one thread after the other.
            let turn = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let (driver, keys, turn) = (&policy_driver, &keys, &turn);
                    scope.spawn(move || {
                        loop {
                            let at = turn.load(Ordering::Acquire);
                            let Some(key) = keys.get(at) else { return };
                            if at % 3 == thread {
                                read(driver, CALLER, key);
                                mlgw_common::time::block_for(std::time::Duration::from_micros(2));
                                turn.store(at + 1, Ordering::Release);
                            }
                            std::thread::yield_now();
                        }
                    });
                }
            });
        });
        assert_eq!(received, keys);
        assert_eq!(policy_driver.metrics().accesses, 300);
    }

    #[test]
    fn a_query_drains_all_buffers_first() {
        let driver = policy_driver();
        for n in 0..BATCH_READS_MAX * 3 + 5 {
            read(&driver, CALLER, &format!("set/{n:04}"));
            if n.is_multiple_of(7) {
                assert_eq!(driver.metrics().accesses, n as u64 + 1);
            }
        }
        let bytes = driver.with_engine(|engine, _| engine.workloads.get(CALLER.family).unwrap().bytes_read);
        assert_eq!(bytes, 100 * (BATCH_READS_MAX as u64 * 3 + 5));
    }

    #[test]
    fn a_buffered_read_waits_for_a_limited_number_of_others() {
        let driver = policy_driver();
        for n in 0..=BATCH_READS_MAX * 3 {
            read(&driver, CALLER, &format!("set/{n:04}"));
        }
        let state = driver.inner.state.lock();
        assert_eq!(
            state.metrics.accesses,
            1 + BATCH_READS_MAX as u64 * 3,
            "the first read identifies the workload"
        );
    }

    #[test]
    fn a_forgotten_family_is_identified_again() {
        let driver = policy_driver();
        read(&driver, CALLER, "set/0");
        driver.with_engine(|engine, _| assert!(engine.workloads.has_identity(CALLER.family)));
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
            let _ = driver.with_engine(|engine, _| engine.observe(&access, WorkloadIdentity::default));
        }
        driver.with_engine(|engine, _| assert!(!engine.workloads.has_identity(CALLER.family)));
        read(&driver, CALLER, "set/1");
        driver.with_engine(|engine, _| {
            let workload = engine.workloads.get(CALLER.family).unwrap();
            assert_eq!(workload.identity.name.as_deref(), name);
        });
    }

    #[test]
    fn writes_and_deletions_are_not_buffered_and_follow_earlier_reads() {
        let driver = policy_driver();
        let received = received_keys(&driver, || {
            read(&driver, CALLER, "a");
            read(&driver, CALLER, "b");
            let key = ObjectKey::new("b").unwrap();
            let context = PolicyRequestContext::of_caller(CALLER);
            let delete = ObservedRequest { context, bucket: BUCKET, key: &key, op: Op::Delete, size: 0 };
            driver.record_access(&delete, 0..0);
            read(&driver, CALLER, "c");
            assert_eq!(driver.inner.state.lock().metrics.accesses, 3);
        });
        assert_eq!(received, ["a", "b", "b", "c"]);
    }
}
