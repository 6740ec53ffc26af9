//! Snapshots: directories of hard links, never bytes in memory.
//!
//! For a purge of the log, a snapshot is only the position that the state on disk has reached. For a transfer
//! to another member, a directory of hard links is made; it contains its own position and is removed when the
//! transfer ends. Until then the log is not purged, within limits, because the member needs it next.

use super::log::io_error;
use crate::store::space_waits::SpaceWaits;
use crate::store::state::{StateDb, StateStore};
use crate::store_error::StoreError;
use crate::view::RowReader;
use mlgw_formats::log_entry;
use mlgw_formats::log_types::{LogId, RaftTypes, SnapshotMeta, StoredMembership};
use mlgw_formats::schema;
use mlgw_formats::schema::meta::{LogPosition, MembershipRecord, MetaRow};
use mlgw_formats::store_files;
use openraft::storage::RaftSnapshotBuilder;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A snapshot.
pub(crate) type Snapshot = openraft::alias::SnapshotOf<RaftTypes, SnapshotDir>;

/// Directory of a snapshot; `None` if the snapshot is only a position.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotDir {
    pub(crate) dir: Option<Arc<ScratchDir>>,
}

/// Snapshots that are being sent to other members. They need the log that follows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SnapshotsSent(Arc<AtomicUsize>);

impl SnapshotsSent {
    /// True while a snapshot is being sent.
    pub(crate) fn is_sending(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    fn begin(&self) -> SnapshotSent {
        self.0.fetch_add(1, Ordering::AcqRel);
        SnapshotSent(self.clone())
    }
}

/// A snapshot that is being sent; ends with its last owner.
#[derive(Debug)]
pub(crate) struct SnapshotSent(SnapshotsSent);

impl Drop for SnapshotSent {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Directory that is removed with its last owner, unless it was renamed before.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    path: PathBuf,
    _sent: Option<SnapshotSent>,
}

impl ScratchDir {
    /// A directory that receives a snapshot.
    pub(crate) const fn incoming(path: PathBuf) -> Self {
        Self { path, _sent: None }
    }

    /// Path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = store_files::remove_dir(&self.path) {
            tracing::warn!(dir = %self.path.display(), %error,
                "failed to remove a checkpoint; the next start removes it");
        }
    }
}

/// Position and membership of a state, from the rows that `read` returns.
pub(crate) fn position_of(
    read: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, StoreError>,
) -> Result<(Option<LogId>, StoredMembership), StoreError> {
    let applied = match read(&MetaRow::Applied.row())? {
        Some(bytes) => Some(log_entry::log_id_from_position(&schema::decode::<LogPosition>(&bytes)?)),
        None => None,
    };
    let membership = match read(&MetaRow::Membership.row())? {
        Some(bytes) => log_entry::membership_of_record(&schema::decode::<MembershipRecord>(&bytes)?)?,
        None => StoredMembership::default(),
    };
    Ok((applied, membership))
}

/// Makes snapshots of a group's state.
#[derive(Clone)]
pub(crate) struct GroupSnapshotBuilder {
    pub(crate) store: Arc<StateStore>,
    pub(crate) snapshots_taken: Arc<AtomicU64>,
    pub(crate) sent: SnapshotsSent,
    pub(crate) space: Arc<SpaceWaits>,
}

impl GroupSnapshotBuilder {
    /// Position and membership of the state on disk, without a directory.
    fn flushed(&self, state: &StateDb) -> Result<SnapshotMeta, StoreError> {
        loop {
            let (last_log_id, last_membership) = position_of(|key| state.get_flushed(key))?;
            // A flush between the two reads would pair a position with a later membership.
            if position_of(|key| state.get_flushed(key))?.0 == last_log_id {
                return Ok(SnapshotMeta { last_log_id, last_membership });
            }
        }
    }

    /// Makes a snapshot directory; its position is read back from it.
    pub(crate) fn checkpoint(&self) -> Result<Snapshot, StoreError> {
        let number = self.snapshots_taken.fetch_add(1, Ordering::Relaxed);
        let dir = self.store.scratch_dir(&format!("snapshot-{number}"));
        let scratch = Arc::new(ScratchDir { path: dir.clone(), _sent: Some(self.sent.begin()) });
        self.store.current().checkpoint(&dir)?;
        let copy = StateDb::open_read_only(&dir)?;
        let (last_log_id, last_membership) = position_of(|key| copy.get(key))?;
        let meta = SnapshotMeta { last_log_id, last_membership };
        Ok(Snapshot { meta, snapshot: SnapshotDir { dir: Some(scratch) } })
    }

    /// The same; while the disk is full, it waits. openraft stops a group that makes no snapshot.
    pub(crate) fn checkpoint_or_wait(&self) -> Result<Snapshot, StoreError> {
        self.space.repeat("a snapshot for another node", self.store.memtable_bytes(), || self.checkpoint())
    }

    fn build(&self) -> Result<Snapshot, StoreError> {
        let state = self.store.current();
        let flush = || state.flush();
        self.space.repeat("the flush of a state", self.store.memtable_bytes(), flush)?;
        self.snapshots_taken.fetch_add(1, Ordering::Relaxed);
        Ok(Snapshot { meta: self.flushed(&state)?, snapshot: SnapshotDir { dir: None } })
    }
}

impl RaftSnapshotBuilder<RaftTypes> for GroupSnapshotBuilder {
    type SnapshotData = SnapshotDir;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let builder = self.clone();
        let built = tokio::task::spawn_blocking(move || builder.build());
        built.await.map_err(io_error)?.map_err(io_error)
    }
}
