//! Proposing a change and saying in S3's words why it was refused.

use super::Gateway;
use super::error::{Code, S3Error};
use super::quota;
use crate::metrics::stages::stage;
use crate::metrics::{refused_by_quota, throttled};
use mlgw_common::limits::APPEND_AGAIN_MAX;
use mlgw_common::{BodyId, ObjectKey, Timestamp};
use mlgw_metadata::command::{Change, Command, ObjectChange, Reject, Reply};
use mlgw_metadata::schema::{Bucket, Extent};
use mlgw_metadata::{CreateBucketError, DeleteBucketError, ProposeError};
use mlgw_tiering::Hold;
use std::sync::Arc;

impl Gateway {
    /// Proposes a change of one key; when this returns `Ok`, it is durable and visible. Bytes that lie
    /// in a segment which was fenced meanwhile are appended again elsewhere, and the change is
    /// proposed with their new place: the client does not notice.
    ///
    /// # Errors
    /// What the catalogue refuses, in its own words.
    pub async fn propose_object(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        now: Timestamp,
        change: ObjectChange,
    ) -> Result<Reply, ProposeError> {
        let mut command = Arc::new(Command::object(bucket, key, now, change));
        let mut holds = Vec::new();
        for _ in 0..APPEND_AGAIN_MAX {
            match stage("commit", self.catalogue.propose(Arc::clone(&command))).await {
                Err(ProposeError::Rejected(Reject::SegmentFenced { segment })) => {
                    let mut mended = Command::clone(&command);
                    self.append_again(&mut mended, segment, &mut holds).await?;
                    command = Arc::new(mended);
                }
                Err(ProposeError::Overloaded) => break,
                Err(ProposeError::Rejected(why @ Reject::QuotaExceeded { .. })) => {
                    if let Reject::QuotaExceeded { of, .. } = &why {
                        refused_by_quota(&self.metrics, of);
                    }
                    return Err(why.into());
                }
                outcome => return outcome,
            }
        }
        throttled(&self.metrics, "queue");
        Err(ProposeError::Overloaded)
    }

    /// Appends again what a change names in `segment`, and names it where it is then. What cannot be
    /// stored now is for the client to send again.
    async fn append_again(
        &self,
        command: &mut Command,
        segment: u64,
        holds: &mut Vec<Hold>,
    ) -> Result<(), ProposeError> {
        let (body, extents) = new_extents(command).ok_or(ProposeError::Overloaded)?;
        tracing::debug!(segment, %body, "appending again what a fence refused");
        for extent in extents.into_iter().filter(|extent| extent.segment == segment) {
            let appended =
                self.tiers.hot.append_again(extent, body).await.map_err(|_| ProposeError::Overloaded)?;
            *extent = appended.extent;
            holds.push(appended.hold);
        }
        Ok(())
    }

    /// As [`Gateway::propose_object`], for changes whose refusal needs no words of its own.
    ///
    /// # Errors
    /// What the catalogue refuses, by S3's codes.
    pub async fn commit_object(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        now: Timestamp,
        change: ObjectChange,
    ) -> Result<Reply, S3Error> {
        Ok(self.propose_object(bucket, key, now, change).await?)
    }
}

/// The extents that a change would begin to name, with their body.
fn new_extents(command: &mut Command) -> Option<(BodyId, Vec<&mut Extent>)> {
    let Some(Change::Object(object)) = &mut command.change else { return None };
    match object.change.as_mut()? {
        ObjectChange::Put(put) => {
            let body = put.version.body();
            let paged = put.pages.iter_mut().flat_map(|page| &mut page.extents);
            Some((body, put.version.extents.iter_mut().chain(paged).collect()))
        }
        ObjectChange::PutPart(put) => Some((BodyId(put.body_id), put.part.extents.iter_mut().collect())),
        _ => None,
    }
}

impl From<ProposeError> for S3Error {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Rejected(reject) => rejected(reject),
            ProposeError::Overloaded => S3Error::new(Code::SlowDown),
            ProposeError::Stopping => S3Error::new(Code::ServiceUnavailable),
        }
    }
}

impl From<CreateBucketError> for S3Error {
    fn from(error: CreateBucketError) -> Self {
        match error {
            CreateBucketError::Exists(bucket) => {
                S3Error::new(Code::BucketAlreadyOwnedByYou).field("BucketName", bucket.name.clone())
            }
            CreateBucketError::TooMany => S3Error::new(Code::TooManyBuckets),
            CreateBucketError::Busy => S3Error::new(Code::OperationAborted),
            CreateBucketError::Propose(error) => error.into(),
        }
    }
}

impl From<DeleteBucketError> for S3Error {
    fn from(error: DeleteBucketError) -> Self {
        match error {
            DeleteBucketError::NoSuchBucket => S3Error::new(Code::NoSuchBucket),
            DeleteBucketError::NotEmpty => S3Error::new(Code::BucketNotEmpty),
            DeleteBucketError::Propose(error) => error.into(),
        }
    }
}

impl From<mlgw_metadata::ReadError> for S3Error {
    fn from(error: mlgw_metadata::ReadError) -> Self {
        S3Error::internal(error)
    }
}

fn rejected(reject: Reject) -> S3Error {
    match reject {
        Reject::NoSuchBucket => S3Error::new(Code::NoSuchBucket),
        Reject::BucketExists { .. } => S3Error::new(Code::BucketAlreadyOwnedByYou),
        Reject::BucketNotEmpty => S3Error::new(Code::BucketNotEmpty),
        Reject::TooManyBuckets => S3Error::new(Code::TooManyBuckets),
        // The bucket changed under the request twice in a row; the client's retry sees it as it is.
        Reject::StaleEpoch | Reject::BucketFrozen | Reject::BucketBusy => {
            S3Error::new(Code::OperationAborted)
        }
        Reject::NoSuchKey => S3Error::new(Code::NoSuchKey),
        Reject::PreconditionFailed => S3Error::new(Code::PreconditionFailed),
        Reject::NoSuchUpload => S3Error::new(Code::NoSuchUpload),
        Reject::InvalidPart { number } => {
            S3Error::new(Code::InvalidPart).field("PartNumber", number.to_string())
        }
        Reject::PartTooSmall { number, size } => S3Error::new(Code::EntityTooSmall)
            .field("PartNumber", number.to_string())
            .field("ProposedSize", size.to_string()),
        Reject::TooLarge => S3Error::new(Code::EntityTooLarge),
        Reject::QuotaExceeded { of, excess } => quota::exceeded(&of, excess),
        other => S3Error::internal(format!("the catalogue refused what it should have taken: {other}")),
    }
}

#[cfg(test)]
pub(crate) mod tests;
