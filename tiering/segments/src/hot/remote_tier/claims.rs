//! Claims the prefixes at upstreams after a start: at the upstream that segments are spilled to, and at those
//! that hold segments or objects to remove. An upstream that serves only as an origin of remote-backed
//! buckets gets no ownership mark.
//!
//! The start does not wait for the claims. Until a prefix is claimed no object is deleted there; reads do not
//! depend on it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::super::HotTierInner;
use super::super::compaction::Compaction;
use super::super::map::MapError;
use super::super::open_error::HotOpenError;
use super::super::options::Upstreams;
use super::super::recovery::RecoveryError;
use super::{Leftovers, RemoteTier};
use mlgw_common::SegmentTier;
use mlgw_remote::upstream::PrefixOwnership;

/// Wait after the first failed attempt; doubled after each further one.
const WAIT: Duration = Duration::from_secs(1);
/// Interval at which a wait checks for a shutdown.
const STOP_CHECK: Duration = Duration::from_millis(50);
/// The longest wait. An attempt on an unreachable upstream costs a few requests.
const WAIT_MAX: Duration = Duration::from_mins(1);

impl RemoteTier {
    /// Names of the configured upstreams in which this server stores or deletes objects.
    fn in_use(&self, leftovers: &Leftovers) -> Result<BTreeSet<String>, MapError> {
        let records = self.map.records_outside_hot()?;
        let places = records.iter().filter_map(|record| record.replica_of(self.node));
        let named = places
            .filter(|place| place.tier() == Ok(SegmentTier::Upstream))
            .map(|place| place.location.as_str());
        let names = named.chain(leftovers.upstreams()).chain(self.spill_to.as_deref());
        Ok(names.filter(|name| self.upstreams.contains_key(*name)).map(str::to_owned).collect())
    }
}

impl HotTierInner {
    /// Starts to claim the prefixes in use. Must be called within a tokio runtime.
    pub(in crate::hot) async fn claim_prefixes(&self) -> Result<(), HotOpenError> {
        let names = self.remote_tier.in_use(&*self.leftovers.lock().await);
        let names = names.map_err(RecoveryError::Map)?;
        if !names.is_empty() {
            tokio::spawn(claim_all(self.remote_tier.upstreams().clone(), names, self.compaction.clone()));
        }
        Ok(())
    }
}

/// Claims each prefix until its mark was compared, or the tier stops.
async fn claim_all(upstreams: Upstreams, mut names: BTreeSet<String>, compaction: Arc<Compaction>) {
    let mut wait = WAIT;
    loop {
        let mut left = BTreeSet::new();
        for name in names {
            let Some(upstream) = upstreams.get(&name) else { continue };
            if !matches!(upstream.claim().await, Ok(ownership) if ownership != PrefixOwnership::Damaged) {
                left.insert(name);
            }
        }
        if left.is_empty() {
            return;
        }
        names = left;
        let until = mlgw_common::time::Instant::now() + wait;
        while mlgw_common::time::Instant::now() < until {
            if compaction.is_stopped() {
                return;
            }
            mlgw_common::time::sleep(STOP_CHECK).await;
        }
        wait = WAIT_MAX.min(wait * 2);
    }
}
