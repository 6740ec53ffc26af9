//! Everything that decides on an access, as one: the engine, what it has found of workloads and checkpoints,
//! and the rules that are in force.
//!
//! A server and a rehearsal ask the same one the same things. Always: the engine alone decides where no rule
//! speaks; a rule is asked when a block that is not kept is read, once for a request, or any where copies may
//! be kept by how recently they were read; what its [`Ruling`] says holds for that request.

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

/// See the module.
pub struct Decider {
    /// What is worth keeping.
    pub engine: Engine,
    /// Who reads and writes.
    pub workloads: Workloads,
    /// What is written as checkpoints.
    pub checkpoints: Checkpoints,
    /// What became of copies.
    pub outcomes: Outcomes,
    /// What other caches would have got.
    pub shadow: Shadow,
    /// What somebody wants to know to be left alone.
    pub watched: Watched,
    reads: Reads,
    begun: Begun,
    program: Arc<Program>,
    /// By rule of the program: whom copies are put down to.
    causes: Vec<Cause>,
    /// Plans for workloads of a name: their numbers, and that.
    plans: Vec<(u64, Box<str>)>,
}

/// Objects whose reads are counted: one for so many blocks that the engine remembers, and no more than a
/// million.
const BLOCKS_PER_COUNT: usize = 4;
const COUNTED_MAX: usize = 1 << 20;
/// Of one access of before so many blocks are followed.
const RECALLED_MAX: usize = 1024;

/// What rules are asked for a request: what becomes of its bytes, and how they come.
const OF_REQUESTS: Aspects =
    Aspects::of(&[Aspect::Copy, Aspect::Stream, Aspect::Coordination, Aspect::Prefetch]);
/// What says if copies are kept.
const OF_COPIES: Aspects = Aspects::of(&[Aspect::Copy, Aspect::Stream]);

/// How bytes that are not kept wait for others who read them too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// How long.
    pub window: Duration,
    /// How many wait at most, those of others included.
    pub bytes_max: u64,
}

/// What rules want for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ruling {
    /// What becomes of blocks that are read.
    pub keeping: Keeping,
    /// Blocks that are fetched ahead of the reader of one object, when a rule says how many.
    pub stream_ahead: Option<u32>,
    /// Whether bytes that are not kept wait for others who read them too.
    pub sharing: Option<Sharing>,
    /// How far is read ahead, when a rule says so.
    pub prefetch: Option<Prefetch>,
    /// Who says what becomes of them.
    pub cause: Cause,
}

impl Decider {
    /// One that knows nothing but the rules.
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

    /// The rules that are in force.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// From now on these rules are.
    pub fn set_program(&mut self, program: Arc<Program>) {
        self.workloads.program_changed(&program);
        self.causes = causes(&mut self.outcomes, &program);
        self.program = program;
    }

    /// Notes an access; who asks says who it is the first time.
    pub fn observe(&mut self, access: &Access<'_>, identity: impl FnOnce() -> Identity) -> Seen {
        let family = access.caller.family;
        if !self.workloads.knows(family) {
            let identity = identity();
            self.give_plans(family, &identity);
            self.workloads.introduce(access.at_us, family, identity, (&self.engine, &*self.program));
        }
        self.take_in(access)
    }

    /// Looks an access's object up wherever it is looked up when the access is noted, and nothing else. Looks
    /// that stand together wait for memory together, where each would wait by itself between the work on one
    /// and on the next.
    pub fn bring_near(&self, access: &Access<'_>) {
        let number = touched(&access.range, self.engine.block_bytes()).start as u32;
        let object = self.engine.block_id(access.bucket, access.key, 0);
        let first =
            if number == 0 { object } else { self.engine.block_id(access.bucket, access.key, number) };
        black_box((self.engine.is_kept(first), self.reads.of(object), self.outcomes.knows(first)));
    }

    /// An access of before a restart, as it was written down then: all is learnt from it, nothing is decided,
    /// and who asked says who it is when it asks again.
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

    /// Counts a read of an object, once for all requests that it takes.
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

    /// What is known of an object by its key.
    fn of_key<'a>(&'a self, bucket: u64, key: &'a str) -> OfKey<'a> {
        OfKey { bucket, key, checkpoints: Some(&self.checkpoints), reads: Some(&self.reads) }
    }

    /// Has `ask` with all that is known of an access.
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

    /// What the rules want for an access, if they have to be asked: not where all there is to be read is one
    /// block, which is kept. Where any copies are kept by how recently they were read, they say of that one,
    /// too, whether it is, and nothing else: it stays as dear as it is.
    #[must_use]
    pub fn rule(&self, seen: Seen, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        self.rule_on(OF_REQUESTS, seen, access, rest)
    }

    /// The same where only copies are of interest, as in a rehearsal, which reads nothing: of the rest it
    /// says nothing.
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

    /// A block of what was observed is read, and this is what rules want.
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

    /// The engine has so much room from now on. No earlier than the last access.
    pub fn set_capacity(&mut self, now_us: u64, capacity_bytes: u64) {
        self.engine.set_capacity(now_us, capacity_bytes);
        self.shadow.set_capacity(capacity_bytes);
    }

    /// A block is not kept any more, for another reason than that it was evicted.
    pub fn lost(&mut self, id: u64) {
        self.engine.lost(id);
        self.outcomes.lost(id);
    }

    /// Ids of the blocks that were evicted since this was asked.
    pub fn take_evicted(&mut self) -> impl Iterator<Item = u64> + '_ {
        let Self { engine, outcomes, .. } = self;
        engine.take_evicted().inspect(|id| outcomes.evicted(*id))
    }
}

/// Blocks that hold so many chunks, at least.
fn blocks_of(chunk_bytes: u64, chunks: u32, block_bytes: u64) -> u32 {
    u32::try_from(chunk_bytes.saturating_mul(chunks.into()).div_ceil(block_bytes)).unwrap_or(u32::MAX)
}

/// Questions that a stronger rule has answered.
#[derive(Default)]
struct Heard {
    block_bytes: u64,
    copy: bool,
    stream: bool,
    coordination: bool,
    prefetch: bool,
}

impl Heard {
    /// Takes what an action wants, unless somebody stronger has answered that. Says whether it is about what
    /// is kept.
    fn hear(&mut self, due: &Due<'_>, ruling: &mut Ruling, program: &Program) -> bool {
        let had_copy = self.copy;
        match (due.action.kind.aspect(), due.wish) {
            (Aspect::Copy, Wish::Copy { keep, policy, priority, min_reads, .. }) if !self.copy => {
                self.copy = true;
                // What the setting says stands there still.
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

/// By rule of a program: whom copies are put down to that it wants, or does not want.
fn causes(outcomes: &mut Outcomes, program: &Program) -> Vec<Cause> {
    let is_of_copies = |aspect| matches!(aspect, Aspect::Copy | Aspect::Stream);
    let cause = |rule: &EffectiveRule| {
        let speaks = rule.actions().any(|(action, _)| is_of_copies(action.kind.aspect()));
        if speaks { outcomes.cause(&rule.rule.id) } else { Cause::default() }
    };
    program.rules().iter().map(cause).collect()
}

/// How much more a copy is worth than its reads alone make it.
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
