//! What is best done with one object: how far to read ahead, whether to keep a copy and how dear it is, and
//! why.

use super::actions::Aspect;
use super::program::Program;
use super::resolve::resolve;
use super::settings::Setting;
use super::verdict::Verdict;
use super::wish::Wish;
use super::words::{CachePolicy, Phase, Priority, Strategy};

/// A recommendation for one object: of the rules that act, and of the settings where no rule speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// Whether a clean copy is kept.
    pub cache: bool,
    /// What decides how long.
    pub cache_policy: CachePolicy,
    /// How dear it is.
    pub cache_priority: Priority,
    /// Blocks, shards or keys that are read ahead; 0 when no rule reads ahead, and the strategy decides.
    pub prefetch_depth: u32,
    /// Bytes that are read ahead at most.
    pub prefetch_bytes: u64,
    /// How eagerly.
    pub prefetch_strategy: Strategy,
    /// Why, in one sentence.
    pub reason: String,
}

impl Program {
    /// What `verdict` comes to in a phase. Bounds of the settings hold, whatever rules say.
    #[must_use]
    pub fn recommend(&self, verdict: &Verdict<'_>, phase: Option<Phase>) -> Recommendation {
        let settings = self.settings();
        let resolved = resolve(verdict.due.iter().copied());
        let mut recommendation = Recommendation {
            cache: settings.cache(phase) != CachePolicy::None,
            cache_policy: settings.cache(phase),
            cache_priority: Priority::Normal,
            prefetch_depth: 0,
            prefetch_bytes: settings.bytes(Setting::PrefetchBytesMax),
            prefetch_strategy: settings.prefetch(phase),
            reason: verdict.reason(),
        };
        let wish = |aspect| resolved.of(aspect).map(|due| due.wish);
        match resolved.done.iter().find(|due| due.is_of_copies()).map(|due| due.wish) {
            Some(Wish::Copy { keep, policy, priority, .. }) => {
                recommendation.cache = *keep;
                recommendation.cache_policy = policy.unwrap_or(recommendation.cache_policy);
                recommendation.cache_priority = *priority;
            }
            Some(Wish::Stream { keep, .. }) => recommendation.cache = *keep,
            _ => {}
        }
        // What goes at once is not kept.
        recommendation.cache &=
            !matches!(wish(Aspect::Eviction), Some(Wish::Evict { after }) if after.is_zero());
        recommendation.cache_policy = match (recommendation.cache, recommendation.cache_policy) {
            (false, _) => CachePolicy::None,
            (true, CachePolicy::None) => CachePolicy::TrainingAware,
            (true, policy) => policy,
        };
        if let Some(Wish::Prefetch { depth, bytes_max, strategy, .. }) = wish(Aspect::Prefetch) {
            recommendation.prefetch_depth = settings.depth_within(*depth);
            recommendation.prefetch_bytes = recommendation.prefetch_bytes.min(*bytes_max);
            recommendation.prefetch_strategy = *strategy;
        }
        recommendation
    }
}
