//! Headers and records of segments. Their checksums are corrected first, as otherwise every input would be
//! rejected. Properties: a head that decodes has the lengths that `peek_lengths` returns; its blocks cover
//! the payload without gaps; a head with a changed byte never decodes.

use mlgw_common::checksum::{BlockIdentity, crc32c};
use mlgw_common::ids::{BodyId, Generation, SegmentId, SegmentSeed, SegmentStamp};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use mlgw_formats::segment_record::{HEAD_FIXED_BYTES, RecordAddress, RecordHead, peek_lengths};

const SEED: SegmentSeed = SegmentSeed { generation: Generation(1), stamp: SegmentStamp(9) };
const PLACE: RecordAddress = RecordAddress { segment: SegmentId(3), seed: SEED, offset: 64 };

/// The first byte selects header or record.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    if kind % 2 == 0 { header(bytes) } else { record(bytes) }
}

fn header(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let end = SEGMENT_HEADER_BYTES as usize - 4;
    if bytes.len() >= end + 4 {
        let crc = crc32c(&bytes[..end]).to_le_bytes();
        bytes[end..end + 4].copy_from_slice(&crc);
    }
    if let Ok(header) = SegmentHeader::decode(&bytes) {
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    }
}

fn identity(body: BodyId, into: usize) -> BlockIdentity {
    let RecordAddress { segment, seed, offset } = PLACE;
    BlockIdentity { segment, seed, body, offset: offset + into as u64 }
}

fn record(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let Ok((head_bytes, stored_bytes)) = peek_lengths(&bytes) else {
        assert!(RecordHead::decode(PLACE, &bytes).is_err());
        return;
    };
    if bytes.len() < head_bytes {
        assert!(RecordHead::decode(PLACE, &bytes).is_err());
        return;
    }
    let body = BodyId(u64::from_le_bytes(bytes[36..44].try_into().expect("eight bytes")));
    let crc = identity(body, 0).crc32c(&bytes[4..head_bytes]).to_le_bytes();
    bytes[..4].copy_from_slice(&crc);
    let Ok(head) = RecordHead::decode(PLACE, &bytes) else { return };
    assert_eq!((head.head_bytes, head.stored_bytes, head.body), (head_bytes, stored_bytes, body));
    let mut end = 0;
    for index in 0..head.blocks() {
        assert_eq!(head.block(index).start, end);
        end = head.block(index).end;
    }
    assert_eq!(end, stored_bytes);
    assert!(!head.is_block_intact(head.blocks(), &[]));
    let _ = head.bad_block(&bytes[head_bytes..]);
    for at in 0..HEAD_FIXED_BYTES {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(RecordHead::decode(PLACE, &changed).is_err(), "byte {at} was changed");
    }
}
