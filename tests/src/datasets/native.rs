//! Datasets of local buckets: a warm promotes their cold segments.

use super::{Bench, runtime};
use crate::content::Content;
use crate::s3::whole;

const OURS: &str = "ours";

#[test]
fn a_local_dataset_is_warmed_by_promoting_its_segments() {
    let cold = tempfile::tempdir().expect("a directory");
    let bench = Bench::with(|setup| {
        setup
            .with("cold.dirs", cold.path().display())
            .with("cold.move_bytes_per_second", "10GiB")
            .with("hot.segment_bytes", "1MiB")
            .with("hot.compact_interval", "20ms")
            .with("memory.capacity", "0")
    });
    let runtime = runtime();
    let contents: Vec<(String, Content)> = (0..12)
        .map(|n| (format!("{}/{n:02}", ["a", "b"][n / 6]), Content { id: n as u64, length: 700_000 }))
        .collect();
    runtime.block_on(async {
        bench.here().create_bucket(OURS).await.expect("made");
        for (key, content) in &contents {
            bench.here().put(OURS, key, whole(content.bytes())).await.expect("stored");
        }
    });
    bench.done(&["tier", "drain", "hot", "--wait", "--quiet"]);
    bench.done(&["dataset", "create", "train", "--bucket", OURS, "--prefix", "a/"]);
    let before = bench.done(&["dataset", "show", "train"]);
    let bytes = 6 * 700_000;
    assert_eq!((&before["bytes"], &before["objects"]), (&bytes.into(), &6.into()), "{before}");
    assert!(before["readiness"] != "ready", "most of it is cold: {before}");
    let job = bench.done(&["dataset", "warm", "train", "--order", "shuffled", "--wait", "--quiet"]);
    assert_eq!((&job["state"], &job["bytes_done"]), (&"done".into(), &bytes.into()), "{job}");
    let after = bench.done(&["dataset", "show", "train"]);
    assert_eq!((&after["readiness"], &after["cached_bytes"]), (&"ready".into(), &bytes.into()), "{after}");
    let tier = |name: &str| {
        let all = after["residency"].as_array().expect("tiers");
        all.iter().find(|of| of["tier"] == name).and_then(|of| of["bytes"].as_u64())
    };
    assert_eq!((tier("hot"), tier("cold")), (Some(bytes), Some(0)), "{after}");
    runtime.block_on(async {
        for (key, content) in &contents {
            let found = bench.here().get(OURS, key).await.expect("read");
            assert_eq!(content.difference(&found.body), None);
        }
    });
    let again = bench.done(&["dataset", "warm", "train", "--wait", "--quiet"]);
    assert_eq!(again["moved_bytes"], 0, "{again}");
}
