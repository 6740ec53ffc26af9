//! What is wrong with a configuration: every finding with its place, its reason and a way out.

use super::{Origin, SETTINGS};
use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where it stands.
    pub origin: Origin,
    /// What is wrong and, where there is one, the right way.
    pub reason: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.reason)
    }
}

/// A configuration that was refused, with everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub Vec<Finding>);

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

/// Why `key` is refused, with the nearest right one.
pub(super) fn unknown_setting(key: &str) -> String {
    let candidates = SETTINGS.iter().map(|setting| setting.key.to_owned());
    format!("unknown setting '{key}'{}", did_you_mean(key, candidates))
}

/// The candidate nearest to `name`, as the end of a sentence.
pub(super) fn did_you_mean(name: &str, candidates: impl Iterator<Item = String>) -> String {
    // The last part weighs as much as the whole: a right name under a wrong section is near too.
    let last = |key: &str| key.rsplit(['.']).next().unwrap_or(key).to_owned();
    let score = |candidate: &str| {
        strsim::jaro_winkler(name, candidate).max(strsim::jaro_winkler(&last(name), &last(candidate)) - 0.05)
    };
    candidates
        .map(|candidate| (score(&candidate), candidate))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(score, _)| *score >= NEAR)
        .map_or_else(
            || "; `mlgw config example` lists all settings".to_owned(),
            |(_, near)| format!("; did you mean '{near}'?"),
        )
}

/// Jaro-Winkler similarity from which a name is worth proposing: one or two slips in a word.
const NEAR: f64 = 0.8;
