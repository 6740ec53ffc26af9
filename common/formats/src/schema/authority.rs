//! Certificate authorities of the cluster. Rows: `authority` in group 0, keyed by the authority's number.
//!
//! The caller seals the private key with the cluster key before it is stored; the catalogue never sees it in
//! clear. There is more than one authority only while nodes change to the newest one.

use crate::key::{Family, number_key};

/// A certificate authority of the cluster.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AuthorityRecord {
    /// Number of the authority; grows and is never reused.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Its certificate, DER.
    #[prost(bytes = "vec", tag = "2")]
    pub certificate: Vec<u8>,
    /// Its private key, encrypted.
    #[prost(bytes = "vec", tag = "3")]
    pub sealed_key: Vec<u8>,
    /// Number of the cluster key that encrypts it.
    #[prost(uint32, tag = "4")]
    pub cluster_key: u32,
    /// Time of its creation, milliseconds since the epoch.
    #[prost(int64, tag = "5")]
    pub created_ms: i64,
}

/// Returns the row key of an authority.
#[must_use]
pub fn row(number: u64) -> Vec<u8> {
    number_key(Family::Authority, number)
}

#[cfg(test)]
mod tests {
    use super::{AuthorityRecord, row};
    use crate::schema::golden;

    #[test]
    fn the_record_has_these_bytes() {
        let authority = AuthorityRecord {
            number: 1,
            certificate: vec![0x30, 1],
            sealed_key: vec![2, 3],
            cluster_key: 300,
            created_ms: 1_700_000_000_123,
        };
        golden::check(&authority, include_str!("golden/authority.hex"));
    }

    #[test]
    fn the_key_has_these_bytes() {
        assert_eq!(row(0x0102), [0x0C, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
