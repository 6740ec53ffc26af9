//! `policy` and `policy_files` (group 0, at the version's number): the versions of the running policy, and
//! what people wrote for them.
//!
//! The newest version is the one that runs. One that changes no file, as a roll-back or a freeze does, names
//! the version that brought its files; files go when none of the newest versions names them any more.

use crate::key::{Family, numbered};

/// A version of the running policy.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct PolicyVersion {
    /// Its number, from 1.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// When it was made, milliseconds since the epoch.
    #[prost(int64, tag = "2")]
    pub at_ms: i64,
    /// Who made it: an access key, or the files that were watched.
    #[prost(string, tag = "3")]
    pub who: String,
    /// How it came about.
    #[prost(enumeration = "PolicyKind", tag = "4")]
    pub kind: i32,
    /// What the person said.
    #[prost(string, tag = "5")]
    pub message: String,
    /// What changed, in one sentence.
    #[prost(string, tag = "6")]
    pub changes: String,
    /// The version that brought its files; 0 when it has none.
    #[prost(uint64, tag = "7")]
    pub files: u64,
    /// Whether nothing is learnt.
    #[prost(bool, tag = "8")]
    pub is_frozen: bool,
    /// Of a roll-back: the version that it goes back to.
    #[prost(uint64, tag = "9")]
    pub back_to: u64,
    /// What watched files held when they were taken up last: SHA-256; empty when none ever was.
    #[prost(bytes = "vec", tag = "10")]
    pub watched: Vec<u8>,
    /// Bounds that have moved by what was measured.
    #[prost(message, repeated, tag = "11")]
    pub learnt: Vec<LearntBound>,
}

/// A bound that has moved.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct LearntBound {
    /// Which: `prefetch_depth`, or `min_reads/` and the id of a rule.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Where it is, in millionths.
    #[prost(uint64, tag = "2")]
    pub value: u64,
    /// What was written where it began, in millionths.
    #[prost(uint64, tag = "3")]
    pub from: u64,
    /// When the day began in which it moved last, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub day_ms: i64,
    /// Where it was then, in millionths.
    #[prost(uint64, tag = "5")]
    pub day_value: u64,
}

/// How a version came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum PolicyKind {
    /// A person applied files.
    Apply = 0,
    /// A person went back to files of before.
    Rollback = 1,
    /// Watched files changed.
    Reload = 2,
    /// A person stopped the learning.
    Freeze = 3,
    /// A person let it go on.
    Unfreeze = 4,
    /// Bounds moved by what was measured.
    Learn = 5,
}

/// The files of a version.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct PolicyFiles {
    /// Policies, the strongest first.
    #[prost(message, repeated, tag = "1")]
    pub custom: Vec<PolicyFile>,
    /// Plugins of frameworks, the strongest first.
    #[prost(message, repeated, tag = "2")]
    pub frameworks: Vec<PolicyFile>,
}

/// A file that a person wrote.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct PolicyFile {
    /// Its name, as messages give it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its text.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// The row of the version `number`.
#[must_use]
pub fn row(number: u64) -> Vec<u8> {
    numbered(Family::Policy, number)
}

/// The row of the files that the version `number` brought.
#[must_use]
pub fn files_row(number: u64) -> Vec<u8> {
    numbered(Family::PolicyFiles, number)
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
