//! Random commands against the catalogue and against a [model](super::model): each outcome is compared, and
//! the whole content now and then and after reopening, with one group and with four.

use super::model::{Model, ModelBucket, ModelPart, ModelVersion};
use super::testing::{NOW, extent, key, name, new_bucket, options};
use super::{Catalogue, CatalogueOptions, CreateBucketError, DeleteBucketError, NewBucket, ProposeError};
use crate::offline::{CheckFinding, Division, Offline, ignore_progress};
use crate::view::{Row, RowReader as _};
use mlgw_common::{BodyId, NodeId, PartNumber, SegmentId, SplitKeys};
use mlgw_formats::command::{
    AbortUpload, Change, Command, CompleteUpload, Conditions, CreateSegment, CreateUpload, DeleteObject,
    EtagCondition, NamedPart, ObjectChange, PutObject, PutPart, Reject, Reply, SetTags, UpdateObject,
    update_object,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::{Bucket, Extent, ExtentPage, ObjectVersion, Pair, PartRecord, Upload};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

/// Small random generator, so that a seed always gives the same test (splitmix64, Steele et al. 2014).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }
}

const BUCKETS: [&str; 2] = ["alpha", "beta"];
const KEYS: [&str; 8] = ["a", "a\0b", "a/b", "b", "m", "m/n", "z", "\u{1F600}"];

/// Options for four groups, with ranges that give each bucket made here keys in every group.
pub(super) fn four_groups(dir: &Path) -> CatalogueOptions {
    let splits = (1..200).flat_map(|bucket| {
        [
            (bucket, b"".to_vec(), 0),
            (bucket, b"a/".to_vec(), 1),
            (bucket, b"m".to_vec(), 2),
            (bucket, b"n".to_vec(), 3),
        ]
    });
    CatalogueOptions { groups: 4, partitions: splits.collect(), ..options(dir) }
}

struct Run {
    catalogue: Catalogue,
    model: Model,
    dice: Dice,
    /// Bodies that were used, for reuse.
    bodies: Vec<BodyId>,
}

fn refers(extents: &[Extent]) -> Vec<(u64, u64)> {
    extents.iter().map(|extent| (extent.segment, extent.record_bytes())).collect()
}

impl Run {
    async fn step(&mut self) {
        let bucket = BUCKETS[self.dice.roll(2) as usize];
        let object = KEYS[self.dice.roll(KEYS.len() as u64) as usize];
        if self.dice.roll(40) == 0 {
            return self.toggle(bucket).await;
        }
        let Some(known) = self.catalogue.bucket(bucket) else {
            assert!(!self.model.buckets.contains_key(bucket));
            return self.toggle(bucket).await;
        };
        let mut of = self.model.buckets.remove(bucket).expect("the model has the bucket too");
        match self.dice.roll(12) {
            0..4 => self.put(&known, &mut of, object).await,
            4..6 => self.delete(&known, &mut of, object).await,
            6 => self.tag(&known, &mut of, object).await,
            7 => self.create_upload(&known, &mut of, object).await,
            8 | 9 => self.put_part(&known, &mut of).await,
            10 => self.complete(&known, &mut of).await,
            _ => self.abort(&known, &mut of).await,
        }
        self.model.buckets.insert(bucket.to_owned(), of);
    }

    async fn toggle(&mut self, bucket: &str) {
        if self.dice.roll(2) == 0 {
            let keys: &[&str] = if self.dice.roll(2) == 0 { &["a/", "m", "n"] } else { &[] };
            let new = NewBucket { split_keys: SplitKeys::new(keys).unwrap(), ..new_bucket(bucket) };
            let made = self.catalogue.create_bucket(new).await;
            match self.model.buckets.contains_key(bucket) {
                true => assert!(matches!(made, Err(CreateBucketError::Exists(_)))),
                false => assert_eq!(made.unwrap().name, bucket),
            }
            self.model.buckets.entry(bucket.to_owned()).or_default();
        } else {
            let deleted = self.catalogue.delete_bucket(&name(bucket)).await;
            match self.model.buckets.get(bucket).map(|bucket| bucket.objects.is_empty()) {
                None => assert_eq!(deleted, Err(DeleteBucketError::NoSuchBucket)),
                Some(false) => assert_eq!(deleted, Err(DeleteBucketError::NotEmpty)),
                Some(true) => {
                    assert_eq!(deleted, Ok(()));
                    self.model.buckets.remove(bucket);
                }
            }
        }
    }

    async fn propose(&self, bucket: &Bucket, object: &str, change: ObjectChange) -> Result<Reply, Reject> {
        let command = Command::object(bucket, &key(object), NOW, change);
        self.catalogue.propose(command).await.map_err(|error| match error {
            ProposeError::Rejected(reject) => reject,
            other => panic!("{other}"),
        })
    }

    fn extents(&mut self, count: u64) -> Vec<Extent> {
        (0..count).map(|_| extent(1 + self.dice.roll(3), 1 + self.dice.roll(9))).collect()
    }

    fn conditions(&mut self, of: &ModelBucket, object: &str) -> Conditions {
        let etag = of.objects.get(object).map_or("none".to_owned(), |version| version.etag.clone());
        let one = match self.dice.roll(3) {
            0 => EtagCondition::any(),
            1 => EtagCondition::one_of(vec!["other".into(), etag]),
            _ => EtagCondition::one_of(vec!["other".into()]),
        };
        match self.dice.roll(6) {
            0 => Conditions { if_match: Some(one), ..Conditions::default() },
            1 => Conditions { if_none_match: Some(one), ..Conditions::default() },
            _ => Conditions::default(),
        }
    }

    async fn put(&mut self, bucket: &Bucket, of: &mut ModelBucket, object: &str) {
        let current = of.objects.get(object).map(|version| BodyId(version.body));
        let body = match current {
            Some(body) if self.dice.roll(10) == 0 => body,
            _ => self.catalogue.body_id().await.unwrap(),
        };
        let count = [0, 1, 3, 300][self.dice.roll(4) as usize];
        let extents = self.extents(count);
        let refers = refers(&extents);
        let size = extents.iter().map(|extent| extent.logical_bytes).sum();
        let conditions = self.conditions(of, object);
        let etag = format!("{body:032}");
        let mut version =
            ObjectVersion { body_id: body.0, size, etag: etag.clone(), ..ObjectVersion::default() };
        let mut pages = Vec::new();
        if count <= 4 {
            version.extents = extents;
        } else {
            let page = |chunk: &[Extent]| ExtentPage { extents: chunk.to_vec(), parts: vec![] };
            pages = extents.chunks(128).map(page).collect();
        }
        let put =
            ObjectChange::Put(PutObject { version, pages, conditions: conditions.clone(), is_exempt: false });
        let done = self.propose(bucket, object, put).await;
        let version = ModelVersion { body: body.0, size, etag, tags: 0, parts: vec![], refers };
        assert_eq!(done.map(drop), of.put(object, version, &conditions), "put {object}");
        self.bodies.push(body);
    }

    async fn delete(&mut self, bucket: &Bucket, of: &mut ModelBucket, object: &str) {
        let conditions = self.conditions(of, object);
        let delete = ObjectChange::Delete(DeleteObject { conditions: conditions.clone() });
        let done = self.propose(bucket, object, delete).await;
        let expected = of.delete(object, &conditions).map(|existed| Reply::Deleted { existed });
        assert_eq!(done, expected, "delete {object}");
    }

    async fn tag(&mut self, bucket: &Bucket, of: &mut ModelBucket, object: &str) {
        let body = match (of.objects.get(object), self.dice.roll(4)) {
            (Some(version), 1..) => version.body,
            _ => 1 << 40,
        };
        let count = self.dice.roll(4) as usize;
        let tags = (0..count).map(|i| Pair::new(format!("t{i}"), "v")).collect();
        let update = ObjectChange::Update(UpdateObject {
            expected_body: body,
            update: Some(update_object::Update::SetTags(SetTags { tags })),
            conditions: Conditions::default(),
        });
        let done = self.propose(bucket, object, update).await;
        assert_eq!(done.map(drop), of.tag(object, body, count), "tag {object}");
    }

    async fn create_upload(&mut self, bucket: &Bucket, of: &mut ModelBucket, object: &str) {
        let body = self.catalogue.body_id().await.unwrap();
        let upload = Upload { body_id: body.0, key: object.to_owned(), ..Upload::default() };
        let done = self.propose(bucket, object, ObjectChange::CreateUpload(CreateUpload { upload })).await;
        assert_eq!(done, Ok(Reply::Done));
        of.uploads.insert((object.to_owned(), body.0), BTreeMap::new());
    }

    fn some_upload(&mut self, of: &ModelBucket) -> (String, u64) {
        let count = of.uploads.len() as u64;
        if count > 0 && self.dice.roll(12) > 0 {
            let at = self.dice.roll(count) as usize;
            return of.uploads.keys().nth(at).cloned().expect("below the count");
        }
        let completed = of.objects.iter().find(|(_, version)| !version.parts.is_empty());
        completed.map_or(("a".to_owned(), 1 << 40), |(object, version)| (object.clone(), version.body))
    }

    async fn put_part(&mut self, bucket: &Bucket, of: &mut ModelBucket) {
        let (object, body) = self.some_upload(of);
        let number = 1 + self.dice.roll(4) as u32;
        let count = [1, 2, 20][self.dice.roll(3) as usize];
        let mut extents = self.extents(count);
        if self.dice.roll(3) > 0 {
            extents[0].logical_bytes += 5 << 20;
            extents[0].stored_bytes += 5 << 20;
        }
        let (size, refers) = (extents.iter().map(|e| e.logical_bytes).sum(), refers(&extents));
        let part = PartRecord { size, etag: format!("p{number}"), extents, ..PartRecord::default() };
        let put = ObjectChange::PutPart(PutPart { body_id: body, number, part });
        let done = self.propose(bucket, &object, put).await;
        match of.uploads.get_mut(&(object, body)) {
            None => assert_eq!(done, Err(Reject::NoSuchUpload)),
            Some(parts) => {
                let Ok(Reply::Part { seq }) = done else { panic!("{done:?}") };
                parts.insert(number, ModelPart { seq, size, refers });
            }
        }
    }

    async fn complete(&mut self, bucket: &Bucket, of: &mut ModelBucket) {
        let (object, body) = self.some_upload(of);
        let stored = of.uploads.get(&(object.clone(), body));
        let mut named: Vec<(u32, u64)> =
            stored.map_or(vec![], |parts| parts.iter().map(|(number, part)| (*number, part.seq)).collect());
        named.retain(|_| self.dice.roll(5) > 0);
        if named.is_empty() {
            named.push((1, self.dice.roll(2)));
        }
        let etag = format!("{body}-{}", named.len());
        let complete = ObjectChange::CompleteUpload(CompleteUpload {
            body_id: body,
            parts: named.iter().map(|&(number, seq)| NamedPart { number, seq }).collect(),
            etag: etag.clone(),
            ..CompleteUpload::default()
        });
        let done = self.propose(bucket, &object, complete.clone()).await;
        assert_eq!(done.clone().map(drop), of.complete(&object, body, &named, &etag), "complete {object}");
        if done.is_ok() {
            assert_eq!(self.propose(bucket, &object, complete).await, done, "it is repeatable");
        }
    }

    async fn abort(&mut self, bucket: &Bucket, of: &mut ModelBucket) {
        let (object, body) = self.some_upload(of);
        let abort = ObjectChange::AbortUpload(AbortUpload { body_id: body });
        let done = self.propose(bucket, &object, abort).await;
        let expected = of.uploads.remove(&(object, body)).map(|_| Reply::Done);
        assert_eq!(done, expected.ok_or(Reject::NoSuchUpload));
    }

    /// Compares everything that can be read.
    async fn compare(&self) {
        for (name, of) in &self.model.buckets {
            let bucket = self.catalogue.bucket(name).expect("the catalogue has the bucket too");
            self.compare_objects(&bucket, of);
            self.compare_uploads(&bucket, of);
            let usage = self.catalogue.usage(bucket.bucket_id()).unwrap();
            assert_eq!((usage.objects, usage.versions), (of.objects.len() as u64, of.objects.len() as u64));
            assert_eq!(usage.bytes, of.objects.values().map(|version| version.size).sum::<u64>());
            assert_eq!(usage.uploads, of.uploads.len() as u64);
            let parts = of.uploads.values().flat_map(|parts| parts.values());
            assert_eq!(usage.upload_bytes, parts.map(|part| part.size).sum::<u64>());
        }
        self.catalogue.inner.release_all().await.unwrap();
        let referenced = self.model.referenced();
        for segment in 1..=3 {
            let usage = self.catalogue.segment_usage(SegmentId(segment)).unwrap();
            assert_eq!(usage.bytes, referenced.get(&segment).copied().unwrap_or(0), "segment {segment}");
        }
    }

    fn compare_objects(&self, bucket: &Bucket, of: &ModelBucket) {
        let reader = self.catalogue.reader();
        let listed: Vec<(String, ObjectVersion)> = reader
            .scan(bucket.bucket_id(), Bound::Unbounded)
            .map(|entry| {
                entry.map(|(key, entry)| (key.as_str().to_owned(), entry.version().unwrap())).unwrap()
            })
            .collect();
        let keys: Vec<&String> = listed.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, of.objects.keys().collect::<Vec<_>>());
        for ((object, version), expected) in listed.iter().zip(of.objects.values()) {
            let read = self.catalogue.object(bucket.bucket_id(), &key(object)).unwrap();
            assert_eq!(read.as_ref(), Some(version));
            assert_eq!((version.body_id, version.size), (expected.body, expected.size));
            assert_eq!((version.tags.len(), &version.etag), (expected.tags, &expected.etag));
            assert_eq!(self.map_of(bucket, object, version), expected.refers, "{object}");
        }
        for after in KEYS {
            let rest = reader.scan(bucket.bucket_id(), Bound::Excluded(after.as_bytes())).count();
            let beyond = (Bound::Excluded(after.to_owned()), Bound::Unbounded);
            assert_eq!(rest, of.objects.range(beyond).count(), "after {after:?}");
            let mut scan = reader.scan(bucket.bucket_id(), Bound::Unbounded);
            scan.seek(Bound::Included(after.as_bytes()));
            assert_eq!(scan.count(), of.objects.range(after.to_owned()..).count(), "from {after:?}");
        }
    }

    /// References of a version, read as a GET reads them.
    fn map_of(&self, bucket: &Bucket, object: &str, version: &ObjectVersion) -> Vec<(u64, u64)> {
        let reader = self.catalogue.reader();
        let (id, object) = (bucket.bucket_id(), key(object));
        let mut found = refers(&version.extents);
        let mut next = 0;
        for page in reader.extent_pages(id, &object, version.body(), 0) {
            let (first, page) = page.unwrap();
            assert_eq!(first, next, "pages follow each other");
            next += page.logical_bytes();
            found.extend(refers(&page.extents));
            for range in &page.parts {
                let number = PartNumber::new(range.number).unwrap();
                let part = self.catalogue.part(id, &object, version.body(), number).unwrap().unwrap();
                assert_eq!(part.size, range.bytes);
                found.extend(refers(&part.extents));
            }
        }
        if version.is_paged() {
            assert_eq!(next, version.size);
            let (first, page) =
                reader.extent_pages(id, &object, version.body(), version.size - 1).next().unwrap().unwrap();
            assert!(first < version.size && version.size <= first + page.logical_bytes());
        }
        found
    }

    fn compare_uploads(&self, bucket: &Bucket, of: &ModelBucket) {
        let reader = self.catalogue.reader();
        let listed: Vec<(String, u64)> = reader
            .uploads(bucket.bucket_id(), None)
            .map(|upload| upload.map(|(key, upload)| (key.as_str().to_owned(), upload.body_id)).unwrap())
            .collect();
        assert_eq!(listed, of.uploads.keys().cloned().collect::<Vec<_>>());
        for (at, (object, body)) in listed.iter().enumerate() {
            let after = Some((object.as_bytes(), Some(BodyId(*body))));
            assert_eq!(reader.uploads(bucket.bucket_id(), after).count(), listed.len() - at - 1);
            let parts: Vec<(u32, u64)> = reader
                .parts(bucket.bucket_id(), &key(object), BodyId(*body), 0)
                .map(|part| part.map(|(number, part)| (u32::from(number.get()), part.size)).unwrap())
                .collect();
            let expected = &of.uploads[&(object.clone(), *body)];
            assert_eq!(parts, expected.iter().map(|(n, part)| (*n, part.size)).collect::<Vec<_>>());
        }
    }
}

/// Copies the directory as a killed process leaves it.
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            // RocksDB may remove a file during the copy; this copy does not need such a file.
            let _ = std::fs::copy(entry.path(), target);
        }
    }
}

pub(super) async fn random_commands(seed: u64, rounds: usize, with: fn(&Path) -> CatalogueOptions) {
    let dir = tempfile::tempdir().unwrap();
    let mut at = dir.path().join("0");
    let mut run = Run {
        catalogue: Catalogue::open(with(&at)).await.unwrap(),
        model: Model::default(),
        dice: Dice(seed),
        bodies: Vec::new(),
    };
    for round in 1..=rounds {
        for _ in 0..150 {
            run.step().await;
        }
        run.compare().await;
        match run.dice.roll(3) {
            0 => {
                run.catalogue.clone().inner.compact().await.unwrap();
            }
            1 => {
                run.catalogue.shutdown().await;
                run.catalogue = Catalogue::open(with(&at)).await.unwrap();
                assert_eq!(run.catalogue.metrics().commands_applied, 0, "nothing was left to replay");
            }
            _ => {
                let killed = dir.path().join(round.to_string());
                copy_dir(&at, &killed);
                run.catalogue.shutdown().await;
                at = killed;
                run.catalogue = Catalogue::open(with(&at)).await.unwrap();
            }
        }
        run.compare().await;
    }
    assert!(run.bodies.len() > rounds * 10);
    run.catalogue.shutdown().await;
}

/// Random commands before and after a division, which happens to a stopped catalogue or to a killed one.
async fn random_commands_around_a_division(seed: u64, with: fn(&Path) -> CatalogueOptions) {
    let dir = tempfile::tempdir().unwrap();
    let (live, killed, divided) = (dir.path().join("0"), dir.path().join("1"), dir.path().join("2"));
    let mut run = Run {
        catalogue: Catalogue::open(with(&live)).await.unwrap(),
        model: Model::default(),
        dice: Dice(seed),
        bodies: Vec::new(),
    };
    for location in ["1", "2", "3"] {
        let create = CreateSegment { node: 1, location: location.to_owned(), ..CreateSegment::default() };
        run.catalogue.propose(Command::from(Change::CreateSegment(create))).await.unwrap();
    }
    for _ in 0..300 {
        run.step().await;
        if run.dice.roll(100) == 0 {
            run.catalogue.inner.compact().await.unwrap();
        }
    }
    copy_dir(&live, &killed);
    let groups = run.catalogue.inner.groups.all().len() as u32;
    run.catalogue.shutdown().await;
    let old = if run.dice.roll(2) == 0 { &live } else { &killed };
    let before = rows_by_family(old);
    let scratch = dir.path().join("scratch");
    let division = Division::plan(old, NodeId::SINGLE, None, &scratch, &ignore_progress).unwrap();
    let done = division.build(&divided, &ignore_progress).unwrap();
    assert_eq!(done.object_group, groups);
    let after = rows_by_family(&divided);
    let moved = Family::Mirror as u8..=Family::Release as u8;
    assert!(moved.clone().all(|family| before.get(&family) == after.get(&family)), "the union is the same");
    run.catalogue = Catalogue::open(with(&divided)).await.unwrap();
    let system = run.catalogue.inner.groups.system().state();
    let objects = system.range(&[*moved.start()], &[*moved.end() + 1], usize::MAX).unwrap();
    assert_eq!(objects, [], "the system group has no objects");
    drop(system);
    run.compare().await;
    for round in 0..2 {
        for _ in 0..150 {
            run.step().await;
        }
        run.compare().await;
        if round == 0 {
            run.catalogue.shutdown().await;
            run.catalogue = Catalogue::open(with(&divided)).await.unwrap();
        }
    }
    run.catalogue.shutdown().await;
}

/// Rows of all groups by family, without regard to their group.
fn rows_by_family(dir: &Path) -> BTreeMap<u8, BTreeSet<Row>> {
    let (scratch, mut findings) = (tempfile::tempdir().unwrap(), Vec::new());
    let path = scratch.path().join("s");
    let opened = Offline::open(dir, &path, NodeId::SINGLE, None, &mut findings, &ignore_progress);
    assert!(!findings.iter().any(CheckFinding::is_damage), "{findings:?}");
    let opened = opened.unwrap().unwrap();
    let mut rows: BTreeMap<u8, BTreeSet<Row>> = BTreeMap::new();
    for row in opened.groups().into_iter().flat_map(|group| opened.dump(group).unwrap()) {
        rows.entry(row.0[0]).or_default().insert(row);
    }
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_do_what_the_model_does_around_a_division() {
    for seed in 40..44 {
        random_commands_around_a_division(seed, options).await;
        random_commands_around_a_division(seed + 10, four_groups).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_do_what_the_model_does_in_one_group() {
    for seed in 0..4 {
        random_commands(seed, 6, options).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_commands_do_what_the_model_does_in_four_groups() {
    for seed in 10..13 {
        random_commands(seed, 6, four_groups).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_groups_each_hold_their_range() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(four_groups(dir.path())).await.unwrap();
    let bucket: Arc<Bucket> = super::testing::bucket(&catalogue, "alpha").await;
    for object in KEYS {
        super::testing::do_put(&catalogue, &bucket, object, 1).await;
    }
    let row = mlgw_formats::schema::usage::bucket_row(bucket.bucket_id());
    for group in catalogue.inner.groups.all() {
        let usage: mlgw_formats::schema::BucketUsage = super::read(&group.state(), &row).unwrap().unwrap();
        assert!(usage.objects >= 1, "group {} has none", group.id);
    }
    catalogue.shutdown().await;
}
