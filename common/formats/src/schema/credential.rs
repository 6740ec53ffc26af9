//! Access keys, with their secrets and permissions. Rows: `credential` in group 0, keyed by access key.
//!
//! The gateway seals the secret before it is stored; the catalogue never sees it in clear.

use super::quota::Quota;
use crate::key::{Family, KeyWriter};

/// An access key.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Credential {
    /// The access key.
    #[prost(string, tag = "1")]
    pub access_key: String,
    /// The secret, encrypted.
    #[prost(bytes = "vec", tag = "2")]
    pub secret_sealed: Vec<u8>,
    /// Permissions of the access key.
    #[prost(enumeration = "Role", tag = "3")]
    pub role: i32,
    /// Globs of buckets that the access key may use; empty allows all.
    #[prost(string, repeated, tag = "4")]
    pub buckets: Vec<String>,
    /// Globs of object keys that the access key may use; empty allows all.
    #[prost(string, repeated, tag = "5")]
    pub prefixes: Vec<String>,
    /// Owner id.
    #[prost(string, tag = "6")]
    pub owner: String,
    /// Description for operators.
    #[prost(string, tag = "7")]
    pub description: String,
    /// Creation time, milliseconds since the epoch.
    #[prost(int64, tag = "8")]
    pub created_ms: i64,
    /// True if the access key is disabled.
    #[prost(bool, tag = "9")]
    pub disabled: bool,
    /// Quota of the access key.
    #[prost(message, optional, tag = "10")]
    pub quota: Option<Quota>,
}

/// Permissions of an access key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Role {
    /// Read and list.
    Read = 0,
    /// Also write and delete.
    Write = 1,
    /// Also administer.
    Admin = 2,
}

/// Returns the row key of an access key.
#[must_use]
pub fn row(access_key: &str) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Credential, access_key.len() + 1).raw(access_key.as_bytes()).finish()
}

#[cfg(test)]
mod tests {
    use super::{Credential, Quota, row};
    use crate::schema::golden;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_access_key(a in "[A-Z0-9]{1,9}", b in "[A-Z0-9]{1,9}") {
            prop_assert_eq!(row(&a).cmp(&row(&b)), a.cmp(&b));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let credential = Credential {
            access_key: "AK".into(),
            secret_sealed: vec![1, 2],
            role: 2,
            buckets: vec!["b*".into()],
            prefixes: vec!["p/*".into()],
            owner: "o".into(),
            description: "d".into(),
            created_ms: 1_700_000_000_123,
            disabled: true,
            quota: None,
        };
        golden::check(&credential, include_str!("golden/credential.hex"));
        let quota = Some(Quota { bytes: None, objects: Some(300) });
        let limited = Credential { access_key: "AK".into(), quota, ..Credential::default() };
        golden::check(&limited, include_str!("golden/credential_limited.hex"));
    }
}
