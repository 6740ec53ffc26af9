//! The remote tier: segments stored as objects at upstreams.
//!
//! A segment record of tier [`SegmentTier::Upstream`] names the upstream, the number of the
//! object and its sealed key. Each time that a segment is stored, its object gets a random name, which is
//! recorded in a file before any byte is sent (`leftovers`). So at a power loss every object of this server
//! at an upstream is either named by a segment record or listed in that file, and the next pass removes it.
//! Invariants: a record names an object only after the whole object was read back and compared; an object is
//! removed only after the change that ended its record's reference survives power loss.

mod claims;
mod leftovers;
mod read_ahead;
mod segment;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_formats::schema::{Replica, SegmentRecord};
use parking_lot::RwLock;

use super::map::{MapError, SegmentMap};
use super::metrics::add;
use super::open_error::HotOpenError;
use super::options::{HotOptions, MissingSegments, SealKeys, Upstreams};
use super::recovery::RecoveryError;
use mlgw_common::SegmentTier;
use mlgw_remote::upstream::{ReplicaKey, Upstream};

pub(crate) use leftovers::FORMAT as LEFTOVERS_FORMAT;
pub(super) use leftovers::{Leftovers, UnfinishedUpload};
use read_ahead::RecordReadAhead;
pub(super) use segment::{RemoteSegment, object_of};

/// Maximum number of cached segment locations of about 150 bytes each.
const CACHED_LOCATIONS_MAX: usize = 1 << 16;

/// Counters of reads from upstreams.
#[derive(Debug, Default)]
pub(super) struct RemoteTierMetrics {
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
}

/// The segments at upstreams.
pub(super) struct RemoteTier {
    node: NodeId,
    map: Arc<dyn SegmentMap>,
    upstreams: Upstreams,
    spill_to: Option<String>,
    keys: Option<Arc<dyn SealKeys>>,
    /// Cached locations of segments that were read.
    locations: RwLock<HashMap<SegmentId, Arc<RemoteSegment>>>,
    /// Records that are fetched whole, ahead of their readers.
    read_ahead: RecordReadAhead,
    metrics: RemoteTierMetrics,
}

impl RemoteTier {
    pub(super) fn new(options: &HotOptions, map: Arc<dyn SegmentMap>) -> Self {
        let node = options.lineage.node;
        let (upstreams, spill_to, keys) = match options.remote_tier.clone() {
            Some(options) => (options.upstreams, options.spill_to, Some(options.keys)),
            None => (Upstreams::default(), None, None),
        };
        let (known, ahead, metrics) =
            (RwLock::default(), RecordReadAhead::default(), RemoteTierMetrics::default());
        Self { node, map, upstreams, spill_to, keys, locations: known, read_ahead: ahead, metrics }
    }

    /// The upstream that segments are spilled to.
    pub(super) fn spill_target(&self) -> Option<&Upstream> {
        self.upstreams.get(self.spill_to.as_ref()?)
    }

    /// True if no upstream is configured.
    pub(super) fn is_empty(&self) -> bool {
        self.upstreams.is_empty()
    }

    pub(super) fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    /// Seals the key of an object.
    pub(super) fn seal(&self, segment: SegmentId, key: &ReplicaKey) -> io::Result<Vec<u8>> {
        let keys = self.keys.as_ref().ok_or_else(|| io::Error::other("no key sealer is configured"))?;
        keys.seal(segment, key)
    }

    /// Opens a key that [`RemoteTier::seal`] sealed.
    pub(super) fn open(&self, segment: SegmentId, sealed: &[u8]) -> io::Result<ReplicaKey> {
        let keys = self.keys.as_ref().ok_or_else(|| io::Error::other("no key sealer is configured"))?;
        keys.open(segment, sealed)
    }

    /// Returns the upstreams that hold segments and are not configured, each with the number of its segments
    /// that this node owns.
    fn unknown_upstreams(&self) -> Result<BTreeMap<String, usize>, MapError> {
        let mut unknown = BTreeMap::<String, usize>::new();
        for record in self.map.records_outside_hot()? {
            let place = upstream_replica(&record);
            if let Some(place) = place.filter(|place| !self.upstreams.contains_key(&place.location)) {
                *unknown.entry(place.location.clone()).or_default() +=
                    usize::from(record.is_owned_by(self.node));
            }
        }
        Ok(unknown)
    }

    /// True if every upstream that holds a segment is configured.
    ///
    /// # Errors
    /// When one with segments of this node is not, and its `missing` segments are refused.
    pub(super) fn all_configured(&self, missing: MissingSegments) -> Result<bool, HotOpenError> {
        let unknown = self.unknown_upstreams().map_err(RecoveryError::Map)?;
        let Some((upstream, segments)) = unknown.iter().find(|(_, segments)| **segments > 0) else {
            return Ok(unknown.is_empty());
        };
        let (upstream, segments) = (upstream.clone(), *segments);
        tracing::error!(segments, upstream, "an upstream with segments is not configured");
        match missing {
            MissingSegments::Accepted => Ok(false),
            MissingSegments::Refused => Err(HotOpenError::NoUpstream { upstream, segments }),
        }
    }

    /// The tier of a segment; the hot tier for an unknown segment, where opening its file fails.
    pub(super) fn tier(&self, segment: SegmentId) -> SegmentTier {
        self.map.location(segment).map_or(SegmentTier::Hot, |place| place.tier)
    }

    /// Returns the location of a segment if it is at a configured upstream. An upstream that is not
    /// configured is treated like a lost disk.
    pub(super) fn find(&self, segment: SegmentId) -> io::Result<Option<Arc<RemoteSegment>>> {
        if self.map.location(segment).is_none_or(|place| place.tier != SegmentTier::Upstream) {
            return Ok(None);
        }
        if let Some(remote) = self.locations.read().get(&segment) {
            return Ok(Some(remote.clone()));
        }
        let Some(record) = self.map.record(segment).map_err(io::Error::other)? else { return Ok(None) };
        let Some(remote) = self.location_of_record(&record)? else { return Ok(None) };
        let remote = Arc::new(remote);
        let mut known = self.locations.write();
        if known.len() >= CACHED_LOCATIONS_MAX {
            known.clear();
        }
        known.insert(segment, remote.clone());
        Ok(Some(remote))
    }

    /// Drops the cached location of a segment whose record changed.
    pub(super) fn invalidate(&self, segment: SegmentId) {
        self.locations.write().remove(&segment);
    }

    /// Returns the location that a record names, if it is at a configured upstream.
    fn location_of_record(&self, record: &SegmentRecord) -> io::Result<Option<RemoteSegment>> {
        let place = upstream_replica(record);
        let Some(place) = place.filter(|place| self.upstreams.contains_key(&place.location)) else {
            return Ok(None);
        };
        let key = match place.sealed_key.as_slice() {
            [] => None,
            sealed => Some(self.open(record.segment_id(), sealed)?),
        };
        Ok(Some(RemoteSegment::new(record, place, key)))
    }

    pub(super) fn upstream(&self, name: &str) -> io::Result<&Upstream> {
        self.upstreams.get(name).ok_or_else(|| {
            io::Error::other(format!("upstream {name:?} is not in the configuration; configure it"))
        })
    }

    /// Returns the number of reads answered from upstreams, and their bytes.
    pub(super) fn read_totals(&self) -> (u64, u64) {
        (self.metrics.reads.load(Relaxed), self.metrics.read_bytes.load(Relaxed))
    }

    fn count(&self, bytes: u64) {
        add(&self.metrics.reads, 1);
        add(&self.metrics.read_bytes, bytes);
    }
}

/// Returns the replica of a segment at an upstream. An upstream has a segment for all nodes.
fn upstream_replica(record: &SegmentRecord) -> Option<&Replica> {
    record.replicas.iter().find(|replica| replica.tier() == Ok(SegmentTier::Upstream))
}
