//! Groups in which this node may lack acknowledged changes: the files `group-N.behind` beside the states.
//!
//! A node that left a group keeps its rows, which become old, and it may get a place in the group again. A
//! node that is added to a group lacks rows until it has received them. The rows do not show either. So the
//! file is durable before a member stops and before one is created, and it is removed after a barrier of the
//! group has passed that began later. After a power loss the file is there unless its removal was durable. A
//! file that is there without need makes an offline tool ask for a confirmation, and nothing else.

use mlgw_common::{private_file, regular};
use mlgw_formats::store_files;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".behind";

/// Name of the file of a group.
pub(crate) fn file_name(group: u32) -> String {
    format!("group-{group}{SUFFIX}")
}

/// The file of a group.
pub(crate) fn behind_file(dir: &Path, group: u32) -> PathBuf {
    dir.join(file_name(group))
}

/// Records that the node may lack changes of a group. Durable when this returns. Each record differs from the
/// one before, so that [`forget`] does not remove a later one.
pub(crate) fn record(dir: &Path, group: u32) -> io::Result<()> {
    let before = recorded(dir, group)?.and_then(|text| text.trim_end().parse::<u64>().ok());
    let number = before.unwrap_or(0).saturating_add(1);
    private_file::write(dir, &behind_file(dir, group), format!("{number}\n").as_bytes())
}

/// The record of a group; `None` if the node has confirmed that it has all changes.
pub(crate) fn recorded(dir: &Path, group: u32) -> io::Result<Option<String>> {
    match regular::read(&behind_file(dir, group)) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the record of a group, unless it is a later one than `record`. Returns true if it was removed.
pub(crate) fn forget(dir: &Path, group: u32, record: &str) -> io::Result<bool> {
    if recorded(dir, group)?.as_deref() != Some(record) {
        return Ok(false);
    }
    std::fs::remove_file(behind_file(dir, group))?;
    store_files::sync_dir(dir)?;
    Ok(true)
}

/// The records by their groups.
pub(crate) fn records(dir: &Path) -> io::Result<BTreeMap<u32, String>> {
    let mut records = BTreeMap::new();
    for group in groups_behind(dir)? {
        records.extend(recorded(dir, group)?.map(|record| (group, record)));
    }
    Ok(records)
}

/// Ids of the groups with a record, also of those whose record cannot be read.
pub(crate) fn groups_behind(dir: &Path) -> io::Result<BTreeSet<u32>> {
    let mut groups = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let id = |name: &str| {
            let id: u32 = name.strip_prefix("group-")?.strip_suffix(SUFFIX)?.parse().ok()?;
            // `group-01.behind` is not a name of ours.
            (name == file_name(id)).then_some(id)
        };
        groups.extend(name.to_str().and_then(id));
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::{behind_file, forget, groups_behind, record, recorded};

    #[test]
    fn a_group_is_behind_until_its_newest_record_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!((groups_behind(dir).unwrap(), recorded(dir, 3).unwrap()), ([].into(), None));
        record(dir, 3).unwrap();
        record(dir, 12).unwrap();
        assert_eq!(groups_behind(dir).unwrap(), [3, 12].into());
        let first = recorded(dir, 3).unwrap().unwrap();
        record(dir, 3).unwrap();
        assert!(!forget(dir, 3, &first).unwrap(), "the node left the group again meanwhile");
        let second = recorded(dir, 3).unwrap().unwrap();
        assert!(forget(dir, 3, &second).unwrap() && !forget(dir, 3, &second).unwrap());
        assert_eq!(groups_behind(dir).unwrap(), [12].into());
        std::fs::write(behind_file(dir, 4), b"\xff").unwrap();
        std::fs::write(dir.join("group-05.behind"), b"1").unwrap();
        assert_eq!(groups_behind(dir).unwrap(), [4, 12].into(), "a damaged record counts");
        record(dir, 4).unwrap();
        assert_eq!(recorded(dir, 4).unwrap().as_deref(), Some("1\n"));
    }
}
