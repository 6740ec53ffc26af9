//! Ownership of a directory of copies. Buckets and objects are identified by ids that repeat on another
//! server and after a restore, so copies of another timeline would be served as the wrong objects.
//!
//! The directory carries the mark of its server, as directories of segments do
//! (`mlgw_segments::hot::marks`). Copies of an earlier timeline of this server are removed, because their
//! origin has the objects. Copies of another server are moved into a directory beside them and kept. The mark
//! is written last, so that a start after a crash completes the work.

use mlgw_common::{Identity, Kinship, Lineage};
use mlgw_segments::hot::{read_mark, write_mark};
use std::io;
use std::path::Path;

/// Subdirectories that hold copies.
const PARTS: [&str; 2] = ["index", "segments"];

/// Leaves in `dir` only copies of this server on its present timeline, and marks the directory. A directory
/// without a mark was written by an earlier version; it is accepted if this server has had no other timeline.
///
/// # Errors
/// A file or directory cannot be read, moved or written.
pub(super) fn claim_directory(dir: &Path, lineage: &Lineage) -> io::Result<()> {
    if lineage.own == Identity::default() {
        return Ok(());
    }
    std::fs::create_dir_all(dir)?;
    let mark = match read_mark(dir) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Some(Identity::default()),
        mark => mark?,
    };
    match mark.map(|found| lineage.kinship(&found)) {
        Some(Kinship::Own) => return Ok(()),
        Some(Kinship::Earlier) => remove(dir)?,
        Some(Kinship::Foreign) => set_aside(dir)?,
        None if !lineage.earlier.is_empty() => set_aside(dir)?,
        None => {}
    }
    write_mark(dir, &lineage.own)
}

fn remove(dir: &Path) -> io::Result<()> {
    for part in parts(dir) {
        std::fs::remove_dir_all(dir.join(part))?;
        tracing::info!(dir = %dir.display(), part, "removed copies of an earlier timeline of this server");
    }
    Ok(())
}

fn set_aside(dir: &Path) -> io::Result<()> {
    let names = (1_u64..).map(|number| dir.join(format!("set-aside-{number}")));
    let Some(aside) = names.into_iter().find(|aside| !aside.exists()) else { return Ok(()) };
    for part in parts(dir) {
        std::fs::create_dir_all(&aside)?;
        std::fs::rename(dir.join(part), aside.join(part))?;
        tracing::warn!(
            dir = %dir.display(), part, aside = %aside.display(),
            "set aside copies of another server; if no server uses them, remove them"
        );
    }
    Ok(())
}

fn parts(dir: &Path) -> impl Iterator<Item = &'static str> {
    PARTS.into_iter().filter(move |part| dir.join(part).exists())
}

#[cfg(test)]
mod tests {
    use super::claim_directory;
    use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeName};
    use mlgw_segments::hot::{MARK_FILE_NAME, read_mark, write_mark};
    use std::fs;
    use std::path::Path;

    fn lineage(node: u64, own: u64, earlier: &[u64]) -> Lineage {
        let own = Identity { cluster: ClusterId(1), node: NodeName(node), incarnation: Incarnation(own) };
        Lineage { own, earlier: earlier.iter().copied().map(Incarnation).collect(), ..Lineage::default() }
    }

    fn keep(dir: &Path) {
        for part in ["index", "segments"] {
            fs::create_dir_all(dir.join(part)).unwrap();
            fs::write(dir.join(part).join("file"), "bytes").unwrap();
        }
    }

    #[test]
    fn only_copies_of_the_present_timeline_stay_in_place() {
        let present = lineage(1, 3, &[2]);
        let first = lineage(1, 3, &[]);
        for (mark, opened, stays, aside) in [
            (None, &first, true, false),
            (None, &present, false, true),
            (Some(lineage(1, 3, &[])), &present, true, false),
            (Some(lineage(1, 2, &[])), &present, false, false),
            (Some(lineage(1, 9, &[])), &present, false, true),
            (Some(lineage(7, 3, &[])), &present, false, true),
        ] {
            let room = tempfile::tempdir().unwrap();
            let dir = room.path();
            keep(dir);
            if let Some(of) = &mark {
                write_mark(dir, &of.own).unwrap();
            }
            claim_directory(dir, opened).unwrap();
            assert_eq!(read_mark(dir).unwrap(), Some(opened.own), "{mark:?}");
            for part in ["index", "segments"] {
                assert_eq!(dir.join(part).join("file").exists(), stays, "{mark:?}");
                assert_eq!(dir.join("set-aside-1").join(part).join("file").exists(), aside, "{mark:?}");
            }
            claim_directory(dir, opened).unwrap();
            assert!(!dir.join("set-aside-2").exists());
        }
    }

    #[test]
    fn copies_with_a_damaged_mark_are_set_aside_and_a_new_directory_is_marked() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("copies");
        claim_directory(&dir, &lineage(1, 3, &[])).unwrap();
        assert_eq!(read_mark(&dir).unwrap(), Some(lineage(1, 3, &[]).own));
        keep(&dir);
        fs::write(dir.join(MARK_FILE_NAME), "x").unwrap();
        claim_directory(&dir, &lineage(1, 3, &[])).unwrap();
        assert!(!dir.join("index").exists() && dir.join("set-aside-1/index/file").exists());
    }
}
