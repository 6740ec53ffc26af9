//! Policy files as commands read them: a policy or a plugin of a framework, compiled above what comes with the server.

use crate::cli::CliError;
use mlgw_policies::language::{
    BuiltIn, Diagnostics, Environment, Framework, Layers, NoFacts, PolicyFile, Program, is_framework,
};
use std::io;
use std::path::Path;

/// What a file holds.
pub(super) enum Held {
    /// A policy.
    Policy(Box<PolicyFile>),
    /// A plugin.
    Framework(Box<Framework>),
}

impl Held {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Everything that is wrong with it by itself.
    pub(super) fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        if is_framework(text) {
            return Framework::parse(file, text).map(|one| Self::Framework(Box::new(one)));
        }
        PolicyFile::parse(file, text).map(|one| Self::Policy(Box::new(one)))
    }

    /// The program that it makes with what comes with the server.
    ///
    /// # Errors
    /// What is wrong with it there.
    pub(super) fn compile(&self, environment: Option<Environment>) -> Result<Program, Diagnostics> {
        let built_in = BuiltIn::load()?;
        let (custom, frameworks) = match self {
            Self::Policy(policy) => (std::slice::from_ref(&**policy), &[][..]),
            Self::Framework(framework) => (&[][..], std::slice::from_ref(&**framework)),
        };
        Program::compile(&Layers { custom, frameworks, environment, machine: &NoFacts, built_in: &built_in })
    }
}

/// The text of a file.
///
/// # Errors
/// A usage error when there is none; a failure when it cannot be read.
pub(in crate::cli) fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

/// Why a file is not read.
pub(in crate::cli) fn unreadable(path: &Path, error: &io::Error) -> CliError {
    let path = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => CliError::Usage(format!("{path}: there is no such file")),
        io::ErrorKind::InvalidData => CliError::Failed(format!("{path}: it is no text in UTF-8")),
        _ => CliError::Failed(format!("{path}: {error}")),
    }
}

/// The program of a file that has to be right.
///
/// # Errors
/// When it is not, or cannot be read.
pub(super) fn program(path: &Path, environment: Option<Environment>) -> Result<Program, CliError> {
    let (file, text) = (path.display().to_string(), read(path)?);
    let wrong = |wrong: Diagnostics| CliError::Failed(format!("{file} is wrong:\n{wrong}"));
    Held::parse(&file, &text).and_then(|held| held.compile(environment)).map_err(wrong)
}
