//! Finds objects and opens readers of their bytes.
//!
//! This module only reads, so a power failure changes nothing.

use crate::memory::{Account, MemoryGrant, blocks_of};
use crate::reader::{BodyReadError, BodyReader, PIECE_BYTES, part_ranges};
use crate::{ObjectError, ObjectLayer};
use mlgw_common::limits::SMALL_BODY_BYTES;
use mlgw_common::{BucketId, ObjectKey, PartNumber};
use mlgw_formats::schema::{Bucket, Checksum, ObjectVersion, PartRange};
use mlgw_metadata::Pin;
use std::ops::Range;
use std::sync::Arc;

/// An object with its bucket and key.
pub struct FoundObject {
    /// The bucket.
    pub bucket: Arc<Bucket>,
    /// The key.
    pub key: ObjectKey,
    /// The record.
    pub object: ObjectVersion,
}

/// The range of a part in its object, and the checksums of the part.
pub type PartDescription = (Range<u64>, Vec<Checksum>);

impl ObjectLayer {
    /// Returns the current version of a key, unless it is a delete marker.
    ///
    /// # Errors
    /// Those of the catalogue.
    pub fn current(&self, bucket: BucketId, key: &ObjectKey) -> Result<Option<ObjectVersion>, ObjectError> {
        Ok(self.catalogue.object(bucket, key)?.filter(|object| !object.delete_marker))
    }

    /// Returns the current object of `key`.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchKey`].
    pub fn find(&self, bucket: Arc<Bucket>, key: &ObjectKey) -> Result<FoundObject, ObjectError> {
        let object = self.current(bucket.bucket_id(), key)?;
        let object = object.ok_or_else(|| ObjectError::NoSuchKey(key.clone()))?;
        Ok(FoundObject { bucket, key: key.clone(), object })
    }
}

impl FoundObject {
    /// Returns a reader of `range` and the memory for its pieces: the one that is being sent and the next.
    /// Pieces are smaller when memory is short. A range of at most [`SMALL_BODY_BYTES`] needs no grant.
    ///
    /// # Errors
    /// [`crate::ResourceShortage::Memory`] when no memory becomes free within the time limit.
    pub async fn reader(
        &self,
        objects: &ObjectLayer,
        memory: &Account,
        range: Range<u64>,
    ) -> Result<(BodyReader, Option<Arc<MemoryGrant>>), ObjectError> {
        let (bucket, bytes) = (self.bucket.bucket_id(), range.end - range.start);
        let reader =
            BodyReader::new(&objects.catalogue, &objects.tiers, bucket, &self.key, &self.object, range);
        if bytes <= SMALL_BODY_BYTES as u64 {
            return Ok((reader, None));
        }
        let many = blocks_of(bytes.min(2 * PIECE_BYTES));
        let held = memory.reserve_some(many, many.min(2)).await?;
        let pieces = if held.blocks() < many as usize { held.blocks() / 2 } else { held.blocks() };
        Ok((reader.in_pieces_of(pieces), Some(Arc::new(held))))
    }

    /// Returns part `at`, counted from 0, of an object of several parts, or `None` beyond the last part.
    ///
    /// # Errors
    /// Those of [`part_ranges`]. After [`BodyReadError::Missing`], find the object again.
    pub fn part(&self, objects: &ObjectLayer, at: usize) -> Result<Option<PartDescription>, BodyReadError> {
        let pin = objects.catalogue.pin(self.object.body());
        // Part numbers may have gaps. A client counts the parts of the object, as at AWS.
        let parts = self.part_ranges(objects, &pin)?;
        let Some(part) = parts.get(at) else { return Ok(None) };
        let first: u64 = parts[..at].iter().map(|part| part.bytes).sum();
        let range = first..first + part.bytes;
        let Some(number) = PartNumber::new(part.number) else { return Ok(None) };
        let row = objects.catalogue.part(self.bucket.bucket_id(), &self.key, self.object.body(), number)?;
        let row = row.ok_or(BodyReadError::Missing(range.start))?;
        Ok(Some((range, row.checksums)))
    }

    /// Returns the parts of the object, which has this pin. The list is empty if the object was put whole.
    ///
    /// # Errors
    /// Those of [`part_ranges`]. After [`BodyReadError::Missing`], find the object again.
    pub fn part_ranges(&self, objects: &ObjectLayer, pin: &Pin) -> Result<Vec<PartRange>, BodyReadError> {
        part_ranges(&objects.catalogue, self.bucket.bucket_id(), &self.key, &self.object, pin)
    }
}
