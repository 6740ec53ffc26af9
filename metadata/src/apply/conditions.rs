//! Conditions on the version that a command replaces or deletes.

use crate::command::{Conditions, Reject};
use crate::schema::ObjectVersion;

/// Checks that all conditions hold of `current`.
pub(super) fn check(conditions: &Conditions, current: Option<&ObjectVersion>) -> Result<(), Reject> {
    let needs_one = conditions.if_match.is_some()
        || conditions.if_match_size.is_some()
        || conditions.if_match_modified_ms.is_some();
    let Some(current) = current else {
        return if needs_one { Err(Reject::NoSuchKey) } else { Ok(()) };
    };
    let matches = conditions.if_match.as_ref().is_none_or(|c| c.contains(&current.etag))
        && conditions.if_none_match.as_ref().is_none_or(|c| !c.contains(&current.etag))
        && conditions.if_match_size.is_none_or(|size| size == current.size)
        && conditions.if_match_modified_ms.is_none_or(|ms| seconds(ms) == seconds(current.modified_ms));
    if matches { Ok(()) } else { Err(Reject::PreconditionFailed) }
}

/// HTTP dates have no fraction.
const fn seconds(ms: i64) -> i64 {
    ms.div_euclid(1000)
}
