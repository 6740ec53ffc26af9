//! Compressed blocks of segments. Properties: any bytes decode to a block of the expected length or to an
//! error, and no other memory is written; data that is compressed here decodes to the original.

use mlgw_common::ids::{BodyId, BucketId, Generation, SegmentId, SegmentSeed};
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_formats::segment_record::{RecordAddress, RecordHead, RecordOwner, encode_head};
use mlgw_formats::segment_zstd::{BlockDecompressor, compress};

const PLACE: RecordAddress =
    RecordAddress { segment: SegmentId(3), seed: SegmentSeed::unstamped(Generation(1)), offset: 64 };
/// Guard bytes after the block in memory.
const BEHIND: [u8; 8] = [0xa5; 8];

/// The first two bytes are the decoded length of the rest. If the highest bit is set, the rest is
/// compressed first.
pub fn run(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk() else { return };
    let length = u16::from_le_bytes(*length);
    if length & 1 << 15 != 0 { there_and_back(rest, length) } else { decompress(rest, length.into()) }
}

fn decompress(stored: &[u8], length: usize) {
    let mut out = vec![0; length];
    out.extend(BEHIND);
    let unpacked = BlockDecompressor::take().decompress(stored, &mut out[..length]);
    assert_eq!(out[length..], BEHIND);
    if unpacked.is_ok() && stored.len() == length {
        assert_eq!(&out[..length], stored, "it is stored as it came");
    }
    let mut again = vec![1; length];
    assert_eq!(BlockDecompressor::take().decompress(stored, &mut again), unpacked);
    assert!(unpacked.is_err() || again == out[..length], "the same every time");
}

fn there_and_back(bytes: &[u8], times: u16) {
    let chunk = bytes.repeat(usize::from(times & 63) + 1);
    let Some(payload) = compress(&chunk, 1 + u32::from(times >> 6 & 3)) else { return };
    assert!(payload.stored_bytes() < chunk.len());
    let key = ObjectKey::new("k").expect("a key");
    let (bucket, body) = (BucketId(1), BodyId(2));
    let owner = RecordOwner { bucket, key, body, part: None, offset: 0, written: Timestamp(0) };
    let mut bytes = Vec::new();
    encode_head(PLACE, &owner, &payload, None, &mut bytes);
    let head = RecordHead::decode(PLACE, &bytes).expect("what is written is read");
    assert_eq!(head.bad_block(payload.stored()), None);
    for (index, block) in chunk.chunks(1 << 16).enumerate() {
        let mut out = vec![0; block.len()];
        let unpacked = BlockDecompressor::take().decompress(&payload.stored()[head.block(index)], &mut out);
        assert!(unpacked.is_ok() && out == block, "block {index}");
    }
}
