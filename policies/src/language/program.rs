//! Layers of policy become one program: each rule and setting from the strongest layer that has it, ready to
//! be evaluated.
//!
//! Strongest first: custom files, what they say of the environment, what they say of the machine, plugins of
//! frameworks, built-in defaults. A rule replaces those of its id in weaker layers whole; one with `enabled:
//! false` takes them out.

use super::actions::ActionKind;
use super::built_in::BuiltIn;
use super::diagnostic::{Diagnostic, Diagnostics};
use super::facts::{Facts, NoFacts};
use super::file::{FrameworkSection, PolicyFile};
use super::framework::{Framework, Hint};
use super::limits::{DIAGNOSTICS_MAX, INSTANCES_BYTES_MAX, RULES_MAX};
use super::notes::Doubts;
use super::rule::{Action, Rule};
use super::settings::Given;
use super::template::{Template, Use};
use super::wish::Wish;
use super::words::{CachePolicy, Environment, Phase, Stance, Word as _, words};
use crate::learning::Learnt;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

mod effective;
mod references;
mod values;

pub use effective::EffectiveRule;
pub use values::{EffectiveSetting, Settings};

words! {
    /// Where a rule or setting comes from, strongest first.
    Layer {
        /// A file that a person applied.
        Custom = "custom",
        /// What such a file says of the environment.
        Environment = "environment",
        /// What such a file says of machines like this one.
        Hardware = "hardware",
        /// A plugin.
        Framework = "framework",
        /// The server.
        BuiltIn = "built-in",
    }
}

/// Where a rule or setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The layer.
    pub layer: Layer,
    /// The file's name.
    pub file: Arc<str>,
    /// The line, from 1.
    pub line: u32,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name is shown on one line whatever it holds.
        let file: String = self.file.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        write!(f, "{file}:{}", self.line)
    }
}

/// What a program is compiled from.
#[derive(Clone, Copy)]
pub struct Layers<'a> {
    /// Files that a person applied, the strongest first.
    pub custom: &'a [PolicyFile],
    /// The person's own plugins; one takes the place of a built-in one of its name.
    pub frameworks: &'a [Framework],
    /// Where the server runs, if that is said.
    pub environment: Option<Environment>,
    /// What is known about the machine, for hardware profiles.
    pub machine: &'a dyn Facts,
    /// The weakest layers.
    pub built_in: &'a BuiltIn,
}

/// A policy ready to be evaluated.
#[derive(Clone, Debug)]
pub struct Program {
    rules: Vec<EffectiveRule>,
    /// Rules that a layer has taken out; what they would be, where no weaker layer but a person's own says
    /// it.
    off: Vec<(Rule, Source)>,
    settings: Settings,
    frameworks: Vec<Framework>,
    /// Names of frameworks that are not looked for.
    ignored: Vec<Box<str>>,
    /// A bit for each kind of action that a rule does, and does not only say.
    acting: u32,
    /// Whether somewhere copies are kept by how recently they were read.
    keeps_recent: bool,
    /// Bounds that have moved by what was measured.
    learnt: Arc<Learnt>,
}

const _: () = assert!(ActionKind::ALL.len() <= u32::BITS as usize);

/// The same rules and settings, wherever they come from and whatever was learnt since.
impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        let off = |program: &Self| program.off.iter().map(|(rule, _)| rule.id.clone()).collect::<Vec<_>>();
        self.rules == other.rules
            && self.settings == other.settings
            && self.ignored == other.ignored
            && off(self) == off(other)
    }
}

/// What one place of one layer gives.
struct Part<'a> {
    layer: Layer,
    file: &'a Arc<str>,
    built_in: bool,
    rules: Vec<Rule>,
    settings: &'a [Given],
}

impl Program {
    /// What holds where nobody has said anything.
    ///
    /// # Errors
    /// Never, a test says: everything is there at compile time.
    pub fn built_in() -> Result<Self, Diagnostics> {
        Self::above_built_in(&[])
    }

    /// What holds where somebody has written these files, and nothing else is known.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn above_built_in(custom: &[PolicyFile]) -> Result<Self, Diagnostics> {
        let built_in = &BuiltIn::load()?;
        Self::compile(&Layers { custom, frameworks: &[], environment: None, machine: &NoFacts, built_in })
    }

    /// Compiles layers.
    ///
    /// # Errors
    /// What no file shows by itself: templates and frameworks that do not exist, instances that do not fit
    /// their template, too many rules.
    pub fn compile(layers: &Layers<'_>) -> Result<Self, Diagnostics> {
        let mut compiler = Compiler::new(layers);
        let parts = compiler.parts();
        let program = compiler.program(parts);
        match compiler.diagnostics {
            wrong if wrong.is_empty() => Ok(program),
            wrong => Err(Diagnostics(wrong)),
        }
    }

    /// Everything that is wrong with files that may have been read in part, but for what the reader has told:
    /// what [`Self::compile`] would tell, and references to nothing wherever they stand. What is `lost` was
    /// not read at all, so anything may be in it.
    pub(super) fn wrong(layers: &Layers<'_>, lost: &Doubts) -> Vec<Diagnostic> {
        let mut compiler = Compiler::new(layers);
        compiler.doubts.take(lost);
        let parts = compiler.parts();
        compiler.check_idle();
        compiler.check_stray();
        compiler.check_switches(&parts);
        compiler.program(parts);
        compiler.diagnostics
    }

    /// The rules, in the order in which they are tried.
    #[must_use]
    pub fn rules(&self) -> &[EffectiveRule] {
        &self.rules
    }

    /// Rules that are taken out, and by whom; of most only the id is known.
    #[must_use]
    pub fn off(&self) -> &[(Rule, Source)] {
        &self.off
    }

    /// Whether a rule does such a thing where it matches, and does not only say so: where none does, nobody
    /// need be asked. Costs nothing.
    #[must_use]
    pub const fn acts(&self, kind: ActionKind) -> bool {
        self.acting & 1 << kind as u32 != 0
    }

    /// Whether copies are kept as LRU keeps them, in any phase or where any rule matches that acts: where
    /// none are, nobody need be asked. Costs nothing.
    #[must_use]
    pub const fn keeps_recent(&self) -> bool {
        self.keeps_recent
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What was learnt of it.
    #[must_use]
    pub fn learnt(&self) -> &Learnt {
        &self.learnt
    }

    /// The same with other bounds.
    #[must_use]
    pub fn with_learnt(self, learnt: Learnt) -> Self {
        Self { learnt: Arc::new(learnt), ..self }
    }

    /// The frameworks that are looked for.
    #[must_use]
    pub fn frameworks(&self) -> &[Framework] {
        &self.frameworks
    }

    /// Names of frameworks that are not looked for, because a file says so.
    #[must_use]
    pub fn ignored_frameworks(&self) -> &[Box<str>] {
        &self.ignored
    }

    /// The frameworks that key, first bytes and user agent speak for, with the confidence that they reach.
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

    /// Whether a framework that is looked for says that a key is what `hint` says.
    #[must_use]
    pub fn hints_at(&self, hint: Hint, key: &str) -> bool {
        self.frameworks.iter().any(|one| one.hints_at(hint, key))
    }
}

struct Compiler<'a> {
    layers: &'a Layers<'a>,
    frameworks: Vec<&'a Framework>,
    templates: Vec<&'a Template>,
    /// Bytes that instances of templates may still come to.
    room: usize,
    /// What may be there, though it could not be read.
    doubts: Doubts,
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
        let mut doubts = Doubts::default();
        layers.custom.iter().for_each(|file| doubts.take(&file.notes.doubts));
        layers.frameworks.iter().for_each(|one| doubts.take(&one.notes.doubts));
        let (room, diagnostics) = (INSTANCES_BYTES_MAX, Vec::new());
        Self { layers, frameworks, templates, room, doubts, diagnostics }
    }

    /// What each place gives, strongest first.
    fn parts(&mut self) -> Vec<Part<'a>> {
        let layers = self.layers;
        let mut parts = Vec::new();
        for file in layers.custom {
            parts.push(self.file(file, Layer::Custom, false));
        }
        for file in layers.custom {
            let here = file.environments.iter().filter(|(name, _)| Some(*name) == layers.environment);
            parts.extend(here.map(|(_, overrides)| Part {
                layer: Layer::Environment,
                file: &file.file,
                built_in: false,
                rules: overrides.rules.clone(),
                settings: &overrides.settings,
            }));
        }
        for file in layers.custom {
            let fits = |condition: &super::rule::Condition| condition.holds(layers.machine).1;
            let here = file.hardware_profiles.iter().filter(|one| one.conditions.iter().all(fits));
            parts.extend(here.map(|profile| Part {
                layer: Layer::Hardware,
                file: &file.file,
                built_in: false,
                rules: profile.overrides.rules.clone(),
                settings: &profile.overrides.settings,
            }));
        }
        for framework in self.enabled() {
            let built_in = self.layers.built_in.frameworks.iter().any(|one| std::ptr::eq(one, framework));
            let rules = self.with_uses(
                &framework.file,
                &framework.rules,
                &framework.uses,
                Some(&framework.name).filter(|name| !name.is_empty()).map(|name| &**name),
            );
            if !built_in && !framework.notes.is_stored {
                self.check_deletions(framework, &rules);
            }
            parts.push(Part {
                layer: Layer::Framework,
                file: &framework.file,
                built_in,
                rules,
                settings: &[],
            });
        }
        parts.push(self.file(&layers.built_in.defaults, Layer::BuiltIn, true));
        parts
    }

    fn file(&mut self, file: &'a PolicyFile, layer: Layer, built_in: bool) -> Part<'a> {
        let mut rules = self.with_uses(&file.file, &file.everywhere.rules, &file.uses, None);
        for section in &file.frameworks {
            let path = format!("frameworks.{}", section.name);
            let is_there =
                self.check_framework(&file.file, &section.name, (section.line, section.column), path);
            // What is told of the section is not told of each of its rules.
            let told = |rule: &Rule| !is_there && rule.framework.as_ref() == Some(&section.name);
            let rules_of = section.rules.iter().cloned();
            rules.extend(
                rules_of.map(|rule| if told(&rule) { Rule { framework: None, ..rule } } else { rule }),
            );
        }
        self.check_ids(&file.file, &rules);
        Part { layer, file: &file.file, built_in, rules, settings: &file.everywhere.settings }
    }

    /// Rules and those of the instances.
    fn with_uses(&mut self, file: &str, rules: &[Rule], uses: &[Use], framework: Option<&str>) -> Vec<Rule> {
        let mut rules = rules.to_vec();
        for one in uses {
            let mut more =
                one.rules(file, &self.templates, &mut self.room, (&mut self.doubts, &mut self.diagnostics));
            for rule in &mut more {
                if let Some(framework) = framework {
                    rule.framework.get_or_insert_with(|| framework.into());
                }
            }
            // What has no id of its own makes no rules, but what these refer to is looked for.
            if one.id.is_empty() {
                more.drain(..).for_each(|rule| self.check_framework_of(file, &rule));
            }
            rules.append(&mut more);
            if self.diagnostics.len() >= DIAGNOSTICS_MAX {
                break;
            }
            if rules.len() > RULES_MAX {
                self.wrong(file, one.line(), format!("more than {RULES_MAX} rules"), String::new());
                break;
            }
        }
        rules
    }

    /// Plugins but those that the strongest file that speaks of them turns off.
    fn enabled(&self) -> Vec<&'a Framework> {
        self.frameworks.iter().copied().filter(|one| self.is_enabled(one)).collect()
    }

    fn is_enabled(&self, framework: &Framework) -> bool {
        let sections = self.layers.custom.iter().flat_map(|file| &file.frameworks);
        let mut sections = sections.filter(|section| section.name == framework.name);
        sections.next().is_none_or(|section: &FrameworkSection| section.enabled)
    }

    /// Whether so much is wrong that no more references to nothing are told.
    fn is_full(&self) -> bool {
        self.diagnostics.len() >= DIAGNOSTICS_MAX
    }

    fn wrong(&mut self, file: &str, line: u32, found: String, expected: String) {
        let (file, path) = (file.into(), String::new());
        self.diagnostics.push(Diagnostic { file, line, column: 1, path, expected, found, nearest: None });
    }

    fn program(&mut self, parts: Vec<Part<'a>>) -> Program {
        let settings = Settings::of(parts.iter().map(|part| (part.layer, part.file, part.settings)));
        let (mut rules, mut off, mut seen) = (Vec::new(), Vec::<(Rule, Source)>::new(), HashSet::new());
        let mut switches = HashMap::<Box<str>, usize>::new();
        for part in parts {
            for rule in part.rules {
                self.check_framework_of(part.file, &rule);
                let rule = with_stances(rule, part.built_in);
                if !seen.insert(rule.id.clone()) {
                    // What it would be that a file switches off nobody else knows, if a person wrote it.
                    let tells = part.layer < Layer::Framework && !rule.is_switch();
                    if let Some(at) = tells.then(|| switches.remove(&rule.id)).flatten() {
                        off[at].0 = Rule { enabled: false, ..rule };
                    }
                    continue;
                }
                let source = Source { layer: part.layer, file: Arc::clone(part.file), line: rule.line.0 };
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
            self.wrong(file, 1, found, format!("at most {RULES_MAX} of all layers"));
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
        let keeps_recent = keeps_recent(&settings, &rules);
        let learnt = Arc::default();
        Program { rules, off, settings, frameworks, ignored, acting, keeps_recent, learnt }
    }
}

fn keeps_recent(settings: &Settings, rules: &[EffectiveRule]) -> bool {
    let is_lru = |(action, wish): (&Action, &Wish)| {
        let is_lru = matches!(wish, Wish::Copy { keep: true, policy: Some(CachePolicy::Lru), .. });
        is_lru && action.stance == Some(Stance::Act)
    };
    let mut phases = std::iter::once(None).chain(Phase::ALL.iter().copied().map(Some));
    phases.any(|phase| settings.cache(phase) == CachePolicy::Lru)
        || rules.iter().flat_map(EffectiveRule::actions).any(is_lru)
}

/// Says of each action whether it acts: as it says itself, as its rule says, or as its layer does.
fn with_stances(mut rule: Rule, built_in: bool) -> Rule {
    for action in &mut rule.actions {
        let of_layer = if built_in && action.kind.is_for_a_person() { Stance::Observe } else { Stance::Act };
        action.stance = Some(action.stance.or(rule.stance).unwrap_or(of_layer));
    }
    rule.stance = None;
    rule
}
