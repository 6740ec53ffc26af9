//! Errors of a configuration: findings with their place, their reason and a suggested fix.

use super::{SETTINGS, SettingOrigin};
use std::fmt;

/// A defect of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFinding {
    /// Place of the defect.
    pub origin: SettingOrigin,
    /// Description of the defect and, if there is one, the fix.
    pub reason: String,
}

impl fmt::Display for ConfigFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.reason)
    }
}

/// A configuration was refused; lists all findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub Vec<ConfigFinding>);

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, finding) in self.0.iter().enumerate() {
            let line = if index == 0 { "" } else { "\n" };
            write!(f, "{line}{finding}")?;
        }
        Ok(())
    }
}

/// Returns the reason why `key` is refused, with the nearest valid key.
pub(super) fn unknown_setting(key: &str) -> String {
    let candidates = SETTINGS.iter().map(|setting| setting.key.to_owned());
    format!("unknown setting '{key}'{}", did_you_mean(key, candidates))
}

/// Returns a suggestion of the candidate nearest to `name`, as the end of a sentence.
pub(super) fn did_you_mean(name: &str, candidates: impl Iterator<Item = String>) -> String {
    // The last part counts nearly as much as the whole: a valid name under a wrong section is near, too.
    let last = |key: &str| key.rsplit(['.']).next().unwrap_or(key).to_owned();
    let score = |candidate: &str| {
        strsim::jaro_winkler(name, candidate).max(strsim::jaro_winkler(&last(name), &last(candidate)) - 0.05)
    };
    candidates
        .map(|candidate| (score(&candidate), candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(score, _)| *score >= SIMILARITY_MIN)
        .map_or_else(
            || "; `mlgw config example` lists all settings".to_owned(),
            |(_, near)| format!("; did you mean '{near}'?"),
        )
}

/// Minimum Jaro-Winkler similarity of a suggestion: one or two typing errors in a word.
const SIMILARITY_MIN: f64 = 0.8;
