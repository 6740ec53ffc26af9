//! `/v1/buckets/{bucket}/object?key=…`: one object and the location of its bytes.

use super::extract::{AdminPath, AdminQuery};
use super::{Admin, ApiError};
use axum::Json;
use axum::extract::State;
use mlgw_api::{ExtentInfo, ExtentState, ObjectInfo, ObjectLocation, ObjectNodeInfo, ObjectTierInfo};
use mlgw_common::{ObjectKey, SegmentId, SegmentTier, Timestamp};
use mlgw_formats::schema::segment::SegmentState;
use mlgw_formats::schema::{Encoding, Extent, SegmentRecord};
use mlgw_metadata::Catalogue;
use mlgw_objects::extents::extents;
use mlgw_wire::error::{Code, S3Error};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Query parameters: key of the object.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyQuery {
    /// Key of the object.
    key: String,
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(bucket): AdminPath<String>,
    AdminQuery(query): AdminQuery<KeyQuery>,
) -> Result<Json<ObjectInfo>, ApiError> {
    if let Some(found) = admin.find_remote_backed(&bucket, &query.key).await? {
        return Ok(Json(found));
    }
    // The extent map of a large object takes many reads, which would block an async worker thread too long.
    let found = tokio::task::spawn_blocking(move || find(&admin.stored.catalogue, &bucket, &query.key)).await;
    Ok(Json(found.map_err(S3Error::internal)??))
}

pub(super) fn find(catalogue: &Catalogue, bucket: &str, key: &str) -> Result<ObjectInfo, S3Error> {
    let found = catalogue.bucket(bucket).ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
    let name = object_key(key)?;
    let object = catalogue.object(found.bucket_id(), &name)?.filter(|object| !object.delete_marker);
    let object = object.ok_or_else(|| S3Error::new(Code::NoSuchKey))?;
    let extents = extents(catalogue, found.bucket_id(), &name, &object)?;
    let copies = SegmentCopies::read(catalogue, &extents)?;
    let nodes = copies.totals(&extents);
    let extents = extent_infos(catalogue, &copies, &extents);
    Ok(ObjectInfo {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        size: object.size,
        etag: object.etag.clone(),
        modified: Timestamp(object.modified_ms).to_string(),
        storage_class: object.storage_class.clone(),
        body_id: object.body_id,
        parts: object.part_count,
        tiers: tier_totals(&extents),
        nodes,
        whole: extents.iter().map(|extent| extent.bytes).sum::<u64>() == object.size,
        extents,
        origin: None,
    })
}

/// Parses the key of a request.
pub(super) fn object_key(key: &str) -> Result<ObjectKey, S3Error> {
    ObjectKey::from_bytes(key.as_bytes())
        .map_err(|why| S3Error::new(Code::InvalidArgument).message(why.to_string()))
}

/// Returns the name of a chunk's encoding.
pub(super) fn encoding_of(extent: &Extent) -> String {
    let known = Encoding::try_from(extent.encoding);
    known.map_or_else(|_| format!("unknown ({})", extent.encoding), |known| known.name().to_owned())
}

fn extent_infos(catalogue: &Catalogue, copies: &SegmentCopies, extents: &[Extent]) -> Vec<ExtentInfo> {
    let mut first = 0;
    let info = |extent: &Extent| {
        let segment = catalogue.segment(extent.segment_id());
        let begins = first;
        first += extent.logical_bytes;
        ExtentInfo {
            first: begins,
            bytes: extent.logical_bytes,
            stored_bytes: extent.record_bytes(),
            encoding: encoding_of(extent),
            tier: segment.map_or(ObjectLocation::Unknown, |segment| location(segment.tier)),
            nodes: copies.nodes(extent.segment_id()),
            segment: extent.segment,
            segment_state: match segment.map(|segment| segment.state) {
                Some(SegmentState::Open) => ExtentState::Open,
                Some(SegmentState::Sealed) => ExtentState::Sealed,
                None => ExtentState::Unknown,
            },
            offset: extent.offset,
        }
    };
    extents.iter().map(info).collect()
}

/// Records of the segments with the extents of an object. Empty on a server without peers, where the
/// summaries in memory have everything.
struct SegmentCopies(BTreeMap<SegmentId, SegmentRecord>);

impl SegmentCopies {
    /// Reads each record once. A segment may be gone.
    fn read(catalogue: &Catalogue, extents: &[Extent]) -> Result<Self, S3Error> {
        let mut records = BTreeMap::new();
        if !catalogue.is_clustered() {
            return Ok(Self(records));
        }
        let segments: BTreeSet<SegmentId> = extents.iter().map(Extent::segment_id).collect();
        for segment in segments {
            if let Some(record) = catalogue.segment_record(segment)? {
                records.insert(segment, record);
            }
        }
        Ok(Self(records))
    }

    fn nodes(&self, segment: SegmentId) -> Vec<u64> {
        let record = self.0.get(&segment);
        record.map(|record| record.replicas.iter().map(|replica| replica.node).collect()).unwrap_or_default()
    }

    /// Returns the bytes of the extents by node and tier.
    fn totals(&self, extents: &[Extent]) -> Vec<ObjectNodeInfo> {
        let mut totals: BTreeMap<(u64, &str), ObjectNodeInfo> = BTreeMap::new();
        for extent in extents {
            let replicas = self.0.get(&extent.segment_id()).map(|record| &record.replicas);
            for replica in replicas.into_iter().flatten() {
                let (node, tier) = (replica.node, replica.tier().map_or(ObjectLocation::Unknown, location));
                let none = ObjectNodeInfo { node, tier, bytes: 0, suspect_bytes: 0 };
                let total = totals.entry((node, tier.name())).or_insert(none);
                total.bytes += extent.logical_bytes;
                total.suspect_bytes += if replica.is_suspect { extent.logical_bytes } else { 0 };
            }
        }
        totals.into_values().collect()
    }
}

const fn location(tier: SegmentTier) -> ObjectLocation {
    match tier {
        SegmentTier::Hot => ObjectLocation::Hot,
        SegmentTier::Cold => ObjectLocation::Cold,
        SegmentTier::Upstream => ObjectLocation::Upstream,
    }
}

pub(super) fn tier_totals(extents: &[ExtentInfo]) -> Vec<ObjectTierInfo> {
    let mut tiers: BTreeMap<&str, Vec<&ExtentInfo>> = BTreeMap::new();
    extents.iter().for_each(|extent| tiers.entry(extent.tier.name()).or_default().push(extent));
    let sum = |extents: Vec<&ExtentInfo>| {
        let mut segments: Vec<u64> = extents.iter().map(|extent| extent.segment).collect();
        segments.sort_unstable();
        segments.dedup();
        ObjectTierInfo {
            tier: extents.first().map_or(ObjectLocation::Unknown, |extent| extent.tier),
            bytes: extents.iter().map(|extent| extent.bytes).sum(),
            stored_bytes: extents.iter().map(|extent| extent.stored_bytes).sum(),
            segments: segments.len() as u64,
        }
    };
    tiers.into_values().map(sum).collect()
}
