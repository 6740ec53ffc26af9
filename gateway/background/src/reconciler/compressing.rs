//! Compresses objects that are stored uncompressed and that a rule selects for compression, chunk by chunk.
//!
//! Each chunk is replaced by compare-and-set, so reads and writes of the object continue. A pass that ends in
//! between leaves some chunks compressed and the others to the next pass. Compression takes at most half a
//! core and [`AT_WORK_MAX`] per pass. The first chunk of an object, or of each of its parts, is the sample,
//! as for a PUT. Objects that gain too little are remembered in memory until the policy changes ([`Tried`]);
//! after a restart they are tried once more.

use super::Acting;
use super::standing::Outcome;
use super::walk::{Ended, HOT};
use mlgw_common::{BodyId, BucketId, ObjectKey};
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::{Kind, Place};
use mlgw_formats::schema::{Encoding, Extent};
use mlgw_objects::compressor::How;
use mlgw_policies::at_rest::Compress;
use mlgw_policies::language::ActionKind;
use mlgw_segments::decisions;
use mlgw_segments::hot::AppendError;
use mlgw_segments::hot::{ReadError, StepError};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time limit of compression in one pass. All other actions of the pass wait meanwhile.
const AT_WORK_MAX: Duration = Duration::from_secs(10);
/// Chunks of an object that are collected at a time: about 1 MiB at some 80 bytes each.
const CHUNKS_AT_ONCE: usize = 16_384;
/// Maximum number of remembered objects that gain too little. Beyond it the memory is cleared, and all are
/// tried again.
const TRIED_MAX: usize = 250_000;

/// An object of an own bucket that a rule demands to compress.
pub(super) struct Loose {
    pub(super) bucket: BucketId,
    pub(super) key: ObjectKey,
    pub(super) body: BodyId,
    pub(super) deed: Compress,
}

/// Memory of bodies, kept between passes.
#[derive(Default)]
pub(super) struct Tried {
    /// Bodies with chunks that stay uncompressed, because they gain too little or cannot be read.
    stay: HashSet<BodyId>,
    /// Body that the last pass did not finish.
    cut: Option<Cut>,
}

/// Progress on a body.
#[derive(Clone, Copy)]
struct Cut {
    body: BodyId,
    /// Number of the next chunk.
    next: usize,
    /// True if an earlier chunk stays uncompressed.
    stays: bool,
    /// True if an earlier chunk was moved or replaced meanwhile: the next pass visits the whole body again.
    is_missed: bool,
}

impl Tried {
    pub(super) fn contains(&self, body: BodyId) -> bool {
        self.stay.contains(&body)
    }

    /// Returns the position at which to begin a body.
    fn begin(&self, body: BodyId) -> Cut {
        self.cut.filter(|cut| cut.body == body).unwrap_or(Cut {
            body,
            next: 0,
            stays: false,
            is_missed: false,
        })
    }

    /// Records the end of a pass within the body (`is_cut`), or the end of the body.
    fn end(&mut self, at: Cut, is_cut: bool) {
        self.cut = is_cut.then_some(at);
        if at.stays && !is_cut && !at.is_missed {
            if self.stay.len() >= TRIED_MAX {
                self.stay = HashSet::new();
            }
            self.stay.insert(at.body);
        }
    }
}

/// Returns true if the chunk of an extent could be compressed: it is uncompressed and in the hot tier.
pub(super) fn is_loose(extent: &Extent, tier: u32) -> bool {
    tier == HOT && extent.encoding == Encoding::Raw as i32
}

/// A chunk that is stored uncompressed.
struct LooseChunk {
    /// Number of the chunk in the object.
    number: usize,
    /// Number of the body or part that contains the chunk, and true if the chunk is its first one.
    of: (usize, bool),
    extent: Extent,
}

/// Result of compressing a chunk.
enum Became {
    Smaller,
    /// The chunk gains nothing, or as a sample too little.
    NoSmaller,
    /// The chunk was moved or replaced meanwhile.
    Elsewhere,
    Unreadable,
    /// The chunk cannot be stored now: there is no room, no flash budget, or the append failed.
    NotStored(Outcome),
}

/// Result of compressing an object so far.
#[derive(Default)]
struct Sum {
    /// Bytes before compression of the compressed chunks.
    bytes: u64,
    /// The time limit ended the work before the last chunk.
    is_cut: bool,
    /// A chunk could not be stored, so further attempts are futile now.
    is_refused: bool,
    worst: Option<Outcome>,
}

impl Acting {
    /// Compresses the objects found, within the time limit. Returns true if there is more work to do
    /// immediately.
    pub(super) async fn compress(&self, found: Vec<Loose>) -> Result<bool, Ended> {
        let until = Instant::now() + AT_WORK_MAX;
        let mut sums = BTreeMap::<(BucketId, Arc<str>), (u64, u64)>::new();
        let mut is_more = false;
        for one in found {
            let sum = self.compress_object(&one, until).await?;
            if sum.bytes > 0 {
                let of = sums.entry((one.bucket, one.deed.by.rule)).or_default();
                *of = (of.0 + 1, of.1 + sum.bytes);
            }
            if let Some(worst) = sum.worst {
                self.context.standing.count(ActionKind::Compress, worst, 1);
            }
            is_more = sum.is_cut;
            if sum.is_cut || sum.is_refused {
                break;
            }
        }
        for ((bucket, rule), (count, bytes)) in sums {
            self.context.standing.count(ActionKind::Compress, Outcome::Done, count);
            let what = What::Objects { bucket, count, prefix: "" };
            let (kind, why, outcome) = (Kind::Compress, Why::rule(&rule), decisions::Outcome::Done);
            let (from, to) = (Place::Hot, Place::Hot);
            self.context.decisions.record(&Decided { kind, what, from, to, bytes, why, outcome });
        }
        Ok(is_more)
    }

    async fn compress_object(&self, one: &Loose, until: Instant) -> Result<Sum, Ended> {
        let (mut sum, mut at) = (Sum::default(), self.tried.lock().begin(one.body));
        let (mut part, mut pays) = (0, true);
        loop {
            let chunks = self.loose_chunks(one, at.next).await?;
            if chunks.is_empty() {
                self.tried.lock().end(at, false);
                return Ok(sum);
            }
            for chunk in chunks {
                at.next = chunk.number;
                let (of, is_sample) = chunk.of;
                if of != part {
                    (part, pays) = (of, true);
                }
                let begun = Instant::now();
                if pays && begun >= until {
                    self.tried.lock().end(at, true);
                    sum.is_cut = true;
                    return Ok(sum);
                }
                at.next += 1;
                if !pays {
                    continue;
                }
                match self.compress_chunk(one, &chunk.extent, is_sample).await? {
                    Became::Smaller => sum.bytes += chunk.extent.logical_bytes,
                    Became::NoSmaller => {
                        pays = !is_sample;
                        at.stays = true;
                    }
                    Became::Elsewhere => at.is_missed = true,
                    Became::Unreadable => {
                        at.stays = true;
                        sum.worst = Some(Outcome::Failed);
                    }
                    Became::NotStored(outcome) => {
                        (sum.worst, sum.is_refused) = (Some(outcome), true);
                        at.next = chunk.number;
                        self.tried.lock().end(at, true);
                        return Ok(sum);
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(begun.elapsed()) => {}
                    () = self.stop.cancelled() => return Err(Ended::Stopping),
                }
            }
        }
    }

    /// Returns the next uncompressed chunks of an object, from number `from`; empty if the object no longer
    /// exists.
    async fn loose_chunks(&self, one: &Loose, from: usize) -> Result<Vec<LooseChunk>, Ended> {
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
                    && stored
                        .catalogue
                        .segment(extent.segment_id())
                        .is_some_and(|of| is_loose(extent, of.tier))
                {
                    found.push(LooseChunk { number, of: (part, is_first), extent: extent.clone() });
                }
                number += 1;
            })?;
            Ok::<_, mlgw_metadata::ReadError>(found)
        });
        Ok(found.await.map_err(|error| Ended::Failed(error.to_string()))??)
    }

    async fn compress_chunk(&self, one: &Loose, extent: &Extent, is_sample: bool) -> Result<Became, Ended> {
        let (hot, compressor) = (&self.context.stored.tiers.hot, &self.context.compressor);
        if !hot.flash().allows() {
            return Ok(Became::NotStored(Outcome::NoRoom));
        }
        let chunk = match hot.stored(extent, one.body).await {
            Ok(chunk) => chunk,
            Err(ReadError::Gone { .. }) => return Ok(Became::Elsewhere),
            Err(error) => {
                tracing::warn!(%error, key = %one.key, "a chunk cannot be read and is not compressed");
                return Ok(Became::Unreadable);
            }
        };
        let Some(raw) = chunk.raw() else { return Ok(Became::Elsewhere) };
        let how = How::of(one.deed.level, one.deed.min_ratio, is_sample);
        let Some(packed) = compressor.compress_unheld(raw, how).await else {
            return Ok(Became::NoSmaller);
        };
        match hot.replace(&self.context.stored.catalogue, chunk, packed.clone()).await {
            Ok(true) => {
                compressor.stored(&packed);
                Ok(Became::Smaller)
            }
            Ok(false) => Ok(Became::Elsewhere),
            Err(StepError::Stopping) => Err(Ended::Stopping),
            Err(StepError::Append(AppendError::Full)) => Ok(Became::NotStored(Outcome::NoRoom)),
            Err(error) => {
                tracing::warn!(%error, "what is compressed is not stored");
                Ok(Became::NotStored(Outcome::Failed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cut, TRIED_MAX, Tried};
    use mlgw_common::BodyId;

    const fn at(body: u64, next: usize, stays: bool) -> Cut {
        Cut { body: BodyId(body), next, stays, is_missed: false }
    }

    #[test]
    fn a_body_resumes_where_the_last_pass_ended_and_others_begin() {
        let mut tried = Tried::default();
        tried.end(at(1, 5, true), true);
        let begin = |tried: &Tried, body| {
            let Cut { next, stays, .. } = tried.begin(BodyId(body));
            (next, stays)
        };
        assert_eq!((begin(&tried, 1), begin(&tried, 2)), ((5, true), (0, false)));
        assert!(!tried.contains(BodyId(1)), "there is more of it");
        tried.end(at(1, 9, true), false);
        assert!(tried.contains(BodyId(1)) && begin(&tried, 1) == (0, false));
        tried.end(at(2, 9, false), false);
        assert!(!tried.contains(BodyId(2)), "all of it is compressed");
        tried.end(Cut { is_missed: true, ..at(3, 9, true) }, false);
        assert!(!tried.contains(BodyId(3)), "what was moved meanwhile may gain");
    }

    #[test]
    fn the_memory_of_tried_bodies_is_limited() {
        let mut tried = Tried::default();
        for body in 0..TRIED_MAX as u64 {
            tried.end(at(body, 1, true), false);
        }
        assert!(tried.contains(BodyId(0)) && tried.contains(BodyId(TRIED_MAX as u64 - 1)));
        tried.end(at(u64::MAX, 1, true), false);
        assert!(tried.contains(BodyId(u64::MAX)) && !tried.contains(BodyId(0)));
    }
}
