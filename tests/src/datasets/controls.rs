//! One job at a time, cancellation, schedules, pins, and refused commands.

use super::{Bench, HERE, MIB, THERE, id_of, runtime, until};
use crate::proxy::{Fault, Rule};

#[test]
fn one_job_runs_at_a_time_and_a_cancelled_job_can_be_repeated() {
    let mut bench = Bench::new();
    runtime().block_on(async {
        for n in 0..50 {
            bench.put(THERE, &format!("k{n:02}"), n, 200_000).await;
        }
    });
    bench.done(&["dataset", "create", "train", "--bucket", HERE]);
    bench.done(&["dataset", "create", "other", "--bucket", HERE, "--prefix", "none/"]);
    let stall = Fault::Stall { after: 1000, pause: std::time::Duration::from_secs(3600) };
    bench.proxy.set_rules(vec![Rule::new(stall).path("k30")]);
    let id = id_of(&bench.done(&["dataset", "warm", "train"]));
    let named = format!("warm, job {id}");
    bench.refused(&["dataset", "clear", "train"], 4, &named);
    bench.refused(&["dataset", "warm", "train"], 4, "DatasetBusy");
    bench.refused(&["--yes", "dataset", "delete", "train"], 4, "DatasetBusy");
    bench.done(&["dataset", "warm", "other", "--wait", "--quiet"]);
    until("it is half done", || bench.job(id)["objects_done"] == 30);
    // A cancellation outlives a crash.
    bench.done(&["job", "cancel", &id.to_string()]);
    bench.crash(vec![]);
    bench.refused(&["job", "wait", &id.to_string(), "--quiet"], 1, "cancelled");
    bench.refused(&["job", "cancel", &id.to_string()], 4, "is cancelled already");
    let job = bench.done(&["dataset", "warm", "train", "--wait", "--quiet"]);
    assert_eq!((&job["state"], &job["objects_done"]), (&"done".into(), &50.into()), "{job}");
    let jobs = bench.done(&["job", "list", "--dataset", "train"]);
    let states: Vec<_> =
        jobs["jobs"].as_array().expect("jobs").iter().map(|job| job["state"].clone()).collect();
    assert_eq!(states, ["done", "cancelled"], "the newest first: {jobs}");
    bench.done(&["dataset", "delete", "train"]);
    bench.refused(&["job", "show", &id.to_string()], 1, "NoSuchJob");
}

#[test]
fn a_schedule_runs_until_it_is_removed() {
    let mut bench = Bench::new();
    runtime().block_on(bench.put(THERE, "k", 1, 5000));
    bench.done(&["dataset", "create", "train", "--bucket", HERE]);
    bench.done(&["dataset", "warm", "train", "--schedule", "* * * * * *"]);
    let jobs = |bench: &Bench| {
        let jobs = bench.done(&["job", "list"])["jobs"].as_array().expect("jobs").clone();
        jobs.into_iter().filter(|job| job["state"] == "done").collect::<Vec<_>>()
    };
    until("it was due", || !jobs(&bench).is_empty());
    assert_eq!(jobs(&bench)[0]["requested_by"], "schedule");
    assert_eq!(bench.done(&["dataset", "show", "train"])["readiness"], "ready");
    bench.crash(vec![]);
    let before = id_of(&jobs(&bench)[0]);
    until("it is due after a restart, too", || id_of(&jobs(&bench)[0]) > before);
    let shown = bench.done(&["dataset", "warm", "train", "--schedule", "off"]);
    assert_eq!(shown["schedules"], serde_json::json!([]));
    bench.refused(&["dataset", "warm", "train", "--schedule", "off"], 1, "NoSuchSchedule");
    bench.refused(&["dataset", "warm", "train", "--schedule", "61 * * * *"], 4, "is no schedule");
}

#[test]
fn pinned_blocks_survive_evictions_for_other_objects() {
    let bench = Bench::with(|setup| setup.with("bound.capacity", "64MiB"));
    let runtime = runtime();
    runtime.block_on(async {
        for n in 0..16 {
            bench.put(THERE, &format!("kept/{n:02}"), n, MIB).await;
        }
        for n in 0..60 {
            bench.put(THERE, &format!("other/{n:02}"), 100 + n, MIB).await;
        }
    });
    bench.done(&["dataset", "create", "kept", "--bucket", HERE, "--prefix", "kept/"]);
    bench.refused(&["dataset", "pin", "kept"], 4, "warm the dataset first");
    bench.done(&["dataset", "warm", "kept", "--wait", "--quiet"]);
    bench.refused(&["dataset", "pin", "kept", "--bytes-max", "60MiB"], 4, "TooMuchPinned");
    let pinned = bench.done(&["dataset", "pin", "kept"]);
    assert_eq!(pinned["pinned_bytes_max"], 16 * MIB, "{pinned}");
    bench.refused(&["dataset", "clear", "kept"], 4, "is pinned");
    let read = |key: String| {
        let found = runtime.block_on(bench.here().get(HERE, &key)).expect("read");
        found.header("x-mlgw-cache").expect("said").to_owned()
    };
    // There is no room for all of them, in any pass.
    for round in 0..5 {
        let misses = (0..60).filter(|n| read(format!("other/{n:02}")) != "hit; tier=hot").count();
        assert!(misses >= 10, "{misses} in round {round}");
    }
    for n in 0..16 {
        assert_eq!(read(format!("kept/{n:02}")), "hit; tier=hot", "{n}");
    }
    assert_eq!(bench.done(&["dataset", "show", "kept"])["readiness"], "ready");
    bench.done(&["dataset", "unpin", "kept"]);
    bench.done(&["dataset", "clear", "kept", "--wait", "--quiet"]);
}

#[test]
fn invalid_commands_are_refused_with_a_reason_and_change_nothing() {
    let bench = Bench::new();
    runtime().block_on(bench.here().create_bucket("ours")).expect("made");
    let create = |words: &[&str], what: &str| {
        bench.refused(&[&["dataset", "create"], words].concat(), 4, what);
    };
    create(&["D", "--bucket", HERE], "is no name of a dataset");
    create(&["d", "--bucket", HERE, "--prefix", "a", "--prefix", "ab"], "\"ab\" is within the slice \"a\"");
    create(&["d", "--bucket", HERE, "--source", "far/x"], "is bound");
    create(&["d", "--bucket", "ours", "--source", "none/x"], "[\"far\", \"near\"]");
    create(
        &["d", "--bucket", "ours", "--source", "far:a/", "--source", "near:a/b/"],
        "both import into \"a/b/\"",
    );
    create(&["d", "--bucket", "ours", "--prefix", "p/", "--source", "far:q/"], "in no slice");
    bench.refused(&["dataset", "create", "d", "--bucket", "none"], 1, "NoSuchBucket");
    bench.done(&["dataset", "create", "d", "--bucket", "ours"]);
    bench.refused(&["dataset", "create", "d", "--bucket", HERE], 4, "DatasetExists");
    for (words, what) in [
        (&["clear", "d"][..], "the truth, and stay"),
        (&["evict", "d", "--older-than", "1h"], "the truth, and stay"),
        (&["sync", "d"], "no sources"),
        (&["pin", "d", "--bytes-max", "1MiB"], "never evicted"),
        (
            &["warm", "d", "--order", "sideways"],
            "no order \"sideways\": there are [\"sequential\", \"shuffled\"",
        ),
    ] {
        bench.refused(&[&["dataset"], words].concat(), 4, what);
    }
    bench.refused(&["dataset", "show", "none"], 1, "NoSuchDataset");
    bench.refused(&["job", "show", "77"], 1, "NoSuchJob");
    assert_eq!(bench.done(&["job", "list"])["jobs"], serde_json::json!([]));
}
