//! Everything that decides on an access, as one: the engine, what it has found of workloads and checkpoints, and the rules that are in force.
//!
//! A server and a rehearsal ask the same one the same things. Always: the engine alone decides where no rule speaks; a rule is asked when a block that is
//! not kept is read, once for a request; what its [`Ruling`] says holds for that request.

mod known;
mod plans;
mod watched;

pub use watched::Watched;

use crate::access::{Access, Op};
use crate::checkpoints::{self, Checkpoints};
use crate::engine::{Advice, Engine, Keeping, Options, Seen};
use crate::facts::AccessFacts;
use crate::language::{
    Aspect, CachePolicy, Due, Fact, Facts, Phase, Priority, Program, Property, Setting, Stance, Wish, Word,
};
use crate::workloads::{self, Identity, What, Workloads};
use std::ops::Range;
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
    /// What somebody wants to know to be left alone.
    pub watched: Watched,
    program: Arc<Program>,
    /// Plans for workloads of a name: their numbers, and that.
    plans: Vec<(u64, Box<str>)>,
}

/// What rules want for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ruling {
    /// What becomes of blocks that are read.
    pub keeping: Keeping,
    /// Blocks that are fetched ahead of the reader of one object, when a rule says how many.
    pub stream_ahead: Option<u32>,
    /// How long bytes that are not kept wait for others who read them too.
    pub window: Option<Duration>,
    /// Blocks and bytes that are read ahead at most.
    pub prefetch: Option<(u32, u64)>,
}

impl Decider {
    /// One that knows nothing but the rules.
    #[must_use]
    pub fn new(options: Options, program: Arc<Program>) -> Self {
        Self {
            engine: Engine::new(options),
            workloads: Workloads::new(workloads::Limits::default()),
            checkpoints: Checkpoints::new(checkpoints::Limits::default()),
            watched: Watched::default(),
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
        self.program = program;
    }

    /// Notes an access; who asks says who it is the first time.
    pub fn observe(&mut self, access: &Access<'_>, identity: impl FnOnce() -> Identity) -> Seen {
        let family = access.caller.family;
        if !self.workloads.knows(family) {
            let identity = identity();
            self.give_plans(family, &identity);
            self.workloads.introduce(access.at_us, family, identity, &self.program);
        }
        if access.op != Op::Delete {
            self.watched.touch(access.at_us, access.bucket, access.key);
        }
        let seen = self.engine.observe(access);
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

    /// Has `ask` with all that is known of an access.
    pub fn with_facts<T>(
        &self,
        seen: Seen,
        access: &Access<'_>,
        rest: &dyn Facts,
        ask: impl FnOnce(&dyn Facts) -> T,
    ) -> T {
        let checkpoint = self.checkpoints.group_of(access.bucket, access.key);
        let engine = (&self.engine, seen);
        ask(&AccessFacts::new(access, engine, &self.workloads, checkpoint, &self.program, rest))
    }

    /// What the rules want for an access, if they have to be asked: not where all there is to be read is one block, which is kept.
    #[must_use]
    pub fn rule(&self, seen: Seen, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        let blocks = touched(&access.range, self.engine.block_bytes());
        let is_kept = |block: u64| {
            let id = self.engine.block_id(access.bucket, access.key, block as u32);
            self.engine.is_kept(id)
        };
        if blocks.end - blocks.start <= 1 && blocks.clone().all(is_kept) {
            return Ruling::default();
        }
        self.ask_rules(seen, access, rest)
    }

    fn ask_rules(&self, seen: Seen, access: &Access<'_>, rest: &dyn Facts) -> Ruling {
        self.with_facts(seen, access, rest, |facts| {
            let phase = match facts.fact(Property::Phase, "") {
                Some(Fact::Text(word)) => Phase::of(word),
                _ => None,
            };
            let mut ruling = Ruling::default();
            if self.program.settings().cache(phase) == CachePolicy::None {
                ruling.keeping = Keeping::Never;
            }
            let mut heard = Heard::default();
            for due in self.program.due(facts).filter(|due| due.stance == Stance::Act) {
                heard.hear(&due, &mut ruling);
            }
            ruling
        })
    }

    /// A block of what was observed is read, and this is what rules want.
    pub fn read(&mut self, seen: Seen, access: &Access<'_>, block: u32, ruling: &Ruling) -> Advice {
        self.engine.read_as(seen, access, block, ruling.keeping)
    }

    /// Bytes that may be read ahead for one stream.
    #[must_use]
    pub fn bytes_ahead_max(&self) -> u64 {
        self.program.settings().bytes(Setting::PrefetchBytesMax)
    }
}

/// The blocks that a range touches.
fn touched(range: &Range<u64>, block_bytes: u64) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / block_bytes..(range.end - 1) / block_bytes + 1
}

/// Questions that a stronger rule has answered.
#[derive(Default)]
struct Heard {
    copy: bool,
    stream: bool,
    coordination: bool,
    prefetch: bool,
}

impl Heard {
    fn hear(&mut self, due: &Due<'_>, ruling: &mut Ruling) {
        match (due.action.kind.aspect(), due.wish) {
            (Aspect::Copy, Wish::Copy { keep, priority, min_reads, .. }) if !self.copy => {
                self.copy = true;
                ruling.keeping = match (keep, min_reads) {
                    (false, _) => Keeping::Never,
                    (true, 0 | 1) => Keeping::Weighed(weight(*priority)),
                    (true, reads) => Keeping::After(*reads, weight(*priority)),
                };
            }
            (Aspect::Stream, Wish::Stream { ahead, keep, .. }) if !self.stream => {
                self.stream = true;
                ruling.stream_ahead = Some(*ahead);
                if !keep && !self.copy {
                    self.copy = true;
                    ruling.keeping = Keeping::Never;
                }
            }
            (Aspect::Coordination, Wish::Coordinate { window, .. }) if !self.coordination => {
                self.coordination = true;
                ruling.window = Some(*window);
            }
            (Aspect::Prefetch, Wish::Prefetch { depth, bytes_max, .. }) if !self.prefetch => {
                self.prefetch = true;
                ruling.prefetch = Some((*depth, *bytes_max));
            }
            _ => {}
        }
    }
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
