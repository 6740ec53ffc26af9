//! State of the server for rules, updated every second.
//!
//! Readers get the last update, so that a read costs nothing. Upstream statistics cover the last seconds
//! and are unknown if there were no requests. No state outlives the process.

use super::Policies;
use super::server_facts::{SystemFacts, percent};
use mlgw_cache::copies::Copies;
use mlgw_cache::remote_backed::RemoteBackedBuckets;
use mlgw_common::Clock;
use mlgw_segments::tiers::Tiers;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);
/// Period over which the read rate from upstreams is measured; the next constant is that of their latency.
const BANDWIDTH_OVER_MS: i64 = 10_000;
const LATENCY_OVER_MS: i64 = 60_000;

/// Updates the state until the policy is dropped, for the first time immediately.
pub async fn run(policies: Weak<Policies>, tiers: Tiers, bound: RemoteBackedBuckets, clock: Arc<dyn Clock>) {
    let mut samples = UpstreamSamples::default();
    loop {
        let Some(policies) = policies.upgrade() else { return };
        policies.set_system(current_facts(&policies, &tiers, &bound, &*clock, &mut samples));
        drop(policies);
        mlgw_common::time::sleep(EVERY).await;
    }
}

fn current_facts(
    policies: &Policies,
    tiers: &Tiers,
    bound: &RemoteBackedBuckets,
    clock: &dyn Clock,
    samples: &mut UpstreamSamples,
) -> SystemFacts {
    let (memory, hot) = (tiers.memory.metrics(), tiers.hot.metrics());
    let copies = bound.copies().map(Copies::metrics).unwrap_or_default();
    let upstreams = bound.origin_metrics();
    samples.push(upstreams.iter().fold(
        Sample { at_ms: clock.now().as_millis(), ..Sample::default() },
        |before, (_, of)| {
            let got = of.durations.get("get").copied().unwrap_or_default();
            Sample {
                bytes: before.bytes + of.received_bytes,
                answers: before.answers + got.count(),
                nanos: before.nanos + got.nanos,
                ..before
            }
        },
    ));
    SystemFacts {
        server: policies.server(),
        hot_fill: percent(hot.used_bytes, hot.used_bytes + hot.room_bytes),
        cold_fill: percent(hot.cold_used_bytes, hot.cold_used_bytes + hot.cold_room_bytes),
        copies_fill: percent(copies.used_bytes, copies.limit_bytes),
        memory_fill: percent(memory.used_bytes, memory.limit_bytes),
        bandwidth: (!upstreams.is_empty()).then(|| samples.bandwidth()),
        upstream_latency: samples.latency(),
    }
}

/// Totals of all upstreams at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at_ms: i64,
    bytes: u64,
    answers: u64,
    /// Total latency of these answers.
    nanos: u64,
}

/// Recent samples of upstream totals, the oldest first.
#[derive(Debug, Default)]
struct UpstreamSamples(VecDeque<Sample>);

impl UpstreamSamples {
    fn push(&mut self, now: Sample) {
        while self.0.get(1).is_some_and(|next| next.at_ms + LATENCY_OVER_MS <= now.at_ms) {
            self.0.pop_front();
        }
        let is_growing = self.0.back().is_none_or(|before| before.bytes <= now.bytes);
        assert!(is_growing, "totals of upstreams only grow");
        self.0.push_back(now);
    }

    /// The newest sample, and one from at least `over_ms` before, or else the oldest.
    fn since(&self, over_ms: i64) -> Option<(Sample, Sample)> {
        let newest = self.0.back()?;
        let before = self.0.iter().rev().find(|one| one.at_ms + over_ms <= newest.at_ms);
        Some((*newest, *before.or_else(|| self.0.front())?))
    }

    /// Received bytes a second.
    fn bandwidth(&self) -> u64 {
        let Some((newest, before)) = self.since(BANDWIDTH_OVER_MS) else { return 0 };
        let over_ms = u64::try_from(newest.at_ms - before.at_ms).unwrap_or(0);
        (newest.bytes - before.bytes).saturating_mul(1000).checked_div(over_ms).unwrap_or(0)
    }

    /// Mean time to the first byte; `None` if there were no answers.
    fn latency(&self) -> Option<Duration> {
        let (newest, before) = self.since(LATENCY_OVER_MS)?;
        (newest.nanos - before.nanos).checked_div(newest.answers - before.answers).map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::{Sample, UpstreamSamples};
    use std::time::Duration;

    #[test]
    fn upstream_statistics_cover_the_last_seconds() {
        let mut samples = UpstreamSamples::default();
        assert_eq!((samples.bandwidth(), samples.latency()), (0, None));
        let mut now = Sample::default();
        for second in 0..200 {
            now.at_ms = second * 1000;
            samples.push(now);
            // Bytes: 1,000 a second, then 3,000. Answers: one per second after 20 ms, then none, then one
            // per second after 40 ms.
            let before = Sample { ..now };
            match second {
                60 => {
                    assert_eq!(
                        (samples.bandwidth(), samples.latency()),
                        (1000, Some(Duration::from_millis(20)))
                    )
                }
                110 => assert_eq!(samples.bandwidth(), 3000),
                115 => assert_eq!(
                    samples.latency(),
                    Some(Duration::from_millis(20)),
                    "recent means the last minute"
                ),
                161 => assert_eq!((samples.bandwidth(), samples.latency()), (3000, None)),
                199 => assert_eq!(samples.latency(), Some(Duration::from_millis(40))),
                _ => {}
            }
            now.bytes += if second < 100 { 1000 } else { 3000 };
            let (answers, nanos) = match second {
                ..100 => (1, 20_000_000),
                100..165 => (0, 0),
                _ => (1, 40_000_000),
            };
            (now.answers, now.nanos) = (before.answers + answers, before.nanos + nanos);
        }
        assert!(samples.0.len() <= 62);
    }
}
