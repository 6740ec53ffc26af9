//! Clients of other object stores.
//!
//! [`origin`] reads and writes objects that other programs own, for remote-backed buckets. [`upstream`]
//! stores segments of this gateway in a bucket of an object store. The crate keeps no state on disk, so a
//! power failure changes nothing.

pub mod origin;
pub mod upstream;
