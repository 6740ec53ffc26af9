//! Tests of evaluation without a server.

use super::{above, alone, built_in};
use crate::language::{Environment, Judgement, KeyFacts, OfflineObject, Program};

/// Returns the result of the rule `r` of `program`, and the properties that could not be evaluated.
fn judge_rule(program: &Program, known: OfflineObject<'_>) -> (Judgement, Vec<String>) {
    let facts = KeyFacts::new(program, known);
    let judged = program.judge(&facts);
    let one = judged.iter().find(|one| &*one.rule.rule.id == "r").unwrap();
    (one.judgement, one.unknown.iter().map(|condition| condition.word()).collect())
}

fn rule(matching: &str, conditions: &str) -> Program {
    alone(&format!(
        "
version: 1
rules:
- id: r
  match: {matching}
  conditions: {conditions}
  actions: [{{type: promote}}]
"
    ))
}

const TAR: &str = "{type: file_context, property: extension, operator: equals, value: tar}";
const LARGE: &str = "{type: file_context, property: size, operator: greater_than, value: 1MiB}";
const READ: &str = "{type: access_pattern, property: reads, operator: greater_than, value: 1, weight: 0.5}";

#[test]
fn unknown_facts_leave_a_rule_open() {
    let tar = OfflineObject { key: "a/b.tar", ..OfflineObject::default() };
    let large = OfflineObject { size: Some(2 << 20), ..tar };
    let other = OfflineObject { key: "a/b.jpg", size: Some(1), ..tar };
    let three = format!("[{TAR}, {LARGE}, {READ}]");
    let (all, any) = (rule("all", &three), rule("any", &three));
    let open = |words: &[&str]| (Judgement::Open, words.iter().map(|word| (*word).to_owned()).collect());
    assert_eq!(judge_rule(&all, tar), open(&["size", "reads"]));
    assert_eq!(judge_rule(&all, large), open(&["reads"]));
    assert_eq!(judge_rule(&all, other).0, Judgement::Fails);
    assert_eq!(judge_rule(&any, other).0, Judgement::Open);
    assert_eq!(judge_rule(&any, large).0, Judgement::Matches);
    assert_eq!(judge_rule(&rule("all", &format!("[{TAR}]")), tar), (Judgement::Matches, Vec::new()));
    let most = rule("{threshold: 0.7}", &three);
    assert_eq!(judge_rule(&most, large).0, Judgement::Matches);
    assert_eq!(judge_rule(&most, tar).0, Judgement::Open);
    assert_eq!(judge_rule(&most, other).0, Judgement::Fails);
}

#[test]
fn absent_facts_differ_from_unknown_ones() {
    let exists = |property: &str| {
        rule(
            "all",
            &format!("[{{type: file_context, property: {property}, operator: exists, value: false}}]"),
        )
    };
    let plain = OfflineObject { key: "plain", ..OfflineObject::default() };
    assert_eq!(judge_rule(&exists("extension"), plain).0, Judgement::Matches);
    assert_eq!(judge_rule(&exists("tags.team"), plain).0, Judgement::Open);
}

#[test]
fn plugins_determine_type_and_framework_of_a_key() {
    let of_type = "
version: 1
rules:
- id: r
  conditions:
  - {type: file_context, property: type, operator: equals, value: checkpoint}
  - {type: workload_context, property: framework, operator: contains, value: pytorch}
  - {type: system_context, property: environment, operator: equals, value: production}
  actions: [{type: pin}]
";
    let program = above(of_type, built_in());
    let environment = Some(Environment::Production);
    let known = OfflineObject { key: "run/step-9/__3_0.distcp", environment, ..OfflineObject::default() };
    assert_eq!(judge_rule(&program, known).0, Judgement::Matches);
    let known = OfflineObject { key: "run/notes", environment, ..OfflineObject::default() };
    assert_eq!(judge_rule(&program, known).0, Judgement::Fails);
}
