//! A 256 MiB disk that is filled until writes are refused. Reads, deletes and restarts continue to work.
//! Deletes make the server writable again without a restart, also while another program fills the rest of
//! the disk.

use super::small_disk::SmallDisk;
use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::ServerSetup;
use mlgw_common::time::Instant;
use std::time::Duration;

/// Longest wait for space to be reclaimed. It is only reached if something is broken.
const WAIT_MAX: Duration = Duration::from_secs(60);

const DISK_MEGABYTES: u32 = 256;
const SIZES: [usize; 4] = [1 << 20, 100_000, 4_000, 100];

/// Refusals after which a size is abandoned. A server may refuse one write and accept the next.
const REFUSALS: usize = 5;

#[test]
fn a_disk_filled_to_refusal_still_reads_deletes_and_restarts() {
    let disk = SmallDisk::new(DISK_MEGABYTES);
    let setup = ServerSetup::new(disk.path().join("mlgw-data")).with_launcher(&disk.launcher());
    let runtime = runtime();
    let server = setup.start();
    let kept = runtime.block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let kept = fill(&client).await;
        read_all(&client, &kept).await;
        kept
    });
    assert!(kept.len() > 100, "most of {DISK_MEGABYTES} MiB was usable, not only {} objects", kept.len());
    server.stop();

    let mut server = setup.start();
    runtime.block_on(async { read_all(&server.client(), &kept).await });
    server.kill();

    let server = setup.start();
    runtime.block_on(async {
        let client = server.client();
        read_all(&client, &kept).await;
        let (gone, kept) = kept.split_at(kept.len() * 3 / 4);
        for content in gone {
            client.delete(BUCKET, &name(*content)).await.expect("a full disk deletes");
        }
        read_all(&client, kept).await;
        let listed = client.list(BUCKET, 1000).await.expect("a full disk lists");
        assert_eq!(listed.len(), kept.len());
        let refused = client.get(BUCKET, &name(gone[0])).await.expect_err("deleted");
        assert!(refused.is_not_found());
    });
    server.stop();
    setup.start().stop();
}

#[test]
fn deletes_free_space_while_the_server_runs() {
    let disk = SmallDisk::new(DISK_MEGABYTES);
    let setup = ServerSetup::new(disk.path().join("mlgw-data"))
        .with("hot.compact_interval", "50ms")
        .with_launcher(&disk.launcher());
    let ballast = disk.path().join("mlgw-data/segments/ballast");
    let ballast_bytes = || disk.run(&format!("stat -c %s {}", ballast.display())).trim().parse::<u64>();
    let server = setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let kept = fill(&client).await;
        assert_eq!(ballast_bytes(), Ok(4 << 20), "the ballast is allocated while there is space");
        // Another program takes the space that was left for the catalogue.
        let eater = disk.path().join("eater");
        let eaten = disk.free_bytes().saturating_sub(10 << 20);
        disk.run(&format!("fallocate -l {eaten} {}", eater.display()));
        while ballast_bytes() != Ok(0) {
            mlgw_common::time::sleep(Duration::from_millis(20)).await;
        }
        let refused = client.put(BUCKET, "no-room", full_body("x")).await.expect_err("the disk is full");
        assert_eq!(refused.status(), Some(507), "{refused:?}");
        // Three of four objects in every segment: the live ones must be moved before the space is
        // reclaimed.
        let (gone, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(|content| content.id % 4 != 0);
        for content in &gone {
            client.delete(BUCKET, &name(*content)).await.expect("a full disk deletes");
        }
        read_all(&client, &kept).await;
        for id in 0..60 {
            let content = TestContent { id: 1_000_000 + id, length: 1 << 20 };
            put_when_there_is_room(&client, content).await;
        }
        read_all(&client, &kept).await;
        disk.run(&format!("rm {}", eater.display()));
        for id in 60..100 {
            let content = TestContent { id: 1_000_000 + id, length: 1 << 20 };
            put_when_there_is_room(&client, content).await;
        }
        while ballast_bytes() != Ok(4 << 20) {
            mlgw_common::time::sleep(Duration::from_millis(20)).await;
        }
        read_all(&client, &kept).await;
    });
    server.stop();
}

/// Variants of the test: files that use up all bytes of a disk, or all its inodes.
const FILLER_KINDS: [(&str, &str); 2] = [("bytes", "size=256m"), ("inodes", "size=256m,nr_inodes=2000")];

#[test]
fn a_server_starts_on_a_disk_without_a_free_byte_or_inode_and_deletes() {
    for (what, options) in FILLER_KINDS {
        let disk = SmallDisk::mounted_with(options);
        let setup = ServerSetup::new(disk.path().join("mlgw-data"))
            .with("hot.compact_interval", "50ms")
            .with_launcher(&disk.launcher());
        let reserve = disk.path().join("mlgw-data/start-reserve");
        let reserved = || disk.run(&format!("ls {} | wc -l", reserve.display())).trim() == "64";
        let objects: Vec<TestContent> = (0..60).map(|id| TestContent { id, length: 1 << 20 }).collect();
        let mut server = setup.start();
        runtime().block_on(async {
            let client = server.client();
            client.create_bucket(BUCKET).await.expect("made");
            for content in &objects {
                client
                    .put(BUCKET, &name(*content), full_body(content.bytes()))
                    .await
                    .expect("the disk has space");
            }
            while !reserved() {
                mlgw_common::time::sleep(Duration::from_millis(20)).await;
            }
        });
        server.kill();
        fill_completely(&disk, what);
        // After a second kill, only the reserve that the first start created is left.
        let mut server = setup.start();
        runtime().block_on(async { read_all(&server.client(), &objects[..5]).await });
        server.kill();
        let server = setup.start();
        runtime().block_on(async {
            let client = server.client();
            read_all(&client, &objects).await;
            for content in &objects[..40] {
                client.delete(BUCKET, &name(*content)).await.expect("a full disk deletes");
            }
            let content = TestContent { id: 1000, length: 100_000 };
            put_when_there_is_room(&client, content).await;
            read_all(&client, &objects[40..]).await;
            read_all(&client, &[content]).await;
        });
        server.stop();
    }
}

/// Leaves no free byte, or no free inode, on a disk.
fn fill_completely(disk: &SmallDisk, what: &str) {
    let eaten = disk.path().join("eaten");
    let command = match what {
        // Fails once the disk is full, which is intended.
        "bytes" => format!("dd if=/dev/zero of={} bs=64k 2>/dev/null || true", eaten.display()),
        _ => {
            let touch = format!("while touch {}-$i 2>/dev/null; do i=$((i+1)); done", eaten.display());
            format!("sh -c 'i=0; {touch}; true'")
        }
    };
    disk.run(&command);
    let left = if what == "bytes" { "%a" } else { "%d" };
    assert_eq!(disk.run(&format!("stat -f -c {left} {}", disk.path().display())).trim(), "0", "{what}");
}

/// Repeats a PUT until it is accepted. Each refusal must report that the storage is full.
async fn put_when_there_is_room(client: &S3TestClient, content: TestContent) {
    let begun = Instant::now();
    while let Err(failure) = client.put(BUCKET, &name(content), full_body(content.bytes())).await {
        assert_clean(&failure);
        assert!(begun.elapsed() < WAIT_MAX, "no space became free for {}", name(content));
        mlgw_common::time::sleep(Duration::from_millis(50)).await;
    }
}

fn name(content: TestContent) -> String {
    format!("object-{:06}", content.id)
}

/// Puts objects of decreasing sizes until each size is refused.
async fn fill(client: &S3TestClient) -> Vec<TestContent> {
    let mut kept = Vec::new();
    let mut id = 0;
    for length in SIZES {
        let mut refusals = 0;
        let mut stored = 0;
        while refusals < REFUSALS && stored < 2000 {
            id += 1;
            let content = TestContent { id, length };
            match client.put(BUCKET, &name(content), full_body(content.bytes())).await {
                Ok(_) => {
                    kept.push(content);
                    stored += 1;
                }
                Err(failure) => {
                    refusals += 1;
                    assert_clean(&failure);
                }
            }
        }
        eprintln!("disk full: {stored} of {length} bytes stored, {refusals} refused");
    }
    kept
}

/// Asserts that a failure is an S3 error that reports full or busy storage.
fn assert_clean(failure: &CallFailure) {
    match failure {
        CallFailure::Refused { status, body } => {
            assert!([503, 507].contains(&status.as_u16()), "{status}: {body}");
            assert!(body.contains("<Error>") && body.contains("<Code>"), "{body}");
        }
        CallFailure::NoResponse(why) => panic!("a full disk answers, not: {why}"),
    }
}

async fn read_all(client: &S3TestClient, kept: &[TestContent]) {
    for content in kept {
        let body = client.get(BUCKET, &name(*content)).await.expect("a full disk reads").body;
        assert_eq!(content.difference(&body), None, "{}", name(*content));
    }
}
