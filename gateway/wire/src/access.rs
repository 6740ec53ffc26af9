//! Permissions that requests need, and the account that owns every bucket. Pure.

use mlgw_api::AccessKeyRole;

/// Owner of all buckets: a single account, whose access keys differ only in their permissions.
pub const OWNER: &str = "b8f6e9d1a4c37205eb90d5c64f3a1e7728c0b9f5d6e3a184907f2c5b1d8e6a43";

/// Permission that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequiredPermission {
    /// Read an object.
    Read,
    /// Write or delete an object.
    Write,
    /// List keys (the requested prefix counts as the key) or read a bucket's properties.
    List,
    /// Change a bucket, or without a bucket: use the admin API.
    Admin,
}

impl RequiredPermission {
    /// Returns the least role that permits the action.
    #[must_use]
    pub const fn min_role(self) -> AccessKeyRole {
        match self {
            Self::Read | Self::List => AccessKeyRole::Read,
            Self::Write => AccessKeyRole::Write,
            Self::Admin => AccessKeyRole::Admin,
        }
    }
}
