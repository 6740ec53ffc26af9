//! Log lines to standard error: text, or one JSON object per line.
//!
//! At the default level only the slow-request log and reports of damage concern a single request. The rate of
//! every kind of line is bounded ([`flood`]).

mod flood;

use flood::Flood;
use mlgw_config::{LogFormat, LogLevel};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// Changes the level of a running log.
#[derive(Clone, Debug)]
pub struct LogControl {
    filter: Handle<Targets, Registry>,
    flood: Flood,
}

impl LogControl {
    /// Sets the level.
    pub fn set_level(&self, level: LogLevel) {
        if let Err(error) = self.filter.reload(targets(level)) {
            tracing::error!(%error, "cannot change the log level");
        }
    }

    /// Periodically writes the number of lines that were left out. Never returns.
    pub async fn report_left_out(self) {
        self.flood.report().await;
    }
}

/// Starts the log of this process.
///
/// # Errors
/// When it was started before.
pub fn start(format: LogFormat, level: LogLevel) -> Result<LogControl, TryInitError> {
    let (filter, handle) = reload::Layer::new(targets(level));
    let flood = Flood::new();
    let registry = tracing_subscriber::registry().with(filter).with(flood.clone());
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    }?;
    Ok(LogControl { filter: handle, flood })
}

/// Returns the filter of a level. Libraries are logged only from `warn` up, except at the levels `debug` and
/// `trace`, because their informational lines are meant for their own authors.
fn targets(level: LogLevel) -> Targets {
    let (own, others) = match level {
        LogLevel::Error => (LevelFilter::ERROR, LevelFilter::ERROR),
        LogLevel::Warn => (LevelFilter::WARN, LevelFilter::WARN),
        LogLevel::Info => (LevelFilter::INFO, LevelFilter::WARN),
        LogLevel::Debug => (LevelFilter::DEBUG, LevelFilter::INFO),
        LogLevel::Trace => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    // openraft warns at the ordinary start of a single voter.
    let raft = if others == LevelFilter::WARN { LevelFilter::ERROR } else { others };
    Targets::new().with_default(others).with_target("openraft", raft).with_target("mlgw", own)
}

#[cfg(test)]
mod tests {
    use super::{LogLevel, targets};
    use tracing::Level;

    #[test]
    fn libraries_are_quiet_at_the_default_level() {
        let info = targets(LogLevel::Info);
        assert!(info.would_enable("mlgw::server", &Level::INFO));
        assert!(info.would_enable("mlgw_metadata::raft", &Level::INFO));
        assert!(!info.would_enable("mlgw::s3", &Level::DEBUG));
        assert!(!info.would_enable("hyper::proto", &Level::INFO));
        assert!(targets(LogLevel::Trace).would_enable("hyper::proto", &Level::TRACE));
    }
}
