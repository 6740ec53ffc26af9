//! The table of settings, and the values that hold.

use super::value::{Kind, Value};
use super::words::{CachePolicy, Evaluation, Optimization, Phase, Strategy, Switch, Word};

/// A row of the table.
#[derive(Debug)]
pub struct SettingRow {
    /// Which setting.
    pub setting: Setting,
    /// Its word.
    pub word: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// The value that it has when no layer gives one, in text form.
    pub default: &'static str,
    /// The smallest and the largest value, in text form.
    pub range: Option<(&'static str, &'static str)>,
    /// What may follow its word after a dot, to say it for these alone: phases, or classes of a cache.
    pub members: &'static [&'static str],
    /// What it means.
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
    /// Which of the matching rules run: all of them, or only the first by priority.
    Evaluation = "evaluation" Kind::Word(Evaluation::WORDS), default "all";
    /// How far is read ahead where no rule says it, beside what was learnt: basic a quarter, balanced as far,
    /// aggressive twice, maximum four times.
    Optimization = "optimization" Kind::Word(Optimization::WORDS), default "balanced", for Phase::WORDS;
    /// How much of that is gone: conservative a quarter, balanced half, aggressive and adaptive all of it.
    Prefetch = "prefetch" Kind::Word(Strategy::WORDS), default "adaptive", for Phase::WORDS;
    /// What decides which copies are kept where no rule says it.
    Cache = "cache" Kind::Word(CachePolicy::WORDS), default "training-aware", for Phase::WORDS;
    /// Whether bounds move by measured outcomes.
    Learning = "learning" Kind::Word(Switch::WORDS), default "on";
    /// By how much of its value a bound may move in a day.
    LearningStepMax = "learning_step_max" Kind::Percent, default "20%";
    /// What is read ahead at least, whatever was learnt.
    PrefetchDepthMin = "prefetch_depth_min" Kind::Count, default "1", from "1" to "1024";
    /// What is read ahead at most, whatever rules say or was learnt.
    PrefetchDepthMax = "prefetch_depth_max" Kind::Count, default "64", from "1" to "1024";
    /// Bytes that are read ahead for one workload at most.
    PrefetchBytesMax = "prefetch_bytes_max" Kind::Bytes, default "1GiB", from "1MiB" to "1TiB";
    /// How many of the newest complete checkpoints of a run stay in fast tiers where no rule says it.
    CheckpointKeep = "checkpoint_keep" Kind::Count, default "1", from "1" to "1000";
    /// How much of the room for copies pins of rules may take.
    PinMax = "pin_max" Kind::Percent, default "50%";
    /// Confidence from which on a framework counts as detected.
    DetectionConfidence = "detection_confidence" Kind::Number, default "0.5", from "0" to "1";
    /// How long a workload may be silent before it counts as over.
    WorkloadIdle = "workload_idle" Kind::Duration, default "10m", from "1s" to "7d";
}

impl Setting {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        SETTINGS.iter().map(|row| row.setting)
    }

    /// Its row.
    #[must_use]
    pub fn row(self) -> &'static SettingRow {
        &SETTINGS[self as usize]
    }

    /// The setting of a word, and its member: `prefetch.training`.
    #[must_use]
    pub fn of(word: &str) -> Option<(Self, Option<&'static str>)> {
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

    /// Every word that may stand in `settings`.
    pub fn words() -> impl Iterator<Item = String> {
        SETTINGS.iter().flat_map(|row| {
            let members = row.members.iter().map(|member| format!("{}.{member}", row.word));
            std::iter::once(row.word.to_owned()).chain(members)
        })
    }

    /// Its default, read.
    #[must_use]
    pub fn default_value(self) -> Value {
        let row = self.row();
        row.kind.read_text(row.default).unwrap_or(Value::Flag(false))
    }
}

/// A value that a layer gives to a setting.
#[derive(Clone, Debug)]
pub struct Given {
    /// Which setting.
    pub setting: Setting,
    /// For what alone, if not for all.
    pub member: Option<&'static str>,
    /// The value.
    pub value: Value,
    /// The line that gives it.
    pub line: u32,
}

#[cfg(test)]
mod tests {
    use super::{SETTINGS, Setting, Value};
    use crate::language::actions::sizes_of;

    #[test]
    fn rows_stand_in_order_and_defaults_are_values() {
        for row in SETTINGS {
            assert_eq!(row.setting.row().word, row.word);
            assert_ne!(row.setting.default_value(), Value::Flag(false), "{}", row.word);
            assert_eq!(sizes_of(row.kind, row.range).is_some(), row.range.is_some(), "{}", row.word);
        }
    }

    #[test]
    fn members_are_words_of_their_setting() {
        assert_eq!(Setting::of("prefetch.training"), Some((Setting::Prefetch, Some("training"))));
        assert_eq!(Setting::of("prefetch.epochs"), None);
        assert_eq!(Setting::of("learning.training"), None);
        assert!(Setting::words().all(|word| Setting::of(&word).is_some()));
    }
}
