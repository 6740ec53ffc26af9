//! Table of settings.

use super::value::{Value, ValueKind};
use super::words::{CachePolicy, Evaluation, Optimization, Phase, Strategy, Switch, Word};

/// A row of the table.
#[derive(Debug)]
pub struct SettingRow {
    /// The setting.
    pub setting: Setting,
    /// The setting's word.
    pub word: &'static str,
    /// Kind of its values.
    pub kind: ValueKind,
    /// Default in text form.
    pub default: &'static str,
    /// Smallest and largest value, in text form.
    pub range: Option<(&'static str, &'static str)>,
    /// Words that can follow the setting's word after a dot, to give a value for that member alone, such as a
    /// phase.
    pub members: &'static [&'static str],
    /// Description.
    pub doc: &'static str,
}

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $Name:ident = $word:literal $kind:expr, default $default:literal
        $(, from $low:literal to $high:literal)? $(, for $members:expr)?;)+) => {
        /// A setting.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Setting {
            $($(#[doc = $doc])+ $Name,)+
        }

        /// The table.
        pub const SETTINGS: &[SettingRow] = &[$(SettingRow {
            setting: Setting::$Name,
            word: $word,
            kind: $kind,
            default: $default,
            range: settings!(@optional $(($low, $high))?),
            members: settings!(@members $($members)?),
            doc: concat!($($doc),+).trim_ascii(),
        },)+];
    };
    (@optional) => { None };
    (@optional $some:expr) => { Some($some) };
    (@members) => { &[] };
    (@members $members:expr) => { $members };
}

settings! {
    /// Matching rules that run: all of them, or only the first by priority.
    Evaluation = "evaluation" ValueKind::Word(Evaluation::WORDS), default "all";
    /// Read-ahead depth where no rule sets one, relative to the learned depth: basic a quarter, balanced the
    /// same, aggressive twice, maximum four times.
    Optimization = "optimization" ValueKind::Word(Optimization::WORDS), default "balanced", for Phase::WORDS;
    /// Share of that depth that is used: conservative a quarter, balanced half, aggressive and adaptive all.
    Prefetch = "prefetch" ValueKind::Word(Strategy::WORDS), default "adaptive", for Phase::WORDS;
    /// Cache policy where no rule sets one.
    Cache = "cache" ValueKind::Word(CachePolicy::WORDS), default "training-aware", for Phase::WORDS;
    /// Moving of bounds by measured outcomes.
    Learning = "learning" ValueKind::Word(Switch::WORDS), default "on";
    /// Maximum change of a bound in a day, relative to its value.
    LearningStepMax = "learning_step_max" ValueKind::Percent, default "20%";
    /// Minimum read-ahead depth, whatever was learned.
    PrefetchDepthMin = "prefetch_depth_min" ValueKind::Count, default "1", from "1" to "1024";
    /// Maximum read-ahead depth, whatever rules set or was learned.
    PrefetchDepthMax = "prefetch_depth_max" ValueKind::Count, default "64", from "1" to "1024";
    /// Maximum bytes of read-ahead for one workload.
    PrefetchBytesMax = "prefetch_bytes_max" ValueKind::Bytes, default "1GiB", from "1MiB" to "1TiB";
    /// Number of the newest complete checkpoints of a run that stay in fast tiers where no rule sets one.
    CheckpointKeep = "checkpoint_keep" ValueKind::Count, default "1", from "1" to "1000";
    /// Maximum share of the hot tier, and of the copy space, that rules may pin.
    PinMax = "pin_max" ValueKind::Percent, default "50%";
    /// Minimum confidence for a framework to count as detected.
    DetectionConfidence = "detection_confidence" ValueKind::Number, default "0.5", from "0" to "1";
    /// Idle time after which a workload counts as finished.
    WorkloadIdle = "workload_idle" ValueKind::Duration, default "10m", from "1s" to "7d";
}

impl Setting {
    /// Returns all settings.
    pub fn all() -> impl Iterator<Item = Self> {
        SETTINGS.iter().map(|row| row.setting)
    }

    /// Returns the row of the setting.
    #[must_use]
    pub fn row(self) -> &'static SettingRow {
        &SETTINGS[self as usize]
    }

    /// Parses a setting's word with an optional member, such as `prefetch.training`.
    #[must_use]
    pub fn from_word(word: &str) -> Option<(Self, Option<&'static str>)> {
        let (base, member) = word.split_once('.').map_or((word, None), |(base, member)| (base, Some(member)));
        let row = SETTINGS.iter().find(|row| row.word == base)?;
        match member {
            None => Some((row.setting, None)),
            Some(member) => {
                let member = row.members.iter().find(|one| **one == member)?;
                Some((row.setting, Some(member)))
            }
        }
    }

    /// Returns every word that is valid in `settings`.
    pub fn words() -> impl Iterator<Item = String> {
        SETTINGS.iter().flat_map(|row| {
            let members = row.members.iter().map(|member| format!("{}.{member}", row.word));
            std::iter::once(row.word.to_owned()).chain(members)
        })
    }

    /// Returns the parsed default.
    #[must_use]
    pub fn default_value(self) -> Value {
        let row = self.row();
        row.kind.parse(row.default).unwrap_or(Value::Flag(false))
    }
}

/// A value of a setting in a layer.
#[derive(Clone, Debug)]
pub struct SettingOverride {
    /// The setting.
    pub setting: Setting,
    /// Member to which the value applies; none for all.
    pub member: Option<&'static str>,
    /// The value.
    pub value: Value,
    /// Line of the value.
    pub line: u32,
}

#[cfg(test)]
mod tests {
    use super::{SETTINGS, Setting, Value};
    use crate::language::actions::range_sizes;

    #[test]
    fn rows_are_in_order_with_valid_defaults() {
        for row in SETTINGS {
            assert_eq!(row.setting.row().word, row.word);
            assert_ne!(row.setting.default_value(), Value::Flag(false), "{}", row.word);
            assert_eq!(range_sizes(row.kind, row.range).is_some(), row.range.is_some(), "{}", row.word);
        }
    }

    #[test]
    fn members_are_words_of_their_setting() {
        assert_eq!(Setting::from_word("prefetch.training"), Some((Setting::Prefetch, Some("training"))));
        assert_eq!(Setting::from_word("prefetch.epochs"), None);
        assert_eq!(Setting::from_word("learning.training"), None);
        assert!(Setting::words().all(|word| Setting::from_word(&word).is_some()));
    }
}
