//! The policy language: rules in YAML or JSON, parsed, checked, merged and compiled.
//!
//! A file is accepted whole or refused whole, with every error and its position ([`Diagnostic`]). Files of
//! several layers are merged to one [`Program`]. The actions that a program selects for an access
//! ([`Program::due`]) depend on the facts of that access alone. The words of the language are listed in
//! tables; the parser, evaluation, JSON Schema and documentation are all derived from these tables.
//!
//! This module stores nothing: after a power loss a policy is parsed again from where it was applied.

mod access_plan;
mod actions;
mod built_in;
mod diagnostic;
mod facts;
mod file;
mod framework;
pub mod limits;
mod notes;
mod offline;
mod operators;
mod pattern;
mod printed;
mod program;
mod properties;
mod reader;
mod recommendation;
mod resolve;
mod rule;
mod schema;
mod settings;
mod show;
mod template;
mod tree;
mod value;
mod verdict;
mod whole;
mod wish;
mod words;

pub use access_plan::{PlanDocument, PlannedKeys};
pub use actions::{ActionKind, Aspect, Aspects, Parameter, ParameterRow};
pub use built_in::{BuiltIn, DEFAULTS, FRAMEWORKS, recipes};
pub use diagnostic::{Diagnostic, Diagnostics};
pub use facts::{Fact, FactList, Facts, NoFacts, TakenFacts, ToldFacts, fact_of_key};
pub use file::{FrameworkSection, HardwareProfile, Overrides, PolicyFile, VERSION};
pub use framework::{Detect, Framework, Hint, is_framework};
pub use offline::{Judged, Judgement, KeyFacts, KnownOfKey};
pub use operators::{Operator, Shape};
pub use printed::printed;
pub use program::{EffectiveRule, EffectiveSetting, Layer, Layers, Program, Settings, Source};
pub use properties::{ConditionType, PROPERTIES, Property, PropertyRow, properties_of};
pub use recommendation::Recommendation;
pub use resolve::{Lost, Resolved, Why, resolve};
pub use rule::{Action, Condition, Line, Match, Rule, Target};
pub use schema::{framework_schema, schema};
pub use settings::{Given, SETTINGS, Setting, SettingRow};
pub use template::{Template, TemplateParameter, Use};
pub use value::{Kind, Value};
pub use verdict::{Due, Seen, Tried, Verdict};
pub use whole::{Texts, Wrong};
pub use wish::{Next, Retain, Wish};
pub use words::{
    AccessPattern, CachePolicy, Environment, Evaluation, FileType, Lane, ModelFileKind, Optimization, Phase,
    Priority, Stance, Strategy, Switch, Tier, Word,
};

#[cfg(test)]
mod tests;
