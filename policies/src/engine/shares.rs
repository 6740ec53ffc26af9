//! Who gives way to whom: the search for what is worth least, and what becomes of it.

use super::dataset::Dataset;
use super::plans::Due;
use super::table::{Place, Slot};
use super::worth::Moment;
use super::{Advice, Engine, Seen, Unread};

/// A block has to be worth so much more than the one that makes way: moving bytes is not free, and estimates
/// are rough.
pub(super) const GAIN_MIN: f64 = 1.0 + 1e-9;
/// A queue may keep one in so many bytes in any case, or nobody would see what is read again.
const QUEUE_SHARE_MIN: u64 = 100;
/// And remembers one in so many bytes of what it has let go of: how dear more room is shows in what little
/// there is of it.
const REMEMBERED_SHARE: u64 = 10;

/// What blocks are worth is looked at once in so many accesses for each of so many blocks: a pass is long
/// then.
const BLOCKS_PER_LOOK: u64 = 1024;
const DATASETS_PER_LOOK: u64 = 16;
const LOOKS_EVERY_MAX: u64 = 64;

/// The dataset that holds what is worth least, as of an access, until that is worth more than what another
/// holds.
pub(super) struct LeastKnown {
    dataset: u16,
    next_worth: f64,
    access: u64,
}

/// A queue, which takes in whatever comes, and is worth as a whole what its end is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// What is read in no order.
    Pool,
    /// What is kept by how recently it was read.
    Recent,
}

/// Who makes way.
pub(super) enum Least {
    Queue(Queue),
    Group(u16),
    /// A block that plans speak of.
    Planned(Slot),
}

impl Engine {
    /// Decides on a block that is not kept.
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

    /// A kept block is read. It moves if it is to be kept otherwise than it was, unless it is pinned or plans
    /// speak of it.
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

    /// A kept block that is nowhere comes where others of its dataset are.
    pub(super) fn keep_as_its_like(&mut self, slot: Slot) {
        let Self { table, lists, datasets, pool, recent, names, .. } = self;
        let dataset = datasets.get_mut(&names.root(table[slot].dataset()));
        match (dataset.as_ref().map_or(Some(Queue::Pool), |dataset| dataset.queue()), dataset) {
            (None, Some(dataset)) => dataset.join_group(table, lists, slot),
            (Some(Queue::Recent), _) => recent.take_in(table, lists, slot),
            _ => pool.take_in(table, lists, slot),
        }
    }

    /// From now on kept blocks may take so many bytes. What is beyond that is evicted, but for what is
    /// pinned.
    pub fn set_capacity(&mut self, at_us: u64, capacity_bytes: u64) {
        self.options.capacity_bytes = capacity_bytes;
        while self.kept_bytes > capacity_bytes && self.evict_any(at_us) {}
    }

    /// A block is kept from now on whatever else wants the room, unless more than so many bytes would be:
    /// others make way for it.
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

    /// A block that is pinned may be evicted again, as its like.
    pub fn unpin(&mut self, id: u64) {
        let Some(slot) = self.table.find(id).filter(|slot| self.table[*slot].place() == Place::Pinned) else {
            return;
        };
        self.pinned_bytes -= self.table[slot].bytes();
        self.table[slot].set_place(Place::Away);
        self.keep_as_its_like(slot);
    }

    /// Evicts what is worth less than a block until there is room for it.
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

    /// Makes room for a block of a queue: of the queue's own, unless something else is worth less.
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

    /// What is worth least of all that is kept.
    pub(super) fn least(&mut self, now_us: u64) -> Option<(Least, f64)> {
        self.least_beside(None, now_us)
    }

    /// The same of all but a queue. Of another no less is left than it may keep in any case.
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

    /// What is worth least of all that is in groups or planned.
    fn least_expected(&mut self, now_us: u64) -> Option<(Least, f64)> {
        let planned = self.least_planned(now_us);
        let group = self.least_group(now_us);
        match (group, planned) {
            (Some((_, worth)), Some(planned)) if planned.1 < worth => Some(planned),
            (None, planned) => planned,
            (group, _) => group,
        }
    }

    /// The dataset whose groups hold what is worth least. Which one that is, is looked for again when another
    /// may have become it.
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

    /// Evicts what is worth least, and if need be the last that a queue has. Says whether there was something
    /// to evict.
    fn evict_any(&mut self, now_us: u64) -> bool {
        let least = self.least(now_us).map(|(least, _)| least);
        let queues = [Queue::Pool, Queue::Recent].map(Least::Queue);
        least.into_iter().chain(queues).any(|least| self.evict(least))
    }

    /// Says whether there was something to evict.
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

    /// A dataset goes over to the pool, or from it, with all that is kept of it.
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
