//! Placement decisions and the log entries that they are merged into. Pure.
//!
//! Invariant: counting on an entry never overflows, whatever was read from disk: sums saturate.

use crate::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
use mlgw_common::Timestamp;
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::DECISION_ERROR_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum bytes of a rule's id, as in the policy language.
const RULE_BYTES_MAX: usize = mlgw_common::limits::POLICY_NAME_BYTES_MAX;
/// Successful decisions that are alike within this time share one entry.
const MERGE_MS: i64 = 1000;
/// The same for decisions that did not succeed, because they are retried again and again.
const MERGE_FAILED_MS: i64 = 60_000;

/// Subject of a decision.
#[derive(Clone, Copy, Debug)]
pub enum DecisionSubject<'a> {
    /// A segment of the hot tier, the cold tier or an upstream.
    Segment(SegmentId),
    /// An object of a bucket.
    Object(BucketId, &'a str),
    /// Several objects of a bucket.
    Objects {
        /// The bucket.
        bucket: BucketId,
        /// Number of objects.
        count: u64,
        /// Common prefix of their keys.
        prefix: &'a str,
    },
}

/// A decision that was made.
#[derive(Clone, Copy, Debug)]
pub struct PlacementDecision<'a> {
    /// The action.
    pub kind: DecisionKind,
    /// Subject of the action.
    pub subject: DecisionSubject<'a>,
    /// Location before the action.
    pub from: DecisionPlace,
    /// Intended location.
    pub to: DecisionPlace,
    /// Bytes of the subject. If the action was done in part: the bytes that were moved.
    pub bytes: u64,
    /// Reason of the decision.
    pub cause: DecisionCause,
    /// Outcome of the action.
    pub outcome: DecisionOutcome,
}

/// Reason of a decision, with the job's number or the rule's name where one is the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionCause {
    /// The reason.
    pub reason: DecisionReason,
    /// Number of the job, for [`DecisionReason::Job`].
    pub job: Option<u64>,
    /// Id of the rule, for [`DecisionReason::Rule`].
    pub rule: Option<RuleName>,
}

/// Id of a rule in a fixed-size array, so that it is `Copy`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RuleName {
    bytes: [u8; RULE_BYTES_MAX],
    length: u8,
}

impl RuleName {
    /// Returns the name, truncated to the maximum length of an id.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let name = &name[..name.floor_char_boundary(RULE_BYTES_MAX)];
        let mut bytes = [0; RULE_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "it is no longer than the array")]
        let length = name.len() as u8;
        Self { bytes, length }
    }

    /// Returns the name.
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

impl From<DecisionReason> for DecisionCause {
    fn from(reason: DecisionReason) -> Self {
        Self { reason, job: None, rule: None }
    }
}

impl DecisionCause {
    /// Returns the reason for an action of job `id`.
    #[must_use]
    pub const fn job(id: u64) -> Self {
        Self { reason: DecisionReason::Job, job: Some(id), rule: None }
    }

    /// Returns the reason for an action of the policy rule `id`.
    #[must_use]
    pub fn rule(id: &str) -> Self {
        Self { reason: DecisionReason::Rule, job: None, rule: Some(RuleName::new(id)) }
    }
}

/// An entry of the decision log: one decision, or several that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionEntry {
    /// Sequence number; a later entry has a greater one.
    pub seq: u64,
    /// Time of the first decision of the entry, in milliseconds since 1970.
    pub at_ms: i64,
    /// Time of the last decision of the entry, in milliseconds since 1970.
    pub until_ms: i64,
    /// The action.
    pub kind: DecisionKind,
    /// The segment, if the subject is a segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u64>,
    /// The bucket, if the subject is one or more objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<u64>,
    /// Key of the object, of the first object, or the common prefix of the keys.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Number of segments or objects; each attempt counts.
    pub count: u64,
    /// Location before the action.
    pub from: DecisionPlace,
    /// Intended location.
    pub to: DecisionPlace,
    /// Bytes of all decisions of the entry.
    pub bytes: u64,
    /// Reason of the decision.
    pub reason: DecisionReason,
    /// Number of the job, if the reason is a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// Id of the rule, if the reason is a rule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Outcome of the action.
    pub outcome: DecisionOutcome,
    /// Text of the last error; empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl DecisionEntry {
    /// Returns the entry of a decision that is made at `now`. [`DecisionEntry::add`] counts the decision.
    #[must_use]
    pub fn begin(seq: u64, now: Timestamp, decided: &PlacementDecision<'_>) -> Self {
        let (segment, bucket, key) = match decided.subject {
            DecisionSubject::Segment(segment) => (Some(segment.0), None, ""),
            DecisionSubject::Object(bucket, key) => (None, Some(bucket.0), key),
            DecisionSubject::Objects { bucket, prefix, .. } => (None, Some(bucket.0), prefix),
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
            reason: decided.cause.reason,
            job: decided.cause.job,
            rule: decided.cause.rule.map_or_else(String::new, |rule| rule.as_str().to_owned()),
            outcome: decided.outcome,
            error: String::new(),
        }
    }

    /// True if a decision made at `now` belongs in this entry.
    pub fn can_merge(&self, now: Timestamp, decided: &PlacementDecision<'_>) -> bool {
        let (segment, bucket) = match decided.subject {
            DecisionSubject::Segment(segment) => (Some(segment.0), None),
            DecisionSubject::Object(bucket, _) | DecisionSubject::Objects { bucket, .. } => {
                (None, Some(bucket.0))
            }
        };
        let within = if self.outcome == DecisionOutcome::Done { MERGE_MS } else { MERGE_FAILED_MS };
        (self.kind, self.from, self.to, self.reason, self.job, self.outcome)
            == (
                decided.kind,
                decided.from,
                decided.to,
                decided.cause.reason,
                decided.cause.job,
                decided.outcome,
            )
            && (self.segment, self.bucket) == (segment, bucket)
            && self.rule == decided.cause.rule.as_ref().map_or("", RuleName::as_str)
            && (0..within).contains(&now.as_millis().saturating_sub(self.at_ms))
    }

    /// Counts one more decision in this entry and records its error, if any.
    pub fn add(&mut self, now: Timestamp, decided: &PlacementDecision<'_>, error: &str) {
        let count = match decided.subject {
            DecisionSubject::Objects { count, .. } => count,
            DecisionSubject::Segment(_) | DecisionSubject::Object(..) => 1,
        };
        self.count = self.count.saturating_add(count);
        self.bytes = self.bytes.saturating_add(decided.bytes);
        self.until_ms = now.as_millis();
        if !error.is_empty() {
            let end = error.floor_char_boundary(DECISION_ERROR_BYTES_MAX);
            error[..end].clone_into(&mut self.error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DecisionCause, DecisionEntry, DecisionSubject, PlacementDecision, RuleName};
    use crate::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
    use mlgw_common::Timestamp;
    use mlgw_common::ids::SegmentId;

    #[test]
    fn counting_saturates_on_any_entry_read_from_disk() {
        let decided = PlacementDecision {
            kind: DecisionKind::Spill,
            subject: DecisionSubject::Segment(SegmentId(1)),
            from: DecisionPlace::Hot,
            to: DecisionPlace::Cold,
            bytes: 5,
            cause: DecisionReason::Watermark.into(),
            outcome: DecisionOutcome::Done,
        };
        let now = Timestamp(1_700_000_000_000);
        for at_ms in [i64::MIN, i64::MAX] {
            let entry = DecisionEntry { at_ms, ..DecisionEntry::begin(1, now, &decided) };
            assert!(!entry.can_merge(now, &decided), "{at_ms}");
        }
        let mut entry =
            DecisionEntry { count: u64::MAX, bytes: u64::MAX, ..DecisionEntry::begin(1, now, &decided) };
        assert!(entry.can_merge(now, &decided));
        entry.add(now, &decided, "");
        assert_eq!((entry.count, entry.bytes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn decisions_of_different_rules_have_separate_entries() {
        let decided = |rule: &str| PlacementDecision {
            kind: DecisionKind::Evict,
            subject: DecisionSubject::Object(mlgw_common::ids::BucketId(1), "k"),
            from: DecisionPlace::Copies,
            to: DecisionPlace::Nowhere,
            bytes: 5,
            cause: DecisionCause::rule(rule),
            outcome: DecisionOutcome::Done,
        };
        let now = Timestamp(1_700_000_000_000);
        let entry = DecisionEntry::begin(1, now, &decided("old-goes"));
        assert_eq!((entry.rule.as_str(), entry.reason), ("old-goes", DecisionReason::Rule));
        assert!(entry.can_merge(now, &decided("old-goes")) && !entry.can_merge(now, &decided("new-goes")));
        let long = "ä".repeat(60);
        assert_eq!(RuleName::new(&long).as_str(), "ä".repeat(32));
    }
}
