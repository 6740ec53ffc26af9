//! Workloads: who trains, evaluates or serves, in which phase, with what, and how far.
//!
//! A workload is a family of callers: access key, user agent and the name that it gives itself, without the
//! address. What it does follows from its requests alone: what each dataset is to it (`set.rs`, `phase.rs`),
//! and what it reads and writes now. No phase begins or ends because time has passed. Always: as many
//! workloads as the limits say at most, each of a bounded size; those that have been silent longest are
//! forgotten. What a crash loses is found again from the next requests; no byte depends on it.

mod loads;
mod manner;
mod phase;
mod rate;
mod set;
mod why;
mod workload;

pub use set::{Role, Set};
pub use why::Why;
pub use workload::Workload;

use crate::access::Access;
use crate::checkpoints::GroupId;
use crate::engine::{DatasetId, Engine, Seen};
use crate::language::{Phase, Program, Setting, Word as _};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a name, a user agent, or the name of a dataset that are kept.
const TEXT_BYTES_MAX: usize = 256;
/// Datasets that several train with, and workloads that are counted for each.
const TRIALS_MAX: usize = 1024;
const ALIKE_MAX: usize = 32;
/// One in so many is forgotten at once, so that the search for the oldest does not come with every new one.
const FORGOTTEN_SHARE: usize = 16;

/// What this may use, and what counts as long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Workloads that are remembered.
    pub workloads_max: usize,
    /// Who has been silent for so long does not count as active.
    pub idle_us: u64,
}

impl Default for Limits {
    /// A thousand workloads; ten minutes, as the setting `workload_idle`.
    fn default() -> Self {
        Self { workloads_max: 1000, idle_us: 600_000_000 }
    }
}

/// What a workload says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its name: `x-mlgw-workload`, or what follows `workload/` in the user agent.
    pub name: Option<Box<str>>,
    /// The user agent of its requests.
    pub user_agent: Option<Box<str>>,
    /// Objects that it reads at once, if it says so.
    pub batch_size: Option<u32>,
    /// Accelerators that it reads for, if it says so.
    pub gpu_count: Option<u32>,
}

/// What is known of an access beside what it says itself.
#[derive(Clone, Copy)]
pub struct What<'a> {
    /// The engine that has observed it.
    pub engine: &'a Engine,
    /// As what it did.
    pub seen: Seen,
    /// Whose plugins say what names mean.
    pub program: &'a Program,
    /// The checkpoint that is written or read, where names tell.
    pub checkpoint: Option<GroupId>,
    /// Somebody says that it is of a validation set: a tag, or an adopted dataset.
    pub is_validation: bool,
}

impl What<'_> {
    fn set_name(&self) -> Box<str> {
        let name = self.engine.dataset(self.seen);
        bounded(&format!("{}{}", name.folder, name.pattern))
    }

    /// What its name says: asked once for a dataset, whose names differ in numbers only.
    fn describe(&self, key: &str, set: &mut Set) {
        set.describe(self.program, key);
        set.is_described = true;
    }
}

/// A bit for each framework of a program that a key and a user agent speak for; there are bits for the first
/// 32.
pub(crate) fn frameworks(program: &Program, key: &str, user_agent: Option<&str>) -> u32 {
    let names = program.frameworks();
    let bit = |name: &str| names.iter().position(|one| *one.name == *name).filter(|at| *at < 32);
    program.detect(key, None, user_agent).filter_map(|(name, _)| bit(name)).fold(0, |all, at| all | 1 << at)
}

/// The frameworks of such bits.
pub fn framework_names(program: &Program, bits: u32) -> impl Iterator<Item = &str> {
    let named = program.frameworks().iter().take(32).enumerate();
    named.filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, one)| &*one.name)
}

/// The beginning of a text.
fn bounded(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].into()
}

/// How many there are and what they have done (B6).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Workloads that are remembered.
    pub workloads: usize,
    /// Those of them that have not been silent for long.
    pub active: usize,
    /// Epochs that all have completed since the start, those that are forgotten included.
    pub epochs: u64,
    /// Batches that all have read since the start.
    pub batches: u64,
    /// Decisions that were taken for them, which others count.
    pub decisions: u64,
    /// Active workloads by phase.
    pub phases: Vec<(Phase, usize)>,
}

/// See the module.
pub struct Workloads {
    limits: Limits,
    workloads: HashMap<u64, Workload>,
    /// By dataset and by what their names have in common: families that train with it.
    trials: HashMap<(DatasetId, u64), Vec<u64>>,
    /// Epochs and batches of those that are forgotten.
    forgotten: (u64, u64),
}

impl Workloads {
    /// Nobody is known yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, workloads: HashMap::new(), trials: HashMap::new(), forgotten: (0, 0) }
    }

    /// What a family says of itself; once is enough, and whenever that changes.
    pub fn introduce(
        &mut self,
        now_us: u64,
        family: u64,
        identity: Identity,
        (engine, program): (&Engine, &Program),
    ) {
        let Identity { name, user_agent, batch_size, gpu_count } = identity;
        let (name, user_agent) = (name.as_deref().map(bounded), user_agent.as_deref().map(bounded));
        let workload = self.workload(now_us, family, engine);
        workload.agent_frameworks = frameworks(program, "", user_agent.as_deref());
        workload.identity = Identity { name, user_agent, batch_size, gpu_count };
        workload.is_introduced = true;
    }

    /// Whether a family has said who it is, and is remembered.
    #[must_use]
    pub fn knows(&self, family: u64) -> bool {
        self.workloads.get(&family).is_some_and(|workload| workload.is_introduced)
    }

    /// Notes an access that the engine has observed.
    pub fn note(&mut self, access: &Access<'_>, what: &What<'_>) {
        let family = access.caller.family;
        let workload = self.workload(access.at_us, family, what.engine);
        if let Some(dataset) = workload.note(access, what) {
            self.note_trial(dataset, family);
        }
    }

    fn workload(&mut self, now_us: u64, family: u64, engine: &Engine) -> &mut Workload {
        if self.workloads.len() >= self.limits.workloads_max.max(1) && !self.workloads.contains_key(&family) {
            self.forget_oldest(now_us, engine);
        }
        self.workloads.entry(family).or_insert_with(|| Workload::new(family, now_us))
    }

    fn forget_oldest(&mut self, now_us: u64, engine: &Engine) {
        let mut ages: Vec<(u64, u64)> = self.workloads.iter().map(|(id, it)| (it.last_us, *id)).collect();
        ages.sort_unstable();
        for (_, family) in ages.iter().take(1 + ages.len() / FORGOTTEN_SHARE) {
            if let Some(gone) = self.workloads.remove(family) {
                self.forgotten.0 += u64::from(gone.counted_now(engine, now_us));
                self.forgotten.1 += gone.batches;
            }
        }
        let workloads = &self.workloads;
        self.trials.retain(|_, families| {
            families.retain(|family| workloads.contains_key(family));
            !families.is_empty()
        });
    }

    /// A family trains with a dataset. With enough others that are called alike it is a search.
    fn note_trial(&mut self, dataset: DatasetId, family: u64) {
        let name = self.workloads.get(&family).and_then(|workload| workload.identity.name.as_deref());
        let Some(stem) = name.map(stem_of).filter(|stem| !stem.is_empty()) else { return };
        let place = (dataset, xxh3_64(stem.as_bytes()));
        if self.trials.len() >= TRIALS_MAX && !self.trials.contains_key(&place) {
            self.trials.clear();
        }
        let families = self.trials.entry(place).or_default();
        if !families.contains(&family) && families.len() < ALIKE_MAX {
            families.push(family);
        }
        let count = families.len() as u32;
        for family in families {
            if let Some(workload) = self.workloads.get_mut(family) {
                workload.trials = count;
            }
        }
    }

    /// A workload.
    #[must_use]
    pub fn get(&self, family: u64) -> Option<&Workload> {
        self.workloads.get(&family)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Workload> {
        self.workloads.values()
    }

    /// All of them with their families, in no order.
    pub fn families(&self) -> impl Iterator<Item = (u64, &Workload)> {
        self.workloads.iter().map(|(family, workload)| (*family, workload))
    }

    /// The workload that has read a dataset last, if it is remembered, with its family.
    pub(crate) fn last_reader(&self, dataset: DatasetId, engine: &Engine) -> Option<(u64, &Workload)> {
        let last_us = |workload: &Workload| {
            let its = workload.sets.iter().filter(|set| engine.dataset_now(set.dataset) == dataset);
            its.map(|set| set.last_us).max()
        };
        let read = self.families().filter_map(|one| Some((last_us(one.1)?, one)));
        read.max_by_key(|(last_us, (family, _))| (*last_us, *family)).map(|(_, one)| one)
    }

    /// Whether a workload has asked for something lately.
    #[must_use]
    pub const fn is_active(&self, workload: &Workload, now_us: u64) -> bool {
        now_us.saturating_sub(workload.last_us) <= self.limits.idle_us
    }

    /// How many workloads that are active read a dataset.
    #[must_use]
    pub fn readers(&self, dataset: DatasetId, now_us: u64) -> usize {
        let is_recent = |last_us: u64| now_us.saturating_sub(last_us) <= self.limits.idle_us;
        let reads =
            |it: &&Workload| it.sets.iter().any(|set| set.dataset == dataset && is_recent(set.last_us));
        self.iter().filter(reads).count()
    }

    /// Callers of a workload that are active.
    #[must_use]
    pub fn workers(&self, workload: &Workload, now_us: u64) -> usize {
        workload.workers(now_us, self.limits.idle_us)
    }

    /// The totals, as of now; `decisions` were taken. Epochs that are told of once stay, whatever the engine
    /// forgets.
    pub fn totals(&mut self, engine: &Engine, now_us: u64, decisions: u64) -> Totals {
        for workload in self.workloads.values_mut() {
            workload.counted = workload.counted_now(engine, now_us);
        }
        let epochs = self.iter().map(|it| u64::from(it.counted));
        let active: Vec<&Workload> = self.iter().filter(|it| self.is_active(it, now_us)).collect();
        let in_phase = |phase: &Phase| active.iter().filter(|it| it.phase == Some(*phase)).count();
        Totals {
            workloads: self.workloads.len(),
            active: active.len(),
            epochs: self.forgotten.0 + epochs.sum::<u64>(),
            batches: self.forgotten.1 + self.iter().map(|it| it.batches).sum::<u64>(),
            decisions,
            phases: Phase::ALL.iter().map(|phase| (*phase, in_phase(phase))).collect(),
        }
    }

    /// Plugins may have changed, and with them what names speak for and which bit is whose; and how long a
    /// workload may be silent.
    pub fn program_changed(&mut self, program: &Program) {
        self.limits.idle_us = program.settings().duration_us(Setting::WorkloadIdle);
        for workload in self.workloads.values_mut() {
            let agent = workload.identity.user_agent.clone();
            workload.agent_frameworks = frameworks(program, "", agent.as_deref());
            workload.sets.iter_mut().for_each(|set| set.program_changed(program));
        }
    }
}

/// What names of trials have in common: all before the last part, or before the number at the end.
fn stem_of(name: &str) -> &str {
    let before = name.rfind(['-', '_', '.', '/', ':']).map_or(name, |at| &name[..at]);
    before.trim_end_matches(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests;
