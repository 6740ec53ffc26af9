//! Receiving a snapshot: the files are written beside the state, checked, synced, and then installed.
//!
//! The directory has a name that a start removes, so an interrupted transfer or a power loss leaves the state
//! as it was. It becomes the state by one rename, after all of its files and their names are synced.

use super::group::Group;
use super::peers::{CallRefused, SnapshotBytes};
use super::snapshot::{ScratchDir, Snapshot, SnapshotDir, position_of};
use crate::store::state::StateDb;
use crate::store_error::StoreError;
use crate::view::RowReader as _;
use bytes::{Buf as _, Bytes};
use futures_util::StreamExt as _;
use mlgw_common::NodeId;
use mlgw_common::checksum::Crc32c;
use mlgw_formats::log_types::SnapshotMeta;
use mlgw_formats::member_calls::VoteRecord;
use mlgw_formats::member_snapshot::{FILE_CHECKSUM_BYTES, SnapshotFile, SnapshotHead, SnapshotReply};
use mlgw_formats::{schema, store_files};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longest time without a piece, after which a transfer counts as interrupted.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Bytes that stay free on the disk when a snapshot is accepted.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// Snapshots that a group receives: one at a time.
#[derive(Debug, Default)]
pub(crate) struct SnapshotsReceived {
    is_receiving: AtomicBool,
    count: AtomicU64,
}

/// The right to receive; ends when it is dropped.
struct ReceivingTurn(Arc<SnapshotsReceived>);

impl Drop for ReceivingTurn {
    fn drop(&mut self) {
        self.0.is_receiving.store(false, Ordering::Release);
    }
}

impl SnapshotsReceived {
    fn begin(self: &Arc<Self>) -> Option<ReceivingTurn> {
        let was_receiving = self.is_receiving.swap(true, Ordering::AcqRel);
        (!was_receiving).then(|| ReceivingTurn(Arc::clone(self)))
    }
}

/// A snapshot whose head was accepted.
pub struct IncomingSnapshot {
    group: Group,
    head: SnapshotHead,
    meta: SnapshotMeta,
    turn: ReceivingTurn,
}

impl Group {
    /// Accepts the head of a snapshot from node `from`.
    ///
    /// # Errors
    /// If another snapshot is being received, there is no room, or the sender is not the leader it names.
    pub(crate) fn accept_snapshot(
        &self,
        from: NodeId,
        head: SnapshotHead,
    ) -> Result<IncomingSnapshot, CallRefused> {
        let refused = |why: &str| Err(CallRefused(why.to_owned()));
        if head.vote.node != from.get() {
            return refused("a node sends a snapshot in the name of another one");
        }
        let meta = head.meta()?;
        let free = store_files::file_system_free_bytes(&self.scratch_dir("."));
        let free = free.map_err(|error| CallRefused(error.to_string()))?;
        if free < head.file_bytes().saturating_add(FREE_BYTES_MIN) {
            return refused("the disk is too full for the snapshot");
        }
        let Some(turn) = self.received.begin() else {
            return refused("another snapshot is being received");
        };
        Ok(IncomingSnapshot { group: self.clone(), head, meta, turn })
    }
}

impl IncomingSnapshot {
    /// Writes and installs the snapshot, and returns the answer to its sender.
    ///
    /// # Errors
    /// If the transfer is interrupted, a checksum or a length differs, or the group stops. The state is then
    /// the one from before.
    pub async fn receive(self, mut body: SnapshotBytes) -> Result<Bytes, CallRefused> {
        let number = self.turn.0.count.fetch_add(1, Ordering::Relaxed);
        let path = self.group.scratch_dir(&format!("incoming-{number}"));
        let scratch = Arc::new(ScratchDir::incoming(path));
        let (dir, files) = (Arc::clone(&scratch), self.head.files);
        let mut files = in_blocking(move || {
            store_files::make_dir(dir.path()).map_err(|error| StoreError(error.to_string()))?;
            Ok(IncomingFiles::new(dir.path(), files))
        })
        .await?;
        loop {
            let next = mlgw_common::time::timeout(STALL_MAX, body.next()).await;
            let next = next.map_err(|_| CallRefused("the snapshot stalled".into()))?;
            let Some(piece) = next else { break };
            let piece = piece.map_err(|error| CallRefused(error.to_string()))?;
            files = in_blocking(move || files.write(piece)).await?;
        }
        let (dir, meta) = (Arc::clone(&scratch), self.meta);
        let meta = in_blocking(move || {
            files.finish()?;
            check_rows(dir.path(), &meta)?;
            Ok(meta)
        })
        .await?;
        let snapshot = Snapshot { meta, snapshot: SnapshotDir { dir: Some(scratch) } };
        let installed = self.group.raft.install_full_snapshot(self.head.vote.vote(), snapshot).await;
        let vote = installed.map_err(|error| CallRefused(error.to_string()))?.vote;
        Ok(Bytes::from(schema::encode(&SnapshotReply { vote: VoteRecord::of(&vote) })))
    }
}

async fn in_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, CallRefused> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.map_err(|error| CallRefused(error.to_string()))??)
}

/// Checks that the rows have the position and the membership that the head names.
fn check_rows(dir: &Path, meta: &SnapshotMeta) -> Result<(), StoreError> {
    let rows = StateDb::open_read_only(dir)?;
    let (last, membership) = position_of(|key| rows.get(key))?;
    if last != meta.last_log_id || membership != meta.last_membership {
        return Err(StoreError("the rows of a snapshot are not those of its head".into()));
    }
    Ok(())
}

/// Files that are being written.
struct IncomingFiles {
    dir: std::path::PathBuf,
    waiting: VecDeque<SnapshotFile>,
    current: Option<IncomingFile>,
}

/// The file that is being written.
struct IncomingFile {
    file: File,
    left: u64,
    crc: Crc32c,
    /// Bytes of the checksum that have arrived.
    checksum: Vec<u8>,
}

impl IncomingFiles {
    fn new(dir: &Path, files: Vec<SnapshotFile>) -> Self {
        Self { dir: dir.to_owned(), waiting: files.into(), current: None }
    }

    /// Writes the next bytes of the body.
    fn write(mut self, mut piece: Bytes) -> Result<Self, StoreError> {
        while !piece.is_empty() {
            let current = match self.current.take() {
                Some(current) => current,
                None => self.open_next()?,
            };
            self.current = current.take(&mut piece)?;
        }
        Ok(self)
    }

    fn open_next(&mut self) -> Result<IncomingFile, StoreError> {
        let next = self.waiting.pop_front();
        let SnapshotFile { name, bytes } =
            next.ok_or_else(|| StoreError("a snapshot has more bytes than its head declares".into()))?;
        let file = File::create_new(self.dir.join(name)).map_err(io_failed)?;
        Ok(IncomingFile { file, left: bytes, crc: Crc32c::default(), checksum: Vec::new() })
    }

    /// Checks that everything arrived, and syncs the names.
    fn finish(self) -> Result<(), StoreError> {
        if self.current.is_some() || !self.waiting.is_empty() {
            return Err(StoreError("a snapshot ended early".into()));
        }
        store_files::sync_dir(&self.dir).map_err(io_failed)
    }
}

impl IncomingFile {
    /// Takes its bytes from the front of `piece`; `None` if the file is complete and synced.
    fn take(mut self, piece: &mut Bytes) -> Result<Option<Self>, StoreError> {
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(piece.len());
        let bytes = piece.split_to(length);
        self.file.write_all(&bytes).map_err(io_failed)?;
        self.crc.update(&bytes);
        self.left -= length as u64;
        if self.left > 0 {
            return Ok(Some(self));
        }
        let rest = (FILE_CHECKSUM_BYTES - self.checksum.len()).min(piece.len());
        self.checksum.extend_from_slice(&piece[..rest]);
        piece.advance(rest);
        if self.checksum.len() < FILE_CHECKSUM_BYTES {
            return Ok(Some(self));
        }
        if self.checksum != self.crc.finish().to_le_bytes() {
            return Err(StoreError("a file of a snapshot arrived damaged".into()));
        }
        self.file.sync_all().map_err(io_failed)?;
        Ok(None)
    }
}

fn io_failed(error: std::io::Error) -> StoreError {
    StoreError(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::IncomingFiles;
    use crate::store_error::StoreError;
    use bytes::Bytes;
    use mlgw_common::checksum::crc32c;
    use mlgw_formats::member_snapshot::SnapshotFile;
    use std::path::Path;

    const FILES: [(&str, &[u8]); 3] = [("a", b"first"), ("b", b""), ("c", b"third file")];

    fn body() -> Vec<u8> {
        let parts = FILES.iter().map(|(_, bytes)| [*bytes, &crc32c(bytes).to_le_bytes()].concat());
        parts.collect::<Vec<_>>().concat()
    }

    fn receive(dir: &Path, body: &[u8], step: usize) -> Result<(), StoreError> {
        let file = |(name, bytes): &(&str, &[u8])| SnapshotFile {
            name: (*name).to_owned(),
            bytes: bytes.len() as u64,
        };
        let mut files = IncomingFiles::new(dir, FILES.iter().map(file).collect());
        for piece in body.chunks(step) {
            files = files.write(Bytes::copy_from_slice(piece))?;
        }
        files.finish()
    }

    #[test]
    fn files_arrive_whole_whatever_the_pieces() {
        for step in [1, 3, 4, 7, 100] {
            let dir = tempfile::tempdir().unwrap();
            receive(dir.path(), &body(), step).unwrap();
            for (name, bytes) in FILES {
                assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), bytes, "{name}, {step}");
            }
        }
    }

    #[test]
    fn a_damaged_short_or_long_body_is_refused() {
        let refused = |body: &[u8]| receive(tempfile::tempdir().unwrap().path(), body, 4).is_err();
        for at in 0..body().len() {
            let mut damaged = body();
            damaged[at] ^= 1;
            assert!(refused(&damaged), "byte {at}");
            assert!(refused(&body()[..at]), "it ends at {at}");
        }
        assert!(refused(&[body(), vec![0]].concat()));
    }
}
