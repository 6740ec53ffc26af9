//! Follower of a plan: its position, its pace, and whether it reads as the plan predicts.
//!
//! A read fits if the next position of its key is within a window around the current position: workers
//! overtake each other, ranks are not in step, and a few keys are skipped. Invariant: a plan that is not
//! trusted has no effect. Trust rises with reads that fit, falls with those that do not, and can return. A
//! job at another position of its plan (after a restart of the job or a gap in the observation) is found by
//! trying one epoch after another.

use super::epoch_order::EpochOrder;
use super::{NEVER, PlanProgress, PlanReaders};
use crate::access::Caller;
use crate::plan::{Plan, PlanEpochs};
use std::ops::Range;

/// Window to both sides, as a divisor of an epoch's length, and its bounds: loaders have hundreds of reads in
/// flight.
const WINDOW_SHARE: u32 = 50;
const WINDOW_MIN: u32 = 16;
const WINDOW_MAX: u32 = 1024;
/// Maximum window of a small epoch, as a divisor of its length.
const WINDOW_SHARE_MAX: u32 = 4;
/// Minimum reads for a judgement; a plan becomes trusted at `TRUST_HIGH` and stops below `TRUST_LOW`.
const JUDGED_MIN: u32 = 16;
const TRUST_HIGH: f64 = 0.9;
const TRUST_LOW: f64 = 0.6;
/// Number of reads in the moving average of trust.
const JUDGED_READS: u32 = 32;
/// Successive reads close together at another position after which the job is assumed to be there.
const ELSEWHERE_READS: u32 = 8;
/// Reads without a fit after which another epoch is tried: `TRY_READS`, or this part of an epoch if that is
/// more, because drawing an order takes time.
const TRY_READS: u32 = 64;
const TRY_SHARE: u32 = 64;
/// Recently read keys; a repeated request for one of them is ignored.
const RECENT_MAX: usize = 64;
const KEYS_PER_RECENT: u32 = 8;
/// Number of intervals without a read after which a job is stalled; such a pause does not count in the pace.
const STALL_INTERVALS: f64 = 8.0;
/// Part of an epoch over which the pace is averaged.
const PACE_SHARE: f64 = 0.5;
const PACE_READS_MIN: f64 = 64.0;
/// Keys whose blocks are looked up per read, once the plan is trusted.
const ADOPTED: u32 = 8;

/// Fit of a read with its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlanFit {
    /// The plan predicts the read around the current position.
    Fits,
    /// The read is elsewhere in the plan, or the plan does not contain it any more.
    Deviates,
}

/// Follower of a plan; see the module.
#[derive(Debug)]
pub(in crate::engine) struct Follower {
    pub(super) number: u64,
    pub(super) who: PlanReaders,
    /// Families that were added, if the plan is for families.
    pub(super) families: Vec<u64>,
    /// List of its keys.
    pub(in crate::engine) list: usize,
    plan: Plan,
    epochs: PlanEpochs,
    /// Order of the current epoch and of the next one, and the number of the current one.
    current: EpochOrder,
    next: Option<EpochOrder>,
    epoch: u32,
    /// Reads of completed epochs.
    completed_reads: u64,
    /// Position after the last key that was read. It may be in the next epoch already.
    at: u32,
    trust: f64,
    judged: u32,
    is_trusted: bool,
    /// Position to which the job seems to have moved, and the number of reads that indicate it.
    elsewhere: (u32, u32),
    /// Reads without a fit since another epoch was tried.
    unfitting_reads: u32,
    recent: [u32; RECENT_MAX],
    recent_at: usize,
    last_us: u64,
    /// Time for the last positions, and their number, as decaying sums.
    pace_us: f64,
    pace_reads: f64,
    /// Next key whose blocks are to be looked up; `None` when all were.
    next_to_adopt: Option<u32>,
}

impl Follower {
    pub(super) fn new(number: u64, who: PlanReaders, list: usize, plan: &Plan) -> Self {
        let mut follower = Self {
            number,
            who,
            families: Vec::new(),
            list,
            plan: plan.clone(),
            epochs: plan.epochs(),
            current: EpochOrder::default(),
            next: None,
            epoch: 0,
            completed_reads: 0,
            at: 0,
            trust: 0.0,
            judged: 0,
            is_trusted: false,
            elsewhere: (0, 0),
            unfitting_reads: 0,
            recent: [u32::MAX; RECENT_MAX],
            recent_at: 0,
            last_us: 0,
            pace_us: 0.0,
            pace_reads: 0.0,
            next_to_adopt: None,
        };
        follower.begin();
        follower
    }

    /// True if the plan applies to a caller.
    pub(super) fn applies_to(&self, caller: Caller) -> bool {
        match self.who {
            PlanReaders::Caller(id) => id == caller.id,
            PlanReaders::Family(family) => family == caller.family,
            PlanReaders::Families => self.families.contains(&caller.family),
        }
    }

    /// Starts at the first epoch.
    fn begin(&mut self) {
        // Read counts of abandoned epochs are not reused for others.
        self.completed_reads += u64::from(self.current.len() + self.next.as_ref().map_or(0, EpochOrder::len));
        self.epochs = self.plan.epochs();
        self.epoch = self.epochs.next_epoch();
        self.current = self.draw().unwrap_or_default();
        self.next = self.draw();
        self.at = 0;
    }

    fn draw(&mut self) -> Option<EpochOrder> {
        let order = self.epochs.next()?;
        Some(EpochOrder::new(order, self.plan.keys().len()))
    }

    /// Advances to the next epoch. Returns true if there is one.
    fn next_epoch(&mut self) -> bool {
        let Some(next) = self.next.take() else { return false };
        self.at = self.at.saturating_sub(self.current.len());
        self.completed_reads += u64::from(self.current.len());
        self.current = next;
        self.epoch += 1;
        self.next = self.draw();
        true
    }

    fn window(&self) -> u32 {
        let length = self.current.len();
        (length / WINDOW_SHARE).clamp(WINDOW_MIN, WINDOW_MAX).min(length / WINDOW_SHARE_MAX).max(1)
    }

    pub(super) fn progress(&self) -> PlanProgress {
        let is_through = self.at >= self.current.len() && self.next.is_some();
        let (epoch, read) = if is_through { (1, self.at - self.current.len()) } else { (0, self.at) };
        let keys = self.current.len();
        PlanProgress { is_trusted: self.is_trusted, epoch: self.epoch + epoch, read: read.min(keys), keys }
    }

    pub(super) const fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// True if the plan determines the worth of its blocks: it is trusted, and the blocks kept before are
    /// adopted.
    pub(super) const fn is_effective(&self) -> bool {
        self.is_trusted && self.next_to_adopt.is_none()
    }

    /// Records that the job reads a key of its list.
    pub(super) fn read(&mut self, key: u32, now_us: u64) {
        let recent = (self.plan.keys().len() / KEYS_PER_RECENT).clamp(1, RECENT_MAX as u32) as usize;
        if self.recent[..recent].contains(&key) {
            return;
        }
        self.recent_at = (self.recent_at + 1) % recent;
        self.recent[self.recent_at] = key;
        let window = self.window();
        match self.next_position(key, window) {
            Some(place) if place.abs_diff(self.at) <= window => {
                self.advance(key, place, now_us);
                self.judge(PlanFit::Fits);
            }
            place => {
                self.judge(PlanFit::Deviates);
                self.check_other_position(place, window, now_us);
            }
        }
        if self.at >= self.current.len() + self.window().min(self.next.as_ref().map_or(0, EpochOrder::len)) {
            self.next_epoch();
        }
    }

    /// Returns the next position of a key, counted from the start of the current epoch through the next one.
    fn next_position(&mut self, key: u32, window: u32) -> Option<u32> {
        if let Some(place) = self.current.next_position(key, self.at.saturating_sub(window)) {
            return Some(place);
        }
        let length = self.current.len();
        self.next.as_mut()?.next_position(key, 0).map(|place| length + place)
    }

    fn advance(&mut self, key: u32, place: u32, now_us: u64) {
        if place < self.current.len() {
            self.current.read(key);
        } else if let Some(next) = &mut self.next {
            next.read(key);
        }
        let steps = (place + 1).saturating_sub(self.at);
        if steps > 0 {
            self.record_pace(steps, now_us);
            self.at = place + 1;
            self.last_us = now_us;
        }
    }

    fn record_pace(&mut self, places: u32, now_us: u64) {
        let elapsed_us = (now_us - self.last_us) as f64;
        let is_pause = self.pace_reads >= PACE_READS_MIN
            && elapsed_us > STALL_INTERVALS * f64::from(places) * self.interval_us();
        if self.last_us == 0 || is_pause {
            return;
        }
        let reads_max = (PACE_SHARE * f64::from(self.current.len())).max(PACE_READS_MIN);
        let decay = 1.0 - (f64::from(places) / reads_max).min(1.0);
        self.pace_us = self.pace_us * decay + elapsed_us;
        self.pace_reads = self.pace_reads * decay + f64::from(places);
    }

    /// Returns the time per position, in microseconds.
    fn interval_us(&self) -> f64 {
        if self.pace_reads > 0.0 { self.pace_us / self.pace_reads } else { 0.0 }
    }

    fn judge(&mut self, fit: PlanFit) {
        let value = match fit {
            PlanFit::Fits => 1.0,
            PlanFit::Deviates => 0.0,
        };
        self.judged = (self.judged + 1).min(JUDGED_READS);
        self.trust += (value - self.trust) / f64::from(self.judged);
        if !self.is_trusted && self.judged >= JUDGED_MIN && self.trust >= TRUST_HIGH {
            self.is_trusted = true;
            self.next_to_adopt = Some(0);
            self.unfitting_reads = 0;
        } else if self.is_trusted && self.trust < TRUST_LOW {
            self.is_trusted = false;
            (self.judged, self.trust) = (0, 0.0);
            self.begin();
        }
    }

    /// Records a read that did not fit: the job may be at another position.
    fn check_other_position(&mut self, place: Option<u32>, window: u32, now_us: u64) {
        let (position, reads) = self.elsewhere;
        self.elsewhere = match place {
            Some(place) if place.abs_diff(position) <= window => (place.max(position), reads + 1),
            Some(place) => (place, 1),
            None => (0, 0),
        };
        if self.elsewhere.1 >= ELSEWHERE_READS {
            self.at = self.elsewhere.0 + 1;
            self.last_us = now_us;
            self.elsewhere = (0, 0);
            (self.judged, self.trust) = if self.is_trusted { (self.judged, self.trust) } else { (0, 0.0) };
        }
        self.unfitting_reads += u32::from(!self.is_trusted);
        if self.unfitting_reads >= TRY_READS.max(self.current.len() / TRY_SHARE) {
            self.unfitting_reads = 0;
            if !self.next_epoch() {
                self.begin();
            }
            self.at = 0;
        }
    }

    /// Returns the expected time of the next read of a key; `NEVER` if the plan reads it no more.
    pub(super) fn due_us(&mut self, key: u32, now_us: u64) -> Option<u64> {
        let window = self.window();
        let (length, at) = (self.current.len(), self.at);
        let places = match self.next_position(key, window) {
            Some(place) => f64::from(place.saturating_sub(at)),
            // The key is in neither of these two epochs; the order of later ones is unknown.
            None if self.epoch + 2 < self.plan.schedule().first_epoch + self.plan.schedule().epochs => {
                2.5 * f64::from(length) - f64::from(at)
            }
            None => return Some(NEVER),
        };
        let interval_us = self.interval_us();
        let stall_us = (now_us.saturating_sub(self.last_us) as f64 - STALL_INTERVALS * interval_us).max(0.0);
        Some(now_us + (places * interval_us + stall_us) as u64)
    }

    /// True if blocks that were kept before the plan was trusted have to be adopted.
    pub(super) const fn is_adopting(&self) -> bool {
        self.is_trusted && self.next_to_adopt.is_some()
    }

    /// Returns the next keys whose blocks are to be adopted, of `keys` keys.
    pub(super) fn take_keys_to_adopt(&mut self, keys: u32) -> Range<u32> {
        let from = self.next_to_adopt.unwrap_or(keys);
        let to = (from + ADOPTED).min(keys);
        self.next_to_adopt = Some(to).filter(|to| *to < keys);
        from..to
    }

    /// Returns the upcoming reads in order, from read number `from` on: pairs of read number and key. Read
    /// numbers continue from epoch to epoch.
    pub(in crate::engine) fn upcoming_reads(&self, from: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let length = self.current.len();
        let from = from.saturating_sub(self.completed_reads).max(u64::from(self.at));
        let to = length + self.next.as_ref().map_or(0, EpochOrder::len);
        let key = move |place: u32| match place.checked_sub(length) {
            None => self.current.key(place),
            Some(place) => self.next.as_ref()?.key(place),
        };
        let places = u32::try_from(from).unwrap_or(to)..to;
        places.filter_map(move |place| Some((self.completed_reads + u64::from(place), key(place)?)))
    }
}
