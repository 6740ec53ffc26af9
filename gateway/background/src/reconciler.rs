//! Reconciler: carries out what rules demand of objects at rest, in periodic passes over all of them.
//!
//! - [`scan`]: evaluation of rules on each object, a page at a time;
//! - [`groups`]: checkpoints of local buckets, and their retention;
//! - [`scan_result`], [`segments`]: the actions that result, and orders by segment;
//! - [`effects`]: pins, moves and evictions;
//! - [`compressing`]: compression of stored objects;
//! - [`deleting`], [`references`]: deletion of expired checkpoints after their grace period, unless a file
//!   refers to them;
//! - [`retention_state`]: state that other components read.
//!
//! In a cluster rules act only while other nodes confirm the clock of this one. Deletions name the version on
//! which they were decided, and relocations the chunk.
//!
//! A pass begins when the policy changes, when a checkpoint becomes complete, and every `policy.look_every`.
//! At most one pass runs at a time. Each pass decides anew from the stored objects and the running policy, so
//! decisions are not stored, and the actions of an older policy end with it. The number of orders in a pass
//! is limited; the rest follows in the next one. A pass ends early when its policy is no longer the running
//! one. After a power loss the first pass sets pins again, and moves continue from the present location of
//! each segment.

mod compressing;
mod deleting;
mod effects;
pub mod groups;
mod pass_end;
pub mod references;
pub mod retention_state;
mod scan;
mod scan_result;
mod segments;

pub use deleting::watch_pending_deletions;
pub use retention_state::RetentionState;

use crate::jobs::Jobs;
use crate::stored_objects::StoredObjects;
use compressing::CompressionMemory;
use effects::PinnedNames;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_common::time::Instant;
use mlgw_common::{CheckedClock, Clock as _};
use mlgw_objects::ObjectLayer;
use mlgw_objects::compressor::Compressor;
use mlgw_policies::at_rest::{AreaRuleMatches, InactivePins, PinSelection, ProgramScope};
use mlgw_policies::checkpoints::{CheckpointIndex, Limits};
use mlgw_policies::language::Program;
use mlgw_policy_runtime::Policies;
use mlgw_segments::decisions::Decisions;
use mlgw_telemetry::audit::AuditLog;
use parking_lot::Mutex;
use pass_end::PassEnd;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Pause before the next pass if a pass has left work.
const NEXT_PASS_PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of passes after that short pause in a row.
const IMMEDIATE_PASSES_MAX: u32 = 10;
/// Interval, in passes, at which all objects are visited for checkpoints even if the engine observed none:
/// the engine does not observe objects imported by jobs.
const PASSES_BETWEEN_SCANS: u64 = 60;
/// Interval at which the completion of checkpoints is polled.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Dependencies of the reconciler.
#[derive(Clone)]
pub struct ReconcilerContext {
    /// Stored objects.
    pub stored: StoredObjects,
    /// Running policy.
    pub policies: Arc<Policies>,
    /// Jobs, which carry out pins and promotions of copies.
    pub jobs: Arc<Jobs>,
    /// Driver of the policy engine, which tracks checkpoints while they are written.
    pub policy_driver: PolicyDriver,
    /// State that other components read: pins, pending deletions, counts.
    pub retention: Arc<RetentionState>,
    /// Log of placement decisions.
    pub decisions: Decisions,
    /// Compressor of stored bodies.
    pub compressor: Arc<Compressor>,
    /// Audit log, which gets a line per deletion.
    pub audit: Arc<AuditLog>,
    /// Clock. Rules act while it is confirmed, because what they demand depends on the time.
    pub clock: CheckedClock,
    /// Capacity of the hot tier, in bytes.
    pub hot_capacity_bytes: u64,
}

/// The reconciler; see the module documentation.
pub struct PolicyReconciler {
    context: ReconcilerContext,
    objects: Arc<ObjectLayer>,
    every: Duration,
    compression_memory: Mutex<CompressionMemory>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Number of complete checkpoints that the engine tracks, and the latest write among them. It changes
/// whenever a checkpoint becomes complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CheckpointCompletions {
    complete: usize,
    last_us: u64,
}

/// State carried from one pass to the next.
#[derive(Default)]
struct ReconcilerPassState {
    program: Option<Arc<Program>>,
    areas: Arc<AreaRuleMatches>,
    own_pins: PinSelection,
    copy_pins: PinSelection,
    pinned: PinnedNames,
    /// Times of recent orders that create small segments.
    small_orders: VecDeque<Instant>,
    passes: u64,
    /// True if the last scan of local buckets found checkpoints; `None` before the first scan.
    has_checkpoints: Option<bool>,
}

impl ReconcilerPassState {
    /// Returns the inactive pins.
    fn inactive_pins(&self, now_ms: i64) -> InactivePins {
        self.own_pins.inactive(now_ms).union(self.copy_pins.inactive(now_ms))
    }
}

impl PolicyReconciler {
    /// Starts the reconciler, until [`PolicyReconciler::stop`].
    #[must_use]
    pub fn start(context: ReconcilerContext, objects: Arc<ObjectLayer>, every: Duration) -> Arc<Self> {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let tried = Mutex::default();
        let acting = Arc::new(Self { context, objects, every, compression_memory: tried, stop, tasks });
        acting.tasks.spawn(Arc::clone(&acting).run());
        acting
    }

    /// Begins no further work. Does not wait for that in progress.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Stops the reconciler, and waits for the work in progress.
    pub async fn stop(&self) {
        self.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn run(self: Arc<Self>) {
        let (mut programs, mut state, mut agains) =
            (self.context.policies.program(), ReconcilerPassState::default(), 0);
        loop {
            if self.until_clock_is_confirmed().await.is_err() {
                return;
            }
            let program = Arc::clone(&programs.borrow_and_update());
            let completions = self.completions();
            let is_again = match self.run_pass(program, &mut state).await {
                Ok(is_again) => is_again && agains < IMMEDIATE_PASSES_MAX,
                Err(PassEnd::Stopping) => return,
                // The next pass follows immediately, because the change is awaited below.
                Err(PassEnd::Changed) => false,
                Err(PassEnd::ClockUnconfirmed) => true,
                Err(PassEnd::Failed(error)) => {
                    tracing::warn!(error, "a pass over stored objects failed; it will be repeated");
                    false
                }
            };
            agains = if is_again { agains + 1 } else { 0 };
            tokio::select! {
                () = self.stop.cancelled() => return,
                changed = programs.changed() => if changed.is_err() { return },
                () = self.completed_since(completions) => {}
                () = mlgw_common::time::sleep(if is_again { NEXT_PASS_PAUSE } else { self.every }) => {}
            }
        }
    }

    /// Waits until the clock of this node is compared with those of other nodes, and close to their median.
    async fn until_clock_is_confirmed(&self) -> Result<(), PassEnd> {
        if self.context.clock.is_confirmed() {
            return Ok(());
        }
        tracing::info!("rules wait until other nodes confirm the clock of this node");
        while !self.context.clock.is_confirmed() {
            tokio::select! {
                () = self.stop.cancelled() => return Err(PassEnd::Stopping),
                () = mlgw_common::time::sleep(POLL_INTERVAL) => {}
            }
        }
        Ok(())
    }

    fn completions(&self) -> CheckpointCompletions {
        let (complete, last_us) =
            self.context.policy_driver.with_engine(|decider, _| decider.checkpoints.completions());
        CheckpointCompletions { complete, last_us }
    }

    async fn completed_since(&self, before: CheckpointCompletions) {
        loop {
            mlgw_common::time::sleep(POLL_INTERVAL).await;
            if self.completions() != before {
                return;
            }
        }
    }

    /// Runs one pass. Returns true if there is more work to do immediately.
    async fn run_pass(
        self: &Arc<Self>,
        program: Arc<Program>,
        state: &mut ReconcilerPassState,
    ) -> Result<bool, PassEnd> {
        if !state.program.as_ref().is_some_and(|known| Arc::ptr_eq(known, &program)) {
            state.areas = Arc::default();
            self.context.retention.set_areas(Arc::default());
            *self.compression_memory.lock() = CompressionMemory::default();
            state.program = Some(Arc::clone(&program));
        }
        let has_observed = self
            .context
            .policy_driver
            .with_engine(|decider, _| decider.checkpoints.series().next().is_some());
        let scope = ProgramScope::of(&program);
        let mut own = CheckpointIndex::new(Limits::default());
        let is_time = state.passes.is_multiple_of(PASSES_BETWEEN_SCANS);
        state.passes += 1;
        if has_observed || is_time || scope.objects || state.has_checkpoints.unwrap_or(true) {
            own = self.find_checkpoints(&program).await?;
            state.has_checkpoints = Some(own.series().next().is_some());
        }
        if !scope.objects && !has_observed && state.has_checkpoints == Some(false) {
            return self.clear_effects(state).await.map(|()| false);
        }
        let now_ms = self.context.clock.now().as_millis();
        let (before, inactive_pins) = (Arc::clone(&state.areas), state.inactive_pins(now_ms));
        let (walk, found) = self.scan_objects(program, own, before, inactive_pins).await?;
        self.carry_out(&walk, found, state).await
    }
}
