//! Trials of policies before they run: what is tried, and what came of it.
//!
//! Always: names and order of fields are a promise to programs. Nothing is stored, so a power failure changes
//! nothing.

use crate::PolicyText;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Files that may be wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValidateRequest {
    /// Policies or plugins, each looked at for itself.
    #[serde(default)]
    pub files: Vec<PolicyText>,
    /// Plugins of frameworks that they may use, looked at, too; without it those that run are there.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
}

/// Keys that a policy is tried on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestRequest {
    /// Policies, the strongest first, in the place of all that run; without it those are tried.
    #[serde(default)]
    pub files: Option<Vec<PolicyText>>,
    /// Plugins of frameworks in the place of those that run; without it those are there.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
    /// As if the server ran there: `development`, `staging` or `production`; without it where it does.
    #[serde(default)]
    pub environment: Option<String>,
    /// Keys, as `a/b.tar` or `s3://bucket/a/b.tar`, at most 10,000.
    pub keys: Vec<String>,
    /// Keys of which the answer tells, at most 1,000; 100 when absent.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// What is to be simulated: on a trace or a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimulateRequest {
    /// Policies, the strongest first, in the place of all that run; without it those are there for a trace.
    pub files: Option<Vec<PolicyText>>,
    /// Plugins of frameworks in the place of those that run.
    pub frameworks: Option<Vec<PolicyText>>,
    /// As if the server ran there. Without this, files and frameworks our engine decides a profile alone.
    pub environment: Option<String>,
    /// The name of a trace that the server has, and that is not being recorded.
    pub trace: Option<String>,
    /// What is generated instead.
    pub profile: Option<String>,
    /// Jobs on the dataset, of a profile.
    pub workloads: Option<u16>,
    /// Another seed gives other orders, moments and sizes; 1 when absent.
    pub seed: Option<u64>,
    /// Epochs of each job.
    pub epochs: Option<u32>,
    /// Order of each job's epochs.
    pub order: Option<OrderWord>,
    /// Objects of the dataset.
    pub objects: Option<u32>,
    /// Sizes of the cache: shares as `.35`, or bytes as `10GiB`; at most 16.
    pub cache: Option<Vec<String>>,
    /// Bytes of a block; `8MiB` when absent.
    pub block: Option<String>,
    /// Who takes part; all when absent.
    pub policies: Option<Vec<String>>,
    /// Count from this epoch of each job on, the first being 1.
    pub from_epoch: Option<u32>,
    /// Whether jobs tell the engine beforehand what they will read.
    pub plans: bool,
}

/// The order of each job's epochs, as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderWord {
    /// That of the keys.
    Sequential,
    /// Another random one each time.
    Shuffled,
    /// Shards in a random order, their objects in that of the keys.
    ShardShuffled,
}

/// A row of the answer; its fields are a promise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulated {
    /// The profile, or the trace's name.
    pub profile: String,
    /// What it was generated with; 0 for a trace.
    pub seed: u64,
    /// The cache, as a share of the workload's bytes.
    pub cache_fraction: f64,
    /// Who decided.
    pub policy: &'static str,
    /// The part of what was asked for that was a hit, in blocks.
    pub object_hit_ratio: f64,
    /// The same in bytes.
    pub byte_hit_ratio: f64,
    /// Bytes that came from upstream.
    pub upstream_bytes: u64,
    /// Bytes that were written to keep them.
    pub flash_bytes_written: u64,
    /// Of `mlgw` on a trace: a hash over its decisions, which is that of the server that the trace is of, if
    /// that decided alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decisions_hash: Option<String>,
}

/// What is said of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Validated {
    /// Its name, as it was given.
    pub file: String,
    /// `policy` or `framework`.
    pub kind: &'static str,
    /// Whether nothing is wrong with it.
    pub valid: bool,
    /// Its rules, wherever they hold; an instance of a template counts as one.
    pub rules: usize,
    /// Its templates.
    pub templates: usize,
    /// Its settings.
    pub settings: usize,
    /// What is wrong with it, in the order of the text.
    pub diagnostics: Vec<DiagnosticInfo>,
}

/// A diagnostic, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiagnosticInfo {
    /// The file that it is about.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The character within the line, from 1.
    pub column: u32,
    /// Where it stands in the document, as `rules[2].actions[0].type`.
    pub path: String,
    /// What is wrong with what stands there.
    pub found: String,
    /// What may stand there.
    pub expected: String,
    /// The right word that is nearest to it.
    pub nearest: Option<String>,
    /// All of it as a sentence.
    pub message: String,
}

/// What came of trying rules on keys.
#[derive(Debug, Serialize)]
pub struct Examined {
    /// How many keys were tried.
    pub tried: u64,
    /// What is said of the first of them.
    pub keys: Vec<KeyExamined>,
    /// What is said of each rule, in the order in which they are tried.
    pub rules: Vec<RuleExamined>,
}

/// What is said of a key.
#[derive(Debug, Serialize)]
pub struct KeyExamined {
    /// The key.
    pub key: String,
    /// Its bucket, if that was said.
    pub bucket: Option<String>,
    /// Its bytes, if they are known.
    pub size: Option<u64>,
    /// Frameworks that it speaks for.
    pub frameworks: Vec<String>,
    /// Rules that match, whatever else is so.
    pub matched: Vec<RuleMatched>,
    /// Rules that match if something else is so.
    pub open: Vec<RuleOpen>,
}

/// A rule that matches.
#[derive(Debug, Serialize)]
pub struct RuleMatched {
    /// The rule.
    pub rule: String,
    /// Its actions, with their targets and stances.
    pub actions: Vec<String>,
}

/// A rule that matches if something else is so.
#[derive(Debug, Serialize)]
pub struct RuleOpen {
    /// The rule.
    pub rule: String,
    /// What it asks that is not known of a key.
    pub not_judged: Vec<String>,
}

/// What is said of a rule.
#[derive(Debug, Serialize)]
pub struct RuleExamined {
    /// The rule.
    pub rule: String,
    /// File and line where it stands.
    pub from: String,
    /// Keys that it matches.
    pub matched: u64,
    /// Keys that it matches if something else is so.
    pub open: u64,
    /// Keys that it was tried on.
    pub of: u64,
    /// What it asks that is not known of a key.
    pub not_judged: BTreeSet<String>,
}

#[cfg(test)]
mod tests {
    use super::{OrderWord, Simulated};

    #[test]
    fn fields_for_programs_are_a_promise() {
        let row = Simulated {
            profile: "epochs".to_owned(),
            seed: 3,
            cache_fraction: 0.5,
            policy: "mlgw",
            object_hit_ratio: 0.25,
            byte_hit_ratio: 0.5,
            upstream_bytes: 3 << 20,
            flash_bytes_written: 0,
            decisions_hash: None,
        };
        let expected = concat!(
            r#"[{"profile":"epochs","seed":3,"cache_fraction":0.5,"policy":"mlgw","object_hit_ratio":0.25,"#,
            r#""byte_hit_ratio":0.5,"upstream_bytes":3145728,"flash_bytes_written":0}]"#,
        );
        assert_eq!(serde_json::to_string(&[row]).unwrap(), expected);
    }

    #[test]
    fn an_order_is_a_word_with_hyphens() {
        let order: OrderWord = serde_json::from_str("\"shard-shuffled\"").unwrap();
        assert_eq!(order, OrderWord::ShardShuffled);
    }
}
