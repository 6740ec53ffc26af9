//! Our engine in a race: it hears one request after the other, as in a server.

use super::Score;
use crate::access::{Access, Op};
use crate::block::BLOCK_ID_SEED;
use crate::engine::{Advice, Engine, Options, TooManyPlans};
use crate::fingerprint::Fingerprint;
use crate::rehearse::blocks::touched;
use crate::rehearse::telling::Told;

/// See the module.
pub struct Runner {
    engine: Engine,
    block_bytes: u32,
    score: Score,
    fingerprint: Fingerprint,
}

/// Blocks that an engine remembers at least.
const BLOCKS_MIN: usize = 1 << 16;

impl Runner {
    /// An engine that knows nothing, with room for so many bytes, which remembers this many blocks and some more.
    #[must_use]
    pub fn new(capacity_bytes: u64, block_bytes: u32, blocks: usize) -> Self {
        let engine = Engine::new(Options {
            capacity_bytes,
            blocks_max: blocks + BLOCKS_MIN,
            block_bytes: u64::from(block_bytes),
            // As in a server: what it decides can be held against that.
            seed: BLOCK_ID_SEED,
        });
        Self { engine, block_bytes, score: Score::default(), fingerprint: Fingerprint::default() }
    }

    /// Is told plans before anything is read.
    ///
    /// # Errors
    /// When there are too many.
    pub fn tell(&mut self, told: &[Told]) -> Result<(), TooManyPlans> {
        for (number, told) in told.iter().enumerate() {
            self.engine.put_plan(number as u64, told.who, told.bucket, told.plan.clone())?;
        }
        Ok(())
    }

    /// How many plans are followed as they say.
    #[must_use]
    pub fn trusted(&self, told: &[Told]) -> usize {
        let is_trusted =
            |number: &usize| self.engine.plan(*number as u64).is_some_and(|plan| plan.is_trusted);
        (0..told.len()).filter(is_trusted).count()
    }

    /// Hears of an access, and whether it counts.
    pub fn take(&mut self, access: &Access<'_>, counts: bool) {
        let seen = self.engine.observe(access);
        if access.op == Op::Delete {
            return;
        }
        let is_read = access.op == Op::Read;
        for (number, bytes) in touched(access.size, &access.range, self.block_bytes) {
            let advice = self.engine.read(seen, access, number);
            if is_read {
                self.fingerprint.read(self.engine.block_id(access.bucket, access.key, number), advice);
            }
            self.engine.take_evicted().for_each(|id| self.fingerprint.evicted(id));
            self.score.written_bytes += u64::from(bytes) * u64::from(is_read && advice == Advice::Keep);
            if is_read && counts {
                self.score.count(bytes, advice == Advice::Kept);
            }
        }
    }

    /// What it has decided so far.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// What it has reached so far.
    #[must_use]
    pub fn score(&self) -> Score {
        self.score
    }
}
