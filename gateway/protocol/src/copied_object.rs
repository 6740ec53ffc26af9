//! Sources of copies: an object that is stored here, or an object of a remote-backed bucket as a GET would
//! return it.
//!
//! Invariants: before any byte of the source is read, the caller's right to read it and the request's
//! conditions on it are checked. All bytes are of one version.

use super::access_hooks;
use super::conditions::{COPY_SOURCE_CONDITIONS, ReadConditionResult};
use super::remote_backed::{FoundCopySource, RemoteCopySource};
use super::request::AuthenticatedRequest;
use super::{Gateway, can_read};
use bytes::Bytes;
use mlgw_cache::remote_backed::CachedObjectReader;
use mlgw_common::Timestamp;
use mlgw_formats::schema::ObjectVersion;
use mlgw_objects::ObjectError;
use mlgw_objects::memory::{Account, MemoryGrant};
use mlgw_objects::put::Description;
use mlgw_objects::read::FoundObject;
use mlgw_objects::reader::BodyReader;
use mlgw_wire::copy_source::CopySource;
use mlgw_wire::error::{Code, S3Error};
use std::ops::Range;
use std::sync::Arc;

/// Source object of a copy.
pub(super) enum CopiedObject {
    /// An object that is stored here.
    Local(Box<FoundObject>),
    /// An object that is at an origin, or was read from there.
    Remote(Box<RemoteCopySource>),
}

/// Reader of the source's bytes.
pub(super) enum CopiedObjectReader {
    Local(BodyReader),
    Remote(Box<(RemoteCopySource, CachedObjectReader)>),
}

impl CopiedObject {
    /// Finds the source of a copy.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchKey`, `PreconditionFailed`; errors of the origin.
    pub(super) async fn find(
        gateway: &Gateway,
        request: &AuthenticatedRequest<'_>,
        source: CopySource,
    ) -> Result<Self, S3Error> {
        let CopySource { bucket, key } = source;
        if !can_read(&request.principal, &bucket, key.as_str()) {
            return Err(S3Error::new(Code::AccessDenied));
        }
        let copied = match RemoteCopySource::find(gateway, request, &bucket, &key).await? {
            Some(FoundCopySource::Dirty(found)) => Self::Local(found),
            Some(FoundCopySource::AtOrigin(bound)) => Self::Remote(bound),
            None => {
                let bucket = gateway.bucket(&bucket)?;
                let found = gateway.objects.find(bucket, &key)?;
                access_hooks::record_copy_source(gateway, &found);
                Self::Local(Box::new(found))
            }
        };
        let object = copied.object();
        match COPY_SOURCE_CONDITIONS.check(&request.head.headers, &object.etag, Timestamp(object.modified_ms))
        {
            ReadConditionResult::Send => Ok(copied),
            ReadConditionResult::NotModified => {
                Err(S3Error::precondition_failed("x-amz-copy-source-If-None-Match"))
            }
            ReadConditionResult::Failed(_) => Err(S3Error::precondition_failed("x-amz-copy-source-If-Match")),
        }
    }

    /// Returns the record of the source.
    pub(super) fn object(&self) -> &ObjectVersion {
        match self {
            Self::Local(found) => &found.object,
            Self::Remote(bound) => bound.object(),
        }
    }

    /// Returns the description of the source, for its copy.
    ///
    /// # Errors
    /// Errors of the origin, which is queried for the tags.
    pub(super) async fn description(&self) -> Result<Description, S3Error> {
        let object = self.object();
        let tags = match self {
            Self::Local(found) => found.object.tags.clone(),
            Self::Remote(bound) => bound.tags().await?,
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
    ) -> Result<(CopiedObjectReader, Option<Arc<MemoryGrant>>), S3Error> {
        match self {
            Self::Local(found) => {
                let (reader, held) = found.reader(&gateway.objects, memory, range).await?;
                Ok((CopiedObjectReader::Local(reader), held))
            }
            Self::Remote(bound) => {
                let (reader, held) = bound.read(memory, range).await?;
                Ok((CopiedObjectReader::Remote(Box::new((*bound, reader))), held))
            }
        }
    }
}

impl CopiedObjectReader {
    /// Returns the next bytes, or `None` at the end.
    ///
    /// # Errors
    /// Failures to read the source.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, S3Error> {
        match self {
            Self::Local(reader) => Ok(reader.next().await.map_err(ObjectError::from)?),
            Self::Remote(bound) => {
                let (bound, reader) = &mut **bound;
                reader.next().await.map_err(|error| bound.origin_error(error))
            }
        }
    }
}
