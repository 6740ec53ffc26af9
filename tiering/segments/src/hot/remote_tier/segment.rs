//! A segment at an upstream: reads ranges of its file.

use std::ops::Range;

use bytes::Bytes;
use mlgw_common::Incarnation;
use mlgw_common::ids::{SegmentId, SegmentSeed};
use mlgw_formats::schema::{Replica, SegmentRecord};

use super::super::read::error::{ReadFault, SegmentReadError};
use super::RemoteTier;
use mlgw_remote::upstream::{ObjectId, ReplicaKey, SegmentObject, UpstreamError};

/// Location of a segment at an upstream.
pub(in crate::hot) struct RemoteSegment {
    pub(in crate::hot) upstream: String,
    pub(in crate::hot) id: ObjectId,
    pub(in crate::hot) seed: SegmentSeed,
    /// Length of the segment's file.
    pub(in crate::hot) bytes: u64,
    key: Option<ReplicaKey>,
}

impl RemoteSegment {
    pub(super) fn new(record: &SegmentRecord, place: &Replica, key: Option<ReplicaKey>) -> Self {
        Self {
            upstream: place.location.clone(),
            id: object_of(record.segment_id(), place),
            seed: record.seed(),
            bytes: record.length,
            key,
        }
    }

    pub(in crate::hot) fn object(&self) -> SegmentObject<'_> {
        SegmentObject {
            id: self.id,
            generation: self.seed.generation,
            bytes: self.bytes,
            key: self.key.as_ref(),
        }
    }

    fn segment(&self) -> SegmentId {
        self.id.segment
    }
}

/// Returns the id of the object that a replica at an upstream names.
pub(in crate::hot) fn object_of(segment: SegmentId, place: &Replica) -> ObjectId {
    ObjectId { segment, incarnation: Incarnation(place.incarnation), copy: place.copy }
}

impl RemoteTier {
    /// Reads a range of a segment's file. The caller must verify the bytes, as for a read from a disk.
    ///
    /// # Errors
    /// [`SegmentReadError::Gone`] when the object does not exist: the segment has moved.
    /// [`SegmentReadError::Unreachable`] when the upstream does not respond, or refuses.
    pub(in crate::hot) async fn read(
        &self,
        remote: &RemoteSegment,
        range: Range<u64>,
    ) -> Result<Bytes, SegmentReadError> {
        let segment = remote.segment();
        let upstream =
            self.upstream(&remote.upstream).map_err(|source| SegmentReadError::Io { segment, source })?;
        let length = range.end - range.start;
        let read = upstream.read(&remote.object(), range.start, length).await;
        match &read {
            Ok(bytes) => self.count(bytes.len() as u64),
            Err(UpstreamError::Missing { .. }) => self.invalidate(segment),
            Err(_) => {}
        }
        read.map_err(|error| read_error(segment, range.start, error))
    }
}

fn read_error(segment: SegmentId, offset: u64, error: UpstreamError) -> SegmentReadError {
    match error {
        UpstreamError::Missing { .. } => SegmentReadError::Gone { segment },
        UpstreamError::Truncated { .. } => {
            SegmentReadError::Corrupt { segment, offset, fault: ReadFault::Truncated }
        }
        UpstreamError::Corrupt { .. } => {
            SegmentReadError::Corrupt { segment, offset, fault: ReadFault::Object }
        }
        other => SegmentReadError::Unreachable { segment, source: Box::new(other) },
    }
}
