//! Hash over decisions in order: two runs with the same decisions have the same fingerprint.
//!
//! A server's recorded trace is replayed in a simulation, and the two fingerprints are compared.

use crate::block::mix_hash;
use crate::engine::Advice;

/// Running hash over a sequence of decisions; see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionFingerprint {
    /// Number of decisions so far: reads of blocks and evictions.
    pub decisions: u64,
    /// Hash of these decisions.
    pub hash: u64,
}

impl DecisionFingerprint {
    /// Adds the advice on a read of a block.
    pub fn add_read(&mut self, id: u64, advice: Advice) {
        self.add(id, advice as u64);
    }

    /// Adds the eviction of a block.
    pub fn add_eviction(&mut self, id: u64) {
        self.add(id, EVICTED);
    }

    fn add(&mut self, id: u64, decision: u64) {
        self.decisions += 1;
        self.hash = mix_hash(self.hash.rotate_left(7) ^ id.wrapping_add(decision));
    }
}

/// Code of an eviction; differs from every `Advice`.
const EVICTED: u64 = 3;

#[cfg(test)]
mod tests {
    use super::DecisionFingerprint;
    use crate::engine::Advice;

    #[test]
    fn fingerprint_depends_on_decisions_and_their_order() {
        let of = |steps: &[(u64, Option<Advice>)]| {
            let mut fingerprint = DecisionFingerprint::default();
            for (id, advice) in steps {
                match advice {
                    Some(advice) => fingerprint.add_read(*id, *advice),
                    None => fingerprint.add_eviction(*id),
                }
            }
            fingerprint
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
