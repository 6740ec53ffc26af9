//! A 256 MiB disk filled to refusal: reads, deletes and restarts go on, and deletes make the server useful
//! again.

use super::small_disk::SmallDisk;
use super::{BUCKET, runtime};
use crate::content::Content;
use crate::s3::{Client, Failure, whole};
use crate::server::Setup;

const DISK_MEGABYTES: u32 = 256;
const SIZES: [usize; 4] = [1 << 20, 100_000, 4_000, 100];

/// The last refusals before a size is given up: a server may refuse one and take the next.
const REFUSALS: usize = 5;

#[test]
fn a_disk_filled_to_refusal_still_reads_deletes_and_restarts() {
    let disk = SmallDisk::new(DISK_MEGABYTES);
    let setup = Setup::new(disk.path().join("mlgw-data")).launched_by(&disk.launcher());
    let runtime = runtime();
    let server = setup.start();
    let kept = runtime.block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let kept = fill(&client).await;
        read_all(&client, &kept).await;
        kept
    });
    assert!(kept.len() > 100, "most of {DISK_MEGABYTES} MiB was of use, not {} objects", kept.len());
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

fn name(content: Content) -> String {
    format!("object-{:06}", content.id)
}

/// Puts large and then ever smaller objects until each size is refused.
async fn fill(client: &Client) -> Vec<Content> {
    let mut kept = Vec::new();
    let mut id = 0;
    for length in SIZES {
        let mut refusals = 0;
        let mut stored = 0;
        while refusals < REFUSALS && stored < 2000 {
            id += 1;
            let content = Content { id, length };
            match client.put(BUCKET, &name(content), whole(content.bytes())).await {
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

/// A refusal is an S3 error that says the storage is full or busy.
fn assert_clean(failure: &Failure) {
    match failure {
        Failure::Refused { status, body } => {
            assert!([503, 507].contains(&status.as_u16()), "{status}: {body}");
            assert!(body.contains("<Error>") && body.contains("<Code>"), "{body}");
        }
        Failure::Lost(why) => panic!("a full disk answers, not: {why}"),
    }
}

async fn read_all(client: &Client, kept: &[Content]) {
    for content in kept {
        let body = client.get(BUCKET, &name(*content)).await.expect("a full disk reads").body;
        assert_eq!(content.difference(&body), None, "{}", name(*content));
    }
}
