//! The environment layer: `MLGW_SECTION__KEY`, and `MLGW_KEY` for a setting without a section.

use super::error::did_you_mean;
use super::upstreams::UpstreamSections;
use super::{ConfigFinding, SETTINGS, SettingOrigin, SettingValue};

/// Variables of mlgw that are not settings.
const NON_SETTINGS: [&str; 6] = [
    "MLGW_ROOT_ACCESS_KEY_ID",
    "MLGW_ROOT_SECRET_ACCESS_KEY",
    "MLGW_ADMIN_ENDPOINT",
    "MLGW_CLUSTER_TOKEN",
    "MLGW_CONFIG",
    "MLGW_TEST_PREVIOUS_VERSION",
];

/// Adds the values in `variables` to `given`, and their errors to `findings`.
///
/// Kubernetes sets variables such as `MLGW_SERVICE_HOST` in every pod if a service is named mlgw. An unknown
/// name without two consecutive underscores is therefore refused only if it is a likely typing error of a
/// setting.
pub(super) fn read(
    variables: &[(String, String)],
    given: &mut Vec<SettingValue>,
    upstreams: &mut UpstreamSections,
    findings: &mut Vec<ConfigFinding>,
) {
    for (name, text) in variables.iter().filter(|(name, _)| name.starts_with("MLGW_")) {
        let origin = SettingOrigin::Environment(name.clone());
        if let Some(index) = SETTINGS.iter().position(|setting| setting.variable() == *name) {
            given.push(SettingValue { index, text: text.clone(), origin });
        } else if let Some((upstream, setting)) = upstream_setting(name) {
            findings.extend(upstreams.add(&upstream, &setting, text.clone(), origin));
        } else if name.contains("__") || is_likely_typo(name) {
            let names = SETTINGS.iter().map(super::Setting::variable);
            let reason = format!("no such setting{}", did_you_mean(name, names));
            findings.push(ConfigFinding { origin, reason });
        }
    }
}

/// Returns the upstream and its setting that a variable names, in capitals and with `_` for `-`.
fn upstream_setting(name: &str) -> Option<(String, String)> {
    let (upstream, setting) = name.strip_prefix("MLGW_UPSTREAM__")?.split_once("__")?;
    Some((upstream.to_lowercase().replace('_', "-"), setting.to_lowercase()))
}

fn is_likely_typo(name: &str) -> bool {
    let plain = SETTINGS.iter().filter(|s| s.section().is_none()).map(super::Setting::variable);
    !NON_SETTINGS.contains(&name) && plain.into_iter().any(|right| strsim::osa_distance(name, &right) <= 2)
}
