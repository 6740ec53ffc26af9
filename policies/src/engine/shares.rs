//! Division of the capacity: the search for the block of lowest worth, and its eviction.

use super::dataset::Dataset;
use super::plans::Due;
use super::table::{Place, Slot};
use super::worth::Moment;
use super::{Advice, Engine, Seen, Unread};

/// Minimum factor by which a block must be worth more than the one it replaces: moving bytes is not free, and
/// estimates are rough.
pub(super) const GAIN_MIN: f64 = 1.0 + 1e-9;
/// Divisor of the capacity that gives the minimum bytes of a queue; without these its repeated reads could
/// not be observed.
const QUEUE_SHARE_MIN: u64 = 100;
/// Divisor of the capacity that gives the evicted bytes a queue remembers; their reads show the gain from
/// more room.
const REMEMBERED_SHARE: u64 = 10;

/// The worth of blocks is computed again after this many accesses: one per `BLOCKS_PER_LOOK` blocks or
/// `DATASETS_PER_LOOK` datasets, whichever is more, within the maximum. More blocks mean longer passes.
const BLOCKS_PER_LOOK: u64 = 1024;
const DATASETS_PER_LOOK: u64 = 16;
const LOOKS_EVERY_MAX: u64 = 64;

/// The dataset with the block of lowest worth as of an access, valid until its worth exceeds that of another
/// dataset.
pub(super) struct LeastKnown {
    dataset: u16,
    next_worth: f64,
    access: u64,
}

/// A queue that accepts every block and whose worth as a whole is that of its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// Blocks that are read in no order.
    Pool,
    /// Blocks that are kept by recency.
    Recent,
}

/// Source of the next block to evict.
pub(super) enum Least {
    Queue(Queue),
    Group(u16),
    /// A block of a plan.
    Planned(Slot),
}

impl Engine {
    /// Decides about a block that is not kept.
    pub(super) fn admit(&mut self, seen: Seen, slot: Slot, due: Option<Due>, is_recent: bool) -> Advice {
        let bytes = self.table[slot].bytes();
        if bytes > self.options.capacity_bytes {
            return Advice::Bypass;
        }
        if let Some(advice) = due.and_then(|due| self.admit_by_plan(seen, slot, due)) {
            return advice;
        }
        let queue = match self.datasets.get_mut(&seen.number()) {
            Some(dataset) => {
                dataset.is_recent = is_recent;
                dataset.queue()
            }
            None => Some(Queue::Pool),
        };
        match queue {
            Some(Queue::Pool) => self.pool.miss(&self.table, slot, seen.now_us),
            Some(Queue::Recent) => self.recent.miss(&self.table, slot, seen.now_us),
            None => {}
        }
        let has_room = match queue {
            Some(queue) => self.make_room_in(queue, seen, bytes),
            None => self.make_room(seen, slot, bytes),
        };
        if !has_room {
            return Advice::Bypass;
        }
        if queue != Some(Queue::Pool) || self.table[slot].place() != Place::Ghost {
            self.forget_ghost(slot);
        }
        let Self { table, lists, datasets, pool, recent, .. } = self;
        match (queue, datasets.get_mut(&seen.number())) {
            (None, Some(dataset)) => dataset.join_group(table, lists, slot),
            (Some(Queue::Recent), _) => recent.admit(table, lists, slot),
            _ => pool.admit(table, lists, slot),
        }
        self.kept_bytes += bytes;
        Advice::Keep
    }

    /// Records a read of a kept block. The block moves if its rule has changed, unless it is pinned or
    /// planned.
    pub(super) fn read_kept(&mut self, now_us: u64, slot: Slot, is_recent: bool) {
        let Self { table, lists, datasets, pool, recent, names, .. } = self;
        let was_recent = match table[slot].place() {
            Place::Recent | Place::Older => true,
            Place::Pinned | Place::Planned => is_recent,
            _ => false,
        };
        if was_recent != is_recent {
            if let Some(dataset) = datasets.get_mut(&names.root(table[slot].dataset())) {
                dataset.is_recent = is_recent;
            }
            self.leave(slot);
            self.keep_as_its_like(slot);
        } else if matches!(table[slot].place(), Place::Recent | Place::Older) {
            recent.read(table, lists, slot, now_us);
        } else {
            pool.read(table, slot, now_us);
        }
    }

    /// Keeps a block that is in no queue or group where the other blocks of its dataset are.
    pub(super) fn keep_as_its_like(&mut self, slot: Slot) {
        let Self { table, lists, datasets, pool, recent, names, .. } = self;
        let dataset = datasets.get_mut(&names.root(table[slot].dataset()));
        match (dataset.as_ref().map_or(Some(Queue::Pool), |dataset| dataset.queue()), dataset) {
            (None, Some(dataset)) => dataset.join_group(table, lists, slot),
            (Some(Queue::Recent), _) => recent.take_in(table, lists, slot),
            _ => pool.take_in(table, lists, slot),
        }
    }

    /// Sets the capacity. Blocks beyond it are evicted, except pinned ones.
    pub fn set_capacity(&mut self, at_us: u64, capacity_bytes: u64) {
        self.options.capacity_bytes = capacity_bytes;
        while self.kept_bytes > capacity_bytes && self.evict_any(at_us) {}
    }

    /// Pins a block: it is kept regardless of other blocks, which make room for it, unless the pinned bytes
    /// would exceed `pinned_bytes_max`.
    pub fn pin(&mut self, at_us: u64, block: &Unread<'_>, pinned_bytes_max: u64) -> Advice {
        let Some((slot, _)) = self.entry_of(block) else { return Advice::Bypass };
        let (place, bytes) = (self.table[slot].place(), self.table[slot].bytes());
        if place == Place::Pinned {
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
            self.kept_bytes += bytes;
        }
        self.leave(slot);
        self.table[slot].set_place(Place::Pinned);
        self.pinned_bytes += bytes;
        if place.is_kept() { Advice::Kept } else { Advice::Keep }
    }

    /// Unpins a block, which is kept like others of its dataset from then on.
    pub fn unpin(&mut self, id: u64) {
        let Some(slot) = self.table.find(id).filter(|slot| self.table[*slot].place() == Place::Pinned) else {
            return;
        };
        self.pinned_bytes -= self.table[slot].bytes();
        self.table[slot].set_place(Place::Away);
        self.keep_as_its_like(slot);
    }

    /// Evicts blocks of lower worth until there is room for a block. Returns false if there are too few.
    fn make_room(&mut self, seen: Seen, slot: Slot, bytes: u64) -> bool {
        if self.kept_bytes + bytes <= self.options.capacity_bytes {
            return true;
        }
        let moment = self.moment(seen.now_us);
        let Some(dataset) = self.datasets.get_mut(&seen.number()) else { return false };
        dataset.look(&moment);
        let worth = dataset.worth_of(&self.table[slot]);
        while self.kept_bytes + bytes > self.options.capacity_bytes {
            let Some((least, other)) = self.least(seen.now_us) else { return false };
            if other * GAIN_MIN >= worth || !self.evict(least) {
                return false;
            }
        }
        true
    }

    /// Makes room for a block of a queue: evicts from the queue itself unless another block is worth less.
    fn make_room_in(&mut self, queue: Queue, seen: Seen, bytes: u64) -> bool {
        let worth = self.worth_in(queue, seen.now_us);
        while self.kept_bytes + bytes > self.options.capacity_bytes {
            let is_small = self.bytes_in(queue) < self.options.capacity_bytes / QUEUE_SHARE_MIN;
            match self.least_beside(Some(queue), seen.now_us) {
                Some((least, other)) if is_small || other * GAIN_MIN < worth => {
                    if !self.evict(least) {
                        return false;
                    }
                }
                _ if self.evict(Least::Queue(queue)) => {}
                _ => return false,
            }
        }
        true
    }

    /// Returns the lowest worth of all kept blocks, and its source.
    pub(super) fn least(&mut self, now_us: u64) -> Option<(Least, f64)> {
        self.least_beside(None, now_us)
    }

    /// Returns the same for all but one queue. Other queues keep their minimum.
    fn least_beside(&mut self, but: Option<Queue>, now_us: u64) -> Option<(Least, f64)> {
        let mut least = self.least_expected(now_us);
        for queue in [Queue::Pool, Queue::Recent] {
            let is_small = self.bytes_in(queue) <= self.options.capacity_bytes / QUEUE_SHARE_MIN;
            if Some(queue) == but || is_small {
                continue;
            }
            let worth = self.worth_in(queue, now_us);
            if least.as_ref().is_none_or(|(_, other)| worth < *other) {
                least = Some((Least::Queue(queue), worth));
            }
        }
        least
    }

    fn bytes_in(&self, queue: Queue) -> u64 {
        match queue {
            Queue::Pool => self.pool.kept_bytes(),
            Queue::Recent => self.recent.kept_bytes(),
        }
    }

    fn worth_in(&self, queue: Queue, now_us: u64) -> f64 {
        match queue {
            Queue::Pool => self.pool.worth(now_us),
            Queue::Recent => self.recent.worth(now_us),
        }
    }

    /// Returns the lowest worth of the blocks in groups and in the planned heap.
    fn least_expected(&mut self, now_us: u64) -> Option<(Least, f64)> {
        let planned = self.least_planned(now_us);
        let group = self.least_group(now_us);
        match (group, planned) {
            (Some((_, worth)), Some(planned)) if planned.1 < worth => Some(planned),
            (None, planned) => planned,
            (group, _) => group,
        }
    }

    /// Returns the dataset whose groups contain the block of lowest worth. The search is repeated when
    /// another dataset may have become the lowest.
    fn least_group(&mut self, now_us: u64) -> Option<(Least, f64)> {
        let moment = self.moment(now_us);
        if let Some(known) = &self.least_known
            && moment.access - known.access < moment.looks_every
            && let Some(worth) = self.datasets.get(&known.dataset).and_then(Dataset::lowest_worth)
            && worth <= known.next_worth
        {
            return Some((Least::Group(known.dataset), worth));
        }
        self.least_known = None;
        let mut least: Option<(u16, f64)> = None;
        let mut next_worth = f64::INFINITY;
        for (number, dataset) in self.datasets.iter_mut().filter(|(_, dataset)| dataset.grouped_bytes > 0) {
            dataset.look(&moment);
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
        self.least_known = Some(LeastKnown { dataset, next_worth, access: moment.access });
        Some((Least::Group(dataset), worth))
    }

    pub(super) fn moment(&self, now_us: u64) -> Moment {
        let (blocks, datasets) = (self.table.len() as u64, self.datasets.len() as u64);
        let looks_every =
            (blocks / BLOCKS_PER_LOOK).max(datasets / DATASETS_PER_LOOK).clamp(1, LOOKS_EVERY_MAX);
        Moment { now_us, access: self.accesses, looks_every, tempo_us: self.tempo_us }
    }

    /// Evicts the block of lowest worth, or if necessary the last one of a queue. Returns true if there was
    /// one.
    fn evict_any(&mut self, now_us: u64) -> bool {
        let least = self.least(now_us).map(|(least, _)| least);
        let queues = [Queue::Pool, Queue::Recent].map(Least::Queue);
        least.into_iter().chain(queues).any(|least| self.evict(least))
    }

    /// Evicts one block. Returns true if there was one.
    pub(super) fn evict(&mut self, least: Least) -> bool {
        let Self { table, lists, datasets, pool, recent, plans, options, .. } = self;
        let remembered_bytes = options.capacity_bytes / REMEMBERED_SHARE;
        let victim = match least {
            Least::Planned(slot) => {
                plans.leave(table, slot);
                Some(slot)
            }
            Least::Queue(Queue::Pool) => pool.evict(table, lists, remembered_bytes),
            Least::Queue(Queue::Recent) => recent.evict(table, lists, remembered_bytes),
            Least::Group(number) => {
                datasets.get_mut(&number).and_then(|dataset| dataset.take_lowest(table, lists))
            }
        };
        if let Some(victim) = victim {
            self.kept_bytes -= table[victim].bytes();
            self.evicted.push(table[victim].id);
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
                pool.take_in(table, lists, slot);
            }
            return;
        }
        for slot in 0..table.end() {
            let is_its = names.root(table[slot].dataset()) == number;
            if is_its && matches!(table[slot].place(), Place::Small | Place::Main) {
                pool.leave(table, lists, slot);
                dataset.join_group(table, lists, slot);
            }
        }
    }
}
