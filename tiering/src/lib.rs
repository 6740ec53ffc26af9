//! Where mlgw keeps bytes and how they move.
//!
//! Tiers of the truth: memory, hot, cold and upstream ([`tiers`], [`hot`], [`upstream`]); beside them clean
//! copies of what origins have ([`bound`], [`copies`]), of which the policy engine decides what stays
//! ([`policy`]). Whatever a caller gets from here was verified against the checksum it was written with, and
//! whatever was answered as stored survives power loss (unless durability `os` was chosen by name).

pub mod bound;
mod copies;
pub mod decisions;
pub mod fair;
pub mod flash;
pub mod hot;
mod memory;
pub mod origin;
pub mod policy;
pub mod state_format;
mod tiers;
pub mod upstream;
pub mod writeback;

pub use copies::{
    Copies, CopiesMetrics, CopiesOptions, Gone, KeptBlock, KeptCursor, KeptPage, LetGo, Lost,
    OpenCopiesError, PinnedCopies, block_id,
};
pub use decisions::Decisions;
pub use fair::{DiskQueues, Lane, Turn};
pub use flash::Flash;
pub use hot::{
    AppendError, Appended, Chunk, CompactionSettings, CompactionStatus, Hold, HotMetrics, HotOptions,
    HotTier, Leaving, OpenError, Order, Payload, Placement, PlacingSettings, PlacingStatus, ReadError,
    RecoverError, SegmentPin,
};
pub use memory::{MemoryMetrics, MemoryTier};
pub use policy::Keeper;
pub use tiers::Tiers;
