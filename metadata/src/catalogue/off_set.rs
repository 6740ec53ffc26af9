//! Bytes of groups that are in segments of other sets than their own, and the end of a guest.
//!
//! A group that moved to another set refers to segments of the sets in which it was, and of the first one,
//! until its leader has moved the bytes. When no record of it refers to a segment of a set in which it was,
//! it ceases to be a guest of that set, and the nodes of the set leave the group.
//!
//! Invariant: a group that is no guest of a set, and not in it, never refers to a segment of the set. Each
//! segment that the set had before the end is fenced in the group and not referred to, for ever. An append to
//! a later one is refused by the node that appends, since its rows are newer than the segment
//! ([`Catalogue::may_refer_to`]). All of this is in rows, so a power loss at any step changes nothing of it.
//!
//! The steps of the end are in `guest_steps.rs`.

use super::guest_steps::{self, GuestGroups, UnfencedSegments};
use super::segment_usages::each_usage;
use super::{Catalogue, ChunkOwner, ProposeError};
use crate::offline::bodies::each_extent_from;
use crate::offline::{ExtentPosition, ReferencedExtent};
use crate::store_error::{ReadError, StoreError};
use mlgw_common::limits::{MOVE_BATCH_BYTES_MAX, MOVE_BATCH_CHUNKS_MAX};
use mlgw_common::{BucketId, ObjectKey, SegmentId, SegmentTier};
use mlgw_formats::command::{Change, Command, Reject, Reply};
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{Extent, GroupSet, NodeSet, SegmentUsage};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Extents that are read at once, whether chunks of the segments are among them or not.
const SCANNED_EXTENTS_MAX: usize = 20_000;

/// References of a group to segments of other sets than its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffSetUsages {
    /// Usage of each of these segments whose bytes are to move.
    pub segments: BTreeMap<SegmentId, SegmentUsage>,
    /// The sets of all these segments.
    pub sets: BTreeSet<u32>,
}

impl OffSetUsages {
    /// Bytes that are to move.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|usage| usage.bytes).sum()
    }
}

/// A referenced chunk of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupChunk {
    /// The record that refers to it.
    pub owner: ChunkOwner,
    /// Location of its bytes.
    pub extent: Extent,
}

/// Some chunks of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChunks {
    /// The chunks, in the order of their keys.
    pub chunks: Vec<GroupChunk>,
    /// Position of the next ones; `None` at the end.
    pub next: Option<ExtentPosition>,
}

impl Catalogue {
    /// True if records of a key's group may refer to segments of a set, by the rows of this node. A node that
    /// has just appended to a segment has rows that are newer than the segment.
    #[must_use]
    pub fn may_refer_to(&self, bucket: BucketId, key: &ObjectKey, set: u32) -> bool {
        let resident = &self.inner.resident;
        set == FIRST_SET || resident.set_of_group(resident.group_of(bucket, key.as_bytes())).may_refer_to(set)
    }

    /// The groups that this node leads as a node of their set, and that may refer to segments of another set.
    /// From memory; empty without sets.
    #[must_use]
    pub fn off_set_groups(&self) -> Vec<GroupSet> {
        if !self.inner.resident.has_sets() {
            return Vec::new();
        }
        let groups = self.group_sets().into_iter().map(Arc::unwrap_or_clone);
        groups.filter(|of| refers_elsewhere(of) && self.leads_in_set(of)).collect()
    }

    /// True if this node still leads a group as a node of its set, and its set has not changed since `of` was
    /// read.
    #[must_use]
    pub fn leads_off_set(&self, of: &GroupSet) -> bool {
        self.inner.resident.set_of_group(of.group) == *of && self.leads_in_set(of)
    }

    fn leads_in_set(&self, of: &GroupSet) -> bool {
        let own = self.node();
        self.set_of(of).is_some_and(|set| set.contains(own))
            && self.inner.groups.get(of.group).is_some_and(|member| member.leader() == Some(own))
    }

    fn set_of(&self, of: &GroupSet) -> Option<Arc<NodeSet>> {
        self.inner.resident.sets.read().get(&u64::from(of.set)).cloned()
    }

    /// References of a group to segments of other sets than its own. Segments of the first set that are at an
    /// upstream are left out: no node stores their bytes, and every group may refer to them. Reads a row per
    /// segment. Blocks the calling thread.
    ///
    /// # Errors
    /// If the store cannot be read, or the group has no member on this node.
    pub fn off_set_usages(&self, of: &GroupSet) -> Result<OffSetUsages, ReadError> {
        let state = self.inner.state_of_group(of.group)?;
        let mut found = OffSetUsages::default();
        each_usage(&state, &mut |id, usage: &SegmentUsage| {
            // Without a segment whose row this node has not applied yet.
            let Some(segment) = self.segment(id).filter(|segment| segment.set != of.set) else { return };
            if segment.set != FIRST_SET || segment.tier != SegmentTier::Upstream {
                found.segments.insert(id, *usage);
                found.sets.insert(segment.set);
            }
        })?;
        Ok(found)
    }

    /// Referenced bytes in segments of other sets than that of their group, over the groups with a member on
    /// this node. Reads a row per segment and group that may have some. Blocks the calling thread.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn off_set_bytes(&self) -> Result<u64, ReadError> {
        let mut bytes = 0;
        for of in self.group_sets().iter().filter(|of| refers_elsewhere(of)) {
            match self.off_set_usages(of) {
                Ok(found) => bytes += found.bytes(),
                Err(ReadError::GroupElsewhere { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Some chunks of a group in these segments, from `from` on: at most as many as compaction moves at once.
    /// Blocks the calling thread.
    ///
    /// # Errors
    /// If the store cannot be read, or the group has no member on this node.
    pub fn chunks_of_group(
        &self,
        group: u32,
        from: Option<&ExtentPosition>,
        segments: &BTreeMap<SegmentId, SegmentUsage>,
    ) -> Result<GroupChunks, ReadError> {
        let state = self.inner.state_of_group(group)?;
        let (mut chunks, mut bytes, mut scanned, mut wrong) = (Vec::new(), 0, 0, None);
        let next = each_extent_from(&state, from, &mut |found| {
            let is_enough = bytes >= MOVE_BATCH_BYTES_MAX || chunks.len() >= MOVE_BATCH_CHUNKS_MAX;
            if is_enough || scanned >= SCANNED_EXTENTS_MAX || wrong.is_some() {
                return ControlFlow::Break(());
            }
            scanned += 1;
            if segments.contains_key(&found.extent.segment_id()) {
                match ObjectKey::from_bytes(found.key) {
                    Ok(key) => {
                        bytes += found.extent.record_bytes();
                        let ReferencedExtent { bucket, body, part, offset, .. } = *found;
                        let owner = ChunkOwner { bucket, key, body, part, offset };
                        chunks.push(GroupChunk { owner, extent: found.extent.clone() });
                    }
                    Err(error) => wrong = Some(StoreError(format!("a stored key is invalid: {error}"))),
                }
            }
            ControlFlow::Continue(())
        })?;
        match wrong {
            Some(error) => Err(error.into()),
            None => Ok(GroupChunks { chunks, next }),
        }
    }

    /// Ends that a group is a guest of a set, if no record of the group refers to a segment of the set any
    /// more: fences every segment of the set in the group, reads the references again, and then changes the
    /// row. Returns false if there are references, or if votes have not moved to the set of the group yet:
    /// nodes of the former set may have them. `of` is the row as it was read.
    ///
    /// # Errors
    /// [`Reject::SegmentInUse`] if the set has got a segment meanwhile, or a row cannot be read;
    /// [`Reject::GroupAssigned`] if the row has changed; those of [`Catalogue::propose`]. Repeat the call.
    pub async fn end_guest(&self, of: &GroupSet, set: u32) -> Result<bool, ProposeError> {
        if !self.has_votes_in_set(of) {
            return Ok(false);
        }
        guest_steps::end_guest(self, of, set).await
    }

    fn has_votes_in_set(&self, of: &GroupSet) -> bool {
        self.set_of(of).is_some_and(|set| self.voters(of.group).iter().all(|node| set.contains(*node)))
    }

    fn unfenced_segments(&self, group: u32, set: u32) -> Result<Option<UnfencedSegments>, ReadError> {
        // Before the rows: a segment that is not among them has a later id, or was removed.
        let next_segment = self.next_segment()?;
        let state = self.inner.state_of_group(group)?;
        Ok(guest_steps::unfenced_segments(next_segment, &self.segments()?, &*state, set)?)
    }
}

impl GuestGroups for Catalogue {
    async fn read_unfenced(&self, group: u32, set: u32) -> Result<Option<UnfencedSegments>, ProposeError> {
        let catalogue = self.clone();
        let read = tokio::task::spawn_blocking(move || catalogue.unfenced_segments(group, set)).await;
        let read = read.unwrap_or_else(|stopped| Err(StoreError(stopped.to_string()).into()));
        // A row that cannot be read counts as a reference.
        read.map_err(|error| {
            tracing::warn!(group, set, %error, "a group stays a guest of a set: its rows cannot be read");
            Reject::SegmentInUse.into()
        })
    }

    async fn propose_to(&self, group: u32, change: Change) -> Result<Reply, ProposeError> {
        self.inner.propose_to(group, Arc::new(Command::from(change))).await
    }
}

/// True if records of a group may refer to segments of another set than its own.
fn refers_elsewhere(of: &GroupSet) -> bool {
    of.set != FIRST_SET || !of.guest_of.is_empty()
}
