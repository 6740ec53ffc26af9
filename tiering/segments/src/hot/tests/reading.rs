//! Tests of reads: arbitrary ranges, damage, and extents.

use super::*;
use crate::hot::{ReadFault, SegmentReadError, segment_file_name};
use mlgw_common::limits::CHUNK_BYTES_MAX;
use mlgw_formats::schema::Encoding;
use proptest::prelude::*;
use std::os::unix::fs::FileExt;

fn writable(dir: &Path, extent: &Extent) -> std::fs::File {
    let path = dir.join("segments").join(segment_file_name(extent.segment_id()));
    std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn flip(file: &std::fs::File, at: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

#[tokio::test]
async fn a_flipped_byte_fails_only_reads_of_its_block() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let extent = append(&tier, chunk(1, bytes_of(1, 1 << 20))).await.unwrap();
    read_all(&tier, &extent, 1).await;
    let payload = extent.offset + u64::from(extent.head_bytes);
    flip(&writable(dir.path(), &extent), payload + 3 * 65536 + 5);
    let read = tier.read(&extent, BodyId(1), 3 * 65536 + 100..3 * 65536 + 101, Lane::Training).await;
    let offset = payload + 3 * 65536;
    assert!(matches!(
        read,
        Err(SegmentReadError::Corrupt { offset: at, fault: ReadFault::Block(3), .. }) if at == offset
    ));
    assert_eq!(tier.read(&extent, BodyId(1), 0..65536, Lane::Training).await.unwrap(), bytes_of(1, 65536));
    assert!(tier.read(&extent, BodyId(1), 0..1 << 20, Lane::Training).await.is_err());
    assert_eq!(tier.metrics().corrupt_blocks, 2);
}

#[tokio::test]
async fn a_flipped_byte_of_a_compressed_block_fails_only_its_block() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let text = text_of(1, 1 << 20);
    let extent = append(&tier, packed(1, &text)).await.unwrap();
    assert!(extent.stored_bytes < 1 << 19 && extent.encoding() == Encoding::Zstd, "{extent:?}");
    assert_eq!(read_all(&tier, &extent, 1).await, text);
    let last = extent.offset + extent.record_bytes() - 1;
    flip(&writable(dir.path(), &extent), last);
    let read = |range: std::ops::Range<usize>| {
        tier.read(&extent, BodyId(1), range.start as u64..range.end as u64, Lane::Training)
    };
    assert!(matches!(
        read((1 << 20) - 1..1 << 20).await,
        Err(SegmentReadError::Corrupt { fault: ReadFault::Block(15), .. })
    ));
    assert_eq!(read(14 * 65_536 - 5..15 * 65_536).await.unwrap(), text[14 * 65_536 - 5..15 * 65_536]);
    assert!(read(0..1 << 20).await.is_err());
}

#[tokio::test]
async fn a_block_that_decompresses_to_another_length_is_refused() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let honest = packed(1, &text_of(1, 10_000));
    for logical_bytes in [9_999, 10_001, 65_536] {
        let data = Payload { logical_bytes, ..honest.data.clone() };
        let extent = append(&tier, Chunk { data, ..honest.clone() }).await.unwrap();
        assert_eq!(extent.logical_bytes, logical_bytes as u64);
        let read = tier.read(&extent, BodyId(1), 0..10, Lane::Training).await;
        assert!(
            matches!(read, Err(SegmentReadError::Corrupt { fault: ReadFault::Undecompressible(0), .. })),
            "{read:?}"
        );
    }
}

#[tokio::test]
async fn a_truncated_file_fails_only_the_affected_reads() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let first = append(&tier, chunk(1, bytes_of(1, 5000))).await.unwrap();
    let second = append(&tier, chunk(2, bytes_of(2, 5000))).await.unwrap();
    tier.shutdown().await;
    writable(dir.path(), &second).set_len(second.offset + 100).unwrap();
    let tier = open(dir.path(), &map).await;
    assert_eq!(read_all(&tier, &first, 1).await, bytes_of(1, 5000));
    let read = tier.read(&second, BodyId(2), 0..10, Lane::Training).await;
    assert!(matches!(read, Err(SegmentReadError::Corrupt { fault: ReadFault::Truncated, .. })));
}

#[tokio::test]
async fn a_missing_segment_is_gone() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let extent = append(&tier, chunk(1, bytes_of(1, 5000))).await.unwrap();
    for id in [77, extent.segment] {
        std::fs::remove_file(dir.path().join("segments").join(segment_file_name(SegmentId(id)))).ok();
        let elsewhere = Extent { segment: id, ..extent.clone() };
        assert!(matches!(
            tier.read(&elsewhere, BodyId(1), 0..10, Lane::Training).await,
            Err(SegmentReadError::Gone { .. })
        ));
    }
}

#[tokio::test]
async fn a_wrong_extent_never_returns_bytes() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    let good = append(&tier, chunk(1, bytes_of(1, 5000))).await.unwrap();
    append(&tier, chunk(1, bytes_of(1, 5000))).await.unwrap();
    let g = || good.clone();
    let wrong = [
        Extent { offset: good.offset + 1, ..g() },
        Extent { offset: u64::MAX, ..g() },
        Extent { head_bytes: good.head_bytes - 1, ..g() },
        Extent { head_bytes: 0, ..g() },
        Extent { head_bytes: u32::MAX, ..g() },
        Extent { stored_bytes: 4999, logical_bytes: 4999, ..g() },
        Extent { stored_bytes: 0, logical_bytes: 0, ..g() },
        Extent { stored_bytes: u64::MAX, logical_bytes: u64::MAX, ..g() },
        Extent { logical_bytes: 10_000, ..g() },
        Extent { encoding: 1, ..g() },
        Extent { encoding: 2, ..g() },
        Extent { encoding: 1, stored_bytes: 4_000, ..g() },
        Extent { data_key: vec![1], ..g() },
    ];
    for extent in wrong {
        let read = tier.read(&extent, BodyId(1), 0..100, Lane::Training).await;
        assert!(matches!(read, Err(SegmentReadError::Corrupt { .. })), "{extent:?}");
    }
    let newer =
        tier.read(&Extent { encoding: 7, ..g() }, BodyId(1), 0..100, Lane::Training).await.unwrap_err();
    assert!(newer.to_string().contains("encoding 7, which this version of mlgw cannot read"), "{newer}");
    assert!(tier.read(&good, BodyId(2), 0..100, Lane::Training).await.is_err(), "another body");
    for range in [0..5001, 5000..5001, 10..10, u64::MAX - 1..u64::MAX] {
        assert!(tier.read(&good, BodyId(1), range.clone(), Lane::Training).await.is_err(), "{range:?}");
    }
}

#[tokio::test]
async fn the_number_of_open_files_is_bounded() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let options = HotOptions { segment_bytes: 1000, ..options(dir.path()) };
    let tier = HotTier::open_with(options, map.clone()).await.unwrap();
    for body in 0..mlgw_common::limits::OPEN_FILES_MAX as u64 + 20 {
        let extent = append(&tier, chunk(body, bytes_of(body, 900))).await.unwrap();
        assert_eq!(read_all(&tier, &extent, body).await, bytes_of(body, 900));
    }
    assert_eq!(tier.metrics().open_files, mlgw_common::limits::OPEN_FILES_MAX as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_range_reads_the_same_slice(
        length in 1usize..=CHUNK_BYTES_MAX as usize,
        is_text: bool,
        ranges in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
            let tier = open(dir.path(), &map).await;
            let bytes = if is_text { text_of(1, length) } else { bytes_of(1, length) };
            let payload = mlgw_formats::segment_zstd::compress(&bytes, 3);
            assert!(payload.is_some() == is_text || length < 100, "text becomes smaller, noise does not");
            let payload = payload.unwrap_or_else(|| Bytes::from(bytes.clone()).into());
            let extent = append(&tier, Chunk { data: payload, ..chunk(1, bytes.clone()) }).await.unwrap();
            assert_eq!(extent.logical_bytes, length as u64);
            for (from, to) in &ranges {
                let from = from.index(length);
                let to = from + 1 + to.index(length - from);
                let range = from as u64..to as u64;
                let read = tier.read(&extent, BodyId(1), range, Lane::Training).await.unwrap();
                assert!(read == bytes[from..to], "{from}..{to} of {length}");
            }
        });
    }

    #[test]
    fn a_record_with_a_flipped_bit_is_never_returned(
        length in 100usize..100_000, is_packed: bool, at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
            let tier = open(dir.path(), &map).await;
            let text = text_of(1, length);
            let chunk = if is_packed { packed(1, &text) } else { chunk(1, text) };
            let extent = append(&tier, chunk).await.unwrap();
            let at = extent.offset + at.index(extent.record_bytes() as usize) as u64;
            let file = writable(dir.path(), &extent);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
            let read = tier.read(&extent, BodyId(1), 0..length as u64, Lane::Training).await;
            assert!(matches!(read, Err(SegmentReadError::Corrupt { .. })), "flipped at {at}");
        });
    }
}
