//! Read access to stored objects for policies: their facts, their extents, and scans over all of them.
//!
//! Nothing here writes, so a power failure has no effect.

use mlgw_cache::remote_backed::RemoteBackedBuckets as RemoteBacked;
use mlgw_common::{BucketId, ObjectKey, PartNumber, Tier, Timestamp};
use mlgw_formats::schema::{Bucket, Extent, ObjectVersion, Pair};
use mlgw_metadata::{Catalogue, ReadError};
use mlgw_policy_runtime::facts::KnownObject;
use mlgw_segments::tiers::Tiers;
use std::ops::Bound;

/// Copies read from their index at a time.
const COPIES_READ: usize = 1000;

/// An object visited by a scan.
#[derive(Clone, Copy)]
pub struct VisitedObject<'a> {
    /// Bucket of the object.
    pub bucket: &'a Bucket,
    /// Key of the object.
    pub key: &'a ObjectKey,
    /// Record of the object; in a remote-backed bucket, as described by its origin.
    pub object: &'a ObjectVersion,
    /// Time of the last read, if there are clean copies of the object.
    pub read: Option<Timestamp>,
}

/// Position of a scan over all objects: after a key of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPosition {
    /// Name of the bucket.
    pub bucket: String,
    /// Last visited key; `None` for the position before the first key.
    pub key: Option<ObjectKey>,
}

/// Stored objects: those of local buckets, and copies of objects of remote-backed buckets.
#[derive(Clone)]
pub struct StoredObjects {
    /// Catalogue.
    pub catalogue: Catalogue,
    /// Tiers of the objects in local buckets.
    pub tiers: Tiers,
    /// Remote-backed buckets and the copies of their objects.
    pub remote_backed: RemoteBacked,
}

impl StoredObjects {
    /// Returns the facts known about an object of `bucket`.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub fn object_facts(
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
        let are_known = bucket.binding.is_none() || !object.tags.is_empty();
        Ok(KnownObject {
            bucket: bucket.name.clone(),
            key: key.as_str().to_owned(),
            size: object.size,
            modified: (object.modified_ms > 0).then(|| object.modified()),
            // The answer to a HEAD request does not contain the tags.
            tags: are_known.then(|| pairs(&object.tags)),
            metadata: pairs(&object.metadata),
            tier,
        })
    }

    /// Returns the fastest tier that has the first bytes of an object in a local bucket.
    fn tier_of(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Result<Option<Tier>, ReadError> {
        if self.tiers.memory.contains(object.body(), 0) {
            return Ok(Some(Tier::Memory));
        }
        let first = match object.extents.first() {
            Some(first) => Some(first.clone()),
            None => self.first_extent(bucket, key, object)?,
        };
        let segment = first.and_then(|first| self.catalogue.segment(first.segment_id()));
        Ok(segment.map(|segment| segment.tier.tier()))
    }

    /// Calls `each` with every extent of an object in a local bucket, and true if the extent is the first of
    /// the object or of a part. Blocks the calling thread.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub fn each_extent(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
        each: &mut dyn FnMut(&Extent, bool),
    ) -> Result<(), ReadError> {
        let mut in_turn = |first: u64, extents: &[Extent]| {
            for (index, extent) in extents.iter().enumerate() {
                each(extent, first == 0 && index == 0);
            }
        };
        in_turn(0, &object.extents);
        if !object.is_paged() {
            return Ok(());
        }
        let (_pin, reader) = (self.catalogue.pin(object.body()), self.catalogue.background_reader());
        for page in reader.extent_pages(bucket, key, object.body(), 0) {
            let (first, page) = page?;
            in_turn(first, &page.extents);
            for number in page.parts.iter().filter_map(|part| PartNumber::new(part.number)) {
                let part = self.catalogue.part(bucket, key, object.body(), number)?;
                part.iter().for_each(|part| in_turn(0, &part.extents));
            }
        }
        Ok(())
    }

    fn first_extent(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Result<Option<Extent>, ReadError> {
        let reader = self.catalogue.background_reader();
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

    /// Calls `each` with at most `most` objects, bucket by bucket: all objects of local buckets, and those of
    /// remote-backed buckets that have copies here. Returns the position to continue from; `None` at the end.
    /// Blocks the calling thread.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub fn each_object(
        &self,
        from: Option<&ScanPosition>,
        most: usize,
        each: &mut dyn FnMut(VisitedObject<'_>) -> Result<(), ReadError>,
    ) -> Result<Option<ScanPosition>, ReadError> {
        let mut left = most;
        for bucket in self.catalogue.buckets(None, None, usize::MAX) {
            let behind = match from {
                Some(from) if bucket.name < from.bucket => continue,
                Some(from) if bucket.name == from.bucket => from.key.clone(),
                _ => None,
            };
            if left == 0 {
                return Ok(Some(ScanPosition { bucket: bucket.name.clone(), key: None }));
            }
            let last = match bucket.binding {
                None => self.each_own(&bucket, behind, &mut left, each)?,
                Some(_) => self.each_copy(&bucket, behind, &mut left, each)?,
            };
            if left == 0 {
                return Ok(Some(ScanPosition { bucket: bucket.name.clone(), key: last }));
            }
        }
        Ok(None)
    }

    fn each_own(
        &self,
        bucket: &Bucket,
        behind: Option<ObjectKey>,
        left: &mut usize,
        each: &mut dyn FnMut(VisitedObject<'_>) -> Result<(), ReadError>,
    ) -> Result<Option<ObjectKey>, ReadError> {
        let reader = self.catalogue.background_reader();
        let from = behind.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_bytes()));
        let mut last = None;
        for found in reader.scan(bucket.bucket_id(), from).take(*left) {
            let (key, entry) = found?;
            let object = entry.version()?;
            if !object.delete_marker {
                each(VisitedObject { bucket, key: &key, object: &object, read: None })?;
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
        each: &mut dyn FnMut(VisitedObject<'_>) -> Result<(), ReadError>,
    ) -> Result<Option<ObjectKey>, ReadError> {
        let Some(copies) = self.remote_backed.copies() else { return Ok(None) };
        let mut last = behind;
        while *left > 0 {
            let page = copies.list(bucket.bucket_id(), "", last.as_ref(), (*left).min(COPIES_READ));
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= *left, "a page has at most the requested entries");
            for (key, copy) in page {
                let read = (copy.read_ms > 0).then_some(Timestamp(copy.read_ms));
                each(VisitedObject { bucket, key: &key, object: &copy.object, read })?;
                *left -= 1;
                last = Some(key);
            }
        }
        Ok(last)
    }
}
