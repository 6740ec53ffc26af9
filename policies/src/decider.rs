//! Policy engine: combines the cache engine, the observed workloads and checkpoints, and the rules in force
//! into one decision per access.
//!
//! A server and a rehearsal use the same type in the same way. Always: where no rule applies, the cache
//! engine alone decides. The rules are evaluated once per request, when a block that is not kept is read, and
//! for every read if any copies may be kept by recency. The resulting [`Ruling`] holds for that request.

mod begun;
mod known;
mod plans;
mod ranks;
mod reach;
mod reads;
mod watched;

use begun::{Asked, Begun};
pub use known::{KNOWN_AT_REST, asked_at_rest};
pub use ranks::Rank;
pub use reach::Prefetch;
pub(crate) use reads::Reads;
pub use watched::Watched;

use crate::access::{Access, Op};
use crate::block::touched;
use crate::checkpoints::{self, Checkpoints};
use crate::engine::{Advice, Engine, Keeping, Options, Seen};
use crate::facts::{AccessFacts, OfKey};
use crate::language::{
    Aspect, Aspects, CachePolicy, Due, EffectiveRule, Fact, Facts, Phase, Priority, Program, Property, Wish,
    Word,
};
use crate::outcomes::{Cause, Outcomes};
use crate::shadow::Shadow;
use crate::workloads::{self, Identity, What, Workloads};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// Policy engine; see the module.
pub struct Decider {
    /// Decides which blocks to keep.
    pub engine: Engine,
    /// Callers and their workloads.
    pub workloads: Workloads,
    /// Groups of files that are checkpoints.
    pub checkpoints: Checkpoints,
    /// Outcomes of cached copies.
    pub outcomes: Outcomes,
    /// Simulated hit ratios of other caches.
    pub shadow: Shadow,
    /// Prefixes whose last use is recorded.
    pub watched: Watched,
    reads: Reads,
    begun: Begun,
    program: Arc<Program>,
    /// By rule of the program: the cause to which copies are attributed.
    causes: Vec<Cause>,
    /// Plans for named workloads: number and name.
    plans: Vec<(u64, Box<str>)>,
}

/// Objects whose reads are counted: one per `BLOCKS_PER_COUNT` blocks that the engine remembers, at most a
/// million.
const BLOCKS_PER_COUNT: usize = 4;
const COUNTED_MAX: usize = 1 << 20;
/// Maximum blocks that are replayed per earlier access.
const RECALLED_MAX: usize = 1024;

/// Aspects on which rules decide for a request: the retention of its bytes, and how they are transferred.
const OF_REQUESTS: Aspects =
    Aspects::of(&[Aspect::Copy, Aspect::Stream, Aspect::Coordination, Aspect::Prefetch]);
/// Aspects that decide whether copies are kept.
const OF_COPIES: Aspects = Aspects::of(&[Aspect::Copy, Aspect::Stream]);

/// Sharing of bytes in transfer that are not kept, among several readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Time for which the bytes are held for other readers.
    pub window: Duration,
    /// Maximum bytes held, including those for other requests.
    pub bytes_max: u64,
}

/// Decisions of the rules for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ruling {
    /// Caching rule for the blocks that are read.
    pub keeping: Keeping,
    /// Blocks to fetch ahead of the reader within one object, if a rule sets them.
    pub stream_ahead: Option<u32>,
    /// Sharing of bytes that are not kept, if a rule requests it.
    pub sharing: Option<Sharing>,
    /// Read-ahead parameters, if a rule sets them.
    pub prefetch: Option<Prefetch>,
    /// Cause to which kept or bypassed copies are attributed.
    pub cause: Cause,
}

impl Decider {
    /// Returns a policy engine that knows nothing but the rules.
    #[must_use]
    pub fn new(options: Options, program: Arc<Program>) -> Self {
        let mut outcomes = Outcomes::default();
        let mut workloads = Workloads::new(workloads::Limits::default());
        workloads.program_changed(&program);
        Self {
            engine: Engine::new(options),
            workloads,
            checkpoints: Checkpoints::new(checkpoints::Limits::default()),
            causes: causes(&mut outcomes, &program),
            outcomes,
            shadow: Shadow::new(options.capacity_bytes),
            watched: Watched::default(),
            reads: Reads::new((options.blocks_max / BLOCKS_PER_COUNT).min(COUNTED_MAX)),
            begun: Begun::default(),
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
    pub fn observe(&mut self, access: &Access<'_>, identity: impl FnOnce() -> Identity) -> Seen {
        let family = access.caller.family;
        if !self.workloads.knows(family) {
            let identity = identity();
            self.give_plans(family, &identity);
            self.workloads.introduce(access.at_us, family, identity, (&self.engine, &*self.program));
        }
        self.take_in(access)
    }

    /// Prefetches the memory that recording this access will read, and has no other effect. Lookups placed
    /// together wait for memory concurrently; otherwise each would wait separately between the steps of the
    /// work.
    pub fn bring_near(&self, access: &Access<'_>) {
        let number = touched(&access.range, self.engine.block_bytes()).start as u32;
        let object = self.engine.block_id(access.bucket, access.key, 0);
        let first =
            if number == 0 { object } else { self.engine.block_id(access.bucket, access.key, number) };
        black_box((self.engine.is_kept(first), self.reads.of(object), self.outcomes.knows(first)));
    }

    /// Replays an access recorded before a restart: all statistics learn from it, nothing is decided, and the
    /// caller's identity is set at its next access.
    pub fn recall(&mut self, access: &Access<'_>) {
        let seen = self.take_in(access);
        if access.op == Op::Read {
            for block in touched(&access.range, self.engine.block_bytes()).take(RECALLED_MAX) {
                self.engine.follow(seen, access, block as u32);
            }
        }
    }

    fn take_in(&mut self, access: &Access<'_>) -> Seen {
        if access.op != Op::Delete {
            self.watched.touch(access.at_us, access.bucket, access.key);
        }
        let seen = self.engine.observe(access);
        self.count(seen, access);
        self.checkpoints.pass(access.at_us);
        let checkpoint = match access.op {
            Op::Read => None,
            Op::Write => self.checkpoints.wrote(access.at_us, access.bucket, access.key, access.size),
            Op::Delete => {
                self.checkpoints.deleted(access.bucket, access.key);
                None
            }
        };
        let (engine, program) = (&self.engine, &*self.program);
        let what = What { engine, seen, program, checkpoint, is_validation: false };
        self.workloads.note(access, &what);
        seen
    }

    /// Counts a read of an object, once for all its requests.
    fn count(&mut self, seen: Seen, access: &Access<'_>) {
        let id = self.engine.block_id(access.bucket, access.key, 0);
        match access.op {
            Op::Read => {
                let (first, last) = (access.range.start == 0, access.range.end >= access.size);
                let asked = Asked { first, last, goes_on: seen.goes_on() };
                if self.begun.ask(access.at_us, access.caller.id, id, &asked) {
                    self.reads.count(id);
                }
            }
            Op::Write | Op::Delete => self.reads.forget(id),
        }
    }

    /// Returns the facts about an object that follow from its key.
    fn of_key<'a>(&'a self, bucket: u64, key: &'a str) -> OfKey<'a> {
        OfKey { bucket, key, checkpoints: Some(&self.checkpoints), reads: Some(&self.reads) }
    }

    /// Calls `ask` with all facts about an access.
    pub fn with_facts<T>(
        &self,
        seen: Seen,
        access: &Access<'_>,
        rest: &dyn Facts,
        ask: impl FnOnce(&dyn Facts) -> T,
    ) -> T {
        let (of_key, engine) = (self.of_key(access.bucket, access.key), (&self.engine, seen));
        ask(&AccessFacts::new(access, engine, &self.workloads, of_key, &self.program, rest))
    }

    /// Returns the ruling for an access. Rules are not evaluated if the access reads a single block that is
    /// kept; if any copies are kept by recency, they decide for that block only whether it is, and its weight
    /// stays as it is.
    #[must_use]
    pub fn rule(&self, seen: Seen, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        self.rule_on(OF_REQUESTS, seen, access, rest)
    }

    /// Returns the same with only the aspects of copies evaluated, for a rehearsal, which transfers nothing;
    /// the other fields stay empty.
    #[must_use]
    pub fn rule_on_copies(&self, seen: Seen, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        self.rule_on(OF_COPIES, seen, access, rest)
    }

    fn rule_on(&self, asked: Aspects, seen: Seen, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        let blocks = touched(&access.range, self.engine.block_bytes());
        let is_kept = |block: u64| {
            let id = self.engine.block_id(access.bucket, access.key, block as u32);
            self.engine.is_kept(id)
        };
        if blocks.end - blocks.start <= 1 && blocks.clone().all(is_kept) {
            let is_recent = self.program.keeps_recent()
                && self.ask_rules(OF_COPIES, seen, access, rest).keeping == Keeping::Recent;
            let keeping = if is_recent { Keeping::Recent } else { Keeping::AsBefore };
            return Ruling { keeping, ..Ruling::default() };
        }
        self.ask_rules(asked, seen, access, rest)
    }

    fn ask_rules(&self, asked: Aspects, seen: Seen, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        self.with_facts(seen, access, rest, |facts| {
            let phase = match facts.fact(Property::Phase, "") {
                Some(Fact::Text(word)) => Phase::of(word),
                _ => None,
            };
            let keeping = match self.program.settings().cache(phase) {
                CachePolicy::None => Keeping::Never,
                CachePolicy::Lru => Keeping::Recent,
                CachePolicy::TrainingAware | CachePolicy::Learned => Keeping::default(),
            };
            let mut ruling = Ruling { keeping, ..Ruling::default() };
            let mut heard = Heard { block_bytes: self.engine.block_bytes(), ..Heard::default() };
            for due in self.program.acting(asked, facts) {
                if heard.hear(&due, &mut ruling, &self.program) {
                    let mut rules = self.program.rules().iter().zip(&self.causes);
                    let cause = rules.find(|(rule, _)| std::ptr::eq(*rule, due.rule));
                    ruling.cause = cause.map(|(_, cause)| *cause).unwrap_or_default();
                }
            }
            ruling
        })
    }

    /// Records a read of a block of an observed access under this ruling. Returns the advice on the block.
    pub fn read(&mut self, seen: Seen, access: &Access<'_>, block: u32, ruling: &Ruling) -> Advice {
        let advice = self.engine.read_as(seen, access, block, ruling.keeping);
        if access.op == Op::Read {
            let id = self.engine.block_id(access.bucket, access.key, block);
            let bytes = u32::try_from(self.engine.bytes_of(access.size, block)).unwrap_or(u32::MAX);
            self.outcomes.read(id, bytes, advice, ruling.cause);
            self.shadow.read(self.engine.dataset_id(seen), id, bytes, advice == Advice::Kept);
        }
        advice
    }

    /// Sets the capacity. `now_us` is no earlier than the last access.
    pub fn set_capacity(&mut self, now_us: u64, capacity_bytes: u64) {
        self.engine.set_capacity(now_us, capacity_bytes);
        self.shadow.set_capacity(capacity_bytes);
    }

    /// Records that a block is no longer kept for a reason other than eviction.
    pub fn lost(&mut self, id: u64) {
        self.engine.lost(id);
        self.outcomes.lost(id);
    }

    /// Returns the ids of the blocks evicted since the last call.
    pub fn take_evicted(&mut self) -> impl Iterator<Item = u64> + '_ {
        let Self { engine, outcomes, .. } = self;
        engine.take_evicted().inspect(|id| outcomes.evicted(*id))
    }
}

/// Returns the minimum number of blocks that hold this many chunks.
fn blocks_of(chunk_bytes: u64, chunks: u32, block_bytes: u64) -> u32 {
    u32::try_from(chunk_bytes.saturating_mul(chunks.into()).div_ceil(block_bytes)).unwrap_or(u32::MAX)
}

/// Aspects that a stronger rule has decided.
#[derive(Default)]
struct Heard {
    block_bytes: u64,
    copy: bool,
    stream: bool,
    coordination: bool,
    prefetch: bool,
}

impl Heard {
    /// Applies an action unless a stronger rule has decided its aspect. Returns true if it is the first that
    /// decides on copies.
    fn hear(&mut self, due: &Due<'_>, ruling: &mut Ruling, program: &Program) -> bool {
        let had_copy = self.copy;
        match (due.action.kind.aspect(), due.wish) {
            (Aspect::Copy, Wish::Copy { keep, policy, priority, min_reads, .. }) if !self.copy => {
                self.copy = true;
                // The ruling still holds the setting's value here.
                let is_recent =
                    policy.map_or(ruling.keeping == Keeping::Recent, |policy| policy == CachePolicy::Lru);
                ruling.keeping = match (keep, program.min_reads(&due.rule.rule.id, *min_reads)) {
                    (false, _) => Keeping::Never,
                    (true, _) if is_recent => Keeping::Recent,
                    (true, 0 | 1) => Keeping::Weighed(weight(*priority)),
                    (true, reads) => Keeping::After(reads, weight(*priority)),
                };
            }
            (Aspect::Stream, Wish::Stream { chunk_bytes, ahead, keep }) if !self.stream => {
                self.stream = true;
                ruling.stream_ahead = Some(blocks_of(*chunk_bytes, *ahead, self.block_bytes));
                if !self.copy && due.is_of_copies() {
                    self.copy = true;
                    ruling.keeping = match (keep, ruling.keeping) {
                        (false, _) => Keeping::Never,
                        (true, Keeping::Recent) => Keeping::Recent,
                        (true, _) => Keeping::Weighed(weight(Priority::Normal)),
                    };
                }
            }
            (Aspect::Coordination, Wish::Coordinate { window, bytes_max }) if !self.coordination => {
                self.coordination = true;
                ruling.sharing = Some(Sharing { window: *window, bytes_max: *bytes_max });
            }
            (Aspect::Prefetch, Wish::Prefetch { depth, bytes_max, strategy, next }) if !self.prefetch => {
                self.prefetch = true;
                let (depth, bytes_max, strategy, next) = (*depth, *bytes_max, *strategy, *next);
                ruling.prefetch = Some(Prefetch { depth, bytes_max, strategy, next });
            }
            _ => {}
        }
        self.copy && !had_copy
    }
}

/// Returns the causes by rule of the program. Only rules that request or forbid copies have one of their own.
fn causes(outcomes: &mut Outcomes, program: &Program) -> Vec<Cause> {
    let is_of_copies = |aspect| matches!(aspect, Aspect::Copy | Aspect::Stream);
    let cause = |rule: &EffectiveRule| {
        let speaks = rule.actions().any(|(action, _)| is_of_copies(action.kind.aspect()));
        if speaks { outcomes.cause(&rule.rule.id) } else { Cause::default() }
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
