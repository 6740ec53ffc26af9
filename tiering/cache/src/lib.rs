//! Remote-backed buckets: buckets whose objects are stored in another object store, the origin.
//!
//! [`bound`] reads and writes through to the origin, [`copies`] stores clean copies of blocks in segments,
//! [`writeback`] holds writes that the origin does not have yet, and [`policy`] drives the policy engine,
//! which decides which blocks are kept. Invariants: a clean copy may be dropped at any time; a write that was
//! acknowledged is durable here or at its origin.

pub mod bound;
pub mod copies;
pub mod policy;
pub mod writeback;
