//! Limits for real: a full disk, little memory, many connections, one directory.
//!
//! - `compaction`: space comes back while clients write, read and dawdle;
//! - `disk_full`: a 256 MiB file system filled to refusal;
//! - `memory`: 512 MiB of memory under thousands of slow uploads and idle connections;
//! - `readers`: 512 MiB under thousands of clients that do not read;
//! - `pace`: a minimum rate, both ways;
//! - `complete`: completing a large upload writes almost nothing;
//! - `quotas`: what buckets and access keys may hold;
//! - `lengths`: bodies that end with their stream, over HTTP/2;
//! - `one_server`: a second server on one directory is refused;
//! - `drain`: requests in flight finish before a stop;
//! - `heads`: how large the head of a request may be, over HTTP/2;
//! - `refused`: requests refused while their bodies are under way;
//! - `listeners`: silent crowds, half-sent requests, more connections than files;
//! - `small_memory`: the least memory, and load within it.

mod cgroup;
mod compaction;
mod complete;
mod disk_full;
mod drain;
mod heads;
mod lengths;
mod listeners;
mod memory;
mod one_server;
mod pace;
mod quotas;
mod readers;
mod refused;
mod small_disk;
mod small_memory;

use crate::server::runtime;

/// The bucket of these tests.
const BUCKET: &str = "limits";

/// The build's own disk: `/tmp` may be memory, whose pages cannot be written back and count no bytes.
fn on_disk() -> std::path::PathBuf {
    crate::server::binary().parent().expect("the binary lies in a directory").to_owned()
}
