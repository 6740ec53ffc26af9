//! Templates: rules with placeholders `${name}` in any value, and instances of them.
//!
//! A value that consists of `${name}` alone becomes the parameter itself, with its kind. Within a longer text
//! the parameter is inserted as text. Between `{` and `}` of YAML a placeholder must be quoted, because its
//! brace would end the map. The result is read like any other rule, so a template can express nothing that a
//! rule cannot.

use super::actions::Parameter;
use super::diagnostic::{Diagnostic, Findings, Spot, meant, nearest};
use super::limits::{INSTANCES_BYTES_MAX, PARAMETERS_MAX, RULES_MAX};
use super::notes::Doubts;
use super::reader::{Fields, Place, is_name};
use super::rule::{Action, At, Line, ReadRule, Rule};
use super::tree::{Data, Entry, Node, Scalar};
use super::value::{Kind, Value};
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
    rules: Node,
    /// True if the file is already in force.
    is_stored: bool,
    /// True if the template is a plugin's. Its rules delete only what an instance requests.
    pub(super) is_of_plugin: bool,
    file: Arc<str>,
}

/// A parameter of a template.
#[derive(Clone, Debug)]
pub struct TemplateParameter {
    /// Name, as between `${` and `}`.
    pub name: Box<str>,
    /// Kind of its values.
    pub kind: Kind,
    /// Value if an instance gives none.
    pub default: Option<Value>,
    /// Description for readers; without effect.
    pub description: Option<Box<str>>,
    /// True if every instance must give the parameter.
    pub required: bool,
}

/// An instance of a template, not expanded yet, because the template can be in another file.
#[derive(Clone, Debug)]
pub struct Use {
    /// Prefix of the ids of its rules.
    pub id: Box<str>,
    /// Id of the template.
    pub template: Box<str>,
    /// True if the instance is completely readable, so that a parameter that is not found is missing.
    is_whole: bool,
    /// Index in its file.
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
    /// Reads as much of a template as possible; none if the node is no map.
    pub(super) fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(place, TEMPLATE_FIELDS, findings)?;
        let id = fields.need("id", findings).and_then(|at| findings.name(&at));
        let parameters = read_parameters(&fields, findings);
        let name = fields.text("name", findings);
        let description = fields.text("description", findings);
        let category = fields.text("category", findings);
        let rules = fields.need("rules", findings);
        if let Some(rules) = rules {
            findings.items(&rules, RULES_MAX);
            if rules.is_empty_list() {
                findings.wrong(&rules, "is empty", "one rule at least".to_owned());
            }
        }
        let is_list = |at: &Place<'_>| matches!(at.node.data, Data::List(_));
        let none = || Node { spot: place.node.spot, data: Data::List(Vec::new()) };
        let template = Self {
            id: id.unwrap_or_default(),
            name,
            description,
            category,
            parameters: parameters.read,
            unread: parameters.unread,
            is_whole: parameters.is_whole && !fields.may_have("parameters"),
            rules: rules.filter(is_list).map_or_else(none, |at| at.node.clone()),
            is_stored: findings.notes.is_stored,
            is_of_plugin: false,
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
    fn check(&self, place: &Place<'_>, findings: &mut Findings) {
        let mut unknown = Vec::new();
        self.placeholders(&self.rules, &mut unknown);
        for (spot, name) in &unknown {
            let near = super::diagnostic::nearest(name, self.names());
            let found = format!("{:?} is no parameter of the template", format!("${{{name}}}"));
            let expected = super::diagnostic::one_of(self.names());
            findings.add(*spot, &format!("{}.rules", place.path()), found, expected, near);
        }
        let defaults: Option<Vec<_>> = self.parameters.iter().map(|one| one.default.clone()).collect();
        let has_defaults = defaults.is_some();
        // A stored template without defaults may have had no valid instance. It stays accepted.
        if !has_defaults && self.is_stored {
            return;
        }
        let values: Vec<_> = defaults.map_or_else(
            || vec![None; self.parameters.len()],
            |defaults| defaults.into_iter().map(Some).collect(),
        );
        let within = std::mem::replace(&mut findings.within, format!("{}.rules", place.path()));
        let (patterns, mut room) = (findings.patterns, INSTANCES_BYTES_MAX);
        self.rules(&values, &mut room, findings);
        if !has_defaults {
            // Patterns count only in rules of instances.
            findings.patterns = patterns;
        }
        findings.within = within;
    }

    fn placeholders<'a>(&self, node: &'a Node, unknown: &mut Vec<(Spot, &'a str)>) {
        match &node.data {
            Data::Unknown => {}
            Data::List(items) => items.iter().for_each(|item| self.placeholders(item, unknown)),
            Data::Map(entries) => {
                entries.iter().for_each(|entry| self.placeholders(&entry.value, unknown));
            }
            Data::Scalar(scalar) => {
                for (_, name, _) in splits(&scalar.text) {
                    if self.is_whole && !self.names().any(|one| one == name) {
                        unknown.push((node.spot, name));
                    }
                }
            }
        }
    }

    /// Expands the rules with `values` in place of the parameters, in the order of the template. `room` is
    /// the remaining number of bytes. Values that depend on an unknown parameter are unknown.
    fn rules(&self, values: &[Option<Value>], room: &mut usize, findings: &mut Findings) -> Vec<ReadRule> {
        let mut filling = Filling { parameters: &self.parameters, values, room };
        let Some(filled) = filling.node(&self.rules) else {
            let found = "the instances of templates are too long".to_owned();
            let expected = format!("at most {INSTANCES_BYTES_MAX} bytes");
            findings.add(self.rules.spot, "", found, expected, None);
            return Vec::new();
        };
        let root = Place::root(&filled);
        let items = if let Data::List(items) = &filled.data { items.len() } else { 0 };
        // The excess of rules is already reported at the template.
        let items = if items > RULES_MAX { Vec::new() } else { findings.items(&root, RULES_MAX) };
        items.iter().filter_map(|item| Rule::read(item, findings)).collect()
    }

    /// Returns the positions of values in its rules that request a deletion for every instance.
    pub(super) fn deletions(&self) -> Vec<Spot> {
        let mut found = Vec::new();
        deletions_in(&self.rules, &mut found);
        found
    }
}

fn deletions_in(node: &Node, found: &mut Vec<Spot>) {
    match &node.data {
        Data::List(items) => items.iter().for_each(|item| deletions_in(item, found)),
        Data::Map(entries) => {
            for entry in entries {
                match &entry.value.data {
                    Data::Scalar(scalar) if &*entry.key == Parameter::Delete.name() => {
                        found.extend((&*scalar.text == "true").then_some(entry.value.spot));
                    }
                    _ => deletions_in(&entry.value, found),
                }
            }
        }
        Data::Scalar(_) | Data::Unknown => {}
    }
}

/// Copies a tree and inserts the values of parameters. The number of bytes is bounded, because a short text
/// can insert a long one many times.
struct Filling<'a> {
    parameters: &'a [TemplateParameter],
    values: &'a [Option<Value>],
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
            Data::Unknown => Data::Unknown,
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
            let index = self.parameters.iter().position(|one| *one.name == *name);
            let value = index.and_then(|index| self.values.get(index)?.as_ref());
            let Some(value) = value else { return Some(Data::Unknown) };
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

    /// Consumes `bytes` and one byte more, so that empty nodes are not free. None if there is no room left.
    fn take(&mut self, bytes: usize) -> Option<()> {
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
fn splits(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (before, open) = rest.split_once("${")?;
        let (name, after) = open.split_once('}')?;
        rest = after;
        Some((before, name, after))
    })
}

/// Converts a value to the data that a file would contain.
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

/// Parameters as far as they could be read.
struct ReadParameters {
    read: Vec<TemplateParameter>,
    /// Names of the unreadable parameters.
    unread: Vec<Box<str>>,
    /// True if the names of all parameters are known.
    is_whole: bool,
}

fn read_parameters(fields: &Fields<'_>, findings: &mut Findings) -> ReadParameters {
    let (mut read, mut unread, mut is_whole) = (Vec::new(), Vec::new(), true);
    for place in fields.all("parameters") {
        let items = findings.items(&place, PARAMETERS_MAX);
        is_whole &= matches!(&place.node.data, Data::List(all) if all.len() == items.len());
        for item in items {
            let name = |item| Some(Fields::again(item, PARAMETER_FIELDS).get("name")?.node.data.clone());
            match (TemplateParameter::read(&item, findings), name(&item)) {
                (Some(parameter), _) => read.push(parameter),
                (None, Some(Data::Scalar(name))) => unread.push(name.text),
                (None, _) => is_whole = false,
            }
        }
    }
    ReadParameters { read, unread, is_whole }
}

impl TemplateParameter {
    fn read(place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(place, PARAMETER_FIELDS, findings)?;
        let name = fields.need("name", findings).and_then(|at| findings.name(&at));
        let required = fields.get("required").and_then(|at| findings.flag(&at));
        let description = fields.text("description", findings);
        let at = fields.need("kind", findings)?;
        let word = &*findings.scalar(&at, "a kind")?.text;
        let kind = Kind::of(word).or_else(|| {
            let names: Vec<_> = Kind::PARAMETERS.iter().map(|kind| kind.name()).collect();
            findings.unknown(&at, word, "kind", &names);
            Kind::of(meant(word, names)?)
        })?;
        let has_default = fields.get("default").is_some();
        let default = fields.get("default").and_then(|at| findings.value(&at, kind));
        let required = required.unwrap_or(!has_default && !fields.may_have("default"));
        if !required && !has_default {
            fields.missing("default", findings);
        }
        Some(Self { name: name?, kind, default, description, required })
    }
}

impl Use {
    /// Reads as much of an instance as possible; none if the node is no map.
    pub(super) fn read(index: usize, place: &Place<'_>, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(place, USE_FIELDS, findings)?;
        let id = fields.need("id", findings).and_then(|at| findings.name(&at));
        let template = fields.need("template", findings).and_then(|at| findings.name(&at));
        let given = fields.get("parameters");
        if let Some(at) = &given {
            findings.entries(at);
        }
        let is_map = given.is_none_or(|at| matches!(at.node.data, Data::Map(_)));
        let (is_whole, node) = (is_map && !fields.may_have("parameters"), place.node.clone());
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
            rules.iter_mut().flat_map(|read| &mut read.rule.actions).for_each(forbid_deletion);
        }
        let is_right = here.list.is_empty() && there.list.is_empty() && values.iter().all(Option::is_some);
        let made = self.made(rules, is_right, doubts, &mut here);
        diagnostics.append(&mut here.list);
        diagnostics.append(&mut there.list);
        made
    }

    /// Returns the rules with the instance's id as prefix and records unreadable or doubtful ones.
    fn made(
        &self,
        rules: Vec<ReadRule>,
        is_right: bool,
        doubts: &mut Doubts,
        here: &mut Findings,
    ) -> Vec<Rule> {
        let is_whole = !rules.is_empty() && rules.iter().all(|read| !read.rule.id.is_empty());
        if !is_whole {
            doubts.rules.add_group(&self.id);
        }
        let mut made = Vec::new();
        for ReadRule { mut rule, .. } in rules.into_iter().filter(|read| !read.rule.id.is_empty()) {
            if !self.id.is_empty() {
                rule.id = format!("{}.{}", self.id, rule.id).into();
            }
            rule.line = Line(self.line());
            rule.framework_at = At::default();
            if !is_name(&rule.id) {
                here.wrong(
                    &Place::root(&self.node),
                    "makes ids that are too long",
                    "a shorter id".to_owned(),
                );
            }
            if !is_right {
                doubts.rules.add(Some(&rule.id));
            }
            made.push(rule);
        }
        made
    }

    /// True if every value of `delete` in the template is a parameter that this instance gives.
    fn asks_for_deletions(&self, node: &Node) -> bool {
        match &node.data {
            Data::List(items) => items.iter().all(|item| self.asks_for_deletions(item)),
            Data::Map(entries) => entries.iter().all(|entry| match &entry.value.data {
                Data::Scalar(scalar) => &*entry.key != Parameter::Delete.name() || self.gives(&scalar.text),
                _ => self.asks_for_deletions(&entry.value),
            }),
            Data::Scalar(_) | Data::Unknown => true,
        }
    }

    /// True if the text is a single placeholder of a parameter that this instance gives.
    fn gives(&self, text: &str) -> bool {
        let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let root = Place::root(&self.node);
        let given = Fields::known(&root).get("parameters");
        let Some((name, given)) = name.zip(given) else { return false };
        let Data::Map(entries) = &given.node.data else { return false };
        entries.iter().any(|entry| &*entry.key == name)
    }

    /// Returns the template of the instance and the value of each parameter as far as it could be read.
    fn values<'t>(
        &self,
        templates: &[&'t Template],
        doubts: &Doubts,
        findings: &mut Findings,
    ) -> Option<(&'t Template, Vec<Option<Value>>)> {
        let root = Place::root(&self.node);
        let fields = Fields::again(&root, USE_FIELDS);
        let template = self.find(&fields, templates, doubts, findings)?;
        let given = fields.get("parameters");
        let names: Vec<_> = template.names().collect();
        let given = given.as_ref().filter(|at| matches!(at.node.data, Data::Map(_)));
        let given = given.and_then(|at| match template.is_whole {
            true => Fields::of(at, &names, findings),
            false => Some(Fields::again(at, &names)),
        });
        let of = |one: &TemplateParameter| match given.as_ref().and_then(|given| given.get(&one.name)) {
            Some(at) => findings.value(&at, one.kind),
            None if one.required => {
                let is_meant = given.as_ref().is_some_and(|given| given.means(&one.name));
                if self.is_whole && !is_meant {
                    findings.missing(&root, &format!("parameters.{}", one.name));
                }
                None
            }
            None => one.default.clone(),
        };
        Some((template, template.parameters.iter().map(of).collect()))
    }

    /// Returns the template that the instance names, or the one that was clearly meant. None if there is no
    /// such template; that is reported, unless it may be an unreadable one.
    fn find<'t>(
        &self,
        fields: &Fields<'_>,
        templates: &[&'t Template],
        doubts: &Doubts,
        findings: &mut Findings,
    ) -> Option<&'t Template> {
        let of = |id: &str| templates.iter().copied().find(|one| *one.id == *id);
        if self.template.is_empty() || doubts.templates.names(&self.template) {
            return None;
        }
        let found = of(&self.template);
        if found.is_some() || doubts.templates.may_be(&self.template) {
            return found;
        }
        let ids: Vec<_> = templates.iter().map(|one| &*one.id).collect();
        let near = nearest(&self.template, ids.iter().copied());
        if doubts.templates.may_be_nameless(near.as_deref()) {
            return None;
        }
        let at = fields.get("template").unwrap_or(*fields.place);
        findings.unknown(&at, &self.template, "template", &ids);
        of(meant(&self.template, ids)?)
    }
}
