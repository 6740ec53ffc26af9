//! Objects of remote-backed buckets as sources of copies to other buckets.

use super::{RemoteBackedBucket, find_by_name, origin_error, write_back};
use crate::Gateway;
use crate::access_hooks::caller;
use crate::request::AuthenticatedRequest;
use mlgw_cache::policy_driver::PolicyRequestContext;
use mlgw_cache::remote_backed::{CachedObjectReader, OpenedObject};
use mlgw_cache::writeback::record::unmarked;
use mlgw_common::ObjectKey;
use mlgw_common::limits::SMALL_BODY_BYTES;
use mlgw_formats::schema::{ObjectVersion, Pair};
use mlgw_objects::memory::{Account, MemoryGrant, blocks_of};
use mlgw_objects::read::FoundObject;
use mlgw_objects::reader::PIECE_BYTES;
use mlgw_policies::Caller;
use mlgw_remote::origin::{ObjectPart, OriginError};
use mlgw_wire::copy_source::source_range;
use mlgw_wire::error::{Code, S3Error};
use std::ops::Range;
use std::sync::Arc;

/// Source object in a remote-backed bucket.
pub(crate) enum FoundCopySource {
    /// A write that the origin does not have yet.
    Dirty(Box<FoundObject>),
    /// An object that is at an origin, or was read from there.
    AtOrigin(Box<RemoteCopySource>),
}

/// Source object at an origin.
pub struct RemoteCopySource {
    remote_backed: RemoteBackedBucket,
    key: ObjectKey,
    opened: OpenedObject,
    /// The object as clients see it.
    object: ObjectVersion,
    caller: Caller,
}

impl RemoteCopySource {
    /// Finds the object of `key` if the bucket is remote-backed.
    ///
    /// # Errors
    /// `NoSuchKey`; errors of the origin.
    pub(crate) async fn find(
        gateway: &Gateway,
        request: &AuthenticatedRequest<'_>,
        bucket: &str,
        key: &ObjectKey,
    ) -> Result<Option<FoundCopySource>, S3Error> {
        let Some(remote_backed) = find_by_name(gateway, bucket)? else { return Ok(None) };
        if let Some(found) = write_back::find_dirty(gateway, key, &remote_backed).await? {
            return Ok(Some(FoundCopySource::Dirty(Box::new(found))));
        }
        let part = match request.header("x-amz-copy-source-range")? {
            None => ObjectPart::Whole,
            Some(header) => {
                let Range { start: first, end } = source_range(header, u64::MAX)?;
                ObjectPart::Range { first, end }
            }
        };
        let opened = remote_backed.cached.open(key, part).await.map_err(|error| match error {
            OriginError::NoSuchKey => S3Error::new(Code::NoSuchKey).field("Key", key.as_str()),
            error => origin_error(error, &remote_backed),
        })?;
        let object = unmarked(&opened.object).unwrap_or_else(|| opened.object.clone());
        Ok(Some(FoundCopySource::AtOrigin(Box::new(Self {
            remote_backed,
            key: key.clone(),
            opened,
            object,
            caller: caller(request),
        }))))
    }

    pub(crate) fn object(&self) -> &ObjectVersion {
        &self.object
    }

    /// Returns the tags, or none if the origin has no tagging.
    pub(crate) async fn tags(&self) -> Result<Vec<Pair>, S3Error> {
        match self.remote_backed.cached.tags(&self.key).await {
            Err(OriginError::Refused { status: 501, .. }) => Ok(Vec::new()),
            tags => tags.map_err(|error| self.origin_error(error)),
        }
    }

    /// Returns a reader of a range, with its memory grant.
    pub(crate) async fn read(
        &self,
        memory: &Account,
        range: Range<u64>,
    ) -> Result<(CachedObjectReader, Option<Arc<MemoryGrant>>), S3Error> {
        let bytes = range.end - range.start;
        // Before the reservation: a fetch in flight for this object takes the reader's retention request
        // from here.
        let reader = self.remote_backed.cached.read(
            &self.key,
            &self.opened,
            range,
            Some(&PolicyRequestContext::of_caller(self.caller)),
        );
        let held = if bytes <= SMALL_BODY_BYTES as u64 {
            None
        } else {
            let many = blocks_of(bytes.min(2 * PIECE_BYTES));
            Some(Arc::new(memory.reserve_some(many, many.min(2)).await?))
        };
        Ok((reader, held))
    }

    pub(crate) fn origin_error(&self, error: OriginError) -> S3Error {
        origin_error(error, &self.remote_backed)
    }
}
