//! The cold tier: segments are spilled and promoted under all kinds of events, and everything reads back.

use mlgw_common::time::Instant;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{BUCKET, TierObjects, assert_reads_back, filled, put_some, runtime};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::seed::Rng;
use crate::server::{ServerProcess, ServerSetup, binary};

/// Two cold directories beside the data directory, and segments so small that there are many.
pub(super) struct ColdBench {
    temp_dir: tempfile::TempDir,
    pub(super) setup: ServerSetup,
}

impl ColdBench {
    pub(super) fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let dirs = ["cold-1", "cold-2"].map(|name| room.path().join(name));
        dirs.iter().for_each(|dir| fs::create_dir(dir).expect("made"));
        let setup = ServerSetup::new(room.path().join("data"))
            .with("cold.dirs", format!("{},{}", dirs[0].display(), dirs[1].display()))
            .with("cold.move_bytes_per_second", "10GiB")
            .with("hot.segment_bytes", "1MiB")
            .with("hot.compact_interval", "20ms")
            // Nothing is served from memory: these tests are about the tiers below it.
            .with("memory.capacity", "0");
        Self { temp_dir: room, setup }
    }

    fn cold_files(&self) -> Vec<PathBuf> {
        let dirs = ["cold-1", "cold-2"].map(|name| self.temp_dir.path().join(name));
        dirs.iter()
            .flat_map(|dir| fs::read_dir(dir).expect("listed"))
            .map(|e| e.expect("listed").path())
            .filter(|path| !path.ends_with("owner"))
            .collect()
    }

    pub(super) fn run_tier_command(&self, words: &[&str]) -> Value {
        let (output, status) = self.setup.command(&[&["--output", "json", "tier"], words].concat());
        assert_eq!(status, Some(0), "{words:?}: {output}");
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// Runs a `store` verb with the cold directories configured; returns its output and exit status.
    fn store(&self, words: &[&str]) -> (String, Option<i32>) {
        let dirs = format!("{0}/cold-1,{0}/cold-2", self.temp_dir.path().display());
        let done = Command::new(binary())
            .arg("store")
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("MLGW_COLD__DIRS", dirs)
            .output()
            .expect("the binary runs");
        (String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned(), done.status.code())
    }

    fn path(&self, name: &str) -> String {
        self.temp_dir.path().join(name).display().to_string()
    }

    fn assert_undamaged(&self) {
        let (output, status) = self.store(&["check", &self.path("data")]);
        assert_eq!(status, Some(0), "{output}");
    }
}

/// Restarts the server, which seals all segments.
pub(super) fn restart(server: ServerProcess, bench: &ColdBench) -> ServerProcess {
    server.stop();
    bench.setup.start()
}

#[test]
fn a_drained_tier_is_empty_and_its_objects_are_read_from_the_other_tier() {
    let bench = ColdBench::new();
    let (server, objects) = filled(&bench.setup);
    let moved = bench.run_tier_command(&["drain", "hot", "--wait"]);
    assert!(moved["spilled_bytes"].as_u64().is_some_and(|bytes| bytes > 5_000_000), "{moved}");
    let cold = bench.run_tier_command(&["show", "cold"]);
    assert_eq!(cold["segments"].as_u64(), Some(bench.cold_files().len() as u64), "{cold}");
    let (output, _) =
        bench.setup.command(&["--output", "json", "object", "show", &format!("s3://{BUCKET}/object-0")]);
    assert!(output.contains("\"tier\": \"cold\"") && !output.contains("\"tier\": \"hot\""), "{output}");
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    let server = restart(server, &bench);
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    bench.run_tier_command(&["drain", "cold", "--wait"]);
    assert_eq!(bench.cold_files(), Vec::<PathBuf>::new());
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    server.stop();
    bench.assert_undamaged();
}

#[test]
fn a_kill_while_segments_move_loses_nothing_and_leaves_no_copy_behind() {
    let (bench, mut objects) = (ColdBench::new(), TierObjects::new());
    for round in 0..8 {
        let mut random = Rng::new(round);
        println!("seed {round}");
        let mut server = bench.setup.start();
        runtime().block_on(async {
            let client = server.client();
            if round == 0 {
                client.create_bucket(BUCKET).await.expect("made");
            }
            assert_reads_back(&client, &objects).await;
            put_some(&client, &mut random, &mut objects).await;
        });
        let tier = if round % 2 == 0 { "hot" } else { "cold" };
        bench.run_tier_command(&["drain", tier]);
        mlgw_common::time::block_for(Duration::from_millis(random.below(40)));
        server.kill();
    }
    bench.assert_undamaged();
    let server = bench.setup.start();
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    bench.run_tier_command(&["drain", "cold", "--wait"]);
    assert_eq!(bench.cold_files(), Vec::<PathBuf>::new(), "no copy is left behind");
    server.stop();
    bench.assert_undamaged();
}

#[test]
fn a_backup_includes_the_cold_segments_and_a_restored_directory_reads_them() {
    let (bench, mut objects, mut random) = (ColdBench::new(), TierObjects::new(), Rng::new(3));
    let server = bench.setup.start();
    runtime().block_on(async {
        server.client().create_bucket(BUCKET).await.expect("made");
        put_some(&server.client(), &mut random, &mut objects).await;
    });
    let server = restart(server, &bench);
    bench.run_tier_command(&["drain", "hot", "--wait"]);
    bench.run_tier_command(&["drain", "cold"]);
    // A backup while segments are promoted.
    let (output, status) =
        bench.setup.command(&["store", "backup", &bench.path("data"), &bench.path("copy")]);
    assert_eq!(status, Some(0), "{output}");
    bench.run_tier_command(&["drain", "hot", "--wait"]);
    server.stop();
    let (output, status) = bench.store(&["backup", &bench.path("data"), &bench.path("closed")]);
    assert_eq!(status, Some(0), "{output}");
    for copy in ["copy", "closed"] {
        let back = format!("{copy}-back");
        let (output, status) =
            bench.setup.command(&["store", "restore", &bench.path(copy), &bench.path(&back)]);
        assert_eq!(status, Some(0), "{output}");
        let server = ServerSetup::new(bench.temp_dir.path().join(back)).start();
        runtime().block_on(assert_reads_back(&server.client(), &objects));
        server.stop();
    }
}

#[test]
fn a_missing_cold_disk_stops_a_start_until_its_loss_is_accepted() {
    let (bench, mut objects, mut random) = (ColdBench::new(), TierObjects::new(), Rng::new(5));
    let server = bench.setup.start();
    runtime().block_on(async {
        server.client().create_bucket(BUCKET).await.expect("made");
        put_some(&server.client(), &mut random, &mut objects).await;
    });
    let server = restart(server, &bench);
    bench.run_tier_command(&["drain", "hot", "--wait"]);
    server.stop();
    // Not mounted: first without even the mount point, then with an empty one.
    let (here, gone) = (bench.temp_dir.path().join("cold-1"), bench.temp_dir.path().join("elsewhere"));
    fs::rename(&here, &gone).expect("moved");
    let log = bench.setup.try_start().err().expect("a directory is missing").log;
    assert!(log.contains("cold-1") && log.contains("mount its disk"), "{log}");
    fs::create_dir(&here).expect("made");
    let log = bench.setup.try_start().err().expect("segments are missing").log;
    assert!(log.contains("mount its disk") && log.contains("cold.start_without_missing"), "{log}");
    let server = bench.setup.clone().with("cold.start_without_missing", true).start();
    runtime().block_on(async {
        let client = server.client();
        let mut lost = 0;
        for (key, bytes) in &objects {
            lost += u32::from(!client.get(BUCKET, key).await.is_ok_and(|answer| answer.body == *bytes));
        }
        assert!(lost > 0 && lost < objects.len() as u32, "{lost} of {}", objects.len());
    });
    server.stop();
    fs::remove_dir_all(&here).expect("removed");
    fs::rename(&gone, &here).expect("moved back");
    let server = bench.setup.start();
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    server.stop();
}

#[test]
fn a_corrupted_byte_on_a_cold_disk_is_found_and_refused() {
    let (bench, mut objects, mut random) = (ColdBench::new(), TierObjects::new(), Rng::new(9));
    let server = bench.setup.start();
    runtime().block_on(async {
        server.client().create_bucket(BUCKET).await.expect("made");
        put_some(&server.client(), &mut random, &mut objects).await;
        server.client().put(BUCKET, "bad", full_body(vec![0xA5; 200_000])).await.expect("stored");
    });
    let server = restart(server, &bench);
    bench.run_tier_command(&["drain", "hot", "--wait"]);
    assert!(corrupt_run(&bench.cold_files()), "the object exists");
    let (output, status) = bench.setup.command(&["--output", "json", "tier", "scrub", "cold", "--wait"]);
    assert!(status == Some(1) && output.contains("\"key\": \"bad\""), "{output}");
    assert_eq!(
        bench.run_tier_command(&["show", "hot"])["bad"],
        Value::Array(vec![]),
        "the object is listed in its tier"
    );
    runtime().block_on(async {
        server.client().get(BUCKET, "bad").await.expect_err("the object is damaged");
        assert_reads_back(&server.client(), &objects).await;
    });
    server.stop();
    let (output, status) = bench.store(&["check", &bench.path("data")]);
    assert!(status == Some(1) && output.contains("bad bytes"), "{output}");
}

/// Flips a bit in the middle of a run of `0xA5` bytes; true if a file has such a run.
fn corrupt_run(files: &[PathBuf]) -> bool {
    files.iter().any(|file| {
        let mut bytes = fs::read(file).expect("read");
        let at = bytes.windows(1000).position(|window| window.iter().all(|byte| *byte == 0xA5));
        at.is_some_and(|at| {
            bytes[at + 500] ^= 1;
            fs::write(file, bytes).is_ok()
        })
    })
}

#[test]
fn a_full_hot_tier_spills_automatically_and_continues_to_take_writes() {
    let bench = ColdBench::new();
    let setup = bench.setup.clone().with("hot.capacity", "24MiB");
    let server = setup.start();
    let mut objects = TierObjects::new();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        // Five times the capacity.
        for n in 0..120 {
            let bytes = TestContent { id: n, length: 1_000_000 }.bytes();
            let begun = Instant::now();
            while client.put(BUCKET, &format!("{n}"), full_body(bytes.clone())).await.is_err() {
                assert!(begun.elapsed() < Duration::from_secs(60), "nothing is spilled");
                mlgw_common::time::sleep(Duration::from_millis(20)).await;
            }
            objects.insert(format!("{n}"), bytes);
        }
        assert_reads_back(&client, &objects).await;
    });
    assert!(
        bench.run_tier_command(&["show", "hot"])["used_bytes"].as_u64().is_some_and(|used| used <= 24 << 20)
    );
    server.stop();
    bench.assert_undamaged();
}
