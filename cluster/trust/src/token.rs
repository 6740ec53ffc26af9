//! Join tokens: their text, and the decision who may use one. Pure.
//!
//! A token is `mlgw-join-1.AUTHORITY.ID.SECRET`: the hash of the authority's certificate and the secret in
//! base64url, 32 bytes each, and the id in 16 hexadecimal digits. The catalogue stores the id, the hash of
//! the secret, the time at which it expires, and the node that used it. A token is for one node, for an hour.
//! After a success the same key may use it again until then, because the answer may have been lost.

use crate::authority::AuthorityHash;
use crate::request::PublicKeyHash;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use mlgw_common::limits::{JOIN_TOKEN_BYTES_MAX, JOIN_TOKEN_SECS};
use mlgw_common::{NodeId, RandomError, Timestamp, hex, random};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// Beginning of every token.
const PREFIX: &str = "mlgw-join-";

/// Version of the text.
const VERSION: &str = "1";

/// Bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Id of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Token of a node that joins.
#[derive(Clone)]
pub struct JoinToken {
    authority: AuthorityHash,
    id: TokenId,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

/// Error of a text that is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJoinToken {
    /// It does not begin like one.
    #[error("a join token begins with {PREFIX:?}; copy it whole")]
    Prefix,
    /// A later version made it.
    #[error("the join token has version {0:?}, and this mlgw supports {VERSION}: upgrade this node first")]
    Version(String),
    /// It is too long or too short, or a part is damaged.
    #[error("the {0} of the join token is damaged; copy it whole")]
    Part(&'static str),
}

impl JoinToken {
    /// Makes a token of a cluster with this authority.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn create(authority: AuthorityHash) -> Result<Self, RandomError> {
        let id = TokenId(u64::from_be_bytes(random()?));
        Ok(Self { authority, id, secret: Zeroizing::new(random()?) })
    }

    /// The text for the node that joins. It has the secret.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let authority = BASE64_URL_SAFE_NO_PAD.encode(self.authority.0);
        let secret = Zeroizing::new(BASE64_URL_SAFE_NO_PAD.encode(*self.secret));
        Zeroizing::new(format!("{PREFIX}{VERSION}.{authority}.{}.{}", self.id, *secret))
    }

    /// Hash of the authority's certificate.
    #[must_use]
    pub const fn authority(&self) -> AuthorityHash {
        self.authority
    }

    /// The id.
    #[must_use]
    pub const fn id(&self) -> TokenId {
        self.id
    }

    /// The secret, which the joining node sends.
    #[must_use]
    pub fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// The row of the catalogue for a token that is made now.
    #[must_use]
    pub fn stored(&self, now: Timestamp) -> StoredToken {
        let expires = Timestamp(now.0.saturating_add(JOIN_TOKEN_SECS * 1000));
        StoredToken { id: self.id, secret_hash: secret_hash(&self.secret), expires, used: None }
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}, …)", self.id)
    }
}

impl FromStr for JoinToken {
    type Err = BadJoinToken;

    fn from_str(text: &str) -> Result<Self, BadJoinToken> {
        let rest = text.strip_prefix(PREFIX).ok_or(BadJoinToken::Prefix)?;
        if text.len() > JOIN_TOKEN_BYTES_MAX {
            return Err(BadJoinToken::Part("length"));
        }
        let mut parts = rest.split('.');
        let version = parts.next().unwrap_or_default();
        if version != VERSION {
            return Err(BadJoinToken::Version(version.to_owned()));
        }
        let mut part = |name| parts.next().ok_or(BadJoinToken::Part(name));
        let authority = bytes_of(part("authority")?).ok_or(BadJoinToken::Part("authority"))?;
        let id = hex::decode(part("id")?.as_bytes()).ok_or(BadJoinToken::Part("id"))?;
        let secret = bytes_of(part("secret")?).ok_or(BadJoinToken::Part("secret"))?;
        if parts.next().is_some() {
            return Err(BadJoinToken::Part("end"));
        }
        Ok(Self { authority: AuthorityHash(*authority), id: TokenId(u64::from_be_bytes(id)), secret })
    }
}

fn bytes_of(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let bytes = Zeroizing::new(BASE64_URL_SAFE_NO_PAD.decode(text).ok()?);
    <[u8; 32]>::try_from(&bytes[..]).ok().map(Zeroizing::new)
}

fn secret_hash(secret: &[u8; SECRET_BYTES]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Successful use of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// Hash of the node's public key.
    pub key: PublicKeyHash,
    /// Id that the node got.
    pub node: NodeId,
}

/// Token as the catalogue stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredToken {
    /// The id.
    pub id: TokenId,
    /// SHA-256 of the secret.
    pub secret_hash: [u8; 32],
    /// Time from which it is of no use.
    pub expires: Timestamp,
    /// Its use.
    pub used: Option<TokenUse>,
}

/// Permission to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The node gets a new id.
    First,
    /// The node gets the id again that it already has.
    Repeated(NodeId),
}

/// Reason to refuse a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// There is no such token, or its secret is another one.
    #[error("the join token is not valid: make another on a member")]
    Unknown,
    /// It is too old.
    #[error("the join token has expired: make another on a member")]
    Expired,
    /// Another node used it.
    #[error("the join token was used by another node: make another on a member")]
    Used,
}

/// Decides if a node with the key `key` may join with a token. `stored` is the token with the presented id,
/// if there is one. The comparison takes the same time for each wrong secret.
///
/// # Errors
/// See [`TokenRefusal`].
pub fn judge_token(
    stored: Option<&StoredToken>,
    secret: &[u8; SECRET_BYTES],
    key: PublicKeyHash,
    now: Timestamp,
) -> Result<TokenVerdict, TokenRefusal> {
    let expected = stored.map_or([0; 32], |stored| stored.secret_hash);
    let is_same: bool = secret_hash(secret).ct_eq(&expected).into();
    let Some(stored) = stored.filter(|_| is_same) else { return Err(TokenRefusal::Unknown) };
    if now >= stored.expires {
        return Err(TokenRefusal::Expired);
    }
    match stored.used {
        None => Ok(TokenVerdict::First),
        Some(used) if used.key == key => Ok(TokenVerdict::Repeated(used.node)),
        Some(_) => Err(TokenRefusal::Used),
    }
}

#[cfg(test)]
mod tests {
    use super::{BadJoinToken, JoinToken, TokenRefusal, TokenUse, TokenVerdict, judge_token};
    use crate::authority::AuthorityHash;
    use crate::request::PublicKeyHash;
    use mlgw_common::limits::JOIN_TOKEN_BYTES_MAX;
    use mlgw_common::{NodeId, Timestamp};

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn token() -> JoinToken {
        JoinToken::create(AuthorityHash([3; 32])).unwrap()
    }

    #[test]
    fn a_text_is_read_back_and_secrets_are_not_shown() {
        let token = token();
        let text = token.text();
        assert!(text.len() <= JOIN_TOKEN_BYTES_MAX && text.starts_with("mlgw-join-1."));
        let read: JoinToken = text.parse().unwrap();
        assert_eq!(
            (read.id(), read.secret(), read.authority()),
            (token.id(), token.secret(), token.authority())
        );
        let secret = text.rsplit('.').next().unwrap();
        assert!(!format!("{token:?}").contains(secret));
        assert_ne!(*text, *super::tests::token().text());
    }

    #[test]
    fn each_damage_is_named() {
        let text = token().text();
        let parts: Vec<&str> = text.split('.').collect();
        let with = |at: usize, part: &str| {
            let mut parts = parts.clone();
            parts[at] = part;
            parts.join(".").parse::<JoinToken>().unwrap_err()
        };
        assert_eq!("something".parse::<JoinToken>().unwrap_err(), BadJoinToken::Prefix);
        assert_eq!(with(0, "mlgw-join-2"), BadJoinToken::Version("2".to_owned()));
        assert_eq!(with(1, &parts[1][1..]), BadJoinToken::Part("authority"));
        assert_eq!(with(2, "0"), BadJoinToken::Part("id"));
        assert_eq!(with(3, &parts[3][1..]), BadJoinToken::Part("secret"));
        assert_eq!(with(3, &format!("{}.x", parts[3])), BadJoinToken::Part("end"));
        assert_eq!(parts[..3].join(".").parse::<JoinToken>().unwrap_err(), BadJoinToken::Part("secret"));
        assert_eq!(with(1, &"A".repeat(500)), BadJoinToken::Part("length"));
    }

    #[test]
    fn a_token_is_for_one_node_and_one_hour() {
        let token = token();
        let (own, other) = (PublicKeyHash([1; 32]), PublicKeyHash([2; 32]));
        let mut stored = token.stored(NOW);
        let judge = |stored: Option<&_>, secret, key, now| judge_token(stored, secret, key, Timestamp(now));
        let (begin, last) = (NOW.0, NOW.0 + 3_600_000 - 1);
        assert_eq!(judge(Some(&stored), token.secret(), own, begin), Ok(TokenVerdict::First));
        assert_eq!(judge(Some(&stored), token.secret(), own, last), Ok(TokenVerdict::First));
        assert_eq!(judge(Some(&stored), token.secret(), own, last + 1), Err(TokenRefusal::Expired));
        assert_eq!(judge(None, token.secret(), own, begin), Err(TokenRefusal::Unknown));
        assert_eq!(judge(Some(&stored), &[0; 32], own, begin), Err(TokenRefusal::Unknown));
        stored.used = Some(TokenUse { key: own, node: NodeId(4) });
        assert_eq!(judge(Some(&stored), token.secret(), own, last), Ok(TokenVerdict::Repeated(NodeId(4))));
        assert_eq!(judge(Some(&stored), token.secret(), own, last + 1), Err(TokenRefusal::Expired));
        assert_eq!(judge(Some(&stored), token.secret(), other, begin), Err(TokenRefusal::Used));
        assert_eq!(judge(Some(&stored), &[0; 32], other, begin), Err(TokenRefusal::Unknown));
    }

    #[test]
    fn no_secret_fits_an_unknown_token() {
        // The hash that unknown tokens are compared with must not let anybody in.
        let key = PublicKeyHash([1; 32]);
        for byte in 0..=255 {
            assert_eq!(judge_token(None, &[byte; 32], key, NOW), Err(TokenRefusal::Unknown));
        }
    }
}
