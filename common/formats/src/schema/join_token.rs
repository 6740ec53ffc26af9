//! Tokens with which nodes join. Rows: `join_token` in group 0, keyed by token id.
//!
//! The catalogue has the hash of a token's secret, never the secret. A token is for one node: after the first
//! success, only the node with the same key may present it again, and is given the same node id.

use crate::key::{Family, number_key};

/// A token with which one node may join.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct JoinTokenRecord {
    /// Random id of the token.
    #[prost(fixed64, tag = "1")]
    pub id: u64,
    /// SHA-256 of its secret.
    #[prost(bytes = "vec", tag = "2")]
    pub secret_hash: Vec<u8>,
    /// Time of its creation, milliseconds since the epoch, as are the following times.
    #[prost(int64, tag = "3")]
    pub created_ms: i64,
    /// First moment at which it is refused.
    #[prost(int64, tag = "4")]
    pub expires_ms: i64,
    /// The access key that created it.
    #[prost(string, tag = "5")]
    pub created_by: String,
    /// The node that joined with it; 0 if none did.
    #[prost(uint64, tag = "6")]
    pub node: u64,
    /// SHA-256 of that node's public key.
    #[prost(bytes = "vec", tag = "7")]
    pub key_hash: Vec<u8>,
    /// Time at which that node joined.
    #[prost(int64, tag = "8")]
    pub used_ms: i64,
}

/// Returns the row key of a token.
#[must_use]
pub fn row(token: u64) -> Vec<u8> {
    number_key(Family::JoinToken, token)
}

#[cfg(test)]
mod tests {
    use super::{JoinTokenRecord, row};
    use crate::schema::golden;

    #[test]
    fn the_record_has_these_bytes() {
        let token = JoinTokenRecord {
            id: 0x0102_0304,
            secret_hash: vec![9; 32],
            created_ms: 1_700_000_000_123,
            expires_ms: 1_700_003_600_123,
            created_by: "AK".into(),
            ..JoinTokenRecord::default()
        };
        golden::check(&token, include_str!("golden/join_token.hex"));
        let used = JoinTokenRecord { node: 2, key_hash: vec![7; 32], used_ms: 1_700_000_000_124, ..token };
        golden::check(&used, include_str!("golden/join_token_used.hex"));
    }

    #[test]
    fn the_key_has_these_bytes() {
        assert_eq!(row(0x0102), [0x0B, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
