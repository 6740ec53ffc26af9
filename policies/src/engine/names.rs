//! Datasets by key name: keys in one folder whose names differ only in numbers belong to one dataset.
//!
//! `train/n01440764/n01440764_10026.JPEG` belongs to folder `train/n01440764/` and pattern `n#_#.JPEG`. A
//! folder with too many children to be separate datasets becomes one dataset with everything below it. The
//! order of reads contains more information; [`super::streams`] detects datasets that are read as one.
//!
//! Invariants: a key has one dataset at a time, and a dataset's former numbers lead to the current one
//! ([`DatasetNames::root`]). All memory is bounded: numbers are reused ([`numbers`]), and the number of
//! remembered folders and patterns is limited ([`bounds`]).

mod bounds;
mod numbers;
#[cfg(test)]
mod tests;

use crate::block::block_id;
pub(super) use crate::block::{BuildPassThroughHasher, mix_hash};
use crate::key_parts::{name_at, split};
pub use numbers::DatasetId;
use std::collections::{HashMap, VecDeque};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Maximum children of a folder that are separate datasets.
const CHILDREN_MAX: u32 = 64;
/// Minimum length of a run of hexadecimal digits that counts as a number, if it contains a decimal digit.
const HEX_DIGITS_MIN: usize = 8;
/// Maximum length of a pattern; longer ones are cut.
const PATTERN_BYTES_MAX: usize = 1024;

/// The dataset of all keys for which no number is left.
pub(super) const OTHERS: u16 = 0;

/// Common part of the names in a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetName {
    /// Bucket id.
    pub bucket: u64,
    /// Common prefix of all keys: a folder with its trailing slash, or empty.
    pub folder: String,
    /// Pattern of the names; empty for everything below the folder.
    pub pattern: String,
}

/// State of a folder.
#[derive(Clone, Copy, Default)]
struct FolderEntry {
    /// Number of name patterns found in it.
    patterns: u32,
    /// Number of folders found in it.
    folders: u32,
    /// Dataset of all its files, if they have too many patterns.
    files_dataset: Option<u16>,
    /// Dataset of everything below it, if it has too many folders or its parent has such a dataset.
    tree_dataset: Option<u16>,
}

/// Dataset of the keys with one folder and pattern.
#[derive(Clone, Copy)]
struct PatternEntry {
    folder: u64,
    number: u16,
}

/// Datasets by name.
pub(super) struct DatasetNames {
    seed: u64,
    /// Maximum number of dataset numbers.
    numbers_max: usize,
    ids: Vec<DatasetId>,
    /// Freed numbers, in the order in which they are reused.
    free: VecDeque<u16>,
    names: Vec<DatasetName>,
    /// By dataset: its own number, or that of the dataset it became part of.
    part_of: Vec<u16>,
    united: Vec<(u16, u16)>,
    /// By dataset: hash of its name with every number replaced.
    shapes: Vec<u64>,
    /// By shape: a folder, and the dataset of all keys of this shape below it, once some were united.
    united_by_shape: HashMap<u64, (String, u16), BuildPassThroughHasher>,
    /// By hash of bucket, folder and pattern.
    patterns: HashMap<u64, PatternEntry, BuildPassThroughHasher>,
    /// By hash of bucket and folder.
    folders: HashMap<u64, FolderEntry, BuildPassThroughHasher>,
}

impl DatasetNames {
    pub(super) fn new(seed: u64, numbers_max: usize) -> Self {
        Self {
            seed,
            numbers_max,
            ids: vec![DatasetId::first(OTHERS)],
            free: VecDeque::new(),
            names: vec![DatasetName::default()],
            part_of: vec![0],
            united: Vec::new(),
            shapes: vec![0],
            united_by_shape: HashMap::default(),
            patterns: HashMap::default(),
            folders: HashMap::default(),
        }
    }

    /// Returns the id of a block.
    pub(super) fn block_id(&self, bucket: u64, key: &str, block: u32) -> u64 {
        block_id(self.seed, bucket, key, block.into())
    }

    /// Returns the number of a key's dataset, which is created if needed.
    pub(super) fn dataset(&mut self, bucket: u64, key: &str) -> u16 {
        let (folder, name) = split(key);
        let id = self.folder_id(bucket, folder);
        let found = self.folder(bucket, folder, id);
        match found.tree_dataset.or(found.files_dataset) {
            Some(dataset) => self.root(dataset),
            None => self.dataset_of_pattern(bucket, folder, id, &pattern_of(name)),
        }
    }

    /// Returns the number of a key's dataset, if it exists.
    pub(super) fn find(&self, bucket: u64, key: &str) -> Option<u16> {
        let (folder, name) = split(key);
        let id = self.folder_id(bucket, folder);
        let by_folder = self.folders.get(&id).and_then(|found| found.tree_dataset.or(found.files_dataset));
        let whole = by_folder.or_else(|| {
            let above =
                std::iter::successors(self.parent(bucket, folder), |(folder, _)| self.parent(bucket, folder));
            above.filter_map(|(_, id)| self.folders.get(&id)?.tree_dataset).next()
        });
        let by_pattern = || {
            let pattern = pattern_of(name);
            let place = self.patterns.get(&self.pattern_id(id, &pattern));
            let of_shape = || self.united_dataset(self.shape_id(bucket, folder, &pattern), folder);
            place.map(|place| place.number).or_else(of_shape)
        };
        whole.or_else(by_pattern).map(|dataset| self.root(dataset))
    }

    /// Returns the current number of the dataset that had this number.
    pub(super) fn root(&self, dataset: u16) -> u16 {
        let mut dataset = dataset;
        while self.part_of[dataset as usize] != dataset {
            dataset = self.part_of[dataset as usize];
        }
        dataset
    }

    /// Returns the hash of a dataset's name without numbers.
    pub(super) fn shape(&self, dataset: u16) -> u64 {
        match self.shapes[dataset as usize] {
            0 => mix_hash(self.id(dataset).bits().rotate_left(16)),
            shape => shape,
        }
    }

    /// True if the names of two datasets are alike but for numbers.
    pub(super) fn are_alike(&self, one: u16, other: u16) -> bool {
        let shape = self.shapes[one as usize];
        shape != 0 && shape == self.shapes[other as usize]
    }

    /// Unites two datasets with alike names; later keys of the same shape below their common folder belong to
    /// the united dataset as well.
    pub(super) fn join(&mut self, whole: u16, part: u16) {
        let are_roots = self.root(whole) == whole && self.root(part) == part;
        assert!(are_roots && whole != part, "two datasets that are part of no other are united");
        self.part_of[part as usize] = whole;
        self.united.push((whole, part));
        let folder = self.names[part as usize].folder.clone();
        let name = &mut self.names[whole as usize];
        name.folder.truncate(common_folder(&name.folder, &folder));
        if !name.folder.is_empty() {
            self.united_by_shape.insert(self.shapes[whole as usize], (name.folder.clone(), whole));
        }
    }

    /// Removes and returns one pair (whole, part) of datasets that were united since the last call.
    pub(super) fn pop_united(&mut self) -> Option<(u16, u16)> {
        self.united.pop()
    }

    /// Returns the name of a dataset.
    pub(super) fn name(&self, dataset: u16) -> &DatasetName {
        &self.names[self.root(dataset) as usize]
    }

    fn folder_id(&self, bucket: u64, folder: &str) -> u64 {
        mix_hash(xxh3_64_with_seed(folder.as_bytes(), self.seed) ^ bucket)
    }

    fn folder(&mut self, bucket: u64, folder: &str, id: u64) -> FolderEntry {
        if let Some(found) = self.folders.get(&id) {
            return *found;
        }
        self.trim_folders();
        let tree_dataset = self.parent(bucket, folder).and_then(|(parent, parent_id)| {
            let above = self.folder(bucket, parent, parent_id);
            above.tree_dataset.or_else(|| self.add_folder(bucket, parent, parent_id))
        });
        let found = FolderEntry { tree_dataset, ..FolderEntry::default() };
        self.folders.insert(id, found);
        found
    }

    fn parent<'a>(&self, bucket: u64, folder: &'a str) -> Option<(&'a str, u64)> {
        let inner = folder.strip_suffix('/')?;
        let parent = &folder[..name_at(inner)];
        Some((parent, self.folder_id(bucket, parent)))
    }

    /// Counts another subfolder. If the folder has too many, it becomes one dataset, which is returned; never
    /// for a whole bucket.
    fn add_folder(&mut self, bucket: u64, folder: &str, id: u64) -> Option<u16> {
        let known = self.folders.entry(id).or_default();
        known.folders += 1;
        if known.folders <= CHILDREN_MAX || folder.is_empty() {
            return None;
        }
        let name = DatasetName { bucket, folder: folder.to_owned(), pattern: String::new() };
        let whole = self.unite(name, |name| name.bucket == bucket && name.folder.starts_with(folder));
        self.trim_folders_without_dataset();
        self.folders.insert(id, FolderEntry { tree_dataset: Some(whole), ..FolderEntry::default() });
        Some(whole)
    }

    /// Counts another pattern among a folder's files. If there are too many, the files become one dataset,
    /// which is returned.
    fn add_pattern(&mut self, bucket: u64, folder: &str, id: u64) -> Option<u16> {
        let known = self.folders.entry(id).or_default();
        known.patterns += 1;
        if known.patterns <= CHILDREN_MAX {
            return None;
        }
        let name = DatasetName { bucket, folder: folder.to_owned(), pattern: String::new() };
        let whole = self.unite(name, |name| name.bucket == bucket && name.folder == folder);
        self.folders.entry(id).or_default().files_dataset = Some(whole);
        Some(whole)
    }

    /// Unites all datasets that are part of `name`. If there is just one, it keeps its number and gets the
    /// wider name, so its readers continue where they are.
    fn unite(&mut self, name: DatasetName, is_part: impl Fn(&DatasetName) -> bool) -> u16 {
        let parts: Vec<u16> = self.roots().filter(|number| is_part(&self.names[*number as usize])).collect();
        if let [whole] = parts[..] {
            self.names[whole as usize] = name;
            self.shapes[whole as usize] = 0;
            return whole;
        }
        let whole = self.new_dataset(name, 0);
        for part in parts {
            self.part_of[part as usize] = whole;
            self.united.push((whole, part));
        }
        whole
    }

    fn pattern_id(&self, folder_id: u64, pattern: &str) -> u64 {
        mix_hash(folder_id ^ xxh3_64_with_seed(pattern.as_bytes(), self.seed))
    }

    fn shape_id(&self, bucket: u64, folder: &str, pattern: &str) -> u64 {
        self.folder_id(bucket, &format!("{}{pattern}", shape_of(folder))).max(1)
    }

    /// Returns the united dataset of all keys of a shape below an ancestor of this folder, if there is one.
    fn united_dataset(&self, shape: u64, folder: &str) -> Option<u16> {
        let (folder_above, whole) = self.united_by_shape.get(&shape)?;
        folder.starts_with(folder_above).then(|| self.root(*whole))
    }

    fn dataset_of_pattern(&mut self, bucket: u64, folder: &str, folder_id: u64, pattern: &str) -> u16 {
        let id = self.pattern_id(folder_id, pattern);
        if let Some(place) = self.patterns.get(&id) {
            return self.root(place.number);
        }
        if let Some(whole) = self.add_pattern(bucket, folder, folder_id) {
            return whole;
        }
        let name = DatasetName { bucket, folder: folder.to_owned(), pattern: pattern.to_owned() };
        let shape = self.shape_id(bucket, folder, pattern);
        let number = self.united_dataset(shape, folder).unwrap_or_else(|| self.new_dataset(name, shape));
        self.trim_patterns();
        self.patterns.insert(id, PatternEntry { folder: folder_id, number });
        number
    }
}

/// Returns the length of the common leading folders, in bytes.
fn common_folder(one: &str, other: &str) -> usize {
    let same = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    one.as_bytes()[..same].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)
}

/// Returns a file name with every number replaced by `#`.
fn pattern_of(name: &str) -> String {
    let bytes = name.as_bytes();
    let mut pattern = Vec::with_capacity(bytes.len().min(PATTERN_BYTES_MAX));
    let mut at = 0;
    while at < bytes.len() && pattern.len() < PATTERN_BYTES_MAX {
        let hex = bytes[at..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let has_digit = bytes[at..at + hex].iter().any(u8::is_ascii_digit);
        if hex >= HEX_DIGITS_MIN && has_digit || digits > 0 {
            pattern.push(b'#');
            at += if hex >= HEX_DIGITS_MIN { hex } else { digits };
        } else {
            pattern.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&pattern).into_owned()
}

/// Returns a folder name with every number replaced by `#`, including path components that consist only of
/// hexadecimal digits.
fn shape_of(folder: &str) -> String {
    let is_hex = |part: &str| part.len() >= 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = folder.split('/').map(|part| if is_hex(part) { "#".to_owned() } else { pattern_of(part) });
    parts.collect::<Vec<_>>().join("/")
}
