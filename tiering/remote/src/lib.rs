//! Clients of other object stores.
//!
//! [`origin`] reads and writes the objects of others as they are, for remote-backed buckets; [`upstream`] stores
//! segments of ours in a bucket. Nothing is kept here, so a power failure changes nothing.

pub mod origin;
pub mod upstream;
