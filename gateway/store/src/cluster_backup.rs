//! The backup of a whole cluster through one of its storage nodes, while the cluster serves.
//!
//! No segment is released on any node while all segments are pinned on this one: an owner asks the other
//! nodes first. So every segment to which the copied catalogue refers exists until its bytes are copied.
//! Those that no local file has completely are read from the other nodes, and their records are verified.
//!
//! A bucket that is deleted while the catalogue is copied may be left in one group only. Then the catalogue
//! is copied again. Other differences between the groups are ended by the restore.

use super::StoreVerbError;
use crate::backup_plan::{BackupPlan, CATALOGUE, OtherNodes, UpstreamData, open_copied};
use crate::copied_segments::{add_segment, open_segments};
use crate::incomplete::MissingSegments;
use crate::location::StoreLocation;
use mlgw_common::time::{Instant, sleep};
use mlgw_common::{NodeId, SegmentId};
use mlgw_formats::schema::SegmentRecord;
use mlgw_formats::store_files;
use mlgw_metadata::Catalogue;
use mlgw_metadata::copy::Copier;
use mlgw_metadata::offline::CatalogueFacts;
use mlgw_segments::hot::{HotTier, WholeSegmentError};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Number of copies of the catalogue that a backup makes at most.
const CATALOGUE_COPIES_MAX: u32 = 5;
/// Time for which segments that cannot be read are tried again. It is longer than the other nodes take to
/// seal the segments of a lost one.
const UNREAD_WAIT: Duration = Duration::from_secs(60);
/// Pause before segments that could not be read are tried again.
const UNREAD_PAUSE: Duration = Duration::from_millis(500);

/// A backup of a cluster in progress.
pub(super) struct ClusterBackup<'a> {
    pub(super) source: &'a StoreLocation,
    pub(super) out: &'a Path,
    pub(super) node: NodeId,
    pub(super) catalogue: &'a Catalogue,
    pub(super) hot: &'a HotTier,
    pub(super) upstream_data: UpstreamData,
}

impl ClusterBackup<'_> {
    /// Copies the catalogue, and the segments that this node does not have completely. Returns the open files
    /// of the others.
    ///
    /// # Errors
    /// When no majority confirms the newest state, a segment cannot be read for a minute, or one was spilled
    /// to an upstream meanwhile.
    pub(super) async fn begin(
        &self,
        watch: &(dyn Fn(&'static str, u64, u64) + Send + Sync),
    ) -> Result<(Copier, BTreeMap<SegmentId, File>), StoreVerbError> {
        // Until all segments are open, or copied.
        let _kept = self.hot.pin_all();
        let (copier, BackupPlan { local, elsewhere }) = self.copy_catalogue().await?;
        Ok((self.add_elsewhere(copier, elsewhere, watch).await?, local))
    }

    async fn copy_catalogue(&self) -> Result<(Copier, BackupPlan), StoreVerbError> {
        for _ in 0..CATALOGUE_COPIES_MAX {
            let copier = self.catalogue.copy_cut_into(Copier::new(self.out, None)?, CATALOGUE).await?;
            let (source, out, node) = (self.source.clone(), self.out.to_owned(), self.node);
            let upstream_data = self.upstream_data;
            let planned = blocking(move || {
                let copied = open_copied(&out, node)?;
                if has_deleted_bucket(&copied.facts) {
                    return Ok(None);
                }
                let files = open_segments(&source)?;
                BackupPlan::of(&copied, node, files, OtherNodes::Read, upstream_data).map(Some)
            });
            if let Some(plan) = planned.await? {
                return Ok((copier, plan));
            }
            let copied = self.out.join(CATALOGUE);
            store_files::remove_dir(&copied).map_err(StoreVerbError::io(&copied))?;
        }
        Err(StoreVerbError::BucketsDeleted(CATALOGUE_COPIES_MAX))
    }

    /// Adds segments from the replicas of all nodes. Those that cannot be read are tried again for a while.
    async fn add_elsewhere(
        &self,
        mut copier: Copier,
        mut missing: BTreeMap<SegmentId, u64>,
        watch: &(dyn Fn(&'static str, u64, u64) + Send + Sync),
    ) -> Result<Copier, StoreVerbError> {
        let (total, mut done) = (missing.values().sum(), 0);
        let mut waiting_since = None;
        loop {
            let (count, mut unread) = (missing.len(), BTreeMap::new());
            for (segment, end) in missing {
                match self.read_segment(segment, end).await? {
                    Some(file) => {
                        copier = blocking(move || add_segment(copier, segment, &file)).await?;
                        done += end;
                        watch("copying segments of other nodes", done, total);
                    }
                    None => drop(unread.insert(segment, end)),
                }
            }
            if unread.is_empty() {
                return Ok(copier);
            }
            if unread.len() < count {
                waiting_since = None;
            }
            if waiting_since.get_or_insert_with(Instant::now).elapsed() > UNREAD_WAIT {
                return Err(self.missing(unread).await);
            }
            sleep(UNREAD_PAUSE).await;
            missing = unread;
        }
    }

    /// Returns a file with the first `end` bytes of a segment; `None` if they cannot be read now.
    async fn read_segment(&self, segment: SegmentId, end: u64) -> Result<Option<Arc<File>>, StoreVerbError> {
        let record = self.catalogue.segment_record(segment);
        let record = record.map_err(|error| StoreVerbError::Catalogue(error.to_string()))?;
        let Some(record) = record else { return Ok(None) };
        let path = self.out.join("segment.new");
        let file = Arc::new(nameless(&path).map_err(StoreVerbError::io(&path))?);
        match self.hot.read_whole(&record, end, Arc::clone(&file)).await {
            Ok(0) => Ok(Some(file)),
            Ok(damaged) => {
                tracing::error!(%segment, damaged, "a backup has bytes that are intact in no replica");
                Ok(Some(file))
            }
            Err(WholeSegmentError::Io(source)) => Err(StoreVerbError::io(path)(source)),
            Err(error @ (WholeSegmentError::NoPeers(_) | WholeSegmentError::Unread { .. })) => {
                require_on_nodes(&record)?;
                tracing::warn!(%error, "a backup waits for a segment");
                Ok(None)
            }
        }
    }

    /// Returns the error for segments that cannot be read.
    async fn missing(&self, unread: BTreeMap<SegmentId, u64>) -> StoreVerbError {
        let (out, node): (PathBuf, _) = (self.out.to_owned(), self.node);
        let found = blocking(move || {
            let missing = MissingSegments::of(&open_copied(&out, node)?, unread.into_keys().collect());
            missing.map_err(|error| StoreVerbError::Catalogue(error.0))
        });
        found.await.map_or_else(|error| error, StoreVerbError::Missing)
    }
}

/// Refuses a segment that was spilled after the catalogue was copied: the copy does not name its object, and
/// the nodes remove their files.
fn require_on_nodes(record: &SegmentRecord) -> Result<(), StoreVerbError> {
    if record.is_at_upstream() { Err(StoreVerbError::Spilled(record.segment_id())) } else { Ok(()) }
}

/// True if a group has a bucket that the system group does not have any more.
fn has_deleted_bucket(facts: &CatalogueFacts) -> bool {
    facts.mirrored.iter().any(|bucket| !facts.buckets.contains_key(bucket))
}

/// Creates a file without a name, so that it is gone with its last user.
fn nameless(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreVerbError> + Send + 'static,
) -> Result<T, StoreVerbError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|stopped| Err(StoreVerbError::Catalogue(stopped.to_string())))
}

#[cfg(test)]
mod tests {
    use super::{has_deleted_bucket, nameless, require_on_nodes};
    use crate::StoreVerbError;
    use mlgw_common::{SegmentId, SegmentTier};
    use mlgw_formats::schema::{Bucket, Replica, SegmentRecord};
    use mlgw_metadata::offline::CatalogueFacts;
    use std::io::{Read as _, Seek as _, Write as _};

    #[test]
    fn a_bucket_that_was_deleted_between_two_groups_is_found() {
        let mut facts = CatalogueFacts { mirrored: [1, 2].into(), ..CatalogueFacts::default() };
        facts.buckets.insert(1, Bucket::default());
        facts.buckets.insert(3, Bucket::default());
        assert!(has_deleted_bucket(&facts));
        facts.buckets.insert(2, Bucket::default());
        assert!(!has_deleted_bucket(&facts), "the restore makes the mirror of bucket 3");
    }

    #[test]
    fn a_segment_that_was_spilled_since_the_catalogue_was_copied_is_not_waited_for() {
        let mut record =
            SegmentRecord { id: 7, replicas: vec![Replica::default()], ..SegmentRecord::default() };
        assert!(require_on_nodes(&record).is_ok(), "its node may answer again");
        record.replicas[0].tier = SegmentTier::Upstream.number();
        let refused = require_on_nodes(&record);
        assert!(matches!(refused, Err(StoreVerbError::Spilled(SegmentId(7)))), "{refused:?}");
    }

    #[test]
    fn a_file_without_a_name_is_written_and_read() {
        let room = tempfile::tempdir().unwrap();
        let mut file = nameless(&room.path().join("new")).unwrap();
        assert_eq!(std::fs::read_dir(room.path()).unwrap().count(), 0);
        file.write_all(b"bytes").unwrap();
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "bytes");
    }
}
