//! Options that commands share.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// URL of the admin API. Default: the server that uses the data directory on this host.
    #[arg(long, global = true, env = "MLGW_ADMIN_ENDPOINT", hide_env_values = true, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Output format.
    #[arg(long, global = true, value_enum, default_value_t = OutputForm::Table)]
    pub output: OutputForm,
    /// Do not ask for confirmation.
    #[arg(long, global = true)]
    pub yes: bool,
    /// Print no progress and no confirmations.
    #[arg(long, global = true)]
    pub quiet: bool,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// Aligned columns.
    Table,
    /// JSON.
    Json,
}

/// The configuration file of commands that read one.
#[derive(Clone, Debug, Args)]
pub struct ConfigFile {
    /// TOML file of settings.
    #[arg(long, env = "MLGW_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}
