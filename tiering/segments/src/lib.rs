//! The local store: segments, caches in memory, and the scheduling of local disks.
//!
//! Bytes are appended to segment files of a hot and a cold tier, or stored as objects at an upstream
//! ([`hot`]); [`memory`] caches small chunks that were read recently; [`fair`] schedules the reads of a disk,
//! [`flash`] limits the writes to it; [`decisions`] logs why bytes were moved. Invariants: a caller gets only
//! bytes that were verified against the checksum they were written with; data whose write was acknowledged
//! survives power loss, unless durability `os` was configured explicitly.

pub mod decisions;
pub mod fair;
pub mod flash;
pub mod hot;
pub mod memory;
pub mod state_format;
pub mod tiers;
