//! Stores a segment at an upstream.
//!
//! Only intact segments are stored: the file is read through first, and a segment with bytes that belong to
//! no intact record stays local, where scrub and salvage can read it. So a fetched segment must be intact,
//! too. The object is added to the leftovers before any byte is sent.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use mlgw_formats::schema::{Replica, SegmentRecord};
use parking_lot::Mutex;

use super::driver::{note, wait};
use crate::fair::Fair;
use crate::hot::Inner;
use crate::hot::away::Unfinished;
use crate::hot::catalogue::UPSTREAM;
use crate::hot::compaction::{StepError, blocking};
use crate::hot::map::Whereabouts;
use crate::hot::pace::Pace;
use crate::hot::scan::{BeforeRead, Scan};
use mlgw_remote::upstream::{ObjectId, ReplicaKey, Resumed, SegmentObject, Upstream, Wait};

/// Stores the segment of `record`, whose file is at `from`. Returns its new location, and `pace`.
pub(super) async fn store(
    inner: &Arc<Inner>,
    record: &SegmentRecord,
    from: &Replica,
    pace: Pace,
) -> Result<(Result<Replica, StepError>, Pace), StepError> {
    let pace = prove_whole(inner, record, from.tier, pace).await?;
    Ok((store_whole(inner, record, from).await, pace))
}

async fn store_whole(
    inner: &Arc<Inner>,
    record: &SegmentRecord,
    from: &Replica,
) -> Result<Replica, StepError> {
    let segment = record.segment_id();
    let upstream = inner.away.target().ok_or_else(|| io::Error::other("no upstream is spilled to"))?;
    let target = Target::of(inner, record, upstream).await?;
    let (of, place) = (inner.clone(), Whereabouts { tier: from.tier, ..Whereabouts::of(record) });
    let file = blocking(move || Ok(of.volumes.dirs().open_own(segment, &place)?)).await?;
    let Target { id, key, sealed_key, upload } = target;
    let object =
        SegmentObject { id, generation: record.seed().generation, bytes: record.length, key: key.as_ref() };
    let unfinished = |upload| Unfinished {
        upload,
        generation: record.generation,
        bytes: record.length,
        sealed_key: sealed_key.clone(),
        begun_ms: inner.shared.segments.clock.now().as_millis(),
    };
    let note = |upload| note_upload(inner.clone(), upstream.name().to_owned(), id, unfinished(upload));
    let resumed = Resumed { id: upload, note: Box::new(note) };
    // The bytes were throttled when they were verified; sending is limited by the upstream's own budget.
    let stored = upstream.put_segment(&object, file, resumed, &mut |_| Box::pin(async { Ok(()) })).await;
    stored.map_err(io::Error::other)?;
    let location = upstream.name().to_owned();
    let (copy, incarnation) = (id.copy, id.incarnation.0);
    Ok(Replica { node: from.node, tier: UPSTREAM, location, copy, sealed_key, incarnation })
}

/// The object as which a segment is stored.
struct Target {
    id: ObjectId,
    key: Option<ReplicaKey>,
    sealed_key: Vec<u8>,
    /// Id of an earlier upload to resume.
    upload: Option<String>,
}

impl Target {
    /// Returns an object whose upload was interrupted, or else a new one, which is added to the leftovers.
    async fn of(inner: &Arc<Inner>, record: &SegmentRecord, upstream: &Upstream) -> Result<Self, StepError> {
        let segment = record.segment_id();
        let encrypts = upstream.encrypts();
        let left = inner.leftovers.lock().await.unfinished(upstream.name(), record, encrypts);
        // Another server with a copy of this directory may resume the same upload: the ownership mark admits
        // only one of them.
        let may_resume = left.is_some() && upstream.may_destroy().await.is_ok();
        if let Some((id, Unfinished { upload, sealed_key, .. })) = left.filter(|_| may_resume) {
            let key = encrypts.then(|| inner.away.open(segment, &sealed_key)).transpose();
            match key {
                Ok(key) => return Ok(Self { id, key, sealed_key, upload: Some(upload) }),
                Err(error) => tracing::warn!(%segment, %error, "an upload is not gone on with"),
            }
        }
        let incarnation = inner.shared.segments.owner.incarnation;
        let id = ObjectId::fresh(segment, incarnation).map_err(io::Error::other)?;
        let key = encrypts.then(ReplicaKey::fresh).transpose().map_err(io::Error::other)?;
        let sealed_key = match &key {
            Some(key) => inner.away.seal(segment, key)?,
            None => Vec::new(),
        };
        note(inner, upstream.name().to_owned(), id).await?;
        Ok(Self { id, key, sealed_key, upload: None })
    }
}

/// Adds a started upload to the leftovers.
fn note_upload(inner: Arc<Inner>, upstream: String, id: ObjectId, upload: Unfinished) -> Wait {
    Box::pin(async move {
        let mut leftovers = inner.leftovers.clone().lock_owned().await;
        let noted = tokio::task::spawn_blocking(move || leftovers.note_upload(&upstream, id, upload));
        noted.await.map_err(io::Error::other)?
    })
}

/// Verifies the file of a segment; returns `pace`.
async fn prove_whole(
    inner: &Arc<Inner>,
    record: &SegmentRecord,
    tier: u32,
    pace: Pace,
) -> Result<Pace, StepError> {
    let (of, record) = (inner.clone(), record.clone());
    let rate = inner.placing.settings().bytes_per_second;
    let pace = Arc::new(Mutex::new(pace));
    let given = pace.clone();
    blocking(move || {
        let place = Whereabouts { tier, ..Whereabouts::of(&record) };
        let file = of.volumes.dirs().open_own(record.segment_id(), &place)?;
        let places = of.shared.queues.of_tier(tier).clone();
        let before = move |_: &File, _, bytes| {
            let due = given.lock().due(Instant::now(), bytes, rate);
            wait(&of, due)
        };
        Ok(prove(file, &record, places, Some(Box::new(before)))?)
    })
    .await?;
    let mut pace = pace.lock();
    Ok(std::mem::take(&mut *pace))
}

/// Reads a segment's file through: up to its sealed length it must consist of intact records without gaps.
pub(super) fn prove(
    file: File,
    record: &SegmentRecord,
    places: Fair,
    before: Option<BeforeRead>,
) -> io::Result<()> {
    let scan = Scan::new(file, record.segment_id(), record.seed(), 0)?.in_background(places);
    let scan = match before {
        Some(before) => scan.paced(before),
        None => scan,
    };
    let found = scan.survey(&mut |_| {})?;
    if found.damaged_bytes == 0 && found.length >= record.length {
        return Ok(());
    }
    let what = format!(
        "it is not whole: {} of its first {} bytes belong to no intact record",
        found.damaged_bytes + record.length.saturating_sub(found.length),
        record.length
    );
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}
