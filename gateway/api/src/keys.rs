//! Access keys: who may sign requests, and for what.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use crate::{QuotaInfo, QuotaRequest, UsedInfo};
use serde::{Deserialize, Serialize};

/// How much a key may do; each one may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read objects and list.
    Read,
    /// Write and delete objects.
    Write,
    /// Create and delete buckets, change their settings, use the admin API.
    Admin,
}

/// What the admin API tells of a key: everything but its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyInfo {
    /// The access key id.
    pub access_key: String,
    /// Its role.
    pub role: Role,
    /// Globs of buckets it is narrowed to.
    pub buckets: Vec<String>,
    /// Globs of keys it is narrowed to.
    pub prefixes: Vec<String>,
    /// For people.
    pub description: String,
    /// When it was created; nothing for the root key.
    pub created: Option<String>,
    /// Whether it is refused.
    pub disabled: bool,
    /// Whether it is the root key.
    pub root: bool,
    /// What it may hold.
    pub quota: QuotaInfo,
    /// What it holds; nothing of the root key, which nothing counts for.
    pub used: Option<UsedInfo>,
}

/// A key to create. What is not given is made, or empty.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NewKey {
    /// The access key id.
    pub access_key: Option<String>,
    /// Its secret.
    pub secret_access_key: Option<String>,
    /// Its role; `read` when not given.
    pub role: Option<Role>,
    /// Globs of buckets it is narrowed to.
    pub buckets: Vec<String>,
    /// Globs of keys it is narrowed to.
    pub prefixes: Vec<String>,
    /// For people.
    pub description: String,
    /// What it may hold.
    pub quota: QuotaRequest,
}

/// What to change of a key; what is not given stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeyChange {
    /// Its role.
    pub role: Option<Role>,
    /// Globs of buckets it is narrowed to.
    pub buckets: Option<Vec<String>>,
    /// Globs of keys it is narrowed to.
    pub prefixes: Option<Vec<String>>,
    /// For people.
    pub description: Option<String>,
    /// Whether it is refused.
    pub disabled: Option<bool>,
    /// What it may hold.
    pub quota: QuotaRequest,
}

impl KeyChange {
    /// Whether it changes nothing but what may be held.
    #[must_use]
    pub fn is_of_quota_only(&self) -> bool {
        let others = (&self.role, &self.buckets, &self.prefixes, &self.description, &self.disabled);
        matches!(others, (None, None, None, None, None))
    }
}

/// All keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyList {
    /// The root's first, then by access key.
    pub keys: Vec<KeyInfo>,
}

/// A new key, with the only sight of its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreatedKey {
    /// The secret; it is not told again.
    pub secret_access_key: String,
    /// The key.
    pub key: KeyInfo,
}
