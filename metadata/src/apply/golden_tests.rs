//! A fixed history produces fixed rows, byte for byte: later versions must read, and would produce, the same
//! rows. `golden/rows.hex` has a line per row: key, space, value.

use super::{apply, seq_of};
use crate::catalogue::testing::extent;
use crate::view::{MemoryRows, RowReader, View};
use mlgw_common::BucketId;
use mlgw_formats::command::{
    AbortUpload, Change, Command, CompleteUpload, Conditions, CreateBucket, CreateSegment, CreateUpload,
    DeleteObject, FenceSegment, LeaseBodies, MarkSegment, MirrorBucket, NamedPart, ObjectChange,
    ObjectCommand, PlaceSegment, PutCredential, PutObject, PutPart, RelocateExtent, RemoveSegment,
    SealSegment, SetBucketQuota, SetBucketState, SetKeyQuota,
};
use mlgw_formats::schema::{
    Bucket, Credential, Extent, ExtentPage, ObjectVersion, PartRecord, Quota, Replica, Upload, bucket,
    decode, object,
};
use std::fmt::Write;

fn on(key: &str, change: ObjectChange) -> Change {
    let key = key.to_owned();
    let change = Some(change);
    let command =
        ObjectCommand { bucket_id: 1, epoch: 1, key, now_ms: 1000, change, ..ObjectCommand::default() };
    Change::Object(command)
}

fn put(body_id: u64, size: u64, extents: Vec<Extent>, pages: Vec<ExtentPage>) -> ObjectChange {
    let etag = format!("{body_id:032x}");
    let version =
        ObjectVersion { body_id, size, modified_ms: 1000, etag, extents, ..ObjectVersion::default() };
    ObjectChange::Put(PutObject { version, pages, ..PutObject::default() })
}

fn part(body_id: u64, number: u32, size: u64) -> ObjectChange {
    let part = PartRecord { size, etag: "p".into(), extents: vec![extent(3, size)], ..PartRecord::default() };
    ObjectChange::PutPart(PutPart { body_id, number, part })
}

fn upload(body_id: u64, key: &str) -> ObjectChange {
    let upload = Upload { body_id, key: key.into(), initiated_ms: 1000, ..Upload::default() };
    ObjectChange::CreateUpload(CreateUpload { upload })
}

fn history() -> Vec<Change> {
    let bucket = CreateBucket {
        name: "data".into(),
        owner: "o".into(),
        created_ms: 1000,
        region: String::new(),
        binding: None,
        group: None,
        splits: vec![],
    };
    let page = ExtentPage { extents: vec![extent(1, 5), extent(2, 6)], parts: vec![] };
    let credential = Credential { access_key: "AK".into(), role: 1, ..Credential::default() };
    let complete = CompleteUpload {
        body_id: 4,
        parts: vec![NamedPart { number: 2, seq: seq_of(11, 0).0 }],
        etag: "e-1".into(),
        modified_ms: 2000,
        ..CompleteUpload::default()
    };
    vec![
        Change::CreateBucket(bucket),
        Change::MirrorBucket(MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() }),
        Change::SetBucketState(SetBucketState { name: "data".into(), bucket_id: 1, state: 1 }),
        Change::LeaseBodies(LeaseBodies { count: 100 }),
        Change::CreateSegment(CreateSegment {
            class: 1,
            node: 1,
            location: "d".into(),
            created_ms: 1000,
            stamp: 0,
            ..CreateSegment::default()
        }),
        Change::SealSegment(SealSegment { segment: 1, length: 4096, ..SealSegment::default() }),
        Change::PutCredential(PutCredential { credential }),
        on("small", put(1, 7, vec![extent(1, 7)], vec![])),
        on("paged\0", put(2, 11, vec![], vec![page])),
        on("parts", upload(4, "parts")),
        on("parts", part(4, 1, 9)),
        on("parts", part(4, 2, 10)),
        on("parts", ObjectChange::CompleteUpload(complete)),
        on("open", upload(5, "open")),
        on("open", part(5, 1, 8)),
        on("gone", upload(6, "gone")),
        on("gone", ObjectChange::AbortUpload(AbortUpload { body_id: 6 })),
        on("deleted", put(7, 0, vec![], vec![])),
        on("deleted", ObjectChange::Delete(DeleteObject { conditions: Conditions::default() })),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// End of segment 1, after the history: its live extents move to a new segment.
fn end_of_a_segment() -> Vec<Change> {
    let moved = |body_id: u64, page: Option<u64>, bytes: u64| {
        let key = if page.is_some() { "paged\0" } else { "small" };
        let from = extent(1, bytes);
        let to = Extent { segment: 2, offset: 500 + bytes, ..from.clone() };
        Change::RelocateExtent(RelocateExtent {
            bucket_id: 1,
            key: key.into(),
            body_id,
            part: 0,
            page,
            from,
            to,
        })
    };
    vec![
        Change::CreateSegment(CreateSegment {
            class: 4,
            node: 1,
            location: "d".into(),
            created_ms: 2000,
            stamp: 0,
            ..CreateSegment::default()
        }),
        Change::MarkSegment(MarkSegment { segment: 2, length: 600 }),
        Change::FenceSegment(FenceSegment { segment: 1 }),
        moved(1, None, 7),
        moved(2, Some(0), 5),
        Change::RemoveSegment(RemoveSegment { segment: 1, ..RemoveSegment::default() }),
    ]
}

/// Segment 2, after that: sealed, and moved to the cold tier.
fn move_of_a_segment() -> Vec<Change> {
    let hot = Replica { node: 1, tier: 0, location: "d".into(), ..Replica::default() };
    let cold = Replica { node: 1, tier: 1, location: "c".into(), ..Replica::default() };
    vec![
        Change::SealSegment(SealSegment { segment: 2, length: 900, ..SealSegment::default() }),
        Change::PlaceSegment(PlaceSegment { segment: 2, from: hot, to: cold, changes: None }),
    ]
}

/// Quotas and the usage of an access key, after that.
fn quotas() -> Vec<Change> {
    let paid = |body_id, size| {
        let ObjectChange::Put(mut put) = put(body_id, size, vec![extent(3, size)], vec![]) else {
            unreachable!("it is a put")
        };
        put.version.payer = "AK".into();
        ObjectChange::Put(PutObject { is_exempt: true, ..put })
    };
    let begun = Upload { body_id: 10, key: "paid".into(), payer: "AK".into(), ..Upload::default() };
    let of_bucket = SetBucketQuota {
        name: "data".into(),
        bucket_id: 1,
        quota: Some(Quota { bytes: Some(5), objects: None }),
    };
    let of_key =
        SetKeyQuota { access_key: "AK".into(), quota: Some(Quota { bytes: None, objects: Some(1) }) };
    vec![
        on("paid", ObjectChange::CreateUpload(CreateUpload { upload: begun })),
        on("paid", part(10, 1, 3)),
        Change::SetBucketQuota(of_bucket),
        Change::SetKeyQuota(of_key),
        on("one", paid(8, 4)),
        on("two", paid(9, 4)),
        on("one", ObjectChange::Delete(DeleteObject { conditions: Conditions::default() })),
    ]
}

/// Rows that the changes produce, one line each.
fn rows_of(changes: Vec<Change>) -> Vec<String> {
    let mut rows = MemoryRows::default();
    for (index, change) in changes.into_iter().enumerate() {
        let mut view = View::new(&rows);
        let command = Command::from(change);
        apply(&mut view, &command, seq_of(index as u64, 0)).unwrap().unwrap();
        let (changes, _) = view.into_changes();
        rows.write(changes);
    }
    rows.0.iter().map(|(key, value)| format!("{} {}", hex(key), hex(value))).collect()
}

#[test]
fn a_fixed_history_gives_fixed_rows() {
    let shown = rows_of(history());
    let golden: Vec<&str> = include_str!("golden/rows.hex").lines().collect();
    assert_eq!(shown, golden, "rows:\n{}", shown.join("\n"));
}

#[test]
fn a_fixed_end_of_a_segment_gives_fixed_rows() {
    let shown = rows_of(history().into_iter().chain(end_of_a_segment()).collect());
    let golden: Vec<&str> = include_str!("golden/segment_end.hex").lines().collect();
    assert_eq!(shown, golden, "rows:\n{}", shown.join("\n"));
}

#[test]
fn a_fixed_move_of_a_segment_gives_fixed_rows() {
    let shown = rows_of(history().into_iter().chain(end_of_a_segment()).chain(move_of_a_segment()).collect());
    let golden: Vec<&str> = include_str!("golden/segment_moved.hex").lines().collect();
    assert_eq!(shown, golden, "rows:\n{}", shown.join("\n"));
}

#[test]
fn fixed_quotas_give_fixed_rows() {
    let shown = rows_of(history().into_iter().chain(quotas()).collect());
    let golden: Vec<&str> = include_str!("golden/quotas.hex").lines().collect();
    assert_eq!(shown, golden, "rows:\n{}", shown.join("\n"));
}

#[test]
fn rows_of_the_first_release_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let cache = crate::store::options::cache(1 << 20);
    let state = crate::store::state::StateDb::open(dir.path(), &cache, 1 << 20).unwrap();
    let lines = include_str!("golden/rows.hex").lines().filter_map(|line| line.split_once(' '));
    let changes = lines.map(|(key, value)| (bytes(key), Some(bytes(value)))).collect();
    state.write(&changes).unwrap();
    state.flush().unwrap();
    let data: Bucket = decode(&state.get(&bucket::row("data")).unwrap().unwrap()).unwrap();
    assert_eq!((data.id, data.epoch), (1, 1));
    let read = |key: &str| -> ObjectVersion {
        decode(&state.get(&object::row(BucketId(1), key.as_bytes())).unwrap().unwrap()).unwrap()
    };
    assert_eq!((read("small").size, read("small").extents), (7, vec![extent(1, 7)]));
    assert!(read("paged\0").is_paged());
    assert_eq!((read("parts").part_count, read("parts").size), (1, 10));
}
