//! Black-box tests of the shipped mlgw binary: crashes, limits and clients.
//!
//! No test links an engine crate: every test starts the program that users start (`MLGW_BIN`, or the release
//! build) and speaks S3 to it, so that the shipped binary is tested. All tests are in one test binary,
//! grouped in modules:
//!
//! - `disk`, `mount`, `recording`: a FUSE file system in memory that records every change and sync;
//! - `power_cut`: the states that a power cut may leave of a recording, chosen by seed;
//! - `server`, `s3`: start, kill and stop the binary; an S3 client that never retries;
//! - `history`, `workload`, `check`: the promises made to clients, and checks that the server keeps them;
//! - `bound`, `crashes`, `datasets`, `limits`, `observability`, `policies`, `s3_commands`, `store`,
//!   `strangers`, `tiers`: the tests themselves;
//! - `stop_on_drop`: ends the threads of a test, also after a failed assertion;
//! - `steps`: tests of the test runner, with stand-ins;
//! - `deploy`: the script that makes pods the nodes of a cluster;
//! - `cluster`: several nodes, which grow out of one server, stop, fail and restart;
//! - `clients`: S3 clients written in Rust;
//! - `proxy`: a proxy before an origin that injects faults by rules; also a program, `mlgw-fault-proxy`, for
//!   benchmarks;
//! - `slow_disk`: a pass-through mount of a directory, as slow as one spindle; also a program,
//!   `mlgw-slow-disk`, for benchmarks.
//!
//! Randomness comes from `seed` alone, and every test prints the seed it ran with.

#[cfg(test)]
mod check;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod content;
#[cfg(test)]
mod crashes;
#[cfg(test)]
mod datasets;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod faulty_origin;
#[cfg(test)]
mod history;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod mount;
#[cfg(test)]
mod observability;
#[cfg(test)]
mod policies;
#[cfg(test)]
mod power_cut;
pub mod proxy;
#[cfg(test)]
mod raw;
#[cfg(test)]
mod recording;
#[cfg(test)]
mod remote_backed;
#[cfg(test)]
mod s3;
#[cfg(test)]
mod s3_commands;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "tests use all of it, except that the generator needs no proxy rules")
)]
mod seed;
#[cfg(test)]
mod server;
pub mod slow_disk;
#[cfg(test)]
mod steps;
#[cfg(test)]
mod stop_on_drop;
#[cfg(test)]
mod store;
#[cfg(test)]
mod strangers;
#[cfg(test)]
mod tiers;
#[cfg(test)]
mod workload;
