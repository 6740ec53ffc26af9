//! Settings that should have the same values on all nodes of a cluster.
//!
//! Requests are served by any node, and the duty moves between the storage nodes, so a difference changes
//! answers or what is done with objects. Settings of a host, such as paths, addresses and sizes, are not
//! among them. Pure.

use super::upstreams::{UpstreamSection, setting_name};
use super::{LoadedConfig, SETTINGS, Setting, UPSTREAM_SETTINGS};
use mlgw_common::{Secret, SharedSetting};

/// Settings of every node.
const SHARED_BY_ALL: [&str; 4] = ["s3.domains", "s3.region", "s3.region_strict", "s3.sigv2"];

/// Settings that gateways do not use.
const SHARED_BY_STORAGE: [&str; 13] = [
    "s3.etag",
    "cold.upstream",
    "lanes.inference",
    "bound.ttl",
    "bound.negative_ttl",
    "bound.stale_max",
    "policy.environment",
    "policy.gpu_count",
    "policy.learn_every",
    "policy.look_every",
    "cluster.lease_reads",
    "cluster.read_without_quorum",
    "cluster.write_quorum",
];

/// Settings of an upstream that depend on the host, or change by themselves.
const UPSTREAM_OF_HOST: [&str; 5] = ["credentials_file", "profile", "ca_file", "proxy", "session_token"];

impl LoadedConfig {
    /// Returns the settings that all nodes of a cluster should share, if they have not their defaults. An
    /// upstream is one setting. The content of policy files is not included.
    #[must_use]
    pub fn shared_settings(&self) -> Vec<SharedSetting> {
        let given = SETTINGS.iter().zip(&self.texts).filter_map(|(setting, text)| {
            let is_of_storage = SHARED_BY_STORAGE.contains(&setting.key);
            let value = changed_value(setting, text)
                .filter(|_| is_of_storage || SHARED_BY_ALL.contains(&setting.key))?;
            Some(SharedSetting { name: setting.key.to_owned(), value: Secret::new(value), is_of_storage })
        });
        given.chain(self.upstreams.iter().map(UpstreamSection::shared)).collect()
    }
}

impl UpstreamSection {
    fn shared(&self) -> SharedSetting {
        let given = UPSTREAM_SETTINGS.iter().zip(&self.texts);
        let shared = given.filter(|(setting, _)| !UPSTREAM_OF_HOST.contains(&setting_name(setting)));
        let values = shared.filter_map(|(setting, text)| {
            Some(format!("{} = {}\n", setting_name(setting), changed_value(setting, text)?))
        });
        SharedSetting {
            name: format!("upstream.{}", self.settings.name),
            value: Secret::new(values.collect::<String>()),
            is_of_storage: true,
        }
    }
}

/// Returns the value of a setting that has not its default. Equal values have equal texts; a secret, which
/// has no TOML form to show, is returned as it is.
fn changed_value(setting: &Setting, text: &str) -> Option<String> {
    if is_secret(setting) {
        return (text != setting.default).then(|| text.to_owned());
    }
    let shown = |text: &str| (setting.check)(text).unwrap_or_default();
    let value = shown(text);
    (value != shown(setting.default)).then_some(value)
}

/// True for a setting whose values are hidden where they are shown.
fn is_secret(setting: &Setting) -> bool {
    ["secret_key", "session_token"].contains(&setting_name(setting))
}

#[cfg(test)]
mod tests {
    use super::{SHARED_BY_ALL, SHARED_BY_STORAGE, UPSTREAM_OF_HOST, is_secret};
    use crate::{ConfigSources, LoadedConfig, SETTINGS, UPSTREAM_SETTINGS, upstreams::setting_name};
    use mlgw_common::SharedSetting;

    fn shared(variables: &[(&str, &str)]) -> Vec<SharedSetting> {
        let given = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let sources = ConfigSources { environment: given.collect(), ..ConfigSources::default() };
        LoadedConfig::load(&sources).unwrap().shared_settings()
    }

    const BULK: [(&str, &str); 4] = [
        ("MLGW_UPSTREAM__BULK__BUCKET", "lake"),
        ("MLGW_UPSTREAM__BULK__CREDENTIALS", "static"),
        ("MLGW_UPSTREAM__BULK__ACCESS_KEY", "key"),
        ("MLGW_UPSTREAM__BULK__SECRET_KEY", "hidden"),
    ];

    #[test]
    fn every_shared_setting_is_in_the_table() {
        for key in SHARED_BY_ALL.iter().chain(&SHARED_BY_STORAGE) {
            assert!(SETTINGS.iter().any(|setting| setting.key == *key), "{key}");
        }
        for name in UPSTREAM_OF_HOST {
            assert!(UPSTREAM_SETTINGS.iter().any(|setting| setting_name(setting) == name), "{name}");
        }
        let hidden = UPSTREAM_SETTINGS.iter().filter(|setting| {
            let shown = (setting.check)("visible").unwrap_or_default();
            setting.default.is_empty() && !shown.is_empty() && !shown.contains("visible")
        });
        let hidden: Vec<_> = hidden.map(setting_name).collect();
        let secret = UPSTREAM_SETTINGS.iter().filter(|setting| is_secret(setting));
        assert_eq!(hidden, secret.map(setting_name).collect::<Vec<_>>());
    }

    #[test]
    fn values_are_compared_in_one_form_and_defaults_are_left_out() {
        assert_eq!(shared(&[]), []);
        assert_eq!(shared(&[("MLGW_BOUND__TTL", "30s"), ("MLGW_HOT__SEGMENT_BYTES", "64MiB")]), []);
        let minute = shared(&[("MLGW_BOUND__TTL", "1m")]);
        assert_eq!(minute, shared(&[("MLGW_BOUND__TTL", "60s")]));
        assert_eq!((minute[0].name.as_str(), minute[0].is_of_storage), ("bound.ttl", true));
        let region = shared(&[("MLGW_S3__REGION", "eu-north-1")]);
        assert_eq!((region[0].name.as_str(), region[0].is_of_storage), ("s3.region", false));
    }

    #[test]
    fn an_upstream_is_one_setting_with_its_secret_and_without_what_depends_on_the_host() {
        let bulk = shared(&BULK);
        assert_eq!((bulk.len(), bulk[0].name.as_str(), bulk[0].is_of_storage), (1, "upstream.bulk", true));
        assert!(!format!("{bulk:?}").contains("hidden"), "{bulk:?}");
        let with = |name, value| shared(&[&BULK[..], &[(name, value)]].concat());
        assert_eq!(with("MLGW_UPSTREAM__BULK__CA_FILE", "/etc/ca.pem"), bulk);
        assert_eq!(with("MLGW_UPSTREAM__BULK__TIMEOUT", "10s"), bulk, "its default");
        assert_ne!(with("MLGW_UPSTREAM__BULK__SECRET_KEY", "another"), bulk);
        assert_ne!(with("MLGW_UPSTREAM__BULK__PREFIX", "p"), bulk);
    }
}
