//! Group 0: tokens with which nodes join.
//!
//! A token is for one node. The node that joined with it may present it again until it expires, because the
//! node or the answer may have been lost meanwhile. Comparing hashes of secrets needs no constant time: a
//! caller cannot choose the bytes of a hash.

use super::malformed;
use crate::view::{ApplyError, View};
use mlgw_common::limits::{JOIN_TOKEN_MS_MAX, JOIN_TOKENS_MAX, NODE_HASH_BYTES, NODE_TEXT_BYTES_MAX};
use mlgw_formats::command::{AdmitNode, CreateJoinToken, Reject, RemoveJoinToken, Reply};
use mlgw_formats::key::Family;
use mlgw_formats::schema::{JoinTokenRecord, Node, decode_all, join_token};

/// Creates a token, and deletes those that have expired.
pub(super) fn create(view: &mut View<'_>, command: &CreateJoinToken) -> Result<Reply, ApplyError> {
    if command.token == 0 || command.secret_hash.len() != NODE_HASH_BYTES {
        return Err(malformed("the token has no ID, or the hash of its secret has the wrong length"));
    }
    if command.created_by.len() > NODE_TEXT_BYTES_MAX {
        return Err(malformed("the name of the token's creator is too long"));
    }
    let life_ms = command.expires_ms.checked_sub(command.now_ms);
    if !life_ms.is_some_and(|life_ms| (1..=JOIN_TOKEN_MS_MAX).contains(&life_ms)) {
        return Err(malformed("the token expires at once, or too late"));
    }
    let row = join_token::row(command.token);
    if view.has(&row)? {
        return Err(Reject::JoinTokenExists.into());
    }
    let mut valid = 0;
    let rows = view.range(&Family::JoinToken.start(), &Family::JoinToken.end(), JOIN_TOKENS_MAX + 1)?;
    for (row, value) in rows {
        if decode_all::<JoinTokenRecord>(&value)?.expires_ms <= command.now_ms {
            view.delete(row);
        } else {
            valid += 1;
        }
    }
    if valid >= JOIN_TOKENS_MAX {
        return Err(Reject::TooManyJoinTokens.into());
    }
    let token = JoinTokenRecord {
        id: command.token,
        secret_hash: command.secret_hash.clone(),
        created_ms: command.now_ms,
        expires_ms: command.expires_ms,
        created_by: command.created_by.clone(),
        ..JoinTokenRecord::default()
    };
    view.put(row, &token);
    Ok(Reply::Done)
}

pub(super) fn remove(view: &mut View<'_>, command: RemoveJoinToken) -> Result<Reply, ApplyError> {
    let row = join_token::row(command.token);
    if !view.has(&row)? {
        return Err(Reject::NoSuchJoinToken.into());
    }
    view.delete(row);
    Ok(Reply::Done)
}

/// Returns the token that the command presents, if the secret is right, the token is valid, and no node with
/// another key joined with it.
pub(super) fn presented(view: &View<'_>, command: &AdmitNode) -> Result<JoinTokenRecord, ApplyError> {
    let token: JoinTokenRecord = view.get(&join_token::row(command.token))?.ok_or(Reject::NoSuchJoinToken)?;
    // The secret is checked first: without it a caller learns nothing else about the token.
    if token.secret_hash != command.secret_hash {
        return Err(Reject::WrongJoinSecret.into());
    }
    if command.now_ms >= token.expires_ms {
        return Err(Reject::JoinTokenExpired.into());
    }
    if token.node != 0 && token.key_hash != command.key_hash {
        return Err(Reject::JoinTokenUsed { node: token.node }.into());
    }
    Ok(token)
}

/// Records the node that joined with the token.
pub(super) fn record_use(view: &mut View<'_>, token: JoinTokenRecord, node: &Node, now_ms: i64) {
    assert_eq!(token.node, 0, "a token is used once");
    assert_eq!(node.key_hash.len(), NODE_HASH_BYTES, "a node joins with a key");
    let row = join_token::row(token.id);
    view.put(
        row,
        &JoinTokenRecord { node: node.id, key_hash: node.key_hash.clone(), used_ms: now_ms, ..token },
    );
}
