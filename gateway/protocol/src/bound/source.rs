//! Objects of remote-backed buckets as sources of copies to other buckets.

use super::{Fronted, back, of_name, told};
use crate::Gateway;
use crate::copied::Copied;
use crate::noted::caller;
use crate::request::Request;
use mlgw_cache::bound::{BoundReader, Opened};
use mlgw_cache::policy::Asking;
use mlgw_cache::writeback::record::unmarked;
use mlgw_common::ObjectKey;
use mlgw_common::limits::SMALL_BODY_BYTES;
use mlgw_formats::schema::{ObjectVersion, Pair};
use mlgw_objects::memory::{Account, MemoryGrant, blocks_of};
use mlgw_objects::reader::PIECE_BYTES;
use mlgw_policies::Caller;
use mlgw_remote::origin::{OriginError, Part};
use mlgw_wire::copy_source::source_range;
use mlgw_wire::error::{Code, S3Error};
use std::ops::Range;
use std::sync::Arc;

/// Source object at an origin.
pub struct FromBound {
    fronted: Fronted,
    key: ObjectKey,
    opened: Opened,
    /// The object as clients see it.
    object: ObjectVersion,
    caller: Caller,
}

impl FromBound {
    /// Finds the object of `key` if the bucket is remote-backed.
    ///
    /// # Errors
    /// `NoSuchKey`; errors of the origin.
    pub(crate) async fn find(
        gateway: &Gateway,
        request: &Request<'_>,
        bucket: &str,
        key: &ObjectKey,
    ) -> Result<Option<Copied>, S3Error> {
        let Some(fronted) = of_name(gateway, bucket)? else { return Ok(None) };
        if let Some(found) = back::find_key(gateway, key, &fronted).await? {
            return Ok(Some(Copied::Ours(Box::new(found))));
        }
        let part = match request.header("x-amz-copy-source-range")? {
            None => Part::Whole,
            Some(header) => {
                let Range { start: first, end } = source_range(header, u64::MAX)?;
                Part::Range { first, end }
            }
        };
        let opened = fronted.bound.open(key, part).await.map_err(|error| match error {
            OriginError::NoSuchKey => S3Error::new(Code::NoSuchKey).field("Key", key.as_str()),
            error => told(error, &fronted),
        })?;
        let object = unmarked(&opened.object).unwrap_or_else(|| opened.object.clone());
        Ok(Some(Copied::Bound(Box::new(Self {
            fronted,
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
        match self.fronted.bound.tags(&self.key).await {
            Err(OriginError::Refused { status: 501, .. }) => Ok(Vec::new()),
            tags => tags.map_err(|error| self.told(error)),
        }
    }

    /// Returns a reader of a range, with its memory grant.
    pub(crate) async fn read(
        &self,
        memory: &Account,
        range: Range<u64>,
    ) -> Result<(BoundReader, Option<Arc<MemoryGrant>>), S3Error> {
        let bytes = range.end - range.start;
        // Before the reservation: a fetch in flight for this object takes the reader's retention request
        // from here.
        let reader =
            self.fronted.bound.read(&self.key, &self.opened, range, Some(&Asking::plain(self.caller)));
        let held = if bytes <= SMALL_BODY_BYTES as u64 {
            None
        } else {
            let many = blocks_of(bytes.min(2 * PIECE_BYTES));
            Some(Arc::new(memory.reserve_some(many, many.min(2)).await?))
        };
        Ok((reader, held))
    }

    pub(crate) fn told(&self, error: OriginError) -> S3Error {
        told(error, &self.fronted)
    }
}
