//! Files that have to exist according to the names of a group's files: shards up to the announced total, the
//! shards of an index, and the metadata of DCP folders.

use super::file_role::{is_dcp_file, shard};
use super::layout::CheckpointKey;
use crate::key_parts::split;
use xxhash_rust::xxh3::xxh3_64;

/// Maximum distinct shard names, and maximum DCP folders, that are counted in a group.
const SETS_MAX: usize = 64;
/// Name endings of shard indexes.
const INDEX_ENDINGS: [&str; 2] = [".safetensors.index.json", ".bin.index.json"];

/// Shards with a common stem and total.
#[derive(Clone, Copy, Debug)]
struct ShardSet {
    stem: u64,
    of: u32,
    have: u32,
}

/// A folder with DCP files, and their number.
#[derive(Clone, Debug)]
struct DcpFolder {
    name: Box<str>,
    files: u32,
    /// True if it contains `.metadata`.
    has_metadata: bool,
}

/// Files expected by name; see the module.
#[derive(Debug, Default)]
pub(super) struct ExpectedFiles {
    shards: Vec<ShardSet>,
    /// Stems of shards that an index announces.
    indexed_stems: Vec<u64>,
    folders: Vec<DcpFolder>,
}

impl ExpectedFiles {
    /// Counts a new file.
    pub(super) fn add(&mut self, parsed: &CheckpointKey<'_>) {
        if let Some((stem, of)) = shard(parsed.rest) {
            self.count_shard(stem_id(parsed.rest, stem), of);
        } else if let Some(stem) = indexed_stem(parsed.rest).filter(|_| self.indexed_stems.len() < SETS_MAX) {
            self.indexed_stems.push(stem);
        }
        self.update_folder(parsed.rest, |folder, is_mark| {
            folder.files += u32::from(!is_mark);
            folder.has_metadata |= is_mark;
        });
    }

    /// Counts a removed file.
    pub(super) fn remove(&mut self, parsed: &CheckpointKey<'_>) {
        if let Some((stem, of)) = shard(parsed.rest) {
            let stem = stem_id(parsed.rest, stem);
            for set in self.shards.iter_mut().filter(|set| set.stem == stem && set.of == of) {
                set.have = set.have.saturating_sub(1);
            }
            self.shards.retain(|set| set.have > 0);
        } else if let Some(stem) = indexed_stem(parsed.rest) {
            self.indexed_stems.retain(|one| *one != stem);
        }
        self.update_folder(parsed.rest, |folder, is_mark| {
            folder.files = folder.files.saturating_sub(u32::from(!is_mark));
            folder.has_metadata &= !is_mark;
        });
        self.folders.retain(|folder| folder.files > 0 || folder.has_metadata);
    }

    fn count_shard(&mut self, stem: u64, of: u32) {
        if let Some(set) = self.shards.iter_mut().find(|set| set.stem == stem && set.of == of) {
            set.have += 1;
        } else if self.shards.len() < SETS_MAX {
            // No model's shards use more name patterns.
            self.shards.push(ShardSet { stem, of, have: 1 });
        }
    }

    fn update_folder(&mut self, rest: &str, update: impl Fn(&mut DcpFolder, bool)) {
        let (folder, name) = split(rest);
        if !is_dcp_file(name) {
            return;
        }
        let is_mark = name == ".metadata";
        if let Some(one) = self.folders.iter_mut().find(|one| *one.name == *folder) {
            update(one, is_mark);
        } else if self.folders.len() < SETS_MAX {
            let mut one = DcpFolder { name: folder.into(), files: 0, has_metadata: false };
            update(&mut one, is_mark);
            self.folders.push(one);
        }
    }

    /// Returns the number of shards when all are there.
    pub(super) fn shards(&self) -> u64 {
        self.shards.iter().map(|set| u64::from(set.of)).sum()
    }

    /// True if all announced shards are there.
    pub(super) fn has_shards(&self) -> bool {
        let is_there = |stem: &u64| self.shards.iter().any(|set| set.stem == *stem);
        self.shards.iter().all(|set| set.have >= set.of) && self.indexed_stems.iter().all(is_there)
    }

    /// True if every folder with DCP files has its `.metadata` or is inside one that has, and every
    /// `.metadata` has files.
    pub(super) fn has_metadata(&self) -> bool {
        let covers =
            |outer: &DcpFolder, inner: &DcpFolder| outer.has_metadata && inner.name.starts_with(&*outer.name);
        self.folders.iter().all(|one| {
            let has_files = one.files > 0
                || self.folders.iter().any(|inner| inner.files > 0 && inner.name.starts_with(&*one.name));
            has_files && self.folders.iter().any(|outer| covers(outer, one))
        })
    }

    /// Returns the bytes of memory on the heap.
    pub(super) fn memory_bytes(&self) -> usize {
        let folders = self.folders.iter().map(|folder| folder.name.len() + size_of::<DcpFolder>());
        self.shards.len() * size_of::<ShardSet>()
            + self.indexed_stems.len() * size_of::<u64>()
            + folders.sum::<usize>()
    }
}

/// Returns a hash of the first `length` bytes of the name.
fn stem_id(rest: &str, length: usize) -> u64 {
    xxh3_64(&rest.as_bytes()[..length])
}

/// Returns the hash of the shard stem of an index: `model-` for `model.safetensors.index.json`.
fn indexed_stem(rest: &str) -> Option<u64> {
    let stem = INDEX_ENDINGS.iter().find_map(|ending| rest.strip_suffix(ending))?;
    Some(xxh3_64(format!("{stem}-").as_bytes()))
}
