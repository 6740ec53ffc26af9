//! Versions of the policy, and the files that operators wrote for them. Rows: `policy` and `policy_files` in
//! group 0, keyed by version number.
//!
//! The newest version runs. A version that changes no file, such as a roll-back or a freeze, refers to the
//! version that introduced its files. Files are deleted when no recent version refers to them.

use crate::key::{Family, number_key};

/// A version of the running policy.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct PolicyVersion {
    /// Number of the version, from 1.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Time at which the version was made, milliseconds since the epoch.
    #[prost(int64, tag = "2")]
    pub at_ms: i64,
    /// Author: an access key, or the watched files.
    #[prost(string, tag = "3")]
    pub who: String,
    /// Kind of change that made the version.
    #[prost(enumeration = "PolicyKind", tag = "4")]
    pub kind: i32,
    /// Message of the author.
    #[prost(string, tag = "5")]
    pub message: String,
    /// Summary of the changes, in one sentence.
    #[prost(string, tag = "6")]
    pub changes: String,
    /// The version that introduced its files; 0 if it has none.
    #[prost(uint64, tag = "7")]
    pub files: u64,
    /// True if learning is frozen.
    #[prost(bool, tag = "8")]
    pub is_frozen: bool,
    /// For a roll-back: the version that it returns to.
    #[prost(uint64, tag = "9")]
    pub back_to: u64,
    /// SHA-256 of the watched files when they were last loaded; empty if they never were.
    #[prost(bytes = "vec", tag = "10")]
    pub watched: Vec<u8>,
    /// Bounds that were moved by learning.
    #[prost(message, repeated, tag = "11")]
    pub learnt: Vec<LearntBound>,
}

/// A bound that was moved by learning.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct LearntBound {
    /// Name of the bound: `prefetch_depth`, or `min_reads/` and the id of a rule.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Current value, in millionths.
    #[prost(uint64, tag = "2")]
    pub value: u64,
    /// Value in the policy files, in millionths.
    #[prost(uint64, tag = "3")]
    pub from: u64,
    /// Start of the day of the last move, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub day_ms: i64,
    /// Value at the start of that day, in millionths.
    #[prost(uint64, tag = "5")]
    pub day_value: u64,
}

/// Kind of change that made a policy version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum PolicyKind {
    /// An operator applied files.
    Apply = 0,
    /// An operator returned to earlier files.
    Rollback = 1,
    /// Watched files changed.
    Reload = 2,
    /// An operator froze learning.
    Freeze = 3,
    /// An operator resumed learning.
    Unfreeze = 4,
    /// Learning moved bounds, based on measurements.
    Learn = 5,
}

/// The files of a version.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct PolicyFiles {
    /// Custom policies, in descending priority.
    #[prost(message, repeated, tag = "1")]
    pub custom: Vec<PolicyFile>,
    /// Framework plugins, in descending priority.
    #[prost(message, repeated, tag = "2")]
    pub frameworks: Vec<PolicyFile>,
}

/// A file that an operator wrote.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct PolicyFile {
    /// Name of the file, as shown in messages.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Text of the file.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Returns the row key of the version `number`.
#[must_use]
pub fn row(number: u64) -> Vec<u8> {
    number_key(Family::Policy, number)
}

/// Returns the row key of the files that the version `number` introduced.
#[must_use]
pub fn files_row(number: u64) -> Vec<u8> {
    number_key(Family::PolicyFiles, number)
}

#[cfg(test)]
mod tests {
    use super::{LearntBound, PolicyFile, PolicyFiles, PolicyKind, PolicyVersion, files_row, row};
    use crate::schema::golden;

    #[test]
    fn the_records_have_these_bytes() {
        let version = PolicyVersion {
            number: 7,
            at_ms: 1_700_000_000_123,
            who: "AK".into(),
            kind: PolicyKind::Rollback as i32,
            message: "too eager".into(),
            changes: "nothing".into(),
            files: 5,
            is_frozen: true,
            back_to: 6,
            watched: vec![1, 2, 3],
            learnt: vec![LearntBound {
                name: "prefetch_depth".into(),
                value: 57_600_000,
                from: 64_000_000,
                day_ms: 1_700_000_000_000,
                day_value: 64_000_000,
            }],
        };
        golden::check(&version, include_str!("golden/policy.hex"));
        let file = |name: &str| PolicyFile { name: name.into(), text: "version: 1\n".into() };
        let files = PolicyFiles { custom: vec![file("a.yaml")], frameworks: vec![file("b.yaml")] };
        golden::check(&files, include_str!("golden/policy_files.hex"));
    }

    #[test]
    fn rows_have_these_bytes() {
        assert_eq!(row(258), [0x09, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(files_row(1), [0x0A, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
