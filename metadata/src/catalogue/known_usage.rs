//! Usage in the groups that other nodes have, from their newest answers. Bounded, and nothing is stored.

use mlgw_common::BucketId;
use mlgw_common::limits::USAGE_SUMS_MAX;
use mlgw_common::time::Instant;
use mlgw_formats::schema::BucketUsage;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time until usage is asked for again.
pub(super) const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Owner of counted usage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageOf {
    /// A bucket.
    Bucket(BucketId),
    /// An access key.
    Payer(String),
}

/// The newest answer.
#[derive(Clone, Debug)]
struct AskedUsage {
    /// Time of the question.
    asked: Instant,
    /// The groups that were not asked about, because they are here.
    here: BTreeSet<u32>,
    /// Usage in all other groups; 0 without an answer.
    usage: BucketUsage,
}

/// Usage in the groups that other nodes have.
#[derive(Debug, Default)]
pub(super) struct UsageElsewhere(Mutex<BTreeMap<UsageOf, AskedUsage>>);

impl UsageElsewhere {
    /// Returns true if the usage is to be asked for at `now`, and records that.
    pub(super) fn begin(&self, of: &UsageOf, here: &BTreeSet<u32>, now: Instant) -> bool {
        let mut known = self.0.lock();
        let before = known.get(of).filter(|known| known.here == *here);
        if before.is_some_and(|known| now.saturating_duration_since(known.asked) < ASK_INTERVAL) {
            return false;
        }
        let usage = before.map(|known| known.usage).unwrap_or_default();
        // Most of so many are of no use any more, and are asked for again.
        if known.len() >= USAGE_SUMS_MAX && !known.contains_key(of) {
            known.clear();
        }
        known.insert(of.clone(), AskedUsage { asked: now, here: here.clone(), usage });
        true
    }

    /// Records the answer to the question of `asked`; `None` if there is none.
    pub(super) fn end(&self, of: &UsageOf, asked: Instant, answer: Option<BucketUsage>) {
        if let Some(known) = self.0.lock().get_mut(of).filter(|known| known.asked == asked) {
            known.usage = answer.unwrap_or_default();
        }
    }

    /// Usage in all groups but those that are here.
    pub(super) fn known(&self, of: &UsageOf, here: &BTreeSet<u32>) -> BucketUsage {
        let known = self.0.lock();
        known.get(of).filter(|known| known.here == *here).map(|known| known.usage).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{ASK_INTERVAL, UsageElsewhere, UsageOf};
    use mlgw_common::BucketId;
    use mlgw_common::time::Instant;
    use mlgw_formats::schema::BucketUsage;
    use std::time::Duration;

    #[test]
    fn usage_is_asked_for_once_a_second_and_counts_until_the_next_answer() {
        let (asked, of, here) = (UsageElsewhere::default(), UsageOf::Bucket(BucketId(1)), [1, 2].into());
        let usage = BucketUsage { bytes: 7, ..BucketUsage::default() };
        let first = Instant::now();
        assert!(asked.begin(&of, &here, first));
        assert!(!asked.begin(&of, &here, first + ASK_INTERVAL - Duration::from_millis(1)));
        assert!(asked.begin(&UsageOf::Payer("AK".to_owned()), &here, first), "another one");
        asked.end(&of, first, Some(usage));
        let second = first + ASK_INTERVAL;
        assert!(asked.begin(&of, &here, second));
        assert_eq!(asked.known(&of, &here), usage, "until the answer");
        asked.end(&of, first, None);
        assert_eq!(asked.known(&of, &here), usage, "it is that of another question");
        assert_eq!(asked.known(&of, &[1].into()), BucketUsage::default(), "other groups are here now");
        assert!(asked.begin(&of, &[1].into(), second), "they were not asked about");
        asked.end(&of, second, None);
        assert_eq!(asked.known(&of, &here), BucketUsage::default());
    }
}
