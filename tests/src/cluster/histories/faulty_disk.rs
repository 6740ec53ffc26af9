//! The disk below one node of a cluster, in memory, which can be slow, full or failing, or lose its power.
//!
//! A power cut keeps what was synced, and by the seed some of the rest (`power_cut`). The disk that is left
//! is mounted at the same place.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use super::faults::FaultKind;
use crate::disk::{Disk, DiskTrouble};
use crate::mount::Mount;
use crate::power_cut::{CutStyle, NO_SYNCS_IGNORED, PowerCut, crash_state};
use crate::recording::{DiskEvent, Ino};
use crate::seed::Rng;

/// Duration of each sync of a slow disk.
const SLOW_SYNC: Duration = Duration::from_secs(2);

/// Free bytes of a full disk. With the larger number the node has time to release its reserve.
const FREE_BYTES: [u64; 2] = [0, 8 << 20];

/// A disk below a node.
pub(super) struct FaultyDisk {
    pub(super) node: usize,
    mount: Mount,
}

impl FaultyDisk {
    /// Returns an empty disk for a node.
    pub(super) fn new(node: usize) -> Self {
        Self { node, mount: Mount::new() }
    }

    /// The directory for the node.
    pub(super) fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Begins a fault that lasts until [`Self::heal`].
    pub(super) fn begin(&self, kind: FaultKind, choice: u64) {
        let node_dir = format!("node-{}", self.node);
        let mut disk = self.mount.disk();
        match kind {
            FaultKind::SlowSyncs => disk.slow_syncs(SLOW_SYNC),
            FaultKind::FullDisk => {
                let free_bytes = *Rng::new(choice).pick(&FREE_BYTES);
                disk.set_trouble(DiskTrouble::Full { free_bytes });
            }
            FaultKind::FailingSegments => {
                disk.set_trouble(DiskTrouble::Failing { below: format!("{node_dir}/segments") });
            }
            FaultKind::FailingDisk => disk.set_trouble(DiskTrouble::Failing { below: node_dir }),
            other => panic!("{other:?} is no trouble of a disk that lasts"),
        }
    }

    pub(super) fn heal(&self) {
        let mut disk = self.mount.disk();
        disk.slow_syncs(Duration::ZERO);
        disk.set_trouble(DiskTrouble::None);
    }

    /// Cuts the power, after the process of the node has ended. Returns a description.
    pub(super) fn cut_power(&mut self, choice: u64) -> String {
        let mut rng = Rng::new(choice);
        let cut = PowerCut { at: self.position(), style: CutStyle::choose(&mut rng), seed: rng.next() };
        self.cut_power_as(cut);
        format!("{cut:?}")
    }

    /// Cuts the power at an earlier moment, after the process of the node has ended. Everything that was not
    /// synced at that moment is lost.
    pub(super) fn drop_unsynced(&mut self, at: usize) {
        self.cut_power_as(PowerCut { at, style: CutStyle::DropAll, seed: 1 });
    }

    fn cut_power_as(&mut self, cut: PowerCut) {
        let tree = crash_state(self.mount.disk().recording(), cut, NO_SYNCS_IGNORED);
        self.mount.replace_disk(Disk::from_tree(&tree));
    }

    /// The present moment, for [`Self::drop_unsynced`].
    pub(super) fn position(&self) -> usize {
        self.mount.disk().recording().position()
    }

    /// Makes each sync take this long from now on.
    pub(super) fn slow_syncs(&self, delay: Duration) {
        self.mount.disk().slow_syncs(delay);
    }

    /// True if a file had bytes at a moment that were not synced then. Its path has this part, and it was
    /// synced before.
    pub(super) fn has_unsynced(&self, part: &str, at: usize) -> bool {
        let disk = self.mount.disk();
        let (mut unsynced, mut chosen) = (BTreeSet::<Ino>::new(), BTreeSet::<Ino>::new());
        for event in &disk.recording().events[..at] {
            match event {
                DiskEvent::Write { ino, .. } => {
                    unsynced.insert(*ino);
                }
                DiskEvent::Sync { ino, path } => {
                    unsynced.remove(ino);
                    if path.contains(part) {
                        chosen.insert(*ino);
                    }
                }
                DiskEvent::AddName { .. }
                | DiskEvent::RemoveName { .. }
                | DiskEvent::Rename { .. }
                | DiskEvent::Resize { .. }
                | DiskEvent::Zero { .. }
                | DiskEvent::SyncFailed { .. }
                | DiskEvent::SyncNames { .. } => {}
            }
        }
        unsynced.intersection(&chosen).next().is_some()
    }
}
