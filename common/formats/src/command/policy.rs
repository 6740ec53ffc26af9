//! Command that stores a version of the policy.

use crate::schema::{PolicyFiles, PolicyVersion};

/// Adds the next version of the running policy. Replies with [`Reply::Policy`](super::Reply::Policy).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PutPolicy {
    /// The whole version, except its number.
    #[prost(message, required, tag = "1")]
    pub version: PolicyVersion,
    /// Newest version when the command was built; 0 if there was none. Rejected if a newer one exists.
    #[prost(uint64, tag = "2")]
    pub after: u64,
    /// Files that the version introduces. Without files the version uses those of the version that it names.
    #[prost(message, optional, tag = "3")]
    pub files: Option<PolicyFiles>,
    /// Term of the duty node that stores the version; rejected if another term has begun.
    #[prost(uint64, optional, tag = "4")]
    pub duty_term: Option<u64>,
}
