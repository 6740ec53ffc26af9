//! A decision, and the entry of the log that it becomes. Pure.
//!
//! Always: an entry counts on without an end, whatever it was read as; its sums stay at the greatest number.

use crate::decision_words::{Kind, Outcome, Place, Reason};
use mlgw_common::Timestamp;
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::DECISION_WHY_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a rule's id, as the language takes.
const RULE_BYTES_MAX: usize = mlgw_common::limits::POLICY_NAME_BYTES_MAX;
/// What succeeds and is alike within this time is one entry.
const ALIKE_MS: i64 = 1000;
/// The same of what does not succeed, which is tried again and again.
const ALIKE_REFUSED_MS: i64 = 60_000;

/// What a decision is about.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// A segment of the hot tier, the cold one or an upstream.
    Segment(SegmentId),
    /// An object of a bucket.
    Object(BucketId, &'a str),
    /// Several objects of a bucket.
    Objects {
        /// The bucket.
        bucket: BucketId,
        /// How many.
        count: u64,
        /// What their keys begin with.
        prefix: &'a str,
    },
}

/// A decision that was made.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// What was to be done.
    pub kind: Kind,
    /// With what.
    pub what: What<'a>,
    /// Where it was.
    pub from: Place,
    /// Where it was to go.
    pub to: Place,
    /// Its bytes; those that were moved, when it was done in part.
    pub bytes: u64,
    /// Why.
    pub why: Why,
    /// What came of it.
    pub outcome: Outcome,
}

/// A reason; of a job, with its number, and of a rule, with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Why {
    /// The reason.
    pub reason: Reason,
    /// The job's number, of [`Reason::Job`].
    pub job: Option<u64>,
    /// The rule's id, of [`Reason::Rule`].
    pub rule: Option<RuleName>,
}

/// The id of a rule, so small that it is copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RuleName {
    bytes: [u8; RULE_BYTES_MAX],
    length: u8,
}

impl RuleName {
    /// The name, or as much of it as an id may have.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let name = &name[..name.floor_char_boundary(RULE_BYTES_MAX)];
        let mut bytes = [0; RULE_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "it is no longer than the array")]
        let length = name.len() as u8;
        Self { bytes, length }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl fmt::Debug for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl From<Reason> for Why {
    fn from(reason: Reason) -> Self {
        Self { reason, job: None, rule: None }
    }
}

impl Why {
    /// A job does it.
    #[must_use]
    pub const fn job(id: u64) -> Self {
        Self { reason: Reason::Job, job: Some(id), rule: None }
    }

    /// A rule of the policy says so.
    #[must_use]
    pub fn rule(id: &str) -> Self {
        Self { reason: Reason::Rule, job: None, rule: Some(RuleName::new(id)) }
    }
}

/// An entry of the log: a decision, or several that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number; a later entry has a greater one.
    pub seq: u64,
    /// When it was made, the first of several, in milliseconds since 1970.
    pub at_ms: i64,
    /// When the last of them was.
    pub until_ms: i64,
    /// What was to be done.
    pub kind: Kind,
    /// The segment, when it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u64>,
    /// The bucket, when it is about objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<u64>,
    /// The object's key, or the first one's, or what their keys begin with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// How many segments or objects, each as often as it was tried.
    pub count: u64,
    /// Where they were.
    pub from: Place,
    /// Where they were to go.
    pub to: Place,
    /// Bytes in all.
    pub bytes: u64,
    /// Why.
    pub reason: Reason,
    /// The job's number, when it was a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// The rule's id, when it was a rule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// What came of it.
    pub outcome: Outcome,
    /// What went wrong, in words, the last time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl Entry {
    /// Returns the entry of a decision that is made now.
    #[must_use]
    pub fn begin(seq: u64, now: Timestamp, decided: &Decided<'_>) -> Self {
        let (segment, bucket, key) = match decided.what {
            What::Segment(segment) => (Some(segment.0), None, ""),
            What::Object(bucket, key) => (None, Some(bucket.0), key),
            What::Objects { bucket, prefix, .. } => (None, Some(bucket.0), prefix),
        };
        Self {
            seq,
            at_ms: now.as_millis(),
            until_ms: now.as_millis(),
            kind: decided.kind,
            segment,
            bucket,
            key: key.to_owned(),
            count: 0,
            from: decided.from,
            to: decided.to,
            bytes: 0,
            reason: decided.why.reason,
            job: decided.why.job,
            rule: decided.why.rule.map_or_else(String::new, |rule| rule.as_str().to_owned()),
            outcome: decided.outcome,
            error: String::new(),
        }
    }

    /// Whether a decision of now is one more of the same.
    pub fn is_alike(&self, now: Timestamp, decided: &Decided<'_>) -> bool {
        let (segment, bucket) = match decided.what {
            What::Segment(segment) => (Some(segment.0), None),
            What::Object(bucket, _) | What::Objects { bucket, .. } => (None, Some(bucket.0)),
        };
        let within = if self.outcome == Outcome::Done { ALIKE_MS } else { ALIKE_REFUSED_MS };
        (self.kind, self.from, self.to, self.reason, self.job, self.outcome)
            == (decided.kind, decided.from, decided.to, decided.why.reason, decided.why.job, decided.outcome)
            && (self.segment, self.bucket) == (segment, bucket)
            && self.rule == decided.why.rule.as_ref().map_or("", RuleName::as_str)
            && (0..within).contains(&now.as_millis().saturating_sub(self.at_ms))
    }

    /// Counts one more decision of the same.
    pub fn add(&mut self, now: Timestamp, decided: &Decided<'_>, error: &str) {
        let count = match decided.what {
            What::Objects { count, .. } => count,
            What::Segment(_) | What::Object(..) => 1,
        };
        self.count = self.count.saturating_add(count);
        self.bytes = self.bytes.saturating_add(decided.bytes);
        self.until_ms = now.as_millis();
        if !error.is_empty() {
            let end = error.floor_char_boundary(DECISION_WHY_BYTES_MAX);
            error[..end].clone_into(&mut self.error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Decided, Entry, RuleName, What, Why};
    use crate::decision_words::{Kind, Outcome, Place, Reason};
    use mlgw_common::Timestamp;
    use mlgw_common::ids::SegmentId;

    #[test]
    fn an_entry_counts_on_whatever_it_was_read_as() {
        let decided = Decided {
            kind: Kind::Spill,
            what: What::Segment(SegmentId(1)),
            from: Place::Hot,
            to: Place::Cold,
            bytes: 5,
            why: Reason::Watermark.into(),
            outcome: Outcome::Done,
        };
        let now = Timestamp(1_700_000_000_000);
        for at_ms in [i64::MIN, i64::MAX] {
            let entry = Entry { at_ms, ..Entry::begin(1, now, &decided) };
            assert!(!entry.is_alike(now, &decided), "{at_ms}");
        }
        let mut entry = Entry { count: u64::MAX, bytes: u64::MAX, ..Entry::begin(1, now, &decided) };
        assert!(entry.is_alike(now, &decided));
        entry.add(now, &decided, "");
        assert_eq!((entry.count, entry.bytes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn what_rules_say_is_told_by_rule() {
        let decided = |rule: &str| Decided {
            kind: Kind::Evict,
            what: What::Object(mlgw_common::ids::BucketId(1), "k"),
            from: Place::Copies,
            to: Place::Nowhere,
            bytes: 5,
            why: Why::rule(rule),
            outcome: Outcome::Done,
        };
        let now = Timestamp(1_700_000_000_000);
        let entry = Entry::begin(1, now, &decided("old-goes"));
        assert_eq!((entry.rule.as_str(), entry.reason), ("old-goes", Reason::Rule));
        assert!(entry.is_alike(now, &decided("old-goes")) && !entry.is_alike(now, &decided("new-goes")));
        let long = "ä".repeat(60);
        assert_eq!(RuleName::new(&long).as_str(), "ä".repeat(32));
    }
}
