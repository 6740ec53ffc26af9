//! Resolution of all rule matches on one object into the actions to carry out.

use super::{By, Claim};
use crate::language::Wish;
use std::time::Duration;

/// A pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The rule that pins.
    pub by: By,
    /// Time from the first pin until it ends; `None` if it lasts as long as the rule requests it.
    pub period: Option<Duration>,
    /// Maximum bytes that the same rule may pin.
    pub bytes_max: Option<u64>,
}

impl Pin {
    fn of(by: &By, wish: &Wish) -> Option<Self> {
        let Wish::Pin { period, bytes_max } = wish else { return None };
        Some(Self { by: by.clone(), period: *period, bytes_max: *bytes_max })
    }
}

/// A move of the authoritative copy between tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Promote into the hot tier.
    Up(By),
    /// Spill out of the hot tier.
    Down {
        /// The rule that requests it.
        by: By,
        /// True if the data goes to the upstream as well, below the cold tier.
        upstream: bool,
    },
}

/// Compression of an object that is not compressed yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Compress {
    /// The rule that requests it.
    pub by: By,
    /// Compression level, 1 to 19.
    pub level: u32,
    /// Minimum ratio by which a sample has to shrink; the object stays as it is otherwise.
    pub min_ratio: f64,
}

/// Actions on one object: one answer per question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deeds {
    /// The object stays in its tier.
    pub pin: Option<Pin>,
    /// Pins that are not in force because their time is over or there is no room. They keep their rules'
    /// record of the pin while weaker rules apply.
    pub unheld: Vec<Pin>,
    /// Move of the authoritative copy, if it is not in that tier yet.
    pub tier: Option<Move>,
    /// The clean copies are evicted.
    pub evict: Option<By>,
    /// The object is stored compressed.
    pub compress: Option<Compress>,
}

/// Questions that a stronger rule match has answered.
#[derive(Default)]
struct Answered {
    pin: bool,
    tier: bool,
    eviction: bool,
}

impl Deeds {
    /// Resolves `claims`, in any order, for an object that has been idle for `idle` since its last read, or
    /// since its write if it was never read.
    ///
    /// The strongest rule match on a question answers it, even if its answer is to wait. A weaker rule match
    /// neither spills a pinned object nor evicts its copies, nor pins an object that is spilled or evicted.
    /// `is_unheld` returns true for rules whose pins on the object are not in force.
    #[must_use]
    pub fn of<'c>(
        claims: impl Iterator<Item = &'c Claim>,
        idle: Duration,
        is_unheld: impl Fn(&By) -> bool,
    ) -> Self {
        let mut claims: Vec<&Claim> = claims.collect();
        claims.sort_by_key(|claim| claim.by.rank);
        let (mut deeds, mut answered) = (Self::default(), Answered::default());
        for Claim { by, wish } in claims {
            match wish {
                Wish::Pin { .. } if is_unheld(by) => deeds.unheld.extend(Pin::of(by, wish)),
                _ => deeds.hear(by, wish, idle, &mut answered),
            }
        }
        deeds.unheld.dedup();
        deeds
    }

    /// Returns the object's pins, each with true if it is in force.
    pub fn pins(&self) -> impl Iterator<Item = (&Pin, bool)> {
        self.pin.iter().map(|pin| (pin, true)).chain(self.unheld.iter().map(|pin| (pin, false)))
    }

    /// True if there is no action.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    fn hear(&mut self, by: &By, wish: &Wish, idle: Duration, answered: &mut Answered) {
        let goes = matches!(self.tier, Some(Move::Down { .. })) || self.evict.is_some();
        let is_pinned = self.pin.is_some();
        match wish {
            Wish::Pin { .. } if !answered.pin => {
                answered.pin = true;
                self.pin = Pin::of(by, wish).filter(|_| !goes);
            }
            Wish::Unpin if !answered.pin => answered.pin = true,
            Wish::Promote { .. } if !answered.tier => {
                answered.tier = true;
                self.tier = Some(Move::Up(by.clone()));
            }
            Wish::Spill { upstream, after } if !answered.tier && !is_pinned => {
                answered.tier = true;
                let down = Move::Down { by: by.clone(), upstream: *upstream };
                self.tier = (idle >= *after).then_some(down);
            }
            Wish::Evict { after } if !answered.eviction && !is_pinned => {
                answered.eviction = true;
                self.evict = (idle >= *after).then(|| by.clone());
            }
            Wish::Compress { level, min_ratio } if self.compress.is_none() => {
                self.compress = Some(Compress { by: by.clone(), level: *level, min_ratio: *min_ratio });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Compress, Deeds, Move, Pin};
    use crate::at_rest::{By, Claim};
    use crate::language::Wish;
    use proptest::prelude::*;
    use std::time::Duration;

    fn by(rank: usize) -> By {
        By { rank, rule: format!("r{rank}").as_str().into() }
    }

    fn of(wishes: &[Wish], idle_secs: u64) -> Deeds {
        let claim = |(rank, wish): (usize, &Wish)| Claim { by: by(rank), wish: wish.clone() };
        let claims: Vec<Claim> = wishes.iter().enumerate().map(claim).collect();
        Deeds::of(claims.iter().rev(), Duration::from_secs(idle_secs), |_| false)
    }

    const PIN: Wish = Wish::Pin { period: None, bytes_max: None };
    const UP: Wish = Wish::Promote { memory: false };

    fn spill(secs: u64) -> Wish {
        Wish::Spill { upstream: false, after: Duration::from_secs(secs) }
    }

    fn evict(secs: u64) -> Wish {
        Wish::Evict { after: Duration::from_secs(secs) }
    }

    fn pinned(rank: usize) -> Option<Pin> {
        Some(Pin { by: by(rank), period: None, bytes_max: None })
    }

    #[test]
    fn the_strongest_claim_answers_each_question() {
        let deeds = of(&[PIN, UP, Wish::Unpin, spill(0)], 0);
        assert_eq!((deeds.pin, deeds.tier), (pinned(0), Some(Move::Up(by(1)))));
        assert_eq!(of(&[Wish::Unpin, PIN], 0), Deeds::default());
        let deeds = of(&[spill(0), PIN, UP], 0);
        let down = Move::Down { by: by(0), upstream: false };
        assert_eq!(deeds, Deeds { tier: Some(down), ..Deeds::default() });
        assert_eq!(of(&[PIN, spill(0), evict(0)], 0), Deeds { pin: pinned(0), ..Deeds::default() });
        assert_eq!(of(&[evict(0), PIN], 0), Deeds { evict: Some(by(0)), ..Deeds::default() });
    }

    #[test]
    fn a_claim_that_waits_still_overrides_weaker_ones() {
        assert!(of(&[spill(10), UP, evict(5)], 9).tier.is_none());
        assert!(of(&[spill(10), UP], 10).tier.is_some());
        assert_eq!((of(&[evict(5)], 4).evict, of(&[evict(5)], 5).evict), (None, Some(by(0))));
        assert_eq!(of(&[spill(10), PIN], 9).pin, pinned(1), "until then it may be pinned");
    }

    #[test]
    fn an_expired_pin_leaves_the_answer_to_weaker_rules() {
        let timed = Wish::Pin { period: Some(Duration::from_secs(3)), bytes_max: None };
        let claims = [timed, spill(0)].map(|wish| Claim { by: by(usize::from(wish != spill(0))), wish });
        let deeds = |over| Deeds::of(claims.iter().rev(), Duration::ZERO, |by| over && by.rank == 1);
        assert_eq!(
            (deeds(false).tier.is_some(), deeds(true).unheld.len()),
            (true, 1),
            "the spill is stronger here"
        );
        let claims = [claims[0].clone(), Claim { by: by(2), wish: spill(0) }];
        let deeds = |over| Deeds::of(claims.iter(), Duration::ZERO, |by| over && by.rank == 1);
        assert_eq!((deeds(false).tier, deeds(false).pin.is_some()), (None, true));
        let over = deeds(true);
        assert_eq!((over.tier.is_some(), over.pin, over.unheld[0].by.rank), (true, None, 1));
        assert!(!deeds(true).is_nothing());
    }

    #[test]
    fn compression_combines_with_pins_and_moves() {
        let compress = |level| Wish::Compress { level, min_ratio: 1.5 };
        let deeds = of(&[compress(9), PIN, compress(3), UP], 0);
        assert_eq!(deeds.compress, Some(Compress { by: by(0), level: 9, min_ratio: 1.5 }));
        assert_eq!((deeds.pin, deeds.tier), (pinned(1), Some(Move::Up(by(3)))));
        assert!(of(&[spill(0), compress(3)], 0).tier.is_some());
    }

    fn any_wish() -> impl Strategy<Value = Wish> {
        prop_oneof![
            Just(PIN),
            Just(UP),
            Just(Wish::Unpin),
            (0u64..4).prop_map(spill),
            (0u64..4).prop_map(evict)
        ]
    }

    proptest! {
        #[test]
        fn pinned_objects_stay_and_weaker_claims_change_no_stronger_answer(
            wishes in prop::collection::vec(any_wish(), 0..8),
            idle in 0u64..4,
            more in any_wish(),
        ) {
            let deeds = of(&wishes, idle);
            let goes = matches!(deeds.tier, Some(Move::Down { .. })) || deeds.evict.is_some();
            prop_assert!(!(goes && deeds.pin.is_some()));
            let after = of(&[wishes, vec![more]].concat(), idle);
            prop_assert!(deeds.pin.is_none() || deeds.pin == after.pin);
            prop_assert!(deeds.tier.is_none() || deeds.tier == after.tier);
            prop_assert!(deeds.evict.is_none() || deeds.evict == after.evict);
        }
    }
}
