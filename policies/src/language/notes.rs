//! Facts about a file that are recorded while it is read, so that no error is reported that only follows from
//! another error.
//!
//! A rule or template that cannot be read nevertheless exists: a reference to it is valid. So its id is
//! recorded, also for sections whose own name is wrong. If the id cannot be read either, the definition is
//! recorded as nameless: a reference may mean it if it resembles no known id. A reference may mean anything
//! only if a whole file cannot be read. For a file without errors no such doubts are recorded.

use super::actions::Parameter;
use super::diagnostic::TextPosition;
use super::rule::Rule;
use super::tree::{DocumentNode, NodeData};
use std::collections::HashSet;

/// Origin of a file that is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FileOrigin {
    /// A person submits it now.
    #[default]
    Submitted,
    /// It is already in force. Harmless errors are not reported, because the rules that it refers to may have
    /// existed when it was applied.
    Stored,
}

/// Facts recorded while a file is read.
#[derive(Clone, Debug, Default)]
pub(super) struct FileNotes {
    pub(super) origin: FileOrigin,
    pub(super) doubts: PossibleDefinitions,
    /// Entries whose only effect is to switch a rule off.
    pub(super) switches: Vec<RuleSwitch>,
    /// Rules with a duplicate id or without an id. Their references to frameworks are checked nevertheless.
    pub(super) ineffective_rules: Vec<Rule>,
    /// Parameters that request deletions. They have an effect in a person's policy, not in a plugin.
    pub(super) deletions: Vec<DeletionParameter>,
}

/// Definitions that may exist although they could not be read.
#[derive(Clone, Debug, Default)]
pub(super) struct PossibleDefinitions {
    pub(super) templates: DefinitionIds,
    pub(super) rules: DefinitionIds,
    pub(super) frameworks: DefinitionIds,
}

/// A parameter that requests or delays deletions, and its position.
#[derive(Clone, Debug)]
pub(super) struct DeletionParameter {
    pub(super) parameter: Parameter,
    pub(super) spot: TextPosition,
    pub(super) path: String,
}

/// An entry whose only effect is to switch off the rule with its id.
#[derive(Clone, Debug)]
pub(super) struct RuleSwitch {
    pub(super) id: Box<str>,
    pub(super) spot: TextPosition,
    pub(super) path: String,
}

/// Ids of definitions, or the fact that there may be any id.
#[derive(Clone, Debug, Default)]
pub(super) struct DefinitionIds {
    is_any: bool,
    /// True if a definition has an unreadable id. It may be any id that resembles no known one.
    has_unreadable: bool,
    known: HashSet<Box<str>>,
    /// Prefixes of ids, without the dot that follows them: ids of the rules of template instances.
    prefixes: HashSet<Box<str>>,
    /// Ids in files that are stored beside this one.
    in_other_files: HashSet<Box<str>>,
}

impl FileNotes {
    /// True if the file is already in force.
    pub(super) fn is_stored(&self) -> bool {
        self.origin == FileOrigin::Stored
    }
}

impl PossibleDefinitions {
    /// Records that a whole file could not be read, so that it may define any id.
    pub(super) fn add_any(&mut self) {
        for ids in [&mut self.templates, &mut self.rules, &mut self.frameworks] {
            ids.is_any = true;
        }
    }

    /// Records a part of a file that is not read. Every id in it may be that of a rule, a template, or an
    /// instance of a template.
    pub(super) fn add_unread(&mut self, node: &DocumentNode) {
        match &node.data {
            NodeData::Map(entries) => {
                for entry in entries {
                    match &entry.value.data {
                        NodeData::Scalar(scalar) if &*entry.key == "id" => self.add_possible_id(&scalar.text),
                        _ => self.add_unread(&entry.value),
                    }
                }
            }
            NodeData::List(items) => items.iter().for_each(|item| self.add_unread(item)),
            NodeData::Scalar(_) | NodeData::Unknown => {}
        }
    }

    fn add_possible_id(&mut self, id: &str) {
        self.rules.add(Some(id));
        self.rules.add_prefix(id);
        self.templates.add(Some(id));
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.templates.merge(&other.templates);
        self.rules.merge(&other.rules);
        self.frameworks.merge(&other.frameworks);
    }

    /// Adds the definitions of other files: references to them are not reported as missing, although the ids
    /// do not count as doubtful in this file.
    pub(super) fn merge_other_files(&mut self, other: &Self) {
        self.templates.merge_other_files(&other.templates);
        self.rules.merge_other_files(&other.rules);
    }
}

impl DefinitionIds {
    /// Adds an id; none records an unreadable id.
    pub(super) fn add(&mut self, id: Option<&str>) {
        match id {
            Some(id) => self.known.extend([Box::from(id)]),
            None => self.has_unreadable = true,
        }
    }

    /// Adds the ids of the rules of the instance `id`.
    pub(super) fn add_prefix(&mut self, id: &str) {
        self.prefixes.insert(id.into());
    }

    fn merge(&mut self, other: &Self) {
        self.is_any |= other.is_any;
        self.has_unreadable |= other.has_unreadable;
        self.known.extend(other.known.iter().cloned());
        self.prefixes.extend(other.prefixes.iter().cloned());
        self.in_other_files.extend(other.in_other_files.iter().cloned());
    }

    fn merge_other_files(&mut self, other: &Self) {
        self.is_any |= other.is_any;
        self.has_unreadable |= other.has_unreadable;
        self.in_other_files.extend(other.known.iter().cloned());
        self.prefixes.extend(other.prefixes.iter().cloned());
    }

    /// True if the set contains exactly this id.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.known.contains(id)
    }

    /// True if the id may be in the set.
    pub(super) fn may_contain(&self, id: &str) -> bool {
        let is_of = |group: &str| id.strip_prefix(group).is_some_and(|rest| rest.starts_with('.'));
        self.is_any
            || self.contains(id)
            || self.in_other_files.contains(id)
            || self.prefixes.iter().any(|group| is_of(group))
    }

    /// True if the id may be an unreadable one, because no known id is near to it.
    pub(super) fn may_be_unreadable(&self, nearest: Option<&str>) -> bool {
        self.has_unreadable && nearest.is_none()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.known.iter().map(|id| &**id)
    }
}
