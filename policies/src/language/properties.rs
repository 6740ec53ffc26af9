//! The table of what conditions may ask for.
//!
//! A row gives a property's type of condition, its word, the kind of its values and what it means. Reading,
//! schema, documentation and evaluation all come from it.

use super::value::Kind;
use super::words::{AccessPattern, Environment, FileType, ModelFileKind, Phase, Tier, Word, words};

words! {
    /// What a condition looks at.
    ConditionType {
        /// The object that is read or written.
        FileContext = "file_context",
        /// The object's name; the only operator is `matches`.
        FilePattern = "file_pattern",
        /// How the object and its dataset have been read.
        AccessPattern = "access_pattern",
        /// Who reads.
        WorkloadContext = "workload_context",
        /// The server and its machine.
        SystemContext = "system_context",
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct PropertyRow {
    /// Which property.
    pub property: Property,
    /// The type of condition that it belongs to.
    pub of: ConditionType,
    /// Its word; one that ends with a dot is followed by a name, as `tags.NAME`.
    pub word: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// What it means.
    pub doc: &'static str,
}

impl PropertyRow {
    /// Whether a name follows its word.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.word.ends_with('.')
    }

    /// Its word as documentation writes it.
    #[must_use]
    pub fn shown(&self) -> String {
        if self.is_named() { format!("{}NAME", self.word) } else { self.word.to_owned() }
    }
}

macro_rules! properties {
    ($($(#[doc = $doc:literal])+ $Name:ident = $Of:ident $word:literal $kind:expr;)+) => {
        /// A property that conditions ask for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Property {
            $($(#[doc = $doc])+ $Name,)+
        }

        /// The table.
        pub const PROPERTIES: &[PropertyRow] = &[$(PropertyRow {
            property: Property::$Name,
            of: ConditionType::$Of,
            word: $word,
            kind: $kind,
            doc: concat!($($doc),+).trim_ascii(),
        },)+];
    };
}

properties! {
    /// Bytes of the whole object.
    Size = FileContext "size" Kind::Bytes;
    /// What kind of file it is.
    Type = FileContext "type" Kind::Word(FileType::WORDS);
    /// What follows the last dot of its name, as `tar`.
    Extension = FileContext "extension" Kind::Text;
    /// The folders of its key with the last slash, as `imagenet/train/`; empty without folders.
    Path = FileContext "path" Kind::Text;
    /// What follows the last slash of its key.
    Name = FileContext "name" Kind::Text;
    /// Its whole key.
    Key = FileContext "key" Kind::Text;
    /// Its bucket.
    Bucket = FileContext "bucket" Kind::Text;
    /// The names of its tags.
    Tags = FileContext "tags" Kind::List;
    /// The tag of that name.
    Tag = FileContext "tags." Kind::Text;
    /// The names of its user metadata.
    Metadata = FileContext "metadata" Kind::List;
    /// The user metadata of that name.
    MetadataEntry = FileContext "metadata." Kind::Text;
    /// What a file of a model holds.
    ModelFileKind = FileContext "model_file_kind" Kind::Word(ModelFileKind::WORDS);
    /// Which checkpoint it belongs to, counted back: 0 is the newest complete one.
    CheckpointGeneration = FileContext "checkpoint_generation" Kind::Number;
    /// Time since it was written.
    Age = FileContext "age" Kind::Duration;
    /// Where its bytes are.
    Tier = FileContext "tier" Kind::Word(Tier::WORDS);
    /// In which order its dataset is read by this workload.
    Pattern = AccessPattern "pattern" Kind::Word(AccessPattern::WORDS);
    /// Reads an hour, lately.
    Frequency = AccessPattern "frequency" Kind::Number;
    /// Time since it was last read, before now.
    Recency = AccessPattern "recency" Kind::Duration;
    /// Whole passes that this workload has made over the dataset; the first is known to be whole when the
    /// second begins. None of what is read again and again without passes.
    EpochCount = AccessPattern "epoch_count" Kind::Number;
    /// How often it was read since it was written here, this time included; known of those that were read
    /// last, a million at most.
    Reads = AccessPattern "reads" Kind::Number;
    /// The dataset that it belongs to.
    Dataset = AccessPattern "dataset" Kind::Text;
    /// How many workloads read that dataset now.
    Workloads = AccessPattern "workloads" Kind::Number;
    /// The frameworks that key, content and user agent speak for.
    Framework = WorkloadContext "framework" Kind::List;
    /// What the workload is doing.
    Phase = WorkloadContext "phase" Kind::Word(Phase::WORDS);
    /// The workload's id.
    WorkloadId = WorkloadContext "id" Kind::Text;
    /// The workload's name, as it gives it itself.
    WorkloadName = WorkloadContext "name" Kind::Text;
    /// Objects, or samples of a shard, that it reads at once.
    BatchSize = WorkloadContext "batch_size" Kind::Number;
    /// The user agent of its requests.
    UserAgent = WorkloadContext "user_agent" Kind::Text;
    /// Processes that read for it.
    Workers = WorkloadContext "workers" Kind::Number;
    /// How full the hot tier is.
    HotFill = SystemContext "tier_fill.hot" Kind::Percent;
    /// How full the cold tier is.
    ColdFill = SystemContext "tier_fill.cold" Kind::Percent;
    /// How full the room for clean copies is.
    CopiesFill = SystemContext "tier_fill.copies" Kind::Percent;
    /// How full the memory tier is.
    MemoryFill = SystemContext "memory_fill" Kind::Percent;
    /// Memory of the machine.
    Memory = SystemContext "memory" Kind::Bytes;
    /// What is read from upstreams now.
    Bandwidth = SystemContext "bandwidth" Kind::Rate;
    /// Time to the first byte of an upstream, lately.
    UpstreamLatency = SystemContext "upstream_latency" Kind::Duration;
    /// Accelerators that the workload, or the hardware profile, says it has.
    GpuCount = SystemContext "gpu_count" Kind::Number;
    /// Where the server runs.
    Environment = SystemContext "environment" Kind::Word(Environment::WORDS);
}

/// What `file_pattern` may ask for: the family of names, each by one pattern.
const PATTERN_PROPERTIES: &[Property] = &[Property::Name, Property::Key, Property::Path, Property::Extension];

impl Property {
    /// Its row.
    #[must_use]
    pub fn row(self) -> &'static PropertyRow {
        &PROPERTIES[self as usize]
    }
}

/// The rows that conditions of a type may ask for.
pub fn properties_of(of: ConditionType) -> impl Iterator<Item = &'static PropertyRow> {
    PROPERTIES.iter().filter(move |row| match of {
        ConditionType::FilePattern => PATTERN_PROPERTIES.contains(&row.property),
        _ => row.of == of,
    })
}

/// The property of that word, and the name that follows it.
pub(super) fn property_of(of: ConditionType, word: &str) -> Option<(&'static PropertyRow, &str)> {
    properties_of(of).find_map(|row| match word.strip_prefix(row.word)? {
        "" if !row.is_named() => Some((row, "")),
        name if row.is_named() && !name.is_empty() => Some((row, name)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::{ConditionType, PROPERTIES, Property, properties_of, property_of};
    use crate::language::words::Word;

    #[test]
    fn rows_stand_in_the_order_of_the_properties() {
        for row in PROPERTIES {
            assert_eq!(row.property.row().word, row.word);
        }
    }

    #[test]
    fn words_name_properties_of_their_type() {
        let found = |of, word| property_of(of, word).map(|(row, name)| (row.property, name));
        assert_eq!(found(ConditionType::FileContext, "tags"), Some((Property::Tags, "")));
        assert_eq!(found(ConditionType::FileContext, "tags.team"), Some((Property::Tag, "team")));
        assert_eq!(found(ConditionType::FileContext, "tags."), None);
        assert_eq!(found(ConditionType::FileContext, "phase"), None);
        assert_eq!(found(ConditionType::FilePattern, "name"), Some((Property::Name, "")));
        assert_eq!(found(ConditionType::SystemContext, "tier_fill.hot"), Some((Property::HotFill, "")));
    }

    #[test]
    fn every_type_has_properties_with_words_of_their_own() {
        for of in ConditionType::ALL {
            let words: Vec<_> = properties_of(*of).map(|row| row.word).collect();
            let mut unique = words.clone();
            unique.sort_unstable();
            unique.dedup();
            assert!(!words.is_empty() && unique.len() == words.len(), "{of}");
        }
    }
}
