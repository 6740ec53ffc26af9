//! One job at a time, cancellation, schedules, pins, and refused commands.

use super::{BUCKET, DatasetBench, MIB, ORIGIN_BUCKET, id_of, runtime, wait_until};
use crate::proxy::{Fault, Rule};

#[test]
fn one_job_runs_at_a_time_and_a_cancelled_job_can_be_repeated() {
    let mut bench = DatasetBench::new();
    runtime().block_on(async {
        for n in 0..50 {
            bench.put(ORIGIN_BUCKET, &format!("k{n:02}"), n, 200_000).await;
        }
    });
    bench.run(&["dataset", "create", "train", "--bucket", BUCKET]);
    bench.run(&["dataset", "create", "other", "--bucket", BUCKET, "--prefix", "none/"]);
    let stall = Fault::Stall { after: 1000, pause: std::time::Duration::from_secs(3600) };
    bench.proxy.set_rules(vec![Rule::new(stall).path("k30")]);
    let id = id_of(&bench.run(&["dataset", "warm", "train"]));
    let named = format!("warm, job {id}");
    bench.assert_refused(&["dataset", "clear", "train"], 4, &named);
    bench.assert_refused(&["dataset", "warm", "train"], 4, "DatasetBusy");
    bench.assert_refused(&["--yes", "dataset", "delete", "train"], 4, "DatasetBusy");
    bench.run(&["dataset", "warm", "other", "--wait", "--quiet"]);
    wait_until("half of the job is done", || bench.job(id)["objects_done"] == 30);
    // A cancellation outlives a crash.
    bench.run(&["job", "cancel", &id.to_string()]);
    bench.crash(vec![]);
    bench.assert_refused(&["job", "wait", &id.to_string(), "--quiet"], 1, "cancelled");
    bench.assert_refused(&["job", "cancel", &id.to_string()], 4, "is already cancelled");
    let job = bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
    assert_eq!((&job["state"], &job["objects_done"]), (&"done".into(), &50.into()), "{job}");
    let jobs = bench.run(&["job", "list", "--dataset", "train"]);
    let states: Vec<_> =
        jobs["jobs"].as_array().expect("jobs").iter().map(|job| job["state"].clone()).collect();
    assert_eq!(states, ["done", "cancelled"], "the newest first: {jobs}");
    bench.run(&["dataset", "delete", "train"]);
    bench.assert_refused(&["job", "show", &id.to_string()], 1, "NoSuchJob");
}

#[test]
fn a_schedule_runs_until_it_is_removed() {
    let mut bench = DatasetBench::new();
    runtime().block_on(bench.put(ORIGIN_BUCKET, "k", 1, 5000));
    bench.run(&["dataset", "create", "train", "--bucket", BUCKET]);
    bench.run(&["dataset", "warm", "train", "--schedule", "* * * * * *"]);
    let jobs = |bench: &DatasetBench| {
        let jobs = bench.run(&["job", "list"])["jobs"].as_array().expect("jobs").clone();
        jobs.into_iter().filter(|job| job["state"] == "done").collect::<Vec<_>>()
    };
    wait_until("the schedule was due", || !jobs(&bench).is_empty());
    assert_eq!(jobs(&bench)[0]["requested_by"], "schedule");
    assert_eq!(bench.run(&["dataset", "show", "train"])["readiness"], "ready");
    bench.crash(vec![]);
    let before = id_of(&jobs(&bench)[0]);
    wait_until("the schedule is due after a restart, too", || id_of(&jobs(&bench)[0]) > before);
    let shown = bench.run(&["dataset", "warm", "train", "--schedule", "off"]);
    assert_eq!(shown["schedules"], serde_json::json!([]));
    bench.assert_refused(&["dataset", "warm", "train", "--schedule", "off"], 1, "NoSuchSchedule");
    bench.assert_refused(&["dataset", "warm", "train", "--schedule", "61 * * * *"], 4, "invalid schedule");
}

#[test]
fn pinned_blocks_survive_evictions_for_other_objects() {
    let bench = DatasetBench::with_setup(|setup| setup.with("bound.capacity", "64MiB"));
    let runtime = runtime();
    runtime.block_on(async {
        for n in 0..16 {
            bench.put(ORIGIN_BUCKET, &format!("kept/{n:02}"), n, MIB).await;
        }
        for n in 0..60 {
            bench.put(ORIGIN_BUCKET, &format!("other/{n:02}"), 100 + n, MIB).await;
        }
    });
    bench.run(&["dataset", "create", "kept", "--bucket", BUCKET, "--prefix", "kept/"]);
    bench.assert_refused(&["dataset", "pin", "kept"], 4, "warm the dataset first");
    bench.run(&["dataset", "warm", "kept", "--wait", "--quiet"]);
    bench.assert_refused(&["dataset", "pin", "kept", "--bytes-max", "60MiB"], 4, "TooMuchPinned");
    let pinned = bench.run(&["dataset", "pin", "kept"]);
    assert_eq!(pinned["pinned_bytes_max"], 16 * MIB, "{pinned}");
    bench.assert_refused(&["dataset", "clear", "kept"], 4, "is pinned");
    let read = |key: String| {
        let found = runtime.block_on(bench.client().get(BUCKET, &key)).expect("read");
        found.header("x-mlgw-cache").expect("header is present").to_owned()
    };
    // There is no room for all of them, in any pass.
    for round in 0..5 {
        let misses = (0..60).filter(|n| read(format!("other/{n:02}")) != "hit; tier=hot").count();
        assert!(misses >= 10, "{misses} in round {round}");
    }
    for n in 0..16 {
        assert_eq!(read(format!("kept/{n:02}")), "hit; tier=hot", "{n}");
    }
    assert_eq!(bench.run(&["dataset", "show", "kept"])["readiness"], "ready");
    bench.run(&["dataset", "unpin", "kept"]);
    bench.run(&["dataset", "clear", "kept", "--wait", "--quiet"]);
}

#[test]
fn invalid_commands_are_refused_with_a_reason_and_change_nothing() {
    let bench = DatasetBench::new();
    runtime().block_on(bench.client().create_bucket("ours")).expect("made");
    let create = |words: &[&str], what: &str| {
        bench.assert_refused(&[&["dataset", "create"], words].concat(), 4, what);
    };
    create(&["D", "--bucket", BUCKET], "Invalid dataset name");
    create(&["d", "--bucket", BUCKET, "--prefix", "a", "--prefix", "ab"], "\"ab\" is within the slice \"a\"");
    create(&["d", "--bucket", BUCKET, "--source", "far/x"], "is remote-backed");
    create(&["d", "--bucket", "ours", "--source", "none/x"], "Configured: far, near");
    create(
        &["d", "--bucket", "ours", "--source", "far:a/", "--source", "near:a/b/"],
        "both import into \"a/b/\"",
    );
    create(&["d", "--bucket", "ours", "--prefix", "p/", "--source", "far:q/"], "outside of all slices");
    bench.assert_refused(&["dataset", "create", "d", "--bucket", "none"], 1, "NoSuchBucket");
    bench.run(&["dataset", "create", "d", "--bucket", "ours"]);
    bench.assert_refused(&["dataset", "create", "d", "--bucket", BUCKET], 4, "DatasetExists");
    for (words, what) in [
        (&["clear", "d"][..], "no copies to evict"),
        (&["evict", "d", "--older-than", "1h"], "no copies to evict"),
        (&["sync", "d"], "no sources"),
        (&["pin", "d", "--bytes-max", "1MiB"], "never evicted"),
    ] {
        bench.assert_refused(&[&["dataset"], words].concat(), 4, what);
    }
    let sideways = ["dataset", "warm", "d", "--order", "sideways"];
    bench.assert_refused(&sideways, 2, "[possible values: sequential, shuffled, shard-shuffled]");
    bench.assert_refused(&["dataset", "show", "none"], 1, "NoSuchDataset");
    bench.assert_refused(&["job", "show", "77"], 1, "NoSuchJob");
    assert_eq!(bench.run(&["job", "list"])["jobs"], serde_json::json!([]));
}
