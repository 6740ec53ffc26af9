//! The life of a segment as its writer sees it: made, used, sealed.
//!
//! Made: minted by the catalogue, then its file written and synced, then its directory; only then
//! may a record go in. When power fails in between, recovery finds an open segment with no file or
//! an empty one, and seals it. Marked, now and then: how much of it recovery need not read. Sealed:
//! by a command that states the synced length. Marks and seals are sent by one task, seals again
//! until the catalogue takes them or stops; one that is lost with the process is made up for by
//! recovery.

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
use super::direct::Direct;
use super::file::Disk;
use super::holds::{Hold, Holds};
use super::map::{MapError, NewSegment, SegmentMap};
use super::metrics::{Metrics, add};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// Pause before a command that the overloaded catalogue put off is tried again.
const CATALOGUE_RETRY: Duration = Duration::from_millis(100);
/// How often a segment's making is tried before appends are answered with the error.
const CREATE_ATTEMPTS: usize = 2;
/// How often the catalogue is asked to mint a segment while it is overloaded: two seconds.
const MINT_ATTEMPTS: usize = 20;

/// A segment that takes records.
pub(super) struct OpenFile {
    pub(super) id: SegmentId,
    pub(super) seed: SegmentSeed,
    pub(super) file: File,
    /// The same for writes past the page cache, if it gets such.
    pub(super) direct: Option<Direct>,
    /// Everything before this offset is synced.
    pub(super) synced_bytes: u64,
    /// The floor of the log that its records carry.
    pub(super) floor: u64,
    /// So much of it was marked as synced, or is about to be.
    pub(super) marked_bytes: u64,
    pub(super) hold: Hold,
}

/// Makes segments and sees that they are sealed.
pub(super) struct Segments {
    pub(super) map: Arc<dyn SegmentMap>,
    pub(super) disk: Arc<Disk>,
    pub(super) clock: Arc<dyn Clock>,
    /// The server whose segments they are.
    pub(super) owner: Identity,
    pub(super) holds: Holds,
    pub(super) seals: mpsc::UnboundedSender<SealRequest>,
}

/// What the task that seals is asked.
pub(super) enum SealRequest {
    /// Seal a segment at a length.
    Seal(SegmentId, u64),
    /// Mark a segment as whole up to a length.
    Mark(SegmentId, u64),
    /// Say when everything asked before is done.
    Flush(oneshot::Sender<()>),
}

impl Segments {
    /// Begins to make a segment; the answer can be waited for by a thread.
    pub(super) fn prepare(
        self: &Arc<Self>,
        class: SegmentClass,
        runtime: &tokio::runtime::Handle,
    ) -> oneshot::Receiver<Result<OpenFile, AppendError>> {
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

    /// Asks for a segment to be sealed. There are at most as many waiting seals as segments were
    /// open or failed, so the line needs no bound of its own.
    pub(super) fn seal(&self, id: SegmentId, length: u64) {
        if self.seals.send(SealRequest::Seal(id, length)).is_err() {
            tracing::warn!(segment = %id, "not sealed: the tier has stopped; the next start will");
        }
    }

    /// Has the catalogue note how far a segment is whole, when that is worth a command. A mark that
    /// is lost costs a start some reading. There is one per [`MARK_BYTES`], so the line stays short.
    pub(super) fn mark(&self, segment: &mut OpenFile) {
        let due = segment.synced_bytes >= segment.marked_bytes + MARK_BYTES;
        if due && self.disk.syncs() {
            segment.marked_bytes = segment.synced_bytes;
            // When nobody takes it the tier stops.
            drop(self.seals.send(SealRequest::Mark(segment.id, segment.synced_bytes)));
        }
    }

    async fn create(&self, class: SegmentClass) -> Result<OpenFile, AppendError> {
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
                    return Ok(OpenFile {
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
                    tracing::error!(segment = %id, %error, "cannot make a segment");
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
                Err(MapError::Overloaded) => tokio::time::sleep(CATALOGUE_RETRY).await,
                Err(MapError::Stopping) => return Err(AppendError::Stopping),
                Err(error @ MapError::Refused(_)) => {
                    tracing::error!(%error, "the catalogue minted no segment");
                    return Err(AppendError::Io);
                }
            }
        }
        Err(AppendError::Io)
    }
}

/// Sends seals to the catalogue, one after the other, until no one can ask for more. Calls `sealed` after
/// each.
pub(super) async fn run_seals(
    map: Arc<dyn SegmentMap>,
    metrics: Arc<Metrics>,
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
                    tracing::debug!(segment = %id, %error, "not marked; a start will read more of it");
                }
            }
            // Whoever asked may have gone.
            SealRequest::Flush(done) => drop(done.send(())),
        }
    }
}

async fn seal(map: &dyn SegmentMap, metrics: &Metrics, id: SegmentId, length: u64) {
    loop {
        match map.seal(id, length).await {
            Ok(()) => return add(&metrics.segments_sealed, 1),
            Err(MapError::Overloaded) => tokio::time::sleep(CATALOGUE_RETRY).await,
            Err(MapError::Stopping) => {
                return tracing::warn!(segment = %id, "not sealed: the catalogue stops; the next start will");
            }
            Err(error @ MapError::Refused(_)) => {
                return tracing::error!(segment = %id, length, %error, "not sealed");
            }
        }
    }
}
