//! The command `mlgw serve`.

use clap::Args;
use mlgw_cli::{CliError, ConfigFile};
use mlgw_config::{ConfigSources, LoadedConfig};
use mlgw_server::ServeError;

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Directory of all data of the server.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Address of the S3 API.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Address of the admin API.
    #[arg(long, value_name = "HOST:PORT")]
    admin_listen: Option<String>,
    /// Address of probes and metrics, if separate from the admin API.
    #[arg(long, value_name = "HOST:PORT")]
    metrics_listen: Option<String>,
    /// Format of log lines: text or json.
    #[arg(long, value_name = "FORM")]
    log_format: Option<String>,
}

impl ServeArgs {
    /// Returns the given flags as settings: setting, flag and value.
    pub(super) fn flags(&self) -> Vec<(&'static str, &'static str, String)> {
        [
            ("data_dir", "--data-dir", &self.data_dir),
            ("s3.listen", "--listen", &self.listen),
            ("admin.listen", "--admin-listen", &self.admin_listen),
            ("metrics.listen", "--metrics-listen", &self.metrics_listen),
            ("log.format", "--log-format", &self.log_format),
        ]
        .into_iter()
        .filter_map(|(key, flag, value)| Some((key, flag, value.clone()?)))
        .collect()
    }
}

pub(super) fn run(args: ServeArgs) -> Result<(), CliError> {
    let flags = args.flags();
    let sources = ConfigSources { flags, ..ConfigSources::from_process(args.file.config) };
    let loaded = LoadedConfig::load(&sources).map_err(|e| CliError::Usage(e.to_string()))?;
    mlgw_server::run(loaded, sources).map_err(|error| match error {
        ServeError::DataDir(mlgw_store::node_file::DataDirError::InUse { .. }) => {
            CliError::Refused(error.to_string())
        }
        _ => CliError::Failed(error.to_string()),
    })
}
