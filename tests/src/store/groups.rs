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

#[test]
fn buckets_in_several_groups_survive_a_division_and_everything_after_it() {
    let room = tempfile::tempdir().expect("a directory");
    let (dir, out, back) = (room.path().join("data"), room.path().join("out"), room.path().join("back"));
    let several = |dir: &Path| setup(dir).with("catalogue.object_groups", 3);
    let mut server = several(&dir).start();
    runtime().block_on(async {
        for bucket in BUCKETS {
            server.client().create_bucket(bucket).await.expect("made");
        }
    });
    put_all(&server, 1);
    let running = several(&dir).cluster_init();
    assert!(running.1 == Some(4) && running.0.contains("in use"), "{running:?}");
    server.kill();
    let (output, status) = several(&dir).cluster_init();
    assert_eq!(status, Some(0), "{output}");
    assert!(dir.join("catalogue-1/group-3").is_dir() && dir.join("catalogue").is_dir());
    let again = several(&dir).cluster_init();
    assert!(again.1 == Some(4) && again.0.contains("node 1 of a cluster already"), "{again:?}");
    assert_undamaged(&dir);
    assert_eq!(run_store_json(&["backup", path_text(&dir), path_text(&out)]).1, 0);
    assert_serves_all(&dir, 1, 1);
    assert!(!dir.join("catalogue").exists(), "the start removes the old catalogue");
    let server = setup(&dir).start();
    put_all(&server, 2);
    server.stop();
    assert_undamaged(&dir);

    assert_eq!(run_store_json(&["restore", path_text(&out), path_text(&back)]).1, 0);
    assert_undamaged(&back);
    assert_serves_all(&back, 1, 1);

    for group in 0..4 {
        std::fs::remove_dir_all(dir.join(format!("catalogue-1/group-{group}"))).expect("removed");
    }
    let (refused, status) = setup(&dir).store(&["rebuild", path_text(&dir), "--without-log"]);
    assert!(status == Some(4) && refused.contains("node 1 of a cluster"), "{refused}");
    assert_eq!(run_store_json(&["rebuild", path_text(&dir)]).1, 0);
    assert_undamaged(&dir);
    assert_serves_all(&dir, 1, 2);
}

#[test]
fn an_empty_directory_becomes_the_first_node_of_a_cluster() {
    let room = tempfile::tempdir().expect("a directory");
    let dir = room.path().join("new");
    let unsafe_setup = setup(&dir).with("durability", "os");
    let refused = unsafe_setup.cluster_init();
    assert!(refused.1 == Some(4) && refused.0.contains("durability is \"os\""), "{refused:?}");
    assert!(!dir.exists(), "a refusal creates nothing");
    let (output, status) = setup(&dir).cluster_init();
    assert_eq!(status, Some(0), "{output}");
    assert_undamaged(&dir);
    let starts: Vec<u64> = (0..2)
        .map(|_| {
            let server = setup(&dir).start();
            runtime().block_on(async {
                server.client().create_bucket(BUCKETS[0]).await.expect("made");
                server.client().put(BUCKETS[0], "a", full_body("a")).await.expect("stored");
            });
            server.stop();
            let text = std::fs::read_to_string(dir.join("node.json")).expect("read");
            let node: serde_json::Value = serde_json::from_str(&text).expect("a document");
            node["start"]["counter"].as_u64().expect("a count")
        })
        .collect();
    assert_eq!(starts, [1, 2], "each start is counted");
    assert_undamaged(&dir);
}

#[test]
fn a_server_with_a_rule_that_deletes_does_not_become_a_node() {
    let room = tempfile::tempdir().expect("a directory");
    let (dir, policy) = (room.path().join("data"), room.path().join("p.yaml"));
    let rule = |parameters: &str| {
        format!(
            "version: 1\nrules:\n- id: keep-few\n  conditions: [{{type: file_context, property: type, \
             operator: equals, value: checkpoint}}]\n  actions: [{{type: retain, target: \
             checkpoint_group, parameters: {{{parameters}}}}}]\n"
        )
    };
    let apply = |text: &str| {
        std::fs::write(&policy, text).expect("written");
        let server = setup(&dir).start();
        let (output, status) = setup(&dir).command(&["policy", "apply", path_text(&policy)]);
        assert_eq!(status, Some(0), "{output}");
        server.stop();
    };
    apply(&rule("keep_last: 1, delete: true, grace: 1h"));
    let refused = setup(&dir).cluster_init();
    assert!(refused.1 == Some(4) && refused.0.contains("keep-few"), "{refused:?}");
    assert!(!dir.join("catalogue-1").exists());
    let watched = setup(&dir).with("policy.files", policy.display());
    apply(&rule("keep_last: 1, grace: 1h"));
    std::fs::write(&policy, rule("keep_last: 1, delete: true, grace: 1h")).expect("written");
    let refused = watched.cluster_init();
    assert!(refused.1 == Some(4) && refused.0.contains("keep-few"), "of a watched file: {refused:?}");
    let (output, status) = setup(&dir).cluster_init();
    assert_eq!(status, Some(0), "{output}");
}
