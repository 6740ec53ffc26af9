//! Bytes of a dataset by node and tier, from the replicas of its segments.
//!
//! Pure: the caller reads the records. The record of a segment is read once per count, as long as the dataset
//! has no more segments than are kept. Suspect replicas are left out, because their node may have to read the
//! bytes from another one. Nothing is persisted.

use mlgw_common::{NodeId, SegmentId, SegmentTier};
use mlgw_formats::schema::{BadRecord, Replica, SegmentRecord};
use mlgw_metadata::ReadError;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// Segments whose replicas are kept in memory during a count: 4 MiB at some 128 bytes each.
const SEGMENTS_KEPT_MAX: usize = 1 << 15;

/// Bytes of a dataset by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::jobs) struct NodeCensus {
    /// Bytes on each node, by tier. Bytes with several replicas are counted on each node.
    pub(in crate::jobs) tiers: BTreeMap<NodeId, BTreeMap<SegmentTier, u64>>,
    /// Bytes in the hot tier of at least one node.
    pub(in crate::jobs) hot_bytes: u64,
    kept: HashMap<SegmentId, IntactReplicas>,
}

impl NodeCensus {
    /// Counts bytes in a segment. `read` returns the record of the segment.
    ///
    /// # Errors
    /// Those of `read`; if a replica is in a tier that this version does not know.
    pub(in crate::jobs) fn add(
        &mut self,
        segment: SegmentId,
        bytes: u64,
        read: impl FnOnce() -> Result<Option<SegmentRecord>, ReadError>,
    ) -> Result<(), ReadError> {
        if self.kept.len() >= SEGMENTS_KEPT_MAX && !self.kept.contains_key(&segment) {
            self.kept.clear();
        }
        let replicas = match self.kept.entry(segment) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let replicas = IntactReplicas::of(read()?.as_ref());
                new.insert(replicas.map_err(|bad| ReadError::Store(bad.to_string()))?)
            }
        };
        for (node, tier) in &replicas.tiers {
            *self.tiers.entry(*node).or_default().entry(*tier).or_default() += bytes;
        }
        if replicas.is_hot {
            self.hot_bytes += bytes;
        }
        Ok(())
    }
}

/// Intact replicas of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IntactReplicas {
    /// Each node with such a replica, and its tier there.
    tiers: Vec<(NodeId, SegmentTier)>,
    /// True if the bytes are in the hot tier of a node.
    is_hot: bool,
}

impl IntactReplicas {
    /// Returns the intact replicas that a record lists.
    fn of(record: Option<&SegmentRecord>) -> Result<Self, BadRecord> {
        // A segment without a record was emptied after its extent was read: the bytes are in other segments
        // of the hot tier. The next count has their nodes.
        let Some(record) = record else { return Ok(Self { tiers: Vec::new(), is_hot: true }) };
        let located = |replica: &Replica| replica.tier().map(|tier| (NodeId(replica.node), tier));
        let intact = record.replicas.iter().filter(|replica| !replica.is_suspect);
        let tiers = intact.map(located).collect::<Result<Vec<_>, BadRecord>>()?;
        let is_hot = tiers.iter().any(|(_, tier)| *tier == SegmentTier::Hot);
        Ok(Self { tiers, is_hot })
    }
}

#[cfg(test)]
mod tests {
    use super::{NodeCensus, SEGMENTS_KEPT_MAX};
    use mlgw_common::{NodeId, SegmentId, SegmentTier};
    use mlgw_formats::schema::{Replica, SegmentRecord};
    use mlgw_metadata::ReadError;

    fn replica(node: u64, tier: SegmentTier) -> Replica {
        Replica { node, tier: tier.number(), ..Replica::default() }
    }

    fn record(replicas: Vec<Replica>) -> SegmentRecord {
        SegmentRecord { replicas, ..SegmentRecord::default() }
    }

    fn add(census: &mut NodeCensus, segment: u64, bytes: u64, replicas: Vec<Replica>) {
        census.add(SegmentId(segment), bytes, || Ok(Some(record(replicas)))).unwrap();
    }

    /// Returns the bytes of a node in the hot, the cold and the upstream tier; `None` if it has none.
    fn bytes_on(census: &NodeCensus, node: u64) -> [Option<u64>; 3] {
        let tiers = census.tiers.get(&NodeId(node));
        SegmentTier::ALL.map(|tier| tiers.and_then(|tiers| tiers.get(&tier)).copied())
    }

    #[test]
    fn bytes_are_counted_on_every_node_with_a_replica() {
        let mut census = NodeCensus::default();
        let on = |nodes: &[u64]| nodes.iter().map(|node| replica(*node, SegmentTier::Hot)).collect();
        add(&mut census, 1, 100, on(&[1, 2, 3]));
        add(&mut census, 2, 20, on(&[2, 4]));
        add(&mut census, 3, 3, vec![replica(3, SegmentTier::Cold), replica(1, SegmentTier::Hot)]);
        assert_eq!(bytes_on(&census, 1), [Some(103), None, None]);
        assert_eq!(bytes_on(&census, 2), [Some(120), None, None]);
        assert_eq!(bytes_on(&census, 3), [Some(100), Some(3), None]);
        assert_eq!(bytes_on(&census, 4), [Some(20), None, None]);
        assert_eq!(bytes_on(&census, 5), [None; 3]);
        assert_eq!(census.hot_bytes, 123, "each byte once, also if its owner has it in a slower tier");
    }

    #[test]
    fn bytes_below_the_hot_tier_of_every_node_are_not_hot() {
        let mut census = NodeCensus::default();
        add(&mut census, 1, 7, vec![replica(1, SegmentTier::Cold), replica(2, SegmentTier::Cold)]);
        add(&mut census, 2, 5, vec![replica(1, SegmentTier::Upstream)]);
        assert_eq!(bytes_on(&census, 1), [None, Some(7), Some(5)]);
        assert_eq!(bytes_on(&census, 2), [None, Some(7), None]);
        assert_eq!(census.hot_bytes, 0);
    }

    #[test]
    fn suspect_replicas_are_left_out() {
        let mut census = NodeCensus::default();
        let suspect = |node| Replica { is_suspect: true, ..replica(node, SegmentTier::Hot) };
        add(&mut census, 1, 10, vec![suspect(1), replica(2, SegmentTier::Hot)]);
        add(&mut census, 2, 4, vec![suspect(1), replica(2, SegmentTier::Cold)]);
        assert_eq!(bytes_on(&census, 1), [None; 3]);
        assert_eq!(bytes_on(&census, 2), [Some(10), Some(4), None]);
        assert_eq!(census.hot_bytes, 10);
    }

    #[test]
    fn a_record_is_read_once_however_many_extents_are_in_the_segment() {
        let (mut census, mut reads) = (NodeCensus::default(), 0);
        for _ in 0..1000 {
            let read = || {
                reads += 1;
                Ok(Some(record(vec![replica(2, SegmentTier::Hot)])))
            };
            census.add(SegmentId(9), 3, read).unwrap();
        }
        assert_eq!((reads, census.hot_bytes, bytes_on(&census, 2)[0]), (1, 3000, Some(3000)));
    }

    #[test]
    fn a_limited_number_of_segments_is_kept_and_all_are_counted() {
        let mut census = NodeCensus::default();
        let segments = SEGMENTS_KEPT_MAX as u64 + 10;
        for segment in 0..segments {
            add(&mut census, segment, 1, vec![replica(1, SegmentTier::Hot)]);
            assert!(census.kept.len() <= SEGMENTS_KEPT_MAX);
        }
        assert_eq!((census.hot_bytes, bytes_on(&census, 1)[0]), (segments, Some(segments)));
    }

    #[test]
    fn bytes_whose_segment_was_emptied_meanwhile_are_hot_on_an_unknown_node() {
        let mut census = NodeCensus::default();
        census.add(SegmentId(1), 6, || Ok(None)).unwrap();
        assert_eq!((census.hot_bytes, census.tiers.len()), (6, 0));
    }

    #[test]
    fn a_record_that_cannot_be_read_is_an_error_and_counts_nothing() {
        let mut census = NodeCensus::default();
        let failed = Err(ReadError::Store("gone".to_owned()));
        assert_eq!(census.add(SegmentId(1), 6, || failed.clone()), failed.map(drop));
        let newer = Replica { tier: 9, ..replica(2, SegmentTier::Hot) };
        let replicas = vec![replica(1, SegmentTier::Hot), newer];
        let error = census.add(SegmentId(1), 6, || Ok(Some(record(replicas)))).unwrap_err();
        assert!(error.to_string().contains("tier number 9"), "{error}");
        assert_eq!(census, NodeCensus::default());
    }
}
