//! Files that are to hold together: everything that is wrong with them at once, or the program that they
//! make.
//!
//! The reader tells what is wrong with a file by itself, the compiler what no file shows by itself. What can
//! be read of a wrong file is compiled all the same, so that one look tells both; and what only follows from
//! a mistake that is told is not told.

use super::built_in::BuiltIn;
use super::diagnostic::{Diagnostic, Diagnostics};
use super::facts::Facts;
use super::file::PolicyFile;
use super::framework::Framework;
use super::limits::DIAGNOSTICS_MAX;
use super::notes::Doubts;
use super::program::{Layers, Program};
use super::words::Environment;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Policies and plugins as they were read, each the strongest of those that come after it.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    custom: Vec<PolicyFile>,
    frameworks: Vec<Framework>,
    /// In the order in which they were given, and in which they are told of.
    names: Vec<Arc<str>>,
    wrong: Vec<Diagnostic>,
    /// What may be in those that could not be read, and in those that are beside them.
    lost: Doubts,
    /// There is so much wrong with one of them that not all of it is known.
    is_full: bool,
}

impl Texts {
    /// One more policy that somebody gives.
    pub fn policy(&mut self, name: &str, text: &str) {
        self.add_policy(name, text, false);
    }

    /// One more policy that runs already, or ran before: slips in it are not told that do no harm, as
    /// switches of rules and parameters that are not there any more.
    pub fn stored_policy(&mut self, name: &str, text: &str) {
        self.add_policy(name, text, true);
    }

    fn add_policy(&mut self, name: &str, text: &str, is_stored: bool) {
        let (policy, wrong) = PolicyFile::partial(name, text, is_stored);
        self.note(name, policy.is_some(), wrong);
        self.custom.extend(policy);
    }

    /// One more plugin that somebody gives.
    pub fn framework(&mut self, name: &str, text: &str) {
        self.add_framework(name, text, false);
    }

    /// One more plugin that runs already, or ran before.
    pub fn stored_framework(&mut self, name: &str, text: &str) {
        self.add_framework(name, text, true);
    }

    fn add_framework(&mut self, name: &str, text: &str, is_stored: bool) {
        let (framework, wrong) = Framework::partial(name, text, is_stored);
        self.note(name, framework.is_some(), wrong);
        self.frameworks.extend(framework);
    }

    /// All of `others`, each weaker than those that are here.
    pub fn extend(&mut self, others: &Self) {
        self.custom.extend_from_slice(&others.custom);
        self.frameworks.extend_from_slice(&others.frameworks);
        self.names.extend_from_slice(&others.names);
        self.wrong.extend_from_slice(&others.wrong);
        self.lost.take(&others.lost);
        self.is_full |= others.is_full;
    }

    /// What policies of `others` would give is not missed, though they do not hold here.
    pub fn stand_beside(&mut self, others: &Self) {
        let mut offered = others.lost.clone();
        for file in &others.custom {
            offered.take(&file.notes.doubts);
            file.offer(&mut offered);
        }
        self.lost.take_beside(&offered);
    }

    /// The policies that could be read, some of them in part.
    #[must_use]
    pub fn policies(&self) -> &[PolicyFile] {
        &self.custom
    }

    /// The plugins that could be read, some of them in part.
    #[must_use]
    pub fn frameworks(&self) -> &[Framework] {
        &self.frameworks
    }

    /// Everything that is wrong with them, in the order of the files and of their text.
    #[must_use]
    pub fn wrong(
        &self,
        environment: Option<Environment>,
        machine: &dyn Facts,
        built_in: &BuiltIn,
    ) -> Diagnostics {
        let mut all = self.wrong.clone();
        if !self.is_full {
            all.extend(Program::wrong(&self.layers(environment, machine, built_in), &self.lost));
        }
        let rank = |one: &Diagnostic| self.names.iter().position(|name| *name == one.file);
        all.sort_by_key(|one| (rank(one).unwrap_or(usize::MAX), one.line, one.column));
        // A template is wrong once, however often it is used.
        let mut seen = HashSet::new();
        all.retain(|one| seen.insert((Arc::clone(&one.file), one.line, one.column, one.found.clone())));
        all.truncate(DIAGNOSTICS_MAX * self.names.len().max(1));
        Diagnostics(all)
    }

    /// The program that they make, if they are right to the last.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn compile(
        &self,
        environment: Option<Environment>,
        machine: &dyn Facts,
        built_in: &BuiltIn,
    ) -> Result<Program, Diagnostics> {
        match self.wrong(environment, machine, built_in) {
            wrong if wrong.0.is_empty() => Program::compile(&self.layers(environment, machine, built_in)),
            wrong => Err(wrong),
        }
    }

    fn layers<'a>(
        &'a self,
        environment: Option<Environment>,
        machine: &'a dyn Facts,
        built_in: &'a BuiltIn,
    ) -> Layers<'a> {
        Layers { custom: &self.custom, frameworks: &self.frameworks, environment, machine, built_in }
    }

    fn note(&mut self, name: &str, is_read: bool, wrong: Diagnostics) {
        self.names.push(name.into());
        self.is_full |= wrong.0.len() >= DIAGNOSTICS_MAX;
        self.wrong.extend(wrong.0);
        if !is_read {
            self.lost.anything();
        }
    }
}

/// Files that make no program, with everything that is wrong with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong(pub Diagnostics);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut files: Vec<_> = self.0.0.iter().map(|one| &*one.file).collect();
        files.sort_unstable();
        files.dedup();
        match files[..] {
            [file] => write!(f, "{file} is wrong:\n{}", self.0),
            _ => write!(f, "{} files are wrong:\n{}", files.len(), self.0),
        }
    }
}
