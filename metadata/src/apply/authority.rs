//! Group 0: certificate authorities of the cluster. The newest one signs; an older one is trusted until an
//! operator removes it.

use super::malformed;
use crate::view::{ApplyError, View};
use mlgw_common::limits::{AUTHORITIES_MAX, AUTHORITY_BYTES_MAX};
use mlgw_formats::command::{PutAuthority, Reject, RemoveAuthority, Reply};
use mlgw_formats::key::{Family, parse_number_key};
use mlgw_formats::schema::{AuthorityRecord, authority};

pub(super) fn put(view: &mut View<'_>, command: &PutAuthority) -> Result<Reply, ApplyError> {
    let new = &command.authority;
    let is_wrong = |bytes: &[u8]| bytes.is_empty() || bytes.len() > AUTHORITY_BYTES_MAX;
    if is_wrong(&new.certificate) || is_wrong(&new.sealed_key) {
        return Err(malformed("the authority has no certificate or key, or they are too large"));
    }
    let numbers = numbers(view)?;
    let newest = numbers.last().copied().unwrap_or(0);
    if command.after != newest {
        return Err(Reject::AuthorityChanged { newest }.into());
    }
    if new.number != 0 {
        return replace_seal(view, new);
    }
    if numbers.len() >= AUTHORITIES_MAX {
        return Err(Reject::TooManyAuthorities.into());
    }
    let number = newest + 1;
    view.put(authority::row(number), &AuthorityRecord { number, ..new.clone() });
    Ok(Reply::Authority { number })
}

/// Stores the key of a recorded authority as another cluster key encrypts it.
fn replace_seal(view: &mut View<'_>, new: &AuthorityRecord) -> Result<Reply, ApplyError> {
    let (number, row) = (new.number, authority::row(new.number));
    let known: AuthorityRecord = view.get(&row)?.ok_or(Reject::AuthorityInUse { number })?;
    if known.certificate != new.certificate {
        return Err(malformed("the certificate of a recorded authority never changes"));
    }
    let (sealed_key, cluster_key) = (new.sealed_key.clone(), new.cluster_key);
    view.put(row, &AuthorityRecord { sealed_key, cluster_key, ..known });
    Ok(Reply::Authority { number })
}

/// Removes an authority, but never the newest one: the next number follows it.
pub(super) fn remove(view: &mut View<'_>, command: RemoveAuthority) -> Result<Reply, ApplyError> {
    let (number, numbers) = (command.number, numbers(view)?);
    if numbers.last() == Some(&number) || !numbers.contains(&number) {
        return Err(Reject::AuthorityInUse { number }.into());
    }
    view.delete(authority::row(number));
    Ok(Reply::Done)
}

fn numbers(view: &View<'_>) -> Result<Vec<u64>, ApplyError> {
    let rows = view.range(&Family::Authority.start(), &Family::Authority.end(), AUTHORITIES_MAX + 1)?;
    let numbers: Result<Vec<u64>, _> =
        rows.iter().map(|(row, _)| parse_number_key(Family::Authority, row)).collect();
    Ok(numbers?)
}
