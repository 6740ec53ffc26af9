//! Templates: rules with `${name}` in any value, and their instances.
//!
//! A value that is nothing but `${name}` becomes the parameter itself, of its kind; within a longer text the parameter is written
//! out. Between `{` and `}` of YAML a placeholder needs quotes, because its brace would end the map. What comes of it is read as any other rule is, so a template can say nothing that a rule could not.

use super::actions::Parameter;
use super::diagnostic::{Diagnostic, Findings, Spot};
use super::limits::{INSTANCES_BYTES_MAX, PARAMETERS_MAX, RULES_MAX};
use super::notes::Doubts;
use super::reader::{Fields, Place, is_name};
use super::rule::{Action, Line, Rule};
use super::tree::{Data, Entry, Node, Scalar};
use super::value::{Kind, Value};
use super::words::Word as _;
use std::sync::Arc;

/// A template as a file gives it.
#[derive(Clone, Debug)]
pub struct Template {
    /// What instances call it by.
    pub id: Box<str>,
    /// For people.
    pub name: Option<Box<str>>,
    /// For people.
    pub description: Option<Box<str>>,
    /// What it is for, in a word.
    pub category: Option<Box<str>>,
    /// What instances give.
    pub parameters: Vec<TemplateParameter>,
    rules: Node,
    /// Whether nothing was found wrong with its rules, so that they are worth making.
    is_right: bool,
    /// Whether its file runs already.
    is_stored: bool,
    /// Whether it is a plugin's, whose deletions are nobody's but those that an instance asks for.
    pub(super) is_of_plugin: bool,
    file: Arc<str>,
}

/// A parameter of a template.
#[derive(Clone, Debug)]
pub struct TemplateParameter {
    /// Its name, as it stands between `${` and `}`.
    pub name: Box<str>,
    /// What its values are.
    pub kind: Kind,
    /// The value when an instance gives none.
    pub default: Option<Value>,
    /// For people.
    pub description: Option<Box<str>>,
    /// Whether an instance has to give it.
    pub required: bool,
}

/// An instance of a template, not filled in yet: the template may stand in another file.
#[derive(Clone, Debug)]
pub struct Use {
    /// What its rules' ids begin with.
    pub id: Box<str>,
    /// The template's id.
    pub template: Box<str>,
    /// Whether it is read whole, so that what is missing of it is not there.
    is_whole: bool,
    /// Where it stands in its file.
    index: usize,
    node: Node,
}

/// Fields of a template.
pub(super) const TEMPLATE_FIELDS: &[&str] = &["id", "name", "description", "category", "parameters", "rules"];
/// Fields of a template's parameter.
pub(super) const PARAMETER_FIELDS: &[&str] = &["name", "kind", "default", "description", "required"];
/// Fields of an instance.
pub(super) const USE_FIELDS: &[&str] = &["id", "template", "parameters"];

impl Template {
    pub(super) fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(place, TEMPLATE_FIELDS, findings)?;
        let id = fields.need("id", findings).and_then(|at| findings.name(&at));
        let before = findings.list.len();
        let parameters = read_parameters(&fields, findings);
        // Of parameters that are not all read, nobody knows what is given to them or asked of them.
        let has_all_parameters = !fields.may_have("parameters") && findings.list.len() == before;
        let name = fields.text("name", findings);
        let description = fields.text("description", findings);
        let category = fields.text("category", findings);
        let rules = fields.need("rules", findings)?;
        if findings.items(&rules, RULES_MAX).is_empty() {
            if rules.is_empty_list() {
                findings.wrong(&rules, "is empty", "one rule at least".to_owned());
            }
            return None;
        }
        if !has_all_parameters {
            return None;
        }
        let (rules, file) = (rules.node.clone(), Arc::clone(&findings.file));
        let id = id.unwrap_or_default();
        let (is_right, is_stored) = (true, findings.notes.is_stored);
        let mut template = Self {
            id,
            name,
            description,
            category,
            parameters,
            rules,
            is_right,
            is_stored,
            is_of_plugin: false,
            file,
        };
        let before = findings.list.len();
        template.check(place, findings);
        template.is_right = findings.list.len() == before;
        Some(template).filter(|template| !template.id.is_empty())
    }

    /// Every placeholder names a parameter, and where all have defaults the rules are rules.
    fn check(&self, place: &Place<'_>, findings: &mut Findings) {
        let mut unknown = Vec::new();
        self.placeholders(&self.rules, &mut unknown);
        for (spot, name) in &unknown {
            let names = self.parameters.iter().map(|one| &*one.name);
            let near = super::diagnostic::nearest(name, names.clone());
            let found = format!("{:?} is no parameter of the template", format!("${{{name}}}"));
            let expected = super::diagnostic::one_of(names);
            findings.add(*spot, &format!("{}.rules", place.path()), found, expected, near);
        }
        let defaults: Option<Vec<_>> = self.parameters.iter().map(|one| one.default.clone()).collect();
        if let (Some(defaults), true) = (defaults, unknown.is_empty()) {
            let within = std::mem::replace(&mut findings.within, format!("{}.rules", place.path()));
            let mut room = INSTANCES_BYTES_MAX;
            self.rules(&defaults, &mut room, findings);
            findings.within = within;
        }
    }

    fn placeholders<'a>(&self, node: &'a Node, unknown: &mut Vec<(Spot, &'a str)>) {
        match &node.data {
            Data::List(items) => items.iter().for_each(|item| self.placeholders(item, unknown)),
            Data::Map(entries) => {
                entries.iter().for_each(|entry| self.placeholders(&entry.value, unknown));
            }
            Data::Scalar(scalar) => {
                for (_, name, _) in splits(&scalar.text) {
                    if !self.parameters.iter().any(|one| *one.name == *name) {
                        unknown.push((node.spot, name));
                    }
                }
            }
        }
    }

    /// The rules with `values` in place of the parameters, in their order. `room` is what they may come to.
    fn rules(&self, values: &[Value], room: &mut usize, findings: &mut Findings) -> Vec<Rule> {
        let mut filling = Filling { parameters: &self.parameters, values, room };
        let Some(filled) = filling.node(&self.rules) else {
            let found = "the instances of templates are too long".to_owned();
            let expected = format!("at most {INSTANCES_BYTES_MAX} bytes");
            findings.add(self.rules.spot, "", found, expected, None);
            return Vec::new();
        };
        let root = Place::root(&filled);
        let items = findings.items(&root, RULES_MAX);
        items.iter().filter_map(|item| Rule::read(item, findings)).collect()
    }
}

/// Copies a tree with values in place of parameters, as long as there is room: a short text can ask for a long one many times.
struct Filling<'a> {
    parameters: &'a [TemplateParameter],
    values: &'a [Value],
    room: &'a mut usize,
}

impl Filling<'_> {
    fn node(&mut self, node: &Node) -> Option<Node> {
        let data = match &node.data {
            Data::List(items) => Data::List(items.iter().map(|item| self.node(item)).collect::<Option<_>>()?),
            Data::Map(entries) => {
                Data::Map(entries.iter().map(|entry| self.entry(entry)).collect::<Option<_>>()?)
            }
            Data::Scalar(scalar) => self.scalar(scalar, node.spot)?,
        };
        Some(Node { spot: node.spot, data })
    }

    fn entry(&mut self, entry: &Entry) -> Option<Entry> {
        self.take(entry.key.len())?;
        Some(Entry { key: entry.key.clone(), spot: entry.spot, value: self.node(&entry.value)? })
    }

    fn scalar(&mut self, scalar: &Scalar, spot: Spot) -> Option<Data> {
        let mut text = String::new();
        let mut rest = &*scalar.text;
        for (before, name, after) in splits(&scalar.text) {
            let index = self.parameters.iter().position(|one| *one.name == *name)?;
            let value = self.values.get(index)?;
            let written = value.to_string();
            self.take(before.len() + written.len())?;
            if before.is_empty() && after.is_empty() && text.is_empty() {
                return Some(data_of(value, spot));
            }
            text.push_str(before);
            text.push_str(&written);
            rest = after;
        }
        self.take(rest.len())?;
        text.push_str(rest);
        Some(Data::Scalar(Scalar { text: text.into(), plain: scalar.plain }))
    }

    /// Makes use of some room; one byte more, so that empty nodes are not free.
    fn take(&mut self, bytes: usize) -> Option<()> {
        *self.room = self.room.checked_sub(bytes + 1)?;
        Some(())
    }
}

/// What no person has asked for is not deleted.
fn forbid_deletion(action: &mut Action) {
    let given = action.parameters.iter_mut().filter(|(parameter, _)| *parameter == Parameter::Delete);
    given.for_each(|(_, value)| *value = Value::Flag(false));
}

/// What stands before each placeholder and after the one before it, its name, and what follows.
fn splits(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (before, open) = rest.split_once("${")?;
        let (name, after) = open.split_once('}')?;
        rest = after;
        Some((before, name, after))
    })
}

/// A value as a file would have given it.
fn data_of(value: &Value, spot: Spot) -> Data {
    match value {
        Value::List(items) => {
            Data::List(items.iter().map(|item| Node { spot, data: data_of(item, spot) }).collect())
        }
        _ => {
            let plain = value.text().is_none();
            Data::Scalar(Scalar { text: value.to_string().into(), plain })
        }
    }
}

fn read_parameters(fields: &Fields<'_>, findings: &mut Findings) -> Vec<TemplateParameter> {
    let Some(place) = fields.get("parameters") else { return Vec::new() };
    let items = findings.items(&place, PARAMETERS_MAX);
    items.iter().filter_map(|item| TemplateParameter::read(item, findings)).collect()
}

impl TemplateParameter {
    fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(place, PARAMETER_FIELDS, findings)?;
        let name = fields.need("name", findings).and_then(|at| findings.name(&at));
        let required = fields.get("required").and_then(|at| findings.flag(&at));
        let description = fields.text("description", findings);
        let at = fields.need("kind", findings)?;
        let word = &*findings.scalar(&at, "a kind")?.text;
        let Some(kind) = Kind::of(word) else {
            let names: Vec<_> = Kind::PARAMETERS.iter().map(|kind| kind.name()).collect();
            findings.unknown(&at, word, "kind", &names);
            return None;
        };
        let default = fields.get("default").and_then(|at| findings.value(&at, kind));
        let required = required.unwrap_or(default.is_none());
        if !required && default.is_none() && fields.get("default").is_none() {
            fields.missing("default", findings);
        }
        Some(Self { name: name?, kind, default, description, required })
    }
}

impl Use {
    pub(super) fn read(index: usize, place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(place, USE_FIELDS, findings)?;
        let id = fields.need("id", findings).and_then(|at| findings.name(&at));
        let template = fields.need("template", findings).and_then(|at| findings.name(&at));
        let before = findings.list.len();
        if let Some(at) = fields.get("parameters") {
            findings.entries(&at);
        }
        let is_map = findings.list.len() == before;
        let (is_whole, node) = (!fields.may_have("parameters"), place.node.clone());
        let read = Self { id: id?, template: template?, is_whole, index, node };
        is_map.then_some(read)
    }

    /// The line where it stands.
    pub(super) fn line(&self) -> u32 {
        self.node.spot.line
    }

    /// Its rules, by one of the templates. What is wrong with it is told in its own file, what its parameters make wrong of a
    /// rule in the template's. Those that cannot be had are in doubt.
    pub(super) fn rules(
        &self,
        file: &str,
        templates: &[&Template],
        room: &mut usize,
        told: (&mut Doubts, &mut Vec<Diagnostic>),
    ) -> Vec<Rule> {
        let (doubts, diagnostics) = told;
        let mut here = Findings::new(file);
        here.within = format!("use[{}]", self.index);
        let Some((template, values)) = self.values(templates, doubts, &mut here) else {
            doubts.rules.add_group(&self.id);
            diagnostics.append(&mut here.list);
            return Vec::new();
        };
        let mut there = Findings::new(&template.file);
        there.notes.is_stored = template.is_stored;
        there.within = format!("templates.{}({}).rules", template.id, self.id);
        let mut rules = template.rules(&values, room, &mut there);
        if template.is_of_plugin && !self.asks_for_deletions(&template.rules) {
            rules.iter_mut().flat_map(|rule| &mut rule.actions).for_each(forbid_deletion);
        }
        if !there.list.is_empty() {
            doubts.rules.add_group(&self.id);
        }
        for rule in &mut rules {
            rule.id = format!("{}.{}", self.id, rule.id).into();
            rule.line = Line(self.line());
            if !is_name(&rule.id) {
                here.wrong(
                    &Place::root(&self.node),
                    "makes ids that are too long",
                    "a shorter id".to_owned(),
                );
            }
        }
        diagnostics.append(&mut here.list);
        diagnostics.append(&mut there.list);
        rules
    }

    /// Whether all that says in a template whether something is deleted is a parameter that this gives.
    fn asks_for_deletions(&self, node: &Node) -> bool {
        match &node.data {
            Data::List(items) => items.iter().all(|item| self.asks_for_deletions(item)),
            Data::Map(entries) => entries.iter().all(|entry| match &entry.value.data {
                Data::Scalar(scalar) => &*entry.key != Parameter::Delete.name() || self.gives(&scalar.text),
                _ => self.asks_for_deletions(&entry.value),
            }),
            Data::Scalar(_) => true,
        }
    }

    /// Whether a text is nothing but a parameter that this gives.
    fn gives(&self, text: &str) -> bool {
        let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let root = Place::root(&self.node);
        let given = Fields::known(&root).get("parameters");
        let Some((name, given)) = name.zip(given) else { return false };
        let Data::Map(entries) = &given.node.data else { return false };
        entries.iter().any(|entry| &*entry.key == name)
    }

    fn values<'t>(
        &self,
        templates: &[&'t Template],
        doubts: &Doubts,
        findings: &mut Findings,
    ) -> Option<(&'t Template, Vec<Value>)> {
        let root = Place::root(&self.node);
        let fields = Fields::known(&root);
        if doubts.templates.names(&self.template) {
            return None;
        }
        let Some(template) = templates.iter().find(|one| one.id == self.template) else {
            if !doubts.templates.may_be(&self.template) {
                let ids: Vec<_> = templates.iter().map(|one| &*one.id).collect();
                let at = fields.get("template").unwrap_or(root);
                findings.unknown(&at, &self.template, "template", &ids);
            }
            return None;
        };
        let given = fields.get("parameters");
        let names: Vec<_> = template.parameters.iter().map(|one| &*one.name).collect();
        let given = given.as_ref().and_then(|at| Fields::of(at, &names, findings));
        let values: Vec<_> = template
            .parameters
            .iter()
            .map(|one| match given.as_ref().and_then(|given| given.get(&one.name)) {
                Some(at) => findings.value(&at, one.kind),
                None if one.required => {
                    let is_meant = given.as_ref().is_some_and(|given| given.means(&one.name));
                    if self.is_whole && !is_meant {
                        findings.missing(&root, &format!("parameters.{}", one.name));
                    }
                    None
                }
                None => one.default.clone(),
            })
            .collect();
        let values = values.into_iter().collect::<Option<Vec<_>>>()?;
        let is_right = findings.list.is_empty() && self.is_whole && template.is_right;
        is_right.then_some((template, values))
    }
}
