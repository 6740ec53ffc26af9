//! What rules say of objects at rest, done: a round over all of them now and then.
//!
//! - `walk`: what rules say of each object, found out a page at a time;
//! - `groups`: checkpoints of our own buckets, and which of them stay;
//! - `found`, `segments`: what that comes to, and orders by segments;
//! - `effects`: pins, moves and evictions carried out;
//! - `compressing`: what is to be smaller, compressed;
//! - `deleting`, `pointed`: checkpoints that a rule deletes, after their grace, unless a file names them;
//! - `standing`: what others see of it.
//!
//! A round begins when the policy changes, when a checkpoint becomes complete, and every `policy.look_every`;
//! there is one at a time. Always: what to do is decided anew from what is stored and what the policy says
//! now, so nothing has to be remembered and what was begun by an older policy ends with it; the orders of a
//! round are bounded, and the rest comes in the next; a round of a policy that does not run any more ends.
//! When power fails pins are set again by the first round, and moves go on from where segments are.

mod compressing;
mod deleting;
mod effects;
mod found;
pub mod groups;
pub mod pointed;
mod segments;
pub mod standing;
mod walk;

pub use deleting::watch_doomed;
pub use standing::Standing;

use crate::jobs::Jobs;
use crate::stored_objects::StoredObjects;
use compressing::Tried;
use effects::Pinned;
use mlgw_cache::policy::Keeper;
use mlgw_common::Clock;
use mlgw_objects::Objects;
use mlgw_objects::compressor::Compressor;
use mlgw_policies::at_rest::{Areas, Pins, Scope, Unheld};
use mlgw_policies::checkpoints::{Checkpoints, Limits};
use mlgw_policies::language::Program;
use mlgw_policy_runtime::Policies;
use mlgw_segments::decisions::Decisions;
use mlgw_telemetry::audit::AuditLog;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use walk::Ended;

/// How soon a round follows one that has left something to do.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How many rounds follow each other so.
const AGAIN_MAX: u32 = 10;
/// In every so many rounds all objects are looked at for checkpoints though none was heard of: who brings
/// objects in by a job is not heard.
const ROUNDS_BETWEEN_LOOKS: u64 = 60;
/// How often it is looked whether a checkpoint became complete.
const GLANCE: Duration = Duration::from_secs(1);

/// The parts of the server that the reconciler works with.
#[derive(Clone)]
pub struct ReconcilerContext {
    /// The objects that rules are about.
    pub stored: StoredObjects,
    /// The running policy.
    pub policies: Arc<Policies>,
    /// Jobs, which carry out pins and promotions of copies.
    pub jobs: Arc<Jobs>,
    /// The policy engine, which follows checkpoints as they are written.
    pub keeper: Keeper,
    /// The state that others see: pins, pending deletions, counts.
    pub standing: Arc<Standing>,
    /// The log of placement decisions.
    pub decisions: Decisions,
    /// Compresses stored bodies.
    pub compressor: Arc<Compressor>,
    /// The audit log, which gets a line per deletion.
    pub audit: Arc<AuditLog>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Capacity of the hot tier, in bytes.
    pub hot_capacity_bytes: u64,
}

/// See the module.
pub struct Acting {
    context: ReconcilerContext,
    objects: Arc<Objects>,
    every: Duration,
    tried: Mutex<Tried>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What a round leaves to the next.
#[derive(Default)]
struct State {
    program: Option<Arc<Program>>,
    areas: Arc<Areas>,
    own_pins: Pins,
    copy_pins: Pins,
    pinned: Pinned,
    /// When orders were given that make small segments.
    loose: VecDeque<Instant>,
    rounds: u64,
    /// Whether our own buckets were looked at for checkpoints, and there were any.
    has_checkpoints: Option<bool>,
}

impl State {
    /// Pins that do not hold.
    fn unheld(&self, now_ms: i64) -> Unheld {
        self.own_pins.unheld(now_ms).with(self.copy_pins.unheld(now_ms))
    }
}

impl Acting {
    /// Begins to act, until [`Acting::stop`].
    #[must_use]
    pub fn start(context: ReconcilerContext, objects: Arc<Objects>, every: Duration) -> Arc<Self> {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let tried = Mutex::default();
        let acting = Arc::new(Self { context, objects, every, tried, stop, tasks });
        acting.tasks.spawn(Arc::clone(&acting).run());
        acting
    }

    /// Ends it, and waits for what is at work.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn run(self: Arc<Self>) {
        let (mut programs, mut state, mut agains) = (self.context.policies.program(), State::default(), 0);
        loop {
            let program = Arc::clone(&programs.borrow_and_update());
            let completions = self.completions();
            let is_again = match self.round(program, &mut state).await {
                Ok(is_again) => is_again && agains < AGAIN_MAX,
                Err(Ended::Stopping) => return,
                // The next round is at once: the change is waited for below.
                Err(Ended::Changed) => false,
                Err(Ended::Failed(error)) => {
                    tracing::warn!(
                        error,
                        "what rules say of objects at rest was not done; it is tried again"
                    );
                    false
                }
            };
            agains = if is_again { agains + 1 } else { 0 };
            tokio::select! {
                () = self.stop.cancelled() => return,
                changed = programs.changed() => if changed.is_err() { return },
                () = self.completed_since(completions) => {}
                () = tokio::time::sleep(if is_again { AGAIN_AFTER } else { self.every }) => {}
            }
        }
    }

    fn completions(&self) -> (usize, u64) {
        self.context.keeper.ask(|decider, _| decider.checkpoints.completions())
    }

    async fn completed_since(&self, before: (usize, u64)) {
        loop {
            tokio::time::sleep(GLANCE).await;
            if self.completions() != before {
                return;
            }
        }
    }

    /// One round; says whether there is more to do at once.
    async fn round(self: &Arc<Self>, program: Arc<Program>, state: &mut State) -> Result<bool, Ended> {
        if !state.program.as_ref().is_some_and(|known| Arc::ptr_eq(known, &program)) {
            state.areas = Arc::default();
            self.context.standing.set_areas(Arc::default());
            *self.tried.lock() = Tried::default();
            state.program = Some(Arc::clone(&program));
        }
        let heard = self.context.keeper.ask(|decider, _| decider.checkpoints.series().next().is_some());
        let scope = Scope::of(&program);
        let mut own = Checkpoints::new(Limits::default());
        let is_time = state.rounds.is_multiple_of(ROUNDS_BETWEEN_LOOKS);
        state.rounds += 1;
        if heard || is_time || scope.objects || state.has_checkpoints.unwrap_or(true) {
            own = self.find_checkpoints(&program).await?;
            state.has_checkpoints = Some(own.series().next().is_some());
        }
        if !scope.objects && !heard && state.has_checkpoints == Some(false) {
            return self.do_nothing(state).await.map(|()| false);
        }
        let now_ms = self.context.clock.now().as_millis();
        let before = (Arc::clone(&state.areas), state.unheld(now_ms));
        let (walk, found) = self.find(program, own, before).await?;
        self.carry_out(&walk, found, state).await
    }
}
