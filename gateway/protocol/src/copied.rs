//! Sources of copies: an object that is stored here, or an object of a remote-backed bucket as a GET would
//! return it.
//!
//! Invariants: before any byte of the source is read, the caller's right to read it and the request's
//! conditions on it are checked. All bytes are of one version.

use super::bound::FromBound;
use super::conditions::{OF_COPY_SOURCE, Verdict};
use super::noted;
use super::request::Request;
use super::{Gateway, may_read};
use bytes::Bytes;
use mlgw_cache::bound::BoundReader;
use mlgw_common::Timestamp;
use mlgw_formats::schema::ObjectVersion;
use mlgw_objects::ObjectError;
use mlgw_objects::memory::{Account, MemoryGrant};
use mlgw_objects::put::Description;
use mlgw_objects::read::Found;
use mlgw_objects::reader::BodyReader;
use mlgw_wire::copy_source::Source;
use mlgw_wire::error::{Code, S3Error};
use std::ops::Range;
use std::sync::Arc;

/// Source object of a copy.
pub(super) enum Copied {
    /// An object that is stored here.
    Ours(Box<Found>),
    /// An object that is at an origin, or was read from there.
    Bound(Box<FromBound>),
}

/// Reader of the source's bytes.
pub(super) enum CopiedReader {
    Ours(BodyReader),
    Bound(Box<(FromBound, BoundReader)>),
}

impl Copied {
    /// Finds the source of a copy.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchKey`, `PreconditionFailed`; errors of the origin.
    pub(super) async fn find(
        gateway: &Gateway,
        request: &Request<'_>,
        source: Source,
    ) -> Result<Self, S3Error> {
        let Source { bucket, key } = source;
        if !may_read(&request.principal, &bucket, key.as_str()) {
            return Err(S3Error::new(Code::AccessDenied));
        }
        let copied = match FromBound::find(gateway, request, &bucket, &key).await? {
            Some(bound) => bound,
            None => {
                let bucket = gateway.bucket(&bucket)?;
                let found = gateway.objects.find(bucket, &key)?;
                noted::copied_from(gateway, &found);
                Self::Ours(Box::new(found))
            }
        };
        let object = copied.object();
        match OF_COPY_SOURCE.check(&request.head.headers, &object.etag, Timestamp(object.modified_ms)) {
            Verdict::Send => Ok(copied),
            Verdict::NotModified => Err(S3Error::precondition_failed("x-amz-copy-source-If-None-Match")),
            Verdict::Failed(_) => Err(S3Error::precondition_failed("x-amz-copy-source-If-Match")),
        }
    }

    /// Returns the record of the source.
    pub(super) fn object(&self) -> &ObjectVersion {
        match self {
            Self::Ours(found) => &found.object,
            Self::Bound(bound) => bound.object(),
        }
    }

    /// Returns the description of the source, for its copy.
    ///
    /// # Errors
    /// Errors of the origin, which is queried for the tags.
    pub(super) async fn description(&self) -> Result<Description, S3Error> {
        let object = self.object();
        let tags = match self {
            Self::Ours(found) => found.object.tags.clone(),
            Self::Bound(bound) => bound.tags().await?,
        };
        Ok(Description { headers: object.headers.clone(), metadata: object.metadata.clone(), tags })
    }

    /// Returns a reader of a range, with the memory grant for it.
    ///
    /// # Errors
    /// `SlowDown` if memory stays short for too long.
    pub(super) async fn read(
        self,
        gateway: &Gateway,
        memory: &Account,
        range: Range<u64>,
    ) -> Result<(CopiedReader, Option<Arc<MemoryGrant>>), S3Error> {
        match self {
            Self::Ours(found) => {
                let (reader, held) = found.reader(&gateway.objects, memory, range).await?;
                Ok((CopiedReader::Ours(reader), held))
            }
            Self::Bound(bound) => {
                let (reader, held) = bound.read(memory, range).await?;
                Ok((CopiedReader::Bound(Box::new((*bound, reader))), held))
            }
        }
    }
}

impl CopiedReader {
    /// Returns the next bytes, or `None` at the end.
    ///
    /// # Errors
    /// Failures to read the source.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, S3Error> {
        match self {
            Self::Ours(reader) => Ok(reader.next().await.map_err(ObjectError::from)?),
            Self::Bound(bound) => {
                let (bound, reader) = &mut **bound;
                reader.next().await.map_err(|error| bound.told(error))
            }
        }
    }
}
