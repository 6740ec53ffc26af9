//! Conditions on the version that a command replaces or deletes.

use mlgw_formats::command::{Conditions, Reject};
use mlgw_formats::schema::ObjectVersion;

/// Checks that `current` meets all conditions.
pub(super) fn check(conditions: &Conditions, current: Option<&ObjectVersion>) -> Result<(), Reject> {
    let needs_one = conditions.if_match.is_some()
        || conditions.if_match_size.is_some()
        || conditions.if_match_modified_ms.is_some()
        || conditions.if_match_seq.is_some();
    let Some(current) = current else {
        return if needs_one { Err(Reject::NoSuchKey) } else { Ok(()) };
    };
    let matches = conditions.if_match.as_ref().is_none_or(|c| c.contains(&current.etag))
        && conditions.if_none_match.as_ref().is_none_or(|c| !c.contains(&current.etag))
        && conditions.if_match_size.is_none_or(|size| size == current.size)
        && conditions.if_match_modified_ms.is_none_or(|ms| seconds(ms) == seconds(current.modified_ms))
        && conditions.if_match_seq.is_none_or(|seq| seq == current.seq);
    if matches { Ok(()) } else { Err(Reject::PreconditionFailed) }
}

/// Whole seconds, since HTTP dates have no fraction.
const fn seconds(ms: i64) -> i64 {
    ms.div_euclid(1000)
}

#[cfg(test)]
mod tests {
    use super::check;
    use mlgw_formats::command::{Conditions, EtagCondition, Reject};
    use mlgw_formats::schema::ObjectVersion;

    #[test]
    fn a_rewritten_version_fails_if_match_seq() {
        let version =
            ObjectVersion { seq: 5, modified_ms: 1_000, etag: "e".into(), ..ObjectVersion::default() };
        let again = ObjectVersion { seq: 6, ..version.clone() };
        let conditions = Conditions {
            if_match: Some(EtagCondition::one_of(vec!["e".into()])),
            if_match_modified_ms: Some(1_000),
            if_match_seq: Some(5),
            ..Conditions::default()
        };
        assert_eq!(check(&conditions, Some(&version)), Ok(()));
        assert_eq!(check(&conditions, Some(&again)), Err(Reject::PreconditionFailed));
        let by_place = Conditions { if_match_seq: Some(5), ..Conditions::default() };
        assert_eq!(check(&by_place, None), Err(Reject::NoSuchKey));
    }
}
