//! Reasons why a checkpoint does not count as complete.

/// Reason for incompleteness; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incompleteness {
    /// No file contains tensors, or only optimizer state where the framework writes weights.
    Weights,
    /// A file is missing according to a total in other names, an index, or `.metadata`.
    Shards,
    /// The file that the framework writes last is missing.
    LastFile,
    /// The last file is there, but other files were written after it.
    AfterLast,
    /// The files came in an unusual order, and an earlier checkpoint of its run has more files with tensors.
    FewerTensors,
    /// The checkpoint was complete before, and is being written again.
    Rewritten,
    /// A file was deleted.
    Deleted,
    /// No sign of completeness: the next checkpoint has to begin, or a quiet time to pass.
    MaybeUnfinished,
}

impl Incompleteness {
    /// Returns a clause about the newest checkpoint of a run.
    pub(super) const fn of_newest(self) -> &'static str {
        match self {
            Self::Weights => "the newest has no file with weights",
            Self::Shards => "a file of the newest is missing, according to its other files",
            Self::LastFile => "the newest lacks the file that is written last",
            Self::AfterLast => "the newest has a file written after the one that should be last",
            Self::FewerTensors => "the newest has fewer files with tensors than an earlier one",
            Self::Rewritten => "the newest is being written again",
            Self::Deleted => "a file of the newest was deleted",
            Self::MaybeUnfinished => "the newest may be unfinished",
        }
    }
}
