//! Plans that clients gave: who follows one tells when blocks will be asked for, so that what they are worth
//! need not be guessed.
//!
//! A block of a plan that is kept is in no group and no queue but in one heap, by when it is expected next:
//! the least of what all jobs that follow a plan say of it. Who asks last gives way first (Belady), by the
//! same currency as everything else: one over the time until then.
//!
//! Always: a plan counts only while its job does what it says ([`follower`]); a block that no plan speaks for
//! goes back to the group of those who have read it, as if there had never been a plan. Nothing is done at
//! once for all blocks: with each read of a plan a few of them are looked at. A planned key takes about 34
//! bytes and its name, of which plans that name the same keys share 18; a kept block of a plan 24 more than
//! another.

mod follower;
mod heap;
mod lap;
mod named;
#[cfg(test)]
mod tests;

use super::table::{Place, Slot, Table};
use crate::access::Caller;
use crate::plan::Plan;
use follower::Follower;
use heap::Heap;
use named::Named;
use thiserror::Error;

/// Plans at a time.
pub const PLANS_MAX: usize = 64;
/// Different lists of keys that they may name: a block is looked for in each.
pub const LISTS_MAX: usize = 16;
/// Kept blocks of which it is looked again when they will be asked for, with each read of a plan.
const LOOKS: usize = 2;

/// Who follows a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// One caller.
    Caller(u64),
    /// All callers of a family.
    Family(u64),
    /// All callers of the families that are named to it ([`super::Engine::add_family`]): nobody at first.
    Families,
}

/// Families that may follow one plan; of more, those that came last.
const FAMILIES_MAX: usize = 64;

/// A plan as the engine takes it at once. Making it takes time for each of its keys, and no engine.
pub struct ReadyPlan {
    follower: Follower,
    plan: Plan,
    named: Named,
}

impl ReadyPlan {
    /// The plan of that number of who will read what in a bucket; `seed` is that of the engine's blocks.
    #[must_use]
    pub fn new(seed: u64, number: u64, who: Who, bucket: u64, plan: Plan) -> Self {
        let named = Named::new(seed, bucket, std::sync::Arc::clone(&plan.keys));
        Self { follower: Follower::new(number, who, 0, &plan), plan, named }
    }
}

/// There is no room for another plan.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("there are {PLANS_MAX} plans, or {LISTS_MAX} different lists of keys in them, already: drop one")]
pub struct TooManyPlans;

/// How a plan is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Whether the client does what it said, so that it counts.
    pub is_trusted: bool,
    /// The epoch that it is in.
    pub epoch: u32,
    /// Keys of that epoch that it is through with.
    pub read: u32,
    /// Keys of that epoch.
    pub keys: u32,
}

/// All plans, and what is kept by them.
#[derive(Default)]
pub(super) struct Plans {
    /// By number; those that are free have no plan that uses them.
    lists: Vec<Named>,
    followers: Vec<Follower>,
    pub(super) heap: Heap,
    hand: usize,
}

impl Plans {
    /// Takes a plan, in the place of the one that had its number. Where its keys are those of another, they
    /// share them.
    pub(super) fn put(&mut self, ready: ReadyPlan, seed: u64) -> Result<(), TooManyPlans> {
        let ReadyPlan { mut follower, plan, named } = ready;
        let Follower { number, who, .. } = follower;
        let others = self.followers.iter().filter(|follower| follower.number != number).count();
        let shared = self
            .lists
            .iter()
            .enumerate()
            .find_map(|(at, list)| list.share(seed, named.bucket, &plan).map(|plan| (at, plan)));
        let is_free = |list: &usize| {
            self.followers
                .iter()
                .filter(|follower| follower.number != number)
                .all(|other| other.list != *list)
        };
        let free = (0..LISTS_MAX).find(is_free);
        if others == PLANS_MAX || shared.is_none() && free.is_none() {
            return Err(TooManyPlans);
        }
        let list = match shared {
            Some((list, shared)) => {
                follower = Follower::new(number, who, list, &shared);
                self.drop_plan(number);
                // It may have been the only one of that list.
                if !self.lists[list].is(named.bucket, shared.keys()) {
                    self.lists[list] = Named::new(seed, named.bucket, std::sync::Arc::clone(&shared.keys));
                }
                list
            }
            None => {
                let list = free.unwrap_or_default();
                self.drop_plan(number);
                self.lists.resize_with(self.lists.len().max(list + 1), Named::default);
                self.lists[list] = named;
                list
            }
        };
        follower.list = list;
        self.followers.push(follower);
        Ok(())
    }

    /// From now on a family follows a plan, too.
    pub(super) fn add_family(&mut self, number: u64, family: u64) {
        let follower = self.followers.iter_mut().find(|follower| follower.number == number);
        let Some(follower) = follower.filter(|follower| !follower.families.contains(&family)) else { return };
        if follower.families.len() >= FAMILIES_MAX {
            follower.families.remove(0);
        }
        follower.families.push(family);
    }

    /// Forgets a plan; says whether there was one.
    pub(super) fn drop_plan(&mut self, number: u64) -> bool {
        let before = self.followers.len();
        self.followers.retain(|follower| follower.number != number);
        for list in 0..self.lists.len() {
            if self.followers.iter().all(|follower| follower.list != list) {
                self.lists[list] = Named::default();
            }
        }
        before != self.followers.len()
    }

    /// Whether there is nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        self.followers.is_empty() && self.heap.is_empty()
    }

    /// How a plan is followed.
    pub(super) fn followed(&self, number: u64) -> Option<Followed> {
        self.followers.iter().find(|follower| follower.number == number).map(Follower::followed)
    }

    /// A caller reads of an object. Says whether that is as one of its plans says, which counts.
    pub(super) fn read(&mut self, caller: Caller, object: u64, now_us: u64) -> bool {
        let Self { lists, followers, .. } = self;
        let mut is_planned = false;
        for follower in followers.iter_mut().filter(|follower| follower.is_of(caller)) {
            if let Some(key) = lists[follower.list].find(object) {
                follower.read(key, now_us);
                is_planned |= follower.counts();
            }
        }
        is_planned
    }

    /// When an object is expected to be asked for by those who follow a plan; nothing when none speaks of it.
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

    /// Who reads an object by a plan that counts.
    pub(super) fn follower(&self, caller: Caller, object: u64) -> Option<&Follower> {
        let mut its =
            self.followers.iter().filter(|follower| follower.is_of(caller) && follower.is_trusted());
        its.find(|follower| self.lists[follower.list].find(object).is_some())
    }

    /// The objects that are to be looked for now whose blocks were kept before their plan was trusted: which
    /// list, which keys.
    pub(super) fn take_unadopted(&mut self, caller: Caller) -> Option<(usize, std::ops::Range<u32>)> {
        let Self { lists, followers, .. } = self;
        let follower = followers.iter_mut().find(|follower| follower.is_of(caller) && follower.adopts())?;
        Some((follower.list, follower.take_to_adopt(lists[follower.list].keys.len())))
    }

    /// A key of a list: bucket and name.
    pub(super) fn key(&self, list: usize, key: u32) -> Option<(u64, &str)> {
        let list = self.lists.get(list)?;
        Some((list.bucket, list.keys.get(key)?))
    }

    /// Keeps a block, which is in no list.
    pub(super) fn join(&mut self, table: &mut Table, slot: Slot, object: u64, due_us: u64) {
        table[slot].set_place(Place::Planned);
        self.heap.push(table, slot, object, due_us);
    }

    /// A kept block is no longer kept here.
    pub(super) fn leave(&mut self, table: &mut Table, slot: Slot) {
        self.heap.remove(table, slot);
        table[slot].set_place(Place::Away);
    }

    /// Looks again when a few blocks will be asked for; answers one that no plan speaks for any more.
    pub(super) fn look_again(&mut self, table: &mut Table, now_us: u64) -> Option<Slot> {
        for _ in 0..LOOKS.min(self.heap.len()) {
            self.hand = if self.hand + 1 < self.heap.len() { self.hand + 1 } else { 0 };
            let (slot, object) = self.heap.at(self.hand);
            match self.due_us(object, now_us) {
                Some(due_us) => self.heap.change(table, slot, due_us),
                None => return Some(slot),
            }
        }
        None
    }

    /// What is asked for last of all that is kept; its due is as of now. Nothing for a block of which no plan
    /// speaks any more.
    pub(super) fn last(&mut self, table: &mut Table, now_us: u64) -> Option<(Slot, Option<u64>)> {
        for _ in 0..LAST_LOOKS {
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

/// So often the last one is looked for anew, when that turned out to be earlier than it was known.
const LAST_LOOKS: usize = 4;

/// What a block is worth that is expected then.
pub(super) fn worth(due_us: u64, now_us: u64) -> f64 {
    if due_us == NEVER { 0.0 } else { ((due_us.saturating_sub(now_us) + 1) as f64).recip() }
}

/// A block is not asked for again, as far as plans go.
pub(super) const NEVER: u64 = u64::MAX;
