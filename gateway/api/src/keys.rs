//! Access keys: permission to sign requests, with role and scope.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use crate::{QuotaInfo, QuotaRequest, UsedInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

words! {
    /// Permissions of a key; each role includes those before it.
    AccessKeyRole {
        /// Read objects and list.
        Read = "read",
        /// Write and delete objects.
        Write = "write",
        /// Create and delete buckets, change their settings, use the admin API.
        Admin = "admin",
    }
}

/// An access key without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyInfo {
    /// Access key id.
    pub access_key: String,
    /// Role of the key.
    pub role: AccessKeyRole,
    /// Globs of the buckets to which the key is restricted.
    pub buckets: Vec<String>,
    /// Globs of the object keys to which the key is restricted.
    pub prefixes: Vec<String>,
    /// Description for people.
    pub description: String,
    /// Time of creation; absent for the root key.
    pub created: Option<String>,
    /// True if requests signed with the key are refused.
    pub disabled: bool,
    /// True for the root key.
    pub root: bool,
    /// Quota of the key.
    pub quota: QuotaInfo,
    /// Usage counted against the quota; absent for the root key, whose usage is not counted.
    pub used: Option<UsedInfo>,
}

/// Request to create a key. Absent fields are generated or empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewKey {
    /// Access key id.
    pub access_key: Option<String>,
    /// Secret access key.
    pub secret_access_key: Option<String>,
    /// Role of the key; `read` if absent.
    pub role: Option<AccessKeyRole>,
    /// Globs of the buckets to which the key is restricted.
    pub buckets: Vec<String>,
    /// Globs of the object keys to which the key is restricted.
    pub prefixes: Vec<String>,
    /// Description for people.
    pub description: String,
    /// Quota of the key.
    pub quota: QuotaRequest,
}

/// Request to change a key; absent fields keep their values.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KeyChange {
    /// Role of the key.
    pub role: Option<AccessKeyRole>,
    /// Globs of the buckets to which the key is restricted.
    pub buckets: Option<Vec<String>>,
    /// Globs of the object keys to which the key is restricted.
    pub prefixes: Option<Vec<String>>,
    /// Description for people.
    pub description: Option<String>,
    /// True to refuse requests signed with the key.
    pub disabled: Option<bool>,
    /// Quota of the key.
    pub quota: QuotaRequest,
}

impl KeyChange {
    /// Returns true if the request changes the quota alone.
    #[must_use]
    pub fn is_quota_only(&self) -> bool {
        let others = (&self.role, &self.buckets, &self.prefixes, &self.description, &self.disabled);
        matches!(others, (None, None, None, None, None))
    }
}

/// All keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyList {
    /// Keys: the root key first, the others sorted by access key id.
    pub keys: Vec<KeyInfo>,
}

/// A new key with its secret.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CreatedKey {
    /// Secret access key; no later response contains it.
    pub secret_access_key: String,
    /// The new key.
    pub key: KeyInfo,
}
