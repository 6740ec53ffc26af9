//! Takes the duty over, holds it, and hands it over: what runs once per cluster runs on one storage node.
//!
//! [`decide_duty`] decides, and [`DutyWork`] is what the node does then. While the duty runs here, a barrier
//! of the system group confirms once a second that no other term has begun. Each confirmation is a **lease**:
//! it is counted from before the barrier, so it ends before a node that takes over later has waited for it.
//!
//! The row of the duty node is the only lasting state. After a power loss the node that leads the system
//! group goes on from it. What a process remembers of its own terms shortens its waits, and is lost with it.

mod process;
mod renewal;

use crate::facts::SYSTEM_GROUP;
use crate::probes::Probes;
use crate::routes::serving_nodes;
use crate::services::NodeServices;
use crate::sets::set_rows;
use futures_util::future::BoxFuture;
use mlgw_common::limits::DUTY_LEASE_MS;
use mlgw_common::time::{Instant, sleep, sleep_until, timeout};
use mlgw_common::{NodeId, SuspensionWatch};
use mlgw_formats::cluster_version::DUTY_CLUSTER_VERSION;
use mlgw_formats::schema::{Duty, DutyPhase};
use mlgw_membership::{Contact, DutyFacts, DutyStep, DutyWaits, NodeLeader, decide_duty, phase_at_end};
use mlgw_metadata::{BarrierScope, Catalogue};
use parking_lot::Mutex;
use process::{DutyProcess, KnownLeader, OwnTerm, Renewing, RunningTerm, millis};
use renewal::DutyRenewal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Longest time until the facts are collected again.
const INTERVAL: Duration = Duration::from_millis(200);

/// Pause before work that did not begin is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Longest time until a change of the row is answered.
const RECORD_MAX: Duration = Duration::from_secs(2);

const LEASE: Duration = Duration::from_millis(DUTY_LEASE_MS);

/// What the duty node does, besides the work of the catalogue.
pub trait DutyWork: Send + Sync + 'static {
    /// True if this node can do all of the work: it has the upstream of every remote-backed bucket.
    fn is_fit(&self) -> bool;

    /// Begins a term. `term` is `None` while the commands of the cluster have no terms.
    fn begin(&self, term: Option<u64>) -> BoxFuture<'_, Result<(), DutyBeginError>>;

    /// No other node has the duty before this instant, unless this one hands it over.
    fn extend(&self, lease: Instant);

    /// Acts on origins may begin.
    fn allow_acts(&self);

    /// Ends the term. Returns true if the outcome of everything that was sent to an origin is known. Does
    /// nothing if no term has begun. The lease is extended until it returns.
    fn end(&self) -> BoxFuture<'_, bool>;
}

/// Reason for which a term does not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DutyBeginError {
    /// Too few nodes confirm that the rows of this node are the newest. Any other node could have that too.
    #[error("{0}")]
    Unconfirmed(String),
    /// This node cannot do the work.
    #[error("{0}")]
    Failed(String),
}

/// State of the duty on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnDuty {
    /// Not decided yet since the start.
    Unknown,
    /// It runs on no node or on another one, according to the rows of this node.
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

impl DutyDriver {
    /// Carries out the duty by `work` until `stop`; then ends it.
    pub(crate) async fn run(
        self,
        work: Arc<dyn DutyWork>,
        state: watch::Sender<OwnDuty>,
        stop: CancellationToken,
    ) {
        let mut process = DutyProcess::default();
        while !stop.is_cancelled() && !process.has_failed() {
            let changed = self.catalogue.node_changed();
            let facts = self.facts(&*work, &mut process);
            let step = decide_duty(&facts);
            let carried_out = self.carry_out(step, &facts, &work, &mut process);
            // A take-over waits for a lease, and a stop need not.
            let is_complete = match step {
                DutyStep::Begin | DutyStep::TakeOver(..) => {
                    stop.run_until_cancelled(carried_out).await.is_some()
                }
                DutyStep::Wait
                | DutyStep::Act(_)
                | DutyStep::AllowActs
                | DutyStep::HandOver
                | DutyStep::Stop => {
                    carried_out.await;
                    true
                }
            };
            if !is_complete {
                break;
            }
            publish(&state, &facts, process.running.is_some());
            if matches!(step, DutyStep::Wait) {
                let waiting = timeout(INTERVAL, changed);
                let _ = stop.run_until_cancelled(waiting).await;
            }
        }
        self.hand_over(&*work, &mut process).await;
        state.send_replace(OwnDuty::Elsewhere);
    }

    fn facts(&self, work: &dyn DutyWork, process: &mut DutyProcess) -> DutyFacts {
        let (nodes, duty) = (self.catalogue.nodes(), self.catalogue.duty());
        let sets = set_rows(&self.catalogue);
        let mut active = serving_nodes(&nodes);
        // The work needs the rows of all groups.
        active.retain(|node| sets.has_all_groups(*node));
        self.services.set_fit_for_duty(work.is_fit() && !process.failures.are_recent());
        let is_own_fit = self.services.load().can_have_duty();
        let fit = self.fit_voters(&active, is_own_fit);
        let is_fit = |node: NodeId| if node == self.own { is_own_fit } else { self.states_fit(node) };
        let is_able = |node: NodeId| active.contains(&node) && is_fittest(node, is_fit(node), &fit);
        let knows_terms = self.catalogue.cluster_version() >= DUTY_CLUSTER_VERSION;
        let known = self.leader().map(|node| {
            let known = KnownLeader { node, is_able: is_able(node), knows_terms, since: Instant::now() };
            known.after(process.leader)
        });
        process.leader = known;
        let is_removed = !nodes.iter().any(|node| node.node_id() == duty.node_id() && !node.is_removed());
        DutyFacts {
            own: self.own,
            is_able: is_able(self.own) && !self.services.is_stopping(),
            knows_terms,
            leader: known.map(|known| NodeLeader {
                node: known.node,
                is_able: known.is_able,
                for_ms: millis(known.since.elapsed()),
            }),
            duty,
            holder: match is_removed {
                true => Contact::Unreachable { for_ms: u64::MAX },
                false => self.probes.contact(duty.node_id()),
            },
            held: process.held(),
            own_waits: process.own_waits(self.own, &duty),
            has_origins: !self.catalogue.bound_upstreams().is_empty(),
        }
    }

    /// The leader of the system group. A leadership of this node counts once it can be used.
    fn leader(&self) -> Option<NodeId> {
        let leads = self.catalogue.leads_system_group();
        self.catalogue.leader(SYSTEM_GROUP).filter(|node| leads == (*node == self.own))
    }

    /// The nodes that can lead the system group and do the work of the duty node.
    fn fit_voters(&self, active: &[NodeId], is_own_fit: bool) -> Vec<NodeId> {
        let voters = self.catalogue.voters(SYSTEM_GROUP);
        let is_fit = |node: &NodeId| match *node == self.own {
            true => is_own_fit && !self.services.is_stopping(),
            false => self.probes.serves(*node) && self.states_fit(*node),
        };
        active.iter().copied().filter(|node| voters.contains(node) && is_fit(node)).collect()
    }

    fn states_fit(&self, node: NodeId) -> bool {
        self.probes.load(node).is_none_or(|load| load.can_have_duty())
    }

    async fn carry_out(
        &self,
        step: DutyStep,
        facts: &DutyFacts,
        work: &Arc<dyn DutyWork>,
        process: &mut DutyProcess,
    ) {
        match step {
            DutyStep::Wait => {}
            DutyStep::Begin => {
                let duty = facts.duty;
                // An earlier process of this node may have sent something.
                process.own = Some(OwnTerm::new(duty.term, facts.restart_waits()));
                self.begin(duty, false, work, process).await;
            }
            DutyStep::TakeOver(duty, waits) => self.take_over(duty, waits, work, process).await,
            DutyStep::Act(duty) => {
                self.record(duty).await;
            }
            DutyStep::AllowActs => {
                if let Some(running) = &mut process.running {
                    running.acts = true;
                    work.allow_acts();
                }
            }
            DutyStep::HandOver => self.hand_over(&**work, process).await,
            DutyStep::Stop => {
                tracing::warn!(duty = ?self.catalogue.duty(), "another term of duty has begun");
                self.end(&**work, process).await;
            }
        }
    }

    async fn take_over(
        &self,
        duty: Duty,
        waits: DutyWaits,
        work: &Arc<dyn DutyWork>,
        process: &mut DutyProcess,
    ) {
        let before = self.catalogue.duty();
        // The step may follow from old rows.
        let is_current = self.catalogue.barrier(BarrierScope::System).await.is_ok();
        if !is_current || self.catalogue.duty() != before {
            sleep(INTERVAL).await;
            return;
        }
        if duty.phase() == DutyPhase::Active {
            // Nothing is in doubt before the term begins, also if the answer is lost.
            process.own = Some(OwnTerm::new(duty.term, waits));
        }
        if self.record(duty).await {
            process.own = Some(OwnTerm::new(duty.term, waits));
            self.begin(duty, true, work, process).await;
        }
    }

    /// Begins a term that this process took over, when no other node has a lease any more.
    async fn begin(&self, duty: Duty, has_number: bool, work: &Arc<dyn DutyWork>, process: &mut DutyProcess) {
        if let Some(own) = process.own.filter(|own| own.serve_at > Instant::now()) {
            tracing::warn!(
                term = duty.term,
                "the duty node before this one has not stopped: waiting for the end of its lease"
            );
            sleep_until(own.serve_at).await;
        }
        let renewal = DutyRenewal {
            own: self.own,
            term: duty.term,
            catalogue: self.catalogue.clone(),
            lease: Arc::clone(&self.lease),
            work: Arc::clone(work),
        };
        let attempted = Instant::now();
        if !renewal.is_confirmed().await {
            sleep(INTERVAL).await;
            return;
        }
        if let Err(error) = work.begin(has_number.then_some(duty.term)).await {
            match error {
                DutyBeginError::Unconfirmed(error) => {
                    tracing::warn!(error, "the work of the duty node did not begin; it is tried again");
                }
                DutyBeginError::Failed(error) => {
                    tracing::error!(
                        error,
                        "the work of the duty node did not begin; another node is preferred"
                    );
                    process.failures.add();
                }
            }
            self.hand_over(&**work, process).await;
            sleep(RETRY).await;
            return;
        }
        process.failures.clear();
        renewal.extend(attempted);
        let renewal = Renewing::new(tokio::spawn(renewal.run()));
        tracing::info!(term = duty.term, phase = ?duty.phase(), "this node has the duty");
        process.running = Some(RunningTerm { term: duty.term, has_number, acts: false, renewal });
    }

    /// Ends what runs here. Returns true if the outcome of everything that was sent in the term is known.
    async fn end(&self, work: &dyn DutyWork, process: &mut DutyProcess) -> bool {
        let running = process.running.take();
        let is_complete = work.end().await;
        if let Some(running) = running {
            running.renewal.end().await;
            tracing::info!(term = running.term, is_complete, "the duty of this node has ended");
        }
        self.lease.set(None);
        if !is_complete {
            process.add_doubt();
        }
        is_complete
    }

    /// Ends what runs here, and records that the term of this process is over.
    async fn hand_over(&self, work: &dyn DutyWork, process: &mut DutyProcess) {
        let is_complete = self.end(work, process).await;
        let duty = self.catalogue.duty();
        let knows_terms = self.catalogue.cluster_version() >= DUTY_CLUSTER_VERSION;
        let Some(waits) = process.own_waits(self.own, &duty).filter(|_| knows_terms) else { return };
        // Until the lease of another node has ended, the phase must make the next duty node wait for it.
        if waits.serve_ms == 0 && !duty.is_over() {
            let phase = phase_at_end(&duty, is_complete, waits.act_ms);
            self.record(Duty { phase: phase as i32, ..duty }).await;
        }
    }

    /// Writes the row. If the outcome is unknown, the row decides later.
    async fn record(&self, duty: Duty) -> bool {
        let error = match timeout(RECORD_MAX, self.catalogue.set_duty(duty)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        tracing::info!(error, ?duty, "the duty was not recorded; it is decided again");
        sleep(INTERVAL).await;
        false
    }
}

/// True if a node is fit for the duty, or no other one of `fit`, which could have it, is.
fn is_fittest(node: NodeId, is_fit: bool, fit: &[NodeId]) -> bool {
    is_fit || !fit.iter().any(|other| *other != node)
}

/// Publishes where the duty is, once that is decided: this node may be about to begin if it leads.
fn publish(state: &watch::Sender<OwnDuty>, facts: &DutyFacts, is_here: bool) {
    let may_begin = facts.is_able && facts.leader.is_some_and(|leader| leader.node == facts.own);
    let now = match is_here {
        true => OwnDuty::Here,
        false if may_begin && *state.borrow() == OwnDuty::Unknown => OwnDuty::Unknown,
        false => OwnDuty::Elsewhere,
    };
    state.send_if_modified(|known| std::mem::replace(known, now) != now);
}

#[cfg(test)]
mod tests;
