//! Proposing a change and saying in S3's words why it was refused.

use super::Gateway;
use super::error::{Code, S3Error};
use crate::metrics::stages::stage;
use crate::metrics::throttled;
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_metadata::command::{Command, ObjectChange, Reject, Reply};
use mlgw_metadata::schema::Bucket;
use mlgw_metadata::{CreateBucketError, DeleteBucketError, ProposeError};

impl Gateway {
    /// Proposes a change of one key; when this returns `Ok`, it is durable and visible.
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
        let command = Command::object(bucket, key, now, change);
        let proposed = stage("commit", self.catalogue.propose(command)).await;
        if matches!(proposed, Err(ProposeError::Overloaded)) {
            throttled(&self.metrics, "queue");
        }
        proposed
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
        other => S3Error::internal(format!("the catalogue refused what it should have taken: {other}")),
    }
}
