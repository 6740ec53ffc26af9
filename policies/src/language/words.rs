//! The words of the language: closed, each with its meaning, so that files, schema and documentation cannot
//! disagree.

/// What all lists of words have in common.
pub trait Word: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];
    /// Their words, in the same order.
    const WORDS: &'static [&'static str];

    /// Its word.
    fn name(self) -> &'static str;

    /// What it means.
    fn doc(self) -> &'static str;

    /// The one of that word.
    #[must_use]
    fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == word)
    }
}

macro_rules! words {
    ($(#[doc = $doc:literal])+ $Name:ident { $($(#[doc = $word_doc:literal])+ $Word:ident = $word:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $Name {
            $($(#[doc = $word_doc])+ $Word,)+
        }

        impl $crate::language::words::Word for $Name {
            const ALL: &'static [Self] = &[$(Self::$Word),+];
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$Word => $word,)+
                }
            }

            fn doc(self) -> &'static str {
                match self {
                    $(Self::$Word => concat!($($word_doc),+).trim_ascii(),)+
                }
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::language::words::Word::name(*self))
            }
        }
    };
}
pub(super) use words;

words! {
    /// Whether what a rule says is done.
    Stance {
        /// It is said, not done.
        Observe = "observe",
        /// It is done.
        Act = "act",
    }
}

words! {
    /// What kind of file an object is.
    FileType {
        /// One of many files of samples.
        Shard = "shard",
        /// One sample.
        Sample = "sample",
        /// What says where samples are.
        Index = "index",
        /// A part of a checkpoint.
        Checkpoint = "checkpoint",
        /// A part of a model.
        Model = "model",
        /// What describes other files, or how something is done.
        Metadata = "metadata",
        /// None of these.
        Other = "other",
    }
}

words! {
    /// What a file of a model holds.
    ModelFileKind {
        /// Parameters.
        Weights = "weights",
        /// The network's shape.
        Architecture = "architecture",
        /// State of the optimizer.
        OptimizerState = "optimizer_state",
        /// All that training needs to go on.
        Checkpoint = "checkpoint",
        /// Tokenizers, configuration, indexes.
        Metadata = "metadata",
    }
}

words! {
    /// In which order a dataset is read.
    AccessPattern {
        /// In the order of keys, or of bytes.
        Sequential = "sequential",
        /// Each object once an epoch, in an order of its own each time.
        Shuffled = "shuffled",
        /// Shards in a random order, each from its begin to its end.
        ShardShuffled = "shard-shuffled",
        /// Parts of files, as columnar formats are read.
        Ranged = "ranged",
        /// Everything once and not again.
        OnePass = "one-pass",
        /// Some objects much more often than others, without epochs.
        Skewed = "skewed",
        /// All objects about as often as each other, in no order and without epochs.
        Random = "random",
        /// Checkpoints are written or read.
        Checkpoint = "checkpoint",
        /// The same small set again and again between epochs.
        Validation = "validation",
        /// As random, but many objects at once and then none for a while, in groups of about one size.
        Batch = "batch",
        /// Not known yet.
        Unknown = "unknown",
    }
}

words! {
    /// What a workload is doing.
    Phase {
        /// It reads models, indexes and configuration before anything else.
        Initialization = "initialization",
        /// It reads training data.
        Training = "training",
        /// It reads its validation set between epochs.
        Validation = "validation",
        /// It writes a checkpoint.
        CheckpointSave = "checkpoint_save",
        /// It reads a test set once.
        Evaluation = "evaluation",
        /// It serves a model.
        Inference = "inference",
        /// Many like it read the same data with other parameters.
        Tuning = "tuning",
    }
}

words! {
    /// Where the server runs.
    Environment {
        /// On somebody's desk.
        Development = "development",
        /// Where releases are tried.
        Staging = "staging",
        /// Where it matters.
        Production = "production",
    }
}

words! {
    /// Where the bytes of an object are.
    Tier {
        /// DRAM.
        Memory = "memory",
        /// Segments on the local disk.
        Hot = "hot",
        /// Segments on slower disks.
        Cold = "cold",
        /// Object stores.
        Upstream = "upstream",
    }
}

words! {
    /// How much something matters.
    Priority {
        /// After all others.
        Low = "low",
        /// As most.
        Normal = "normal",
        /// Before most.
        High = "high",
        /// Before all others.
        Urgent = "urgent",
    }
}

words! {
    /// Who shares a disk or an upstream with whom.
    Lane {
        /// Writes of checkpoints.
        Checkpoint = "checkpoint",
        /// Reads of what serves a model.
        Inference = "inference",
        /// Reads of what trains one.
        Training = "training",
        /// The server's own work.
        Background = "background",
    }
}

words! {
    /// How far is read ahead.
    Strategy {
        /// A quarter as far.
        Conservative = "conservative",
        /// Half as far.
        Balanced = "balanced",
        /// All the way.
        Aggressive = "aggressive",
        /// All the way, where that was not in vain lately.
        Adaptive = "adaptive",
    }
}

words! {
    /// How hard the engine tries.
    Optimization {
        /// Only what costs nothing.
        Basic = "basic",
        /// What pays for most workloads.
        Balanced = "balanced",
        /// What pays when one workload matters most.
        Aggressive = "aggressive",
        /// Everything, at the cost of all others.
        Maximum = "maximum",
    }
}

words! {
    /// What decides which copies are kept.
    CachePolicy {
        /// No copies are kept.
        None = "none",
        /// The least recently read go first.
        Lru = "lru",
        /// Epochs, scans and checkpoints are told apart.
        TrainingAware = "training-aware",
        /// As training-aware. Whether measured outcomes move bounds is what the setting `learning` says.
        Learned = "learned",
    }
}

words! {
    /// Whether something goes on by itself.
    Switch {
        /// It does.
        On = "on",
        /// It does not.
        Off = "off",
    }
}

words! {
    /// Which of the matching rules run.
    Evaluation {
        /// All, the highest priority first.
        All = "all",
        /// The first, and no other.
        First = "first",
    }
}
