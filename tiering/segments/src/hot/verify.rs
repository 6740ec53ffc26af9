//! Verification of a stored record against its reference in the catalogue.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use mlgw_common::ids::SegmentSeed;
use mlgw_metadata::offline::ReferencedExtent;

use super::location::RecordLocation;
use mlgw_formats::segment_record::{RecordAddress, RecordHead};

/// Damage of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordDamage {
    /// The header, and therefore the whole record.
    Head(String),
    /// These blocks of the payload: their indices, with their offsets in the payload.
    Blocks(Vec<(usize, usize)>),
}

/// Reads the record of `referenced`, at `location`, into `record` and verifies it. Returns the damage, if
/// any.
///
/// # Errors
/// When the disk fails. A file that ends too early is damage.
pub(super) fn verify_record(
    file: &File,
    seed: SegmentSeed,
    location: RecordLocation,
    referenced: &ReferencedExtent<'_>,
    record: &mut Vec<u8>,
) -> io::Result<Option<RecordDamage>> {
    let RecordLocation { segment, offset, head_bytes, payload_bytes, .. } = location;
    record.resize(head_bytes as usize + payload_bytes as usize, 0);
    match file.read_exact_at(record, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Some(RecordDamage::Head("the file ends before it".to_owned())));
        }
        read => read?,
    }
    let head = match RecordHead::decode(RecordAddress { segment, seed, offset }, record) {
        Ok(head) => head,
        Err(fault) => return Ok(Some(RecordDamage::Head(fault.to_string()))),
    };
    let same = head.bucket == referenced.bucket
        && head.body == referenced.body
        && head.part == referenced.part
        && head.body_offset == referenced.offset
        && head.key == referenced.key
        && head.head_bytes == head_bytes as usize
        && head.encoding == location.encoding
        && head.stored_bytes == payload_bytes as usize
        && head.logical_bytes == location.logical_bytes as usize;
    if !same {
        return Ok(Some(RecordDamage::Head(
            "the record is not the one that the catalogue describes".to_owned(),
        )));
    }
    let payload = &record[head_bytes as usize..];
    let bad = |index: &usize| !head.is_block_intact(*index, &payload[head.block(*index)]);
    let blocks: Vec<_> =
        (0..head.blocks()).filter(bad).map(|index| (index, head.block(index).start)).collect();
    Ok((!blocks.is_empty()).then_some(RecordDamage::Blocks(blocks)))
}
