//! Where bytes come from, and that it makes no difference to them.
//!
//! - `memory`: small objects that were read, in DRAM;
//! - `cold`: whole segments on slower disks;
//! - `upstream`: whole segments in object stores of others.

mod cold;
mod memory;
mod upstream;

use tokio::runtime::Runtime;

/// The bucket of these tests.
const BUCKET: &str = "tiered";

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}
