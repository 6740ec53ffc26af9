//! Workloads: groups of callers that train, evaluate or serve, with their phases, datasets and progress.
//!
//! A workload is a family of callers: access key, user agent and announced name, without the address. Its
//! activity is derived from its requests alone: the role of each dataset, and its current reads and writes.
//! No phase begins or ends because of elapsed time. The number of workloads never exceeds the limit, and
//! each has a bounded size; those that have been idle longest are evicted. State lost in a crash is rebuilt
//! from later requests; no stored data depends on it.

mod dataset_use;
mod evidence;
mod model_loads;
mod open_statistics;
mod phase;
mod rate;
mod workload;

pub use dataset_use::{DatasetRole, DatasetUse};
pub use evidence::PhaseEvidence;
pub use workload::TrackedWorkload;

use crate::access::Access;
use crate::checkpoints::GroupId;
use crate::engine::{CacheEngine, DatasetId, ObservedAccess};
use crate::language::{Phase, Program, Setting, Word as _};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// Maximum length of a stored name, user agent or dataset name in bytes.
const TEXT_BYTES_MAX: usize = 256;
/// Maximum number of groups of similarly named workloads that train with one dataset; the next constant is
/// the maximum number of workloads counted in each group.
const TRIALS_MAX: usize = 1024;
const TRIAL_FAMILIES_MAX: usize = 32;
/// Divisor of the number of workloads that are evicted at a time, so that the scan for the oldest does not
/// run for every new workload.
const EVICTED_SHARE: usize = 16;

/// Limits of the tracked workloads.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadLimits {
    /// Maximum number of tracked workloads.
    pub workloads_max: usize,
    /// Time after which an idle workload no longer counts as active, in microseconds.
    pub idle_us: u64,
}

impl Default for WorkloadLimits {
    /// A thousand workloads; ten minutes, as in the setting `workload_idle`.
    fn default() -> Self {
        Self { workloads_max: 1000, idle_us: 600_000_000 }
    }
}

/// Attributes that a workload announces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadIdentity {
    /// Name: `x-mlgw-workload`, or the text after `workload/` in the user agent.
    pub name: Option<Box<str>>,
    /// User agent of its requests.
    pub user_agent: Option<Box<str>>,
    /// Objects per batch, if announced.
    pub batch_size: Option<u32>,
    /// Number of accelerators, if announced.
    pub gpu_count: Option<u32>,
}

/// Context of an access.
#[derive(Clone, Copy)]
pub struct AccessContext<'a> {
    /// The engine that has observed the access.
    pub engine: &'a CacheEngine,
    /// Result of the observation.
    pub seen: ObservedAccess,
    /// Policy program, whose plugins interpret names.
    pub program: &'a Program,
    /// Checkpoint that is written or read, if names identify it.
    pub checkpoint: Option<GroupId>,
    /// True if a tag or an adopted dataset marks the access as validation.
    pub is_validation: bool,
}

impl AccessContext<'_> {
    fn dataset_name(&self) -> Box<str> {
        let name = self.engine.dataset(self.seen);
        bounded(&format!("{}{}", name.folder, name.pattern))
    }

    /// Sets the file type and frameworks of a dataset from a key. One key is enough, because the names of a
    /// dataset differ in numbers only.
    fn describe(&self, key: &str, set: &mut DatasetUse) {
        set.describe(self.program, key);
        set.is_described = true;
    }
}

/// Bit mask of the frameworks of a program that a key and a user agent indicate, for the first 32
/// frameworks.
pub(crate) fn frameworks(program: &Program, key: &str, user_agent: Option<&str>) -> u32 {
    let names = program.frameworks();
    let bit = |name: &str| names.iter().position(|one| *one.name == *name).filter(|at| *at < 32);
    program.detect(key, None, user_agent).filter_map(|(name, _)| bit(name)).fold(0, |all, at| all | 1 << at)
}

/// Names of the frameworks in a bit mask.
pub fn framework_names(program: &Program, bits: u32) -> impl Iterator<Item = &str> {
    let named = program.frameworks().iter().take(32).enumerate();
    named.filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, one)| &*one.name)
}

/// A prefix of at most [`TEXT_BYTES_MAX`] bytes.
fn bounded(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].into()
}

/// Totals over all workloads (B6).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadTrackerTotals {
    /// Number of tracked workloads.
    pub workloads: usize,
    /// Number of active workloads.
    pub active: usize,
    /// Epochs completed since the start, including those of evicted workloads.
    pub epochs: u64,
    /// Batches read since the start, including those of evicted workloads.
    pub batches: u64,
    /// Decisions made, as counted by the caller.
    pub decisions: u64,
    /// Active workloads by phase.
    pub phases: Vec<(Phase, usize)>,
}

/// All tracked workloads.
pub struct Workloads {
    limits: WorkloadLimits,
    workloads: HashMap<u64, TrackedWorkload>,
    /// Families that train with a dataset, by dataset and hash of their common name stem.
    trials: HashMap<(DatasetId, u64), Vec<u64>>,
    /// Epochs and batches of evicted workloads.
    evicted: (u64, u64),
}

impl Workloads {
    /// Creates an empty tracker.
    #[must_use]
    pub fn new(limits: WorkloadLimits) -> Self {
        Self { limits, workloads: HashMap::new(), trials: HashMap::new(), evicted: (0, 0) }
    }

    /// Sets the announced attributes of a family; to be called once and at every change.
    pub fn set_identity(
        &mut self,
        now_us: u64,
        family: u64,
        identity: WorkloadIdentity,
        engine: &CacheEngine,
        program: &Program,
    ) {
        let WorkloadIdentity { name, user_agent, batch_size, gpu_count } = identity;
        let (name, user_agent) = (name.as_deref().map(bounded), user_agent.as_deref().map(bounded));
        let workload = self.workload(now_us, family, engine);
        workload.agent_frameworks = frameworks(program, "", user_agent.as_deref());
        workload.identity = WorkloadIdentity { name, user_agent, batch_size, gpu_count };
        workload.is_introduced = true;
    }

    /// True if the family is tracked and its attributes have been set.
    #[must_use]
    pub fn has_identity(&self, family: u64) -> bool {
        self.workloads.get(&family).is_some_and(|workload| workload.is_introduced)
    }

    /// Records an access that the engine has observed.
    pub fn record(&mut self, access: &Access<'_>, what: &AccessContext<'_>) {
        let family = access.caller.family;
        let workload = self.workload(access.at_us, family, what.engine);
        if let Some(dataset) = workload.record(access, what) {
            self.record_trial(dataset, family);
        }
    }

    fn workload(&mut self, now_us: u64, family: u64, engine: &CacheEngine) -> &mut TrackedWorkload {
        if self.workloads.len() >= self.limits.workloads_max.max(1) && !self.workloads.contains_key(&family) {
            self.evict_oldest(now_us, engine);
        }
        self.workloads.entry(family).or_insert_with(|| TrackedWorkload::new(family, now_us))
    }

    fn evict_oldest(&mut self, now_us: u64, engine: &CacheEngine) {
        let mut ages: Vec<(u64, u64)> = self.workloads.iter().map(|(id, it)| (it.last_us, *id)).collect();
        ages.sort_unstable();
        for (_, family) in ages.iter().take(1 + ages.len() / EVICTED_SHARE) {
            if let Some(gone) = self.workloads.remove(family) {
                self.evicted.0 += u64::from(gone.counted_now(engine, now_us));
                self.evicted.1 += gone.batches;
            }
        }
        let workloads = &self.workloads;
        assert!(workloads.len() < self.limits.workloads_max.max(1), "an evicted workload leaves room");
        self.trials.retain(|_, families| {
            families.retain(|family| workloads.contains_key(family));
            !families.is_empty()
        });
    }

    /// Records that a family trains with a dataset. With enough other families of similar names, the
    /// workloads are a search.
    fn record_trial(&mut self, dataset: DatasetId, family: u64) {
        let name = self.workloads.get(&family).and_then(|workload| workload.identity.name.as_deref());
        let Some(stem) = name.map(stem_of).filter(|stem| !stem.is_empty()) else { return };
        let trial_key = (dataset, xxh3_64(stem.as_bytes()));
        if self.trials.len() >= TRIALS_MAX && !self.trials.contains_key(&trial_key) {
            self.trials.clear();
        }
        let families = self.trials.entry(trial_key).or_default();
        if !families.contains(&family) && families.len() < TRIAL_FAMILIES_MAX {
            families.push(family);
        }
        let count = families.len() as u32;
        for family in families {
            if let Some(workload) = self.workloads.get_mut(family) {
                workload.trials = count;
            }
        }
    }

    /// Returns the workload of a family.
    #[must_use]
    pub fn get(&self, family: u64) -> Option<&TrackedWorkload> {
        self.workloads.get(&family)
    }

    /// All workloads, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &TrackedWorkload> {
        self.workloads.values()
    }

    /// All workloads with their families, in no particular order.
    pub fn families(&self) -> impl Iterator<Item = (u64, &TrackedWorkload)> {
        self.workloads.iter().map(|(family, workload)| (*family, workload))
    }

    /// The tracked workload that has read a dataset last, with its family.
    pub(crate) fn last_reader(
        &self,
        dataset: DatasetId,
        engine: &CacheEngine,
    ) -> Option<(u64, &TrackedWorkload)> {
        let last_us = |workload: &TrackedWorkload| {
            let its = workload.datasets.iter().filter(|set| engine.dataset_now(set.dataset) == dataset);
            its.map(|set| set.last_us).max()
        };
        let read = self.families().filter_map(|one| Some((last_us(one.1)?, one)));
        read.max_by_key(|(last_us, (family, _))| (*last_us, *family)).map(|(_, one)| one)
    }

    /// True if the workload has sent a request within the idle time.
    #[must_use]
    pub const fn is_active(&self, workload: &TrackedWorkload, now_us: u64) -> bool {
        now_us.saturating_sub(workload.last_us) <= self.limits.idle_us
    }

    /// Number of active workloads that read a dataset.
    #[must_use]
    pub fn readers(&self, dataset: DatasetId, now_us: u64) -> usize {
        let is_recent = |last_us: u64| now_us.saturating_sub(last_us) <= self.limits.idle_us;
        let reads = |it: &&TrackedWorkload| {
            it.datasets.iter().any(|set| set.dataset == dataset && is_recent(set.last_us))
        };
        self.iter().filter(reads).count()
    }

    /// Number of active callers of a workload.
    #[must_use]
    pub fn workers(&self, workload: &TrackedWorkload, now_us: u64) -> usize {
        workload.workers(now_us, self.limits.idle_us)
    }

    /// Totals at `now_us`, with `decisions` as the number of decisions. Epochs that were reported once stay
    /// counted, even if the engine discards their state.
    pub fn totals(&mut self, engine: &CacheEngine, now_us: u64, decisions: u64) -> WorkloadTrackerTotals {
        for workload in self.workloads.values_mut() {
            workload.epochs_counted = workload.counted_now(engine, now_us);
        }
        let epochs = self.iter().map(|it| u64::from(it.epochs_counted));
        let active: Vec<&TrackedWorkload> = self.iter().filter(|it| self.is_active(it, now_us)).collect();
        let in_phase = |phase: &Phase| active.iter().filter(|it| it.phase == Some(*phase)).count();
        WorkloadTrackerTotals {
            workloads: self.workloads.len(),
            active: active.len(),
            epochs: self.evicted.0 + epochs.sum::<u64>(),
            batches: self.evicted.1 + self.iter().map(|it| it.batches).sum::<u64>(),
            decisions,
            phases: Phase::ALL.iter().map(|phase| (*phase, in_phase(phase))).collect(),
        }
    }

    /// Applies a new program: plugins may have changed, and with them the meaning of names and of framework
    /// bits; so may the idle time.
    pub fn program_changed(&mut self, program: &Program) {
        self.limits.idle_us = program.settings().duration_us(Setting::WorkloadIdle);
        for workload in self.workloads.values_mut() {
            let agent = workload.identity.user_agent.clone();
            workload.agent_frameworks = frameworks(program, "", agent.as_deref());
            workload.datasets.iter_mut().for_each(|set| set.program_changed(program));
        }
    }
}

/// Common part of trial names: the text before the last separator, or before the number at the end.
fn stem_of(name: &str) -> &str {
    let before = name.rfind(['-', '_', '.', '/', ':']).map_or(name, |at| &name[..at]);
    before.trim_end_matches(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests;
