//! Remote-backed buckets: buckets whose objects are in another object store, their origin.
//!
//! [`bound`] reads and writes through to the origin, [`copies`] keeps clean copies of blocks in segments,
//! [`writeback`] holds writes that the origin does not have yet, and [`policy`] drives the policy engine, which
//! decides what is kept. Always: a clean copy may be dropped at any time; a write that was acknowledged is durable
//! here or at its origin.

pub mod bound;
pub mod copies;
pub mod policy;
pub mod writeback;
