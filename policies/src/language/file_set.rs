//! Sets of files that are checked together: all their errors at once, or the program that they make.
//!
//! The reader reports the errors of a single file, the compiler those that only several files show. The
//! readable parts of a wrong file are compiled, too, so that one run reports both. An error that only follows
//! from another reported error is not reported.

use super::built_in::BuiltInLayers;
use super::diagnostic::{Diagnostic, Diagnostics};
use super::facts::Facts;
use super::file::ParsedPolicy;
use super::framework::Framework;
use super::limits::DIAGNOSTICS_MAX;
use super::notes::{FileOrigin, PossibleDefinitions};
use super::program::{Layers, Program};
use super::words::Environment;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Policies and plugins as read from their texts, the strongest first.
#[derive(Clone, Debug, Default)]
pub struct PolicyFileSet {
    custom: Vec<ParsedPolicy>,
    frameworks: Vec<Framework>,
    /// Names of the files, in the order in which they were added, which is also the order of reports.
    names: Vec<Arc<str>>,
    errors: Vec<Diagnostic>,
    /// Definitions that unreadable files and files beside this set may have.
    unreadable: PossibleDefinitions,
    /// True if a file has so many errors that not all are known.
    is_full: bool,
}

impl PolicyFileSet {
    /// Adds a policy that is submitted by a person.
    pub fn submit_policy(&mut self, name: &str, text: &str) {
        self.add_policy(name, text, FileOrigin::Submitted);
    }

    /// Adds a policy that is already in force. Harmless errors in it are not reported, such as switches of
    /// rules or parameters that no longer exist.
    pub fn add_stored_policy(&mut self, name: &str, text: &str) {
        self.add_policy(name, text, FileOrigin::Stored);
    }

    fn add_policy(&mut self, name: &str, text: &str, origin: FileOrigin) {
        let (policy, wrong) = ParsedPolicy::parse_partially(name, text, origin);
        self.record_errors(name, wrong);
        if policy.is_none() {
            self.unreadable.add_any();
        }
        self.custom.extend(policy);
    }

    /// Adds a plugin that is submitted by a person.
    pub fn submit_framework(&mut self, name: &str, text: &str) {
        self.add_framework(name, text, FileOrigin::Submitted);
    }

    /// Adds a plugin that is already in force.
    pub fn add_stored_framework(&mut self, name: &str, text: &str) {
        self.add_framework(name, text, FileOrigin::Stored);
    }

    fn add_framework(&mut self, name: &str, text: &str, origin: FileOrigin) {
        let (framework, wrong) = Framework::parse_partially(name, text, origin);
        self.record_errors(name, wrong);
        if framework.is_none() {
            self.unreadable.add_any();
        }
        self.frameworks.extend(framework);
    }

    /// Adds all files of `others`, each weaker than those of this set.
    pub fn extend(&mut self, others: &Self) {
        self.custom.extend_from_slice(&others.custom);
        self.frameworks.extend_from_slice(&others.frameworks);
        self.names.extend_from_slice(&others.names);
        self.errors.extend_from_slice(&others.errors);
        self.unreadable.merge(&others.unreadable);
        self.is_full |= others.is_full;
    }

    /// Adds the definitions of `others`: references to them are not reported as missing, although the files
    /// are not part of this set.
    pub fn add_definitions_of(&mut self, others: &Self) {
        let mut offered = others.unreadable.clone();
        for file in &others.custom {
            offered.merge(&file.notes.doubts);
            file.add_definitions_to(&mut offered);
        }
        self.unreadable.merge_other_files(&offered);
    }

    /// Returns the policies that could be read, some of them in part.
    #[must_use]
    pub fn policies(&self) -> &[ParsedPolicy] {
        &self.custom
    }

    /// Returns the plugins that could be read, some of them in part.
    #[must_use]
    pub fn frameworks(&self) -> &[Framework] {
        &self.frameworks
    }

    /// Returns all errors, in the order of the files and of their text.
    #[must_use]
    pub fn errors(
        &self,
        environment: Option<Environment>,
        machine: &dyn Facts,
        built_in: &BuiltInLayers,
    ) -> Diagnostics {
        let mut all = self.errors.clone();
        if !self.is_full {
            all.extend(Program::errors(&self.layers(environment, machine, built_in), &self.unreadable));
        }
        let rank = |one: &Diagnostic| self.names.iter().position(|name| *name == one.file);
        all.sort_by_key(|one| (rank(one).unwrap_or(usize::MAX), one.line, one.column));
        // An error in a template is reported once, however many instances it has.
        let mut seen = HashSet::new();
        all.retain(|one| seen.insert((Arc::clone(&one.file), one.line, one.column, one.found.clone())));
        all.truncate(DIAGNOSTICS_MAX * self.names.len().max(1));
        Diagnostics(all)
    }

    /// Compiles the program if there is no error.
    ///
    /// # Errors
    /// All errors of the files.
    pub fn compile(
        &self,
        environment: Option<Environment>,
        machine: &dyn Facts,
        built_in: &BuiltInLayers,
    ) -> Result<Program, Diagnostics> {
        match self.errors(environment, machine, built_in) {
            wrong if wrong.0.is_empty() => Program::compile(&self.layers(environment, machine, built_in)),
            wrong => Err(wrong),
        }
    }

    fn layers<'a>(
        &'a self,
        environment: Option<Environment>,
        machine: &'a dyn Facts,
        built_in: &'a BuiltInLayers,
    ) -> Layers<'a> {
        Layers { custom: &self.custom, frameworks: &self.frameworks, environment, machine, built_in }
    }

    fn record_errors(&mut self, name: &str, wrong: Diagnostics) {
        self.names.push(name.into());
        self.is_full |= wrong.0.len() >= DIAGNOSTICS_MAX;
        self.errors.extend(wrong.0);
    }
}

/// Invalid files, with all their errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPolicyFiles(pub Diagnostics);

impl fmt::Display for InvalidPolicyFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut files: Vec<_> = self.0.0.iter().map(|one| &*one.file).collect();
        files.sort_unstable();
        files.dedup();
        match files[..] {
            [file] => write!(f, "{file} is invalid:\n{}", self.0),
            _ => write!(f, "{} files are invalid:\n{}", files.len(), self.0),
        }
    }
}
