//! Datasets of local buckets: a warm promotes their cold segments.

use super::{DatasetBench, runtime};
use crate::content::TestContent;
use crate::s3::full_body;

const LOCAL_BUCKET: &str = "ours";

#[test]
fn a_local_dataset_is_warmed_by_promoting_its_segments() {
    let cold = tempfile::tempdir().expect("a directory");
    let bench = DatasetBench::with_setup(|setup| {
        setup
            .with("cold.dirs", cold.path().display())
            .with("cold.move_bytes_per_second", "10GiB")
            .with("hot.segment_bytes", "1MiB")
            .with("hot.compact_interval", "20ms")
            .with("memory.capacity", "0")
    });
    let runtime = runtime();
    let contents: Vec<(String, TestContent)> = (0..12)
        .map(|n| (format!("{}/{n:02}", ["a", "b"][n / 6]), TestContent { id: n as u64, length: 700_000 }))
        .collect();
    runtime.block_on(async {
        bench.client().create_bucket(LOCAL_BUCKET).await.expect("made");
        for (key, content) in &contents {
            bench.client().put(LOCAL_BUCKET, key, full_body(content.bytes())).await.expect("stored");
        }
    });
    bench.run(&["tier", "drain", "hot", "--wait", "--quiet"]);
    bench.run(&["dataset", "create", "train", "--bucket", LOCAL_BUCKET, "--prefix", "a/"]);
    let before = bench.run(&["dataset", "show", "train"]);
    let bytes = 6 * 700_000;
    assert_eq!((&before["bytes"], &before["objects"]), (&bytes.into(), &6.into()), "{before}");
    assert!(before["readiness"] != "ready", "most objects are cold: {before}");
    let job = bench.run(&["dataset", "warm", "train", "--order", "shuffled", "--wait", "--quiet"]);
    assert_eq!((&job["state"], &job["bytes_done"]), (&"done".into(), &bytes.into()), "{job}");
    let after = bench.run(&["dataset", "show", "train"]);
    assert_eq!((&after["readiness"], &after["cached_bytes"]), (&"ready".into(), &bytes.into()), "{after}");
    let tier = |name: &str| {
        let all = after["residency"].as_array().expect("tiers");
        all.iter().find(|of| of["tier"] == name).and_then(|of| of["bytes"].as_u64())
    };
    assert_eq!((tier("hot"), tier("cold")), (Some(bytes), Some(0)), "{after}");
    runtime.block_on(async {
        for (key, content) in &contents {
            let found = bench.client().get(LOCAL_BUCKET, key).await.expect("read");
            assert_eq!(content.difference(&found.body), None);
        }
    });
    let again = bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
    assert_eq!(again["moved_bytes"], 0, "{again}");
}
