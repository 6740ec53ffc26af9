//! Tokens with which nodes join.

use crate::authority::{AuthorityRowError, presented_authority_hash};
use mlgw_common::limits::JOIN_TOKEN_MS_MAX;
use mlgw_common::{CheckedClock, Clock as _, RandomError, Timestamp};
use mlgw_metadata::catalogue::NewJoinToken;
use mlgw_metadata::{Catalogue, ProposeError};
use mlgw_trust::JoinToken;
use zeroize::Zeroizing;

/// A token that was created.
pub struct NewToken {
    /// Text for the node that joins; it has the secret.
    pub text: Zeroizing<String>,
    /// Its id.
    pub id: String,
    /// Time from which it is refused.
    pub expires: Timestamp,
}

/// Error of the creation of a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The authority of the cluster is not known here.
    #[error(transparent)]
    Authority(#[from] AuthorityRowError),
    /// The cluster has no authority yet.
    #[error("the cluster has no authority yet: try again when its first node serves")]
    NoAuthority,
    /// The system gives no random bytes.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The clock of this node deviates: the token would expire at another time.
    #[error("the clock of this node deviates by {0} ms from those of the others: check its time service")]
    ClockSkew(i64),
    /// The token was not recorded.
    #[error("the token was not recorded: {0}")]
    Propose(#[from] ProposeError),
}

/// Creates a token of the authority whose certificates the members present, and records it.
///
/// # Errors
/// See [`TokenError`].
pub(crate) async fn create_token(
    catalogue: &Catalogue,
    clock: &CheckedClock,
    created_by: &str,
) -> Result<NewToken, TokenError> {
    if let Some(skew_ms) = clock.refused_skew_ms() {
        return Err(TokenError::ClockSkew(skew_ms));
    }
    let authority = presented_authority_hash(catalogue)?.ok_or(TokenError::NoAuthority)?;
    let token = JoinToken::create(authority)?;
    let stored = token.stored(clock.now());
    let new = NewJoinToken {
        token: stored.id.0,
        secret_hash: stored.secret_hash.to_vec(),
        life_ms: JOIN_TOKEN_MS_MAX,
        created_by: created_by.to_owned(),
    };
    catalogue.create_join_token(new).await?;
    Ok(NewToken { text: token.text(), id: token.id().to_string(), expires: stored.expires })
}
