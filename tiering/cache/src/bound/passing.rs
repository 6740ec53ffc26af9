//! Bytes that pass by: some of a block that is not kept, for one reader.
//!
//! No more is asked for than is read. What breaks off goes on where it stopped.

use super::BoundBucket;
use super::tries::Tries;
use bytes::Bytes;
use futures_util::StreamExt as _;
use mlgw_common::ObjectKey;
use mlgw_formats::schema::ObjectVersion;
use mlgw_remote::origin::{Got, OriginError};
use std::ops::Range;

/// See the module.
pub(super) struct Passing {
    left: Range<u64>,
    got: Option<Got>,
    tries: Tries,
    /// Where the answer began that is read.
    begun: u64,
}

impl Passing {
    /// These bytes of an object.
    pub(super) fn new(range: Range<u64>) -> Self {
        Self { begun: range.start, left: range, got: None, tries: Tries::default() }
    }

    /// The next bytes; nothing at the end.
    pub(super) async fn next(
        &mut self,
        bucket: &BoundBucket,
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
                Ok(None) => OriginError::Unreachable("it ended early".into()),
                Err(error) => error,
            };
            self.got = None;
            if !self.tries.may_go_on(&error, self.begun, self.left.start) {
                return Err(error);
            }
            self.begun = self.left.start;
        }
        Ok(None)
    }

    async fn piece(
        &mut self,
        bucket: &BoundBucket,
        key: &ObjectKey,
        object: &ObjectVersion,
    ) -> Result<Option<Bytes>, OriginError> {
        let got = match &mut self.got {
            Some(got) => got,
            None => self.got.insert(bucket.get(key, object, self.left.clone()).await?),
        };
        got.body.next().await.transpose()
    }
}
