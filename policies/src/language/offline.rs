//! Evaluation of a program for a key without a running server.
//!
//! Most facts exist only while a server runs. A rule that depends on such a fact neither matches nor fails:
//! it is open, with the conditions that could not be evaluated. The results of the other rules are the same
//! as in a server.

use super::facts::{Fact, Facts, fact_of_key};
use super::framework::Hint;
use super::program::{EffectiveRule, Program};
use super::properties::Property;
use super::rule::{Condition, Match};
use super::words::{Environment, Evaluation, FileType, Word};
use crate::file_types::file_type_by_key;

/// Facts about an object that are known without a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfflineObject<'a> {
    /// Key of the object.
    pub key: &'a str,
    /// Bucket of the object.
    pub bucket: Option<&'a str>,
    /// Bytes of the object.
    pub size: Option<u64>,
    /// First bytes of the object, for detection by magic.
    pub first_bytes: Option<&'a [u8]>,
    /// Environment of the server.
    pub environment: Option<Environment>,
}

/// Facts that follow from a [`OfflineObject`].
#[derive(Clone, Debug)]
pub struct KeyFacts<'a> {
    known: OfflineObject<'a>,
    frameworks: Vec<&'a str>,
    file_type: FileType,
}

/// Result of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Judgement {
    /// The rule matches, whatever the other facts are.
    Matches,
    /// The rule matches if conditions hold that could not be evaluated.
    Open,
    /// The rule does not match, whatever the other facts are.
    Fails,
}

/// A rule and its result.
#[derive(Clone, Debug)]
pub struct RuleJudgement<'p> {
    /// The rule.
    pub rule: &'p EffectiveRule,
    /// The result.
    pub judgement: Judgement,
    /// Conditions that could not be evaluated.
    pub unknown: Vec<&'p Condition>,
}

impl<'a> KeyFacts<'a> {
    /// Derives facts from `known` with the plugins of `program`.
    #[must_use]
    pub fn new(program: &'a Program, known: OfflineObject<'a>) -> Self {
        let frameworks = program.detect(known.key, known.first_bytes, None).map(|(name, _)| name).collect();
        Self { known, frameworks, file_type: file_type_by_key(program, known.key) }
    }

    /// Returns the frameworks detected by key and first bytes.
    #[must_use]
    pub fn frameworks(&self) -> &[&'a str] {
        &self.frameworks
    }

    /// True if a fact can be determined. It may nevertheless be absent, such as the extension of a name
    /// without one.
    #[must_use]
    pub fn can_determine(&self, property: Property) -> bool {
        match property {
            Property::Key | Property::Path | Property::Name | Property::Extension => true,
            Property::Framework => true,
            _ => self.fact(property, "").is_some(),
        }
    }
}

/// File type that follows from each hint; the first hint that matches counts.
const TYPE_BY_HINT: [(Hint, FileType); 5] = [
    (Hint::CheckpointLast, FileType::Checkpoint),
    (Hint::Checkpoints, FileType::Checkpoint),
    (Hint::Models, FileType::Model),
    (Hint::Indexes, FileType::Index),
    (Hint::Shards, FileType::Shard),
];

impl Facts for KeyFacts<'_> {
    fn fact(&self, property: Property, _: &str) -> Option<Fact<'_>> {
        let known = &self.known;
        match property {
            Property::Bucket => known.bucket.map(Fact::Text),
            Property::Size => known.size.map(Fact::Bytes),
            Property::Type => Some(Fact::Text(self.file_type.name())),
            Property::Framework => Some(Fact::List(&self.frameworks)),
            Property::Environment => known.environment.map(|one| Fact::Text(one.name())),
            _ => fact_of_key(known.key, property),
        }
    }
}

impl Program {
    /// Returns the file type of a key according to the hints of the detected frameworks.
    #[must_use]
    pub fn file_type(&self, key: &str) -> Option<FileType> {
        TYPE_BY_HINT.into_iter().find(|(hint, _)| self.has_hint(*hint, key)).map(|(_, file_type)| file_type)
    }

    /// Returns the result of each rule, in the order in which they are tried. If only the first matching rule
    /// counts, the list ends with it.
    #[must_use]
    pub fn judge(&self, facts: &KeyFacts<'_>) -> Vec<RuleJudgement<'_>> {
        let mut judged = Vec::new();
        for rule in self.rules() {
            let one = judge(rule, facts);
            let is_last =
                one.judgement == Judgement::Matches && self.settings().evaluation() == Evaluation::First;
            judged.push(one);
            if is_last {
                break;
            }
        }
        judged
    }
}

fn judge<'p>(rule: &'p EffectiveRule, facts: &KeyFacts<'_>) -> RuleJudgement<'p> {
    if !rule.is_for(facts) {
        return RuleJudgement { rule, judgement: Judgement::Fails, unknown: Vec::new() };
    }
    let conditions = &rule.rule.conditions;
    let (known, unknown): (Vec<_>, Vec<_>) =
        conditions.iter().partition(|one| facts.can_determine(one.property));
    let held: Vec<_> = known.iter().filter(|one| one.holds(facts).1).collect();
    let (is_sure, is_possible) = match rule.rule.matching {
        Match::All => (held.len() == conditions.len(), held.len() == known.len()),
        Match::Any => (!held.is_empty(), !unknown.is_empty()),
        Match::Threshold(_) => {
            let sure: f64 = held.iter().map(|one| one.weight).sum();
            let open: f64 = unknown.iter().map(|one| one.weight).sum();
            (rule.has_enough_weight(sure), rule.has_enough_weight(sure + open))
        }
    };
    let judgement = match (is_sure, is_possible) {
        (true, _) => Judgement::Matches,
        (false, true) => Judgement::Open,
        (false, false) => Judgement::Fails,
    };
    RuleJudgement { rule, judgement, unknown }
}
