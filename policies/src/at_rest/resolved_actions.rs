//! Resolution of all rule matches on one object into the actions to carry out.

use super::{RuleMatch, RuleSource};
use crate::language::ActionRequest;
use std::time::Duration;

/// A pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinAction {
    /// The rule that pins.
    pub by: RuleSource,
    /// Time from the first pin until it ends; `None` if it lasts as long as the rule requests it.
    pub period: Option<Duration>,
    /// Maximum bytes that the same rule may pin.
    pub bytes_max: Option<u64>,
}

impl PinAction {
    fn of(by: &RuleSource, request: &ActionRequest) -> Option<Self> {
        let ActionRequest::Pin { period, bytes_max } = request else { return None };
        Some(Self { by: by.clone(), period: *period, bytes_max: *bytes_max })
    }
}

/// A move of the authoritative copy between tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoveAction {
    /// Promote into the hot tier.
    Promote(RuleSource),
    /// Spill out of the hot tier.
    Spill {
        /// The rule that requests it.
        by: RuleSource,
        /// True if the data goes to the upstream as well, below the cold tier.
        upstream: bool,
    },
}

/// Compression of an object that is not compressed yet.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressAction {
    /// The rule that requests it.
    pub by: RuleSource,
    /// Compression level, 1 to 19.
    pub level: u32,
    /// Minimum ratio by which a sample has to shrink; the object stays as it is otherwise.
    pub min_ratio: f64,
}

/// Actions on one object: one answer per question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResolvedActions {
    /// The object is not spilled, and its clean copies are not evicted.
    pub pin: Option<PinAction>,
    /// Pins that are not in force because their time is over or there is no room. They keep their rules'
    /// record of the pin while weaker rules apply.
    pub inactive_pins: Vec<PinAction>,
    /// Move of the authoritative copy, if it is not in that tier yet.
    pub tier: Option<MoveAction>,
    /// The clean copies are evicted.
    pub evict: Option<RuleSource>,
    /// The object is stored compressed.
    pub compress: Option<CompressAction>,
}

/// Questions that a stronger rule match has answered.
#[derive(Default)]
struct AnsweredQuestions {
    pin: bool,
    tier: bool,
    eviction: bool,
}

impl ResolvedActions {
    /// Resolves `claims`, in any order, for an object that has been idle for `idle` since its last read, or
    /// since its write if it was never read.
    ///
    /// The strongest rule match on a question answers it, even if its answer is to wait. A weaker rule match
    /// neither spills a pinned object nor evicts its copies, nor pins an object that is spilled or evicted.
    /// `is_unheld` returns true for rules whose pins on the object are not in force.
    #[must_use]
    pub fn of<'c>(
        claims: impl Iterator<Item = &'c RuleMatch>,
        idle: Duration,
        is_inactive: impl Fn(&RuleSource) -> bool,
    ) -> Self {
        let mut claims: Vec<&RuleMatch> = claims.collect();
        claims.sort_by_key(|claim| claim.by.rank);
        let (mut resolved, mut answered) = (Self::default(), AnsweredQuestions::default());
        for RuleMatch { by, request } in claims {
            match request {
                ActionRequest::Pin { .. } if is_inactive(by) => {
                    resolved.inactive_pins.extend(PinAction::of(by, request))
                }
                _ => resolved.apply(by, request, idle, &mut answered),
            }
        }
        resolved.inactive_pins.dedup();
        resolved
    }

    /// Returns the object's pins, each with true if it is in force.
    pub fn pins(&self) -> impl Iterator<Item = (&PinAction, bool)> {
        self.pin.iter().map(|pin| (pin, true)).chain(self.inactive_pins.iter().map(|pin| (pin, false)))
    }

    /// True if there is no action.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    fn apply(
        &mut self,
        by: &RuleSource,
        request: &ActionRequest,
        idle: Duration,
        answered: &mut AnsweredQuestions,
    ) {
        let is_leaving = matches!(self.tier, Some(MoveAction::Spill { .. })) || self.evict.is_some();
        let is_pinned = self.pin.is_some();
        match request {
            ActionRequest::Pin { .. } if !answered.pin => {
                answered.pin = true;
                self.pin = PinAction::of(by, request).filter(|_| !is_leaving);
            }
            ActionRequest::Unpin if !answered.pin => answered.pin = true,
            ActionRequest::Promote { .. } if !answered.tier => {
                answered.tier = true;
                self.tier = Some(MoveAction::Promote(by.clone()));
            }
            ActionRequest::Spill { upstream, after } if !answered.tier && !is_pinned => {
                answered.tier = true;
                let spill = MoveAction::Spill { by: by.clone(), upstream: *upstream };
                self.tier = (idle >= *after).then_some(spill);
            }
            ActionRequest::Evict { after } if !answered.eviction && !is_pinned => {
                answered.eviction = true;
                self.evict = (idle >= *after).then(|| by.clone());
            }
            ActionRequest::Compress { level, min_ratio } if self.compress.is_none() => {
                self.compress = Some(CompressAction { by: by.clone(), level: *level, min_ratio: *min_ratio });
            }
            // A stronger rule match has answered the question.
            ActionRequest::Pin { .. }
            | ActionRequest::Unpin
            | ActionRequest::Promote { .. }
            | ActionRequest::Spill { .. }
            | ActionRequest::Evict { .. }
            | ActionRequest::Compress { .. } => {}
            // Applies to checkpoints as a whole.
            ActionRequest::Retain(_) => {}
            // Apply to requests.
            ActionRequest::Copy { .. }
            | ActionRequest::Prefetch { .. }
            | ActionRequest::Stream { .. }
            | ActionRequest::Coordinate { .. }
            | ActionRequest::Prioritize { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CompressAction, MoveAction, PinAction, ResolvedActions};
    use crate::at_rest::{RuleMatch, RuleSource};
    use crate::language::ActionRequest;
    use proptest::prelude::*;
    use std::time::Duration;

    fn by(rank: usize) -> RuleSource {
        RuleSource { rank, rule: format!("r{rank}").as_str().into() }
    }

    fn of(requests: &[ActionRequest], idle_secs: u64) -> ResolvedActions {
        let claim =
            |(rank, request): (usize, &ActionRequest)| RuleMatch { by: by(rank), request: request.clone() };
        let claims: Vec<RuleMatch> = requests.iter().enumerate().map(claim).collect();
        ResolvedActions::of(claims.iter().rev(), Duration::from_secs(idle_secs), |_| false)
    }

    const PIN: ActionRequest = ActionRequest::Pin { period: None, bytes_max: None };
    const PROMOTE: ActionRequest = ActionRequest::Promote { memory: false };

    fn spill(secs: u64) -> ActionRequest {
        ActionRequest::Spill { upstream: false, after: Duration::from_secs(secs) }
    }

    fn evict(secs: u64) -> ActionRequest {
        ActionRequest::Evict { after: Duration::from_secs(secs) }
    }

    fn pinned(rank: usize) -> Option<PinAction> {
        Some(PinAction { by: by(rank), period: None, bytes_max: None })
    }

    #[test]
    fn the_strongest_claim_answers_each_question() {
        let resolved = of(&[PIN, PROMOTE, ActionRequest::Unpin, spill(0)], 0);
        assert_eq!((resolved.pin, resolved.tier), (pinned(0), Some(MoveAction::Promote(by(1)))));
        assert_eq!(of(&[ActionRequest::Unpin, PIN], 0), ResolvedActions::default());
        let resolved = of(&[spill(0), PIN, PROMOTE], 0);
        let down = MoveAction::Spill { by: by(0), upstream: false };
        assert_eq!(resolved, ResolvedActions { tier: Some(down), ..ResolvedActions::default() });
        assert_eq!(
            of(&[PIN, spill(0), evict(0)], 0),
            ResolvedActions { pin: pinned(0), ..ResolvedActions::default() }
        );
        assert_eq!(
            of(&[evict(0), PIN], 0),
            ResolvedActions { evict: Some(by(0)), ..ResolvedActions::default() }
        );
    }

    #[test]
    fn a_claim_that_waits_still_overrides_weaker_ones() {
        assert!(of(&[spill(10), PROMOTE, evict(5)], 9).tier.is_none());
        assert!(of(&[spill(10), PROMOTE], 10).tier.is_some());
        assert_eq!((of(&[evict(5)], 4).evict, of(&[evict(5)], 5).evict), (None, Some(by(0))));
        assert_eq!(of(&[spill(10), PIN], 9).pin, pinned(1), "the object may be pinned until then");
    }

    #[test]
    fn an_expired_pin_leaves_the_answer_to_weaker_rules() {
        let timed = ActionRequest::Pin { period: Some(Duration::from_secs(3)), bytes_max: None };
        let claims =
            [timed, spill(0)].map(|request| RuleMatch { by: by(usize::from(request != spill(0))), request });
        let resolved =
            |over| ResolvedActions::of(claims.iter().rev(), Duration::ZERO, |by| over && by.rank == 1);
        assert_eq!(
            (resolved(false).tier.is_some(), resolved(true).inactive_pins.len()),
            (true, 1),
            "the spill has the higher priority"
        );
        let claims = [claims[0].clone(), RuleMatch { by: by(2), request: spill(0) }];
        let resolved = |over| ResolvedActions::of(claims.iter(), Duration::ZERO, |by| over && by.rank == 1);
        assert_eq!((resolved(false).tier, resolved(false).pin.is_some()), (None, true));
        let over = resolved(true);
        assert_eq!((over.tier.is_some(), over.pin, over.inactive_pins[0].by.rank), (true, None, 1));
        assert!(!resolved(true).is_nothing());
    }

    #[test]
    fn compression_combines_with_pins_and_moves() {
        let compress = |level| ActionRequest::Compress { level, min_ratio: 1.5 };
        let resolved = of(&[compress(9), PIN, compress(3), PROMOTE], 0);
        assert_eq!(resolved.compress, Some(CompressAction { by: by(0), level: 9, min_ratio: 1.5 }));
        assert_eq!((resolved.pin, resolved.tier), (pinned(1), Some(MoveAction::Promote(by(3)))));
        assert!(of(&[spill(0), compress(3)], 0).tier.is_some());
    }

    fn any_request() -> impl Strategy<Value = ActionRequest> {
        prop_oneof![
            Just(PIN),
            Just(PROMOTE),
            Just(ActionRequest::Unpin),
            (0u64..4).prop_map(spill),
            (0u64..4).prop_map(evict)
        ]
    }

    proptest! {
        #[test]
        fn pinned_objects_stay_and_weaker_claims_change_no_stronger_answer(
            wishes in prop::collection::vec(any_request(), 0..8),
            idle in 0u64..4,
            more in any_request(),
        ) {
            let resolved = of(&wishes, idle);
            let goes = matches!(resolved.tier, Some(MoveAction::Spill { .. })) || resolved.evict.is_some();
            prop_assert!(!(goes && resolved.pin.is_some()));
            let after = of(&[wishes, vec![more]].concat(), idle);
            prop_assert!(resolved.pin.is_none() || resolved.pin == after.pin);
            prop_assert!(resolved.tier.is_none() || resolved.tier == after.tier);
            prop_assert!(resolved.evict.is_none() || resolved.evict == after.evict);
        }
    }
}
