//! Compiler of policy layers to one program: each rule and setting is taken from the strongest layer that has
//! it.
//!
//! Layers, the strongest first: custom files, their sections about the environment, their sections about the
//! machine, framework plugins, built-in defaults. A rule replaces all rules with its id in weaker layers as a
//! whole; a rule with `enabled: false` removes them.

use super::action_request::ActionRequest;
use super::actions::ActionKind;
use super::built_in::BuiltInLayers;
use super::diagnostic::{Diagnostic, Diagnostics, TextPosition};
use super::facts::{Facts, NoFacts};
use super::file::{FrameworkSection, ParsedPolicy};
use super::framework::{Framework, Hint};
use super::limits::{DIAGNOSTICS_MAX, INSTANCES_BYTES_MAX, RULES_MAX};
use super::notes::PossibleDefinitions;
use super::rule::{Action, Rule};
use super::settings::SettingOverride;
use super::template::{Template, TemplateInstance};
use super::words::{CachePolicy, Environment, Phase, Stance, Word as _, words};
use crate::learned_bounds::LearnedBounds;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

mod effective;
mod references;
mod values;

pub use effective::EffectiveRule;
pub use values::{EffectiveSetting, Settings};

words! {
    /// Layer of a rule or setting, the strongest first.
    Layer {
        /// A file that a person applied.
        Custom = "custom",
        /// The section of such a file about the environment.
        Environment = "environment",
        /// The section of such a file about machines like this one.
        Hardware = "hardware",
        /// A framework plugin.
        Framework = "framework",
        /// Built into the server.
        BuiltIn = "built-in",
    }
}

/// Location at which a rule or setting is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSource {
    /// The layer.
    pub layer: Layer,
    /// Name of the file.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
}

impl fmt::Display for LayerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name must fit on one line, whatever characters it has.
        let file: String = self.file.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        write!(f, "{file}:{}", self.line)
    }
}

/// Input of the compiler.
#[derive(Clone, Copy)]
pub struct Layers<'a> {
    /// Files that a person applied, the strongest first.
    pub custom: &'a [ParsedPolicy],
    /// Plugins that a person applied; each replaces a built-in plugin with the same name.
    pub frameworks: &'a [Framework],
    /// Environment of the server, if it is configured.
    pub environment: Option<Environment>,
    /// Facts about the machine, for hardware profiles.
    pub machine: &'a dyn Facts,
    /// The weakest layers.
    pub built_in: &'a BuiltInLayers,
}

/// A compiled policy.
#[derive(Clone, Debug)]
pub struct Program {
    rules: Vec<EffectiveRule>,
    /// Rules that a layer switched off. The definition is known if it is in a custom layer itself; otherwise
    /// the rule is only a switch.
    switched_off: Vec<(Rule, LayerSource)>,
    settings: Settings,
    frameworks: Vec<Framework>,
    /// Names of frameworks that are not detected, because a file disables them.
    disabled_frameworks: Vec<Box<str>>,
    /// Bit set of the action kinds that a rule carries out, not only reports.
    acting_kinds: u32,
    /// True if copies are kept in LRU order in any phase or by any rule.
    has_lru_copies: bool,
    /// Bounds learned from measured outcomes.
    learnt: Arc<LearnedBounds>,
}

const _: () = assert!(ActionKind::ALL.len() <= u32::BITS as usize);

/// Compares rules and settings, wherever they are defined and whatever was learned since.
impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        let off =
            |program: &Self| program.switched_off.iter().map(|(rule, _)| rule.id.clone()).collect::<Vec<_>>();
        self.rules == other.rules
            && self.settings == other.settings
            && self.disabled_frameworks == other.disabled_frameworks
            && off(self) == off(other)
    }
}

/// Author of a section's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleAuthor {
    /// The rules are built in.
    Project,
    User,
}

/// Rules and settings of one section of one layer.
struct LayerSection<'a> {
    layer: Layer,
    file: &'a Arc<str>,
    author: RuleAuthor,
    rules: Vec<Rule>,
    settings: &'a [SettingOverride],
}

impl Program {
    /// Compiles the built-in layers alone.
    ///
    /// # Errors
    /// Never, as a test checks: all files are embedded at compile time.
    pub fn compile_built_in() -> Result<Self, Diagnostics> {
        Self::compile_above_built_in(&[])
    }

    /// Compiles `custom` files above the built-in layers, without an environment and without facts about the
    /// machine.
    ///
    /// # Errors
    /// All errors that only the files together show.
    pub fn compile_above_built_in(custom: &[ParsedPolicy]) -> Result<Self, Diagnostics> {
        let built_in = &BuiltInLayers::load()?;
        Self::compile(&Layers { custom, frameworks: &[], environment: None, machine: &NoFacts, built_in })
    }

    /// Compiles the layers.
    ///
    /// # Errors
    /// All errors that no file shows alone: unknown templates and frameworks, instances that do not fit their
    /// template, too many rules.
    pub fn compile(layers: &Layers<'_>) -> Result<Self, Diagnostics> {
        let mut compiler = Compiler::new(layers);
        let parts = compiler.sections();
        let program = compiler.program(parts);
        match compiler.diagnostics {
            wrong if wrong.is_empty() => Ok(program),
            wrong => Err(Diagnostics(wrong)),
        }
    }

    /// Returns the errors of files that may have been read in part, without those that the reader already
    /// reported: the errors of [`Self::compile`], and references to missing definitions in every section.
    /// Definitions of unreadable files that may exist are passed, too, so that they are not reported as
    /// missing.
    pub(super) fn errors(layers: &Layers<'_>, unreadable: &PossibleDefinitions) -> Vec<Diagnostic> {
        let mut compiler = Compiler::new(layers);
        compiler.doubts.merge(unreadable);
        let parts = compiler.sections();
        compiler.check_inactive_sections();
        compiler.check_ineffective_rules();
        compiler.check_switches(&parts);
        compiler.program(parts);
        compiler.diagnostics
    }

    /// Returns the rules, in the order in which they are tried.
    #[must_use]
    pub fn rules(&self) -> &[EffectiveRule] {
        &self.rules
    }

    /// Returns the rules that are switched off, and where. The definition of most is not known, only the id.
    #[must_use]
    pub fn switched_off(&self) -> &[(Rule, LayerSource)] {
        &self.switched_off
    }

    /// True if a rule carries out actions of this kind, not only reports them. If false, rules need not be
    /// evaluated for it. Costs one bit test.
    #[must_use]
    pub const fn has_acting(&self, kind: ActionKind) -> bool {
        self.acting_kinds & 1 << kind as u32 != 0
    }

    /// True if copies are kept in LRU order in any phase or by any rule that acts. If false, rules need not
    /// be evaluated for it. Costs one load.
    #[must_use]
    pub const fn has_lru_copies(&self) -> bool {
        self.has_lru_copies
    }

    /// Returns the effective settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the learned bounds.
    #[must_use]
    pub fn learnt(&self) -> &LearnedBounds {
        &self.learnt
    }

    /// Replaces the learned bounds.
    #[must_use]
    pub fn with_learnt(self, learnt: LearnedBounds) -> Self {
        Self { learnt: Arc::new(learnt), ..self }
    }

    /// Returns the frameworks that are detected.
    #[must_use]
    pub fn frameworks(&self) -> &[Framework] {
        &self.frameworks
    }

    /// Returns the names of frameworks that are not detected, because a file disables them.
    #[must_use]
    pub fn disabled_frameworks(&self) -> &[Box<str>] {
        &self.disabled_frameworks
    }

    /// Returns the frameworks for which the key, first bytes and user agent give enough evidence, with their
    /// confidence.
    pub fn detect<'p>(
        &'p self,
        key: &str,
        first_bytes: Option<&[u8]>,
        user_agent: Option<&str>,
    ) -> impl Iterator<Item = (&'p str, f64)> {
        let enough = self.settings.detection_confidence();
        self.frameworks
            .iter()
            .map(move |one| (&*one.name, one.detect.confidence(key, first_bytes, user_agent)))
            .filter(move |(_, confidence)| *confidence > 0.0 && *confidence >= enough)
    }

    /// True if a detected framework has a pattern of kind `hint` that matches `key`.
    #[must_use]
    pub fn has_hint(&self, hint: Hint, key: &str) -> bool {
        self.frameworks.iter().any(|one| one.has_hint(hint, key))
    }
}

struct Compiler<'a> {
    layers: &'a Layers<'a>,
    frameworks: Vec<&'a Framework>,
    templates: Vec<&'a Template>,
    /// Bytes left for instances of templates.
    bytes_left: usize,
    /// Definitions that may exist although they could not be read.
    doubts: PossibleDefinitions,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Compiler<'a> {
    fn new(layers: &'a Layers<'a>) -> Self {
        let mut names = HashSet::new();
        let frameworks = layers.frameworks.iter().chain(&layers.built_in.frameworks);
        let frameworks: Vec<_> =
            frameworks.filter(|one| one.name.is_empty() || names.insert(&*one.name)).collect();
        let templates = layers
            .custom
            .iter()
            .flat_map(|file| &file.templates)
            .chain(frameworks.iter().flat_map(|one| &one.templates))
            .chain(&layers.built_in.defaults.templates)
            .collect();
        let mut doubts = PossibleDefinitions::default();
        layers.custom.iter().for_each(|file| doubts.merge(&file.notes.doubts));
        layers.frameworks.iter().for_each(|one| doubts.merge(&one.notes.doubts));
        let (room, diagnostics) = (INSTANCES_BYTES_MAX, Vec::new());
        Self { layers, frameworks, templates, bytes_left: room, doubts, diagnostics }
    }

    /// Returns the sections that apply, the strongest first.
    fn sections(&mut self) -> Vec<LayerSection<'a>> {
        let layers = self.layers;
        let mut parts = Vec::new();
        for file in layers.custom {
            parts.push(self.file_section(file, Layer::Custom));
        }
        for file in layers.custom {
            let here = file.environments.iter().filter(|(name, _)| Some(*name) == layers.environment);
            parts.extend(here.map(|(_, overrides)| LayerSection {
                layer: Layer::Environment,
                file: &file.file,
                author: RuleAuthor::User,
                rules: overrides.rules.clone(),
                settings: &overrides.settings,
            }));
        }
        for file in layers.custom {
            let fits = |condition: &super::rule::Condition| condition.holds(layers.machine).1;
            let here = file.hardware_profiles.iter().filter(|one| one.conditions.iter().all(fits));
            parts.extend(here.map(|profile| LayerSection {
                layer: Layer::Hardware,
                file: &file.file,
                author: RuleAuthor::User,
                rules: profile.overrides.rules.clone(),
                settings: &profile.overrides.settings,
            }));
        }
        for framework in self.enabled_frameworks() {
            let built_in = self.layers.built_in.frameworks.iter().any(|one| std::ptr::eq(one, framework));
            let rules = self.with_instances(
                &framework.file,
                &framework.rules,
                &framework.instances,
                Some(&framework.name).filter(|name| !name.is_empty()).map(|name| &**name),
            );
            if !built_in && !framework.notes.is_stored() {
                self.check_deletions(framework, &rules);
            }
            parts.push(LayerSection {
                layer: Layer::Framework,
                file: &framework.file,
                author: if built_in { RuleAuthor::Project } else { RuleAuthor::User },
                rules,
                settings: &[],
            });
        }
        parts.push(self.file_section(&layers.built_in.defaults, Layer::BuiltIn));
        parts
    }

    fn file_section(&mut self, file: &'a ParsedPolicy, layer: Layer) -> LayerSection<'a> {
        let mut rules = self.with_instances(&file.file, &file.base.rules, &file.instances, None);
        for section in &file.frameworks {
            let path = format!("frameworks.{}", section.name);
            let spot = TextPosition { line: section.line, column: section.column };
            let is_there = self.check_framework(&file.file, &section.name, spot, path);
            // The framework of the section is reported once, not again for each of its rules.
            let is_reported = |rule: &Rule| !is_there && rule.framework.as_ref() == Some(&section.name);
            let rules_of = section.rules.iter().cloned();
            rules.extend(
                rules_of.map(|rule| if is_reported(&rule) { Rule { framework: None, ..rule } } else { rule }),
            );
        }
        self.check_ids(&file.file, &rules);
        let author = if layer == Layer::BuiltIn { RuleAuthor::Project } else { RuleAuthor::User };
        LayerSection { layer, file: &file.file, author, rules, settings: &file.base.settings }
    }

    /// Returns rules together with the rules of template instances.
    fn with_instances(
        &mut self,
        file: &str,
        rules: &[Rule],
        uses: &[TemplateInstance],
        framework: Option<&str>,
    ) -> Vec<Rule> {
        let mut rules = rules.to_vec();
        for one in uses {
            let mut more = one.rules(
                file,
                &self.templates,
                &mut self.bytes_left,
                &mut self.doubts,
                &mut self.diagnostics,
            );
            for rule in &mut more {
                if let Some(framework) = framework {
                    rule.framework.get_or_insert_with(|| framework.into());
                }
            }
            // An instance without an id makes no rules, but the references of its rules are checked.
            if one.id.is_empty() {
                more.drain(..).for_each(|rule| self.check_framework_of(file, &rule));
            }
            rules.append(&mut more);
            if self.diagnostics.len() >= DIAGNOSTICS_MAX {
                break;
            }
            if rules.len() > RULES_MAX {
                self.report(file, one.line(), format!("more than {RULES_MAX} rules"), String::new());
                break;
            }
        }
        rules
    }

    /// Returns the plugins that are enabled. The strongest file with a section about a plugin decides.
    fn enabled_frameworks(&self) -> Vec<&'a Framework> {
        self.frameworks.iter().copied().filter(|one| self.is_enabled(one)).collect()
    }

    fn is_enabled(&self, framework: &Framework) -> bool {
        let sections = self.layers.custom.iter().flat_map(|file| &file.frameworks);
        let mut sections = sections.filter(|section| section.name == framework.name);
        sections.next().is_none_or(|section: &FrameworkSection| section.enabled)
    }

    /// True if so many errors are recorded that further missing references are not searched.
    fn is_full(&self) -> bool {
        self.diagnostics.len() >= DIAGNOSTICS_MAX
    }

    fn report(&mut self, file: &str, line: u32, found: String, expected: String) {
        let (file, path) = (file.into(), String::new());
        self.diagnostics.push(Diagnostic { file, line, column: 1, path, expected, found, nearest: None });
    }

    fn program(&mut self, parts: Vec<LayerSection<'a>>) -> Program {
        let settings = Settings::merge(parts.iter().map(|part| (part.layer, part.file, part.settings)));
        let (mut rules, mut off, mut seen) = (Vec::new(), Vec::<(Rule, LayerSource)>::new(), HashSet::new());
        let mut switches = HashMap::<Box<str>, usize>::new();
        for part in parts {
            for rule in part.rules {
                self.check_framework_of(part.file, &rule);
                let rule = with_stances(rule, part.author);
                if !seen.insert(rule.id.clone()) {
                    // A custom layer below the switch has the only definition of the rule, so it is kept for
                    // display.
                    let is_definition = part.layer < Layer::Framework && !rule.is_switch();
                    if let Some(at) = is_definition.then(|| switches.remove(&rule.id)).flatten() {
                        off[at].0 = Rule { enabled: false, ..rule };
                    }
                    continue;
                }
                let source =
                    LayerSource { layer: part.layer, file: Arc::clone(part.file), line: rule.line.0 };
                if rule.enabled {
                    rules.push(EffectiveRule::new(rule, source));
                } else {
                    if rule.is_switch() {
                        switches.insert(rule.id.clone(), off.len());
                    }
                    off.push((rule, source));
                }
            }
        }
        if rules.len() > RULES_MAX {
            let file = self.layers.custom.first().map_or("", |file| &*file.file);
            let found = format!("{} rules", rules.len());
            self.report(file, 1, found, format!("at most {RULES_MAX} in all layers together"));
        }
        rules.sort_by(|a, b| b.rule.priority.cmp(&a.rule.priority).then_with(|| a.rule.id.cmp(&b.rule.id)));
        off.sort_by(|a, b| a.0.id.cmp(&b.0.id));
        let (looked_for, ignored): (Vec<&Framework>, Vec<_>) =
            self.frameworks.iter().partition(|one| self.is_enabled(one));
        let frameworks = looked_for.into_iter().cloned().collect();
        let mut ignored: Vec<_> = ignored.into_iter().map(|one| one.name.clone()).collect();
        ignored.sort();
        let actions = rules.iter().flat_map(|rule: &EffectiveRule| &rule.rule.actions);
        let acting = actions.filter(|action| action.stance == Some(Stance::Act));
        let acting = acting.fold(0, |all, action| all | 1 << action.kind as u32);
        let keeps_recent = has_lru_copies(&settings, &rules);
        let learnt = Arc::default();
        Program {
            rules,
            switched_off: off,
            settings,
            frameworks,
            disabled_frameworks: ignored,
            acting_kinds: acting,
            has_lru_copies: keeps_recent,
            learnt,
        }
    }
}

fn has_lru_copies(settings: &Settings, rules: &[EffectiveRule]) -> bool {
    let is_lru = |(action, request): (&Action, &ActionRequest)| {
        let is_lru =
            matches!(request, ActionRequest::Copy { keep: true, policy: Some(CachePolicy::Lru), .. });
        is_lru && action.stance == Some(Stance::Act)
    };
    let mut phases = std::iter::once(None).chain(Phase::ALL.iter().copied().map(Some));
    phases.any(|phase| settings.cache(phase) == CachePolicy::Lru)
        || rules.iter().flat_map(EffectiveRule::actions).any(is_lru)
}

/// Sets the stance of each action: its own, otherwise the rule's, otherwise the default of the rule's author.
fn with_stances(mut rule: Rule, author: RuleAuthor) -> Rule {
    for action in &mut rule.actions {
        let default = match author {
            RuleAuthor::Project if action.kind.is_person_only() => Stance::Observe,
            RuleAuthor::Project | RuleAuthor::User => Stance::Act,
        };
        action.stance = Some(action.stance.or(rule.stance).unwrap_or(default));
    }
    rule.stance = None;
    rule
}
