//! Tests of stores without HTTP: a directory as upstream, and a store in memory.

use std::fs;
use std::path::Path;

use opendal::services::Memory;

use super::*;

const BYTES: u64 = 200_000;

fn directory(bucket: &Path) -> UpstreamSettings {
    UpstreamSettings {
        kind: UpstreamKind::Fs,
        endpoint: None,
        bucket: bucket.display().to_string(),
        region: String::new(),
        credentials: CredentialSource::Anonymous,
        ..settings()
    }
}

fn files(dir: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("listed").file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn a_directory_holds_a_segment_as_a_file() {
    let (room, content) = (tempfile::tempdir().expect("a directory"), content(BYTES));
    let upstream = Upstream::open(&directory(room.path())).expect("opened");
    assert_eq!(upstream.list().await.expect("nothing yet"), []);
    assert_eq!(put(&upstream, &content, None).await.expect("stored").sent_bytes, BYTES);
    assert!(fs::read(room.path().join(NAME)).expect("there") == content);
    assert_eq!(put(&upstream, &content, None).await.expect("there").sent_bytes, 0);
    let read = upstream.read(&object(BYTES, None), 100, 50).await.expect("read");
    assert_eq!(read, &content[100..150]);
    assert_eq!(upstream.list().await.expect("listed"), [OBJECT]);
    fs::write(room.path().join(NAME), &content[..120]).expect("cut");
    let failed = upstream.read(&object(BYTES, None), 100, 50).await.expect_err("cut");
    assert!(matches!(failed, UpstreamError::Truncated { .. }), "{failed}");
    upstream.remove(OBJECT).await.expect("removed");
    upstream.remove(OBJECT).await.expect("removing a missing object is not an error");
    let failed = upstream.read(&object(BYTES, None), 100, 50).await.expect_err("gone");
    assert!(matches!(failed, UpstreamError::Missing { .. }), "{failed}");
    assert!(
        requests(&upstream, UpstreamOp::Write, UpstreamOutcome::Ok) > 0
            && requests(&upstream, UpstreamOp::Read, UpstreamOutcome::Missing) == 1
    );
}

#[tokio::test]
async fn unfinished_files_of_a_crash_are_removed_by_the_next_attempt() {
    let (room, content) = (tempfile::tempdir().expect("a directory"), content(BYTES));
    let upstream = Upstream::open(&directory(room.path())).expect("opened");
    let unfinished = room.path().join("pre/unfinished");
    for name in ["00000000000000a7-000000000000000b.seg.x1", "00000000000000a8-000000000000000c.seg.x1"] {
        fs::write(unfinished.join(name), "half").expect("written");
    }
    put(&upstream, &content, None).await.expect("stored");
    assert_eq!(
        files(&unfinished),
        ["00000000000000a8-000000000000000c.seg.x1"],
        "another segment may be under way"
    );
    let failed = upstream
        .put_segment(&object(BYTES + 1, None), file(&content), UploadResumption::never(), &mut no_throttle)
        .await;
    failed.expect_err("the file is too short");
    assert_eq!(
        files(&unfinished),
        ["00000000000000a8-000000000000000c.seg.x1"],
        "the abandoned upload is removed"
    );
}

#[tokio::test]
async fn a_directory_that_is_not_mounted_is_not_created() {
    let room = tempfile::tempdir().expect("a directory");
    let failed =
        Upstream::open(&directory(&room.path().join("absent"))).expect_err("the directory does not exist");
    assert!(
        failed.to_string().contains("upstream.lake.bucket") && failed.to_string().contains("mount"),
        "{failed}"
    );
    assert_eq!(files(room.path()), [""; 0]);
}

#[tokio::test]
async fn a_store_in_memory_supports_all_operations() {
    let settings = UpstreamSettings { encrypt: true, ..settings() };
    let operator = Operator::new(Memory::default()).expect("made");
    let connected = Connected { operator, endpoint: None, dir: None };
    let upstream =
        Upstream::with_operator(&settings, connected, UpstreamTuning { part_bytes: 10_000, ..TUNING });
    let (content, key) = (content(BYTES), key(9));
    put(&upstream, &content, Some(&key)).await.expect("stored");
    for (offset, length) in [(0, BYTES), (65_535, 2), (BYTES - 1, 1)] {
        let read = upstream.read(&object(BYTES, Some(&key)), offset, length).await.expect("read");
        assert!(read == content[offset as usize..(offset + length) as usize]);
    }
    assert_eq!(upstream.list().await.expect("listed"), [OBJECT]);
    upstream.remove(OBJECT).await.expect("removed");
    assert_eq!(upstream.length(OBJECT).await.expect("asked"), None);
    assert_eq!(upstream.metrics().in_flight, 0);
}

#[tokio::test]
async fn a_check_of_a_directory_passes_and_leaves_nothing() {
    let room = tempfile::tempdir().expect("a directory");
    let upstream = Upstream::open(&directory(room.path())).expect("opened");
    let steps = upstream.check().await;
    assert!(steps.iter().all(|step| step.fault.is_none()), "{steps:?}");
    assert_eq!(files(&room.path().join("pre")), ["unfinished"]);
    assert_eq!(files(&room.path().join("pre/unfinished")), [""; 0]);
}
