//! Remote-backed buckets: buckets whose objects are stored in another object store, the origin.
//!
//! [`remote_backed`] reads and writes through to the origin, [`copies`] stores clean copies of blocks in
//! segments, [`writeback`] holds writes that the origin does not have yet, and [`policy_driver`] drives the
//! policy engine, which decides which blocks are kept. Invariants: a clean copy may be dropped at any time; a
//! write that was acknowledged is durable here or at its origin.

pub mod copies;
pub mod policy_driver;
pub mod remote_backed;
pub mod writeback;
