//! Table of the properties that conditions can compare.
//!
//! A row gives the condition type of a property, its word, the kind of its values and its meaning. The
//! parser, JSON Schema, documentation and evaluation are all derived from it.

use super::value::ValueKind;
use super::words::{AccessPattern, Environment, FileType, ModelFileKind, Phase, Word, words};
use mlgw_common::Tier;

words! {
    /// Type of a condition: the facts that it inspects.
    ConditionType {
        /// The object that is read or written.
        FileContext = "file_context",
        /// The object's name; the only operator is `matches`.
        FilePattern = "file_pattern",
        /// Earlier reads of the object and of its dataset.
        AccessPattern = "access_pattern",
        /// The workload that reads.
        WorkloadContext = "workload_context",
        /// The server and its machine.
        SystemContext = "system_context",
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct PropertyRow {
    /// The property.
    pub property: Property,
    /// The condition type.
    pub condition_type: ConditionType,
    /// The property's word. A word that ends with a dot is followed by a name, as in `tags.NAME`.
    pub word: &'static str,
    /// Kind of its values.
    pub kind: ValueKind,
    /// Description.
    pub doc: &'static str,
}

impl PropertyRow {
    /// True if a name follows the word.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.word.ends_with('.')
    }

    /// Returns the word as in the documentation.
    #[must_use]
    pub fn display_word(&self) -> String {
        if self.is_named() { format!("{}NAME", self.word) } else { self.word.to_owned() }
    }
}

macro_rules! properties {
    ($($(#[doc = $doc:literal])+ $Name:ident = $Of:ident $word:literal $kind:expr;)+) => {
        /// A property that conditions can compare.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Property {
            $($(#[doc = $doc])+ $Name,)+
        }

        /// The table.
        pub const PROPERTIES: &[PropertyRow] = &[$(PropertyRow {
            property: Property::$Name,
            condition_type: ConditionType::$Of,
            word: $word,
            kind: $kind,
            doc: concat!($($doc),+).trim_ascii(),
        },)+];
    };
}

properties! {
    /// Bytes of the whole object.
    Size = FileContext "size" ValueKind::Bytes;
    /// Kind of the file.
    Type = FileContext "type" ValueKind::Word(FileType::WORDS);
    /// Part of the name after the last dot, such as `tar`.
    Extension = FileContext "extension" ValueKind::Text;
    /// Folders of the key with the last slash, such as `imagenet/train/`; empty without folders.
    Path = FileContext "path" ValueKind::Text;
    /// Part of the key after the last slash.
    Name = FileContext "name" ValueKind::Text;
    /// The whole key.
    Key = FileContext "key" ValueKind::Text;
    /// The bucket.
    Bucket = FileContext "bucket" ValueKind::Text;
    /// Names of the tags.
    Tags = FileContext "tags" ValueKind::List;
    /// Tag with this name.
    Tag = FileContext "tags." ValueKind::Text;
    /// Names of the user metadata.
    Metadata = FileContext "metadata" ValueKind::List;
    /// User metadata with this name.
    MetadataEntry = FileContext "metadata." ValueKind::Text;
    /// Content of a model file.
    ModelFileKind = FileContext "model_file_kind" ValueKind::Word(ModelFileKind::WORDS);
    /// Number of newer complete checkpoints of the run; 0 is the newest.
    CheckpointGeneration = FileContext "checkpoint_generation" ValueKind::Number;
    /// Time since the object was written.
    Age = FileContext "age" ValueKind::Duration;
    /// Tier that holds the bytes.
    Tier = FileContext "tier" ValueKind::Word(Tier::WORDS);
    /// Order in which the workload reads the dataset.
    Pattern = AccessPattern "pattern" ValueKind::Word(AccessPattern::WORDS);
    /// Recent reads per hour.
    Frequency = AccessPattern "frequency" ValueKind::Number;
    /// Time since the last read before this one.
    Recency = AccessPattern "recency" ValueKind::Duration;
    /// Whole passes of the workload over the dataset; the first one counts when the second begins. Repeated
    /// reads without passes do not count.
    EpochCount = AccessPattern "epoch_count" ValueKind::Number;
    /// Reads since the object was written here, including this one; known for the objects that were read
    /// last, a million at most.
    Reads = AccessPattern "reads" ValueKind::Number;
    /// Dataset of the object.
    Dataset = AccessPattern "dataset" ValueKind::Text;
    /// Number of workloads that read the dataset now.
    Workloads = AccessPattern "workloads" ValueKind::Number;
    /// Frameworks detected by key, content and user agent.
    Framework = WorkloadContext "framework" ValueKind::List;
    /// Activity of the workload.
    Phase = WorkloadContext "phase" ValueKind::Word(Phase::WORDS);
    /// Id of the workload.
    WorkloadId = WorkloadContext "id" ValueKind::Text;
    /// Name that the workload gives itself.
    WorkloadName = WorkloadContext "name" ValueKind::Text;
    /// Objects, or samples of a shard, that the workload reads at once.
    BatchSize = WorkloadContext "batch_size" ValueKind::Number;
    /// User agent of the requests.
    UserAgent = WorkloadContext "user_agent" ValueKind::Text;
    /// Number of processes that read for the workload.
    Workers = WorkloadContext "workers" ValueKind::Number;
    /// Fill level of the hot tier.
    HotFill = SystemContext "tier_fill.hot" ValueKind::Percent;
    /// Fill level of the cold tier.
    ColdFill = SystemContext "tier_fill.cold" ValueKind::Percent;
    /// Fill level of the space for clean copies.
    CopiesFill = SystemContext "tier_fill.copies" ValueKind::Percent;
    /// Fill level of the memory tier.
    MemoryFill = SystemContext "memory_fill" ValueKind::Percent;
    /// Memory of the machine.
    Memory = SystemContext "memory" ValueKind::Bytes;
    /// Current read rate from upstreams.
    Bandwidth = SystemContext "bandwidth" ValueKind::Rate;
    /// Recent time to the first byte of an upstream.
    UpstreamLatency = SystemContext "upstream_latency" ValueKind::Duration;
    /// Accelerators that the workload or the hardware profile declares.
    GpuCount = SystemContext "gpu_count" ValueKind::Number;
    /// Environment of the server.
    Environment = SystemContext "environment" ValueKind::Word(Environment::WORDS);
}

/// Properties of `file_pattern`: the parts of a key, each compared with one pattern.
const PATTERN_PROPERTIES: &[Property] = &[Property::Name, Property::Key, Property::Path, Property::Extension];

impl Property {
    /// Returns the row of the property.
    #[must_use]
    pub fn row(self) -> &'static PropertyRow {
        &PROPERTIES[self as usize]
    }
}

/// Returns the rows of properties that conditions of type `of` can compare.
pub fn properties_of(of: ConditionType) -> impl Iterator<Item = &'static PropertyRow> {
    PROPERTIES.iter().filter(move |row| match of {
        ConditionType::FilePattern => PATTERN_PROPERTIES.contains(&row.property),
        _ => row.condition_type == of,
    })
}

/// Returns the property with the word `word`, and the name that follows it.
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
    fn rows_are_in_the_order_of_the_enum() {
        for row in PROPERTIES {
            assert_eq!(row.property.row().word, row.word);
        }
    }

    #[test]
    fn properties_are_found_by_type_and_word() {
        let found = |of, word| property_of(of, word).map(|(row, name)| (row.property, name));
        assert_eq!(found(ConditionType::FileContext, "tags"), Some((Property::Tags, "")));
        assert_eq!(found(ConditionType::FileContext, "tags.team"), Some((Property::Tag, "team")));
        assert_eq!(found(ConditionType::FileContext, "tags."), None);
        assert_eq!(found(ConditionType::FileContext, "phase"), None);
        assert_eq!(found(ConditionType::FilePattern, "name"), Some((Property::Name, "")));
        assert_eq!(found(ConditionType::SystemContext, "tier_fill.hot"), Some((Property::HotFill, "")));
    }

    #[test]
    fn property_words_of_a_type_are_unique() {
        for of in ConditionType::ALL {
            let words: Vec<_> = properties_of(*of).map(|row| row.word).collect();
            let mut unique = words.clone();
            unique.sort_unstable();
            unique.dedup();
            assert!(!words.is_empty() && unique.len() == words.len(), "{of}");
        }
    }
}
