//! Policy driver: feeds every access to the policy engine, and applies the engine's decisions to clean
//! copies.
//!
//! A reader of a block of a remote-backed bucket requests a decision first ([`PolicyRead`]): the block is
//! kept or passed through. Blocks that the engine evicts are removed soon afterwards by a task
//! ([`eviction_worker`]). Invariants: a block is present if the engine keeps it, and other blocks are present
//! only for a short time. If a decision cannot be carried out, because a fetch failed, the disk is full or
//! two readers raced, the engine is notified. Reads of local buckets are recorded as well, in batches; the
//! engine keeps no blocks of these buckets.
//!
//! After a power failure the engine starts with the blocks that are present ([`PolicyDriver::start`]), and
//! learns anew.

mod buffered_reads;
mod eviction_worker;
mod expected_reads;
mod pinned;
mod policy_read;
mod recorder;

pub use policy_read::PolicyRead;
pub use recorder::{RecordedTracePiece, RecordedTraceSink, TraceRecordingSummary};

use crate::copies::{Copies, LostBlockListener, PinnedCopies};
use buffered_reads::{PolicyReadBuffers, ReadBatch, ReadBuffering};
use expected_reads::ReadAheadExpectations;
use mlgw_common::ids::BucketId;
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_common::time::Instant;
use mlgw_common::{Clock, ObjectKey};
use mlgw_policies::engine::{Advice, ObservedAccess, Options, ReadAheadRange, UnreadBlock};
use mlgw_policies::language::{Facts, NoFacts, Program};
use mlgw_policies::learning::{Learner, LearningChange, LearningEvidence};
use mlgw_policies::workloads::WorkloadIdentity;
use mlgw_policies::{Access, BLOCK_ID_SEED, Caller, Op, PolicyEngine, RequestRank, touched_blocks};
use parking_lot::{Mutex, MutexGuard};
use pinned::PolicyPins;
use policy_read::RuledRead;
use recorder::AccessRecorder;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// Driver of a node's policy engine. Clones share their state.
#[derive(Clone)]
pub struct PolicyDriver {
    inner: Arc<PolicyDriverShared>,
}

struct PolicyDriverShared {
    /// Held for a microsecond at a time, never across slow operations. A holder of the ledger of copies may
    /// lock this, never the other way round.
    state: Mutex<PolicyDriverState>,
    /// Reads that were not yet passed to the engine; they are passed before the engine is queried.
    read_buffers: PolicyReadBuffers,
    /// Notified when blocks are to be evicted.
    wake: Notify,
    /// Origin of monotonic times, and its wall-clock time in milliseconds since 1970.
    began: Instant,
    started_ms: u64,
}

struct PolicyDriverState {
    policy_engine: PolicyEngine,
    /// Blocks to evict.
    pending_evictions: Vec<u64>,
    pinned: PolicyPins,
    expected: ReadAheadExpectations,
    recorder: Option<AccessRecorder>,
    /// Access journal, which is replayed after a restart.
    access_journal: Option<AccessRecorder>,
    /// Origin of the engine's times in milliseconds since 1970: not later than the first replayed access.
    began_ms: u64,
    metrics: PolicyMetrics,
    /// Time of the last access; the next one is not earlier.
    last_us: u64,
    /// Buffer for drained reads.
    drained_reads: ReadBatch,
}

/// Decisions of the engine, and its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyMetrics {
    /// Accesses recorded.
    pub accesses: u64,
    /// Blocks that were read and already kept.
    pub hits: u64,
    /// Blocks that the engine decided to keep.
    pub kept: u64,
    /// Blocks that the engine decided to pass through.
    pub bypassed: u64,
    /// Blocks that the engine evicted.
    pub evicted: u64,
    /// Results of read-ahead blocks: used, late, wasted, declined, absent.
    pub ahead: [u64; 5],
    /// Bytes of kept blocks.
    pub kept_bytes: u64,
    /// Bytes of pinned blocks.
    pub pinned_bytes: u64,
    /// Maximum bytes to keep.
    pub capacity_bytes: u64,
    /// Bytes of memory of the engine's table.
    pub memory_bytes: u64,
}

/// Caller of a request, as the gateway describes it.
#[derive(Clone, Copy)]
pub struct PolicyRequestContext<'a> {
    /// Id of the caller.
    pub caller: Caller,
    /// Identity of the caller; evaluated only occasionally.
    pub identity: &'a dyn Fn() -> WorkloadIdentity,
    /// Facts about the object and the server, for rules.
    pub facts: &'a dyn Facts,
    /// True if the request may have to wait for a disk; only then are the rules evaluated for a rank.
    pub may_wait_for_disk: bool,
}

impl PolicyRequestContext<'_> {
    /// Creates a context with nothing but the caller.
    #[must_use]
    pub const fn of_caller(caller: Caller) -> PolicyRequestContext<'static> {
        PolicyRequestContext {
            caller,
            identity: &WorkloadIdentity::default,
            facts: &NoFacts,
            may_wait_for_disk: false,
        }
    }
}

/// Request, as the gateway describes it.
#[derive(Clone, Copy)]
pub struct ObservedRequest<'a> {
    /// Caller.
    pub context: PolicyRequestContext<'a>,
    /// Bucket.
    pub bucket: BucketId,
    /// Key.
    pub key: &'a ObjectKey,
    /// Operation.
    pub op: Op,
    /// Bytes of the whole object.
    pub size: u64,
}

impl ObservedRequest<'_> {
    fn access(&self, at_us: u64, range: Range<u64>) -> Access<'_> {
        let Self { context: PolicyRequestContext { caller, .. }, bucket, key, op, size } = *self;
        Access { at_us, caller, bucket: bucket.0, key: key.as_str(), op, size, range }
    }
}

impl PolicyDriver {
    /// Creates a driver whose engine remembers `blocks_max` blocks, kept or not, with the rules of `program`.
    /// It keeps nothing before it is started.
    #[must_use]
    pub fn new(blocks_max: usize, program: Arc<Program>, clock: &dyn Clock) -> Self {
        let started_ms = u64::try_from(clock.now().as_millis()).unwrap_or(0);
        let block_bytes = COPY_BLOCK_BYTES;
        let options = Options { capacity_bytes: 0, blocks_max, block_bytes, seed: BLOCK_ID_SEED };
        let state = PolicyDriverState {
            policy_engine: PolicyEngine::new(options, program),
            pending_evictions: Vec::new(),
            pinned: PolicyPins::default(),
            expected: ReadAheadExpectations::default(),
            recorder: None,
            access_journal: None,
            began_ms: started_ms,
            metrics: PolicyMetrics::default(),
            last_us: 0,
            drained_reads: ReadBatch::default(),
        };
        let (state, received, wake, began) =
            (Mutex::new(state), PolicyReadBuffers::new(), Notify::new(), Instant::now());
        Self {
            inner: Arc::new(PolicyDriverShared { state, read_buffers: received, wake, began, started_ms }),
        }
    }

    /// Returns the listener for `CopiesOptions::lost`.
    #[must_use]
    pub fn lost_block_listener(&self) -> Arc<dyn LostBlockListener> {
        self.inner.clone()
    }

    /// Starts to decide which copies are kept, and adopts the blocks that are present. Must be called within
    /// a tokio runtime. The blocks are scanned in the background, while reads are already served.
    pub fn start(&self, copies: &Copies) {
        self.with_state(|state, now_us| state.policy_engine.set_capacity(now_us, copies.blocks_bytes_max()));
        tokio::spawn(eviction_worker::run(Arc::downgrade(&self.inner), copies.downgrade()));
    }

    /// Begins a read of an object. Returns its policy state, and the blocks to read ahead.
    #[must_use]
    pub fn begin_read(
        &self,
        request: &ObservedRequest<'_>,
        range: &Range<u64>,
    ) -> (PolicyRead, Vec<ReadAheadRange>) {
        let (ruled, next) = self.with_state(|state, now_us| {
            let access = request.access(now_us, range.clone());
            let seen = state.observe(&access, request.context.identity);
            let ruling = state.policy_engine.ruling(seen, &access, request.context.facts);
            let rank = state.rank(seen, request, &access);
            let next = state.next_reads(seen, &access, ruling.prefetch);
            (RuledRead { seen, ruling, rank }, next)
        });
        (PolicyRead::new(self.clone(), request, range.clone(), ruled), next)
    }

    /// Records an access that needs no decision about copies: a read of a native object, a write, a deletion.
    /// Returns the disk rank that the rules assign to the read.
    pub fn record_access(&self, request: &ObservedRequest<'_>, range: Range<u64>) -> Option<RequestRank> {
        let received = &self.inner.read_buffers;
        match received.try_buffer(request, self.inner.since_us(), &range) {
            ReadBuffering::Buffered => return None,
            ReadBuffering::BatchComplete => {
                drop(self.current_state());
                return None;
            }
            ReadBuffering::NotBuffered => {}
        }
        let rank = self.with_state(|state, now_us| {
            let access = request.access(now_us, range);
            let seen = state.record_uncached(&access, request.context.identity);
            state.rank(seen, request, &access)
        });
        if request.op == Op::Read && !request.context.may_wait_for_disk {
            received.add_family(request.context.caller.family, (request.context.identity)());
        }
        rank
    }

    /// Applies each rule program that `programs` delivers. Must be called within a tokio runtime.
    pub fn follow_programs(&self, mut programs: watch::Receiver<Arc<Program>>) {
        let driver = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            while programs.changed().await.is_ok() {
                let program = Arc::clone(&programs.borrow_and_update());
                let Some(driver) = driver.upgrade() else { return };
                driver.state.lock().policy_engine.set_program(program);
            }
        });
    }

    /// Replaces the pins, up to `bytes_max` bytes. The blocks that are present are scanned in the background.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>, bytes_max: u64) {
        self.inner.state.lock().pinned.set(pins, bytes_max);
        self.inner.wake.notify_one();
    }

    /// Starts to record accesses, in files of about `file_bytes_max` bytes. Returns false if a recording is
    /// already running.
    pub fn start_recording(&self, file_bytes_max: u64, sink: RecordedTraceSink) -> bool {
        let mut state = self.current_state();
        let is_free = state.recorder.is_none();
        if is_free {
            state.recorder = Some(AccessRecorder::new(state.began_ms, file_bytes_max, sink));
        }
        is_free
    }

    /// Passes on what was recorded so far, and returns its summary; `None` if there is no recording.
    pub fn recorded(&self) -> Option<TraceRecordingSummary> {
        let mut state = self.current_state();
        let capacity_bytes = state.policy_engine.engine.capacity_bytes();
        let recorder = state.recorder.as_mut()?;
        recorder.flush();
        Some(TraceRecordingSummary { capacity_bytes, ..recorder.recorded() })
    }

    /// Ends the recording and returns its summary.
    pub fn end_recording(&self) -> Option<TraceRecordingSummary> {
        let recorded = self.recorded();
        self.inner.state.lock().recorder = None;
        recorded
    }

    /// Returns the lesson to be learned from the measurements, if there is one.
    #[must_use]
    pub fn review(&self, learner: &mut Learner, program: &Program, now_ms: i64) -> Option<LearningChange> {
        let state = self.current_state();
        let evidence =
            LearningEvidence { now_ms, ahead: state.metrics.ahead, outcomes: &state.policy_engine.outcomes };
        learner.review(program, &evidence)
    }

    /// Replays an access from before a restart, `at_us` after `began_ms`, so that the engine learns from it.
    /// Must be called before any other access, in the order of time; accesses older than the first one count
    /// as being of its time.
    pub fn replay(&self, began_ms: u64, access: &Access<'_>) {
        let mut state = self.inner.state.lock();
        let access_ms = began_ms.saturating_add(access.at_us / 1000);
        if state.last_us == 0 {
            state.began_ms = state.began_ms.min(access_ms);
        }
        let at_us = access_ms.saturating_sub(state.began_ms).saturating_mul(1000) + access.at_us % 1000;
        // If the clock was set back since, the access still does not happen later than now.
        let at_us = at_us.max(state.last_us);
        state.last_us = at_us;
        state.policy_engine.replay(&Access { at_us, ..access.clone() });
        state.policy_engine.take_evicted().for_each(drop);
    }

    /// Starts to write accesses to the journal for [`PolicyDriver::replay`], in files of about
    /// `file_bytes_max` bytes.
    pub fn start_access_journal(&self, file_bytes_max: u64, sink: RecordedTraceSink) {
        let mut state = self.current_state();
        state.access_journal = Some(AccessRecorder::new(state.began_ms, file_bytes_max, sink));
    }

    /// Passes on the journal entries written so far. Returns false if the sink fell behind.
    pub fn flush_access_journal(&self) -> bool {
        let mut state = self.current_state();
        state.access_journal.as_mut().is_none_or(|journal| {
            journal.flush();
            !journal.recorded().fell_behind
        })
    }

    /// Ends the access journal.
    pub fn end_access_journal(&self) {
        self.flush_access_journal();
        self.inner.state.lock().access_journal = None;
    }

    /// Calls a function with the policy engine and the current time in microseconds since the engine's origin
    /// of time. The function must be quick, because all reads wait for it.
    pub fn with_engine<T>(&self, ask: impl FnOnce(&mut PolicyEngine, u64) -> T) -> T {
        self.with_state(|state, now_us| ask(&mut state.policy_engine, now_us))
    }

    /// Origin of the engine's times in milliseconds since 1970.
    #[must_use]
    pub fn began_ms(&self) -> u64 {
        self.inner.state.lock().began_ms
    }

    /// Returns decisions and contents.
    #[must_use]
    pub fn metrics(&self) -> PolicyMetrics {
        let state = self.current_state();
        PolicyMetrics {
            kept_bytes: state.policy_engine.engine.kept_bytes(),
            pinned_bytes: state.policy_engine.engine.pinned_bytes(),
            capacity_bytes: state.policy_engine.engine.capacity_bytes(),
            memory_bytes: state.policy_engine.engine.memory_bytes() as u64,
            ..state.metrics
        }
    }

    /// Returns the ids of the kept blocks.
    #[cfg(test)]
    pub(crate) fn kept_ids(&self) -> Vec<u64> {
        self.inner.state.lock().policy_engine.engine.kept_ids().collect()
    }

    /// Decides about a block that a job fetches or that is present, without a reader. Returns true if it is
    /// kept.
    pub(crate) fn adopt(&self, bucket: BucketId, key: &ObjectKey, size: u64, number: u64) -> bool {
        let block = unread(bucket, key, size, number);
        self.with_state(|state, now_us| state.adopt(now_us, &block)) != Advice::Bypass
    }

    /// Reports that a block was kept, which may have been evicted meanwhile.
    pub(crate) fn on_kept(&self, id: u64) {
        self.with_state(|state, _| {
            if !state.policy_engine.engine.is_kept(id) {
                state.pending_evictions.push(id);
            }
        });
    }

    /// Reports that a block was not kept although that was the decision.
    pub(crate) fn on_not_kept(&self, id: u64) {
        self.inner.on_lost(id);
    }

    /// Calls a function with the state, and queues the engine's evictions.
    fn with_state<T>(&self, ask: impl FnOnce(&mut PolicyDriverState, u64) -> T) -> T {
        let mut state = self.current_state();
        let now_us = state.time_us(self.inner.started_ms, self.inner.since_us());
        let answer = ask(&mut state, now_us);
        self.inner.queue_evictions(&mut state);
        answer
    }

    /// Returns the state, after all buffered reads were passed to the engine.
    fn current_state(&self) -> MutexGuard<'_, PolicyDriverState> {
        let mut state = self.inner.state.lock();
        let mut reads = std::mem::take(&mut state.drained_reads);
        self.inner.read_buffers.drain_into(&mut reads);
        if !reads.is_empty() {
            self.inner.record_buffered(&mut state, &reads);
            reads.clear();
        }
        state.drained_reads = reads;
        state
    }
}

impl PolicyDriverState {
    fn observe(
        &mut self,
        access: &Access<'_>,
        identity: impl FnOnce() -> WorkloadIdentity,
    ) -> ObservedAccess {
        self.metrics.accesses += 1;
        for recorder in [&mut self.recorder, &mut self.access_journal].into_iter().flatten() {
            recorder.record(access);
        }
        self.policy_engine.observe(access, identity)
    }

    /// Records an access to an object without copies.
    fn record_uncached(
        &mut self,
        access: &Access<'_>,
        identity: impl FnOnce() -> WorkloadIdentity,
    ) -> ObservedAccess {
        let seen = self.observe(access, identity);
        if access.op == Op::Read {
            for number in touched_blocks(&access.range, COPY_BLOCK_BYTES).take(TRACKED_BLOCKS_MAX) {
                self.policy_engine.engine.read_uncached(seen, access, number as u32);
            }
        }
        seen
    }

    /// Returns the engine's time of an event `since_us` after this process began to count; not earlier than
    /// the previous event.
    fn time_us(&mut self, started_ms: u64, since_us: u64) -> u64 {
        let before_ms = started_ms.saturating_sub(self.began_ms);
        self.last_us = before_ms.saturating_mul(1000).saturating_add(since_us).max(self.last_us);
        self.last_us
    }

    /// Returns the disk rank that the rules assign to a read.
    fn rank(
        &self,
        seen: ObservedAccess,
        request: &ObservedRequest<'_>,
        access: &Access<'_>,
    ) -> Option<RequestRank> {
        let PolicyRequestContext { may_wait_for_disk: may_wait, facts: about, .. } = request.context;
        if may_wait && request.op == Op::Read { self.policy_engine.rank(seen, access, about) } else { None }
    }

    /// Decides about a block without a reader: pinned if a pin includes it, else by its worth.
    fn adopt(&mut self, now_us: u64, block: &UnreadBlock<'_>) -> Advice {
        if self.pinned.includes(block) {
            let advice = self.policy_engine.engine.pin(now_us, block, self.pinned.bytes_max());
            if advice != Advice::Bypass {
                return advice;
            }
        }
        self.policy_engine.engine.admit_unread(now_us, block)
    }
}

impl PolicyDriverShared {
    /// Returns the microseconds since this process began to count.
    fn since_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(0)
    }

    /// Passes buffered reads to the engine. The data needed is prefetched for all of them before the first
    /// one is passed on, so that the memory accesses overlap.
    fn record_buffered(&self, state: &mut PolicyDriverState, reads: &ReadBatch) {
        for access in reads.all() {
            state.access_journal.iter().for_each(|journal| journal.bring_near(&access));
            state.policy_engine.prefetch_memory(&access);
        }
        for read in reads.all() {
            let at_us = state.time_us(self.started_ms, read.at_us);
            let family = read.caller.family;
            state.record_uncached(&Access { at_us, ..read }, || self.read_buffers.identity(family));
            self.queue_evictions(state);
        }
    }

    /// Queues the blocks that the engine evicted for removal.
    fn queue_evictions(&self, state: &mut PolicyDriverState) {
        let before = state.pending_evictions.len();
        let PolicyDriverState {
            policy_engine: decider, pending_evictions: evicted, metrics, recorder, ..
        } = state;
        evicted.extend(decider.take_evicted());
        if let Some(recorder) = recorder {
            evicted[before..].iter().for_each(|id| recorder.decided().add_eviction(*id));
        }
        metrics.evicted += (evicted.len() - before) as u64;
        if !evicted.is_empty() {
            self.wake.notify_one();
        }
    }
}

impl LostBlockListener for PolicyDriverShared {
    fn on_lost(&self, id: u64) {
        self.state.lock().policy_engine.invalidate(id);
    }
}

fn unread(bucket: BucketId, key: &ObjectKey, size: u64, number: u64) -> UnreadBlock<'_> {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    UnreadBlock { bucket: bucket.0, key: key.as_str(), size, number }
}

/// Maximum number of blocks that are tracked per read of a native object: 8 GiB.
const TRACKED_BLOCKS_MAX: usize = 1024;
