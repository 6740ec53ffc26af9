//! Tests of the placement of bodies, the growth of buffers, and the MD5 of bodies cut in any way.

use super::{BLOCK_BYTES, Destination, Ingest, block_counts_to_try, placement};
use crate::commit::tests::{bytes_of, open};
use crate::memory::{MemoryGrant, RequestMemory};
use bytes::Buf as _;
use md5::{Digest as _, Md5};
use mlgw_common::{ObjectKey, PartNumber};
use mlgw_segments::hot::Placement;
use std::iter::from_fn;
use std::net::Ipv4Addr;

const MIB: u64 = 1 << 20;

#[test]
fn a_buffer_grows_to_the_expected_size_or_doubles_if_the_size_is_unknown() {
    let first = |granted: u64, left: Option<u64>| block_counts_to_try(granted * BLOCK_BYTES, left)[0];
    assert_eq!(first(1, Some(5 * MIB)), 15, "to a whole chunk");
    assert_eq!(first(1, Some(BLOCK_BYTES + 1)), 2, "to the end of the body");
    assert_eq!(first(1, Some(0)), 1, "more than declared");
    assert_eq!([1, 2, 4, 8, 12].map(|granted| first(granted, None)), [1, 2, 4, 8, 4]);
    assert_eq!(block_counts_to_try(4 * BLOCK_BYTES, Some(5 * MIB)), [12, 4, 1]);
}

#[test]
fn large_bodies_and_late_parts_get_segments_of_their_own() {
    let part = |n| PartNumber::new(n);
    assert_eq!(placement(None, Some(63 * MIB)), Placement::Shared);
    assert_eq!(placement(None, Some(64 * MIB)), Placement::Own);
    assert_eq!(placement(None, None), Placement::Shared);
    assert_eq!(placement(part(8), Some(8 * MIB)), Placement::Shared);
    assert_eq!(placement(part(9), Some(8 * MIB)), Placement::Own);
}

#[tokio::test]
async fn the_md5_is_that_of_the_body_with_plenty_of_memory_and_with_little() {
    let dir = tempfile::tempdir().unwrap();
    let (objects, bucket) = open(dir.path()).await;
    let memory = RequestMemory::new(0, 100, None);
    let account = || memory.account(Ipv4Addr::LOCALHOST.into());
    let bytes = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES + 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 77];
    for (bytes, is_short) in bytes.into_iter().flat_map(|bytes| [(bytes, false), (bytes, true)]) {
        for expected in [Some(bytes), None] {
            let body = objects.catalogue.body_id().await.unwrap();
            let key = ObjectKey::new("k").unwrap();
            let destination = Destination { bucket: bucket.bucket_id(), key, body, part: None };
            let ingest = Ingest::begin(&objects, &account(), destination, expected).await.unwrap();
            let mut ingest = ingest.with_md5();
            let others = if is_short { vec![account(), account()] } else { vec![] };
            let _taken: Vec<MemoryGrant> =
                others.iter().flat_map(|other| from_fn(|| other.try_reserve(1))).collect();
            let (data, mut sent) = (bytes_of(bytes as usize), bytes_of(bytes as usize));
            while sent.has_remaining() {
                ingest.push(sent.split_to(sent.len().min(60_000))).await.unwrap();
            }
            let durable = ingest.finish().await.unwrap();
            let lengths = durable.extents.iter().map(|extent| extent.logical_bytes);
            assert_eq!(lengths.sum::<u64>(), bytes);
            let many = is_short && bytes > BLOCK_BYTES;
            assert!(!many || durable.extents.len() as u64 >= bytes / BLOCK_BYTES, "block by block");
            let md5 = Some(Md5::digest(&data).into());
            assert_eq!(durable.md5, md5, "{bytes} bytes, {expected:?} expected, short: {is_short}");
        }
    }
}
