//! Pass-through reads: some bytes of a block that is not kept, for one reader.
//!
//! Only the bytes that are read are requested. An interrupted read is resumed at the offset where it broke
//! off.

use super::CachedBucket;
use super::resume::ReadResumeState;
use bytes::Bytes;
use futures_util::StreamExt as _;
use mlgw_common::ObjectKey;
use mlgw_formats::schema::ObjectVersion;
use mlgw_remote::origin::{OriginError, OriginObject};
use std::ops::Range;

/// Pass-through read of one reader.
pub(super) struct PassThroughRead {
    left: Range<u64>,
    got: Option<OriginObject>,
    tries: ReadResumeState,
    /// Offset at which the current response began.
    begun: u64,
}

impl PassThroughRead {
    /// Creates a read of these bytes of an object.
    pub(super) fn new(range: Range<u64>) -> Self {
        assert!(!range.is_empty(), "a pass-through read has bytes to read");
        Self { begun: range.start, left: range, got: None, tries: ReadResumeState::default() }
    }

    /// Returns the next bytes; `None` at the end.
    pub(super) async fn next(
        &mut self,
        bucket: &CachedBucket,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Result<Option<Bytes>, OriginError> {
        while !self.left.is_empty() {
            let error = match self.piece(bucket, key, object).await {
                Ok(Some(mut piece)) => {
                    piece.truncate(usize::try_from(self.left.end - self.left.start).unwrap_or(usize::MAX));
                    self.left.start += piece.len() as u64;
                    return Ok(Some(piece));
                }
                Ok(None) => OriginError::Unreachable("the response ended early".into()),
                Err(error) => error,
            };
            self.got = None;
            if !self.tries.may_resume(&error, self.begun, self.left.start) {
                return Err(error);
            }
            self.begun = self.left.start;
        }
        Ok(None)
    }

    async fn piece(
        &mut self,
        bucket: &CachedBucket,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Result<Option<Bytes>, OriginError> {
        let got = match &mut self.got {
            Some(got) => got,
            None => self.got.insert(bucket.get_version(key, object, self.left.clone()).await?),
        };
        got.body.next().await.transpose()
    }
}
