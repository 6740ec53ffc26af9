//! Detection of the order in which a dataset is read, from a few dozen requests of any of a job's ranks and
//! workers.
//!
//! Each request is examined for three properties. First, whether it continues where one of the last requests
//! ended (the next number of the same name, or the next bytes of the same object). Second, whether its key is
//! greater than that of a request a while ago. Third, if it jumps, whether it jumps to the next group (shard,
//! class, day). Sequential reads have the second property, shuffled reads have it by chance, and reads that
//! shuffle shards continue only within a shard. In a small dataset many requests continue by chance, because
//! much was requested recently; the expected number of these is subtracted. Bounded: one ring of expected
//! continuations and one of keys.

use crate::key_parts::name_at;
use std::collections::VecDeque;
use xxhash_rust::xxh3::xxh3_64;

/// Recent requests that are remembered with their expected continuations; up to this many workers may read in
/// turns.
const NEXT_MAX: usize = 64;
/// Numbers of recent requests among which a continuation is searched. A small number matters in a small
/// dataset, where every request continues one of many by chance: few workers continue one of few requests.
const NEAR: [usize; 4] = [1, 4, 16, NEXT_MAX];
const NEAR_FEW: usize = 1;
const NEAR_ALL: usize = NEAR.len() - 1;
/// Keys are compared with a key from a while ago, so that workers may overtake each other. One key in
/// `KEY_EVERY` is remembered, `KEYS_MAX` in all; comparison starts with `KEYS_MIN`.
const KEY_EVERY: u32 = 4;
const KEYS_MAX: usize = 8;
const KEYS_MIN: usize = 4;
/// Minimum requests before an order is reported.
const REQUESTS_MIN: u32 = 12;
/// Counts are halved when this many requests are counted, so that the order may change.
const REQUESTS_MAX: u32 = 4096;
/// Share of requests with a greater key from which reads count as sequential.
const AHEAD_SHARE: f64 = 0.9;
/// Lower share that suffices for many workers that overtake each other: still more than by chance.
const MOSTLY_AHEAD_SHARE: f64 = 0.72;
const CONTINUED_SHARE: f64 = 0.36;
/// Share of the requests that do not continue by chance that has to continue as well.
const CONTINUED_SHARE_OF_REST: f64 = 0.25;
const GAP_SHARE: f64 = 0.3;
/// Minimum comparisons and jumps for a reliable result; with fewer, jumps also have to lead to the next
/// group, because a few shards can be in order by chance.
const COMPARED_SURE: u32 = 32;
const JUMPS_SURE: u32 = 4;
/// Minimum passes from which a small dataset's order is judged by the number of jumps: in it, a key from a
/// while ago is of the previous pass and carries no information.
const PASSES_MIN: f64 = 1.8;
/// Minimum requests per object from which objects count as groups.
const REQUESTS_PER_GROUP: u32 = 3;

/// Start of a read, compared with its object and with other reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadStart {
    /// The read begins an object or continues where another read ended.
    Sequential,
    /// The read begins elsewhere.
    Gap,
}

/// Order of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadOrder {
    /// Order of the keys.
    Sequential,
    /// No order.
    Shuffled,
    /// Groups of keys, or large objects, in no order, and in order within each.
    ShardShuffled,
    /// Selected byte ranges of objects.
    Ranged,
}

/// State of the detection for a job's requests to a dataset.
pub(super) struct OrderDetector {
    /// Expected continuations of recent requests: hashes of name and position.
    continuations: [u64; NEXT_MAX],
    next_at: usize,
    /// Bit set of hashes of request positions, to estimate the number of positions while it is small.
    positions: u128,
    /// Keys from a while ago, oldest first.
    keys: VecDeque<String>,
    /// Groups that follow the recently begun ones, each with the request at which its predecessor was last
    /// read.
    groups: [(u64, u32); NEXT_MAX],
    groups_at: usize,
    last_group: u64,
    requests: u32,
    /// Requests that continued one of the last requests, per number in `NEAR`, and the requests that these
    /// were compared with.
    continued: [u32; NEAR.len()],
    compared: [u32; NEAR.len()],
    ahead: u32,
    behind: u32,
    gaps: u32,
    jumps: u32,
    next_groups: u32,
    /// Requests for the start of an object, and those of them that continued.
    starts: u32,
    starts_on: u32,
}

impl OrderDetector {
    pub(super) fn new() -> Self {
        Self {
            continuations: [0; NEXT_MAX],
            next_at: 0,
            positions: 0,
            keys: VecDeque::with_capacity(KEYS_MAX),
            groups: [(0, 0); NEXT_MAX],
            groups_at: 0,
            last_group: 0,
            requests: 0,
            continued: [0; NEAR.len()],
            compared: [0; NEAR.len()],
            ahead: 0,
            behind: 0,
            gaps: 0,
            jumps: 0,
            next_groups: 0,
            starts: 0,
            starts_on: 0,
        }
    }

    /// Records a read of bytes of an object of `size` bytes. Returns its start.
    pub(super) fn record(&mut self, key: &str, range: &std::ops::Range<u64>, size: u64) -> ReadStart {
        self.requests += 1;
        if self.requests == REQUESTS_MAX {
            self.halve();
        }
        let name = NumberedKey::of(key);
        let position =
            if range.start == 0 { name.position_hash(0) } else { byte_position_hash(key, range.start) };
        let is_continued = self.record_position(position);
        let is_gap = !is_continued && range.start > 0;
        self.gaps += u32::from(is_gap);
        let next = if range.end < size { byte_position_hash(key, range.end) } else { name.position_hash(1) };
        self.next_at = (self.next_at + 1) % NEXT_MAX;
        self.continuations[self.next_at] = next;
        if range.start == 0 {
            self.starts += 1;
            self.starts_on += u32::from(is_continued);
            self.compare(key);
            self.record_group(&name);
        }
        if is_gap { ReadStart::Gap } else { ReadStart::Sequential }
    }

    /// Records a request position. Returns true if it continues where one of the last requests ended.
    fn record_position(&mut self, position: u64) -> bool {
        self.positions |= 1 << (position >> 57);
        // Newest first: in a small dataset a position may occur twice.
        let mut ages =
            (0..NEXT_MAX).map(|age| self.continuations[(self.next_at + NEXT_MAX - age) % NEXT_MAX]);
        let age = if self.continuations.contains(&position) {
            ages.position(|next| next == position)
        } else {
            None
        };
        let earlier_requests = self.requests as usize - 1;
        for ((on, before), near) in self.continued.iter_mut().zip(&mut self.compared).zip(NEAR) {
            *on += u32::from(age.is_some_and(|age| age < near));
            *before += earlier_requests.min(near) as u32;
        }
        age.is_some()
    }

    fn halve(&mut self) {
        let pairs = self.continued.iter_mut().chain(&mut self.compared);
        pairs.for_each(|count| *count /= 2);
        let gone = self.requests - self.requests / 2;
        self.groups.iter_mut().for_each(|(_, at)| *at = at.saturating_sub(gone));
        for count in [
            &mut self.requests,
            &mut self.ahead,
            &mut self.behind,
            &mut self.gaps,
            &mut self.jumps,
            &mut self.next_groups,
            &mut self.starts,
            &mut self.starts_on,
        ] {
            *count /= 2;
        }
    }

    fn compare(&mut self, key: &str) {
        if self.keys.len() >= KEYS_MIN {
            // Alternates among the older half: a single key could be one of the first by chance.
            let earlier_key = &self.keys[self.requests as usize % (self.keys.len() / 2)];
            *(if key > earlier_key.as_str() { &mut self.ahead } else { &mut self.behind }) += 1;
        }
        if self.requests.is_multiple_of(KEY_EVERY) {
            let full = self.keys.len() == KEYS_MAX;
            let mut kept = if full { self.keys.pop_front().unwrap_or_default() } else { String::new() };
            kept.clear();
            kept.push_str(key);
            self.keys.push_back(kept);
        }
    }

    fn record_group(&mut self, name: &NumberedKey<'_>) {
        let group = name.group_hash(0);
        if group == self.last_group || group == 0 {
            return;
        }
        self.last_group = group;
        if self.is_open(name.group_hash(1)) {
            return;
        }
        if self.groups != [(0, 0); NEXT_MAX] {
            self.jumps += 1;
            // Among all groups begun before, the next group would be found for every second one by chance.
            self.next_groups += u32::from(self.groups[self.groups_at].0 == group);
        }
        self.groups_at = (self.groups_at + 1) % NEXT_MAX;
        self.groups[self.groups_at] = (name.group_hash(1), self.requests);
    }

    /// True if the group before the one that begins with `next` is being read in turns by another worker; a
    /// read in an earlier pass does not count.
    fn is_open(&mut self, next: u64) -> bool {
        let since = self.requests.saturating_sub(NEXT_MAX as u32);
        let Some(open) = self.groups.iter_mut().find(|(begun, at)| *begun == next && *at >= since) else {
            return false;
        };
        open.1 = self.requests;
        true
    }

    /// Returns the approximate number of positions while it is small, by linear counting.
    fn position_count(&self) -> f64 {
        let free = f64::from(self.positions.count_zeros().max(1));
        (128.0 * (128.0 / free).ln()).max(1.0)
    }

    /// True if at most one request per pass over all positions, plus one, did not continue.
    fn is_cyclic(&self) -> bool {
        let passes = f64::from(self.requests) / self.position_count();
        let breaks = self.requests - self.continued[NEAR_FEW];
        passes >= PASSES_MIN && f64::from(breaks) <= passes + 1.0
    }

    /// Returns the share of continued requests, among the last `NEAR[near]`, above which they are more than
    /// by chance.
    fn share_above_chance(&self, near: usize) -> f64 {
        let chance = f64::from(self.compared[near]) / f64::from(self.requests) / self.position_count();
        let chance = chance.min(1.0);
        chance + (1.0 - chance) * CONTINUED_SHARE_OF_REST
    }

    /// True if more requests continue than by chance.
    fn is_continuing(&self) -> bool {
        let share = |near: usize| f64::from(self.continued[near]) / f64::from(self.requests);
        (0..NEAR.len()).any(|near| share(near) >= CONTINUED_SHARE.max(self.share_above_chance(near)))
    }

    /// Returns the order, once it is known.
    pub(super) fn order(&self) -> Option<ReadOrder> {
        if self.requests < REQUESTS_MIN {
            return None;
        }
        let share = |count: u32, of: u32| f64::from(count) / f64::from(of.max(1));
        if share(self.gaps, self.requests) >= GAP_SHARE {
            return Some(ReadOrder::Ranged);
        }
        let compared = self.ahead + self.behind;
        let ahead = share(self.ahead, compared);
        let on = share(self.continued[NEAR_ALL], self.requests);
        // If objects take many requests each, an object is a group.
        let by_range = self.starts * REQUESTS_PER_GROUP < self.requests;
        let (jumps, next, required) = if by_range {
            (self.starts.saturating_sub(1), self.starts_on, self.share_above_chance(NEAR_ALL).max(0.5))
        } else {
            (self.jumps, self.next_groups, 0.5)
        };
        let skips = jumps > 0 && share(next, jumps) < required;
        let is_sure = compared >= COMPARED_SURE && jumps >= JUMPS_SURE;
        let is_ahead = ahead >= AHEAD_SHARE || ahead >= MOSTLY_AHEAD_SHARE && on >= CONTINUED_SHARE && !skips;
        match (is_ahead, self.is_continuing()) {
            (true, true) if skips && !is_sure => Some(ReadOrder::ShardShuffled),
            (true, _) if compared > 0 => Some(ReadOrder::Sequential),
            (_, true) if by_range && !skips => Some(ReadOrder::Sequential),
            (_, true) if self.is_cyclic() => Some(ReadOrder::Sequential),
            (_, true) => Some(ReadOrder::ShardShuffled),
            (false, false) if compared > 0 => Some(ReadOrder::Shuffled),
            _ => None,
        }
    }
}

/// A key, split at the relevant number in its name and at the number in its folder.
pub(super) struct NumberedKey<'a> {
    key: &'a str,
    /// Position of the number.
    at: std::ops::Range<usize>,
    folder: usize,
}

impl<'a> NumberedKey<'a> {
    pub(super) fn of(key: &'a str) -> Self {
        let folder = name_at(key);
        let stem = key[folder..].rfind('.').filter(|dot| *dot > 0).map_or(key.len(), |dot| folder + dot);
        let mut at = last_number(&key[..stem], folder);
        let before = last_number(&key[..at.start], folder);
        // In `part-00003-of-00128` the first number is the relevant one.
        if !before.is_empty() && key[before.end..at.start].contains("of") {
            at = before;
        }
        Self { key, at, folder }
    }

    /// Returns the relevant number.
    pub(super) fn number(&self) -> Option<u64> {
        self.key[self.at.clone()].parse().ok()
    }

    /// Returns a hash of the name without the number, shared by names that differ only in it.
    pub(super) fn row(&self) -> u64 {
        xxh3_64(&self.key.as_bytes()[..self.at.start])
            ^ xxh3_64(&self.key.as_bytes()[self.at.end..]).rotate_left(1)
    }

    /// Returns the same name with another number, with as many digits if it has leading zeros; `None` if the
    /// number needs more digits.
    pub(super) fn with_number(&self, number: u64) -> Option<String> {
        let (before, digits, after) =
            (&self.key[..self.at.start], &self.key[self.at.clone()], &self.key[self.at.end..]);
        let other = format!("{number:0width$}", width = digits.len());
        (other.len() == digits.len() || !digits.starts_with('0')).then(|| format!("{before}{other}{after}"))
    }

    /// Returns the total number if the name contains it, as in `part-00003-of-00128`.
    pub(super) fn total(&self) -> Option<u64> {
        let rest = self.key[self.at.end..].trim_start_matches(['-', '_', '.']);
        let digits = rest.strip_prefix("of")?.trim_start_matches(['-', '_', '.']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    }

    /// Returns a hash of the name with `more` added to its number.
    fn position_hash(&self, more: u64) -> u64 {
        let number: u64 = self.key[self.at.clone()].parse().unwrap_or(0);
        let rest =
            xxh3_64(&self.key.as_bytes()[..self.at.start]) ^ xxh3_64(&self.key.as_bytes()[self.at.end..]);
        hash_with_number(rest, number.wrapping_add(more))
    }

    /// Returns the same for its group: its folder, or a number before the relevant one. Returns 0 if there is
    /// no such number.
    fn group_hash(&self, more: u64) -> u64 {
        let before = last_number(&self.key[..self.at.start], self.folder);
        let before = if before.is_empty() { last_number(&self.key[..self.folder], 0) } else { before };
        match self.key[before.clone()].parse::<u64>() {
            Ok(number) => {
                hash_with_number(xxh3_64(&self.key.as_bytes()[..before.start]), number.wrapping_add(more))
            }
            Err(_) => 0,
        }
    }
}

/// Returns the last run of decimal digits from `from` on.
fn last_number(text: &str, from: usize) -> std::ops::Range<usize> {
    let bytes = text.as_bytes();
    let Some(last) = (from..bytes.len()).rev().find(|at| bytes[*at].is_ascii_digit()) else {
        return text.len()..text.len();
    };
    let first = (from..last).rev().take_while(|at| bytes[*at].is_ascii_digit()).last().unwrap_or(last);
    first..last + 1
}

fn byte_position_hash(key: &str, at: u64) -> u64 {
    hash_with_number(xxh3_64(key.as_bytes()).rotate_left(1), at)
}

fn hash_with_number(what: u64, number: u64) -> u64 {
    super::names::mix_hash(what ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).max(1)
}
