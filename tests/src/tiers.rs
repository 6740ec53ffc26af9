//! Tests of the tiers: the tier that serves an object never changes its bytes.
//!
//! - `memory`: small objects that were read, in DRAM;
//! - `cold`: whole segments on slower disks;
//! - `decisions`: the recorded reasons for moves between tiers;
//! - `owning`: a prefix in an upstream that two servers share;
//! - `upstream`: whole segments in an upstream.

mod cold;
mod decisions;
mod memory;
mod owning;
mod upstream;

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::content::TestContent;
use crate::s3::{S3TestClient, full_body};
use crate::seed::Rng;
use crate::server::{ServerProcess, ServerSetup, runtime};

/// The bucket of these tests.
const BUCKET: &str = "tiered";

/// The expected objects by key.
type TierObjects = BTreeMap<String, Bytes>;

/// Puts objects of every size; the larger ones have several chunks.
async fn put_some(client: &S3TestClient, random: &mut Rng, objects: &mut TierObjects) {
    for n in 0..30 {
        let key = format!("object-{n}");
        let length = *random.pick(&[100, 5_000, 70_000, 400_000, 2_500_000]);
        let bytes = TestContent { id: random.next(), length }.bytes();
        client.put(BUCKET, &key, full_body(bytes.clone())).await.expect("stored");
        objects.insert(key, bytes);
    }
}

/// A server with some objects, whose segments are sealed because it was started twice.
fn filled(setup: &ServerSetup) -> (ServerProcess, TierObjects) {
    let (server, mut objects) = (setup.start(), TierObjects::new());
    runtime().block_on(async {
        server.client().create_bucket(BUCKET).await.expect("made");
        put_some(&server.client(), &mut Rng::new(7), &mut objects).await;
    });
    server.stop();
    (setup.start(), objects)
}

async fn assert_reads_back(client: &S3TestClient, objects: &TierObjects) {
    for (key, bytes) in objects {
        assert!(client.get(BUCKET, key).await.expect("read").body == *bytes, "{key}");
    }
}
