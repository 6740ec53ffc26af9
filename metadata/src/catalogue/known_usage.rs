//! Usage in the groups that other nodes have, from their newest answers. Bounded, and nothing is stored.
//!
//! A question that ends without an answer, because its request was cancelled, does not count as asked: the
//! next request asks again.

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
    /// Time of the question; `None` if it was given up.
    asked: Option<Instant>,
    /// The groups that were not asked about, because they are here.
    here: BTreeSet<u32>,
    /// Usage in all other groups; 0 without an answer.
    usage: BucketUsage,
}

/// Usage in the groups that other nodes have.
#[derive(Debug, Default)]
pub(super) struct UsageElsewhere(Mutex<BTreeMap<UsageOf, AskedUsage>>);

/// A question that waits for its answer. Dropping it gives it up.
pub(super) struct UsageQuestion<'a> {
    known: &'a UsageElsewhere,
    of: UsageOf,
    asked: Instant,
    is_answered: bool,
}

impl UsageQuestion<'_> {
    /// Records the answer; `None` if no node gave one.
    pub(super) fn answered(mut self, answer: Option<BucketUsage>) {
        self.change(|known| known.usage = answer.unwrap_or_default());
        self.is_answered = true;
    }

    /// Changes what is known, unless another question was asked meanwhile.
    fn change(&self, change: impl FnOnce(&mut AskedUsage)) {
        let mut known = self.known.0.lock();
        if let Some(known) = known.get_mut(&self.of).filter(|known| known.asked == Some(self.asked)) {
            change(known);
        }
    }
}

impl Drop for UsageQuestion<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.change(|known| known.asked = None);
        }
    }
}

impl UsageElsewhere {
    /// Returns a question about the usage, which is asked at `now`. `None` if it was asked within a second.
    pub(super) fn ask(&self, of: &UsageOf, here: &BTreeSet<u32>, now: Instant) -> Option<UsageQuestion<'_>> {
        let mut known = self.0.lock();
        let before = known.get(of).filter(|known| known.here == *here);
        let is_recent = |asked: Instant| now.saturating_duration_since(asked) < ASK_INTERVAL;
        if before.and_then(|known| known.asked).is_some_and(is_recent) {
            return None;
        }
        let usage = before.map(|known| known.usage).unwrap_or_default();
        // Most of so many are of no use any more, and are asked for again.
        if known.len() >= USAGE_SUMS_MAX && !known.contains_key(of) {
            known.clear();
        }
        known.insert(of.clone(), AskedUsage { asked: Some(now), here: here.clone(), usage });
        Some(UsageQuestion { known: self, of: of.clone(), asked: now, is_answered: false })
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
        let question = asked.ask(&of, &here, first).unwrap();
        assert!(asked.ask(&of, &here, first + ASK_INTERVAL - Duration::from_millis(1)).is_none());
        assert!(asked.ask(&UsageOf::Payer("AK".to_owned()), &here, first).is_some(), "another one");
        question.answered(Some(usage));
        let second = first + ASK_INTERVAL;
        let of_second = asked.ask(&of, &here, second).unwrap();
        assert_eq!(asked.known(&of, &here), usage, "until the answer");
        assert_eq!(asked.known(&of, &[1].into()), BucketUsage::default(), "other groups are here now");
        let of_others = asked.ask(&of, &[1].into(), second + Duration::from_millis(1));
        of_second.answered(Some(usage));
        assert_eq!(asked.known(&of, &[1].into()), BucketUsage::default(), "it is that of another question");
        of_others.unwrap().answered(None);
        assert_eq!(asked.known(&of, &here), BucketUsage::default());
    }

    #[test]
    fn a_question_that_is_given_up_is_asked_again_at_once() {
        let (asked, of, here) = (UsageElsewhere::default(), UsageOf::Bucket(BucketId(1)), [1, 2].into());
        let usage = BucketUsage { bytes: 7, ..BucketUsage::default() };
        let begin = Instant::now();
        asked.ask(&of, &here, begin).unwrap().answered(Some(usage));
        assert!(asked.ask(&of, &here, begin).is_none());
        let later = begin + ASK_INTERVAL;
        drop(asked.ask(&of, &here, later).unwrap());
        assert_eq!(asked.known(&of, &here), usage, "the sum before counts until then");
        let question = asked.ask(&of, &here, later).expect("the client of the first one went away");
        assert!(asked.ask(&of, &here, later).is_none(), "one at a time");
        question.answered(None);
    }
}
