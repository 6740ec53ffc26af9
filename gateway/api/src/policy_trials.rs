//! Trials of policies before they run: validation, tests on keys, simulations, and their results.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use crate::{PolicyEnvironment, PolicyText};
use mlgw_common::limits::{SIMULATED_CACHES_MAX, SIMULATED_JOBS_MAX, TRIED_KEYS_MAX, TRIED_KEYS_SHOWN_MAX};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Request to validate files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ValidateRequest {
    /// Policies or plugins, each validated on its own.
    #[serde(default)]
    pub files: Vec<PolicyText>,
    /// Framework plugins that the policies may use, validated as well; if absent, the running ones are
    /// available.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
}

/// Request to test a policy on keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestRequest {
    /// Policies, strongest first, that replace all running ones; if absent, the running ones are tested.
    #[serde(default)]
    pub files: Option<Vec<PolicyText>>,
    /// Framework plugins that replace the running ones; if absent, the running ones are available.
    #[serde(default)]
    pub frameworks: Option<Vec<PolicyText>>,
    /// Environment to assume; if absent, the server's own.
    #[serde(default)]
    pub environment: Option<PolicyEnvironment>,
    /// Keys, such as `a/b.tar` or `s3://bucket/a/b.tar`, at most 10,000.
    #[schemars(length(min = 1, max = TRIED_KEYS_MAX))]
    pub keys: Vec<String>,
    /// Maximum number of keys reported in the response, at most 1,000; 100 if absent.
    #[serde(default)]
    #[schemars(range(min = 1, max = TRIED_KEYS_SHOWN_MAX))]
    pub limit: Option<usize>,
}

/// Request for a simulation on a trace or a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SimulateRequest {
    /// Policies, strongest first, that replace all running ones; if absent, a trace runs under the running
    /// ones.
    pub files: Option<Vec<PolicyText>>,
    /// Framework plugins that replace the running ones.
    pub frameworks: Option<Vec<PolicyText>>,
    /// Environment to assume. If this, `files` and `frameworks` are all absent, the engine alone decides on a
    /// profile.
    pub environment: Option<PolicyEnvironment>,
    /// Name of a trace that the server has and that is not being recorded.
    pub trace: Option<String>,
    /// Profile of the workload to generate instead.
    pub profile: Option<SimulationProfile>,
    /// Profile only: jobs on the dataset.
    #[schemars(range(min = 1, max = SIMULATED_JOBS_MAX))]
    pub workloads: Option<u16>,
    /// Seed of orders, moments and sizes; 1 if absent.
    pub seed: Option<u64>,
    /// Epochs of each job.
    #[schemars(range(min = 1))]
    pub epochs: Option<u32>,
    /// Order of each job's epochs.
    pub order: Option<EpochOrderName>,
    /// Objects of the dataset.
    #[schemars(range(min = 1))]
    pub objects: Option<u32>,
    /// Sizes of the cache: shares such as `.35`, or bytes such as `10GiB`; at most 16.
    #[schemars(length(min = 1, max = SIMULATED_CACHES_MAX))]
    pub cache: Option<Vec<String>>,
    /// Bytes of a block; `8MiB` if absent.
    pub block: Option<String>,
    /// Cache algorithms to simulate; all if absent.
    pub policies: Option<Vec<CacheAlgorithm>>,
    /// First epoch of each job that counts, from 1.
    #[schemars(range(min = 1))]
    pub from_epoch: Option<u32>,
    /// True if jobs announce their reads to the engine by an access plan.
    pub plans: bool,
}

words! {
    /// Order of each job's epochs.
    EpochOrderName {
        /// Order of the keys.
        Sequential = "sequential",
        /// A new random order in each epoch.
        Shuffled = "shuffled",
        /// Shards in random order, the objects of each in the order of the keys.
        ShardShuffled = "shard-shuffled",
    }
}

/// Row of a simulation's result. Its fields are a stable interface for programs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SimulationRow {
    /// Profile, or name of the trace.
    pub profile: String,
    /// Seed of the generator; 0 for a trace.
    pub seed: u64,
    /// Cache size, as a share of the workload's bytes.
    pub cache_fraction: f64,
    /// Cache policy that decided.
    pub policy: CacheAlgorithm,
    /// Share of the requested blocks that were hits.
    pub object_hit_ratio: f64,
    /// Share of the requested bytes that were hits.
    pub byte_hit_ratio: f64,
    /// Bytes fetched from upstream.
    pub upstream_bytes: u64,
    /// Bytes written to flash to keep copies.
    pub flash_bytes_written: u64,
    /// Policy `mlgw` on a trace only: hash over its decisions, equal to the hash of the recording server if
    /// both decided alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub decisions_hash: Option<String>,
}

/// Validation result of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ValidationResult {
    /// Name of the file, as given in the request.
    pub file: String,
    /// Kind of the file.
    pub kind: PolicyFileKind,
    /// True if the file has no diagnostics.
    pub valid: bool,
    /// Number of rules in all scopes; an instance of a template counts as one.
    pub rules: usize,
    /// Number of templates.
    pub templates: usize,
    /// Number of settings.
    pub settings: usize,
    /// Diagnostics, in the order of the text.
    pub diagnostics: Vec<DiagnosticInfo>,
}

/// A diagnostic, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DiagnosticInfo {
    /// File that contains the fault.
    pub file: String,
    /// Line, from 1.
    #[schemars(range(min = 1))]
    pub line: u32,
    /// Character within the line, from 1.
    #[schemars(range(min = 1))]
    pub column: u32,
    /// Path in the document, such as `rules[2].actions[0].type`.
    pub path: String,
    /// Offending text and its fault.
    pub found: String,
    /// Accepted input at this path.
    pub expected: String,
    /// Closest valid word.
    pub nearest: Option<String>,
    /// Whole diagnostic as a sentence.
    pub message: String,
}

/// Result of testing rules on keys.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PolicyTestResult {
    /// Number of keys tested.
    pub tried: u64,
    /// Results of the first keys.
    pub keys: Vec<KeyTestResult>,
    /// Results of each rule, in the order of evaluation.
    pub rules: Vec<RuleTestResult>,
}

/// Result of one key.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KeyTestResult {
    /// Key that was tested.
    pub key: String,
    /// Bucket of the key, if given.
    pub bucket: Option<String>,
    /// Bytes of the object, if known.
    pub size: Option<u64>,
    /// Frameworks that the key indicates.
    pub frameworks: Vec<String>,
    /// Rules that match regardless of unknown facts.
    pub matched: Vec<TestedRuleMatch>,
    /// Rules that match depending on unknown facts.
    pub open: Vec<UndecidedRuleMatch>,
}

/// A rule that matches.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TestedRuleMatch {
    /// Name of the rule.
    pub rule: String,
    /// Actions, with their targets and stances.
    pub actions: Vec<String>,
}

/// A rule that matches depending on unknown facts.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UndecidedRuleMatch {
    /// Name of the rule.
    pub rule: String,
    /// Properties that the rule depends on and that are unknown for a bare key.
    pub not_judged: Vec<String>,
}

/// Result of one rule.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RuleTestResult {
    /// Name of the rule.
    pub rule: String,
    /// File and line of the definition.
    pub from: String,
    /// Keys that the rule matches.
    pub matched: u64,
    /// Keys that the rule matches depending on unknown facts.
    pub open: u64,
    /// Keys on which the rule was tested.
    pub of: u64,
    /// Properties that the rule depends on and that are unknown for a bare key.
    pub not_judged: BTreeSet<String>,
}

words! {
    /// Profile of a generated workload.
    SimulationProfile {
        /// MLPerf Storage's ResNet50: large TFRecord files, read in ranges, four at a time.
        Resnet50 = "resnet50",
        /// MLPerf Storage's UNet3D: large files of different sizes, read whole.
        Unet3d = "unet3d",
        /// MLPerf Storage's CosmoFlow: files of about 2.8 MB, read whole.
        Cosmoflow = "cosmoflow",
        /// MLPerf Storage's RetinaNet: pictures of 323 kB, read whole.
        Retinanet = "retinanet",
        /// Training, validation, checkpoints, a scan, a model that replicas load and a hyperparameter search,
        /// at the same time.
        Mix = "mix",
        /// Several jobs on one dataset.
        KWorkloads = "k-workloads",
        /// A single job on one dataset.
        Epochs = "epochs",
        /// No training: a few keys read often, with drifting popularity, new keys and scans.
        Zipf = "zipf",
    }
}

words! {
    /// Cache algorithm of a simulation.
    CacheAlgorithm {
        /// The mlgw policy engine.
        Mlgw = "mlgw",
        /// Least recently used.
        Lru = "lru",
        /// S3-FIFO.
        S3Fifo = "s3-fifo",
        /// SIEVE.
        Sieve = "sieve",
        /// Fills once and never evicts.
        NeverEvict = "never-evict",
        /// Belady's optimum, which knows the future requests.
        Optimum = "optimum",
    }
}

words! {
    /// Kind of a policy file.
    PolicyFileKind {
        /// A policy.
        Policy = "policy",
        /// A framework plugin.
        Framework = "framework",
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheAlgorithm, EpochOrderName, SimulationRow};

    #[test]
    fn fields_for_programs_are_a_promise() {
        let row = SimulationRow {
            profile: "epochs".to_owned(),
            seed: 3,
            cache_fraction: 0.5,
            policy: CacheAlgorithm::Mlgw,
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
        let order: EpochOrderName = serde_json::from_str("\"shard-shuffled\"").unwrap();
        assert_eq!(order, EpochOrderName::ShardShuffled);
    }
}
