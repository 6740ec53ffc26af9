//! The subcommand `mlgw store restore`: creates a data directory from a backup.
//!
//! The backup is verified before anything is written, and each file again while it is copied. A mark is the
//! first file of the new directory (`restore_mark`), and its `node.json`, with its own incarnation, the last.
//! A start refuses the directory of an interrupted restore, which must be emptied and restored again.
//!
//! The backup of a cluster becomes a recovered server, as the last node of a cluster does with `mlgw cluster
//! recover`: a server without peers that has another cluster id, so no node of the old cluster accepts it,
//! and whose write-back, rules and jobs are stopped until it takes over.

use super::StoreVerbError;
use super::backup::BackedUp;
use super::backup_plan::CATALOGUE;
use crate::catalogue_dir::CatalogueName;
use crate::cluster_recover::{RecoveredServer, recover_rows, store_list};
use crate::data_dir::{CLUSTER_DIR, DataDir};
use crate::incomplete::MissingSegments;
use crate::location::StoreLocation;
use crate::node_file::{DirectoryRole, NODE_FILE, NodeDescription};
use crate::restore_mark;
use crate::scratch;
use mlgw_common::{Clock, SegmentId, regular};
use mlgw_formats::backup_contents::BackupContents;
use mlgw_formats::store_files;
use mlgw_metadata::copy::Copier;
use mlgw_metadata::offline::{
    CatalogueRecovery, CheckFinding, Offline, OldRows, ProgressCallback, ignore_progress,
};
use mlgw_metadata::store_error::StoreError;
use mlgw_segments::hot::segment_of_file_name;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Directory of the segments in a copy.
const SEGMENTS: &str = "segments/";

/// Result of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Size of the copy.
    pub copy: BackedUp,
    /// The recovered server, if the backup is that of a cluster.
    pub recovered: Option<RecoveredServer>,
}

/// Fills the data directory of `place` (absent or empty) from the copy in `from`. All segments are written to
/// the directory of the hot tier, which may be elsewhere.
///
/// # Errors
/// When the copy is incomplete, when a target is not empty, or when a file cannot be written.
pub fn restore(
    from: &Path,
    place: &StoreLocation,
    clock: &dyn Clock,
    watch: ProgressCallback<'_>,
) -> Result<Restored, StoreVerbError> {
    let contents = mlgw_metadata::copy::read_contents(from)?;
    // Refused if a newer version wrote it.
    let described = DataDir::description(from)?.filter(|_| contents.files.contains_key(NODE_FILE));
    let original = described.ok_or_else(|| StoreVerbError::NoDataDir(from.to_owned()))?;
    if original.role == DirectoryRole::Gateway {
        return Err(StoreVerbError::Gateway(from.to_owned()));
    }
    let restored = description_of(&original)?;
    let mut findings = Vec::new();
    mlgw_metadata::copy::verify_contents(&contents, from, "", &mut findings, watch);
    if !findings.is_empty() {
        return Err(damaged(from, &original, &findings));
    }
    require_unused(place)?;
    restore_mark::write(&place.dir)?;
    let layout = RestoreLayout { place, is_cluster: original.is_clustered() };
    layout.copy_files(from, &contents, watch)?;
    let recovered = match layout.is_cluster {
        true => Some(recover(&layout, &original, &restored, clock, watch)?),
        false => None,
    };
    sync_all(&place.dir)?;
    sync_all(place.segments.hot())?;
    restored.write(&place.dir)?;
    restore_mark::remove(&place.dir);
    let copy = BackedUp { files: contents.files.len() as u64, bytes: contents.bytes() };
    Ok(Restored { copy, recovered })
}

/// The description of the restored directory. The original may continue to run and assign the same ids to
/// other bytes.
fn description_of(original: &NodeDescription) -> Result<NodeDescription, StoreVerbError> {
    if original.is_clustered() {
        return Ok(original.clone().recovered()?);
    }
    // A backup has one catalogue, whatever its name was.
    Ok(NodeDescription { catalogue: CatalogueName::FIRST, ..original.clone().next_incarnation()? })
}

/// Refuses targets that are not empty.
fn require_unused(place: &StoreLocation) -> Result<(), StoreVerbError> {
    if let Some(node) = DataDir::description(&place.dir)? {
        return Err(StoreVerbError::ExistingServer { dir: place.dir.clone(), cluster: node.cluster });
    }
    restore_mark::require_ended(&place.dir)?;
    [&*place.dir, place.segments.hot()].into_iter().try_for_each(super::backup::require_empty)
}

/// Where the files of a copy are restored.
struct RestoreLayout<'a> {
    place: &'a StoreLocation,
    is_cluster: bool,
}

impl RestoreLayout<'_> {
    /// Directory of the copied catalogue. That of a cluster is replaced by the one of a recovered server.
    fn catalogue(&self) -> PathBuf {
        let name = if self.is_cluster { CatalogueName::FIRST.next() } else { CatalogueName::FIRST };
        self.place.dir.join(name.to_string())
    }

    /// Directory and path below it for a file of the copy; `None` for one that is not restored.
    fn target<'n>(&self, name: &'n str) -> Option<(PathBuf, &'n str)> {
        let is_certificate = Path::new(name).starts_with(CLUSTER_DIR);
        match (name.strip_prefix(SEGMENTS), name.strip_prefix(CATALOGUE)) {
            (Some(below), _) => Some((self.place.segments.hot().to_owned(), below)),
            (None, Some(below)) => Some((self.catalogue(), below)),
            (None, None) if name == NODE_FILE || is_certificate => None,
            (None, None) => Some((self.place.dir.clone(), name)),
        }
    }

    fn copy_files(
        &self,
        from: &Path,
        contents: &BackupContents,
        watch: ProgressCallback<'_>,
    ) -> Result<(), StoreVerbError> {
        let (mut done, total) = (0, contents.bytes());
        for (name, listed) in &contents.files {
            let Some((folder, below)) = self.target(name) else { continue };
            let source = from.join(name);
            let mut file = regular::open(&source).map_err(StoreVerbError::io(&source))?;
            let mut copier = Copier::new(&folder, None)?;
            copier.add_open(&mut file, u64::MAX, below, &mut |bytes| {
                done += bytes;
                watch("restoring", done, total);
            })?;
            let copied = copier.entry(below).map(|copied| (copied.crc, copied.bytes));
            if copied != Some((listed.crc, listed.bytes)) {
                let path = source.display();
                return Err(StoreVerbError::Damaged(format!("{path} changed while it was restored")));
            }
        }
        Ok(())
    }
}

/// Makes the catalogue of a recovered server from that of a cluster.
fn recover(
    layout: &RestoreLayout<'_>,
    original: &NodeDescription,
    restored: &NodeDescription,
    clock: &dyn Clock,
    watch: ProgressCallback<'_>,
) -> Result<RecoveredServer, StoreVerbError> {
    let place = layout.place;
    let (old, new) = (layout.catalogue(), place.dir.join(restored.catalogue.to_string()));
    let recovery = CatalogueRecovery {
        old: &old,
        new: &new,
        node: original.node_id(),
        // Its files have the checksums of the copy.
        expected: None,
        lineage: restored.lineage().unwrap_or_default(),
        now: clock.now(),
        // The copy has nothing newer, and the result names these groups.
        old_rows: OldRows::Accept,
    };
    let made = recover_rows(&recovery, original.cluster, place, &scratch()?, watch);
    let made = made.map_err(|error| StoreVerbError::Catalogue(error.to_string()))?;
    store_list(&place.dir, &made)?;
    store_files::remove_dir(&old).map_err(StoreVerbError::io(&old))?;
    Ok(made)
}

/// Returns the error for a damaged copy. If only segments are damaged, it lists the objects in them.
fn damaged(from: &Path, original: &NodeDescription, findings: &[CheckFinding]) -> StoreVerbError {
    let first = findings.first().map(|found| format!("{}: {}", found.place, found.what));
    let segment_of = |found: &CheckFinding| {
        let name = Path::new(&found.place).strip_prefix(from.join(SEGMENTS)).ok()?;
        name.to_str().and_then(segment_of_file_name)
    };
    let segments: Option<BTreeSet<SegmentId>> = findings.iter().map(segment_of).collect();
    let missing = segments.and_then(|segments| missing_of(from, original, segments).ok());
    let listed = missing.map(|missing| format!("; {missing}")).unwrap_or_default();
    StoreVerbError::Damaged(first.unwrap_or_default() + &listed)
}

fn missing_of(
    from: &Path,
    original: &NodeDescription,
    segments: BTreeSet<SegmentId>,
) -> Result<MissingSegments, StoreVerbError> {
    let failed = |error: StoreError| StoreVerbError::Catalogue(error.0);
    let (dir, node, mut findings) = (from.join(CATALOGUE), original.node_id(), Vec::new());
    let catalogue = Offline::open(&dir, &scratch()?, node, None, &mut findings, &ignore_progress);
    let catalogue = catalogue.map_err(failed)?;
    let catalogue = catalogue.ok_or_else(|| StoreVerbError::Catalogue("it cannot be read".to_owned()))?;
    MissingSegments::of(&catalogue, segments).map_err(failed)
}

/// Syncs a directory and its subdirectories.
fn sync_all(dir: &Path) -> Result<(), StoreVerbError> {
    let io = StoreVerbError::io;
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(dir).map_err(io(dir))? {
        let entry = entry.map_err(io(dir))?;
        if entry.file_type().map_err(io(dir))?.is_dir() {
            sync_all(&entry.path())?;
        }
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io(dir))
}

#[cfg(test)]
mod tests {
    use super::restore;
    use crate::cluster_join::{ClusterJoinError, JoiningDir};
    use crate::cluster_recover::cluster_take_over;
    use crate::data_dir::DataDir;
    use crate::location::StoreLocation;
    use crate::node_file::{DataDirError, DirectoryRole, NODE_FILE, NodeDescription};
    use crate::restore_mark::RESTORE_MARK;
    use crate::{StoreVerbError, UpstreamData, backup_closed, cluster_init};
    use mlgw_common::{Clock, SystemClock};
    use mlgw_config::{Config, ConfigSources, LoadedConfig};
    use mlgw_metadata::offline::ignore_progress;
    use std::path::Path;
    use std::sync::Arc;

    fn config(dir: &Path) -> Config {
        Config { data_dir: dir.to_owned(), ..LoadedConfig::load(&ConfigSources::default()).unwrap().config }
    }

    /// Makes the first node of a cluster in `dir`, and a backup of it in `out`.
    async fn backed_up(dir: &Path, out: &Path) -> NodeDescription {
        let (config, clock): (_, Arc<dyn Clock>) = (config(dir), Arc::new(SystemClock));
        cluster_init(&config, &clock, &ignore_progress).await.unwrap();
        std::fs::create_dir_all(config.segments_dir()).unwrap();
        std::fs::create_dir(dir.join("cluster")).unwrap();
        std::fs::write(dir.join("cluster/node.key"), "secret").unwrap();
        let place = StoreLocation::of(&config);
        backup_closed(&place, out, UpstreamData::Refused, &*clock, &ignore_progress).unwrap();
        DataDir::description(dir).unwrap().unwrap()
    }

    fn restored(from: &Path, to: &Path) -> Result<super::Restored, StoreVerbError> {
        restore(from, &StoreLocation::of(&config(to)), &SystemClock, &ignore_progress)
    }

    #[tokio::test]
    async fn the_backup_of_a_cluster_becomes_a_server_that_its_nodes_do_not_accept() {
        let room = tempfile::tempdir().unwrap();
        let [dir, out, to] = ["data", "out", "to"].map(|name| room.path().join(name));
        let original = backed_up(&dir, &out).await;
        assert!(!out.join("cluster").exists(), "the key of the node's certificate is in no backup");
        let made = restored(&out, &to).unwrap().recovered.unwrap();
        assert_eq!((made.former, made.incomplete.len()), (original.cluster, 0));
        let node = DataDir::description(&to).unwrap().unwrap();
        assert!(node.recovered && !node.is_clustered(), "it has no vote in any cluster");
        assert!(node.cluster == made.cluster && node.cluster != original.cluster);
        assert!(node.catalogue.is_first() && !to.join("catalogue-1").exists());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        assert!(cluster_init(&config(&to), &clock, &ignore_progress).await.is_err(), "not yet");
        assert_eq!(cluster_take_over(&config(&to)).unwrap(), made.cluster);
        cluster_init(&config(&to), &clock, &ignore_progress).await.unwrap();
        let other = restored(&out, &room.path().join("other")).unwrap().recovered.unwrap();
        assert_ne!(other.cluster, made.cluster, "two restored servers are of different clusters");
    }

    #[tokio::test]
    async fn nothing_is_restored_over_a_server_or_from_an_incomplete_backup() {
        let room = tempfile::tempdir().unwrap();
        let [dir, out, to] = ["data", "out", "to"].map(|name| room.path().join(name));
        let original = backed_up(&dir, &out).await;
        let refused = restored(&out, &dir).unwrap_err();
        assert!(matches!(refused, StoreVerbError::ExistingServer { .. }), "{refused}");
        assert_eq!(DataDir::description(&dir).unwrap(), Some(original.clone()), "nothing was changed");
        for name in ["contents", NODE_FILE, "catalogue/log/CURRENT"] {
            let aside = room.path().join("aside");
            std::fs::rename(out.join(name), &aside).unwrap();
            assert!(restored(&out, &to).is_err(), "without {name}");
            assert!(!to.exists(), "without {name}");
            std::fs::rename(&aside, out.join(name)).unwrap();
        }
        // One by an earlier version was interrupted and left files, and no description.
        std::fs::create_dir_all(to.join("catalogue-1")).unwrap();
        assert!(matches!(restored(&out, &to), Err(StoreVerbError::NotEmpty(_))));
        assert!(DataDir::open(&to, SystemClock.now()).is_err(), "it does not start");
    }

    /// Restores a backup, and ends when the first file is copied: a file is in the way of the next one.
    fn interrupted(out: &Path, to: &Path) {
        let watch = |stage: &str, _: u64, _: u64| {
            if stage == "restoring" {
                std::fs::write(to.join("catalogue-1"), "in the way").unwrap();
            }
        };
        restore(out, &StoreLocation::of(&config(to)), &SystemClock, &watch).unwrap_err();
        std::fs::remove_file(to.join("catalogue-1")).unwrap();
    }

    #[tokio::test]
    async fn a_directory_with_any_part_of_a_restore_becomes_no_server() {
        let room = tempfile::tempdir().unwrap();
        let [dir, out, to] = ["data", "out", "to"].map(|name| room.path().join(name));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        cluster_init(&config(&dir), &clock, &ignore_progress).await.unwrap();
        std::fs::create_dir_all(config(&dir).segments_dir()).unwrap();
        std::fs::create_dir(dir.join("audit")).unwrap();
        std::fs::write(dir.join("audit/audit.jsonl"), "{}\n").unwrap();
        let place = StoreLocation::of(&config(&dir));
        backup_closed(&place, &out, UpstreamData::Refused, &SystemClock, &ignore_progress).unwrap();
        // `audit/` is restored first, and then the restore ends.
        interrupted(&out, &to);
        assert!(to.join("audit/audit.jsonl").exists() && !to.join(NODE_FILE).exists());
        let is_refused = |error: &DataDirError| {
            assert!(error.to_string().contains("Empty the directory"), "{error}");
            matches!(error, DataDirError::UnfinishedRestore { path } if *path == to)
        };
        assert!(is_refused(&DataDir::open(&to, clock.now()).unwrap_err()));
        let again = restored(&out, &to).unwrap_err();
        assert!(matches!(&again, StoreVerbError::DataDir(error) if is_refused(error)), "{again}");
        let place = StoreLocation::of(&config(&to));
        let joins = JoiningDir::lock(&place).unwrap().owner().unwrap_err();
        assert!(matches!(&joins, ClusterJoinError::DataDir(error) if is_refused(error)), "{joins}");
        assert!(!to.join("secrets.key").exists() && !to.join(NODE_FILE).exists(), "nothing was made");

        std::fs::remove_dir_all(&to).unwrap();
        restored(&out, &to).unwrap();
        assert!(!to.join(RESTORE_MARK).exists());
        // A power failure before the removal of the mark.
        std::fs::write(to.join(RESTORE_MARK), "").unwrap();
        DataDir::open(&to, clock.now()).unwrap();
        assert!(!to.join(RESTORE_MARK).exists());
    }

    #[tokio::test]
    async fn a_gateway_has_no_backup() {
        let room = tempfile::tempdir().unwrap();
        let [dir, out] = ["data", "out"].map(|name| room.path().join(name));
        let original = backed_up(&dir, &out).await;
        NodeDescription { role: DirectoryRole::Gateway, ..original }.write(&dir).unwrap();
        let (place, to) = (StoreLocation::of(&config(&dir)), room.path().join("gateway"));
        let made = backup_closed(&place, &to, UpstreamData::Refused, &SystemClock, &ignore_progress);
        assert!(matches!(made, Err(StoreVerbError::Gateway(_))) && !to.exists());
    }
}
