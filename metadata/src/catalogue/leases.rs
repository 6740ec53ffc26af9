//! Reads of a node that leads: they need no confirmation by a quorum while its leases hold.
//!
//! A read begins before the first row is read. It is current if its leases still hold after the last row; if
//! not, its rows may be old, and it is repeated behind a barrier. Nothing is stored here.

use super::Catalogue;
use super::inner::CatalogueInner;
use super::options::{BarrierError, BarrierScope};
use crate::raft::group::Group;
use futures_util::future::try_join_all;
use mlgw_formats::cluster_version::LEASES_CLUSTER_VERSION;
use mlgw_formats::log_types::Leadership;
use std::fmt;
use std::sync::Arc;

/// Lease of one group under which a read began.
struct GroupLease {
    group: Arc<Group>,
    leadership: Leadership,
}

/// Leases under which a read began; none if it waited at barriers.
#[derive(Default)]
pub struct ReadLeases(Vec<GroupLease>);

impl fmt::Debug for ReadLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadLeases(groups {:?})", self.0.iter().map(|lease| lease.group.id).collect::<Vec<_>>())
    }
}

impl ReadLeases {
    /// Returns true if what was read since the begin contains every change that was acknowledged before it.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.0.iter().all(|lease| lease.group.lease() == Some(lease.leadership))
    }

    /// Adds the leases of another scope of the same read.
    pub fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl Catalogue {
    /// Begins a read: waits like [`Self::barrier`], but not for the groups that this node leads under a
    /// lease. The read is current only if [`ReadLeases::hold`] returns true after its last row. Without
    /// [`CatalogueOptions::lease_reads`](super::CatalogueOptions::lease_reads), and in a cluster below
    /// [`LEASES_CLUSTER_VERSION`], there are no leases.
    ///
    /// # Errors
    /// Those of [`Self::barrier`].
    pub async fn begin_read(&self, scope: BarrierScope<'_>) -> Result<ReadLeases, BarrierError> {
        let inner = &self.inner;
        let has_leases = inner.lease_reads && inner.resident.cluster_version() >= LEASES_CLUSTER_VERSION;
        if has_leases {
            return inner.begin_leased_read(scope).await;
        }
        inner.barrier(scope).await.map(|()| ReadLeases::default())
    }
}

impl CatalogueInner {
    async fn begin_leased_read(&self, scope: BarrierScope<'_>) -> Result<ReadLeases, BarrierError> {
        let beginning = self.groups_in(scope).into_iter().map(|id| async move {
            let group = self.groups.get(id).ok_or(BarrierError::NotLeader { leader: None })?;
            match group.begin_lease().await? {
                Some(leadership) => Ok(Some(GroupLease { group, leadership })),
                None => group.barrier().await.map(|()| None),
            }
        });
        let leases = try_join_all(beginning).await?;
        Ok(ReadLeases(leases.into_iter().flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster_tests::{three_nodes, until};
    use super::super::groups::SYSTEM_GROUP;
    use super::super::options::{BarrierError, BarrierScope};
    use crate::catalogue::testing::key;
    use mlgw_formats::cluster_version::LEASES_CLUSTER_VERSION;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn leases_begin_with_the_cluster_version_whose_voters_pause_after_a_start() {
        let (cluster, bucket) = three_nodes().await;
        let object = key("k0");
        let scope = BarrierScope::Key(bucket.bucket_id(), &object);
        let begin = async || {
            let leader = cluster.leader(SYSTEM_GROUP).await;
            Some((leader, cluster.node(leader).begin_read(scope).await.ok()?))
        };
        let (leader, leases) = until(begin).await;
        assert!(leases.0.is_empty() && leases.hold(), "it waited at a barrier");
        let raised = cluster.node(leader).raise_cluster_version(LEASES_CLUSTER_VERSION).await;
        raised.unwrap();
        let (leader, leases) =
            until(async || begin().await.filter(|(_, leases)| !leases.0.is_empty() && leases.hold())).await;
        for (node, catalogue) in cluster.nodes.iter().filter(|(node, _)| **node != leader) {
            let leases = until(async || catalogue.begin_read(scope).await.ok()).await;
            assert!(leases.0.is_empty(), "node {node} follows");
        }
        cluster.network.isolate(leader);
        until(async || (!leases.hold()).then_some(())).await;
        let cut_off = cluster.node(leader).begin_read(scope).await;
        assert_eq!(cut_off.unwrap_err(), BarrierError::NoQuorum);
    }
}
