//! A rate with exponential decay.

/// Half-life of counted events: one minute.
const HALF_US: f64 = 60e6;

/// Events per second, weighted towards recent ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecayingRate {
    weight: f64,
    at_us: u64,
    since_us: u64,
}

impl DecayingRate {
    /// Adds `amount` events.
    pub(super) fn count(&mut self, now_us: u64, amount: f64) {
        if self.weight == 0.0 {
            self.since_us = now_us;
        }
        // Within a hundredth of the half-life the decay is negligible, so that `exp2` is not evaluated.
        let passed_us = now_us.saturating_sub(self.at_us);
        if passed_us as f64 > HALF_US / 100.0 {
            self.weight *= decay(passed_us);
            self.at_us = now_us;
        }
        self.weight += amount;
    }

    /// Current rate in events per second.
    pub(super) fn per_second(&self, now_us: u64) -> f64 {
        let weight = self.weight * decay(now_us.saturating_sub(self.at_us));
        // The expected weight is smaller shortly after the start; the result is scaled accordingly.
        let age = 1.0 - decay(now_us.saturating_sub(self.since_us).max(1_000_000));
        weight * std::f64::consts::LN_2 / (HALF_US / 1e6) / age
    }
}

fn decay(us: u64) -> f64 {
    (-(us as f64) / HALF_US).exp2()
}

#[cfg(test)]
mod tests {
    use super::DecayingRate;

    #[test]
    fn a_steady_rate_is_measured_soon_and_decays_after_the_end() {
        let mut rate = DecayingRate::default();
        for event in 1..=3000_u64 {
            rate.count(event * 100_000, 1.0);
            if event == 50 || event == 3000 {
                let found = rate.per_second(event * 100_000);
                assert!((found - 10.0).abs() < 1.0, "{event}: {found}");
            }
        }
        assert!(rate.per_second(300_000_000 + 600_000_000) < 0.02);
    }
}
