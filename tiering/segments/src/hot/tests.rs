//! Tests of the segment store as a whole, on real files, with a segment map in memory.

mod append;
mod bench;
mod compaction;
mod cost;
mod crash;
mod faults;
mod flash;
mod model;
mod placing;
mod placing_model;
mod reading;
mod relocating;
mod remote_tier;
mod replacing;
mod replicas;
mod scrub;
mod separation;
mod sets;
mod soak_model;
mod space_wait;
mod start_time;

use crate::fair::Lane;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mlgw_common::clock::ManualClock;
use mlgw_common::ids::{BodyId, BucketId, Generation, NodeId, SegmentId, SegmentSeed, SegmentStamp};
use mlgw_common::{ObjectKey, SegmentTier, Timestamp};
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{Extent, Replica, SegmentClass};
use parking_lot::Mutex;

use super::map::{BoxFuture, MapError, NewSegment, OpenSegment, SegmentLocation, SegmentMap};
use super::{Chunk, HotOptions, HotTier, Placement};
use mlgw_formats::segment_payload::Payload;

/// Seed of every segment of the map.
pub(super) const SEED: SegmentSeed =
    SegmentSeed { generation: Generation(1), stamp: SegmentStamp(0x1122_3344_5566_7788) };

/// A simple segment map in memory: the segments that were created, and their sealed lengths.
#[derive(Default)]
pub(crate) struct MemoryMap {
    segments: Mutex<BTreeMap<u64, (SegmentClass, Option<u64>)>>,
    marked: Mutex<BTreeMap<u64, u64>>,
    /// Log entries on stable media.
    synced: AtomicU64,
    /// Sets of the segments, and of the node once there are some.
    pub(super) sets: Mutex<MapSets>,
}

/// Sets of nodes in a [`MemoryMap`].
#[derive(Clone, Default)]
pub(super) struct MapSets {
    /// Set of each segment.
    of_segments: BTreeMap<u64, u32>,
    /// The sets of the node; `None` while there are no sets.
    pub(super) own: Option<BTreeSet<u32>>,
    /// Set for the chunks of each key; the first one for all others.
    pub(super) of_keys: BTreeMap<String, u32>,
    /// Sets to whose segments no key may refer.
    pub(super) ended: BTreeSet<u32>,
}

impl MemoryMap {
    /// The sealed length of every segment.
    fn sealed(&self) -> BTreeMap<u64, Option<u64>> {
        self.segments.lock().iter().map(|(&id, &(_, length))| (id, length)).collect()
    }

    /// The id that the next segment will get.
    fn next(&self) -> SegmentId {
        SegmentId(self.segments.lock().len() as u64 + 1)
    }

    /// The set of a segment.
    pub(super) fn set_of(&self, segment: u64) -> u32 {
        self.sets.lock().of_segments[&segment]
    }

    fn classes(&self) -> Vec<SegmentClass> {
        self.segments.lock().values().map(|&(class, _)| class).collect()
    }

    /// A copy of the map in its current state, for a second start.
    fn copy(&self) -> Arc<Self> {
        Arc::new(Self {
            segments: Mutex::new(self.segments.lock().clone()),
            marked: Mutex::new(self.marked.lock().clone()),
            synced: AtomicU64::new(self.synced.load(Ordering::Relaxed)),
            sets: Mutex::new(self.sets.lock().clone()),
        })
    }
}

impl SegmentMap for MemoryMap {
    fn create(
        &self,
        class: SegmentClass,
        set: u32,
        followers: Vec<NodeId>,
        write_quorum: u32,
    ) -> BoxFuture<'_, Result<NewSegment, MapError>> {
        assert!(followers.is_empty() && write_quorum == 0, "the map has one node");
        let mut segments = self.segments.lock();
        let id = segments.len() as u64 + 1;
        segments.insert(id, (class, None));
        self.sets.lock().of_segments.insert(id, set);
        Box::pin(async move { Ok(NewSegment { id: SegmentId(id), seed: SEED, created: Timestamp(0) }) })
    }

    fn set_for(&self, _bucket: BucketId, key: &ObjectKey) -> Option<u32> {
        let sets = self.sets.lock();
        let set = sets.of_keys.get(key.as_str()).copied().unwrap_or(FIRST_SET);
        sets.own.as_ref().is_none_or(|own| own.contains(&set)).then_some(set)
    }

    fn may_refer_to(&self, _bucket: BucketId, _key: &ObjectKey, set: u32) -> bool {
        !self.sets.lock().ended.contains(&set)
    }

    fn own_sets(&self) -> Option<BTreeSet<u32>> {
        self.sets.lock().own.clone()
    }

    fn seal(
        &self,
        id: SegmentId,
        length: u64,
        replicas: Vec<Replica>,
    ) -> BoxFuture<'_, Result<(), MapError>> {
        assert!(replicas.is_empty(), "the map has one node");
        let mut segments = self.segments.lock();
        let known = segments.get_mut(&id.0).map(|(_, sealed)| sealed.get_or_insert(length));
        let same = known.is_some_and(|sealed| *sealed == length);
        Box::pin(async move { if same { Ok(()) } else { Err(MapError::Refused("sealed".into())) } })
    }

    fn mark(&self, id: SegmentId, length: u64) -> BoxFuture<'_, Result<(), MapError>> {
        self.marked.lock().insert(id.0, length);
        Box::pin(async move { Ok(()) })
    }

    fn open_segments(&self) -> Result<Vec<OpenSegment>, MapError> {
        let segments = self.segments.lock();
        let open = segments.iter().filter(|(_, (_, length))| length.is_none());
        let marked = self.marked.lock();
        let marked = |id: &u64| marked.get(id).copied().unwrap_or(0);
        let found = |id: &u64| OpenSegment {
            id: SegmentId(*id),
            seed: SEED,
            created: Timestamp(0),
            marked: marked(id),
        };
        Ok(open.map(|(id, _)| found(id)).collect())
    }

    fn location(&self, id: SegmentId) -> Option<SegmentLocation> {
        let known = self.segments.lock().contains_key(&id.0);
        known.then_some(SegmentLocation { seed: SEED, created: Some(Timestamp(0)), tier: SegmentTier::Hot })
    }

    fn was_minted(&self, id: SegmentId) -> Result<bool, MapError> {
        Ok(id.0 <= self.segments.lock().len() as u64)
    }

    fn synced_entries(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }

    fn sync(&self) -> Result<(), MapError> {
        Ok(())
    }
}

fn options(dir: &Path) -> HotOptions {
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000)));
    HotOptions { reserve_bytes: 0, ballast_bytes: 0, ..HotOptions::new(dir.join("segments"), 0, clock) }
}

async fn open(dir: &Path, map: &Arc<MemoryMap>) -> HotTier {
    HotTier::open_with(options(dir), map.clone()).await.unwrap()
}

fn chunk(body: u64, data: impl Into<Bytes>) -> Chunk {
    Chunk {
        bucket: BucketId(1),
        key: ObjectKey::new(&format!("key-{body}")).unwrap(),
        body: BodyId(body),
        part: None,
        offset: 0,
        data: Payload::raw(data.into()),
        placement: Placement::Shared,
    }
}

/// The same chunk, compressed.
fn packed(body: u64, data: &[u8]) -> Chunk {
    let payload = mlgw_formats::segment_zstd::compress(data, 3).expect("it becomes smaller");
    Chunk { data: payload, ..chunk(body, Bytes::new()) }
}

/// `length` pseudo-random bytes that depend on the body.
pub(super) fn bytes_of(body: u64, length: usize) -> Vec<u8> {
    let mut state = body.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(length)
    .collect()
}

/// `length` bytes of pseudo-random words that depend on the body: compressible.
pub(super) fn text_of(body: u64, length: usize) -> Vec<u8> {
    let words = ["epoch", "loss", "step", "shard", "sample", "batch", "gradient", "0.125", "7", "\n"];
    let chosen =
        bytes_of(body, length / 2 + 1).into_iter().map(|byte| words[usize::from(byte) % words.len()]);
    let mut text = chosen.collect::<Vec<_>>().join(" ").into_bytes();
    text.truncate(length);
    text
}

/// Appends a chunk and drops the hold on its segment immediately.
async fn append(tier: &HotTier, chunk: Chunk) -> Result<Extent, super::AppendError> {
    tier.append(chunk).await.map(|appended| appended.extent)
}

async fn read_all(tier: &HotTier, extent: &Extent, body: u64) -> Vec<u8> {
    tier.read(extent, BodyId(body), 0..extent.logical_bytes, Lane::Training).await.unwrap().to_vec()
}
