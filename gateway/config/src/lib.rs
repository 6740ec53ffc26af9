//! Configuration: sources of settings, their precedence, and their display.
//!
//! There are four layers, weakest first: built-in, a TOML file, `MLGW_SECTION__KEY` variables, flags. Every
//! layer is validated completely before any value is used: an unknown key or a wrong value is refused with
//! its place, also if a stronger layer would override it. Nothing is written here, so a power loss cannot
//! leave a partial configuration.

mod budget;
mod environment;
mod error;
mod file;
mod machine;
mod network;
mod node;
mod report;
mod shared;
mod table;
mod upstreams;
mod value;

pub use budget::{MemoryBudget, TooLittleMemory};
pub use error::{ConfigError, ConfigFinding};
pub use machine::MachineSizes;
use mlgw_common::ByteSize;
pub use network::IpNetwork;
pub use report::{documentation, example, list_settings, show};
pub use table::{
    AccessLogSection, Admin, Audit, BoundSection, CatalogueSection, ClusterSection, Config, Hot,
    LanesSection, Limits, Log, MetricsSection, PolicySection, S3, SECTIONS, SETTINGS, Setting, Tls,
    TracesSection,
};
pub use upstreams::{UPSTREAM_SETTINGS, UpstreamSection};
pub use value::{
    Address, Auto, CredentialKind, Durability, EtagKind, LogFormat, LogLevel, PrintCredentials,
    ReplicaQuorum, SettingType,
};

use mlgw_common::hide_url_secrets;
use mlgw_common::limits::{CLUSTER_SEEDS_MAX, OBJECT_GROUPS_MAX, TRUSTED_PROXIES_MAX};
use mlgw_wire::lanes::WorkloadLanes;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::SettingTexts;
use upstreams::UpstreamSections;

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// Default in the table.
    BuiltIn,
    /// A line of a TOML file.
    File(PathBuf, usize),
    /// An environment variable.
    Environment(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A value in text form, with its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingValue {
    /// Index of the setting in [`SETTINGS`].
    index: usize,
    text: String,
    origin: SettingOrigin,
}

/// Inputs of the configuration besides the built-in values.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The TOML file, if any.
    pub file: Option<PathBuf>,
    /// Environment variables; those that do not begin with `MLGW_` are ignored.
    pub environment: Vec<(String, String)>,
    /// Flags: key of the setting, name of the flag, value.
    pub flags: Vec<(&'static str, &'static str, String)>,
}

impl ConfigSources {
    /// Returns the file and the variables of this process, without flags.
    #[must_use]
    pub fn from_process(file: Option<PathBuf>) -> Self {
        let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
        let environment = std::env::vars_os().map(|(k, v)| (text(k), text(v))).collect();
        Self { file, environment, flags: Vec::new() }
    }
}

/// A complete configuration with the origins of its values.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The typed values.
    pub config: Config,
    /// Texts of the values, in the order of [`SETTINGS`].
    texts: Vec<String>,
    /// Origins of the values, in the order of [`SETTINGS`].
    origins: Vec<SettingOrigin>,
    /// Sections of the upstreams.
    upstreams: Vec<UpstreamSection>,
}

impl LoadedConfig {
    /// Reads and merges the four layers.
    ///
    /// # Errors
    /// Lists all findings in all layers.
    pub fn load(sources: &ConfigSources) -> Result<Self, ConfigError> {
        let mut findings = Vec::new();
        let mut given = Vec::new();
        let mut upstreams = UpstreamSections::default();
        if let Some(path) = &sources.file {
            file::read(path, &mut given, &mut upstreams, &mut findings);
        }
        environment::read(&sources.environment, &mut given, &mut upstreams, &mut findings);
        for (key, flag, text) in &sources.flags {
            let index = SETTINGS.iter().position(|setting| setting.key == *key);
            assert!(index.is_some(), "flag {flag} sets {key}, which is not a setting");
            given.extend(index.map(|index| SettingValue {
                index,
                text: text.clone(),
                origin: SettingOrigin::Flag(flag),
            }));
        }
        findings.extend(given.iter().filter_map(check_value));
        if findings.is_empty() { Self::merge(given, upstreams.merge()?) } else { Err(ConfigError(findings)) }
    }

    /// Checks a single file, as `mlgw config check` does.
    ///
    /// # Errors
    /// Lists all findings in the file.
    pub fn check(path: &Path) -> Result<(), ConfigError> {
        Self::load(&ConfigSources { file: Some(path.to_owned()), ..ConfigSources::default() }).map(|_| ())
    }

    fn merge(given: Vec<SettingValue>, upstreams: Vec<UpstreamSection>) -> Result<Self, ConfigError> {
        let mut texts: Vec<String> = SETTINGS.iter().map(|s| s.default.to_owned()).collect();
        let mut origins = vec![SettingOrigin::BuiltIn; SETTINGS.len()];
        for SettingValue { index, text, origin } in given {
            texts[index] = text;
            origins[index] = origin;
        }
        let mut config = Config::from_texts(SettingTexts::new(&texts))
            .map_err(|reason| ConfigError(vec![ConfigFinding { origin: SettingOrigin::BuiltIn, reason }]))?;
        config.upstreams = upstreams.iter().map(|upstream| upstream.settings.clone()).collect();
        let loaded = Self { config, texts, origins, upstreams };
        let findings: Vec<ConfigFinding> = loaded
            .config
            .contradictions()
            .into_iter()
            .map(|(key, reason)| ConfigFinding { origin: loaded.origin(key).clone(), reason })
            .collect();
        if findings.is_empty() { Ok(loaded) } else { Err(ConfigError(findings)) }
    }

    /// Returns the origin of the value of the setting `key`.
    #[must_use]
    pub fn origin(&self, key: &str) -> &SettingOrigin {
        let index = SETTINGS.iter().position(|setting| setting.key == key);
        index.map_or(&SettingOrigin::BuiltIn, |index| &self.origins[index])
    }

    /// Iterates over the settings with their values in TOML form and the origins.
    pub fn values(&self) -> impl Iterator<Item = (&'static Setting, String, &SettingOrigin)> {
        SETTINGS.iter().zip(&self.texts).zip(&self.origins).map(|((setting, text), origin)| {
            let value = (setting.check)(text).unwrap_or_else(|_| text.clone());
            (setting, value, origin)
        })
    }

    /// Same as [`LoadedConfig::values`], for the sections of upstreams. Secrets are hidden.
    pub fn upstream_values(&self) -> impl Iterator<Item = (String, String, &SettingOrigin)> {
        self.upstreams.iter().flat_map(UpstreamSection::values)
    }

    /// Returns this configuration with the values of `newer` for the settings that can change at run time.
    #[must_use]
    pub fn with_live_settings_of(&self, newer: &Self) -> Self {
        let mut adopted = self.clone();
        for (at, _) in SETTINGS.iter().enumerate().filter(|(_, setting)| setting.live) {
            adopted.texts[at].clone_from(&newer.texts[at]);
            adopted.origins[at].clone_from(&newer.origins[at]);
        }
        if let Ok(config) = Config::from_texts(SettingTexts::new(&adopted.texts)) {
            let upstreams = std::mem::take(&mut adopted.config.upstreams);
            adopted.config = Config { upstreams, ..config };
        }
        adopted
    }

    /// Returns the keys whose values differ between the two configurations and need a restart to change.
    #[must_use]
    pub fn needs_restart(&self, newer: &Self) -> Vec<&'static str> {
        let pairs = SETTINGS.iter().zip(self.texts.iter().zip(&newer.texts));
        let changed = pairs.filter(|(setting, (old, new))| !setting.live && old != new).map(|(s, _)| s.key);
        let upstreams = (self.config.upstreams != newer.config.upstreams).then_some("upstream");
        changed.chain(upstreams).collect()
    }
}

fn check_value(given: &SettingValue) -> Option<ConfigFinding> {
    let setting = &SETTINGS[given.index];
    let why = (setting.check)(&given.text).err()?;
    let text = hide_url_secrets(&given.text);
    let reason = format!("wrong value {text:?} for '{}': {why}; expected {}", setting.key, setting.expects);
    Some(ConfigFinding { origin: given.origin.clone(), reason })
}

/// A setting at fault, and the reason.
type Contradiction = (&'static str, String);

impl Config {
    /// Returns combinations of values that are inconsistent, and values out of range, with the key that is at
    /// fault.
    fn contradictions(&self) -> Vec<Contradiction> {
        let mut found = self.contradictions_of_tiers();
        found.extend(self.contradictions_of_cluster());
        found.extend(self.contradictions_of_proxies());
        match (&self.tls.cert, &self.tls.key) {
            (Some(_), None) => found.push(("tls.cert", "'tls.cert' requires 'tls.key'".to_owned())),
            (None, Some(_)) => found.push(("tls.key", "'tls.key' requires 'tls.cert'".to_owned())),
            _ => {}
        }
        if self.policy.look_every < Duration::from_secs(1) {
            found.push(("policy.look_every", "'policy.look_every' must be at least 1s".to_owned()));
        }
        if !(1..=OBJECT_GROUPS_MAX).contains(&self.catalogue.object_groups) {
            let reason = format!("'catalogue.object_groups' must be 1 to {OBJECT_GROUPS_MAX}");
            found.push(("catalogue.object_groups", reason));
        }
        let counts = [
            ("limits.connections", self.limits.connections),
            ("audit.files_max", self.audit.files_max),
            ("access_log.files_max", self.access_log.files_max),
        ];
        for (key, value) in counts {
            if value == 0 {
                found.push((key, format!("'{key}' must be at least 1")));
            }
        }
        if let Err(why) = WorkloadLanes::new(&self.lanes.inference) {
            found.push(("lanes.inference", format!("'lanes.inference': {why}")));
        }
        if let Some(endpoint) = &self.traces.endpoint
            && !endpoint.starts_with("http://")
        {
            let endpoint = hide_url_secrets(endpoint);
            let reason = format!(
                "'traces.endpoint' is {endpoint:?}, which does not begin with http://; send traces to a \
                 local collector, without TLS"
            );
            found.push(("traces.endpoint", reason));
        }
        if !(1..=100).contains(&self.limits.client_memory_percent) {
            let reason = "'limits.client_memory_percent' must be 1 to 100".to_owned();
            found.push(("limits.client_memory_percent", reason));
        }
        found
    }

    /// Contradictions in the settings of proxies.
    fn contradictions_of_proxies(&self) -> Option<Contradiction> {
        let count = self.s3.trusted_proxies.len();
        if count > TRUSTED_PROXIES_MAX {
            let reason = format!(
                "'s3.trusted_proxies' has {count} addresses and networks; expected at most \
                 {TRUSTED_PROXIES_MAX}"
            );
            return Some(("s3.trusted_proxies", reason));
        }
        let is_open_to_none = self.s3.proxy_protocol && count == 0;
        let reason = "'s3.proxy_protocol' requires 's3.trusted_proxies', the addresses of the proxies";
        is_open_to_none.then(|| ("s3.proxy_protocol", reason.to_owned()))
    }

    /// Contradictions in the addresses of the nodes of a cluster.
    fn contradictions_of_cluster(&self) -> Vec<Contradiction> {
        let mut found = Vec::new();
        let ClusterSection { listen, address, seeds, .. } = &self.cluster;
        if let Some(address) = address
            && (address.is_unspecified() || address.port == 0)
        {
            let reason = format!(
                "'cluster.address' is {address}, to which no other host can connect; use a name or an \
                 address of this host, and a port"
            );
            found.push(("cluster.address", reason));
        }
        if listen.is_unspecified() && address.is_none() {
            let reason = format!(
                "'cluster.listen' is {listen}, to which no other host can connect; set 'cluster.address' \
                 to a name or an address of this host, with its port"
            );
            found.push(("cluster.listen", reason));
        }
        if seeds.len() > CLUSTER_SEEDS_MAX {
            let reason = format!(
                "'cluster.seeds' has {} addresses; expected at most {CLUSTER_SEEDS_MAX}",
                seeds.len()
            );
            found.push(("cluster.seeds", reason));
        }
        if let Some(seed) = seeds.iter().find(|seed| seed.is_unspecified() || seed.port == 0) {
            let reason = format!(
                "'cluster.seeds' has {seed}, to which no host can connect; use the addresses that `mlgw \
                 cluster status` prints on a member"
            );
            found.push(("cluster.seeds", reason));
        }
        found
    }

    /// Contradictions in the settings of the hot and the cold tier.
    fn contradictions_of_tiers(&self) -> Vec<Contradiction> {
        let mut found = Vec::new();
        let segment = self.hot.segment_bytes;
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment) {
            let reason = format!(
                "'hot.segment_bytes' is {segment}; expected {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            );
            found.push(("hot.segment_bytes", reason));
        }
        let percent = self.hot.compact_dead_percent;
        if !(1..=100).contains(&percent) {
            let reason = format!("'hot.compact_dead_percent' is {percent}; expected 1 to 100");
            found.push(("hot.compact_dead_percent", reason));
        }
        if self.hot.compact_bytes_per_second < COMPACT_RATE_MIN {
            let reason = format!("'hot.compact_bytes_per_second' must be at least {COMPACT_RATE_MIN}");
            found.push(("hot.compact_bytes_per_second", reason));
        }
        if self.hot.compact_interval < COMPACT_INTERVAL_MIN {
            let reason = format!("'hot.compact_interval' must be at least {COMPACT_INTERVAL_MIN:?}");
            found.push(("hot.compact_interval", reason));
        }
        if !(1..=100).contains(&self.cold.compact_dead_percent) {
            let reason = "'cold.compact_dead_percent' must be 1 to 100".to_owned();
            found.push(("cold.compact_dead_percent", reason));
        }
        if let Some(name) = &self.cold.upstream
            && !self.upstreams.iter().any(|upstream| upstream.name == *name)
        {
            let reason = format!("'cold.upstream' is {name:?}, but section [upstream.{name}] is missing");
            found.push(("cold.upstream", reason));
        }
        let (from, to) = (self.cold.spill_from_percent, self.cold.spill_to_percent);
        if from > 100 || to > from {
            let reason = format!(
                "'cold.spill_to_percent' is {to} and 'cold.spill_from_percent' is {from}; expected \
                 spill_to_percent <= spill_from_percent <= 100"
            );
            found.push(("cold.spill_from_percent", reason));
        }
        if self.cold.move_bytes_per_second < COMPACT_RATE_MIN {
            let reason = format!("'cold.move_bytes_per_second' must be at least {COMPACT_RATE_MIN}");
            found.push(("cold.move_bytes_per_second", reason));
        }
        found
    }

    /// Returns the directory of the access log.
    #[must_use]
    pub fn access_log_dir(&self) -> PathBuf {
        self.access_log.dir.clone().unwrap_or_else(|| self.data_dir.join("access"))
    }

    /// Returns the directory of the segments.
    #[must_use]
    pub fn segments_dir(&self) -> PathBuf {
        self.hot.dir.clone().unwrap_or_else(|| self.data_dir.join("segments"))
    }

    /// Returns the directory of the clean copies of remote-backed buckets.
    #[must_use]
    pub fn copies_dir(&self) -> PathBuf {
        self.bound.dir.clone().unwrap_or_else(|| self.data_dir.join("copies"))
    }

    /// Returns the directory of the catalogue's checkpoints.
    #[must_use]
    pub fn checkpoints_dir(&self) -> PathBuf {
        self.catalogue.checkpoint_dir.clone().unwrap_or_else(|| self.data_dir.join("checkpoints"))
    }
}

/// Minimum segment size. Smaller segments are mostly overhead; a segment holds at least one chunk.
const SEGMENT_BYTES_MIN: ByteSize = ByteSize(256 << 10);
/// Maximum segment size, so that offsets within a segment fit in 32 bits.
const SEGMENT_BYTES_MAX: ByteSize = ByteSize(4 << 30);
/// Minimum rate: one chunk per second.
const COMPACT_RATE_MIN: ByteSize = ByteSize(1 << 20);
/// Minimum interval. A scan takes milliseconds, so a shorter interval would keep a thread busy.
const COMPACT_INTERVAL_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
