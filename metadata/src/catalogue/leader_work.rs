//! Work that runs once per cluster on the leader of the system group: sagas, and the releases of bodies. The
//! duty node usually leads it, but its term of duty begins later and ends later than its leadership.
//!
//! A server without peers does this work when it opens. In a cluster each new leader begins again, because
//! the one before it may have stopped anywhere; every step is repeatable.

use super::groups::SYSTEM_GROUP;
use super::inner::{CatalogueInner, propose_error};
use super::options::ProposeError;
use super::stop_signal::StopSignal;
use crate::raft::peers::{CallRefused, MemberLane, PeerError};
use crate::raft::remote::RemoteNetwork;
use crate::raft::serve::declined;
use mlgw_common::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::command::{Change, Command, Reply};
use mlgw_formats::member_calls::{DeclineReason, MemberReply, MemberRequest, SagaCall, SagaReply};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause before work that failed is begun again.
const RETRY: Duration = Duration::from_secs(1);

/// Pause between two searches for buckets that are being created or deleted, and for quotas that differ.
const SEARCH_PAUSE: Duration = Duration::from_secs(30);

/// Longest time that a saga may take on another node.
const SAGA_MAX: Duration = Duration::from_secs(20);

/// Longest time that a saga waits for a leader.
const LEADER_WAIT: Duration = Duration::from_secs(2);

/// Pause before a leader is looked for again.
const LEADER_PAUSE: Duration = Duration::from_millis(20);

/// Begins the work whenever this node becomes the leader of the system group, until the catalogue stops.
pub(super) async fn run(catalogue: Weak<CatalogueInner>, stop: Arc<StopSignal>) {
    loop {
        let Some(leads) = catalogue.upgrade().map(|inner| inner.groups.system().until_leading()) else {
            return;
        };
        tokio::select! {
            is_running = leads => if !is_running { return },
            () = stop.cancelled() => return,
        }
        let Some(inner) = catalogue.upgrade() else { return };
        let system = inner.groups.system();
        // The metrics may show the leadership a moment before it can be used.
        let Ok(leadership) = system.leadership() else {
            mlgw_common::time::sleep(LEADER_PAUSE).await;
            continue;
        };
        let ended = system.until_not_leading(leadership);
        let began = inner.begin_leader_work().await;
        inner.resident.release_added.notify_one();
        drop(inner);
        let again = match began {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(%error, "work of the leader of the system group did not begin; retrying");
                Some(RETRY)
            }
        };
        let Some(resident) = catalogue.upgrade().map(|inner| Arc::clone(&inner.resident)) else { return };
        tokio::select! {
            () = ended => {}
            () = pause(again) => {}
            () = async {
                resident.saga_broken.notified().await;
                mlgw_common::time::sleep(RETRY).await;
            } => {}
            () = until_found(|| resident.has_unfinished_buckets() || has_missing_quotas(&catalogue)) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Waits until a search finds an unfinished bucket or quota. Its saga may run: the resumption waits for its
/// end.
///
/// A step of unknown outcome may be applied after its saga was resumed. Without further searches the bucket
/// would be unusable, and the quota wrong, until the next leadership.
async fn until_found(search: impl Fn() -> bool) {
    loop {
        mlgw_common::time::sleep(SEARCH_PAUSE).await;
        if search() {
            return;
        }
    }
}

fn has_missing_quotas(catalogue: &Weak<CatalogueInner>) -> bool {
    catalogue.upgrade().is_some_and(|inner| inner.has_missing_quotas())
}

/// Waits so long, or for ever.
async fn pause(duration: Option<Duration>) {
    match duration {
        None => std::future::pending().await,
        Some(duration) => mlgw_common::time::sleep(duration).await,
    }
}

impl CatalogueInner {
    /// True if this node leads the system group.
    pub(super) fn leads_system_group(&self) -> bool {
        self.groups.system().leadership().is_ok()
    }

    /// Does what an interrupted predecessor left.
    pub(super) async fn begin_leader_work(&self) -> Result<(), ProposeError> {
        let current = self.groups.system().barrier().await;
        current.map_err(|_| ProposeError::NotLeader { leader: None })?;
        // Both are attempted, whether or not one fails.
        let sagas = self.resume_sagas().await;
        sagas.and(self.resume_quotas().await)
    }

    /// Runs a saga on the leader of the system group, which may be another node. A saga that certainly did
    /// not begin is sent again for a while.
    pub(super) async fn lead_saga(self: &Arc<Self>, change: Change) -> Result<Reply, ProposeError> {
        let deadline = Instant::now() + LEADER_WAIT;
        loop {
            let outcome = match self.groups.system().leadership() {
                Ok(_) => self.run_whole_saga(change.clone()).await,
                Err(error) => self.saga_elsewhere(propose_error(error), change.clone()).await,
            };
            let may_repeat = matches!(outcome, Err(ProposeError::NotLeader { .. }));
            if !may_repeat || self.opener.peers.is_none() || Instant::now() >= deadline {
                return outcome;
            }
            mlgw_common::time::sleep(LEADER_PAUSE).await;
        }
    }

    /// Runs a saga in a task of its own: it goes on if its caller no longer waits.
    async fn run_whole_saga(self: &Arc<Self>, change: Change) -> Result<Reply, ProposeError> {
        let inner = Arc::clone(self);
        let ran = tokio::spawn(async move { inner.run_saga(change).await }).await;
        ran.unwrap_or(Err(ProposeError::UnknownOutcome))
    }

    /// Sends a saga to the leader, and waits until this node has applied its result.
    async fn saga_elsewhere(&self, not_sent: ProposeError, change: Change) -> Result<Reply, ProposeError> {
        let Some(peers) = &self.opener.peers else { return Err(not_sent) };
        let own = self.resident.node;
        let Some(leader) = self.groups.system().leader().filter(|leader| *leader != own) else {
            return Err(not_sent);
        };
        let request = MemberRequest::Saga(SagaCall { command: Command::from(change) });
        let network = RemoteNetwork { peers: Arc::clone(peers), group: SYSTEM_GROUP };
        let called = network.call(leader, MemberLane::Log, request, Instant::now() + SAGA_MAX).await;
        let reply = match called {
            Ok(reply) => reply,
            Err(PeerError::NotSent(_) | PeerError::Refused(_)) => {
                return Err(ProposeError::NotLeader { leader: Some(leader) });
            }
            Err(PeerError::Unknown(_)) => return Err(ProposeError::UnknownOutcome),
        };
        match reply {
            MemberReply::Saga(reply) => {
                // A caller that goes on reading here finds what it changed; if not, its own barriers see to
                // that.
                let _ = self.groups.system().barrier().await;
                let outcome = reply.outcome().map_err(|_| ProposeError::UnknownOutcome)?;
                outcome.map_err(ProposeError::Rejected)
            }
            MemberReply::Declined(declined) if declined.known_reason() == DeclineReason::NotLeader => {
                Err(ProposeError::NotLeader { leader: declined.leader.map(NodeId) })
            }
            MemberReply::Declined(declined) if declined.known_reason() == DeclineReason::Overloaded => {
                Err(ProposeError::Overloaded)
            }
            _ => Err(ProposeError::UnknownOutcome),
        }
    }

    /// Runs a saga for another node.
    pub(super) async fn serve_saga(self: &Arc<Self>, call: SagaCall) -> Result<MemberReply, CallRefused> {
        let is_saga = |change: &Change| {
            matches!(
                change,
                Change::CreateBucket(_)
                    | Change::RemoveBucket(_)
                    | Change::RebindBucket(_)
                    | Change::BeginAllotment(_)
            )
        };
        let Some(change) = call.command.change.filter(is_saga) else {
            return Err(CallRefused("the command begins no saga".into()));
        };
        let outcome = match self.run_whole_saga(change).await {
            Ok(reply) => Ok(reply),
            Err(ProposeError::Rejected(reject)) => Err(reject),
            Err(ProposeError::NotLeader { leader }) => {
                return Ok(declined(DeclineReason::NotLeader, leader));
            }
            Err(ProposeError::Overloaded) => return Ok(declined(DeclineReason::Overloaded, None)),
            Err(
                ProposeError::UnknownOutcome | ProposeError::NotFinalized { .. } | ProposeError::Stopping,
            ) => return Ok(declined(DeclineReason::UnknownOutcome, None)),
        };
        // The saga has run: after a refusal the other node would send it again.
        let reply = SagaReply::of(&outcome).map(MemberReply::Saga);
        Ok(reply.unwrap_or_else(|_| declined(DeclineReason::UnknownOutcome, None)))
    }
}

#[cfg(test)]
mod tests {
    use super::{SEARCH_PAUSE, until_found};
    use mlgw_common::time::Instant;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn unfinished_buckets_are_looked_for_all_the_time() {
        let (begun, searches) = (Instant::now(), Cell::new(0));
        until_found(|| searches.replace(searches.get() + 1) == 2).await;
        assert_eq!(begun.elapsed(), 3 * SEARCH_PAUSE);
    }
}
