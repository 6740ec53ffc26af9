//! The lanes in which requests wait for a disk, and their shares.

/// Whose a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// What clients write: a training run waits for its checkpoint.
    Checkpoint,
    /// Reads of those who serve a model: people wait for them.
    Inference,
    /// All other reads of clients.
    #[default]
    Training,
    /// What the server does by itself: compaction, spill and promote, scrub, clean copies, write-back.
    Background,
}

impl Lane {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Checkpoint, Self::Inference, Self::Training, Self::Background];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Inference => "inference",
            Self::Training => "training",
            Self::Background => "background",
        }
    }

    /// Its share when all have something to do.
    pub(super) const fn weight(self) -> u64 {
        match self {
            Self::Checkpoint | Self::Inference | Self::Training => 4,
            Self::Background => 1,
        }
    }
}
