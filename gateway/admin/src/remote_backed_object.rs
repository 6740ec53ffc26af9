//! Objects of remote-backed buckets: their state at the origin and their clean copies here.

use super::objects::{encoding_of, find, object_key, tier_totals};
use super::{Admin, ApiError};
use mlgw_api::{
    ExtentInfo, ExtentState, ObjectInfo, ObjectLocation, ObjectNodeInfo, ObjectTierInfo, OriginObjectInfo,
};
use mlgw_cache::writeback::record::unmarked;
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_common::{BucketId, ObjectKey, Timestamp};
use mlgw_formats::schema::{Binding, Bucket, Extent, ObjectVersion};
use mlgw_remote::origin::OriginError;
use mlgw_wire::error::{Code, S3Error};
use std::sync::Arc;

/// Maximum number of blocks visited per object: those of 80 GiB.
const BLOCKS_MAX: u64 = 10_000;

impl Admin {
    /// Returns an object of a remote-backed bucket; `None` if the bucket does not exist or is not
    /// remote-backed. Metadata that is unknown or expired here is requested from the origin.
    ///
    /// # Errors
    /// `NoSuchKey`; errors of the origin.
    pub(super) async fn find_remote_backed(
        &self,
        name: &str,
        key: &str,
    ) -> Result<Option<ObjectInfo>, ApiError> {
        let Some(bucket) = self.stored.catalogue.bucket(name) else { return Ok(None) };
        let Some(binding) = &bucket.binding else { return Ok(None) };
        let key = object_key(key)?;
        match self.find_dirty(&bucket, binding, &key)? {
            Some(dirty) => Ok(Some(dirty)),
            None => self.find_clean(&bucket, binding, &key).await.map(Some),
        }
    }

    fn find_dirty(
        &self,
        bucket: &Arc<Bucket>,
        binding: &Binding,
        key: &ObjectKey,
    ) -> Result<Option<ObjectInfo>, ApiError> {
        let Some(queue) = self.writeback.queue(bucket).map_err(S3Error::from)? else { return Ok(None) };
        let Some(write) = queue.latest(key) else { return Ok(None) };
        if write.facts.is_delete {
            return Err(S3Error::new(Code::NoSuchKey)
                .message("The object is deleted locally, not yet at its origin.")
                .into());
        }
        let origin = OriginObjectInfo {
            upstream: binding.upstream.clone(),
            key: format!("{}{key}", binding.prefix),
            dirty: true,
            contested: queue.is_contested(key),
            validated_ms_ago: None,
            read: None,
        };
        let found = find(&self.stored.catalogue, &bucket.name, write.name.as_str())?;
        Ok(Some(ObjectInfo { key: key.as_str().to_owned(), origin: Some(origin), ..found }))
    }

    async fn find_clean(
        &self,
        bucket: &Arc<Bucket>,
        binding: &Binding,
        key: &ObjectKey,
    ) -> Result<ObjectInfo, ApiError> {
        let bound = self.remote_backed_bucket(&bucket.name)?;
        let opened = bound.head(key).await.map_err(|error| match error {
            OriginError::NoSuchKey => ApiError::from(S3Error::new(Code::NoSuchKey)),
            error => self.upstream_failed(&binding.upstream, &error),
        })?;
        let kept = self.copies_of(bucket.bucket_id(), key, &opened.object);
        let extents: Vec<ExtentInfo> = kept.extents;
        let object = unmarked(&opened.object).unwrap_or_else(|| opened.object.clone());
        let mut tiers = tier_totals(&extents);
        let (bytes, stored_bytes) = (object.size, object.size);
        tiers.push(ObjectTierInfo { tier: ObjectLocation::Origin, bytes, stored_bytes, segments: 0 });
        Ok(ObjectInfo {
            bucket: bucket.name.clone(),
            key: key.as_str().to_owned(),
            size: object.size,
            etag: object.etag,
            modified: Timestamp(object.modified_ms).to_string(),
            storage_class: object.storage_class,
            body_id: object.body_id,
            parts: object.part_count,
            tiers,
            nodes: self.copies_on_this_node(&extents),
            whole: extents.iter().map(|extent| extent.bytes).sum::<u64>() == object.size,
            extents,
            origin: Some(OriginObjectInfo {
                upstream: binding.upstream.clone(),
                key: format!("{}{key}", binding.prefix),
                dirty: false,
                contested: false,
                validated_ms_ago: Some(u64::try_from(opened.age.as_millis()).unwrap_or(u64::MAX)),
                read: kept.read,
            }),
        })
    }

    /// Returns the id of this node; `None` without peers.
    fn own_node(&self) -> Option<u64> {
        self.cluster.as_ref().map(|cluster| cluster.id().get())
    }

    /// Returns the clean copies as bytes of this node. Those of other nodes are not used.
    fn copies_on_this_node(&self, extents: &[ExtentInfo]) -> Vec<ObjectNodeInfo> {
        let bytes = extents.iter().map(|extent| extent.bytes).sum();
        let info = |node| ObjectNodeInfo { node, tier: ObjectLocation::Copies, bytes, suspect_bytes: 0 };
        self.own_node().filter(|_| bytes > 0).map(info).into_iter().collect()
    }

    /// Collects the clean copies of an object.
    fn copies_of(&self, bucket: BucketId, key: &ObjectKey, object: &ObjectVersion) -> ObjectCopies {
        let mut kept = ObjectCopies::default();
        let Some(copies) = self.stored.remote_backed.copies() else { return kept };
        let read_ms = copies.find(bucket, key).map_or(0, |copy| copy.read_ms);
        kept.read = (read_ms > 0).then(|| Timestamp(read_ms).to_string());
        for number in 0..object.size.div_ceil(COPY_BLOCK_BYTES).min(BLOCKS_MAX) {
            let mut first = number * COPY_BLOCK_BYTES;
            for extent in copies.block_extents(object, number).unwrap_or_default() {
                kept.extents.push(clean_copy(first, &extent, self.own_node()));
                first += extent.logical_bytes;
            }
        }
        kept
    }
}

/// Clean copies of an object, and the time of its last read.
#[derive(Default)]
struct ObjectCopies {
    extents: Vec<ExtentInfo>,
    read: Option<String>,
}

fn clean_copy(first: u64, extent: &Extent, node: Option<u64>) -> ExtentInfo {
    ExtentInfo {
        first,
        bytes: extent.logical_bytes,
        stored_bytes: extent.record_bytes(),
        encoding: encoding_of(extent),
        tier: ObjectLocation::Copies,
        nodes: node.into_iter().collect(),
        segment: extent.segment,
        segment_state: ExtentState::Clean,
        offset: extent.offset,
    }
}
