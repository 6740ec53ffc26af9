//! Scans: objects, extent pages, uploads and parts, in key order, over one snapshot per group.
//!
//! A scan runs on the caller's thread and decodes only what it is asked for. Where a bucket spans
//! groups, partitions follow each other in key order.

use super::ReadError;
use crate::schema::{BadRecord, ExtentPage, ObjectSummary, ObjectVersion, Part, Upload, decode};
use mlgw_common::{BodyId, BucketId, ObjectKey, PartNumber};
use std::marker::PhantomData;
use std::ops::Bound;

/// Holds the state of each group open, for scans.
#[derive(Clone)]
pub struct Reader {
    nothing: (),
}

impl Reader {
    /// Current versions of a bucket, by key, beginning at `from` (raw bytes of a key or of the
    /// beginning of one).
    #[must_use]
    pub fn scan(&self, bucket: BucketId, from: Bound<&[u8]>) -> ObjectScan<'_> {
        let _ = (bucket, from, self.nothing);
        todo!()
    }

    /// Pages of a body's map with their first bytes, beginning with the one that covers `from`.
    #[must_use]
    pub fn extent_pages(&self, bucket: BucketId, key: &ObjectKey, body: BodyId, from: u64) -> PageScan<'_> {
        let _ = (bucket, key, body, from);
        todo!()
    }

    /// Pages of a long part's extents (see [`Part::paged_extents`]) with their first bytes within
    /// the part, beginning with the one that covers `from`.
    #[must_use]
    pub fn part_pages(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
        number: PartNumber,
        from: u64,
    ) -> PageScan<'_> {
        let _ = (bucket, key, body, number, from);
        todo!()
    }

    /// Uploads of a bucket by key and then by age, beginning after (key, upload) if it names an
    /// upload, else with the uploads of keys after the key; from the first without it.
    #[must_use]
    pub fn uploads(&self, bucket: BucketId, after: Option<(&[u8], Option<BodyId>)>) -> UploadScan<'_> {
        let _ = (bucket, after);
        todo!()
    }

    /// Parts of a body by number, beginning after number `after` (0 for all). Extents of long
    /// parts are left out; see [`Reader::part_pages`].
    #[must_use]
    pub fn parts(&self, bucket: BucketId, key: &ObjectKey, body: BodyId, after: u16) -> PartScan<'_> {
        let _ = (bucket, key, body, after);
        todo!()
    }
}

/// Current versions of a bucket, in key order.
pub struct ObjectScan<'a> {
    reader: PhantomData<&'a Reader>,
}

impl ObjectScan<'_> {
    /// Jumps forward to the first key at or after these raw bytes; never back.
    pub fn seek(&mut self, from: Bound<&[u8]>) {
        let _ = (from, self.reader);
        todo!()
    }
}

impl Iterator for ObjectScan<'_> {
    type Item = Result<(ObjectKey, Entry), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        todo!()
    }
}

/// A version as it is stored, not decoded yet.
#[derive(Clone, Debug)]
pub struct Entry(Box<[u8]>);

impl Entry {
    /// All of it.
    ///
    /// # Errors
    /// When it does not decode.
    pub fn version(&self) -> Result<ObjectVersion, ReadError> {
        decode(&self.0).map_err(|e: BadRecord| ReadError(e.to_string()))
    }

    /// What listings show.
    ///
    /// # Errors
    /// When it does not decode.
    pub fn summary(&self) -> Result<ObjectSummary, ReadError> {
        decode(&self.0).map_err(|e: BadRecord| ReadError(e.to_string()))
    }
}

/// Pages of a map, with their first logical bytes.
pub struct PageScan<'a> {
    reader: PhantomData<&'a Reader>,
}

impl Iterator for PageScan<'_> {
    type Item = Result<(u64, ExtentPage), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let _ = self.reader;
        todo!()
    }
}

/// Uploads of a bucket, by key and then by age.
pub struct UploadScan<'a> {
    reader: PhantomData<&'a Reader>,
}

impl Iterator for UploadScan<'_> {
    type Item = Result<(ObjectKey, Upload), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let _ = self.reader;
        todo!()
    }
}

/// Parts of a body, by number.
pub struct PartScan<'a> {
    reader: PhantomData<&'a Reader>,
}

impl Iterator for PartScan<'_> {
    type Item = Result<(PartNumber, Part), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let _ = self.reader;
        todo!()
    }
}
