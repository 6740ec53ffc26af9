//! The proxy between clients and origins of a few lines, and before a real mlgw.
//!
//! - `passing`: what no rule touches passes as it is;
//! - `faults`: each fault does what it says, to the byte;
//! - `shaping`: delay and rates, by bounds that a busy machine keeps too;
//! - `controlling`: counters, log and the control port;
//! - `before_mlgw`: signatures and uploads survive it.

use std::time::{Duration, Instant};

use crate::server::runtime;

mod before_mlgw;
mod callers;
mod controlling;
mod faults;
mod origin;
mod passing;
mod shaping;

/// Longest wait for something that happens at once. Generous: it is met only when something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until it is so.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
