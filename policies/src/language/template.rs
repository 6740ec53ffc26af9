//! Templates: rules with `${name}` in any value, and their instances.
//!
//! A value that is nothing but `${name}` becomes the parameter itself, of its kind; within a longer text the
//! parameter is written out. Between `{` and `}` of YAML a placeholder needs quotes, because its brace would
//! end the map. What comes of it is read as any other rule is, so a template can say nothing that a rule
//! could not.

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
    /// Parameters that are there, but could not be read.
    unread: Vec<Box<str>>,
    /// Whether all its parameters are known by name, so that what is none of them is none.
    is_whole: bool,
    rules: Node,
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
    /// What of it can be read; none of what is no map.
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

    /// Names of its parameters, be they right or not.
    fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.parameters.iter().map(|one| &*one.name).chain(self.unread.iter().map(|name| &**name))
    }

    /// Every placeholder names a parameter, and where all have defaults the rules are rules; otherwise what
    /// is wrong with them whatever is given.
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
        // What runs goes on with a template of which no instance ever was right: there is none.
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
            // Only rules that are made count.
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

    /// The rules with `values` in place of the parameters, in their order. `room` is what they may come to.
    /// What depends on a value that is not known is not known either.
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
        // That there are too many is told where they stand.
        let items = if items > RULES_MAX { Vec::new() } else { findings.items(&root, RULES_MAX) };
        items.iter().filter_map(|item| Rule::read(item, findings)).collect()
    }

    /// Values that say in its rules that something is deleted, whatever an instance gives.
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

/// Copies a tree with values in place of parameters, as long as there is room: a short text can ask for a
/// long one many times.
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

/// Parameters as far as they could be read.
struct ReadParameters {
    read: Vec<TemplateParameter>,
    /// Names of the others.
    unread: Vec<Box<str>>,
    /// Whether all have names.
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
    /// What of it can be read; none of what is no map.
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

    /// The line where it stands.
    pub(super) fn line(&self) -> u32 {
        self.node.spot.line
    }

    /// Its rules, by one of the templates. What is wrong with it is told in its own file, what its parameters
    /// make wrong of a rule in the template's. Those that cannot be had are in doubt.
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

    /// Rules that are there under its id; what is doubtful of them is noted.
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

    /// Whether all that says in a template whether something is deleted is a parameter that this gives.
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

    /// Whether a text is nothing but a parameter that this gives.
    fn gives(&self, text: &str) -> bool {
        let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
        let root = Place::root(&self.node);
        let given = Fields::known(&root).get("parameters");
        let Some((name, given)) = name.zip(given) else { return false };
        let Data::Map(entries) = &given.node.data else { return false };
        entries.iter().any(|entry| &*entry.key == name)
    }

    /// Its template, and what it gives to each parameter, as far as that can be read.
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

    /// The template that it names, or the one that was meant; none, which is told, unless it may be there.
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
