//! The local store: where mlgw keeps bytes on its own disks.
//!
//! Bytes are appended to segment files of a hot and a cold tier, or lie in objects of an upstream ([`hot`]);
//! [`memory`] holds small bodies that were read lately; [`fair`] orders the reads of a disk, [`flash`] limits
//! what is written to it; [`decisions`] logs why bytes were moved. Always: a caller gets bytes that were verified
//! against the checksum they were written with, and what was answered as stored survives power loss, unless
//! durability `os` was chosen by name.

pub mod decisions;
pub mod fair;
pub mod flash;
pub mod hot;
pub mod memory;
pub mod state_format;
pub mod tiers;
