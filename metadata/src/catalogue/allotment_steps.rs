//! Steps of an allotment of a quota, over the groups of a catalogue or those of a simulation
//! (`allotment_simulation.rs`). What holds, also after a power failure, is in `allotments.rs`.

use super::groups::SYSTEM_GROUP;
use super::options::ProposeError;
use super::slice_shares::{NeedAt, grown, shares, sum};
use super::unexpected_reply::unreachable_reply;
use futures_util::future::join_all;
use mlgw_formats::command::{
    BeginAllotment, Change, NeededRoom, QuotaOwner, QuotaSubject, Reject, Reply, SetSlice,
};
use mlgw_formats::schema::{Excess, Measure, Quota, SliceState};
use std::collections::{BTreeMap, BTreeSet};

/// Most allotments in a row for one request: the usage of groups changes meanwhile, and another node may have
/// begun an allotment.
const ROUNDS_MAX: usize = 4;

/// The groups in which a quota counts.
pub(super) trait AllotmentGroups: Sync {
    /// The quota, as far as this node knows it. Called after the allotment has a number.
    fn quota(&self) -> Option<Quota>;

    /// All groups in which the quota counts.
    fn ids(&self) -> BTreeSet<u32>;

    /// Slice and usage of a group as this node knows them. May be old.
    fn known(&self, group: u32) -> SliceState;

    /// Proposes a step in a group.
    fn propose(&self, group: u32, change: Change)
    -> impl Future<Output = Result<Reply, ProposeError>> + Send;
}

/// Divides a quota, so that `needed` fits into the slice of its group.
///
/// # Errors
/// [`Reject::QuotaExceeded`] if the quota has no room for it; that of a group that did not take part, if its
/// slice would be needed; [`ProposeError::Overloaded`] if others took the room each time.
pub(super) async fn divide(
    groups: &impl AllotmentGroups,
    owner: &QuotaOwner,
    needed: Option<NeededRoom>,
) -> Result<(), ProposeError> {
    let ids = groups.ids();
    let mut known: States = ids.iter().map(|group| (*group, groups.known(*group))).collect();
    let (mut after, mut missing) = (0, None);
    for _ in 0..ROUNDS_MAX {
        let number = begin(groups, owner, after).await?;
        let Some(quota) = groups.quota() else { return Ok(()) };
        let allotment = Allotment { groups, owner, number, quota, needed, is_whole: missing.is_none() };
        let claimed = allotment.claim(&known).await;
        if let Some(later) = claimed.ended {
            after = later;
            continue;
        }
        let is_whole = missing.is_none() && claimed.failed.is_none();
        if is_whole && has_unused_excess(&quota, &claimed.states) {
            // The usage of a group has grown since it was read, so the slices of others fall further.
            known = claimed.states;
            continue;
        }
        let granted = allotment.grant(&claimed).await;
        let failed = claimed.failed.or(granted.failed);
        let mut states = claimed.states;
        states.extend(granted.states);
        let Some(needed) = needed else {
            return match (granted.ended, failed) {
                // The later allotment replaces this one.
                (Some(_), _) | (None, None) => Ok(()),
                (None, Some(error)) => Err(error),
            };
        };
        if states.get(&needed.group).is_some_and(|state| has_room(&quota, state, &needed)) {
            return Ok(());
        }
        if let Some(excess) = excess(&quota, &states, &needed).filter(|_| is_whole) {
            return Err(Reject::QuotaExceeded { of: subject(owner), excess }.into());
        }
        // The next one is among the groups that answered.
        missing = match (missing, failed) {
            (Some(error), _) => return Err(error),
            (None, Some(error)) if !states.contains_key(&needed.group) => return Err(error),
            (None, failed) => failed,
        };
        after = granted.ended.unwrap_or_default();
        known = states;
    }
    Err(ProposeError::Overloaded)
}

/// States of groups.
type States = BTreeMap<u32, SliceState>;

/// Returns the number of a new allotment, which is higher than `after`.
async fn begin(groups: &impl AllotmentGroups, owner: &QuotaOwner, after: u64) -> Result<u64, ProposeError> {
    let begin = BeginAllotment { owner: owner.clone(), after, needed: None };
    match groups.propose(SYSTEM_GROUP, Change::BeginAllotment(begin)).await? {
        Reply::Allotment { number } => Ok(number),
        other => unreachable_reply(&other),
    }
}

/// Returns true if a write fits into the slice of its group.
pub(super) fn has_room(quota: &Quota, state: &SliceState, needed: &NeededRoom) -> bool {
    let fits = |measure: Measure| {
        let slice = state.limits.limit(measure).or(quota.limit(measure)).unwrap_or(u64::MAX);
        let amount = needed.amount(measure);
        amount == 0 || state.used(measure).saturating_add(amount) <= slice
    };
    Measure::ALL.into_iter().all(fits)
}

/// Returns true if slices and usage together exceed a limit of the quota, and a slice has room.
fn has_unused_excess(quota: &Quota, states: &States) -> bool {
    Measure::ALL.into_iter().any(|measure| {
        let (held, used) = (held(states, measure), used(states, measure));
        let exceeds = quota.limit(measure).is_some_and(|limit| sum(&held) > limit);
        exceeds && held.iter().zip(&used).any(|(held, used)| held > used)
    })
}

/// Returns the limit of the whole quota that a write exceeds.
fn excess(quota: &Quota, states: &States, needed: &NeededRoom) -> Option<Excess> {
    Measure::ALL.into_iter().find_map(|measure| {
        let (limit, amount) = (quota.limit(measure)?, needed.amount(measure));
        let used = sum(&states.values().map(|state| state.used(measure)).collect::<Vec<_>>());
        (amount > 0 && used.saturating_add(amount) > limit).then_some(Excess { measure, limit, used })
    })
}

fn subject(owner: &QuotaOwner) -> QuotaSubject {
    match owner.bucket_id {
        0 => QuotaSubject::Key(owner.access_key.clone()),
        _ => QuotaSubject::Bucket,
    }
}

/// Phase of an allotment: slices fall first, and then they grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllotmentPhase {
    Claims,
    Grants,
}

/// One allotment.
struct Allotment<'g, G> {
    groups: &'g G,
    owner: &'g QuotaOwner,
    number: u64,
    quota: Quota,
    needed: Option<NeededRoom>,
    /// False for an allotment among some of the groups.
    is_whole: bool,
}

/// Answers of groups to a step of an allotment.
#[derive(Default)]
struct Answers {
    states: States,
    /// Limits of the slices before the step.
    before: BTreeMap<u32, Quota>,
    /// Highest number of a later allotment that a group takes part in.
    ended: Option<u64>,
    /// The failure in a group that did not answer.
    failed: Option<ProposeError>,
}

impl Answers {
    /// Returns the slices before the step. One that did not exist counts as the one after it.
    fn held_before(&self, measure: Measure) -> Vec<u64> {
        let slice = |(group, after): (&u32, &SliceState)| {
            let before = self.before.get(group).and_then(|before| before.limit(measure));
            before.or(after.limits.limit(measure)).unwrap_or_default()
        };
        self.states.iter().map(slice).collect()
    }
}

impl<G: AllotmentGroups> Allotment<'_, G> {
    /// Makes the groups take part: no slice grows by an earlier allotment any more. Slices fall to a share of
    /// what is left, by the known usage.
    async fn claim(&self, known: &States) -> Answers {
        let limits = self.by_group(known, |measure, limit| {
            let budget = if self.is_whole { limit } else { limit.min(sum(&held(known, measure))) };
            shares(budget, &used(known, measure), self.need(known, measure))
        });
        self.set(limits, AllotmentPhase::Claims).await
    }

    /// Raises the slices of the groups that take part. Without all groups these keep what they had together,
    /// because the others may have the rest.
    async fn grant(&self, claimed: &Answers) -> Answers {
        let states = &claimed.states;
        let slices = |measure: Measure, limit: u64| {
            let held = held(states, measure);
            let has_all = self.is_whole && claimed.failed.is_none();
            let budget = if has_all { limit } else { limit.min(sum(&claimed.held_before(measure))) };
            let (used, need) = (used(states, measure), self.need(states, measure));
            let grown = grown(budget, &held, &shares(budget, &used, need), need.map_or(0, |need| need.index));
            // A slice below its usage stays there without growth: it would take what others may have.
            let slice = |((grown, held), state): ((u64, u64), &SliceState)| match grown > held {
                true => grown,
                false => state.limits.limit(measure).unwrap_or(grown),
            };
            grown.into_iter().zip(held).zip(states.values()).map(slice).collect()
        };
        let mut limits = self.by_group(states, slices);
        limits.retain(|group, slice| grows(&states[group].limits, slice));
        self.set(limits, AllotmentPhase::Grants).await
    }

    /// Returns limits by group from the amounts of each quantity that the quota limits.
    fn by_group(&self, states: &States, slices: impl Fn(Measure, u64) -> Vec<u64>) -> BTreeMap<u32, Quota> {
        let of = |measure: Measure| self.quota.limit(measure).map(|limit| slices(measure, limit));
        let (bytes, objects) = (of(Measure::Bytes), of(Measure::Objects));
        let limits = |index: usize| {
            Quota::from_limits(|measure| match measure {
                Measure::Bytes => bytes.as_ref().map(|slices| slices[index]),
                Measure::Objects => objects.as_ref().map(|slices| slices[index]),
            })
        };
        states.keys().enumerate().map(|(index, group)| (*group, limits(index))).collect()
    }

    /// Returns the needed amount, at the index of its group.
    fn need(&self, states: &States, measure: Measure) -> Option<NeedAt> {
        let needed = self.needed?;
        let index = states.keys().position(|group| *group == needed.group)?;
        Some(NeedAt { index, amount: needed.amount(measure) })
    }

    /// Sets slices in all of these groups at once.
    async fn set(&self, limits: BTreeMap<u32, Quota>, phase: AllotmentPhase) -> Answers {
        let grows = phase == AllotmentPhase::Grants;
        let setting = limits.into_iter().map(|(group, slice)| async move {
            let set = SetSlice { owner: self.owner.clone(), allotment: self.number, slice, grows };
            (group, self.groups.propose(group, Change::SetSlice(set)).await)
        });
        let mut answers = Answers::default();
        for (group, outcome) in join_all(setting).await {
            match outcome {
                Ok(Reply::Slice { state, before }) => {
                    answers.states.insert(group, state);
                    answers.before.insert(group, before);
                }
                Ok(other) => unreachable_reply(&other),
                Err(ProposeError::Rejected(Reject::AllotmentEnded { allotment })) => {
                    answers.ended = answers.ended.max(Some(allotment));
                }
                Err(error) => answers.failed = Some(error),
            }
        }
        answers
    }
}

fn used(states: &States, measure: Measure) -> Vec<u64> {
    states.values().map(|state| state.used(measure)).collect()
}

/// Returns the slices, or the usage where that is higher. A group without a slice has the whole quota.
fn held(states: &States, measure: Measure) -> Vec<u64> {
    let slice = |state: &SliceState| state.limits.limit(measure).unwrap_or(u64::MAX);
    states.values().map(|state| slice(state).max(state.used(measure))).collect()
}

/// Returns true if a slice has a higher limit than before.
fn grows(before: &Quota, after: &Quota) -> bool {
    let grows =
        |measure: Measure| before.limit(measure).zip(after.limit(measure)).is_some_and(|(b, a)| b < a);
    Measure::ALL.into_iter().any(grows)
}
