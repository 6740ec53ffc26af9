//! Traffic without training: a few objects are read often, popularity drifts, new objects appear, and
//! everything is scanned from time to time.
//!
//! Ranks are drawn from a Zipf distribution by rejection-inversion (Hörmann and Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", 1996). Each rank
//! belongs to one object. At every hundredth request a new object takes over a random rank, whose previous
//! object is not read again, and one object swaps ranks with the object at a tenth of its rank, so that
//! popularity lasts for about ten requests per object. After every five requests per object, another caller
//! scans new objects of its own, a fifth of the number of objects.

use super::{GeneratedWorkload, WorkloadSettings};
use crate::scene::{GeneratedRequest, MergedRequests, Scene, StreamPattern};
use mlgw_policies::access::Op;
use std::sync::Arc;

const OBJECTS: u32 = 20_000;
const REQUESTS_PER_OBJECT: u32 = 50;
pub(super) const OBJECTS_AND_EPOCHS: (u32, u32) = (OBJECTS, REQUESTS_PER_OBJECT);
const ARRIVAL_ONE_IN: u64 = 100;
const DRIFT_ONE_IN: u64 = 100;
const SCAN_EVERY: u64 = 5;
/// Mean time between requests.
const STEP_US: f64 = 10_000.0;
/// Object sizes are between 64 KiB and 4 MiB, distributed evenly over the orders of magnitude.
const BYTES_MIN: f64 = 65536.0;
const BYTES_OCTAVES: f64 = 6.0;

pub(super) fn workload(settings: &WorkloadSettings) -> GeneratedWorkload {
    let count = settings.objects.unwrap_or(OBJECTS);
    let total = u64::from(settings.epochs.unwrap_or(REQUESTS_PER_OBJECT)) * u64::from(count);
    let mut scene = Scene::new(settings.naming, settings.seed);
    let mut requests = MergedRequests::default();
    requests.add(0, Box::new(reads(settings, count, total, &mut scene)));
    for number in 1..=total / (SCAN_EVERY * u64::from(count)) {
        let start = (number * SCAN_EVERY - SCAN_EVERY / 2) * u64::from(count);
        scan(settings, number, start, (count / 5).max(1), &mut scene, &mut requests);
    }
    GeneratedWorkload { scene, requests }
}

fn size(settings: &WorkloadSettings, random: &mut fastrand::Rng) -> u64 {
    settings.bytes(BYTES_MIN * (random.f64() * BYTES_OCTAVES).exp2())
}

fn reads(
    settings: &WorkloadSettings,
    count: u32,
    total: u64,
    scene: &mut Scene,
) -> impl Iterator<Item = GeneratedRequest> + Send + use<> {
    let mut random = settings.random(0);
    let keys = count + (total / ARRIVAL_ONE_IN) as u32;
    let add = |key: u32| {
        let bytes = size(settings, &mut random);
        scene.add_key("assets", &format!("web/{:02x}/{key:08}.webp", key % 251), bytes);
        bytes
    };
    let sizes: Arc<[u64]> = (0..keys).map(add).collect();
    let stream = scene.add_stream(StreamPattern::Skewed, 0, 1);
    let callers: Vec<_> =
        (0..8).map(|number| scene.add_caller(&format!("front-{number}"), "front")).collect();
    let zipf = Zipf::new(count, settings.alpha);
    let mut random = settings.random(1);
    let mut ranks: Vec<u32> = (0..count).collect();
    random.shuffle(&mut ranks);
    let mut newest = count;
    let step_us = settings.us(STEP_US);
    (0..total).map(move |number| {
        if number % ARRIVAL_ONE_IN == ARRIVAL_ONE_IN - 1 && newest < keys {
            ranks[random.u32(0..count) as usize] = newest;
            newest += 1;
        }
        if number % DRIFT_ONE_IN == 0 {
            let low = random.usize(0..ranks.len());
            ranks.swap(low / 10, low);
        }
        let key = ranks[zipf.draw(&mut random) as usize - 1];
        let at_us = ((number as f64 + random.f64()) * step_us) as u64;
        let caller = callers[random.usize(0..callers.len())];
        let range = 0..sizes[key as usize];
        GeneratedRequest { at_us, range, key, epoch: 0, caller, stream, op: Op::Read }
    })
}

/// Reads `count` objects that no other caller reads, at ten times the rate of the other requests.
fn scan(
    settings: &WorkloadSettings,
    number: u64,
    start: u64,
    count: u32,
    scene: &mut Scene,
    requests: &mut MergedRequests,
) {
    let mut random = settings.random(100 + number);
    let caller = scene.add_caller(&format!("scan-{number}"), "scan");
    let stream = scene.add_stream(StreamPattern::OnePass, number as u16, 1);
    let first = scene.keys.len() as u32;
    let sizes: Vec<_> = (0..count)
        .map(|object| {
            let bytes = size(settings, &mut random);
            scene.add_key("assets", &format!("export/{number:04}/part-{object:06}.csv"), bytes);
            bytes
        })
        .collect();
    let step_us = settings.us(STEP_US);
    let start_us = start as f64 * step_us;
    let reads = sizes.into_iter().zip(first..).map(move |(bytes, key)| {
        let at_us = (start_us + f64::from(key - first) * step_us / 10.0) as u64;
        GeneratedRequest { at_us, range: 0..bytes, key, epoch: 0, caller, stream, op: Op::Read }
    });
    requests.add(start_us as u64, Box::new(reads));
}

/// Draws numbers from 1 to `count`; the probability of n is proportional to n to the power of −`alpha`.
pub(crate) struct Zipf {
    alpha: f64,
    count: f64,
    area_first: f64,
    area_last: f64,
    accept_below: f64,
}

impl Zipf {
    pub(crate) fn new(count: u32, alpha: f64) -> Self {
        let mut zipf =
            Self { alpha, count: f64::from(count), area_first: 0.0, area_last: 0.0, accept_below: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_last = zipf.area(zipf.count + 0.5);
        zipf.accept_below = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.height(2.0));
        zipf
    }

    pub(crate) fn draw(&self, random: &mut fastrand::Rng) -> u32 {
        loop {
            let area = self.area_last + random.f64() * (self.area_first - self.area_last);
            let x = self.area_inverse(area);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.accept_below || area >= self.area(rank + 0.5) - self.height(rank) {
                return rank as u32;
            }
        }
    }

    fn height(&self, x: f64) -> f64 {
        (-self.alpha * x.ln()).exp()
    }

    /// The integral of [`Self::height`] from 1 to `x`.
    fn area(&self, x: f64) -> f64 {
        let exponent = (1.0 - self.alpha) * x.ln();
        let slope = if exponent.abs() > 1e-8 { exponent.exp_m1() / exponent } else { 1.0 + exponent / 2.0 };
        slope * x.ln()
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.alpha)).max(-1.0);
        let slope = if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 };
        (slope * area).exp()
    }
}
