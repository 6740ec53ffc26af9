//! The reload of the configuration on SIGHUP, of the settings that can change while any server runs.
//!
//! A configuration that is not valid is refused as a whole, and the old one remains in effect.

use super::logging::LogControl;
use arc_swap::ArcSwap;
use mlgw_config::{Config, ConfigSources, LoadedConfig};
use mlgw_listener::tls::Certificate;
use mlgw_telemetry::GatewayMetrics;
use std::sync::Arc;

/// Parts of every server whose settings can change while it runs.
pub(super) struct ReloadedParts<'a> {
    pub(super) log: &'a LogControl,
    pub(super) metrics: &'a GatewayMetrics,
    pub(super) certificate: Option<&'a Certificate>,
}

impl ReloadedParts<'_> {
    /// Reads the configuration again and applies it. `apply_further` applies what only this kind of server
    /// has.
    pub(super) fn reload(
        &self,
        loaded: &ArcSwap<LoadedConfig>,
        sources: &ConfigSources,
        apply_further: impl FnOnce(&Config),
    ) {
        let newer = match LoadedConfig::load(sources) {
            Ok(newer) => newer,
            Err(error) => {
                tracing::error!(%error, "new configuration refused; the old one remains in effect");
                return;
            }
        };
        let current = loaded.load();
        let needs_restart = current.needs_restart(&newer);
        let adopted = current.with_live_settings_of(&newer);
        self.log.set_level(adopted.config.log.level);
        self.metrics.slow_log.set_threshold(adopted.config.log.slow_request_ms);
        self.metrics.access_log.set_one_in(adopted.config.access_log.one_in);
        apply_further(&adopted.config);
        loaded.store(Arc::new(adopted));
        if let Some(Err(error)) = self.certificate.map(Certificate::reload) {
            tracing::error!(%error, "new certificate refused; the old one remains in effect");
        }
        tracing::info!(?needs_restart, "configuration reloaded");
    }
}
