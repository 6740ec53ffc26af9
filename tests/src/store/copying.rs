//! Backups made while a server works, restore, rebuild, and salvage of the data that is left without a
//! backup.

use super::directories::{
    BUCKET, ExpectedObjects, VICTIM, assert_serves, body, copy_directory, directories, put_workload, setup,
};
use super::{assert_undamaged, check, path_text, run_store, run_store_json, runtime};
use crate::s3::full_body;
use crate::server::ServerProcess;
use crate::stop_on_drop::StopOnDrop;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_backup_of_a_busy_server_has_everything_acknowledged_before_it() {
    let room = tempfile::tempdir().expect("a directory");
    let (dir, out, back) = (room.path().join("data"), room.path().join("out"), room.path().join("back"));
    // Segments are made, moved and released all the time.
    let busy = setup(&dir)
        .with("hot.segment_bytes", "1MiB")
        .with("hot.compact_dead_percent", "5")
        .with("hot.compact_interval", "10ms")
        .with("hot.compact_bytes_per_second", "1GiB");
    let server = busy.start();
    let mut objects = ExpectedObjects::new();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        put_workload(&client, 0, &mut objects).await;
    });
    let copies: Vec<PathBuf> = (0..5).map(|number| room.path().join(format!("out-{number}"))).collect();
    while_putting(&server, || {
        // A single copy finishes too quickly to overlap with much activity.
        for to in copies.iter().chain([&out]) {
            let made = run_store(&["backup", path_text(&dir), path_text(to)]);
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
    });
    let again = run_store(&["backup", path_text(&dir), path_text(&out)]);
    assert_eq!(again.status.code(), Some(1), "a non-empty directory is not overwritten");
    server.stop();
    for copy in copies {
        let to = copy.with_extension("back");
        assert_eq!(run_store_json(&["restore", path_text(&copy), path_text(&to)]).1, 0);
        assert_undamaged(&to);
    }

    let (restored, status) = run_store_json(&["restore", path_text(&out), path_text(&back)]);
    assert_eq!(status, 0, "{restored:#}");
    assert_undamaged(&back);
    let server = setup(&back).start();
    runtime().block_on(async {
        let client = server.client();
        for listed in client.list(BUCKET, 1000).await.expect("listed") {
            let found = client.get(BUCKET, &listed.key).await.expect("read").body;
            if listed.key == "replaced" {
                assert!(found.len() == 300_000 && found.iter().all(|byte| *byte == found[0]));
                continue;
            }
            let expected = objects.remove(&listed.key).unwrap_or_else(|| body(&listed.key, 0));
            assert!(found == expected, "{} has other bytes", listed.key);
        }
    });
    server.stop();
    assert!(objects.is_empty(), "not in the backup: {:?}", objects.keys());

    let refused = run_store(&["restore", path_text(&out), path_text(&back)]);
    assert_eq!(refused.status.code(), Some(1), "a non-empty directory is left unchanged");
    let path = out.join("node.json");
    let mut bytes = fs::read(&path).expect("read");
    bytes[12] ^= 1;
    fs::write(&path, bytes).expect("written");
    let refused = run_store(&["restore", path_text(&out), path_text(&room.path().join("third"))]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("node.json"), "{refused:?}");
}

/// Runs `something` while objects are put. Each of them is put once, so that it must be present as a whole or
/// absent; one more object is overwritten repeatedly.
fn while_putting(server: &ServerProcess, something: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            runtime().block_on(async {
                let client = server.client();
                let mut count = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    let key = format!("later-{count}");
                    client.put(BUCKET, &key, full_body(body(&key, 0))).await.expect("stored");
                    let replaced = full_body(vec![count as u8; 300_000]);
                    client.put(BUCKET, "replaced", replaced).await.expect("stored");
                    count += 1;
                }
                count
            })
        });
        let stopping = StopOnDrop(&stop);
        something();
        drop(stopping);
        assert!(writer.join().expect("the writer") > 0);
    });
}

#[test]
fn a_lost_catalogue_is_rebuilt_from_checkpoint_and_log_and_salvage_lists_the_rest() {
    let made = directories();
    let dir = &made.killed;
    let (salvaged, status) = run_store_json(&["salvage", path_text(dir)]);
    assert_eq!(status, 0);
    let victim = salvaged["bodies"].as_array().expect("bodies").iter().find(|body| body["key"] == VICTIM);
    let victim = victim.expect("the victim is found");
    assert_eq!(victim["bytes"], body(VICTIM, 0).len());
    assert_eq!(victim["contiguous"], true);

    fs::remove_dir_all(dir.join("catalogue/group-0")).expect("removed");
    assert_ne!(check(dir), Vec::<String>::new());
    let (rebuilt, status) = run_store_json(&["rebuild", path_text(dir)]);
    assert_eq!(status, 0, "{rebuilt:#}");
    assert!(rebuilt["rows"].as_u64().is_some_and(|rows| rows > 30), "{rebuilt:#}");
    assert_undamaged(dir);
    assert_serves(dir, &made.objects);

    fs::remove_dir_all(dir.join("catalogue")).expect("removed");
    let without = run_store(&["rebuild", path_text(dir)]);
    assert_eq!(without.status.code(), Some(1), "the missing log must be reported");
    let (rebuilt, status) = run_store_json(&["rebuild", path_text(dir), "--without-log"]);
    assert_eq!(status, 0, "{rebuilt:#}");
    let server = setup(dir).start();
    runtime().block_on(async {
        let found = server.client().get(BUCKET, VICTIM).await.expect("read");
        assert!(found.body == body(VICTIM, 0));
    });
    server.stop();
}

#[test]
fn missing_and_damaged_segments_are_refused_with_the_objects_in_them() {
    let made = directories();
    let room = tempfile::tempdir().expect("a directory");
    let (dir, out, back) = (room.path().join("data"), room.path().join("out"), room.path().join("back"));
    copy_directory(&made.stopped, &dir);
    let backup = |to: &Path| run_store(&["backup", path_text(&dir), path_text(to)]);
    assert_eq!(backup(&out).status.code(), Some(0));
    let segment = |of: &Path| {
        let files = fs::read_dir(of.join("segments")).expect("listed").map(|file| file.expect("a file"));
        let segments = files.filter(|file| file.file_name().to_string_lossy().ends_with(".seg"));
        segments.max_by_key(|file| file.metadata().expect("a file").len()).expect("a segment").path()
    };
    let lists_objects = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("objects lack bytes") && text.contains(&format!("s3://{BUCKET}/")), "{text}");
    };
    fs::remove_file(segment(&dir)).expect("removed");
    let refused = room.path().join("refused");
    lists_objects(&backup(&refused));
    assert!(!refused.join("contents").exists());
    let damaged = segment(&out);
    let mut bytes = fs::read(&damaged).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&damaged, bytes).expect("written");
    lists_objects(&run_store(&["restore", path_text(&out), path_text(&back)]));
    fs::remove_file(&damaged).expect("removed");
    lists_objects(&run_store(&["restore", path_text(&out), path_text(&back)]));
    assert!(!back.exists(), "nothing was written");
}
