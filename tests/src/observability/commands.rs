//! Commands on the server's host that show its state.

use std::path::Path;

use serde_json::Value;

use super::{BUCKET, runtime};
use crate::s3::full_body;
use crate::server::ServerSetup;

fn json(setup: &ServerSetup, arguments: &[&str]) -> Value {
    let (said, status) = setup.command(&[&["--output", "json"], arguments].concat());
    assert_eq!(status, Some(0), "{said}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn status_and_top_show_the_requests_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"));
    let server = setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        for n in 0..5 {
            client.put(BUCKET, &format!("{n}"), full_body("body")).await.expect("stored");
        }
    });
    let status = json(&setup, &["status"]);
    assert_eq!((&status["state"], &status["health"]), (&"ready".into(), &"ok".into()), "{status}");
    let tiers: Vec<_> = status["tiers"]
        .as_array()
        .expect("tiers")
        .iter()
        .map(|tier| (&tier["tier"], &tier["objects"]))
        .collect();
    assert_eq!(tiers, [(&"memory".into(), &0.into()), (&"hot".into(), &5.into())]);
    let operations = status["recent"]["operations"].as_array().expect("operations").clone();
    let puts = operations.iter().find(|done| done["operation"] == "PutObject").expect("puts");
    assert_eq!((&puts["requests"], &puts["bytes_in"], &puts["errors"]), (&5.into(), &20.into(), &0.into()));

    let (said, exit) = setup.command(&["status"]);
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains("no findings") && said.contains("PutObject"), "{said}");
    let (said, exit) = setup.command(&["status", "--metrics"]);
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains("mlgw_requests_total{op=\"PutObject\",status=\"200\"} 5"), "{said}");
    let (said, exit) = setup.command(&["top", "--count", "2", "--interval", "0.1"]);
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.lines().count() == 2 && said.starts_with("ready ok requests/s="), "{said}");
    server.stop();
}

#[test]
fn the_status_of_a_degraded_server_reports_it_and_fails() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data")).with("limits.connections", 10);
    let server = setup.start();
    let open: Vec<_> = (0..10).map(|_| std::net::TcpStream::connect(server.s3).expect("connected")).collect();
    let answers = || setup.command(&["status"]);
    let begun = mlgw_common::time::Instant::now();
    // A connection counts once it is accepted, which is shortly after it was opened.
    while answers().1 == Some(0) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{}", answers().0);
    }
    let (said, status) = answers();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("WARNING  10 of 10 connections are open."), "{said}");
    assert!(said.contains("          Raise limits.connections"), "{said}");
    drop(open);
    server.stop();
    let (said, status) = setup.command(&["status"]);
    assert_eq!(status, Some(3), "no server answers: {said}");
}

#[test]
fn buckets_and_objects_are_created_shown_and_deleted() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"));
    let server = setup.start();
    assert_eq!(setup.command(&["bucket", "create", BUCKET]).1, Some(0));
    runtime()
        .block_on(async { server.client().put(BUCKET, "key", full_body("body")).await.expect("stored") });
    let shown = json(&setup, &["bucket", "show", BUCKET]);
    assert_eq!((&shown["objects"], &shown["bytes"]), (&1.into(), &4.into()), "{shown}");
    let object = json(&setup, &["object", "show", &format!("s3://{BUCKET}/key")]);
    assert_eq!((&object["size"], &object["tiers"][0]["tier"]), (&4.into(), &"hot".into()), "{object}");
    assert_eq!((&object["extents"][0]["bytes"], &object["whole"]), (&4.into(), &true.into()), "{object}");
    let (said, status) = setup.command(&["object", "show", &format!("s3://{BUCKET}/missing")]);
    assert_eq!(status, Some(1), "{said}");
    let (said, status) = setup.command(&["bucket", "delete", BUCKET, "--yes"]);
    assert_eq!(status, Some(4), "the directory is not empty: {said}");
    runtime().block_on(async { server.client().delete(BUCKET, "key").await.expect("deleted") });
    let (said, status) = setup.command(&["bucket", "delete", BUCKET, "--yes"]);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(json(&setup, &["bucket", "list"])["buckets"], Value::Array(vec![]));
    server.stop();
}

#[test]
fn completions_and_version_need_no_server() {
    let setup = ServerSetup::new(Path::new("/nonexistent"));
    let version = json(&setup, &["version"]);
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    for shell in ["bash", "zsh", "fish"] {
        let (said, status) = setup.command(&["completions", shell]);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains("MLGW_COMPLETE"), "{shell}: {said}");
    }
}
