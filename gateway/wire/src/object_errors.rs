//! Mapping of errors of the object layer and of the catalogue to S3's codes.
//!
//! The matches have no catch-all arm: a new variant does not compile before it has a code.

use super::error::{Code, S3Error};
use http::header::{HeaderValue, RETRY_AFTER};
use mlgw_formats::command::{QuotaSubject, Reject};
use mlgw_formats::schema::Excess;
use mlgw_metadata::{CreateBucketError, DeleteBucketError, ProposeError, ReadError};
use mlgw_objects::error::quota_refusal;
use mlgw_objects::{ObjectError, ResourceShortage};

impl From<ObjectError> for S3Error {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Short(shortage) => shortage.into(),
            ObjectError::NoRoom => Self::new(Code::InsufficientStorage),
            ObjectError::Stopping => Self::new(Code::ServiceUnavailable),
            ObjectError::NoLeader(cause) => Self::new(Code::ServiceUnavailable)
                .field("Reason", "NoLeader")
                .header(RETRY_AFTER, HeaderValue::from_static(Self::RETRY_AFTER_SECS))
                .caused_by(cause)
                .message("The part of the catalogue that holds the key has no leader. Try again."),
            ObjectError::TooFewReplicas(cause) => Self::new(Code::ServiceUnavailable)
                .field("Reason", "TooFewReplicas")
                .header(RETRY_AFTER, HeaderValue::from_static(Self::RETRY_AFTER_SECS))
                .caused_by(cause)
                .message("Too few storage nodes answer to store the object. Try again."),
            ObjectError::OtherSet(cause) => Self::new(Code::ServiceUnavailable)
                .field("Reason", "OtherSet")
                .header(RETRY_AFTER, HeaderValue::from_static(Self::RETRY_AFTER_SECS))
                .caused_by(cause)
                .message("Other nodes store objects with this key now. Try again."),
            ObjectError::DiskFailed(cause) => Self::new(Code::ServiceUnavailable)
                .field("Reason", "DiskFailed")
                .header(RETRY_AFTER, HeaderValue::from_static(Self::RETRY_AFTER_SECS))
                .caused_by(cause)
                .message("The disk of this node failed. Try again: another node will store the object."),
            ObjectError::NotFinalized(cause) => Self::new(Code::ServiceUnavailable)
                .message(format!("This request is served once the upgrade is finalized: {cause}.")),
            ObjectError::UnknownOutcome => Self::new(Code::ServiceUnavailable).message(
                "The catalogue lost its leader during the request: the change may or may not take effect. \
                 Read the current state before you try again.",
            ),
            ObjectError::NoSuchBucket(name) => Self::new(Code::NoSuchBucket).field("BucketName", name),
            ObjectError::NoSuchKey(key) => Self::new(Code::NoSuchKey).field("Key", key.as_str()),
            ObjectError::NoSuchUpload(_) => Self::new(Code::NoSuchUpload),
            ObjectError::LostRace { condition, is_removed: true } => {
                Self::new(Code::ConditionalRequestConflict).field("Condition", condition)
            }
            ObjectError::LostRace { condition, is_removed: false } => Self::precondition_failed(condition),
            ObjectError::Rejected(reject) => reject.into(),
            ObjectError::NoReplica(cause) => Self::new(Code::ServiceUnavailable)
                .field("Reason", "NoReplica")
                .header(RETRY_AFTER, HeaderValue::from_static(Self::RETRY_AFTER_SECS))
                .caused_by(cause)
                .message("No node that answers has the data of the object. Try again."),
            ObjectError::Unreachable(cause) => Self::new(Code::ServiceUnavailable)
                .caused_by(cause)
                .message("The data of the object is in an upstream that is not responding. Try again."),
            ObjectError::Unreadable(cause) => Self::internal(cause).message(
                "The data of the object cannot be read. Other ranges may still be readable; see the server \
                 log.",
            ),
            ObjectError::Internal(cause) => Self::internal(cause),
        }
    }
}

impl From<ResourceShortage> for S3Error {
    fn from(shortage: ResourceShortage) -> Self {
        let error = Self::new(Code::SlowDown).with_shortage(shortage.name());
        match shortage {
            ResourceShortage::Connections
            | ResourceShortage::Memory
            | ResourceShortage::Origin
            | ResourceShortage::Queue
            | ResourceShortage::WriteBack => error,
            ResourceShortage::Dirty => error.message(
                "Too much data is waiting to be written to its upstream. Please reduce your request \
                     rate.",
            ),
            ResourceShortage::Disk => {
                error.message("The server is freeing disk space. Try again in a moment.")
            }
        }
    }
}

impl From<ReadError> for S3Error {
    fn from(error: ReadError) -> Self {
        ObjectError::from(error).into()
    }
}

impl From<ProposeError> for S3Error {
    fn from(error: ProposeError) -> Self {
        ObjectError::from(error).into()
    }
}

impl From<CreateBucketError> for S3Error {
    fn from(error: CreateBucketError) -> Self {
        match error {
            CreateBucketError::Exists(bucket) => {
                Self::new(Code::BucketAlreadyOwnedByYou).field("BucketName", bucket.name.clone())
            }
            CreateBucketError::TooMany => Self::new(Code::TooManyBuckets),
            CreateBucketError::Busy => Self::new(Code::OperationAborted),
            CreateBucketError::Propose(error) => error.into(),
        }
    }
}

impl From<DeleteBucketError> for S3Error {
    fn from(error: DeleteBucketError) -> Self {
        match error {
            DeleteBucketError::NoSuchBucket => Self::new(Code::NoSuchBucket),
            DeleteBucketError::NotEmpty => Self::new(Code::BucketNotEmpty),
            DeleteBucketError::Propose(error) => error.into(),
        }
    }
}

impl From<Reject> for S3Error {
    fn from(reject: Reject) -> Self {
        match reject {
            Reject::NoSuchBucket => Self::new(Code::NoSuchBucket),
            Reject::BucketExists { .. } => Self::new(Code::BucketAlreadyOwnedByYou),
            Reject::BucketNotEmpty => Self::new(Code::BucketNotEmpty),
            Reject::TooManyBuckets => Self::new(Code::TooManyBuckets),
            Reject::TooManySplitKeys => too_many_split_keys(),
            Reject::StaleEpoch | Reject::BucketFrozen | Reject::BucketBusy => bucket_changed(),
            Reject::NoSuchKey => Self::new(Code::NoSuchKey),
            Reject::PreconditionFailed => Self::new(Code::PreconditionFailed),
            Reject::NoSuchUpload => Self::new(Code::NoSuchUpload),
            Reject::InvalidPart { number } => of_part(Code::InvalidPart, number),
            Reject::PartTooSmall { number, size } => part_too_small(number, size),
            Reject::TooLarge => Self::new(Code::EntityTooLarge),
            Reject::QuotaExceeded { of, excess } => quota_exceeded(&of, excess),
            Reject::TermEnded { .. } => taken_over(),
            // No S3 request leads to a command that the catalogue rejects with one of these.
            reject @ (Reject::BodyInUse
            | Reject::Malformed { .. }
            | Reject::NoSuchSegment
            | Reject::SegmentSealed
            | Reject::SegmentFenced { .. }
            | Reject::SegmentElsewhere
            | Reject::SegmentInUse
            | Reject::NotReferenced
            | Reject::NoSuchCredential
            | Reject::DatasetExists
            | Reject::NoSuchDataset
            | Reject::DatasetChanged
            | Reject::TooManyDatasets
            | Reject::DatasetBusy { .. }
            | Reject::NoSuchJob
            | Reject::JobEnded
            | Reject::JobElsewhere { .. }
            | Reject::DutyTaken { .. }
            | Reject::SagaEnded
            | Reject::SliceFull { .. }
            | Reject::AllotmentEnded { .. }
            | Reject::NoQuota
            | Reject::PolicyChanged { .. }
            | Reject::NoSuchPolicy { .. }
            | Reject::NoSuchJoinToken
            | Reject::JoinTokenExists
            | Reject::TooManyJoinTokens
            | Reject::WrongJoinSecret
            | Reject::JoinTokenExpired
            | Reject::JoinTokenUsed { .. }
            | Reject::NodeTooOld { .. }
            | Reject::VersionNotReported { .. }
            | Reject::NoSuchNode { .. }
            | Reject::NodeRemoved { .. }
            | Reject::NodeKeyInUse { .. }
            | Reject::TooManyNodes
            | Reject::WrongNodeState { .. }
            | Reject::LastStorageNode { .. }
            | Reject::StaleNodeStart { .. }
            | Reject::AuthorityChanged { .. }
            | Reject::TooManyAuthorities
            | Reject::AuthorityInUse { .. }
            | Reject::NoSuchSet { .. }
            | Reject::SetChanged { .. }
            | Reject::GroupAssigned { .. }
            | Reject::TooManyGuestSets { .. }
            | Reject::NodeInSet { .. }
            | Reject::RangeInUse) => {
                Self::internal(format!("the catalogue rejected a valid command: {reject}"))
            }
        }
    }
}

/// The bucket changed during the request twice in a row. A retry sees its new state.
fn bucket_changed() -> S3Error {
    S3Error::new(Code::OperationAborted)
}

fn too_many_split_keys() -> S3Error {
    S3Error::new(Code::InvalidArgument)
        .message("All buckets together have too many split keys. Create the bucket with fewer.")
}

fn part_too_small(number: u32, size: u64) -> S3Error {
    of_part(Code::EntityTooSmall, number).field("ProposedSize", size.to_string())
}

fn of_part(code: Code, number: u32) -> S3Error {
    S3Error::new(code).field("PartNumber", number.to_string())
}

/// Returns the error of a request for a remote-backed bucket that another node has taken over meanwhile.
#[must_use]
pub fn taken_over() -> S3Error {
    S3Error::new(Code::ServiceUnavailable)
        .field("Reason", "TakenOver")
        .header(RETRY_AFTER, HeaderValue::from_static(S3Error::RETRY_AFTER_SECS))
        .message("Another node takes over this bucket. The change may have been made. Try again.")
}

fn quota_exceeded(of: &QuotaSubject, excess: Excess) -> S3Error {
    S3Error::new(Code::QuotaExceeded)
        .message(quota_refusal(of, excess))
        .field("Limit", excess.limit.to_string())
        .field("Used", excess.used.to_string())
}

#[cfg(test)]
mod tests {
    use crate::error::{Code, S3Error};
    use mlgw_metadata::ReadError;
    use mlgw_objects::reader::BodyReadError;
    use mlgw_objects::{ObjectError, ResourceShortage};

    #[test]
    fn a_group_that_left_between_barrier_and_read_is_a_503_with_retry() {
        let gone = || ReadError::GroupElsewhere { group: 3 };
        let errors = [S3Error::from(gone()), ObjectError::from(BodyReadError::from(gone())).into()];
        for error in errors {
            assert_eq!((error.code(), error.get("Reason")), (Code::ServiceUnavailable, Some("NoLeader")));
        }
        assert_eq!(S3Error::from(ReadError::Store("bad".into())).code(), Code::InternalError);
    }

    #[test]
    fn each_shortage_is_slow_down_and_carries_its_name() {
        for shortage in ResourceShortage::ALL {
            let error = S3Error::from(shortage);
            assert_eq!((error.code(), error.shortage()), (Code::SlowDown, Some(shortage.name())));
        }
    }
}
