//! Settings that all nodes of a cluster should share.

use super::Secret;

/// The value of a setting that all nodes of a cluster should share. One that has its default is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedSetting {
    /// Name for operators, such as `s3.region`.
    pub name: String,
    /// The value, which may contain secrets.
    pub value: Secret,
    /// True if gateways do not use it.
    pub is_of_storage: bool,
}
