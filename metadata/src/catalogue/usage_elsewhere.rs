//! Usage for the check of quotas on a node that has not all groups.
//!
//! Such a node counts its own groups, and asks a node of the first set for the sum over the others: at most
//! once in [`ASK_INTERVAL`] for each bucket and access key. Without an answer its own groups count. The
//! answer is made from rows that no barrier confirms, so a quota over several groups may be exceeded by what
//! other nodes store meanwhile. Nothing is stored here.

use super::groups::SYSTEM_GROUP;
use super::inner::CatalogueInner;
use super::{Catalogue, read};
use crate::raft::peers::{CallRefused, MemberLane};
use crate::raft::remote::RemoteNetwork;
use crate::store_error::ReadError;
use mlgw_common::limits::USAGE_SUMS_MAX;
use mlgw_common::time::Instant;
use mlgw_common::{BucketId, NodeId};
use mlgw_formats::member_calls::{MemberReply, MemberRequest, UsageCall, UsageReply};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::usage::bucket_row;
use mlgw_formats::schema::{BucketUsage, Payer};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Time until usage is asked for again.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time for the answers of all nodes that are asked.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// What usage is counted of.
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
    fn begin(&self, of: &UsageOf, here: &BTreeSet<u32>, now: Instant) -> bool {
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
    fn end(&self, of: &UsageOf, asked: Instant, answer: Option<BucketUsage>) {
        if let Some(known) = self.0.lock().get_mut(of).filter(|known| known.asked == asked) {
            known.usage = answer.unwrap_or_default();
        }
    }

    /// Usage in all groups but those that are here.
    fn known(&self, of: &UsageOf, here: &BTreeSet<u32>) -> BucketUsage {
        let known = self.0.lock();
        known.get(of).filter(|known| known.here == *here).map(|known| known.usage).unwrap_or_default()
    }
}

impl Catalogue {
    /// Asks for usage that this node cannot count, for [`Catalogue::quota_usage`]. Returns at once on a node
    /// that has all groups, or if it was asked for within a second.
    pub async fn ask_usage(&self, of: UsageOf) {
        self.inner.ask_usage(of).await;
    }

    /// Usage of a bucket or an access key, as far as this node knows it: in the groups here, and by the
    /// newest answer to [`Catalogue::ask_usage`] in the others.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn quota_usage(&self, of: &UsageOf) -> Result<BucketUsage, ReadError> {
        let mut usage = self.inner.usage_without(of, &BTreeSet::new())?;
        let here = self.inner.object_groups_here();
        if here.len() < self.inner.object_groups().len() {
            usage.add(&self.inner.usage_elsewhere.known(of, &here));
        }
        Ok(usage)
    }
}

impl CatalogueInner {
    /// Usage in the groups on this node, without some of them.
    pub(super) fn usage_without(
        &self,
        of: &UsageOf,
        without: &BTreeSet<u32>,
    ) -> Result<BucketUsage, ReadError> {
        let mut usage = BucketUsage::default();
        for group in self.object_groups_here().difference(without) {
            let state = self.state_of_group(*group)?;
            let share = match of {
                UsageOf::Bucket(bucket) => read::<BucketUsage>(&state, &bucket_row(*bucket))?,
                UsageOf::Payer(key) => read::<Payer>(&state, &payer_row(key))?.map(|payer| payer.usage),
            };
            usage.add(&share.unwrap_or_default());
        }
        Ok(usage)
    }

    async fn ask_usage(&self, of: UsageOf) {
        let here = self.object_groups_here();
        let Some(peers) = &self.opener.peers else { return };
        if here.len() == self.object_groups().len() {
            return;
        }
        let asked = Instant::now();
        if !self.usage_elsewhere.begin(&of, &here, asked) {
            return;
        }
        let network = RemoteNetwork { peers: Arc::clone(peers), group: SYSTEM_GROUP };
        let question = question(&of, here);
        let mut answer = None;
        for node in self.nodes_with_all_groups() {
            let request = MemberRequest::Usage(question.clone());
            match network.call(node, MemberLane::Log, request, asked + ANSWER_MAX).await {
                Ok(MemberReply::Usage(reply)) => {
                    answer = Some(reply.usage);
                    break;
                }
                Ok(other) => tracing::debug!(%node, ?other, "an answer about usage does not fit"),
                Err(error) => tracing::debug!(%node, %error, "usage in the groups of other nodes is unknown"),
            }
        }
        self.usage_elsewhere.end(&of, asked, answer);
    }

    /// The other nodes of the first set.
    fn nodes_with_all_groups(&self) -> Vec<NodeId> {
        let sets = self.resident.sets.read();
        let nodes = sets.get(&u64::from(FIRST_SET)).into_iter().flat_map(|set| set.nodes.iter().copied());
        nodes.map(NodeId).filter(|node| *node != self.resident.node).collect()
    }

    /// Answers the question of another node.
    pub(super) fn serve_usage(&self, call: &UsageCall) -> Result<MemberReply, CallRefused> {
        let of = match call.bucket_id {
            0 => UsageOf::Payer(call.access_key.clone()),
            id => UsageOf::Bucket(BucketId(id)),
        };
        let without: BTreeSet<u32> = call.without.iter().copied().collect();
        if let Some(missing) = self.object_groups_elsewhere().difference(&without).next() {
            let elsewhere = ReadError::GroupElsewhere { group: *missing };
            return Err(CallRefused(elsewhere.to_string()));
        }
        let usage = self.usage_without(&of, &without).map_err(|error| CallRefused(error.to_string()))?;
        Ok(MemberReply::Usage(UsageReply { usage }))
    }
}

/// The question about usage in all groups but those that are here.
fn question(of: &UsageOf, here: BTreeSet<u32>) -> UsageCall {
    let without = here.into_iter().collect();
    match of {
        UsageOf::Bucket(bucket) => UsageCall { bucket_id: bucket.0, without, ..UsageCall::default() },
        UsageOf::Payer(key) => UsageCall { access_key: key.clone(), without, ..UsageCall::default() },
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
