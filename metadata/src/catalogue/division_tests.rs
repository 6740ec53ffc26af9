//! Divisions of catalogues with every kind of row, stopped and killed, and of damaged ones.

use super::groups::SYSTEM_GROUP;
use super::model_tests::copy_dir;
use super::testing::{NOW, bucket, delete, do_put, extent, key, name, options, put, version};
use super::{Catalogue, CatalogueOptions, CheckpointOptions, DeleteBucketError, OpenError, ProposeError};
use crate::identity::ExpectedServer;
use crate::offline::tests::{all_files, open, work};
use crate::offline::{
    CheckFinding, CheckpointDir, DivideError, Division, DivisionReport, Offline, RebuildLog, ignore_progress,
    make_first_checkpoint, rebuild,
};
use crate::store::state::StateDb;
use crate::view::RowReader as _;
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeId, NodeName, SegmentId, Timestamp};
use mlgw_formats::cluster_version::REPLICATION_CLUSTER_VERSION;
use mlgw_formats::command::{
    Change, Command, CreateBucket, CreateSegment, FreezeBucket, MirrorBucket, ObjectChange, PutObject,
    PutPart, Reject, RemoveSegment, Reply, SetBucketState,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::{BucketState, ExtentPage, ObjectVersion, PartRecord, Quota, decode, encode};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const OLD: &str = "catalogue";
const NEW: &str = "catalogue-1";

fn try_divide(dir: &Path, expected: Option<&ExpectedServer>) -> Result<DivisionReport, DivideError> {
    let scratch = dir.join("scratch");
    let old = dir.join(OLD);
    let division = Division::plan(&old, NodeId::SINGLE, expected.cloned(), &scratch, &ignore_progress)?;
    division.build(&dir.join(NEW), &ignore_progress)
}

fn divided(dir: &Path) -> DivisionReport {
    let before = all_files(&dir.join(OLD));
    let done = try_divide(dir, None).unwrap();
    assert_eq!(all_files(&dir.join(OLD)), before, "the old catalogue is unchanged");
    assert!(!dir.join("scratch").exists(), "the scratch copy is removed");
    done
}

async fn open_divided(dir: &Path) -> Catalogue {
    Catalogue::open(options(&dir.join(NEW))).await.unwrap()
}

fn state(catalogue: &Catalogue, group: u32) -> Arc<StateDb> {
    catalogue.inner.state_of_group(group).unwrap()
}

fn family(state: &StateDb, family: Family) -> Vec<crate::view::Row> {
    state.range(&family.start(), &family.end(), usize::MAX).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_divided_catalogue_has_everything_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    let catalogue = open(&live).await;
    let b = bucket(&catalogue, "data").await;
    work(&catalogue, &b, 0).await;
    catalogue.inner.compact().await.unwrap();
    work(&catalogue, &b, 60).await;
    catalogue.inner.release_all().await.unwrap();
    let (usage, payer) = (catalogue.usage(b.bucket_id()).unwrap(), catalogue.payer_usage("AK").unwrap());
    let segments = catalogue.segment_usages().unwrap();
    let cut = dir.path().join("cut");
    copy_dir(&live, &cut);
    catalogue.shutdown().await;
    for dir in [live, cut] {
        let done = divided(&dir);
        assert_eq!(done.object_group, 1);
        let catalogue = open_divided(&dir).await;
        let b = catalogue.bucket("data").unwrap();
        assert_eq!(catalogue.usage(b.bucket_id()).unwrap(), usage);
        assert_eq!(catalogue.payer_usage("AK").unwrap(), payer);
        assert_eq!(catalogue.segment_usages().unwrap(), segments);
        assert_eq!(b.quota, Some(Quota { bytes: Some(1 << 40), objects: Some(1 << 20) }));
        work(&catalogue, &b, 120).await;
        let new = bucket(&catalogue, "new").await;
        do_put(&catalogue, &new, "a", 10).await;
        assert_eq!(family(&state(&catalogue, 0), Family::Object), [], "no bucket is placed in group 0");
        catalogue.shutdown().await;
        let (findings, _) = check(&dir.join(NEW));
        assert_eq!(findings, []);
    }
}

fn check(dir: &Path) -> (Vec<CheckFinding>, Option<Offline>) {
    let (scratch, mut findings) = (tempfile::tempdir().unwrap(), Vec::new());
    let path = scratch.path().join("s");
    let opened = Offline::open(dir, &path, NodeId::SINGLE, None, &mut findings, &ignore_progress);
    (findings, opened.unwrap())
}

async fn put_part(catalogue: &Catalogue, of: &mlgw_formats::schema::Bucket, body: u64) -> u64 {
    let part = PartRecord { size: 1, etag: "e".into(), extents: vec![extent(1, 1)], ..Default::default() };
    let put = ObjectChange::PutPart(PutPart { body_id: body, number: 1, part });
    match catalogue.propose(Command::object(of, &key("upload"), NOW, put)).await.unwrap() {
        Reply::Part { seq } => seq,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequence_numbers_rise_across_the_division() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = open(dir.path()).await;
    let b = bucket(&catalogue, "data").await;
    let body = catalogue.body_id().await.unwrap();
    let upload = mlgw_formats::schema::Upload { body_id: body.0, key: "upload".into(), ..Default::default() };
    let create = ObjectChange::CreateUpload(mlgw_formats::command::CreateUpload { upload });
    catalogue.propose(Command::object(&b, &key("upload"), NOW, create)).await.unwrap();
    for i in 0..20 {
        do_put(&catalogue, &b, &format!("{i}"), 1).await;
    }
    let before = put_part(&catalogue, &b, body.0).await;
    catalogue.shutdown().await;
    divided(dir.path());
    let catalogue = open_divided(dir.path()).await;
    assert!(put_part(&catalogue, &b, body.0).await > before);
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_group_refuses_fenced_segments_and_group_0_removes_them() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = open(dir.path()).await;
    let b = bucket(&catalogue, "data").await;
    work(&catalogue, &b, 0).await;
    let fences = family(&state(&catalogue, 0), Family::Fence);
    assert!(!fences.is_empty());
    let fenced = catalogue.segment_usages().unwrap().iter().find(|(_, usage)| usage.fenced).unwrap().0;
    catalogue.shutdown().await;
    divided(dir.path());
    let catalogue = open_divided(dir.path()).await;
    assert!((0..2).all(|group| family(&state(&catalogue, group), Family::Fence) == fences));
    let body = catalogue.body_id().await.unwrap();
    let refers = ObjectVersion { extents: vec![extent(fenced.0, 10)], ..version(body, 10) };
    let refused = catalogue.propose(Command::object(&b, &key("late"), NOW, put(refers.clone()))).await;
    let fenced_reject = Reject::SegmentFenced { segment: fenced.0 };
    assert_eq!(refused, Err(fenced_reject.clone().into()));
    assert_eq!(catalogue.remove_segment(fenced).await, Err(Reject::SegmentInUse.into()));
    let gone = Command::object(&b, &key("kept"), NOW, delete());
    catalogue.propose(gone).await.unwrap();
    assert_eq!(catalogue.segment_usage(fenced).unwrap().extents, 0);
    // Only its fence records in the object group that the segment was fenced.
    let refused = catalogue.propose(Command::object(&b, &key("late"), NOW, put(refers))).await;
    assert_eq!(refused, Err(fenced_reject.into()));
    catalogue.remove_segment(fenced).await.unwrap();
    assert!(catalogue.segments().unwrap().iter().all(|record| record.segment_id() != fenced));
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_that_is_fenced_after_the_division_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = open(dir.path()).await;
    let b = bucket(&catalogue, "data").await;
    catalogue.shutdown().await;
    divided(dir.path());
    let catalogue = open_divided(dir.path()).await;
    let create = CreateSegment { node: 1, location: "d".into(), ..CreateSegment::default() };
    let made = catalogue.propose(Command::from(Change::CreateSegment(create))).await.unwrap();
    let Reply::Segment(record) = made else { panic!("{made:?}") };
    let segment = record.segment_id();
    let body = catalogue.body_id().await.unwrap();
    let refers = ObjectVersion { extents: vec![extent(segment.0, 10)], ..version(body, 10) };
    catalogue.propose(Command::object(&b, &key("kept"), NOW, put(refers))).await.unwrap();
    let length = catalogue.seal_segment(segment, 4096, vec![]).await.unwrap().length;
    assert_eq!(length, 4096);
    catalogue.raise_cluster_version(REPLICATION_CLUSTER_VERSION).await.unwrap();
    let in_use = || Err(ProposeError::Rejected(Reject::SegmentInUse));
    catalogue.fence_segment(segment).await.unwrap();
    assert_eq!(catalogue.remove_segment(segment).await, in_use(), "an object refers to it");
    catalogue.propose(Command::object(&b, &key("kept"), NOW, delete())).await.unwrap();
    // The proposer has to have looked at every group that owns keys.
    let remove = |released_in| Change::RemoveSegment(RemoveSegment { segment: segment.0, released_in });
    let partial = catalogue.propose(Command::from(remove(vec![0]))).await;
    assert_eq!(partial, Err(ProposeError::Rejected(Reject::SegmentInUse)));
    catalogue.remove_segment(segment).await.unwrap();
    assert!(catalogue.segment(segment).is_none());
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_in_the_release_queue_are_released_after_the_division() {
    let dir = tempfile::tempdir().unwrap();
    let (live, cut) = (dir.path().join("live"), dir.path().join("cut"));
    let catalogue = open(&live).await;
    let b = bucket(&catalogue, "data").await;
    // A reader holds the body of the deleted object in the queue.
    let body = catalogue.body_id().await.unwrap();
    let pages = vec![ExtentPage { extents: vec![extent(1, 7); 100], parts: vec![] }; 3];
    let large = ObjectVersion { extents: vec![], ..version(body, 2100) };
    let ObjectChange::Put(small) = put(large) else { panic!("a put") };
    let large = ObjectChange::Put(PutObject { pages, ..small });
    catalogue.propose(Command::object(&b, &key("large"), NOW, large)).await.unwrap();
    let pin = catalogue.pin(body);
    catalogue.propose(Command::object(&b, &key("large"), NOW, delete())).await.unwrap();
    copy_dir(&live, &cut);
    drop(pin);
    catalogue.shutdown().await;
    assert_eq!(family_count(&cut.join(OLD), Family::Release), 1, "the test needs a queued body");
    divided(&cut);
    let catalogue = open_divided(&cut).await;
    catalogue.inner.release_all().await.unwrap();
    assert_eq!(catalogue.segment_usage(SegmentId(1)).unwrap().bytes, 0);
    catalogue.shutdown().await;
    assert_eq!(check(&cut.join(NEW)).0, []);
}

fn family_count(dir: &Path, family: Family) -> usize {
    let opened = check(dir).1.unwrap();
    let rows = opened.groups().into_iter().flat_map(|group| opened.dump(group).unwrap());
    rows.filter(|(key, _)| key[0] == family as u8).count()
}

/// Proposes a change in group 0, which has everything before a division.
async fn step(catalogue: &Catalogue, change: Change) -> Reply {
    catalogue.inner.propose_to(SYSTEM_GROUP, Arc::new(Command::from(change))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_sagas_are_finished_in_the_object_group() {
    let dir = tempfile::tempdir().unwrap();
    let (live, cut) = (dir.path().join("live"), dir.path().join("cut"));
    let catalogue = open(&live).await;
    for (bucket_name, is_mirrored) in [("reserved", false), ("mirrored", true)] {
        let create = CreateBucket { name: bucket_name.into(), owner: "o".into(), ..Default::default() };
        let Reply::Bucket(made) = step(&catalogue, Change::CreateBucket(create)).await else { panic!() };
        if is_mirrored {
            step(&catalogue, Change::MirrorBucket(MirrorBucket::from(&made))).await;
        }
    }
    for (bucket_name, is_empty, is_frozen) in
        [("doomed", true, false), ("frozen", true, true), ("full", false, false)]
    {
        let made = bucket(&catalogue, bucket_name).await;
        if !is_empty {
            do_put(&catalogue, &made, "a", 1).await;
        }
        let state = BucketState::Deleting as i32;
        let set = SetBucketState { name: bucket_name.into(), bucket_id: made.id, state };
        step(&catalogue, Change::SetBucketState(set)).await;
        if is_frozen {
            step(&catalogue, Change::FreezeBucket(FreezeBucket { bucket_id: made.id, epoch: None })).await;
        }
    }
    copy_dir(&live, &cut);
    catalogue.shutdown().await;
    divided(&cut);
    let catalogue = open_divided(&cut).await;
    for bucket_name in ["reserved", "mirrored", "full"] {
        let found = catalogue.bucket(bucket_name).unwrap();
        do_put(&catalogue, &found, "b", 1).await;
    }
    assert!(catalogue.bucket("doomed").is_none() && catalogue.bucket("frozen").is_none());
    let not_empty = catalogue.delete_bucket(&name("reserved")).await;
    assert_eq!(not_empty, Err(DeleteBucketError::NotEmpty));
    assert_eq!(family(&state(&catalogue, 0), Family::Mirror), []);
    assert_eq!(family(&state(&catalogue, 1), Family::Mirror).len(), 3);
    catalogue.shutdown().await;
    assert_eq!(check(&cut.join(NEW)).0, []);
}

fn server(marking: bool) -> Lineage {
    let own = Identity { cluster: ClusterId(5), node: NodeName(6), incarnation: Incarnation(7) };
    Lineage { own, marking, ..Lineage::default() }
}

async fn open_as(dir: &Path, lineage: Lineage, groups: u32) -> Result<Catalogue, OpenError> {
    let expected = ExpectedServer::read(dir, lineage, 0).unwrap();
    Catalogue::open(CatalogueOptions { expected: Some(expected), groups, ..options(dir) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_division_of_several_groups_keeps_identity_and_floor() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join(OLD);
    let catalogue = open_as(&old, server(true), 3).await.unwrap();
    for i in 0..6 {
        let made = bucket(&catalogue, &format!("b-{i}")).await;
        do_put(&catalogue, &made, "a", 0).await;
    }
    catalogue.shutdown().await;
    let expected = ExpectedServer::read(&old, server(false), 0).unwrap();
    let done = try_divide(dir.path(), Some(&expected)).unwrap();
    assert_eq!((done.object_group, done.objects), (3, 6));
    let new = dir.path().join(NEW);
    let floor = ExpectedServer::read(&new, server(false), 0).unwrap().floor;
    assert!(floor > expected.floor, "the entries of the new group count too");
    let stranger = Lineage { own: Identity { node: NodeName(9), ..server(false).own }, ..server(false) };
    assert!(open_as(&new, stranger, 1).await.is_err(), "the log names its server");
    let catalogue = open_as(&new, server(false), 1).await.unwrap();
    for i in 0..6 {
        let made = catalogue.bucket(&format!("b-{i}")).unwrap();
        assert!(catalogue.object(made.bucket_id(), &key("a")).unwrap().is_some());
        do_put(&catalogue, &made, "b", 0).await;
    }
    assert_eq!(family(&state(&catalogue, 0), Family::Object), []);
    assert_eq!(family(&state(&catalogue, 3), Family::Object).len(), 4, "those of two buckets of group 0");
    catalogue.shutdown().await;
    std::fs::remove_dir_all(new.join("log")).unwrap();
    copy_dir(&old.join("log"), &new.join("log"));
    assert!(open_as(&new, server(false), 1).await.is_err(), "the old log does not fit the new states");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_catalogue_is_not_divided() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = open(dir.path()).await;
    let b = bucket(&catalogue, "data").await;
    work(&catalogue, &b, 0).await;
    catalogue.inner.compact().await.unwrap();
    catalogue.shutdown().await;
    let table = all_files(&dir.path().join("catalogue/group-0"))
        .into_iter()
        .find(|(path, _)| path.extension().is_some_and(|extension| extension == "sst"))
        .unwrap();
    let mut bytes = table.1;
    bytes[40] ^= 1;
    std::fs::write(&table.0, bytes).unwrap();
    let refused = try_divide(dir.path(), None);
    assert!(matches!(refused, Err(DivideError::Damaged(_))), "{refused:?}");
    assert!(!dir.path().join(NEW).exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_division_with_other_rows_than_planned_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = open(dir.path()).await;
    let b = bucket(&catalogue, "data").await;
    do_put(&catalogue, &b, "a", 0).await;
    catalogue.inner.compact().await.unwrap();
    catalogue.shutdown().await;
    let (old, scratch) = (dir.path().join(OLD), dir.path().join("scratch"));
    let division = Division::plan(&old, NodeId::SINGLE, None, &scratch, &ignore_progress).unwrap();
    // The ETag of an object changes after its digest was computed: no counter contradicts it.
    let newest = old.join("group-0/state-1");
    let changed = StateDb::open(&newest, &crate::store::options::cache(1 << 20), 1 << 20).unwrap();
    let (row, value) = family(&changed, Family::Object).remove(0);
    let mut version: ObjectVersion = decode(&value).unwrap();
    version.etag.push('x');
    changed.write(&[(row, Some(encode(&version)))].into()).unwrap();
    changed.flush().unwrap();
    drop(changed);
    let refused = division.build(&dir.path().join(NEW), &ignore_progress);
    let Err(DivideError::Differs(what)) = refused else { panic!("{refused:?}") };
    assert!(what.contains("group 1 family 11"), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_divided_catalogue_is_rebuilt_from_its_first_checkpoint_and_not_from_an_older_one() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = open(dir.path()).await;
    let b = bucket(&catalogue, "data").await;
    work(&catalogue, &b, 0).await;
    catalogue.inner.checkpoint_or_log().await;
    catalogue.shutdown().await;
    divided(dir.path());
    let (new, first) = (dir.path().join(NEW), dir.path().join("first"));
    make_first_checkpoint(&new, &first, Timestamp(0)).unwrap();
    let checkpoints = CheckpointOptions { dir: first.clone(), every: Duration::from_secs(1 << 30) };
    let with = CatalogueOptions { checkpoints: Some(checkpoints), ..options(&new) };
    let catalogue = Catalogue::open(with.clone()).await.unwrap();
    let b = catalogue.bucket("data").unwrap();
    do_put(&catalogue, &b, "later", 1).await;
    catalogue.shutdown().await;
    for group in 0..2 {
        std::fs::remove_dir_all(new.join(format!("group-{group}"))).unwrap();
    }
    let rebuild_from = |path: &Path| {
        let from = CheckpointDir { path, is_marked: false };
        let scratch = dir.path().join("scratch");
        rebuild(&new, from, RebuildLog::Own, None, &scratch, &mut Vec::new(), &ignore_progress)
    };
    assert!(rebuild_from(&dir.path().join("checkpoints")).is_err(), "shapes are not mixed");
    rebuild_from(&first).unwrap();
    let catalogue = Catalogue::open(with).await.unwrap();
    assert!(catalogue.object(b.bucket_id(), &key("later")).unwrap().is_some());
    assert!(catalogue.object(b.bucket_id(), &key("kept")).unwrap().is_some());
    catalogue.shutdown().await;
}
