//! A hash over decisions in their order: two runs that decided alike have the same one.
//!
//! What a server recorded while it decided is replayed in a rehearsal, and both are asked for theirs.

use crate::block::mixed;
use crate::engine::Advice;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Decisions so far: blocks that were read, and such that were evicted.
    pub decisions: u64,
    /// Their hash.
    pub hash: u64,
}

impl Fingerprint {
    /// A block was read.
    pub fn read(&mut self, id: u64, advice: Advice) {
        self.add(id, advice as u64);
    }

    /// A block was evicted.
    pub fn evicted(&mut self, id: u64) {
        self.add(id, EVICTED);
    }

    fn add(&mut self, id: u64, what: u64) {
        self.decisions += 1;
        self.hash = mixed(self.hash.rotate_left(7) ^ id.wrapping_add(what));
    }
}

/// No advice is this number.
const EVICTED: u64 = 3;

#[cfg(test)]
mod tests {
    use super::Fingerprint;
    use crate::engine::Advice;

    #[test]
    fn what_is_decided_and_in_which_order_tells() {
        let of = |steps: &[(u64, Option<Advice>)]| {
            let mut print = Fingerprint::default();
            for (id, advice) in steps {
                match advice {
                    Some(advice) => print.read(*id, *advice),
                    None => print.evicted(*id),
                }
            }
            print
        };
        let plain = of(&[(1, Some(Advice::Keep)), (2, Some(Advice::Keep)), (1, None)]);
        assert_eq!(plain, of(&[(1, Some(Advice::Keep)), (2, Some(Advice::Keep)), (1, None)]));
        for other in [
            of(&[(2, Some(Advice::Keep)), (1, Some(Advice::Keep)), (1, None)]),
            of(&[(1, Some(Advice::Keep)), (2, Some(Advice::Bypass)), (1, None)]),
            of(&[(1, Some(Advice::Keep)), (2, Some(Advice::Keep)), (2, None)]),
            of(&[(1, Some(Advice::Keep)), (2, Some(Advice::Keep))]),
        ] {
            assert!(other != plain);
        }
    }
}
