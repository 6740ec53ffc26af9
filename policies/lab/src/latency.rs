//! Model of the time that readers wait for an origin, and of the waits that read-ahead avoids.
//!
//! The model has a server and its clients. Each caller sends one request after another and computes between
//! them. Data that is not cached comes from upstream, which answers after a fixed latency and then at the
//! rate of its link, which all callers share. Blocks are cached as the engine advises; bypassed blocks stay
//! in a memory of bounded size until they are read. Blocks that the engine predicts are fetched
//! immediately, and their outcome is reported to the engine. Time is that of the model: the same requests
//! give the same waits everywhere.

mod store;

use super::blocks::touched;
use super::caller_plans::CallerPlan;
use super::scene::{GeneratedRequest, Scene};
use mlgw_policies::engine::{
    Advice, CacheEngine, Options, ReadAheadLimits, ReadAheadOutcome, ReadAheadRange, TooManyPlans,
    UnreadBlock,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use store::{FetchedBlock, SimulatedStore};

/// Parameters of the server, its upstream and the work of the clients.
#[derive(Clone, Copy, Debug)]
pub struct LatencySetup {
    /// Time to the first byte from upstream.
    pub latency_us: u64,
    /// Link rate in bytes per microsecond.
    pub bytes_per_us: f64,
    /// Computing time of a caller after each request, in microseconds.
    pub work_us: f64,
    /// Additional computing time for each byte of the request, in microseconds.
    pub work_byte_us: f64,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Cache capacity in bytes.
    pub capacity_bytes: u64,
    /// Memory in bytes for bypassed blocks that have not been read yet.
    pub memory_bytes: u64,
    /// Read-ahead limits; `None` disables read-ahead.
    pub ahead: Option<ReadAheadLimits>,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyResult {
    /// Number of requests.
    pub requests: u64,
    /// Requests that waited for upstream for more than a millisecond.
    pub waited: u64,
    /// Requests for the start of an object.
    pub begins: u64,
    /// Requests for the start of an object that waited.
    pub begins_waited: u64,
    /// Bytes fetched from upstream.
    pub upstream_bytes: u64,
    /// Bytes that were fetched from upstream by read-ahead.
    pub ahead_bytes: u64,
    /// Bytes that were fetched by read-ahead and were not requested before they were dropped.
    pub wasted_bytes: u64,
    /// Time at which the last caller finished.
    pub end_us: u64,
}

impl LatencyResult {
    /// The fraction of requests that did not wait for upstream.
    #[must_use]
    pub fn prompt_share(&self) -> f64 {
        1.0 - self.waited as f64 / self.requests.max(1) as f64
    }

    /// The fraction of requests that did not wait for upstream, without requests for the start of an
    /// object.
    #[must_use]
    pub fn prompt_share_within(&self) -> f64 {
        let (requests, waited) = (self.requests - self.begins, self.waited - self.begins_waited);
        1.0 - waited as f64 / requests.max(1) as f64
    }

    /// The fraction of bytes fetched from upstream that no caller requested.
    #[must_use]
    pub fn wasted_share(&self) -> f64 {
        self.wasted_bytes as f64 / self.upstream_bytes.max(1) as f64
    }
}

/// Shortest wait that counts, in microseconds.
const WAIT_US: u64 = 1000;

struct SimulatedServer<'a> {
    scene: &'a Scene,
    setup: LatencySetup,
    engine: CacheEngine,
    /// Keys by bucket and name, to check whether a predicted key exists.
    keys: HashMap<(u64, &'a str), u32>,
    /// Time until which the link is busy.
    link_us: f64,
    store: SimulatedStore,
    next: Vec<ReadAheadRange>,
    waits: LatencyResult,
}

/// Runs the requests of each caller in sequence, with the given access plans.
///
/// # Errors
/// If there are too many plans.
pub fn run(
    scene: &Scene,
    requests: impl Iterator<Item = GeneratedRequest>,
    plans: &[CallerPlan],
    setup: &LatencySetup,
) -> Result<LatencyResult, TooManyPlans> {
    let mut callers: BTreeMap<u16, VecDeque<GeneratedRequest>> = BTreeMap::new();
    requests.for_each(|request| callers.entry(request.caller).or_default().push_back(request));
    let mut engine = CacheEngine::new(Options {
        capacity_bytes: setup.capacity_bytes,
        blocks_max: 1 << 20,
        block_bytes: u64::from(setup.block_bytes),
        seed: 0,
    });
    for (number, caller) in plans.iter().enumerate() {
        engine.put_plan(number as u64, caller.who, caller.bucket, caller.plan.clone())?;
    }
    let numbers = 0..scene.keys.len() as u32;
    let mut server = SimulatedServer {
        scene,
        setup: *setup,
        engine,
        keys: numbers.map(|key| ((scene.keys.bucket(key), scene.keys.name(key)), key)).collect(),
        link_us: 0.0,
        store: SimulatedStore::default(),
        next: Vec::new(),
        waits: LatencyResult::default(),
    };
    let first = |requests: &VecDeque<GeneratedRequest>| requests.front().map_or(0, |request| request.at_us);
    let mut due: BinaryHeap<_> = callers.iter().map(|(caller, its)| Reverse((first(its), *caller))).collect();
    while let Some(Reverse((now_us, caller))) = due.pop() {
        let Some(request) = callers.get_mut(&caller).and_then(VecDeque::pop_front) else { continue };
        let done_us = server.serve(&request, now_us);
        let bytes = (request.range.end - request.range.start) as f64;
        let work_us = setup.work_us + bytes * setup.work_byte_us;
        server.waits.end_us = server.waits.end_us.max(done_us + work_us as u64);
        due.push(Reverse((done_us + work_us as u64, caller)));
    }
    server.waits.wasted_bytes += server.store.unread_bytes();
    Ok(server.waits)
}

impl SimulatedServer<'_> {
    /// Serves a request and returns the time at which it completes.
    fn serve(&mut self, request: &GeneratedRequest, now_us: u64) -> u64 {
        let mut access = self.scene.access(request);
        access.at_us = now_us;
        let seen = self.engine.observe(&access);
        let mut done_us = now_us;
        for (block, bytes) in touched(access.size, &access.range, self.setup.block_bytes) {
            let id = self.engine.block_id(access.bucket, access.key, block);
            let advice = self.engine.read(seen, &access, block);
            self.drop_evicted();
            let ready_us = match self.store.read(id, advice) {
                Some(FetchedBlock { ready_us: there_us, stream, .. }) => {
                    if let Some(stream) = stream {
                        let outcome =
                            if there_us > now_us { ReadAheadOutcome::Late } else { ReadAheadOutcome::Used };
                        self.engine.record_ahead_outcome(stream, access.bucket, access.key, outcome, 1);
                    }
                    there_us
                }
                None => {
                    let there_us = self.fetch(bytes, now_us);
                    let fetched = FetchedBlock { ready_us: there_us, bytes, key: request.key, stream: None };
                    match advice {
                        Advice::Kept | Advice::Keep => self.store.keep(id, fetched),
                        Advice::Bypass => self.store.buffer(id, fetched),
                    }
                    there_us
                }
            };
            done_us = done_us.max(ready_us);
        }
        self.count(request, done_us - now_us);
        if let Some(limits) = self.setup.ahead {
            let mut next = std::mem::take(&mut self.next);
            self.engine.read_ahead(seen, &access, &limits, &mut next);
            next.drain(..).for_each(|next| self.fetch_ahead(&next, now_us));
            self.next = next;
        }
        self.trim();
        done_us
    }

    fn count(&mut self, request: &GeneratedRequest, wait_us: u64) {
        let waited = u64::from(wait_us > WAIT_US);
        let begins = u64::from(request.range.start == 0);
        self.waits.requests += 1;
        self.waits.waited += waited;
        self.waits.begins += begins;
        self.waits.begins_waited += begins * waited;
    }

    /// Fetches bytes that a caller is waiting for and returns the time at which they arrive.
    fn fetch(&mut self, bytes: u32, now_us: u64) -> u64 {
        self.waits.upstream_bytes += u64::from(bytes);
        let begins_us = self.link_us.max((now_us + self.setup.latency_us) as f64);
        self.link_us = begins_us + f64::from(bytes) / self.setup.bytes_per_us;
        self.link_us as u64
    }

    fn fetch_ahead(&mut self, next: &ReadAheadRange, now_us: u64) {
        let report = |engine: &mut CacheEngine, outcome, blocks| {
            engine.record_ahead_outcome(next.stream, next.bucket, &next.key, outcome, blocks);
        };
        let Some(key) = self.keys.get(&(next.bucket, next.key.as_str())).copied() else {
            return report(&mut self.engine, ReadAheadOutcome::Absent, next.blocks);
        };
        let size = self.scene.keys.size(key);
        for block in next.first..next.first + next.blocks {
            let first = u64::from(block) * u64::from(self.setup.block_bytes);
            let id = self.engine.block_id(next.bucket, &next.key, block);
            if first >= size || self.store.has(id) {
                report(&mut self.engine, ReadAheadOutcome::Declined, 1);
                continue;
            }
            let bytes = (size - first).min(u64::from(self.setup.block_bytes)) as u32;
            let unread = UnreadBlock { bucket: next.bucket, key: &next.key, size, number: block };
            let advice = self.engine.admit_unread(now_us, &unread);
            self.drop_evicted();
            let there_us = self.fetch(bytes, now_us);
            self.waits.ahead_bytes += u64::from(bytes);
            let fetched = FetchedBlock { ready_us: there_us, bytes, key, stream: Some(next.stream) };
            match advice {
                Advice::Keep => self.store.keep(id, fetched),
                Advice::Kept | Advice::Bypass => self.store.buffer(id, fetched),
            }
        }
    }

    /// Drops the blocks that the engine evicted.
    fn drop_evicted(&mut self) {
        let evicted: Vec<u64> = self.engine.take_evicted().collect();
        for fetched in evicted.into_iter().filter_map(|id| self.store.evict(id)).collect::<Vec<_>>() {
            self.waste(fetched);
        }
    }

    /// Drops the oldest bypassed blocks until the memory bound holds.
    fn trim(&mut self) {
        while let Some(fetched) = self.store.trim(self.setup.memory_bytes) {
            self.waste(fetched);
        }
    }

    fn waste(&mut self, fetched: FetchedBlock) {
        if let Some(stream) = fetched.stream {
            self.waits.wasted_bytes += u64::from(fetched.bytes);
            let keys = &self.scene.keys;
            let (bucket, name) = (keys.bucket(fetched.key), keys.name(fetched.key));
            self.engine.record_ahead_outcome(stream, bucket, name, ReadAheadOutcome::Wasted, 1);
        }
    }
}

#[cfg(test)]
mod tests;
