//! What unit tests of several packages share; no part of the program links it.
//!
//! [`printed`] compares pages of the repository with what tables print, [`sample_status`] is the status of a
//! server with nothing wrong, [`signer`] signs requests with the crate that the Rust SDK signs with.

pub mod printed;
pub mod sample_status;
pub mod signer;
