//! Fuzz targets for every decoder of bytes that mlgw did not just write itself.
//!
//! The targets link the pure packages. Six decoders that belong to larger packages are compiled from
//! their own files. No server, store or RocksDB is linked. A target accepts any bytes. It fails if a
//! decoder panics, or if a property that the module of the target states does not hold.
#![allow(
    dead_code,
    unused_imports,
    unfulfilled_lint_expectations,
    reason = "decoders without their users, and without the lints of their crates"
)]

#[path = "../../gateway/config/src/lib.rs"]
pub mod config;

#[path = "../../gateway/listener/src/forwarded_for.rs"]
pub mod forwarded_for;

#[path = "../../gateway/listener/src/proxy_header.rs"]
pub mod proxy_header;

#[path = "../../tiering/cache/src/writeback/record.rs"]
pub mod write_back_record;

#[path = "../../cluster/node/src/join_wire.rs"]
mod join_wire;

pub mod listing_token;

mod input;
mod log;
mod signing;
pub mod targets;
