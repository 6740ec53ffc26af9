//! Copies of segment files that are being made: they have a name of their own until they are complete.
//!
//! A start removes an incomplete copy, and so does the next copy of the segment. A complete copy is durable
//! before it gets the name of its segment, so a power loss leaves the file before or the whole copy.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use mlgw_common::ids::SegmentId;
use mlgw_common::regular;

use super::{FileCall, SegmentDisk};
use crate::hot::direct::{AlignedBlocks, BLOCK, open_direct};
use crate::hot::file_names::{COPYING_EXTENSION, segment_file_name};
use crate::hot::header::header_of;

/// The open file of a copy, which does not have the name of its segment yet.
pub(in crate::hot) struct OpenCopy {
    pub(in crate::hot) file: File,
    /// The same file for direct I/O, if its file system supports that.
    direct: Option<File>,
}

impl SegmentDisk {
    /// Creates the file to which a segment is copied from another directory, replacing the remains of an
    /// interrupted copy. It is ignored until [`SegmentDisk::finish_copy`].
    pub(in crate::hot) fn begin_copy(&self, id: SegmentId) -> io::Result<File> {
        self.state.check_directory(&self.dir)?;
        let path = self.copying_path(id);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = regular::open_with(options, &path)?;
        self.intercept_call(FileCall::Create, Some(id))?;
        Ok(file)
    }

    /// Like [`SegmentDisk::begin_copy`], for a copy that [`SegmentDisk::write_copy`] writes.
    pub(in crate::hot) fn begin_open_copy(&self, id: SegmentId) -> io::Result<OpenCopy> {
        let file = self.begin_copy(id)?;
        let direct = self.direct_writes.then(|| open_direct(&self.copying_path(id))).flatten();
        Ok(OpenCopy { file, direct })
    }

    /// Gives a copy the length of the segment; bytes that are not written yet read as zeros.
    pub(in crate::hot) fn set_copy_length(&self, file: &File, id: SegmentId, length: u64) -> io::Result<()> {
        match self.intercept_call(FileCall::Write, Some(id))? {
            Some(_) => file.set_len(length),
            None => Ok(()),
        }
    }

    /// Drops bytes of a copy from the page cache, so that they are read back from the disk. Only synced bytes
    /// are dropped.
    pub(in crate::hot) fn drop_cache(&self, file: &File, id: SegmentId, range: Range<u64>) -> io::Result<()> {
        if self.intercept_call(FileCall::DropCache, Some(id))?.is_some() {
            let bytes = NonZeroU64::new(range.end - range.start);
            rustix::fs::fadvise(file, range.start, bytes, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Makes a copy durable, whatever the durability, then renames it: from then on it is the segment's file.
    pub(in crate::hot) fn finish_copy(&self, file: &File, id: SegmentId) -> io::Result<()> {
        self.sync_copy(file, id)?;
        let (copy, name) = (self.copying_path(id), self.path(id));
        let header = |path: &Path| header_of(path).ok().and_then(|(_, header)| header.ok());
        // An empty file is the closed marker of a replica that was not there, and is replaced.
        let has_bytes = std::fs::metadata(&name).is_ok_and(|found| found.len() > 0);
        if self.has_identity() && has_bytes && header(&name) != header(&copy) {
            let aside = self.set_aside(&segment_file_name(id))?;
            tracing::error!(segment = %id, %aside, "set aside another file with the name of the segment");
        }
        std::fs::rename(copy, name)?;
        let named = self.sync_dir_always();
        if named.is_err() && self.state.check_directory(&self.dir).is_ok() {
            // No record names the file yet. If it cannot be removed now, the next start removes it.
            drop(std::fs::remove_file(self.path(id)));
        }
        named
    }

    /// Like [`SegmentDisk::finish_copy`], over the segment's own file, which the copy improves. A power loss
    /// leaves one of the two. After an error the file under the segment's name is one of them, too.
    pub(in crate::hot) fn replace_by_copy(&self, file: &File, id: SegmentId) -> io::Result<()> {
        self.sync_copy(file, id)?;
        std::fs::rename(self.copying_path(id), self.path(id))?;
        self.sync_dir_always()
    }

    /// Writes a part of a copy that was begun: whole blocks directly if the copy is open for that, other
    /// bytes through the page cache.
    pub(in crate::hot) fn write_copy(
        &self,
        copy: &OpenCopy,
        id: SegmentId,
        bytes: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        let Some(direct) = &copy.direct else {
            return self.write(&copy.file, id, &mut [IoSlice::new(bytes)], offset);
        };
        let head = (offset.next_multiple_of(BLOCK as u64) - offset).min(bytes.len() as u64) as usize;
        let (head, bytes) = bytes.split_at(head);
        let (blocks, tail) = bytes.split_at(bytes.len() - bytes.len() % BLOCK);
        let blocks_at = offset + head.len() as u64;
        match self.write_blocks(direct, &copy.file, id, AlignedBlocks::copy_of(blocks).bytes(), blocks_at) {
            // The file system reports only now that direct I/O is not supported.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.write(&copy.file, id, &mut [IoSlice::new(blocks)], blocks_at)?;
            }
            written => written?,
        }
        for (rest, at) in [(head, offset), (tail, blocks_at + blocks.len() as u64)] {
            if !rest.is_empty() {
                self.write(&copy.file, id, &mut [IoSlice::new(rest)], at)?;
            }
        }
        Ok(())
    }

    /// Removes a copy that is not needed any more.
    pub(in crate::hot) fn discard_copy(&self, id: SegmentId) {
        // If it cannot be removed now, the next start removes it.
        if self.state.check_directory(&self.dir).is_ok() {
            drop(std::fs::remove_file(self.copying_path(id)));
        }
    }

    pub(super) fn copying_path(&self, id: SegmentId) -> PathBuf {
        self.dir.join(format!("{}{COPYING_EXTENSION}", segment_file_name(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::disk_of;
    use super::*;
    use mlgw_common::ids::SegmentSeed;
    use mlgw_common::{ClusterId, Identity, Timestamp};
    use mlgw_formats::schema::SegmentClass;
    use mlgw_formats::segment_header::{NewSegment, SegmentHeader};
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn the_parts_of_a_copy_may_begin_and_end_anywhere() {
        let (dir, id) = (tempfile::tempdir().unwrap(), SegmentId(7));
        let disk = disk_of(dir.path(), Identity::default()).with_direct_writes();
        let content: Vec<u8> = (0..20 * BLOCK + 77).map(|at| (at % 251) as u8).collect();
        let whole_blocks = vec![0..8 * BLOCK, 8 * BLOCK..16 * BLOCK, 16 * BLOCK..content.len()];
        let other_parts =
            vec![0..100, 100..3 * BLOCK, 3 * BLOCK..3 * BLOCK + 5, 3 * BLOCK + 5..content.len()];
        for mut parts in [whole_blocks, other_parts] {
            for _ in 0..2 {
                let copy = disk.begin_open_copy(id).unwrap();
                assert!(copy.direct.is_some() || open_direct(&disk.copying_path(id)).is_none());
                disk.set_copy_length(&copy.file, id, content.len() as u64).unwrap();
                for part in &parts {
                    disk.write_copy(&copy, id, &content[part.clone()], part.start as u64).unwrap();
                }
                assert!(std::fs::read(disk.copying_path(id)).unwrap() == content, "{parts:?}");
                parts.reverse();
            }
        }
    }

    #[test]
    fn a_copy_replaces_a_closed_marker_and_sets_other_files_aside() {
        let (dir, id) = (tempfile::tempdir().unwrap(), SegmentId(7));
        let own = Identity { cluster: ClusterId(1), ..Identity::default() };
        let disk = disk_of(dir.path(), own);
        let copy = || {
            let file = disk.begin_copy(id).unwrap();
            file.write_all_at(&[7; 100], 0).unwrap();
            disk.finish_copy(&file, id).unwrap();
            std::fs::read_dir(dir.path()).unwrap().count()
        };
        // Repeated, as after a request that failed.
        disk.ensure_closed_marker(id).unwrap();
        disk.ensure_closed_marker(id).unwrap();
        assert_eq!(std::fs::read(disk.path(id)).unwrap(), b"");
        assert_eq!(copy(), 1, "the marker is replaced");
        let refused = disk.ensure_closed_marker(id).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        let header = SegmentHeader::of(
            &NewSegment { id, seed: SegmentSeed::default(), created: Timestamp(0) },
            SegmentClass::Small,
            &own,
        );
        std::fs::write(disk.path(id), header.encode()).unwrap();
        assert_eq!(copy(), 2, "another file is set aside");
    }
}
