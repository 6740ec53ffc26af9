//! Objects at upstreams that no record may name: added to the leftovers before a step that may orphan them,
//! and removed once no record names them.
//!
//! An interrupted sweep is repeated: an object stays listed until it is removed or a record names it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mlgw_metadata::Catalogue;

use crate::hot::HotTierInner;
use crate::hot::claims::ClaimOwner;
use crate::hot::compaction::{MoveStepError, blocking};
use mlgw_remote::upstream::ObjectId;

/// Adds an object to the leftovers, before it is stored or its record stops naming it.
pub(super) async fn add_leftover(
    inner: &Arc<HotTierInner>,
    upstream: String,
    id: ObjectId,
) -> Result<(), MoveStepError> {
    let mut leftovers = inner.leftovers.clone().lock_owned().await;
    blocking(move || Ok(leftovers.add(&upstream, id)?)).await
}

/// Removes objects at upstreams that no record names, as far as upstreams are reachable, except those of
/// segments claimed by another worker than `by`.
pub(in crate::hot) async fn sweep_objects(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    by: ClaimOwner,
) -> Result<(), MoveStepError> {
    let mut leftovers = inner.leftovers.lock().await;
    if leftovers.is_empty() || inner.pins.has_global_pin() {
        return Ok(());
    }
    let settles = catalogue.clone();
    blocking(move || Ok(settles.sync_log()?)).await?;
    let segments = &inner.shared.segments;
    let in_use = |segment| inner.claims.is_claimed_by_other(segment, by);
    leftovers.sweep(&*segments.map, inner.remote_tier.upstreams(), segments.clock.now(), &in_use).await?;
    inner.placing.leftover_objects.store(leftovers.len() as u64, Relaxed);
    Ok(())
}
