//! Who follows a plan: how far it is, how fast it goes, and whether it does what the plan says.
//!
//! A read fits when its key's next place is within a window around where the job is: workers overtake each
//! other, ranks are not in step, a few keys are passed over. Always: without trust a plan counts for nothing.
//! Trust comes with reads that fit, goes with those that do not, and can come back. A job that is elsewhere
//! in its plan (it was begun anew, or nobody looked for a while) is found by trying one epoch after the
//! other.

use super::lap::Lap;
use super::{Followed, NEVER, Who};
use crate::access::Caller;
use crate::plan::{Epochs, Plan};
use std::ops::Range;

/// The window to both sides, as a share of an epoch, and its bounds: loaders have hundreds of reads under
/// way.
const WINDOW_SHARE: u32 = 50;
const WINDOW_MIN: u32 = 16;
const WINDOW_MAX: u32 = 1024;
/// Of a small epoch it is no more than this share.
const WINDOW_SHARE_MAX: u32 = 4;
/// A plan is trusted from so many reads on of which so many fit, and until fewer do.
const JUDGED_MIN: u32 = 16;
const TRUST_HIGH: f64 = 0.9;
const TRUST_LOW: f64 = 0.6;
/// Over how many reads that is averaged.
const JUDGED_READS: u32 = 32;
/// So many reads in a row beside each other elsewhere: the job has gone there.
const ELSEWHERE_READS: u32 = 8;
/// Another epoch is tried after so many reads that do not fit, or after this part of an epoch: drawing an
/// order takes its time.
const TRY_READS: u32 = 64;
const TRY_SHARE: u32 = 64;
/// Keys that were read last: they are sent again, or read on.
const RECENT_MAX: usize = 64;
const KEYS_PER_RECENT: u32 = 8;
/// A job that is so many of its intervals late is stalling; such a pause says nothing of its pace.
const STALL_INTERVALS: f64 = 8.0;
/// The pace is that of so large a part of an epoch.
const PACE_SHARE: f64 = 0.5;
const PACE_READS_MIN: f64 = 64.0;
/// Keys whose blocks are looked for with each read, once the plan is trusted.
const ADOPTED: u32 = 8;

/// See the module.
#[derive(Debug)]
pub(in crate::engine) struct Follower {
    pub(super) number: u64,
    pub(super) who: Who,
    /// Those that were named to it, where it is for such.
    pub(super) families: Vec<u64>,
    /// The list of its keys.
    pub(in crate::engine) list: usize,
    plan: Plan,
    epochs: Epochs,
    /// The epoch that it is in and the one behind it, and the number of the first.
    now: Lap,
    next: Option<Lap>,
    epoch: u32,
    /// Reads of epochs that it is through with.
    passed: u64,
    /// How far it is: the place behind the last one that was read. It may be in the next epoch already.
    at: u32,
    trust: f64,
    judged: u32,
    is_trusted: bool,
    /// Where it seems to have gone, and how many reads say so.
    elsewhere: (u32, u32),
    /// Reads since another epoch was tried.
    lost: u32,
    recent: [u32; RECENT_MAX],
    recent_at: usize,
    last_us: u64,
    /// Time that so many places took lately.
    pace_us: f64,
    paced: f64,
    /// Keys whose blocks are looked for next; none when that is through.
    adopting: Option<u32>,
}

impl Follower {
    pub(super) fn new(number: u64, who: Who, list: usize, plan: &Plan) -> Self {
        let mut follower = Self {
            number,
            who,
            families: Vec::new(),
            list,
            plan: plan.clone(),
            epochs: plan.epochs(),
            now: Lap::default(),
            next: None,
            epoch: 0,
            passed: 0,
            at: 0,
            trust: 0.0,
            judged: 0,
            is_trusted: false,
            elsewhere: (0, 0),
            lost: 0,
            recent: [u32::MAX; RECENT_MAX],
            recent_at: 0,
            last_us: 0,
            pace_us: 0.0,
            paced: 0.0,
            adopting: None,
        };
        follower.begin();
        follower
    }

    /// Whether it is for a caller.
    pub(super) fn is_of(&self, caller: Caller) -> bool {
        match self.who {
            Who::Caller(id) => id == caller.id,
            Who::Family(family) => family == caller.family,
            Who::Families => self.families.contains(&caller.family),
        }
    }

    /// Begins at the first epoch.
    fn begin(&mut self) {
        // What was said of the epochs that it leaves is not said of others.
        self.passed += u64::from(self.now.len() + self.next.as_ref().map_or(0, Lap::len));
        self.epochs = self.plan.epochs();
        self.epoch = self.epochs.upcoming();
        self.now = self.draw().unwrap_or_default();
        self.next = self.draw();
        self.at = 0;
    }

    fn draw(&mut self) -> Option<Lap> {
        let order = self.epochs.next()?;
        Some(Lap::new(order, self.plan.keys().len()))
    }

    /// Goes to the next epoch; says whether there is one.
    fn go_on(&mut self) -> bool {
        let Some(next) = self.next.take() else { return false };
        self.at = self.at.saturating_sub(self.now.len());
        self.passed += u64::from(self.now.len());
        self.now = next;
        self.epoch += 1;
        self.next = self.draw();
        true
    }

    fn window(&self) -> u32 {
        let length = self.now.len();
        (length / WINDOW_SHARE).clamp(WINDOW_MIN, WINDOW_MAX).min(length / WINDOW_SHARE_MAX).max(1)
    }

    pub(super) fn followed(&self) -> Followed {
        let is_through = self.at >= self.now.len() && self.next.is_some();
        let (epoch, read) = if is_through { (1, self.at - self.now.len()) } else { (0, self.at) };
        let keys = self.now.len();
        Followed { is_trusted: self.is_trusted, epoch: self.epoch + epoch, read: read.min(keys), keys }
    }

    pub(super) const fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Whether it says what its blocks are worth: it is trusted, and those that were kept before are known.
    pub(super) const fn counts(&self) -> bool {
        self.is_trusted && self.adopting.is_none()
    }

    /// The job reads a key of its list.
    pub(super) fn read(&mut self, key: u32, now_us: u64) {
        let recent = (self.plan.keys().len() / KEYS_PER_RECENT).clamp(1, RECENT_MAX as u32) as usize;
        if self.recent[..recent].contains(&key) {
            return;
        }
        self.recent_at = (self.recent_at + 1) % recent;
        self.recent[self.recent_at] = key;
        let window = self.window();
        match self.place(key, window) {
            Some(place) if place.abs_diff(self.at) <= window => {
                self.take(key, place, now_us);
                self.judge(true);
            }
            place => {
                self.judge(false);
                self.look_elsewhere(place, window, now_us);
            }
        }
        if self.at >= self.now.len() + self.window().min(self.next.as_ref().map_or(0, Lap::len)) {
            self.go_on();
        }
    }

    /// The next place of a key, counted from the begin of this epoch through the next one.
    fn place(&mut self, key: u32, window: u32) -> Option<u32> {
        if let Some(place) = self.now.upcoming(key, self.at.saturating_sub(window)) {
            return Some(place);
        }
        let length = self.now.len();
        self.next.as_mut()?.upcoming(key, 0).map(|place| length + place)
    }

    fn take(&mut self, key: u32, place: u32, now_us: u64) {
        if place < self.now.len() {
            self.now.read(key);
        } else if let Some(next) = &mut self.next {
            next.read(key);
        }
        let further = (place + 1).saturating_sub(self.at);
        if further > 0 {
            self.note_pace(further, now_us);
            self.at = place + 1;
            self.last_us = now_us;
        }
    }

    fn note_pace(&mut self, places: u32, now_us: u64) {
        let elapsed_us = (now_us - self.last_us) as f64;
        let is_pause = self.paced >= PACE_READS_MIN
            && elapsed_us > STALL_INTERVALS * f64::from(places) * self.interval_us();
        if self.last_us == 0 || is_pause {
            return;
        }
        let reads_max = (PACE_SHARE * f64::from(self.now.len())).max(PACE_READS_MIN);
        let keeps = 1.0 - (f64::from(places) / reads_max).min(1.0);
        self.pace_us = self.pace_us * keeps + elapsed_us;
        self.paced = self.paced * keeps + f64::from(places);
    }

    /// Time from one place to the next.
    fn interval_us(&self) -> f64 {
        if self.paced > 0.0 { self.pace_us / self.paced } else { 0.0 }
    }

    fn judge(&mut self, fits: bool) {
        self.judged = (self.judged + 1).min(JUDGED_READS);
        self.trust += (f64::from(u8::from(fits)) - self.trust) / f64::from(self.judged);
        if !self.is_trusted && self.judged >= JUDGED_MIN && self.trust >= TRUST_HIGH {
            self.is_trusted = true;
            self.adopting = Some(0);
            self.lost = 0;
        } else if self.is_trusted && self.trust < TRUST_LOW {
            self.is_trusted = false;
            (self.judged, self.trust) = (0, 0.0);
            self.begin();
        }
    }

    /// A read did not fit: the job may be elsewhere.
    fn look_elsewhere(&mut self, place: Option<u32>, window: u32, now_us: u64) {
        let (there, reads) = self.elsewhere;
        self.elsewhere = match place {
            Some(place) if place.abs_diff(there) <= window => (place.max(there), reads + 1),
            Some(place) => (place, 1),
            None => (0, 0),
        };
        if self.elsewhere.1 >= ELSEWHERE_READS {
            self.at = self.elsewhere.0 + 1;
            self.last_us = now_us;
            self.elsewhere = (0, 0);
            (self.judged, self.trust) = if self.is_trusted { (self.judged, self.trust) } else { (0, 0.0) };
        }
        self.lost += u32::from(!self.is_trusted);
        if self.lost >= TRY_READS.max(self.now.len() / TRY_SHARE) {
            self.lost = 0;
            if !self.go_on() {
                self.begin();
            }
            self.at = 0;
        }
    }

    /// When it will read a key; nothing when the key is not in its plan any more or never was.
    pub(super) fn due_us(&mut self, key: u32, now_us: u64) -> Option<u64> {
        let window = self.window();
        let (length, at) = (self.now.len(), self.at);
        let places = match self.place(key, window) {
            Some(place) => f64::from(place.saturating_sub(at)),
            // It is left out of these two epochs: of later ones nobody knows yet.
            None if self.epoch + 2 < self.plan.reading().first_epoch + self.plan.reading().epochs => {
                2.5 * f64::from(length) - f64::from(at)
            }
            None => return Some(NEVER),
        };
        let interval_us = self.interval_us();
        let stall_us = (now_us.saturating_sub(self.last_us) as f64 - STALL_INTERVALS * interval_us).max(0.0);
        Some(now_us + (places * interval_us + stall_us) as u64)
    }

    /// Whether blocks are to be looked for that were kept before it was trusted.
    pub(super) const fn adopts(&self) -> bool {
        self.is_trusted && self.adopting.is_some()
    }

    /// The next keys whose blocks are to be looked for, of so many.
    pub(super) fn take_to_adopt(&mut self, keys: u32) -> Range<u32> {
        let from = self.adopting.unwrap_or(keys);
        let to = (from + ADOPTED).min(keys);
        self.adopting = Some(to).filter(|to| *to < keys);
        from..to
    }

    /// What it reads behind where it is, in order, but not before `from`: counts of reads and keys. Counts go
    /// on from epoch to epoch.
    pub(in crate::engine) fn ahead(&self, from: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let length = self.now.len();
        let from = from.saturating_sub(self.passed).max(u64::from(self.at));
        let to = length + self.next.as_ref().map_or(0, Lap::len);
        let key = move |place: u32| match place.checked_sub(length) {
            None => self.now.key(place),
            Some(place) => self.next.as_ref()?.key(place),
        };
        let places = u32::try_from(from).unwrap_or(to)..to;
        places.filter_map(move |place| Some((self.passed + u64::from(place), key(place)?)))
    }
}
