//! Round trips, golden bytes and damage of the record format.

use super::*;
use mlgw_common::ids::{Generation, SegmentStamp};
use proptest::prelude::*;

const HERE: RecordAddress =
    RecordAddress { segment: SegmentId(7), seed: SegmentSeed::unstamped(Generation(1)), offset: 64 };

const GOLDEN: &str = "0cc9f15f6d6c67430101000013000000030000000a0000000a000000020000000000000009000000000000\
                      0000001000000000000068e5cf8b010000747261696e2f73686172642d3030302e746172a11b18f5\
                      30313233343536373839";

fn owner() -> RecordOwner {
    RecordOwner {
        bucket: BucketId(2),
        key: ObjectKey::new("train/shard-000.tar").unwrap(),
        body: BodyId(9),
        part: PartNumber::new(3),
        offset: 1 << 20,
        written: Timestamp(1_700_000_000_000),
    }
}

const GOLDEN_PACKED: &str = "c40f04776d6c67430101010013000800030000000800000070110100020000000000000009000000\
                             0000000000001000000000000068e5cf8b010000747261696e2f73686172642d3030302e74617205\
                             0000000300000033796193985198f30606060606060606";

fn raw(payload: &[u8]) -> Payload {
    Payload::raw(bytes::Bytes::copy_from_slice(payload))
}

/// Returns a fake payload of 70,000 bytes: two blocks with the given stored lengths.
fn packed(lengths: [u32; 2]) -> Payload {
    Payload {
        stored: vec![6; lengths.iter().sum::<u32>() as usize].into(),
        encoding: Encoding::Zstd,
        extra: lengths.map(u32::to_le_bytes).concat().into(),
        logical_bytes: 70_000,
    }
}

fn record_of(place: RecordAddress, owner: &RecordOwner, payload: &Payload) -> Vec<u8> {
    let mut out = Vec::new();
    encode_head(place, owner, payload, None, &mut out);
    out.extend_from_slice(&payload.stored);
    out
}

fn record(place: RecordAddress, owner: &RecordOwner, payload: &[u8]) -> Vec<u8> {
    record_of(place, owner, &raw(payload))
}

/// Returns the record with the checksum of its head corrected.
fn signed(mut bytes: Vec<u8>, payload: &Payload) -> Vec<u8> {
    let end = head_bytes(owner().key.as_bytes().len(), payload);
    let crc = HERE.identity(BodyId(9), 0).crc32c(&bytes[4..end]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Decodes a whole record. Returns the payload if everything verifies.
fn verified(place: RecordAddress, bytes: &[u8]) -> Option<Vec<u8>> {
    let head = RecordHead::decode(place, bytes).ok()?;
    let payload = bytes.get(head.head_bytes..head.head_bytes + head.stored_bytes)?;
    head.bad_block(payload).is_none().then(|| payload.to_vec())
}

#[test]
fn the_encoding_of_version_1_is_stable() {
    let bytes = record(HERE, &owner(), b"0123456789");
    assert_eq!(mlgw_common::hex::text(&bytes), GOLDEN);
}

#[test]
fn a_small_record_costs_64_bytes_and_its_key() {
    assert_eq!(record(HERE, &owner(), &[5; 4096]).len(), 64 + owner().key.as_bytes().len() + 4096);
}

#[test]
fn a_record_verifies_only_where_it_was_written() {
    let bytes = record(HERE, &owner(), &[1; 70_000]);
    assert!(verified(HERE, &bytes).is_some());
    for elsewhere in [
        RecordAddress { segment: SegmentId(8), ..HERE },
        RecordAddress { seed: SegmentSeed::unstamped(Generation(2)), ..HERE },
        RecordAddress { offset: 128, ..HERE },
    ] {
        assert_eq!(RecordHead::decode(elsewhere, &bytes), Err(RecordFault::Crc));
    }
}

#[test]
fn an_unknown_encoding_is_reported_by_number() {
    let mut bytes = record(HERE, &owner(), &[1; 100]);
    bytes[10] = 2;
    let bytes = signed(bytes, &raw(&[1; 100]));
    assert_eq!(RecordHead::decode(HERE, &bytes), Err(RecordFault::Encoding(2)));
    assert!(
        RecordFault::Encoding(2).to_string().contains("encoding 2, which this version of mlgw cannot read")
    );
}

#[test]
fn blocks_of_a_compressed_record_are_found_by_their_stored_lengths() {
    let payload = packed([5, 3]);
    let bytes = record_of(HERE, &owner(), &payload);
    assert_eq!(mlgw_common::hex::text(&bytes), GOLDEN_PACKED);
    let head = RecordHead::decode(HERE, &bytes).unwrap();
    assert_eq!((head.encoding, head.stored_bytes, head.logical_bytes), (Encoding::Zstd, 8, 70_000));
    assert_eq!((head.blocks(), head.block(0), head.block(1)), (2, 0..5, 5..8));
    assert_eq!(verified(HERE, &bytes), Some(payload.stored.to_vec()));
    assert_eq!(Payload::from_record(&head, payload.stored.clone()), payload, "the moved record is unchanged");
}

#[test]
fn inconsistent_lengths_are_rejected() {
    let good = packed([5, 3]);
    for lengths in [[5, 4], [0, 8], [8, 0], [65_537, 3], [5, 4_465], [u32::MAX, 9]] {
        let extra = lengths.map(u32::to_le_bytes).concat().into();
        let lying = Payload { extra, ..good.clone() };
        // Patched into a valid record, because the encoder asserts its input.
        let mut bytes = record_of(HERE, &owner(), &good);
        let at = HEAD_FIXED_BYTES + owner().key.as_bytes().len();
        bytes[at..at + 8].copy_from_slice(&lying.extra);
        assert_eq!(RecordHead::decode(HERE, &signed(bytes, &lying)), Err(RecordFault::Length), "{lengths:?}");
    }
    for logical in [0u32, 65_536, 65_537 + 65_536, u32::MAX] {
        let mut bytes = record_of(HERE, &owner(), &good);
        bytes[24..28].copy_from_slice(&logical.to_le_bytes());
        assert!(RecordHead::decode(HERE, &signed(bytes, &good)).is_err(), "{logical}");
    }
    let mut bytes = record(HERE, &owner(), &[1; 100]);
    bytes[10] = 1;
    assert_eq!(RecordHead::decode(HERE, &signed(bytes, &raw(&[1; 100]))), Err(RecordFault::Length));
}

proptest! {
    #[test]
    fn encoded_records_are_read_back(
        segment: u64, generation: u32, stamp: u64, offset in 64u64..1 << 40, bucket: u64, body: u64,
        part in 0u32..=10_000, body_offset: u64, written: i64, key in "\\PC{1,200}",
        length in 1usize..200_000, fill: u8,
    ) {
        let seed = SegmentSeed { generation: Generation(generation), stamp: SegmentStamp(stamp) };
        let place = RecordAddress { segment: SegmentId(segment), seed, offset };
        let owner = RecordOwner {
            bucket: BucketId(bucket), key: ObjectKey::new(&key).unwrap(), body: BodyId(body),
            part: PartNumber::new(part), offset: body_offset, written: Timestamp(written),
        };
        let payload = vec![fill; length];
        let bytes = record(place, &owner, &payload);
        let head = RecordHead::decode(place, &bytes).unwrap();
        prop_assert_eq!(head.head_bytes, head_bytes(key.len(), &raw(&payload)));
        prop_assert_eq!(peek_lengths(&bytes), Ok((head.head_bytes, length)));
        prop_assert_eq!((head.bucket, head.body, head.part), (owner.bucket, owner.body, owner.part));
        prop_assert_eq!(
            (head.body_offset, head.written, head.key),
            (body_offset, owner.written, key.as_bytes())
        );
        prop_assert_eq!(verified(place, &bytes), Some(payload));
    }

    #[test]
    fn every_flipped_bit_is_detected(
        length in 1usize..70_000, is_packed: bool, at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let payload = if is_packed { packed([length.min(65_536) as u32, 40]) } else { raw(&vec![9; length]) };
        let mut bytes = record_of(HERE, &owner(), &payload);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert_eq!(verified(HERE, &bytes), None);
    }

    #[test]
    fn a_record_cut_off_anywhere_does_not_verify(
        length in 1usize..70_000, at in any::<prop::sample::Index>()
    ) {
        let bytes = record(HERE, &owner(), &vec![9; length]);
        prop_assert_eq!(verified(HERE, &bytes[..at.index(bytes.len())]), None);
    }

    #[test]
    fn any_bytes_are_decoded_without_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400), magic: bool
    ) {
        if magic && bytes.len() >= 8 {
            bytes[4..8].copy_from_slice(&MAGIC);
        }
        prop_assert_eq!(verified(HERE, &bytes), None);
    }
}
