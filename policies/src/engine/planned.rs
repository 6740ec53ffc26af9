//! Access plans of clients: the time of the next read of a block follows from the plan and need not be
//! estimated.
//!
//! A kept block of a plan is in no group and no queue but in a heap, ordered by the earliest expected read by
//! any job that follows a plan. The block with the latest read is evicted first (Belady); its worth is
//! comparable to all others: one over the time until the read.
//!
//! Invariants: a plan counts only while its job reads as it predicts ([`follower`]); a block that no plan
//! mentions any more returns to the group of its readers, as if there had been no plan. No step processes all
//! blocks: each planned read examines a few. A planned key takes about 34 bytes plus its name; plans that
//! name the same keys share 18 of these bytes and the names. A kept block of a plan takes 24 bytes more than
//! another.

mod epoch_order;
mod follower;
mod heap;
mod key_index;
#[cfg(test)]
mod tests;

use super::job::ReadForecast;
use super::slot::Slot;
use super::table::{BlockTable, EntryState};
use crate::access::Caller;
use crate::plan::Plan;
use follower::Follower;
use heap::PlannedHeap;
use key_index::PlanKeyIndex;
use thiserror::Error;

/// Maximum number of plans.
pub const PLANS_MAX: usize = 64;
/// Maximum number of distinct lists of keys; a block is looked up in each.
pub const LISTS_MAX: usize = 16;
/// Kept blocks whose expected read is updated per planned read.
const UPDATES_PER_READ: usize = 2;

/// An object, by the id of its first block, and its expected read according to plans.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanDue {
    pub(super) object: u64,
    pub(super) at_us: u64,
}

/// Readers that follow a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanReaders {
    /// A single caller.
    Caller(u64),
    /// All callers of a family.
    Family(u64),
    /// All callers of the families that were added ([`super::CacheEngine::add_family`]); none at first.
    Families,
}

/// Maximum families that may follow one plan; beyond it the oldest is dropped.
const FAMILIES_MAX: usize = 64;

/// A plan in the form that the engine accepts quickly. Building it takes time per key and needs no engine.
pub struct ReadyPlan {
    follower: Follower,
    plan: Plan,
    key_index: PlanKeyIndex,
}

impl ReadyPlan {
    /// Returns plan number `number` for the reads of `who` in a bucket; `seed` is the seed of the engine's
    /// block ids.
    #[must_use]
    pub fn new(seed: u64, number: u64, who: PlanReaders, bucket: u64, plan: Plan) -> Self {
        let named = PlanKeyIndex::new(seed, bucket, std::sync::Arc::clone(&plan.keys));
        Self { follower: Follower::new(number, who, 0, &plan), plan, key_index: named }
    }
}

/// The limit of plans is reached.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the limit of {PLANS_MAX} plans or {LISTS_MAX} different key lists is reached: drop a plan")]
pub struct TooManyPlans;

/// Progress of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanProgress {
    /// True if the client reads as predicted, so that the plan counts.
    pub is_trusted: bool,
    /// Current epoch.
    pub epoch: u32,
    /// Keys of the epoch that have been read or skipped.
    pub read: u32,
    /// Keys of the epoch.
    pub keys: u32,
}

/// All plans, and the blocks that are kept because of them.
#[derive(Default)]
pub(super) struct Plans {
    /// Key lists by number; a free one is used by no plan.
    lists: Vec<PlanKeyIndex>,
    followers: Vec<Follower>,
    pub(super) heap: PlannedHeap,
    hand: usize,
}

impl Plans {
    /// Adds a plan, replacing the plan with the same number. It shares the list of another plan with the same
    /// keys.
    pub(super) fn add_plan(&mut self, ready: ReadyPlan, seed: u64) -> Result<(), TooManyPlans> {
        let ReadyPlan { mut follower, plan, key_index: named } = ready;
        let Follower { number, who, .. } = follower;
        let others = self.followers.iter().filter(|follower| follower.number != number).count();
        let shared =
            self.lists.iter().enumerate().find_map(|(at, list)| {
                list.with_shared_keys(seed, named.bucket, &plan).map(|plan| (at, plan))
            });
        let is_unused = |list: &usize| {
            self.followers
                .iter()
                .filter(|follower| follower.number != number)
                .all(|other| other.list != *list)
        };
        let free = (0..LISTS_MAX).find(is_unused);
        if others == PLANS_MAX || shared.is_none() && free.is_none() {
            return Err(TooManyPlans);
        }
        let list = match shared {
            Some((list, shared)) => {
                follower = Follower::new(number, who, list, &shared);
                self.drop_plan(number);
                // The replaced plan may have been the only one with that list.
                if !self.lists[list].has_keys(named.bucket, shared.keys()) {
                    self.lists[list] =
                        PlanKeyIndex::new(seed, named.bucket, std::sync::Arc::clone(&shared.keys));
                }
                list
            }
            None => {
                let list = free.unwrap_or_default();
                self.drop_plan(number);
                self.lists.resize_with(self.lists.len().max(list + 1), PlanKeyIndex::default);
                self.lists[list] = named;
                list
            }
        };
        follower.list = list;
        self.followers.push(follower);
        assert!(self.followers.len() <= PLANS_MAX && self.lists.len() <= LISTS_MAX, "plans are limited");
        Ok(())
    }

    /// Lets another family follow a plan.
    pub(super) fn add_family(&mut self, number: u64, family: u64) {
        let follower = self.followers.iter_mut().find(|follower| follower.number == number);
        let Some(follower) = follower.filter(|follower| !follower.families.contains(&family)) else { return };
        if follower.families.len() >= FAMILIES_MAX {
            follower.families.remove(0);
        }
        follower.families.push(family);
    }

    /// Forgets a plan. Returns true if it existed.
    pub(super) fn drop_plan(&mut self, number: u64) -> bool {
        let before = self.followers.len();
        self.followers.retain(|follower| follower.number != number);
        for list in 0..self.lists.len() {
            if self.followers.iter().all(|follower| follower.list != list) {
                self.lists[list] = PlanKeyIndex::default();
            }
        }
        before != self.followers.len()
    }

    /// True if there are no plans and no planned blocks.
    pub(super) fn is_idle(&self) -> bool {
        self.followers.is_empty() && self.heap.is_empty()
    }

    /// Returns the progress of a plan.
    pub(super) fn progress(&self, number: u64) -> Option<PlanProgress> {
        self.followers.iter().find(|follower| follower.number == number).map(Follower::progress)
    }

    /// Records that a caller reads an object. Returns whether a plan that counts predicts the caller's reads
    /// of it.
    pub(super) fn record_read(&mut self, caller: Caller, object: u64, now_us: u64) -> ReadForecast {
        let Self { lists, followers, .. } = self;
        let mut forecast = ReadForecast::Estimate;
        for follower in followers.iter_mut().filter(|follower| follower.applies_to(caller)) {
            if let Some(key) = lists[follower.list].find(object) {
                follower.read(key, now_us);
                if follower.is_effective() {
                    forecast = ReadForecast::Plan;
                }
            }
        }
        forecast
    }

    /// Returns the earliest expected read of an object by followers of trusted plans; `None` if no plan
    /// contains it.
    pub(super) fn due_us(&mut self, object: u64, now_us: u64) -> Option<u64> {
        let Self { lists, followers, .. } = self;
        let mut due: Option<u64> = None;
        for (number, list) in lists.iter().enumerate() {
            let Some(key) = list.find(object) else { continue };
            let its =
                followers.iter_mut().filter(|follower| follower.list == number && follower.is_trusted());
            for its_us in its.filter_map(|follower| follower.due_us(key, now_us)) {
                due = Some(due.map_or(its_us, |due_us| due_us.min(its_us)));
            }
        }
        due
    }

    /// Returns the trusted plan by which a caller reads an object.
    pub(super) fn follower(&self, caller: Caller, object: u64) -> Option<&Follower> {
        let mut followers_of_caller =
            self.followers.iter().filter(|follower| follower.applies_to(caller) && follower.is_trusted());
        followers_of_caller.find(|follower| self.lists[follower.list].find(object).is_some())
    }

    /// Returns the next list and keys whose blocks are to be adopted, because they were kept before their
    /// plan was trusted.
    pub(super) fn take_keys_to_adopt(&mut self, caller: Caller) -> Option<(usize, std::ops::Range<u32>)> {
        let Self { lists, followers, .. } = self;
        let follower =
            followers.iter_mut().find(|follower| follower.applies_to(caller) && follower.is_adopting())?;
        Some((follower.list, follower.take_keys_to_adopt(lists[follower.list].keys.len())))
    }

    /// Returns bucket and name of a key in a list.
    pub(super) fn key(&self, list: usize, key: u32) -> Option<(u64, &str)> {
        let list = self.lists.get(list)?;
        Some((list.bucket, list.keys.get(key)?))
    }

    /// Keeps a block that is in no list.
    pub(super) fn join(&mut self, table: &mut BlockTable, slot: Slot, object: u64, due_us: u64) {
        table[slot].set_state(EntryState::Planned);
        self.heap.push(table, slot, object, due_us);
    }

    /// Removes a kept block.
    pub(super) fn leave(&mut self, table: &mut BlockTable, slot: Slot) {
        self.heap.remove(table, slot);
        table[slot].set_state(EntryState::NotKept);
    }

    /// Updates the expected reads of a few blocks. Returns one that no plan contains any more.
    pub(super) fn update_due_times(&mut self, table: &mut BlockTable, now_us: u64) -> Option<Slot> {
        for _ in 0..UPDATES_PER_READ.min(self.heap.len()) {
            self.hand = if self.hand + 1 < self.heap.len() { self.hand + 1 } else { 0 };
            let (slot, object) = self.heap.at(self.hand);
            match self.due_us(object, now_us) {
                Some(due_us) => self.heap.change(table, slot, due_us),
                None => return Some(slot),
            }
        }
        None
    }

    /// Returns the kept block with the latest expected read, and that time as of now; `None` instead of the
    /// time for a block that no plan contains any more.
    pub(super) fn latest(&mut self, table: &mut BlockTable, now_us: u64) -> Option<(Slot, Option<u64>)> {
        for _ in 0..LATEST_SEARCHES_MAX {
            let (slot, object, known_us) = self.heap.top()?;
            let Some(due_us) = self.due_us(object, now_us) else { return Some((slot, None)) };
            if due_us >= known_us {
                return Some((slot, Some(due_us)));
            }
            self.heap.change(table, slot, due_us);
        }
        self.heap.top().map(|(slot, _, due_us)| (slot, Some(due_us)))
    }
}

/// Maximum searches for the last block when its expected read turns out to be earlier than recorded.
const LATEST_SEARCHES_MAX: usize = 4;

/// Returns the worth of a block with this expected read.
pub(super) fn worth(due_us: u64, now_us: u64) -> f64 {
    if due_us == NEVER { 0.0 } else { ((due_us.saturating_sub(now_us) + 1) as f64).recip() }
}

/// Expected read of a block that no plan reads again.
pub(super) const NEVER: u64 = u64::MAX;
