//! Why a workload is in a phase: the evidence, in one sentence.

use std::fmt;

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It has only begun.
    Begun,
    /// It reads a model or a checkpoint.
    ReadsModel,
    /// It reads a dataset in an order of its own each time.
    Shuffles,
    /// It reads a dataset in order, and has read no model.
    ReadsInOrder,
    /// It reads a dataset for another time.
    ComesBack {
        /// Passes that it has been through.
        passes: u32,
    },
    /// It reads as much of another dataset as of the one that it trains with, or both mingled.
    ReadsMore,
    /// It reads a smaller dataset while a pass of another is over.
    BetweenPasses,
    /// It reads a dataset to which none of its habits leads.
    ReadsAnother,
    /// It has read a model, and reads a dataset in order for the first time.
    InOrderAfterModel,
    /// A model is read again, and no data.
    LoadsAgain {
        /// How often it was.
        waves: u32,
        /// About how many have read it.
        callers: u32,
    },
    /// Some objects are read much more often than others, in no order.
    Skewed,
    /// Objects are read again and again without passes.
    NoPasses,
    /// It writes a checkpoint.
    Writes,
    /// Others that are called alike train with the same dataset.
    AreAlike {
        /// How many they are, itself among them.
        workloads: u32,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begun => f.write_str("it has only begun to read"),
            Self::ReadsModel => f.write_str("it reads a model or a checkpoint"),
            Self::Shuffles => f.write_str("it reads a dataset in an order of its own"),
            Self::ReadsInOrder => f.write_str("it reads a dataset in order, and has read no model before"),
            Self::ComesBack { passes } => write!(f, "it reads a dataset again, after {passes} passes"),
            Self::ReadsMore => f.write_str("it reads another dataset as much as the one that it trains with"),
            Self::BetweenPasses => f.write_str("it reads a smaller dataset between passes of another"),
            Self::ReadsAnother => {
                f.write_str("after training it reads a dataset that it had not read between passes")
            }
            Self::InOrderAfterModel => {
                f.write_str("it has read a model, and reads a dataset in order for the first time")
            }
            Self::LoadsAgain { waves, callers } => {
                write!(
                    f,
                    "a model is loaded for the {waves}th time, by about {callers} callers, and no data is read"
                )
            }
            Self::Skewed => f.write_str("it reads some objects much more often than others, in no order"),
            Self::NoPasses => {
                f.write_str("it reads objects again and again, in no order and not once a pass")
            }
            Self::Writes => f.write_str("it writes a checkpoint"),
            Self::AreAlike { workloads } => {
                write!(f, "{workloads} workloads that are called alike train with the same dataset")
            }
        }
    }
}
