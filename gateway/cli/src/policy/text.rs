//! Reads policy files of the command line and compiles them above the built-in policy.

use crate::CliError;
use crate::word_arg::word_of;
use clap::Args;
use mlgw_formats::schema::PolicyFile as Text;
use mlgw_lab::scenario::SimulationError;
use mlgw_policies::language::{
    BuiltInLayers, Environment, InvalidPolicyFiles, NoFacts, PolicyFileSet, Program, Word as _, is_framework,
};
use std::io;
use std::path::{Path, PathBuf};

/// Layers below a tested policy.
#[derive(Debug, Default, Args)]
pub(super) struct LowerLayerArgs {
    /// Framework plugins in addition to the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub(super) framework: Vec<PathBuf>,
    /// Environment of the server.
    #[arg(long, value_parser = word_of(Environment::ALL, Environment::name), value_name = "NAME")]
    pub(super) environment: Option<Environment>,
}

/// Reads the text of a file.
///
/// # Errors
/// A usage error when the file does not exist; a failure when it cannot be read.
pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

/// Reads the texts of files, named by their given paths.
///
/// # Errors
/// Those of [`read`].
pub(super) fn texts(paths: &[PathBuf]) -> Result<Vec<Text>, CliError> {
    let text = |path: &PathBuf| Ok(Text { name: path.display().to_string(), text: read(path)? });
    paths.iter().map(text).collect()
}

/// Returns the error of a file that cannot be read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> CliError {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => CliError::Usage(format!("{path}: no such file")),
        io::ErrorKind::InvalidData => CliError::Failed(format!("{path}: not valid UTF-8")),
        _ => CliError::Failed(format!("{path}: {error}")),
    }
}

/// Compiles files that must be valid: a policy or a plugin, if given, above the layers of `beneath`.
///
/// # Errors
/// When the files are invalid, or cannot be read.
pub(super) fn program(path: Option<&PathBuf>, beneath: &LowerLayerArgs) -> Result<Program, CliError> {
    let file = texts(path.map(std::slice::from_ref).unwrap_or_default())?;
    let (mut frameworks, custom): (Vec<_>, Vec<_>) =
        file.into_iter().partition(|one| is_framework(&one.text));
    frameworks.extend(texts(&beneath.framework)?);
    let mut files = PolicyFileSet::default();
    custom.iter().for_each(|file| files.submit_policy(&file.name, &file.text));
    frameworks.iter().for_each(|file| files.submit_framework(&file.name, &file.text));
    let built_in = BuiltInLayers::load().map_err(|wrong| CliError::Failed(wrong.to_string()))?;
    let program = files.compile(beneath.environment, &NoFacts, &built_in).map_err(InvalidPolicyFiles);
    program.map_err(|wrong| CliError::Failed(wrong.to_string()))
}

impl From<SimulationError> for CliError {
    fn from(error: SimulationError) -> Self {
        match error {
            SimulationError::InvalidRequest(why) => Self::Usage(why),
            SimulationError::Trace(_) | SimulationError::Stopped | SimulationError::Failed(_) => {
                Self::Failed(error.to_string())
            }
        }
    }
}
