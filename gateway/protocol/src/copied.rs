//! What a copy is of: an object of ours, or one of a bucket that is bound, as who reads it there would get
//! it.
//!
//! Always: who copies may read the source, and his conditions on it hold, before anything of it is read; and
//! what is read is one version of it.

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

/// What is copied.
pub(super) enum Copied {
    /// An object that is here.
    Ours(Box<Found>),
    /// One that is at an origin, or was read from there.
    Bound(Box<FromBound>),
}

/// Its bytes.
pub(super) enum CopiedReader {
    Ours(BodyReader),
    Bound(Box<(FromBound, BoundReader)>),
}

impl Copied {
    /// The source of a copy.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchKey`, `PreconditionFailed`; those of an origin.
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

    /// What it is like.
    pub(super) fn object(&self) -> &ObjectVersion {
        match self {
            Self::Ours(found) => &found.object,
            Self::Bound(bound) => bound.object(),
        }
    }

    /// Its description, for its copy.
    ///
    /// # Errors
    /// Those of an origin, which is asked for its tags.
    pub(super) async fn description(&self) -> Result<Description, S3Error> {
        let object = self.object();
        let tags = match self {
            Self::Ours(found) => found.object.tags.clone(),
            Self::Bound(bound) => bound.tags().await?,
        };
        Ok(Description { headers: object.headers.clone(), metadata: object.metadata.clone(), tags })
    }

    /// Reads some of it, with the memory that is held for that.
    ///
    /// # Errors
    /// `SlowDown` when memory is short for too long.
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
    /// The next bytes; nothing at the end.
    ///
    /// # Errors
    /// Why they cannot be read.
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
