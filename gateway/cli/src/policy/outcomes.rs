//! The command `mlgw policy outcomes`.

use crate::client::Client;
use crate::output::{Out, columns};
use crate::{CliError, Global, discover};
use mlgw_api::{DatasetOutcomes, PolicyOutcomes, RuleOutcomes};
use mlgw_common::ByteSize;

pub(super) async fn run(global: &Global, out: Out) -> Result<(), CliError> {
    let client = Client::new(discover::target(global)?)?;
    out.document(&client.get::<PolicyOutcomes>("/v1/policy/outcomes").await?, tables)
}

fn tables(outcomes: &PolicyOutcomes) -> String {
    let rules: Vec<_> = outcomes.rules.iter().map(rule).collect();
    let heads = ["RULE", "CACHED", "REUSED", "WASTED", "EVICTED TOO EARLY", "BYPASSED TOO EARLY"];
    let ahead = &outcomes.ahead;
    let line = format!(
        "Read-ahead: {} blocks used, {} late, {} wasted; at most {} per reader.\n",
        ahead.used, ahead.late, ahead.wasted, ahead.depth
    );
    let rules = format!("{}\n{line}", columns(&heads, &rules));
    if outcomes.datasets.is_empty() {
        return rules;
    }
    let datasets: Vec<_> = outcomes.datasets.iter().map(dataset).collect();
    let heads = ["DATASET", "MLGW", "LRU", "S3-FIFO", "NEVER-EVICT"];
    format!("{rules}\n{}", columns(&heads, &datasets))
}

fn rule(it: &RuleOutcomes) -> Vec<String> {
    let bytes = |bytes: u64| ByteSize(bytes).human();
    let counts = [it.kept_bytes, it.used_bytes, it.wasted_bytes, it.missed_bytes, it.passed_again_bytes];
    std::iter::once(it.rule.clone()).chain(counts.map(bytes)).collect()
}

fn dataset(it: &DatasetOutcomes) -> Vec<String> {
    let ratios = [it.mlgw, it.lru, it.s3_fifo, it.never_evict].map(|ratio| format!("{ratio:.2}"));
    std::iter::once(format!("s3://{}/{}", it.bucket, it.keys)).chain(ratios).collect()
}

#[cfg(test)]
mod tests {
    use super::tables;
    use mlgw_api::{DatasetOutcomes, PolicyOutcomes, ReadAheadOutcomes, RuleOutcomes};

    #[test]
    fn rules_and_datasets_as_tables() {
        let engine = RuleOutcomes {
            rule: "engine".into(),
            kept_bytes: 2048,
            used_bytes: 1024,
            ..RuleOutcomes::default()
        };
        let ahead =
            ReadAheadOutcomes { used: 9, late: 2, wasted: 1, depth: 64, ..ReadAheadOutcomes::default() };
        let train = DatasetOutcomes {
            bucket: "b".into(),
            keys: "train/#.jpg".into(),
            mlgw: 0.5,
            lru: 0.125,
            s3_fifo: 0.25,
            never_evict: 0.5,
        };
        let outcomes = PolicyOutcomes { rules: vec![engine], ahead, datasets: vec![train] };
        let expected = "\
RULE    CACHED   REUSED   WASTED  EVICTED TOO EARLY  BYPASSED TOO EARLY
engine  2.0 KiB  1.0 KiB  0 B     0 B                0 B

Read-ahead: 9 blocks used, 2 late, 1 wasted; at most 64 per reader.

DATASET             MLGW  LRU   S3-FIFO  NEVER-EVICT
s3://b/train/#.jpg  0.50  0.12  0.25     0.50
";
        assert_eq!(tables(&outcomes), expected);
    }
}
