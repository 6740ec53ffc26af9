//! A data directory of every format that was ever released opens, whole.
//!
//! `tests/fixtures/format-N.tgz` was written by the first server of format N, `format-N-WHAT.tgz` by the
//! first that had WHAT; none is ever made again. With `MLGW_MAKE_FIXTURE=FILE` the test writes one
//! instead of reading them: once, when a format, or a kind of row or file, is new.

use super::directories::{BUCKET, Objects, setup};
use super::{assert_sound, runtime, text};
use crate::s3::{Client, whole};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The objects of a fixture: of one block, of two, empty, with a strange name; and one in parts.
const KEYS: [(&str, usize); 5] =
    [("one", 10), ("two/blocks", 70_000), ("empty", 0), ("é/../ +%", 5_000), ("parts", 3_000)];

fn body(key: &str, length: usize) -> Vec<u8> {
    format!("{key} of a fixture, ").into_bytes().into_iter().cycle().take(length).collect()
}

fn objects() -> Objects {
    KEYS.iter().map(|(key, length)| ((*key).to_owned(), body(key, *length))).collect()
}

async fn fill(client: &Client) {
    client.create_bucket(BUCKET).await.expect("made");
    for (key, bytes) in objects() {
        client.put(BUCKET, &key, whole("overwritten")).await.expect("stored");
        client.put(BUCKET, &key, whole(bytes)).await.expect("stored");
    }
    let upload = client.create_upload(BUCKET, "parts").await.expect("begun");
    let part = whole(objects().remove("parts").expect("listed"));
    let etag = client.put_part(BUCKET, "parts", &upload, 1, part).await.expect("stored");
    client.complete(BUCKET, "parts", &upload, &[(1, etag)]).await.expect("complete");
    client.create_upload(BUCKET, "in progress").await.expect("begun");
    client.put(BUCKET, "deleted", whole("gone")).await.expect("stored");
    client.delete(BUCKET, "deleted").await.expect("deleted");
}

/// Writes a directory with everything in it and packs it: some of it moved by compaction, some flushed,
/// some only in the log.
fn make(file: &Path) {
    let room = tempfile::tempdir().expect("a directory");
    let dir = room.path().join("data");
    let server = setup(&dir).start();
    runtime().block_on(fill(&server.client()));
    let (said, status) = setup(&dir).command(&["tier", "compact", "--dead-percent", "1", "--wait"]);
    assert_eq!(status, Some(0), "{said}");
    server.stop();
    let mut server = setup(&dir).start();
    runtime().block_on(async {
        server.client().put(BUCKET, "one", whole(body("one", 10))).await.expect("stored");
    });
    server.kill();
    let packed = Command::new("tar")
        .args(["--create", "--gzip", "--file", text(file), "--directory", text(room.path())])
        .args([
            "--exclude=ballast",
            "--exclude=start-reserve",
            "--exclude=LOG*",
            "--exclude=admin.json",
            "--exclude=LOCK",
            "data",
        ])
        .status();
    assert!(packed.expect("tar").success());
}

#[test]
fn a_directory_of_every_format_opens_with_everything_in_it() {
    if let Some(file) = std::env::var_os("MLGW_MAKE_FIXTURE") {
        return make(Path::new(&file));
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let files: Vec<PathBuf> =
        std::fs::read_dir(fixtures).expect("fixtures").flatten().map(|e| e.path()).collect();
    assert!(!files.is_empty());
    for file in files {
        assert!(std::fs::metadata(&file).expect("there").len() < 200 << 10, "{} is large", file.display());
        let room = tempfile::tempdir().expect("a directory");
        let unpacked = Command::new("tar")
            .args(["--extract", "--gzip", "--file", text(&file), "--directory", text(room.path())])
            .status();
        assert!(unpacked.expect("tar").success());
        let dir = room.path().join("data");
        assert_sound(&dir);
        super::directories::assert_serves(&dir, &objects());
        let server = setup(&dir).start();
        let uploads = runtime().block_on(server.client().list_uploads(BUCKET)).expect("listed");
        assert_eq!(uploads.len(), 1, "the upload in progress is one still");
        server.stop();
    }
}
