//! The checkpoints of our own buckets, found by their keys, and what rules and settings say of them.
//!
//! Found anew in every round, so that what is decided of them, deleting above all, rests on what is stored
//! and not on what was heard. The policy engine's own knowledge, which is of bound buckets and of what was
//! heard, is put right by the way.

use mlgw_formats::schema::{Bucket, ObjectVersion};
use mlgw_policies::at_rest::{Area, Areas, By, Claim, Superfluous};
use mlgw_policies::checkpoints::{
    Checkpoints, Generation, GroupId, Keep, Limits, Moment, MustStay, SeriesId, Standing,
};
use mlgw_policies::language::{
    Fact, Facts, FileType, Layer, Program, Property, Retain, Setting, Target, Wish, Word as _,
};
use mlgw_policy_runtime::facts::KnownObject;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Files of checkpoints that are collected before they are told in the order in which they were written: at
/// some 150 bytes each 15 MB.
const FILES_AT_ONCE: usize = 100_000;

/// A file that may be of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct File {
    at: Moment,
    bucket: u64,
    key: String,
    bytes: u64,
}

/// Our own checkpoints, while they are found.
pub struct Finding {
    files: Vec<File>,
    found: Checkpoints,
}

impl Default for Finding {
    fn default() -> Self {
        Self::new()
    }
}

impl Finding {
    /// Nothing is found yet.
    #[must_use]
    pub fn new() -> Self {
        Self { files: Vec::new(), found: Checkpoints::new(Limits::default()) }
    }

    /// An object is there. Says whether it may be of a checkpoint.
    pub fn look(&mut self, bucket: u64, key: &str, at: Moment, bytes: u64) -> bool {
        let is_file = Checkpoints::may_have(key);
        if is_file {
            self.files.push(File { at, bucket, key: key.to_owned(), bytes });
            if self.files.len() >= FILES_AT_ONCE {
                self.tell();
            }
        }
        is_file
    }

    fn tell(&mut self) {
        self.files.sort_unstable();
        for File { at, bucket, key, bytes } in self.files.drain(..) {
            self.found.stored(at, bucket, &key, bytes);
        }
    }

    /// All is found, as of now.
    pub fn end(mut self, now_ms: i64) -> Checkpoints {
        self.tell();
        self.found.settle(micros(now_ms));
        self.found
    }
}

/// When one of our own objects was written, as checkpoints are told apart by it.
pub fn moment_of(object: &ObjectVersion) -> Moment {
    Moment { seq: object.seq, at_us: micros(object.modified_ms) }
}

fn micros(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0).saturating_mul(1000)
}

/// What the engine holds of our own buckets and is not there any more, is forgotten.
pub(super) fn put_right(heard: &mut Checkpoints, own: &Checkpoints, buckets: &BTreeSet<u64>, until_us: u64) {
    let there: BTreeSet<(u64, &str)> =
        own.series().flat_map(|of| own.generations(of.id)).map(|one| (one.bucket, one.prefix)).collect();
    let ours: Vec<SeriesId> =
        heard.series().filter(|of| buckets.contains(&of.bucket)).map(|of| of.id).collect();
    for series in ours {
        let gone = heard
            .generations(series)
            .into_iter()
            .filter(|one| one.last.at_us < until_us && !there.contains(&(one.bucket, one.prefix)));
        let gone: Vec<_> = gone.map(|one| one.id).collect();
        gone.into_iter().for_each(|id| heard.forget(id));
    }
}

/// How many checkpoints of a run stay where no rule says it.
pub(crate) fn checkpoint_keep(program: &Program) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is 1 to 1000")]
    let keep = program.settings().size(Setting::CheckpointKeep) as u32;
    keep
}

/// The newest complete checkpoints of each run are pinned, so many of them, where no rule says otherwise.
pub(crate) fn pin_newest(of: &Checkpoints, keep: u32, is_meant: impl Fn(u64) -> bool, areas: &mut Areas) {
    for series in of.series().filter(|series| is_meant(series.bucket)) {
        let newest = |one: &Generation<'_>| one.generation.is_some_and(|generation| generation < keep);
        for one in of.generations(series.id).iter().filter(|one| newest(one)) {
            let wish = Wish::Pin { period: None, bytes_max: None };
            let claim = Claim { by: By::checkpoint_keep(), wish };
            areas.add(Area::Checkpoint(one.bucket, one.prefix.into()), claim);
        }
    }
}

/// The facts of an object of ours.
pub(crate) struct InCheckpoint<'a> {
    /// What checkpoints tell of it.
    pub(crate) standing: Standing,
    /// The others.
    pub(crate) rest: &'a dyn Facts,
}

impl Facts for InCheckpoint<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        match property {
            // What the engine has heard of it may be less.
            Property::CheckpointGeneration => {
                self.standing.generation.map(|number| Fact::Number(number.into()))
            }
            // Of others plugins may know better what they are.
            Property::Type if self.standing.file_type == Some(FileType::Checkpoint) => {
                Some(Fact::Text(FileType::Checkpoint.name()))
            }
            _ => self.rest.fact(property, name),
        }
    }
}

/// Whether a person wrote a rule of a program, in a policy; by its rank.
pub(crate) fn is_of_person(program: &Program, rank: usize) -> bool {
    let layer = program.rules().get(rank).map(|rule| rule.source.layer);
    matches!(layer, Some(Layer::Custom | Layer::Environment | Layer::Hardware))
}

/// A checkpoint that a rule lets go.
pub struct Spare {
    by: By,
    /// Whether it is to be deleted.
    pub is_deleted: bool,
    /// Which.
    pub id: GroupId,
    /// Why it goes, and what may hold it.
    pub of: Superfluous,
}

/// The checkpoint that a file is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its bucket's id.
    pub bucket: u64,
    /// Its prefix.
    pub prefix: String,
    /// Its run.
    pub series: SeriesId,
}

impl From<&Generation<'_>> for Member {
    fn from(one: &Generation<'_>) -> Self {
        Self { bucket: one.bucket, prefix: one.prefix.to_owned(), series: one.id.series() }
    }
}

/// What rules say of which checkpoints stay.
#[derive(Default)]
pub(crate) struct Retained {
    of: BTreeMap<SeriesId, Said>,
    /// How good checkpoints are, by bucket and prefix.
    measures: HashMap<Name, f64>,
    /// The rank of the strongest rule that pins one.
    pinned: HashMap<Name, usize>,
    /// Datasets that files of one are of.
    datasets: HashMap<Name, BTreeSet<Box<str>>>,
}

/// A checkpoint's bucket and prefix.
type Name = (u64, String);

struct Said {
    by: By,
    retain: Retain,
    /// Whether a person wrote the rule, not the server.
    by_person: bool,
    /// What was heard of which checkpoint.
    heard: BTreeMap<String, Heard>,
}

/// Of how many files of a checkpoint a rule was heard that are more than text. Objects are looked at one
/// after another, a rule may say it twice of one.
#[derive(Default)]
struct Heard {
    tensors: u32,
    last: Box<str>,
}

/// What rules say of more than one object, and which of them say a pin on an object of which the time is
/// over.
pub(crate) struct Wide<'a> {
    pub(crate) areas: &'a Areas,
    pub(crate) is_over: &'a dyn Fn(u64, &str, &By) -> bool,
}

impl Retained {
    /// A rule of `program` with this target says something of an object that is of `one`.
    pub(crate) fn hear(
        &mut self,
        program: &Program,
        (one, object): (&Member, &KnownObject),
        (target, claim): (&Target, &Claim),
    ) {
        match &claim.wish {
            // What a prefix pins need not be this one: areas tell.
            Wish::Pin { .. } if !matches!(target, Target::Prefix(_)) => self.hear_pin(one, claim.by.rank),
            Wish::Retain(retain) => {
                let by_person = is_of_person(program, claim.by.rank);
                let entry = object.metadata.iter().find(|(name, _)| *name == *retain.best_by);
                let entry = entry.map(|(_, value)| value.as_str());
                self.hear_retain((one, &object.key), target, (&claim.by, retain, by_person), entry);
            }
            _ => {}
        }
    }

    /// An object that is of `one` is of this dataset.
    pub(crate) fn hear_dataset(&mut self, one: &Member, dataset: &str) {
        self.datasets.entry(name_of(one)).or_default().insert(dataset.into());
    }

    /// `entry` is what the object's user metadata says of how good it is. Of several rules the strongest is
    /// heard for a run; one whose target is a prefix is heard for checkpoints that begin so.
    fn hear_retain(
        &mut self,
        (one, key): (&Member, &str),
        target: &Target,
        (by, retain, by_person): (&By, &Retain, bool),
        entry: Option<&str>,
    ) {
        if matches!(target, Target::Prefix(prefix) if !one.prefix.starts_with(&**prefix)) {
            return;
        }
        if let Some(measure) = entry.and_then(|text| text.trim().parse().ok()) {
            self.measures.insert(name_of(one), measure);
        }
        let said = || Said { by: by.clone(), retain: retain.clone(), by_person, heard: BTreeMap::new() };
        let held = self.of.entry(one.series).or_insert_with(said);
        if by.rank < held.by.rank {
            *held = said();
        }
        if by.rank == held.by.rank {
            let heard = held.heard.entry(one.prefix.clone()).or_default();
            if *heard.last != *key && Checkpoints::is_tensor(key) {
                heard.tensors += 1;
                heard.last = key.into();
            }
        }
    }

    /// A rule of this rank pins an object that is of `one`.
    fn hear_pin(&mut self, one: &Member, rank: usize) {
        let held = self.pinned.entry(name_of(one)).or_insert(rank);
        *held = rank.min(*held);
    }

    /// What may go: unpinned and moved down, by claims on it; those that are to be deleted are returned, the
    /// oldest of each run first, then the next, and last what stays all the same: so many wait at a time, and
    /// a run of which all must stay takes no other's place.
    pub(super) fn superfluous(
        &self,
        own: &Checkpoints,
        areas: &mut Areas,
        is_over: &dyn Fn(u64, &str, &By) -> bool,
    ) -> Vec<Superfluous> {
        let (mut doomed, mut runs) = (Vec::new(), BTreeMap::<SeriesId, usize>::new());
        for Spare { by, is_deleted, id, of } in self.spare(own, &Wide { areas, is_over }) {
            let area = Area::Checkpoint(of.bucket, of.prefix.as_str().into());
            let down = Wish::Spill { upstream: false, after: std::time::Duration::ZERO };
            for wish in [Wish::Unpin, down] {
                areas.add(area.clone(), Claim { by: by.clone(), wish });
            }
            if is_deleted {
                let nth = runs.entry(id.series()).or_default();
                doomed.push((!of.stays.is_empty(), *nth, of));
                *nth += 1;
            }
        }
        doomed.sort_by_key(|(stays, nth, _)| (*stays, *nth));
        doomed.into_iter().map(|(.., of)| of).collect()
    }

    /// The same, run by run and the oldest first; `wide` is all that rules say of more than one object.
    pub(crate) fn spare(&self, own: &Checkpoints, wide: &Wide<'_>) -> Vec<Spare> {
        let (mut spare, mut doubts) = (Vec::new(), own.all_doubts());
        for (series, Said { by, retain, by_person, heard }) in &self.of {
            let keep = keep_of(retain);
            let measure = |one: &Generation<'_>| {
                let said = self.measures.get(&(one.bucket, one.prefix.to_owned())).copied();
                said.or_else(|| own.measure(one.id, &retain.best_by))
            };
            for id in own.retain(*series, keep, &measure) {
                let Some(one) = own.group(id) else { continue };
                let Some(heard) = heard.get(one.prefix) else { continue };
                if self.is_pinned(own, &one, by, wide) {
                    continue;
                }
                let is_deleted = retain.delete && *by_person;
                let is_unmeasured = retain.keep_best > 0 && measure(&one).is_none();
                let of_rule =
                    [(heard.tensors < one.tensors, MustStay::InPart), (is_unmeasured, MustStay::NoMeasure)];
                let mut stays: Vec<_> =
                    of_rule.into_iter().filter(|(is_so, _)| *is_so).map(|(_, why)| why).collect();
                if is_deleted {
                    stays.extend(doubts.of(id));
                }
                let of = Superfluous {
                    bucket: one.bucket,
                    prefix: one.prefix.to_owned(),
                    rule: by.rule.to_string(),
                    grace: retain.grace,
                    touched_ms: i64::try_from(one.last.at_us / 1000).unwrap_or(i64::MAX),
                    seq: one.last.seq,
                    files: one.files.into(),
                    bytes: one.bytes,
                    stays,
                };
                spare.push(Spare { by: by.clone(), is_deleted, id, of });
            }
        }
        spare
    }

    /// The runs of which one in so many stays.
    pub(super) fn thinned(&self) -> impl Iterator<Item = (SeriesId, Keep)> {
        self.of.iter().map(|(run, said)| (*run, keep_of(&said.retain))).filter(|(_, keep)| keep.every > 0)
    }

    /// Whether a rule that is stronger than `by` pins a checkpoint, or anything of it: by an object, or by
    /// what that belongs to.
    fn is_pinned(&self, own: &Checkpoints, one: &Generation<'_>, by: &By, wide: &Wide<'_>) -> bool {
        let name = (one.bucket, one.prefix.to_owned());
        if self.pinned.get(&name).is_some_and(|rank| *rank < by.rank) {
            return true;
        }
        let datasets = self.datasets.get(&name).into_iter().flatten();
        let datasets: Vec<_> = datasets.map(|name| Some(&**name)).chain([None]).collect();
        let pins = |key: &str| {
            let said = datasets.iter().flat_map(|dataset| wide.areas.of(one.bucket, key, *dataset));
            let mut pins = said.filter(|(_, claim)| matches!(claim.wish, Wish::Pin { .. }));
            pins.any(|(_, claim)| claim.by.rank < by.rank && !(wide.is_over)(one.bucket, key, &claim.by))
        };
        match own.members(one.id) {
            Some(mut members) => members.any(|(rest, ..)| pins(&format!("{}{rest}", one.prefix))),
            None => pins(one.prefix),
        }
    }
}

const fn keep_of(retain: &Retain) -> Keep {
    Keep {
        last: retain.keep_last,
        best: retain.keep_best,
        lowest_is_best: !retain.highest,
        every: retain.keep_every,
    }
}

fn name_of(one: &Member) -> Name {
    (one.bucket, one.prefix.clone())
}

/// The ids of buckets that are our own.
pub fn own_buckets<'b>(buckets: impl Iterator<Item = &'b Bucket>) -> BTreeSet<u64> {
    buckets.filter(|bucket| bucket.binding.is_none()).map(|bucket| bucket.id).collect()
}

#[cfg(test)]
mod tests;
