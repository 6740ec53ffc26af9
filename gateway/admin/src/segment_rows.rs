//! Rows of all segments, read once for all figures of a scrape or of a status.
//!
//! Their number grows with the stored bytes, so a scrape reads them a single time and keeps nothing of them.

use mlgw_common::{NodeId, SegmentTier};
use mlgw_formats::schema::SegmentRecord;
use mlgw_metadata::{Catalogue, ReadError, SegmentUsages};

/// Records and usages of all segments.
#[derive(Debug, Default)]
pub(super) struct SegmentRows {
    /// Records by id.
    pub(super) records: Vec<SegmentRecord>,
    /// References to each segment.
    pub(super) usages: SegmentUsages,
}

impl SegmentRows {
    /// Reads all rows. Blocks the calling thread.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(super) fn read(catalogue: &Catalogue) -> Result<Self, ReadError> {
        Ok(Self { records: catalogue.segments()?, usages: catalogue.segment_usages()? })
    }

    /// Returns the bytes of segments that the node has in upstreams.
    pub(super) fn upstream_bytes(&self, node: NodeId) -> u64 {
        let there = self.records.iter().filter(|segment| segment.tier_for(node) == Ok(SegmentTier::Upstream));
        there.map(|segment| segment.length).sum()
    }

    /// Returns the referenced bytes of segments in the hot tier of a node. Other segments are in another
    /// tier, or on other nodes alone. All bytes of a segment count while a group that may refer to it has no
    /// member on this node.
    pub(super) fn referenced_here(&self, node: NodeId) -> u64 {
        let is_here = |segment: &&SegmentRecord| {
            segment.replica_of(node).is_some_and(|replica| replica.tier() == Ok(SegmentTier::Hot))
        };
        let here = self.records.iter().filter(is_here);
        let used = |segment: &SegmentRecord| {
            let usage = self.usages.total(segment.segment_id(), segment.set);
            usage.map_or(segment.length, |usage| usage.bytes)
        };
        here.map(used).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeId, SegmentRecord, SegmentRows, SegmentTier, SegmentUsages};
    use mlgw_common::SegmentId;
    use mlgw_formats::schema::{Replica, SegmentUsage};

    #[test]
    fn only_segments_in_the_hot_tier_of_the_node_are_referenced_there() {
        let segment = |id, replicas: &[(u64, SegmentTier)]| {
            let on = |(node, tier): &(u64, SegmentTier)| Replica {
                node: *node,
                tier: tier.number(),
                ..Replica::default()
            };
            SegmentRecord { id, replicas: replicas.iter().map(on).collect(), ..SegmentRecord::default() }
        };
        let records = vec![
            segment(1, &[(1, SegmentTier::Hot), (2, SegmentTier::Hot)]),
            segment(2, &[(1, SegmentTier::Hot)]),
            segment(3, &[(1, SegmentTier::Hot), (2, SegmentTier::Cold)]),
            segment(4, &[(2, SegmentTier::Hot)]),
        ];
        let usage = |(id, bytes)| (SegmentId(id), SegmentUsage { bytes, ..SegmentUsage::default() });
        let known = [(1, 10), (2, 100), (3, 1_000)].map(usage).into();
        let mut rows = SegmentRows { records, usages: SegmentUsages::new(known, [0].into()) };
        assert_eq!(rows.referenced_here(NodeId(1)), 1_110);
        assert_eq!(rows.referenced_here(NodeId(2)), 10, "nothing refers to segment 4");
        assert_eq!(rows.referenced_here(NodeId(3)), 0);
        let other_set = SegmentRecord { set: 5, length: 7_000, ..rows.records[0].clone() };
        rows.records.push(SegmentRecord { id: 9, ..other_set });
        assert_eq!(rows.referenced_here(NodeId(1)), 8_110, "how much of segment 9 is garbage is not known");
    }
}
