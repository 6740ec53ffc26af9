//! What is noted of a file beside what it says, so that nobody is told of a mistake that only follows from
//! another one.
//!
//! A rule or template that cannot be read is there all the same: who refers to it is right. So the ids of
//! those are noted, also of parts of a file that are called wrongly, and where not even an id can be read,
//! that it may be any that is like none of the others. Only of a file that cannot be read at all anything may
//! be meant. Of a file in which nothing is wrong there are no doubts.

use super::actions::Parameter;
use super::diagnostic::Spot;
use super::rule::Rule;
use super::tree::{Data, Node};
use std::collections::HashSet;

/// What is noted of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// Whether it runs already and nobody gives it now: then slips that do no harm are none, as what it
    /// refers to may have been there once.
    pub(super) is_stored: bool,
    pub(super) doubts: Doubts,
    /// Entries that do nothing but switch a rule off.
    pub(super) switches: Vec<Switch>,
    /// Rules that stand in the way of others or have no id: what they refer to is looked for all the same.
    pub(super) stray: Vec<Rule>,
    /// What rules say of deletions, which is heard of a person only.
    pub(super) deletions: Vec<Said>,
}

/// What may be there, though it could not be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts {
    pub(super) templates: Ids,
    pub(super) rules: Ids,
    pub(super) frameworks: Ids,
}

/// A value that says something, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) what: Parameter,
    pub(super) spot: Spot,
    pub(super) path: String,
}

/// An entry that does nothing but switch off the rule of its id.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    pub(super) id: Box<str>,
    pub(super) spot: Spot,
    pub(super) path: String,
}

/// Ids, or any.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    any: bool,
    /// One has an id that cannot be read: it may be any that looks like none of the others.
    nameless: bool,
    of: HashSet<Box<str>>,
    /// Ids that begin with one of these and a dot, as those of an instance's rules do.
    groups: HashSet<Box<str>>,
    /// Ids of what stands in files beside this one.
    beside: HashSet<Box<str>>,
}

impl Doubts {
    /// A file could not be read, so whatever is referred to may stand there.
    pub(super) fn anything(&mut self) {
        for ids in [&mut self.templates, &mut self.rules, &mut self.frameworks] {
            ids.any = true;
        }
    }

    /// A part of a file is not read: what has an id there may be a rule, a template, or an instance of one.
    pub(super) fn unread(&mut self, node: &Node) {
        match &node.data {
            Data::Map(entries) => {
                for entry in entries {
                    match &entry.value.data {
                        Data::Scalar(scalar) if &*entry.key == "id" => self.may_have(&scalar.text),
                        _ => self.unread(&entry.value),
                    }
                }
            }
            Data::List(items) => items.iter().for_each(|item| self.unread(item)),
            Data::Scalar(_) | Data::Unknown => {}
        }
    }

    fn may_have(&mut self, id: &str) {
        self.rules.add(Some(id));
        self.rules.add_group(id);
        self.templates.add(Some(id));
    }

    pub(super) fn take(&mut self, other: &Self) {
        self.templates.take(&other.templates);
        self.rules.take(&other.rules);
        self.frameworks.take(&other.frameworks);
    }

    /// What others may have is not in doubt here, but not missed either.
    pub(super) fn take_beside(&mut self, other: &Self) {
        self.templates.take_beside(&other.templates);
        self.rules.take_beside(&other.rules);
    }
}

impl Ids {
    /// This one, or one whose id cannot be read.
    pub(super) fn add(&mut self, id: Option<&str>) {
        match id {
            Some(id) => self.of.extend([Box::from(id)]),
            None => self.nameless = true,
        }
    }

    /// Those of the rules of an instance.
    pub(super) fn add_group(&mut self, id: &str) {
        self.groups.insert(id.into());
    }

    fn take(&mut self, other: &Self) {
        self.any |= other.any;
        self.nameless |= other.nameless;
        self.of.extend(other.of.iter().cloned());
        self.groups.extend(other.groups.iter().cloned());
        self.beside.extend(other.beside.iter().cloned());
    }

    fn take_beside(&mut self, other: &Self) {
        self.any |= other.any;
        self.nameless |= other.nameless;
        self.beside.extend(other.of.iter().cloned());
        self.groups.extend(other.groups.iter().cloned());
    }

    /// Whether this one is named.
    pub(super) fn names(&self, id: &str) -> bool {
        self.of.contains(id)
    }

    /// Whether it may be one of these.
    pub(super) fn may_be(&self, id: &str) -> bool {
        let is_of = |group: &str| id.strip_prefix(group).is_some_and(|rest| rest.starts_with('.'));
        self.any || self.names(id) || self.beside.contains(id) || self.groups.iter().any(|group| is_of(group))
    }

    /// Whether it may be one whose id cannot be read, as it is not `like` any that is there.
    pub(super) fn may_be_nameless(&self, like: Option<&str>) -> bool {
        self.nameless && like.is_none()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.of.iter().map(|id| &**id)
    }
}
