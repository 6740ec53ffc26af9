//! Crashes of the shipped binary: `kill -9`, power cuts and failing disks.
//!
//! - `sigkill`: rounds of `kill -9` at random moments under load, on one directory;
//! - `recorded`: load on a recording file system, over several lives of the server;
//! - `states`: the real recovery on what a power cut leaves of a recording;
//! - `power_loss`: a thousand such states, all of which must keep every promise;
//! - `controls`: the same with a class of syncs left out, each of which must be found;
//! - `faults`: one failing call each;
//! - `foreign`: others write at an origin meanwhile: what is read is one version, and not too old;
//! - `tiers`: `kill -9` while bytes move between tiers, stores and origins that fail now and then.

mod classes;
mod controls;
mod faults;
mod foreign;
mod power_loss;
mod recorded;
mod sigkill;
mod states;
mod tiers;

use crate::server::runtime;

/// A runtime for one test: two threads, as many as the machine of CI has cores.
/// A directory in memory where there is one: recovery is tested for what it does, not for the disk's speed.
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
