//! Keeps the rows of the system group recent on this node, also without requests.
//!
//! A request waits for a barrier if none has passed for 10 s. With those that this task passes, requests go
//! on for some seconds while the system group has no leader, and `/readyz` shows that a node cannot confirm
//! its rows. Nothing is stored.

use mlgw_common::limits::SYSTEM_ROWS_CONFIRM_MS;
use mlgw_common::time::sleep;
use mlgw_metadata::{BarrierScope, Catalogue};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(SYSTEM_ROWS_CONFIRM_MS);

/// Has the rows of the system group confirmed until the future is dropped.
pub(crate) async fn confirm_system_rows(catalogue: Catalogue) {
    loop {
        if let Err(error) = catalogue.barrier(BarrierScope::System).await {
            tracing::debug!(%error, "the rows of the system group are not confirmed");
        }
        sleep(INTERVAL).await;
    }
}
