//! Errors of the object layer.
//!
//! A variant states what is wrong with an object or with the server. A protocol maps each variant to its own
//! code, without a catch-all arm, so that a new variant does not compile until every protocol maps it.

use mlgw_common::bytes::human;
use mlgw_common::{BodyId, ObjectKey};
use mlgw_formats::command::{QuotaSubject, Reject};
use mlgw_formats::schema::{Excess, Measure};
use mlgw_metadata::{ProposeError, ReadError};
use std::fmt;

/// Error of an operation on an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The server is short of something. The same request may succeed in a moment.
    #[error("{0}")]
    Short(ResourceShortage),
    /// The disks are full and nothing can be freed.
    #[error("the disks are full")]
    NoRoom,
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The part of the catalogue that holds the key has no leader here; nothing changed.
    #[error("{0}")]
    NoLeader(String),
    /// Too few storage nodes answer to store the bytes; nothing changed.
    #[error("{0}")]
    TooFewReplicas(String),
    /// This node does not store objects with the key any more, and others do; nothing changed.
    #[error("{0}")]
    OtherSet(String),
    /// The disk of this node failed to store the bytes, and another node can store them; nothing changed.
    #[error("{0}")]
    DiskFailed(String),
    /// Some nodes are not upgraded yet; nothing changed.
    #[error("{0}")]
    NotFinalized(String),
    /// The catalogue lost its leader during a write: it is unknown whether the write takes effect.
    #[error("the catalogue lost its leader during the write")]
    UnknownOutcome,
    /// The bucket does not exist.
    #[error("the bucket {0:?} does not exist")]
    NoSuchBucket(String),
    /// The key has no object.
    #[error("the key {0} has no object")]
    NoSuchKey(ObjectKey),
    /// The upload does not exist, or has ended.
    #[error("the upload {0} does not exist")]
    NoSuchUpload(BodyId),
    /// The object changed between the evaluation of the condition of this name and the write.
    #[error("the object changed: {condition} no longer holds")]
    LostRace {
        /// The name of the condition, as `If-Match`.
        condition: &'static str,
        /// True if the object was removed. If false, it was replaced.
        is_removed: bool,
    },
    /// The catalogue refused the change.
    #[error("{}", rejection(.0))]
    Rejected(Reject),
    /// No node that answers has the bytes of the object, or confirms where they are now.
    #[error("{0}")]
    NoReplica(String),
    /// The bytes of the object are in an upstream that does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The stored bytes of the object cannot be read. Other ranges of it may still be readable.
    #[error("{0}")]
    Unreadable(String),
    /// Anything else, for the log.
    #[error("{0}")]
    Internal(String),
}

/// Returns why the catalogue refused a change, for people.
fn rejection(reject: &Reject) -> String {
    match reject {
        Reject::QuotaExceeded { of, excess } => quota_refusal(of, *excess),
        other => other.to_string(),
    }
}

/// Returns the text of a refusal: the quota, its usage, and a remedy.
#[must_use]
pub fn quota_refusal(of: &QuotaSubject, excess: Excess) -> String {
    let Excess { measure, limit, used } = excess;
    let amount = |amount| match measure {
        Measure::Bytes => format!("{amount} bytes ({})", human(amount)),
        Measure::Objects => format!("{amount} objects"),
    };
    let whose = match of {
        QuotaSubject::Bucket => "The bucket's quota".to_owned(),
        QuotaSubject::Key(access_key) => format!("The quota of the access key {access_key}"),
    };
    format!(
        "{whose} is {}, and {} are used: this write would exceed it. Delete objects or abort uploads, or \
         request a larger quota.",
        amount(limit),
        amount(used)
    )
}

/// Resource that the server, or the origin of a bucket, is short of: the reason of a 503 `SlowDown`. The
/// order is that of the labels of `mlgw_throttled_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResourceShortage {
    /// Connections.
    Connections,
    /// Room for writes that have not reached their origin.
    Dirty,
    /// Disk space; compaction or spilling is freeing some.
    Disk,
    /// Memory for requests.
    Memory,
    /// Capacity of an origin, which throttles this server.
    Origin,
    /// Slots in the queue of the catalogue.
    Queue,
    /// Attempts of a request for an object of a write-back bucket, which was written again during each.
    WriteBack,
}

impl ResourceShortage {
    /// All shortages, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Connections,
        Self::Dirty,
        Self::Disk,
        Self::Memory,
        Self::Origin,
        Self::Queue,
        Self::WriteBack,
    ];

    /// The name in metrics and status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Dirty => "dirty",
            Self::Disk => "disk",
            Self::Memory => "memory",
            Self::Origin => "origin",
            Self::Queue => "queue",
            Self::WriteBack => "write_back",
        }
    }
}

impl fmt::Display for ResourceShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server is short of: {}", self.name())
    }
}

impl ObjectError {
    /// Returns an internal error with this cause.
    #[must_use]
    pub fn internal(cause: impl fmt::Display) -> Self {
        Self::Internal(cause.to_string())
    }
}

impl From<ResourceShortage> for ObjectError {
    fn from(shortage: ResourceShortage) -> Self {
        Self::Short(shortage)
    }
}

impl From<ProposeError> for ObjectError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Rejected(reject) => Self::Rejected(reject),
            ProposeError::Overloaded => Self::Short(ResourceShortage::Queue),
            error @ ProposeError::NotLeader { .. } => Self::NoLeader(error.to_string()),
            ProposeError::UnknownOutcome => Self::UnknownOutcome,
            error @ ProposeError::NotFinalized { .. } => Self::NotFinalized(error.to_string()),
            ProposeError::Stopping => Self::Stopping,
        }
    }
}

impl From<ReadError> for ObjectError {
    fn from(error: ReadError) -> Self {
        match error {
            // It left the group since the request waited at a barrier.
            error @ ReadError::GroupElsewhere { .. } => Self::NoLeader(error.to_string()),
            error @ ReadError::Store(_) => Self::internal(error),
        }
    }
}
