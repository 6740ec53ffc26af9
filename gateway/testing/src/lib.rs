//! Helpers of unit tests of several packages. No part of the program links them.
//!
//! [`printed`] compares pages of the repository with the text generated from tables, [`sample_status`] is the
//! status of a healthy server, [`signer`] signs requests with the crate that the Rust SDK signs with.

pub mod printed;
pub mod sample_status;
pub mod signer;
