//! Facts about objects at rest, that is, without a current request.

use super::PolicyEngine;
use crate::access::{Access, Caller, Op};
use crate::engine::{KeptBlocks, UnreadBlock};
use crate::facts::{AccessFacts, KeyContext};
use crate::language::{
    EffectiveRule, Fact, FactSnapshot, Facts, FileType, NoFacts, Program, Property, Word as _,
};

/// Properties that a policy engine knows about objects at rest.
pub const PROPERTIES_AT_REST: [Property; 17] = [
    Property::Type,
    Property::CheckpointGeneration,
    Property::Pattern,
    Property::Frequency,
    Property::Recency,
    Property::EpochCount,
    Property::Reads,
    Property::Dataset,
    Property::Workloads,
    Property::Framework,
    Property::Phase,
    Property::WorkloadId,
    Property::WorkloadName,
    Property::BatchSize,
    Property::UserAgent,
    Property::Workers,
    Property::GpuCount,
];

/// Returns the properties of these that the rules of `program` use, plus those that every scan of objects at
/// rest uses: the time since the last read, and the dataset.
#[must_use]
pub fn properties_used_at_rest(program: &Program) -> Vec<Property> {
    let conditions = program.rules().iter().flat_map(|EffectiveRule { rule, .. }| &rule.conditions);
    let used: Vec<Property> = conditions.map(|condition| condition.property).collect();
    let is_asked = |property: &Property| {
        matches!(property, Property::Recency | Property::Dataset) || used.contains(property)
    };
    PROPERTIES_AT_REST.into_iter().filter(is_asked).collect()
}

impl PolicyEngine {
    /// Returns the values of these properties as in [`PolicyEngine::with_facts_of`], copied so that rules can
    /// be evaluated while others use the policy engine.
    #[must_use]
    pub fn facts_of(&self, now_us: u64, object: &UnreadBlock<'_>, properties: &[Property]) -> FactSnapshot {
        self.with_facts_of(now_us, object, |facts| FactSnapshot::capture(facts, properties))
    }

    /// Calls `ask` with the facts about an object as seen by the last reader of its dataset, or with the
    /// facts from its key alone if the dataset was never read. The block number is ignored. Facts from other
    /// sources are not included.
    pub fn with_facts_of<T>(
        &self,
        now_us: u64,
        object: &UnreadBlock<'_>,
        ask: impl FnOnce(&dyn Facts) -> T,
    ) -> T {
        let UnreadBlock { bucket, key, size, .. } = *object;
        let of_key = self.key_facts(bucket, key);
        let Some(dataset) = self.engine.find_dataset(bucket, key) else {
            return ask(&of_key);
        };
        let reader = self.workloads.last_reader(dataset, &self.engine);
        let family = reader.map_or(0, |(family, _)| family);
        let callers = reader.into_iter().flat_map(|(_, workload)| workload.caller_ids());
        let caller = Caller { id: 0, family };
        let access = Access { at_us: now_us, caller, bucket, key, op: Op::Read, size, range: 0..0 };
        let seen = self.engine.access_of_family(now_us, dataset, family, callers);
        let program = &self.program;
        ask(&AccessFacts::new(&access, &self.engine, seen, &self.workloads, of_key, program, &NoFacts))
    }

    /// Returns the counts of kept blocks of an object; looks up at most `blocks_max` blocks.
    #[must_use]
    pub fn kept_blocks(&self, object: &UnreadBlock<'_>, blocks_max: u32) -> KeptBlocks {
        self.engine.kept_blocks(object, blocks_max)
    }
}

/// Facts about an object whose dataset was never read: those known from checkpoints. The type "released
/// model" is not among them, because plugins may know better.
impl Facts for KeyContext<'_> {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        match property {
            Property::CheckpointGeneration => {
                self.checkpoint_facts().generation.map(|number| Fact::Number(number.into()))
            }
            Property::Type => {
                let known = self.checkpoint_facts().file_type.filter(|one| *one == FileType::Checkpoint);
                known.map(|one| Fact::Text(one.name()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PROPERTIES_AT_REST, properties_used_at_rest};
    use crate::access::{Access, Caller, Op};
    use crate::engine::{Options, UnreadBlock};
    use crate::file_types::file_type_by_key;
    use crate::language::{Fact, Facts as _, PROPERTIES, Program, Property, Word as _, fact_of_key};
    use crate::policy_engine::PolicyEngine;
    use crate::workloads::WorkloadIdentity;
    use std::sync::Arc;

    #[test]
    fn facts_come_from_the_last_reader_and_nothing_is_invented() {
        let options = Options { capacity_bytes: 1 << 30, blocks_max: 1 << 10, block_bytes: 8 << 20, seed: 7 };
        let mut decider = PolicyEngine::new(options, Arc::new(Program::compile_built_in().unwrap()));
        let mut now_us = 0;
        for (family, name, epochs) in [(10, "first", 1), (20, "second", 3)] {
            for _ in 0..epochs {
                for n in 0..100 {
                    now_us += 1000;
                    let (key, caller) = (format!("a/train/{n}.jpg"), Caller { id: family + 1, family });
                    let access = Access {
                        at_us: now_us,
                        caller,
                        bucket: 1,
                        key: &key,
                        op: Op::Read,
                        size: 9,
                        range: 0..9,
                    };
                    let identity =
                        || WorkloadIdentity { name: Some(name.into()), ..WorkloadIdentity::default() };
                    let seen = decider.observe(&access, identity);
                    decider.engine.read(seen, &access, 0);
                }
            }
        }
        let fact = |key: &str, property| {
            let object = UnreadBlock { bucket: 1, key, size: 9, number: 0 };
            decider.with_facts_of(now_us, &object, |facts| {
                facts.fact(property, "").and_then(|fact| Some(fact.to_value()?.to_string()))
            })
        };
        let is = |key, property, expected: Option<&str>| {
            assert_eq!(fact(key, property).as_deref(), expected, "{key} {property:?}");
        };
        is("a/train/7.jpg", Property::Reads, Some("4"));
        is("a/train/999.jpg", Property::Reads, None);
        is("a/train/7.jpg", Property::WorkloadName, Some("second"));
        is("a/train/7.jpg", Property::Phase, Some("training"));
        is("a/train/7.jpg", Property::Pattern, Some("sequential"));
        is("a/train/999.jpg", Property::Dataset, Some("a/train/#.jpg"));
        is("a/val/7.jpg", Property::Dataset, None);
        is("a/train/README", Property::WorkloadName, None);
        is("b", Property::Size, None);
        let read = UnreadBlock { bucket: 1, key: "a/train/7.jpg", size: 9, number: 0 };
        let taken = decider.facts_of(now_us, &read, &PROPERTIES_AT_REST);
        decider.with_facts_of(now_us, &read, |facts| {
            for row in PROPERTIES.iter().filter(|row| !row.is_named() && row.property != Property::Size) {
                let is_of_key = fact_of_key(read.key, row.property).is_some();
                let here = facts.fact(row.property, "").filter(|_| !is_of_key);
                assert_eq!(taken.view().fact(row.property, ""), here, "{}", row.word);
            }
        });
        let used = properties_used_at_rest(&Program::compile_built_in().unwrap());
        assert!(used.contains(&Property::Dataset) && !used.contains(&Property::UserAgent), "{used:?}");
        let object = |key| UnreadBlock { bucket: 1, key, size: 9, number: 0 };
        let kept = |key| decider.kept_blocks(&object(key), 10);
        assert_eq!((kept("a/train/7.jpg").blocks, kept("a/train/7.jpg").kept), (1, 1));
        assert_eq!((kept("a/train/100.jpg").blocks, kept("a/train/100.jpg").kept), (1, 0));
        let elsewhere = UnreadBlock { bucket: 2, ..object("a/train/7.jpg") };
        let known = decider.with_facts_of(now_us, &elsewhere, |facts| {
            facts.fact(Property::Size, "") == Some(Fact::Bytes(9))
        });
        assert!(!known, "the same key in another bucket is another object");
    }

    #[test]
    fn the_type_of_an_object_does_not_depend_on_reads_of_its_dataset() {
        let options = Options { capacity_bytes: 1 << 30, blocks_max: 1 << 10, block_bytes: 8 << 20, seed: 7 };
        let mut decider = PolicyEngine::new(options, Arc::new(Program::compile_built_in().unwrap()));
        decider.checkpoints.record_write(1, 1, "out/final/optimizer.pt", 10);
        // As in a server: the type follows from the key where no other source knows it.
        let file_type = |decider: &PolicyEngine, key: &str| {
            let object = UnreadBlock { bucket: 1, key, size: 9, number: 0 };
            let known = decider.with_facts_of(9, &object, |facts| {
                facts.fact(Property::Type, "").and_then(|fact| Some(fact.to_value()?.to_string()))
            });
            known.unwrap_or_else(|| file_type_by_key(decider.program(), key).name().to_owned())
        };
        for (key, expected) in [
            ("out/checkpoint-best/model.safetensors", "checkpoint"),
            ("llama/model.safetensors", "model"),
            ("out/final/model.safetensors", "checkpoint"),
            ("out/checkpoint-5/model.safetensors", "checkpoint"),
        ] {
            assert_eq!(file_type(&decider, key), expected, "{key} at rest");
            let (caller, op) = (Caller { id: 1, family: 1 }, Op::Read);
            let access = Access { at_us: 9, caller, bucket: 1, key, op, size: 9, range: 0..9 };
            decider.observe(&access, WorkloadIdentity::default);
            assert_eq!(file_type(&decider, key), expected, "{key} as it is read");
        }
    }

    #[test]
    fn a_read_in_ranges_counts_once_and_writes_do_not_count() {
        let options = Options { capacity_bytes: 1 << 30, blocks_max: 1 << 10, block_bytes: 8 << 20, seed: 7 };
        let mut decider = PolicyEngine::new(options, Arc::new(Program::compile_built_in().unwrap()));
        let mut at_us = 0;
        let mut is = |op, key: &str, range, expected: Option<f64>| {
            at_us += 1000;
            let (caller, size) = (Caller { id: 1, family: 1 }, 100);
            let access = Access { at_us, caller, bucket: 1, key, op, size, range };
            decider.observe(&access, WorkloadIdentity::default);
            let object = UnreadBlock { bucket: 1, key, size, number: 0 };
            let reads = decider.with_facts_of(at_us, &object, |facts| {
                facts.fact(Property::Reads, "").and_then(|it| it.size())
            });
            assert_eq!(reads, expected, "{op:?} {key} {:?}", access.range);
        };
        is(Op::Write, "a/x.tar", 0..100, None);
        for reads in 1..4 {
            for begin in 0..10 {
                is(Op::Read, "a/x.tar", begin * 10..begin * 10 + 10, Some(reads.into()));
            }
        }
        is(Op::Write, "a/x.tar", 0..100, None);
        is(Op::Read, "a/x.tar", 0..100, Some(1.0));
        is(Op::Delete, "a/x.tar", 0..0, None);
        // Columns read after a footer belong to the read that began with it.
        is(Op::Read, "a/y.parquet", 20..30, None);
        is(Op::Read, "a/y.parquet", 92..100, Some(1.0));
        is(Op::Read, "a/y.parquet", 40..60, Some(1.0));
        is(Op::Read, "a/y.parquet", 92..100, Some(2.0));
        // Parts that are loaded in parallel arrive in any order, and are one read from the first byte or the
        // end on.
        for (parts, begun) in [([0, 3, 1, 2], 0), ([3, 0, 2, 1], 0), ([2, 3, 1, 0], 3), ([1, 0, 3, 2], 1)] {
            let key = format!("b/{parts:?}.bin");
            for (at, part) in parts.into_iter().enumerate() {
                is(Op::Read, &key, part * 25..part * 25 + 25, (at >= begun).then_some(1.0));
            }
        }
    }
}
