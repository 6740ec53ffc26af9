//! Where mlgw keeps bytes and how they move.
//!
//! Today that is the hot tier: append-only segment files on the local disk. Whatever a caller
//! gets from here was verified against the checksum it was written with, and whatever was
//! answered as stored survives power loss (unless durability `os` was chosen by name).

pub mod hot;

pub use hot::{
    AppendError, Appended, Chunk, CompactionSettings, CompactionStatus, Hold, HotMetrics, HotOptions,
    HotTier, OpenError, Placement, ReadError, RecoverError, SegmentPin,
};
