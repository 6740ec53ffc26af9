//! Facts about a file that are recorded while it is read, so that no error is reported that only follows from
//! another error.
//!
//! A rule or template that cannot be read nevertheless exists: a reference to it is valid. So its id is
//! recorded, also for sections whose own name is wrong. If the id cannot be read either, the definition is
//! recorded as nameless: a reference may mean it if it resembles no known id. A reference may mean anything
//! only if a whole file cannot be read. For a file without errors no such doubts are recorded.

use super::actions::Parameter;
use super::diagnostic::Spot;
use super::rule::Rule;
use super::tree::{Data, Node};
use std::collections::HashSet;

/// Facts recorded while a file is read.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    /// True if the file is already in force and is not submitted now. Harmless errors are then not reported,
    /// because the rules that it refers to may have existed when it was applied.
    pub(super) is_stored: bool,
    pub(super) doubts: Doubts,
    /// Entries whose only effect is to switch a rule off.
    pub(super) switches: Vec<Switch>,
    /// Rules with a duplicate id or without an id. Their references to frameworks are checked nevertheless.
    pub(super) stray: Vec<Rule>,
    /// Parameters that request deletions. They have an effect in a person's policy, not in a plugin.
    pub(super) deletions: Vec<Said>,
}

/// Definitions that may exist although they could not be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts {
    pub(super) templates: Ids,
    pub(super) rules: Ids,
    pub(super) frameworks: Ids,
}

/// A parameter that requests or delays deletions, and its position.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) what: Parameter,
    pub(super) spot: Spot,
    pub(super) path: String,
}

/// An entry whose only effect is to switch off the rule with its id.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    pub(super) id: Box<str>,
    pub(super) spot: Spot,
    pub(super) path: String,
}

/// Ids of definitions, or the fact that there may be any id.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    any: bool,
    /// True if a definition has an unreadable id. It may be any id that resembles no known one.
    nameless: bool,
    of: HashSet<Box<str>>,
    /// Prefixes of ids, without the dot that follows them: ids of the rules of template instances.
    groups: HashSet<Box<str>>,
    /// Ids in files that are stored beside this one.
    beside: HashSet<Box<str>>,
}

impl Doubts {
    /// Records that a whole file could not be read, so that it may define any id.
    pub(super) fn anything(&mut self) {
        for ids in [&mut self.templates, &mut self.rules, &mut self.frameworks] {
            ids.any = true;
        }
    }

    /// Records a part of a file that is not read. Every id in it may be that of a rule, a template, or an
    /// instance of a template.
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

    /// Adds the definitions of other files: references to them are not reported as missing, although the ids
    /// do not count as doubtful in this file.
    pub(super) fn take_beside(&mut self, other: &Self) {
        self.templates.take_beside(&other.templates);
        self.rules.take_beside(&other.rules);
    }
}

impl Ids {
    /// Adds an id; none records an unreadable id.
    pub(super) fn add(&mut self, id: Option<&str>) {
        match id {
            Some(id) => self.of.extend([Box::from(id)]),
            None => self.nameless = true,
        }
    }

    /// Adds the ids of the rules of the instance `id`.
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

    /// True if the set contains exactly this id.
    pub(super) fn names(&self, id: &str) -> bool {
        self.of.contains(id)
    }

    /// True if the id may be in the set.
    pub(super) fn may_be(&self, id: &str) -> bool {
        let is_of = |group: &str| id.strip_prefix(group).is_some_and(|rest| rest.starts_with('.'));
        self.any || self.names(id) || self.beside.contains(id) || self.groups.iter().any(|group| is_of(group))
    }

    /// True if the id may be an unreadable one, because no known id is near to it.
    pub(super) fn may_be_nameless(&self, like: Option<&str>) -> bool {
        self.nameless && like.is_none()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.of.iter().map(|id| &**id)
    }
}
