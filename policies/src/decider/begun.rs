//! Which requests for parts of an object are one read of it.
//!
//! A read of an object begins with its first byte, or with its end, where some formats have what is read
//! first. Who loads in parts side by side asks for both, in whichever order: of one caller, within a moment,
//! a first byte and an end are of the same read. Always: so many objects that are being read are remembered
//! at most, and of those that are read whole at once none. What is forgotten counts once more.

use crate::block::mixed;

/// Objects that callers are reading in parts: 24 bytes each.
const OPEN_MAX: usize = 1 << 12;
/// A caller who has asked for nothing of an object for so long reads it no more.
const MOMENT_US: u64 = 60_000_000;

/// Somebody who reads an object.
#[derive(Clone, Copy, Default)]
struct Open {
    /// Of caller and object.
    id: u64,
    last_us: u64,
    /// How many first bytes were asked for whose end was not yet; below zero, how many ends whose first byte
    /// was not.
    ahead: i32,
}

/// See the module.
#[derive(Default)]
pub(super) struct Begun {
    /// By id; empty until it is needed.
    open: Vec<Open>,
}

/// What a request asks for.
pub(super) struct Asked {
    /// The first byte is among it.
    pub(super) first: bool,
    /// It is all that is left.
    pub(super) last: bool,
    /// It begins where another one ended.
    pub(super) goes_on: bool,
}

impl Begun {
    /// A caller asks for something of an object, both by hash. Says whether that begins a read.
    pub(super) fn ask(&mut self, now_us: u64, caller: u64, object: u64, asked: &Asked) -> bool {
        if asked.first && asked.last {
            return true;
        }
        if self.open.is_empty() {
            self.open = vec![Open::default(); OPEN_MAX];
        }
        let id = mixed(caller ^ object.rotate_left(32));
        let open = &mut self.open[id as usize % OPEN_MAX];
        let is_known = open.id == id && now_us.saturating_sub(open.last_us) <= MOMENT_US;
        let before = if is_known { open.ahead } else { 0 };
        let ahead = match asked {
            Asked { first: true, .. } => before.saturating_add(1),
            // Where it goes on from what came before, somebody has begun it who is not known any more.
            Asked { last: true, goes_on, .. } if before > 0 || !goes_on => before.saturating_sub(1),
            _ => before,
        };
        if is_known || ahead != 0 {
            *open = Open { id, last_us: now_us, ahead };
        }
        ahead.unsigned_abs() > before.unsigned_abs()
    }
}

#[cfg(test)]
mod tests {
    use super::{Asked, Begun, MOMENT_US};

    /// How many reads begin when parts of an object of so many are asked for in this order.
    fn begin(begun: &mut Begun, at_us: u64, parts: &[u64], of: u64) -> usize {
        let mut ends = Vec::new();
        let asks = |part: &u64| {
            let goes_on = ends.contains(part);
            ends.push(part + 1);
            let asked = Asked { first: *part == 0, last: part + 1 == of, goes_on };
            usize::from(begun.ask(at_us, 7, 9, &asked))
        };
        parts.iter().map(asks).sum()
    }

    #[test]
    fn parts_of_one_download_are_one_read_in_whichever_order_they_come() {
        let mut begun = Begun::default();
        let mut parts = [0, 1, 2, 3, 4];
        for seed in 0..200 {
            fastrand::Rng::with_seed(seed).shuffle(&mut parts);
            assert_eq!(begin(&mut begun, 1000 * seed, &parts, 5), 1, "{parts:?}");
        }
        assert_eq!(begin(&mut begun, 0, &[0], 1), 1);
    }

    #[test]
    fn an_end_without_a_first_byte_is_a_read_and_so_is_each_first_byte_without_an_end() {
        let mut begun = Begun::default();
        assert_eq!(begin(&mut begun, 0, &[4], 5), 1, "a footer");
        assert_eq!(begin(&mut begun, 1, &[2], 5), 0, "what it tells of");
        assert_eq!(begin(&mut begun, 2, &[4], 5), 1, "the footer again");
        let mut begun = Begun::default();
        assert_eq!(begin(&mut begun, 0, &[0], 5) + begin(&mut begun, 1, &[0], 5), 2);
    }

    #[test]
    fn what_comes_long_after_is_another_read() {
        for (order, reads) in [([0, 4], 2), ([4, 0], 2)] {
            let mut begun = Begun::default();
            let (first, then) = (begin(&mut begun, 0, &order[..1], 5), MOMENT_US + 1);
            assert_eq!(first + begin(&mut begun, then, &order[1..], 5), reads);
            let mut begun = Begun::default();
            let first = begin(&mut begun, 0, &order[..1], 5);
            assert_eq!(begin(&mut begun, MOMENT_US, &[2], 5), 0);
            assert_eq!(first + begin(&mut begun, then, &order[1..], 5), 1, "it went on meanwhile");
        }
    }
}
