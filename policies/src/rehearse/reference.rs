//! Caches that others use, to compare with: each over blocks with dense numbers and a weight in bytes.
//!
//! All of them fill on demand: a block that is asked for and fits into the cache is admitted, if the policy
//! admits it. None holds more bytes than it was given. A block is known by its number only, nothing is
//! hashed, and what a cache remembers takes at most 24 bytes for each number that it was ever told. A block
//! that comes with another weight than it has is another version: the old one is dropped first.

mod epoch_hazard;
mod links;
mod lru;
mod never_evict;
mod optimum;
mod s3_fifo;
mod sieve;
#[cfg(test)]
mod tests;
mod told;

pub use epoch_hazard::EpochHazard;
pub use lru::Lru;
pub use never_evict::NeverEvict;
pub use optimum::{Event, Outcome, optimum};
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use told::{Class, Told};

/// A cache that is told of one access after the other.
pub trait Reference {
    /// Takes the access to a block that weighs `bytes`, and says whether the cache held it. A write may be
    /// admitted like a read; it never counts as bytes written, as those have to be written somewhere in any
    /// case.
    fn access(&mut self, block: u32, bytes: u32, is_read: bool) -> bool;

    /// The block is no more.
    fn forget(&mut self, block: u32);

    /// Bytes admitted by reads: copies that were written to flash.
    fn bytes_written(&self) -> u64;
}

/// What a block weighs at least, so that empty ones do not pile up.
fn weight(bytes: u32) -> u32 {
    bytes.max(1)
}
