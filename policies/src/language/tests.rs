//! Tests of the language as a whole.

use std::sync::LazyLock;

use super::{BuiltInLayers, Environment, Layers, NoFacts, ParsedPolicy, Program};

mod combined_errors;
mod diagnostics;
mod documented;
mod error_positions;
mod evaluation;
mod files;
mod layering;
mod offline;
mod printing;
mod properties;
mod recipes;
mod schema;

fn built_in() -> &'static BuiltInLayers {
    static BUILT_IN: LazyLock<BuiltInLayers> =
        LazyLock::new(|| BuiltInLayers::load().unwrap_or_else(|wrong| panic!("{wrong}")));
    &BUILT_IN
}

fn parse(text: &str) -> ParsedPolicy {
    ParsedPolicy::parse("policy.yaml", text).unwrap_or_else(|wrong| panic!("{wrong}"))
}

fn layers<'a>(custom: &'a [ParsedPolicy], built_in: &'a BuiltInLayers) -> Layers<'a> {
    let environment = Some(Environment::Production);
    Layers { custom, frameworks: &[], environment, machine: &NoFacts, built_in }
}

/// Compiles a text alone, without the built-in layers.
fn alone(text: &str) -> Program {
    let mut none = built_in().clone();
    none.frameworks.clear();
    none.defaults = ParsedPolicy::parse("none.yaml", "version: 1").unwrap();
    Program::compile(&layers(&[parse(text)], &none)).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Compiles a text above the built-in layers.
fn above(text: &str, built_in: &BuiltInLayers) -> Program {
    Program::compile(&layers(&[parse(text)], built_in)).unwrap_or_else(|wrong| panic!("{wrong}"))
}
