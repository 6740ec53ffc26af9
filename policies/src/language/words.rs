//! The words of the language: closed lists, each word with its meaning, so that files, schema and
//! documentation cannot disagree.

use mlgw_common::Tier;

/// Interface common to all word lists.
pub trait Word: Copy + 'static {
    /// All values of the list.
    const ALL: &'static [Self];
    /// The words of all values, in the order of [`Self::ALL`].
    const WORDS: &'static [&'static str];

    /// Returns the word of the value.
    fn name(self) -> &'static str;

    /// Returns the meaning of the value.
    fn doc(self) -> &'static str;

    /// Returns the value with the word `word`.
    #[must_use]
    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == word)
    }
}

/// Defines a word list.
macro_rules! words {
    ($(#[$doc:meta])+ $Name:ident $words:tt) => {
        mlgw_common::words! { [$crate::language::words::Word] $(#[$doc])+ $Name $words }
    };
}
pub(super) use words;

words! {
    /// Effect of a rule's actions: carried out, or reported alone.
    Stance {
        /// The action is reported, not carried out.
        Observe = "observe",
        /// The action is carried out.
        Act = "act",
    }
}

words! {
    /// Kind of file that an object is.
    FileType {
        /// A shard: one of many files of samples.
        Shard = "shard",
        /// A single sample.
        Sample = "sample",
        /// An index of where samples are.
        Index = "index",
        /// A part of a checkpoint.
        Checkpoint = "checkpoint",
        /// A part of a model.
        Model = "model",
        /// A description of other files or of a process.
        Metadata = "metadata",
        /// Any other kind of file.
        Other = "other",
    }
}

words! {
    /// Content of a model file.
    ModelFileKind {
        /// Parameters.
        Weights = "weights",
        /// Network architecture.
        Architecture = "architecture",
        /// State of the optimizer.
        OptimizerState = "optimizer_state",
        /// All state that training needs to resume.
        Checkpoint = "checkpoint",
        /// Tokenizers, configuration, indexes.
        Metadata = "metadata",
    }
}

words! {
    /// Read order of a dataset.
    AccessPattern {
        /// The order of keys or of bytes.
        Sequential = "sequential",
        /// Each object once per epoch, in a new order each epoch.
        Shuffled = "shuffled",
        /// Shards in random order, each from beginning to end.
        ShardShuffled = "shard-shuffled",
        /// Parts of files, as columnar formats are read.
        Ranged = "ranged",
        /// Every object once.
        OnePass = "one-pass",
        /// Some objects much more often than others, without epochs.
        Skewed = "skewed",
        /// All objects about equally often, in no order and without epochs.
        Random = "random",
        /// Checkpoints are written or read.
        Checkpoint = "checkpoint",
        /// The same small set again and again between epochs.
        Validation = "validation",
        /// Like random, but many objects at once, then no reads for a while, in groups of about one size.
        Batch = "batch",
        /// Not known yet.
        Unknown = "unknown",
    }
}

words! {
    /// Activity of a workload.
    Phase {
        /// Reads models, indexes and configuration before anything else.
        Initialization = "initialization",
        /// Reads training data.
        Training = "training",
        /// Reads the validation set between epochs.
        Validation = "validation",
        /// Writes a checkpoint.
        CheckpointSave = "checkpoint_save",
        /// Reads a test set once.
        Evaluation = "evaluation",
        /// Serves a model.
        Inference = "inference",
        /// Reads the same data as many similar workloads that run with other parameters.
        Tuning = "tuning",
    }
}

words! {
    /// Environment in which the server runs.
    Environment {
        /// A developer's machine.
        Development = "development",
        /// Servers on which releases are tried.
        Staging = "staging",
        /// Servers with production workloads.
        Production = "production",
    }
}

impl Word for Tier {
    const ALL: &'static [Self] = &Self::ALL;
    const WORDS: &'static [&'static str] =
        &[Self::Memory.name(), Self::Hot.name(), Self::Cold.name(), Self::Upstream.name()];

    fn name(self) -> &'static str {
        self.name()
    }

    fn doc(self) -> &'static str {
        match self {
            Self::Memory => "DRAM.",
            Self::Hot => "Segments on the local disk.",
            Self::Cold => "Segments on slower disks.",
            Self::Upstream => "Object stores.",
        }
    }
}

words! {
    /// Importance of a copy or of a request.
    Priority {
        /// After all others.
        Low = "low",
        /// Default.
        Normal = "normal",
        /// Before most others.
        High = "high",
        /// Before all others.
        Urgent = "urgent",
    }
}

words! {
    /// Class of traffic with its own share of a disk or upstream.
    Lane {
        /// Writes of checkpoints.
        Checkpoint = "checkpoint",
        /// Reads of workloads that serve a model.
        Inference = "inference",
        /// Reads of workloads that train a model.
        Training = "training",
        /// The server's own work.
        Background = "background",
    }
}

#[expect(clippy::derivable_impls, reason = "most word lists have no default")]
impl Default for Lane {
    fn default() -> Self {
        Self::Training
    }
}

words! {
    /// Read-ahead strategy: share of the possible depth that is used.
    Strategy {
        /// A quarter of the depth.
        Conservative = "conservative",
        /// Half of the depth.
        Balanced = "balanced",
        /// The full depth.
        Aggressive = "aggressive",
        /// The full depth while recent read-ahead was useful.
        Adaptive = "adaptive",
    }
}

words! {
    /// Effort of the policy engine.
    Optimization {
        /// Only optimisations without cost.
        Basic = "basic",
        /// Optimisations that pay off for most workloads.
        Balanced = "balanced",
        /// Optimisations that pay off when one workload matters most.
        Aggressive = "aggressive",
        /// All optimisations, at the cost of all other workloads.
        Maximum = "maximum",
    }
}

words! {
    /// Rule by which the cache selects the copies to keep.
    CachePolicy {
        /// No copies are kept.
        None = "none",
        /// The least recently read copies are evicted first.
        Lru = "lru",
        /// Epochs, scans and checkpoints are distinguished.
        TrainingAware = "training-aware",
        /// Like training-aware; the setting `learning` decides whether measured outcomes move bounds.
        Learned = "learned",
    }
}

words! {
    /// State of an automatic mechanism.
    Switch {
        /// Enabled.
        On = "on",
        /// Disabled.
        Off = "off",
    }
}

words! {
    /// Number of matching rules that run.
    Evaluation {
        /// All matching rules, the highest priority first.
        All = "all",
        /// Only the first matching rule.
        First = "first",
    }
}
