//! Reports of this node about itself: address, build, start, key, authorities, and whether it serves.
//!
//! A report is proposed until it is recorded. The rows keep the newest one.

use crate::authorities::{AuthorityState, HeldAuthorities};
use mlgw_common::time::{doubled_wait, sleep, timeout};
use mlgw_metadata::Catalogue;
use mlgw_metadata::catalogue::NodeReport;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Shortest and longest wait after a report that was not recorded.
const RETRY_MS_MIN: u64 = 200;
const RETRY_MS_MAX: u64 = 5_000;

/// Interval at which a recorded report is compared with the row again.
const COMPARE_INTERVAL: Duration = Duration::from_secs(30);

/// True once this node serves, and the signal of the change.
#[derive(Debug, Default)]
pub(crate) struct ServingState {
    serves: AtomicBool,
    changed: Notify,
}

impl ServingState {
    /// Records that this node serves.
    pub(crate) fn set(&self) {
        self.serves.store(true, Ordering::Release);
        self.changed.notify_one();
    }
}

/// Reports until the future is dropped. `report` has everything but [`NodeReport::is_serving`] and the
/// authorities.
pub(crate) async fn report_node(
    catalogue: Catalogue,
    report: NodeReport,
    serving: Arc<ServingState>,
    authorities: Arc<AuthorityState>,
) {
    let mut failures: u32 = 0;
    loop {
        let is_serving = serving.serves.load(Ordering::Acquire);
        let HeldAuthorities { signer: authority, trusted: trusted_authority } = authorities.get();
        let current = NodeReport { is_serving, authority, trusted_authority, ..report.clone() };
        match catalogue.report_node(current).await {
            Ok(_) => {
                failures = 0;
                // An elapsed wait is the reason to compare again.
                let _ = timeout(COMPARE_INTERVAL, changed(&serving, &authorities)).await;
            }
            Err(error) => {
                tracing::debug!(%error, "the report of this node was not recorded yet");
                failures = failures.saturating_add(1);
                sleep(doubled_wait(failures, RETRY_MS_MIN, RETRY_MS_MAX)).await;
            }
        }
    }
}

/// Completes after a change of what is reported.
async fn changed(serving: &ServingState, authorities: &AuthorityState) {
    tokio::select! {
        () = serving.changed.notified() => {}
        () = authorities.changed() => {}
    }
}
