//! Decides from the origin's current object whether to send a write. Pure.
//!
//! An object that another client wrote after the write was acknowledged here is never overwritten. An older
//! object is overwritten, as it would have been by a direct write.

use mlgw_cache::writeback::record::{Timelines, WriteMark};
use mlgw_common::hex;
use mlgw_formats::schema::ObjectVersion;
use mlgw_remote::origin::md5_of;

/// Verdict on a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteBackVerdict {
    /// The origin has the write.
    Done,
    /// The write is sent on the condition that there is no object.
    IfAbsent,
    /// The write is sent on the condition that the object still has this ETag.
    IfMatch(String),
    /// The object carries the mark of the write and not its bytes, or its ETag looks like an MD5 and is none.
    /// The write is sent again on the condition that the object still has this ETag.
    Damaged {
        /// ETag of the object.
        etag: String,
        /// Difference between the object and the write.
        why: String,
    },
    /// Both were written within the same second: the origin's time is required at a higher precision.
    Unclear,
    /// Another client has written since.
    Foreign,
}

/// Properties of a write that are compared with the origin's object.
#[derive(Clone, Copy, Debug)]
pub(super) struct JudgedWrite<'a> {
    /// Mark of the write.
    pub(super) mark: &'a WriteMark,
    /// Timelines whose marks belong to this server.
    pub(super) timelines: &'a Timelines,
    /// True for a delete.
    pub(super) deletes: bool,
    /// Bytes of the object.
    pub(super) size: u64,
    /// ETag returned to the client: the MD5 of the bytes if it has 32 hexadecimal digits.
    pub(super) etag: &'a str,
    /// Time of the client's request, in milliseconds since 1970.
    pub(super) began_ms: i64,
    /// ETag of the origin's object as known here at that time.
    pub(super) known_etag: Option<&'a str>,
}

/// Judges a write. `found` is the origin's object; `exact_ms` is its modification time, if known at a higher
/// precision than seconds.
#[must_use]
pub(super) fn judge(
    sent: &JudgedWrite<'_>,
    found: Option<&ObjectVersion>,
    exact_ms: Option<i64>,
) -> WriteBackVerdict {
    let Some(found) = found else {
        return if sent.deletes { WriteBackVerdict::Done } else { WriteBackVerdict::IfAbsent };
    };
    let overwrite = || WriteBackVerdict::IfMatch(found.etag.clone());
    match WriteMark::of_object(found) {
        // The incarnation does not matter: the record of the write was in the backup.
        Some(theirs) if theirs.is_of_write(sent.mark) && theirs.has_etag_of(sent.mark) => {
            return sent.marked_verdict(found);
        }
        Some(theirs) if theirs.is_of_bucket(sent.mark) && sent.timelines.has_made(&theirs) => {
            return overwrite();
        }
        _ => {}
    }
    // Last-Modified headers have a precision of seconds.
    let (found_secs, began_secs) = (found.modified_ms.div_euclid(1000), sent.began_ms.div_euclid(1000));
    // An object that was known before the write and is unchanged was written before it.
    let is_known = sent.known_etag == Some(&found.etag);
    match exact_ms {
        None if found_secs < began_secs || (found_secs == began_secs && is_known) => overwrite(),
        None if found_secs == began_secs => WriteBackVerdict::Unclear,
        // A time at a full second is nearly always from an origin with a precision of seconds; the object may
        // then have been written later.
        Some(exact_ms) if exact_ms < sent.began_ms && exact_ms.rem_euclid(1000) != 0 => overwrite(),
        _ => WriteBackVerdict::Foreign,
    }
}

impl JudgedWrite<'_> {
    /// Returns the verdict on an object that carries the mark of this write.
    fn marked_verdict(&self, found: &ObjectVersion) -> WriteBackVerdict {
        let damaged = |why| WriteBackVerdict::Damaged { etag: found.etag.clone(), why };
        self.damage(found).map_or(WriteBackVerdict::Done, damaged)
    }

    /// Returns the difference between the write and an object that carries its mark.
    fn damage(&self, found: &ObjectVersion) -> Option<String> {
        if found.size != self.size {
            return Some(format!("the origin has {} bytes instead of {}", found.size, self.size));
        }
        let ours = hex::decode::<16>(self.etag.as_bytes())?;
        let theirs = md5_of(found).filter(|theirs| *theirs != ours)?;
        Some(format!("the origin has the MD5 {} instead of {}", hex::text(&theirs), self.etag))
    }
}

#[cfg(test)]
mod tests {
    use super::{JudgedWrite, Timelines, WriteBackVerdict, WriteMark, judge};
    use mlgw_cache::writeback::record::WRITE_MARK_NAME;
    use mlgw_common::{BodyId, Incarnation};
    use mlgw_formats::schema::{Bucket, EtagKind, ObjectVersion, Pair};

    fn timelines(own: u64, ended: &[(u64, u64)]) -> Timelines {
        let ended = ended.iter().map(|(of, before)| (Incarnation(*of), *before));
        Timelines::new(Incarnation(own), ended.collect())
    }

    fn mark(bucket: u64, write: u64) -> WriteMark {
        mark_of(&Timelines::default(), bucket, write)
    }

    fn mark_of(timelines: &Timelines, bucket: u64, write: u64) -> WriteMark {
        WriteMark::new(&Bucket { id: bucket, ..Bucket::default() }, timelines, BodyId(write), "e")
    }

    fn found(modified_ms: i64, mark: Option<WriteMark>) -> ObjectVersion {
        let metadata = mark.iter().map(|mark| Pair::new(WRITE_MARK_NAME, mark.text())).collect();
        ObjectVersion { modified_ms, metadata, etag: "t".into(), size: 5, ..ObjectVersion::default() }
    }

    const NONE: &Timelines = &Timelines::none();
    const ETAG: &str = "5d41402abc4b2a76b9719d911017c592";

    fn sent<'a>(mark: &'a WriteMark, deletes: bool, knew: Option<&'a str>) -> JudgedWrite<'a> {
        sent_by(NONE, mark, deletes, knew)
    }

    fn sent_by<'a>(
        timelines: &'a Timelines,
        mark: &'a WriteMark,
        deletes: bool,
        knew: Option<&'a str>,
    ) -> JudgedWrite<'a> {
        JudgedWrite { mark, timelines, deletes, size: 5, etag: ETAG, began_ms: 10_500, known_etag: knew }
    }

    #[test]
    fn a_later_write_of_another_client_is_not_overwritten() {
        let ours = mark(1, 5);
        let judged = |found: &ObjectVersion, exact| judge(&sent(&ours, false, None), Some(found), exact);
        let yes = WriteBackVerdict::IfMatch("t".into());
        for (of_whom, before, within, after) in [
            (None, yes.clone(), WriteBackVerdict::Unclear, WriteBackVerdict::Foreign),
            (Some(mark(2, 5)), yes.clone(), WriteBackVerdict::Unclear, WriteBackVerdict::Foreign),
            (Some(mark(1, 4)), yes.clone(), yes.clone(), yes.clone()),
            (Some(mark(1, 0)), yes.clone(), yes.clone(), yes.clone()),
            (Some(mark(1, 5)), WriteBackVerdict::Done, WriteBackVerdict::Done, WriteBackVerdict::Done),
        ] {
            for (ms, expected) in [(9_000, before), (10_000, within), (11_000, after)] {
                assert_eq!(judged(&found(ms, of_whom.clone()), None), expected, "{of_whom:?} at {ms}");
            }
        }
        let within = found(10_000, None);
        assert_eq!(judged(&within, Some(10_499)), yes);
        assert_eq!(judged(&within, Some(10_500)), WriteBackVerdict::Foreign);
        assert_eq!(
            judged(&within, Some(10_000)),
            WriteBackVerdict::Foreign,
            "listings also have a precision of seconds"
        );
    }

    #[test]
    fn an_object_known_before_the_write_is_older_whatever_its_time() {
        let ours = mark(1, 5);
        let judged = |knew, found: &ObjectVersion| judge(&sent(&ours, false, knew), Some(found), None);
        let yes = WriteBackVerdict::IfMatch("t".into());
        assert_eq!(judged(Some("t"), &found(10_000, None)), yes);
        assert_eq!(judged(Some("other"), &found(10_000, None)), WriteBackVerdict::Unclear);
        assert_eq!(
            judged(Some("t"), &found(11_000, None)),
            WriteBackVerdict::Foreign,
            "the same bytes, written again"
        );
        let deletes = judge(&sent(&ours, true, Some("t")), Some(&found(10_000, None)), None);
        assert_eq!(deletes, yes);
    }

    #[test]
    fn a_mark_alone_does_not_prove_that_the_bytes_are_there() {
        let ours = mark(1, 5);
        let judged = |of: ObjectVersion| judge(&sent(&ours, false, None), Some(&of), None);
        let marked =
            |etag: &str, size| ObjectVersion { etag: etag.into(), size, ..found(0, Some(mark(1, 5))) };
        assert_eq!(judged(marked(ETAG, 5)), WriteBackVerdict::Done);
        assert_eq!(
            judged(marked("x-2", 5)),
            WriteBackVerdict::Done,
            "an ETag that is not an MD5 proves nothing"
        );
        let other = ETAG.replace('5', "6");
        let opaque = ObjectVersion { etag_kind: EtagKind::Opaque.into(), ..marked(&other, 5) };
        assert_eq!(judged(opaque), WriteBackVerdict::Done);
        for (etag, size) in [(&*other, 5), (ETAG, 4), ("x-2", 6)] {
            let damaged = judged(marked(etag, size));
            assert!(
                matches!(&damaged, WriteBackVerdict::Damaged { etag: e, .. } if e == etag),
                "{damaged:?}"
            );
        }
    }

    #[test]
    fn a_missing_object_is_created_and_nothing_is_overwritten() {
        let ours = mark(1, 5);
        assert_eq!(judge(&sent(&ours, false, None), None, None), WriteBackVerdict::IfAbsent);
        assert_eq!(judge(&sent(&ours, true, None), None, None), WriteBackVerdict::Done);
    }

    #[test]
    fn a_write_of_another_incarnation_after_the_backup_counts_as_foreign() {
        // The server was in incarnation 5 up to body 99, then restored; another server continues in 5.
        let (before, restored) = (timelines(5, &[]), timelines(6, &[(5, 100)]));
        let yes = WriteBackVerdict::IfMatch("t".into());
        // A write of the backup, and one that was made after the restore. Both began at 10.5 s.
        for (sends, deletes) in [(50, false), (50, true), (1 << 40, false)] {
            let ours = mark_of(&restored, 1, sends);
            for (made_by, write, before_it, after_it) in [
                (&before, 49, yes.clone(), yes.clone()),
                (&before, 99, yes.clone(), yes.clone()),
                (&before, 100, yes.clone(), WriteBackVerdict::Foreign),
                (&before, 0, yes.clone(), WriteBackVerdict::Foreign),
                (&restored, 1 << 39, yes.clone(), yes.clone()),
                (&restored, 0, yes.clone(), yes.clone()),
                (&timelines(7, &[(5, 100)]), 1 << 39, yes.clone(), WriteBackVerdict::Foreign),
                (NONE, 100, yes.clone(), yes.clone()),
            ] {
                for (ms, expected) in [(9_000, before_it), (11_000, after_it)] {
                    let found = found(ms, Some(mark_of(made_by, 1, write)));
                    let judged = judge(&sent_by(&restored, &ours, deletes, None), Some(&found), None);
                    assert_eq!(judged, expected, "{write} of {made_by:?} at {ms} under {sends}");
                }
            }
        }
        // The write itself, no matter which of the two servers sent it.
        let ours = mark_of(&restored, 1, 50);
        let sent = sent_by(&restored, &ours, false, None);
        let found = found(11_000, Some(mark_of(&before, 1, 50)));
        assert_eq!(judge(&sent, Some(&found), None), WriteBackVerdict::Done);
    }
}
