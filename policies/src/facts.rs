//! Facts about an access for the policy rules, collected from the engine, the workloads and the checkpoints.
//!
//! Facts that only the server knows (tags, metadata, tiers, the machine, times of writes and reads) are
//! provided by the server. Nothing is guessed: an unknown value is no fact, except that facts of a dataset
//! are used for its objects if nothing is known about the object itself. Expensive facts are determined when
//! a rule first needs them, and once. Most accesses are to samples, and few rules inspect more of a sample
//! than its name.

use crate::access::Access;
use crate::checkpoints::{Checkpoints, Standing, model_file_kind};
use crate::decider::Reads;
use crate::engine::{Engine, Order, Pattern, Seen};
use crate::file_types::file_type;
use crate::language::{AccessPattern, Fact, Facts, FileType, Program, Property, Word, fact_of_key};
use crate::workloads::{Role, Set, Workload, Workloads, framework_names, frameworks};
use std::cell::OnceCell;
use std::time::Duration;

/// Properties of an object that only a server knows. The server also provides all properties of
/// `system_context`.
pub const OF_SERVER: [Property; 7] = [
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
pub struct OfKey<'a> {
    /// Id of the bucket.
    pub bucket: u64,
    /// Key of the object.
    pub key: &'a str,
    /// Known checkpoints; none if they are not tracked.
    pub checkpoints: Option<&'a Checkpoints>,
    /// Read counters of objects; none if reads are not counted.
    pub(crate) reads: Option<&'a Reads>,
}

impl OfKey<'_> {
    /// Returns the checkpoint facts of the object.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.checkpoints.map(|known| known.standing(self.bucket, self.key)).unwrap_or_default()
    }
}

/// Facts about an access.
pub struct AccessFacts<'a> {
    access: &'a Access<'a>,
    engine: &'a Engine,
    seen: Seen,
    workloads: &'a Workloads,
    workload: Option<&'a Workload>,
    set: Option<&'a Set>,
    of_key: OfKey<'a>,
    program: &'a Program,
    rest: &'a dyn Facts,
    standing: OnceCell<Standing>,
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
        (engine, seen): (&'a Engine, Seen),
        workloads: &'a Workloads,
        of_key: OfKey<'a>,
        program: &'a Program,
        rest: &'a dyn Facts,
    ) -> Self {
        let workload = workloads.get(access.caller.family);
        let dataset = engine.dataset_id(seen);
        let set = workload.and_then(|workload| workload.sets.iter().find(|set| set.dataset == dataset));
        Self {
            access,
            engine,
            seen,
            workloads,
            workload,
            set,
            of_key,
            program,
            rest,
            standing: OnceCell::new(),
            file_type: OnceCell::new(),
            frameworks: OnceCell::new(),
        }
    }

    fn standing(&self) -> Standing {
        *self.standing.get_or_init(|| self.of_key.standing())
    }

    fn file_type(&self) -> FileType {
        *self.file_type.get_or_init(|| {
            let key = self.access.key;
            // The names in such a dataset differ in numbers only, so its file type holds for every object.
            // This does not apply to a dataset that is a whole folder.
            let described = self.set.filter(|set| set.described().is_some() && !set.is_of_folder());
            let hinted = described.map_or_else(|| self.program.file_type(key), |set| set.file_type);
            file_type(self.standing().file_type, hinted, key)
        })
    }

    fn frameworks(&self) -> &[&'a str] {
        self.frameworks.get_or_init(|| {
            let of_agent = self.workload.filter(|_| self.set.is_some()).map_or(0, Workload::agent_frameworks);
            let of_key = || frameworks(self.program, self.access.key, None);
            let of_names = self.set.and_then(Set::described).unwrap_or_else(of_key);
            framework_names(self.program, of_agent | of_names).collect()
        })
    }

    fn of_file(&self, property: Property) -> Option<Fact<'_>> {
        match property {
            Property::Size => Some(Fact::Bytes(self.access.size)),
            Property::Type => Some(Fact::Text(self.file_type().name())),
            Property::ModelFileKind => model_file_kind(self.access.key).map(|kind| Fact::Text(kind.name())),
            Property::CheckpointGeneration => {
                self.standing().generation.map(|number| Fact::Number(number.into()))
            }
            _ => fact_of_key(self.access.key, property),
        }
    }

    fn of_reads(&self, property: Property) -> Option<Fact<'_>> {
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
                self.of_key.reads?.of(id).map(|reads| Fact::Number(reads as f64))
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
        if self.set.is_some_and(|set| set.role == Role::Validation) {
            return AccessPattern::Validation;
        }
        let (engine, seen, now_us) = (self.engine, self.seen, self.access.at_us);
        let pattern =
            self.set.map_or_else(|| engine.pattern(seen, now_us), |set| set.pattern(engine, seen, now_us));
        match pattern {
            Some(Pattern::Epochs(Order::Sequential)) => AccessPattern::Sequential,
            // A shard that is read with a single request is in order within itself, too.
            Some(Pattern::Epochs(Order::Shuffled)) if self.file_type() != FileType::Shard => {
                AccessPattern::Shuffled
            }
            Some(Pattern::Epochs(Order::Shuffled | Order::ShardShuffled)) => AccessPattern::ShardShuffled,
            Some(Pattern::Epochs(Order::Ranged)) => AccessPattern::Ranged,
            Some(Pattern::OnePass) => AccessPattern::OnePass,
            Some(Pattern::Skewed) => self.pattern_without_order(),
            // An object that was written but not read yet may be of any pattern that its name does not
            // exclude.
            Some(Pattern::Checkpoint) if self.is_of_else() => AccessPattern::Unknown,
            Some(Pattern::Checkpoint) => AccessPattern::Checkpoint,
            Some(Pattern::Validation) => AccessPattern::Validation,
            None if self.set.is_some_and(Set::is_in_groups) => AccessPattern::Batch,
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
    fn is_of_else(&self) -> bool {
        matches!(self.file_type(), FileType::Shard | FileType::Sample | FileType::Index)
    }

    fn of_workload(&self, property: Property) -> Option<Fact<'_>> {
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
        let said = self.workload.filter(|_| property == Property::GpuCount);
        let said = said.and_then(|workload| workload.identity.gpu_count);
        let known = said.map(|count| Fact::Number(count.into())).or_else(|| self.rest.fact(property, name));
        known
            .or_else(|| self.of_file(property))
            .or_else(|| self.of_reads(property))
            .or_else(|| self.of_workload(property))
    }
}

#[cfg(test)]
pub(crate) mod tests;
