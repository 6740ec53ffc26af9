//! Tests of the checkpoints of local buckets and of the rules on them.

use super::{
    CheckpointScan, ContainingCheckpoint, DeletionGuard, FactsWithCheckpoint, RetentionDemand,
    RetentionMatches, pin_newest, remove_missing,
};
use mlgw_policies::at_rest::{AreaRuleMatches, MoveAction, ResolvedActions, RuleArea, RuleMatch, RuleSource};
use mlgw_policies::checkpoints::{CheckpointIndex, Limits, WriteTime};
use mlgw_policies::language::{ActionRequest, Fact, Facts as _, NoFacts, Property, RetentionRequest, Target};
use std::collections::BTreeSet;
use std::time::Duration;

const NEVER: fn(u64, &str, &RuleSource) -> bool = |_, _, _| false;
const FILES: [&str; 2] = ["__0_0.distcp", ".metadata"];

const fn demand<'a>(
    by: &'a RuleSource,
    retain: &'a RetentionRequest,
    is_by_user: bool,
) -> RetentionDemand<'a> {
    RetentionDemand { by, retain, is_by_user }
}

fn key(step: u64, file: &str) -> String {
    format!("run/step-{step}/{file}")
}

/// Returns complete checkpoints of these steps, written in this order, and an incomplete one.
fn own(steps: &[u64]) -> CheckpointIndex {
    let steps = steps.iter().flat_map(|step| FILES.map(|file| key(*step, file)));
    let finding = found(steps.chain([key(9999, FILES[0])]));
    finding.finish(2000)
}

/// Scans objects that were written in this order, all within one millisecond, as a listing returns them.
fn found(keys: impl Iterator<Item = String>) -> CheckpointScan {
    let mut finding = CheckpointScan::new();
    let mut keys: Vec<_> = keys.zip(1..).collect();
    // A listing is in key order.
    keys.sort();
    for (key, seq) in &keys {
        assert!(finding.visit(1, key, WriteTime { seq: *seq, at_us: 5_000 }, 7));
    }
    assert!(!finding.visit(1, "train/0.tar", WriteTime::at(0), 7));
    finding
}

fn resolved_actions(areas: &AreaRuleMatches, step: u64) -> ResolvedActions {
    ResolvedActions::of(
        areas.of(1, &key(step, FILES[0]), None).map(|(_, claim)| claim),
        Duration::ZERO,
        |_| false,
    )
}

fn retain(keep_last: u32, keep_best: u32, delete: bool) -> RetentionRequest {
    RetentionRequest {
        keep_last,
        keep_best,
        best_by: "loss".into(),
        highest: false,
        keep_every: 0,
        delete,
        grace: Duration::from_secs(5),
    }
}

#[test]
fn the_newest_complete_checkpoints_are_pinned_in_whatever_order_they_are_found() {
    let own = own(&[500, 1000, 1500]);
    let mut areas = AreaRuleMatches::default();
    pin_newest(&own, 2, |bucket| bucket == 1, &mut areas);
    let is_pinned = |step| resolved_actions(&areas, step).pin.is_some();
    assert_eq!([500, 1000, 1500, 9999].map(is_pinned), [false, true, true, false]);
    let mut others = AreaRuleMatches::default();
    pin_newest(&own, 2, |bucket| bucket == 2, &mut others);
    assert!(others.is_empty());
    let fact = |step| {
        let (name, rest) = (key(step, FILES[0]), &NoFacts);
        let facts = FactsWithCheckpoint { checkpoint_facts: own.key_facts(1, &name), rest };
        match facts.fact(Property::CheckpointGeneration, "") {
            Some(Fact::Number(number)) => Some(number),
            _ => None,
        }
    };
    assert_eq!([500, 1500, 9999].map(fact), [Some(2.0), Some(0.0), None]);
}

#[test]
fn expired_checkpoints_are_spilled_and_deleted_only_by_a_rule_of_a_user() {
    let own = own(&[500, 1000, 1500, 2000]);
    let by = RuleSource { rank: 3, rule: "few".into() };
    let outcome = |retain: &RetentionRequest, by_person: bool, steps: &[u64]| {
        let (mut retained, mut areas) = (RetentionMatches::default(), AreaRuleMatches::default());
        for step in steps {
            let name = key(*step, FILES[0]);
            let one = own.group_of(1, &name).unwrap();
            let loss = (2500 - step).to_string();
            let one = ContainingCheckpoint::from(&one);
            retained.add_retention_match(
                &one,
                &name,
                &Target::Object,
                demand(&by, retain, by_person),
                Some(&loss),
            );
        }
        let deletions = retained.expire(&own, &mut areas, &NEVER);
        let down =
            |step: &u64| matches!(resolved_actions(&areas, *step).tier, Some(MoveAction::Spill { .. }));
        let down: Vec<u64> = steps.iter().copied().filter(down).collect();
        (down, deletions.into_iter().map(|one| (one.prefix, one.files, one.bytes)).collect::<Vec<_>>())
    };
    let all = [500, 1000, 1500, 2000, 9999];
    assert_eq!(outcome(&retain(2, 0, false), true, &all), (vec![500, 1000], vec![]));
    assert_eq!(outcome(&retain(2, 0, true), false, &all), (vec![500, 1000], vec![]), "of the server");
    let (down, deletions) = outcome(&retain(3, 0, true), true, &all);
    assert_eq!((down, deletions), (vec![500], vec![("run/step-500/".to_owned(), 2, 14)]));
    assert_eq!(outcome(&retain(1, 2, false), true, &all).0, [500, 1000], "the best two stay");
    assert_eq!(outcome(&retain(1, 0, true), true, &[1000]).1.len(), 1, "only what the rule matches");
}

#[test]
fn the_strongest_rule_on_a_run_applies() {
    let own = own(&[500, 1000, 1500]);
    let (strong, weak) =
        (RuleSource { rank: 1, rule: "strong".into() }, RuleSource { rank: 2, rule: "weak".into() });
    let mut retained = RetentionMatches::default();
    for by in [&weak, &strong, &weak] {
        for step in [500, 1000, 1500] {
            let name = key(step, FILES[0]);
            let keep = if by.rank == 1 { retain(2, 0, true) } else { retain(1, 0, true) };
            let one = own.group_of(1, &name).unwrap();
            retained.add_retention_match(
                &ContainingCheckpoint::from(&one),
                &name,
                &Target::Object,
                demand(by, &keep, true),
                None,
            );
        }
    }
    let deletions = retained.expire(&own, &mut AreaRuleMatches::default(), &NEVER);
    assert_eq!(
        deletions.iter().map(|one| (&*one.rule, &*one.prefix)).collect::<Vec<_>>(),
        [("strong", "run/step-500/")]
    );
}

#[test]
fn the_oldest_checkpoint_of_each_run_is_deleted_first() {
    let keys = ["a", "b"].map(|run| {
        [100, 200, 300]
            .map(|step| FILES.map(|file| format!("{run}/step-{step}/{file}")))
            .into_iter()
            .flatten()
    });
    let keys: Vec<String> = keys.into_iter().flatten().collect();
    let own = found(keys.iter().cloned()).finish(2000);
    let (by, keep) = (RuleSource { rank: 1, rule: "r".into() }, retain(1, 0, true));
    let mut retained = RetentionMatches::default();
    for key in &keys {
        let one = ContainingCheckpoint::from(&own.group_of(1, key).unwrap());
        retained.add_retention_match(&one, key, &Target::Object, demand(&by, &keep, true), None);
    }
    let expired = retained.expire(&own, &mut AreaRuleMatches::default(), &NEVER);
    assert_eq!(
        expired.iter().map(|one| &*one.prefix).collect::<Vec<_>>(),
        ["a/step-100/", "b/step-100/", "a/step-200/", "b/step-200/"]
    );
}

#[test]
fn partly_matched_checkpoints_and_unmeasured_ones_under_keep_best_are_not_deleted() {
    let files = ["model.safetensors", "optimizer.pt", "trainer_state.json"];
    let all: Vec<String> = [100, 200, 300]
        .iter()
        .flat_map(|step| files.map(|file| format!("o/checkpoint-{step}/{file}")))
        .collect();
    let own = found(all.iter().cloned()).finish(2000);
    let by = RuleSource { rank: 1, rule: "r".into() };
    let stays = |keep: &RetentionRequest, is_matched: &dyn Fn(&str) -> bool, measured: &[u32]| {
        let mut retained = RetentionMatches::default();
        for key in all.iter().filter(|key| is_matched(key)) {
            let measure = measured.iter().find(|step| key.contains(&format!("-{step}/")));
            let measure = measure.map(ToString::to_string);
            let one = ContainingCheckpoint::from(&own.group_of(1, key).unwrap());
            // A rule may match one object twice.
            for _ in 0..2 {
                retained.add_retention_match(
                    &one,
                    key,
                    &Target::Object,
                    demand(&by, keep, true),
                    measure.as_deref(),
                );
            }
        }
        let expired = retained.expire(&own, &mut AreaRuleMatches::default(), &NEVER);
        expired.into_iter().map(|one| (one.prefix, one.guards)).collect::<Vec<_>>()
    };
    let [first, second] = ["o/checkpoint-100/", "o/checkpoint-200/"].map(str::to_owned);
    let (last, best) = (retain(1, 0, true), retain(1, 1, true));
    let is_first = |key: &str| key.starts_with("o/checkpoint-100/");
    for (keep, is_matched, measured, expected) in [
        (
            &last,
            &(|_: &str| true) as &dyn Fn(&str) -> bool,
            &[][..],
            vec![(first.clone(), vec![]), (second.clone(), vec![])],
        ),
        // Text files need not be matched.
        (&last, &|key| !key.ends_with("json"), &[], vec![(first.clone(), vec![]), (second.clone(), vec![])]),
        // Guarded checkpoints come last.
        (
            &last,
            &|key| !is_first(key) || !key.ends_with("/model.safetensors"),
            &[],
            vec![(second.clone(), vec![]), (first.clone(), vec![DeletionGuard::PartlyMatched])],
        ),
        (&best, &|_| true, &[100, 200, 300], vec![(second.clone(), vec![])]),
        (&best, &|_| true, &[100, 300], vec![(second.clone(), vec![DeletionGuard::NoMeasure])]),
        (
            &best,
            &|_| true,
            &[],
            vec![
                (first.clone(), vec![DeletionGuard::NoMeasure]),
                (second.clone(), vec![DeletionGuard::NoMeasure]),
            ],
        ),
    ] {
        assert_eq!(stays(keep, is_matched, measured), expected);
    }
}

#[test]
fn a_rule_on_a_prefix_expires_only_checkpoints_under_the_prefix() {
    let own = own(&[500, 1000, 1500]);
    let (by, keep) = (RuleSource { rank: 1, rule: "r".into() }, retain(1, 0, true));
    let mut retained = RetentionMatches::default();
    for step in [500, 1000, 1500] {
        let name = key(step, FILES[0]);
        let one = own.group_of(1, &name).unwrap();
        let target = Target::Prefix("run/step-10".into());
        retained.add_retention_match(
            &ContainingCheckpoint::from(&one),
            &name,
            &target,
            demand(&by, &keep, true),
            None,
        );
    }
    let expired = retained.expire(&own, &mut AreaRuleMatches::default(), &NEVER);
    assert_eq!(expired.iter().map(|one| &*one.prefix).collect::<Vec<_>>(), ["run/step-1000/"]);
}

#[test]
fn a_checkpoint_pinned_by_a_stronger_rule_stays() {
    let own = own(&[500, 1000, 1500]);
    let (by, keep) = (RuleSource { rank: 5, rule: "few".into() }, retain(1, 0, true));
    let goes = |area: Option<(RuleArea, usize)>, is_over: bool| {
        let (mut retained, mut areas) = (RetentionMatches::default(), AreaRuleMatches::default());
        for step in [500, 1000, 1500] {
            let name = key(step, FILES[0]);
            let one = ContainingCheckpoint::from(&own.group_of(1, &name).unwrap());
            retained.add_retention_match(&one, &name, &Target::Object, demand(&by, &keep, true), None);
            retained.add_dataset(&one, &format!("of-{step}"));
        }
        if let Some((area, rank)) = area {
            let request = ActionRequest::Pin { period: None, bytes_max: None };
            areas.add(area, RuleMatch { by: RuleSource { rank, rule: "pins".into() }, request });
        }
        let deletions = retained.expire(&own, &mut areas, &|_, _, _| is_over);
        deletions.into_iter().map(|one| one.prefix).collect::<Vec<_>>()
    };
    let (five, ten) = ("run/step-500/", "run/step-1000/");
    assert_eq!(goes(None, false), [five, ten]);
    for (area, stays) in [
        (RuleArea::Prefix(1, "run/step-500/.meta".into()), five),
        (RuleArea::Prefix(1, "run/step-1".into()), ten),
        (RuleArea::Checkpoint(1, five.into()), five),
        (RuleArea::Dataset(1, "of-500".into()), five),
    ] {
        let other = if stays == five { ten } else { five };
        assert_eq!(goes(Some((area.clone(), 1)), false), [other], "{area}");
        assert_eq!(goes(Some((area.clone(), 9)), false), [five, ten], "{area} of a weaker rule");
        assert_eq!(goes(Some((area, 1)), true), [five, ten], "the pin has expired");
    }
    assert_eq!(goes(Some((RuleArea::Prefix(2, "run/".into()), 1)), false), [five, ten], "elsewhere");
}

#[test]
fn checkpoints_of_own_buckets_that_no_longer_exist_are_removed() {
    let own = own(&[1000]);
    let mut tracked = CheckpointIndex::new(Limits::default());
    for (bucket, step, at) in [(1, 500, 5), (1, 1000, 6), (1, 2000, 50), (2, 500, 5)] {
        tracked.record_write(at, bucket, &key(step, FILES[0]), 7);
    }
    remove_missing(&mut tracked, &own, &BTreeSet::from([1]), 20);
    let is_known = |bucket, step| tracked.group_of(bucket, &key(step, FILES[0])).is_some();
    assert_eq!([is_known(1, 500), is_known(1, 1000)], [false, true]);
    assert!(is_known(1, 2000) && is_known(2, 500), "new objects, and those elsewhere");
}
