//! Policy driver: feeds every access to the policy engine, and applies the engine's decisions to clean
//! copies.
//!
//! A reader of a block of a remote-backed bucket requests a decision first ([`Reading`]): the block is kept
//! or passed through. Blocks that the engine evicts are removed soon afterwards by a task ([`room`]).
//! Invariants: a block is present if the engine keeps it, and other blocks are present only for a short time.
//! If a decision cannot be carried out, because a fetch failed, the disk is full or two readers raced, the
//! engine is notified. Reads of native buckets are recorded as well, in batches; the engine keeps no blocks
//! of these buckets.
//!
//! After a power failure the engine starts with the blocks that are present ([`Keeper::start`]), and learns
//! anew.

mod ahead;
mod heard;
mod held;
mod reading;
mod recorder;
mod room;

pub use reading::Reading;
pub use recorder::{Piece, Recorded, Sink};

use crate::copies::{Copies, Lost, PinnedCopies};
use ahead::Expected;
use heard::{Heard, Reads, Taken};
use held::Held;
use mlgw_common::ids::BucketId;
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_common::{Clock, ObjectKey};
use mlgw_policies::engine::{Advice, Next, Options, Seen, Unread};
use mlgw_policies::language::{Facts, NoFacts, Program};
use mlgw_policies::learning::{Evidence, Learner, Lesson};
use mlgw_policies::workloads::Identity;
use mlgw_policies::{Access, BLOCK_ID_SEED, Caller, Decider, Op, Rank, touched};
use parking_lot::{Mutex, MutexGuard};
use recorder::Recorder;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Notify, watch};

/// Driver of a node's policy engine. Clones share their state.
#[derive(Clone)]
pub struct Keeper {
    inner: Arc<Inner>,
}

struct Inner {
    /// Held for a microsecond at a time, never across slow operations. A holder of the ledger of copies may
    /// lock this, never the other way round.
    state: Mutex<State>,
    /// Reads that were not yet passed to the engine; they are passed before the engine is queried.
    heard: Heard,
    /// Notified when blocks are to be evicted.
    wake: Notify,
    /// Origin of monotonic times, and its wall-clock time in milliseconds since 1970.
    began: Instant,
    started_ms: u64,
}

struct State {
    decider: Decider,
    /// Blocks to evict.
    evicted: Vec<u64>,
    held: Held,
    expected: Expected,
    recorder: Option<Recorder>,
    /// Access journal, which is replayed after a restart.
    diary: Option<Recorder>,
    /// Origin of the engine's times in milliseconds since 1970: not later than the first replayed access.
    began_ms: u64,
    metrics: PolicyMetrics,
    /// Time of the last access; the next one is not earlier.
    last_us: u64,
    /// Buffer for drained reads.
    heard: Reads,
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
pub struct Asking<'a> {
    /// Id of the caller.
    pub caller: Caller,
    /// Identity of the caller; evaluated only occasionally.
    pub identity: &'a dyn Fn() -> Identity,
    /// Facts about the object and the server, for rules.
    pub about: &'a dyn Facts,
    /// True if the request may have to wait for a disk; only then are the rules evaluated for a rank.
    pub may_wait: bool,
}

impl Asking<'_> {
    /// Creates a context with nothing but the caller.
    #[must_use]
    pub const fn plain(caller: Caller) -> Asking<'static> {
        Asking { caller, identity: &Identity::default, about: &NoFacts, may_wait: false }
    }
}

/// Request, as the gateway describes it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Caller.
    pub asking: Asking<'a>,
    /// Bucket.
    pub bucket: BucketId,
    /// Key.
    pub key: &'a ObjectKey,
    /// Operation.
    pub op: Op,
    /// Bytes of the whole object.
    pub size: u64,
}

impl Request<'_> {
    fn access(&self, at_us: u64, range: Range<u64>) -> Access<'_> {
        let Self { asking: Asking { caller, .. }, bucket, key, op, size } = *self;
        Access { at_us, caller, bucket: bucket.0, key: key.as_str(), op, size, range }
    }
}

impl Keeper {
    /// Creates a driver whose engine remembers `blocks_max` blocks, kept or not, with the rules of `program`.
    /// It keeps nothing before it is started.
    #[must_use]
    pub fn new(blocks_max: usize, program: Arc<Program>, clock: &dyn Clock) -> Self {
        let started_ms = u64::try_from(clock.now().as_millis()).unwrap_or(0);
        let block_bytes = COPY_BLOCK_BYTES;
        let options = Options { capacity_bytes: 0, blocks_max, block_bytes, seed: BLOCK_ID_SEED };
        let state = State {
            decider: Decider::new(options, program),
            evicted: Vec::new(),
            held: Held::default(),
            expected: Expected::default(),
            recorder: None,
            diary: None,
            began_ms: started_ms,
            metrics: PolicyMetrics::default(),
            last_us: 0,
            heard: Reads::default(),
        };
        let (state, heard, wake, began) = (Mutex::new(state), Heard::new(), Notify::new(), Instant::now());
        Self { inner: Arc::new(Inner { state, heard, wake, began, started_ms }) }
    }

    /// Returns the listener for `CopiesOptions::lost`.
    #[must_use]
    pub fn books(&self) -> Arc<dyn Lost> {
        self.inner.clone()
    }

    /// Starts to decide which copies are kept, and adopts the blocks that are present. Must be called within
    /// a tokio runtime. The blocks are scanned in the background, while reads are already served.
    pub fn start(&self, copies: &Copies) {
        self.with(|state, now_us| state.decider.set_capacity(now_us, copies.blocks_bytes_max()));
        tokio::spawn(room::run(Arc::downgrade(&self.inner), copies.downgrade()));
    }

    /// Begins a read of an object. Returns its policy state, and the blocks to read ahead.
    #[must_use]
    pub fn reading(&self, request: &Request<'_>, range: &Range<u64>) -> (Reading, Vec<Next>) {
        let (said, next) = self.with(|state, now_us| {
            let access = request.access(now_us, range.clone());
            let seen = state.observe(&access, request.asking.identity);
            let ruling = state.decider.rule(seen, &access, request.asking.about);
            let rank = state.rank(seen, request, &access);
            ((seen, ruling, rank), state.next(seen, &access, ruling.prefetch))
        });
        (Reading::new(self.clone(), request, range.clone(), said), next)
    }

    /// Records an access that needs no decision about copies: a read of a native object, a write, a deletion.
    /// Returns the disk rank that the rules assign to the read.
    pub fn note(&self, request: &Request<'_>, range: Range<u64>) -> Option<Rank> {
        let heard = &self.inner.heard;
        match heard.take(request, self.inner.since_us(), &range) {
            Taken::Waits => return None,
            Taken::Enough => {
                drop(self.state());
                return None;
            }
            Taken::No => {}
        }
        let rank = self.with(|state, now_us| {
            let access = request.access(now_us, range);
            let seen = state.learn(&access, request.asking.identity);
            state.rank(seen, request, &access)
        });
        if request.op == Op::Read && !request.asking.may_wait {
            heard.know(request.asking.caller.family, (request.asking.identity)());
        }
        rank
    }

    /// Applies each rule program that `programs` delivers. Must be called within a tokio runtime.
    pub fn follow(&self, mut programs: watch::Receiver<Arc<Program>>) {
        let keeper = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            while programs.changed().await.is_ok() {
                let program = Arc::clone(&programs.borrow_and_update());
                let Some(keeper) = keeper.upgrade() else { return };
                keeper.state.lock().decider.set_program(program);
            }
        });
    }

    /// Replaces the pins, up to `bytes_max` bytes. The blocks that are present are scanned in the background.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>, bytes_max: u64) {
        self.inner.state.lock().held.set(pins, bytes_max);
        self.inner.wake.notify_one();
    }

    /// Starts to record accesses, in files of about `file_bytes_max` bytes. Returns false if a recording is
    /// already running.
    pub fn record(&self, file_bytes_max: u64, sink: Sink) -> bool {
        let mut state = self.state();
        let is_free = state.recorder.is_none();
        if is_free {
            state.recorder = Some(Recorder::new(state.began_ms, file_bytes_max, sink));
        }
        is_free
    }

    /// Passes on what was recorded so far, and returns its summary; `None` if there is no recording.
    pub fn recorded(&self) -> Option<Recorded> {
        let mut state = self.state();
        let capacity_bytes = state.decider.engine.capacity_bytes();
        let recorder = state.recorder.as_mut()?;
        recorder.flush();
        Some(Recorded { capacity_bytes, ..recorder.recorded() })
    }

    /// Ends the recording and returns its summary.
    pub fn end_recording(&self) -> Option<Recorded> {
        let recorded = self.recorded();
        self.inner.state.lock().recorder = None;
        recorded
    }

    /// Returns the lesson to be learnt from the measurements, if there is one.
    #[must_use]
    pub fn review(&self, learner: &mut Learner, program: &Program, now_ms: i64) -> Option<Lesson> {
        let state = self.state();
        let evidence = Evidence { now_ms, ahead: state.metrics.ahead, outcomes: &state.decider.outcomes };
        learner.review(program, &evidence)
    }

    /// Replays an access from before a restart, `at_us` after `began_ms`, so that the engine learns from it.
    /// Must be called before any other access, in the order of time; accesses older than the first one count
    /// as being of its time.
    pub fn recall(&self, began_ms: u64, access: &Access<'_>) {
        let mut state = self.inner.state.lock();
        let access_ms = began_ms.saturating_add(access.at_us / 1000);
        if state.last_us == 0 {
            state.began_ms = state.began_ms.min(access_ms);
        }
        let at_us = access_ms.saturating_sub(state.began_ms).saturating_mul(1000) + access.at_us % 1000;
        // If the clock was set back since, the access still does not happen later than now.
        let at_us = at_us.max(state.last_us);
        state.last_us = at_us;
        state.decider.recall(&Access { at_us, ..access.clone() });
        state.decider.take_evicted().for_each(drop);
    }

    /// Starts to write accesses to the journal for [`Keeper::recall`], in files of about `file_bytes_max`
    /// bytes.
    pub fn keep_diary(&self, file_bytes_max: u64, sink: Sink) {
        let mut state = self.state();
        state.diary = Some(Recorder::new(state.began_ms, file_bytes_max, sink));
    }

    /// Passes on the journal entries written so far. Returns false if the sink fell behind.
    pub fn flush_diary(&self) -> bool {
        let mut state = self.state();
        state.diary.as_mut().is_none_or(|diary| {
            diary.flush();
            !diary.recorded().fell_behind
        })
    }

    /// Ends the access journal.
    pub fn end_diary(&self) {
        self.flush_diary();
        self.inner.state.lock().diary = None;
    }

    /// Calls a function with the policy engine and the current time in microseconds since the engine's origin
    /// of time. The function must be quick, because all reads wait for it.
    pub fn ask<T>(&self, ask: impl FnOnce(&mut Decider, u64) -> T) -> T {
        self.with(|state, now_us| ask(&mut state.decider, now_us))
    }

    /// Origin of the engine's times in milliseconds since 1970.
    #[must_use]
    pub fn began_ms(&self) -> u64 {
        self.inner.state.lock().began_ms
    }

    /// Returns decisions and contents.
    #[must_use]
    pub fn metrics(&self) -> PolicyMetrics {
        let state = self.state();
        PolicyMetrics {
            kept_bytes: state.decider.engine.kept_bytes(),
            pinned_bytes: state.decider.engine.pinned_bytes(),
            capacity_bytes: state.decider.engine.capacity_bytes(),
            memory_bytes: state.decider.engine.memory_bytes() as u64,
            ..state.metrics
        }
    }

    /// Returns the ids of the kept blocks.
    #[cfg(test)]
    pub(crate) fn kept_ids(&self) -> Vec<u64> {
        self.inner.state.lock().decider.engine.kept_ids().collect()
    }

    /// Decides about a block that a job fetches or that is present, without a reader. Returns true if it is
    /// kept.
    pub(crate) fn adopt(&self, bucket: BucketId, key: &ObjectKey, size: u64, number: u64) -> bool {
        let block = unread(bucket, key, size, number);
        self.with(|state, now_us| state.adopt(now_us, &block)) != Advice::Bypass
    }

    /// Reports that a block was kept, which may have been evicted meanwhile.
    pub(crate) fn was_kept(&self, id: u64) {
        self.with(|state, _| {
            if !state.decider.engine.is_kept(id) {
                state.evicted.push(id);
            }
        });
    }

    /// Reports that a block was not kept although that was the decision.
    pub(crate) fn was_not_kept(&self, id: u64) {
        self.inner.lost(id);
    }

    /// Calls a function with the state, and queues the engine's evictions.
    fn with<T>(&self, ask: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut state = self.state();
        let now_us = state.time_us(self.inner.started_ms, self.inner.since_us());
        let answer = ask(&mut state, now_us);
        self.inner.settle(&mut state);
        answer
    }

    /// Returns the state, after all buffered reads were passed to the engine.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.inner.state.lock();
        let mut reads = std::mem::take(&mut state.heard);
        self.inner.heard.drain(&mut reads);
        if !reads.is_empty() {
            self.inner.tell(&mut state, &reads);
            reads.clear();
        }
        state.heard = reads;
        state
    }
}

impl State {
    fn observe(&mut self, access: &Access<'_>, identity: impl FnOnce() -> Identity) -> Seen {
        self.metrics.accesses += 1;
        for recorder in [&mut self.recorder, &mut self.diary].into_iter().flatten() {
            recorder.note(access);
        }
        self.decider.observe(access, identity)
    }

    /// Records an access to an object without copies.
    fn learn(&mut self, access: &Access<'_>, identity: impl FnOnce() -> Identity) -> Seen {
        let seen = self.observe(access, identity);
        if access.op == Op::Read {
            for number in touched(&access.range, COPY_BLOCK_BYTES).take(FOLLOWED_MAX) {
                self.decider.engine.follow(seen, access, number as u32);
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
    fn rank(&self, seen: Seen, request: &Request<'_>, access: &Access<'_>) -> Option<Rank> {
        let Asking { may_wait, about, .. } = request.asking;
        if may_wait && request.op == Op::Read { self.decider.rank(seen, access, about) } else { None }
    }

    /// Decides about a block without a reader: pinned if a pin includes it, else by its worth.
    fn adopt(&mut self, now_us: u64, block: &Unread<'_>) -> Advice {
        if self.held.holds(block) {
            let advice = self.decider.engine.pin(now_us, block, self.held.bytes_max());
            if advice != Advice::Bypass {
                return advice;
            }
        }
        self.decider.engine.adopt(now_us, block)
    }
}

impl Inner {
    /// Returns the microseconds since this process began to count.
    fn since_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(0)
    }

    /// Passes buffered reads to the engine. The data needed is prefetched for all of them before the first
    /// one is passed on, so that the memory accesses overlap.
    fn tell(&self, state: &mut State, reads: &Reads) {
        for access in reads.all() {
            state.diary.iter().for_each(|diary| diary.bring_near(&access));
            state.decider.bring_near(&access);
        }
        for read in reads.all() {
            let at_us = state.time_us(self.started_ms, read.at_us);
            let family = read.caller.family;
            state.learn(&Access { at_us, ..read }, || self.heard.identity(family));
            self.settle(state);
        }
    }

    /// Queues the blocks that the engine evicted for removal.
    fn settle(&self, state: &mut State) {
        let before = state.evicted.len();
        let State { decider, evicted, metrics, recorder, .. } = state;
        evicted.extend(decider.take_evicted());
        if let Some(recorder) = recorder {
            evicted[before..].iter().for_each(|id| recorder.decided().evicted(*id));
        }
        metrics.evicted += (evicted.len() - before) as u64;
        if !evicted.is_empty() {
            self.wake.notify_one();
        }
    }
}

impl Lost for Inner {
    fn lost(&self, id: u64) {
        self.state.lock().decider.lost(id);
    }
}

fn unread(bucket: BucketId, key: &ObjectKey, size: u64, number: u64) -> Unread<'_> {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Unread { bucket: bucket.0, key: key.as_str(), size, number }
}

/// Maximum number of blocks that are tracked per read of a native object: 8 GiB.
const FOLLOWED_MAX: usize = 1024;
