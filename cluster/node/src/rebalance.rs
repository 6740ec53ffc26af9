//! `mlgw cluster rebalance`: sets of nodes are created and groups move to them, until each storage node has
//! about as much to do.
//!
//! The request is a row, which the leader of the system group removes when nothing is left to do. So a
//! rebalance goes on after the loss of any node, and after a power loss.

use crate::node::ClusterNode;
use crate::set_facts::{NodeAnswers, SetFacts};
use mlgw_common::limits::SET_NODES_MAX;
use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
use mlgw_membership::SetStep;
use mlgw_metadata::{BarrierError, BarrierScope, ProposeError};

/// Outcome of the request of a rebalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebalanceRequest {
    /// It has begun.
    Begun,
    /// One was under way, and goes on.
    Running,
}

/// Reason for which no rebalance begins.
#[derive(Debug, thiserror::Error)]
pub enum RebalanceError {
    /// A node runs a version without sets.
    #[error(
        "the cluster has version {has}, and sets of nodes need version {SETS_CLUSTER_VERSION}: upgrade every \
         node, and wait until `mlgw cluster status` reports this version"
    )]
    Version {
        /// The version of the cluster.
        has: u32,
    },
    /// Every node has everything.
    #[error(
        "nothing to move: the cluster has {active} active storage nodes, and with up to {SET_NODES_MAX} each \
         of them has all groups and segments: add a node first"
    )]
    TooFewNodes {
        /// Storage nodes that serve.
        active: usize,
    },
    /// The sets are as they should be.
    #[error(
        "nothing to move: the sets of nodes ({sets}) and the groups in them are as they should be for \
         {active} active storage nodes"
    )]
    Balanced {
        /// Number of sets.
        sets: usize,
        /// Storage nodes that serve.
        active: usize,
    },
    /// The rows of this node may be old.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// The request was not recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

impl ClusterNode {
    /// Requests a rebalance in the name of `by`. A running one continues with the present nodes.
    ///
    /// # Errors
    /// See [`RebalanceError`].
    pub async fn rebalance(&self, by: &str) -> Result<RebalanceRequest, RebalanceError> {
        let (shared, catalogue) = (&self.shared, &self.shared.catalogue);
        catalogue.barrier(BarrierScope::System).await?;
        let has = catalogue.cluster_version();
        if has < SETS_CLUSTER_VERSION {
            return Err(RebalanceError::Version { has });
        }
        let answers = NodeAnswers::of(catalogue, &shared.probes, &shared.services);
        let facts = SetFacts::of(catalogue, answers);
        check_work(&facts)?;
        let outcome = if facts.is_rebalancing { RebalanceRequest::Running } else { RebalanceRequest::Begun };
        // Also if one runs: its end may have been decided without a node that has just joined.
        catalogue.request_rebalance(by).await?;
        Ok(outcome)
    }
}

/// Checks that a rebalance has something to do. A node that lacks the rows of a group cannot exclude it.
fn check_work(facts: &SetFacts) -> Result<(), RebalanceError> {
    let requested = SetFacts { is_rebalancing: true, ..facts.clone() };
    let (sets, active) = (facts.rows.sets().len(), facts.active_nodes());
    match requested.next_step() {
        SetStep::Idle if sets == 0 => Err(RebalanceError::TooFewNodes { active }),
        SetStep::Idle => Err(RebalanceError::Balanced { sets, active }),
        SetStep::Wait(_) | SetStep::Put { .. } | SetStep::Assign { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{RebalanceError, check_work};
    use crate::set_facts::{NodeAnswers, SetFacts};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{NodeSet, NodeState};
    use mlgw_membership::{GroupProgress, SetRows};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn facts(nodes: u64, sets: &[[u64; 3]], progress: GroupProgress) -> SetFacts {
        let set = |(id, nodes): (u32, &[u64; 3])| Arc::new(NodeSet { id, nodes: nodes.into(), changes: 1 });
        SetFacts {
            nodes: (1..=nodes).map(|node| (NodeId(node), NodeState::Active)).collect(),
            rows: SetRows::new((0..).zip(sets).map(set), []),
            groups: [(1, progress)].into(),
            answers: NodeAnswers::default(),
            successors: BTreeMap::new(),
            is_rebalancing: false,
        }
    }

    #[test]
    fn a_rebalance_without_work_is_refused_with_the_reason() {
        for active in 1..=3 {
            let refused = check_work(&facts(active, &[], GroupProgress::Settled));
            assert!(
                matches!(refused, Err(RebalanceError::TooFewNodes { active: of }) if of as u64 == active)
            );
        }
        assert!(check_work(&facts(4, &[], GroupProgress::Settled)).is_ok());
        let three = [[1, 2, 3]];
        let refused = check_work(&facts(3, &three, GroupProgress::Settled)).unwrap_err();
        let expected = "nothing to move: the sets of nodes (1) and the groups in them are as they should be \
                        for 3 active storage nodes";
        assert_eq!(refused.to_string(), expected);
        assert!(check_work(&facts(3, &three, GroupProgress::Moving)).is_ok(), "a group still moves");
        assert!(check_work(&facts(4, &three, GroupProgress::Settled)).is_ok());
    }
}
