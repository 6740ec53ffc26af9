//! Recorded accesses: a compact file of them, written while they happen and read to rehearse with.
//!
//! What was written is what is read, event for event, or an error names the block that is not. Nothing is
//! read or written here but bytes in memory. Both sides remember at most [`KEYS_MAX`] keys of
//! [`TEXT_BYTES_MAX`] bytes. When power fails, what is lost is what the file system lost, and the block that
//! is then torn at the end of the file.
//!
//! # Format, version 1
//!
//! A header, then blocks. Numbers are little-endian, or varints: seven bits a byte, the lowest first, the
//! high bit set on all but the last. Zigzag is a varint of 2n for n ≥ 0 and of −2n − 1 for others.
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | `mlgwtrac` |
//! | 8 | 2 | version, 1 |
//! | 10 | 2 | 0 |
//! | 12 | 8 | milliseconds from 1970 to the moment that times count from; 0 if it is not known |
//! | 20 | 4 | CRC32C of the bytes before |
//!
//! A block is at most 64 KiB long:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | bytes of its events |
//! | 4 | 4 | number of the block, from 0 |
//! | 8 | 4 | how many events there are |
//! | 12 | 8 | time of the first event in microseconds |
//! | 20 | 4 | CRC32C of the 20 bytes before and of the events |
//! | 24 | | the events |
//!
//! An event is a byte of flags and what they call for, in this order:
//!
//! | flags | what follows |
//! | --- | --- |
//! | | varint: microseconds since the event before; 0 for the first of a block |
//! | `10` not set | varint: number of the caller, who else is that of the event before; if it is the next number that is free, its id and its family (8 bytes each) |
//! | `40` | a key that has no number yet: varint: number of its bucket, and if it is the next that is free, the bucket's id (8 bytes); varint: how many bytes of the key that this caller last asked for begin it; varint and bytes: the rest. It gets the next number |
//! | `80` | nothing: the key's number is one more than that of the key that this caller last asked for |
//! | neither | zigzag: number of the key less that one |
//! | `20` not set | varint: size of the object, which else is what it was when this key last came; for a new key, that of the key that this caller last asked for |
//! | `0C` = 0 | nothing: all of the object |
//! | `0C` = 4 | nothing: from the end of this key's last range, as many bytes as that one had, or as are left |
//! | `0C` = 8 | zigzag: where it begins, less the end of this key's last range; varint: bytes |
//! | `03` | 0: read, 1: write, 2: delete |
//!
//! A caller that has not asked for anything before counts as having asked for the key of the event before;
//! the very first, for an empty one of no bytes with number 0. Flags `03` alone are no event: all numbers are
//! free again, and nothing is known of what came before but the time. A file that ends within a block was
//! torn there: what is before that holds.

mod book;
mod event;
pub mod import;
mod json_log;
mod reader;
mod s3_log;
pub(crate) mod varint;
mod writer;

pub use reader::{End, TraceReader};
use thiserror::Error;
pub(crate) use writer::ByHash;
pub use writer::TraceWriter;

/// First bytes of a trace.
const MAGIC: [u8; 8] = *b"mlgwtrac";
const VERSION: u16 = 1;
/// Bytes of the head of a trace.
pub const HEADER_BYTES: usize = 24;
const BLOCK_HEADER_BYTES: usize = 24;
/// Longest block, with its header.
pub const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// Longest event: 1,024 bytes of key, two ids, a bucket's id and ten numbers of at most ten bytes.
const EVENT_BYTES_MAX: usize = 1 + KEY_BYTES_MAX + 24 + 10 * varint::BYTES_MAX;
/// Longest key.
pub const KEY_BYTES_MAX: usize = mlgw_common::limits::KEY_LEN_MAX;
/// Keys that have a number at a time.
pub const KEYS_MAX: usize = 1 << 20;
/// Their bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Callers, and buckets, that have a number at a time.
const CALLERS_MAX: usize = 1 << 16;
const BUCKETS_MAX: usize = 1 << 16;

const _: () = assert!(BLOCK_HEADER_BYTES + EVENT_BYTES_MAX <= BLOCK_BYTES_MAX);

/// A trace cannot be read, or not on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TraceError {
    /// It does not begin as a trace does.
    #[error("this is no trace, or its first {HEADER_BYTES} bytes are damaged")]
    NoTrace,
    /// It was written by another program.
    #[error("the trace has version {0}: this program reads version {VERSION}")]
    UnknownVersion(u16),
    /// From a block on it cannot be read. What came before holds.
    #[error("block {block} at byte {offset} of the trace is damaged: {what}; what came before holds")]
    Damaged {
        /// Number of the block.
        block: u32,
        /// Where it begins.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}

#[cfg(test)]
mod tests;
