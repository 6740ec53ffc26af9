//! Tests of upstreams against stores that behave correctly and stores that do not.

mod checking;
mod gateway;
mod local;
mod opening;
mod owning;
mod putting;
mod reading;

use std::fs::File;
use std::io::Write as _;

use mlgw_common::ids::{Generation, SegmentId};
use zeroize::Zeroizing;

use super::fake::{FakeStore, PART, SECRET, TUNING, settings, upstream_with};
use super::*;

const OBJECT: ObjectId = ObjectId { segment: SegmentId(0xA7), incarnation: Incarnation(0), copy: 0xB };
const NAME: &str = "pre/segments/00000000000000a7-000000000000000b.seg";

fn upstream(store: &FakeStore) -> Upstream {
    upstream_with(&settings(), store)
}

fn encrypted(store: &FakeStore) -> Upstream {
    upstream_with(&UpstreamSettings { encrypt: true, ..settings() }, store)
}

fn key(of: u8) -> ReplicaKey {
    ReplicaKey::new(Zeroizing::new([of; 32]))
}

fn object(bytes: u64, key: Option<&ReplicaKey>) -> SegmentObject<'_> {
    SegmentObject { id: OBJECT, generation: Generation(1), bytes, key }
}

/// Returns the content of a segment in which no two parts, frames or pages are the same.
fn content(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8 ^ (n >> 16) as u8).collect()
}

fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(content).expect("written");
    file
}

fn no_throttle(_: u64) -> ThrottleFuture {
    Box::pin(async { Ok(()) })
}

async fn put(
    upstream: &Upstream,
    content: &[u8],
    key: Option<&ReplicaKey>,
) -> Result<StoredSegment, UpstreamError> {
    let object = object(content.len() as u64, key);
    upstream.put_segment(&object, file(content), UploadResumption::never(), &mut no_throttle).await
}

/// Returns the number of requests of this kind with this result.
fn requests(upstream: &Upstream, op: UpstreamOp, outcome: UpstreamOutcome) -> u64 {
    let counted = upstream.metrics().requests.into_iter().find(|(of, went, _)| (*of, *went) == (op, outcome));
    counted.map_or(0, |(_, _, count)| count)
}
