//! The set to whose segments a chunk goes, and the appends of chunks that are stored already.
//!
//! Invariant: an append is acknowledged only if the records of its key may refer to the segment, by rows that
//! are newer than the segment. So a group never refers to a segment that was created after the group had
//! ceased to be a guest of its set.

use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_record::{self as record, RecordOwner};
use tokio::sync::oneshot;

use super::admission::AppendReservation;
use super::queue::{self, StoredAppend};
use super::writer_queues::QueueKind;
use super::{AppendError, AppendedChunk, HotTierInner};

impl HotTierInner {
    /// Returns the set to whose segments a chunk is appended.
    pub(super) fn set_for(&self, owner: &RecordOwner) -> Result<u32, AppendError> {
        self.shared.segments.map.set_for(owner.bucket, &owner.key).ok_or(AppendError::OtherSet)
    }

    /// Waits until a chunk is stored in a segment of a set. The segment may have been created after the set
    /// was chosen, and after the chunk's group has ceased to be a guest of the set: this node knows it then.
    pub(super) async fn stored(
        &self,
        owner: &RecordOwner,
        set: u32,
        answer: oneshot::Receiver<Result<StoredAppend, AppendError>>,
    ) -> Result<AppendedChunk, AppendError> {
        let appended = wait_stored(answer).await?;
        match self.shared.segments.map.may_refer_to(owner.bucket, &owner.key, set) {
            true => Ok(appended),
            false => Err(AppendError::OtherSet),
        }
    }

    /// Appends a chunk that is already stored elsewhere to the segment of moved chunks.
    pub(super) async fn append_moved(
        &self,
        owner: &RecordOwner,
        data: &Payload,
    ) -> Result<AppendedChunk, AppendError> {
        self.append_by(QueueKind::Moved, owner, data).await
    }

    pub(super) async fn append_by(
        &self,
        kind: QueueKind,
        owner: &RecordOwner,
        data: &Payload,
    ) -> Result<AppendedChunk, AppendError> {
        let bytes = record::head_bytes(owner.key.as_bytes().len(), data) + data.stored_bytes();
        let space = &self.shared.space;
        let admitted = AppendReservation::reserve_moved(space, bytes as u64).ok_or(AppendError::Full)?;
        loop {
            let set = self.set_for(owner)?;
            let lane = self.writer_queues.shared(set, kind)?;
            match lane.push(owner, data, bytes).await {
                Ok(answer) => {
                    admitted.transfer_to_writer();
                    return self.stored(owner, set, answer).await;
                }
                Err(queue::QueueClosed) if self.writer_queues.is_replaced(&lane) => {}
                Err(queue::QueueClosed) => return Err(AppendError::Stopping),
            }
        }
    }
}

/// Waits for the result of a chunk that is queued at its writer.
async fn wait_stored(
    answer: oneshot::Receiver<Result<StoredAppend, AppendError>>,
) -> Result<AppendedChunk, AppendError> {
    let StoredAppend { location, hold } = answer.await.unwrap_or(Err(AppendError::Stopping))?;
    Ok(AppendedChunk { extent: location.into(), hold })
}
