//! Takes the duty over, holds it, and hands it over: what runs once per cluster runs on one storage node.
//!
//! [`decide_duty`] decides, and [`DutyWork`] is what the node does then. While the duty runs here, a barrier
//! of the system group confirms once a second that no other term has begun. Each confirmation is a **lease**:
//! it is counted from before the barrier, so it ends before a node that takes over later has waited for it.
//!
//! The row of the duty node is the only lasting state. After a power loss the node that leads the system
//! group goes on from it.

use crate::facts::SYSTEM_GROUP;
use crate::probes::Probes;
use crate::routes::serving_nodes;
use crate::services::NodeServices;
use futures_util::future::BoxFuture;
use mlgw_common::limits::{DUTY_LEASE_MS, DUTY_RENEW_MS};
use mlgw_common::time::{Instant, sleep, timeout};
use mlgw_common::{NodeId, SuspensionWatch};
use mlgw_formats::cluster_version::DUTY_CLUSTER_VERSION;
use mlgw_formats::schema::{Duty, DutyPhase};
use mlgw_membership::duty::LEASE_WAIT_MS;
use mlgw_membership::{Contact, DutyFacts, DutyStep, HeldDuty, NodeLeader, decide_duty};
use mlgw_metadata::{BarrierScope, Catalogue};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Longest time until the facts are collected again.
const INTERVAL: Duration = Duration::from_millis(200);

/// Pause before work that did not begin is tried again.
const RETRY: Duration = Duration::from_secs(2);

const LEASE: Duration = Duration::from_millis(DUTY_LEASE_MS);
const RENEW: Duration = Duration::from_millis(DUTY_RENEW_MS);

/// What the duty node does, besides the work of the catalogue.
pub trait DutyWork: Send + Sync + 'static {
    /// Begins a term. `term` is `None` while the commands of the cluster have no terms.
    fn begin(&self, term: Option<u64>) -> BoxFuture<'_, Result<(), String>>;

    /// No other node has the duty before this instant, unless this one hands it over.
    fn extend(&self, lease: Instant);

    /// Acts on origins may begin.
    fn allow_acts(&self);

    /// Ends the term. Returns true if the outcome of everything that was sent to an origin is known. Does
    /// nothing if no term has begun.
    fn end(&self) -> BoxFuture<'_, bool>;
}

/// Where the duty of this node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnDuty {
    /// Not decided yet since the start.
    Unknown,
    /// It runs on no node or on another one, as far as this node knows.
    Elsewhere,
    /// It runs here.
    Here,
}

/// The lease of this node, for its metrics.
#[derive(Debug, Default)]
pub(crate) struct DutyLease {
    end: Mutex<Option<Instant>>,
    suspensions: SuspensionWatch,
}

impl DutyLease {
    fn set(&self, end: Option<Instant>) {
        *self.end.lock() = end;
    }

    /// True while no other node has the duty.
    pub(crate) fn holds(&self) -> bool {
        self.end.lock().is_some_and(|end| self.suspensions.lease_holds(end, LEASE))
    }
}

/// Sources of the facts.
pub(crate) struct DutyDriver {
    pub(crate) own: NodeId,
    pub(crate) catalogue: Catalogue,
    pub(crate) probes: Arc<Probes>,
    pub(crate) services: NodeServices,
    pub(crate) lease: Arc<DutyLease>,
}

/// A term that runs here.
struct RunningTerm {
    term: u64,
    began: Instant,
    /// Begin of the last barrier that was attempted.
    attempted: Instant,
}

impl DutyDriver {
    /// Carries out the duty by `work` until `stop`; then ends it.
    pub(crate) async fn run(
        self,
        work: Arc<dyn DutyWork>,
        state: watch::Sender<OwnDuty>,
        stop: CancellationToken,
    ) {
        let (mut running, mut leader) = (None, None);
        while !stop.is_cancelled() {
            let changed = self.catalogue.node_changed();
            self.renew(&*work, &mut running).await;
            leader = self.leader(leader);
            let facts = self.facts(running.as_ref(), leader);
            let step = decide_duty(&facts);
            let carried_out = self.carry_out(step, &*work, &mut running);
            // A take-over waits for a lease, and a stop need not.
            let is_complete = match step {
                DutyStep::Begin | DutyStep::TakeOver(_) => {
                    stop.run_until_cancelled(carried_out).await.is_some()
                }
                DutyStep::Wait | DutyStep::Act(_) | DutyStep::HandOver | DutyStep::Stop => {
                    carried_out.await;
                    true
                }
            };
            if !is_complete {
                break;
            }
            publish(&state, &facts, running.is_some());
            if matches!(step, DutyStep::Wait) {
                let waiting = timeout(INTERVAL, changed);
                let _ = stop.run_until_cancelled(waiting).await;
            }
        }
        self.hand_over(&*work, &mut running).await;
        state.send_replace(OwnDuty::Elsewhere);
    }

    /// The leader of the system group, and since when this node knows it. A leadership of this node counts
    /// once it can be used.
    fn leader(&self, before: Option<(NodeId, Instant)>) -> Option<(NodeId, Instant)> {
        let leads = self.catalogue.is_on_duty();
        let leader = self.catalogue.leader(SYSTEM_GROUP).filter(|node| leads == (*node == self.own))?;
        let known = before.filter(|(node, _)| *node == leader);
        Some(known.unwrap_or_else(|| (leader, Instant::now())))
    }

    fn facts(&self, running: Option<&RunningTerm>, leader: Option<(NodeId, Instant)>) -> DutyFacts {
        let (nodes, duty) = (self.catalogue.nodes(), self.catalogue.duty());
        let active = serving_nodes(&nodes);
        let millis = |since: Instant| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let is_removed = !nodes.iter().any(|node| node.node_id() == duty.node_id() && !node.is_removed());
        DutyFacts {
            own: self.own,
            is_able: active.contains(&self.own) && !self.services.is_stopping(),
            knows_terms: self.catalogue.cluster_version() >= DUTY_CLUSTER_VERSION,
            leader: leader.map(|(node, since)| NodeLeader {
                node,
                is_able: active.contains(&node),
                for_ms: millis(since),
            }),
            duty,
            holder: match is_removed {
                true => Contact::Unreachable { for_ms: u64::MAX },
                false => self.probes.contact(duty.node_id()),
            },
            held: running.map(|held| HeldDuty { term: held.term, for_ms: millis(held.began) }),
        }
    }

    async fn carry_out(&self, step: DutyStep, work: &dyn DutyWork, running: &mut Option<RunningTerm>) {
        match step {
            DutyStep::Wait => {}
            DutyStep::Begin => self.begin(Duty::FIRST, false, work, running).await,
            DutyStep::TakeOver(duty) => self.take_over(duty, work, running).await,
            DutyStep::Act(duty) => {
                if self.record(duty).await {
                    work.allow_acts();
                }
            }
            DutyStep::HandOver => self.hand_over(work, running).await,
            DutyStep::Stop => {
                tracing::warn!(duty = ?self.catalogue.duty(), "another term of duty has begun");
                *running = None;
                self.lease.set(None);
                work.end().await;
            }
        }
    }

    /// Has the lease confirmed, if it is time.
    async fn renew(&self, work: &dyn DutyWork, running: &mut Option<RunningTerm>) {
        let Some(held) = running else { return };
        if held.attempted.elapsed() >= RENEW {
            held.attempted = Instant::now();
            if self.is_confirmed(held.term).await {
                self.extend(work, held.attempted + LEASE);
            }
        }
    }

    fn extend(&self, work: &dyn DutyWork, lease: Instant) {
        work.extend(lease);
        self.lease.set(Some(lease));
    }

    /// True if a quorum confirms that no other term has begun.
    async fn is_confirmed(&self, term: u64) -> bool {
        let is_current = self.catalogue.barrier(BarrierScope::System).await.is_ok();
        let duty = self.catalogue.duty();
        is_current && duty.node_id() == self.own && duty.term == term
    }

    async fn take_over(&self, duty: Duty, work: &dyn DutyWork, running: &mut Option<RunningTerm>) {
        let before = self.catalogue.duty();
        // The step may follow from old rows.
        let is_current = self.catalogue.barrier(BarrierScope::System).await.is_ok();
        if is_current && self.catalogue.duty() == before && self.record(duty).await {
            self.begin(duty, true, work, running).await;
        }
    }

    /// Begins the term of a row, which has just been written unless the row cannot change yet.
    async fn begin(
        &self,
        duty: Duty,
        has_terms: bool,
        work: &dyn DutyWork,
        running: &mut Option<RunningTerm>,
    ) {
        let began = Instant::now();
        if duty.phase() == DutyPhase::Waiting {
            tracing::warn!(
                term = duty.term,
                "the duty node before this one has not stopped: waiting for the end of its lease"
            );
            sleep(Duration::from_millis(LEASE_WAIT_MS)).await;
        }
        let attempted = Instant::now();
        if !self.is_confirmed(duty.term).await {
            return;
        }
        if let Err(error) = work.begin(has_terms.then_some(duty.term)).await {
            tracing::error!(error, "the work of the duty node did not begin; retrying");
            work.end().await;
            sleep(RETRY).await;
            return;
        }
        self.extend(work, attempted + LEASE);
        if duty.phase() == DutyPhase::Writing {
            work.allow_acts();
        }
        tracing::info!(term = duty.term, phase = ?duty.phase(), "this node has the duty");
        *running = Some(RunningTerm { term: duty.term, began, attempted });
    }

    /// Ends the term, and records that if nothing of it can have an effect any more.
    async fn hand_over(&self, work: &dyn DutyWork, running: &mut Option<RunningTerm>) {
        let held = running.take();
        self.lease.set(None);
        let is_complete = work.end().await;
        let Some(held) = held else { return };
        let duty = self.catalogue.duty();
        let is_own = duty.node_id() == self.own && duty.term == held.term;
        let is_acting = duty.phase() == DutyPhase::Writing;
        let knows_terms = self.catalogue.cluster_version() >= DUTY_CLUSTER_VERSION;
        tracing::info!(term = held.term, is_complete, "the duty of this node has ended");
        if is_own && is_acting && is_complete && knows_terms {
            self.record(Duty { phase: DutyPhase::Ended as i32, ..duty }).await;
        }
    }

    /// Writes the row. If the outcome is unknown, the row decides later.
    async fn record(&self, duty: Duty) -> bool {
        let recorded = self.catalogue.set_duty(duty).await;
        if let Err(error) = &recorded {
            tracing::info!(%error, ?duty, "the duty was not recorded; it is decided again");
            sleep(INTERVAL).await;
        }
        recorded.is_ok()
    }
}

/// Publishes where the duty is, once that is decided: this node may be about to begin if it leads.
fn publish(state: &watch::Sender<OwnDuty>, facts: &DutyFacts, is_here: bool) {
    let leads = facts.leader.is_some_and(|leader| leader.node == facts.own);
    let now = match is_here {
        true => OwnDuty::Here,
        false if leads && *state.borrow() == OwnDuty::Unknown => OwnDuty::Unknown,
        false => OwnDuty::Elsewhere,
    };
    state.send_if_modified(|known| std::mem::replace(known, now) != now);
}

#[cfg(test)]
mod tests;
