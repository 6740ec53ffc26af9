//! Recommendations for one object: read-ahead depth, whether a copy is kept and with which priority, and the
//! reason.

use super::action_request::ActionRequest;
use super::actions::Aspect;
use super::evaluation::PolicyEvaluation;
use super::program::Program;
use super::resolve::resolve;
use super::settings::Setting;
use super::words::{CachePolicy, Phase, Priority, Strategy};

/// A recommendation for one object, from the rules that act and, where no rule decides, from the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// True if a clean copy is kept.
    pub cache: bool,
    /// Cache policy of the copy.
    pub cache_policy: CachePolicy,
    /// Priority of the copy.
    pub cache_priority: Priority,
    /// Blocks, shards or keys that are read ahead; 0 if no rule reads ahead and the strategy decides.
    pub prefetch_depth: u32,
    /// Maximum bytes of read-ahead.
    pub prefetch_bytes: u64,
    /// Read-ahead strategy.
    pub prefetch_strategy: Strategy,
    /// Reason, in one sentence.
    pub reason: String,
}

impl Program {
    /// Derives the recommendation from `verdict` in a phase. The bounds of the settings apply to rules, too.
    #[must_use]
    pub fn recommend(&self, verdict: &PolicyEvaluation<'_>, phase: Option<Phase>) -> Recommendation {
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
        let request = |aspect| resolved.deciding(aspect).map(|due| due.request);
        match resolved.done.iter().find(|due| due.is_copy_decision()).map(|due| due.request) {
            Some(ActionRequest::Copy { keep, policy, priority, .. }) => {
                recommendation.cache = *keep;
                recommendation.cache_policy = policy.unwrap_or(recommendation.cache_policy);
                recommendation.cache_priority = *priority;
            }
            Some(ActionRequest::Stream { keep, .. }) => recommendation.cache = *keep,
            _ => {}
        }
        // A copy that is evicted at once is not kept.
        recommendation.cache &=
            !matches!(request(Aspect::Eviction), Some(ActionRequest::Evict { after }) if after.is_zero());
        recommendation.cache_policy = match (recommendation.cache, recommendation.cache_policy) {
            (false, _) => CachePolicy::None,
            (true, CachePolicy::None) => CachePolicy::TrainingAware,
            (true, policy) => policy,
        };
        if let Some(ActionRequest::Prefetch { depth, bytes_max, strategy, .. }) = request(Aspect::Prefetch) {
            recommendation.prefetch_depth = settings.depth_within(*depth);
            recommendation.prefetch_bytes = recommendation.prefetch_bytes.min(*bytes_max);
            recommendation.prefetch_strategy = *strategy;
        }
        recommendation
    }
}
