//! Templates: rules with placeholders `${name}` in any value, and instances of them.
//!
//! A value that consists of `${name}` alone becomes the parameter itself, with its kind. Within a longer text
//! the parameter is inserted as text. Between `{` and `}` of YAML a placeholder must be quoted, because its
//! brace would end the map. The result is read like any other rule, so a template can express nothing that a
//! rule cannot.

use super::actions::Parameter;
use super::diagnostic::{Diagnostic, TextPosition, clearly_meant, nearest};
use super::findings::Findings;
use super::limits::{INSTANCES_BYTES_MAX, PARAMETERS_MAX, RULES_MAX};
use super::notes::{FileOrigin, PossibleDefinitions};
use super::reader::{Fields, LocatedNode, is_valid_name};
use super::rule::{Action, FieldLocation, ParsedRule, Rule, RuleLine};
use super::tree::{DocumentEntry, DocumentNode, NodeData, Scalar};
use super::value::{Value, ValueKind};
use super::words::Word as _;
use std::sync::Arc;

/// A template as read from a file.
#[derive(Clone, Debug)]
pub struct Template {
    /// Id by which instances refer to the template.
    pub id: Box<str>,
    /// Name for readers; without effect.
    pub name: Option<Box<str>>,
    /// Description for readers; without effect.
    pub description: Option<Box<str>>,
    /// Category in a word, for readers.
    pub category: Option<Box<str>>,
    /// Parameters that instances give.
    pub parameters: Vec<TemplateParameter>,
    /// Names of parameters that could not be read.
    unread: Vec<Box<str>>,
    /// True if the names of all parameters are known, so that another name is an error.
    is_whole: bool,
    rules: DocumentNode,
    /// True if the file is already in force.
    origin: FileOrigin,
    /// True if the template is a plugin's. Its rules delete only what an instance requests.
    pub(super) is_from_plugin: bool,
    file: Arc<str>,
}

/// A parameter of a template.
#[derive(Clone, Debug)]
pub struct TemplateParameter {
    /// Name, as between `${` and `}`.
    pub name: Box<str>,
    /// Kind of its values.
    pub kind: ValueKind,
    /// Value if an instance gives none.
    pub default: Option<Value>,
    /// Description for readers; without effect.
    pub description: Option<Box<str>>,
    /// True if every instance must give the parameter.
    pub required: bool,
}

/// An instance of a template, not expanded yet, because the template can be in another file.
#[derive(Clone, Debug)]
pub struct TemplateInstance {
    /// Prefix of the ids of its rules.
    pub id: Box<str>,
    /// Id of the template.
    pub template: Box<str>,
    /// True if the instance is completely readable, so that a parameter that is not found is missing.
    is_whole: bool,
    /// Index in its file.
    index: usize,
    node: DocumentNode,
}

/// Fields of a template.
pub(super) const TEMPLATE_FIELDS: &[&str] = &["id", "name", "description", "category", "parameters", "rules"];
/// Fields of a template's parameter.
pub(super) const PARAMETER_FIELDS: &[&str] = &["name", "kind", "default", "description", "required"];
/// Fields of an instance.
pub(super) const INSTANCE_FIELDS: &[&str] = &["id", "template", "parameters"];

impl Template {
    /// Reads as much of a template as possible; none if the node is not a map.
    pub(super) fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::checked(place, TEMPLATE_FIELDS, findings)?;
        let id = fields.required("id", findings).and_then(|at| findings.name(&at));
        let parameters = read_parameters(&fields, findings);
        let name = fields.text("name", findings);
        let description = fields.text("description", findings);
        let category = fields.text("category", findings);
        let rules = fields.required("rules", findings);
        if let Some(rules) = rules {
            findings.items(&rules, RULES_MAX);
            if rules.is_empty_list() {
                findings.report_wrong(&rules, "is empty", "at least one rule".to_owned());
            }
        }
        let is_list = |at: &LocatedNode<'_>| matches!(at.node.data, NodeData::List(_));
        let none = || DocumentNode { spot: place.node.spot, data: NodeData::List(Vec::new()) };
        let template = Self {
            id: id.unwrap_or_default(),
            name,
            description,
            category,
            parameters: parameters.read,
            unread: parameters.unread,
            is_whole: parameters.is_whole && !fields.may_be_misspelt("parameters"),
            rules: rules.filter(is_list).map_or_else(none, |at| at.node.clone()),
            origin: findings.notes.origin,
            is_from_plugin: false,
            file: Arc::clone(&findings.file),
        };
        template.check(place, findings);
        Some(template)
    }

    /// Returns the names of its parameters, whether they are valid or not.
    fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.parameters.iter().map(|one| &*one.name).chain(self.unread.iter().map(|name| &**name))
    }

    /// Checks that every placeholder is a parameter and that the rules are valid: with the defaults if all
    /// parameters have one, otherwise as far as that does not depend on parameters.
    fn check(&self, place: &LocatedNode<'_>, findings: &mut Findings) {
        let mut unknown = Vec::new();
        self.placeholders(&self.rules, &mut unknown);
        for (spot, name) in &unknown {
            let near = super::diagnostic::nearest(name, self.names());
            let found = format!("{:?} is not a parameter of the template", format!("${{{name}}}"));
            let expected = super::diagnostic::one_of(self.names());
            findings.add(*spot, &format!("{}.rules", place.path()), found, expected, near);
        }
        let defaults: Option<Vec<_>> = self.parameters.iter().map(|one| one.default.clone()).collect();
        let has_defaults = defaults.is_some();
        // A stored template without defaults may have had no valid instance. It stays accepted.
        if !has_defaults && self.origin == FileOrigin::Stored {
            return;
        }
        let values: Vec<_> = defaults.map_or_else(
            || vec![None; self.parameters.len()],
            |defaults| defaults.into_iter().map(Some).collect(),
        );
        let within = std::mem::replace(&mut findings.path_prefix, format!("{}.rules", place.path()));
        let (patterns, mut room) = (findings.patterns, INSTANCES_BYTES_MAX);
        self.rules(&values, &mut room, findings);
        if !has_defaults {
            // Patterns count only in rules of instances.
            findings.patterns = patterns;
        }
        findings.path_prefix = within;
    }

    fn placeholders<'a>(&self, node: &'a DocumentNode, unknown: &mut Vec<(TextPosition, &'a str)>) {
        match &node.data {
            NodeData::Unknown => {}
            NodeData::List(items) => items.iter().for_each(|item| self.placeholders(item, unknown)),
            NodeData::Map(entries) => {
                entries.iter().for_each(|entry| self.placeholders(&entry.value, unknown));
            }
            NodeData::Scalar(scalar) => {
                for (_, name, _) in split_placeholders(&scalar.text) {
                    if self.is_whole && !self.names().any(|one| one == name) {
                        unknown.push((node.spot, name));
                    }
                }
            }
        }
    }

    /// Expands the rules with `values` in place of the parameters, in the order of the template. `room` is
    /// the remaining number of bytes. Values that depend on an unknown parameter are unknown.
    fn rules(&self, values: &[Option<Value>], room: &mut usize, findings: &mut Findings) -> Vec<ParsedRule> {
        assert_eq!(values.len(), self.parameters.len(), "each parameter has a value");
        let mut filling = TemplateExpansion { parameters: &self.parameters, values, room };
        let Some(filled) = filling.node(&self.rules) else {
            let found = "the template instances are too long".to_owned();
            let expected = format!("at most {INSTANCES_BYTES_MAX} bytes");
            findings.add(self.rules.spot, "", found, expected, None);
            return Vec::new();
        };
        let root = LocatedNode::root(&filled);
        let items = if let NodeData::List(items) = &filled.data { items.len() } else { 0 };
        // The excess of rules is already reported at the template.
        let items = if items > RULES_MAX { Vec::new() } else { findings.items(&root, RULES_MAX) };
        items.iter().filter_map(|item| Rule::read(item, findings)).collect()
    }

    /// Returns the positions of values in its rules that request a deletion for every instance.
    pub(super) fn deletions(&self) -> Vec<TextPosition> {
        let mut found = Vec::new();
        collect_deletions(&self.rules, &mut found);
        found
    }
}

fn collect_deletions(node: &DocumentNode, found: &mut Vec<TextPosition>) {
    match &node.data {
        NodeData::List(items) => items.iter().for_each(|item| collect_deletions(item, found)),
        NodeData::Map(entries) => {
            for entry in entries {
                match &entry.value.data {
                    NodeData::Scalar(scalar) if &*entry.key == Parameter::Delete.name() => {
                        found.extend((&*scalar.text == "true").then_some(entry.value.spot));
                    }
                    _ => collect_deletions(&entry.value, found),
                }
            }
        }
        NodeData::Scalar(_) | NodeData::Unknown => {}
    }
}

/// Copies a tree and inserts the values of parameters. The number of bytes is bounded, because a short text
/// can insert a long one many times.
struct TemplateExpansion<'a> {
    parameters: &'a [TemplateParameter],
    values: &'a [Option<Value>],
    room: &'a mut usize,
}

impl TemplateExpansion<'_> {
    fn node(&mut self, node: &DocumentNode) -> Option<DocumentNode> {
        let data = match &node.data {
            NodeData::List(items) => {
                NodeData::List(items.iter().map(|item| self.node(item)).collect::<Option<_>>()?)
            }
            NodeData::Map(entries) => {
                NodeData::Map(entries.iter().map(|entry| self.entry(entry)).collect::<Option<_>>()?)
            }
            NodeData::Scalar(scalar) => self.scalar(scalar, node.spot)?,
            NodeData::Unknown => NodeData::Unknown,
        };
        Some(DocumentNode { spot: node.spot, data })
    }

    fn entry(&mut self, entry: &DocumentEntry) -> Option<DocumentEntry> {
        self.consume(entry.key.len())?;
        Some(DocumentEntry { key: entry.key.clone(), spot: entry.spot, value: self.node(&entry.value)? })
    }

    fn scalar(&mut self, scalar: &Scalar, spot: TextPosition) -> Option<NodeData> {
        let mut text = String::new();
        let mut rest = &*scalar.text;
        for (before, name, after) in split_placeholders(&scalar.text) {
            let index = self.parameters.iter().position(|one| *one.name == *name);
            let value = index.and_then(|index| self.values.get(index)?.as_ref());
            let Some(value) = value else { return Some(NodeData::Unknown) };
            let written = value.to_string();
            self.consume(before.len() + written.len())?;
            if before.is_empty() && after.is_empty() && text.is_empty() {
                return Some(value_to_data(value, spot));
            }
            text.push_str(before);
            text.push_str(&written);
            rest = after;
        }
        self.consume(rest.len())?;
        text.push_str(rest);
        Some(NodeData::Scalar(Scalar { text: text.into(), is_plain: scalar.is_plain }))
    }

    /// Consumes `bytes` and one byte more, so that empty nodes are not free. None if there is no room left.
    fn consume(&mut self, bytes: usize) -> Option<()> {
        *self.room = self.room.checked_sub(bytes + 1)?;
        Some(())
    }
}

/// Removes a request for deletion that no person made.
fn forbid_deletion(action: &mut Action) {
    let given = action.parameters.iter_mut().filter(|(parameter, _)| *parameter == Parameter::Delete);
    given.for_each(|(_, value)| *value = Value::Flag(false));
}

/// Splits a text at its placeholders. Returns for each the text since the one before, the name, and the
/// remaining text.
fn split_placeholders(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (before, open) = rest.split_once("${")?;
        let (name, after) = open.split_once('}')?;
        rest = after;
        Some((before, name, after))
    })
}

/// Converts a value to the data that a file would contain.
fn value_to_data(value: &Value, spot: TextPosition) -> NodeData {
    match value {
        Value::List(items) => NodeData::List(
            items.iter().map(|item| DocumentNode { spot, data: value_to_data(item, spot) }).collect(),
        ),
        _ => {
            let plain = value.text().is_none();
            NodeData::Scalar(Scalar { text: value.to_string().into(), is_plain: plain })
        }
    }
}

/// Parameters as far as they could be read.
struct ParsedParameters {
    read: Vec<TemplateParameter>,
    /// Names of the unreadable parameters.
    unread: Vec<Box<str>>,
    /// True if the names of all parameters are known.
    is_whole: bool,
}

fn read_parameters(fields: &Fields<'_>, findings: &mut Findings) -> ParsedParameters {
    let (mut read, mut unread, mut is_whole) = (Vec::new(), Vec::new(), true);
    for place in fields.all("parameters") {
        let items = findings.items(&place, PARAMETERS_MAX);
        is_whole &= matches!(&place.node.data, NodeData::List(all) if all.len() == items.len());
        for item in items {
            let name = |item| Some(Fields::reread(item, PARAMETER_FIELDS).get("name")?.node.data.clone());
            match (TemplateParameter::read(&item, findings), name(&item)) {
                (Some(parameter), _) => read.push(parameter),
                (None, Some(NodeData::Scalar(name))) => unread.push(name.text),
                (None, _) => is_whole = false,
            }
        }
    }
    ParsedParameters { read, unread, is_whole }
}

impl TemplateParameter {
    fn read(place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::checked(place, PARAMETER_FIELDS, findings)?;
        let name = fields.required("name", findings).and_then(|at| findings.name(&at));
        let required = fields.get("required").and_then(|at| findings.flag(&at));
        let description = fields.text("description", findings);
        let at = fields.required("kind", findings)?;
        let word = &*findings.scalar(&at, "a kind")?.text;
        let kind = ValueKind::from_name(word).or_else(|| {
            let names: Vec<_> = ValueKind::PARAMETERS.iter().map(|kind| kind.name()).collect();
            findings.report_unknown_word(&at, word, "kind", &names);
            ValueKind::from_name(clearly_meant(word, names)?)
        })?;
        let has_default = fields.get("default").is_some();
        let default = fields.get("default").and_then(|at| findings.value(&at, kind));
        let required = required.unwrap_or(!has_default && !fields.may_be_misspelt("default"));
        if !required && !has_default {
            fields.report_missing("default", findings);
        }
        Some(Self { name: name?, kind, default, description, required })
    }
}

impl TemplateInstance {
    /// Reads as much of an instance as possible; none if the node is not a map.
    pub(super) fn read(index: usize, place: &LocatedNode<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::checked(place, INSTANCE_FIELDS, findings)?;
        let id = fields.required("id", findings).and_then(|at| findings.name(&at));
        let template = fields.required("template", findings).and_then(|at| findings.name(&at));
        let given = fields.get("parameters");
        if let Some(at) = &given {
            findings.entries(at);
        }
        let is_map = given.is_none_or(|at| matches!(at.node.data, NodeData::Map(_)));
        let (is_whole, node) = (is_map && !fields.may_be_misspelt("parameters"), place.node.clone());
        let (id, template) = (id.unwrap_or_default(), template.unwrap_or_default());
        Some(Self { id, template, is_whole, index, node })
    }

    /// Returns the line of the instance.
    pub(super) fn line(&self) -> u32 {
        self.node.spot.line
    }

    /// Expands the rules of the instance. An error of the instance is reported in its own file, an error that
    /// its parameters cause in a rule is reported in the template's file. Rules that cannot be expanded are
    /// recorded in the doubts.
    pub(super) fn rules(
        &self,
        file: &str,
        templates: &[&Template],
        room: &mut usize,
        doubts: &mut PossibleDefinitions,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Vec<Rule> {
        let mut instance_findings = Findings::new(file);
        instance_findings.path_prefix = format!("use[{}]", self.index);
        let Some((template, values)) = self.parameter_values(templates, doubts, &mut instance_findings)
        else {
            doubts.rules.add_prefix(&self.id);
            diagnostics.append(&mut instance_findings.list);
            return Vec::new();
        };
        let mut template_findings = Findings::new(&template.file);
        template_findings.notes.origin = template.origin;
        template_findings.path_prefix = format!("templates.{}({}).rules", template.id, self.id);
        let mut rules = template.rules(&values, room, &mut template_findings);
        if template.is_from_plugin && !self.requests_deletions(&template.rules) {
            rules.iter_mut().flat_map(|read| &mut read.rule.actions).for_each(forbid_deletion);
        }
        let is_right = instance_findings.list.is_empty()
            && template_findings.list.is_empty()
            && values.iter().all(Option::is_some);
        let made = self.finish_rules(rules, doubts, &mut instance_findings);
        if !is_right {
            made.iter().for_each(|rule| doubts.rules.add(Some(&rule.id)));
        }
        diagnostics.append(&mut instance_findings.list);
        diagnostics.append(&mut template_findings.list);
        made
    }

    /// Returns the rules with the instance's id as prefix and records unreadable ones.
    fn finish_rules(
        &self,
        rules: Vec<ParsedRule>,
        doubts: &mut PossibleDefinitions,
        here: &mut Findings,
    ) -> Vec<Rule> {
        let is_whole = !rules.is_empty() && rules.iter().all(|read| !read.rule.id.is_empty());
        if !is_whole {
            doubts.rules.add_prefix(&self.id);
        }
        let mut made = Vec::new();
        for ParsedRule { mut rule, .. } in rules.into_iter().filter(|read| !read.rule.id.is_empty()) {
            if !self.id.is_empty() {
                rule.id = format!("{}.{}", self.id, rule.id).into();
            }
            rule.line = RuleLine(self.line());
            rule.framework_at = FieldLocation::default();
            if !is_valid_name(&rule.id) {
                here.report_wrong(
                    &LocatedNode::root(&self.node),
                    "results in ids that are too long",
                    "a shorter id".to_owned(),
                );
            }
            made.push(rule);
        }
        made
    }

    /// True if every value of `delete` in the template is a parameter that this instance gives.
    fn requests_deletions(&self, node: &DocumentNode) -> bool {
        match &node.data {
            NodeData::List(items) => items.iter().all(|item| self.requests_deletions(item)),
            NodeData::Map(entries) => entries.iter().all(|entry| match &entry.value.data {
                NodeData::Scalar(scalar) => {
                    &*entry.key != Parameter::Delete.name() || self.provides(&scalar.text)
                }
                _ => self.requests_deletions(&entry.value),
            }),
            NodeData::Scalar(_) | NodeData::Unknown => true,
        }
    }

    /// True if the text is a single placeholder of a parameter that this instance gives.
    fn provides(&self, text: &str) -> bool {
        let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let root = LocatedNode::root(&self.node);
        let given = Fields::unchecked(&root).get("parameters");
        let Some((name, given)) = name.zip(given) else { return false };
        let NodeData::Map(entries) = &given.node.data else { return false };
        entries.iter().any(|entry| &*entry.key == name)
    }

    /// Returns the template of the instance and the value of each parameter as far as it could be read.
    fn parameter_values<'t>(
        &self,
        templates: &[&'t Template],
        doubts: &PossibleDefinitions,
        findings: &mut Findings,
    ) -> Option<(&'t Template, Vec<Option<Value>>)> {
        let root = LocatedNode::root(&self.node);
        let fields = Fields::reread(&root, INSTANCE_FIELDS);
        let template = self.find_template(&fields, templates, doubts, findings)?;
        let given = fields.get("parameters");
        let names: Vec<_> = template.names().collect();
        let given = given.as_ref().filter(|at| matches!(at.node.data, NodeData::Map(_)));
        let given = given.and_then(|at| match template.is_whole {
            true => Fields::checked(at, &names, findings),
            false => Some(Fields::reread(at, &names)),
        });
        let of = |one: &TemplateParameter| match given.as_ref().and_then(|given| given.get(&one.name)) {
            Some(at) => findings.value(&at, one.kind),
            None if one.required => {
                let is_meant = given.as_ref().is_some_and(|given| given.has_misspelling_of(&one.name));
                if self.is_whole && !is_meant {
                    findings.report_missing_field(&root, &format!("parameters.{}", one.name));
                }
                None
            }
            None => one.default.clone(),
        };
        Some((template, template.parameters.iter().map(of).collect()))
    }

    /// Returns the template that the instance names, or the one that was clearly meant. None if there is no
    /// such template; that is reported, unless it may be an unreadable one.
    fn find_template<'t>(
        &self,
        fields: &Fields<'_>,
        templates: &[&'t Template],
        doubts: &PossibleDefinitions,
        findings: &mut Findings,
    ) -> Option<&'t Template> {
        let of = |id: &str| templates.iter().copied().find(|one| *one.id == *id);
        if self.template.is_empty() || doubts.templates.contains(&self.template) {
            return None;
        }
        let found = of(&self.template);
        if found.is_some() || doubts.templates.may_contain(&self.template) {
            return found;
        }
        let ids: Vec<_> = templates.iter().map(|one| &*one.id).collect();
        let near = nearest(&self.template, ids.iter().copied());
        if doubts.templates.may_be_unreadable(near.as_deref()) {
            return None;
        }
        let at = fields.get("template").unwrap_or(*fields.place);
        findings.report_unknown_word(&at, &self.template, "template", &ids);
        of(clearly_meant(&self.template, ids)?)
    }
}
