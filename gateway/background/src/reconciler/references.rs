//! Deletion guard: finds small files that refer to a checkpoint that is about to be deleted, because a
//! program resumes from it, serves it or marks it as the best.
//!
//! The files read are those of at most 64 KiB in the folder of the checkpoint's run, in the folders above,
//! and in the checkpoints of its run that stay; in addition the state file of the transformers Trainer, of
//! any length. A file that cannot be read, or a folder with too many files, guards every checkpoint that it
//! may refer to. A checkpoint that a file refers to stays, so its own files are read as well. Nothing is
//! written here.

use crate::stored_objects::StoredObjects;
use futures_util::FutureExt as _;
use mlgw_common::limits::{NAMING_BYTES_MAX, NAMING_FILES_MAX, NAMING_FOLDERS_MAX, NAMING_KEYS_MAX};
use mlgw_common::{BucketId, ObjectKey};
use mlgw_formats::schema::ObjectVersion;
use mlgw_metadata::Catalogue;
use mlgw_objects::reader::BodyReader;
use mlgw_policies::checkpoints::{
    CheckpointIndex, Generation, GroupId, MENTION_BYTES_MAX, MentionTarget, MentionTargets, SeriesId,
    folders_above, folders_of_pointers, may_point, names_as_best, names_checkpoint,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Bound;

/// Bytes read of a Trainer's state file, which names the best checkpoint in its first lines.
const STATE_BYTES_MAX: u64 = 16 << 10;

/// A checkpoint that may be deleted.
struct EndangeredCheckpoint {
    bucket: BucketId,
    series: SeriesId,
    prefix: String,
    parent: String,
    step: Option<u64>,
    /// Keys of state files in which a Trainer may have named the best checkpoint, if the folder names match.
    states: Vec<String>,
}

impl EndangeredCheckpoint {
    fn mentionable(&self) -> MentionTarget<'_> {
        MentionTarget { prefix: &self.prefix, step: self.step }
    }
}

/// Checkpoints that may be deleted, and the folders of those of their runs that stay.
#[derive(Default)]
pub struct EndangeredCheckpoints {
    all: Vec<EndangeredCheckpoint>,
    kept: BTreeMap<SeriesId, Vec<String>>,
}

/// Reasons why checkpoints stay, by bucket and prefix, and the small files examined for them.
#[derive(Default)]
pub struct ReferencedCheckpoints {
    why: BTreeMap<(u64, String), String>,
    seen: BTreeMap<(BucketId, String), BTreeSet<u64>>,
}

/// A folder whose small files may refer to checkpoints.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ReferenceFolder {
    bucket: BucketId,
    folder: String,
    /// Run, if the folder is a checkpoint of that run, whose subfolders are included; `None` for other
    /// folders, whose subfolders are excluded.
    of: Option<SeriesId>,
}

impl ReferenceFolder {
    /// Returns true if files in the folder may refer to the checkpoint.
    fn concerns(&self, one: &EndangeredCheckpoint) -> bool {
        let is_near = || match self.of {
            Some(series) => one.series == series && one.prefix != self.folder,
            None => one.parent.starts_with(&self.folder),
        };
        self.bucket == one.bucket && is_near()
    }
}

impl EndangeredCheckpoints {
    /// Collects the known checkpoints among `ids`. Checkpoints for which `goes` is true do not stay, so their
    /// files are not read.
    pub fn of(known: &CheckpointIndex, ids: &[GroupId], goes: impl Fn(&Generation<'_>) -> bool) -> Self {
        let mut endangered = Self::default();
        for id in ids {
            let Some(one) = known.group(*id) else { continue };
            endangered.kept.entry(id.series()).or_insert_with(|| {
                let others = known.generations(id.series()).into_iter();
                let kept = others.filter(|other| !goes(other));
                kept.filter(|one| one.prefix.ends_with('/')).map(|one| one.prefix.to_owned()).collect()
            });
            endangered.all.push(EndangeredCheckpoint {
                bucket: BucketId(one.bucket),
                series: id.series(),
                prefix: one.prefix.to_owned(),
                parent: one.parent.to_owned(),
                step: one.step,
                states: known.states_of_trainer(*id),
            });
        }
        endangered
    }

    /// Returns the folders to examine first.
    fn folders(&self) -> BTreeSet<ReferenceFolder> {
        let mut places = BTreeSet::new();
        for one in &self.all {
            for folder in folders_above(&one.parent) {
                places.insert(ReferenceFolder { bucket: one.bucket, folder: folder.to_owned(), of: None });
            }
            for folder in self.kept.get(&one.series).into_iter().flatten() {
                places.insert(ReferenceFolder {
                    bucket: one.bucket,
                    folder: folder.clone(),
                    of: Some(one.series),
                });
            }
        }
        places
    }
}

impl ReferencedCheckpoints {
    /// Returns the reason why a checkpoint stays, if a file refers to it.
    pub fn reason(&self, bucket: u64, prefix: &str) -> Option<&str> {
        self.why.get(&(bucket, prefix.to_owned())).map(String::as_str)
    }

    fn add(&mut self, one: &EndangeredCheckpoint, why: &str) -> bool {
        let name = (one.bucket.0, one.prefix.clone());
        let is_new = !self.why.contains_key(&name);
        self.why.entry(name).or_insert_with(|| why.to_owned());
        is_new
    }

    /// Returns true if all present small files in the folder of a run and in the folder above it were
    /// examined. Files deleted since then do not matter, because they add no reference.
    pub(crate) async fn is_unchanged(
        &self,
        stored: &StoredObjects,
        bucket: u64,
        parent: &str,
    ) -> Result<bool, String> {
        for folder in folders_of_pointers(parent) {
            let place = ReferenceFolder { bucket: BucketId(bucket), folder: folder.to_owned(), of: None };
            let files = small_files(stored.catalogue.clone(), place.clone()).await?;
            let seen = self.seen.get(&(place.bucket, place.folder));
            if !seen.is_some_and(|seen| digests(&files).all(|file| seen.contains(&file))) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Finds the checkpoints that files refer to.
pub async fn find_references(
    stored: &StoredObjects,
    endangered: &EndangeredCheckpoints,
) -> ReferencedCheckpoints {
    let mut named = ReferencedCheckpoints::default();
    let words: MentionTargets<'_> = endangered.all.iter().map(EndangeredCheckpoint::mentionable).collect();
    let mut left: VecDeque<ReferenceFolder> = endangered.folders().into_iter().collect();
    let mut looked_at = 0;
    while let Some(place) = left.pop_front() {
        looked_at += 1;
        let found = match looked_at > NAMING_FOLDERS_MAX {
            true => {
                Err(format!("more than {NAMING_FOLDERS_MAX} folders may contain a file that refers to it"))
            }
            false => read_folder(stored, endangered, &words, &place, &mut named).await,
        };
        let found = found.unwrap_or_else(|why| {
            let concerned = (0..endangered.all.len()).filter(|at| place.concerns(&endangered.all[*at]));
            concerned.map(|at| (at, why.clone())).collect()
        });
        for (at, why) in found {
            let one = &endangered.all[at];
            // The files of a checkpoint that stays may refer to others.
            if named.add(one, &why) && one.prefix.ends_with('/') {
                let of = Some(one.series);
                left.push_back(ReferenceFolder { bucket: one.bucket, folder: one.prefix.clone(), of });
            }
        }
    }
    for one in &endangered.all {
        if named.reason(one.bucket.0, &one.prefix).is_none()
            && let Some(why) = best_by_trainer(stored, one).await
        {
            named.add(one, &why);
        }
    }
    named
}

/// Reads the small files of a folder. Returns the checkpoints that they refer to, each with the reason why it
/// stays.
///
/// # Errors
/// The reason why all checkpoints stay that the folder concerns.
async fn read_folder(
    stored: &StoredObjects,
    endangered: &EndangeredCheckpoints,
    words: &MentionTargets<'_>,
    place: &ReferenceFolder,
    named: &mut ReferencedCheckpoints,
) -> Result<Vec<(usize, String)>, String> {
    let files = small_files(stored.catalogue.clone(), place.clone()).await?;
    if place.of.is_none() {
        named.seen.insert((place.bucket, place.folder.clone()), digests(&files).collect());
    }
    let mut found = Vec::new();
    for (key, object) in files {
        let content = content(stored, place.bucket, &key, &object, MENTION_BYTES_MAX).await;
        let content =
            content.map_err(|error| format!("{key}, which may refer to it, cannot be read: {error}"))?;
        let mut all = words.named_by(key.as_str(), &content);
        let name = key.as_str().strip_prefix(&*place.folder).unwrap_or_default();
        if place.of.is_none() && may_point(name, object.size) {
            let text = String::from_utf8_lossy(&content);
            let is_near = |one: &EndangeredCheckpoint| {
                folders_of_pointers(&one.parent).any(|near| near == place.folder)
            };
            let points =
                |one: &EndangeredCheckpoint| is_near(one) && names_checkpoint(&text, &one.prefix, one.step);
            all.extend((0..endangered.all.len()).filter(|at| points(&endangered.all[*at])));
        }
        let concerned = all.into_iter().filter(|at| place.concerns(&endangered.all[*at]));
        found.extend(concerned.map(|at| (at, format!("{key} refers to it"))));
    }
    Ok(found)
}

/// Lists the small files of a folder, in key order.
async fn small_files(
    catalogue: Catalogue,
    place: ReferenceFolder,
) -> Result<Vec<(ObjectKey, ObjectVersion)>, String> {
    let found = tokio::task::spawn_blocking(move || scan(&catalogue, &place)).await;
    found.unwrap_or_else(|error| Err(error.to_string()))
}

/// Lists the small files on the current thread. Subfolders are skipped, no matter how large, unless the
/// folder is a checkpoint.
fn scan(catalogue: &Catalogue, place: &ReferenceFolder) -> Result<Vec<(ObjectKey, ObjectVersion)>, String> {
    let ReferenceFolder { bucket, folder, of } = place;
    let (reader, mut from) = (catalogue.reader(), folder.clone());
    let (mut files, mut bytes, mut keys) = (Vec::new(), 0, 0);
    'again: loop {
        for found in reader.scan(*bucket, Bound::Included(from.as_bytes())) {
            let (key, entry) = found.map_err(|error| error.to_string())?;
            let Some(rest) = key.as_str().strip_prefix(&**folder) else { return Ok(files) };
            keys += 1;
            if keys > NAMING_KEYS_MAX {
                return Err(format!("more than {NAMING_KEYS_MAX} files in {folder:?} may refer to it"));
            }
            if let (None, Some(slash)) = (of, rest.find('/')) {
                // The character `0` follows the slash in byte order.
                from = format!("{folder}{}0", &rest[..slash]);
                continue 'again;
            }
            let object = entry.version().map_err(|error| error.to_string())?;
            let is_pointer = of.is_none() && may_point(rest, object.size);
            if object.delete_marker || (object.size > MENTION_BYTES_MAX && !is_pointer) {
                continue;
            }
            bytes += object.size.min(MENTION_BYTES_MAX);
            files.push((key, object));
            if files.len() > NAMING_FILES_MAX || bytes > NAMING_BYTES_MAX {
                return Err(format!(
                    "more than {NAMING_FILES_MAX} small files, or more than {NAMING_BYTES_MAX} bytes of \
                     them, in {folder:?} may refer to it"
                ));
            }
        }
        return Ok(files);
    }
}

/// Returns a digest of each file, which changes when the file is overwritten.
fn digests(files: &[(ObjectKey, ObjectVersion)]) -> impl Iterator<Item = u64> + '_ {
    files.iter().map(|(key, object)| {
        let mut hasher = DefaultHasher::new();
        (key.as_str(), object.seq).hash(&mut hasher);
        hasher.finish()
    })
}

/// Returns the reason why a checkpoint stays that the transformers Trainer calls the best of its run.
async fn best_by_trainer(stored: &StoredObjects, one: &EndangeredCheckpoint) -> Option<String> {
    for key in one.states.iter().filter_map(|key| ObjectKey::new(key).ok()) {
        let found = stored.catalogue.object(one.bucket, &key);
        let text = match found.map_err(|error| error.to_string()) {
            Ok(None) => continue,
            Ok(Some(object)) => content(stored, one.bucket, &key, &object, STATE_BYTES_MAX).await,
            Err(error) => Err(error),
        };
        match text {
            Ok(text) if names_as_best(&String::from_utf8_lossy(&text), &one.prefix, one.step) => {
                return Some(format!("{key} refers to it"));
            }
            Ok(_) => {}
            Err(error) => return Some(format!("{key}, which may refer to it, cannot be read: {error}")),
        }
    }
    None
}

/// Reads at most the first `most` bytes of an object.
async fn content(
    stored: &StoredObjects,
    bucket: BucketId,
    key: &ObjectKey,
    object: &ObjectVersion,
    most: u64,
) -> Result<Vec<u8>, String> {
    if object.delete_marker || object.size == 0 {
        return Ok(Vec::new());
    }
    let mut reader =
        BodyReader::new(&stored.catalogue, &stored.tiers, bucket, key, object, 0..object.size.min(most));
    let mut bytes = Vec::new();
    // Boxed, because the compiler limits how deeply the types of futures nest.
    while let Some(piece) = reader.next().boxed().await.map_err(|error| error.to_string())? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}
