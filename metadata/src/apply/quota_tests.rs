//! Quotas against a model: random commands on buckets and access keys with quotas, one after the other.
//!
//! The model stores the objects and uploads and recomputes the sums each time. A command is rejected if the
//! sums after it would exceed a quota.

use super::{apply, seq_of};
use crate::catalogue::testing::{delete, extent, put, version};
use crate::view::{MemoryRows, RowReader as _, View};
use mlgw_common::{BodyId, BucketId};
use mlgw_formats::command::{
    AbortUpload, Change, Command, CompleteUpload, CreateBucket, CreateUpload, DropBucket, FreezeBucket,
    MirrorBucket, NamedPart, ObjectChange, ObjectCommand, PutCredential, PutObject, PutPart, QuotaSubject,
    Reject, Reply, SetBucketQuota, SetKeyQuota,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::quota::{payer_key_of, payer_row};
use mlgw_formats::schema::usage::bucket_row;
use mlgw_formats::schema::{
    BucketUsage, Credential, Measure, ObjectVersion, PartRecord, Payer, Quota, Upload, credential, decode,
};
use proptest::prelude::{Just, Strategy, any, prop};
use proptest::{prop_oneof, proptest};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const PAYERS: [&str; 3] = ["", "AK", "BK"];

/// A random step; the numbers select its bucket, object, upload or part, if there is one.
#[derive(Clone, Debug)]
enum QuotaStep {
    Put { bucket: u64, key: u8, payer: usize, size: u64, is_exempt: bool },
    Delete { bucket: u64, key: u8 },
    CreateUpload { bucket: u64, key: u8, payer: usize },
    PutPart { which: usize, number: u32, size: u64 },
    Complete { which: usize, named: u8 },
    Abort { which: usize },
    LimitBucket { bucket: u64, quota: Quota },
    LimitKey { payer: usize, quota: Quota },
}

fn quotas() -> impl Strategy<Value = Quota> {
    let bytes = prop::option::weighted(0.8, (0u64..60).prop_map(|n| n * MIB));
    (bytes, prop::option::of(0u64..6)).prop_map(|(bytes, objects)| Quota { bytes, objects })
}

fn steps() -> impl Strategy<Value = QuotaStep> {
    let (bucket, key, payer, which) = (1u64..3, 0u8..5, 0usize..3, any::<usize>());
    let size = || prop_oneof![Just(0), (0u64..20).prop_map(|n| n * MIB)];
    prop_oneof![
        8 => (bucket.clone(), key.clone(), payer.clone(), size(), prop::bool::weighted(0.05)).prop_map(
            |(bucket, key, payer, size, is_exempt)| QuotaStep::Put { bucket, key, payer, size, is_exempt }
        ),
        3 => (bucket.clone(), key.clone()).prop_map(|(bucket, key)| QuotaStep::Delete { bucket, key }),
        2 => (bucket.clone(), key, payer.clone())
            .prop_map(|(bucket, key, payer)| QuotaStep::CreateUpload { bucket, key, payer }),
        5 => (which, 1u32..4, size().prop_map(|size| size.max(5 * MIB)))
            .prop_map(|(which, number, size)| QuotaStep::PutPart { which, number, size }),
        3 => (which, 1u8..8).prop_map(|(which, named)| QuotaStep::Complete { which, named }),
        1 => which.prop_map(|which| QuotaStep::Abort { which }),
        2 => (bucket, quotas()).prop_map(|(bucket, quota)| QuotaStep::LimitBucket { bucket, quota }),
        2 => (1usize..3, quotas()).prop_map(|(payer, quota)| QuotaStep::LimitKey { payer, quota }),
    ]
}

/// Size and `seq` of each part.
type Parts = BTreeMap<u32, (u64, u64)>;

#[derive(Clone, Debug, Default)]
struct Model {
    /// Payer and size, by bucket and key.
    objects: BTreeMap<(u64, String), (String, u64)>,
    /// Payer and parts, by bucket, key and body.
    uploads: BTreeMap<(u64, String, u64), (String, Parts)>,
    of_buckets: BTreeMap<u64, Quota>,
    of_keys: BTreeMap<String, Quota>,
}

impl Model {
    /// Usage of the buckets and payers that `of` selects.
    fn sum(&self, of: impl Fn(u64, &str) -> bool) -> BucketUsage {
        let mut usage = BucketUsage::default();
        for ((bucket, _), (payer, size)) in &self.objects {
            if of(*bucket, payer) {
                usage.add(&BucketUsage { objects: 1, versions: 1, bytes: *size, ..BucketUsage::default() });
            }
        }
        for ((bucket, _, _), (payer, parts)) in &self.uploads {
            if of(*bucket, payer) {
                let upload_bytes = parts.values().map(|(size, _)| size).sum();
                usage.add(&BucketUsage { uploads: 1, upload_bytes, ..BucketUsage::default() });
            }
        }
        usage
    }

    /// True if `quota` allows the usage to change from `before` to `after`.
    fn lets(quota: Option<&Quota>, before: &BucketUsage, after: &BucketUsage) -> bool {
        let amounts = |usage: &BucketUsage| [usage.bytes + usage.upload_bytes, usage.versions];
        let limits = quota.map_or([None, None], |quota| [quota.bytes, quota.objects]);
        let all = limits.into_iter().zip(amounts(before).into_iter().zip(amounts(after)));
        all.into_iter()
            .all(|(limit, (before, after))| limit.is_none_or(|limit| after <= limit || after <= before))
    }

    /// True if the quotas of this model allow it to become `after`.
    fn may_become(&self, after: &Self) -> bool {
        let of_buckets = [1, 2].into_iter().all(|id| {
            let sum = |model: &Self| model.sum(|bucket, _| bucket == id);
            Self::lets(self.of_buckets.get(&id), &sum(self), &sum(after))
        });
        let of_keys = PAYERS[1..].iter().all(|key| {
            let sum = |model: &Self| model.sum(|_, payer| payer == *key);
            Self::lets(self.of_keys.get(*key), &sum(self), &sum(after))
        });
        of_buckets && of_keys
    }
}

struct Run {
    rows: MemoryRows,
    model: Model,
    index: u64,
    body: u64,
}

fn on(bucket_id: u64, key: &str, change: ObjectChange) -> Change {
    let key = key.to_owned();
    let change = Some(change);
    Change::Object(ObjectCommand {
        bucket_id,
        epoch: 1,
        key,
        now_ms: 1000,
        change,
        ..ObjectCommand::default()
    })
}

fn name(key: u8) -> String {
    format!("k{key}")
}

fn create(rows: &mut MemoryRows, buckets: u64) -> u64 {
    let mut changes = Vec::new();
    for id in 1..=buckets {
        changes
            .push(Change::CreateBucket(CreateBucket { name: format!("b{id}"), ..CreateBucket::default() }));
        changes.push(Change::MirrorBucket(MirrorBucket {
            bucket_id: id,
            epoch: 1,
            ..MirrorBucket::default()
        }));
    }
    for access_key in &PAYERS[1..] {
        let credential = Credential { access_key: (*access_key).to_owned(), ..Credential::default() };
        changes.push(Change::PutCredential(PutCredential { credential }));
    }
    let count = changes.len() as u64;
    for (index, change) in changes.into_iter().enumerate() {
        done(rows, index as u64, change).unwrap();
    }
    count
}

/// Applies one command in a batch of its own.
fn done(rows: &mut MemoryRows, index: u64, change: Change) -> Result<Reply, Reject> {
    let mut view = View::new(rows);
    let reply = apply(&mut view, &Command::from(change), seq_of(index, 0)).unwrap();
    let (changes, freed) = view.into_changes();
    assert!(reply.is_ok() || (changes.is_empty() && freed.is_empty()), "a refusal changed {changes:?}");
    rows.write(changes);
    reply
}

impl Run {
    fn new() -> Self {
        let mut rows = MemoryRows::default();
        let index = create(&mut rows, 2);
        Self { rows, model: Model::default(), index, body: 0 }
    }

    fn step(&mut self, step: &QuotaStep) {
        let before = self.model.clone();
        let mut after = before.clone();
        let Some(change) = self.effect(step, &mut after) else { return };
        let is_exempt = matches!(step, QuotaStep::Put { is_exempt: true, .. });
        let may = is_exempt || before.may_become(&after);
        let outcome = done(&mut self.rows, self.index, change);
        self.index += 1;
        match outcome {
            Ok(_) => {
                assert!(may, "{step:?} goes over a quota");
                self.model = after;
            }
            Err(Reject::QuotaExceeded { of, excess }) => {
                assert!(!may, "{step:?} was refused: {of} {excess:?}");
                if let QuotaSubject::Key(key) = &of {
                    let (quota, usage) = (before.of_keys[key], before.sum(|_, payer| payer == key));
                    assert_eq!(Some(excess.limit), quota.limit(excess.measure));
                    assert_eq!(excess.used, excess.measure.amount_in(&usage));
                }
            }
            Err(other) => panic!("{step:?}: {other}"),
        }
    }

    /// Applies a step to the model and returns its command; `None` if the step has no target.
    fn effect(&mut self, step: &QuotaStep, after: &mut Model) -> Option<Change> {
        Some(match step.clone() {
            QuotaStep::Put { bucket, key, payer, size, is_exempt } => {
                after.objects.insert((bucket, name(key)), (PAYERS[payer].to_owned(), size));
                self.body += 1;
                let paid =
                    ObjectVersion { payer: PAYERS[payer].to_owned(), ..version(BodyId(self.body), size) };
                let ObjectChange::Put(put) = put(paid) else { unreachable!("it is a put") };
                on(bucket, &name(key), ObjectChange::Put(PutObject { is_exempt, ..put }))
            }
            QuotaStep::Delete { bucket, key } => {
                after.objects.remove(&(bucket, name(key)));
                on(bucket, &name(key), delete())
            }
            QuotaStep::CreateUpload { bucket, key, payer } => {
                self.body += 1;
                let (body_id, key, payer) = (self.body, name(key), PAYERS[payer].to_owned());
                after.uploads.insert((bucket, key.clone(), body_id), (payer.clone(), Parts::new()));
                let upload = Upload { body_id, key: key.clone(), payer, ..Upload::default() };
                on(bucket, &key, ObjectChange::CreateUpload(CreateUpload { upload }))
            }
            QuotaStep::PutPart { which, .. }
            | QuotaStep::Complete { which, .. }
            | QuotaStep::Abort { which } => {
                let at = after.uploads.keys().nth(which % after.uploads.len().max(1)).cloned()?;
                on(at.0, &at.1.clone(), self.effect_on_upload(step, at, after)?)
            }
            QuotaStep::LimitBucket { bucket, quota } => {
                after.of_buckets.insert(bucket, quota);
                let name = format!("b{bucket}");
                Change::SetBucketQuota(SetBucketQuota { name, bucket_id: bucket, quota: Some(quota) })
            }
            QuotaStep::LimitKey { payer, quota } => {
                let access_key = PAYERS[payer].to_owned();
                after.of_keys.insert(access_key.clone(), quota);
                Change::SetKeyQuota(SetKeyQuota { access_key, quota: Some(quota) })
            }
        })
    }

    fn effect_on_upload(
        &self,
        step: &QuotaStep,
        at: (u64, String, u64),
        after: &mut Model,
    ) -> Option<ObjectChange> {
        let (body_id, (payer, mut parts)) = (at.2, after.uploads.remove(&at)?);
        match *step {
            QuotaStep::PutPart { number, size, .. } => {
                parts.insert(number, (size, seq_of(self.index, 0).0));
                after.uploads.insert(at, (payer, parts));
                let part = PartRecord { size, extents: vec![extent(1, size)], ..PartRecord::default() };
                Some(ObjectChange::PutPart(PutPart { body_id, number, part }))
            }
            QuotaStep::Complete { named, .. } => {
                parts.retain(|number, _| named & (1 << (number - 1)) != 0);
                let size = parts.values().map(|(size, _)| size).sum();
                after.objects.insert((at.0, at.1), (payer, size));
                let parts: Vec<NamedPart> =
                    parts.iter().map(|(&number, &(_, seq))| NamedPart { number, seq }).collect();
                let complete = CompleteUpload { body_id, parts, ..CompleteUpload::default() };
                (!complete.parts.is_empty()).then_some(ObjectChange::CompleteUpload(complete))
            }
            _ => Some(ObjectChange::AbortUpload(AbortUpload { body_id })),
        }
    }

    /// Compares the counters with the sums.
    fn compare(&self) {
        for id in [1, 2] {
            let counted = self.rows.get(&bucket_row(BucketId(id))).unwrap();
            let counted: BucketUsage = counted.map(|row| decode(&row).unwrap()).unwrap_or_default();
            assert_eq!(counted, self.model.sum(|bucket, _| bucket == id));
        }
        let rows = self.rows.range(&Family::Payer.start(), &Family::Payer.end(), 10).unwrap();
        let counted: BTreeMap<String, Payer> = rows
            .iter()
            .map(|(row, value)| (payer_key_of(row).unwrap().to_owned(), decode(value).unwrap()))
            .collect();
        let expected = PAYERS[1..].iter().map(|key| {
            let quota = self.model.of_keys.get(*key).copied().and_then(Quota::non_empty);
            let usage = self.model.sum(|_, payer| payer == *key);
            ((*key).to_owned(), Payer { usage, quota, slice: None })
        });
        let expected: BTreeMap<_, _> = expected.filter(|(_, payer)| *payer != Payer::default()).collect();
        assert_eq!(counted, expected, "empty rows are deleted, and every other row exists");
    }

    /// Drops a bucket step by step, as its deletion does; its uploads are dropped with it.
    fn drop_bucket(&mut self, id: u64) {
        let held: Vec<String> = self
            .model
            .objects
            .keys()
            .filter(|(bucket, _)| *bucket == id)
            .map(|(_, key)| key.clone())
            .collect();
        let gone = held.iter().map(|key| on(id, key, delete()));
        let drop = || Change::DropBucket(DropBucket { bucket_id: id, rows_max: 1, run: None });
        let freeze = Change::FreezeBucket(FreezeBucket { bucket_id: id, epoch: None });
        for change in gone.chain([freeze]) {
            done(&mut self.rows, self.index, change).unwrap();
            self.index += 1;
        }
        while done(&mut self.rows, self.index, drop()).unwrap() == (Reply::StepDone { more: true }) {
            self.index += 1;
        }
        self.index += 1;
        self.model.objects.retain(|(bucket, _), _| *bucket != id);
        self.model.uploads.retain(|(bucket, _, _), _| *bucket != id);
    }
}

proptest! {
    #[test]
    fn usage_stays_within_quotas_and_equals_the_sum(steps in prop::collection::vec(steps(), 1..60)) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
            run.compare();
        }
        run.drop_bucket(1);
        run.compare();
        run.drop_bucket(2);
        run.compare();
    }
}

fn paid(body: u64, payer: &str, size: u64) -> ObjectChange {
    put(ObjectVersion { payer: payer.to_owned(), ..version(BodyId(body), size) })
}

fn limit(bytes: Option<u64>, objects: Option<u64>) -> Change {
    let quota = Some(Quota { bytes, objects });
    Change::SetBucketQuota(SetBucketQuota { name: "b1".into(), bucket_id: 1, quota })
}

#[test]
fn quotas_include_earlier_commands_of_the_same_entry() {
    let mut rows = MemoryRows::default();
    let index = create(&mut rows, 1);
    let changes = [
        limit(Some(10), None),
        on(1, "a", paid(1, "AK", 6)),
        on(1, "b", paid(2, "AK", 5)),
        on(1, "b", paid(3, "AK", 4)),
        on(1, "a", delete()),
        on(1, "c", paid(4, "AK", 6)),
    ];
    let mut view = View::new(&rows);
    let outcomes = changes.into_iter().enumerate().map(|(position, change)| {
        apply(&mut view, &Command::from(change), seq_of(index, position)).unwrap().is_ok()
    });
    assert_eq!(outcomes.collect::<Vec<_>>(), [true, true, false, true, true, true]);
    let (changes, _) = view.into_changes();
    rows.write(changes);
    let payer: Payer = decode(&rows.get(&payer_row("AK")).unwrap().unwrap()).unwrap();
    assert_eq!((payer.usage.bytes, payer.usage.versions), (10, 2));
}

#[test]
fn a_quota_rejection_names_the_limit_and_its_usage() {
    let mut rows = MemoryRows::default();
    let index = create(&mut rows, 1);
    done(&mut rows, index, on(1, "a", paid(1, "AK", 6))).unwrap();
    for (at, (change, of, measure, limit, used)) in [
        (limit(Some(10), None), QuotaSubject::Bucket, Measure::Bytes, 10, 6),
        (limit(Some(100), Some(1)), QuotaSubject::Bucket, Measure::Objects, 1, 1),
        (limit(None, None), QuotaSubject::Key("AK".into()), Measure::Bytes, 7, 6),
    ]
    .into_iter()
    .enumerate()
    {
        let index = index + 1 + 3 * at as u64;
        done(&mut rows, index, change).unwrap();
        let quota = Some(Quota { bytes: Some(7), objects: None }).filter(|_| at == 2);
        let of_key = SetKeyQuota { access_key: "AK".into(), quota };
        done(&mut rows, index + 1, Change::SetKeyQuota(of_key)).unwrap();
        let refused = done(&mut rows, index + 2, on(1, "b", paid(2, "AK", 5)));
        let excess = mlgw_formats::schema::Excess { measure, limit, used };
        assert_eq!(refused, Err(Reject::QuotaExceeded { of, excess }));
    }
    done(&mut rows, index + 20, on(1, "b", paid(2, "BK", 5))).unwrap();
    done(&mut rows, index + 21, on(1, "c", paid(3, "", 5))).unwrap();
}

#[test]
fn a_quota_survives_changes_of_its_access_key_but_not_its_deletion() {
    let mut rows = MemoryRows::default();
    let index = create(&mut rows, 1);
    let quota = Some(Quota { bytes: Some(7), objects: None });
    let limit = SetKeyQuota { access_key: "AK".into(), quota };
    done(&mut rows, index, Change::SetKeyQuota(limit)).unwrap();
    done(&mut rows, index + 1, on(1, "a", paid(1, "AK", 6))).unwrap();
    let disabled = Credential { access_key: "AK".into(), disabled: true, ..Credential::default() };
    let change = Change::PutCredential(PutCredential { credential: disabled.clone() });
    done(&mut rows, index + 2, change).unwrap();
    let stored: Credential = decode(&rows.get(&credential::row("AK")).unwrap().unwrap()).unwrap();
    assert_eq!(stored, Credential { quota, ..disabled });
    let payer =
        |rows: &MemoryRows| rows.get(&payer_row("AK")).unwrap().map(|row| decode::<Payer>(&row).unwrap());
    assert_eq!(payer(&rows).unwrap().quota, quota);
    let gone = mlgw_formats::command::DeleteCredential { access_key: "AK".into() };
    done(&mut rows, index + 3, Change::DeleteCredential(gone)).unwrap();
    let left = payer(&rows).unwrap();
    assert_eq!((left.quota, left.usage.bytes), (None, 6), "its writes still count for it");
    done(&mut rows, index + 4, on(1, "a", delete())).unwrap();
    assert_eq!(payer(&rows), None);
}
