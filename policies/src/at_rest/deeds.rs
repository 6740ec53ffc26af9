//! What is done with one object, given all that is said of it.

use super::{By, Claim};
use crate::language::Wish;
use std::time::Duration;

/// A pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Who pins it.
    pub by: By,
    /// For how long, from when it was pinned first; without it as long as that is said.
    pub period: Option<Duration>,
    /// Bytes that the same rule may pin at most.
    pub bytes_max: Option<u64>,
}

impl Pin {
    fn of(by: &By, wish: &Wish) -> Option<Self> {
        let Wish::Pin { period, bytes_max } = wish else { return None };
        Some(Self { by: by.clone(), period: *period, bytes_max: *bytes_max })
    }
}

/// A move of the truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Into the hot tier.
    Up(By),
    /// Out of it.
    Down {
        /// Who says so.
        by: By,
        /// Whether below the cold tier, too.
        upstream: bool,
    },
}

/// What is not compressed yet is.
#[derive(Clone, Debug, PartialEq)]
pub struct Compress {
    /// Who says so.
    pub by: By,
    /// The effort, 1 to 19.
    pub level: u32,
    /// How many times smaller a sample has to become, or it stays as it is.
    pub min_ratio: f64,
}

/// What is done with one object: one answer for each question.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deeds {
    /// It stays where it is.
    pub pin: Option<Pin>,
    /// Pins that do not hold, as their time is over or there is no room: who pins remembers that, and weaker
    /// rules are heard.
    pub unheld: Vec<Pin>,
    /// The truth goes elsewhere, if it is not there yet.
    pub tier: Option<Move>,
    /// Its clean copies go.
    pub evict: Option<By>,
    /// It is stored compressed.
    pub compress: Option<Compress>,
}

/// What a strong claim leaves to be said by weaker ones.
#[derive(Default)]
struct Answered {
    pin: bool,
    tier: bool,
    eviction: bool,
}

impl Deeds {
    /// What comes of `claims`, in any order, for an object that was read last, or written if it never was, so
    /// long ago.
    ///
    /// The strongest claim on a question answers it, also where it says to wait; an object that is pinned
    /// neither goes down nor loses its copies by what is weaker, and one that goes is not pinned by what is
    /// weaker. `is_unheld` says which rules' pins on it do not hold.
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

    /// Its pins, and whether each holds.
    pub fn pins(&self) -> impl Iterator<Item = (&Pin, bool)> {
        self.pin.iter().map(|pin| (pin, true)).chain(self.unheld.iter().map(|pin| (pin, false)))
    }

    /// Whether nothing is.
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
    fn the_strongest_answers_each_question() {
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
    fn who_says_to_wait_is_heard_and_nobody_weaker_in_his_place() {
        assert!(of(&[spill(10), UP, evict(5)], 9).tier.is_none());
        assert!(of(&[spill(10), UP], 10).tier.is_some());
        assert_eq!((of(&[evict(5)], 4).evict, of(&[evict(5)], 5).evict), (None, Some(by(0))));
        assert_eq!(of(&[spill(10), PIN], 9).pin, pinned(1), "until then it may be pinned");
    }

    #[test]
    fn a_pin_whose_time_is_over_leaves_the_answer_to_weaker_rules() {
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
    fn what_is_compressed_may_be_pinned_or_go_as_well() {
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
        fn what_is_pinned_does_not_go_and_weaker_claims_change_no_stronger_answer(
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
