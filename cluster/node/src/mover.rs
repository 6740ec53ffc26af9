//! Changes the sets of nodes, step by step, on the leader of the system group.
//!
//! For each step: collect the facts, decide, carry it out, and begin again. The rows of sets and the row of
//! the rebalance are the only state, so the next leader continues after a power loss, and a step that failed
//! or whose outcome is unknown is decided anew. A row changes by compare and set, so of two nodes that both
//! seem to lead one changes nothing.
//!
//! This has a task of its own: a group whose change of members waits for a node must not delay the
//! replacement of that node in its sets.

use crate::facts::SYSTEM_GROUP;
use crate::set_facts::{NodeAnswers, SetFacts};
use mlgw_common::time::timeout;
use mlgw_membership::{SetStep, SetWait};
use mlgw_metadata::{BarrierScope, Catalogue, ProposeError};
use std::time::Duration;

/// Longest time until the facts are collected again.
const INTERVAL: Duration = Duration::from_millis(500);

/// Changes the sets until the future is dropped, while this node leads the system group. `answers` returns
/// what the nodes answer now.
pub(crate) async fn move_sets(catalogue: Catalogue, answers: impl Fn() -> NodeAnswers) {
    let mut mover = SetMover { catalogue: catalogue.clone(), answers, waits: None };
    loop {
        let changed = catalogue.node_changed();
        mover.advance().await;
        // Whether the time or a change ended the wait makes no difference.
        let _ = timeout(INTERVAL, changed).await;
    }
}

struct SetMover<A> {
    catalogue: Catalogue,
    answers: A,
    /// What the newest decision waits for; logged when it changes.
    waits: Option<SetWait>,
}

impl<A: Fn() -> NodeAnswers> SetMover<A> {
    /// Takes the next step, if this node leads the system group.
    async fn advance(&mut self) {
        if self.catalogue.members(SYSTEM_GROUP).is_err() {
            self.waits = None;
            return;
        }
        let step = SetFacts::of(&self.catalogue, (self.answers)()).next_step();
        self.log_wait(&step);
        let is_due = match step {
            SetStep::Idle => self.catalogue.rebalance().is_some(),
            SetStep::Wait(_) => false,
            SetStep::Put { .. } | SetStep::Assign { .. } => true,
        };
        // A new leader may not have applied the rows of its predecessor yet.
        if !is_due || self.catalogue.barrier(BarrierScope::System).await.is_err() {
            return;
        }
        if let Err(error) = self.carry_out().await {
            tracing::info!(%error, "a change of the sets was not carried out; it is decided again");
        }
    }

    /// Carries out the step that follows from current rows.
    async fn carry_out(&self) -> Result<(), ProposeError> {
        let catalogue = &self.catalogue;
        // Before the facts: a request that is newer than they are is not ended.
        let rebalance = catalogue.rebalance();
        match SetFacts::of(catalogue, (self.answers)()).next_step() {
            SetStep::Wait(_) => Ok(()),
            SetStep::Idle => match rebalance {
                Some(rebalance) => {
                    tracing::info!("the sets of nodes are as they should be: the rebalance ends");
                    catalogue.end_rebalance(rebalance.as_ref().clone()).await
                }
                None => Ok(()),
            },
            SetStep::Put { set, nodes, changes } => {
                let ids: Vec<u64> = nodes.iter().map(|node| node.get()).collect();
                tracing::info!(set, nodes = ?ids, "changing the nodes of a set");
                catalogue.put_set(set, &nodes, changes).await
            }
            SetStep::Assign { group, set, changes } => {
                tracing::info!(group, set, "a group moves to another set");
                catalogue.assign_group(group, set, changes).await
            }
        }
    }

    fn log_wait(&mut self, step: &SetStep) {
        let waits = if let SetStep::Wait(reason) = step { Some(*reason) } else { None };
        if let Some(reason) = waits.filter(|_| waits != self.waits) {
            tracing::info!(%reason, "the changes of the sets wait");
        }
        self.waits = waits;
    }
}

#[cfg(test)]
mod tests {
    use super::move_sets;
    use crate::admission::tests::TestMember;
    use crate::set_facts::NodeAnswers;
    use mlgw_common::NodeId;
    use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
    use mlgw_formats::command::{Change, Command, PutNode};
    use mlgw_formats::schema::Node;
    use mlgw_metadata::Catalogue;

    /// Moves the sets until a condition holds.
    async fn move_until(catalogue: &Catalogue, is_so: impl Fn() -> bool) {
        let until_so = async {
            loop {
                let changed = catalogue.node_changed();
                if is_so() {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            () = move_sets(catalogue.clone(), NodeAnswers::default) => panic!("the sets are moved for ever"),
            () = until_so => {}
        }
    }

    #[tokio::test]
    async fn a_rebalance_makes_sets_and_ends_and_a_drained_node_is_replaced_without_one() {
        let member = TestMember::new().await;
        let catalogue = &member.catalogue;
        catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
        for id in 1..=4 {
            let put = PutNode { node: Node { id, ..Node::default() } };
            catalogue.propose(Command::from(Change::PutNode(put))).await.unwrap();
        }
        catalogue.request_rebalance("AK").await.unwrap();
        move_until(catalogue, || catalogue.rebalance().is_none()).await;
        let sets: Vec<Vec<u64>> = catalogue.sets().iter().map(|set| set.nodes.clone()).collect();
        assert_eq!(sets, [[1, 2, 3], [4, 1, 2], [3, 4, 1], [2, 3, 4]]);

        catalogue.drain_node(NodeId(4), None).await.unwrap();
        move_until(catalogue, || catalogue.sets().iter().all(|set| !set.contains(NodeId(4)))).await;
        assert!(catalogue.sets().iter().all(|set| set.nodes.len() == 3), "{:?}", catalogue.sets());
        member.stop().await;
    }
}
