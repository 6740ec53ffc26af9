//! Why a checkpoint does not count as whole.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No file of it holds tensors; or state of an optimizer only, where its framework writes weights.
    Weights,
    /// Of files that say how many they are, or of which an index speaks, or `.metadata`, one is missing.
    Shards,
    /// What its framework writes last has not come.
    Last,
    /// That has come, and others after it.
    Late,
    /// It came in another order than it is written in, and an earlier one of its run has more files with
    /// tensors.
    Fewer,
    /// It was whole before, and is written again.
    Again,
    /// A file of it was deleted.
    Deleted,
    /// Nothing of it says that it is all: the next one has to begin, or silence to last.
    Open,
}

impl Lack {
    /// In a sentence's half, of the newest checkpoint of a run.
    pub(super) const fn of_newest(self) -> &'static str {
        match self {
            Self::Weights => "the newest has no file with weights",
            Self::Shards => "a file of the newest is missing, by the names of the others",
            Self::Last => "of the newest the file that is written last has not come",
            Self::Late => "of the newest a file came after the one that is written last",
            Self::Fewer => "the newest has fewer files with tensors than one before it",
            Self::Again => "the newest is written again",
            Self::Deleted => "a file of the newest was deleted",
            Self::Open => "the newest may be written still",
        }
    }
}
