//! Background jobs: free queued bodies, purge a long log, raise the log's floor and flush tombstones.

use super::inner::CatalogueInner;
use super::options::BodyRelease;
use super::stop_signal::StopSignal;
use crate::store::floor::Floor;
use crate::store::tombstones::TombstoneWatch;
use crate::store_error::StoreError;
use crate::view::RowReader;
use mlgw_common::limits::JOB_ROWS_MAX;
use mlgw_formats::command::{Change, Command, ReleaseBody, Reply};
use mlgw_formats::key::Family;
use mlgw_formats::schema::{Release, decode, release};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Queued bodies that are read at a time.
const RELEASES_READ: usize = 256;

/// Rows freed by one command: small enough not to delay the foreground commands of a batch.
const RELEASE_ROWS: u32 = 128;

/// Interval at which the length of the log is checked without a notification.
const LOG_CHECK: Duration = Duration::from_millis(200);

/// Interval between raises of the log's floor.
const FLOOR_EVERY: Duration = Duration::from_secs(1);

const _: () = assert!(RELEASE_ROWS as usize <= JOB_ROWS_MAX);

/// Frees queued bodies until the catalogue stops.
pub(super) async fn release_bodies(catalogue: Weak<CatalogueInner>) {
    loop {
        let Some(inner) = catalogue.upgrade() else { return };
        if inner.is_stopping() {
            return;
        }
        // One node frees bodies; each new duty node is woken.
        if inner.frees_bodies()
            && let Err(error) = inner.release_all().await
        {
            tracing::warn!(%error, "failed to free bodies; they stay queued");
        }
        let (resident, stop) = (Arc::clone(&inner.resident), Arc::clone(&inner.stop));
        drop(inner);
        tokio::select! {
            () = resident.release_added.notified() => {}
            () = stop.cancelled() => return,
        }
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
        bound.set_sending(inner.groups.all().iter().any(|group| group.is_sending_snapshot()));
        if inner.log_bytes() <= bound.bytes_max() {
            continue;
        }
        inner.checkpoint_or_log().await;
        if let Err(error) = inner.compact().await
            && !inner.is_stopping()
        {
            (inner.fatal)(&format!("failed to flush the catalogue's state: {error}"));
            return bound.purging_ended();
        }
        bound.notify_purged();
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
        if let Err(error) = inner.flush_tombstones(&mut watches).await {
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
            if watch.is_flush_due(&state)? {
                let flushed = tokio::task::spawn_blocking(move || state.flush());
                flushed.await.map_err(|error| StoreError(error.to_string()))??;
            }
        }
        Ok(())
    }

    /// Flushes every state and purges its log.
    pub(crate) async fn compact(&self) -> Result<(), StoreError> {
        let _copying = self.copying.lock().await;
        for group in self.groups.all() {
            if group.log_bytes() > 0 {
                group.compact().await?;
            }
        }
        Ok(())
    }

    fn frees_bodies(&self) -> bool {
        match self.body_release {
            BodyRelease::OnDuty => self.is_on_duty(),
            BodyRelease::Always => true,
            BodyRelease::Never => false,
        }
    }

    /// Frees all queued bodies except pinned ones.
    pub(super) async fn release_all(&self) -> Result<(), StoreError> {
        let mut waiting = 0;
        for group in self.groups.all() {
            let mut from = Family::Release.start();
            loop {
                let rows = group.state().range(&from, &Family::Release.end(), RELEASES_READ)?;
                let Some((last, _)) = rows.last() else { break };
                from = [last.as_slice(), &[0]].concat();
                self.resident.releases.store(waiting + rows.len() as i64, Ordering::Relaxed);
                for (row, value) in rows {
                    let body = release::key_of(&row)?;
                    let release: Release = decode(&value)?;
                    if self.resident.pins.is_pinned(body) {
                        waiting += 1;
                    } else {
                        self.release(group.id, body.0, release.scope).await?;
                    }
                }
            }
        }
        self.resident.releases.store(waiting, Ordering::Relaxed);
        Ok(())
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
    use crate::catalogue::testing::options;
    use crate::catalogue::{BodyRelease, Catalogue, CatalogueOptions};

    #[tokio::test]
    async fn the_chosen_node_frees_bodies() {
        for (body_release, frees) in
            [(BodyRelease::OnDuty, true), (BodyRelease::Always, true), (BodyRelease::Never, false)]
        {
            let dir = tempfile::tempdir().unwrap();
            let options = CatalogueOptions { body_release, ..options(dir.path()) };
            let catalogue = Catalogue::open(options).await.unwrap();
            assert_eq!(catalogue.inner().frees_bodies(), frees, "{body_release:?}");
            catalogue.shutdown().await;
        }
    }
}
