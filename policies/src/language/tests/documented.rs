//! Tests that every policy, plugin and access plan in the documentation is valid, and that the errors it
//! shows for an invalid policy are those that are reported.

use super::built_in;
use crate::language::findings::Findings;
use crate::language::parser::parse;
use crate::language::tree::NodeData;
use crate::language::{Environment, NoFacts, PlanDocument, PolicyFileSet, Word};

const DOCUMENTS: &[(&str, &str)] = &[
    ("README.md", include_str!("../../../../README.md")),
    ("docs/OPERATIONS.md", include_str!("../../../../docs/OPERATIONS.md")),
    ("docs/POLICIES.md", include_str!("../../../../docs/POLICIES.md")),
];

/// A fenced block: the language after the opening fence, a name with the document and line, and the text.
struct Block<'a> {
    language: &'a str,
    name: String,
    text: String,
}

fn blocks() -> Vec<Block<'static>> {
    let mut all = Vec::new();
    for (document, text) in DOCUMENTS {
        let mut open: Option<Block<'_>> = None;
        for (index, line) in text.lines().enumerate() {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(language), None) => {
                    let name = format!("{document}, the block after line {}", index + 1);
                    open = Some(Block { language, name, text: String::new() });
                }
                (Some(_), Some(_)) => all.extend(open.take()),
                (None, Some(block)) => block.text += &format!("{line}\n"),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "a block of {document} does not end");
    }
    all
}

/// Kind of a document, by its top-level fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Policy,
    /// A part of a policy, from its top level, without `version`.
    Part,
    Plugin,
    Plan,
}

fn form(text: &str) -> Form {
    let Some(NodeData::Map(entries)) = parse(text, &mut Findings::new("")).map(|node| node.data) else {
        panic!("neither a policy nor a plugin nor a plan:\n{text}")
    };
    let has = |field: &str| entries.iter().any(|entry| &*entry.key == field);
    match (has("framework"), has("bucket"), has("version")) {
        (true, ..) => Form::Plugin,
        (_, true, _) => Form::Plan,
        (.., true) => Form::Policy,
        _ => Form::Part,
    }
}

/// Returns all errors of a block, for a server in any environment.
fn wrong(name: &str, text: &str, form: Form) -> String {
    let mut texts = PolicyFileSet::default();
    match form {
        Form::Plan => {
            return PlanDocument::parse(name, text).err().map(|wrong| wrong.to_string()).unwrap_or_default();
        }
        Form::Plugin => texts.submit_framework(name, text),
        Form::Policy => texts.submit_policy(name, text),
        Form::Part => texts.submit_policy(name, &format!("version: 1\n{text}")),
    }
    let environments = Environment::ALL.iter().copied().map(Some).chain([None]);
    let errors = environments.map(|one| texts.compile(one, &NoFacts, built_in()).err());
    errors.flatten().map(|wrong| format!("{wrong}\n")).collect()
}

#[test]
fn documents_in_the_documentation_are_valid() {
    let mut forms = Vec::new();
    let is_one = |block: &&Block<'_>| match block.language.trim() {
        "yaml" | "yml" => true,
        // Output of commands is a list.
        "json" => block.text.starts_with('{'),
        _ => false,
    };
    for block in blocks().iter().filter(is_one) {
        // Ellipses stand in the documentation for omitted items of lists and maps.
        let text = block.text.replace('…', "");
        let form = form(&text);
        assert_eq!(wrong(&block.name, &text, form), "", "{}", block.text);
        forms.push(form);
    }
    let count = |form| forms.iter().filter(|one| **one == form).count();
    let found = [Form::Policy, Form::Plugin, Form::Plan].map(count);
    assert!(found.iter().zip([5, 1, 1]).all(|(found, least)| *found >= least), "{forms:?}");
}

#[test]
fn invalid_and_unrelated_documents_fail_the_check() {
    let errors = |text: &str| wrong("p", text, form(text));
    assert_eq!(errors("version: 1\nrules: []\n") + &errors("rules: []\n"), "");
    for text in
        ["version: 1\nrule: []", "services: {mlgw: {}}", "version: 1\nframework: f", "bucket: b\nkeys: 7"]
    {
        assert_ne!(errors(text), "", "{text}");
    }
    assert!(std::panic::catch_unwind(|| form("- {type: pin}")).is_err());
}

/// The block without a language is an invalid policy. Its diagnostics are in the document word for word.
#[test]
fn documented_errors_equal_the_reported_ones() {
    let blocks = blocks();
    let begins = |block: &&Block<'_>| block.language.is_empty() && block.text.starts_with("version:");
    let bad: Vec<_> = blocks.iter().filter(begins).collect();
    assert_eq!(bad.len(), 1, "only bad.yaml is invalid");
    let mut texts = PolicyFileSet::default();
    texts.submit_policy("bad.yaml", &bad[0].text);
    let reported: Vec<_> =
        texts.errors(None, &NoFacts, built_in()).0.iter().map(ToString::to_string).collect();
    let shown = blocks.iter().flat_map(|block| block.text.lines());
    let shown: Vec<_> = shown.filter(|line| line.starts_with("bad.yaml:")).collect();
    assert!(!reported.is_empty());
    assert_eq!(reported, shown);
}
