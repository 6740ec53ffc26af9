//! Stores a segment at an upstream.
//!
//! Only intact segments are stored: the file is read through first, and a segment with bytes that belong to
//! no intact record stays local, where scrub and salvage can read it. So a fetched segment must be intact,
//! too. The object is added to the leftovers before any byte is sent.

use mlgw_common::time::Instant;
use std::fs::File;
use std::io;
use std::sync::Arc;

use mlgw_formats::schema::{Replica, SegmentRecord};

use super::leftover_objects::add_leftover;
use super::stoppable_wait::wait;
use crate::fair::DiskQueue;
use crate::hot::HotTierInner;
use crate::hot::compaction::{MoveStepError, blocking};
use crate::hot::map::SegmentLocation;
use crate::hot::pace::ByteRateLimiter;
use crate::hot::remote_tier::UnfinishedUpload;
use crate::hot::scan::{BeforeRead, SegmentScan};
use mlgw_common::SegmentTier;
use mlgw_remote::upstream::{
    ObjectId, ReplicaKey, SegmentObject, ThrottleFuture, UploadResumption, Upstream,
};

/// Stores the segment of `record`, whose file is at `from`. Returns its new location.
pub(super) async fn store(
    inner: &Arc<HotTierInner>,
    record: &SegmentRecord,
    from: &Replica,
    pace: &Arc<ByteRateLimiter>,
) -> Result<Replica, MoveStepError> {
    let tier = from.tier().map_err(io::Error::other)?;
    verify_segment(inner, record, tier, pace).await?;
    store_verified(inner, record, from, tier).await
}

async fn store_verified(
    inner: &Arc<HotTierInner>,
    record: &SegmentRecord,
    from: &Replica,
    tier: SegmentTier,
) -> Result<Replica, MoveStepError> {
    let segment = record.segment_id();
    let upstream = inner
        .remote_tier
        .spill_target()
        .ok_or_else(|| io::Error::other("no upstream is configured for spilling"))?;
    let target = SpillTarget::of(inner, record, upstream).await?;
    let (of, place) = (inner.clone(), SegmentLocation::of(record, tier));
    let file = blocking(move || Ok(of.volumes.dirs().open_verified(segment, &place)?)).await?;
    let SpillTarget { id, key, sealed_key, upload } = target;
    let object =
        SegmentObject { id, generation: record.seed().generation, bytes: record.length, key: key.as_ref() };
    let unfinished = |upload| UnfinishedUpload {
        upload,
        generation: record.generation,
        bytes: record.length,
        sealed_key: sealed_key.clone(),
        begun_ms: inner.shared.segments.clock.now().as_millis(),
    };
    let note =
        |upload| add_leftover_upload(inner.clone(), upstream.name().to_owned(), id, unfinished(upload));
    let resumed = UploadResumption { upload_id: upload, record_id: Box::new(note) };
    // The bytes were throttled when they were verified; sending is limited by the upstream's own budget.
    let stored = upstream.put_segment(&object, file, resumed, &mut |_| Box::pin(async { Ok(()) })).await;
    stored.map_err(io::Error::other)?;
    let location = upstream.name().to_owned();
    let (copy, incarnation) = (id.copy, id.incarnation.0);
    Ok(Replica {
        node: from.node,
        tier: SegmentTier::Upstream.number(),
        location,
        copy,
        sealed_key,
        incarnation,
        ..Replica::default()
    })
}

/// The object as which a segment is stored.
struct SpillTarget {
    id: ObjectId,
    key: Option<ReplicaKey>,
    sealed_key: Vec<u8>,
    /// Id of an earlier upload to resume.
    upload: Option<String>,
}

impl SpillTarget {
    /// Returns an object whose upload was interrupted, or else a new one, which is added to the leftovers.
    async fn of(
        inner: &Arc<HotTierInner>,
        record: &SegmentRecord,
        upstream: &Upstream,
    ) -> Result<Self, MoveStepError> {
        let segment = record.segment_id();
        let encrypts = upstream.encrypts();
        let left = inner.leftovers.lock().await.unfinished(upstream, record);
        // Another server with a copy of this directory may resume the same upload: the ownership mark admits
        // only one of them.
        let may_resume = left.is_some() && upstream.check_may_delete().await.is_ok();
        if let Some((id, UnfinishedUpload { upload, sealed_key, .. })) = left.filter(|_| may_resume) {
            let key = encrypts.then(|| inner.remote_tier.open(segment, &sealed_key)).transpose();
            match key {
                Ok(key) => return Ok(Self { id, key, sealed_key, upload: Some(upload) }),
                Err(error) => tracing::warn!(%segment, %error, "cannot resume an upload"),
            }
        }
        let incarnation = inner.shared.segments.owner.incarnation;
        let id = ObjectId::new_random(segment, incarnation).map_err(io::Error::other)?;
        let key = encrypts.then(ReplicaKey::new_random).transpose().map_err(io::Error::other)?;
        let sealed_key = match &key {
            Some(key) => inner.remote_tier.seal(segment, key)?,
            None => Vec::new(),
        };
        add_leftover(inner, upstream.name().to_owned(), id).await?;
        Ok(Self { id, key, sealed_key, upload: None })
    }
}

/// Adds a started upload to the leftovers.
fn add_leftover_upload(
    inner: Arc<HotTierInner>,
    upstream: String,
    id: ObjectId,
    upload: UnfinishedUpload,
) -> ThrottleFuture {
    Box::pin(async move {
        let mut leftovers = inner.leftovers.clone().lock_owned().await;
        let added = tokio::task::spawn_blocking(move || leftovers.add_upload(&upstream, id, upload));
        added.await.map_err(io::Error::other)?
    })
}

/// Verifies the file of a segment.
async fn verify_segment(
    inner: &Arc<HotTierInner>,
    record: &SegmentRecord,
    tier: SegmentTier,
    pace: &Arc<ByteRateLimiter>,
) -> Result<(), MoveStepError> {
    let (of, record, pace) = (inner.clone(), record.clone(), pace.clone());
    let rate = inner.placing.settings().bytes_per_second;
    blocking(move || {
        let place = SegmentLocation::of(&record, tier);
        let file = of.volumes.dirs().open_verified(record.segment_id(), &place)?;
        let places = of.shared.queues.for_tier(tier).clone();
        let before = move |_: &File, _, bytes| wait(&of, pace.due_at(Instant::now(), bytes, rate));
        Ok(verify_file(file, &record, places, Some(Box::new(before)))?)
    })
    .await
}

/// Reads a segment's file through: up to its sealed length it must consist of intact records without gaps.
pub(super) fn verify_file(
    file: File,
    record: &SegmentRecord,
    places: DiskQueue,
    before: Option<BeforeRead>,
) -> io::Result<()> {
    let scan = SegmentScan::new(file, record.segment_id(), record.seed(), 0)?.with_disk_queue(places);
    let scan = match before {
        Some(before) => scan.with_throttle(before),
        None => scan,
    };
    let found = scan.survey(&mut |_| {})?;
    if found.damaged_bytes == 0 && found.length >= record.length {
        return Ok(());
    }
    let what = format!(
        "it is incomplete: {} of its first {} bytes belong to no intact record",
        found.damaged_bytes + record.length.saturating_sub(found.length),
        record.length
    );
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}
