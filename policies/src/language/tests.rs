//! Tests of the language as a whole.

use std::sync::LazyLock;

use super::{BuiltIn, Environment, Layers, NoFacts, PolicyFile, Program};

mod at_once;
mod diagnostics;
mod documented;
mod evaluation;
mod files;
mod layering;
mod offline;
mod printing;
mod properties;
mod recipes;
mod schema;
mod slips;

fn built_in() -> &'static BuiltIn {
    static BUILT_IN: LazyLock<BuiltIn> =
        LazyLock::new(|| BuiltIn::load().unwrap_or_else(|wrong| panic!("{wrong}")));
    &BUILT_IN
}

fn parse(text: &str) -> PolicyFile {
    PolicyFile::parse("policy.yaml", text).unwrap_or_else(|wrong| panic!("{wrong}"))
}

fn layers<'a>(custom: &'a [PolicyFile], built_in: &'a BuiltIn) -> Layers<'a> {
    let environment = Some(Environment::Production);
    Layers { custom, frameworks: &[], environment, machine: &NoFacts, built_in }
}

/// Compiles a text alone, without the built-in layers.
fn alone(text: &str) -> Program {
    let mut none = built_in().clone();
    none.frameworks.clear();
    none.defaults = PolicyFile::parse("none.yaml", "version: 1").unwrap();
    Program::compile(&layers(&[parse(text)], &none)).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Compiles a text above the built-in layers.
fn above(text: &str, built_in: &BuiltIn) -> Program {
    Program::compile(&layers(&[parse(text)], built_in)).unwrap_or_else(|wrong| panic!("{wrong}"))
}
