//! Compresses objects that are stored uncompressed and that a rule selects for compression, chunk by chunk.
//!
//! Each chunk is replaced by compare-and-set, so reads and writes of the object continue. A pass that ends in
//! between leaves some chunks compressed and the others to the next pass. Compression takes at most half a
//! core and [`PASS_TIME_MAX`] per pass. The first chunk of an object, or of each of its parts, is the sample,
//! as for a PUT. Objects that gain too little are remembered in memory until the policy changes
//! ([`CompressionMemory`]); after a restart they are tried once more.

use super::PolicyReconciler;
use super::pass_end::PassEnd;
use super::retention_state::RuleActionOutcome;
use mlgw_common::time::Instant;
use mlgw_common::{BodyId, BucketId, ObjectKey, SegmentTier};
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionPlace};
use mlgw_formats::schema::{Encoding, Extent};
use mlgw_objects::compressor::ChunkCompression;
use mlgw_policies::at_rest::CompressAction;
use mlgw_policies::language::ActionKind;
use mlgw_segments::decisions;
use mlgw_segments::hot::AppendError;
use mlgw_segments::hot::{MoveStepError, SegmentReadError};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Time limit of compression in one pass. All other actions of the pass wait meanwhile.
const PASS_TIME_MAX: Duration = Duration::from_secs(10);
/// Chunks of an object that are collected at a time: about 1 MiB at some 80 bytes each.
const CHUNKS_AT_ONCE: usize = 16_384;
/// Maximum number of remembered objects that gain too little. Beyond it the memory is cleared, and all are
/// tried again.
const TRIED_MAX: usize = 250_000;

/// An object of a local bucket that a rule demands to compress.
pub(super) struct CompressionCandidate {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) body: BodyId,
    pub(super) action: CompressAction,
}

/// Memory of bodies, kept between passes.
#[derive(Default)]
pub(super) struct CompressionMemory {
    /// Bodies with chunks that stay uncompressed, because they gain too little or cannot be read.
    stay: HashSet<BodyId>,
    /// Body that the last pass did not finish.
    cut: Option<CompressionPosition>,
}

/// Progress on a body.
#[derive(Clone, Copy)]
struct CompressionPosition {
    body: BodyId,
    /// Number of the next chunk.
    next: usize,
    /// True if an earlier chunk stays uncompressed.
    stays: bool,
    /// True if an earlier chunk was moved or replaced meanwhile: the next pass visits the whole body again.
    is_missed: bool,
}

impl CompressionMemory {
    pub(super) fn contains(&self, body: BodyId) -> bool {
        self.stay.contains(&body)
    }

    /// Returns the position at which to begin a body.
    fn begin(&self, body: BodyId) -> CompressionPosition {
        self.cut.filter(|cut| cut.body == body).unwrap_or(CompressionPosition {
            body,
            next: 0,
            stays: false,
            is_missed: false,
        })
    }

    /// Records the end of a pass within the body.
    fn cut(&mut self, at: CompressionPosition) {
        self.cut = Some(at);
    }

    /// Records the end of the body.
    fn end(&mut self, at: CompressionPosition) {
        self.cut = None;
        if at.stays && !at.is_missed {
            if self.stay.len() >= TRIED_MAX {
                self.stay = HashSet::new();
            }
            self.stay.insert(at.body);
        }
    }
}

/// Returns true if the chunk of an extent could be compressed: it is uncompressed and in the hot tier.
pub(super) fn is_compressible(extent: &Extent, tier: SegmentTier) -> bool {
    tier == SegmentTier::Hot && extent.encoding == Encoding::Raw as i32
}

/// A chunk that is stored uncompressed.
struct UncompressedChunk {
    /// Number of the chunk in the object.
    number: usize,
    /// Number of the body or part that contains the chunk, and true if the chunk is its first one.
    of: (usize, bool),
    extent: Extent,
}

/// Result of compressing a chunk.
enum ChunkOutcome {
    Smaller,
    /// The chunk gains nothing, or as a sample too little.
    NotSmaller,
    /// The chunk was moved or replaced meanwhile.
    Replaced,
    Unreadable,
    /// The chunk cannot be stored now: there is no room, no flash budget, or the append failed.
    NotStored(RuleActionOutcome),
}

/// Result of compressing an object so far.
#[derive(Default)]
struct CompressionTotals {
    /// Bytes before compression of the compressed chunks.
    bytes: u64,
    /// The time limit ended the work before the last chunk.
    is_cut: bool,
    /// A chunk could not be stored, so further attempts are futile now.
    is_refused: bool,
    worst: Option<RuleActionOutcome>,
}

impl PolicyReconciler {
    /// Compresses the objects found, within the time limit. Returns true if there is more work to do
    /// immediately.
    pub(super) async fn compress(&self, found: Vec<CompressionCandidate>) -> Result<bool, PassEnd> {
        let until = Instant::now() + PASS_TIME_MAX;
        let mut sums = BTreeMap::<(BucketId, Arc<str>), (u64, u64)>::new();
        let mut is_more = false;
        for one in found {
            let sum = self.compress_object(&one, until).await?;
            if sum.bytes > 0 {
                let of = sums.entry((one.bucket, one.action.by.rule)).or_default();
                *of = (of.0 + 1, of.1 + sum.bytes);
            }
            if let Some(worst) = sum.worst {
                self.context.retention.count(ActionKind::Compress, worst, 1);
            }
            is_more = sum.is_cut;
            if sum.is_cut || sum.is_refused {
                break;
            }
        }
        for ((bucket, rule), (count, bytes)) in sums {
            self.context.retention.count(ActionKind::Compress, RuleActionOutcome::Done, count);
            let what = DecisionSubject::Objects { bucket, count, prefix: "" };
            let (kind, why, outcome) =
                (DecisionKind::Compress, DecisionCause::rule(&rule), decisions::DecisionOutcome::Done);
            let (from, to) = (DecisionPlace::Hot, DecisionPlace::Hot);
            self.context.decisions.record(&PlacementDecision {
                kind,
                subject: what,
                from,
                to,
                bytes,
                cause: why,
                outcome,
            });
        }
        Ok(is_more)
    }

    async fn compress_object(
        &self,
        one: &CompressionCandidate,
        until: Instant,
    ) -> Result<CompressionTotals, PassEnd> {
        let (mut sum, mut at) =
            (CompressionTotals::default(), self.compression_memory.lock().begin(one.body));
        let (mut part, mut pays) = (0, true);
        loop {
            let chunks = self.uncompressed_chunks(one, at.next).await?;
            if chunks.is_empty() {
                self.compression_memory.lock().end(at);
                return Ok(sum);
            }
            for chunk in chunks {
                assert!(chunk.number >= at.next, "the chunks of a body come in order");
                at.next = chunk.number;
                let (of, is_sample) = chunk.of;
                if of != part {
                    (part, pays) = (of, true);
                }
                let begun = Instant::now();
                if pays && begun >= until {
                    self.compression_memory.lock().cut(at);
                    sum.is_cut = true;
                    return Ok(sum);
                }
                at.next += 1;
                if !pays {
                    continue;
                }
                let CompressAction { level, min_ratio, .. } = one.action;
                let how = match is_sample {
                    true => ChunkCompression::of_sample(level, min_ratio),
                    false => ChunkCompression::of_rest(level),
                };
                match self.compress_chunk(one, &chunk.extent, how).await? {
                    ChunkOutcome::Smaller => sum.bytes += chunk.extent.logical_bytes,
                    ChunkOutcome::NotSmaller => {
                        pays = !is_sample;
                        at.stays = true;
                    }
                    ChunkOutcome::Replaced => at.is_missed = true,
                    ChunkOutcome::Unreadable => {
                        at.stays = true;
                        sum.worst = Some(RuleActionOutcome::Failed);
                    }
                    ChunkOutcome::NotStored(outcome) => {
                        (sum.worst, sum.is_refused) = (Some(outcome), true);
                        at.next = chunk.number;
                        self.compression_memory.lock().cut(at);
                        return Ok(sum);
                    }
                }
                tokio::select! {
                    () = mlgw_common::time::sleep(begun.elapsed()) => {}
                    () = self.stop.cancelled() => return Err(PassEnd::Stopping),
                }
            }
        }
    }

    /// Returns the next uncompressed chunks of an object, from number `from`; empty if the object no longer
    /// exists.
    async fn uncompressed_chunks(
        &self,
        one: &CompressionCandidate,
        from: usize,
    ) -> Result<Vec<UncompressedChunk>, PassEnd> {
        let (stored, bucket, key, body) =
            (self.context.stored.clone(), one.bucket, one.key.clone(), one.body);
        let found = tokio::task::spawn_blocking(move || {
            let (mut found, mut number, mut part) = (Vec::new(), 0, 0);
            let object = stored.catalogue.object(bucket, &key)?.filter(|object| object.body() == body);
            let Some(object) = object else { return Ok(found) };
            stored.each_extent(bucket, &key, &object, &mut |extent, is_first| {
                part += usize::from(is_first);
                if number >= from
                    && found.len() < CHUNKS_AT_ONCE
                    && stored.catalogue.segment(extent.segment_id()).is_some_and(|of| {
                        is_compressible(extent, of.tier) && stored.catalogue.keeps_set(bucket, &key, of.set)
                    })
                {
                    found.push(UncompressedChunk { number, of: (part, is_first), extent: extent.clone() });
                }
                number += 1;
            })?;
            Ok::<_, mlgw_metadata::ReadError>(found)
        });
        Ok(found.await.map_err(|error| PassEnd::Failed(error.to_string()))??)
    }

    async fn compress_chunk(
        &self,
        one: &CompressionCandidate,
        extent: &Extent,
        how: ChunkCompression,
    ) -> Result<ChunkOutcome, PassEnd> {
        let (hot, compressor) = (&self.context.stored.tiers.hot, &self.context.compressor);
        if !hot.flash().can_start_own_write() {
            return Ok(ChunkOutcome::NotStored(RuleActionOutcome::NoRoom));
        }
        let chunk = match hot.read_stored(extent, one.body).await {
            Ok(chunk) => chunk,
            Err(SegmentReadError::Gone { .. }) => return Ok(ChunkOutcome::Replaced),
            Err(error) => {
                tracing::warn!(%error, key = %one.key, "cannot read a chunk; it stays uncompressed");
                return Ok(ChunkOutcome::Unreadable);
            }
        };
        let Some(raw) = chunk.uncompressed() else { return Ok(ChunkOutcome::Replaced) };
        let Some(packed) = compressor.compress_unaccounted(raw, how).await else {
            return Ok(ChunkOutcome::NotSmaller);
        };
        match hot.replace(&self.context.stored.catalogue, chunk, packed.clone()).await {
            Ok(true) => {
                compressor.count_stored(&packed);
                Ok(ChunkOutcome::Smaller)
            }
            Ok(false) => Ok(ChunkOutcome::Replaced),
            Err(MoveStepError::Stopping) => Err(PassEnd::Stopping),
            Err(MoveStepError::Append(AppendError::Full)) => {
                Ok(ChunkOutcome::NotStored(RuleActionOutcome::NoRoom))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot store a compressed chunk");
                Ok(ChunkOutcome::NotStored(RuleActionOutcome::Failed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CompressionMemory, CompressionPosition, TRIED_MAX};
    use mlgw_common::BodyId;

    const fn at(body: u64, next: usize, stays: bool) -> CompressionPosition {
        CompressionPosition { body: BodyId(body), next, stays, is_missed: false }
    }

    #[test]
    fn a_body_resumes_where_the_last_pass_ended_and_others_begin() {
        let mut tried = CompressionMemory::default();
        tried.cut(at(1, 5, true));
        let begin = |tried: &CompressionMemory, body| {
            let CompressionPosition { next, stays, .. } = tried.begin(BodyId(body));
            (next, stays)
        };
        assert_eq!((begin(&tried, 1), begin(&tried, 2)), ((5, true), (0, false)));
        assert!(!tried.contains(BodyId(1)), "the body has more chunks");
        tried.end(at(1, 9, true));
        assert!(tried.contains(BodyId(1)) && begin(&tried, 1) == (0, false));
        tried.end(at(2, 9, false));
        assert!(!tried.contains(BodyId(2)), "the whole body is compressed");
        tried.end(CompressionPosition { is_missed: true, ..at(3, 9, true) });
        assert!(!tried.contains(BodyId(3)), "moved data may become smaller");
    }

    #[test]
    fn the_memory_of_tried_bodies_is_limited() {
        let mut tried = CompressionMemory::default();
        for body in 0..TRIED_MAX as u64 {
            tried.end(at(body, 1, true));
        }
        assert!(tried.contains(BodyId(0)) && tried.contains(BodyId(TRIED_MAX as u64 - 1)));
        tried.end(at(u64::MAX, 1, true));
        assert!(tried.contains(BodyId(u64::MAX)) && !tried.contains(BodyId(0)));
    }
}
