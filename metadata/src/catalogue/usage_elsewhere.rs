//! Usage for the check of quotas on a node that has not all groups.
//!
//! Such a node counts its own groups, and asks a node of the first set for the sum over the others: at most
//! once a second for each bucket and access key. Without an answer its own groups count. The answer is made
//! from rows that no barrier confirms, so a quota over several groups may be exceeded by what other nodes
//! store meanwhile. Nothing is stored here.

use super::groups::SYSTEM_GROUP;
use super::inner::CatalogueInner;
use super::known_usage::UsageOf;
use super::{Catalogue, read};
use crate::raft::peers::{CallRefused, MemberLane};
use crate::raft::remote::RemoteNetwork;
use crate::store_error::ReadError;
use mlgw_common::BucketId;
use mlgw_common::time::Instant;
use mlgw_formats::member_calls::{MemberReply, MemberRequest, UsageCall, UsageReply};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::usage::bucket_row;
use mlgw_formats::schema::{BucketUsage, Payer};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Longest time for the answers of all nodes that are asked.
const ANSWER_MAX: Duration = Duration::from_millis(500);

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
        let Some(peers) = &self.opener.peers else { return };
        let here = self.object_groups_here();
        if here.len() == self.object_groups().len() {
            return;
        }
        let asked = Instant::now();
        let Some(asking) = self.usage_elsewhere.ask(&of, &here, asked) else { return };
        let network = RemoteNetwork { peers: Arc::clone(peers), group: SYSTEM_GROUP };
        let question = question(&of, here);
        let mut answer = None;
        let homes = self.resident.home_nodes();
        for node in homes.into_iter().filter(|node| *node != self.resident.node) {
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
        asking.answered(answer);
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
