//! Gathers the state of the segments that this node owns, from which compaction, moves between tiers and
//! waits for space choose.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mlgw_formats::schema::SegmentState;
use mlgw_metadata::Catalogue;

use super::choose::SegmentStats;
use super::moving::{MoveStepError, blocking};
use crate::hot::HotTierInner;

/// Returns the state of every segment that this node owns, in all tiers. Only the owner compacts a segment,
/// moves it and removes its record.
pub(in crate::hot) async fn segment_stats(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
) -> Result<Vec<SegmentStats>, MoveStepError> {
    let (of, catalogue) = (inner.clone(), catalogue.clone());
    let facts = blocking(move || {
        let mut segments = catalogue.segments()?;
        segments.retain(|segment| segment.is_owned_by(of.node));
        // Holds are read before usages: a hold that was dropped by then has its reference counted.
        let holds = &of.shared.segments.holds;
        let held: Vec<bool> = segments.iter().map(|segment| holds.is_held(segment.segment_id())).collect();
        let usages = catalogue.segment_usages()?;
        let facts = segments.iter().zip(held).map(|(segment, in_flight)| {
            let id = segment.segment_id();
            let usage = usages.get(&id).copied().unwrap_or_default();
            let sealed = segment.state() == SegmentState::Sealed;
            Ok(SegmentStats {
                id,
                tier: segment.tier_for(of.node).map_err(io::Error::other)?,
                sealed,
                bytes: if sealed { segment.length } else { holds.synced_bytes(id).unwrap_or(0) },
                referenced_bytes: usage.bytes,
                references: usage.extents,
                in_flight,
            })
        });
        facts.collect::<Result<Vec<_>, MoveStepError>>()
    })
    .await?;
    let garbage: u64 = facts.iter().map(SegmentStats::dead_bytes).sum();
    inner.compaction.garbage_bytes.store(garbage, Relaxed);
    Ok(facts)
}
