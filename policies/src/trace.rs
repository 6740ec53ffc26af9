//! Recorded accesses: a compact file format, written while accesses happen and read to simulate policies.
//!
//! The reader returns exactly the events that were written, or an error that names the damaged block. This
//! module reads and writes bytes in memory only. Reader and writer hold at most [`KEYS_MAX`] keys of
//! [`TEXT_BYTES_MAX`] bytes in total. After a power loss, the data that the file system lost is missing, and
//! so is the block that is torn at the end of the file.
//!
//! # Format, version 1
//!
//! A header, then blocks. Numbers are little-endian, or varints: seven bits a byte, the lowest first, the
//! high bit set on all bytes but the last. Zigzag is a varint of 2n for n ≥ 0 and of −2n − 1 for others.
//!
//! | at | bytes | content |
//! | --- | --- | --- |
//! | 0 | 8 | `mlgwtrac` |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | 0 |
//! | 12 | 8 | start time of the trace, milliseconds since 1970, at which event times begin; 0 if unknown |
//! | 20 | 4 | CRC32C of the bytes before |
//!
//! A block is at most 64 KiB long:
//!
//! | at | bytes | content |
//! | --- | --- | --- |
//! | 0 | 4 | bytes of its events |
//! | 4 | 4 | number of the block, from 0 |
//! | 8 | 4 | number of events |
//! | 12 | 8 | time of the first event in microseconds |
//! | 20 | 4 | CRC32C of the 20 bytes before and of the events |
//! | 24 | | the events |
//!
//! An event is a byte of flags and the fields that they select, in this order:
//!
//! | flags | field |
//! | --- | --- |
//! | | varint: microseconds since the previous event; 0 for the first of a block |
//! | `10` not set | a caller (otherwise the caller of the previous event) |
//! | `40` | a key without a number; it gets the next number |
//! | `80` | none: the key's number is one more than that of the key that this caller accessed last |
//! | neither | zigzag: number of the key minus the number of the key that this caller accessed last |
//! | `20` not set | varint: size of the object (otherwise the last size) |
//! | `0C` = 0 | none: the whole object |
//! | `0C` = 4 | none: the range after this key's last range, of the same length or to the object's end |
//! | `0C` = 8 | zigzag: start of the range minus the end of this key's last range; varint: bytes |
//! | `03` | 0: read, 1: write, 2: delete |
//!
//! A caller is a varint, its number; if that is the next free number, its id and family (8 bytes each)
//! follow.
//!
//! A key without a number is a varint, the number of its bucket; if that is the next free number, the
//! bucket's id (8 bytes); a varint, the length of the prefix shared with the key that this caller accessed
//! last; and a varint and bytes, the rest.
//!
//! The last size of an object is its size at the previous access to this key; for a new key, the size of the
//! key that this caller accessed last.
//!
//! For a caller without an earlier access, the key of the previous event counts as the key that it accessed
//! last; for the very first event, an empty key of 0 bytes with number 0. A byte `03` alone is not an event:
//! it resets the dictionary, so that all numbers are free again and only the time carries over. A file that
//! ends within a block was torn there; the blocks before that point are valid.

mod dictionary;
mod event;
pub mod import;
mod json_log;
pub mod log_line;
mod reader;
mod s3_log;
pub(crate) mod varint;
mod writer;

pub use reader::{TraceEnd, TraceReader};
use thiserror::Error;
pub use writer::TraceWriter;

/// Magic number at the start of a trace.
const MAGIC: [u8; 8] = *b"mlgwtrac";
const VERSION: u16 = 1;
/// Length of the header of a trace in bytes.
pub const HEADER_BYTES: usize = 24;
const BLOCK_HEADER_BYTES: usize = 24;
/// Maximum length of a block in bytes, including its header.
pub const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of an event in bytes: 1,024 bytes of key, two ids, a bucket's id and ten numbers of at
/// most ten bytes.
const EVENT_BYTES_MAX: usize = 1 + KEY_BYTES_MAX + 24 + 10 * varint::BYTES_MAX;
/// Maximum length of a key in bytes.
pub const KEY_BYTES_MAX: usize = mlgw_common::limits::KEY_LEN_MAX;
/// Maximum number of keys in the dictionary at a time.
pub const KEYS_MAX: usize = 1 << 20;
/// Maximum total length of the keys in the dictionary in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Maximum number of callers in the dictionary at a time; the next constant is that of buckets.
const CALLERS_MAX: usize = 1 << 16;
const BUCKETS_MAX: usize = 1 << 16;

// One byte more resets the dictionary.
const _: () = assert!(BLOCK_HEADER_BYTES + 1 + EVENT_BYTES_MAX <= BLOCK_BYTES_MAX);
const _: () = assert!(TEXT_BYTES_MAX <= u32::MAX as usize, "positions of keys are numbers of 32 bits");

/// A trace cannot be read, or not beyond some block.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TraceError {
    /// The header is missing or damaged.
    #[error("this is not a trace, or its first {HEADER_BYTES} bytes are damaged")]
    NoTrace,
    /// The format version is not supported.
    #[error("the trace has version {0}, but this program reads version {VERSION}")]
    UnknownVersion(u16),
    /// A block is damaged. The events before it are valid.
    #[error("block {block} at byte {offset} of the trace is damaged: {what}; the events before it are valid")]
    Damaged {
        /// Number of the block.
        block: u32,
        /// Offset of the block in the trace.
        offset: u64,
        /// Description of the damage.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests;
