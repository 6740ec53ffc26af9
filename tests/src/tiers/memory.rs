//! The memory tier: an object that was read is served from memory until it is overwritten or deleted.

use std::fs;
use std::path::Path;

use super::{BUCKET, runtime};
use crate::observability::scrape::Scrape;
use crate::s3::{S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};

/// Numbers of hits and of misses of the memory tier.
fn memory_reads(server: &ServerProcess) -> (f64, f64) {
    let scrape = Scrape::of(server);
    let of = |result| scrape.sum("mlgw_tier_reads_total", &[("tier", "memory"), ("result", result)]);
    (of("hit"), of("miss"))
}

async fn assert_is(client: &S3TestClient, key: &str, bytes: &[u8]) {
    assert!(client.get(BUCKET, key).await.expect("read").body == bytes, "{key}");
}

/// Flips a bit of every byte `0xA5` in the segment files.
fn corrupt_segments(dir: &Path) {
    for file in fs::read_dir(dir.join("segments")).expect("listed").map(|entry| entry.expect("listed").path())
    {
        let mut bytes = fs::read(&file).expect("read");
        bytes.iter_mut().filter(|byte| **byte == 0xA5).for_each(|byte| *byte ^= 1);
        fs::write(&file, bytes).expect("written");
    }
}

#[test]
fn a_small_object_is_read_from_memory_until_it_is_replaced() {
    let room = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(room.path().join("data"));
    let server = setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "key", full_body("the first")).await.expect("stored");
        assert_is(&client, "key", b"the first").await;
        assert_eq!(memory_reads(&server), (0.0, 1.0));
        assert_is(&client, "key", b"the first").await;
        assert_eq!(&*client.get_range(BUCKET, "key", (4, 6)).await.expect("read").body, b"fir");
        assert_eq!(memory_reads(&server), (2.0, 1.0));
        client.put(BUCKET, "key", full_body("the second")).await.expect("stored");
        assert_is(&client, "key", b"the second").await;
        client.delete(BUCKET, "key").await.expect("deleted");
        assert!(client.get(BUCKET, "key").await.expect_err("deleted").is_not_found());
        assert_eq!(memory_reads(&server), (2.0, 2.0));
        // Too large for the memory tier: it is not even looked up.
        client.put(BUCKET, "large", full_body(vec![1; 300_000])).await.expect("stored");
        client.get(BUCKET, "large").await.expect("read");
        assert_eq!(memory_reads(&server), (2.0, 2.0));
    });
    let (output, status) = setup.command(&["tier", "show", "memory"]);
    assert!(status == Some(0) && output.contains("2 hits of 4: 50.0 %"), "{output}");
    let (output, status) = setup.command(&["tier", "scrub", "memory"]);
    assert!(status == Some(4) && output.contains("cannot be scrubbed"), "{output}");
    server.stop();
}

/// Bytes that were verified when they were read stay good in memory, whatever happens to them on the disk
/// since; bytes that were not read are verified on their first read.
#[test]
fn only_objects_in_memory_survive_damage_on_the_disk() {
    let room = tempfile::tempdir().expect("a directory");
    for (capacity, kept) in [("16MiB", true), ("0", false)] {
        let setup = ServerSetup::new(room.path().join(capacity)).with("memory.capacity", capacity);
        let server = setup.start();
        runtime().block_on(async {
            let client = server.client();
            client.create_bucket(BUCKET).await.expect("made");
            for key in ["read", "unread"] {
                client.put(BUCKET, key, full_body(vec![0xA5; 4096])).await.expect("stored");
            }
            assert_is(&client, "read", &[0xA5; 4096]).await;
            corrupt_segments(&setup.data_dir);
            let again = client.get(BUCKET, "read").await;
            assert_eq!(again.is_ok_and(|answer| *answer.body == [0xA5; 4096]), kept, "with {capacity}");
            client.get(BUCKET, "unread").await.expect_err("the object is damaged");
        });
        server.stop();
    }
}
