//! `/v1/policy/outcomes`: outcomes of cache decisions by rule and by dataset, compared with other caches.
//!
//! Counters start with the server; the comparison with other caches covers recent accesses, on a sample.
//! Bounds that were learned from the outcomes are in the policy history.

use super::Admin;
use axum::Json;
use axum::extract::State;
use mlgw_api::{AheadOutcomes, DatasetOutcomes, PolicyOutcomes, RuleOutcomes};
use mlgw_policies::engine::{DatasetId, Outcome};
use mlgw_policies::outcomes::{Count, Tally};
use mlgw_policies::shadow::Shadows;
use mlgw_telemetry::exposition::{Family, Value};
use mlgw_telemetry::table::{
    POLICY_ACCESSES, POLICY_AHEAD, POLICY_BLOCKS, POLICY_KEPT, POLICY_OUTCOMES, POLICY_SHADOW,
};
use std::sync::Arc;

/// Name under which decisions count that no rule requested.
const ENGINE: &str = "engine";
/// Maximum number of datasets shown: those with the most bytes read.
const DATASETS_SHOWN: usize = 100;

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Json<PolicyOutcomes> {
    let (rules, datasets, depth) = admin.keeper.ask(|decider, _| {
        let rules: Vec<RuleOutcomes> =
            decider.outcomes.tallies().map(|(rule, tally)| of_rule(rule, tally)).collect();
        let mut datasets: Vec<(DatasetId, Shadows)> = decider.shadow.datasets().collect();
        datasets.sort_by(|(a, one), (b, other)| other.bytes.total_cmp(&one.bytes).then(a.cmp(b)));
        let named = datasets.into_iter().filter_map(|(dataset, shadows)| {
            let name = decider.engine.dataset_name(dataset)?;
            Some((name.bucket, format!("{}{}", name.folder, name.pattern), shadows))
        });
        (rules, named.take(DATASETS_SHOWN).collect::<Vec<_>>(), decider.program().prefetch_depth())
    });
    let names = admin.bucket_names();
    let dataset = |(bucket, keys, shadows): (u64, String, Shadows)| {
        let [here, lru, s3_fifo, never_evict] = shadows.ratios()?.map(|ratio| (ratio * 1e4).round() / 1e4);
        let bucket = names.get(&bucket).cloned().unwrap_or_else(|| format!("#{bucket}"));
        Some(DatasetOutcomes { bucket, keys, here, lru, s3_fifo, never_evict })
    };
    let of = |outcome: Outcome| admin.keeper.metrics().ahead[outcome as usize];
    let ahead = AheadOutcomes {
        used: of(Outcome::Used),
        late: of(Outcome::Late),
        wasted: of(Outcome::Wasted),
        declined: of(Outcome::Declined),
        absent: of(Outcome::Absent),
        depth,
    };
    Json(PolicyOutcomes { rules, ahead, datasets: datasets.into_iter().filter_map(dataset).collect() })
}

fn of_rule(rule: &str, tally: &Tally) -> RuleOutcomes {
    let rule = if rule.is_empty() { ENGINE } else { rule }.to_owned();
    let [kept_bytes, used_bytes, wasted_bytes, missed_bytes, passed_again_bytes] = bytes(tally);
    RuleOutcomes { rule, kept_bytes, used_bytes, wasted_bytes, missed_bytes, passed_again_bytes }
}

fn bytes(tally: &Tally) -> [u64; 5] {
    let Tally { kept, used, wasted, missed, passed_again } = tally;
    [kept, used, wasted, missed, passed_again].map(|Count { bytes, .. }| *bytes)
}

impl Admin {
    /// Returns the metrics of the policy engine: accesses, decisions, outcomes and cached bytes.
    pub(super) fn engine_families(&self) -> Vec<Family> {
        let said = self.keeper.metrics();
        let (sums, shadows) = self.keeper.ask(|decider, _| {
            let sum = decider.outcomes.tallies().fold([0; 5], |mut sum, (_, tally)| {
                sum.iter_mut().zip(bytes(tally)).for_each(|(sum, bytes)| *sum += bytes);
                sum
            });
            (sum, decider.shadow.total())
        });
        let blocks =
            [("hit", said.hits), ("keep", said.kept), ("bypass", said.bypassed), ("evict", said.evicted)];
        let kept = [
            ("kept", said.kept_bytes),
            ("pinned", said.pinned_bytes),
            ("capacity", said.capacity_bytes),
            ("memory", said.memory_bytes),
        ];
        let count = |family: Family, names: &[(&str, u64)]| {
            names.iter().fold(family, |family, (name, count)| family.with(&[name], Value::Count(*count)))
        };
        let named: Vec<_> =
            ["used", "late", "wasted", "declined", "absent"].into_iter().zip(said.ahead).collect();
        let became: Vec<_> =
            ["kept", "used", "wasted", "missed", "passed_again"].into_iter().zip(sums).collect();
        let mut held = Family::new(POLICY_KEPT);
        for (what, bytes) in kept {
            held.push(&[what], Value::Level(i64::try_from(bytes).unwrap_or(i64::MAX)));
        }
        let mut shadow = Family::new(POLICY_SHADOW);
        for (cache, ratio) in
            ["here", "lru", "s3-fifo", "never-evict"].into_iter().zip(shadows.ratios().into_iter().flatten())
        {
            shadow.push(&[cache], Value::Level((ratio * 100.0).round() as i64));
        }
        vec![
            Family::single(POLICY_ACCESSES, Value::Count(said.accesses)),
            count(Family::new(POLICY_BLOCKS), &blocks),
            count(Family::new(POLICY_AHEAD), &named),
            count(Family::new(POLICY_OUTCOMES), &became),
            held,
            shadow,
        ]
    }
}
