//! Proposes changes of objects to the catalogue.
//!
//! Invariant: a change that was refused because its segment was fenced is proposed again with the new extents
//! of its bytes, or fails. If power fails before the catalogue has synced, the change did not happen.

use crate::stages::stage;
use crate::{ObjectLayer, ResourceShortage, TermedChanges};
use mlgw_common::limits::APPEND_RETRIES_MAX;
use mlgw_common::{BodyId, ObjectKey, Timestamp};
use mlgw_formats::command::{Change, Command, ObjectChange, Reject, Reply};
use mlgw_formats::schema::{Bucket, Extent};
use mlgw_metadata::ProposeError;
use mlgw_segments::hot::SegmentHold;
use std::sync::Arc;

impl ObjectLayer {
    /// Returns the term that changes of a bucket carry.
    fn term_for(&self, bucket: &Bucket) -> Option<u64> {
        let is_termed = match self.termed {
            TermedChanges::OfRemoteBacked => bucket.binding.is_some(),
            TermedChanges::All => true,
        };
        self.duty_term.filter(|_| is_termed)
    }

    /// Makes the groups of a bucket reject changes of earlier terms of duty, if changes of the bucket carry a
    /// term: what a job on a former duty node sent late is not carried out after this.
    ///
    /// # Errors
    /// [`Reject::TermEnded`] if a later term has begun; those of the catalogue.
    pub async fn begin_term_in(&self, bucket: &Bucket) -> Result<(), ProposeError> {
        match self.term_for(bucket) {
            Some(term) => self.catalogue.set_bucket_term(bucket.bucket_id(), term).await,
            None => Ok(()),
        }
    }

    /// Proposes a change of one key. When this function returns `Ok`, the change is durable and visible. If a
    /// segment was fenced meanwhile, its bytes are appended to another segment and the change is proposed
    /// again with the new extents.
    ///
    /// # Errors
    /// Those of the catalogue; [`ProposeError::Overloaded`] when an append or [`APPEND_RETRIES_MAX`]
    /// proposals failed.
    pub async fn propose_object(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        now: Timestamp,
        change: ObjectChange,
    ) -> Result<Reply, ProposeError> {
        let command = self.catalogue.object_command(bucket, key, now, change);
        let mut command = Arc::new(command.of_term(self.term_for(bucket)));
        let mut holds = Vec::new();
        for _ in 0..APPEND_RETRIES_MAX {
            match stage("commit", self.catalogue.propose(Arc::clone(&command))).await {
                Err(ProposeError::Rejected(Reject::SegmentFenced { segment })) => {
                    let mut repaired = Command::clone(&command);
                    self.append_again(&mut repaired, segment, &mut holds).await?;
                    command = Arc::new(repaired);
                }
                Err(ProposeError::Overloaded) => break,
                Err(ProposeError::Rejected(why @ Reject::QuotaExceeded { .. })) => {
                    if let Reject::QuotaExceeded { of, .. } = &why {
                        self.metrics.refuse_by_quota(of);
                    }
                    return Err(why.into());
                }
                outcome => return outcome,
            }
        }
        self.metrics.throttle(ResourceShortage::Queue);
        Err(ProposeError::Overloaded)
    }

    /// Appends the bytes of a change that are in `segment` again, and replaces their extents in the change.
    /// If the append fails, the client must send the bytes again.
    async fn append_again(
        &self,
        command: &mut Command,
        segment: u64,
        holds: &mut Vec<SegmentHold>,
    ) -> Result<(), ProposeError> {
        let (body, extents) = new_extents(command).ok_or(ProposeError::Overloaded)?;
        tracing::debug!(segment, %body, "a fence refused the chunk; appending it again");
        for extent in extents.into_iter().filter(|extent| extent.segment == segment) {
            let appended =
                self.tiers.hot.append_fenced(extent, body).await.map_err(|_| ProposeError::Overloaded)?;
            assert_eq!(
                appended.extent.logical_bytes, extent.logical_bytes,
                "a chunk that is appended again keeps its length"
            );
            *extent = appended.extent;
            holds.push(appended.hold);
        }
        Ok(())
    }
}

/// Returns the extents that a change adds references to, with their body.
fn new_extents(command: &mut Command) -> Option<(BodyId, Vec<&mut Extent>)> {
    let Some(Change::Object(object)) = &mut command.change else { return None };
    match object.change.as_mut()? {
        ObjectChange::Put(put) => {
            let body = put.version.body();
            let paged = put.pages.iter_mut().flat_map(|page| &mut page.extents);
            Some((body, put.version.extents.iter_mut().chain(paged).collect()))
        }
        ObjectChange::PutPart(put) => Some((BodyId(put.body_id), put.part.extents.iter_mut().collect())),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
