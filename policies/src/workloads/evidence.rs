//! Evidence for the phase of a workload, in one sentence.

use std::fmt;

/// Evidence for a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseEvidence {
    /// The workload has only begun to read.
    Started,
    /// Reads of a model or a checkpoint.
    ReadsModel,
    /// Reads of a dataset in a different order each time.
    Shuffles,
    /// Reads of a dataset in order, without an earlier read of a model.
    ReadsInOrder,
    /// Repeated reads of a dataset.
    RepeatsDataset {
        /// Number of completed passes.
        passes: u32,
    },
    /// Reads of another dataset, as many as of the training set, or both interleaved.
    ReadsOtherAsMuch,
    /// Reads of a smaller dataset between passes over another.
    BetweenPasses,
    /// Reads of a dataset that was not read between passes before.
    ReadsNewDataset,
    /// First reads of a dataset in order, after a model was read.
    InOrderAfterModel,
    /// Repeated loads of a model without reads of data.
    ReloadsModel {
        /// Number of waves of loads.
        waves: u32,
        /// Approximate number of callers that have read the model.
        callers: u32,
    },
    /// Some objects are read much more often than others, in no order.
    Skewed,
    /// Objects are read repeatedly without passes.
    NoPasses,
    /// Writes of a checkpoint.
    WritesCheckpoint,
    /// Other workloads with similar names train with the same dataset.
    SimilarTrials {
        /// Number of these workloads, including this one.
        workloads: u32,
    },
}

impl fmt::Display for PhaseEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("it has just begun to read"),
            Self::ReadsModel => f.write_str("it reads a model or a checkpoint"),
            Self::Shuffles => f.write_str("it reads a dataset in shuffled order"),
            Self::ReadsInOrder => f.write_str("it reads a dataset in order and has not read a model before"),
            Self::RepeatsDataset { passes } => write!(f, "it reads a dataset again after {passes} passes"),
            Self::ReadsOtherAsMuch => f.write_str("it reads another dataset as much as its training set"),
            Self::BetweenPasses => f.write_str("it reads a smaller dataset between passes over another"),
            Self::ReadsNewDataset => {
                f.write_str("after training it reads a dataset that it did not read between passes")
            }
            Self::InOrderAfterModel => {
                f.write_str("it has read a model and reads a dataset in order for the first time")
            }
            Self::ReloadsModel { waves, callers } => {
                write!(
                    f,
                    "a model is loaded for the {waves}th time by about {callers} callers, and no data is read"
                )
            }
            Self::Skewed => f.write_str("it reads some objects much more often than others, in no order"),
            Self::NoPasses => f.write_str("it reads objects repeatedly, in no order and without passes"),
            Self::WritesCheckpoint => f.write_str("it writes a checkpoint"),
            Self::SimilarTrials { workloads } => {
                write!(f, "{workloads} workloads with similar names train with the same dataset")
            }
        }
    }
}
