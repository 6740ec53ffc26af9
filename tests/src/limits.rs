//! Resource limits on a real server: a full disk, little memory, many connections, one directory.
//!
//! - `compaction`: space is reclaimed while clients write, read and stall;
//! - `disk_full`: a 256 MiB file system that is filled until writes are refused;
//! - `memory`: 512 MiB of memory under thousands of slow uploads and idle connections;
//! - `readers`: 512 MiB under thousands of clients that do not read;
//! - `pace`: a minimum transfer rate in both directions;
//! - `complete`: completing a large upload writes almost nothing;
//! - `quotas`: quotas of buckets and access keys;
//! - `lengths`: bodies without a length over HTTP/2;
//! - `one_server`: a second server on one directory is refused;
//! - `drain`: a stop is announced, and requests in flight finish before it;
//! - `huge_pages`: huge pages are turned off;
//! - `proxied`: addresses of clients behind proxies;
//! - `heads`: the maximum size of a request's head over HTTP/2;
//! - `refused`: requests that are refused while their bodies are in transit;
//! - `listeners`: many silent connections, incomplete requests, more connections than open files;
//! - `small_memory`: the minimum memory, and load within it.

mod cgroup;
mod compaction;
mod complete;
mod disk_full;
mod drain;
mod heads;
mod huge_pages;
mod lengths;
mod listeners;
mod memory;
mod one_server;
mod pace;
mod proxied;
mod quotas;
mod readers;
mod refused;
mod small_disk;
mod small_memory;

use crate::server::runtime;

/// The bucket of these tests.
const BUCKET: &str = "limits";

/// Returns a directory on the build's own disk. `/tmp` may be memory, whose pages cannot be written back
/// and are counted in no disk statistics.
fn on_disk() -> std::path::PathBuf {
    crate::server::binary().parent().expect("the binary lies in a directory").to_owned()
}
