//! Tests: caching of copies as set by rules and settings.

use super::PolicyEngine;
use crate::access::{Access, Caller, Op};
use crate::decision_fingerprint::DecisionFingerprint;
use crate::engine::{Advice, CachingRule, Options};
use crate::language::{Fact, Facts, NoFacts, ParsedPolicy, Program, Property};
use crate::reference::{Lru, ReferenceCache as _};
use crate::workloads::WorkloadIdentity;
use std::sync::Arc;

const BLOCK_BYTES: u64 = 1024;

/// A server's policy engine and the fingerprint of its decisions.
struct TestServer {
    decider: PolicyEngine,
    fingerprint: DecisionFingerprint,
    at_us: u64,
}

impl TestServer {
    fn new(blocks: u64, rules: &str) -> Self {
        let capacity_bytes = blocks * BLOCK_BYTES;
        let options = Options { capacity_bytes, blocks_max: 1 << 14, block_bytes: 8 << 20, seed: 7 };
        let decider = PolicyEngine::new(options, Arc::new(program(rules)));
        Self { decider, fingerprint: DecisionFingerprint::default(), at_us: 0 }
    }

    /// Reads an object. Returns its caching rule and true if it was kept.
    fn read(&mut self, key: &str, rest: &dyn Facts) -> (CachingRule, bool) {
        self.at_us += 1000;
        let (at_us, size) = (self.at_us, BLOCK_BYTES);
        let caller = Caller { id: 1, family: 1 };
        let access = Access { at_us, caller, bucket: 1, key, op: Op::Read, size, range: 0..size };
        let seen = self.decider.observe(&access, WorkloadIdentity::default);
        let ruling = self.decider.ruling(seen, &access, rest);
        let advice = self.decider.read(seen, &access, 0, &ruling);
        self.fingerprint.add_read(self.decider.engine.block_id(1, key, 0), advice);
        let Self { decider, fingerprint, .. } = self;
        decider.take_evicted().for_each(|id| fingerprint.add_eviction(id));
        (ruling.caching_rule, advice == Advice::Kept)
    }
}

fn program(text: &str) -> Program {
    Program::compile_above_built_in(&[ParsedPolicy::parse("p.yaml", text).unwrap()]).unwrap()
}

/// Returns skewed reads with an occasional scan.
fn reads() -> impl Iterator<Item = u64> {
    (0..6000_u64).map(|n| {
        let mixed = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        if n % 500 < 100 { 1000 + n } else { (mixed % 14).pow(2) + mixed % 7 }
    })
}

#[test]
fn a_dataset_is_kept_as_lru_by_a_rule() {
    let rule = "
version: 1
rules:
  - id: tables-as-lru
    conditions: [{type: access_pattern, property: dataset, operator: equals, value: 'tables/part-#'}]
    actions: [{type: cache, parameters: {policy: lru}}]
";
    let (mut mind, mut lru) = (TestServer::new(50, rule), Lru::new(50 * BLOCK_BYTES));
    let (mut hits, mut reads_of_lru) = (0, 0);
    for number in reads() {
        let (keeping, is_hit) = mind.read(&format!("tables/part-{number:05}"), &NoFacts);
        assert_eq!(keeping, CachingRule::Recency, "also for kept blocks");
        assert_eq!(is_hit, lru.access(number as u32, BLOCK_BYTES as u32, Op::Read));
        hits += u32::from(is_hit);
        reads_of_lru += 1;
    }
    assert!(hits > reads_of_lru / 4, "{hits} of {reads_of_lru}");
    assert_ne!(mind.read("train/1", &NoFacts).0, CachingRule::Recency);
}

#[test]
fn a_rule_that_only_observes_changes_nothing() {
    let of = |rules: &str| {
        let mut mind = TestServer::new(50, rules);
        for number in reads() {
            mind.read(&format!("tables/{number:05}"), &NoFacts);
        }
        mind.fingerprint
    };
    let rule = |stance: &str| {
        format!(
            "version: 1\nrules: [{{id: r, stance: {stance}, conditions: [{{type: file_context, \
             property: path, operator: equals, value: tables/}}], actions: [{{type: cache, \
             parameters: {{policy: lru}}}}]}}]"
        )
    };
    assert_eq!(of("version: 1"), of(&rule("observe")));
    assert_ne!(of("version: 1"), of(&rule("act")));
    assert!(program(&rule("act")).has_lru_copies() && !program(&rule("observe")).has_lru_copies());
}

/// Facts with a phase for the reader.
struct In(&'static str);

impl Facts for In {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        (property == Property::Phase).then_some(Fact::Text(self.0))
    }
}

#[test]
fn settings_decide_where_no_rule_does() {
    let rules = "
version: 1
settings: {cache.evaluation: lru, cache.tuning: none}
rules:
  - id: dear
    conditions: [{type: file_context, property: path, operator: equals, value: dear/}]
    actions: [{type: cache, parameters: {priority: high}}]
  - id: aware
    conditions: [{type: file_context, property: path, operator: equals, value: aware/}]
    actions: [{type: cache, parameters: {policy: training-aware}}]
  - id: learned
    conditions: [{type: file_context, property: path, operator: equals, value: learned/}]
    actions: [{type: cache, parameters: {policy: learned, priority: low}}]
  - id: passed
    conditions: [{type: file_context, property: path, operator: equals, value: passed/}]
    actions: [{type: cache, parameters: {policy: none}}]
  - id: never
    conditions: [{type: file_context, property: path, operator: equals, value: never/}]
    actions: [{type: cache, parameters: {policy: lru, keep: false}}]
  - id: patient
    conditions: [{type: file_context, property: path, operator: equals, value: patient/}]
    actions: [{type: intelligent_cache, parameters: {min_reads: 3}}]
";
    assert!(program(rules).has_lru_copies());
    let mut mind = TestServer::new(1000, rules);
    let (plain, patient) = (CachingRule::default(), CachingRule::AfterReads(3, 1.0));
    for (path, evaluation, tuning, training) in [
        ("else", CachingRule::Recency, CachingRule::Never, plain),
        ("dear", CachingRule::Recency, CachingRule::Weighted(4.0), CachingRule::Weighted(4.0)),
        ("aware", plain, plain, plain),
        ("learned", CachingRule::Weighted(0.25), CachingRule::Weighted(0.25), CachingRule::Weighted(0.25)),
        ("passed", CachingRule::Never, CachingRule::Never, CachingRule::Never),
        ("never", CachingRule::Never, CachingRule::Never, CachingRule::Never),
        ("patient", patient, patient, patient),
    ] {
        let mut ask = |phase| mind.read(&format!("{path}/of-{phase}"), &In(phase)).0;
        assert_eq!(
            (ask("evaluation"), ask("tuning"), ask("training")),
            (evaluation, tuning, training),
            "{path}"
        );
    }
    for (settings, expected) in
        [("cache: lru", true), ("cache.inference: lru", true), ("cache: learned", false)]
    {
        assert_eq!(program(&format!("version: 1\nsettings: {{{settings}}}")).has_lru_copies(), expected);
    }
}

#[test]
fn rules_are_not_evaluated_for_kept_blocks_without_lru() {
    struct Nobody;
    impl Facts for Nobody {
        fn fact(&self, _: Property, _: &str) -> Option<Fact<'_>> {
            panic!("this must not be called");
        }
    }
    let mut mind = TestServer::new(50, "version: 1");
    assert!(!mind.read("a/1", &NoFacts).1);
    assert_eq!(mind.read("a/1", &Nobody), (CachingRule::Unchanged, true));
}

#[test]
fn rules_see_the_read_count_of_an_object() {
    let mut mind = TestServer::new(
        50,
        "
version: 1
settings: {cache: none}
rules:
  - id: again
    conditions: [{type: access_pattern, property: reads, operator: greater_or_equal, value: 2}]
    actions: [{type: cache, parameters: {policy: training-aware, priority: high}}]
",
    );
    for expected in
        [(CachingRule::Never, false), (CachingRule::Weighted(4.0), false), (CachingRule::Unchanged, true)]
    {
        assert_eq!(mind.read("a/1", &NoFacts), expected);
    }
    assert_eq!(mind.read("a/2", &NoFacts).0, CachingRule::Never);
}

#[test]
fn a_workload_ends_after_the_idle_time_of_the_setting() {
    let mut mind = TestServer::new(8, "version: 1\nsettings: {workload_idle: 1m}\n");
    mind.read("train/0", &NoFacts);
    let is_over = |mind: &TestServer, silent_s: u64| {
        let workload = mind.decider.workloads.get(1).expect("the caller has read");
        !mind.decider.workloads.is_active(workload, mind.at_us + silent_s * 1_000_000)
    };
    assert!(!is_over(&mind, 59) && is_over(&mind, 61));
    mind.decider.set_program(Arc::new(program("version: 1\nsettings: {workload_idle: 1h}\n")));
    assert!(!is_over(&mind, 61));
}

#[test]
fn the_weight_by_a_rule_holds_while_reads_hit() {
    let mut mind = TestServer::new(
        8,
        "
version: 1
rules:
  - id: dear
    conditions: [{type: file_context, property: path, operator: equals, value: dear/}]
    actions: [{type: cache, parameters: {priority: high}}]
",
    );
    let caller = Caller { id: 1, family: 1 };
    for hits in 0..3 {
        assert_eq!(mind.read("dear/0", &NoFacts).1, hits > 0, "the object is kept from the first read on");
        let range = 0..BLOCK_BYTES;
        let (at_us, key, size) = (mind.at_us, "dear/0", BLOCK_BYTES);
        let access = Access { at_us, caller, bucket: 1, key, op: Op::Read, size, range };
        let seen = mind.decider.observe(&access, WorkloadIdentity::default);
        assert_eq!(mind.decider.engine.weight(seen), Some(4.0), "after {hits} hits");
    }
}

#[test]
fn a_checkpoint_written_in_no_order_is_complete_after_a_quiet_time() {
    let mut mind = TestServer::new(64, "version: 1\nrules: []\n");
    let caller = Caller { id: 1, family: 1 };
    for (at_us, key) in [(1, ".metadata"), (2, "__0_0.distcp"), (3, "__1_0.distcp")] {
        let key = format!("r/step-5/{key}");
        let access = Access { at_us, caller, bucket: 1, key: &key, op: Op::Write, size: 9, range: 0..9 };
        mind.decider.observe(&access, WorkloadIdentity::default);
    }
    for (minute, is_complete) in [(5, false), (11, true)] {
        mind.at_us = minute * 60_000_000;
        mind.read("train/0.tar", &NoFacts);
        let found = mind.decider.checkpoints.group_of(1, "r/step-5/.metadata").unwrap();
        assert_eq!(found.is_complete(), is_complete, "after {minute} minutes");
    }
}
