//! Directories of the states of groups. A node has those of some groups, so the ids may have gaps. It keeps
//! the directory of a group that it left (`behind.rs`).

use std::path::{Path, PathBuf};

/// Directory of the state of a group.
pub(crate) fn group_dir(dir: &Path, id: u32) -> PathBuf {
    dir.join(format!("group-{id}"))
}

/// Ids of the groups that have a directory in `dir`, in order.
pub(crate) fn stored_groups(dir: &Path) -> Vec<u32> {
    let entries =
        std::fs::read_dir(dir).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    let id = |name: &str| {
        let id: u32 = name.strip_prefix("group-")?.parse().ok()?;
        // `group-01` is not a name of ours.
        (name == format!("group-{id}")).then_some(id)
    };
    let mut ids: Vec<u32> = entries.filter_map(|entry| id(entry.file_name().to_str()?)).collect();
    ids.sort_unstable();
    ids
}
