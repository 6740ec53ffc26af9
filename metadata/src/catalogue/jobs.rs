//! Background jobs: free queued bodies, purge a long log, raise the log's floor and flush tombstones.

use super::inner::CatalogueInner;
use super::resident::Resident;
use super::stop_signal::StopSignal;
use crate::raft::purge::KeptMax;
use crate::store::floor::Floor;
use crate::store::tombstones::TombstoneWatch;
use crate::store_error::StoreError;
use crate::view::RowReader;
use mlgw_common::limits::JOB_ROWS_MAX;
use mlgw_common::time::{doubled_wait, sleep, timeout};
use mlgw_common::{BodyId, NodeId};
use mlgw_formats::command::{Change, Command, ReleaseBody, Reply};
use mlgw_formats::key::Family;
use mlgw_formats::member_calls::READERS_BODIES_MAX;
use mlgw_formats::schema::meta::{LogPosition, MetaRow};
use mlgw_formats::schema::{Release, decode, release};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;

/// Rows freed by one command: small enough not to delay the foreground commands of a batch.
const RELEASE_ROWS: u32 = 128;

/// Shortest pause after a pass over the queued bodies that failed, or that a node delays that does not answer
/// or is behind.
const RELEASE_RETRY_MIN_MS: u64 = 1_000;

/// Longest pause after such passes; it doubles with each.
const RELEASE_RETRY_MAX_MS: u64 = 30_000;

/// Pause before other nodes are asked again about bodies that they read: the end of their pins is not
/// reported.
const READ_ELSEWHERE_PAUSE: Duration = Duration::from_secs(5);

/// Interval at which the length of the log is checked without a notification.
const LOG_CHECK: Duration = Duration::from_millis(200);

/// Each group keeps its share of this part of the log's bound for slow members, however short its log is.
const KEPT_PART: u64 = 4;

/// Interval between raises of the log's floor.
const FLOOR_EVERY: Duration = Duration::from_secs(1);

const _: () = assert!(RELEASE_ROWS as usize <= JOB_ROWS_MAX);

/// Result of a pass over the queued bodies.
#[derive(Debug, Default)]
pub(super) struct ReleasePass {
    /// Bodies that stay queued because another node reads them.
    pub(super) read_elsewhere: usize,
    /// Nodes that did not answer which bodies they read, so that nothing of a batch was freed.
    pub(super) unanswered: BTreeSet<NodeId>,
    /// Nodes that have not applied the rows of a batch, so that nothing of it was freed.
    pub(super) behind: BTreeSet<NodeId>,
}

impl ReleasePass {
    /// True if no node delays a batch.
    fn is_complete(&self) -> bool {
        self.unanswered.is_empty() && self.behind.is_empty()
    }
}

/// Begin of the next pass over the queued bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextPass {
    /// A body is queued, or a pin on this node ends.
    Woken,
    /// The same, or this pause is over.
    Within(Duration),
    /// This pause is over.
    After(Duration),
}

impl NextPass {
    /// The begin after a pass. Counts the passes in a row that did not complete.
    fn following(pass: &Result<ReleasePass, StoreError>, failures: &mut u32) -> Self {
        let is_complete = pass.as_ref().is_ok_and(ReleasePass::is_complete);
        if !is_complete {
            *failures = failures.saturating_add(1);
            return Self::After(doubled_wait(*failures, RELEASE_RETRY_MIN_MS, RELEASE_RETRY_MAX_MS));
        }
        *failures = 0;
        let is_read_elsewhere = pass.as_ref().is_ok_and(|pass| pass.read_elsewhere > 0);
        if is_read_elsewhere { Self::Within(READ_ELSEWHERE_PAUSE) } else { Self::Woken }
    }

    async fn wait(self, resident: &Resident) {
        match self {
            Self::Woken => resident.release_added.notified().await,
            Self::Within(pause) => drop(timeout(pause, resident.release_added.notified()).await),
            Self::After(pause) => sleep(pause).await,
        }
    }
}

/// Frees queued bodies until the catalogue stops.
pub(super) async fn release_bodies(catalogue: Weak<CatalogueInner>) {
    let mut failures = 0;
    loop {
        let Some(inner) = catalogue.upgrade() else { return };
        if inner.is_stopping() {
            return;
        }
        // The leader of the system group frees bodies; each new leader is woken.
        let next = if inner.leads_system_group() {
            let pass = inner.release_all().await;
            if inner.is_stopping() {
                return;
            }
            log_delay(&pass);
            NextPass::following(&pass, &mut failures)
        } else {
            failures = 0;
            NextPass::Woken
        };
        let (resident, stop) = (Arc::clone(&inner.resident), Arc::clone(&inner.stop));
        drop(inner);
        tokio::select! {
            () = next.wait(&resident) => {}
            () = stop.cancelled() => return,
        }
    }
}

fn log_delay(pass: &Result<ReleasePass, StoreError>) {
    match pass {
        Ok(pass) if pass.is_complete() => {}
        Ok(ReleasePass { unanswered, behind, .. }) => {
            tracing::info!(
                ?unanswered,
                ?behind,
                "the readers of some nodes are unknown; deleted bodies stay queued"
            );
        }
        Err(error) => tracing::warn!(%error, "failed to free bodies; they stay queued; retrying"),
    }
}

/// Rows of a release queue, in order.
struct QueuedBodies {
    /// Bodies and their scopes.
    bodies: Vec<(BodyId, i32)>,
    /// Entry at which all of the rows exist.
    applied: LogPosition,
    /// Key before all further rows.
    next: Vec<u8>,
}

impl QueuedBodies {
    /// Reads the rows from a key on; `None` if there are none.
    fn read(state: &dyn RowReader, from: &[u8]) -> Result<Option<Self>, StoreError> {
        let rows = state.range(from, &Family::Release.end(), READERS_BODIES_MAX)?;
        let Some((last, _)) = rows.last() else { return Ok(None) };
        let next = [last.as_slice(), &[0]].concat();
        let mut bodies = Vec::with_capacity(rows.len());
        for (row, value) in &rows {
            bodies.push((release::key_of(row)?, decode::<Release>(value)?.scope));
        }
        // After the rows, because only a position that is read later covers all of them.
        let applied = state.get(&MetaRow::Applied.row())?;
        let applied = applied.ok_or_else(|| StoreError("a state with rows has no log position".into()))?;
        Ok(Some(Self { bodies, applied: decode(&applied)?, next }))
    }
}

/// Flushes states and purges logs until the catalogue stops.
pub(super) async fn purge_logs(catalogue: Weak<CatalogueInner>) {
    let mut tick = mlgw_common::time::interval(LOG_CHECK);
    tick.set_missed_tick_behavior(mlgw_common::time::MissedTickBehavior::Delay);
    let parts = catalogue.upgrade().map(|inner| (Arc::clone(&inner.stop), Arc::clone(&inner.log_bound)));
    let Some((stop, bound)) = parts else { return };
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = bound.wait_exceeded() => {}
            () = stop.cancelled() => return bound.purging_ended(),
        }
        let Some(inner) = catalogue.upgrade() else { return };
        let kept_max = inner.kept_log_max();
        let is_old_log_needed = inner.groups.all().iter().any(|group| group.is_old_log_needed(kept_max));
        if !bound.update(inner.log_bytes(), is_old_log_needed) {
            continue;
        }
        inner.checkpoint_or_log().await;
        if let Err(error) = inner.compact().await
            && !inner.is_stopping()
        {
            (inner.fatal)(&format!("failed to flush the catalogue's state: {error}"));
            return bound.purging_ended();
        }
    }
}

/// Raises the floor of the log to the synced entries every second, and once more when the catalogue stops.
pub(super) async fn raise_floor(catalogue: Weak<CatalogueInner>, stop: Arc<StopSignal>, mut floor: Floor) {
    let mut tick = mlgw_common::time::interval(FLOOR_EVERY);
    tick.set_missed_tick_behavior(mlgw_common::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = stop.cancelled() => {}
        }
        let stopping = stop.is_stopped();
        let Some(entries) = catalogue.upgrade().map(|inner| inner.synced_entries()) else { return };
        let raised = tokio::task::spawn_blocking(move || {
            let raised = floor.raise(entries);
            (floor, raised)
        });
        let Ok((kept, raised)) = raised.await else { return };
        floor = kept;
        if let Err(error) = raised {
            tracing::warn!(%error, "failed to raise the floor of the log; retrying in a second");
        }
        if stopping {
            return;
        }
    }
}

/// Flushes tombstones whenever deletions pause, until the catalogue stops.
pub(super) async fn flush_tombstones(catalogue: Weak<CatalogueInner>, every: Duration) {
    let mut tick = mlgw_common::time::interval(every);
    tick.set_missed_tick_behavior(mlgw_common::time::MissedTickBehavior::Delay);
    let Some(stop) = catalogue.upgrade().map(|inner| Arc::clone(&inner.stop)) else { return };
    let mut watches = BTreeMap::new();
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = catalogue.upgrade() else { return };
        if let Err(error) = inner.flush_tombstones(&mut watches).await
            && !inner.is_stopping()
        {
            (inner.fatal)(&format!("failed to flush the catalogue's state: {error}"));
            return;
        }
    }
}

impl CatalogueInner {
    /// Flushes the states whose tombstone watch is due.
    pub(super) async fn flush_tombstones(
        &self,
        watches: &mut BTreeMap<u32, TombstoneWatch>,
    ) -> Result<(), StoreError> {
        for group in self.groups.all() {
            let state = group.state();
            let watch = watches.entry(group.id).or_default();
            // A store whose flush a full disk refuses takes no changes until it has recovered.
            let has_space = || self.log.space().has_free(2 * group.memtable_bytes() as u64);
            if watch.is_flush_due(&state)? && has_space() {
                let flushed = tokio::task::spawn_blocking(move || match state.flush() {
                    Err(error) if error.is_disk_full() => {
                        tracing::warn!(%error, "the disk is full: no flush of deleted rows");
                        Ok(())
                    }
                    done => done,
                });
                flushed.await.map_err(|error| StoreError(error.to_string()))??;
            }
        }
        Ok(())
    }

    /// Bytes of a group's log that a purge keeps for slow members, whatever the log has.
    fn kept_log_max(&self) -> u64 {
        self.log_bound.narrow_bytes() / (KEPT_PART * self.groups.all().len().max(1) as u64)
    }

    /// Flushes every state and purges its log. A purge may wait for entries that are being sent; those of the
    /// groups wait at the same time.
    pub(crate) async fn compact(&self) -> Result<(), StoreError> {
        let _copying = self.copying.lock().await;
        let mut finishing = JoinSet::new();
        // At most half of the wide bound is kept this way.
        let mut answering = self.log_bound.wide_bytes() / 2;
        let any = self.kept_log_max();
        for group in self.groups.all().iter().filter(|group| group.log_bytes() > 0) {
            let Some(purge) = group.begin_purge(KeptMax { any, answering }).await? else { continue };
            answering = answering.saturating_sub(purge.kept_bytes());
            let bound = Arc::clone(&self.log_bound);
            finishing.spawn(async move {
                purge.finish().await?;
                bound.notify_purged();
                Ok::<(), StoreError>(())
            });
        }
        while let Some(finished) = finishing.join_next().await {
            finished.map_err(|error| StoreError(error.to_string()))??;
        }
        Ok(())
    }

    /// Writes a record without entries to the log of each group.
    #[cfg(test)]
    pub(crate) async fn write_committed(&self) {
        for group in self.groups.all() {
            group.write_committed().await;
        }
    }

    /// Frees all queued bodies except those that a node reads, or may be reading.
    pub(super) async fn release_all(&self) -> Result<ReleasePass, StoreError> {
        let mut pass = ReleasePass::default();
        let mut waiting = 0;
        for group in self.groups.all() {
            let queued_from = |from: &[u8]| QueuedBodies::read(&*group.state(), from);
            let mut from = Family::Release.start();
            while let Some(queued) = queued_from(&from)? {
                from = queued.next;
                self.resident.releases.store(waiting + queued.bodies.len() as i64, Ordering::Relaxed);
                let ids = queued.bodies.iter().map(|(body, _)| body.0).collect();
                let read = self.bodies_read_elsewhere(group.id, queued.applied, ids).await;
                let read = read.map_err(|error| StoreError(error.to_string()))?;
                if !read.is_complete() {
                    // The same nodes would delay the other batches of the group.
                    waiting += queued.bodies.len() as i64;
                    pass.unanswered.extend(read.unanswered);
                    pass.behind.extend(read.behind);
                    break;
                }
                for (body, scope) in queued.bodies {
                    let is_read_elsewhere = read.bodies.contains(&body.0);
                    pass.read_elsewhere += usize::from(is_read_elsewhere);
                    if is_read_elsewhere || self.resident.pins.is_pinned(body) {
                        waiting += 1;
                    } else {
                        self.release(group.id, body.0, scope).await?;
                    }
                }
            }
        }
        self.resident.releases.store(waiting, Ordering::Relaxed);
        Ok(pass)
    }

    async fn release(&self, group: u32, body_id: u64, scope: i32) -> Result<(), StoreError> {
        loop {
            let step = ReleaseBody { body_id, rows_max: RELEASE_ROWS, scope: Some(scope) };
            let step = Change::ReleaseBody(step);
            match self.propose_to(group, Arc::new(Command::from(step))).await {
                Ok(Reply::StepDone { more: true }) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(StoreError(error.to_string())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NextPass, QueuedBodies, READ_ELSEWHERE_PAUSE, ReleasePass};
    use crate::store_error::StoreError;
    use crate::view::MemoryRows;
    use mlgw_common::{BodyId, NodeId};
    use mlgw_formats::member_calls::READERS_BODIES_MAX;
    use mlgw_formats::schema::meta::{LogPosition, MetaRow};
    use mlgw_formats::schema::{Release, encode, release};
    use std::collections::BTreeSet;
    use std::time::Duration;

    #[test]
    fn a_pass_that_did_not_complete_is_repeated_after_a_growing_pause() {
        let after = |seconds| NextPass::After(Duration::from_secs(seconds));
        let nodes = || BTreeSet::from([NodeId(2)]);
        let unanswered =
            || Ok(ReleasePass { read_elsewhere: 1, unanswered: nodes(), ..ReleasePass::default() });
        let behind = || Ok(ReleasePass { read_elsewhere: 1, behind: nodes(), ..ReleasePass::default() });
        let failed = || Err(StoreError("too few nodes respond".into()));
        let mut failures = 0;
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(NextPass::following(&unanswered(), &mut failures), after(pause));
        }
        assert_eq!(NextPass::following(&failed(), &mut failures), after(30));
        assert_eq!(NextPass::following(&behind(), &mut failures), after(30));
        let read = Ok(ReleasePass { read_elsewhere: 1, ..ReleasePass::default() });
        let within = NextPass::Within(READ_ELSEWHERE_PAUSE);
        assert_eq!(NextPass::following(&read, &mut failures), within);
        assert_eq!(NextPass::following(&failed(), &mut failures), after(1), "it begins again");
        let freed = Ok(ReleasePass::default());
        assert_eq!(NextPass::following(&freed, &mut failures), NextPass::Woken);
    }

    #[test]
    fn the_queue_is_read_in_batches_that_one_question_covers() {
        let mut rows = MemoryRows::default();
        let applied = LogPosition { term: 1, node: 1, index: 7 };
        rows.0.insert(MetaRow::Applied.row(), encode(&applied));
        let bodies = READERS_BODIES_MAX as u64 + 1;
        for body in 1..=bodies {
            rows.0.insert(release::row(BodyId(body)), encode(&Release { scope: 1, after_part: 0 }));
        }
        let first = QueuedBodies::read(&rows, &release::row(BodyId(0))).unwrap().unwrap();
        assert_eq!((first.bodies.len(), first.applied), (READERS_BODIES_MAX, applied));
        let second = QueuedBodies::read(&rows, &first.next).unwrap().unwrap();
        assert_eq!(second.bodies, [(BodyId(bodies), 1)]);
        assert!(QueuedBodies::read(&rows, &second.next).unwrap().is_none());
    }
}
