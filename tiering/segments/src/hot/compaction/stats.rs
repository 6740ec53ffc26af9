//! Gathers the state of the segments that this node owns, from which compaction, moves between tiers and
//! waits for space choose.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mlgw_common::ids::NodeId;
use mlgw_formats::schema::{SegmentRecord, SegmentState};
use mlgw_metadata::{Catalogue, SegmentUsages};

use super::choose::SegmentStats;
use super::moving::{MoveStepError, blocking};
use crate::hot::HotTierInner;

/// Returns the state of every segment that this node owns, in all tiers. Only the owner compacts a segment,
/// moves it and removes its record. A segment is left out while a group that may refer to it has no member
/// here: this node is outside of the segment's set, and another node takes it over.
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
        let facts = segments.iter().zip(held).filter_map(|(segment, in_flight)| {
            let open_bytes = holds.synced_bytes(segment.segment_id()).unwrap_or(0);
            stats_of(segment, of.node, &usages, OpenFacts { open_bytes, in_flight }).transpose()
        });
        facts.collect::<Result<Vec<_>, MoveStepError>>()
    })
    .await?;
    let garbage: u64 = facts.iter().map(SegmentStats::dead_bytes).sum();
    inner.compaction.garbage_bytes.store(garbage, Relaxed);
    Ok(facts)
}

/// Facts about a segment that only this process has.
#[derive(Clone, Copy, Debug)]
struct OpenFacts {
    /// Synced length, if it is open.
    open_bytes: u64,
    /// True if an unfinished request appended to it or may do so.
    in_flight: bool,
}

/// Returns the state of a segment; `None` if not all groups that may refer to it are here.
fn stats_of(
    segment: &SegmentRecord,
    own: NodeId,
    usages: &SegmentUsages,
    OpenFacts { open_bytes, in_flight }: OpenFacts,
) -> Result<Option<SegmentStats>, MoveStepError> {
    let id = segment.segment_id();
    let Some(usage) = usages.total(id, segment.set) else { return Ok(None) };
    let sealed = segment.state() == SegmentState::Sealed;
    Ok(Some(SegmentStats {
        id,
        tier: segment.tier_for(own).map_err(io::Error::other)?,
        sealed,
        bytes: if sealed { segment.length } else { open_bytes },
        referenced_bytes: usage.bytes,
        references: usage.extents,
        in_flight,
    }))
}

#[cfg(test)]
mod tests {
    use super::{NodeId, OpenFacts, SegmentRecord, SegmentState, SegmentUsages, stats_of};
    use mlgw_common::ids::SegmentId;
    use mlgw_formats::schema::SegmentUsage;

    #[test]
    fn a_segment_without_all_groups_that_may_refer_to_it_has_no_stats() {
        let usage = SegmentUsage { bytes: 10, extents: 1, ..SegmentUsage::default() };
        let usages = SegmentUsages::new([(SegmentId(7), usage)].into(), [0, 2].into());
        let stats = |set| {
            let state = SegmentState::Sealed as i32;
            let segment = SegmentRecord { id: 7, set, state, length: 100, ..SegmentRecord::default() };
            let facts = OpenFacts { open_bytes: 0, in_flight: false };
            let stats = stats_of(&segment, NodeId(1), &usages, facts).unwrap();
            stats.map(|stats| (stats.bytes, stats.referenced_bytes, stats.references))
        };
        assert_eq!([stats(0), stats(2)], [Some((100, 10, 1)); 2]);
        assert_eq!(stats(1), None, "groups elsewhere may refer to it");
    }
}
