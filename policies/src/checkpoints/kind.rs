//! Content of a model file, by its name.
//!
//! Plugins of frameworks determine which keys belong to checkpoints and models; the names of the parts of a
//! model are the same in all frameworks.

use crate::key_parts::{name_of, split_at_last_dot};
use crate::language::ModelFileKind;

/// Beginnings and ends of names with the content of such files; the first match counts.
const KINDS: &[(&str, &str, ModelFileKind)] = &[
    // All state in one file, or in several files that each hold a part of all state.
    ("", ".distcp", ModelFileKind::Checkpoint),
    ("epoch=", ".ckpt", ModelFileKind::Checkpoint),
    ("", ".ckpt", ModelFileKind::Checkpoint),
    ("model_optim_rng", ".pt", ModelFileKind::Checkpoint),
    ("checkpoint", ".pt", ModelFileKind::Checkpoint),
    ("checkpoint", ".pth", ModelFileKind::Checkpoint),
    ("ckpt", ".pt", ModelFileKind::Checkpoint),
    ("ckpt", ".pth", ModelFileKind::Checkpoint),
    ("ep", "-rank0.pt", ModelFileKind::Checkpoint),
    // State that only training needs.
    ("", "_optim_states.pt", ModelFileKind::OptimizerState),
    ("optimizer", "", ModelFileKind::OptimizerState),
    ("optim", "", ModelFileKind::OptimizerState),
    ("scheduler", ".pt", ModelFileKind::OptimizerState),
    ("scaler", ".pt", ModelFileKind::OptimizerState),
    ("rng_state", ".pth", ModelFileKind::OptimizerState),
    ("random_states_", ".pkl", ModelFileKind::OptimizerState),
    ("distrib_optim", ".pt", ModelFileKind::OptimizerState),
    ("", ".pdopt", ModelFileKind::OptimizerState),
    // Shape of the network.
    ("config.json", "", ModelFileKind::Architecture),
    ("model_index.json", "", ModelFileKind::Architecture),
    ("adapter_config.json", "", ModelFileKind::Architecture),
    ("params.json", "", ModelFileKind::Architecture),
    ("model.json", "", ModelFileKind::Architecture),
    ("hparams.yaml", "", ModelFileKind::Architecture),
    ("", ".pbtxt", ModelFileKind::Architecture),
    ("saved_model.pb", "", ModelFileKind::Architecture),
    ("modeling_", ".py", ModelFileKind::Architecture),
    ("configuration_", ".py", ModelFileKind::Architecture),
    // Files that are read beside them.
    ("", ".index.json", ModelFileKind::Metadata),
    ("tokenizer", "", ModelFileKind::Metadata),
    ("special_tokens_map.json", "", ModelFileKind::Metadata),
    ("added_tokens.json", "", ModelFileKind::Metadata),
    ("vocab.", "", ModelFileKind::Metadata),
    ("merges.txt", "", ModelFileKind::Metadata),
    ("generation_config.json", "", ModelFileKind::Metadata),
    ("preprocessor_config.json", "", ModelFileKind::Metadata),
    ("trainer_state.json", "", ModelFileKind::Metadata),
    ("training_args.bin", "", ModelFileKind::Metadata),
    (".metadata", "", ModelFileKind::Metadata),
    ("_CHECKPOINT_METADATA", "", ModelFileKind::Metadata),
    ("meta.pt", "", ModelFileKind::Metadata),
    ("latest", "", ModelFileKind::Metadata),
    ("checkpoint", "", ModelFileKind::Metadata),
    ("", ".meta", ModelFileKind::Metadata),
    // Parameters.
    ("", "_model_states.pt", ModelFileKind::Weights),
    ("", ".safetensors", ModelFileKind::Weights),
    ("", ".gguf", ModelFileKind::Weights),
    ("", ".onnx", ModelFileKind::Weights),
    ("", ".pdparams", ModelFileKind::Weights),
    ("pytorch_model", ".bin", ModelFileKind::Weights),
    ("adapter_model", ".bin", ModelFileKind::Weights),
    ("model", ".bin", ModelFileKind::Weights),
    ("model", ".h5", ModelFileKind::Weights),
    ("tf_model", ".h5", ModelFileKind::Weights),
    ("flax_model", ".msgpack", ModelFileKind::Weights),
    ("", ".weights.h5", ModelFileKind::Weights),
    ("", ".keras", ModelFileKind::Weights),
    ("", ".pt", ModelFileKind::Weights),
    ("", ".pth", ModelFileKind::Weights),
    ("", ".pt2", ModelFileKind::Weights),
];

/// Returns the content of a model file by its key; `None` if the name is not that of a model file.
#[must_use]
pub fn model_file_kind(key: &str) -> Option<ModelFileKind> {
    let name = name_of(key);
    if is_tensorflow_checkpoint(name) {
        return Some(ModelFileKind::Checkpoint);
    }
    let (first, last) = (name.as_bytes().first(), name.as_bytes().last());
    // A single byte is compared first: most names are not of models, and every access calls this.
    let fits = |(begin, end, _): &&(&str, &str, ModelFileKind)| match (*begin, *end) {
        // A name without an end is the whole name, unless it is a customary beginning.
        (begin, "") => {
            first == begin.as_bytes().first()
                && (name == begin || (is_customary_beginning(begin) && name.starts_with(begin)))
        }
        (begin, end) => {
            last == end.as_bytes().last()
                && name.len() >= begin.len() + end.len()
                && name.starts_with(begin)
                && name.ends_with(end)
        }
    };
    KINDS.iter().find(fits).map(|(_, _, kind)| *kind)
}

/// True for names such as `ckpt-500.index` and `ckpt-500.data-00000-of-00002`.
fn is_tensorflow_checkpoint(name: &str) -> bool {
    let is_tensorflow_extension = |ending: &str| ending == "index" || ending.starts_with("data-");
    let stem =
        split_at_last_dot(name).filter(|(_, ending)| is_tensorflow_extension(ending)).map(|(stem, _)| stem);
    stem.is_some_and(|stem| stem == "variables" || stem.contains("ckpt"))
}

fn is_customary_beginning(begin: &str) -> bool {
    matches!(begin, "optimizer" | "optim" | "tokenizer" | "vocab.")
}

#[cfg(test)]
mod tests {
    use super::{ModelFileKind, model_file_kind};

    #[test]
    fn model_files_are_recognized_by_name() {
        for (key, kind) in [
            ("m/model-00001-of-00005.safetensors", Some(ModelFileKind::Weights)),
            ("m/model.safetensors.index.json", Some(ModelFileKind::Metadata)),
            ("m/config.json", Some(ModelFileKind::Architecture)),
            ("m/tokenizer_config.json", Some(ModelFileKind::Metadata)),
            ("o/checkpoint-500/optimizer.pt", Some(ModelFileKind::OptimizerState)),
            ("o/checkpoint-500/rng_state_3.pth", Some(ModelFileKind::OptimizerState)),
            ("o/checkpoint-500/pytorch_model.bin", Some(ModelFileKind::Weights)),
            ("d/global_step500/mp_rank_00_model_states.pt", Some(ModelFileKind::Weights)),
            (
                "d/global_step500/zero_pp_rank_0_mp_rank_00_optim_states.pt",
                Some(ModelFileKind::OptimizerState),
            ),
            ("l/epoch=3-step=500.ckpt", Some(ModelFileKind::Checkpoint)),
            ("m/tf_model.h5", Some(ModelFileKind::Weights)),
            ("m/flax_model-00001-of-00002.msgpack", Some(ModelFileKind::Weights)),
            ("r/__0_0.distcp", Some(ModelFileKind::Checkpoint)),
            ("r/.metadata", Some(ModelFileKind::Metadata)),
            ("t/ckpt-500.data-00000-of-00002", Some(ModelFileKind::Checkpoint)),
            ("t/ckpt-500.index", Some(ModelFileKind::Checkpoint)),
            ("t/checkpoint", Some(ModelFileKind::Metadata)),
            ("s/saved_model.pb", Some(ModelFileKind::Architecture)),
            ("g/iter_0000500/mp_rank_00/model_optim_rng.pt", Some(ModelFileKind::Checkpoint)),
            ("train/img_0001.jpg", None),
            ("train/train-000001.tar", None),
            ("train/labels.json", None),
            ("", None),
        ] {
            assert_eq!(model_file_kind(key), kind, "{key}");
        }
    }
}
