//! Data directories to be damaged, written by the shipped server.

use super::runtime;
use crate::s3::{S3TestClient, full_body};
use crate::server::ServerSetup;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

pub(super) const BUCKET: &str = "store-tests";
/// The object that damages target.
pub(super) const VICTIM: &str = "victim";

/// A body derived from the key and the round, so that it identifies its object.
pub(super) fn body(key: &str, round: u32) -> Vec<u8> {
    let length = match key.len() % 3 {
        0 => 5_000,
        1 => 100_000,
        _ => 150_000,
    };
    format!("{key} {round} ").into_bytes().into_iter().cycle().take(length).collect()
}

/// The expected objects by key.
pub(super) type ExpectedObjects = BTreeMap<String, Vec<u8>>;

/// Settings with which little work produces several tables, checkpoints and segments.
pub(super) fn setup(dir: &Path) -> ServerSetup {
    ServerSetup::new(dir).with("catalogue.checkpoint_interval", "100ms")
}

/// Puts, overwrites and deletes objects; `objects` is updated to the result.
pub(super) async fn put_workload(client: &S3TestClient, round: u32, objects: &mut ExpectedObjects) {
    for i in 0..30 {
        let key = format!("{}-{i}", "k".repeat(1 + i % 3));
        let bytes = body(&key, round);
        client.put(BUCKET, &key, full_body(bytes.clone())).await.expect("stored");
        objects.insert(key, bytes);
    }
    client.delete(BUCKET, "k-0").await.expect("deleted");
    objects.remove("k-0");
    let upload = client.create_upload(BUCKET, "parts").await.expect("begun");
    let mut etags = Vec::new();
    let mut bytes = Vec::new();
    for number in 1..=2u32 {
        let length = if number == 1 { 5 << 20 } else { 1000 };
        let part = vec![b'a' + u8::try_from(round + number).expect("small"); length];
        bytes.extend_from_slice(&part);
        let etag = client.put_part(BUCKET, "parts", &upload, number, full_body(part)).await.expect("stored");
        etags.push((number, etag));
    }
    client.complete(BUCKET, "parts", &upload, &etags).await.expect("complete");
    objects.insert("parts".to_owned(), bytes);
    client.create_upload(BUCKET, "begun").await.expect("begun");
}

/// Directories of the same server at three moments.
pub(super) struct ServerDirectories {
    /// After the first stop, some time before the others.
    pub(super) old: PathBuf,
    /// After the kill at the end.
    pub(super) killed: PathBuf,
    /// After the kill, a start and a stop.
    pub(super) stopped: PathBuf,
    /// The objects in the last two.
    pub(super) objects: ExpectedObjects,
    pub(super) temp_dir: TempDir,
}

pub(super) fn directories() -> ServerDirectories {
    let temp_dir = crate::crashes::directory_in_memory();
    let live = temp_dir.path().join("live");
    let at = |name: &str| {
        let to = temp_dir.path().join(name);
        copy_directory(&live, &to);
        to
    };
    let mut objects = ExpectedObjects::new();
    let server = setup(&live).start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        put_workload(&client, 0, &mut objects).await;
        let bytes = body(VICTIM, 0);
        client.put(BUCKET, VICTIM, full_body(bytes.clone())).await.expect("stored");
        objects.insert(VICTIM.to_owned(), bytes);
        // The second checkpoint from here on began after all of these writes.
        let enough = newest_checkpoint(&live) + 2;
        while newest_checkpoint(&live) < enough {
            client.put(BUCKET, "again", full_body(body("again", 0))).await.expect("stored");
            mlgw_common::time::sleep(Duration::from_millis(10)).await;
        }
        objects.insert("again".to_owned(), body("again", 0));
    });
    server.stop();
    let old = at("old");
    for round in 1..3 {
        // A checkpoint flushes the log; the last round must be in the write-ahead log when the server is
        // killed.
        let interval = if round == 1 { "100ms" } else { "1h" };
        let mut server = setup(&live).with("catalogue.checkpoint_interval", interval).start();
        runtime().block_on(put_workload(&server.client(), round, &mut objects));
        if round == 1 { server.stop() } else { server.kill() }
    }
    let killed = at("killed");
    setup(&live).start().stop();
    let stopped = at("stopped");
    ServerDirectories { old, killed, stopped, objects, temp_dir }
}

/// The number of the newest checkpoint, 0 if there is none.
fn newest_checkpoint(dir: &Path) -> u64 {
    let names = fs::read_dir(dir.join("checkpoints")).into_iter().flatten();
    let names = names.map(|entry| entry.expect("listed").file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok()).max().unwrap_or(0)
}

/// Copies a directory with the modes of its files. Skips the ballast and the reserve for a start, which are
/// large and carry no data.
pub(crate) fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        if entry.file_name() == "ballast" || entry.file_name() == "start-reserve" {
            continue;
        }
        let target = to.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// Reads every object from a server on `dir`, which must have exactly these.
pub(super) fn assert_serves(dir: &Path, objects: &ExpectedObjects) {
    let server = setup(dir).start();
    runtime().block_on(async {
        let client = server.client();
        for (key, bytes) in objects {
            let found = client.get(BUCKET, key).await.unwrap_or_else(|error| panic!("{key}: {error:?}"));
            assert!(found.body == *bytes, "{key} has other bytes");
        }
        let listed = client.list(BUCKET, 1000).await.expect("listed");
        assert_eq!(listed.len(), objects.len());
    });
    server.stop();
}
