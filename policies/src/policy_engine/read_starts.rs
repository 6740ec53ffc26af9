//! Grouping of requests for parts of an object into reads of the object.
//!
//! A read of an object begins with its first byte, or with its end, where some formats keep the part that is
//! read first. Parallel downloads request both in any order: requests of one caller for a first byte and for
//! an end, within a short time, belong to the same read. Invariant: at most `OPEN_MAX` partly read objects
//! are remembered, and none that is read with a single request. A forgotten object counts once more.

use crate::block::mix_hash;

/// Maximum remembered objects that callers are reading in parts; 24 bytes each.
const OPEN_MAX: usize = 1 << 12;
/// Time without a request after which a caller no longer reads an object.
const MOMENT_US: u64 = 60_000_000;

/// A caller that reads an object in parts.
#[derive(Clone, Copy, Default)]
struct OpenRead {
    /// Hash of caller and object.
    id: u64,
    last_us: u64,
    /// Requests for the first byte minus requests for the end.
    unmatched_starts: i32,
}

/// Objects that are being read in parts; see the module.
#[derive(Default)]
pub(super) struct OpenReads {
    /// By id; empty until it is needed.
    open: Vec<OpenRead>,
}

/// Part of an object that a request covers.
pub(super) struct RequestedPart {
    /// True if it includes the first byte.
    pub(super) first: bool,
    /// True if it extends to the end of the object.
    pub(super) last: bool,
    /// True if it begins where another request ended.
    pub(super) is_continued: bool,
}

impl OpenReads {
    /// Records a request of a caller for a part of an object, both given by hash. Returns true if it begins a
    /// read.
    pub(super) fn record_request(
        &mut self,
        now_us: u64,
        caller: u64,
        object: u64,
        part: &RequestedPart,
    ) -> bool {
        if part.first && part.last {
            return true;
        }
        if self.open.is_empty() {
            self.open = vec![OpenRead::default(); OPEN_MAX];
        }
        let id = mix_hash(caller ^ object.rotate_left(32));
        let open = &mut self.open[id as usize % OPEN_MAX];
        let is_known = open.id == id && now_us.saturating_sub(open.last_us) <= MOMENT_US;
        let before = if is_known { open.unmatched_starts } else { 0 };
        let ahead = match part {
            RequestedPart { first: true, .. } => before.saturating_add(1),
            // The read was begun by a request that is forgotten if the end continues earlier parts.
            RequestedPart { last: true, is_continued: goes_on, .. } if before > 0 || !goes_on => {
                before.saturating_sub(1)
            }
            _ => before,
        };
        if is_known || ahead != 0 {
            *open = OpenRead { id, last_us: now_us, unmatched_starts: ahead };
        }
        ahead.unsigned_abs() > before.unsigned_abs()
    }
}

#[cfg(test)]
mod tests {
    use super::{MOMENT_US, OpenReads, RequestedPart};

    /// Returns the number of reads that begin when the parts of an object with `of` parts are requested in
    /// this order.
    fn begin(begun: &mut OpenReads, at_us: u64, parts: &[u64], of: u64) -> usize {
        let mut ends = Vec::new();
        let asks = |part: &u64| {
            let goes_on = ends.contains(part);
            ends.push(part + 1);
            let requested = RequestedPart { first: *part == 0, last: part + 1 == of, is_continued: goes_on };
            usize::from(begun.record_request(at_us, 7, 9, &requested))
        };
        parts.iter().map(asks).sum()
    }

    #[test]
    fn parts_of_one_download_are_one_read_in_any_order() {
        let mut begun = OpenReads::default();
        let mut parts = [0, 1, 2, 3, 4];
        for seed in 0..200 {
            fastrand::Rng::with_seed(seed).shuffle(&mut parts);
            assert_eq!(begin(&mut begun, 1000 * seed, &parts, 5), 1, "{parts:?}");
        }
        assert_eq!(begin(&mut begun, 0, &[0], 1), 1);
    }

    #[test]
    fn an_unpaired_end_or_first_byte_is_a_read() {
        let mut begun = OpenReads::default();
        assert_eq!(begin(&mut begun, 0, &[4], 5), 1, "a footer");
        assert_eq!(begin(&mut begun, 1, &[2], 5), 0, "a block that the footer refers to");
        assert_eq!(begin(&mut begun, 2, &[4], 5), 1, "the footer again");
        let mut begun = OpenReads::default();
        assert_eq!(begin(&mut begun, 0, &[0], 5) + begin(&mut begun, 1, &[0], 5), 2);
    }

    #[test]
    fn a_request_long_after_is_another_read() {
        for (order, reads) in [([0, 4], 2), ([4, 0], 2)] {
            let mut begun = OpenReads::default();
            let (first, then) = (begin(&mut begun, 0, &order[..1], 5), MOMENT_US + 1);
            assert_eq!(first + begin(&mut begun, then, &order[1..], 5), reads);
            let mut begun = OpenReads::default();
            let first = begin(&mut begun, 0, &order[..1], 5);
            assert_eq!(begin(&mut begun, MOMENT_US, &[2], 5), 0);
            assert_eq!(first + begin(&mut begun, then, &order[1..], 5), 1, "the read continued in between");
        }
    }
}
