//! Lifecycle of a segment as seen by its writer: created, marked, sealed.
//!
//! Creation: the catalogue allocates an id, then the file is written and synced, then its directory; only
//! then are records written. At a power loss in between, recovery finds an open segment with no file or an
//! empty one, and seals it. Marks, from time to time: the length that recovery need not read. Seal: a command
//! with the synced length. One task sends marks and seals; it repeats a seal until the catalogue accepts it
//! or stops. Recovery replaces seals that were lost with the process.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::Clock;
use mlgw_common::Identity;
use mlgw_common::ids::{SegmentId, SegmentSeed};
use mlgw_common::limits::MARK_BYTES;
use mlgw_formats::schema::SegmentClass;
use tokio::sync::{mpsc, oneshot};

use super::AppendError;
use super::direct::DirectFile;
use super::file::SegmentDisk;
use super::holds::{SegmentHold, SegmentHolds};
use super::map::{MapError, NewSegment, SegmentMap};
use super::metrics::{HotCounters, add};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// Pause before a command is repeated that the overloaded catalogue postponed.
const CATALOGUE_RETRY: Duration = Duration::from_millis(100);
/// Attempts to create a segment before appends fail.
const CREATE_ATTEMPTS: usize = 2;
/// Attempts to get a segment id while the catalogue is overloaded: two seconds in total.
const MINT_ATTEMPTS: usize = 20;

/// A segment that records are appended to.
pub(super) struct WritableSegment {
    pub(super) id: SegmentId,
    pub(super) seed: SegmentSeed,
    pub(super) file: File,
    /// The same file for direct I/O, if it is written that way.
    pub(super) direct: Option<DirectFile>,
    /// Bytes before this offset are synced.
    pub(super) synced_bytes: u64,
    /// Highest log floor in its records.
    pub(super) floor: u64,
    /// Length that was marked as synced, or is about to be.
    pub(super) marked_bytes: u64,
    pub(super) hold: SegmentHold,
}

/// Creates segments and requests their seals.
pub(super) struct SegmentLifecycle {
    pub(super) map: Arc<dyn SegmentMap>,
    pub(super) disk: Arc<SegmentDisk>,
    pub(super) clock: Arc<dyn Clock>,
    /// Identity that owns the segments.
    pub(super) owner: Identity,
    pub(super) holds: SegmentHolds,
    pub(super) seals: mpsc::UnboundedSender<SealRequest>,
}

/// A request to the sealing task.
pub(super) enum SealRequest {
    /// Seal a segment at a length.
    Seal(SegmentId, u64),
    /// Mark a segment as whole up to a length.
    Mark(SegmentId, u64),
    /// Reply when all earlier requests are done.
    Flush(oneshot::Sender<()>),
}

impl SegmentLifecycle {
    /// Starts the creation of a segment; a thread can wait for the result.
    pub(super) fn prepare(
        self: &Arc<Self>,
        class: SegmentClass,
        runtime: &tokio::runtime::Handle,
    ) -> oneshot::Receiver<Result<WritableSegment, AppendError>> {
        let (ready, answer) = oneshot::channel();
        let segments = self.clone();
        runtime.spawn(async move {
            let made = segments.create(class).await;
            if let Err(Ok(unwanted)) = ready.send(made) {
                segments.seal(unwanted.id, unwanted.synced_bytes);
            }
        });
        answer
    }

    /// Requests the seal of a segment. The channel needs no bound: it holds at most as many seals as segments
    /// were open or failed.
    pub(super) fn seal(&self, id: SegmentId, length: u64) {
        assert!(length == 0 || length >= SEGMENT_HEADER_BYTES, "a segment is sealed whole or empty");
        if self.seals.send(SealRequest::Seal(id, length)).is_err() {
            tracing::warn!(segment = %id,
                "segment not sealed because the tier has stopped; the next start seals it");
        }
    }

    /// Marks the synced length of a segment if it has grown enough. A lost mark only costs a start some
    /// reading. There is one mark per [`MARK_BYTES`], so the channel stays short.
    pub(super) fn mark(&self, segment: &mut WritableSegment) {
        assert!(segment.marked_bytes <= segment.synced_bytes, "only synced bytes of a segment are marked");
        let due = segment.synced_bytes >= segment.marked_bytes + MARK_BYTES;
        if due && self.disk.is_synced() {
            segment.marked_bytes = segment.synced_bytes;
            // If the receiver is gone, the tier is stopping.
            drop(self.seals.send(SealRequest::Mark(segment.id, segment.synced_bytes)));
        }
    }

    async fn create(&self, class: SegmentClass) -> Result<WritableSegment, AppendError> {
        let mut attempt = 1;
        loop {
            let minted = self.mint(class).await?;
            let NewSegment { id, seed, .. } = minted;
            let header = SegmentHeader::of(&minted, class, &self.owner);
            let disk = self.disk.clone();
            let make = move || disk.create(&header).map(|file| (file, disk.direct(&header)));
            let made = tokio::task::spawn_blocking(make).await;
            match made.unwrap_or_else(|stopped| Err(io::Error::other(stopped))) {
                Ok((file, direct)) => {
                    let hold = self.holds.begin(id);
                    return Ok(WritableSegment {
                        id,
                        seed,
                        file,
                        direct,
                        synced_bytes: SEGMENT_HEADER_BYTES,
                        floor: 0,
                        marked_bytes: 0,
                        hold,
                    });
                }
                Err(error) => {
                    tracing::error!(segment = %id, %error, "failed to create a segment");
                    self.seal(id, 0);
                    if attempt == CREATE_ATTEMPTS {
                        return Err(AppendError::from_io(&error));
                    }
                }
            }
            attempt += 1;
        }
    }

    async fn mint(&self, class: SegmentClass) -> Result<NewSegment, AppendError> {
        for _ in 0..MINT_ATTEMPTS {
            match self.map.create(class).await {
                Ok(minted) => return Ok(minted),
                Err(MapError::Overloaded) => mlgw_common::time::sleep(CATALOGUE_RETRY).await,
                Err(MapError::Stopping) => return Err(AppendError::Stopping),
                Err(error @ MapError::Refused(_)) => {
                    tracing::error!(%error, "the catalogue did not create a segment");
                    return Err(AppendError::Io);
                }
            }
        }
        Err(AppendError::Io)
    }
}

/// Sends seals to the catalogue, one after the other, until all senders are dropped. Calls `sealed` after
/// each.
pub(super) async fn run_seals(
    map: Arc<dyn SegmentMap>,
    metrics: Arc<HotCounters>,
    mut requests: mpsc::UnboundedReceiver<SealRequest>,
    sealed: impl Fn(),
) {
    while let Some(request) = requests.recv().await {
        match request {
            SealRequest::Seal(id, length) => {
                seal(&*map, &metrics, id, length).await;
                sealed();
            }
            SealRequest::Mark(id, length) => {
                if let Err(error) = map.mark(id, length).await {
                    tracing::debug!(segment = %id, %error,
                        "failed to mark the synced length of a segment; the next start reads more of it");
                }
            }
            // The requester may be gone.
            SealRequest::Flush(done) => drop(done.send(())),
        }
    }
}

async fn seal(map: &dyn SegmentMap, metrics: &HotCounters, id: SegmentId, length: u64) {
    loop {
        match map.seal(id, length).await {
            Ok(()) => return add(&metrics.segments_sealed, 1),
            Err(MapError::Overloaded) => mlgw_common::time::sleep(CATALOGUE_RETRY).await,
            Err(MapError::Stopping) => {
                return tracing::warn!(segment = %id,
                    "segment not sealed because the catalogue is stopping; the next start seals it");
            }
            Err(error @ MapError::Refused(_)) => {
                return tracing::error!(segment = %id, length, %error, "failed to seal a segment");
            }
        }
    }
}
