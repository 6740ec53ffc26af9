//! Tests of the evaluation of programs for accesses.

use super::{alone, built_in, layers};
use crate::language::{
    ActionKind, ActionRequest, Aspect, Aspects, CachePolicy, DisplacementReason, Fact, FactList, Facts,
    NoFacts, Phase, Priority, Program, Property, Stance, Strategy, Word as _, fact_of_key, resolve,
};
use std::cell::RefCell;

fn facts<'a>(facts: &[(Property, Fact<'a>)]) -> FactList<'a> {
    FactList(facts.iter().map(|(property, fact)| (*property, "", *fact)).collect())
}

fn ids(program: &Program, facts: &dyn Facts) -> Vec<String> {
    program.matching(facts).map(|rule| rule.rule.id.to_string()).collect()
}

fn policy(how: &str) -> String {
    format!(
        "
version: 1
rules:
- id: r
  match: {how}
  conditions:
  - {{type: file_context, property: size, operator: greater_than, value: 1MiB, weight: 0.5}}
  - {{type: file_context, property: name, operator: matches, value: \"*.pt\", weight: 0.3}}
  - {{type: access_pattern, property: reads, operator: greater_or_equal, value: 2, weight: 0.2}}
  actions: [{{type: pin}}]
"
    )
}

#[test]
fn all_any_and_threshold_matching() {
    let big = (Property::Size, Fact::Bytes(2 << 20));
    let named = (Property::Name, Fact::Text("a.pt"));
    let read = (Property::Reads, Fact::Number(2.0));
    for (how, seen, matched, score) in [
        ("all", vec![big, named, read], true, 1.0),
        ("all", vec![big, named], false, 0.8),
        ("any", vec![read], true, 0.2),
        ("any", vec![], false, 0.0),
        ("{threshold: 0.5}", vec![big], true, 0.5),
        ("{threshold: 0.5}", vec![named, read], true, 0.5),
        ("{threshold: 0.6}", vec![big], false, 0.5),
        ("{threshold: 1}", vec![big, named, read], true, 1.0),
    ] {
        let program = alone(&policy(how));
        let facts = facts(&seen);
        let verdict = program.evaluate(&facts);
        assert_eq!(verdict.tried[0].matched, matched, "{how} {seen:?}");
        assert!((verdict.tried[0].score - score).abs() < 1e-9, "{how} {seen:?}");
        assert_eq!(ids(&program, &facts).len(), usize::from(matched));
    }
}

const TWO: &str = "
version: 1
settings: {evaluation: WHICH}
rules:
- id: weak
  priority: 1
  conditions: [{type: file_context, property: key, operator: exists}]
  actions: [{type: pin}, {type: prefetch}]
- id: strong
  priority: 2
  stance: observe
  conditions: [{type: file_context, property: key, operator: exists}]
  actions: [{type: promote, stance: act}, {type: unpin}]
";

#[test]
fn setting_evaluation_selects_all_rules_or_the_first() {
    let key = facts(&[(Property::Key, Fact::Text("k"))]);
    let all = alone(&TWO.replace("WHICH", "all"));
    assert_eq!(ids(&all, &key), ["strong", "weak"]);
    let due: Vec<_> = all.due(&key).map(|due| (due.action.kind, due.stance)).collect();
    assert_eq!(
        due,
        [
            (ActionKind::Promote, Stance::Act),
            (ActionKind::Unpin, Stance::Observe),
            (ActionKind::Pin, Stance::Act),
            (ActionKind::Prefetch, Stance::Act),
        ]
    );
    let first = alone(&TWO.replace("WHICH", "first"));
    assert_eq!(ids(&first, &key), ["strong"]);
    assert_eq!(first.evaluate(&key).tried.len(), 1);
    assert_eq!(first.evaluate(&key).due.len(), 2);
}

#[test]
fn acting_returns_actions_that_act_on_the_given_aspects() {
    let key = facts(&[(Property::Key, Fact::Text("k"))]);
    let aspects: Vec<_> = Aspect::ALL.iter().map(|one| vec![*one]).chain([Aspect::ALL.to_vec()]).collect();
    for which in ["all", "first"] {
        let program = alone(&TWO.replace("WHICH", which));
        for requested in &aspects {
            let due = program
                .due(&key)
                .filter(|due| due.stance == Stance::Act && requested.contains(&due.action.kind.aspect()));
            let acting: Vec<_> =
                program.acting(Aspects::new(requested), &key).map(|due| due.action.kind).collect();
            assert_eq!(acting, due.map(|due| due.action.kind).collect::<Vec<_>>(), "{which} {requested:?}");
        }
    }
    // Only the stronger rule runs, although it has no action for this aspect.
    let first = alone(&TWO.replace("WHICH", "first"));
    assert_eq!(first.acting(Aspects::new(&[Aspect::Pin]), &key).count(), 0);
}

#[test]
fn rules_without_actions_for_an_aspect_are_not_tried() {
    let (program, requested) = (Program::compile_built_in().unwrap(), RefCell::new(Vec::new()));
    let ask = |aspect: Aspect| {
        requested.borrow_mut().clear();
        let facts = RecordedRequests(&requested);
        assert_eq!(program.acting(Aspects::new(&[aspect]), &facts).count(), 0);
        requested.borrow().clone()
    };
    assert_eq!(ask(Aspect::Lane), [Property::Phase, Property::Phase]);
    assert_eq!(ask(Aspect::Tier), [], "built-in rules only observe");
}

/// A source without facts that records the requested properties.
struct RecordedRequests<'a>(&'a RefCell<Vec<Property>>);

impl Facts for RecordedRequests<'_> {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        self.0.borrow_mut().push(property);
        None
    }
}

#[test]
fn absent_facts_satisfy_only_exists_false() {
    let program = alone(
        "
version: 1
rules:
- id: differs
  conditions: [{type: file_context, property: tags.team, operator: not_equals, value: vision}]
  actions: [{type: pin}]
- id: absent
  conditions: [{type: file_context, property: tags.team, operator: exists, value: false}]
  actions: [{type: pin}]
",
    );
    assert_eq!(ids(&program, &NoFacts), ["absent"]);
    let tagged = FactList(vec![(Property::Tag, "team", Fact::Text("speech"))]);
    assert_eq!(ids(&program, &tagged), ["differs"]);
    let other = FactList(vec![(Property::Tag, "owner", Fact::Text("speech"))]);
    assert_eq!(ids(&program, &other), ["absent"]);
}

#[test]
fn rules_of_a_framework_match_only_if_it_is_detected() {
    let built_in = built_in();
    let program = Program::compile(&layers(&[], built_in)).unwrap();
    let name = (Property::Name, Fact::Text("index.json"));
    assert!(ids(&program, &facts(&[name])).is_empty());
    let detected = facts(&[name, (Property::Framework, Fact::List(&["pytorch", "mosaicml"]))]);
    assert_eq!(ids(&program, &detected), ["mosaicml-index"]);
    let verdict = program.evaluate(&facts(&[name]));
    assert!(verdict.tried.iter().any(|one| !one.is_applicable && one.conditions.is_empty()));
}

/// Facts that follow from a key alone.
struct KeyOnlyFacts(&'static str);

impl Facts for KeyOnlyFacts {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        fact_of_key(self.0, property)
    }
}

#[test]
fn reasons_have_the_exact_text() {
    let program = alone(&policy("all"));
    let seen = facts(&[
        (Property::Size, Fact::Bytes(3 << 30)),
        (Property::Name, Fact::Text("a.pt")),
        (Property::Reads, Fact::Number(7.0)),
    ]);
    assert_eq!(
        program.evaluate(&seen).reason(),
        "pin because rule r (priority 0, policy.yaml:4) matched: size is more than 1MiB (3GiB), \
         name matches *.pt (a.pt), reads is at least 2 (7)"
    );
    assert_eq!(
        program.evaluate(&KeyOnlyFacts("x/a.pt")).reason(),
        "no action is due because 0 of 1 rules matched; the closest was r: condition not met: size is more \
            than 1MiB (not known)"
    );
    let two = alone(&TWO.replace("WHICH", "all"));
    assert_eq!(
        two.evaluate(&KeyOnlyFacts("k")).reason(),
        "promote, would unpin because rule strong (priority 2, policy.yaml:9) matched: key exists: true \
            (k); 1 more matched after it"
    );
}

const RIVALS: &str = "
version: 1
rules:
- id: a-pins
  priority: 9
  conditions: [{type: file_context, property: key, operator: exists}]
  actions: [{type: pin}, {type: prefetch, parameters: {depth: 4}}]
- id: b-watches
  priority: 8
  stance: observe
  conditions: [{type: file_context, property: key, operator: exists}]
  actions: [{type: cache, parameters: {keep: false}}]
- id: c-loses
  priority: 7
  conditions: [{type: file_context, property: key, operator: exists}]
  actions: [{type: evict}, {type: prefetch}, {type: pin}, {type: pin, target: dataset}, {type: cache}]
";

#[test]
fn conflicts_are_resolved_by_priority() {
    let program = alone(RIVALS);
    let resolved = resolve(program.due(&KeyOnlyFacts("k")));
    let done: Vec<_> = resolved.done.iter().map(|due| (&*due.rule.rule.id, due.action.kind)).collect();
    assert_eq!(
        done,
        [
            ("a-pins", ActionKind::Pin),
            ("a-pins", ActionKind::Prefetch),
            ("c-loses", ActionKind::Pin),
            ("c-loses", ActionKind::Cache),
        ]
    );
    let lost: Vec<_> = resolved
        .displaced
        .iter()
        .map(|one| (one.due.action.kind, one.stronger.action.kind, one.reason))
        .collect();
    assert_eq!(
        lost,
        [
            (ActionKind::Evict, ActionKind::Pin, DisplacementReason::Contradicts),
            (ActionKind::Prefetch, ActionKind::Prefetch, DisplacementReason::Weaker),
            (ActionKind::Pin, ActionKind::Pin, DisplacementReason::Same),
        ]
    );
    // A rule that only observes does not displace the action of a rule that acts.
    assert_eq!(resolved.observed.len(), 1);
    assert!(matches!(
        resolved.deciding(Aspect::Copy).unwrap().request,
        ActionRequest::Copy { keep: true, .. }
    ));
    assert!(matches!(
        resolved.deciding(Aspect::Prefetch).unwrap().request,
        ActionRequest::Prefetch { depth: 4, .. }
    ));
}

#[test]
fn recommendations_follow_rules_within_the_bounds_of_settings() {
    let program = alone(
        "
version: 1
settings: {cache: none, cache.training: lru, prefetch_depth_max: 16, prefetch_bytes_max: 1GiB, \
         prefetch: conservative}
rules:
- id: ahead
  conditions: [{type: file_pattern, property: name, operator: matches, value: \"*.tar\"}]
  actions: [{type: prefetch, parameters: {depth: 99, bytes: 4GiB, strategy: aggressive}}, {type: cache, \
         parameters: {priority: high}}]
- id: through
  conditions: [{type: file_pattern, property: name, operator: matches, value: \"*.log\"}]
  actions: [{type: stream}]
- id: let-go
  conditions: [{type: file_pattern, property: name, operator: matches, value: \"*.tmp\"}]
  actions: [{type: evict, parameters: {after: 0s}}]
- id: let-go-later
  conditions: [{type: file_pattern, property: name, operator: matches, value: \"*.old\"}]
  actions: [{type: evict, parameters: {after: 1h}}]
",
    );
    let recommended = |key, phase| program.recommend(&program.evaluate(&KeyOnlyFacts(key)), phase);
    let shard = recommended("a.tar", None);
    assert_eq!((shard.cache, shard.cache_priority), (true, Priority::High));
    assert_eq!((shard.prefetch_depth, shard.prefetch_bytes), (16, 1 << 30));
    assert_eq!(shard.prefetch_strategy, Strategy::Aggressive);
    assert!(shard.reason.starts_with("prefetch, cache because rule ahead"), "{}", shard.reason);
    let other = recommended("a.jpg", None);
    assert_eq!((other.cache, other.prefetch_depth), (false, 0));
    assert_eq!(other.prefetch_strategy, Strategy::Conservative);
    assert!(recommended("a.jpg", Some(Phase::Training)).cache);
    let policies = [("a.tar", None), ("a.tar", Some(Phase::Training)), ("a.jpg", None), ("a.log", None)];
    assert_eq!(
        policies.map(|(key, phase)| recommended(key, phase).cache_policy),
        [CachePolicy::TrainingAware, CachePolicy::Lru, CachePolicy::None, CachePolicy::None]
    );
    assert!(!recommended("a.log", Some(Phase::Training)).cache);
    let kept = ["a.tmp", "a.old"].map(|key| recommended(key, Some(Phase::Training)).cache);
    assert_eq!(kept, [false, true], "immediately evicted objects are not kept");
}

/// Checks at compile time that a server can evaluate one program from many threads.
#[test]
fn programs_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Program>();
}

/// To be run manually: `cargo test --release -p mlgw-policies -- --ignored --nocapture cost`.
#[test]
#[ignore = "measures"]
fn cost_of_twenty_rules() {
    let rules: String = (0..20)
        .map(|n| {
            format!(
                "- id: r{n}\n  conditions:\n  - {{type: file_pattern, property: name, operator: matches, \
                 value: \"*.x{n}\"}}\n  - {{type: file_context, property: size, operator: greater_than, \
                 value: {n}MiB}}\n  actions: [{{type: pin}}]\n"
            )
        })
        .collect();
    let program = alone(&format!("version: 1\nrules:\n{rules}"));
    let defaults = built_in();
    let defaults = Program::compile(&layers(&[], defaults)).unwrap();
    for (name, program) in [("twenty rules", &program), ("defaults", &defaults)] {
        let start = mlgw_common::time::Instant::now();
        let rounds = 1_000_000;
        let mut matched = 0;
        for n in 0..rounds {
            let facts = BenchObject { size: 1 << (n % 40) };
            matched += program.due(std::hint::black_box(&facts)).count();
        }
        let each = start.elapsed() / rounds;
        println!("{name}: {each:?} an access, {matched} actions");
    }
}

/// Facts as in a server: a match over a few fields.
struct BenchObject {
    size: u64,
}

impl Facts for BenchObject {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        match property {
            Property::Size => Some(Fact::Bytes(self.size)),
            Property::Pattern => Some(Fact::Text("shuffled")),
            Property::Phase => Some(Fact::Text("training")),
            Property::Type => Some(Fact::Text("sample")),
            Property::Framework => Some(Fact::List(&["pytorch"])),
            Property::Reads => Some(Fact::Number(1.0)),
            _ => fact_of_key("imagenet/train/n01440764/n01440764_10026.jpg", property),
        }
    }
}
