//! `/v1/policy/outcomes`: outcomes of cache decisions by rule and by dataset, compared with other caches.
//!
//! Counters start with the server; the comparison with other caches covers recent accesses, on a sample.
//! Bounds that were learned from the outcomes are in the policy history.

use super::Admin;
use axum::Json;
use axum::extract::State;
use mlgw_api::{DatasetOutcomes, PolicyOutcomes, ReadAheadOutcomes, RuleOutcomes};
use mlgw_policies::engine::{DatasetId, ReadAheadOutcome};
use mlgw_policies::outcomes::{BlockCount, CopyTally};
use mlgw_policies::shadow::SimulatedHits;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    POLICY_ACCESSES, POLICY_AHEAD, POLICY_BLOCKS, POLICY_KEPT, POLICY_OUTCOMES, POLICY_SHADOW,
};
use std::sync::Arc;

/// Name under which decisions count that no rule requested.
const ENGINE: &str = "engine";
/// Maximum number of datasets shown: those with the most bytes read.
const DATASETS_SHOWN: usize = 100;

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Json<PolicyOutcomes> {
    let (rules, datasets, depth) = admin.policy_driver.with_engine(|decider, _| {
        let rules: Vec<RuleOutcomes> =
            decider.outcomes.tallies().map(|(rule, tally)| rule_outcomes(rule, tally)).collect();
        let mut datasets: Vec<(DatasetId, SimulatedHits)> = decider.shadow.datasets().collect();
        datasets.sort_by(|(a, one), (b, other)| other.bytes.total_cmp(&one.bytes).then(a.cmp(b)));
        let named = datasets.into_iter().filter_map(|(dataset, shadows)| {
            let name = decider.engine.dataset_name(dataset)?;
            Some((name.bucket, format!("{}{}", name.folder, name.pattern), shadows))
        });
        (rules, named.take(DATASETS_SHOWN).collect::<Vec<_>>(), decider.program().prefetch_depth())
    });
    let names = admin.bucket_names();
    let dataset = |(bucket, keys, shadows): (u64, String, SimulatedHits)| {
        let [mlgw, lru, s3_fifo, never_evict] = shadows.ratios()?.map(|ratio| (ratio * 1e4).round() / 1e4);
        let bucket = names.get(&bucket).cloned().unwrap_or_else(|| format!("#{bucket}"));
        Some(DatasetOutcomes { bucket, keys, mlgw, lru, s3_fifo, never_evict })
    };
    let of = |outcome: ReadAheadOutcome| admin.policy_driver.metrics().ahead[outcome as usize];
    let ahead = ReadAheadOutcomes {
        used: of(ReadAheadOutcome::Used),
        late: of(ReadAheadOutcome::Late),
        wasted: of(ReadAheadOutcome::Wasted),
        declined: of(ReadAheadOutcome::Declined),
        absent: of(ReadAheadOutcome::Absent),
        depth,
    };
    Json(PolicyOutcomes { rules, ahead, datasets: datasets.into_iter().filter_map(dataset).collect() })
}

fn rule_outcomes(rule: &str, tally: &CopyTally) -> RuleOutcomes {
    let rule = if rule.is_empty() { ENGINE } else { rule }.to_owned();
    let [kept_bytes, used_bytes, wasted_bytes, missed_bytes, passed_again_bytes] = bytes(tally);
    RuleOutcomes { rule, kept_bytes, used_bytes, wasted_bytes, missed_bytes, passed_again_bytes }
}

fn bytes(tally: &CopyTally) -> [u64; 5] {
    let CopyTally { kept, used, wasted, missed, passed_again } = tally;
    [kept, used, wasted, missed, passed_again].map(|BlockCount { bytes, .. }| *bytes)
}

impl Admin {
    /// Returns the metrics of the policy engine: accesses, decisions, outcomes and cached bytes.
    pub(super) fn engine_families(&self) -> Vec<MetricFamily> {
        let metrics = self.policy_driver.metrics();
        let (sums, shadows) = self.policy_driver.with_engine(|decider, _| {
            let sum = decider.outcomes.tallies().fold([0; 5], |mut sum, (_, tally)| {
                sum.iter_mut().zip(bytes(tally)).for_each(|(sum, bytes)| *sum += bytes);
                sum
            });
            (sum, decider.shadow.total())
        });
        let blocks = [
            ("hit", metrics.hits),
            ("keep", metrics.kept),
            ("bypass", metrics.bypassed),
            ("evict", metrics.evicted),
        ];
        let kept = [
            ("kept", metrics.kept_bytes),
            ("pinned", metrics.pinned_bytes),
            ("capacity", metrics.capacity_bytes),
            ("memory", metrics.memory_bytes),
        ];
        let count = |family: MetricFamily, names: &[(&str, u64)]| {
            names
                .iter()
                .fold(family, |family, (name, count)| family.with(&[name], MetricValue::Count(*count)))
        };
        let named: Vec<_> =
            ["used", "late", "wasted", "declined", "absent"].into_iter().zip(metrics.ahead).collect();
        let outcomes: Vec<_> =
            ["kept", "used", "wasted", "missed", "passed_again"].into_iter().zip(sums).collect();
        let mut cached = MetricFamily::new(POLICY_KEPT);
        for (what, bytes) in kept {
            cached.push(&[what], MetricValue::Level(i64::try_from(bytes).unwrap_or(i64::MAX)));
        }
        let mut shadow = MetricFamily::new(POLICY_SHADOW);
        for (cache, ratio) in
            ["here", "lru", "s3-fifo", "never-evict"].into_iter().zip(shadows.ratios().into_iter().flatten())
        {
            shadow.push(&[cache], MetricValue::Level((ratio * 100.0).round() as i64));
        }
        vec![
            MetricFamily::single(POLICY_ACCESSES, MetricValue::Count(metrics.accesses)),
            count(MetricFamily::new(POLICY_BLOCKS), &blocks),
            count(MetricFamily::new(POLICY_AHEAD), &named),
            count(MetricFamily::new(POLICY_OUTCOMES), &outcomes),
            cached,
            shadow,
        ]
    }
}
