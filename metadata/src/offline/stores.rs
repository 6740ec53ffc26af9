//! Stores of a closed catalogue: their directories, the consistency of their own files, and opening them.

use super::finding::{CheckFinding, FindingKind};
use super::problem;
use crate::store::group_dirs::{group_dir, stored_groups};
use crate::store::state::StateDb;
use crate::store::{links, options};
use mlgw_common::regular;
use mlgw_formats::manifest::torn_record_offset;
use mlgw_formats::schema::set::SYSTEM_GROUP;
use mlgw_formats::{store_files, wal_frames};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Block cache of a check, which reads every block once.
const CACHE_BYTES: usize = 8 << 20;
/// Memtable of a check: replayed entries are written as tables of this size.
const MEMTABLE_BYTES: usize = 16 << 20;

/// Each group that has files, by id, with the directory of its newest state: also groups that the node left.
/// The ids may have gaps. Empty if one has no state, or if there is no system group.
pub(super) fn newest_states(dir: &Path, findings: &mut Vec<CheckFinding>) -> Vec<(u32, PathBuf)> {
    let stored = stored_groups(dir);
    if !stored.contains(&SYSTEM_GROUP) {
        let what = "there is no group-0 and so no catalogue";
        findings.push(CheckFinding::damage(FindingKind::Store, dir.display(), what));
        return Vec::new();
    }
    let mut found = Vec::new();
    for group in stored {
        let path = group_dir(dir, group);
        let Some(state) = newest_state(&path) else {
            findings.push(CheckFinding::damage(FindingKind::Store, path.display(), "it contains no state"));
            return Vec::new();
        };
        found.push((group, state));
    }
    found
}

/// The newest state in a group's directory.
pub(crate) fn newest_state(group: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(group).ok()?.flatten();
    let numbered = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("state-")?.parse::<u64>().ok()?;
        Some((number, entry.path()))
    });
    numbered.max().map(|(_, path)| path)
}

/// Opens the copy at `to` of the state in `from`.
pub(super) fn open_state(from: &Path, to: &Path, findings: &mut Vec<CheckFinding>) -> Option<StateDb> {
    if !check_description(from, findings) {
        return None;
    }
    let opened = StateDb::open_scratch(to, &options::cache(CACHE_BYTES), MEMTABLE_BYTES);
    match opened.and_then(|state| Ok((state.live_tables()?, state))) {
        Ok((live, state)) => {
            report_strays(from, &live, findings);
            Some(state)
        }
        Err(error) => {
            findings.push(problem::finding_of(&error.0, from, to));
            None
        }
    }
}

/// Checks that `CURRENT` names a MANIFEST that is complete. A torn end is only a note.
pub(super) fn check_description(store: &Path, findings: &mut Vec<CheckFinding>) -> bool {
    if let Err(error) = store_files::check_regular_files(store) {
        findings.push(CheckFinding::damage(FindingKind::Store, store.display(), error));
        return false;
    }
    let current = store.join("CURRENT");
    let named = match regular::read_to_string(&current) {
        Ok(text) => text,
        Err(error) => {
            findings.push(CheckFinding::damage(FindingKind::Current, current.display(), error));
            return false;
        }
    };
    let name = named.strip_suffix('\n').filter(|name| {
        name.strip_prefix("MANIFEST-").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    });
    let Some(name) = name else {
        findings.push(CheckFinding::damage(FindingKind::Current, current.display(), "it names no MANIFEST"));
        return false;
    };
    let manifest = store.join(name);
    let bytes = match regular::read(&manifest) {
        Ok(bytes) => bytes,
        Err(error) => {
            findings.push(CheckFinding::damage(FindingKind::Manifest, manifest.display(), error));
            return false;
        }
    };
    let note = |at: usize| {
        let what = format!("its end is torn at byte {at}, as after a power loss");
        CheckFinding::note(FindingKind::Manifest, manifest.display(), what)
    };
    if let Some(at) = torn_record_offset(&bytes) {
        findings.push(note(at));
        return true;
    }
    let frames = wal_frames::read_records(&bytes);
    match (frames.first_defect, frames.first_record_after_defect()) {
        (Some(bad), Some(_)) => {
            let what = format!("the record at byte {bad} is damaged, and valid records follow it");
            findings.push(CheckFinding::damage(FindingKind::Manifest, manifest.display(), what));
            return false;
        }
        (Some(bad), None) if frames.records.is_empty() => {
            let what = format!("it has no valid record (damaged from byte {bad} on)");
            findings.push(CheckFinding::damage(FindingKind::Manifest, manifest.display(), what));
            return false;
        }
        (Some(bad), None) => {
            findings.push(note(bad));
        }
        (None, _) => {}
    }
    true
}

/// Reports tables that the store does not name: remains of a flush or compaction after a crash.
fn report_strays(store: &Path, live: &BTreeSet<String>, findings: &mut Vec<CheckFinding>) {
    for entry in std::fs::read_dir(store).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if links::is_table(&name) && !live.contains(&name) {
            let what = "a table that its store does not reference, as after a crash";
            findings.push(CheckFinding::note(FindingKind::Stray, entry.path().display(), what));
        }
    }
}
