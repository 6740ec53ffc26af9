//! Facts about an access for the policy rules, collected from the engine, the workloads and the checkpoints.
//!
//! Facts that only the server knows (tags, metadata, tiers, the machine, times of writes and reads) are
//! provided by the server. Nothing is guessed: an unknown value is no fact, except that facts of a dataset
//! are used for its objects if nothing is known about the object itself. Expensive facts are determined when
//! a rule first needs them, and once. Most accesses are to samples, and few rules inspect more of a sample
//! than its name.

use crate::access::Access;
use crate::checkpoints::{CheckpointFacts, CheckpointIndex, model_file_kind};
use crate::engine::{CacheEngine, DatasetPattern, ObservedAccess, ReadOrder};
use crate::file_types::file_type;
use crate::language::{AccessPattern, Fact, Facts, FileType, Program, Property, Word, fact_of_key};
use crate::policy_engine::ReadCounts;
use crate::workloads::{DatasetRole, DatasetUse, TrackedWorkload, Workloads, framework_names, frameworks};
use std::cell::OnceCell;
use std::time::Duration;

/// Properties of an object that only a server knows. The server also provides all properties of
/// `system_context`.
pub const SERVER_PROPERTIES: [Property; 7] = [
    Property::Bucket,
    Property::Tags,
    Property::Tag,
    Property::Metadata,
    Property::MetadataEntry,
    Property::Age,
    Property::Tier,
];

/// Facts about an object that follow from its key, independently of the reader.
#[derive(Clone, Copy, Default)]
pub struct KeyContext<'a> {
    /// Id of the bucket.
    pub bucket: u64,
    /// Key of the object.
    pub key: &'a str,
    /// Known checkpoints; none if they are not tracked.
    pub checkpoints: Option<&'a CheckpointIndex>,
    /// Read counters of objects; none if reads are not counted.
    pub(crate) reads: Option<&'a ReadCounts>,
}

impl KeyContext<'_> {
    /// Returns the checkpoint facts of the object.
    #[must_use]
    pub fn checkpoint_facts(&self) -> CheckpointFacts {
        self.checkpoints.map(|known| known.key_facts(self.bucket, self.key)).unwrap_or_default()
    }
}

/// Facts about an access.
pub struct AccessFacts<'a> {
    access: &'a Access<'a>,
    engine: &'a CacheEngine,
    seen: ObservedAccess,
    workloads: &'a Workloads,
    workload: Option<&'a TrackedWorkload>,
    set: Option<&'a DatasetUse>,
    key_context: KeyContext<'a>,
    program: &'a Program,
    server_facts: &'a dyn Facts,
    checkpoint_facts: OnceCell<CheckpointFacts>,
    file_type: OnceCell<FileType>,
    frameworks: OnceCell<Vec<&'a str>>,
}

impl<'a> AccessFacts<'a> {
    /// Returns the facts about an access that the engine and the workloads have already observed. The
    /// server's own facts take precedence over all others, except for the GPU count, which the workload
    /// itself knows best.
    #[must_use]
    pub fn new(
        access: &'a Access<'a>,
        engine: &'a CacheEngine,
        seen: ObservedAccess,
        workloads: &'a Workloads,
        key_context: KeyContext<'a>,
        program: &'a Program,
        server_facts: &'a dyn Facts,
    ) -> Self {
        let workload = workloads.get(access.caller.family);
        let dataset = engine.dataset_id(seen);
        let set = workload.and_then(|workload| workload.datasets.iter().find(|set| set.dataset == dataset));
        Self {
            access,
            engine,
            seen,
            workloads,
            workload,
            set,
            key_context,
            program,
            server_facts,
            checkpoint_facts: OnceCell::new(),
            file_type: OnceCell::new(),
            frameworks: OnceCell::new(),
        }
    }

    fn checkpoint_facts(&self) -> CheckpointFacts {
        *self.checkpoint_facts.get_or_init(|| self.key_context.checkpoint_facts())
    }

    fn file_type(&self) -> FileType {
        *self.file_type.get_or_init(|| {
            let key = self.access.key;
            // The names in such a dataset differ in numbers only, so its file type holds for every object.
            // This does not apply to a dataset that is a whole folder.
            let described = self.set.filter(|set| set.described().is_some() && !set.is_of_folder());
            let hinted = described.map_or_else(|| self.program.file_type(key), |set| set.file_type);
            file_type(self.checkpoint_facts().file_type, hinted, key)
        })
    }

    fn frameworks(&self) -> &[&'a str] {
        self.frameworks.get_or_init(|| {
            let of_agent =
                self.workload.filter(|_| self.set.is_some()).map_or(0, TrackedWorkload::agent_frameworks);
            let of_key = || frameworks(self.program, self.access.key, None);
            let of_names = self.set.and_then(DatasetUse::described).unwrap_or_else(of_key);
            framework_names(self.program, of_agent | of_names).collect()
        })
    }

    fn file_fact(&self, property: Property) -> Option<Fact<'_>> {
        match property {
            Property::Size => Some(Fact::Bytes(self.access.size)),
            Property::Type => Some(Fact::Text(self.file_type().name())),
            Property::ModelFileKind => model_file_kind(self.access.key).map(|kind| Fact::Text(kind.name())),
            Property::CheckpointGeneration => {
                self.checkpoint_facts().generation.map(|number| Fact::Number(number.into()))
            }
            _ => fact_of_key(self.access.key, property),
        }
    }

    fn access_fact(&self, property: Property) -> Option<Fact<'_>> {
        let now_us = self.access.at_us;
        match property {
            Property::Pattern => Some(Fact::Text(self.pattern().name())),
            Property::Frequency => self.set?.reads_an_hour(now_us).map(Fact::Number),
            Property::Recency => {
                self.set?.recency_us(now_us).map(|us| Fact::Duration(Duration::from_micros(us)))
            }
            Property::EpochCount => {
                let passes = self.engine.passes(self.seen);
                self.set.map(|set| Fact::Number(set.epochs_with(passes).into()))
            }
            Property::Reads => {
                let id = self.engine.block_id(self.access.bucket, self.access.key, 0);
                self.key_context.reads?.of(id).map(|reads| Fact::Number(reads as f64))
            }
            Property::Dataset => self.set.map(|set| Fact::Text(&set.name)),
            Property::Workloads => {
                let readers = self.workloads.readers(self.engine.dataset_id(self.seen), now_us);
                Some(Fact::Number(readers as f64))
            }
            _ => None,
        }
    }

    fn pattern(&self) -> AccessPattern {
        if self.set.is_some_and(|set| set.role == DatasetRole::Validation) {
            return AccessPattern::Validation;
        }
        let (engine, seen, now_us) = (self.engine, self.seen, self.access.at_us);
        let pattern =
            self.set.map_or_else(|| engine.pattern(seen, now_us), |set| set.pattern(engine, seen, now_us));
        match pattern {
            Some(DatasetPattern::Epochs(ReadOrder::Sequential)) => AccessPattern::Sequential,
            // A shard that is read with a single request is in order within itself, too.
            Some(DatasetPattern::Epochs(ReadOrder::Shuffled)) if self.file_type() != FileType::Shard => {
                AccessPattern::Shuffled
            }
            Some(DatasetPattern::Epochs(ReadOrder::Shuffled | ReadOrder::ShardShuffled)) => {
                AccessPattern::ShardShuffled
            }
            Some(DatasetPattern::Epochs(ReadOrder::Ranged)) => AccessPattern::Ranged,
            Some(DatasetPattern::OnePass) => AccessPattern::OnePass,
            Some(DatasetPattern::Skewed) => self.pattern_without_order(),
            // An object that was written but not read yet may be of any pattern that its name does not
            // exclude.
            Some(DatasetPattern::Checkpoint) if self.is_not_model_file() => AccessPattern::Unknown,
            Some(DatasetPattern::Checkpoint) => AccessPattern::Checkpoint,
            Some(DatasetPattern::Validation) => AccessPattern::Validation,
            None if self.set.is_some_and(DatasetUse::is_in_groups) => AccessPattern::Batch,
            None => AccessPattern::Unknown,
        }
    }

    /// Returns the pattern of a dataset that is read repeatedly without passes: skewed, unless the reads are
    /// known to be even.
    fn pattern_without_order(&self) -> AccessPattern {
        match self.set {
            Some(set) if set.is_even() && set.is_in_groups() => AccessPattern::Batch,
            Some(set) if set.is_even() => AccessPattern::Random,
            _ => AccessPattern::Skewed,
        }
    }

    /// True if the file type shows that the object is no part of a model.
    fn is_not_model_file(&self) -> bool {
        matches!(self.file_type(), FileType::Shard | FileType::Sample | FileType::Index)
    }

    fn workload_fact(&self, property: Property) -> Option<Fact<'_>> {
        if property == Property::Framework {
            return Some(Fact::List(self.frameworks()));
        }
        let workload = self.workload?;
        match property {
            Property::Phase => workload.phase.map(|phase| Fact::Text(phase.name())),
            Property::WorkloadId => Some(Fact::Text(&workload.id)),
            Property::WorkloadName => workload.identity.name.as_deref().map(Fact::Text),
            Property::BatchSize => workload.batch_size().map(Fact::Number),
            Property::UserAgent => workload.identity.user_agent.as_deref().map(Fact::Text),
            Property::Workers => {
                Some(Fact::Number(self.workloads.workers(workload, self.access.at_us) as f64))
            }
            _ => None,
        }
    }
}

impl Facts for AccessFacts<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        // The workload knows its GPU count better than the server's operator.
        let reader = self.workload.filter(|_| property == Property::GpuCount);
        let gpu_count = reader.and_then(|workload| workload.identity.gpu_count);
        let known = gpu_count
            .map(|count| Fact::Number(count.into()))
            .or_else(|| self.server_facts.fact(property, name));
        known
            .or_else(|| self.file_fact(property))
            .or_else(|| self.access_fact(property))
            .or_else(|| self.workload_fact(property))
    }
}

#[cfg(test)]
pub(crate) mod tests;
