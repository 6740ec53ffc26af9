//! Policy engine: combines the cache engine, the observed workloads and checkpoints, and the rules in force
//! into one decision per access.
//!
//! A server and a simulation use the same type in the same way. Invariant: where no rule applies, the cache
//! engine alone decides. The rules are evaluated once per request, when a block that is not kept is read, and
//! for every read if any copies may be kept by recency. The resulting [`Ruling`] holds for that request.

mod at_rest_facts;
mod plans;
mod read_ahead;
mod read_counts;
mod read_starts;
mod request_rank;
mod watched;

pub use at_rest_facts::{PROPERTIES_AT_REST, properties_used_at_rest};
pub use read_ahead::PrefetchParameters;
pub(crate) use read_counts::ReadCounts;
use read_starts::{OpenReads, RequestedPart};
pub use request_rank::RequestRank;
pub use watched::WatchedPrefixes;

use crate::access::{Access, Op};
use crate::block::touched_blocks;
use crate::checkpoints::{self, CheckpointIndex};
use crate::engine::{Advice, CacheEngine, CachingRule, ObservedAccess, Options};
use crate::facts::{AccessFacts, KeyContext};
use crate::language::{
    ActionRequest, Aspect, Aspects, CachePolicy, DueAction, EffectiveRule, Fact, Facts, Phase, Priority,
    Program, Property, Word,
};
use crate::outcomes::{CopyCause, CopyOutcomes};
use crate::shadow::ShadowCaches;
use crate::workloads::{self, AccessContext, WorkloadIdentity, Workloads};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// Policy engine; see the module.
pub struct PolicyEngine {
    /// Decides which blocks to keep.
    pub engine: CacheEngine,
    /// Callers and their workloads.
    pub workloads: Workloads,
    /// Groups of files that are checkpoints.
    pub checkpoints: CheckpointIndex,
    /// Outcomes of cached copies.
    pub outcomes: CopyOutcomes,
    /// Simulated hit ratios of other caches.
    pub shadow: ShadowCaches,
    /// Prefixes whose last use is recorded.
    pub watched: WatchedPrefixes,
    reads: ReadCounts,
    open_reads: OpenReads,
    program: Arc<Program>,
    /// By rule of the program: the cause to which copies are attributed.
    causes: Vec<CopyCause>,
    /// Plans for named workloads: number and name.
    plans: Vec<(u64, Box<str>)>,
}

/// Objects whose reads are counted: one per `BLOCKS_PER_COUNT` blocks that the engine remembers, at most a
/// million.
const BLOCKS_PER_COUNT: usize = 4;
const COUNTED_MAX: usize = 1 << 20;
/// Maximum blocks that are replayed per earlier access.
const REPLAYED_BLOCKS_MAX: usize = 1024;

/// Aspects on which rules decide for a request: the retention of its bytes, and how they are transferred.
const REQUEST_ASPECTS: Aspects =
    Aspects::new(&[Aspect::Copy, Aspect::Stream, Aspect::Coordination, Aspect::Prefetch]);
/// Aspects that decide whether copies are kept.
const COPY_ASPECTS: Aspects = Aspects::new(&[Aspect::Copy, Aspect::Stream]);

/// Sharing of bytes in transfer that are not kept, among several readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferSharing {
    /// Time for which the bytes are held for other readers.
    pub window: Duration,
    /// Maximum bytes held, including those for other requests.
    pub bytes_max: u64,
}

/// Decisions of the rules for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ruling {
    /// Caching rule for the blocks that are read.
    pub caching_rule: CachingRule,
    /// Blocks to fetch ahead of the reader within one object, if a rule sets them.
    pub stream_ahead: Option<u32>,
    /// Sharing of bytes that are not kept, if a rule requests it.
    pub sharing: Option<TransferSharing>,
    /// Read-ahead parameters, if a rule sets them.
    pub prefetch: Option<PrefetchParameters>,
    /// Cause to which kept or bypassed copies are attributed.
    pub cause: CopyCause,
}

impl PolicyEngine {
    /// Returns a policy engine that knows nothing but the rules.
    #[must_use]
    pub fn new(options: Options, program: Arc<Program>) -> Self {
        let mut outcomes = CopyOutcomes::default();
        let mut workloads = Workloads::new(workloads::WorkloadLimits::default());
        workloads.program_changed(&program);
        Self {
            engine: CacheEngine::new(options),
            workloads,
            checkpoints: CheckpointIndex::new(checkpoints::Limits::default()),
            causes: causes(&mut outcomes, &program),
            outcomes,
            shadow: ShadowCaches::new(options.capacity_bytes),
            watched: WatchedPrefixes::default(),
            reads: ReadCounts::new((options.blocks_max / BLOCKS_PER_COUNT).min(COUNTED_MAX)),
            open_reads: OpenReads::default(),
            program,
            plans: Vec::new(),
        }
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Replaces the rules in force.
    pub fn set_program(&mut self, program: Arc<Program>) {
        self.workloads.program_changed(&program);
        self.causes = causes(&mut self.outcomes, &program);
        self.program = program;
    }

    /// Records an access; `identity` is called for the first access of a family.
    pub fn observe(
        &mut self,
        access: &Access<'_>,
        identity: impl FnOnce() -> WorkloadIdentity,
    ) -> ObservedAccess {
        let family = access.caller.family;
        if !self.workloads.has_identity(family) {
            let identity = identity();
            self.assign_plans(family, &identity);
            self.workloads.set_identity(access.at_us, family, identity, &self.engine, &self.program);
        }
        self.record(access)
    }

    /// Prefetches the memory that recording this access will read, and has no other effect. Lookups placed
    /// together wait for memory concurrently; otherwise each would wait separately between the steps of the
    /// work.
    pub fn prefetch_memory(&self, access: &Access<'_>) {
        let number = touched_blocks(&access.range, self.engine.block_bytes()).start as u32;
        let object = self.engine.block_id(access.bucket, access.key, 0);
        let first =
            if number == 0 { object } else { self.engine.block_id(access.bucket, access.key, number) };
        black_box((self.engine.is_kept(first), self.reads.of(object), self.outcomes.is_tracked(first)));
    }

    /// Replays an access recorded before a restart: all statistics learn from it, nothing is decided, and the
    /// caller's identity is set at its next access.
    pub fn replay(&mut self, access: &Access<'_>) {
        let seen = self.record(access);
        if access.op == Op::Read {
            for block in touched_blocks(&access.range, self.engine.block_bytes()).take(REPLAYED_BLOCKS_MAX) {
                self.engine.read_uncached(seen, access, block as u32);
            }
        }
    }

    fn record(&mut self, access: &Access<'_>) -> ObservedAccess {
        if access.op != Op::Delete {
            self.watched.record_use(access.at_us, access.bucket, access.key);
        }
        let seen = self.engine.observe(access);
        self.count(seen, access);
        self.checkpoints.tick(access.at_us);
        let checkpoint = match access.op {
            Op::Read => None,
            Op::Write => self.checkpoints.record_write(access.at_us, access.bucket, access.key, access.size),
            Op::Delete => {
                self.checkpoints.record_delete(access.bucket, access.key);
                None
            }
        };
        let (engine, program) = (&self.engine, &*self.program);
        let what = AccessContext { engine, seen, program, checkpoint, is_validation: false };
        self.workloads.record(access, &what);
        seen
    }

    /// Counts a read of an object, once for all its requests.
    fn count(&mut self, seen: ObservedAccess, access: &Access<'_>) {
        let id = self.engine.block_id(access.bucket, access.key, 0);
        match access.op {
            Op::Read => {
                let (first, last) = (access.range.start == 0, access.range.end >= access.size);
                let part = RequestedPart { first, last, is_continued: seen.is_sequential() };
                if self.open_reads.record_request(access.at_us, access.caller.id, id, &part) {
                    self.reads.count(id);
                }
            }
            Op::Write | Op::Delete => self.reads.forget(id),
        }
    }

    /// Returns the facts about an object that follow from its key.
    fn key_facts<'a>(&'a self, bucket: u64, key: &'a str) -> KeyContext<'a> {
        KeyContext { bucket, key, checkpoints: Some(&self.checkpoints), reads: Some(&self.reads) }
    }

    /// Calls `ask` with all facts about an access.
    pub fn with_facts<T>(
        &self,
        seen: ObservedAccess,
        access: &Access<'_>,
        rest: &dyn Facts,
        ask: impl FnOnce(&dyn Facts) -> T,
    ) -> T {
        let of_key = self.key_facts(access.bucket, access.key);
        ask(&AccessFacts::new(access, &self.engine, seen, &self.workloads, of_key, &self.program, rest))
    }

    /// Returns the ruling for an access. Rules are not evaluated if the access reads a single block that is
    /// kept; if any copies are kept by recency, they decide for that block only whether it is, and its weight
    /// stays as it is.
    #[must_use]
    pub fn ruling(&self, seen: ObservedAccess, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        self.ruling_on(REQUEST_ASPECTS, seen, access, rest)
    }

    /// Returns the same with only the aspects of copies evaluated, for a simulation, which transfers nothing;
    /// the other fields stay empty.
    #[must_use]
    pub fn ruling_on_copies(&self, seen: ObservedAccess, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        self.ruling_on(COPY_ASPECTS, seen, access, rest)
    }

    fn ruling_on(
        &self,
        aspects: Aspects,
        seen: ObservedAccess,
        access: &Access<'_>,
        rest: &dyn Facts,
    ) -> Ruling {
        let blocks = touched_blocks(&access.range, self.engine.block_bytes());
        let is_kept = |block: u64| {
            let id = self.engine.block_id(access.bucket, access.key, block as u32);
            self.engine.is_kept(id)
        };
        if blocks.end - blocks.start <= 1 && blocks.clone().all(is_kept) {
            let is_recent = self.program.has_lru_copies()
                && self.evaluate_rules(COPY_ASPECTS, seen, access, rest).caching_rule == CachingRule::Recency;
            let keeping = if is_recent { CachingRule::Recency } else { CachingRule::Unchanged };
            return Ruling { caching_rule: keeping, ..Ruling::default() };
        }
        self.evaluate_rules(aspects, seen, access, rest)
    }

    fn evaluate_rules(
        &self,
        aspects: Aspects,
        seen: ObservedAccess,
        access: &Access<'_>,
        rest: &dyn Facts,
    ) -> Ruling {
        self.with_facts(seen, access, rest, |facts| {
            let phase = match facts.fact(Property::Phase, "") {
                Some(Fact::Text(word)) => Phase::from_word(word),
                _ => None,
            };
            let keeping = match self.program.settings().cache(phase) {
                CachePolicy::None => CachingRule::Never,
                CachePolicy::Lru => CachingRule::Recency,
                CachePolicy::TrainingAware | CachePolicy::Learned => CachingRule::default(),
            };
            let mut ruling = Ruling { caching_rule: keeping, ..Ruling::default() };
            let mut decided =
                DecidedAspects { block_bytes: self.engine.block_bytes(), ..DecidedAspects::default() };
            for due in self.program.acting(aspects, facts) {
                if decided.apply(&due, &mut ruling, &self.program) {
                    let mut rules = self.program.rules().iter().zip(&self.causes);
                    let cause = rules.find(|(rule, _)| std::ptr::eq(*rule, due.rule));
                    ruling.cause = cause.map(|(_, cause)| *cause).unwrap_or_default();
                }
            }
            ruling
        })
    }

    /// Records a read of a block of an observed access under this ruling. Returns the advice on the block.
    pub fn read(&mut self, seen: ObservedAccess, access: &Access<'_>, block: u32, ruling: &Ruling) -> Advice {
        let advice = self.engine.read_with_rule(seen, access, block, ruling.caching_rule);
        if access.op == Op::Read {
            let id = self.engine.block_id(access.bucket, access.key, block);
            let bytes = u32::try_from(self.engine.bytes_of(access.size, block)).unwrap_or(u32::MAX);
            self.outcomes.read(id, bytes, advice, ruling.cause);
            self.shadow.read(self.engine.dataset_id(seen), id, bytes, advice);
        }
        advice
    }

    /// Sets the capacity. `now_us` is no earlier than the last access.
    pub fn set_capacity(&mut self, now_us: u64, capacity_bytes: u64) {
        self.engine.set_capacity(now_us, capacity_bytes);
        self.shadow.set_capacity(capacity_bytes);
    }

    /// Records that a block is no longer kept for a reason other than eviction.
    pub fn invalidate(&mut self, id: u64) {
        self.engine.invalidate(id);
        self.outcomes.invalidate(id);
    }

    /// Returns the ids of the blocks evicted since the last call.
    pub fn take_evicted(&mut self) -> impl Iterator<Item = u64> + '_ {
        let Self { engine, outcomes, .. } = self;
        engine.take_evicted().inspect(|id| outcomes.evicted(*id))
    }
}

/// Returns the minimum number of blocks that hold this many chunks.
fn blocks_for_chunks(chunk_bytes: u64, chunks: u32, block_bytes: u64) -> u32 {
    u32::try_from(chunk_bytes.saturating_mul(chunks.into()).div_ceil(block_bytes)).unwrap_or(u32::MAX)
}

/// Aspects that a stronger rule has decided.
#[derive(Default)]
struct DecidedAspects {
    block_bytes: u64,
    copy: bool,
    stream: bool,
    coordination: bool,
    prefetch: bool,
}

impl DecidedAspects {
    /// Applies an action unless a stronger rule has decided its aspect. Returns true if it is the first that
    /// decides on copies.
    fn apply(&mut self, due: &DueAction<'_>, ruling: &mut Ruling, program: &Program) -> bool {
        let had_copy = self.copy;
        match due.request {
            ActionRequest::Copy { keep, policy, priority, min_reads } if !self.copy => {
                self.copy = true;
                // The ruling still holds the setting's value here.
                let is_recent = policy
                    .map_or(ruling.caching_rule == CachingRule::Recency, |policy| policy == CachePolicy::Lru);
                ruling.caching_rule = match (keep, program.min_reads(&due.rule.rule.id, *min_reads)) {
                    (false, _) => CachingRule::Never,
                    (true, _) if is_recent => CachingRule::Recency,
                    (true, 0 | 1) => CachingRule::Weighted(weight(*priority)),
                    (true, reads) => CachingRule::AfterReads(reads, weight(*priority)),
                };
            }
            ActionRequest::Stream { chunk_bytes, ahead, keep } if !self.stream => {
                self.stream = true;
                ruling.stream_ahead = Some(blocks_for_chunks(*chunk_bytes, *ahead, self.block_bytes));
                if !self.copy && due.is_copy_decision() {
                    self.copy = true;
                    ruling.caching_rule = match (keep, ruling.caching_rule) {
                        (false, _) => CachingRule::Never,
                        (true, CachingRule::Recency) => CachingRule::Recency,
                        (true, _) => CachingRule::Weighted(weight(Priority::Normal)),
                    };
                }
            }
            ActionRequest::Coordinate { window, bytes_max } if !self.coordination => {
                self.coordination = true;
                ruling.sharing = Some(TransferSharing { window: *window, bytes_max: *bytes_max });
            }
            ActionRequest::Prefetch { depth, bytes_max, strategy, next } if !self.prefetch => {
                self.prefetch = true;
                let (depth, bytes_max, strategy, next) = (*depth, *bytes_max, *strategy, *next);
                ruling.prefetch = Some(PrefetchParameters { depth, bytes_max, strategy, next });
            }
            // A stronger rule has decided the aspect.
            ActionRequest::Copy { .. }
            | ActionRequest::Stream { .. }
            | ActionRequest::Coordinate { .. }
            | ActionRequest::Prefetch { .. } => {}
            // Decided where the request is ordered.
            ActionRequest::Prioritize { .. } => {}
            // Decided when the object is written, or at rest.
            ActionRequest::Compress { .. }
            | ActionRequest::Promote { .. }
            | ActionRequest::Pin { .. }
            | ActionRequest::Unpin
            | ActionRequest::Spill { .. }
            | ActionRequest::Evict { .. }
            | ActionRequest::Retain(_) => {}
        }
        self.copy && !had_copy
    }
}

/// Returns the causes by rule of the program. Only rules that request or forbid copies have one of their own.
fn causes(outcomes: &mut CopyOutcomes, program: &Program) -> Vec<CopyCause> {
    let is_of_copies = |aspect| matches!(aspect, Aspect::Copy | Aspect::Stream);
    let cause = |rule: &EffectiveRule| {
        let decides_copies = rule.actions().any(|(action, _)| is_of_copies(action.kind.aspect()));
        if decides_copies { outcomes.cause(&rule.rule.id) } else { CopyCause::default() }
    };
    program.rules().iter().map(cause).collect()
}

/// Returns the factor of a copy's worth for a priority.
fn weight(priority: Priority) -> f32 {
    match priority {
        Priority::Low => 0.25,
        Priority::Normal => 1.0,
        Priority::High => 4.0,
        Priority::Urgent => 16.0,
    }
}

#[cfg(test)]
mod tests;
