//! The segment map of production: segments in the catalogue.

use mlgw_common::ids::{BucketId, NodeId, SegmentId};
use mlgw_common::{Clock, ObjectKey, SegmentTier, Timestamp};
use mlgw_formats::cluster_version::REPLICATION_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, CreateSegment, Reject, Reply};
use mlgw_formats::schema::{Replica, SegmentClass, SegmentRecord, SegmentState};
use mlgw_metadata::{Catalogue, ProposeError};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::map::{BoxFuture, MapError, NewSegment, OpenSegment, SegmentLocation, SegmentMap};

/// The segments of one node in the catalogue.
pub(super) struct CatalogueMap {
    pub(super) catalogue: Catalogue,
    pub(super) node: NodeId,
    /// Name of the segment directory.
    pub(super) location: String,
    pub(super) clock: Arc<dyn Clock>,
}

impl SegmentMap for CatalogueMap {
    fn create(
        &self,
        class: SegmentClass,
        set: u32,
        followers: Vec<NodeId>,
        write_quorum: u32,
    ) -> BoxFuture<'_, Result<NewSegment, MapError>> {
        Box::pin(async move {
            let follower = |node: &NodeId| Replica {
                node: node.0,
                location: self.location.clone(),
                ..Replica::default()
            };
            let command = Command::from(Change::CreateSegment(CreateSegment {
                class: class as i32,
                node: self.node.0,
                location: self.location.clone(),
                created_ms: self.clock.now().as_millis(),
                stamp: random_stamp()?,
                followers: followers.iter().map(follower).collect(),
                write_quorum,
                set,
            }));
            match self.catalogue.propose(command).await? {
                Reply::Segment(made) => Ok(new_segment(&made)),
                other => Err(MapError::Refused(format!("unexpected reply {other:?}"))),
            }
        })
    }

    fn set_for(&self, bucket: BucketId, key: &ObjectKey) -> Option<u32> {
        self.catalogue.set_for(self.node, bucket, key)
    }

    fn may_refer_to(&self, bucket: BucketId, key: &ObjectKey, set: u32) -> bool {
        self.catalogue.may_refer_to(bucket, key, set)
    }

    fn own_sets(&self) -> Option<BTreeSet<u32>> {
        self.catalogue.sets_of(self.node)
    }

    fn seal(
        &self,
        id: SegmentId,
        length: u64,
        replicas: Vec<Replica>,
    ) -> BoxFuture<'_, Result<(), MapError>> {
        Box::pin(async move { Ok(self.catalogue.seal_segment(id, length, replicas).await.map(drop)?) })
    }

    fn mark(&self, id: SegmentId, length: u64) -> BoxFuture<'_, Result<(), MapError>> {
        Box::pin(async move { Ok(self.catalogue.mark_segment(id, length).await?) })
    }

    fn is_replicated(&self) -> bool {
        self.catalogue.cluster_version() >= REPLICATION_CLUSTER_VERSION
    }

    fn open_segments(&self) -> Result<Vec<OpenSegment>, MapError> {
        let segments = self.catalogue.segments()?;
        let owned = segments.iter().filter(|segment| {
            let is_hot = |replica: &Replica| replica.tier() == Ok(SegmentTier::Hot);
            segment.state() == SegmentState::Open
                && segment.replicas.len() == 1
                && segment.replica_of(self.node).is_some_and(is_hot)
        });
        Ok(owned
            .map(|segment| OpenSegment {
                id: segment.segment_id(),
                seed: segment.seed(),
                created: Timestamp(segment.created_ms),
                marked: segment.marked,
            })
            .collect())
    }

    fn records_outside_hot(&self) -> Result<Vec<SegmentRecord>, MapError> {
        let mut segments = self.catalogue.segments()?;
        segments.retain(|segment| {
            let local = segment.replica_of(self.node);
            segment.is_at_upstream() || local.is_some_and(|replica| replica.tier() != Ok(SegmentTier::Hot))
        });
        Ok(segments)
    }

    fn referenced_segments(&self, tier: SegmentTier) -> Result<Vec<SegmentId>, MapError> {
        let mut segments = self.catalogue.segments()?;
        segments.retain(|segment| {
            segment.replica_of(self.node).is_some_and(|replica| replica.tier() == Ok(tier))
        });
        let usages = self.catalogue.segment_usages()?;
        let ids = segments.iter().map(SegmentRecord::segment_id);
        Ok(ids.filter(|id| usages.known(*id).bytes > 0).collect())
    }

    fn record(&self, id: SegmentId) -> Result<Option<SegmentRecord>, MapError> {
        Ok(self.catalogue.segment_record(id)?)
    }

    fn location(&self, id: SegmentId) -> Option<SegmentLocation> {
        let segment = self.catalogue.segment(id)?;
        Some(SegmentLocation { seed: segment.seed, created: Some(segment.created), tier: segment.tier })
    }

    fn was_minted(&self, id: SegmentId) -> Result<bool, MapError> {
        Ok(id < self.catalogue.next_segment()?)
    }

    fn synced_entries(&self) -> u64 {
        self.catalogue.synced_entries()
    }

    fn sync(&self) -> Result<(), MapError> {
        Ok(self.catalogue.sync_log()?)
    }
}

fn new_segment(record: &SegmentRecord) -> NewSegment {
    let created = Timestamp(record.created_ms);
    NewSegment { id: record.segment_id(), seed: record.seed(), created }
}

/// Returns a random number that identifies a segment across all servers. Never 0, which means that a segment
/// has none.
fn random_stamp() -> Result<u64, MapError> {
    let random = getrandom::u64()
        .map_err(|error| MapError::Refused(format!("the system returned no random bytes: {error}")))?;
    Ok(random.max(1))
}

impl From<mlgw_metadata::ReadError> for MapError {
    fn from(error: mlgw_metadata::ReadError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<ProposeError> for MapError {
    fn from(error: ProposeError) -> Self {
        match error {
            // Every change of the map may be repeated: a segment that was created twice has no file once and
            // is removed at the next start.
            ProposeError::Overloaded | ProposeError::NotLeader { .. } | ProposeError::UnknownOutcome => {
                Self::Overloaded
            }
            ProposeError::Stopping => Self::Stopping,
            ProposeError::Rejected(Reject::SegmentSealed) => Self::SealedElsewhere,
            ProposeError::Rejected(why) => Self::Refused(why.to_string()),
            error @ ProposeError::NotFinalized { .. } => Self::Refused(error.to_string()),
        }
    }
}
