//! Effective settings: the value of the strongest layer for each, and its source.

use super::{Layer, LayerSource};
use crate::language::settings::{Setting, SettingOverride};
use crate::language::value::Value;
use crate::language::words::{CachePolicy, Evaluation, Optimization, Phase, Strategy, Switch, Word};
use std::sync::Arc;

/// Effective settings.
#[derive(Clone, Debug)]
pub struct Settings {
    values: Vec<EffectiveSetting>,
}

/// An effective setting.
#[derive(Clone, Debug)]
pub struct EffectiveSetting {
    /// The setting.
    pub setting: Setting,
    /// Member to which the value applies; none for all.
    pub member: Option<&'static str>,
    /// The value.
    pub value: Value,
    /// Location of the value; none for the default of the table.
    pub source: Option<LayerSource>,
}

/// Compares values, wherever they are defined.
impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        let key = |one: &EffectiveSetting| (one.setting, one.member, one.value.clone());
        self.values.iter().map(key).eq(other.values.iter().map(key))
    }
}

impl Settings {
    /// Merges the settings of layers, given the strongest first. A value for one member precedes a value for
    /// all from the same or a weaker layer.
    pub(super) fn merge<'a>(
        layers: impl Iterator<Item = (Layer, &'a Arc<str>, &'a [SettingOverride])> + Clone,
    ) -> Self {
        let first = |setting, member| {
            layers.clone().enumerate().find_map(|(rank, (layer, file, given))| {
                let one = given.iter().find(|one| one.setting == setting && one.member == member)?;
                let source = LayerSource { layer, file: Arc::clone(file), line: one.line };
                Some((rank, one.value.clone(), source))
            })
        };
        let mut values = Vec::new();
        for setting in Setting::all() {
            let base = first(setting, None);
            let base_rank = base.as_ref().map_or(usize::MAX, |(rank, ..)| *rank);
            let (value, source) = base
                .map_or_else(|| (setting.default_value(), None), |(_, value, source)| (value, Some(source)));
            values.push(EffectiveSetting { setting, member: None, value, source });
            for member in setting.row().members {
                if let Some((rank, value, source)) = first(setting, Some(member))
                    && rank <= base_rank
                {
                    values.push(EffectiveSetting {
                        setting,
                        member: Some(member),
                        value,
                        source: Some(source),
                    });
                }
            }
        }
        Self { values }
    }

    /// Returns all values in the order of the table, each followed by those of its members.
    #[must_use]
    pub fn all(&self) -> &[EffectiveSetting] {
        &self.values
    }

    /// Returns the value of a member, or the value for all if the member has none.
    #[must_use]
    pub fn value(&self, setting: Setting, member: Option<&str>) -> Option<&Value> {
        let of = |member: Option<&str>| {
            self.values.iter().find(|one| one.setting == setting && one.member == member)
        };
        member.and_then(|member| of(Some(member))).or_else(|| of(None)).map(|one| &one.value)
    }

    /// Returns the number, bytes, percent or seconds of a setting.
    #[must_use]
    pub fn size(&self, setting: Setting) -> f64 {
        self.value(setting, None).and_then(Value::size).unwrap_or_default()
    }

    /// Returns the bytes of a setting.
    #[must_use]
    pub fn bytes(&self, setting: Setting) -> u64 {
        if let Some(Value::Bytes(bytes)) = self.value(setting, None) { *bytes } else { 0 }
    }

    /// Returns the microseconds of a setting.
    #[must_use]
    pub fn duration_us(&self, setting: Setting) -> u64 {
        let Some(Value::Duration(duration)) = self.value(setting, None) else { return 0 };
        u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
    }

    /// Limits a read-ahead depth to the bounds that apply to all rules.
    #[must_use]
    pub fn depth_within(&self, depth: u32) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counts are whole and small"
        )]
        let bound = |setting| self.size(setting) as u32;
        depth.max(bound(Setting::PrefetchDepthMin)).min(bound(Setting::PrefetchDepthMax))
    }

    fn word<W: Word>(&self, setting: Setting, member: Option<&str>, otherwise: W) -> W {
        self.value(setting, member).and_then(Value::text).and_then(W::from_word).unwrap_or(otherwise)
    }

    /// Returns which of the matching rules run.
    #[must_use]
    pub fn evaluation(&self) -> Evaluation {
        self.word(Setting::Evaluation, None, Evaluation::All)
    }

    /// Returns the effort of the engine in a phase.
    #[must_use]
    pub fn optimization(&self, phase: Option<Phase>) -> Optimization {
        self.word(Setting::Optimization, phase.map(Word::name), Optimization::Balanced)
    }

    /// Returns the read-ahead strategy in a phase.
    #[must_use]
    pub fn prefetch(&self, phase: Option<Phase>) -> Strategy {
        self.word(Setting::Prefetch, phase.map(Word::name), Strategy::Adaptive)
    }

    /// Returns the cache policy in a phase.
    #[must_use]
    pub fn cache(&self, phase: Option<Phase>) -> CachePolicy {
        self.word(Setting::Cache, phase.map(Word::name), CachePolicy::TrainingAware)
    }

    /// True if bounds move by measured outcomes.
    #[must_use]
    pub fn learning(&self) -> bool {
        self.word(Setting::Learning, None, Switch::On) == Switch::On
    }

    /// Returns the minimum confidence for a framework to count as detected.
    #[must_use]
    pub fn detection_confidence(&self) -> f64 {
        self.size(Setting::DetectionConfidence)
    }
}
