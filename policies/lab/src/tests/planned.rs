//! Tests: a plan of the actual reads reaches the hit ratio of the optimum; a wrong plan costs nothing.

use super::retention::mean;
use crate::caller_plans::{CallerPlan, build_caller_plans};
use crate::comparison::{CacheAlgorithm, CacheComparison, Scoring};
use crate::workload::{SimulationProfile, WorkloadSettings, workload};
use mlgw_policies::plan::{Plan, PlanSchedule};

const BLOCK_BYTES: u32 = 8 << 20;

/// Runs a comparison with plans that others or the jobs themselves made, or without plans.
fn compare(
    profile: SimulationProfile,
    settings: &WorkloadSettings,
    share: f64,
    from: usize,
    plans: &[CallerPlan],
) -> CacheComparison {
    let made = workload(profile, settings).unwrap();
    let capacity = (made.scene.keys.bytes() as f64 * share) as u64;
    let requests =
        made.requests.enumerate().map(|(number, request)| (request, Scoring::of_number(number, from)));
    CacheComparison::run_with_plans(&made.scene, plans, requests, BLOCK_BYTES, capacity).unwrap()
}

fn plans(profile: SimulationProfile, settings: &WorkloadSettings) -> Vec<CallerPlan> {
    let made = workload(profile, settings).unwrap();
    build_caller_plans(&made.scene, made.requests).unwrap()
}

#[test]
fn plans_reach_the_hit_ratio_of_the_optimum() {
    for (jobs, share) in [(1, 0.2), (1, 0.8), (3, 0.2), (3, 0.5), (3, 0.8)] {
        let reached = (1..=3).map(|seed| {
            let settings = WorkloadSettings {
                seed,
                workloads: Some(jobs),
                epochs: Some(8),
                objects: Some(1000),
                ..WorkloadSettings::default()
            };
            let profile = SimulationProfile::KWorkloads;
            let half = 4000 * usize::from(jobs);
            let comparison = compare(profile, &settings, share, half, &plans(profile, &settings));
            let [ours, best] = [CacheAlgorithm::Mlgw, CacheAlgorithm::Optimum]
                .map(|algorithm| comparison.score(algorithm).byte_hit_ratio());
            ours / best
        });
        let reached: Vec<f64> = reached.collect();
        let reached = mean(reached.into_iter());
        assert!(reached >= 0.95, "{jobs} {share}: {reached}");
    }
}

/// Returns the readers of some plans with the plans of others.
fn swapped(whose: &[CallerPlan], what: Vec<Plan>) -> Vec<CallerPlan> {
    whose.iter().zip(what).map(|(caller, plan)| CallerPlan { plan, ..caller.clone() }).collect()
}

#[test]
fn a_wrong_plan_costs_nothing() {
    let profile = SimulationProfile::KWorkloads;
    for (jobs, share) in [(1, 0.35), (3, 0.2), (3, 0.5)] {
        for seed in 1..=3 {
            let settings = |seed| WorkloadSettings {
                seed,
                workloads: Some(jobs),
                epochs: Some(8),
                objects: Some(1000),
                ..WorkloadSettings::default()
            };
            let (right, others) = (plans(profile, &settings(seed)), plans(profile, &settings(seed + 100)));
            let never = swapped(&right, others.iter().map(|caller| caller.plan.clone()).collect());
            // Correct for three epochs, and wrong from then on.
            let half = right.iter().zip(&others).map(|(right, other)| {
                let reads = |plan: &Plan| plan.epochs().flatten().collect::<Vec<_>>();
                let name = |plan: &Plan, key: &u32| plan.keys().get(*key).unwrap().to_owned();
                let (first, then) = (reads(&right.plan), reads(&other.plan));
                let first = first[..3000].iter().map(|key| name(&right.plan, key));
                let keys: Vec<String> =
                    first.chain(then[3000..].iter().map(|key| name(&other.plan, key))).collect();
                Plan::new(keys.iter().map(String::as_str), PlanSchedule::default()).unwrap()
            });
            let until = swapped(&right, half.collect());
            let from = 3000 * usize::from(jobs);
            let ratio = |plans: &[CallerPlan]| {
                compare(profile, &settings(seed), share, from, plans)
                    .score(CacheAlgorithm::Mlgw)
                    .byte_hit_ratio()
            };
            let without = ratio(&[]);
            assert!((ratio(&never) - without).abs() < 1e-9, "{jobs} {share} {seed}");
            let left = ratio(&until);
            assert!(left >= without - 0.01, "{jobs} {share} {seed}: {left} {without}");
        }
    }
}

#[test]
fn a_job_without_a_plan_is_not_worse_off_beside_planned_jobs() {
    let profile = SimulationProfile::KWorkloads;
    let settings = WorkloadSettings {
        workloads: Some(3),
        epochs: Some(8),
        objects: Some(1000),
        ..WorkloadSettings::default()
    };
    let plans_of_jobs = plans(profile, &settings);
    for share in [0.2, 0.5] {
        let ratio = |plans: &[CallerPlan]| {
            compare(profile, &settings, share, 12_000, plans).score(CacheAlgorithm::Mlgw).byte_hit_ratio()
        };
        let [none, one, two, all] =
            [&plans_of_jobs[..0], &plans_of_jobs[..1], &plans_of_jobs[..2], &plans_of_jobs[..]].map(ratio);
        assert!(one >= none - 0.01 && two >= one - 0.01 && all > two, "{share}: {none} {one} {two} {all}");
    }
}
