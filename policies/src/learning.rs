//! Learning: bounds that are adjusted slowly by measured outcomes, with every change reported.
//!
//! Two kinds of bounds are learned: the maximum number of blocks that are read ahead (`prefetch_depth`), and
//! the number of reads from which a rule with `intelligent_cache` keeps a copy (`min_reads`). Too many unused
//! read-ahead blocks or unread copies make a bound more careful; readers that had to wait, or read bypassed
//! blocks again, make it bolder. Invariant: a bound moves only on enough evidence that is newer than its last
//! move, by at most the setting `learning_step_max` per day, and stays within its range. A changed rule or
//! setting restarts its bound. The learned values ([`LearnedBounds`]) are plain data: their history is kept
//! by the component that stores them.

use crate::engine::ReadAheadOutcome;
use crate::language::{ActionRequest, Program, Setting};
use crate::learned_bounds::{LearnedBound, LearnedBounds};
use crate::outcomes::{CopyOutcomes, CopyTally};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Minimum blocks that count as evidence.
const BLOCKS_MIN: u64 = 100;
/// The depth is reduced above `WASTED_SHARE` of unused blocks, and increased above `LATE_SHARE` of late
/// blocks if fewer than `LITTLE_WASTED_SHARE` were unused.
const WASTED_SHARE: f64 = 0.10;
const LATE_SHARE: f64 = 0.10;
const LITTLE_WASTED_SHARE: f64 = 0.05;
/// The same for copies, which cost less than unused fetches.
const UNREAD_SHARE: f64 = 0.5;
const AGAIN_SHARE: f64 = 0.5;
const FEW_SHARE: f64 = 0.1;
/// A bound of a rule stays within this multiple of the written value.
const TIMES_MAX: f64 = 4.0;
const DAY_MS: i64 = 86_400_000;
/// Maximum blocks that are read ahead of one stream before anything is learned.
const PREFETCH_DEPTH: u32 = 64;

/// Measurements since the start.
#[derive(Clone, Copy)]
pub struct LearningEvidence<'a> {
    /// Time, in milliseconds since 1970.
    pub now_ms: i64,
    /// Outcomes of read-ahead blocks, indexed by [`ReadAheadOutcome`].
    pub ahead: [u64; 5],
    /// Outcomes of copies.
    pub outcomes: &'a CopyOutcomes,
}

/// Result of a review.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningChange {
    /// All learned values, including the changes.
    pub learnt: LearnedBounds,
    /// The bounds that moved, their old and new values and the evidence, in one sentence.
    pub changes: String,
}

/// Learner; see the module. It remembers which evidence it has used.
#[derive(Debug, Default)]
pub struct Learner {
    ahead: [u64; 5],
    tallies: HashMap<Box<str>, CopyTally>,
}

/// Direction in which a bound is to move, and the reason.
struct BoundMove {
    up: bool,
    why: String,
}

impl Learner {
    /// Reviews the measurements since the last review. Returns the changes to learn, if any.
    pub fn review(&mut self, program: &Program, evidence: &LearningEvidence<'_>) -> Option<LearningChange> {
        let (mut learnt, mut changes) = (program.learnt().clone(), String::new());
        if let Some(found) = self.review_read_ahead(evidence) {
            let settings = program.settings();
            let range = settings.size(Setting::PrefetchDepthMin)..=settings.size(Setting::PrefetchDepthMax);
            let from = f64::from(settings.depth_within(PREFETCH_DEPTH));
            let before = bound_or_initial(learnt.prefetch_depth, from);
            if let Some(bound) = moved_bound(before, &found, step(program), range, evidence.now_ms) {
                describe_change(&mut changes, "prefetch_depth", before.value, bound.value, &found.why);
                learnt.prefetch_depth = Some(bound);
            }
        }
        for (rule, from) in rules_with_bounds(program) {
            let Some(found) = self.review_rule(rule, evidence) else { continue };
            let before = bound_or_initial(learnt.min_reads.get(rule).copied(), from);
            let range = 1.0..=from * TIMES_MAX;
            if let Some(bound) = moved_bound(before, &found, step(program), range, evidence.now_ms) {
                let what = format!("min_reads of rule {rule}");
                describe_change(&mut changes, &what, before.value, bound.value, &found.why);
                learnt.min_reads.insert(rule.into(), bound);
            }
        }
        let known: Vec<&str> = rules_with_bounds(program).map(|(rule, _)| rule).collect();
        learnt.min_reads.retain(|rule, _| known.contains(&&**rule));
        (!changes.is_empty()).then_some(LearningChange { learnt, changes })
    }

    fn review_read_ahead(&mut self, evidence: &LearningEvidence<'_>) -> Option<BoundMove> {
        let of = |outcome: ReadAheadOutcome| evidence.ahead[outcome as usize] - self.ahead[outcome as usize];
        let [used, late] = [ReadAheadOutcome::Used, ReadAheadOutcome::Late].map(of);
        // A request for an absent key is waste as well.
        let wasted = of(ReadAheadOutcome::Wasted) + of(ReadAheadOutcome::Absent);
        let all = used + late + wasted;
        if all < BLOCKS_MIN {
            return None;
        }
        self.ahead = evidence.ahead;
        let share = |part: u64| part as f64 / all as f64;
        if share(wasted) > WASTED_SHARE {
            let why = format!("of {all} blocks read ahead, {wasted} were never requested");
            return Some(BoundMove { up: false, why });
        }
        let why =
            format!("of {all} blocks read ahead, {late} arrived late and {wasted} were never requested");
        (share(late) > LATE_SHARE && share(wasted) < LITTLE_WASTED_SHARE)
            .then_some(BoundMove { up: true, why })
    }

    fn review_rule(&mut self, rule: &str, evidence: &LearningEvidence<'_>) -> Option<BoundMove> {
        let (_, now) = evidence.outcomes.tallies().find(|(of, _)| *of == rule)?;
        let before = self.tallies.get(rule).copied().unwrap_or_default();
        let kept = now.kept.blocks - before.kept.blocks;
        let wasted = now.wasted.blocks - before.wasted.blocks;
        let again = now.passed_again.blocks - before.passed_again.blocks;
        if kept + again < BLOCKS_MIN {
            return None;
        }
        self.tallies.insert(rule.into(), *now);
        if wasted as f64 > UNREAD_SHARE * kept as f64 {
            let why = format!("of {kept} copies, {wasted} were evicted before any read");
            return Some(BoundMove { up: true, why });
        }
        let is_too_careful = again as f64 > AGAIN_SHARE * (kept + again) as f64;
        let why = format!(
            "{again} blocks were requested again after they were not kept, and {wasted} of {kept} copies \
                were evicted unread"
        );
        (is_too_careful && wasted as f64 <= FEW_SHARE * kept as f64).then_some(BoundMove { up: false, why })
    }
}

/// Returns the rules with a bound, and their written values.
fn rules_with_bounds(program: &Program) -> impl Iterator<Item = (&str, f64)> {
    let written = |request: &ActionRequest| match request {
        ActionRequest::Copy { keep: true, min_reads, .. } if *min_reads > 1 => Some(f64::from(*min_reads)),
        _ => None,
    };
    program.rules().iter().filter_map(move |rule| {
        let found = rule.actions().find_map(|(_, request)| written(request))?;
        Some((&*rule.rule.id, found))
    })
}

/// Returns a bound in its current or initial state.
fn bound_or_initial(bound: Option<LearnedBound>, from: f64) -> LearnedBound {
    let holds = bound.filter(|bound| same(bound.written, from));
    holds.unwrap_or(LearnedBound { value: from, written: from, day_ms: i64::MIN, day_value: from })
}

fn step(program: &Program) -> f64 {
    program.settings().size(Setting::LearningStepMax) / 100.0
}

/// Returns the bound after a move of half a day's step; `None` once the day's step is used up.
fn moved_bound(
    before: LearnedBound,
    found: &BoundMove,
    step: f64,
    range: std::ops::RangeInclusive<f64>,
    now_ms: i64,
) -> Option<LearnedBound> {
    let is_new_day = now_ms.saturating_sub(before.day_ms) >= DAY_MS;
    let (day_ms, day_value) =
        if is_new_day { (now_ms, before.value) } else { (before.day_ms, before.day_value) };
    let target = before.value * if found.up { 1.0 + step / 2.0 } else { 1.0 - step / 2.0 };
    let value = target
        .clamp(day_value * (1.0 - step), day_value * (1.0 + step))
        .clamp(*range.start(), range.end().max(*range.start()));
    (!same(value, before.value)).then_some(LearnedBound { value, written: before.written, day_ms, day_value })
}

fn same(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-6
}

fn describe_change(changes: &mut String, what: &str, before: f64, after: f64, why: &str) {
    let between = if changes.is_empty() { "" } else { "; " };
    // Writing to a string does not fail.
    let _ = write!(changes, "{between}{what} {before:.2} -> {after:.2}, because {why}");
}

impl Program {
    /// Returns the maximum blocks that are read ahead of one stream, where no rule sets it.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the settings limit the value"
    )]
    pub fn prefetch_depth(&self) -> u32 {
        let from = self.settings().depth_within(PREFETCH_DEPTH);
        let bound = bound_or_initial(self.learnt().prefetch_depth, f64::from(from));
        self.settings().depth_within(bound.value.round() as u32)
    }

    /// Returns the number of reads from which a rule with this written value keeps copies.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range limits the value")]
    pub fn min_reads(&self, rule: &str, written: u32) -> u32 {
        let bound = self.learnt().min_reads.get(rule).copied();
        bound_or_initial(bound, f64::from(written)).value.round() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::{DAY_MS, LearnedBound, LearnedBounds, Learner, LearningEvidence};
    use crate::engine::Advice::{Bypass, Keep};
    use crate::language::{ParsedPolicy, Program};
    use crate::outcomes::CopyOutcomes;
    use proptest::{collection::vec, prop_assert, proptest};

    const RULE: &str = "
version: 1
rules:
- id: twice
  conditions: [{type: file_pattern, property: name, operator: matches, value: '*'}]
  actions: [{type: intelligent_cache, parameters: {min_reads: 2}}]
";

    fn program(text: &str) -> Program {
        Program::compile_above_built_in(&[ParsedPolicy::parse("p.yaml", text).unwrap()]).unwrap()
    }

    fn evidence(now_ms: i64, ahead: [u64; 5], outcomes: &CopyOutcomes) -> LearningEvidence<'_> {
        LearningEvidence { now_ms, ahead, outcomes }
    }

    #[test]
    fn unused_read_ahead_reduces_the_depth_and_late_blocks_increase_it() {
        let (program, outcomes) = (program("version: 1"), CopyOutcomes::default());
        let learnt = |ahead| Learner::default().review(&program, &evidence(0, ahead, &outcomes));
        assert_eq!(learnt([50, 0, 31, 9, 9]), None, "too little evidence");
        assert_eq!(learnt([500, 10, 20, 0, 0]), None, "all is well");
        let less = learnt([500, 10, 100, 0, 0]).unwrap();
        assert_eq!(less.learnt.prefetch_depth.map(|bound| bound.value), Some(57.6));
        assert_eq!(
            less.changes,
            "prefetch_depth 64.00 -> 57.60, because of 610 blocks read ahead, 100 were never requested"
        );
        assert_eq!(learnt([500, 100, 10, 0, 0]), None, "more than the setting allows is not to be had");
        let held = program.clone().with_learnt(less.learnt);
        assert_eq!((program.prefetch_depth(), held.prefetch_depth()), (64, 58));
        let more = Learner::default().review(&held, &evidence(0, [500, 100, 10, 0, 0], &outcomes)).unwrap();
        assert!((more.learnt.prefetch_depth.unwrap().value - 63.36).abs() < 1e-9, "{more:?}");
    }

    #[test]
    fn the_same_evidence_counts_once() {
        let (program, outcomes) = (program("version: 1"), CopyOutcomes::default());
        let mut learner = Learner::default();
        let mut review = |program: &Program, ahead| learner.review(program, &evidence(0, ahead, &outcomes));
        let first = review(&program, [0, 0, 200, 0, 0]).unwrap();
        let held = program.clone().with_learnt(first.learnt);
        assert_eq!(review(&held, [0, 0, 200, 0, 0]), None);
        assert!(review(&held, [0, 0, 400, 0, 0]).is_some());
    }

    #[test]
    fn unread_copies_make_a_rule_more_careful_and_repeated_reads_bolder() {
        let program = program(RULE);
        let mut outcomes = CopyOutcomes::default();
        let twice = outcomes.cause("twice");
        for id in 1..=200_u64 {
            outcomes.read(id, 10, Keep, twice);
            outcomes.evicted(id);
        }
        let careful = Learner::default().review(&program, &evidence(0, [0; 5], &outcomes)).unwrap();
        assert_eq!(careful.learnt.min_reads["twice"].value, 2.2);
        assert_eq!(
            careful.changes,
            "min_reads of rule twice 2.00 -> 2.20, because of 200 copies, 200 were evicted before any read"
        );
        let mut outcomes = CopyOutcomes::default();
        let twice = outcomes.cause("twice");
        for id in 1..=200_u64 {
            outcomes.read(id, 10, Bypass, twice);
            outcomes.read(id, 10, Bypass, twice);
        }
        let bolder = Learner::default().review(&program, &evidence(0, [0; 5], &outcomes)).unwrap();
        assert_eq!(bolder.learnt.min_reads["twice"].value, 1.8);
    }

    #[test]
    fn a_changed_rule_restarts_its_bound() {
        let mut learnt = LearnedBounds::default();
        learnt
            .min_reads
            .insert("twice".into(), LearnedBound { value: 3.4, written: 2.0, day_ms: 0, day_value: 3.0 });
        let held = program(RULE).with_learnt(learnt);
        assert_eq!(
            (held.min_reads("twice", 2), held.min_reads("twice", 5), held.min_reads("x", 2)),
            (3, 5, 2)
        );
    }

    proptest! {
        #[test]
        fn no_bound_moves_by_more_in_a_day_than_the_setting_says_or_out_of_its_range(
            steps in vec((0..DAY_MS / 2, proptest::bool::ANY), 1..60),
        ) {
            let mut program = program("version: 1\nsettings: {prefetch_depth_min: 8}");
            let outcomes = CopyOutcomes::default();
            let (mut learner, mut now_ms, mut ahead) = (Learner::default(), 0, [0; 5]);
            let mut values: Vec<(i64, f64)> = vec![(0, 64.0)];
            for (wait_ms, is_wasted) in steps {
                now_ms += wait_ms;
                ahead[if is_wasted { 2 } else { 1 }] += 200;
                let Some(change) = learner.review(&program, &evidence(now_ms, ahead, &outcomes)) else {
                    continue;
                };
                let value = change.learnt.prefetch_depth.unwrap().value;
                prop_assert!((8.0..=64.0).contains(&value));
                values.push((now_ms, value));
                program = program.with_learnt(change.learnt);
                let day = program.learnt().prefetch_depth.unwrap();
                let since = values.iter().filter(|(at_ms, _)| *at_ms >= day.day_ms);
                for (_, value) in since {
                    prop_assert!((value / day.day_value - 1.0).abs() <= 0.2 + 1e-9, "{values:?}");
                }
            }
        }
    }
}
