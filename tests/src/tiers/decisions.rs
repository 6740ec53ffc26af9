//! The decision log: the reasons for moves between tiers are read back from it, also after a restart.

use mlgw_common::time::Instant;
use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::cold::{ColdBench, restart};
use super::{BUCKET, filled};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::{ServerSetup, runtime};

/// The output of `mlgw policy decisions`, newest first.
fn decisions(setup: &ServerSetup, words: &[&str]) -> Vec<Value> {
    let (output, status) = setup.command(&[&["--output", "json", "policy", "decisions"], words].concat());
    assert_eq!(status, Some(0), "{words:?}: {output}");
    let document: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    document["decisions"].as_array().expect("a list").clone()
}

/// The segments of completed decisions with this source, target and reason.
fn segments(decisions: &[Value], from: &str, to: &str, reason: &str) -> BTreeSet<u64> {
    let is_it = |one: &&Value| {
        one["from"] == from && one["to"] == to && one["reason"] == reason && one["outcome"] == "done"
    };
    decisions.iter().filter(is_it).filter_map(|one| one["segment"].as_u64()).collect()
}

fn bytes(decisions: &[Value]) -> u64 {
    decisions.iter().filter_map(|one| one["bytes"].as_u64()).sum()
}

#[test]
fn the_reasons_for_spills_and_promotions_are_logged_and_survive_a_restart() {
    let bench = ColdBench::new();
    let (server, _) = filled(&bench.setup);
    let moved = bench.run_tier_command(&["drain", "hot", "--wait"]);
    let spilled = decisions(&bench.setup, &["--kind", "spill", "--limit", "4096"]);
    let down = segments(&spilled, "hot", "cold", "drain");
    assert_eq!(bytes(&spilled), moved["spilled_bytes"].as_u64().expect("a number"), "{spilled:?}");
    assert_eq!(
        Some(down.len() as u64),
        bench.run_tier_command(&["show", "cold"])["segments"].as_u64(),
        "{spilled:?}"
    );
    let metrics = bench.setup.command(&["status", "--metrics"]).0;
    let line = metrics.lines().find(|line| {
        let labels = ["from=\"hot\"", "to=\"cold\"", "reason=\"drain\""];
        line.starts_with("mlgw_moved_bytes_total{") && labels.iter().all(|label| line.contains(label))
    });
    assert!(line.is_some_and(|line| line.ends_with(&format!(" {}", bytes(&spilled)))), "{line:?}");
    let server = restart(server, &bench);
    assert_eq!(
        decisions(&bench.setup, &["--kind", "spill", "--limit", "4096"]),
        spilled,
        "the decision is remembered"
    );
    bench.run_tier_command(&["drain", "cold", "--wait"]);
    let promoted = decisions(&bench.setup, &["--kind", "promote", "--limit", "4096"]);
    assert_eq!(segments(&promoted, "cold", "hot", "drain"), down, "{promoted:?}");
    let newest = decisions(&bench.setup, &["--limit", "1"]);
    let later = |one: &Value| newest[0]["seq"].as_u64() >= one["seq"].as_u64();
    assert!(newest.len() == 1 && promoted.iter().chain(&spilled).all(later), "{newest:?}");
    server.stop();
}

#[test]
fn moves_from_a_full_tier_and_releases_of_dead_segments_log_their_reason() {
    let bench = ColdBench::new();
    let setup = bench.setup.clone().with("hot.capacity", "24MiB");
    let server = setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        for n in 0..60 {
            let bytes = TestContent { id: n, length: 1_000_000 }.bytes();
            let begun = Instant::now();
            while client.put(BUCKET, &format!("{}", n % 40), full_body(bytes.clone())).await.is_err() {
                assert!(begun.elapsed() < Duration::from_secs(60), "nothing is spilled");
                mlgw_common::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let begun = Instant::now();
    loop {
        let all = decisions(&setup, &["--limit", "4096"]);
        let spilled = segments(&all, "hot", "cold", "watermark");
        let dead = all.iter().filter(|one| one["kind"] == "release" && one["reason"] == "dead").count();
        if !spilled.is_empty() && dead > 0 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{all:?}");
        mlgw_common::time::block_for(Duration::from_millis(50));
    }
    server.stop();
}

#[test]
fn a_job_waits_for_the_flash_budget_and_a_manual_command_does_not() {
    let bench = ColdBench::new();
    let setup = bench.setup.clone().with("hot.flash_bytes_per_day", "24KiB");
    let (server, objects) = filled(&setup);
    bench.run_tier_command(&["drain", "hot", "--wait"]);
    let (output, status) = setup.command(&["dataset", "create", "set", "--bucket", BUCKET]);
    assert_eq!(status, Some(0), "{output}");
    let (output, status) = setup.command(&["--output", "json", "dataset", "warm", "set"]);
    assert_eq!(status, Some(0), "{output}");
    let job: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    let begun = Instant::now();
    let waits = loop {
        let promotes = decisions(&setup, &["--kind", "promote"]);
        match promotes.into_iter().find(|one| one["outcome"] == "over_budget") {
            Some(waits) => break waits,
            None => assert!(begun.elapsed() < Duration::from_secs(60), "the request does not wait"),
        }
        mlgw_common::time::block_for(Duration::from_millis(20));
    };
    assert_eq!((&waits["reason"], &waits["job"], &waits["to"]), (&"job".into(), &job["id"], &"hot".into()));
    assert_eq!(
        bench.run_tier_command(&["show", "hot"])["segments"].as_u64().map(|n| n < 5),
        Some(true),
        "nothing was promoted"
    );
    let metrics = setup.command(&["status", "--metrics"]).0;
    let left = metrics.lines().find_map(|line| line.strip_prefix("mlgw_flash_budget_left_bytes "));
    assert!(left.is_some_and(|left| left.starts_with('-')), "{left:?}");
    let (output, status) = setup.command(&["job", "cancel", &job["id"].to_string()]);
    assert_eq!(status, Some(0), "{output}");
    bench.run_tier_command(&["drain", "cold", "--wait"]);
    runtime().block_on(super::assert_reads_back(&server.client(), &objects));
    server.stop();
}
