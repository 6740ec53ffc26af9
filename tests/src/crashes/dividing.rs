//! Power cuts during `mlgw cluster init`: a server without peers or the first node of a cluster, never
//! between, and always with every object.

use mlgw_common::time::Instant;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::directory_in_memory;
use super::recorded::{DATA_DIR, with_small_settings};
use super::states::describe_rate;
use crate::mount::Mount;
use crate::power_cut::{CutStyle, IgnoredSyncs, NO_SYNCS_IGNORED, PowerCut, crash_state};
use crate::recording::Recording;
use crate::s3::{S3TestClient, full_body};
use crate::seed::{Rng, seeded_rng};
use crate::server::{ServerSetup, runtime};

const BUCKETS: [&str; 2] = ["divided-a", "divided-b"];
const KEYS: u32 = 40;
/// States recovered concurrently.
const CONCURRENCY: usize = 2;

/// A recording of an operation that ended.
struct RecordedInit {
    recording: Recording,
    /// Position at which the operation began.
    begin: usize,
}

fn setup(dir: &Path) -> ServerSetup {
    let setup = with_small_settings(ServerSetup::new(dir.join(DATA_DIR)));
    // A node of a cluster announces its stop for a while, and is stopped after each cut.
    setup.with("catalogue.checkpoint_interval", "1h").with("s3.shutdown_delay", "0s")
}

fn body(bucket: &str, key: u32) -> Vec<u8> {
    let length = if key.is_multiple_of(7) { 90_000 } else { 300 };
    format!("{bucket} {key} ").into_bytes().into_iter().cycle().take(length).collect()
}

async fn fill(client: &S3TestClient) {
    for bucket in BUCKETS {
        client.create_bucket(bucket).await.expect("made");
        for key in 0..KEYS {
            client.put(bucket, &format!("k-{key}"), full_body("overwritten")).await.expect("stored");
            client.put(bucket, &format!("k-{key}"), full_body(body(bucket, key))).await.expect("stored");
        }
        client.put(bucket, "gone", full_body("gone")).await.expect("stored");
        client.delete(bucket, "gone").await.expect("deleted");
        client.create_upload(bucket, "in progress").await.expect("begun");
    }
}

/// Records the operation on the directory of a killed server: some of its data is in the log only.
fn record() -> RecordedInit {
    let mount = Mount::new();
    let setup = setup(mount.path());
    let mut server = setup.start();
    runtime().block_on(fill(&server.client()));
    server.kill();
    let begin = mount.disk().recording().position();
    let (output, status) = setup.cluster_init();
    assert_eq!(status, Some(0), "{output}");
    let recording = mount.disk().recording().clone();
    RecordedInit { recording, begin }
}

/// True if the directory is that of a node of a cluster.
fn is_node(setup: &ServerSetup) -> Result<bool, String> {
    let text = std::fs::read_to_string(setup.data_dir.join("node.json")).map_err(|e| e.to_string())?;
    let node: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("{text:?}: {e}"))?;
    match node["format"].as_u64() {
        Some(2) => Ok(false),
        Some(4) => Ok(true),
        other => Err(format!("node.json has format {other:?}")),
    }
}

/// Starts the server, reads everything, and checks that only one catalogue is left.
fn serves(setup: &ServerSetup) -> Result<(), String> {
    let server = setup.try_start().map_err(|failed| format!("it does not start: {}", failed.log))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let read = runtime.block_on(async {
        let client = server.client();
        for bucket in BUCKETS {
            let listed = client.list(bucket, 1000).await.map_err(|e| format!("{bucket}: {e:?}"))?;
            if listed.len() != KEYS as usize {
                return Err(format!("{bucket} has {} objects", listed.len()));
            }
            for key in 0..KEYS {
                let found = client.get(bucket, &format!("k-{key}")).await;
                let found = found.map_err(|e| format!("{bucket} {key}: {e:?}"))?;
                if found.body != body(bucket, key) {
                    return Err(format!("{bucket} {key} has other bytes"));
                }
            }
            let uploads = client.list_uploads(bucket).await.map_err(|e| format!("{bucket}: {e:?}"))?;
            if uploads.len() != 1 {
                return Err(format!("{bucket} has {} uploads", uploads.len()));
            }
        }
        Ok(())
    });
    let log = server.log();
    read.map_err(|why| format!("{why}\n{log}"))?;
    server.stop();
    let entries = std::fs::read_dir(&setup.data_dir).expect("listed").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let catalogues: Vec<String> = names.filter(|name| name.starts_with("catalogue")).collect();
    if catalogues.len() == 1 { Ok(()) } else { Err(format!("these are left: {catalogues:?}")) }
}

/// Repeats the operation: it succeeds on a server, and refuses a node.
fn init_again(setup: &ServerSetup) -> Result<(), String> {
    let expected = if is_node(setup)? { 4 } else { 0 };
    match setup.cluster_init() {
        (_, Some(status)) if status == expected && is_node(setup)? => Ok(()),
        (output, status) => Err(format!("again: {status:?} {output}")),
    }
}

/// Checks the state that `cut` leaves. Returns true if it is a node of a cluster.
fn examine(recorded: &RecordedInit, cut: PowerCut, ignored: IgnoredSyncs) -> Result<bool, String> {
    let dir = directory_in_memory();
    crash_state(&recorded.recording, cut, ignored).write_to(dir.path()).expect("the state is written");
    let setup = setup(dir.path());
    let was_node = is_node(&setup)?;
    if !was_node && cut.at == recorded.recording.position() {
        return Err("the operation had succeeded".to_owned());
    }
    if cut.seed.is_multiple_of(2) {
        serves(&setup)?;
    }
    init_again(&setup)?;
    serves(&setup)?;
    let damage = crate::store::check(&setup.data_dir);
    if damage.is_empty() { Ok(was_node) } else { Err(format!("damage: {damage:?}")) }
}

/// Cuts before each sync of the operation, and after its end.
fn cuts(recorded: &RecordedInit, rng: &mut Rng) -> Vec<PowerCut> {
    let syncs = recorded.recording.syncs(|_, _| true).into_iter().filter(|at| *at >= recorded.begin);
    let mut cuts: Vec<PowerCut> = syncs
        .enumerate()
        .map(|(number, at)| {
            let style = if number % 2 == 0 { CutStyle::DropAll } else { CutStyle::choose(rng) };
            PowerCut { at, style, seed: rng.next() }
        })
        .collect();
    let end = recorded.recording.position();
    cuts.extend([CutStyle::DropAll, CutStyle::KeepAll, CutStyle::Mixed].map(|style| PowerCut {
        at: end,
        style,
        seed: rng.next(),
    }));
    cuts
}

#[test]
fn a_power_cut_at_any_sync_of_cluster_init_leaves_the_server_or_the_node() {
    let mut rng = seeded_rng("dividing", 7);
    let recorded = record();
    let cuts = cuts(&recorded, &mut rng);
    assert!(cuts.len() > 40, "{} cuts", cuts.len());
    let (start, next) = (Instant::now(), AtomicUsize::new(0));
    let found = Mutex::new((0, 0, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENCY {
            scope.spawn(|| {
                while let Some(cut) = cuts.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let examined = examine(&recorded, *cut, NO_SYNCS_IGNORED);
                    let mut found = found.lock().expect("lock is not poisoned");
                    match examined {
                        Ok(false) => found.0 += 1,
                        Ok(true) => found.1 += 1,
                        Err(why) => found.2.push(format!("{cut:?}: {why}")),
                    }
                }
            });
        }
    });
    let (servers, nodes, broken) = found.into_inner().expect("lock is not poisoned");
    eprintln!("dividing: {servers} servers, {nodes} nodes; {}", describe_rate(cuts.len(), start));
    assert!(broken.is_empty(), "{} of {} states:\n{}", broken.len(), cuts.len(), broken.join("\n"));
    assert!(servers > 0 && nodes > 0, "both sides of the rename were tried");
}

fn is_new(path: &str) -> bool {
    path.starts_with("mlgw-data/catalogue-1")
}

/// Classes of syncs that the operation depends on.
const CLASSES: &[(&str, IgnoredSyncs)] = &[
    ("tables of the new catalogue", |path, names| !names && is_new(path) && path.ends_with(".sst")),
    ("MANIFESTs of the new catalogue", |path, names| !names && is_new(path) && path.contains("/MANIFEST-")),
    ("CURRENT of the new catalogue", |path, names| {
        !names && is_new(path) && (path.ends_with("/CURRENT") || path.ends_with(".dbtmp"))
    }),
    ("names in the new catalogue", |path, names| names && is_new(path)),
    ("names in the data directory", |path, names| names && path == DATA_DIR),
    ("node.json", |path, names| !names && path.contains("node.json")),
];

#[test]
fn every_omitted_class_of_syncs_of_cluster_init_is_detected() {
    let mut rng = seeded_rng("dividing, controls", 8);
    let recorded = record();
    let at = recorded.recording.position();
    let cut = PowerCut { at, style: CutStyle::DropAll, seed: rng.next() };
    assert_eq!(examine(&recorded, cut, NO_SYNCS_IGNORED), Ok(true), "the recording itself is complete");
    for (name, ignored) in CLASSES {
        let detected = examine(&recorded, cut, *ignored);
        assert!(detected.is_err(), "{name}: omitted without a detected violation");
    }
}
