//! The catalogue's side of a segment's end: what refers to it, fences, relocation, removal.
//!
//! Nothing here destroys bytes. Whoever does, does it after [`Catalogue::settle`]: then everything
//! that was applied before survives power loss, whatever the durability.

use super::dead::DeadSet;
use super::options::{ProposeError, ReadError};
use super::{Catalogue, read};
use crate::store_error::StoreError;
use crate::view::Rows;
use mlgw_common::{BodyId, BucketId, ObjectKey, PartNumber, SegmentId};
use mlgw_formats::command::{
    Change, Command, FenceSegment, MarkSegment, PlaceSegment, Reject, RelocateExtent, RemoveSegment,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::{Counter, MetaRow};
use mlgw_formats::schema::usage::segment_key_of;
use mlgw_formats::schema::{
    Extent, ObjectVersion, Part, Release, Replica, SegmentUsage, decode, object, part, release,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of counters that are read at a time.
const USAGE_ROWS: usize = 4096;

/// Whose a stored chunk is, as its record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOwner {
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The body.
    pub body: BodyId,
    /// The part, when the body is an upload.
    pub part: Option<PartNumber>,
    /// Offset of the chunk's first byte in the body, or in the part.
    pub offset: u64,
}

/// What names a stored chunk: an extent, and the page that it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The extent.
    pub extent: Extent,
    /// The first byte of its page; none when the record of the object or part holds it.
    pub page: Option<u64>,
}

impl Catalogue {
    /// What names the chunk of `owner` that is stored at `offset` in `segment`; nothing when no
    /// record does. A few point reads; blocks.
    ///
    /// # Errors
    /// When the store cannot be read.
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
        let state = self.inner.state_of(owner.bucket, owner.key.as_bytes());
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
                    // The pages of a body that is gone still refer while it waits to be freed. Most never had
                    // any.
                    None => (Vec::new(), read::<Release>(&state, &release::row(owner.body))?.is_some()),
                }
            }
            Some(number) => {
                let part: Option<Part> = read(&state, &part::row(owner.body, number))?;
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

    /// Names the chunk of `owner` where it is now, if `reference` still names it where it was; says
    /// whether it did.
    ///
    /// # Errors
    /// [`Reject::SegmentFenced`] when the new place must not be referred to; those of
    /// [`Catalogue::propose`].
    pub async fn relocate(
        &self,
        owner: &ChunkOwner,
        reference: Reference,
        to: Extent,
    ) -> Result<bool, ProposeError> {
        let relocate = RelocateExtent {
            bucket_id: owner.bucket.0,
            key: owner.key.as_str().to_owned(),
            body_id: owner.body.0,
            part: owner.part.map_or(0, |part| u32::from(part.get())),
            page: reference.page,
            from: reference.extent,
            to,
        };
        let group = self.inner.resident.group_of(owner.bucket, owner.key.as_bytes()) as usize;
        let command = Arc::new(Command::from(Change::RelocateExtent(relocate)));
        match self.inner.propose_to(group, command).await {
            Ok(_) => Ok(true),
            Err(ProposeError::Rejected(Reject::NotReferenced)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Chunks of `segment` that need not be asked about, see [`dead`](super::dead).
    #[must_use]
    pub fn known_dead(&self, segment: SegmentId) -> DeadSet {
        self.inner.resident.dead.of(segment)
    }

    /// What every referenced segment is referenced for, summed over the groups. Reads a row per
    /// segment and group; blocks.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn segment_usages(&self) -> Result<HashMap<SegmentId, SegmentUsage>, ReadError> {
        let mut usages = HashMap::<SegmentId, SegmentUsage>::new();
        for group in &self.inner.groups {
            let state = group.state();
            let mut from = Family::SegmentUsage.start();
            loop {
                let rows = state.range(&from, &Family::SegmentUsage.end(), USAGE_ROWS)?;
                let Some((last, _)) = rows.last() else { break };
                from = [last.as_slice(), &[0]].concat();
                for (row, value) in rows {
                    let share: SegmentUsage = decode(&value).map_err(StoreError::from)?;
                    let segment = segment_key_of(&row).map_err(StoreError::from)?;
                    usages.entry(segment).or_default().add(&share);
                }
            }
        }
        Ok(usages)
    }

    /// Refuses new references to `segment` in every group from now on. What refers to it already
    /// goes on doing so.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`]; repeat it then.
    pub async fn fence_segment(&self, segment: SegmentId) -> Result<(), ProposeError> {
        for group in 0..self.inner.groups.len() {
            let fence = Change::FenceSegment(FenceSegment { segment: segment.0 });
            self.inner.propose_to(group, Arc::new(Command::from(fence))).await?;
        }
        Ok(())
    }

    /// Removes the record of a segment that is sealed, fenced and referred to by nothing.
    ///
    /// # Errors
    /// [`Reject::SegmentInUse`] when a group still refers to it, or may yet; those of
    /// [`Catalogue::propose`].
    pub async fn remove_segment(&self, segment: SegmentId) -> Result<(), ProposeError> {
        let usage = self.segment_usage(segment);
        // What cannot be read counts as referred to.
        if usage.is_ok_and(|usage| usage.extents == 0) {
            let remove = Change::RemoveSegment(RemoveSegment { segment: segment.0 });
            self.inner.propose_to(0, Arc::new(Command::from(remove))).await.map(drop)
        } else {
            Err(Reject::SegmentInUse.into())
        }
    }

    /// Names the place `to` for a sealed segment, whose bytes are there, if it is at `from`.
    ///
    /// # Errors
    /// [`Reject::SegmentElsewhere`] when it is not there, or open; those of [`Catalogue::propose`].
    pub async fn place_segment(
        &self,
        segment: SegmentId,
        from: Replica,
        to: Replica,
    ) -> Result<(), ProposeError> {
        let place = Change::PlaceSegment(PlaceSegment { segment: segment.0, from, to });
        self.inner.propose_to(0, Arc::new(Command::from(place))).await.map(drop)
    }

    /// Notes that the first `length` bytes of an open segment are whole records on stable media.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`]; nothing is lost without the note.
    pub async fn mark_segment(&self, segment: SegmentId, length: u64) -> Result<(), ProposeError> {
        let mark = Change::MarkSegment(MarkSegment { segment: segment.0, length });
        self.inner.propose_to(0, Arc::new(Command::from(mark))).await.map(drop)
    }

    /// The next segment id: every smaller one was minted, so one of them without a record was
    /// removed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn next_segment(&self) -> Result<SegmentId, ReadError> {
        let counter: Option<Counter> = read(&self.inner.groups[0].state(), &MetaRow::NextSegment.row())?;
        Ok(SegmentId(counter.unwrap_or_default().next.max(1)))
    }

    /// Waits until everything that was applied so far survives power loss. Blocks for a sync of
    /// the log. When that fails the process is stopped as after any failed sync.
    ///
    /// # Errors
    /// When it failed.
    pub fn settle(&self) -> Result<(), ReadError> {
        let settled = self.inner.log.sync();
        if let Err(error) = &settled {
            (self.inner.fatal)(&format!("the catalogue's log was not synced: {error}"));
        }
        Ok(settled?)
    }
}
