//! Policy files as commands read them, compiled above what comes with the server.

use crate::CliError;
use clap::Args;
use mlgw_formats::schema::PolicyFile as Text;
use mlgw_lab::rehearsal::RehearsalError;
use mlgw_policies::language::{
    BuiltIn, Environment, NoFacts, Program, Texts, Word as _, Wrong, is_framework,
};
use std::io;
use std::path::{Path, PathBuf};

/// What holds beneath a policy that is tried.
#[derive(Debug, Default, Args)]
pub(super) struct BeneathArgs {
    /// Plugins of frameworks that are to hold beside those that come with a server.
    #[arg(long, value_name = "FILE")]
    pub(super) framework: Vec<PathBuf>,
    /// Where the server is to run: development, staging or production.
    #[arg(long, value_parser = environment, value_name = "NAME")]
    pub(super) environment: Option<Environment>,
}

fn environment(word: &str) -> Result<Environment, String> {
    let words = || Environment::WORDS.join(", ");
    Environment::of(word).ok_or_else(|| format!("there are {}", words()))
}

/// The text of a file.
///
/// # Errors
/// A usage error when there is none; a failure when it cannot be read.
pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

/// The texts of files, under the names that they were given by.
///
/// # Errors
/// As [`read`].
pub(super) fn texts(paths: &[PathBuf]) -> Result<Vec<Text>, CliError> {
    let text = |path: &PathBuf| Ok(Text { name: path.display().to_string(), text: read(path)? });
    paths.iter().map(text).collect()
}

/// Why a file is not read.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> CliError {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => CliError::Usage(format!("{path}: there is no such file")),
        io::ErrorKind::InvalidData => CliError::Failed(format!("{path}: it is no text in UTF-8")),
        _ => CliError::Failed(format!("{path}: {error}")),
    }
}

/// The program of files that have to be right: a policy or a plugin, if one is given, above what is beneath it.
///
/// # Errors
/// When they are not, or cannot be read.
pub(super) fn program(path: Option<&PathBuf>, beneath: &BeneathArgs) -> Result<Program, CliError> {
    let file = texts(path.map(std::slice::from_ref).unwrap_or_default())?;
    let (mut frameworks, custom): (Vec<_>, Vec<_>) =
        file.into_iter().partition(|one| is_framework(&one.text));
    frameworks.extend(texts(&beneath.framework)?);
    let mut files = Texts::default();
    custom.iter().for_each(|file| files.policy(&file.name, &file.text));
    frameworks.iter().for_each(|file| files.framework(&file.name, &file.text));
    let built_in = BuiltIn::load().map_err(|wrong| CliError::Failed(wrong.to_string()))?;
    let program = files.compile(beneath.environment, &NoFacts, &built_in).map_err(Wrong);
    program.map_err(|wrong| CliError::Failed(wrong.to_string()))
}

impl From<RehearsalError> for CliError {
    fn from(error: RehearsalError) -> Self {
        match error {
            RehearsalError::Asked(why) => Self::Usage(why),
            RehearsalError::Trace(_) | RehearsalError::Stopped | RehearsalError::Failed(_) => {
                Self::Failed(error.to_string())
            }
        }
    }
}
