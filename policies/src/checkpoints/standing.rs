//! What kind of file a key is, as far as checkpoints tell: a part of one, or of a model that was released.
//!
//! A name with a step in it, or in its folder, is of a checkpoint, and so is state of an optimizer. Names of
//! models without a step are of a released model, unless state of a training lies beside them: then training
//! may go on from there. Always: nothing but the kind follows from this; which files are one checkpoint,
//! which is complete and which may go, is as it would be without.

use super::layout::{self, Layout, Place, TRAINER_STATE};
use super::model_file_kind;
use super::step;
use crate::key::{ending, name_of, split};
use crate::language::{FileType, ModelFileKind};
use std::collections::{BTreeMap, HashMap};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Folders with state of a training that are remembered. Of more those of which was heard longest ago are
/// taken for those of released models.
const TRAINED_MAX: usize = 1 << 13;
/// How files with state of an optimizer end.
const STATE_ENDINGS: [&str; 8] = ["pt", "pth", "bin", "pkl", "safetensors", "msgpack", "pdopt", "distcp"];

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The generation of its checkpoint, if that is complete.
    pub generation: Option<u32>,
    /// What kind of file it is; none where others know better.
    pub file_type: Option<FileType>,
}

/// Folders in which state of a training lies, but for those of steps.
#[derive(Default)]
pub(super) struct Trained {
    /// Each with the number of what was heard of it last.
    folders: HashMap<u64, u64>,
    /// The same by that number.
    heard: BTreeMap<u64, u64>,
    next: u64,
}

impl Trained {
    /// A file is there.
    pub(super) fn note(&mut self, bucket: u64, key: &str, place: Option<&Place<'_>>) {
        if place.is_some_and(|place| place.step.is_some()) || !is_state(key) {
            return;
        }
        let folder = folder_of(bucket, key);
        self.remove(folder);
        if self.folders.len() >= TRAINED_MAX
            && let Some((_, oldest)) = self.heard.pop_first()
        {
            self.folders.remove(&oldest);
        }
        self.folders.insert(folder, self.next);
        self.heard.insert(self.next, folder);
        self.next += 1;
    }

    fn remove(&mut self, folder: u64) {
        if let Some(number) = self.folders.remove(&folder) {
            self.heard.remove(&number);
        }
    }

    /// A file is not there any more. Of others like it that are, the next listing tells.
    pub(super) fn forget(&mut self, bucket: u64, key: &str) {
        if is_state(key) {
            self.remove(folder_of(bucket, key));
        }
    }

    fn is_beside(&self, bucket: u64, key: &str) -> bool {
        !self.folders.is_empty() && self.folders.contains_key(&folder_of(bucket, key))
    }

    /// What kind of file a key is, which has this place among checkpoints.
    pub(super) fn file_type(&self, bucket: u64, key: &str, place: Option<&Place<'_>>) -> Option<FileType> {
        let is_beside = || self.is_beside(bucket, key);
        match by_place(key, place) {
            Some(FileType::Model) if is_beside() => Some(FileType::Checkpoint),
            None if is_beside() && model_file_kind(key) == Some(ModelFileKind::Weights) => {
                Some(FileType::Checkpoint)
            }
            one => one,
        }
    }
}

/// What kind of file a key is by its name alone, if it is of a checkpoint or could be.
#[must_use]
pub fn file_type_of(key: &str) -> Option<FileType> {
    by_place(key, layout::place(key).as_ref())
}

/// Whether a name without a place among checkpoints has a step in it all the same.
#[must_use]
pub fn has_step(name: &str) -> bool {
    step::step_of(name, &step::NOT_OF_FOLDERS).is_some()
}

fn by_place(key: &str, place: Option<&Place<'_>>) -> Option<FileType> {
    let place = match place {
        _ if is_optimizer(name_of(key)) => return Some(FileType::Checkpoint),
        place => place?,
    };
    let is_model = place.step.is_none() && is_released(key, place.layout);
    Some(if is_model { FileType::Model } else { FileType::Checkpoint })
}

/// Whether a file that a checkpoint without a step would be made of is called as those of models are.
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

/// Whether a file says that training may go on from where it is.
pub(super) fn is_state(key: &str) -> bool {
    let name = name_of(key);
    name == TRAINER_STATE || is_optimizer(name)
}

fn is_optimizer(name: &str) -> bool {
    STATE_ENDINGS.contains(&ending(name)) && model_file_kind(name) == Some(ModelFileKind::OptimizerState)
}

fn folder_of(bucket: u64, key: &str) -> u64 {
    xxh3_64_with_seed(split(key).0.as_bytes(), bucket)
}

#[cfg(test)]
mod tests {
    use super::{FileType, TRAINED_MAX, file_type_of};
    use crate::checkpoints::{Checkpoints, Limits};

    #[test]
    fn names_tell_released_models_from_checkpoints() {
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
            // Of these there may be others who know.
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
    fn what_lies_beside_state_of_a_training_is_no_released_model() {
        let mut known = Checkpoints::new(Limits::default());
        let all =
            ["a/model.safetensors", "a/consolidated.00.pth", "b/model.safetensors", "a/c/model.safetensors"];
        let said = |known: &Checkpoints| all.map(|key| known.standing(1, key).file_type);
        let (model, checkpoint) = (Some(FileType::Model), Some(FileType::Checkpoint));
        for state in ["a/optimizer.pt", "a/trainer_state.json"] {
            assert_eq!(said(&known), [model, None, model, model]);
            assert!(Checkpoints::may_have(state));
            known.wrote(1, 1, state, 10);
            assert_eq!(said(&known), [checkpoint, checkpoint, model, model]);
            assert_eq!(known.standing(2, all[0]).file_type, model, "of another bucket");
            known.deleted(1, state);
        }
        known.found(1, 1, "a/checkpoint-5/optimizer.pt", 10);
        assert_eq!(said(&known), [model, None, model, model]);
    }

    #[test]
    fn of_more_folders_with_state_than_are_remembered_the_one_heard_of_longest_ago_is_forgotten() {
        let mut known = Checkpoints::new(Limits::default());
        let state = |n: usize| format!("runs/{n}/trainer_state.json");
        for n in 0..TRAINED_MAX {
            known.wrote(1, 1, &state(n), 10);
        }
        // What is deleted makes no way twice, and what is heard of again is not the oldest any more.
        known.deleted(1, &state(7));
        for n in [0, TRAINED_MAX, TRAINED_MAX + 1] {
            known.wrote(1, 1, &state(n), 10);
        }
        let is_trained = |n: usize| {
            let key = format!("runs/{n}/model.safetensors");
            known.standing(1, &key).file_type == Some(FileType::Checkpoint)
        };
        assert!([0, 2, TRAINED_MAX - 1, TRAINED_MAX, TRAINED_MAX + 1].into_iter().all(is_trained));
        assert!(!is_trained(1) && !is_trained(7));
        assert_eq!((known.trained.folders.len(), known.trained.heard.len()), (TRAINED_MAX, TRAINED_MAX));
    }

    #[test]
    fn a_released_model_is_a_group_as_before() {
        let mut known = Checkpoints::new(Limits::default());
        known.wrote(1, 1, "m/model.safetensors", 10);
        let standing = known.standing(1, "m/model.safetensors");
        assert_eq!((standing.generation, standing.file_type), (Some(0), Some(FileType::Model)));
        assert!(known.group_of(1, "m/model.safetensors").is_some_and(|one| one.is_complete()));
    }
}
