//! Division of the capacity: the search for the block of lowest worth, and its eviction.

use super::dataset::{CacheQueue, EvictionOrder, TrackedDataset};
use super::planned::PlanDue;
use super::slot::Slot;
use super::table::EntryState;
use super::worth::WorthContext;
use super::{Advice, CacheEngine, ObservedAccess, UnreadBlock};

/// Minimum factor by which a block must be worth more than the one it replaces: moving bytes is not free, and
/// estimates are rough.
pub(super) const GAIN_MIN: f64 = 1.0 + 1e-9;
/// Divisor of the capacity that gives the minimum bytes of a queue; without these its repeated reads could
/// not be observed.
const QUEUE_MIN_DIVISOR: u64 = 100;
/// Divisor of the capacity that gives the evicted bytes a queue remembers; their reads show the gain from
/// more room.
const REMEMBERED_DIVISOR: u64 = 10;

/// The worth of blocks is computed again after this many accesses: one per `BLOCKS_PER_ACCESS` blocks or
/// `DATASETS_PER_ACCESS` datasets, whichever is more, within the maximum. More blocks mean longer passes.
const BLOCKS_PER_ACCESS: u64 = 1024;
const DATASETS_PER_ACCESS: u64 = 16;
const REFRESH_EVERY_MAX: u64 = 64;

/// The dataset with the block of lowest worth as of an access, valid until its worth exceeds that of another
/// dataset.
pub(super) struct LowestGroup {
    dataset: u16,
    next_worth: f64,
    access: u64,
}

/// Source of the next block to evict.
pub(super) enum EvictionSource {
    Queue(CacheQueue),
    Group(u16),
    /// A block of a plan.
    Planned(Slot),
}

impl CacheEngine {
    /// Decides about a block that is not kept.
    pub(super) fn admit(
        &mut self,
        seen: ObservedAccess,
        slot: Slot,
        due: Option<PlanDue>,
        order: EvictionOrder,
    ) -> Advice {
        let bytes = self.table[slot].bytes();
        if bytes > self.options.capacity_bytes {
            return Advice::Bypass;
        }
        if let Some(advice) = due.and_then(|due| self.admit_by_plan(seen, slot, due)) {
            return advice;
        }
        let queue = match self.datasets.get_mut(&seen.number()) {
            Some(dataset) => {
                dataset.eviction_order = order;
                dataset.queue()
            }
            None => Some(CacheQueue::Pool),
        };
        match queue {
            Some(CacheQueue::Pool) => self.pool.miss(&self.table, slot, seen.now_us),
            Some(CacheQueue::Recent) => self.recent.miss(&self.table, slot, seen.now_us),
            None => {}
        }
        let has_room = match queue {
            Some(queue) => self.make_room_for_queue(queue, seen, bytes),
            None => self.make_room(seen, slot, bytes),
        };
        if !has_room {
            return Advice::Bypass;
        }
        if queue != Some(CacheQueue::Pool) || self.table[slot].state() != EntryState::Ghost {
            self.forget_ghost(slot);
        }
        let Self { table, lists, datasets, pool, recent, .. } = self;
        match (queue, datasets.get_mut(&seen.number())) {
            (None, Some(dataset)) => dataset.join_group(table, lists, slot),
            (Some(CacheQueue::Recent), _) => recent.admit(table, lists, slot),
            _ => pool.admit(table, lists, slot),
        }
        self.add_kept(bytes);
        Advice::Keep
    }

    /// Records a read of a kept block. The block moves if its rule has changed, unless it is pinned or
    /// planned.
    pub(super) fn read_kept(&mut self, now_us: u64, slot: Slot, order: EvictionOrder) {
        let Self { table, lists, datasets, pool, recent, names, .. } = self;
        let earlier_order = match table[slot].state() {
            EntryState::Recent | EntryState::Older => EvictionOrder::Recency,
            EntryState::Pinned | EntryState::Planned => order,
            _ => EvictionOrder::Worth,
        };
        if earlier_order != order {
            if let Some(dataset) = datasets.get_mut(&names.root(table[slot].dataset())) {
                dataset.eviction_order = order;
            }
            self.remove_from_queue(slot);
            self.keep_with_dataset(slot);
        } else if matches!(table[slot].state(), EntryState::Recent | EntryState::Older) {
            recent.read(table, lists, slot, now_us);
        } else {
            pool.read(table, slot, now_us);
        }
    }

    /// Keeps a block that is in no queue or group where the other blocks of its dataset are.
    pub(super) fn keep_with_dataset(&mut self, slot: Slot) {
        let Self { table, lists, datasets, pool, recent, names, .. } = self;
        let dataset = datasets.get_mut(&names.root(table[slot].dataset()));
        match (dataset.as_ref().map_or(Some(CacheQueue::Pool), |dataset| dataset.queue()), dataset) {
            (None, Some(dataset)) => dataset.join_group(table, lists, slot),
            (Some(CacheQueue::Recent), _) => recent.adopt(table, lists, slot),
            _ => pool.adopt(table, lists, slot),
        }
    }

    /// Sets the capacity. Blocks beyond it are evicted, except pinned ones.
    pub fn set_capacity(&mut self, at_us: u64, capacity_bytes: u64) {
        self.options.capacity_bytes = capacity_bytes;
        while self.kept_bytes > capacity_bytes && self.evict_any(at_us) {}
    }

    /// Pins a block: it is kept regardless of other blocks, which make room for it, unless the pinned bytes
    /// would exceed `pinned_bytes_max`.
    pub fn pin(&mut self, at_us: u64, block: &UnreadBlock<'_>, pinned_bytes_max: u64) -> Advice {
        let Some((slot, _)) = self.entry_of(block) else { return Advice::Bypass };
        let (place, bytes) = (self.table[slot].state(), self.table[slot].bytes());
        if place == EntryState::Pinned {
            return Advice::Kept;
        }
        let pinned_bytes_max = pinned_bytes_max.min(self.options.capacity_bytes);
        if self.pinned_bytes + bytes > pinned_bytes_max {
            return Advice::Bypass;
        }
        if !place.is_kept() {
            while self.kept_bytes + bytes > self.options.capacity_bytes {
                if !self.evict_any(at_us) {
                    return Advice::Bypass;
                }
            }
            self.add_kept(bytes);
        }
        self.remove_from_queue(slot);
        self.table[slot].set_state(EntryState::Pinned);
        self.pinned_bytes += bytes;
        assert!(self.pinned_bytes <= self.kept_bytes, "pinned blocks are kept");
        if place.is_kept() { Advice::Kept } else { Advice::Keep }
    }

    /// Unpins a block, which is kept like others of its dataset from then on.
    pub fn unpin(&mut self, id: u64) {
        let Some(slot) = self.table.find(id).filter(|slot| self.table[*slot].state() == EntryState::Pinned)
        else {
            return;
        };
        self.pinned_bytes -= self.table[slot].bytes();
        self.table[slot].set_state(EntryState::NotKept);
        self.keep_with_dataset(slot);
    }

    /// Evicts blocks of lower worth until there is room for a block. Returns false if there are too few.
    fn make_room(&mut self, seen: ObservedAccess, slot: Slot, bytes: u64) -> bool {
        if self.kept_bytes + bytes <= self.options.capacity_bytes {
            return true;
        }
        let moment = self.worth_context(seen.now_us);
        let Some(dataset) = self.datasets.get_mut(&seen.number()) else { return false };
        dataset.refresh_worth(&moment);
        let worth = dataset.worth_of(&self.table[slot]);
        while self.kept_bytes + bytes > self.options.capacity_bytes {
            let Some((least, other)) = self.lowest(seen.now_us) else { return false };
            if other * GAIN_MIN >= worth || !self.evict(least) {
                return false;
            }
        }
        true
    }

    /// Makes room for a block of a queue: evicts from the queue itself unless another block is worth less.
    fn make_room_for_queue(&mut self, queue: CacheQueue, seen: ObservedAccess, bytes: u64) -> bool {
        let worth = self.queue_worth(queue, seen.now_us);
        while self.kept_bytes + bytes > self.options.capacity_bytes {
            let is_small = self.queue_bytes(queue) < self.options.capacity_bytes / QUEUE_MIN_DIVISOR;
            match self.lowest_except(Some(queue), seen.now_us) {
                Some((least, other)) if is_small || other * GAIN_MIN < worth => {
                    if !self.evict(least) {
                        return false;
                    }
                }
                _ if self.evict(EvictionSource::Queue(queue)) => {}
                _ => return false,
            }
        }
        true
    }

    /// Returns the lowest worth of all kept blocks, and its source.
    pub(super) fn lowest(&mut self, now_us: u64) -> Option<(EvictionSource, f64)> {
        self.lowest_except(None, now_us)
    }

    /// Returns the same for all but one queue. Other queues keep their minimum.
    fn lowest_except(&mut self, excluded: Option<CacheQueue>, now_us: u64) -> Option<(EvictionSource, f64)> {
        let mut least = self.lowest_expected(now_us);
        for queue in [CacheQueue::Pool, CacheQueue::Recent] {
            let is_small = self.queue_bytes(queue) <= self.options.capacity_bytes / QUEUE_MIN_DIVISOR;
            if Some(queue) == excluded || is_small {
                continue;
            }
            let worth = self.queue_worth(queue, now_us);
            if least.as_ref().is_none_or(|(_, other)| worth < *other) {
                least = Some((EvictionSource::Queue(queue), worth));
            }
        }
        least
    }

    fn queue_bytes(&self, queue: CacheQueue) -> u64 {
        match queue {
            CacheQueue::Pool => self.pool.kept_bytes(),
            CacheQueue::Recent => self.recent.kept_bytes(),
        }
    }

    fn queue_worth(&self, queue: CacheQueue, now_us: u64) -> f64 {
        match queue {
            CacheQueue::Pool => self.pool.worth(now_us),
            CacheQueue::Recent => self.recent.worth(now_us),
        }
    }

    /// Returns the lowest worth of the blocks in groups and in the planned heap.
    fn lowest_expected(&mut self, now_us: u64) -> Option<(EvictionSource, f64)> {
        let planned = self.lowest_planned(now_us);
        let group = self.lowest_group(now_us);
        match (group, planned) {
            (Some((_, worth)), Some(planned)) if planned.1 < worth => Some(planned),
            (None, planned) => planned,
            (group, _) => group,
        }
    }

    /// Returns the dataset whose groups contain the block of lowest worth. The search is repeated when
    /// another dataset may have become the lowest.
    fn lowest_group(&mut self, now_us: u64) -> Option<(EvictionSource, f64)> {
        let moment = self.worth_context(now_us);
        if let Some(known) = &self.least_known
            && moment.access - known.access < moment.refresh_every
            && let Some(worth) = self.datasets.get(&known.dataset).and_then(TrackedDataset::lowest_worth)
            && worth <= known.next_worth
        {
            return Some((EvictionSource::Group(known.dataset), worth));
        }
        self.least_known = None;
        let mut least: Option<(u16, f64)> = None;
        let mut next_worth = f64::INFINITY;
        for (number, dataset) in self.datasets.iter_mut().filter(|(_, dataset)| dataset.grouped_bytes > 0) {
            dataset.refresh_worth(&moment);
            let Some(worth) = dataset.lowest_worth() else { continue };
            match least {
                Some((_, other)) if other <= worth => next_worth = next_worth.min(worth),
                _ => {
                    next_worth = least.map_or(next_worth, |(_, other)| other);
                    least = Some((*number, worth));
                }
            }
        }
        let (dataset, worth) = least?;
        self.least_known = Some(LowestGroup { dataset, next_worth, access: moment.access });
        Some((EvictionSource::Group(dataset), worth))
    }

    pub(super) fn worth_context(&self, now_us: u64) -> WorthContext {
        let (blocks, datasets) = (self.table.len() as u64, self.datasets.len() as u64);
        let refresh_every =
            (blocks / BLOCKS_PER_ACCESS).max(datasets / DATASETS_PER_ACCESS).clamp(1, REFRESH_EVERY_MAX);
        WorthContext { now_us, access: self.accesses, refresh_every, tempo_us: self.tempo_us }
    }

    /// Evicts the block of lowest worth, or if necessary the last one of a queue. Returns true if there was
    /// one.
    fn evict_any(&mut self, now_us: u64) -> bool {
        let least = self.lowest(now_us).map(|(least, _)| least);
        let queues = [CacheQueue::Pool, CacheQueue::Recent].map(EvictionSource::Queue);
        least.into_iter().chain(queues).any(|least| self.evict(least))
    }

    /// Evicts one block. Returns true if there was one.
    pub(super) fn evict(&mut self, least: EvictionSource) -> bool {
        let Self { table, lists, datasets, pool, recent, plans, options, .. } = self;
        let remembered_bytes = options.capacity_bytes / REMEMBERED_DIVISOR;
        let victim = match least {
            EvictionSource::Planned(slot) => {
                plans.leave(table, slot);
                Some(slot)
            }
            EvictionSource::Queue(CacheQueue::Pool) => pool.evict(table, lists, remembered_bytes),
            EvictionSource::Queue(CacheQueue::Recent) => recent.evict(table, lists, remembered_bytes),
            EvictionSource::Group(number) => {
                datasets.get_mut(&number).and_then(|dataset| dataset.take_lowest(table, lists))
            }
        };
        if let Some(victim) = victim {
            self.subtract_kept(victim);
            self.evicted.push(self.table[victim].id);
        }
        victim.is_some()
    }

    /// Moves a dataset with all its kept blocks to the pool, or out of it.
    pub(super) fn change_class(&mut self, number: u16) {
        let Self { table, lists, datasets, pool, names, .. } = self;
        let Some(dataset) = datasets.get_mut(&number) else { return };
        dataset.is_skewed = !dataset.is_skewed;
        if dataset.is_skewed {
            while let Some(slot) = dataset.any_grouped(table, lists) {
                dataset.leave_group(table, lists, slot);
                pool.adopt(table, lists, slot);
            }
            return;
        }
        for slot in 0..table.end() {
            let is_of_dataset = names.root(table[slot].dataset()) == number;
            if is_of_dataset && matches!(table[slot].state(), EntryState::Small | EntryState::Main) {
                pool.leave(table, lists, slot);
                dataset.join_group(table, lists, slot);
            }
        }
    }
}
