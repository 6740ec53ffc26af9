//! Round trips, golden bytes and damage of the record format.

use super::*;
use proptest::prelude::*;

const HERE: Place = Place { segment: SegmentId(7), generation: Generation(1), offset: 64 };

const GOLDEN: &str = "0cc9f15f6d6c67430101000013000000030000000a0000000a000000020000000000000009000000000000\
                      0000001000000000000068e5cf8b010000747261696e2f73686172642d3030302e746172a11b18f5\
                      30313233343536373839";

fn owner() -> Owner {
    Owner {
        bucket: BucketId(2),
        key: ObjectKey::new("train/shard-000.tar").unwrap(),
        body: BodyId(9),
        part: PartNumber::new(3),
        offset: 1 << 20,
        written: Timestamp(1_700_000_000_000),
    }
}

fn record(place: Place, owner: &Owner, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_head(place, owner, payload, &mut out);
    out.extend_from_slice(payload);
    out
}

/// Decodes a whole record: the payload, when everything verifies.
fn verified(place: Place, bytes: &[u8]) -> Option<Vec<u8>> {
    let head = Head::decode(place, bytes).ok()?;
    let payload = bytes.get(head.head_bytes..head.head_bytes + head.stored_bytes)?;
    head.bad_block(payload).is_none().then(|| payload.to_vec())
}

#[test]
fn the_bytes_of_version_1_stay_as_they_are() {
    let bytes = record(HERE, &owner(), b"0123456789");
    assert_eq!(crate::hot::tests::hex(&bytes), GOLDEN);
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
        Place { segment: SegmentId(8), ..HERE },
        Place { generation: Generation(2), ..HERE },
        Place { offset: 128, ..HERE },
    ] {
        assert_eq!(Head::decode(elsewhere, &bytes), Err(RecordFault::Crc));
    }
}

#[test]
fn an_unknown_encoding_is_named_and_never_read() {
    let mut bytes = record(HERE, &owner(), &[1; 100]);
    bytes[10] = 1;
    let end = head_bytes(owner().key.as_bytes().len(), 100);
    let crc = HERE.identity(BodyId(9), 0).crc32c(&bytes[4..end]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Head::decode(HERE, &bytes), Err(RecordFault::Unsupported));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        segment: u64, generation: u32, offset in 64u64..1 << 40, bucket: u64, body: u64, part in 0u32..=10_000,
        body_offset: u64, written: i64, key in "\\PC{1,200}", length in 1usize..200_000, fill: u8,
    ) {
        let place = Place { segment: SegmentId(segment), generation: Generation(generation), offset };
        let owner = Owner {
            bucket: BucketId(bucket), key: ObjectKey::new(&key).unwrap(), body: BodyId(body),
            part: PartNumber::new(part), offset: body_offset, written: Timestamp(written),
        };
        let payload = vec![fill; length];
        let bytes = record(place, &owner, &payload);
        let head = Head::decode(place, &bytes).unwrap();
        prop_assert_eq!(head.head_bytes, head_bytes(key.len(), length));
        prop_assert_eq!(peek_lengths(&bytes), Ok((head.head_bytes, length)));
        prop_assert_eq!((head.bucket, head.body, head.part), (owner.bucket, owner.body, owner.part));
        prop_assert_eq!((head.body_offset, head.written, head.key), (body_offset, owner.written, key.as_bytes()));
        prop_assert_eq!(verified(place, &bytes), Some(payload));
    }

    #[test]
    fn no_flipped_bit_goes_unseen(length in 1usize..70_000, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = record(HERE, &owner(), &vec![9; length]);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert_eq!(verified(HERE, &bytes), None);
    }

    #[test]
    fn a_record_cut_off_anywhere_does_not_verify(length in 1usize..70_000, at in any::<prop::sample::Index>()) {
        let bytes = record(HERE, &owner(), &vec![9; length]);
        prop_assert_eq!(verified(HERE, &bytes[..at.index(bytes.len())]), None);
    }

    #[test]
    fn any_bytes_are_decoded_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), magic: bool) {
        if magic && bytes.len() >= 8 {
            bytes[4..8].copy_from_slice(&MAGIC);
        }
        prop_assert_eq!(verified(HERE, &bytes), None);
    }
}
