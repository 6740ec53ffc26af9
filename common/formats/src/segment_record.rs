//! Record of one chunk in a segment, as bytes: `[head: 60 bytes][key][extra][table][payload]`.
//!
//! Pure functions on bytes; every byte is described in docs/formats-segment.md. The head's CRC covers head,
//! key, extra and table. This CRC and the CRC of each 64 KiB block in the table are seeded with stamp,
//! segment, generation, body and offset: bytes that a bug, a disk or a person moved elsewhere never verify.
//! Decoding does not trust its input: any bytes return a record or a [`RecordFault`].
//!
//! The head of a chunk of up to 64 KiB takes 64 bytes and the key, its one-entry table included. The head of
//! a compressed chunk also has the stored length of each block, 4 bytes each, so that a block can be found,
//! verified and decompressed without the others.

use bytes::Bytes;
use std::ops::Range;

use crate::schema::Encoding;
use mlgw_common::checksum::BlockIdentity;
use mlgw_common::ids::{BodyId, BucketId, PartNumber, SegmentId, SegmentSeed};
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, EXTRA_BYTES_MAX, KEY_LEN_MAX, RECORD_HEADER_BYTES};
use mlgw_common::{ObjectKey, Timestamp};

use crate::segment_payload::Payload;

/// Bytes of the head's fixed part.
pub const HEAD_FIXED_BYTES: usize = 60;
/// Maximum bytes of a head: fixed part, key, extra and table.
pub const HEAD_BYTES_MAX: usize = HEAD_FIXED_BYTES + KEY_LEN_MAX + EXTRA_BYTES_MAX + TABLE_BYTES_MAX;
/// Magic number of every record, at [`MAGIC_AT`].
pub const MAGIC: [u8; 4] = *b"mlgC";
/// Offset of the magic number in a record: after the CRC, so that the CRC covers one contiguous range.
pub const MAGIC_AT: usize = 4;

/// Flag of a record whose extra bytes end with the floor of the log.
const FLAG_FLOOR: u8 = 1;
/// Bytes of the floor of the log in a record.
pub const FLOOR_BYTES: usize = 8;
const VERSION: u8 = 1;
const KIND_CHUNK: u8 = 1;
const CRC_BYTES: usize = 4;
/// Bytes of the stored length of a block.
pub(super) const LENGTH_BYTES: usize = 4;
const TABLE_BYTES_MAX: usize = CRC_BYTES * CHUNK_BYTES_MAX.div_ceil(BLOCK_BYTES) as usize;
const BLOCK: usize = BLOCK_BYTES as usize;

const _: () = assert!(HEAD_FIXED_BYTES + CRC_BYTES == RECORD_HEADER_BYTES);

/// Location of a record's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAddress {
    /// The segment.
    pub segment: SegmentId,
    /// Seed of the segment's checksums.
    pub seed: SegmentSeed,
    /// Offset of the record's first byte in the segment file.
    pub offset: u64,
}

impl RecordAddress {
    const fn identity(self, body: BodyId, into: u64) -> BlockIdentity {
        BlockIdentity { segment: self.segment, seed: self.seed, body, offset: self.offset.wrapping_add(into) }
    }
}

/// Owner of a chunk's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOwner {
    /// The bucket.
    pub bucket: BucketId,
    /// The object's key, for salvage.
    pub key: ObjectKey,
    /// The body.
    pub body: BodyId,
    /// The part, if the body is a multipart upload.
    pub part: Option<PartNumber>,
    /// Offset of the chunk's first byte in the body, or in the part.
    pub offset: u64,
    /// Time at which the chunk was accepted, for salvage.
    pub written: Timestamp,
}

/// Reason why bytes are not the head of a record at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// The bytes end before the head does.
    #[error("the record's header is truncated")]
    Short,
    /// No record begins here.
    #[error("no record starts here")]
    Magic,
    /// A length is outside its bounds.
    #[error("a length in the record's header is out of range")]
    Length,
    /// The head's checksum does not match.
    #[error("the record's header is damaged or belongs to another place")]
    Crc,
    /// Intact, but of a version or kind that this program does not know.
    #[error("the record has a format that this version of mlgw cannot read")]
    Unsupported,
    /// Intact, but of an encoding that this program does not know.
    #[error("the record has encoding {0}, which this version of mlgw cannot read; a newer one wrote it")]
    Encoding(u8),
}

impl RecordFault {
    /// True if the record is intact but of a format that only another version of the program reads.
    #[must_use]
    pub const fn is_of_another_format(self) -> bool {
        matches!(self, Self::Unsupported | Self::Encoding(_))
    }
}

/// Head of an intact record. It borrows the bytes that it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead<'a> {
    /// Location of the record.
    pub address: RecordAddress,
    /// The bucket.
    pub bucket: BucketId,
    /// The body.
    pub body: BodyId,
    /// The part, if the body is a multipart upload.
    pub part: Option<PartNumber>,
    /// Offset of the chunk's first byte in the body, or in the part.
    pub body_offset: u64,
    /// Time at which the chunk was accepted.
    pub written: Timestamp,
    /// Bytes from the record's first byte to its payload.
    pub head_bytes: usize,
    /// Encoding of the payload.
    pub encoding: Encoding,
    /// Length of the payload as stored.
    pub stored_bytes: usize,
    /// Length of the payload before encoding, as clients see it.
    pub logical_bytes: usize,
    /// The key's bytes.
    pub key: &'a [u8],
    /// Stored length of each block, 4 bytes each, if the payload is compressed; otherwise empty.
    pub extra: &'a [u8],
    /// Floor of the catalogue's log when the record was written, if the record carries one.
    pub floor: Option<u64>,
    table: &'a [u8],
}

/// Returns the bytes of the head of a record of `payload` under a key of `key_bytes` bytes, without a floor.
#[must_use]
pub const fn head_bytes(key_bytes: usize, payload: &Payload) -> usize {
    HEAD_FIXED_BYTES + key_bytes + payload.extra.len() + CRC_BYTES * payload.logical_bytes.div_ceil(BLOCK)
}

/// Appends the head of the record of `payload` to `out` and returns the head's length in bytes. The payload
/// itself is not copied. A head with a floor of the log is [`FLOOR_BYTES`] longer.
///
/// # Panics
/// Panics if the payload is empty or longer than a chunk; callers split data into chunks.
pub fn encode_head(
    place: RecordAddress,
    owner: &RecordOwner,
    payload: &Payload,
    floor: Option<u64>,
    out: &mut Vec<u8>,
) -> usize {
    assert!(payload.logical_bytes > 0, "a chunk holds at least one byte");
    assert!(payload.logical_bytes as u64 <= CHUNK_BYTES_MAX, "a chunk holds at most 1 MiB");
    let key = owner.key.as_bytes();
    let start = out.len();
    let floor_bytes = if floor.is_some() { FLOOR_BYTES } else { 0 };
    let head_bytes = head_bytes(key.len(), payload) + floor_bytes;
    let flags = if floor.is_some() { FLAG_FLOOR } else { 0 };
    out.extend_from_slice(&[0; CRC_BYTES]);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, KIND_CHUNK, payload.encoding as u8, flags]);
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(&((payload.extra.len() + floor_bytes) as u16).to_le_bytes());
    out.extend_from_slice(&owner.part.map_or(0, PartNumber::get).to_le_bytes());
    out.extend_from_slice(&0u16.to_le_bytes());
    out.extend_from_slice(&(payload.stored.len() as u32).to_le_bytes());
    out.extend_from_slice(&(payload.logical_bytes as u32).to_le_bytes());
    out.extend_from_slice(&owner.bucket.0.to_le_bytes());
    out.extend_from_slice(&owner.body.0.to_le_bytes());
    out.extend_from_slice(&owner.offset.to_le_bytes());
    out.extend_from_slice(&owner.written.0.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&payload.extra);
    if let Some(floor) = floor {
        out.extend_from_slice(&floor.to_le_bytes());
    }
    for index in 0..payload.logical_bytes.div_ceil(BLOCK) {
        let block = block_range(payload.encoding, &payload.extra, payload.stored.len(), index);
        let identity = place.identity(owner.body, (head_bytes + block.start) as u64);
        out.extend_from_slice(&identity.crc32c(&payload.stored[block]).to_le_bytes());
    }
    assert!(out.len() - start == head_bytes, "the header has the computed length");
    let crc = place.identity(owner.body, 0).crc32c(&out[start + CRC_BYTES..]);
    out[start..start + CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    head_bytes
}

/// Returns the lengths of head and payload of the record that begins with `bytes`, if they are possible.
/// Nothing is verified.
///
/// # Errors
/// Returns [`RecordFault::Short`], [`RecordFault::Magic`] or [`RecordFault::Length`].
pub fn peek_lengths(bytes: &[u8]) -> Result<(usize, usize), RecordFault> {
    let fixed = bytes.first_chunk::<HEAD_FIXED_BYTES>().ok_or(RecordFault::Short)?;
    RecordLengths::read(fixed).map(|lengths| (lengths.head, lengths.stored))
}

struct RecordLengths {
    key: usize,
    extra: usize,
    stored: usize,
    logical: usize,
    head: usize,
}

impl RecordLengths {
    fn read(fixed: &[u8; HEAD_FIXED_BYTES]) -> Result<Self, RecordFault> {
        if fixed[MAGIC_AT..MAGIC_AT + 4] != MAGIC {
            return Err(RecordFault::Magic);
        }
        let (key, extra) = (u16_at(fixed, 12) as usize, u16_at(fixed, 14) as usize);
        let (stored, logical) = (u32_at(fixed, 20) as usize, u32_at(fixed, 24) as usize);
        let chunk_max = CHUNK_BYTES_MAX as usize;
        let possible = (1..=KEY_LEN_MAX).contains(&key)
            && extra <= EXTRA_BYTES_MAX
            && (1..=chunk_max).contains(&logical)
            && (1..=2 * chunk_max).contains(&stored);
        if !possible {
            return Err(RecordFault::Length);
        }
        let head = HEAD_FIXED_BYTES + key + extra + CRC_BYTES * logical.div_ceil(BLOCK);
        Ok(Self { key, extra, stored, logical, head })
    }

    /// Checks that no block is empty or longer than its logical length, and that the blocks fill the payload.
    fn check_blocks(&self, encoding: Encoding, extra: &[u8]) -> Result<(), RecordFault> {
        let possible = match encoding {
            Encoding::Raw => extra.is_empty() && self.stored == self.logical,
            Encoding::Zstd => {
                let blocks = self.logical.div_ceil(BLOCK);
                let logical = |index: usize| BLOCK.min(self.logical - index * BLOCK);
                extra.len() == blocks * LENGTH_BYTES
                    && (0..blocks).all(|index| (1..=logical(index)).contains(&stored_length(extra, index)))
                    && (0..blocks).map(|index| stored_length(extra, index)).sum::<usize>() == self.stored
            }
        };
        if possible { Ok(()) } else { Err(RecordFault::Length) }
    }
}

/// Returns the stored length of block `index` from the extra bytes; 0 if they do not contain it.
fn stored_length(extra: &[u8], index: usize) -> usize {
    let bytes = extra.get(index * LENGTH_BYTES..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
}

/// Returns the range of block `index` in a payload of `stored` bytes.
fn block_range(encoding: Encoding, extra: &[u8], stored: usize, index: usize) -> Range<usize> {
    match encoding {
        Encoding::Raw => index * BLOCK..stored.min((index + 1) * BLOCK),
        Encoding::Zstd => {
            let start = (0..index).map(|before| stored_length(extra, before)).sum();
            start..start + stored_length(extra, index)
        }
    }
}

impl<'a> RecordHead<'a> {
    /// Decodes and verifies the head of the record at `place`. `bytes` begins with the head and may be
    /// longer.
    ///
    /// # Errors
    /// Names the first defect of the bytes.
    pub fn decode(place: RecordAddress, bytes: &'a [u8]) -> Result<Self, RecordFault> {
        let fixed = bytes.first_chunk::<HEAD_FIXED_BYTES>().ok_or(RecordFault::Short)?;
        let lengths = RecordLengths::read(fixed)?;
        let head = bytes.get(..lengths.head).ok_or(RecordFault::Short)?;
        let body = BodyId(u64_at(fixed, 36));
        if place.identity(body, 0).crc32c(&head[CRC_BYTES..]) != u32_at(fixed, 0) {
            return Err(RecordFault::Crc);
        }
        let part = u16_at(fixed, 16);
        let part_known = part == 0 || PartNumber::new(part.into()).is_some();
        if fixed[8..10] != [VERSION, KIND_CHUNK] || fixed[11] & !FLAG_FLOOR != 0 || !part_known {
            return Err(RecordFault::Unsupported);
        }
        let encoding =
            Encoding::try_from(i32::from(fixed[10])).map_err(|_| RecordFault::Encoding(fixed[10]))?;
        let (key, rest) = head[HEAD_FIXED_BYTES..].split_at(lengths.key);
        let (extra, table) = rest.split_at(lengths.extra);
        let (extra, floor) = match fixed[11] {
            0 => (extra, None),
            _ => extra
                .split_last_chunk()
                .map(|(extra, floor)| (extra, Some(u64::from_le_bytes(*floor))))
                .ok_or(RecordFault::Length)?,
        };
        lengths.check_blocks(encoding, extra)?;
        Ok(Self {
            address: place,
            bucket: BucketId(u64_at(fixed, 28)),
            body,
            part: PartNumber::new(part.into()),
            body_offset: u64_at(fixed, 44),
            written: Timestamp(u64_at(fixed, 52) as i64),
            head_bytes: lengths.head,
            encoding,
            stored_bytes: lengths.stored,
            logical_bytes: lengths.logical,
            key,
            extra,
            floor,
            table,
        })
    }

    /// Returns the owner of the chunk, or `None` if the key is not a valid object key.
    #[must_use]
    pub fn owner(&self) -> Option<RecordOwner> {
        Some(RecordOwner {
            bucket: self.bucket,
            key: ObjectKey::from_bytes(self.key).ok()?,
            body: self.body,
            part: self.part,
            offset: self.body_offset,
            written: self.written,
        })
    }

    /// Returns the number of blocks of the payload.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.logical_bytes.div_ceil(BLOCK)
    }

    /// Returns the range of block `index` in the stored payload.
    #[must_use]
    pub fn block(&self, index: usize) -> Range<usize> {
        block_range(self.encoding, self.extra, self.stored_bytes, index)
    }

    /// True if `stored` are exactly the bytes of block `index`.
    #[must_use]
    pub fn is_block_intact(&self, index: usize, stored: &[u8]) -> bool {
        let Some(crc) = self.table.chunks_exact(CRC_BYTES).nth(index) else { return false };
        let block = self.block(index);
        let identity = self.address.identity(self.body, (self.head_bytes + block.start) as u64);
        stored.len() == block.len() && identity.crc32c(stored).to_le_bytes() == *crc
    }

    /// Returns the first block of `payload` (the whole stored payload) that does not verify.
    #[must_use]
    pub fn bad_block(&self, payload: &[u8]) -> Option<usize> {
        (0..self.blocks()).find(|&index| {
            !payload.get(self.block(index)).is_some_and(|block| self.is_block_intact(index, block))
        })
    }
}

impl Payload {
    /// Returns the payload of a record with the header `head` and the stored bytes `stored`.
    pub fn from_record(head: &RecordHead<'_>, stored: Bytes) -> Self {
        let (encoding, logical_bytes) = (head.encoding, head.logical_bytes);
        Self { stored, encoding, extra: Bytes::copy_from_slice(head.extra), logical_bytes }
    }
}

fn u16_at(bytes: &[u8; HEAD_FIXED_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8; HEAD_FIXED_BYTES], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

fn u64_at(bytes: &[u8; HEAD_FIXED_BYTES], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

#[cfg(test)]
mod tests;
