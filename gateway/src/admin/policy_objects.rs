//! What policies are told of stored objects and of this server: the catalogue and the index of copies, read for that.

use super::Admin;
use crate::policies::facts::KnownObject;
use crate::policies::place::{SystemFacts, percent};
use mlgw_common::{BucketId, ObjectKey, PartNumber};
use mlgw_metadata::ReadError;
use mlgw_metadata::schema::{Bucket, Extent, ObjectVersion, Pair};
use mlgw_policies::language::Tier;
use mlgw_tiering::hot::UPSTREAM_TIER;
use std::ops::Bound;

/// Copies that are read from their index at a time.
const COPIES_READ: usize = 1000;

/// Where a walk over all objects goes on: behind a key of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) bucket: String,
    /// None: before its first key.
    pub(super) key: Option<ObjectKey>,
}

impl Admin {
    /// How the server is just now.
    pub(super) fn system_facts(&self) -> SystemFacts {
        let (memory, hot) = (self.tiers.memory.metrics(), self.tiers.hot.metrics());
        let copies = self.bound.copies().map(mlgw_tiering::Copies::metrics).unwrap_or_default();
        let capacity = self.loaded.load().config.hot_capacity_bytes(&self.machine);
        SystemFacts {
            place: self.policies.place(),
            hot_fill: percent(hot.used_bytes, capacity),
            cold_fill: percent(hot.cold_used_bytes, hot.cold_used_bytes + hot.cold_room_bytes),
            copies_fill: percent(copies.used_bytes, copies.limit_bytes),
            memory_fill: percent(memory.used_bytes, memory.limit_bytes),
            bandwidth: None,
            upstream_latency: None,
        }
    }

    /// What is known of an object of `bucket`.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub(super) fn known(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Result<KnownObject, ReadError> {
        let pairs = |pairs: &[Pair]| pairs.iter().map(|one| (one.name.clone(), one.value.clone())).collect();
        let tier = match bucket.binding {
            Some(_) => Some(Tier::Upstream),
            None => self.tier_of(bucket.bucket_id(), key, object)?,
        };
        Ok(KnownObject {
            bucket: bucket.name.clone(),
            key: key.as_str().to_owned(),
            size: object.size,
            modified: (object.modified_ms > 0).then(|| object.modified()),
            tags: pairs(&object.tags),
            metadata: pairs(&object.metadata),
            tier,
        })
    }

    /// The fastest tier that has the first bytes of one of our own objects.
    fn tier_of(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Result<Option<Tier>, ReadError> {
        if self.tiers.memory.holds(object.body(), 0) {
            return Ok(Some(Tier::Memory));
        }
        let first = match object.extents.first() {
            Some(first) => Some(first.clone()),
            None => self.first_extent(bucket, key, object)?,
        };
        let segment = first.and_then(|first| self.catalogue.segment(first.segment_id()));
        Ok(segment.map(|segment| match segment.tier {
            0 => Tier::Hot,
            UPSTREAM_TIER => Tier::Upstream,
            _ => Tier::Cold,
        }))
    }

    fn first_extent(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Result<Option<Extent>, ReadError> {
        let reader = self.catalogue.reader();
        let Some(page) = reader.extent_pages(bucket, key, object.body(), 0).next() else { return Ok(None) };
        let (_, page) = page?;
        let number = page.parts.first().and_then(|part| PartNumber::new(part.number));
        Ok(match (page.extents.into_iter().next(), number) {
            (Some(first), _) => Some(first),
            (None, Some(number)) => {
                let part = self.catalogue.part(bucket, key, object.body(), number)?;
                part.and_then(|part| part.extents.into_iter().next())
            }
            (None, None) => None,
        })
    }

    /// Tells `each` of at most `most` objects, bucket by bucket: our own, and of bound buckets those of which copies are known here. Returns
    /// where it goes on, if it does. Blocks.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub(super) fn each_object(
        &self,
        from: Option<&Behind>,
        most: usize,
        each: &mut dyn FnMut(&KnownObject),
    ) -> Result<Option<Behind>, ReadError> {
        let mut left = most;
        for bucket in self.catalogue.buckets(None, None, usize::MAX) {
            let behind = match from {
                Some(from) if bucket.name < from.bucket => continue,
                Some(from) if bucket.name == from.bucket => from.key.clone(),
                _ => None,
            };
            if left == 0 {
                return Ok(Some(Behind { bucket: bucket.name.clone(), key: None }));
            }
            let last = match bucket.binding {
                None => self.each_own(&bucket, behind, &mut left, each)?,
                Some(_) => self.each_copy(&bucket, behind, &mut left, each)?,
            };
            if left == 0 {
                return Ok(Some(Behind { bucket: bucket.name.clone(), key: last }));
            }
        }
        Ok(None)
    }

    fn each_own(
        &self,
        bucket: &Bucket,
        behind: Option<ObjectKey>,
        left: &mut usize,
        each: &mut dyn FnMut(&KnownObject),
    ) -> Result<Option<ObjectKey>, ReadError> {
        let reader = self.catalogue.reader();
        let from = behind.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_bytes()));
        let mut last = None;
        for found in reader.scan(bucket.bucket_id(), from).take(*left) {
            let (key, entry) = found?;
            let object = entry.version()?;
            if !object.delete_marker {
                each(&self.known(bucket, &key, &object)?);
            }
            *left -= 1;
            last = Some(key);
        }
        Ok(last)
    }

    fn each_copy(
        &self,
        bucket: &Bucket,
        behind: Option<ObjectKey>,
        left: &mut usize,
        each: &mut dyn FnMut(&KnownObject),
    ) -> Result<Option<ObjectKey>, ReadError> {
        let Some(copies) = self.bound.copies() else { return Ok(None) };
        let mut last = behind;
        while *left > 0 {
            let page = copies.list(bucket.bucket_id(), "", last.as_ref(), (*left).min(COPIES_READ));
            if page.is_empty() {
                break;
            }
            for (key, copy) in page {
                each(&self.known(bucket, &key, &copy.object)?);
                *left -= 1;
                last = Some(key);
            }
        }
        Ok(last)
    }
}
