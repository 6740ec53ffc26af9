//! What rules are told of an access: facts from the engine, the workloads and the checkpoints, in one place.
//!
//! What only the server knows (tags, metadata, tiers, the machine, when an object was written and read) it
//! gives as facts of its own. Nothing is made up: what is not known is no fact, but for what a dataset shows
//! of its objects where nothing is known of one. What takes long to find out is found out when a rule asks
//! for it, once: most accesses are of samples, of which few rules ask more than their name.

use crate::access::Access;
use crate::checkpoints::{Checkpoints, Standing, model_file_kind};
use crate::decider::Reads;
use crate::engine::{Engine, Order, Pattern, Seen};
use crate::file_types::file_type;
use crate::language::{AccessPattern, Fact, Facts, FileType, Program, Property, Word, fact_of_key};
use crate::workloads::{Role, Set, Workload, Workloads, framework_names, frameworks};
use std::cell::OnceCell;
use std::time::Duration;

/// What only a server knows of an object, and gives as facts of its own. Of itself it tells all that is of
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

/// What is known of an object by its key, whoever asks for it.
#[derive(Clone, Copy, Default)]
pub struct OfKey<'a> {
    /// The bucket's id.
    pub bucket: u64,
    /// The key.
    pub key: &'a str,
    /// Which checkpoints there are, if that is known.
    pub checkpoints: Option<&'a Checkpoints>,
    /// How often objects were read, if that is counted.
    pub(crate) reads: Option<&'a Reads>,
}

impl OfKey<'_> {
    /// What checkpoints tell of it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.checkpoints.map(|known| known.standing(self.bucket, self.key)).unwrap_or_default()
    }
}

/// What is known of an access, to be asked by rules.
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
    /// The facts of an access that the engine and the workloads were told of, and what is known of its key.
    /// `rest` is what the server knows; where both know something, what it says holds.
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
            // The names of a dataset differ in numbers only, unless it is all that is below a folder.
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
            // A shard that is read with one request is in order within it, too.
            Some(Pattern::Epochs(Order::Shuffled)) if self.file_type() != FileType::Shard => {
                AccessPattern::Shuffled
            }
            Some(Pattern::Epochs(Order::Shuffled | Order::ShardShuffled)) => AccessPattern::ShardShuffled,
            Some(Pattern::Epochs(Order::Ranged)) => AccessPattern::Ranged,
            Some(Pattern::OnePass) => AccessPattern::OnePass,
            Some(Pattern::Skewed) => self.pattern_without_order(),
            // What was written and not read yet may be anything that its name does not say it is not.
            Some(Pattern::Checkpoint) if self.is_of_else() => AccessPattern::Unknown,
            Some(Pattern::Checkpoint) => AccessPattern::Checkpoint,
            Some(Pattern::Validation) => AccessPattern::Validation,
            None if self.set.is_some_and(Set::is_in_groups) => AccessPattern::Batch,
            None => AccessPattern::Unknown,
        }
    }

    /// What is read again and again without passes: some of it much more often than the rest, unless it is
    /// clear that it is not so.
    fn pattern_without_order(&self) -> AccessPattern {
        match self.set {
            Some(set) if set.is_even() && set.is_in_groups() => AccessPattern::Batch,
            Some(set) if set.is_even() => AccessPattern::Random,
            _ => AccessPattern::Skewed,
        }
    }

    /// Whether its name says that it is no part of a model.
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
        // Who reads knows better for how many than who runs the server.
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
