//! The policy engine at work: it hears of every access, and what it says is done to clean copies.
//!
//! Who reads a block of a bound bucket asks first ([`Reading`]): it is kept, or it passes by. What the engine
//! evicts is let go of soon after, by a task ([`room`]). Always: a block is here when the engine says that it
//! is kept, and no other is for long; where a decision and what was done part ways - a fetch failed, the disk
//! is full, two readers met - the engine hears of it. Reads of native buckets teach it, too: it keeps nothing
//! of those, and hears of some at a time ([`heard`]).
//!
//! When power fails it begins anew with the blocks that are here ([`Keeper::start`]), and learns.

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

/// The engine of a node and what it is told. Clones are the same.
#[derive(Clone)]
pub struct Keeper {
    inner: Arc<Inner>,
}

struct Inner {
    /// Asked for a microsecond at a time, never across anything slow. Lists of copies may be locked by who
    /// locks this, never the other way round.
    state: Mutex<State>,
    /// Reads that it was not told of yet: whoever asks it tells it first.
    heard: Heard,
    /// There is something to let go of.
    wake: Notify,
    /// When this process began to count, and milliseconds from 1970 to then.
    began: Instant,
    started_ms: u64,
}

struct State {
    decider: Decider,
    /// Blocks that are to be let go of.
    evicted: Vec<u64>,
    held: Held,
    expected: Expected,
    recorder: Option<Recorder>,
    /// Writes down what is to be recalled after a restart.
    diary: Option<Recorder>,
    /// When times count from, in milliseconds since 1970: before the first access that was recalled.
    began_ms: u64,
    metrics: PolicyMetrics,
    /// The time of the last access: that of the next is no earlier.
    last_us: u64,
    /// Room for reads that waited.
    heard: Reads,
}

/// What the engine has said, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyMetrics {
    /// Accesses that it heard of.
    pub accesses: u64,
    /// Blocks that were read and were kept already.
    pub hits: u64,
    /// Blocks that it said to keep.
    pub kept: u64,
    /// Blocks that it let pass by.
    pub bypassed: u64,
    /// Blocks that it evicted.
    pub evicted: u64,
    /// What became of blocks that it said to be next: used, late, wasted, declined, absent.
    pub ahead: [u64; 5],
    /// Bytes of blocks that it keeps.
    pub kept_bytes: u64,
    /// Bytes of those that are pinned.
    pub pinned_bytes: u64,
    /// Bytes that it may keep.
    pub capacity_bytes: u64,
    /// Bytes of memory that its table takes.
    pub memory_bytes: u64,
}

/// Who asks for something, as the gateway tells it.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Who.
    pub caller: Caller,
    /// What it says of itself; asked for once in a while.
    pub identity: &'a dyn Fn() -> Identity,
    /// What the server knows of the object and of itself.
    pub about: &'a dyn Facts,
    /// Whether it may come to wait for a disk: only then rules are asked where.
    pub may_wait: bool,
}

impl Asking<'_> {
    /// Nothing is known but who.
    #[must_use]
    pub const fn plain(caller: Caller) -> Asking<'static> {
        Asking { caller, identity: &Identity::default, about: &NoFacts, may_wait: false }
    }
}

/// One request, as the gateway tells it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Who.
    pub asking: Asking<'a>,
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: &'a ObjectKey,
    /// What is done.
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
    /// An engine that remembers so many blocks, kept or not, and these rules. It keeps nothing before it is
    /// started.
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

    /// Who keeps books for `CopiesOptions::lost`.
    #[must_use]
    pub fn books(&self) -> Arc<dyn Lost> {
        self.inner.clone()
    }

    /// Takes the blocks in that are here, and decides from now on which ones stay. Called within a tokio
    /// runtime; the blocks are gone through while it works already.
    pub fn start(&self, copies: &Copies) {
        self.with(|state, now_us| state.decider.set_capacity(now_us, copies.blocks_bytes_max()));
        tokio::spawn(room::run(Arc::downgrade(&self.inner), copies.downgrade()));
    }

    /// A read of an object begins. Says what is to be fetched for those that will follow it, too.
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

    /// Something happened that asks for no decision about copies: a read of what is ours, a write, a
    /// deletion. Says where rules have the read wait.
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

    /// From now on the rules are in force that come this way, as soon as they come. Called within a tokio
    /// runtime.
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

    /// From now on these copies stay, as far as so many bytes may. What is here already is gone through in a
    /// while.
    pub fn set_pins(&self, pins: Vec<PinnedCopies>, bytes_max: u64) {
        self.inner.state.lock().held.set(pins, bytes_max);
        self.inner.wake.notify_one();
    }

    /// From now on accesses are recorded, in files of about so many bytes. Says whether it is so: one
    /// recording is made at a time.
    pub fn record(&self, file_bytes_max: u64, sink: Sink) -> bool {
        let mut state = self.state();
        let is_free = state.recorder.is_none();
        if is_free {
            state.recorder = Some(Recorder::new(state.began_ms, file_bytes_max, sink));
        }
        is_free
    }

    /// Hands on what was recorded so far, and says how much that is; nothing while nothing is recorded.
    pub fn recorded(&self) -> Option<Recorded> {
        let mut state = self.state();
        let capacity_bytes = state.decider.engine.capacity_bytes();
        let recorder = state.recorder.as_mut()?;
        recorder.flush();
        Some(Recorded { capacity_bytes, ..recorder.recorded() })
    }

    /// Ends the recording, and says what was recorded.
    pub fn end_recording(&self) -> Option<Recorded> {
        let recorded = self.recorded();
        self.inner.state.lock().recorder = None;
        recorded
    }

    /// What is to be learnt from what was measured, if anything.
    #[must_use]
    pub fn review(&self, learner: &mut Learner, program: &Program, now_ms: i64) -> Option<Lesson> {
        let state = self.state();
        let evidence = Evidence { now_ms, ahead: state.metrics.ahead, outcomes: &state.decider.outcomes };
        learner.review(program, &evidence)
    }

    /// An access of before a restart, `at_us` after `began_ms`: the engine learns from it. Called before
    /// anything else is told, in the order of time; what is older than the first one counts as being of that
    /// time.
    pub fn recall(&self, began_ms: u64, access: &Access<'_>) {
        let mut state = self.inner.state.lock();
        let access_ms = began_ms.saturating_add(access.at_us / 1000);
        if state.last_us == 0 {
            state.began_ms = state.began_ms.min(access_ms);
        }
        let at_us = access_ms.saturating_sub(state.began_ms).saturating_mul(1000) + access.at_us % 1000;
        // A clock that was set back since does not make it happen later than now.
        let at_us = at_us.max(state.last_us);
        state.last_us = at_us;
        state.decider.recall(&Access { at_us, ..access.clone() });
        state.decider.take_evicted().for_each(drop);
    }

    /// From now on accesses are written down for [`Keeper::recall`], in files of about so many bytes.
    pub fn keep_diary(&self, file_bytes_max: u64, sink: Sink) {
        let mut state = self.state();
        state.diary = Some(Recorder::new(state.began_ms, file_bytes_max, sink));
    }

    /// Hands on what was written down so far; says whether pieces were taken as fast as they came.
    pub fn flush_diary(&self) -> bool {
        let mut state = self.state();
        state.diary.as_mut().is_none_or(|diary| {
            diary.flush();
            !diary.recorded().fell_behind
        })
    }

    /// Ends what is written down.
    pub fn end_diary(&self) {
        self.flush_diary();
        self.inner.state.lock().diary = None;
    }

    /// Has `ask` with everything that decides, at this time in microseconds since the engine began. It must
    /// be quick: all reads wait for it.
    pub fn ask<T>(&self, ask: impl FnOnce(&mut Decider, u64) -> T) -> T {
        self.with(|state, now_us| ask(&mut state.decider, now_us))
    }

    /// When times of the engine count from, in milliseconds since 1970.
    #[must_use]
    pub fn began_ms(&self) -> u64 {
        self.inner.state.lock().began_ms
    }

    /// What it has said and holds.
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

    /// The blocks that it keeps.
    #[cfg(test)]
    pub(crate) fn kept_ids(&self) -> Vec<u64> {
        self.inner.state.lock().decider.engine.kept_ids().collect()
    }

    /// A block that somebody orders to be brought in, or that is here: whether it is kept.
    pub(crate) fn adopt(&self, bucket: BucketId, key: &ObjectKey, size: u64, number: u64) -> bool {
        let block = unread(bucket, key, size, number);
        self.with(|state, now_us| state.adopt(now_us, &block)) != Advice::Bypass
    }

    /// A block was kept that may have been evicted meanwhile.
    pub(crate) fn was_kept(&self, id: u64) {
        self.with(|state, _| {
            if !state.decider.engine.is_kept(id) {
                state.evicted.push(id);
            }
        });
    }

    /// A block was not kept though that was the decision.
    pub(crate) fn was_not_kept(&self, id: u64) {
        self.inner.lost(id);
    }

    /// Has `ask` with the engine, and sees to what it evicts.
    fn with<T>(&self, ask: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut state = self.state();
        let now_us = state.time_us(self.inner.started_ms, self.inner.since_us());
        let answer = ask(&mut state, now_us);
        self.inner.settle(&mut state);
        answer
    }

    /// The engine, which has heard of all there was.
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

    /// An access of which no copy is kept.
    fn learn(&mut self, access: &Access<'_>, identity: impl FnOnce() -> Identity) -> Seen {
        let seen = self.observe(access, identity);
        if access.op == Op::Read {
            for number in touched(&access.range, COPY_BLOCK_BYTES).take(FOLLOWED_MAX) {
                self.decider.engine.follow(seen, access, number as u32);
            }
        }
        seen
    }

    /// When something happens that happened so long after this process began to count; no earlier than what
    /// was before it.
    fn time_us(&mut self, started_ms: u64, since_us: u64) -> u64 {
        let before_ms = started_ms.saturating_sub(self.began_ms);
        self.last_us = before_ms.saturating_mul(1000).saturating_add(since_us).max(self.last_us);
        self.last_us
    }

    /// Where rules have a read wait for a disk.
    fn rank(&self, seen: Seen, request: &Request<'_>, access: &Access<'_>) -> Option<Rank> {
        let Asking { may_wait, about, .. } = request.asking;
        if may_wait && request.op == Op::Read { self.decider.rank(seen, access, about) } else { None }
    }

    /// A block that is here or comes without a reader: pinned if it is to be, else by its worth.
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
    /// Microseconds since this process began to count.
    fn since_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(0)
    }

    /// Tells the engine of reads that waited. What they need is looked up for all of them before the first is
    /// told: so looks wait for memory together.
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

    /// What the engine has evicted is to be let go of.
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

/// Of one read of a native object so many blocks are followed: 8 GiB.
const FOLLOWED_MAX: usize = 1024;
