//! Crashes of the shipped binary: `kill -9`, power cuts and failing disks.
//!
//! - `sigkill`: rounds of `kill -9` at random moments under load, on one directory;
//! - `recorded`: load on a recording file system, over several lives of the server;
//! - `states`: the real recovery on the states that a power cut leaves of a recording;
//! - `power_loss`: a thousand such states, and every promise must be kept in each;
//! - `controls`: the same with one class of syncs left out; each omission must be detected;
//! - `dividing`: power cuts during `mlgw cluster init`: the old server or the first node of a cluster;
//! - `faults`: one failing call per test;
//! - `foreign`: other clients write at an origin meanwhile: each read returns one version, at most as old as
//!   the TTL allows;
//! - `tiers`: `kill -9` while bytes move between tiers, upstreams and origins that fail now and then.

mod classes;
mod controls;
mod dividing;
mod faults;
mod foreign;
mod power_loss;
mod recorded;
mod sigkill;
mod states;
mod tiers;

use crate::server::runtime;

/// A directory in memory (`/dev/shm`) if there is one: the tests check the result of recovery, not the speed
/// of the disk.
pub(crate) fn directory_in_memory() -> tempfile::TempDir {
    let shared = std::path::Path::new("/dev/shm");
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("mlgw-state");
        builder
    };
    let made = if shared.is_dir() { builder().tempdir_in(shared) } else { builder().tempdir() };
    made.expect("a directory")
}
