//! Tests of bodies that leave the hot tier because of a rule: in whole segments, and in segments shared with
//! bodies that stay.

use super::bench::{Bench, BenchOptions};
use super::placing::{filled, reads_back, run_order};
use super::*;
use crate::decisions::DecisionFilter;
use crate::hot::{PlacingOrder, RuleSpill};
use mlgw_common::SegmentTier;
use mlgw_formats::decision_entry::RuleName;
use mlgw_formats::decision_words::{DecisionKind, DecisionReason};
use mlgw_formats::schema::SegmentState;
use std::collections::{BTreeSet, HashSet};

/// Returns the spill of these objects: their bodies, with all segments that contain them.
fn leaving(bench: &Bench, objects: &[(String, BodyId, usize)]) -> RuleSpill {
    let segments: BTreeSet<SegmentId> = objects.iter().flat_map(|one| segments_of(bench, &one.0)).collect();
    RuleSpill {
        segments: segments.into_iter().collect(),
        bodies: Arc::new(objects.iter().map(|one| one.1).collect()),
        rule: RuleName::new("down"),
    }
}

fn segments_of(bench: &Bench, object: &str) -> Vec<SegmentId> {
    bench.extents(object).iter().map(mlgw_formats::schema::Extent::segment_id).collect()
}

fn tier_of(bench: &Bench, object: &str) -> SegmentTier {
    let tiers: HashSet<SegmentTier> = segments_of(bench, object)
        .into_iter()
        .map(|segment| bench.catalogue.segment(segment).unwrap().tier)
        .collect();
    assert_eq!(tiers.len(), 1, "{object} is in several tiers");
    tiers.into_iter().next().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_bodies_are_gathered_and_spilled_without_staying_ones() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    let goes: Vec<_> = objects.iter().step_by(5).cloned().collect();
    run_order(&bench, PlacingOrder::Gather(leaving(&bench, &goes))).await;
    let gathered = leaving(&bench, &goes);
    for segment in &gathered.segments {
        assert_eq!(bench.catalogue.segment(*segment).unwrap().state, SegmentState::Sealed);
        let others = objects.iter().filter(|one| !goes.contains(one));
        assert!(others.clone().all(|one| !segments_of(&bench, &one.0).contains(segment)), "{segment}");
    }
    assert!(objects.iter().all(|one| tier_of(&bench, &one.0) == SegmentTier::Hot));
    run_order(&bench, PlacingOrder::Spill { leaving: gathered, to_upstream: false }).await;
    for one in &objects {
        assert_eq!(
            tier_of(&bench, &one.0),
            if goes.contains(one) { SegmentTier::Cold } else { SegmentTier::Hot },
            "{}",
            one.0
        );
    }
    reads_back(&bench, &objects).await;
    let wanted = |kind| DecisionFilter { limit: 100, kind: Some(kind), bucket: None };
    let why = |kind| bench.tier.inner.decisions.list(wanted(kind)).into_iter().map(|e| (e.reason, e.rule));
    let by_rule = |(reason, rule)| reason == DecisionReason::Rule && rule == "down";
    assert!(why(DecisionKind::Spill).len() > 0 && why(DecisionKind::Spill).all(by_rule));
    // The rest of the emptied segments is compacted too, which is not attributed to the rule.
    assert!(
        why(DecisionKind::Relocate).any(by_rule),
        "{:?}",
        why(DecisionKind::Relocate).collect::<Vec<_>>()
    );
    let bench = bench.reopen().await;
    reads_back(&bench, &objects).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn staying_bodies_are_moved_out_of_spilled_segments_and_open_ones_are_sealed() {
    let bench = Bench::new().await;
    let mut objects = Vec::new();
    for n in 0..10 {
        let (name, length) = (format!("object-{n}"), 20_000);
        objects.push((name.clone(), bench.put(&name, length).await, length));
    }
    let is_open = |object: &str| {
        let segment = segments_of(&bench, object)[0];
        bench.catalogue.segment(segment).unwrap().state == SegmentState::Open
    };
    assert!(is_open("object-9"));
    let stays = objects.pop().unwrap();
    run_order(&bench, PlacingOrder::Spill { leaving: leaving(&bench, &objects), to_upstream: false }).await;
    assert_eq!(tier_of(&bench, &stays.0), SegmentTier::Hot);
    assert!(objects.iter().all(|one| tier_of(&bench, &one.0) == SegmentTier::Cold));
    reads_back(&bench, &objects).await;
    reads_back(&bench, &[stays]).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_segment_is_not_spilled_until_it_is_unpinned() {
    let (bench, objects) = filled(BenchOptions::default()).await;
    let all = leaving(&bench, &objects);
    let kept: HashSet<SegmentId> = segments_of(&bench, &objects[3].0).into_iter().collect();
    bench.tier.set_pinned(kept.clone());
    run_order(&bench, PlacingOrder::Spill { leaving: all.clone(), to_upstream: false }).await;
    let tier = |segment: &SegmentId| bench.catalogue.segment(*segment).unwrap().tier;
    for segment in &all.segments {
        assert_eq!(
            tier(segment),
            if kept.contains(segment) { SegmentTier::Hot } else { SegmentTier::Cold },
            "{segment}"
        );
    }
    bench.tier.set_pinned(HashSet::new());
    run_order(&bench, PlacingOrder::Spill { leaving: all.clone(), to_upstream: false }).await;
    assert!(all.segments.iter().all(|segment| tier(segment) == SegmentTier::Cold));
    reads_back(&bench, &objects).await;
    bench.close().await;
}
