//! The front door: HTTP, the S3 protocol, authentication, the admin API and the command line.
//!
//! Only this crate knows of HTTP. A request is authenticated, decoded and answered here; what
//! exists is asked of the catalogue, bytes go to and come from the tiers. Nothing is kept here
//! that a power failure could lose: an answer of success is sent after both of them are durable.

pub mod access_plans;
pub mod access_traces;
pub mod admin;
pub mod audit;
pub mod auth;
pub mod body;
pub mod cli;
pub mod config;
pub mod credentials;
pub mod diary;
pub mod jobs;
mod line_file;
pub mod metrics;
pub mod policies;
pub mod program;
pub mod proofs;
pub mod query;
pub mod quota;
pub mod rehearsal;
mod rotating;
pub mod s3;
#[cfg(test)]
mod sample_status;
pub mod server;
pub mod store;
pub mod stored_objects;
mod trace_files;
pub mod writeback;
