//! A data directory of every format that was ever released opens, with all its data.
//!
//! `tests/fixtures/format-N.tgz` was written by the first server of format N, `format-N-WHAT.tgz` by the
//! first that had WHAT; no fixture is ever regenerated. `format-1-last.tgz` and its twin come from two
//! servers of the last version without identities, which did the same operations within seconds of each
//! other. With `MLGW_MAKE_FIXTURE=FILE` the test writes a fixture instead of reading them: once, when a
//! format, or a kind of row or file, is new.

use super::directories::{BUCKET, ExpectedObjects, setup};
use super::{assert_undamaged, path_text, runtime};
use crate::s3::{S3TestClient, full_body};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The objects of a fixture: of one block, of two, empty, with an unusual name; and one uploaded in parts.
const KEYS: [(&str, usize); 5] =
    [("one", 10), ("two/blocks", 70_000), ("empty", 0), ("é/../ +%", 5_000), ("parts", 3_000)];

fn body(key: &str, length: usize) -> Vec<u8> {
    format!("{key} of a fixture, ").into_bytes().into_iter().cycle().take(length).collect()
}

fn objects() -> ExpectedObjects {
    KEYS.iter().map(|(key, length)| ((*key).to_owned(), body(key, *length))).collect()
}

async fn fill(client: &S3TestClient) {
    client.create_bucket(BUCKET).await.expect("made");
    for (key, bytes) in objects() {
        client.put(BUCKET, &key, full_body("overwritten")).await.expect("stored");
        client.put(BUCKET, &key, full_body(bytes)).await.expect("stored");
    }
    let upload = client.create_upload(BUCKET, "parts").await.expect("begun");
    let part = full_body(objects().remove("parts").expect("listed"));
    let etag = client.put_part(BUCKET, "parts", &upload, 1, part).await.expect("stored");
    client.complete(BUCKET, "parts", &upload, &[(1, etag)]).await.expect("complete");
    client.create_upload(BUCKET, "in progress").await.expect("begun");
    client.put(BUCKET, "deleted", full_body("gone")).await.expect("stored");
    client.delete(BUCKET, "deleted").await.expect("deleted");
}

/// Writes a directory with all of these and packs it: some data moved by compaction, some flushed, some only
/// in the log.
fn make_fixture(file: &Path) {
    let room = tempfile::tempdir().expect("a directory");
    let dir = room.path().join("data");
    let server = setup(&dir).start();
    runtime().block_on(fill(&server.client()));
    let (output, status) = setup(&dir).command(&["tier", "compact", "--dead-percent", "1", "--wait"]);
    assert_eq!(status, Some(0), "{output}");
    server.stop();
    let mut server = setup(&dir).start();
    runtime().block_on(async {
        server.client().put(BUCKET, "one", full_body(body("one", 10))).await.expect("stored");
    });
    server.kill();
    let packed = Command::new("tar")
        .args(["--create", "--gzip", "--file", path_text(file), "--directory", path_text(room.path())])
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

/// The paths of all fixtures.
fn fixtures() -> Vec<PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let files: Vec<PathBuf> =
        std::fs::read_dir(fixtures).expect("fixtures").flatten().map(|e| e.path()).collect();
    assert!(!files.is_empty());
    files
}

/// A directory with the fixture's data directory in it.
fn unpacked(file: &Path) -> tempfile::TempDir {
    assert!(std::fs::metadata(file).expect("exists").len() < 200 << 10, "{} is large", file.display());
    let room = tempfile::tempdir().expect("a directory");
    let unpacked = Command::new("tar")
        .args(["--extract", "--gzip", "--file", path_text(file), "--directory", path_text(room.path())])
        .status();
    assert!(unpacked.expect("tar").success());
    room
}

/// The segment files of a data directory, with the versions that their headers state.
fn segments(dir: &Path) -> Vec<(PathBuf, u16)> {
    let files = std::fs::read_dir(dir.join("segments")).expect("listed").flatten().map(|e| e.path());
    let segments = files.filter(|path| path.extension().is_some_and(|extension| extension == "seg"));
    let version = |path: &Path| {
        let bytes = std::fs::read(path).expect("read");
        u16::from_le_bytes([bytes[8], bytes[9]])
    };
    let mut found: Vec<_> = segments.map(|path| (path.clone(), version(&path))).collect();
    found.sort();
    found
}

#[test]
fn a_directory_of_an_earlier_format_is_marked_and_loses_nothing() {
    for file in fixtures() {
        let room = unpacked(&file);
        let dir = room.path().join("data");
        let before = segments(&dir);
        assert!(before.iter().all(|(_, version)| *version == 1), "{before:?}");
        let server = setup(&dir).start();
        let after: Vec<_> = segments(&dir).into_iter().map(|(path, _)| path).collect();
        assert!(before.iter().all(|(path, _)| after.contains(path)), "{before:?}, {after:?}");
        let node = std::fs::read_to_string(dir.join("node.json")).expect("read");
        assert!(node.contains("\"format\":2") && !node.contains("marking"), "{node}");
        assert!(dir.join("segments/owner").exists() && dir.join("checkpoints/owner").exists());
        server.stop();
        assert_undamaged(&dir);
        super::directories::assert_serves(&dir, &objects());
        // Segments written by compaction have the current format.
        let server = setup(&dir).start();
        runtime().block_on(async {
            let client = server.client();
            client.put(BUCKET, "two/blocks", full_body(body("two/blocks", 70_000))).await.expect("stored");
        });
        let (output, status) = setup(&dir).command(&["tier", "compact", "--dead-percent", "1", "--wait"]);
        assert_eq!(status, Some(0), "{output}");
        server.stop();
        let left = segments(&dir);
        let of_format_1 = left.iter().filter(|(_, version)| *version == 1).count();
        assert!(of_format_1 < before.len(), "{}: {before:?}, {left:?}", file.display());
        super::directories::assert_serves(&dir, &objects());
        assert_undamaged(&dir);
    }
}

#[test]
fn a_directory_of_an_earlier_format_with_a_foreign_segment_is_refused_unchanged() {
    let files = fixtures();
    for (file, donor) in files.iter().flat_map(|file| files.iter().map(move |donor| (file, donor))) {
        let (room, theirs) = (unpacked(file), unpacked(donor));
        let dir = room.path().join("data");
        let own: Vec<_> = segments(&dir).into_iter().map(|(path, _)| path).collect();
        let foreign: Vec<_> =
            segments(&theirs.path().join("data")).into_iter().map(|(path, _)| path).collect();
        for (own, foreign) in own.iter().zip(&foreign) {
            let kept = std::fs::read(own).expect("read");
            let bytes = std::fs::read(foreign).expect("read");
            // Identical files are skipped: such a file is indistinguishable from the server's own.
            if bytes == kept {
                continue;
            }
            std::fs::write(own, &bytes).expect("written");
            let refused = setup(&dir).try_start();
            let name = own.file_name().expect("a name").to_string_lossy().into_owned();
            let log = refused.err().unwrap_or_else(|| panic!("{} starts with {name}", file.display())).log;
            assert!(log.contains(&name) && log.contains("--adopt"), "{log}");
            assert!(std::fs::read(own).is_ok_and(|found| found == bytes), "{name} was changed");
            assert!(!dir.join("segments/owner").exists(), "no mark is made");
            assert_ne!(super::check(&dir), [""; 0], "a check finds nothing");
            std::fs::write(own, kept).expect("written");
        }
        super::directories::assert_serves(&dir, &objects());
    }
}

#[test]
fn a_directory_of_every_format_becomes_a_node_of_a_cluster() {
    for file in fixtures() {
        let room = unpacked(&file);
        let dir = room.path().join("data");
        let before = segments(&dir);
        let (output, status) = setup(&dir).cluster_init();
        assert_eq!(status, Some(0), "{}: {output}", file.display());
        let node = std::fs::read_to_string(dir.join("node.json")).expect("read");
        assert!(node.contains("\"format\":4"), "{node}");
        assert_eq!(segments(&dir), before, "no segment is written");
        assert_undamaged(&dir);
        super::directories::assert_serves(&dir, &objects());
        assert!(!dir.join("catalogue").exists(), "the start removes the old catalogue");
        let server = setup(&dir).start();
        let uploads = runtime().block_on(server.client().list_uploads(BUCKET)).expect("listed");
        assert_eq!(uploads.len(), 1, "the upload is still in progress");
        server.stop();
        assert_undamaged(&dir);
    }
}

#[test]
fn a_directory_of_every_format_opens_with_all_its_data() {
    if let Some(file) = std::env::var_os("MLGW_MAKE_FIXTURE") {
        return make_fixture(Path::new(&file));
    }
    for file in fixtures() {
        let room = unpacked(&file);
        let dir = room.path().join("data");
        assert_undamaged(&dir);
        super::directories::assert_serves(&dir, &objects());
        let server = setup(&dir).start();
        let uploads = runtime().block_on(server.client().list_uploads(BUCKET)).expect("listed");
        assert_eq!(uploads.len(), 1, "the upload is still in progress");
        server.stop();
    }
}
