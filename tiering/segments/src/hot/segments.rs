//! Lifecycle of a segment as seen by its writer: created, marked, sealed.
//!
//! Creation: the catalogue allocates an id, then the file is written and synced, then its directory; only
//! then are records written. At a power loss in between, recovery finds an open segment with no file or an
//! empty one, and seals it. Marks, from time to time: the length that recovery need not read. Seal: a command
//! with the synced length. One task sends marks and seals; it repeats a seal until the catalogue accepts it
//! or stops. Recovery replaces seals that were lost with the process.
//!
//! A segment belongs to a set of nodes: that of its writer. Its followers are nodes of the set.
//!
//! In a cluster with other storage nodes a segment has followers, which create their files at the same time.
//! Records are appended once all of them have. The module `replicas` decides what is acknowledged.

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join;
use mlgw_common::Clock;
use mlgw_common::Identity;
use mlgw_common::ids::{NodeId, SegmentId, SegmentSeed};
use mlgw_common::limits::MARK_BYTES;
use mlgw_common::time::Instant;
use mlgw_formats::schema::SegmentClass;
use tokio::sync::{mpsc, oneshot};

use super::AppendError;
use super::direct::DirectFile;
use super::file::SegmentDisk;
use super::holds::{SegmentHold, SegmentHolds};
use super::map::{MapError, NewSegment, SegmentMap};
use super::queue::AppendQueue;
use super::replicas::appends::ReplicatedAppends;
use super::replicas::link::OpenedLink;
use super::replicas::primary::ReplicatedSegment;
use super::seals::SealRequest;
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// Pause before a command is repeated that the overloaded catalogue postponed.
const CATALOGUE_RETRY: Duration = Duration::from_millis(100);
/// Attempts to create a segment before appends fail.
const CREATE_ATTEMPTS: usize = 2;
/// Attempts to get a segment id while the catalogue is overloaded: two seconds in total.
const MINT_ATTEMPTS: usize = 20;
/// Time for which the creation of a segment waits for enough followers.
const FOLLOWERS_WAIT_MAX: Duration = Duration::from_secs(3);
/// Pause after a segment whose followers did not open it: each attempt takes a segment id.
const FOLLOWERS_PAUSE: Duration = Duration::from_millis(100);

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
    /// Its followers; `None` if the segment has one replica.
    pub(super) replicated: Option<Arc<ReplicatedSegment>>,
}

impl WritableSegment {
    /// True if the segment takes more records.
    pub(super) fn takes_appends(&self) -> bool {
        self.replicated.as_ref().is_none_or(|replicated| replicated.takes_appends())
    }
}

/// Reason for which a segment that has an id cannot be written.
enum CreateFault {
    /// The own file was not created.
    File(io::Error),
    /// A follower did not create its file, or the segment was closed meanwhile.
    Followers,
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
    /// `None` if no segment has followers.
    pub(super) appends: Option<Arc<ReplicatedAppends>>,
}

impl SegmentLifecycle {
    /// Starts the creation of a segment for the writer of a queue; a thread can wait for the result.
    pub(super) fn prepare(
        self: &Arc<Self>,
        class: SegmentClass,
        set: u32,
        writer: &Arc<AppendQueue>,
        runtime: &tokio::runtime::Handle,
    ) -> oneshot::Receiver<Result<WritableSegment, AppendError>> {
        let (ready, answer) = oneshot::channel();
        let (segments, writer) = (self.clone(), Arc::downgrade(writer));
        runtime.spawn(async move {
            let made = segments.create(class, set, &writer).await;
            if let Err(Ok(unwanted)) = ready.send(made) {
                segments.retire(unwanted);
            }
        });
        answer
    }

    /// Seals a segment that gets no more records, at the length that is acknowledged. With followers, when
    /// those in step have everything, without waiting for it.
    pub(super) fn retire(&self, segment: WritableSegment) {
        if let Some(direct) = &segment.direct {
            SegmentDisk::trim_padding(&segment.file, segment.id, direct.end());
        }
        match &segment.replicated {
            Some(replicated) => replicated.request_seal(),
            None => self.seal(segment.id, segment.synced_bytes),
        }
    }

    /// Requests the seal of a segment without followers, or without records. The channel needs no bound: it
    /// holds at most as many seals as segments were open or failed.
    fn seal(&self, id: SegmentId, length: u64) {
        assert!(length == 0 || length >= SEGMENT_HEADER_BYTES, "a segment is sealed whole or empty");
        if self.seals.send(SealRequest::Seal { id, length, replicas: Vec::new() }).is_err() {
            tracing::warn!(segment = %id,
                "segment not sealed because the tier has stopped; the next start seals it");
        }
    }

    /// Ends the appends to a segment with followers, because another node closes its replicas: waits for the
    /// write in progress and returns the synced length. `None` if this process has no such segment open; then
    /// it never opens it.
    pub(super) async fn close_local(&self, segment: SegmentId) -> Option<u64> {
        let open = self.appends.as_ref()?.find_or_close(segment)?;
        self.holds.give_up(segment);
        Some(open.close().await)
    }

    /// Waits a limited time for the seals of segments with followers, whose writers have ended.
    pub(super) async fn finish(&self) {
        if let Some(appends) = &self.appends {
            appends.finish().await;
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

    async fn create(
        &self,
        class: SegmentClass,
        set: u32,
        writer: &Weak<AppendQueue>,
    ) -> Result<WritableSegment, AppendError> {
        let until = Instant::now() + FOLLOWERS_WAIT_MAX;
        let mut attempt = 1;
        loop {
            let followers = self.followers(class, set, until).await?;
            match self.try_create(class, set, &followers, writer).await? {
                Ok(segment) => return Ok(segment),
                Err(CreateFault::File(error)) => {
                    if attempt == CREATE_ATTEMPTS {
                        return Err(AppendError::from_io(&error));
                    }
                    attempt += 1;
                }
                Err(CreateFault::Followers) => {
                    if Instant::now() + FOLLOWERS_PAUSE > until {
                        return Err(AppendError::NoQuorum);
                    }
                    mlgw_common::time::sleep(FOLLOWERS_PAUSE).await;
                }
            }
        }
    }

    /// Returns the followers of a new segment; none if it has one replica.
    async fn followers(
        &self,
        class: SegmentClass,
        set: u32,
        until: Instant,
    ) -> Result<Vec<NodeId>, AppendError> {
        match &self.appends {
            Some(appends) if class != SegmentClass::Scratch && self.map.is_replicated() => {
                appends.followers(class, set, until).await
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Creates a segment on this node and its followers. One that cannot be written is sealed empty.
    async fn try_create(
        &self,
        class: SegmentClass,
        set: u32,
        followers: &[NodeId],
        writer: &Weak<AppendQueue>,
    ) -> Result<Result<WritableSegment, CreateFault>, AppendError> {
        let write_quorum = self.appends.as_ref().map_or(0, |appends| appends.write_quorum(followers.len()));
        let minted = self.mint(class, set, followers, write_quorum).await?;
        let NewSegment { id, seed, .. } = minted;
        let header = SegmentHeader::of(&minted, class, &self.owner);
        let disk = self.disk.clone();
        let make = move || disk.create(&header).map(|file| (file, disk.direct(&header)));
        let (made, links) =
            join(tokio::task::spawn_blocking(make), self.open_links(followers, &header)).await;
        let (file, direct) = match made.unwrap_or_else(|stopped| Err(io::Error::other(stopped))) {
            Ok(made) => made,
            Err(error) => {
                tracing::error!(segment = %id, %error, "failed to create a segment");
                self.seal(id, 0);
                return Ok(Err(CreateFault::File(error)));
            }
        };
        let replicated = match &self.appends {
            Some(appends) if !followers.is_empty() => {
                // A listed replica without a file then always means a lost disk, to a recovery.
                let are_all_open = links.len() == followers.len();
                let open =
                    if are_all_open { appends.begin(id, links, write_quorum, writer.clone()) } else { None };
                let Some(open) = open else {
                    self.seal(id, 0);
                    return Ok(Err(CreateFault::Followers));
                };
                Some(open)
            }
            _ => None,
        };
        Ok(Ok(WritableSegment {
            id,
            seed,
            file,
            direct,
            synced_bytes: SEGMENT_HEADER_BYTES,
            floor: 0,
            marked_bytes: 0,
            hold: self.holds.begin(id),
            replicated,
        }))
    }

    async fn open_links(&self, followers: &[NodeId], header: &SegmentHeader) -> Vec<OpenedLink> {
        match &self.appends {
            Some(appends) if !followers.is_empty() => appends.open_links(followers, header).await,
            _ => Vec::new(),
        }
    }

    async fn mint(
        &self,
        class: SegmentClass,
        set: u32,
        followers: &[NodeId],
        write_quorum: usize,
    ) -> Result<NewSegment, AppendError> {
        let quorum = u32::try_from(write_quorum).expect("a segment has a few replicas");
        let _creating = match &self.appends {
            Some(appends) => Some(appends.begin_creation().await),
            None => None,
        };
        for _ in 0..MINT_ATTEMPTS {
            match self.map.create(class, set, followers.to_vec(), quorum).await {
                Ok(minted) => {
                    if let Some(appends) = &self.appends {
                        appends.add_created(minted.id);
                    }
                    return Ok(minted);
                }
                Err(MapError::Overloaded) => mlgw_common::time::sleep(CATALOGUE_RETRY).await,
                Err(MapError::Stopping) => return Err(AppendError::Stopping),
                Err(error @ (MapError::Refused(_) | MapError::SealedElsewhere)) => {
                    tracing::error!(%error, "the catalogue did not create a segment");
                    return Err(AppendError::Io);
                }
            }
        }
        Err(AppendError::Io)
    }
}
