//! The command `mlgw config …`.

use clap::Subcommand;
use mlgw_cli::output::Out;
use mlgw_cli::{CliError, ConfigFile};
use mlgw_config::{ConfigSources, LoadedConfig, MachineSizes, example, list_settings, show};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Show every value and its source: built-in, file and line, environment.
    Show(ConfigFile),
    /// Check a file and list every error with its line.
    Check {
        /// The TOML file.
        file: PathBuf,
    },
    /// Print a commented file with every setting at its default.
    Example,
}

pub(super) fn run(command: ConfigCommand, out: Out) -> Result<(), CliError> {
    match command {
        ConfigCommand::Show(ConfigFile { config }) => {
            let loaded = LoadedConfig::load(&ConfigSources::from_process(config))
                .map_err(|e| CliError::Usage(e.to_string()))?;
            let machine = MachineSizes::detect(&loaded.config.segments_dir());
            let document = list_settings(&loaded, &machine);
            out.document(&document, |_| show(&loaded, &machine))
        }
        ConfigCommand::Check { file } => {
            LoadedConfig::check(&file).map_err(|e| CliError::Failed(e.to_string()))?;
            let sentence = format!("{} is valid.", file.display());
            out.done(&serde_json::json!({ "file": file, "findings": [] }), &sentence)
        }
        ConfigCommand::Example => out.text(&example()),
    }
}
