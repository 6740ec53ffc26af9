//! The segment map: the part of the catalogue that the segment store uses.
//!
//! A trait, so that tests can use a simple map in memory. Ids are never reused; a seal is final and fixes a
//! segment's length.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;

use mlgw_common::ids::{BucketId, NodeId, SegmentId, SegmentSeed};
use mlgw_common::{ObjectKey, SegmentTier, Timestamp};
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{Replica, SegmentClass, SegmentRecord};

pub use mlgw_formats::segment_header::NewSegment;

/// A segment that is open in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSegment {
    /// The segment.
    pub id: SegmentId,
    /// Seed of the segment's checksums.
    pub seed: SegmentSeed,
    /// Time of its creation.
    pub created: Timestamp,
    /// Length of the prefix that is known to consist of whole records on stable media.
    pub marked: u64,
}

/// Identity and tier of a segment according to its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLocation {
    /// Seed of the segment's checksums.
    pub seed: SegmentSeed,
    /// Time of its creation; `None` if unknown.
    pub created: Option<Timestamp>,
    /// The tier of the replica of this node, or of the first replica if the node has none: 0 is hot, 1 is
    /// cold, 2 is an upstream.
    pub tier: SegmentTier,
}

impl SegmentLocation {
    /// Returns the location of the segment of `record` in a tier.
    #[must_use]
    pub fn of(record: &SegmentRecord, tier: SegmentTier) -> Self {
        Self { seed: record.seed(), created: Some(Timestamp(record.created_ms)), tier }
    }
}

/// The catalogue did not change the segment map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The catalogue is shutting down: there will be no more changes.
    #[error("the catalogue is stopping")]
    Stopping,
    /// Too many commands are queued, or the catalogue has no leader: retry later.
    #[error("the catalogue is overloaded")]
    Overloaded,
    /// The segment is sealed at another length, and its record decides: a retry does not help.
    #[error("the segment is sealed at another length")]
    SealedElsewhere,
    /// The catalogue rejected the command: a retry does not help.
    #[error("the catalogue rejected the command: {0}")]
    Refused(String),
}

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The part of the catalogue that lists segments.
pub trait SegmentMap: Send + Sync + 'static {
    /// Creates a segment of a set of nodes in state open; durable when the call returns. `followers` have
    /// replicas as well, and `write_quorum` of all replicas sync an append before it is acknowledged; 0
    /// without followers.
    fn create(
        &self,
        class: SegmentClass,
        set: u32,
        followers: Vec<NodeId>,
        write_quorum: u32,
    ) -> BoxFuture<'_, Result<NewSegment, MapError>>;

    /// Returns the set to whose segments this node appends chunks of a key; `None` if it is in no set whose
    /// segments the key may refer to. The first set by default, for maps without sets. Each append calls it.
    fn set_for(&self, _bucket: BucketId, _key: &ObjectKey) -> Option<u32> {
        Some(FIRST_SET)
    }

    /// True if records of a key may refer to segments of a set; true by default, for maps without sets. Each
    /// append calls it after its bytes are stored, and so after the segment was created.
    fn may_refer_to(&self, _bucket: BucketId, _key: &ObjectKey, _set: u32) -> bool {
        true
    }

    /// Returns the sets in which this node is; `None` while there are no sets, as by default.
    fn own_sets(&self) -> Option<BTreeSet<u32>> {
        None
    }

    /// Seals a segment at `length`. `replicas`, unless it is empty, replaces the list of its replicas.
    /// Sealing a sealed segment again at its length is not an error.
    fn seal(&self, id: SegmentId, length: u64, replicas: Vec<Replica>)
    -> BoxFuture<'_, Result<(), MapError>>;

    /// Records that the first `length` bytes of an open segment are whole records on stable media, of as many
    /// replicas as the write quorum has.
    fn mark(&self, id: SegmentId, length: u64) -> BoxFuture<'_, Result<(), MapError>>;

    /// True if segments may have replicas on several nodes; false by default.
    fn is_replicated(&self) -> bool {
        false
    }

    /// The segments in state open whose only replica is on this node. Segments with several replicas are
    /// recovered together with the other nodes.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    fn open_segments(&self) -> Result<Vec<OpenSegment>, MapError>;

    /// Returns the records of segments with a replica of this node in another tier than the hot one, and of
    /// all segments at upstreams; none by default.
    fn records_outside_hot(&self) -> Result<Vec<SegmentRecord>, MapError> {
        Ok(Vec::new())
    }

    /// Returns the record of a segment; `None` by default, for maps of the hot tier only.
    fn record(&self, _id: SegmentId) -> Result<Option<SegmentRecord>, MapError> {
        Ok(None)
    }

    /// Returns the segments with a replica of this node in a tier that are referenced, as far as the object
    /// groups on this node say; none by default.
    fn referenced_segments(&self, _tier: SegmentTier) -> Result<Vec<SegmentId>, MapError> {
        Ok(Vec::new())
    }

    /// Returns the location of a segment; `None` if it is not in the catalogue.
    fn location(&self, id: SegmentId) -> Option<SegmentLocation>;

    /// True if the id was ever given to a segment.
    fn was_minted(&self, id: SegmentId) -> Result<bool, MapError>;

    /// Returns the number of catalogue log entries on stable media; 0 for a map without a log.
    fn synced_entries(&self) -> u64 {
        0
    }

    /// Waits until every change that the catalogue acknowledged survives power loss. Blocks the calling
    /// thread.
    ///
    /// # Errors
    /// When the sync fails.
    fn sync(&self) -> Result<(), MapError>;
}
