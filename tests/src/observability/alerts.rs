//! Every alert of deploy/prometheus/alerts.yml, tested with a server in the state that the alert detects.
//!
//! A server is scraped in normal operation and again after the state was caused. Prometheus's own rule
//! evaluation then sees half an hour of the first scrape and an hour and a half of the second. Some states
//! cannot be caused in seconds, such as gigabytes of garbage or a log that is not purged. For these the
//! values are synthetic, and the series are the server's.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::promtool::{AlertStory, ScrapeStage, assert_fires, assert_parses, deploy};
use super::scrape::Scrape;
use super::{BUCKET, runtime};
use crate::cluster::testbed::{self as cluster_testbed, FIRST, TestCluster};
use crate::content::TestContent;
use crate::mount::Mount;
use crate::s3::full_body;
use crate::server::{ServerProcess, ServerSetup};

/// Returns the names of the alerts in the file.
fn alerts() -> BTreeSet<String> {
    let text = std::fs::read_to_string(deploy("prometheus/alerts.yml")).expect("the alerts");
    text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect()
}

fn setup() -> (tempfile::TempDir, ServerSetup) {
    let dir =
        tempfile::tempdir_in(crate::server::binary().parent().expect("a directory")).expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"));
    (dir, setup)
}

/// The tested states, with a server for each.
const STATES: &[fn() -> Vec<AlertStory>] = &[
    stopped,
    restarted,
    corrupt,
    full,
    short_of_connections,
    short_of_files,
    slow,
    access_log_blocked,
    without_its_origin,
    in_the_prefix_of_another,
    with_a_wrong_policy,
    with_missing_copies,
    without_a_majority,
    with_a_lost_disk,
    synthetic,
];

#[test]
fn every_alert_fires_in_its_state_and_not_before() {
    let mut driven = BTreeSet::new();
    for state in STATES {
        let stories = state();
        driven.extend(stories.iter().flat_map(|story| story.alerts).map(|alert| (*alert).to_owned()));
        assert_fires(&stories);
    }
    assert_eq!(driven, alerts(), "each alert has a state here");
}

#[test]
fn the_queries_of_the_dashboard_parse() {
    let text = std::fs::read_to_string(deploy("grafana/mlgw.json")).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().expect("a query").replace("$__rate_interval", "5m");
        query.replace("$job", ".*").replace("$instance", ".*")
    });
    assert_parses(&queries.collect::<Vec<_>>());
}

/// Puts and reads an object, so that the counters of both operations exist.
fn put_and_get(server: &ServerProcess) {
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "key", full_body("body")).await.expect("stored");
        client.get(BUCKET, "key").await.expect("read");
    });
}

fn stopped() -> Vec<AlertStory> {
    let (_dir, setup) = setup();
    let mut server = setup.start();
    put_and_get(&server);
    let before = Scrape::of(&server);
    server.kill();
    vec![AlertStory::of_stages(&["MlgwDown"], before, vec![ScrapeStage { scrape: None, minutes: 1 }])]
}

fn restarted() -> Vec<AlertStory> {
    let (_dir, setup) = setup();
    let life = || {
        let server = setup.start();
        let scrape = Scrape::of(&server);
        server.stop();
        scrape
    };
    let before = life();
    let lives = (0..4).map(|_| ScrapeStage { scrape: Some(life()), minutes: 5 });
    vec![AlertStory::of_stages(&["MlgwRestarts"], before, lives.collect())]
}

/// Flips a byte of a segment and reads the object that contains it.
fn corrupt() -> Vec<AlertStory> {
    let (_dir, setup) = setup();
    let server = setup.start();
    let content = TestContent { id: 1, length: 100_000 };
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "key", full_body(content.bytes())).await.expect("stored");
    });
    server.stop();
    flip_in_segment(&setup.data_dir);
    let server = setup.start();
    let before = Scrape::of(&server);
    runtime().block_on(async {
        let failure = server.client().get(BUCKET, "key").await.expect_err("a damaged object is not served");
        assert_eq!(failure.status(), Some(500), "{failure:?}");
    });
    let after = until_quarantined(&server);
    vec![AlertStory::of_condition(
        &["MlgwCorruptBlocks", "MlgwQuarantinedBlocks", "MlgwErrors"],
        before,
        after,
    )]
}

/// Waits until the scrub has quarantined the damage that a read reported, and returns a scrape.
fn until_quarantined(server: &ServerProcess) -> Scrape {
    let begun = mlgw_common::time::Instant::now();
    loop {
        let scrape = Scrape::of(server);
        if scrape.sum("mlgw_quarantined_blocks", &[("tier", "hot")]) > 0.0 {
            return scrape;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing was quarantined: {}", server.log());
        mlgw_common::time::block_for(Duration::from_millis(20));
    }
}

fn flip_in_segment(data_dir: &Path) {
    let segments = std::fs::read_dir(data_dir.join("segments"))
        .expect("segments")
        .map(|entry| entry.expect("an entry").path());
    let is_segment = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "seg");
    let longest = segments.filter(is_segment).max_by_key(|path| path.metadata().map_or(0, |file| file.len()));
    let path = longest.expect("a segment");
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[50_000] ^= 1;
    std::fs::write(&path, bytes).expect("written");
}

/// Fills a hot tier of 64 MiB until it is nearly full, and then until it refuses writes.
fn full() -> Vec<AlertStory> {
    let (_dir, setup) = setup();
    let server = setup.with("hot.capacity", "64MiB").with("hot.segment_bytes", "16MiB").start();
    put_and_get(&server);
    let before = Scrape::of(&server);
    let put = |id: u64| {
        let (client, content) = (server.client(), TestContent { id, length: 1 << 20 });
        async move { client.put(BUCKET, &format!("object-{id}"), full_body(content.bytes())).await }
    };
    let room = || Scrape::of(&server).sum("mlgw_tier_room_bytes", &[("tier", "hot")]);
    let filling = runtime().block_on(async {
        let mut id = 0;
        while room() > 6e6 {
            id += 1;
            put(id).await.expect("the disk has space");
        }
        let filling = Scrape::of(&server);
        let refused = (0..).map(|n| id + n + 1).take(20);
        let mut refusals = 0;
        for id in refused {
            refusals += usize::from(put(id).await.is_err());
        }
        assert!(refusals > 11, "{refusals} were refused");
        filling
    });
    let full = Scrape::of(&server);
    vec![
        AlertStory::of_condition(&["MlgwDiskFilling"], before, filling.clone()),
        // The scrape before this story has to show that the tier is not full, not that it has much room.
        AlertStory::of_condition(&["MlgwDiskFull", "MlgwThrottled"], with_free_space(&filling), full),
    ]
}

/// Returns the scrape with as many free bytes as used bytes.
fn with_free_space(scrape: &Scrape) -> Scrape {
    let mut roomy = scrape.clone();
    let used = scrape.sum("mlgw_tier_used_bytes", &[("tier", "hot")]);
    roomy.0.insert("mlgw_tier_room_bytes{tier=\"hot\"}".to_owned(), used);
    roomy
}

/// Opens the ten connections that are allowed, and a dozen more.
fn short_of_connections() -> Vec<AlertStory> {
    let (_dir, setup) = setup();
    let server = setup.with("limits.connections", 10).start();
    let before = Scrape::of(&server);
    let connect = || TcpStream::connect(server.s3).expect("connected");
    let open: Vec<TcpStream> = (0..10).map(|_| connect()).collect();
    let refused = (0..12).map(|_| {
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut connect(), &mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    });
    refused.for_each(drop);
    let after = Scrape::of(&server);
    drop(open);
    vec![AlertStory::of_condition(&["MlgwConnectionsNearLimit", "MlgwThrottled"], before, after)]
}

/// Opens about 150 files of 160 allowed. A server does not start with a limit that low, so the limit is
/// lowered while it runs.
fn short_of_files() -> Vec<AlertStory> {
    let (_dir, setup) = setup();
    let server = setup.start();
    let pid = Pid::from_raw(server.pid().cast_signed());
    let lowered = Rlimit { current: Some(160), maximum: Some(160) };
    prlimit(pid, Resource::Nofile, lowered).expect("a child process");
    let before = Scrape::of(&server);
    let limit = before.sum("mlgw_process_open_files_limit", &[]);
    assert!((limit - 160.0).abs() < 1e-9, "{limit}");
    let mut open = Vec::new();
    loop {
        open.push(TcpStream::connect(server.s3).expect("connected"));
        let after = Scrape::of(&server);
        if after.sum("mlgw_process_open_files", &[]) > 0.92 * limit {
            return vec![AlertStory::of_condition(&["MlgwOpenFilesNearLimit"], before, after)];
        }
        assert!(open.len() < 160, "connections are open files");
    }
}

/// Runs requests on a disk on which each read and each sync takes 600 ms.
fn slow() -> Vec<AlertStory> {
    const WRITERS: u64 = 6;
    let mount = Mount::new();
    let server = ServerSetup::new(mount.path().join("mlgw-data")).start();
    put_and_get(&server);
    let before = Scrape::of(&server);
    mount.disk().slow_down(Duration::from_millis(600));
    runtime().block_on(async {
        let one = |id: u64| {
            let client = server.client();
            tokio::spawn(async move {
                client.put(BUCKET, &format!("object-{id}"), full_body("body")).await.expect("stored");
                client.get(BUCKET, &format!("object-{id}")).await.expect("read");
            })
        };
        let all: Vec<_> = (0..WRITERS).map(one).collect();
        for each in all {
            each.await.expect("no panic");
        }
    });
    let after = Scrape::of(&server);
    mount.disk().slow_down(Duration::ZERO);
    server.stop();
    vec![AlertStory::of_condition(&["MlgwSlowReads", "MlgwSlowSyncs", "MlgwQueueWait"], before, after)]
}

/// Puts a file where the access log needs a directory.
fn access_log_blocked() -> Vec<AlertStory> {
    let (dir, setup) = setup();
    let blocked = dir.path().join("blocked");
    std::fs::write(&blocked, "").expect("written");
    let server = setup.with("access_log.one_in", 1).with("access_log.dir", blocked.display()).start();
    let before = Scrape::of(&server);
    put_and_get(&server);
    let dropped = || Scrape::of(&server).sum("mlgw_access_log_lines_total", &[("result", "dropped")]);
    let begun = mlgw_common::time::Instant::now();
    while dropped() < 3.0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "three lines are dropped: {}", dropped());
        mlgw_common::time::block_for(Duration::from_millis(5));
    }
    vec![AlertStory::of_condition(&["MlgwAccessLogDropped"], before, Scrape::of(&server))]
}

/// Makes a watched policy file invalid.
fn with_a_wrong_policy() -> Vec<AlertStory> {
    let (dir, setup) = setup();
    let path = dir.path().join("policy.yaml");
    std::fs::write(&path, "version: 1\n").expect("written");
    let server = setup.with("policy.files", path.display()).start();
    let before = Scrape::of(&server);
    std::fs::write(&path, "version: 1\nrulez: []\n").expect("written");
    let begun = mlgw_common::time::Instant::now();
    let after = loop {
        let scrape = Scrape::of(&server);
        if scrape.0.get("mlgw_policy_faults{what=\"file\"}") == Some(&1.0) {
            break scrape;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the request is not refused");
        mlgw_common::time::block_for(Duration::from_millis(50));
    };
    vec![AlertStory::of_condition(&["MlgwPolicyFault"], before, after)]
}

/// Stops the origin of a dataset and syncs it. Writes would have to stay dirty for a quarter of an hour, so
/// their age is synthetic.
fn without_its_origin() -> Vec<AlertStory> {
    let (dir, setup) = setup();
    let origin = ServerSetup::new(dir.path().join("origin")).start();
    runtime().block_on(origin.client().create_bucket("lake")).expect("made");
    let setup = setup.with_upstream("far", origin.s3, "lake", "1s");
    let server = setup.start();
    put_and_get(&server);
    let run = |arguments: &[&str]| setup.command(arguments);
    let (output, status) = run(&["dataset", "create", "d", "--bucket", BUCKET, "--source", "far/:here/"]);
    assert_eq!(status, Some(0), "{output}");
    let before = Scrape::of(&server);
    origin.stop();
    let (output, status) = run(&["dataset", "sync", "d", "--wait"]);
    assert!(status == Some(1) && output.contains("failed"), "{output}");
    let mut after = Scrape::of(&server);
    let old = after.0.insert("mlgw_dirty_oldest_seconds".to_owned(), 1000.0);
    assert!(old.is_some(), "the server exports this series");
    vec![AlertStory::of_condition(&["MlgwDirtyOld", "MlgwJobFailed"], before, after)]
}

/// Deletes the owner mark of a prefix, which another server then takes.
fn in_the_prefix_of_another() -> Vec<AlertStory> {
    let (dir, setup) = setup();
    let store = dir.path().join("store");
    std::fs::create_dir(&store).expect("made");
    let spills = |setup: ServerSetup| {
        let setup = setup.with("upstream.far.kind", "fs").with("upstream.far.bucket", store.display());
        setup.with("upstream.far.credentials", "none").with("cold.upstream", "far")
    };
    let owned = |server: &ServerProcess, is_not: f64| {
        let labels = [("upstream", "far")];
        for _ in 0..3000 {
            let scrape = Scrape::of(server);
            let is_there = scrape.0.keys().any(|series| series.starts_with("mlgw_upstream_not_owned"));
            if is_there && scrape.sum("mlgw_upstream_not_owned", &labels) == is_not {
                return scrape;
            }
            mlgw_common::time::block_for(Duration::from_millis(10));
        }
        panic!("never {is_not}");
    };
    let setup = spills(setup);
    let server = setup.start();
    let before = owned(&server, 0.0);
    server.stop();
    std::fs::remove_file(store.join("mlgw-owner")).expect("removed");
    let other = spills(ServerSetup::new(dir.path().join("other"))).start();
    owned(&other, 0.0);
    let after = owned(&setup.start(), 1.0);
    vec![AlertStory::of_condition(&["MlgwUpstreamNotOwned"], before, after)]
}

/// Stops one of three nodes and seals segments that have two copies then. The tests of the cluster scrape the
/// number of suspect segments while two of three copies are damaged; here it is synthetic.
fn with_missing_copies() -> Vec<AlertStory> {
    let mut cluster = TestCluster::three();
    let scrape = |cluster: &TestCluster| Scrape::of(cluster.process(FIRST));
    until_duty(&cluster);
    let before = scrape(&cluster);
    cluster.stop(3);
    let client = cluster.client(FIRST);
    cluster.block_on(cluster_testbed::put(&client, "without-copy")).expect("stored");
    cluster.stop(FIRST);
    cluster.start(FIRST);
    cluster_testbed::wait_until("a segment has two copies of three", || {
        scrape(&cluster).sum("mlgw_segments_below_copies", &[]) > 0.5
    });
    let mut after = scrape(&cluster);
    let suspect = after.0.insert("mlgw_segments_suspect".to_owned(), 1.0);
    assert!(suspect.is_some(), "the first node exports this series");
    vec![AlertStory::of_condition(&["MlgwSegmentsBelowCopies", "MlgwSegmentsSuspect"], before, after)]
}

/// Waits until the first node has the duty. A story of that node alone has no other one.
fn until_duty(cluster: &TestCluster) {
    cluster_testbed::wait_until("the first node has the duty", || {
        Scrape::of(cluster.process(FIRST)).sum("mlgw_duty_lease", &[]) > 0.5
    });
}

/// Puts another directory in the place of the segments of a running node.
fn with_a_lost_disk() -> Vec<AlertStory> {
    let cluster = TestCluster::three();
    let scrape = || Scrape::of(cluster.process(FIRST));
    until_duty(&cluster);
    let before = scrape();
    let dir = cluster.segments_dir(FIRST);
    std::fs::rename(&dir, dir.with_file_name("lost")).expect("renamed");
    std::fs::create_dir(&dir).expect("made");
    cluster_testbed::wait_until("the node does not use the other directory", || {
        scrape().sum("mlgw_segment_dirs_refused", &[]) > 0.5
    });
    vec![AlertStory::of_condition(&["MlgwSegmentDirectoryRefused"], before, scrape())]
}

/// Stops two of three nodes. The tests of the cluster scrape a clock that deviates, a group that moves, rows
/// that differ and the remaining time of a new certificate; here these values are synthetic.
fn without_a_majority() -> Vec<AlertStory> {
    let mut cluster = TestCluster::three();
    let scrape = |cluster: &TestCluster| Scrape::of(cluster.process(FIRST));
    cluster_testbed::wait_until("both other nodes answer, and their clocks are compared", || {
        let scrape = scrape(&cluster);
        let is_compared = scrape.0.contains_key("mlgw_cluster_clock_skew_seconds");
        is_compared && scrape.sum("mlgw_cluster_nodes", &[("answers", "yes")]) > 1.5
    });
    until_duty(&cluster);
    let mut before = scrape(&cluster);
    let with = |before: &Scrape, series: &str, value: f64| {
        let mut after = before.clone();
        let old = after.0.insert(series.to_owned(), value);
        assert!(old.is_some(), "every node exports {series}");
        after
    };
    before = with(&before, "mlgw_cluster_clock_skew_seconds", 0.0);
    let skewed = with(&before, "mlgw_cluster_clock_skew_seconds", -0.6);
    let days = 29.0 * 24.0 * 3600.0;
    let expiring = with(&before, "mlgw_cluster_certificate_remaining_seconds", days);
    let moving = with(&before, "mlgw_cluster_moving_groups", 1.0);
    let differing = with(&before, "mlgw_cluster_differing_groups", 1.0);
    cluster.stop(2);
    cluster.stop(3);
    cluster_testbed::wait_until("the node knows that it is alone", || {
        let scrape = scrape(&cluster);
        let silent = scrape.sum("mlgw_cluster_nodes", &[("answers", "no")]);
        let has_duty = scrape.sum("mlgw_duty_lease", &[]) > 0.5;
        silent > 1.5 && scrape.sum("mlgw_cluster_groups", &[("led", "no")]) > 0.5 && !has_duty
    });
    let after = scrape(&cluster);
    vec![
        AlertStory::of_condition(&["MlgwClockSkew"], before.clone(), skewed),
        AlertStory::of_condition(&["MlgwCertificateExpires"], before.clone(), expiring),
        AlertStory::of_condition(&["MlgwGroupMovesLong"], before.clone(), moving),
        AlertStory::of_condition(&["MlgwRowsDiffer"], before.clone(), differing),
        AlertStory::of_condition(
            &["MlgwNodeUnreachable", "MlgwGroupWithoutLeader", "MlgwNoDutyNode"],
            before,
            after,
        ),
    ]
}

fn synthetic() -> Vec<AlertStory> {
    let (_dir, setup) = setup();
    let server = setup.start();
    put_and_get(&server);
    let before = Scrape::of(&server);
    let with = |changes: &[(&str, f64)]| {
        let mut after = before.clone();
        for (series, value) in changes {
            let old = after.0.insert((*series).to_owned(), *value);
            assert!(old.is_some(), "the server exports {series}");
        }
        after
    };
    let garbage = with(&[("mlgw_garbage_bytes", 6e9), ("mlgw_tier_used_bytes{tier=\"hot\"}", 1e10)]);
    let limit = before.sum("mlgw_raft_log_limit_bytes", &[]);
    let log = with(&[("mlgw_raft_log_bytes", 2.5 * limit)]);
    vec![
        AlertStory::of_condition(&["MlgwGarbage"], before.clone(), garbage),
        AlertStory::of_condition(&["MlgwLogLong"], before.clone(), log),
    ]
}
