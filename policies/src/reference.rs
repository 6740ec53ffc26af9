//! Reference caches, which a server simulates beside its engine for comparison. Each operates on densely
//! numbered blocks with a weight in bytes.
//!
//! All of them fill on demand: a requested block that fits into the cache is admitted if the policy admits
//! it. A cache never holds more bytes than its capacity. A block is identified by its number only, nothing
//! is hashed, and the state of a cache takes at most 24 bytes for each number that it has received. A block
//! that occurs with a different weight is a new version: the old version is dropped first.

pub mod links;
mod lru;
mod never_evict;
mod s3_fifo;

pub use lru::Lru;
pub use never_evict::NeverEvict;
pub use s3_fifo::S3Fifo;

use crate::access::Op;

/// A cache that processes one access after another.
pub trait ReferenceCache {
    /// Processes a read or write of a block with a weight of `bytes` and returns true if it was a hit. A
    /// write may be admitted like a read; it never counts as bytes written, because its data is written to
    /// storage in any case.
    fn access(&mut self, block: u32, bytes: u32, op: Op) -> bool;

    /// Removes a block that was deleted.
    fn invalidate(&mut self, block: u32);

    /// Bytes admitted by reads: copies that were written to flash.
    fn bytes_written(&self) -> u64;
}

/// Weight of a block, at least 1, so that the number of empty blocks in a cache is bounded.
#[must_use]
pub fn weight(bytes: u32) -> u32 {
    bytes.max(1)
}
