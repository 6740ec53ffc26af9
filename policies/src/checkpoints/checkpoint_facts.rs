//! File type of a key as far as checkpoints determine it: part of a checkpoint, or of a released model.
//!
//! A key with a step in its name or folder belongs to a checkpoint, and so does optimizer state. Model names
//! without a step belong to a released model, unless training state is beside them: training may then resume
//! from there. Invariant: only the file type follows from this; grouping, completeness and retention are not
//! affected.

use super::file_role::TRAINER_STATE;
use super::layout::{self, CheckpointKey, Layout};
use super::model_file_kind;
use super::step;
use crate::key_parts::{extension, name_of, split};
use crate::language::{FileType, ModelFileKind};
use std::collections::{BTreeMap, HashMap};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Maximum remembered folders with training state. Beyond it, the folders seen longest ago count as folders
/// of released models.
const TRAINING_FOLDERS_MAX: usize = 1 << 13;
/// Extensions of files with optimizer state.
const STATE_ENDINGS: [&str; 8] = ["pt", "pth", "bin", "pkl", "safetensors", "msgpack", "pdopt", "distcp"];

/// Facts about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointFacts {
    /// Generation of its checkpoint, if that is complete.
    pub generation: Option<u32>,
    /// File type; `None` if other sources may know it.
    pub file_type: Option<FileType>,
}

/// Folders with training state, except step folders.
#[derive(Default)]
pub(super) struct TrainingFolders {
    /// By folder: number of its last sighting.
    folders: HashMap<u64, u64>,
    /// By that number: the folder.
    by_sighting: BTreeMap<u64, u64>,
    next_sighting: u64,
}

impl TrainingFolders {
    /// Records that a file exists.
    pub(super) fn record(&mut self, bucket: u64, key: &str, parsed: Option<&CheckpointKey<'_>>) {
        if parsed.is_some_and(|place| place.step.is_some()) || !is_training_state(key) {
            return;
        }
        let folder = folder_of(bucket, key);
        self.remove(folder);
        if self.folders.len() >= TRAINING_FOLDERS_MAX
            && let Some((_, oldest)) = self.by_sighting.pop_first()
        {
            self.folders.remove(&oldest);
        }
        self.folders.insert(folder, self.next_sighting);
        self.by_sighting.insert(self.next_sighting, folder);
        self.next_sighting += 1;
        assert_eq!(self.folders.len(), self.by_sighting.len(), "each folder has one sighting");
    }

    fn remove(&mut self, folder: u64) {
        if let Some(number) = self.folders.remove(&folder) {
            self.by_sighting.remove(&number);
        }
    }

    /// Records that a file was deleted. The next listing shows whether similar files remain.
    pub(super) fn forget(&mut self, bucket: u64, key: &str) {
        if is_training_state(key) {
            self.remove(folder_of(bucket, key));
        }
    }

    fn is_beside(&self, bucket: u64, key: &str) -> bool {
        !self.folders.is_empty() && self.folders.contains_key(&folder_of(bucket, key))
    }

    /// Returns the file type of a key, given its parsed form.
    pub(super) fn file_type(
        &self,
        bucket: u64,
        key: &str,
        parsed: Option<&CheckpointKey<'_>>,
    ) -> Option<FileType> {
        let is_beside = || self.is_beside(bucket, key);
        match file_type_of_parsed(key, parsed) {
            Some(FileType::Model) if is_beside() => Some(FileType::Checkpoint),
            None if is_beside() && model_file_kind(key) == Some(ModelFileKind::Weights) => {
                Some(FileType::Checkpoint)
            }
            one => one,
        }
    }
}

/// Returns the file type of a key by its name alone, if it is or could be of a checkpoint.
#[must_use]
pub fn file_type_of(key: &str) -> Option<FileType> {
    file_type_of_parsed(key, layout::parse_key(key).as_ref())
}

/// True if a name that is not part of a checkpoint contains a step nevertheless.
#[must_use]
pub fn has_step(name: &str) -> bool {
    step::step_of(name, &step::NOT_IN_FOLDERS).is_some()
}

fn file_type_of_parsed(key: &str, parsed: Option<&CheckpointKey<'_>>) -> Option<FileType> {
    let place = match parsed {
        _ if is_optimizer(name_of(key)) => return Some(FileType::Checkpoint),
        place => place?,
    };
    let is_model = place.step.is_none() && is_released(key, place.layout);
    Some(if is_model { FileType::Model } else { FileType::Checkpoint })
}

/// True if a file of a checkpoint without a step has the name of a model file.
fn is_released(key: &str, layout: Layout) -> bool {
    let name = name_of(key);
    match layout {
        Layout::Safetensors => {
            name.ends_with(".index.json") || model_file_kind(name) == Some(ModelFileKind::Weights)
        }
        // A saved model.
        Layout::TensorFlow => key.ends_with(&format!("variables/{name}")) && name.starts_with("variables."),
        _ => false,
    }
}

/// True if a file indicates that training may resume from its folder.
pub(super) fn is_training_state(key: &str) -> bool {
    let name = name_of(key);
    name == TRAINER_STATE || is_optimizer(name)
}

fn is_optimizer(name: &str) -> bool {
    STATE_ENDINGS.contains(&extension(name)) && model_file_kind(name) == Some(ModelFileKind::OptimizerState)
}

fn folder_of(bucket: u64, key: &str) -> u64 {
    xxh3_64_with_seed(split(key).0.as_bytes(), bucket)
}

#[cfg(test)]
mod tests {
    use super::{FileType, TRAINING_FOLDERS_MAX, file_type_of};
    use crate::checkpoints::{CheckpointIndex, Limits};

    #[test]
    fn released_models_and_checkpoints_are_distinguished_by_name() {
        for (key, file_type) in [
            ("llama/model.safetensors", Some(FileType::Model)),
            ("llama/model-00001-of-00005.safetensors", Some(FileType::Model)),
            ("llama/model.safetensors.index.json", Some(FileType::Model)),
            ("bert/pytorch_model.bin", Some(FileType::Model)),
            ("bert/pytorch_model-00001-of-00002.bin", Some(FileType::Model)),
            ("bert/pytorch_model.bin.index.json", Some(FileType::Model)),
            ("m/flax_model-00001-of-00004.msgpack", Some(FileType::Model)),
            ("m/tf_model-00001-of-00004.h5", Some(FileType::Model)),
            ("resnet/1/variables/variables.data-00000-of-00001", Some(FileType::Model)),
            ("resnet/1/variables/variables.index", Some(FileType::Model)),
            ("o/checkpoint-500/model.safetensors", Some(FileType::Checkpoint)),
            ("checkpoint-500/model.safetensors", Some(FileType::Checkpoint)),
            ("o/step_5/pytorch_model.bin", Some(FileType::Checkpoint)),
            ("o/model_step_500.safetensors", Some(FileType::Checkpoint)),
            ("o/ckpt-9.index", Some(FileType::Checkpoint)),
            ("o/last.ckpt", Some(FileType::Checkpoint)),
            ("r/final/__0_0.distcp", Some(FileType::Checkpoint)),
            ("r/final/.metadata", Some(FileType::Checkpoint)),
            ("o/best/optimizer.bin", Some(FileType::Checkpoint)),
            ("o/best/scheduler.pt", Some(FileType::Checkpoint)),
            // Other sources may know these types.
            ("llama/consolidated.00.pth", None),
            ("m/tf_model.h5", None),
            ("m/llama-q4.gguf", None),
            ("m/optimal_routes.csv", None),
            ("train/1.jpg", None),
        ] {
            assert_eq!(file_type_of(key), file_type, "{key}");
        }
    }

    #[test]
    fn model_files_next_to_optimizer_state_are_checkpoints() {
        let mut known = CheckpointIndex::new(Limits::default());
        let all =
            ["a/model.safetensors", "a/consolidated.00.pth", "b/model.safetensors", "a/c/model.safetensors"];
        let file_types = |known: &CheckpointIndex| all.map(|key| known.key_facts(1, key).file_type);
        let (model, checkpoint) = (Some(FileType::Model), Some(FileType::Checkpoint));
        for state in ["a/optimizer.pt", "a/trainer_state.json"] {
            assert_eq!(file_types(&known), [model, None, model, model]);
            assert!(CheckpointIndex::is_relevant(state));
            known.record_write(1, 1, state, 10);
            assert_eq!(file_types(&known), [checkpoint, checkpoint, model, model]);
            assert_eq!(known.key_facts(2, all[0]).file_type, model, "the key is in another bucket");
            known.record_delete(1, state);
        }
        known.record_if_unknown(1, 1, "a/checkpoint-5/optimizer.pt", 10);
        assert_eq!(file_types(&known), [model, None, model, model]);
    }

    #[test]
    fn the_folder_seen_longest_ago_is_forgotten_first() {
        let mut known = CheckpointIndex::new(Limits::default());
        let state = |n: usize| format!("runs/{n}/trainer_state.json");
        for n in 0..TRAINING_FOLDERS_MAX {
            known.record_write(1, 1, &state(n), 10);
        }
        // A deleted folder frees its place once, and a folder seen again is no longer the oldest.
        known.record_delete(1, &state(7));
        for n in [0, TRAINING_FOLDERS_MAX, TRAINING_FOLDERS_MAX + 1] {
            known.record_write(1, 1, &state(n), 10);
        }
        let is_trained = |n: usize| {
            let key = format!("runs/{n}/model.safetensors");
            known.key_facts(1, &key).file_type == Some(FileType::Checkpoint)
        };
        assert!(
            [0, 2, TRAINING_FOLDERS_MAX - 1, TRAINING_FOLDERS_MAX, TRAINING_FOLDERS_MAX + 1]
                .into_iter()
                .all(is_trained)
        );
        assert!(!is_trained(1) && !is_trained(7));
        assert_eq!(
            (known.training_folders.folders.len(), known.training_folders.by_sighting.len()),
            (TRAINING_FOLDERS_MAX, TRAINING_FOLDERS_MAX)
        );
    }

    #[test]
    fn a_released_model_is_still_a_group() {
        let mut known = CheckpointIndex::new(Limits::default());
        known.record_write(1, 1, "m/model.safetensors", 10);
        let facts = known.key_facts(1, "m/model.safetensors");
        assert_eq!((facts.generation, facts.file_type), (Some(0), Some(FileType::Model)));
        assert!(known.group_of(1, "m/model.safetensors").is_some_and(|one| one.is_complete()));
    }
}
