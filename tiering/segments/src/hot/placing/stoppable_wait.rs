//! Waits of background workers, which end early when the tier stops.

use mlgw_common::time::Instant;
use std::io;
use std::time::Duration;

use crate::hot::HotTierInner;
use crate::hot::compaction::MoveStepError;

/// Interval at which a wait checks for a shutdown.
pub(in crate::hot) const STOP_CHECK: Duration = Duration::from_millis(50);

/// Waits for `work`; drops it if the tier stops.
pub(in crate::hot) async fn until_stopped<T>(
    inner: &HotTierInner,
    work: impl Future<Output = Result<T, MoveStepError>>,
) -> Result<T, MoveStepError> {
    let mut work = std::pin::pin!(work);
    loop {
        if inner.compaction.is_stopped() {
            return Err(MoveStepError::Stopping);
        }
        if let Ok(done) = mlgw_common::time::timeout(STOP_CHECK, &mut work).await {
            return done;
        }
    }
}

/// Waits until `due`; fails if the tier stops.
pub(in crate::hot) fn wait(inner: &HotTierInner, due: Instant) -> io::Result<()> {
    loop {
        if inner.compaction.is_stopped() {
            return Err(io::Error::other("the tier is stopping"));
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        mlgw_common::time::block_for(left.min(STOP_CHECK));
    }
}
