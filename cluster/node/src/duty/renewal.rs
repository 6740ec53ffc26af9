//! Has the lease of a running term confirmed, in a task of its own: also while the term ends, so that the
//! requests in progress can be answered.

use super::{DutyLease, DutyWork, LEASE};
use mlgw_common::NodeId;
use mlgw_common::limits::DUTY_RENEW_MS;
use mlgw_common::time::{Instant, sleep_until, timeout};
use mlgw_metadata::{BarrierScope, Catalogue};
use std::sync::Arc;
use std::time::Duration;

const RENEW: Duration = Duration::from_millis(DUTY_RENEW_MS);

/// Longest time until a confirmation. A lease outlasts two that fail.
const CONFIRM_MAX: Duration = Duration::from_millis(800);

/// Pause after the begin of a confirmation that failed.
const AGAIN: Duration = Duration::from_millis(200);

/// A term whose lease is renewed.
#[derive(Clone)]
pub(super) struct DutyRenewal {
    pub(super) own: NodeId,
    pub(super) term: u64,
    pub(super) catalogue: Catalogue,
    pub(super) lease: Arc<DutyLease>,
    pub(super) work: Arc<dyn DutyWork>,
}

impl DutyRenewal {
    /// Renews the lease once a second, until the future is dropped.
    pub(super) async fn run(self) {
        loop {
            let attempted = Instant::now();
            let is_confirmed = timeout(CONFIRM_MAX, self.is_confirmed()).await.unwrap_or(false);
            if is_confirmed {
                self.extend(attempted);
            }
            sleep_until(attempted + if is_confirmed { RENEW } else { AGAIN }).await;
        }
    }

    /// Extends the lease after a confirmation that began at `attempted`.
    pub(super) fn extend(&self, attempted: Instant) {
        self.work.extend(attempted + LEASE);
        self.lease.set(Some(attempted + LEASE));
    }

    /// True if a quorum confirms that no other term has begun.
    pub(super) async fn is_confirmed(&self) -> bool {
        let is_current = self.catalogue.barrier(BarrierScope::System).await.is_ok();
        let duty = self.catalogue.duty();
        is_current && duty.node_id() == self.own && duty.term == self.term && !duty.is_over()
    }
}
