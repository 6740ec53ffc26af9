//! Policy files: the fields of the top level, read and checked as far as the file alone allows.

use super::diagnostic::{Diagnostics, TextPosition};
use super::findings::Findings;
use super::limits::{FILE_RULES_MAX, RULES_MAX};
use super::notes::{FileNotes, FileOrigin, PossibleDefinitions, RuleSwitch};
use super::operators::{CompiledComparison, Operator};
use super::parser;
use super::properties::{ConditionType, property_of};
use super::reader::{Fields, LocatedNode, is_valid_name};
use super::rule::{Condition, ParsedRule, Rule};
use super::settings::{Setting, SettingOverride};
use super::template::{Template, TemplateInstance};
use super::tree::NodeData;
use super::value::ValueKind;
use super::words::{Environment, Word};
use std::collections::HashSet;
use std::sync::Arc;

/// A policy as read from a file.
#[derive(Clone, Debug)]
pub struct ParsedPolicy {
    /// Name of the file, for messages.
    pub file: Arc<str>,
    /// Name for readers; without effect.
    pub name: Option<Box<str>>,
    /// Description for readers; without effect.
    pub description: Option<Box<str>>,
    /// Settings and rules without further conditions.
    pub base: SectionOverrides,
    /// Templates, for use in this file and in others.
    pub templates: Vec<Template>,
    /// Instances of templates.
    pub instances: Vec<TemplateInstance>,
    /// Sections that apply where a framework is detected.
    pub frameworks: Vec<FrameworkSection>,
    /// Sections that apply in an environment.
    pub environments: Vec<(Environment, SectionOverrides)>,
    /// Sections that apply on machines of a kind.
    pub hardware_profiles: Vec<HardwareProfile>,
    /// Sections of unknown environments.
    pub(super) unknown_environments: Vec<SectionOverrides>,
    pub(super) notes: FileNotes,
}

/// Settings and rules of one section.
#[derive(Clone, Debug, Default)]
pub struct SectionOverrides {
    /// Settings.
    pub settings: Vec<SettingOverride>,
    /// Rules.
    pub rules: Vec<Rule>,
}

/// Section of a policy about a framework.
#[derive(Clone, Debug)]
pub struct FrameworkSection {
    /// Name of the framework.
    pub name: Box<str>,
    /// True if the framework is detected at all.
    pub enabled: bool,
    /// Rules that are tried only where the framework is detected.
    pub rules: Vec<Rule>,
    pub(super) line: u32,
    pub(super) column: u32,
}

/// Section of a policy about machines of a kind.
#[derive(Clone, Debug)]
pub struct HardwareProfile {
    /// Name of the profile.
    pub name: Box<str>,
    /// Conditions on the machine; all must hold.
    pub conditions: Vec<Condition>,
    /// Settings and rules that then apply.
    pub overrides: SectionOverrides,
}

/// Version of the language.
pub const VERSION: u32 = 1;

/// Fields of a policy file.
pub(super) const FILE_FIELDS: &[&str] = &[
    "version",
    "name",
    "description",
    "settings",
    "rules",
    "templates",
    "use",
    "frameworks",
    "environments",
    "hardware_profiles",
];

impl ParsedPolicy {
    /// Parses YAML or JSON; messages call the file `file`.
    ///
    /// # Errors
    /// All errors of the file.
    pub fn parse(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let (policy, wrong) = Self::parse_partially(file, text, FileOrigin::Submitted);
        wrong.result(policy)
    }

    /// Parses as much of the file as possible and returns it with all errors.
    pub(super) fn parse_partially(file: &str, text: &str, origin: FileOrigin) -> (Option<Self>, Diagnostics) {
        let mut findings = Findings::new(file);
        findings.notes.origin = origin;
        let node = parser::parse(text, &mut findings);
        let policy = node.and_then(|node| Self::read(&LocatedNode::root(&node), &mut findings));
        (policy, findings.into_diagnostics())
    }

    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = top_level_fields(place, FILE_FIELDS, findings)?;
        read_version(&fields, findings);
        let mut policy = Self {
            file: Arc::clone(&findings.file),
            name: fields.text("name", findings),
            description: fields.text("description", findings),
            base: SectionOverrides::read(&fields, findings),
            templates: read_templates(&fields, findings),
            instances: read_instances(&fields, findings),
            frameworks: fields.all("frameworks").flat_map(|at| read_frameworks(&at, findings)).collect(),
            environments: Vec::new(),
            hardware_profiles: fields
                .all("hardware_profiles")
                .flat_map(|at| read_profiles(&at, findings))
                .collect(),
            unknown_environments: Vec::new(),
            notes: FileNotes::default(),
        };
        fields.all("environments").for_each(|at| policy.read_environments(&at, findings));
        policy.notes = std::mem::take(&mut findings.notes);
        Some(policy)
    }

    fn read_environments(&mut self, place: &LocatedNode<'_>, findings: &mut Findings) {
        for (name, spot, at) in named_sections(place, findings) {
            let environment = Environment::from_word(name);
            if environment.is_none() {
                let words = Environment::WORDS.iter().copied();
                let near = super::diagnostic::nearest(name, words.clone());
                let found = format!("unknown environment {}", super::diagnostic::quoted(name));
                findings.add(spot, &at.path(), found, super::diagnostic::one_of(words), near);
            }
            let Some(fields) = section_fields(&at, OVERRIDE_FIELDS, findings) else { continue };
            let overrides = SectionOverrides::read(&fields, findings);
            match environment {
                Some(environment) => self.environments.push((environment, overrides)),
                None => self.unknown_environments.push(overrides),
            }
        }
    }
}

impl ParsedPolicy {
    /// Returns the sections about environments and machines, whether they apply to this server or not.
    pub(super) fn sections(&self) -> impl Iterator<Item = &SectionOverrides> {
        let of_environments = self.environments.iter().map(|(_, overrides)| overrides);
        let of_machines = self.hardware_profiles.iter().map(|profile| &profile.overrides);
        of_environments.chain(of_machines).chain(&self.unknown_environments)
    }

    /// Adds all ids to `doubts` to which other files can refer, without further checks.
    pub(super) fn add_definitions_to(&self, doubts: &mut PossibleDefinitions) {
        let sections = self.frameworks.iter().flat_map(|section| &section.rules);
        let rules = self.base.rules.iter().chain(sections);
        let rules = rules.chain(self.sections().flat_map(|overrides| &overrides.rules));
        rules.filter(|rule| !rule.is_switch()).for_each(|rule| doubts.rules.add(Some(&rule.id)));
        self.instances.iter().for_each(|one| doubts.rules.add_prefix(&one.id));
        self.templates.iter().for_each(|one| doubts.templates.add(Some(&one.id)));
    }
}

/// Returns the fields of the top level. Unknown fields are not read, but their ids are recorded, because
/// other files can refer to them.
pub(super) fn top_level_fields<'a>(
    place: &'a LocatedNode<'a>,
    known: &[&str],
    findings: &mut Findings,
) -> Option<Fields<'a>> {
    let fields = Fields::checked(place, known, findings)?;
    fields.unknown_values().for_each(|node| findings.notes.doubts.add_unread(node));
    Some(fields)
}

pub(super) fn read_version(fields: &Fields<'_>, findings: &mut Findings) {
    let Some(at) = fields.required("version", findings) else { return };
    let expected = VERSION.to_string();
    if findings.scalar(&at, &expected).is_some_and(|scalar| *scalar.text != *expected) {
        findings.report_wrong(&at, "is not a supported version", expected);
    }
}

pub(super) fn read_templates(fields: &Fields<'_>, findings: &mut Findings) -> Vec<Template> {
    let mut seen = HashSet::new();
    let mut templates = Vec::new();
    for place in fields.all("templates") {
        for item in definition_items(&place, findings) {
            let Some(template) = Template::read(&item, findings) else {
                findings.notes.doubts.add_unread(item.node);
                continue;
            };
            if template.id.is_empty() {
                findings.notes.doubts.templates.add(None);
            } else if seen.insert(template.id.clone()) {
                templates.push(template);
            } else {
                report_duplicate(&item, &template.id, findings);
            }
        }
    }
    templates
}

/// Returns the items of a list of definitions. Ids of skipped items and additional ids of an item are
/// recorded, because a reference can mean them.
fn definition_items<'a>(place: &'a LocatedNode<'a>, findings: &mut Findings) -> Vec<LocatedNode<'a>> {
    let items = findings.items(place, RULES_MAX);
    match &place.node.data {
        NodeData::List(all) => {
            all.iter().skip(items.len()).for_each(|node| findings.notes.doubts.add_unread(node))
        }
        _ => findings.notes.doubts.add_unread(place.node),
    }
    let others = items.iter().filter(|item| item.ids().nth(1).is_some());
    others.for_each(|item| findings.notes.doubts.add_unread(item.node));
    items
}

pub(super) fn read_instances(fields: &Fields<'_>, findings: &mut Findings) -> Vec<TemplateInstance> {
    let mut seen = HashSet::new();
    let mut uses = Vec::new();
    for place in fields.all("use") {
        for (index, item) in definition_items(&place, findings).iter().enumerate() {
            let Some(mut one) = TemplateInstance::read(index, item, findings) else {
                findings.notes.doubts.add_unread(item.node);
                continue;
            };
            if one.id.is_empty() {
                findings.notes.doubts.rules.add(None);
            } else if !seen.insert(one.id.clone()) {
                report_duplicate(item, &one.id, findings);
                one.id = Box::default();
            }
            uses.push(one);
        }
    }
    uses
}

/// Reads rules, each with a unique id.
pub(super) fn read_rules(place: &LocatedNode<'_>, findings: &mut Findings) -> Vec<Rule> {
    let mut seen = HashSet::new();
    let mut rules = Vec::new();
    let items = definition_items(place, findings);
    findings.rules += items.len();
    if findings.rules > FILE_RULES_MAX {
        findings.report_wrong(
            place,
            "has too many rules",
            format!("at most {FILE_RULES_MAX} rules in a file"),
        );
        findings.notes.doubts.add_unread(place.node);
        return rules;
    }
    for item in items {
        let Some(read) = Rule::read(&item, findings) else {
            findings.notes.doubts.add_unread(item.node);
            continue;
        };
        if read.rule.id.is_empty() {
            findings.notes.doubts.rules.add(None);
            findings.notes.ineffective_rules.push(read.rule);
        } else if !seen.insert(read.rule.id.clone()) {
            report_duplicate(&item, &read.rule.id, findings);
            findings.notes.ineffective_rules.push(read.rule);
        } else {
            rules.push(record_rule(read, findings));
        }
    }
    rules
}

/// Records a rule that is a switch or that has errors.
fn record_rule(read: ParsedRule, findings: &mut Findings) -> Rule {
    let ParsedRule { rule, is_valid: is_right, is_switch, id_at: (path, spot) } = read;
    if is_switch {
        findings.notes.switches.push(RuleSwitch { id: rule.id.clone(), spot, path });
    } else if !is_right {
        findings.notes.doubts.rules.add(Some(&rule.id));
    }
    rule
}

fn report_duplicate(place: &LocatedNode<'_>, id: &str, findings: &mut Findings) {
    let found = format!("duplicate id {id:?}");
    findings.add(place.node.spot, &place.path(), found, "each id once".to_owned(), None);
}

impl SectionOverrides {
    fn read(fields: &Fields<'_>, findings: &mut Findings) -> Self {
        Self {
            settings: fields.all("settings").flat_map(|at| read_settings(&at, findings)).collect(),
            rules: fields.all("rules").flat_map(|at| read_rules(&at, findings)).collect(),
        }
    }
}

fn read_settings(place: &LocatedNode<'_>, findings: &mut Findings) -> Vec<SettingOverride> {
    let mut settings = Vec::new();
    for (word, spot, at) in findings.entries(place) {
        let Some((setting, member)) = setting_of(word, spot, &at, findings) else { continue };
        let row = setting.row();
        if let Some(value) = findings.value_within(&at, row.kind, row.range) {
            settings.push(SettingOverride { setting, member, value, line: spot.line });
        }
    }
    settings
}

/// Returns the setting with that word, or the one that was clearly meant, and its member.
fn setting_of(
    word: &str,
    spot: TextPosition,
    place: &LocatedNode<'_>,
    findings: &mut Findings,
) -> Option<(Setting, Option<&'static str>)> {
    if let Some(found) = Setting::from_word(word) {
        return Some(found);
    }
    let words: Vec<_> = Setting::words().collect();
    let words = || words.iter().map(String::as_str);
    let found = format!("unknown setting {}", super::diagnostic::quoted(word));
    let rows = super::settings::SETTINGS.iter().map(|row| row.word);
    let near = super::diagnostic::nearest(word, words());
    findings.add(spot, &place.path(), found, super::diagnostic::one_of(rows), near);
    Setting::from_word(super::diagnostic::clearly_meant(word, words())?)
}

fn read_frameworks(place: &LocatedNode<'_>, findings: &mut Findings) -> Vec<FrameworkSection> {
    let mut sections = Vec::new();
    for (name, spot, at) in named_sections(place, findings) {
        let Some(fields) = section_fields(&at, &["enabled", "rules"], findings) else { continue };
        let enabled = fields.get("enabled").and_then(|at| findings.flag(&at)).unwrap_or(true);
        let mut rules = fields.all("rules").flat_map(|at| read_rules(&at, findings)).collect::<Vec<_>>();
        for rule in &mut rules {
            rule.framework.get_or_insert_with(|| name.into());
        }
        let (line, column) = (spot.line, spot.column);
        sections.push(FrameworkSection { name: name.into(), enabled, rules, line, column });
    }
    sections
}

/// Returns the named sections of a field whose sections have rules.
fn named_sections<'a>(
    place: &'a LocatedNode<'a>,
    findings: &mut Findings,
) -> Vec<(&'a str, TextPosition, LocatedNode<'a>)> {
    if !matches!(place.node.data, NodeData::Map(_)) {
        findings.notes.doubts.add_unread(place.node);
    }
    findings.entries(place)
}

/// Returns the fields of a section that has rules.
fn section_fields<'a>(
    place: &'a LocatedNode<'a>,
    known: &[&str],
    findings: &mut Findings,
) -> Option<Fields<'a>> {
    let fields = Fields::checked(place, known, findings);
    match &fields {
        Some(fields) => fields.unknown_values().for_each(|node| findings.notes.doubts.add_unread(node)),
        None => findings.notes.doubts.add_unread(place.node),
    }
    fields
}

/// Fields of an environment.
pub(super) const OVERRIDE_FIELDS: &[&str] = &["settings", "rules"];
/// Fields of a hardware profile.
pub(super) const PROFILE_FIELDS: &[&str] = &["conditions", "settings", "rules"];

fn read_profiles(place: &LocatedNode<'_>, findings: &mut Findings) -> Vec<HardwareProfile> {
    let mut profiles = Vec::new();
    for (name, spot, at) in named_sections(place, findings) {
        if !is_valid_name(name) {
            let found = format!("{} is not a valid name", super::diagnostic::quoted(name));
            findings.add(spot, &at.path(), found, "letters, digits, '-', '_' and '.'".to_owned(), None);
        }
        let Some(fields) = section_fields(&at, PROFILE_FIELDS, findings) else { continue };
        let wanted = fields.required("conditions", findings);
        let conditions = wanted.map(|at| read_comparisons(&at, findings)).unwrap_or_default();
        let overrides = SectionOverrides::read(&fields, findings);
        profiles.push(HardwareProfile { name: name.into(), conditions, overrides });
    }
    profiles
}

fn read_comparisons(place: &LocatedNode<'_>, findings: &mut Findings) -> Vec<Condition> {
    let all = findings.entries(place);
    if matches!(&place.node.data, NodeData::Map(entries) if entries.is_empty()) {
        findings.report_wrong(place, "would match every machine", "at least one condition".to_owned());
    }
    all.iter().filter_map(|(word, _, at)| read_comparison(word, at, findings)).collect()
}

/// Comparison signs of hardware profiles, the longer ones first.
const SIGNS: &[(&str, Operator)] = &[
    (">=", Operator::GreaterOrEqual),
    ("<=", Operator::LessOrEqual),
    ("!=", Operator::NotEquals),
    (">", Operator::GreaterThan),
    ("<", Operator::LessThan),
    ("=", Operator::Equals),
];

/// Reads a comparison of a hardware profile, such as `gpu_count: ">= 8"`.
fn read_comparison(word: &str, place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Condition> {
    const EXPECTED: &str = "a sign (>=, <=, !=, >, < or =) and a value";
    let of = ConditionType::SystemContext;
    let Some((row, name)) = property_of(of, word) else {
        let words: Vec<_> = super::properties::properties_of(of).map(|row| row.word).collect();
        findings.report_unknown_word(place, word, "system_context property", &words);
        return None;
    };
    let text = findings.scalar(place, EXPECTED)?.text.trim();
    let (operator, rest) = SIGNS
        .iter()
        .find_map(|(sign, operator)| Some((*operator, text.strip_prefix(sign)?.trim_start())))
        .unwrap_or((Operator::Equals, text));
    if operator.value_form(row.kind).is_none() {
        findings.report_wrong(
            place,
            &format!("does not fit {word}, which is {}", row.kind.name()),
            EXPECTED.to_owned(),
        );
        return None;
    }
    let Some(value) = row.kind.parse(rest).filter(|_| row.kind != ValueKind::List) else {
        findings.report_wrong(
            place,
            "is not a comparison",
            format!("{EXPECTED}: {}", row.kind.expected_form()),
        );
        return None;
    };
    let test = CompiledComparison::new(operator, &value)?;
    Some(Condition {
        condition_type: of,
        property: row.property,
        name: name.into(),
        operator,
        value,
        weight: 1.0,
        comparison: test,
    })
}
