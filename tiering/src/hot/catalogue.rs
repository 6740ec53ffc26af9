//! The segment map that the catalogue keeps: the real one.

use mlgw_common::Clock;
use mlgw_common::ids::{Generation, NodeId, SegmentId};
use mlgw_metadata::command::{CreateSegment, SealSegment};
use mlgw_metadata::schema::{SegmentClass, SegmentRecord, SegmentState};
use mlgw_metadata::{Catalogue, Change, Command, ProposeError, Reply};
use std::sync::Arc;

use super::map::{Later, MapError, OpenSegment, SegmentMap, Whereabouts};

/// The number of the hot tier in a replica's `tier`.
pub(super) const HOT: u32 = 0;
/// That of the cold tier.
pub(super) const COLD: u32 = 1;
/// The number of the tier of upstreams in records of segments.
pub const UPSTREAM: u32 = 2;

/// The segments of one node's hot tier, in the catalogue.
pub(super) struct CatalogueMap {
    pub(super) catalogue: Catalogue,
    pub(super) node: NodeId,
    /// The name of the directory of segments.
    pub(super) location: String,
    pub(super) clock: Arc<dyn Clock>,
}

impl SegmentMap for CatalogueMap {
    fn create(&self, class: SegmentClass) -> Later<'_, Result<(SegmentId, Generation), MapError>> {
        let command = Command::from(Change::CreateSegment(CreateSegment {
            class: class as i32,
            node: self.node.0,
            location: self.location.clone(),
            created_ms: self.clock.now().as_millis(),
        }));
        Box::pin(async move {
            match self.catalogue.propose(command).await? {
                Reply::Segment(made) => Ok((made.segment_id(), made.written())),
                other => Err(MapError::Refused(format!("it answered {other:?}"))),
            }
        })
    }

    fn seal(&self, id: SegmentId, length: u64) -> Later<'_, Result<(), MapError>> {
        let command = Command::from(Change::SealSegment(SealSegment { segment: id.0, length }));
        Box::pin(async move { Ok(self.catalogue.propose(command).await.map(drop)?) })
    }

    fn mark(&self, id: SegmentId, length: u64) -> Later<'_, Result<(), MapError>> {
        Box::pin(async move { Ok(self.catalogue.mark_segment(id, length).await?) })
    }

    fn open_segments(&self) -> Result<Vec<OpenSegment>, MapError> {
        let segments = self.catalogue.segments()?;
        let ours = segments.iter().filter(|segment| {
            let here = segment.replicas.first().is_some_and(|at| at.node == self.node.0 && at.tier == HOT);
            here && segment.state() == SegmentState::Open
        });
        Ok(ours
            .map(|segment| OpenSegment {
                id: segment.segment_id(),
                generation: segment.written(),
                marked: segment.marked,
            })
            .collect())
    }

    fn elsewhere(&self) -> Result<Vec<SegmentRecord>, MapError> {
        let mut segments = self.catalogue.segments()?;
        segments.retain(|segment| {
            segment.replicas.first().is_some_and(|at| at.node == self.node.0 && at.tier != HOT)
        });
        Ok(segments)
    }

    fn record(&self, id: SegmentId) -> Result<Option<SegmentRecord>, MapError> {
        Ok(self.catalogue.segment_record(id)?)
    }

    fn place(&self, id: SegmentId) -> Option<Whereabouts> {
        let segment = self.catalogue.segment(id)?;
        Some(Whereabouts { generation: segment.generation, tier: segment.tier })
    }

    fn was_minted(&self, id: SegmentId) -> Result<bool, MapError> {
        Ok(id < self.catalogue.next_segment()?)
    }

    fn settle(&self) -> Result<(), MapError> {
        Ok(self.catalogue.settle()?)
    }
}

impl From<mlgw_metadata::ReadError> for MapError {
    fn from(error: mlgw_metadata::ReadError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<ProposeError> for MapError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Overloaded => Self::Overloaded,
            ProposeError::Stopping => Self::Stopping,
            ProposeError::Rejected(why) => Self::Refused(why.to_string()),
        }
    }
}
