//! Tests of all kinds of errors, alone, in pairs and all in one file: each is reported once, at its position,
//! and none hides another.

use super::built_in;
use crate::language::{Diagnostic, NoFacts, PolicyFileSet};

const KEY: &str = "conditions: [{type: file_context, property: key, operator: exists}]";
const PIN: &str = "actions: [{type: pin}]";

/// Section, text with a § before the error, and begin of the diagnostic.
type FileError = (&'static str, &'static str, &'static str);

/// Sections of a file, in their order; `top` is the top level.
const SECTIONS: &[&str] =
    &["top", "settings", "use", "rules", "environments", "hardware_profiles", "frameworks", "templates"];

const FILE_ERRORS: &[FileError] = &[
    ("top", "§ruels:\n- {id: in-ruels, KEY, PIN}", "unknown field \"ruels\""),
    ("top", "§nonsense:\n- {id: far, KEY, PIN}", "unknown field \"nonsense\""),
    ("top", "description: §&x text", "an anchor"),
    ("settings", "  §learnin: off", "unknown setting \"learnin\""),
    ("settings", "  pin_max: §10", "\"10\" has no unit"),
    (
        "use",
        "- {id: u1, template: §webdataset-shrads, parameters: {prefix: x/}}",
        "unknown template \"webdataset-shrads\"",
    ),
    ("use", "- {id: u2, template: §nothing-like-it}", "unknown template \"nothing-like-it\""),
    (
        "use",
        "- {id: u3, template: webdataset-shards, parameters: {prefix: x/, depth: §deep}}",
        "\"deep\" is not a whole number",
    ),
    ("use", "- §{id: u4, template: webdataset-shards}", "the field parameters.prefix is missing"),
    (
        "use",
        "- {id: ud, template: webdataset-shards, parameters: {prefix: a/}}\n\
         - §{id: ud, template: webdataset-shards, parameters: {prefix: b/}}",
        "duplicate id \"ud\"",
    ),
    ("rules", "- {id: r1, KEY, actions: [{type: §pni}]}", "unknown action \"pni\""),
    (
        "rules",
        "- {id: r2, KEY, actions: [{type: prefetch, parameters: {depth: §0}}]}",
        "\"0\" is out of range",
    ),
    ("rules", "- {id: twice, KEY, PIN}\n- §{id: twice, KEY, PIN}", "duplicate id \"twice\""),
    ("rules", "- {id: r3, framework: §keras, KEY, PIN}", "unknown framework \"keras\""),
    ("rules", "- {id: §idle-copies-otu, enabled: false}", "there is no rule \"idle-copies-otu\""),
    ("rules", "- §{KEY, PIN}", "the field id is missing"),
    ("rules", "- {id: §\"r 4\", KEY, PIN}", "\"r 4\" is not a valid name"),
    (
        "rules",
        "- {id: r5, conditions: [{type: file_context, property: §sise, operator: exists}], PIN}",
        "unknown file_context property \"sise\"",
    ),
    (
        "rules",
        "- {id: r6, §condition: [{type: file_context, property: key, operator: exists}], PIN}",
        "unknown field \"condition\"",
    ),
    ("environments", "  §stagin: {rules: [{id: e1, KEY, PIN}]}", "unknown environment \"stagin\""),
    (
        "environments",
        "  staging: {rules: [{id: e2, framework: §torchvision, KEY, PIN}]}",
        "unknown framework \"torchvision\"",
    ),
    (
        "environments",
        "  development: {rules: [{id: §mosaicml-indxe, enabled: false}]}",
        "there is no rule \"mosaicml-indxe\"",
    ),
    ("hardware_profiles", "  big: §{rules: [{id: h1, KEY, PIN}]}", "the field conditions is missing"),
    (
        "hardware_profiles",
        "  small: {conditions: {gpu_cuont: §1}}",
        "unknown system_context property \"gpu_cuont\"",
    ),
    ("frameworks", "  §pytroch: {rules: [{id: f1, KEY, PIN}]}", "unknown framework \"pytroch\""),
    ("frameworks", "  pytorch: {enabled: §flase}", "\"flase\" is neither true nor false"),
    ("templates", "- {id: t1, rules: [{id: r, KEY, actions: [{type: §evcit}]}]}", "unknown action \"evcit\""),
    (
        "templates",
        "- {id: t2, parameters: [{name: d, kind: §cuont}], rules: [{id: r, KEY, PIN}]}",
        "unknown kind \"cuont\"",
    ),
    (
        "templates",
        "- {id: t3, parameters: [{name: d, kind: count}], rules: [{id: r, KEY, actions: [{type: prefetch, \
         parameters: {depth: \"${d}\", bytes: §7}}]}]}",
        "\"7\" has no unit",
    ),
    (
        "templates",
        "- {id: t4, parameters: [{name: key, kind: text}], rules: [{id: r, name: §\"${kee}\", KEY, PIN}]}",
        "\"${kee}\" is not a parameter",
    ),
];

/// Returns a file with these errors, and the line, column and begin of each diagnostic.
fn file_of(slips: &[FileError]) -> (String, Vec<(u32, u32, &'static str)>) {
    let mut text = "version: 1\n".to_owned();
    let mut expected = Vec::new();
    for part in SECTIONS {
        let here: Vec<_> = slips.iter().filter(|(of, ..)| of == part).collect();
        if *part != "top" && !here.is_empty() {
            text += &format!("{part}:\n");
        }
        for (_, snippet, found) in here {
            let snippet = snippet.replace("KEY", KEY).replace("PIN", PIN);
            let (before, after) = snippet.split_once('§').unwrap();
            text += before;
            let line = text.lines().count() + usize::from(text.ends_with('\n'));
            let column = text.chars().rev().take_while(|c| *c != '\n').count() + 1;
            expected.push((line as u32, column as u32, *found));
            text += &format!("{after}\n");
        }
    }
    (text, expected)
}

fn errors_of(text: &str) -> Vec<Diagnostic> {
    let mut texts = PolicyFileSet::default();
    texts.submit_policy("policy.yaml", text);
    texts.errors(None, &NoFacts, built_in()).0
}

fn error_texts(diagnostics: &[Diagnostic]) -> Vec<(u32, &str)> {
    diagnostics.iter().map(|one| (one.line, &*one.found)).collect()
}

fn assert_reported(slips: &[FileError]) {
    let (text, expected) = file_of(slips);
    let diagnostics = errors_of(&text);
    let lines: String = diagnostics.iter().map(|one| format!("{one}\n")).collect();
    assert_eq!(diagnostics.len(), expected.len(), "{text}\n{lines}");
    for (one, (line, column, found)) in diagnostics.iter().zip(expected) {
        let is_it = (one.line, one.column) == (line, column) && one.found.starts_with(found);
        assert!(is_it, "{line}:{column}: {found}\n{text}\n{lines}");
    }
}

#[test]
fn each_error_of_a_file_is_reported_once_at_its_position() {
    assert_reported(FILE_ERRORS);
}

#[test]
fn two_errors_are_both_reported_and_nothing_else() {
    for (index, first) in FILE_ERRORS.iter().enumerate() {
        assert_reported(&[*first]);
        FILE_ERRORS[index + 1..].iter().for_each(|second| assert_reported(&[*first, *second]));
    }
}

#[test]
fn all_errors_of_a_rule_are_reported() {
    let text = format!(
        "version: 1
rules:
- {{id: a, {KEY}, {PIN}}}
- id: a
  framework: keras
  match: {{threshold: 0.5}}
  conditions:
  - {{type: file_context, property: size, operator: between, value: [1, x, 2MiB], weight: 0}}
  - {{type: file_contxet, property: naem, operator: in, value: y, weight: 0}}
  - {{type: somewhere, property: key, operator: in, value: z, weight: 0}}
  actions:
  - {{type: pni}}
  - {{type: unpin, target: objetc}}
  - {{type: prefetch, parameters: {{depth: 0}}}}
  - {{type: prefetch, parameters: [1]}}
  - {{type: retain, target: dataset, parameters: {{keep_last: few}}}}
  - {{type: teleport, parameters: [2]}}
"
    );
    assert_eq!(
        error_texts(&errors_of(&text)),
        [
            (4, "no condition of the rule has a weight above 0"),
            (4, "duplicate id \"a\""),
            (5, "unknown framework \"keras\""),
            (8, "a list is not a valid pair"),
            (8, "\"1\" has no unit"),
            (8, "\"x\" is not a number of bytes"),
            (9, "unknown condition type \"file_contxet\""),
            (9, "unknown file_context property \"naem\""),
            (9, "\"y\" is not a list"),
            (10, "unknown condition type \"somewhere\""),
            (10, "\"z\" is not a list"),
            (12, "unknown action \"pni\""),
            (13, "unpin conflicts with pin"),
            (13, "unknown target \"objetc\""),
            (14, "\"0\" is out of range"),
            (15, "prefetch conflicts with prefetch"),
            (15, "a list is not a map"),
            (16, "\"dataset\" has no checkpoints"),
            (16, "\"few\" is not a whole number"),
            (17, "unknown action \"teleport\""),
            (17, "a list is not a map"),
        ]
    );
}

#[test]
fn errors_of_a_template_and_its_instances_are_reported_together() {
    let text = format!(
        "version: 1
templates:
- id: t
  parameters: [{{name: d, kind: cuont}}, {{name: k, kind: text}}]
  rules: [{{id: r, framework: keras, {KEY}, actions: [{{type: prefetch, parameters: {{depth: \"${{d}}\", \
         bytes: 7}}}}]}}]
- {{id: bare, parameters: [{{kind: text}}]}}
use:
- {{id: u, template: t, parameters: {{d: deep, kk: x}}}}
- {{id: v, template: bare, parameters: {{anything: 1}}}}
- {{id: w, template: t, parameters: {{d: 0, k: x}}}}
rules: [{{id: u.x, enabled: false}}, {{id: v.x, enabled: false}}]
"
    );
    assert_eq!(
        error_texts(&errors_of(&text)),
        [
            (4, "unknown kind \"cuont\""),
            (5, "\"0\" is out of range"),
            (5, "\"7\" has no unit"),
            (6, "the field rules is missing"),
            (6, "the field name is missing"),
            (8, "unknown framework \"keras\""),
            (8, "\"deep\" is not a whole number"),
            (8, "unknown field \"kk\""),
            (10, "unknown framework \"keras\""),
            // The rules of the template `t` are known, those of the template `bare` are not.
            (11, "there is no rule \"u.x\" to disable"),
        ]
    );
}

#[test]
fn unsupported_yaml_hides_no_other_error() {
    let text = format!(
        "version: 1
name: !!str x
rules:
- {{id: a, conditions: &c [{{type: file_context, property: key, operator: exists}}], {PIN}}}
- {{id: b, conditions: *c, actions: [{{type: pni}}]}}
- {{id: c, {KEY}, {PIN}, ? [x] : {{id: d}}}}
settings: {{pin_max: 10}}
---
version: 1
"
    );
    assert_eq!(
        error_texts(&errors_of(&text)),
        [
            (2, "a tag"),
            (4, "an anchor"),
            (5, "an alias"),
            (5, "unknown action \"pni\""),
            (6, "a list or map as a key"),
            (7, "\"10\" has no unit"),
            (8, "a second document"),
        ]
    );
}

const PLUGIN: &str = "version: 1
framework: mine
detect: {keys: [{pattern: \"*.mine\", confidence: 1}]}
rules:
- id: own
  conditions: [{type: file_context, property: key, operator: exists}]
  actions: [{type: retain, parameters: {keep_last: 1, delete: true, grace: 1h}}]
templates:
- id: keep
  parameters: [{name: delete, kind: boolean, default: false}]
  rules:
  - id: it
    conditions: [{type: file_context, property: key, operator: exists}]
    actions: [{type: retain, parameters: {delete: \"${delete}\", grace: 1h}}]
- id: drop
  rules:
  - id: it
    conditions: [{type: file_context, property: key, operator: exists}]
    actions: [{type: retain, parameters: {delete: true}}]
use:
- {id: theirs, template: keep, parameters: {delete: true}}
- {id: kept, template: keep}
";

#[test]
fn deletions_in_a_submitted_plugin_are_reported() {
    let mut texts = PolicyFileSet::default();
    texts.submit_framework("mine.yaml", PLUGIN);
    texts.submit_policy(
        "policy.yaml",
        "version: 1\nuse: [{id: u, template: keep, parameters: {delete: true}}]\n",
    );
    let wrong = texts.errors(None, &NoFacts, built_in()).0;
    let places: Vec<_> = wrong.iter().map(|one| (one.line, one.column, &*one.path)).collect();
    assert_eq!(
        places,
        [
            (7, 63, "rules[0].actions[0].parameters.delete"),
            (7, 76, "rules[0].actions[0].parameters.grace"),
            (19, 51, "template drop"),
            (21, 1, ""),
        ],
        "{wrong:#?}"
    );
    assert!(wrong[0].found.starts_with("delete has no effect in a plugin's own rule"), "{}", wrong[0]);
    // A stored plugin stays accepted, and a person's policy may have the same rule.
    let mut stored = PolicyFileSet::default();
    stored.add_stored_framework("mine.yaml", PLUGIN);
    assert!(stored.compile(None, &NoFacts, built_in()).is_ok());
    let rule = PLUGIN.lines().skip(3).take(4).collect::<Vec<_>>().join("\n");
    assert!(errors_of(&format!("version: 1\n{rule}\n")).is_empty());
}
