//! What became of what was decided: copies that were read again, that went without having been, and that were
//! missed afterwards.
//!
//! Each copy is put down to the rule that wanted it, or to the engine where none did. Always: of at most
//! [`BLOCKS_MAX`] blocks something is remembered; beyond that it is only those of a sample of all ids, and
//! what is counted stands for all of them (spatially hashed sampling as in Waldspurger et al., "Efficient MRC
//! Construction with SHARDS", FAST 2015). What a crash loses are counts.

use crate::block::Hashed;
use crate::engine::Advice;
use std::collections::HashMap;

/// Blocks of which something is remembered: 24 bytes each.
const BLOCKS_MAX: usize = 1 << 18;
/// Rules that are told apart, of all policies that ever ran; what others want counts as the engine's.
const CAUSES_MAX: usize = 1 << 12;

/// Who wanted something: the engine, or a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cause(u16);

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, blocks: u64, bytes: u32) {
        self.blocks += blocks;
        self.bytes += blocks * u64::from(bytes);
    }
}

/// What became of the copies of one cause since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Copies that were made.
    pub kept: Count,
    /// Those of them that were read again.
    pub used: Count,
    /// Those that went for want of room, and nobody had read them.
    pub wasted: Count,
    /// Those that went, and were asked for afterwards.
    pub missed: Count,
    /// Blocks that passed by, and were asked for again.
    pub passed_again: Count,
}

/// What was done with a block last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Kept,
    Used,
    Evicted,
    Passed,
}

#[derive(Clone, Copy, Debug)]
struct Fate {
    cause: Cause,
    state: State,
    bytes: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Outcomes {
    /// Ids of rules; the first is the engine.
    causes: Vec<Box<str>>,
    tallies: Vec<Tally>,
    blocks: HashMap<u64, Fate, Hashed>,
    /// One in 2 to the power of this is remembered.
    shift: u32,
    blocks_max: usize,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self::new(BLOCKS_MAX)
    }
}

impl Outcomes {
    fn new(blocks_max: usize) -> Self {
        let (causes, tallies) = (vec!["".into()], vec![Tally::default()]);
        Self { causes, tallies, blocks: HashMap::default(), shift: 0, blocks_max }
    }

    /// What stands for a rule from now on.
    pub fn cause(&mut self, rule: &str) -> Cause {
        let known = self.causes.iter().position(|one| &**one == rule);
        Cause(known.unwrap_or_else(|| self.add_cause(rule)) as u16)
    }

    fn add_cause(&mut self, rule: &str) -> usize {
        if self.causes.len() >= CAUSES_MAX {
            return 0;
        }
        self.causes.push(rule.into());
        self.tallies.push(Tally::default());
        self.causes.len() - 1
    }

    /// A block was read, of so many bytes, and this was decided because of `cause`.
    pub fn read(&mut self, id: u64, bytes: u32, advice: Advice, cause: Cause) {
        if !self.samples(id) {
            return;
        }
        let weight = 1 << self.shift;
        let before = self.blocks.get_mut(&id);
        if let Some(fate) = before {
            let tally = &mut self.tallies[fate.cause.0 as usize];
            match fate.state {
                State::Kept if advice == Advice::Kept => {
                    tally.used.add(weight, fate.bytes);
                    fate.state = State::Used;
                }
                State::Evicted => tally.missed.add(weight, fate.bytes),
                State::Passed => tally.passed_again.add(weight, fate.bytes),
                State::Kept | State::Used => {}
            }
            if advice == Advice::Kept {
                return;
            }
        }
        let state = match advice {
            Advice::Kept => return,
            Advice::Keep => State::Kept,
            Advice::Bypass => State::Passed,
        };
        if state == State::Kept {
            self.tallies[cause.0 as usize].kept.add(weight, bytes);
        }
        self.make_room();
        if self.samples(id) {
            self.blocks.insert(id, Fate { cause, state, bytes });
        }
    }

    /// Whether something of a block is remembered.
    #[must_use]
    pub fn knows(&self, id: u64) -> bool {
        self.samples(id) && self.blocks.contains_key(&id)
    }

    /// A block went for want of room.
    pub fn evicted(&mut self, id: u64) {
        let Some(fate) = self.blocks.get_mut(&id) else { return };
        if fate.state == State::Kept {
            self.tallies[fate.cause.0 as usize].wasted.add(1 << self.shift, fate.bytes);
        }
        fate.state = State::Evicted;
    }

    /// A block is not here any more, and nobody decided that.
    pub fn lost(&mut self, id: u64) {
        self.blocks.remove(&id);
    }

    /// What became of the copies of one cause.
    #[must_use]
    pub fn tally(&self, cause: Cause) -> Tally {
        self.tallies[cause.0 as usize]
    }

    /// The same of all: rules by their ids, and nothing for the engine.
    pub fn tallies(&self) -> impl Iterator<Item = (&str, &Tally)> {
        self.causes.iter().map(|rule| &**rule).zip(&self.tallies)
    }

    fn samples(&self, id: u64) -> bool {
        id & ((1 << self.shift) - 1) == 0
    }

    /// Where there are too many, those that are not here go; and where that is not enough, every second one.
    fn make_room(&mut self) {
        if self.blocks.len() < self.blocks_max {
            return;
        }
        self.blocks.retain(|_, fate| matches!(fate.state, State::Kept | State::Used));
        while self.blocks.len() > self.blocks_max / 4 * 3 {
            self.shift += 1;
            let mask = (1 << self.shift) - 1;
            self.blocks.retain(|id, _| id & mask == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cause, Count, Outcomes, Tally};
    use crate::block::mixed;
    use crate::engine::Advice::{self, Bypass, Keep, Kept};

    const ENGINE: Cause = Cause(0);

    fn tell(outcomes: &mut Outcomes, told: &[(u64, Option<Advice>)], cause: Cause) {
        for (id, advice) in told {
            match advice {
                Some(advice) => outcomes.read(*id, 10, *advice, cause),
                None => outcomes.evicted(*id),
            }
        }
    }

    fn counts(tally: Tally) -> [u64; 5] {
        let Tally { kept, used, wasted, missed, passed_again } = tally;
        assert!([kept, used, wasted, missed, passed_again].iter().all(|one| one.bytes == one.blocks * 10));
        [kept, used, wasted, missed, passed_again].map(|Count { blocks, .. }| blocks)
    }

    #[test]
    fn each_copy_is_used_or_wasted_once_and_missed_when_it_is_asked_for_again() {
        let mut outcomes = Outcomes::default();
        tell(&mut outcomes, &[(1, Some(Keep)), (1, Some(Kept)), (1, Some(Kept)), (1, None)], ENGINE);
        assert_eq!(counts(outcomes.tally(ENGINE)), [1, 1, 0, 0, 0]);
        tell(
            &mut outcomes,
            &[(2, Some(Keep)), (2, None), (2, Some(Keep)), (2, None), (2, Some(Bypass))],
            ENGINE,
        );
        assert_eq!(counts(outcomes.tally(ENGINE)), [3, 1, 2, 2, 0]);
        tell(&mut outcomes, &[(3, Some(Bypass)), (3, Some(Bypass)), (3, Some(Keep))], ENGINE);
        assert_eq!(counts(outcomes.tally(ENGINE)), [4, 1, 2, 2, 2]);
        outcomes.lost(3);
        tell(&mut outcomes, &[(3, Some(Keep)), (4, Some(Kept)), (5, None)], ENGINE);
        assert_eq!(
            counts(outcomes.tally(ENGINE)),
            [5, 1, 2, 2, 2],
            "what is lost, and what nobody decided, is nobody's"
        );
    }

    #[test]
    fn each_rule_has_its_own() {
        let mut outcomes = Outcomes::default();
        let (one, other) = (outcomes.cause("one"), outcomes.cause("other"));
        assert_eq!(outcomes.cause("one"), one);
        tell(&mut outcomes, &[(1, Some(Keep))], one);
        // It is used for the rule that kept it, whoever reads it.
        tell(&mut outcomes, &[(2, Some(Keep)), (1, Some(Kept))], other);
        let told: Vec<_> =
            outcomes.tallies().map(|(rule, tally)| (rule.to_owned(), counts(*tally))).collect();
        let expected = [("", [0; 5]), ("one", [1, 1, 0, 0, 0]), ("other", [1, 0, 0, 0, 0])];
        assert_eq!(told, expected.map(|(rule, counts)| (rule.to_owned(), counts)));
    }

    #[test]
    fn a_sample_stands_for_all_and_no_more_is_remembered_than_the_limit() {
        let mut outcomes = Outcomes::new(1 << 10);
        for block in 0..100_000_u64 {
            outcomes.read(mixed(block), 10, Keep, ENGINE);
            if block >= 10_000 {
                outcomes.evicted(mixed(block - 10_000));
            }
            assert!(outcomes.blocks.len() <= 1 << 10);
        }
        let [kept, used, wasted, missed, _] = counts(outcomes.tally(ENGINE));
        assert!(outcomes.shift > 2 && used == 0 && missed == 0);
        assert!(kept.abs_diff(100_000) < 10_000 && wasted.abs_diff(90_000) < 12_000, "{kept} {wasted}");
    }
}
