//! Rules on keys, without anybody who reads them.
//!
//! What is known of a key alone decides some rules. The others stay open, and the answer says for want of what.

use mlgw_policies::language::{EffectiveRule, Judged, Judgement, KeyFacts, KnownOfKey, Program, Target};
use serde::Serialize;
use std::collections::BTreeSet;

/// The answer.
#[derive(Debug, Serialize)]
pub struct Examined {
    /// How many keys were tried.
    pub tried: u64,
    /// What is said of the first of them.
    pub keys: Vec<OfKey>,
    /// What is said of each rule, in the order in which they are tried.
    pub rules: Vec<OfRule>,
}

/// What is said of a key.
#[derive(Debug, Serialize)]
pub struct OfKey {
    /// The key.
    pub key: String,
    /// Its bucket, if that was said.
    pub bucket: Option<String>,
    /// Its bytes, if they are known.
    pub size: Option<u64>,
    /// Frameworks that it speaks for.
    pub frameworks: Vec<String>,
    /// Rules that match, whatever else is so.
    pub matched: Vec<Matched>,
    /// Rules that match if something else is so.
    pub open: Vec<Open>,
}

/// A rule that matches.
#[derive(Debug, Serialize)]
pub struct Matched {
    /// The rule.
    pub rule: String,
    /// Its actions, with their targets and stances.
    pub actions: Vec<String>,
}

/// A rule that matches if something else is so.
#[derive(Debug, Serialize)]
pub struct Open {
    /// The rule.
    pub rule: String,
    /// What it asks that is not known of a key.
    pub not_judged: Vec<String>,
}

/// What is said of a rule.
#[derive(Debug, Serialize)]
pub struct OfRule {
    /// The rule.
    pub rule: String,
    /// File and line where it stands.
    pub from: String,
    /// Keys that it matches.
    pub matched: u64,
    /// Keys that it matches if something else is so.
    pub open: u64,
    /// Keys that it was tried on.
    pub of: u64,
    /// What it asks that is not known of a key.
    pub not_judged: BTreeSet<String>,
}

impl Examined {
    /// No key is tried yet.
    #[must_use]
    pub fn of(program: &Program) -> Self {
        let rule = |rule: &EffectiveRule| OfRule {
            rule: rule.rule.id.to_string(),
            from: rule.source.to_string(),
            matched: 0,
            open: 0,
            of: 0,
            not_judged: BTreeSet::new(),
        };
        Self { tried: 0, keys: Vec::new(), rules: program.rules().iter().map(rule).collect() }
    }

    /// Tries a key. Of the first `limit` of them the answer tells.
    pub fn take(&mut self, program: &Program, known: KnownOfKey<'_>, limit: usize) {
        let facts = KeyFacts::new(program, known);
        let judged = program.judge(&facts);
        self.tried += 1;
        self.rules.iter_mut().for_each(|rule| rule.of += 1);
        for (rule, one) in self.rules.iter_mut().zip(&judged) {
            rule.matched += u64::from(one.judgement == Judgement::Matches);
            if one.judgement == Judgement::Open {
                rule.open += 1;
                rule.not_judged.extend(words(one));
            }
        }
        if self.keys.len() < limit {
            self.keys.push(OfKey::of(known, &facts, &judged));
        }
    }
}

impl OfKey {
    fn of(known: KnownOfKey<'_>, facts: &KeyFacts<'_>, judged: &[Judged<'_>]) -> Self {
        let are = |judgement| judged.iter().filter(move |one: &&Judged<'_>| one.judgement == judgement);
        let matched = |one: &Judged<'_>| Matched { rule: id(one), actions: actions(one.rule) };
        let open = |one: &Judged<'_>| Open { rule: id(one), not_judged: words(one).collect() };
        Self {
            key: known.key.to_owned(),
            bucket: known.bucket.map(str::to_owned),
            size: known.size,
            frameworks: facts.frameworks().iter().map(|name| (*name).to_owned()).collect(),
            matched: are(Judgement::Matches).map(matched).collect(),
            open: are(Judgement::Open).map(open).collect(),
        }
    }
}

fn id(one: &Judged<'_>) -> String {
    one.rule.rule.id.to_string()
}

/// The properties that could not be judged.
fn words<'j>(one: &'j Judged<'_>) -> impl Iterator<Item = String> + 'j {
    one.unknown.iter().map(|condition| condition.word())
}

/// `pin checkpoint_group (observe)`; what acts is not told from what is only said otherwise.
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

/// The key of a line of a list. One such as `s3://bucket/key` names its bucket, too; an empty line has none.
#[must_use]
pub fn key_of_line(line: &str) -> Option<KnownOfKey<'_>> {
    let key = line.trim_end_matches('\r');
    let (bucket, key) = match key.strip_prefix("s3://").and_then(|rest| rest.split_once('/')) {
        Some((bucket, key)) => (Some(bucket), key),
        None => (None, key),
    };
    (!key.is_empty()).then(|| KnownOfKey { key, bucket, ..KnownOfKey::default() })
}
