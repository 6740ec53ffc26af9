//! The command of the running policy.

use crate::schema::{PolicyFiles, PolicyVersion};

/// The next version of the running policy. Answers [`Reply::Policy`](super::Reply::Policy).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PutPolicy {
    /// All of it but its number.
    #[prost(message, required, tag = "1")]
    pub version: PolicyVersion,
    /// The newest version when this was built; 0 where there was none. It is refused when there is a newer
    /// one.
    #[prost(uint64, tag = "2")]
    pub after: u64,
    /// The files that it brings; without any it has those that it names.
    #[prost(message, optional, tag = "3")]
    pub files: Option<PolicyFiles>,
}
