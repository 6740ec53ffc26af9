//! Read-ahead limits: those set by a rule, or else the learned ones, scaled by the phase of the workload.
//!
//! Invariant: limits are within the bounds that the settings set for all workloads.

use super::PolicyEngine;
use crate::engine::{ReadAheadLimits, ReadAheadOrder};
use crate::language::{Optimization, Phase, PrefetchSource, Setting, Strategy};

/// Read-ahead parameters set by a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchParameters {
    /// Depth, in blocks.
    pub depth: u32,
    /// Bytes.
    pub bytes_max: u64,
    /// Eagerness.
    pub strategy: Strategy,
    /// Source of the next objects.
    pub next: PrefetchSource,
}

impl PolicyEngine {
    /// Returns the read-ahead limits for a family of callers.
    #[must_use]
    pub fn read_ahead_limits(&self, family: u64, by_rule: Option<PrefetchParameters>) -> ReadAheadLimits {
        let (program, settings) = (&self.program, self.program.settings());
        let phase: Option<Phase> = self.workloads.get(family).and_then(|workload| workload.phase);
        let otherwise = || PrefetchParameters {
            depth: with_effort(program.prefetch_depth(), settings.optimization(phase)),
            bytes_max: u64::MAX,
            strategy: settings.prefetch(phase),
            next: PrefetchSource::Auto,
        };
        let PrefetchParameters { depth, bytes_max, strategy, next } = by_rule.unwrap_or_else(otherwise);
        ReadAheadLimits {
            blocks_max: settings.depth_within(with_strategy(depth, strategy)),
            bytes_max: bytes_max.min(settings.bytes(Setting::PrefetchBytesMax)),
            order: match next {
                PrefetchSource::Auto => ReadAheadOrder::Any,
                PrefetchSource::Blocks => ReadAheadOrder::Nothing,
                PrefetchSource::Shards => ReadAheadOrder::Numbered,
                PrefetchSource::Planned => ReadAheadOrder::Planned,
            },
        }
    }
}

/// Scales the depth: larger where one workload matters most, smaller where others have to be protected.
const fn with_effort(depth: u32, optimization: Optimization) -> u32 {
    match optimization {
        Optimization::Basic => depth / 4,
        Optimization::Balanced => depth,
        Optimization::Aggressive => depth.saturating_mul(2),
        Optimization::Maximum => depth.saturating_mul(4),
    }
}

/// Returns the part of the depth that a strategy uses. Wasted read-ahead reduces it further for each stream.
const fn with_strategy(depth: u32, strategy: Strategy) -> u32 {
    match strategy {
        Strategy::Conservative => depth / 4,
        Strategy::Balanced => depth / 2,
        Strategy::Aggressive | Strategy::Adaptive => depth,
    }
}

#[cfg(test)]
mod tests {
    use super::PrefetchParameters;
    use crate::engine::{Options, ReadAheadLimits, ReadAheadOrder};
    use crate::language::{ParsedPolicy, PrefetchSource, Program, Strategy};
    use crate::policy_engine::PolicyEngine;
    use std::sync::Arc;

    fn decider(settings: &str) -> PolicyEngine {
        let text = format!("version: 1\nsettings: {{{settings}}}\n");
        let program =
            Program::compile_above_built_in(&[ParsedPolicy::parse("p.yaml", &text).unwrap()]).unwrap();
        let options = Options { capacity_bytes: 1 << 20, blocks_max: 16, block_bytes: 8 << 20, seed: 7 };
        PolicyEngine::new(options, Arc::new(program))
    }

    #[test]
    fn settings_set_the_depth_where_no_rule_does() {
        // Learning starts at 64 blocks.
        for (settings, blocks) in [
            ("prefetch_depth_max: 256", 64),
            ("prefetch_depth_max: 256, prefetch: balanced", 32),
            ("prefetch_depth_max: 256, prefetch: conservative", 16),
            ("prefetch_depth_max: 256, optimization: basic", 16),
            ("prefetch_depth_max: 256, optimization: aggressive", 128),
            ("prefetch_depth_max: 256, optimization: maximum", 256),
            ("prefetch_depth_max: 100, optimization: maximum", 100),
            ("prefetch_depth_min: 20, optimization: basic, prefetch: conservative", 20),
            // Workloads without a phase are not affected by a phase's setting.
            ("prefetch_depth_max: 256, prefetch.training: conservative", 64),
        ] {
            assert_eq!(decider(settings).read_ahead_limits(1, None).blocks_max, blocks, "{settings}");
        }
        assert_eq!(decider("prefetch_bytes_max: 2MiB").read_ahead_limits(1, None).bytes_max, 2 << 20);
    }

    #[test]
    fn a_rule_sets_the_limits_within_the_bounds_for_all() {
        let decider = decider("prefetch_depth_max: 40, prefetch_bytes_max: 1GiB, optimization: basic");
        let reach = |depth, strategy, next| {
            let ReadAheadLimits { blocks_max, bytes_max, order: beyond } = decider
                .read_ahead_limits(1, Some(PrefetchParameters { depth, bytes_max: 1 << 20, strategy, next }));
            assert_eq!(bytes_max, 1 << 20);
            (blocks_max, beyond)
        };
        assert_eq!(reach(12, Strategy::Adaptive, PrefetchSource::Auto), (12, ReadAheadOrder::Any));
        assert_eq!(reach(12, Strategy::Conservative, PrefetchSource::Blocks), (3, ReadAheadOrder::Nothing));
        assert_eq!(reach(100, Strategy::Aggressive, PrefetchSource::Shards), (40, ReadAheadOrder::Numbered));
        assert_eq!(reach(2, Strategy::Conservative, PrefetchSource::Planned), (1, ReadAheadOrder::Planned));
    }
}
