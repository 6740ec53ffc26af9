//! Stores new bodies and records them in the catalogue.
//!
//! The order is fixed. First the bytes become durable in a segment, then the catalogue records them and
//! syncs, and then [`ObjectLayer::put_version`] returns. A source that fails, a refused condition or a power
//! failure leaves the namespace unchanged. Compaction frees bytes that no record refers to.

use crate::body_target::BodyTarget;
use crate::compressor::Compression;
use crate::ingest::{Destination, DurableChunks, Ingest};
use crate::memory::Account;
use crate::quota::WriteAttribution;
use crate::{ObjectError, ObjectLayer, etag};
use bytes::Bytes;
use mlgw_common::limits::{EXTENT_PAGE_ENTRIES_MAX, INLINE_EXTENTS_MAX};
use mlgw_common::{BodyId, ObjectKey, PartNumber, Timestamp};
use mlgw_formats::checksum::{Algorithm, stored_checksum};
use mlgw_formats::command::{Conditions, ObjectChange, PutObject, Reject, Reply};
use mlgw_formats::schema::{Bucket, Checksum, ChecksumKind, Extent, ExtentPage, ObjectVersion, Pair};
use mlgw_metadata::ProposeError;
use mlgw_segments::hot::SegmentHold;
use std::sync::Arc;

/// The only storage class.
pub const STORAGE_CLASS: &str = "STANDARD";

/// The descriptive part of a new object.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// System headers that are stored with it.
    pub headers: Vec<Pair>,
    /// User metadata.
    pub metadata: Vec<Pair>,
    /// Tags.
    pub tags: Vec<Pair>,
}

/// A body that is durable in segments and not yet recorded in the catalogue.
pub struct UncommittedBody {
    /// Its id.
    pub body: BodyId,
    /// Its length.
    pub bytes: u64,
    /// Its ETag.
    pub etag: String,
    /// Its checksums.
    pub checksums: Vec<Checksum>,
    /// Extents that hold its bytes.
    pub extents: Vec<Extent>,
    /// Holds that keep its segments until the catalogue has recorded or refused the body.
    pub holds: Vec<SegmentHold>,
}

/// A source of the bytes of a new body, in order.
pub trait PutSource {
    /// Error of the source or of the object layer.
    type Error: From<ObjectError>;

    /// Returns the length in bytes if it is known before the first byte is read.
    fn length(&self) -> Option<u64>;

    /// Returns true if [`ObjectLayer::store`] must compute the MD5.
    fn needs_md5(&self) -> bool;

    /// Returns the next bytes, or `None` after the last.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, Self::Error>> + Send;

    /// Returns the digests of the whole body. `md5` is its MD5 if [`PutSource::needs_md5`] is true. Called
    /// after the last byte.
    ///
    /// # Errors
    /// When the bytes differ from the declared length or digests.
    fn finish(self, md5: Option<[u8; 16]>) -> Result<BodyDigests, Self::Error>;
}

/// Digests of a whole body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyDigests {
    /// Its length.
    pub bytes: u64,
    /// Its MD5, if the ETag is the MD5.
    pub md5: Option<[u8; 16]>,
    /// Its checksums.
    pub checksums: Vec<(Algorithm, Vec<u8>)>,
}

impl UncommittedBody {
    /// Returns the record of the version that this body becomes, without its extents.
    #[must_use]
    pub fn object(&self, description: Description, writer: WriteAttribution, now_ms: i64) -> ObjectVersion {
        ObjectVersion {
            body_id: self.body.get(),
            size: self.bytes,
            modified_ms: now_ms,
            etag: self.etag.clone(),
            headers: description.headers,
            metadata: description.metadata,
            tags: description.tags,
            checksums: self.checksums.clone(),
            storage_class: STORAGE_CLASS.to_owned(),
            owner: writer.owner,
            payer: writer.payer,
            ..ObjectVersion::default()
        }
    }
}

/// Returns a put of `object` with the extents of its body.
#[must_use]
pub fn put_of(mut object: ObjectVersion, extents: Vec<Extent>, conditions: Conditions) -> PutObject {
    assert!(object.extents.is_empty(), "the extents of a new version are set once");
    let mut pages = Vec::new();
    if extents.len() <= INLINE_EXTENTS_MAX {
        object.extents = extents;
    } else {
        pages = pages_of(extents);
    }
    PutObject { version: object, pages, conditions, is_exempt: false }
}

/// Splits the extents of a long body into pages.
fn pages_of(extents: Vec<Extent>) -> Vec<ExtentPage> {
    let page = |extents: &[Extent]| ExtentPage { extents: extents.to_vec(), parts: Vec::new() };
    extents.chunks(EXTENT_PAGE_ENTRIES_MAX).map(page).collect()
}

/// Returns the error of a write whose condition held when the request began.
#[must_use]
pub fn lost_race(error: ProposeError, conditions_name: &'static str) -> ObjectError {
    let lost = |is_removed| ObjectError::LostRace { condition: conditions_name, is_removed };
    match error {
        ProposeError::Rejected(Reject::NoSuchKey) => lost(true),
        ProposeError::Rejected(Reject::PreconditionFailed) => lost(false),
        error => error.into(),
    }
}

/// Returns the name of the condition that decides a write.
#[must_use]
pub fn condition_name(conditions: &Conditions) -> &'static str {
    if conditions.if_match.is_some() { "If-Match" } else { "If-None-Match" }
}

impl ObjectLayer {
    /// Returns the body id of the upload of `part`, or a new body id if `part` is `None`.
    ///
    /// # Errors
    /// Those of the catalogue.
    pub async fn body_of(&self, part: Option<(BodyId, PartNumber)>) -> Result<BodyId, ObjectError> {
        match part {
            Some((upload, _)) => Ok(upload),
            None => Ok(self.catalogue.body_id().await?),
        }
    }

    /// Reads `source` to its end and stores it, compressed if `compression` is given.
    ///
    /// # Errors
    /// Those of the source; [`ObjectError::NoRoom`]; [`crate::ResourceShortage`] of memory or disk.
    pub async fn store<S: PutSource>(
        self: &Arc<Self>,
        memory: &Account,
        target: BodyTarget<'_>,
        mut source: S,
        compression: Option<Compression>,
    ) -> Result<UncommittedBody, S::Error> {
        let length = source.length();
        self.room_for(length.unwrap_or(0)).await?;
        let body = self.body_of(target.part).await?;
        let ingest = Ingest::begin(self, memory, Destination::of(target, body), length).await?;
        let mut ingest = ingest.compressed(compression);
        let needs_md5 = source.needs_md5();
        if needs_md5 {
            ingest = ingest.with_md5();
        }
        while let Some(bytes) = source.next().await? {
            ingest.push(bytes).await?;
        }
        // The source may still fail after it gets the MD5. Until then no record refers to the bytes.
        let DurableChunks { extents, holds, md5 } = ingest.finish().await?;
        assert_eq!(md5.is_some(), needs_md5, "a source gets the MD5 that it needs");
        let BodyDigests { bytes, md5, checksums } = source.finish(md5)?;
        let of_whole = |(algorithm, value)| stored_checksum(algorithm, ChecksumKind::FullObject, value);
        let checksums = checksums.into_iter().map(of_whole).collect();
        Ok(UncommittedBody { body, bytes, etag: etag::of_body(md5)?, checksums, extents, holds })
    }

    /// Makes `object` the current version of its key. Returns its sequence number in the order of versions.
    ///
    /// # Errors
    /// [`ObjectError::LostRace`]; those of [`ObjectLayer::propose_object`].
    pub async fn put_version(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        object: ObjectVersion,
        extents: Vec<Extent>,
        conditions: Conditions,
    ) -> Result<u64, ObjectError> {
        self.propose_put(bucket, key, put_of(object, extents, conditions)).await
    }

    /// Proposes a prepared put, otherwise like [`ObjectLayer::put_version`].
    ///
    /// # Errors
    /// Those of [`ObjectLayer::put_version`].
    pub async fn propose_put(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        put: PutObject,
    ) -> Result<u64, ObjectError> {
        let condition = condition_name(&put.conditions);
        let now = Timestamp(put.version.modified_ms);
        let proposed = self.propose_object(bucket, key, now, ObjectChange::Put(put)).await;
        match proposed.map_err(|error| lost_race(error, condition))? {
            Reply::Written(written) => Ok(written.seq),
            other => Err(ObjectError::internal(format!("unexpected reply to a put: {other:?}"))),
        }
    }
}
