//! Heartbeats of the groups that this node leads: started together, sent together.
//!
//! At the same time the clocks of all groups are set, which find elections that are due. openraft starts no
//! heartbeats of these groups itself ([`gathered_config`](crate::raft::group::gathered_config)).
//! Nodes of a cluster below [`LEASES_CLUSTER_VERSION`] do not know calls with the heartbeats of several
//! groups, so each is a call of its own there. Nothing is stored here.

use super::inner::CatalogueInner;
use super::stop_signal::StopSignal;
use crate::raft::heartbeats::{HEARTBEAT_INTERVAL, Heartbeats};
use crate::raft::peers::CallRefused;
use futures_util::future::join_all;
use mlgw_common::NodeId;
use mlgw_common::time::{MissedTickBehavior, interval, sleep, timeout};
use mlgw_formats::cluster_version::LEASES_CLUSTER_VERSION;
use mlgw_formats::member_calls::{
    Heartbeat, HeartbeatAnswer, HeartbeatsCall, HeartbeatsReply, MemberAnswer, MemberReply, MemberRequest,
};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Longest time for which the heartbeats of all groups wait for each other: openraft's tasks start them
/// within that, unless the node is overloaded.
const GATHERING: Duration = Duration::from_millis(2);

/// Longest time that the answer to a call waits for one of its heartbeats: a member that still syncs entries
/// answers when it has done so.
const ANSWER_WAIT: Duration = Duration::from_millis(200);

/// Starts the heartbeats of all groups until the catalogue stops.
pub(super) async fn send_heartbeats(
    catalogue: Weak<CatalogueInner>,
    stop: Arc<StopSignal>,
    heartbeats: Arc<Heartbeats>,
) {
    let mut tick = interval(HEARTBEAT_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = stop.cancelled() => break,
        }
        let Some(inner) = catalogue.upgrade() else { return };
        inner.start_heartbeats(&heartbeats).await;
    }
    // Commands in flight still need their leaders.
    if let Some(inner) = catalogue.upgrade() {
        for group in inner.groups.all() {
            group.raft.runtime_config().heartbeat(true);
            group.raft.runtime_config().tick(true);
        }
    }
}

impl CatalogueInner {
    async fn start_heartbeats(&self, heartbeats: &Heartbeats) {
        let mut leading = self.groups.all();
        leading.iter().for_each(|group| group.set_clock());
        leading.retain(|group| group.followers() > 0);
        if leading.is_empty() {
            return;
        }
        if leading.len() > 1 && self.resident.cluster_version() >= LEASES_CLUSTER_VERSION {
            heartbeats.gather(leading.iter().map(|group| group.followers()).sum());
        }
        let started = leading.iter().map(|group| async move {
            // A group that stops needs no heartbeat.
            let _ = group.raft.trigger().heartbeat().await;
        });
        // A group whose task is busy does not delay the others.
        let _ = timeout(GATHERING, join_all(started)).await;
        sleep(GATHERING).await;
        heartbeats.send();
    }

    /// Serves the heartbeats of several groups of the node `from`.
    ///
    /// # Errors
    /// If this node does not know such calls.
    pub(super) async fn serve_heartbeats(
        &self,
        from: NodeId,
        call: HeartbeatsCall,
    ) -> Result<MemberReply, CallRefused> {
        if self.resident.known_version < LEASES_CLUSTER_VERSION {
            return Err(CallRefused("this version does not know heartbeats of several groups".into()));
        }
        let answers = call.heartbeats.into_iter().map(|heartbeat| self.serve_heartbeat(from, heartbeat));
        Ok(MemberReply::Heartbeats(HeartbeatsReply { answers: join_all(answers).await }))
    }

    async fn serve_heartbeat(&self, from: NodeId, heartbeat: Heartbeat) -> HeartbeatAnswer {
        let served = match self.member(heartbeat.group) {
            Ok(member) => {
                let serving =
                    timeout(ANSWER_WAIT, member.serve(from, MemberRequest::Append(heartbeat.append)));
                serving.await.unwrap_or_else(|_| Err(CallRefused("its log is not synced in time".into())))
            }
            Err(refused) => Err(refused),
        };
        match served {
            Ok(reply) => {
                HeartbeatAnswer { answer: MemberAnswer::encode_reply(reply), refusal: String::new() }
            }
            Err(CallRefused(refusal)) => HeartbeatAnswer { refusal, ..HeartbeatAnswer::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster_tests::three_nodes;
    use super::super::groups::SYSTEM_GROUP;
    use mlgw_common::NodeId;
    use mlgw_formats::member_calls::{
        AppendCall, Heartbeat, HeartbeatsCall, MemberAnswer, MemberCall, MemberReply, MemberRequest,
        VoteRecord,
    };

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_heartbeat_of_a_call_has_an_answer_of_its_own() {
        let (cluster, _) = three_nodes().await;
        let leader = cluster.leader(SYSTEM_GROUP).await;
        let follower = cluster.node(if leader == 1 { 2 } else { 1 });
        let leads = cluster.node(leader).inner().groups.system().leadership().unwrap();
        let beat = |group, term, node| Heartbeat {
            group,
            append: AppendCall { vote: VoteRecord { term, node, committed: true }, ..AppendCall::default() },
        };
        let heartbeats = vec![
            beat(SYSTEM_GROUP, leads.term, leader),
            beat(SYSTEM_GROUP + 77, leads.term, leader),
            beat(SYSTEM_GROUP, 0, leader),
            beat(SYSTEM_GROUP, leads.term, leader + 1),
        ];
        let call = MemberRequest::Heartbeats(HeartbeatsCall { heartbeats });
        let call = MemberCall::encode_request(SYSTEM_GROUP, call);
        let answer = follower.serve_call(NodeId(leader), call).await.unwrap();
        let MemberReply::Heartbeats(reply) = MemberAnswer::read(answer).unwrap() else { panic!("a misfit") };
        let [leading, unknown, old, forged] = &reply.answers[..] else { panic!("{reply:?}") };
        let leading = MemberAnswer::read(leading.answer.clone()).unwrap();
        assert!(matches!(leading, MemberReply::Appended(_)), "{leading:?}");
        assert!(unknown.answer.is_empty() && unknown.refusal.contains("no member"), "{unknown:?}");
        let old = MemberAnswer::read(old.answer.clone()).unwrap();
        assert!(matches!(old, MemberReply::HigherVote(_)), "{old:?}");
        assert!(forged.answer.is_empty() && forged.refusal.contains("in the name of"), "{forged:?}");
    }
}
