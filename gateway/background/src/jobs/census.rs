//! Counts the objects of a dataset in a local bucket: totals, bytes by tier, by segment and by node. Blocks
//! the calling thread.

mod by_node;

use by_node::NodeCensus;
use mlgw_common::{BucketId, ObjectKey, SegmentId, SegmentTier};
use mlgw_formats::schema::Bucket;
use mlgw_metadata::{Catalogue, ReadError};
use mlgw_objects::extents::extents;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Objects visited in one step.
const STEP: usize = 1000;

/// Totals of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Number of objects.
    pub(super) objects: u64,
    /// Bytes of the objects.
    pub(super) bytes: u64,
    /// Bytes by tier.
    pub(super) tiers: BTreeMap<SegmentTier, u64>,
    /// Bytes in each segment outside the hot tier.
    pub(super) below: BTreeMap<SegmentId, u64>,
    /// Bytes by node, if they are counted.
    pub(super) nodes: Option<NodeCensus>,
}

impl Census {
    /// Returns an empty census that also counts by node. It reads the records of segments.
    pub(super) fn with_nodes() -> Self {
        Self { nodes: Some(NodeCensus::default()), ..Self::default() }
    }
}

/// Counts up to [`STEP`] objects with `prefix`, after the key `after`. Returns the key after which the next
/// step begins; `None` at the end.
pub(super) fn step(
    catalogue: &Catalogue,
    bucket: &Bucket,
    prefix: &str,
    after: Option<&ObjectKey>,
    census: &mut Census,
) -> Result<Option<ObjectKey>, ReadError> {
    let from = match after {
        Some(key) => Bound::Excluded(key.as_bytes()),
        None => Bound::Included(prefix.as_bytes()),
    };
    let reader = catalogue.background_reader();
    let mut last = None;
    for found in reader.scan(bucket.bucket_id(), from).take(STEP) {
        let (key, entry) = found?;
        if !key.as_str().starts_with(prefix) {
            return Ok(None);
        }
        let object = entry.version()?;
        if !object.delete_marker {
            census.objects += 1;
            census.bytes += object.size;
            count(catalogue, bucket.bucket_id(), &key, &object, census)?;
        }
        last = Some((last.map_or(1, |(seen, _)| seen + 1), key));
    }
    Ok(last.filter(|(seen, _): &(usize, ObjectKey)| *seen == STEP).map(|(_, key)| key))
}

fn count(
    catalogue: &Catalogue,
    bucket: BucketId,
    key: &ObjectKey,
    object: &mlgw_formats::schema::ObjectVersion,
    census: &mut Census,
) -> Result<(), ReadError> {
    // Most objects have their extent map in the record itself.
    let paged = match object.is_paged() {
        true => extents(catalogue, bucket, key, object)?,
        false => Vec::new(),
    };
    for extent in object.extents.iter().chain(&paged) {
        let (segment, bytes) = (extent.segment_id(), extent.logical_bytes);
        let tier = catalogue.segment(segment).map_or(SegmentTier::Hot, |segment| segment.tier);
        *census.tiers.entry(tier).or_default() += bytes;
        if tier != SegmentTier::Hot {
            *census.below.entry(segment).or_default() += bytes;
        }
        if let Some(nodes) = &mut census.nodes {
            nodes.add(segment, bytes, || catalogue.segment_record(segment))?;
        }
    }
    Ok(())
}
