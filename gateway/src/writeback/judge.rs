//! What a write meets at its origin, and what becomes of it: pure.
//!
//! Always: what somebody else wrote after the write was acknowledged here is never overwritten. What was there before is, as it would have been
//! by a write that went through.

use super::record::Mark;
use mlgw_metadata::schema::ObjectVersion;

/// What becomes of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The origin has it.
    Done,
    /// It is sent, on the condition that there is no object.
    IfAbsent,
    /// It is sent, on the condition that the object still has this ETag.
    IfMatch(String),
    /// Both were written within the same second: the origin's time is to be asked for more exactly.
    Unclear,
    /// Somebody else has written since.
    Foreign,
}

/// Judges a write that began at `began_ms`; `found` is what the origin has. `exact_ms` is when that was written, if it is known more
/// exactly than to the second.
#[must_use]
pub(super) fn judge(
    mark: &Mark,
    deletes: bool,
    began_ms: i64,
    found: Option<&ObjectVersion>,
    exact_ms: Option<i64>,
) -> Verdict {
    let Some(found) = found else {
        return if deletes { Verdict::Done } else { Verdict::IfAbsent };
    };
    let overwrite = || Verdict::IfMatch(found.etag.clone());
    match Mark::of(found) {
        Some(theirs) if theirs == *mark => return Verdict::Done,
        Some(theirs) if theirs.is_of_bucket(mark) => return overwrite(),
        _ => {}
    }
    // Its headers tell seconds.
    let (found_secs, began_secs) = (found.modified_ms.div_euclid(1000), began_ms.div_euclid(1000));
    match exact_ms {
        None if found_secs == began_secs => Verdict::Unclear,
        None if found_secs < began_secs => overwrite(),
        // One of a full second is of an origin that tells no more, nearly always: then it may have been later.
        Some(exact_ms) if exact_ms < began_ms && exact_ms.rem_euclid(1000) != 0 => overwrite(),
        _ => Verdict::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::{Mark, Verdict, judge};
    use crate::writeback::record::MARK;
    use mlgw_common::BodyId;
    use mlgw_metadata::schema::{Bucket, ObjectVersion, Pair};

    fn mark(bucket: u64, write: u64) -> Mark {
        Mark::new(&Bucket { id: bucket, ..Bucket::default() }, BodyId(write), "e")
    }

    fn found(modified_ms: i64, mark: Option<Mark>) -> ObjectVersion {
        let metadata = mark.iter().map(|mark| Pair::new(MARK, mark.text())).collect();
        ObjectVersion { modified_ms, metadata, etag: "t".into(), ..ObjectVersion::default() }
    }

    #[test]
    fn what_was_written_since_by_somebody_else_is_not_overwritten() {
        let judged = |found: &ObjectVersion, exact| judge(&mark(1, 5), false, 10_500, Some(found), exact);
        let yes = Verdict::IfMatch("t".into());
        for (of_whom, before, within, after) in [
            (None, yes.clone(), Verdict::Unclear, Verdict::Foreign),
            (Some(mark(2, 5)), yes.clone(), Verdict::Unclear, Verdict::Foreign),
            (Some(mark(1, 4)), yes.clone(), yes.clone(), yes.clone()),
            (Some(mark(1, 0)), yes.clone(), yes.clone(), yes.clone()),
            (Some(mark(1, 5)), Verdict::Done, Verdict::Done, Verdict::Done),
        ] {
            for (ms, expected) in [(9_000, before), (10_000, within), (11_000, after)] {
                assert_eq!(judged(&found(ms, of_whom.clone()), None), expected, "{of_whom:?} at {ms}");
            }
        }
        let within = found(10_000, None);
        assert_eq!(judged(&within, Some(10_499)), yes);
        assert_eq!(judged(&within, Some(10_500)), Verdict::Foreign);
        assert_eq!(judged(&within, Some(10_000)), Verdict::Foreign, "its listings tell seconds, too");
    }

    #[test]
    fn where_there_is_none_nothing_is_overwritten() {
        assert_eq!(judge(&mark(1, 5), false, 0, None, None), Verdict::IfAbsent);
        assert_eq!(judge(&mark(1, 5), true, 0, None, None), Verdict::Done);
    }
}
