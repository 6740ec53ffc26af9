//! References to all segments, summed over the object groups that have a member on this node.
//!
//! Once there are sets, a node need not have a member of every group. The sum of a segment is then its usage
//! only if the node has all groups that may refer to segments of its set. For other segments the sum is a
//! lower bound. Nothing is stored here.

use super::Catalogue;
use crate::store::state::StateDb;
use crate::store_error::{ReadError, StoreError};
use crate::view::RowReader as _;
use mlgw_common::SegmentId;
use mlgw_formats::key::Family;
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::usage::segment_key_of;
use mlgw_formats::schema::{SegmentUsage, decode};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Counter rows that are read at a time.
const USAGE_ROWS: usize = 4096;

/// References to segments from the groups that have a member on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentUsages {
    known: HashMap<SegmentId, SegmentUsage>,
    complete: BTreeSet<u32>,
}

impl SegmentUsages {
    /// Returns the usages `known` from the groups here. All groups that may refer to segments of the sets
    /// `complete` are among them.
    #[must_use]
    pub const fn new(known: HashMap<SegmentId, SegmentUsage>, complete: BTreeSet<u32>) -> Self {
        Self { known, complete }
    }

    /// Usage of a segment of a set, over all groups. `None` if a group that may refer to it has no member on
    /// this node: how much of the segment is referenced is not known here.
    #[must_use]
    pub fn total(&self, segment: SegmentId, set: u32) -> Option<SegmentUsage> {
        self.complete.contains(&set).then(|| self.known(segment))
    }

    /// Usage of a segment over the groups here. Other groups may refer to it too.
    #[must_use]
    pub fn known(&self, segment: SegmentId) -> SegmentUsage {
        self.known.get(&segment).copied().unwrap_or_default()
    }

    /// Usages over the groups here, of the segments that these refer to or have fenced, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentId, &SegmentUsage)> {
        self.known.iter().map(|(segment, usage)| (*segment, usage))
    }
}

impl Catalogue {
    /// References to all segments from the groups that have a member on this node. Reads a row per segment
    /// and group. Blocks the calling thread.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn segment_usages(&self) -> Result<SegmentUsages, ReadError> {
        let inner = &self.inner;
        let groups = inner.object_groups().into_iter();
        let states: BTreeMap<u32, Arc<StateDb>> =
            groups.filter_map(|id| Some((id, inner.groups.get(id)?.state()))).collect();
        let sets = self.sets();
        let sets = sets.iter().map(|set| set.id).chain([FIRST_SET]);
        let is_complete = |set: &u32| inner.referrers(*set).iter().all(|group| states.contains_key(group));
        let complete = sets.filter(is_complete).collect();
        let mut known: HashMap<SegmentId, SegmentUsage> = HashMap::new();
        for state in states.values() {
            each_usage(state, &mut |id, share| known.entry(id).or_default().add(share))?;
        }
        Ok(SegmentUsages { known, complete })
    }
}

/// Calls `each` with every segment to which a group refers, and its usage in the group.
pub(super) fn each_usage(
    state: &StateDb,
    each: &mut dyn FnMut(SegmentId, &SegmentUsage),
) -> Result<(), StoreError> {
    let mut from = Family::SegmentUsage.start();
    loop {
        let rows = state.range(&from, &Family::SegmentUsage.end(), USAGE_ROWS)?;
        let Some((last, _)) = rows.last() else { return Ok(()) };
        from = [last.as_slice(), &[0]].concat();
        for (row, value) in rows {
            each(segment_key_of(&row)?, &decode(&value)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CatalogueOptions;
    use super::super::testing::{bucket, options};
    use super::{Catalogue, FIRST_SET, SegmentId, SegmentUsage};
    use mlgw_common::NodeId;
    use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
    use mlgw_formats::command::{Change, Command, PutPartition};

    /// All groups have keys. Groups 1 and 2 are in set 1, and group 2 then moves to set 2.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn usages_are_known_of_the_sets_all_of_whose_groups_are_here() {
        let dir = tempfile::tempdir().unwrap();
        let options = CatalogueOptions { groups: 4, ..options(dir.path()) };
        let catalogue = Catalogue::open(options).await.unwrap();
        catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
        let bucket_id = bucket(&catalogue, "data").await.id;
        for group in 1..4 {
            let put = PutPartition { bucket_id, key: group.to_string().into_bytes(), group };
            catalogue.propose(Command::from(Change::PutPartition(put))).await.unwrap();
        }
        for set in 0..4 {
            catalogue.put_set(set, &[NodeId::SINGLE], 0).await.unwrap();
        }
        for (group, set, changes) in [(1, 1, 0), (2, 1, 0), (2, 2, 1), (3, 3, 0)] {
            catalogue.assign_group(group, set, changes).await.unwrap();
        }
        let known = |catalogue: &Catalogue| {
            let usages = catalogue.segment_usages().unwrap();
            [FIRST_SET, 1, 2, 3, 9].map(|set| usages.total(SegmentId(7), set).is_some())
        };
        assert_eq!(known(&catalogue), [true, true, true, true, false], "there is no set 9");
        let first = catalogue.inner.groups.remove(1).unwrap();
        assert_eq!(known(&catalogue), [false, false, true, true, false]);
        let second = catalogue.inner.groups.remove(2).unwrap();
        assert_eq!(known(&catalogue), [false, false, false, true, false]);
        assert_eq!(catalogue.segment_usages().unwrap().known(SegmentId(7)), SegmentUsage::default());
        first.shutdown().await.unwrap();
        second.shutdown().await.unwrap();
        catalogue.shutdown().await;
    }
}
