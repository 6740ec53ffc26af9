//! Segments in the catalogue: references to them, fences, relocation, removal.
//!
//! Nothing here destroys bytes. A caller that destroys bytes does so after [`Catalogue::sync_log`]: by then
//! every command applied before survives power loss, whatever the durability setting.

use super::dead::DeadSet;
use super::groups::SYSTEM_GROUP;
use super::options::ProposeError;
use super::{Catalogue, read};
use crate::apply::is_released;
use crate::store_error::ReadError;
use mlgw_common::{BodyId, BucketId, ObjectKey, PartNumber, SegmentId};
use mlgw_formats::cluster_version::REPLICATION_CLUSTER_VERSION;
use mlgw_formats::command::{
    Change, Command, FenceSegment, MarkSegment, PlaceSegment, Reject, RelocateExtent, RemoveSegment, Reply,
    SealSegment, SetReplicas,
};
use mlgw_formats::schema::meta::{Counter, MetaRow};
use mlgw_formats::schema::{
    Extent, ObjectVersion, PartRecord, Release, Replica, SegmentRecord, object, part, release,
};
use std::sync::Arc;

/// Owner of a stored chunk, as its segment record names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOwner {
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The body.
    pub body: BodyId,
    /// The part, if the body is an upload.
    pub part: Option<PartNumber>,
    /// Offset of the chunk's first byte in the body, or in the part.
    pub offset: u64,
}

/// Reference to a stored chunk: its extent, and the page that holds the extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The extent.
    pub extent: Extent,
    /// The first byte of the page; `None` if the record of the object or part itself holds the extent.
    pub page: Option<u64>,
}

impl Catalogue {
    /// The reference to the chunk of `owner` at `offset` in `segment`; `None` if no record names the chunk.
    /// Does a few point reads. Blocks the calling thread.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn reference(
        &self,
        owner: &ChunkOwner,
        segment: SegmentId,
        offset: u64,
    ) -> Result<Option<Reference>, ReadError> {
        let at = |extents: Vec<Extent>, page| {
            let found = extents.into_iter().find(|e| e.segment == segment.0 && e.offset == offset);
            found.map(|extent| Reference { extent, page })
        };
        let state = self.inner.state_of(owner.bucket, owner.key.as_bytes())?;
        let (inline, paged) = match owner.part {
            None => {
                let row = object::row(owner.bucket, owner.key.as_bytes());
                let version: Option<ObjectVersion> = read(&state, &row)?;
                let version = version.filter(|version| version.body() == owner.body);
                match version {
                    Some(version) => {
                        let paged = version.is_paged();
                        (version.extents, paged)
                    }
                    // Pages of a deleted body still count as references while it waits to be freed. Most
                    // bodies never had any.
                    None => (Vec::new(), read::<Release>(&state, &release::row(owner.body))?.is_some()),
                }
            }
            Some(number) => {
                let part: Option<PartRecord> = read(&state, &part::row(owner.body, number))?;
                part.map_or((Vec::new(), false), |part| (part.extents, part.paged_extents > 0))
            }
        };
        if let Some(found) = at(inline, None) {
            return Ok(Some(found));
        }
        if !paged {
            return Ok(None);
        }
        let reader = self.reader();
        let ChunkOwner { bucket, key, body, offset: first, .. } = owner;
        let mut pages = match owner.part {
            None => reader.extent_pages(*bucket, key, *body, *first),
            Some(number) => reader.part_pages(*bucket, key, *body, number, *first),
        };
        let Some((first, page)) = pages.next().transpose()? else { return Ok(None) };
        Ok(at(page.extents, Some(first)))
    }

    /// Changes the extent of `owner`'s chunk to `to`, if `reference` is still current; returns true if it
    /// was.
    ///
    /// # Errors
    /// [`Reject::SegmentFenced`] if the new segment must not be referenced; those of [`Catalogue::propose`].
    pub async fn relocate(
        &self,
        owner: &ChunkOwner,
        reference: Reference,
        to: Extent,
    ) -> Result<bool, ProposeError> {
        let (from, length) = (&reference.extent, to.logical_bytes);
        assert_eq!(from.logical_bytes, length, "a chunk has the same length at its new location");
        let relocate = RelocateExtent {
            bucket_id: owner.bucket.0,
            key: owner.key.as_str().to_owned(),
            body_id: owner.body.0,
            part: owner.part.map_or(0, |part| u32::from(part.get())),
            page: reference.page,
            from: reference.extent,
            to,
        };
        let group = self.inner.resident.group_of(owner.bucket, owner.key.as_bytes());
        let command = Arc::new(Command::from(Change::RelocateExtent(relocate)));
        match self.inner.propose_to(group, command).await {
            Ok(_) => Ok(true),
            Err(ProposeError::Rejected(Reject::NotReferenced)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Chunks of `segment` that are known to be dead without a lookup, see [`dead`](super::dead).
    #[must_use]
    pub fn known_dead(&self, segment: SegmentId) -> DeadSet {
        self.inner.resident.dead.dead_set(segment)
    }

    /// Refuses new references to `segment` from now on, in every group that may have some. Existing
    /// references stay.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`]; repeat the call then.
    pub async fn fence_segment(&self, segment: SegmentId) -> Result<(), ProposeError> {
        for group in self.inner.referrers_of(segment) {
            let fence = Change::FenceSegment(FenceSegment { segment: segment.0 });
            self.inner.propose_to(group, Arc::new(Command::from(fence))).await?;
        }
        Ok(())
    }

    /// Removes the record of a segment that is sealed, fenced and not referenced.
    ///
    /// # Errors
    /// [`Reject::SegmentInUse`] if a group still references the segment or may yet; those of
    /// [`Catalogue::propose`].
    pub async fn remove_segment(&self, segment: SegmentId) -> Result<(), ProposeError> {
        let mut released_in = Vec::new();
        for group in self.inner.referrers_of(segment) {
            let state = self.inner.state_of_group(group);
            match state.and_then(|state| Ok(is_released(&*state, segment)?)) {
                Ok(true) => released_in.push(group),
                Ok(false) => return Err(Reject::SegmentInUse.into()),
                // A group that cannot be read counts as one that refers to the segment.
                Err(error) => {
                    tracing::warn!(%segment, group, %error,
                        "a segment stays: the rows of a group cannot be read");
                    return Err(Reject::SegmentInUse.into());
                }
            }
        }
        if self.cluster_version() < REPLICATION_CLUSTER_VERSION {
            released_in.clear();
        }
        let remove = Change::RemoveSegment(RemoveSegment { segment: segment.0, released_in });
        self.inner.propose_to(SYSTEM_GROUP, Arc::new(Command::from(remove))).await.map(drop)
    }

    /// Records that a replica of the sealed segment moved from `from` to `to`, if its replicas were changed
    /// `changes` times and `from` is one of them. The bytes must already be at `to`. A move to or from an
    /// upstream replaces all replicas.
    ///
    /// # Errors
    /// [`Reject::SegmentElsewhere`] if the record differs or the segment is open; those of
    /// [`Catalogue::propose`].
    pub async fn place_segment(
        &self,
        segment: SegmentId,
        changes: u64,
        from: Replica,
        to: Replica,
    ) -> Result<(), ProposeError> {
        let changes = (self.cluster_version() >= REPLICATION_CLUSTER_VERSION).then_some(changes);
        let place = Change::PlaceSegment(PlaceSegment { segment: segment.0, from, to, changes });
        self.inner.propose_to(SYSTEM_GROUP, Arc::new(Command::from(place))).await.map(drop)
    }

    /// Seals a segment at `length` and returns its record. `replicas`, unless it is empty, replaces the list
    /// of its replicas: those that are not known to have the whole length are marked as suspect. The first
    /// seal decides.
    ///
    /// # Errors
    /// [`Reject::SegmentSealed`] if it was sealed at another length; those of [`Catalogue::propose`].
    pub async fn seal_segment(
        &self,
        segment: SegmentId,
        length: u64,
        replicas: Vec<Replica>,
    ) -> Result<SegmentRecord, ProposeError> {
        let seal = Change::SealSegment(SealSegment { segment: segment.0, length, replicas });
        match self.inner.propose_to(SYSTEM_GROUP, Arc::new(Command::from(seal))).await? {
            Reply::Segment(record) => Ok(record),
            // No seal has another reply; the record decides.
            _ => Err(ProposeError::UnknownOutcome),
        }
    }

    /// Replaces the list of replicas of a sealed segment, if it was changed `changes` times. Each node in the
    /// list must have the bytes already.
    ///
    /// # Errors
    /// [`Reject::SegmentElsewhere`] if the list was changed meanwhile or the segment is open; those of
    /// [`Catalogue::propose`].
    pub async fn set_replicas(
        &self,
        segment: SegmentId,
        changes: u64,
        replicas: Vec<Replica>,
    ) -> Result<(), ProposeError> {
        let set = Change::SetReplicas(SetReplicas { segment: segment.0, changes, replicas });
        self.inner.propose_to(SYSTEM_GROUP, Arc::new(Command::from(set))).await.map(drop)
    }

    /// Records that the first `length` bytes of an open segment are whole records on stable media.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`]; a lost mark loses no data.
    pub async fn mark_segment(&self, segment: SegmentId, length: u64) -> Result<(), ProposeError> {
        let mark = Change::MarkSegment(MarkSegment { segment: segment.0, length });
        self.inner.propose_to(SYSTEM_GROUP, Arc::new(Command::from(mark))).await.map(drop)
    }

    /// The next segment id. Every smaller id was allocated, so a smaller id without a record belongs to a
    /// removed segment.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn next_segment(&self) -> Result<SegmentId, ReadError> {
        let counter: Option<Counter> =
            read(&self.inner.groups.system().state(), &MetaRow::NextSegment.row())?;
        Ok(SegmentId(counter.unwrap_or_default().next.max(1)))
    }

    /// Waits until every command applied so far survives power loss; a start then applies it without a
    /// leader. Blocks for a sync of the log, and while the disk is full. A sync that fails otherwise calls
    /// the fatal handler like every write of the log.
    ///
    /// # Errors
    /// If the sync failed, or the catalogue stops.
    pub fn sync_log(&self) -> Result<(), ReadError> {
        for group in self.inner.groups.all_open() {
            group.enqueue_committed();
        }
        Ok(self.inner.log.sync()?)
    }
}
