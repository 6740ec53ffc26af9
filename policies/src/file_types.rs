//! File type of an object, the value of the fact `type` in rules.
//!
//! Sources in order: the checkpoint layouts ([`crate::checkpoints`]), the hints of framework plugins,
//! well-known names and extensions. Invariant: the type is one of the words of the policy language; an
//! unknown file is `other`.

use crate::checkpoints::{file_type_of, has_step, model_file_kind};
use crate::key_parts::{name_of, split_at_last_dot};
use crate::language::{FileType, ModelFileKind, Program};

/// Extensions of files that hold one sample each.
const SAMPLE_EXTENSIONS: [&str; 32] = [
    "jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "jp2", "ppm", "pgm", "exr", "dcm", "nii",
    "wav", "flac", "mp3", "ogg", "opus", "m4a", "aac", "mp4", "avi", "mkv", "mov", "webm", "npy", "ply",
    "pcd", "las", "laz", "txt",
];
/// Extensions of files that hold one sample each if their names are numbered, and a description otherwise.
const NUMBERED_SAMPLE_EXTENSIONS: [&str; 3] = ["json", "xml", "txt"];
/// Extensions of files that describe other files.
const DESCRIPTION_EXTENSIONS: [&str; 10] =
    ["json", "xml", "yaml", "yml", "toml", "ini", "cfg", "conf", "md", "rst"];
/// Names of such files, up to the first dot.
const DESCRIPTION_NAMES: [&str; 12] = [
    "_metadata",
    "_common_metadata",
    "_success",
    "metadata",
    "readme",
    "license",
    "labels",
    "classes",
    "categories",
    "vocab",
    "merges",
    "requirements",
];
/// Extension and names (up to the first dot) of files that list the positions of samples.
const INDEX_EXTENSION: &str = "idx";
const INDEX_NAMES: [&str; 3] = ["index", "manifest", "filelist"];
/// Extensions of compressed files; the extension before it counts.
const COMPRESSED_EXTENSIONS: [&str; 5] = ["gz", "zst", "bz2", "xz", "lz4"];

/// Returns the file type of a key, given its type by checkpoint layouts (`known`) and by plugins (`hinted`).
#[must_use]
pub fn file_type(known: Option<FileType>, hinted: Option<FileType>, key: &str) -> FileType {
    match (known, hinted) {
        // A file that a plugin calls a checkpoint is not a released model.
        (Some(FileType::Model), Some(FileType::Checkpoint)) => FileType::Checkpoint,
        (Some(known), _) => known,
        (None, Some(hinted)) => hinted,
        (None, None) => file_type_by_name(key),
    }
}

/// Returns the file type of a key by its name alone.
#[must_use]
pub fn file_type_by_key(program: &Program, key: &str) -> FileType {
    file_type(file_type_of(key), program.file_type(key), key)
}

fn file_type_by_name(key: &str) -> FileType {
    let (name, extension) = split_name(name_of(key));
    let is_one = |words: &[&str], word: &str| words.iter().any(|one| word.eq_ignore_ascii_case(one));
    let stem = name.split('.').next().unwrap_or_default();
    let is_numbered = name.as_bytes().last().is_some_and(u8::is_ascii_digit);
    let is_numbered_sample = is_numbered && is_one(&NUMBERED_SAMPLE_EXTENSIONS, extension);
    if extension.eq_ignore_ascii_case(INDEX_EXTENSION) || is_one(&INDEX_NAMES, stem) {
        return FileType::Index;
    }
    if is_numbered_sample {
        return FileType::Sample;
    }
    if is_one(&DESCRIPTION_EXTENSIONS, extension) || is_one(&DESCRIPTION_NAMES, stem) {
        return FileType::Metadata;
    }
    if is_one(&SAMPLE_EXTENSIONS, extension) {
        return FileType::Sample;
    }
    match model_file_kind(key) {
        Some(ModelFileKind::Weights) if has_step(name) => FileType::Checkpoint,
        Some(ModelFileKind::Weights) => FileType::Model,
        Some(ModelFileKind::Checkpoint) => FileType::Checkpoint,
        Some(ModelFileKind::Architecture | ModelFileKind::Metadata) => FileType::Metadata,
        Some(ModelFileKind::OptimizerState) | None => FileType::Other,
    }
}

/// Splits a name into stem and extension, without the extension of a compression format.
fn split_name(name: &str) -> (&str, &str) {
    match split_at_last_dot(name) {
        Some((stem, ending)) if COMPRESSED_EXTENSIONS.contains(&ending) && stem.contains('.') => {
            split_name(stem)
        }
        Some((stem, ending)) if !stem.is_empty() => (stem, ending),
        _ => (name, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::{FileType, file_type_by_key};
    use crate::language::{Program, Word as _};

    const KEYS: [(&str, FileType); 43] = [
        ("train/n01440764/n01440764_10026.JPEG", FileType::Sample),
        ("train/1.png", FileType::Sample),
        ("wiki/alice.txt", FileType::Sample),
        ("scans/7.nii.gz", FileType::Sample),
        ("feat/000001.npy", FileType::Sample),
        ("labels/000001.txt", FileType::Sample),
        ("boxes/000001.json", FileType::Sample),
        ("laion/00042.tar", FileType::Shard),
        ("c4/train.tfrecord-00001-of-01024", FileType::Shard),
        ("wiki/train-0.parquet", FileType::Shard),
        ("c4/index.json", FileType::Index),
        ("laion/00042.idx", FileType::Index),
        ("speech/manifest.jsonl.gz", FileType::Index),
        ("lake/_metadata", FileType::Metadata),
        ("lake/_SUCCESS", FileType::Metadata),
        ("lake/annotations.json", FileType::Metadata),
        ("lake/README", FileType::Metadata),
        ("job/config.yaml", FileType::Metadata),
        ("m/vocab.txt", FileType::Metadata),
        ("m/modeling_llama.py", FileType::Metadata),
        ("m/tokenizer.model", FileType::Metadata),
        ("m/config.json", FileType::Model),
        ("m/tokenizer.json", FileType::Model),
        ("m/model.safetensors", FileType::Model),
        ("m/pytorch_model.bin", FileType::Model),
        ("m/consolidated.00.pth", FileType::Model),
        ("m/tf_model.h5", FileType::Model),
        ("m/flax_model.msgpack", FileType::Model),
        ("m/llama-7b.Q4_K_M.gguf", FileType::Model),
        ("m/model.onnx", FileType::Model),
        ("m/1/saved_model.pb", FileType::Model),
        ("m/best.pt", FileType::Model),
        ("m/llama-epoch-3.gguf", FileType::Checkpoint),
        ("checkpoint-500/model.safetensors", FileType::Checkpoint),
        ("o/checkpoint-500/config.json", FileType::Checkpoint),
        ("o/step-9/llama.gguf", FileType::Checkpoint),
        ("o/epoch=3-step=500.ckpt", FileType::Checkpoint),
        ("o/optimizer.pt", FileType::Checkpoint),
        ("crawl/part-0000.jsonl", FileType::Other),
        ("tables/day=3/part.csv", FileType::Other),
        ("bin/tool", FileType::Other),
        (".bashrc", FileType::Other),
        ("", FileType::Other),
    ];

    #[test]
    fn names_give_the_file_type_and_each_type_occurs() {
        let program = Program::compile_built_in().unwrap();
        for (key, file_type) in KEYS {
            assert_eq!(file_type_by_key(&program, key), file_type, "{key}");
        }
        assert!(FileType::ALL.iter().all(|one| KEYS.iter().any(|(_, file_type)| file_type == one)));
    }

    #[test]
    fn a_checkpoint_by_a_plugin_is_not_a_released_model() {
        let (model, checkpoint) = (Some(FileType::Model), Some(FileType::Checkpoint));
        assert_eq!(super::file_type(model, checkpoint, "a"), FileType::Checkpoint);
        assert_eq!(super::file_type(model, Some(FileType::Shard), "a"), FileType::Model);
        assert_eq!(super::file_type(checkpoint, model, "a"), FileType::Checkpoint);
    }
}
