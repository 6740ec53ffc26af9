//! Tests of the proxy between clients and minimal origins, and before a real mlgw.
//!
//! - `passing`: messages that match no rule pass unchanged;
//! - `faults`: each fault applies exactly, to the byte;
//! - `shaping`: delay and rates, within bounds that also hold on a busy machine;
//! - `controlling`: counters, log and the control port;
//! - `before_mlgw`: signatures and uploads stay valid through the proxy.

use mlgw_common::time::Instant;
use std::time::Duration;

use crate::server::runtime;

mod before_mlgw;
mod callers;
mod controlling;
mod faults;
mod origin;
mod passing;
mod shaping;

/// Longest wait for something that happens immediately. Generous: it is reached only if something is broken.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Waits until the condition is true.
async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_MAX, "not in time: {what}");
        mlgw_common::time::sleep(Duration::from_millis(2)).await;
    }
}
