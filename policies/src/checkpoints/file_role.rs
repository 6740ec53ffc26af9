//! Names of checkpoint files: the extensions of files with tensors, and the role of a file in its group.

use crate::key_parts::extension;

/// State file of the Trainer of transformers, written last.
pub(super) const TRAINER_STATE: &str = "trainer_state.json";
/// Extensions of files with tensors.
pub(super) const TENSOR_ENDINGS: [&str; 12] = [
    "pt",
    "pth",
    "ckpt",
    "bin",
    "safetensors",
    "h5",
    "keras",
    "msgpack",
    "pdparams",
    "pdopt",
    "distcp",
    "onnx",
];

/// Role of a file in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRole {
    /// Written before the last file.
    Part,
    /// A shard, one of `of` numbered files.
    Shard { of: u32 },
    /// Written when the others are there.
    Last,
    /// The only file of the group.
    Whole,
    /// Belongs to the group, and may be written at any time.
    Extra,
}

/// Returns the role of a file in a step folder.
pub(super) fn role_in_folder(name: &str) -> FileRole {
    match name {
        // DCP; the Trainer; DeepSpeed inside a folder of another; Lightning and Megatron beside DCP.
        ".metadata" | TRAINER_STATE | "latest" | "meta.pt" | "metadata.json" => FileRole::Last,
        // Files that ranks and scripts write without synchronization.
        "README.md" | "zero_to_fp32.py" | "training_args.bin" => FileRole::Extra,
        _ if name.starts_with("rng_state") => FileRole::Extra,
        _ => shard(name).map_or(FileRole::Part, |(_, of)| FileRole::Shard { of }),
    }
}

/// True if `torch.distributed.checkpoint` writes such a file.
pub(super) fn is_dcp_file(name: &str) -> bool {
    name == ".metadata" || name.ends_with(".distcp")
}

/// True if a file in a folder with a step in its name would be a checkpoint's.
pub(super) fn is_checkpoint_file(name: &str) -> bool {
    TENSOR_ENDINGS.contains(&extension(name))
        || role_in_folder(name) == FileRole::Last
        || super::model_file_kind(name).is_some()
}

/// Returns the length of `NAME-` and the total for names such as `NAME-00001-of-00005.END`.
pub(super) fn shard(name: &str) -> Option<(usize, u32)> {
    let of_at = name.rfind("-of-")?;
    let (before, after) = (&name[..of_at], &name[of_at + 4..]);
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    let stem = before.trim_end_matches(|c: char| c.is_ascii_digit());
    let of: u32 = after[..digits].parse().ok()?;
    (of > 0 && stem.ends_with('-') && stem.len() < before.len()).then_some((stem.len(), of))
}
