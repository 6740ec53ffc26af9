//! Evaluates rules on keys alone, without accesses.
//!
//! Some rules can be decided from the facts about a key alone. The others stay open, and the answer lists
//! the missing properties.

use mlgw_api::{KeyTestResult, PolicyTestResult, RuleTestResult, TestedRuleMatch, UndecidedRuleMatch};
use mlgw_policies::language::{
    EffectiveRule, Judgement, KeyFacts, OfflineObject, Program, RuleJudgement, Target,
};
use std::collections::BTreeSet;

/// Returns the answer before any key is tried.
#[must_use]
pub fn empty_answer(program: &Program) -> PolicyTestResult {
    let rule = |rule: &EffectiveRule| RuleTestResult {
        rule: rule.rule.id.to_string(),
        from: rule.source.to_string(),
        matched: 0,
        open: 0,
        of: 0,
        not_judged: BTreeSet::new(),
    };
    PolicyTestResult { tried: 0, keys: Vec::new(), rules: program.rules().iter().map(rule).collect() }
}

/// Evaluates a key. The answer has details of the first `limit` keys.
pub fn try_key(examined: &mut PolicyTestResult, program: &Program, known: OfflineObject<'_>, limit: usize) {
    let facts = KeyFacts::new(program, known);
    let judged = program.judge(&facts);
    examined.tried += 1;
    examined.rules.iter_mut().for_each(|rule| rule.of += 1);
    for (rule, one) in examined.rules.iter_mut().zip(&judged) {
        rule.matched += u64::from(one.judgement == Judgement::Matches);
        if one.judgement == Judgement::Open {
            rule.open += 1;
            rule.not_judged.extend(words(one));
        }
    }
    if examined.keys.len() < limit {
        examined.keys.push(examine_key(known, &facts, &judged));
    }
}

fn examine_key(
    known: OfflineObject<'_>,
    facts: &KeyFacts<'_>,
    judged: &[RuleJudgement<'_>],
) -> KeyTestResult {
    let are = |judgement| judged.iter().filter(move |one: &&RuleJudgement<'_>| one.judgement == judgement);
    let matched = |one: &RuleJudgement<'_>| TestedRuleMatch { rule: id(one), actions: actions(one.rule) };
    let open =
        |one: &RuleJudgement<'_>| UndecidedRuleMatch { rule: id(one), not_judged: words(one).collect() };
    KeyTestResult {
        key: known.key.to_owned(),
        bucket: known.bucket.map(str::to_owned),
        size: known.size,
        frameworks: facts.frameworks().iter().map(|name| (*name).to_owned()).collect(),
        matched: are(Judgement::Matches).map(matched).collect(),
        open: are(Judgement::Open).map(open).collect(),
    }
}

fn id(one: &RuleJudgement<'_>) -> String {
    one.rule.rule.id.to_string()
}

/// Properties that could not be evaluated.
fn words<'j>(one: &'j RuleJudgement<'_>) -> impl Iterator<Item = String> + 'j {
    one.unknown.iter().map(|condition| condition.word())
}

/// Formats actions, e.g. `pin checkpoint_group (observe)`; an action with the stance `observe` differs from
/// an acting one in that suffix only.
fn actions(rule: &EffectiveRule) -> Vec<String> {
    let action = |action: &mlgw_policies::language::Action| {
        let target = match &action.target {
            Target::Object => String::new(),
            other => format!(" {other}"),
        };
        let stance = action.stance.map(|stance| format!(" ({stance})")).unwrap_or_default();
        format!("{}{target}{stance}", action.kind)
    };
    rule.actions().map(|(one, _)| action(one)).collect()
}

/// Parses a line of a list of keys. A line such as `s3://bucket/key` has the bucket, too; an empty line has
/// no key.
#[must_use]
pub fn key_of_line(line: &str) -> Option<OfflineObject<'_>> {
    let key = line.trim_end_matches('\r');
    let (bucket, key) = match key.strip_prefix("s3://").and_then(|rest| rest.split_once('/')) {
        Some((bucket, key)) => (Some(bucket), key),
        None => (None, key),
    };
    (!key.is_empty()).then(|| OfflineObject { key, bucket, ..OfflineObject::default() })
}
