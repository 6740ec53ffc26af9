//! Checkpoints of local buckets, found by their keys, with the rules and settings that apply to them.
//!
//! Each pass finds them anew, so that decisions about them, above all deletions, are based on stored objects
//! and not on observed accesses. The policy engine's own tracker, which covers remote-backed buckets and
//! observed writes, is corrected on the way.

use mlgw_formats::schema::{Bucket, ObjectVersion};
use mlgw_policies::at_rest::{AreaRuleMatches, ExpiredCheckpoint, RuleArea, RuleMatch, RuleSource};
use mlgw_policies::checkpoints::{
    CheckpointFacts, CheckpointIndex, DeletionGuard, Generation, GroupId, Limits, RetentionRule, SeriesId,
    WriteTime,
};
use mlgw_policies::language::{
    ActionRequest, Fact, Facts, FileType, Layer, Program, Property, RetentionRequest, Setting, Target,
    Word as _,
};
use mlgw_policy_runtime::facts::KnownObject;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Files of checkpoints that are collected before they are passed on in the order of their writes: 15 MB at
/// some 150 bytes each.
const FILES_AT_ONCE: usize = 100_000;

/// A file that may belong to a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CheckpointFile {
    at: WriteTime,
    bucket: u64,
    key: String,
    bytes: u64,
}

/// Scan for the checkpoints of local buckets.
pub struct CheckpointScan {
    files: Vec<CheckpointFile>,
    found: CheckpointIndex,
}

impl Default for CheckpointScan {
    fn default() -> Self {
        Self::new()
    }
}

impl CheckpointScan {
    /// Creates an empty scan.
    #[must_use]
    pub fn new() -> Self {
        Self { files: Vec::new(), found: CheckpointIndex::new(Limits::default()) }
    }

    /// Visits an object. Returns true if it may belong to a checkpoint.
    pub fn visit(&mut self, bucket: u64, key: &str, at: WriteTime, bytes: u64) -> bool {
        let is_file = CheckpointIndex::is_relevant(key);
        if is_file {
            self.files.push(CheckpointFile { at, bucket, key: key.to_owned(), bytes });
            if self.files.len() >= FILES_AT_ONCE {
                self.flush();
            }
        }
        is_file
    }

    fn flush(&mut self) {
        self.files.sort_unstable();
        for CheckpointFile { at, bucket, key, bytes } in self.files.drain(..) {
            self.found.record_stored(at, bucket, &key, bytes);
        }
    }

    /// Ends the scan. Returns the checkpoints as of now.
    pub fn finish(mut self, now_ms: i64) -> CheckpointIndex {
        self.flush();
        self.found.mark_quiet(micros(now_ms));
        self.found
    }
}

/// Returns the moment at which an object of a local bucket was written, by which checkpoints are ordered.
pub fn moment_of(object: &ObjectVersion) -> WriteTime {
    WriteTime { seq: object.seq, at_us: micros(object.modified_ms) }
}

fn micros(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0).saturating_mul(1000)
}

/// Removes checkpoints of local buckets from the engine's tracker that no longer exist.
pub(super) fn remove_missing(
    tracked: &mut CheckpointIndex,
    own: &CheckpointIndex,
    buckets: &BTreeSet<u64>,
    until_us: u64,
) {
    let there: BTreeSet<(u64, &str)> =
        own.series().flat_map(|of| own.generations(of.id)).map(|one| (one.bucket, one.prefix)).collect();
    let ours: Vec<SeriesId> =
        tracked.series().filter(|of| buckets.contains(&of.bucket)).map(|of| of.id).collect();
    for series in ours {
        let gone = tracked
            .generations(series)
            .into_iter()
            .filter(|one| one.last.at_us < until_us && !there.contains(&(one.bucket, one.prefix)));
        let gone: Vec<_> = gone.map(|one| one.id).collect();
        gone.into_iter().for_each(|id| tracked.forget(id));
    }
}

/// Returns the number of checkpoints retained per run by default.
pub(crate) fn checkpoint_keep(program: &Program) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is 1 to 1000")]
    let keep = program.settings().size(Setting::CheckpointKeep) as u32;
    keep
}

/// Pins the newest `keep` complete checkpoints of each run, unless a rule overrides it.
pub(crate) fn pin_newest(
    of: &CheckpointIndex,
    keep: u32,
    is_meant: impl Fn(u64) -> bool,
    areas: &mut AreaRuleMatches,
) {
    for series in of.series().filter(|series| is_meant(series.bucket)) {
        let newest = |one: &Generation<'_>| one.generation.is_some_and(|generation| generation < keep);
        for one in of.generations(series.id).iter().filter(|one| newest(one)) {
            let request = ActionRequest::Pin { period: None, bytes_max: None };
            let claim = RuleMatch { by: RuleSource::checkpoint_keep(), request };
            areas.add(RuleArea::Checkpoint(one.bucket, one.prefix.into()), claim);
        }
    }
}

/// Facts about an object of a local bucket.
pub(crate) struct FactsWithCheckpoint<'a> {
    /// Facts that follow from its checkpoint.
    pub(crate) checkpoint_facts: CheckpointFacts,
    /// All other facts.
    pub(crate) rest: &'a dyn Facts,
}

impl Facts for FactsWithCheckpoint<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        match property {
            // The engine's tracker may have observed fewer checkpoints.
            Property::CheckpointGeneration => {
                self.checkpoint_facts.generation.map(|number| Fact::Number(number.into()))
            }
            // For other file types, plugins may have better knowledge.
            Property::Type if self.checkpoint_facts.file_type == Some(FileType::Checkpoint) => {
                Some(Fact::Text(FileType::Checkpoint.name()))
            }
            _ => self.rest.fact(property, name),
        }
    }
}

/// Returns true if the rule with this rank is from a policy written by a user.
pub(crate) fn is_by_user(program: &Program, rank: usize) -> bool {
    let layer = program.rules().get(rank).map(|rule| rule.source.layer);
    matches!(layer, Some(Layer::Custom | Layer::Environment | Layer::Hardware))
}

/// A checkpoint that a rule expires.
pub struct CheckpointExpiry {
    by: RuleSource,
    /// True if the checkpoint is to be deleted.
    pub is_deleted: bool,
    /// Id of the checkpoint.
    pub id: GroupId,
    /// The expired checkpoint, with the guards that may prevent its deletion.
    pub checkpoint: ExpiredCheckpoint,
}

/// Checkpoint that contains a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainingCheckpoint {
    /// Id of the bucket.
    pub bucket: u64,
    /// Prefix of the checkpoint.
    pub prefix: String,
    /// Run of the checkpoint.
    pub series: SeriesId,
}

impl From<&Generation<'_>> for ContainingCheckpoint {
    fn from(one: &Generation<'_>) -> Self {
        Self { bucket: one.bucket, prefix: one.prefix.to_owned(), series: one.id.series() }
    }
}

/// Retention rules on checkpoints.
#[derive(Default)]
pub(crate) struct RetentionMatches {
    of: BTreeMap<SeriesId, RunRetention>,
    /// Measures of checkpoints (such as their loss), by bucket and prefix.
    measures: HashMap<CheckpointName, f64>,
    /// Rank of the strongest rule that pins an object of the checkpoint.
    pinned: HashMap<CheckpointName, usize>,
    /// Datasets that files of the checkpoint belong to.
    datasets: HashMap<CheckpointName, BTreeSet<Box<str>>>,
}

/// Bucket and prefix of a checkpoint.
type CheckpointName = (u64, String);

/// A retention rule that matched an object.
#[derive(Clone, Copy)]
struct RetentionDemand<'a> {
    by: &'a RuleSource,
    retain: &'a RetentionRequest,
    /// True if a user wrote the rule, false if the server did.
    is_by_user: bool,
}

struct RunRetention {
    by: RuleSource,
    retain: RetentionRequest,
    /// True if a user wrote the rule, false if the server did.
    is_by_user: bool,
    /// Matches by prefix of the checkpoint.
    matched: BTreeMap<String, MatchedTensors>,
}

/// Number of tensor files of a checkpoint that the rule matched. Objects are visited one after another, and a
/// rule may match an object twice, which `last` detects.
#[derive(Default)]
struct MatchedTensors {
    tensors: u32,
    last: Box<str>,
}

/// Rule matches on areas, and a predicate for pins on an object whose time is over.
pub(crate) struct ScopedRuleMatches<'a> {
    pub(crate) areas: &'a AreaRuleMatches,
    pub(crate) is_over: &'a dyn Fn(u64, &str, &RuleSource) -> bool,
}

impl RetentionMatches {
    /// Records a match of a rule of `program` with this target on an object of checkpoint `one`.
    pub(crate) fn add_match(
        &mut self,
        program: &Program,
        one: &ContainingCheckpoint,
        object: &KnownObject,
        target: &Target,
        claim: &RuleMatch,
    ) {
        match &claim.request {
            // A pin on a prefix need not cover this object: the areas determine that.
            ActionRequest::Pin { .. } if !matches!(target, Target::Prefix(_)) => {
                self.add_pin(one, claim.by.rank)
            }
            ActionRequest::Retain(retain) => {
                let demand =
                    RetentionDemand { by: &claim.by, retain, is_by_user: is_by_user(program, claim.by.rank) };
                let entry = object.metadata.iter().find(|(name, _)| *name == *retain.best_by);
                let entry = entry.map(|(_, value)| value.as_str());
                self.add_retention_match(one, &object.key, target, demand, entry);
            }
            _ => {}
        }
    }

    /// Records that an object of checkpoint `one` belongs to this dataset.
    pub(crate) fn add_dataset(&mut self, one: &ContainingCheckpoint, dataset: &str) {
        self.datasets.entry(name_of(one)).or_default().insert(dataset.into());
    }

    /// Records a match of a retention rule; `entry` is the measure in the object's user metadata. The
    /// strongest of several rules applies to a run. A rule whose target is a prefix applies to checkpoints
    /// under the prefix.
    fn add_retention_match(
        &mut self,
        one: &ContainingCheckpoint,
        key: &str,
        target: &Target,
        demand: RetentionDemand<'_>,
        entry: Option<&str>,
    ) {
        if matches!(target, Target::Prefix(prefix) if !one.prefix.starts_with(&**prefix)) {
            return;
        }
        if let Some(measure) = entry.and_then(|text| text.trim().parse().ok()) {
            self.measures.insert(name_of(one), measure);
        }
        let RetentionDemand { by, retain, is_by_user } = demand;
        let retention =
            || RunRetention { by: by.clone(), retain: retain.clone(), is_by_user, matched: BTreeMap::new() };
        let held = self.of.entry(one.series).or_insert_with(retention);
        if by.rank < held.by.rank {
            *held = retention();
        }
        assert!(held.by.rank <= by.rank, "the strongest rule on a run applies");
        if by.rank == held.by.rank {
            let matched = held.matched.entry(one.prefix.clone()).or_default();
            if *matched.last != *key && CheckpointIndex::is_tensor(key) {
                matched.tensors += 1;
                matched.last = key.into();
            }
        }
    }

    /// Records that a rule of this rank pins an object of checkpoint `one`.
    fn add_pin(&mut self, one: &ContainingCheckpoint, rank: usize) {
        let held = self.pinned.entry(name_of(one)).or_insert(rank);
        *held = rank.min(*held);
    }

    /// Adds rule matches to `areas` that unpin and spill the expired checkpoints. Returns those to be
    /// deleted: the oldest of each run first, then the next of each run, and guarded ones last. The number of
    /// pending deletions is limited, so that a run whose checkpoints are all guarded takes no place of
    /// another run.
    pub(super) fn expire(
        &self,
        own: &CheckpointIndex,
        areas: &mut AreaRuleMatches,
        is_over: &dyn Fn(u64, &str, &RuleSource) -> bool,
    ) -> Vec<ExpiredCheckpoint> {
        let (mut deletions, mut runs) = (Vec::new(), BTreeMap::<SeriesId, usize>::new());
        for CheckpointExpiry { by, is_deleted, id, checkpoint: of } in
            self.expired(own, &ScopedRuleMatches { areas, is_over })
        {
            let area = RuleArea::Checkpoint(of.bucket, of.prefix.as_str().into());
            let down = ActionRequest::Spill { upstream: false, after: std::time::Duration::ZERO };
            for request in [ActionRequest::Unpin, down] {
                areas.add(area.clone(), RuleMatch { by: by.clone(), request });
            }
            if is_deleted {
                let nth = runs.entry(id.series()).or_default();
                deletions.push((!of.guards.is_empty(), *nth, of));
                *nth += 1;
            }
        }
        deletions.sort_by_key(|(stays, nth, _)| (*stays, *nth));
        deletions.into_iter().map(|(.., of)| of).collect()
    }

    /// Returns the expired checkpoints run by run, oldest first; `wide` are all rule matches on more than one
    /// object.
    pub(crate) fn expired(
        &self,
        own: &CheckpointIndex,
        wide: &ScopedRuleMatches<'_>,
    ) -> Vec<CheckpointExpiry> {
        let (mut expired, mut doubts) = (Vec::new(), own.deletion_checks());
        for (series, RunRetention { by, retain, is_by_user: by_person, matched }) in &self.of {
            let keep = keep_of(retain);
            let measure = |one: &Generation<'_>| {
                let recorded = self.measures.get(&(one.bucket, one.prefix.to_owned())).copied();
                recorded.or_else(|| own.measure(one.id, &retain.best_by))
            };
            for id in own.retain(*series, keep, &measure) {
                let Some(one) = own.group(id) else { continue };
                let Some(tensors) = matched.get(one.prefix) else { continue };
                if self.is_pinned(own, &one, by, wide) {
                    continue;
                }
                let is_deleted = retain.delete && *by_person;
                let is_unmeasured = retain.keep_best > 0 && measure(&one).is_none();
                let of_rule = [
                    (tensors.tensors < one.tensors, DeletionGuard::PartlyMatched),
                    (is_unmeasured, DeletionGuard::NoMeasure),
                ];
                let mut stays: Vec<_> =
                    of_rule.into_iter().filter(|(is_so, _)| *is_so).map(|(_, why)| why).collect();
                if is_deleted {
                    stays.extend(doubts.guards_of(id));
                }
                let of = ExpiredCheckpoint {
                    bucket: one.bucket,
                    prefix: one.prefix.to_owned(),
                    rule: by.rule.to_string(),
                    grace: retain.grace,
                    last_used_ms: i64::try_from(one.last.at_us / 1000).unwrap_or(i64::MAX),
                    seq: one.last.seq,
                    files: one.files.into(),
                    bytes: one.bytes,
                    guards: stays,
                };
                expired.push(CheckpointExpiry { by: by.clone(), is_deleted, id, checkpoint: of });
            }
        }
        expired
    }

    /// Returns the runs that a rule thins to one checkpoint in a given number.
    pub(super) fn thinned(&self) -> impl Iterator<Item = (SeriesId, RetentionRule)> {
        self.of
            .iter()
            .map(|(run, retention)| (*run, keep_of(&retention.retain)))
            .filter(|(_, keep)| keep.every > 0)
    }

    /// Returns true if a rule stronger than `by` pins the checkpoint or a part of it, by an object or by an
    /// area.
    fn is_pinned(
        &self,
        own: &CheckpointIndex,
        one: &Generation<'_>,
        by: &RuleSource,
        wide: &ScopedRuleMatches<'_>,
    ) -> bool {
        let name = (one.bucket, one.prefix.to_owned());
        if self.pinned.get(&name).is_some_and(|rank| *rank < by.rank) {
            return true;
        }
        let datasets = self.datasets.get(&name).into_iter().flatten();
        let datasets: Vec<_> = datasets.map(|name| Some(&**name)).chain([None]).collect();
        let pins = |key: &str| {
            let matches = datasets.iter().flat_map(|dataset| wide.areas.of(one.bucket, key, *dataset));
            let mut pins = matches.filter(|(_, claim)| matches!(claim.request, ActionRequest::Pin { .. }));
            pins.any(|(_, claim)| claim.by.rank < by.rank && !(wide.is_over)(one.bucket, key, &claim.by))
        };
        match own.members(one.id) {
            Some(mut members) => members.any(|(rest, ..)| pins(&format!("{}{rest}", one.prefix))),
            None => pins(one.prefix),
        }
    }
}

const fn keep_of(retain: &RetentionRequest) -> RetentionRule {
    RetentionRule {
        last: retain.keep_last,
        best: retain.keep_best,
        lowest_is_best: !retain.highest,
        every: retain.keep_every,
    }
}

fn name_of(one: &ContainingCheckpoint) -> CheckpointName {
    (one.bucket, one.prefix.clone())
}

/// Returns the ids of local buckets.
pub fn local_buckets<'b>(buckets: impl Iterator<Item = &'b Bucket>) -> BTreeSet<u64> {
    buckets.filter(|bucket| bucket.binding.is_none()).map(|bucket| bucket.id).collect()
}

#[cfg(test)]
mod tests;
