//! What a program says of a key before anybody has asked for it.
//!
//! Most facts are there only while a server runs. A rule that asks for one of those is neither matched nor
//! not: it stays open, with the conditions that could not be judged. What is said of the others holds in a
//! server, too.

use super::facts::{Fact, Facts, fact_of_key};
use super::framework::Hint;
use super::program::{EffectiveRule, Program};
use super::properties::Property;
use super::rule::{Condition, Match};
use super::words::{Environment, Evaluation, FileType, Word};
use crate::file_types::file_type_by_key;

/// What is known of an object without a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownOfKey<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its bucket.
    pub bucket: Option<&'a str>,
    /// Its bytes.
    pub size: Option<u64>,
    /// The first of them, for what is detected by magic.
    pub first_bytes: Option<&'a [u8]>,
    /// Where the server is to run.
    pub environment: Option<Environment>,
}

/// The facts that follow.
#[derive(Clone, Debug)]
pub struct KeyFacts<'a> {
    known: KnownOfKey<'a>,
    frameworks: Vec<&'a str>,
    file_type: FileType,
}

/// What is said of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Judgement {
    /// It matches, whatever else is so.
    Matches,
    /// It matches if conditions hold that could not be judged.
    Open,
    /// It does not match, whatever else is so.
    Fails,
}

/// A rule and what is said of it.
#[derive(Clone, Debug)]
pub struct Judged<'p> {
    /// The rule.
    pub rule: &'p EffectiveRule,
    /// What is said of it.
    pub judgement: Judgement,
    /// Its conditions that could not be judged.
    pub unknown: Vec<&'p Condition>,
}

impl<'a> KeyFacts<'a> {
    /// What `program` makes of what is known.
    #[must_use]
    pub fn new(program: &'a Program, known: KnownOfKey<'a>) -> Self {
        let frameworks = program.detect(known.key, known.first_bytes, None).map(|(name, _)| name).collect();
        Self { known, frameworks, file_type: file_type_by_key(program, known.key) }
    }

    /// The frameworks that key and first bytes speak for.
    #[must_use]
    pub fn frameworks(&self) -> &[&'a str] {
        &self.frameworks
    }

    /// Whether a fact can be had at all; one that can may still be absent, as the extension of a name without
    /// one.
    #[must_use]
    pub fn knows(&self, property: Property) -> bool {
        match property {
            Property::Key | Property::Path | Property::Name | Property::Extension => true,
            Property::Framework => true,
            _ => self.fact(property, "").is_some(),
        }
    }
}

/// What plugins hint at, and what kind of file that is; the first that fits holds.
const TYPES: [(Hint, FileType); 5] = [
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
    /// What kind of file a key is, as far as frameworks that are looked for hint at it.
    #[must_use]
    pub fn file_type(&self, key: &str) -> Option<FileType> {
        TYPES.into_iter().find(|(hint, _)| self.hints_at(*hint, key)).map(|(_, file_type)| file_type)
    }

    /// What is said of each rule, in the order in which they are tried. Where the first rule that matches is
    /// the only one, none comes after it.
    #[must_use]
    pub fn judge(&self, facts: &KeyFacts<'_>) -> Vec<Judged<'_>> {
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

fn judge<'p>(rule: &'p EffectiveRule, facts: &KeyFacts<'_>) -> Judged<'p> {
    if !rule.is_for(facts) {
        return Judged { rule, judgement: Judgement::Fails, unknown: Vec::new() };
    }
    let conditions = &rule.rule.conditions;
    let (known, unknown): (Vec<_>, Vec<_>) = conditions.iter().partition(|one| facts.knows(one.property));
    let held: Vec<_> = known.iter().filter(|one| one.holds(facts).1).collect();
    let (is_sure, is_possible) = match rule.rule.matching {
        Match::All => (held.len() == conditions.len(), held.len() == known.len()),
        Match::Any => (!held.is_empty(), !unknown.is_empty()),
        Match::Threshold(_) => {
            let sure: f64 = held.iter().map(|one| one.weight).sum();
            let open: f64 = unknown.iter().map(|one| one.weight).sum();
            (rule.is_enough(sure), rule.is_enough(sure + open))
        }
    };
    let judgement = match (is_sure, is_possible) {
        (true, _) => Judgement::Matches,
        (false, true) => Judgement::Open,
        (false, false) => Judgement::Fails,
    };
    Judged { rule, judgement, unknown }
}
