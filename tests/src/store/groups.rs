//! Buckets in several groups, through every way in which a data directory is read.

use super::directories::{body, setup};
use super::{assert_undamaged, path_text, run_store_json, runtime};
use crate::s3::full_body;
use crate::server::ServerProcess;
use std::collections::BTreeSet;
use std::path::Path;

const BUCKETS: [&str; 5] = ["groups-a", "groups-b", "groups-c", "groups-d", "groups-e"];
const KEYS: u32 = 20;

fn put_all(server: &ServerProcess, round: u32) {
    runtime().block_on(async {
        let client = server.client();
        for bucket in BUCKETS {
            for key in 0..KEYS {
                let key = format!("{bucket}-{key}");
                client.put(bucket, &key, full_body(body(&key, round))).await.expect("stored");
            }
        }
    });
}

/// Starts the server and asserts that every bucket has its objects.
fn assert_serves_all(dir: &Path, groups: u32, round: u32) {
    let server = setup(dir).with("catalogue.object_groups", groups).start();
    runtime().block_on(async {
        let client = server.client();
        for bucket in BUCKETS {
            let listed = client.list(bucket, 1000).await.expect("listed");
            let listed: BTreeSet<String> = listed.into_iter().map(|of| of.key).collect();
            let expected: BTreeSet<String> = (0..KEYS).map(|key| format!("{bucket}-{key}")).collect();
            assert_eq!(listed, expected);
            for key in &expected {
                assert!(client.get(bucket, key).await.expect("read").body == body(key, round), "{key}");
            }
        }
    });
    server.stop();
}

#[test]
fn buckets_in_several_groups_survive_restart_backup_restore_and_rebuild() {
    let room = tempfile::tempdir().expect("a directory");
    let (dir, out, back) = (room.path().join("data"), room.path().join("out"), room.path().join("back"));
    let server = setup(&dir).start();
    runtime().block_on(server.client().create_bucket(BUCKETS[0])).expect("made");
    server.stop();
    let mut server = setup(&dir).with("catalogue.object_groups", 3).start();
    runtime().block_on(async {
        for bucket in &BUCKETS[1..] {
            server.client().create_bucket(bucket).await.expect("made");
        }
    });
    put_all(&server, 1);
    assert_eq!(run_store_json(&["backup", path_text(&dir), path_text(&out)]).1, 0);
    put_all(&server, 2);
    server.kill();
    assert!(dir.join("catalogue/group-2").is_dir());
    assert_undamaged(&dir);
    assert_serves_all(&dir, 1, 2);

    assert_eq!(run_store_json(&["restore", path_text(&out), path_text(&back)]).1, 0);
    assert_undamaged(&back);
    assert_serves_all(&back, 3, 1);

    for group in 0..3 {
        std::fs::remove_dir_all(dir.join(format!("catalogue/group-{group}"))).expect("removed");
    }
    assert_eq!(run_store_json(&["rebuild", path_text(&dir)]).1, 0);
    assert_undamaged(&dir);
    assert_serves_all(&dir, 1, 2);
}
