//! The checkpoints of our own buckets, found by their keys, and what rules and settings say of them.
//!
//! Found anew in every round, so that what is decided of them, deleting above all, rests on what is stored and not on what was heard. The policy
//! engine's own knowledge, which is of bound buckets and of what was heard, is put right by the way.

use crate::policies::facts::KnownObject;
use mlgw_metadata::schema::Bucket;
use mlgw_policies::at_rest::{Area, Areas, By, Claim, Superfluous};
use mlgw_policies::checkpoints::{
    Checkpoints, Generation, GroupId, Keep, Limits, MustStay, SeriesId, Standing,
};
use mlgw_policies::language::{
    Fact, Facts, FileType, Layer, Program, Property, Retain, Setting, Target, Wish, Word as _,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Files of checkpoints that are collected before they are told in the order of time: at some 150 bytes each 15 MB.
const FILES_AT_ONCE: usize = 100_000;

/// A file that may be of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct File {
    pub(super) at_ms: i64,
    pub(super) bucket: u64,
    pub(super) key: String,
    pub(super) bytes: u64,
}

/// Our own checkpoints, while they are found.
pub(super) struct Finding {
    files: Vec<File>,
    found: Checkpoints,
}

impl Finding {
    pub(super) fn new() -> Self {
        Self { files: Vec::new(), found: Checkpoints::new(Limits::default()) }
    }

    /// An object is there. Says whether it may be of a checkpoint.
    pub(super) fn look(&mut self, bucket: u64, key: &str, at_ms: i64, bytes: u64) -> bool {
        let is_file = Checkpoints::may_have(key);
        if is_file {
            self.files.push(File { at_ms, bucket, key: key.to_owned(), bytes });
            if self.files.len() >= FILES_AT_ONCE {
                self.tell();
            }
        }
        is_file
    }

    fn tell(&mut self) {
        self.files.sort_unstable();
        for File { at_ms, bucket, key, bytes } in self.files.drain(..) {
            self.found.listed(micros(at_ms), bucket, &key, bytes);
        }
    }

    /// All is found, as of now.
    pub(super) fn end(mut self, now_ms: i64) -> Checkpoints {
        self.tell();
        self.found.settle(micros(now_ms));
        self.found
    }
}

/// As times of checkpoints that were found are told.
pub(super) fn micros(ms: i64) -> u64 {
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
            .filter(|one| one.last_us < until_us && !there.contains(&(one.bucket, one.prefix)));
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
pub(crate) struct Spare {
    by: By,
    /// Whether it is to be deleted.
    pub(crate) is_deleted: bool,
    /// Which.
    pub(crate) id: GroupId,
    pub(crate) of: Superfluous,
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

/// Of how many files of a checkpoint a rule was heard that are more than text. Objects are looked at one after another, a rule may say it twice of one.
#[derive(Default)]
struct Heard {
    tensors: u32,
    last: Box<str>,
}

/// What rules say of more than one object, and which of them say a pin on an object of which the time is over.
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

    /// `entry` is what the object's user metadata says of how good it is. Of several rules the strongest is heard for a run; one whose target is a
    /// prefix is heard for checkpoints that begin so.
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

    /// What may go: unpinned and moved down, by claims on it; those that are to be deleted are returned, the oldest of each run first, then the next, and
    /// last what stays all the same: so many wait at a time, and a run of which all must stay takes no other's place.
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
                doomed.push((of.stays.is_some(), *nth, of));
                *nth += 1;
            }
        }
        doomed.sort_by_key(|(stays, nth, _)| (*stays, *nth));
        doomed.into_iter().map(|(.., of)| of).collect()
    }

    /// The same, run by run and the oldest first; `wide` is all that rules say of more than one object.
    pub(crate) fn spare(&self, own: &Checkpoints, wide: &Wide<'_>) -> Vec<Spare> {
        let mut spare = Vec::new();
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
                let is_unmeasured = retain.keep_best > 0 && measure(&one).is_none();
                let stays = match () {
                    () if heard.tensors < one.tensors => Some(MustStay::InPart),
                    () if is_unmeasured => Some(MustStay::NoMeasure),
                    () => None,
                };
                let of = Superfluous {
                    bucket: one.bucket,
                    prefix: one.prefix.to_owned(),
                    rule: by.rule.to_string(),
                    grace: retain.grace,
                    touched_ms: i64::try_from(one.last_us / 1000).unwrap_or(i64::MAX),
                    files: one.files.into(),
                    bytes: one.bytes,
                    stays,
                };
                spare.push(Spare { by: by.clone(), is_deleted: retain.delete && *by_person, id, of });
            }
        }
        spare
    }

    /// The runs of which one in so many stays.
    pub(super) fn thinned(&self) -> impl Iterator<Item = (SeriesId, Keep)> {
        self.of.iter().map(|(run, said)| (*run, keep_of(&said.retain))).filter(|(_, keep)| keep.every > 0)
    }

    /// Whether a rule that is stronger than `by` pins a checkpoint, or anything of it: by an object, or by what that belongs to.
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
pub(super) fn own_buckets<'b>(buckets: impl Iterator<Item = &'b Bucket>) -> BTreeSet<u64> {
    buckets.filter(|bucket| bucket.binding.is_none()).map(|bucket| bucket.id).collect()
}

#[cfg(test)]
mod tests {
    use super::{Finding, InCheckpoint, Member, MustStay, Retained, pin_newest, put_right};
    use mlgw_policies::at_rest::{Area, Areas, By, Claim, Deeds, Move};
    use mlgw_policies::checkpoints::{Checkpoints, Limits};
    use mlgw_policies::language::{Fact, Facts as _, NoFacts, Property, Retain, Target, Wish};
    use std::collections::BTreeSet;
    use std::time::Duration;

    const NEVER: fn(u64, &str, &By) -> bool = |_, _, _| false;
    const FILES: [&str; 2] = ["__0_0.distcp", ".metadata"];

    fn key(step: u64, file: &str) -> String {
        format!("run/step-{step}/{file}")
    }

    /// Checkpoints of these steps, written in this order, and one that is being written.
    fn own(steps: &[u64]) -> Checkpoints {
        let mut finding = Finding::new();
        let mut keys = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            keys.extend(FILES.iter().enumerate().map(|(n, file)| (key(*step, file), (10 * at + n) as i64)));
        }
        keys.push((key(9999, FILES[0]), 1000));
        // A listing is in the order of keys.
        keys.sort();
        for (key, at_ms) in &keys {
            assert!(finding.look(1, key, *at_ms, 7));
        }
        assert!(!finding.look(1, "train/0.tar", 0, 7));
        finding.end(2000)
    }

    fn deeds(areas: &Areas, step: u64) -> Deeds {
        Deeds::of(areas.of(1, &key(step, FILES[0]), None).map(|(_, claim)| claim), Duration::ZERO, |_| false)
    }

    fn retain(keep_last: u32, keep_best: u32, delete: bool) -> Retain {
        Retain {
            keep_last,
            keep_best,
            best_by: "loss".into(),
            highest: false,
            keep_every: 0,
            delete,
            grace: Duration::from_secs(5),
        }
    }

    #[test]
    fn the_newest_complete_ones_are_pinned_whatever_order_they_are_found_in() {
        let own = own(&[500, 1000, 1500]);
        let mut areas = Areas::default();
        pin_newest(&own, 2, |bucket| bucket == 1, &mut areas);
        let is_pinned = |step| deeds(&areas, step).pin.is_some();
        assert_eq!([500, 1000, 1500, 9999].map(is_pinned), [false, true, true, false]);
        let mut others = Areas::default();
        pin_newest(&own, 2, |bucket| bucket == 2, &mut others);
        assert!(others.is_empty());
        let fact = |step| {
            let (name, rest) = (key(step, FILES[0]), &NoFacts);
            let facts = InCheckpoint { standing: own.standing(1, &name), rest };
            match facts.fact(Property::CheckpointGeneration, "") {
                Some(Fact::Number(number)) => Some(number),
                _ => None,
            }
        };
        assert_eq!([500, 1500, 9999].map(fact), [Some(2.0), Some(0.0), None]);
    }

    #[test]
    fn what_no_rule_keeps_goes_down_and_is_deleted_only_where_a_person_says_so() {
        let own = own(&[500, 1000, 1500, 2000]);
        let by = By { rank: 3, rule: "few".into() };
        let told = |retain: &Retain, by_person: bool, steps: &[u64]| {
            let (mut retained, mut areas) = (Retained::default(), Areas::default());
            for step in steps {
                let name = key(*step, FILES[0]);
                let one = own.group_of(1, &name).unwrap();
                let loss = (2500 - step).to_string();
                let one = Member::from(&one);
                retained.hear_retain((&one, &name), &Target::Object, (&by, retain, by_person), Some(&loss));
            }
            let doomed = retained.superfluous(&own, &mut areas, &NEVER);
            let down = |step: &u64| matches!(deeds(&areas, *step).tier, Some(Move::Down { .. }));
            let down: Vec<u64> = steps.iter().copied().filter(down).collect();
            (down, doomed.into_iter().map(|one| (one.prefix, one.files, one.bytes)).collect::<Vec<_>>())
        };
        let all = [500, 1000, 1500, 2000, 9999];
        assert_eq!(told(&retain(2, 0, false), true, &all), (vec![500, 1000], vec![]));
        assert_eq!(told(&retain(2, 0, true), false, &all), (vec![500, 1000], vec![]), "of the server");
        let (down, doomed) = told(&retain(3, 0, true), true, &all);
        assert_eq!((down, doomed), (vec![500], vec![("run/step-500/".to_owned(), 2, 14)]));
        assert_eq!(told(&retain(1, 2, false), true, &all).0, [500, 1000], "the best two stay");
        assert_eq!(told(&retain(1, 0, true), true, &[1000]).1.len(), 1, "only what the rule matches");
    }

    #[test]
    fn of_rules_that_speak_of_one_run_the_strongest_is_heard() {
        let own = own(&[500, 1000, 1500]);
        let (strong, weak) = (By { rank: 1, rule: "strong".into() }, By { rank: 2, rule: "weak".into() });
        let mut retained = Retained::default();
        for by in [&weak, &strong, &weak] {
            for step in [500, 1000, 1500] {
                let name = key(step, FILES[0]);
                let keep = if by.rank == 1 { retain(2, 0, true) } else { retain(1, 0, true) };
                let one = own.group_of(1, &name).unwrap();
                retained.hear_retain((&Member::from(&one), &name), &Target::Object, (by, &keep, true), None);
            }
        }
        let doomed = retained.superfluous(&own, &mut Areas::default(), &NEVER);
        assert_eq!(
            doomed.iter().map(|one| (&*one.rule, &*one.prefix)).collect::<Vec<_>>(),
            [("strong", "run/step-500/")]
        );
    }

    #[test]
    fn each_run_has_its_oldest_deleted_before_any_has_its_next() {
        let mut finding = Finding::new();
        let keys = ["a", "b"].map(|run| {
            [100, 200, 300]
                .map(|step| FILES.map(|file| format!("{run}/step-{step}/{file}")))
                .into_iter()
                .flatten()
        });
        let mut keys: Vec<String> = keys.into_iter().flatten().collect();
        // A listing is in the order of keys.
        keys.sort();
        for key in &keys {
            assert!(finding.look(1, key, 5, 7));
        }
        let own = finding.end(2000);
        let (by, keep) = (By { rank: 1, rule: "r".into() }, retain(1, 0, true));
        let mut retained = Retained::default();
        for key in &keys {
            let one = Member::from(&own.group_of(1, key).unwrap());
            retained.hear_retain((&one, key), &Target::Object, (&by, &keep, true), None);
        }
        let doomed = retained.superfluous(&own, &mut Areas::default(), &NEVER);
        assert_eq!(
            doomed.iter().map(|one| &*one.prefix).collect::<Vec<_>>(),
            ["a/step-100/", "b/step-100/", "a/step-200/", "b/step-200/"]
        );
    }

    #[test]
    fn what_a_rule_matches_in_part_and_of_the_best_what_nothing_measures_is_not_deleted() {
        let mut finding = Finding::new();
        let files = ["model.safetensors", "optimizer.pt", "trainer_state.json"];
        let all: Vec<String> = [100, 200, 300]
            .iter()
            .flat_map(|step| files.map(|file| format!("o/checkpoint-{step}/{file}")))
            .collect();
        for (at, key) in all.iter().enumerate() {
            assert!(finding.look(1, key, at as i64, 7));
        }
        let own = finding.end(2000);
        let by = By { rank: 1, rule: "r".into() };
        let stays = |keep: &Retain, is_matched: &dyn Fn(&str) -> bool, measured: &[u32]| {
            let mut retained = Retained::default();
            for key in all.iter().filter(|key| is_matched(key)) {
                let measure = measured.iter().find(|step| key.contains(&format!("-{step}/")));
                let measure = measure.map(ToString::to_string);
                let one = Member::from(&own.group_of(1, key).unwrap());
                // A rule may say it twice of one.
                for _ in 0..2 {
                    retained.hear_retain((&one, key), &Target::Object, (&by, keep, true), measure.as_deref());
                }
            }
            let doomed = retained.superfluous(&own, &mut Areas::default(), &NEVER);
            doomed.into_iter().map(|one| (one.prefix, one.stays)).collect::<Vec<_>>()
        };
        let [first, second] = ["o/checkpoint-100/", "o/checkpoint-200/"].map(str::to_owned);
        let (last, best) = (retain(1, 0, true), retain(1, 1, true));
        let is_first = |key: &str| key.starts_with("o/checkpoint-100/");
        for (keep, is_matched, measured, expected) in [
            (
                &last,
                &(|_: &str| true) as &dyn Fn(&str) -> bool,
                &[][..],
                vec![(first.clone(), None), (second.clone(), None)],
            ),
            // Texts need not be matched.
            (&last, &|key| !key.ends_with("json"), &[], vec![(first.clone(), None), (second.clone(), None)]),
            // What stays comes last.
            (
                &last,
                &|key| !is_first(key) || !key.ends_with("/model.safetensors"),
                &[],
                vec![(second.clone(), None), (first.clone(), Some(MustStay::InPart))],
            ),
            (&best, &|_| true, &[100, 200, 300], vec![(second.clone(), None)]),
            (&best, &|_| true, &[100, 300], vec![(second.clone(), Some(MustStay::NoMeasure))]),
            (
                &best,
                &|_| true,
                &[],
                vec![(first.clone(), Some(MustStay::NoMeasure)), (second.clone(), Some(MustStay::NoMeasure))],
            ),
        ] {
            assert_eq!(stays(keep, is_matched, measured), expected);
        }
    }

    #[test]
    fn of_a_prefix_only_checkpoints_that_begin_so_are_let_go() {
        let own = own(&[500, 1000, 1500]);
        let (by, keep) = (By { rank: 1, rule: "r".into() }, retain(1, 0, true));
        let mut retained = Retained::default();
        for step in [500, 1000, 1500] {
            let name = key(step, FILES[0]);
            let one = own.group_of(1, &name).unwrap();
            let target = Target::Prefix("run/step-10".into());
            retained.hear_retain((&Member::from(&one), &name), &target, (&by, &keep, true), None);
        }
        let doomed = retained.superfluous(&own, &mut Areas::default(), &NEVER);
        assert_eq!(doomed.iter().map(|one| &*one.prefix).collect::<Vec<_>>(), ["run/step-1000/"]);
    }

    #[test]
    fn what_a_stronger_rule_pins_with_more_than_it_stays() {
        let own = own(&[500, 1000, 1500]);
        let (by, keep) = (By { rank: 5, rule: "few".into() }, retain(1, 0, true));
        let goes = |area: Option<(Area, usize)>, is_over: bool| {
            let (mut retained, mut areas) = (Retained::default(), Areas::default());
            for step in [500, 1000, 1500] {
                let name = key(step, FILES[0]);
                let one = Member::from(&own.group_of(1, &name).unwrap());
                retained.hear_retain((&one, &name), &Target::Object, (&by, &keep, true), None);
                retained.hear_dataset(&one, &format!("of-{step}"));
            }
            if let Some((area, rank)) = area {
                let wish = Wish::Pin { period: None, bytes_max: None };
                areas.add(area, Claim { by: By { rank, rule: "pins".into() }, wish });
            }
            let doomed = retained.superfluous(&own, &mut areas, &|_, _, _| is_over);
            doomed.into_iter().map(|one| one.prefix).collect::<Vec<_>>()
        };
        let (five, ten) = ("run/step-500/", "run/step-1000/");
        assert_eq!(goes(None, false), [five, ten]);
        for (area, stays) in [
            (Area::Prefix(1, "run/step-500/.meta".into()), five),
            (Area::Prefix(1, "run/step-1".into()), ten),
            (Area::Checkpoint(1, five.into()), five),
            (Area::Dataset(1, "of-500".into()), five),
        ] {
            let other = if stays == five { ten } else { five };
            assert_eq!(goes(Some((area.clone(), 1)), false), [other], "{area}");
            assert_eq!(goes(Some((area.clone(), 9)), false), [five, ten], "{area} of a weaker rule");
            assert_eq!(goes(Some((area, 1)), true), [five, ten], "its time is over");
        }
        assert_eq!(goes(Some((Area::Prefix(2, "run/".into()), 1)), false), [five, ten], "elsewhere");
    }

    #[test]
    fn what_is_not_there_any_more_is_forgotten_of_our_own_buckets() {
        let own = own(&[1000]);
        let mut heard = Checkpoints::new(Limits::default());
        for (bucket, step, at) in [(1, 500, 5), (1, 1000, 6), (1, 2000, 50), (2, 500, 5)] {
            heard.wrote(at, bucket, &key(step, FILES[0]), 7);
        }
        put_right(&mut heard, &own, &BTreeSet::from([1]), 20);
        let is_known = |bucket, step| heard.group_of(bucket, &key(step, FILES[0])).is_some();
        assert_eq!([is_known(1, 500), is_known(1, 1000)], [false, true]);
        assert!(is_known(1, 2000) && is_known(2, 500), "what came since, and what is elsewhere");
    }
}
