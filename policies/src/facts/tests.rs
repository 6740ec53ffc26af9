//! Tests that every property and word of the language is produced for some access.

use crate::access::{Access, Caller, Op};
use crate::block::mix_hash;
use crate::engine::{Options, UnreadBlock};
use crate::facts::SERVER_PROPERTIES;
use crate::language::{
    AccessPattern, ConditionType, Fact, Facts, NoFacts, PROPERTIES, ParsedPolicy, Phase, Program, Property,
    Value, ValueKind, Word,
};
use crate::policy_engine::PolicyEngine;
use crate::workloads::WorkloadIdentity;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = 8 << 20;

/// The properties that were produced and, for those of kind word, the words.
pub(crate) type ReportedFacts = BTreeMap<Property, BTreeSet<Box<str>>>;

/// The policy engine, the clock, and the facts produced so far.
struct FactsBench {
    engine: PolicyEngine,
    at_us: u64,
    reported: ReportedFacts,
}

impl FactsBench {
    fn new() -> Self {
        let options = Options { capacity_bytes: 1 << 30, blocks_max: 1 << 14, block_bytes: BLOCK, seed: 7 };
        Self {
            engine: PolicyEngine::new(options, Arc::new(Program::compile_built_in().unwrap())),
            at_us: 0,
            reported: ReportedFacts::new(),
        }
    }

    /// Makes a request one millisecond later and returns its access pattern.
    fn request(&mut self, op: Op, key: &str, size: u64, range: Range<u64>) -> String {
        self.at_us += 1000;
        let caller = Caller { id: 2, family: 1 };
        let access = Access { at_us: self.at_us, caller, bucket: 1, key, op, size, range };
        let identity = || WorkloadIdentity {
            name: Some("a".into()),
            user_agent: Some("torch/2".into()),
            batch_size: Some(8),
            gpu_count: Some(2),
        };
        let seen = self.engine.observe(&access, identity);
        let (engine, reported) = (&self.engine, &mut self.reported);
        let verdict = engine.with_facts(seen, &access, &NoFacts, |facts| collect(facts, reported));
        for block in crate::touched_blocks(&access.range, BLOCK) {
            self.engine.engine.read(seen, &access, block as u32);
        }
        verdict
    }

    fn read(&mut self, key: &str) -> String {
        self.request(Op::Read, key, 1000, 0..1000)
    }

    /// Reads the objects with these numbers of a dataset and returns the pattern of the last read.
    fn reads(&mut self, numbers: impl Iterator<Item = u64>) -> String {
        numbers.map(|n| self.read(&format!("set/{n:05}.bin"))).last().unwrap()
    }

    /// Returns the access pattern of an object, as evaluated much later.
    fn pattern_at_rest(&mut self, key: &str) -> String {
        let object = UnreadBlock { bucket: 1, key, size: 1000, number: 0 };
        let (engine, reported) = (&self.engine, &mut self.reported);
        engine.with_facts_of(10 * self.at_us, &object, |facts| collect(facts, reported))
    }
}

/// Records all facts and returns the access pattern.
fn collect(facts: &dyn Facts, reported: &mut ReportedFacts) -> String {
    for row in PROPERTIES {
        let Some(value) = facts.fact(row.property, "").and_then(|fact| fact.to_value()) else { continue };
        let words = reported.entry(row.property).or_default();
        if let (ValueKind::Word(_), Value::Text(word)) = (row.kind, value) {
            words.insert(word);
        }
    }
    match facts.fact(Property::Pattern, "").and_then(|fact| fact.to_value()) {
        Some(Value::Text(word)) => word.into(),
        other => panic!("{other:?}"),
    }
}

/// Returns pseudo-random numbers below `below`.
fn pseudo_random(below: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |n: u64| mix_hash((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) % below)
}

/// Returns all numbers below `count` in a pseudo-random order, a different one for each `seed`.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    all.sort_by_key(|n| mix_hash((n + 1 + (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    all
}

/// Returns the reported pattern of a dataset that is read in the pattern `read_so`.
fn pattern_of_reads(bench: &mut FactsBench, read_so: AccessPattern) -> String {
    match read_so {
        AccessPattern::Unknown => bench.reads(0..1),
        AccessPattern::Sequential => bench.reads((0..3).flat_map(|_| 0..200)),
        AccessPattern::Shuffled => bench.reads((0..3).flat_map(|epoch| shuffled(200, epoch))),
        AccessPattern::ShardShuffled => {
            let shards = (0..3).flat_map(|epoch| shuffled(40, epoch));
            let mut part = |shard: u64, n: u64| {
                bench.request(Op::Read, &format!("set/{shard:05}.tar"), 80_000, n * 10_000..(n + 1) * 10_000)
            };
            shards.map(|shard| (0..8).map(|n| part(shard, n)).last().unwrap()).last().unwrap()
        }
        AccessPattern::Ranged => {
            let mut part =
                |file: u64, range| bench.request(Op::Read, &format!("set/{file}.parquet"), 80_000, range);
            let footer_and_column = |file| [part(file, 79_000..80_000), part(file, 20_000..30_000)];
            (0..40).flat_map(footer_and_column).last().unwrap()
        }
        AccessPattern::OnePass => {
            bench.reads(0..200);
            bench.pattern_at_rest("set/00007.bin")
        }
        AccessPattern::Skewed => {
            let few = pseudo_random(1000).map(|n| ((n as f64 / 1000.0).powi(3) * 300.0) as u64);
            bench.reads(few.take(4000))
        }
        AccessPattern::Random => bench.reads(pseudo_random(300).take(4000)),
        AccessPattern::Batch => {
            let mut last = String::new();
            for n in pseudo_random(300).take(4000).collect::<Vec<_>>().chunks(16) {
                bench.at_us += 200_000;
                last = bench.reads(n.iter().copied());
            }
            last
        }
        AccessPattern::Checkpoint => {
            (0..4).for_each(|n| drop(bench.request(Op::Write, &format!("run/step-{n}.pt"), 1000, 0..1000)));
            bench.request(Op::Read, "run/step-3.pt", 1000, 0..1000)
        }
        AccessPattern::Validation => {
            let mut last = String::new();
            for epoch in 0..3 {
                bench.reads(shuffled(300, epoch).into_iter());
                last = (0..40).map(|n| bench.read(&format!("val/{n:05}.bin"))).last().unwrap();
            }
            last
        }
    }
}

/// Returns all facts that rules can receive: for reads in each pattern, for files of each kind, and from a
/// server.
pub(crate) fn reported_facts() -> ReportedFacts {
    let mut all = ReportedFacts::new();
    for one in AccessPattern::ALL {
        let mut bench = FactsBench::new();
        pattern_of_reads(&mut bench, *one);
        if *one == AccessPattern::Unknown {
            for key in KINDS {
                bench.request(Op::Write, key, 1000, 0..1000);
                bench.read(key);
            }
        }
        for (property, words) in bench.reported {
            all.entry(property).or_default().extend(words);
        }
    }
    // Tests of the workloads check that each phase occurs. Tests of the gateway check the facts that only a
    // server knows.
    all.entry(Property::Phase).or_default().extend(Phase::WORDS.iter().map(|word| Box::from(*word)));
    let system = PROPERTIES
        .iter()
        .filter(|row| row.condition_type == ConditionType::SystemContext)
        .map(|row| row.property);
    for property in system.chain(SERVER_PROPERTIES) {
        let words = if let ValueKind::Word(words) = property.row().kind { words } else { &[] };
        all.entry(property).or_default().extend(words.iter().map(|word| Box::from(*word)));
    }
    all
}

/// Files of each type.
const KINDS: [&str; 12] = [
    "run/step-1/__0_0.distcp",
    "run/step-1/.metadata",
    "m/model.safetensors",
    "m/config.json",
    "m/tokenizer.json",
    "m/optimizer.pt",
    "imagenet/1.jpg",
    "laion/00001.tar",
    "laion/00001.idx",
    "lake/labels.txt",
    "lake/part.csv",
    "bert/last.ckpt",
];

#[test]
fn each_access_pattern_is_detected() {
    for one in AccessPattern::ALL {
        assert_eq!(pattern_of_reads(&mut FactsBench::new(), *one), one.name());
    }
}

#[test]
fn shards_read_with_one_request_are_in_order_within() {
    let mut bench = FactsBench::new();
    let shards = (0..3).flat_map(|epoch| shuffled(200, epoch));
    let verdict = shards.map(|shard| bench.read(&format!("set/{shard:05}.tar"))).last().unwrap();
    assert_eq!(verdict, AccessPattern::ShardShuffled.name());
}

#[test]
fn every_property_and_word_is_produced() {
    let reported = reported_facts();
    for row in PROPERTIES {
        let words = reported.get(&row.property).unwrap_or_else(|| panic!("{} is never set", row.word));
        if let ValueKind::Word(all) = row.kind {
            let never: Vec<_> = all.iter().filter(|word| !words.contains(**word)).collect();
            assert!(never.is_empty(), "{} is never {never:?}", row.word);
        }
    }
}

/// Returns the frameworks of an object, as evaluated much later.
fn frameworks_of(bench: &FactsBench, key: &str) -> Vec<String> {
    let object = UnreadBlock { bucket: 1, key, size: 1000, number: 0 };
    bench.engine.with_facts_of(10 * bench.at_us, &object, |facts| match facts.fact(Property::Framework, "") {
        Some(Fact::List(list)) => list.iter().map(|one| (*one).to_owned()).collect(),
        _ => Vec::new(),
    })
}

#[test]
fn frameworks_follow_a_change_of_the_program() {
    let without = "version: 1\nframeworks: {huggingface: {enabled: false}, mosaicml: {enabled: false}}";
    let without = [ParsedPolicy::parse("p.yaml", without).unwrap()];
    let without = Arc::new(Program::compile_above_built_in(&without).unwrap());
    for name in ["set/{}.tar", "mixed/{}"] {
        let key = |n: u64| name.replace("{}", &format!("{n:05}"));
        let (mut bench, mut fresh) = (FactsBench::new(), FactsBench::new());
        fresh.engine.set_program(Arc::clone(&without));
        for n in 0..50 {
            bench.read(&key(n));
            fresh.read(&key(n));
        }
        let before = frameworks_of(&bench, &key(7));
        bench.engine.set_program(Arc::clone(&without));
        let after = frameworks_of(&bench, &key(7));
        assert_eq!(after, frameworks_of(&fresh, &key(7)), "{name}");
        assert!(!after.is_empty() && before == after, "{name}: neither is of those that went: {before:?}");
    }
}
