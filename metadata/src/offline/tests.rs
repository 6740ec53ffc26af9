//! Real catalogues, closed or cut off in the middle of work, intact and deliberately damaged.

use super::{
    CheckFinding, CheckpointDir, FindingKind, Offline, RebuildLog, ignore_progress, rebuild, repair_log,
};
use crate::catalogue::model_tests::copy_dir;
use crate::catalogue::testing::{NOW, bucket, delete, do_put, extent, key, name, options, put, version};
use crate::catalogue::{Catalogue, CatalogueOptions, CheckpointOptions, ChunkOwner};
use crate::store::wal::entries_in;
use crate::view::Row;
use mlgw_common::{NodeId, SegmentId};
use mlgw_formats::command::{
    Change, Command, CompleteUpload, CreateSegment, CreateUpload, NamedPart, ObjectChange, PutCredential,
    PutObject, PutPart, Reply, SealSegment,
};
use mlgw_formats::schema::{
    Bucket, Credential, Extent, ExtentPage, ObjectVersion, PartRecord, Quota, Upload,
};
use mlgw_formats::wal_frames;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn no_checkpoints() -> CheckpointOptions {
    CheckpointOptions { dir: PathBuf::new(), every: Duration::from_secs(1 << 30) }
}

pub(crate) async fn open(dir: &Path) -> Catalogue {
    let checkpoints = CheckpointOptions { dir: dir.join("checkpoints"), ..no_checkpoints() };
    let options = CatalogueOptions { checkpoints: Some(checkpoints), ..options(&dir.join("catalogue")) };
    let catalogue = Catalogue::open(options).await.unwrap();
    if catalogue.segments().unwrap().is_empty() {
        create_segment(&catalogue).await;
    }
    catalogue
}

/// Puts objects of every shape: extents in the record, in pages, in parts; uploads in progress; overwritten
/// and deleted objects.
pub(crate) async fn work(catalogue: &Catalogue, b: &Bucket, from: usize) {
    for i in from..from + 60 {
        do_put(catalogue, b, &format!("k{}", i % 50), 10).await;
    }
    let gone = Command::object(b, &key(&format!("k{}", from % 50)), NOW, delete());
    catalogue.propose(gone).await.unwrap();
    let body = catalogue.body_id().await.unwrap();
    let pages = vec![ExtentPage { extents: vec![extent(1, 7); 100], parts: vec![] }; 3];
    let mut large = version(body, 2100);
    large.extents.clear();
    let ObjectChange::Put(small) = put(large) else { panic!("a put") };
    let large = ObjectChange::Put(PutObject { pages, ..small });
    catalogue.propose(Command::object(b, &key("large"), NOW, large)).await.unwrap();
    limit(catalogue, b).await;
    for complete in [true, false] {
        upload(catalogue, b, complete).await;
    }
    compaction(catalogue, b).await;
}

/// Sets quotas of the bucket and of the access key that uploads count for.
async fn limit(catalogue: &Catalogue, b: &Bucket) {
    let credential = Credential { access_key: "AK".into(), ..Credential::default() };
    catalogue.propose(Command::from(Change::PutCredential(PutCredential { credential }))).await.unwrap();
    let quota = Quota { bytes: Some(1 << 40), objects: Some(1 << 20) };
    catalogue.change_bucket_quota(&b.name, |_| quota).await.unwrap();
    catalogue.change_key_quota("AK", |_| quota).await.unwrap();
}

async fn create_segment(catalogue: &Catalogue) -> SegmentId {
    let create = CreateSegment {
        class: 0,
        node: 1,
        location: "s".into(),
        created_ms: NOW.0,
        stamp: 0,
        ..CreateSegment::default()
    };
    match catalogue.propose(Command::from(Change::CreateSegment(create))).await.unwrap() {
        Reply::Segment(record) => record.segment_id(),
        other => panic!("{other:?}"),
    }
}

/// Puts an object with a chunk in a segment of its own, and seals the segment.
async fn put_in_segment(catalogue: &Catalogue, b: &Bucket, object: &str) -> (ChunkOwner, SegmentId) {
    let segment = create_segment(catalogue).await;
    let body = catalogue.body_id().await.unwrap();
    let chunk = ObjectVersion { extents: vec![extent(segment.0, 10)], ..version(body, 10) };
    catalogue.propose(Command::object(b, &key(object), NOW, put(chunk))).await.unwrap();
    catalogue.mark_segment(segment, 500).await.unwrap();
    let seal =
        Change::SealSegment(SealSegment { segment: segment.0, length: 1000, ..SealSegment::default() });
    catalogue.propose(Command::from(seal)).await.unwrap();
    let owner = ChunkOwner { bucket: b.bucket_id(), key: key(object), body, part: None, offset: 0 };
    (owner, segment)
}

/// Makes three segments: one emptied and removed, one fenced and not emptied, one open and marked.
async fn compaction(catalogue: &Catalogue, b: &Bucket) {
    let (owner, from) = put_in_segment(catalogue, b, "moved").await;
    let to = create_segment(catalogue).await;
    catalogue.mark_segment(to, 300).await.unwrap();
    catalogue.fence_segment(from).await.unwrap();
    let extent = extent(from.0, 10);
    let reference = catalogue.reference(&owner, from, extent.offset).unwrap().unwrap();
    let there = Extent { segment: to.0, ..extent };
    assert!(catalogue.relocate(&owner, reference, there).await.unwrap());
    catalogue.remove_segment(from).await.unwrap();
    let (_, kept) = put_in_segment(catalogue, b, "kept").await;
    catalogue.fence_segment(kept).await.unwrap();
}

async fn upload(catalogue: &Catalogue, b: &Bucket, complete: bool) {
    let body = catalogue.body_id().await.unwrap();
    let k = key("parts");
    let upload = Upload { body_id: body.0, key: "parts".into(), payer: "AK".into(), ..Upload::default() };
    let create = ObjectChange::CreateUpload(CreateUpload { upload });
    catalogue.propose(Command::object(b, &k, NOW, create)).await.unwrap();
    let mut parts = Vec::new();
    for number in 1..=3 {
        let extents = vec![extent(1, 1 << 20); 10];
        let part = PartRecord { size: 10 << 20, etag: "e".into(), extents, ..PartRecord::default() };
        let put = ObjectChange::PutPart(PutPart { body_id: body.0, number, part });
        match catalogue.propose(Command::object(b, &k, NOW, put)).await.unwrap() {
            Reply::Part { seq } => parts.push(NamedPart { number, seq }),
            other => panic!("{other:?}"),
        }
    }
    if complete {
        // One part stays unnamed and is freed in the background.
        parts.remove(1);
        let complete = CompleteUpload { body_id: body.0, parts, etag: "e-2".into(), ..Default::default() };
        catalogue.propose(Command::object(b, &k, NOW, ObjectChange::CompleteUpload(complete))).await.unwrap();
    }
}

/// Copies a catalogue that is open and idle, as a killed process leaves it.
async fn kill(live: &Path, catalogue: &Catalogue, to: &Path) {
    while catalogue.metrics().releases_waiting > 0 {
        mlgw_common::time::sleep(Duration::from_millis(1)).await;
    }
    copy_dir(live, to);
}

pub(super) fn check(dir: &Path) -> (Vec<CheckFinding>, Option<Vec<Row>>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut findings = Vec::new();
    let offline = Offline::open(
        &dir.join("catalogue"),
        &scratch.path().join("s"),
        NodeId::SINGLE,
        None,
        &mut findings,
        &ignore_progress,
    )
    .unwrap();
    (findings, offline.map(|offline| offline.dump(0).unwrap()))
}

/// Names and bytes of all files below a directory.
pub(crate) fn all_files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(all_files(&path));
        } else {
            found.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intact_catalogue_has_no_findings_and_a_check_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    let mut cuts = Vec::new();
    for round in 0..4 {
        let catalogue = open(&live).await;
        let b = match catalogue.bucket("data") {
            Some(b) => b,
            None => bucket(&catalogue, "data").await,
        };
        let deleted_bucket = bucket(&catalogue, "doomed").await;
        upload(&catalogue, &deleted_bucket, false).await;
        work(&catalogue, &b, 60 * round).await;
        if round == 2 {
            catalogue.inner().compact().await.unwrap();
        }
        catalogue.delete_bucket(&name("doomed")).await.unwrap();
        let cut = dir.path().join(format!("cut-{round}"));
        kill(&live, &catalogue, &cut).await;
        cuts.push(cut);
        catalogue.shutdown().await;
    }
    cuts.push(live);
    for cut in cuts {
        let before = all_files(&cut);
        let (findings, rows) = check(&cut);
        assert_eq!(findings, [], "{}", cut.display());
        assert!(rows.unwrap().len() > 50);
        assert_eq!(all_files(&cut), before, "a check writes nothing");
    }
}

/// Files of a store with this extension or prefix, the largest first.
fn files(dir: &Path, mark: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
    found.retain(|path| path.file_name().unwrap().to_str().unwrap().contains(mark));
    found.sort_by_key(|path| std::cmp::Reverse(std::fs::metadata(path).unwrap().len()));
    found
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

/// Flips a bit of a write-ahead log: in the third last record with entries, which are needed (the last one
/// would count as torn by a power loss), or in the first record without entries.
fn flip_record(log: &Path, with_entries: bool) {
    for path in files(log, ".log") {
        let records = wal_frames::read_records(&std::fs::read(&path).unwrap()).records;
        let wanted: Vec<usize> = records
            .iter()
            .filter(|(_, record)| entries_in(record).is_empty() != with_entries)
            .map(|(at, _)| *at)
            .collect();
        let chosen = if with_entries { wanted.len().checked_sub(3) } else { Some(0) };
        if let Some(at) = chosen.and_then(|chosen| wanted.get(chosen)) {
            return flip(&path, at + 8);
        }
    }
    panic!("no log has such a record");
}

fn cut(path: &Path) {
    let length = std::fs::metadata(path).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length / 2).unwrap();
}

type Damage = (&'static str, FindingKind, fn(&Path, &Path));

/// Damages, each done to a catalogue with an older copy of it at hand, and the kind of the finding that must
/// result.
const DAMAGES: &[Damage] = &[
    ("a bit of a table's rows", FindingKind::Table, |d, _| flip(&files(&state(d), ".sst")[0], 40)),
    ("a table cut in half", FindingKind::Table, |d, _| cut(&files(&state(d), ".sst")[0])),
    ("a table missing", FindingKind::Table, |d, _| {
        std::fs::remove_file(&files(&state(d), ".sst")[0]).unwrap()
    }),
    ("two tables swapped", FindingKind::Table, |d, _| {
        let tables = files(&state(d), ".sst");
        std::fs::rename(&tables[0], d.join("x")).unwrap();
        std::fs::rename(&tables[1], &tables[0]).unwrap();
        std::fs::rename(d.join("x"), &tables[1]).unwrap();
    }),
    ("a bit of the MANIFEST", FindingKind::Manifest, |d, _| flip(&files(&state(d), "MANIFEST")[0], 20)),
    ("the MANIFEST missing", FindingKind::Manifest, |d, _| {
        std::fs::remove_file(&files(&state(d), "MANIFEST")[0]).unwrap();
    }),
    ("a bit of CURRENT", FindingKind::Current, |d, _| flip(&state(d).join("CURRENT"), 3)),
    ("CURRENT missing", FindingKind::Current, |d, _| std::fs::remove_file(state(d).join("CURRENT")).unwrap()),
    ("no state", FindingKind::Store, |d, _| std::fs::remove_dir_all(state(d)).unwrap()),
    ("an older state", FindingKind::StaleState, |d, old| replace(&state(d), &state(old))),
    ("a bit of the log", FindingKind::Log, |d, _| flip_record(&log(d), true)),
    ("a bit of the log that carries no entry", FindingKind::Log, |d, _| {
        flip_record(&log(d), false);
    }),
    ("an older log", FindingKind::StaleLog, |d, old| replace(&log(d), &log(old))),
    ("no log", FindingKind::Log, |d, _| std::fs::remove_dir_all(log(d)).unwrap()),
    ("a bit of the log's MANIFEST", FindingKind::Manifest, |d, _| flip(&files(&log(d), "MANIFEST")[0], 20)),
    ("the log's CURRENT missing", FindingKind::Current, |d, _| {
        std::fs::remove_file(log(d).join("CURRENT")).unwrap();
    }),
];

fn state(dir: &Path) -> PathBuf {
    super::stores::newest_state(&dir.join("catalogue/group-0")).unwrap()
}

fn log(dir: &Path) -> PathBuf {
    dir.join("catalogue/log")
}

fn replace(path: &Path, with: &Path) {
    std::fs::remove_dir_all(path).unwrap();
    copy_dir(with, path);
}

/// A catalogue cut off in the middle of work, whose log had been purged before, and an older copy of it.
async fn cut_off(dir: &Path) -> (PathBuf, PathBuf) {
    let (live, old, now) = (dir.join("live"), dir.join("old"), dir.join("now"));
    let catalogue = open(&live).await;
    let b = bucket(&catalogue, "data").await;
    work(&catalogue, &b, 0).await;
    kill(&live, &catalogue, &old).await;
    catalogue.inner().compact().await.unwrap();
    work(&catalogue, &b, 60).await;
    catalogue.inner().checkpoint_or_log().await;
    catalogue.inner().compact().await.unwrap();
    work(&catalogue, &b, 120).await;
    // A record of the log without entries, between others.
    catalogue.inner().write_committed().await;
    work(&catalogue, &b, 180).await;
    kill(&live, &catalogue, &now).await;
    catalogue.shutdown().await;
    (now, old)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_damage_is_found_and_rebuilt_catalogues_are_identical() {
    let dir = tempfile::tempdir().unwrap();
    let (now, old) = cut_off(dir.path()).await;
    let (findings, whole) = check(&now);
    assert_eq!(findings, []);
    for (what, kind, damage) in DAMAGES {
        let damaged = dir.path().join("damaged");
        copy_dir(&now, &damaged);
        damage(&damaged, &old);
        let (findings, _) = check(&damaged);
        let found: Vec<FindingKind> = findings.iter().filter(|f| f.is_damage()).map(|f| f.kind).collect();
        assert!(found.contains(kind), "{what}: {findings:#?}");
        let scratch = dir.path().join("scratch");
        let checkpoints = damaged.join("checkpoints");
        let catalogue = damaged.join("catalogue");
        if *kind == FindingKind::Log && what.contains("bit") {
            let mended = repair_log(&catalogue, &scratch);
            if what.contains("carries no entry") {
                assert!(mended.unwrap().is_some());
                assert_eq!(check(&damaged), (vec![], whole.clone()), "{what}");
            } else {
                assert!(mended.is_err(), "{what}");
                assert!(check(&damaged).0.iter().any(|f| f.kind == FindingKind::Log), "it is as it was");
            }
            std::fs::remove_dir_all(&damaged).unwrap();
            continue;
        }
        let rebuilt = rebuild(
            &catalogue,
            CheckpointDir { path: &checkpoints, is_marked: false },
            RebuildLog::Own,
            None,
            &scratch,
            &mut Vec::new(),
            &ignore_progress,
        );
        if what.contains("log") {
            assert!(rebuilt.is_err(), "{what}: without the log, data would be lost");
        } else {
            let rebuilt = rebuilt.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(rebuilt.entries > 0);
            assert_eq!(check(&damaged), (vec![], whole.clone()), "{what}");
        }
        std::fs::remove_dir_all(&damaged).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_without_the_log_restores_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (now, _) = cut_off(dir.path()).await;
    std::fs::remove_dir_all(now.join("catalogue/log")).unwrap();
    assert!(Catalogue::open(options(&now.join("catalogue"))).await.is_err(), "not as if nothing were lost");
    std::fs::remove_dir_all(now.join("catalogue")).unwrap();
    let (catalogue, checkpoints) = (now.join("catalogue"), now.join("checkpoints"));
    let mut unusable = Vec::new();
    let scratch = dir.path().join("scratch");
    rebuild(
        &catalogue,
        CheckpointDir { path: &checkpoints, is_marked: false },
        RebuildLog::Checkpoint,
        None,
        &scratch,
        &mut unusable,
        &ignore_progress,
    )
    .unwrap();
    assert_eq!(unusable, []);
    let (findings, rows) = check(&now);
    assert_eq!(findings, []);
    assert!(rows.unwrap().len() > 50);
    let catalogue = open(&now).await;
    assert!(catalogue.bucket("data").is_some(), "the catalogue opens");
    catalogue.shutdown().await;
}
