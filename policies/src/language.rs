//! The policy language: rules in YAML or JSON, parsed, checked, merged and compiled.
//!
//! A file is accepted whole or refused whole, with every error and its position ([`Diagnostic`]). Files of
//! several layers are merged to one [`Program`]. The actions that a program selects for an access
//! ([`Program::due`]) depend on the facts of that access alone. The words of the language are listed in
//! tables; the parser, evaluation, JSON Schema and documentation are all derived from these tables.
//!
//! This module stores nothing: after a power loss a policy is parsed again from where it was applied.

mod access_plan;
mod action_request;
mod actions;
mod built_in;
mod diagnostic;
mod evaluation;
mod facts;
mod file;
mod file_set;
mod findings;
mod framework;
pub mod limits;
mod notes;
mod offline;
mod operators;
mod parser;
mod pattern;
mod print_program;
mod program;
mod properties;
mod reader;
mod recommendation;
mod resolve;
mod rule;
mod schema;
mod settings;
mod tables;
mod template;
mod tree;
mod value;
mod words;

pub use access_plan::{PlanDocument, PlannedKeys};
pub use action_request::{ActionRequest, PrefetchSource, RetentionRequest};
pub use actions::{ActionKind, Aspect, Aspects, Parameter, ParameterRow};
pub use built_in::{BuiltInLayers, DEFAULTS, FRAMEWORKS, recipes};
pub use diagnostic::{Diagnostic, Diagnostics};
pub use evaluation::{ConditionResult, DueAction, PolicyEvaluation, TriedRule};
pub use facts::{Fact, FactList, FactSnapshot, FactView, Facts, NoFacts, fact_of_key};
pub use file::{FrameworkSection, HardwareProfile, ParsedPolicy, SectionOverrides, VERSION};
pub use file_set::{InvalidPolicyFiles, PolicyFileSet};
pub use framework::{Framework, FrameworkEvidence, Hint, is_framework};
pub use offline::{Judgement, KeyFacts, OfflineObject, RuleJudgement};
pub use operators::{Operator, ValueForm};
pub use program::{EffectiveRule, EffectiveSetting, Layer, LayerSource, Layers, Program, Settings};
pub use properties::{ConditionType, PROPERTIES, Property, PropertyRow, properties_of};
pub use recommendation::Recommendation;
pub use resolve::{ConflictResolution, DisplacedAction, DisplacementReason, resolve};
pub use rule::{Action, Condition, Match, Rule, RuleLine, Target};
pub use schema::{framework_schema, schema};
pub use settings::{SETTINGS, Setting, SettingOverride, SettingRow};
pub use tables::language_tables;
pub use template::{Template, TemplateInstance, TemplateParameter};
pub use value::{Value, ValueKind};
pub use words::{
    AccessPattern, CachePolicy, Environment, Evaluation, FileType, Lane, ModelFileKind, Optimization, Phase,
    Priority, Stance, Strategy, Switch, Word,
};

#[cfg(test)]
mod tests;
