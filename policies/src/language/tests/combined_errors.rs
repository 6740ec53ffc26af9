//! Tests that errors of the reader and errors that only all layers together show are reported at once,
//! without errors that only follow from others.

use super::{above, built_in, layers};
use crate::language::limits::{DIAGNOSTICS_MAX, RULES_MAX};
use crate::language::notes::PossibleDefinitions;
use crate::language::{
    ActionRequest, Diagnostic, Environment, NoFacts, ParsedPolicy, PolicyFileSet, Program, RetentionRequest,
};

fn found(texts: &PolicyFileSet) -> Vec<Diagnostic> {
    texts.errors(Some(Environment::Production), &NoFacts, built_in()).0
}

fn errors_of(text: &str) -> Vec<Diagnostic> {
    let mut texts = PolicyFileSet::default();
    texts.submit_policy("policy.yaml", text);
    found(&texts)
}

/// Returns line and path of each diagnostic.
fn places(diagnostics: &[Diagnostic]) -> Vec<(u32, &str)> {
    diagnostics.iter().map(|one| (one.line, one.path.as_str())).collect()
}

const KEY: &str = "conditions: [{type: file_context, property: key, operator: exists}]";
const PIN: &str = "actions: [{type: pin}]";

#[test]
fn errors_of_all_passes_are_reported_in_the_order_of_lines() {
    let text = format!(
        "version: 1
use:
- {{id: a, template: webdataset-shrads, parameters: {{prefix: x/}}}}
- {{id: b, template: webdataset-shards, parameters: {{prefx: x/}}}}
- {{id: c, template: own, parameters: {{depth: 9999}}}}
- {{id: d, template: own, parameters: {{depth: 9999}}}}
settings: {{pin_max: 10, learnin: off}}
frameworks:
  pytroch:
    rules:
    - {{id: in-pytroch, {KEY}, {PIN}}}
environments:
  staging:
    rules:
    - {{id: idle-copies-otu, enabled: false}}
    - {{id: in-staging, framework: keras, {KEY}, {PIN}}}
rules:
- id: ahead
  conditions: [{{type: file_context, property: sise, operator: exists}}]
  actions: [{{type: prefetch, parameters: {{depth: 0, bytes: 1}}}}]
- {{id: c.r, {KEY}, {PIN}}}
- {{id: twice, {KEY}, {PIN}}}
- {{id: twice, {KEY}, {PIN}}}
- {{id: for-keras, framework: keras, {KEY}, {PIN}}}
templates:
- id: own
  parameters: [{{name: depth, kind: count}}]
  rules:
  - {{id: r, {KEY}, actions: [{{type: prefetch, parameters: {{depth: \"${{depth}}\"}}}}]}}
"
    );
    let found_errors = errors_of(&text);
    assert_eq!(
        places(&found_errors),
        [
            (3, "use[0].template"),
            (4, "use[1].parameters.prefx"),
            // The rule of the instance has the id of a rule in the file, whether that one is valid or not.
            (5, ""),
            (7, "settings.pin_max"),
            (7, "settings.learnin"),
            (9, "frameworks.pytroch"),
            (15, "environments.staging.rules[0].id"),
            (16, "environments.staging.rules[1].framework"),
            (19, "rules[0].conditions[0].property"),
            (20, "rules[0].actions[0].parameters.depth"),
            (20, "rules[0].actions[0].parameters.bytes"),
            (23, "rules[3]"),
            (24, "rules[4].framework"),
            // Reported once for all instances.
            (29, "templates.own(c).rules[0].actions[0].parameters.depth"),
        ],
        "{found_errors:#?}"
    );
}

/// Checks that `text` has a single error, at `path`.
fn assert_single_error(text: &str, path: &str) {
    let version = if text.starts_with("vesion") { "" } else { "version: 1\n" };
    let found_errors = errors_of(&format!("{version}{text}"));
    assert_eq!(
        found_errors.iter().map(|one| &*one.path).collect::<Vec<_>>(),
        [path],
        "{text}\n{found_errors:#?}"
    );
}

/// A rule that is off, in an environment.
fn off(id: &str) -> String {
    format!("environments: {{staging: {{rules: [{{id: {id}, enabled: false}}]}}}}")
}

#[test]
fn errors_that_follow_from_other_errors_are_not_reported() {
    let rule = |id: &str| format!("{{id: {id}, {KEY}, {PIN}}}");
    let switched = "environments: {staging: {rules: [{id: a, enabled: false}]}}";
    for (text, expected) in [
        // A rule with an error exists.
        (format!("rules: [{}]\n{switched}", rule("a").replace("pin", "pinn")), "rules[0].actions[0].type"),
        (format!("rules: {}\n{switched}", rule("a")), "rules"),
        (format!("rule: [{}]\n{switched}", rule("a")), "rule"),
        (format!("rules: [{}]\n{switched}", rule("a").replace("id:", "ID:")), "rules[0].ID"),
        (
            format!(
                "environments: {{stagin: {{rules: [{}]}}}}\nrules: [{{id: a, enabled: false}}]",
                rule("a")
            ),
            "environments.stagin",
        ),
        (
            format!(
                "hardware_profiles: {{big: {{rules: [{}]}}}}\nrules: [{{id: a, enabled: false}}]",
                rule("a")
            ),
            "hardware_profiles.big",
        ),
        (
            format!("frameworks: {{pytorch: {{rule: [{}]}}}}\n{}", rule("a"), off("a")),
            "frameworks.pytorch.rule",
        ),
        (format!("frameworks: {{pytorhc: {{rules: [{}]}}}}\n{}", rule("a"), off("a")), "frameworks.pytorhc"),
        // A misspelt field is reported, but not that the field is missing.
        (format!("rules: [{}]", rule("a").replace("conditions", "condition")), "rules[0].condition"),
        (
            format!("rules: [{}]", rule("a").replace("operator", "operater")),
            "rules[0].conditions[0].operater",
        ),
        // The rule may be off, so no field is missing.
        ("rules: [{id: a, enabled: flase}]".to_owned(), "rules[0].enabled"),
        // The unreadable condition may have a weight above 0.
        (
            "rules: [{id: a, match: {threshold: 0.5}, conditions: [{type: file_context, property: key, \
             operator: exists, weight: 0}, {type: file_context, property: kye, operator: exists}], \
             actions: [{type: pin}]}]"
                .to_owned(),
            "rules[0].conditions[1].property",
        ),
        ("vesion: 1".to_owned(), "vesion"),
    ] {
        assert_single_error(&text, expected);
    }
}

#[test]
fn errors_that_follow_from_errors_in_templates_are_not_reported() {
    let template = |fields: &str, depth: &str| {
        format!(
            "templates:\n- {fields}\n  parameters:\n  - {{name: depth, kind: count{depth}}}\n  rules:\n  \
             - {{id: r, {KEY}, actions: [{{type: prefetch, parameters: {{depth: \"${{depth}}\"}}}}]}}\n"
        )
    };
    let instance = "use: [{id: u, template: t, parameters: {depth: 4}}]";
    for (text, expected) in [
        // A template with an error exists, and so does an instance of one.
        (format!("{}{instance}", template("id: t", ", default: deep")), "templates[0].parameters[0].default"),
        (
            format!("{}{instance}", template("id: t", "").replace("kind: count", "kind: cuont")),
            "templates[0].parameters[0].kind",
        ),
        (format!("{}{instance}", template("ID: t", "")), "templates[0].ID"),
        (format!("{}{instance}", template("id: t", "").replace("templates", "template")), "template"),
        (
            format!("{}{instance}", template("id: t", "").replace("\"${depth}", "\"${dpeth}")),
            "templates[0].rules",
        ),
        (
            format!("{}{instance}", template("id: t", ", default: 9999")),
            "templates[0].rules[0].actions[0].parameters.depth",
        ),
        (
            format!("{}{}", template("id: t", ""), instance.replace("parameters", "paramters")),
            "use[0].paramters",
        ),
        (format!("{}{}", template("id: t", ""), instance.replace("depth", "dept")), "use[0].parameters.dept"),
        (format!("{}{}", template("id: t", ""), instance.replace("{depth: 4}", "[4]")), "use[0].parameters"),
        (
            format!("{}{}\n{}", template("id: t", ""), instance.replace("4", "deep"), off("u.r")),
            "use[0].parameters.depth",
        ),
        (format!("use: [{{id: u, template: tt}}]\n{}", off("u.r")), "use[0].template"),
        (
            format!("{}{}\n{}", template("id: t", ""), instance.replace("template", "tmplate"), off("u.r")),
            "use[0].tmplate",
        ),
    ] {
        assert_single_error(&text, expected);
    }
}

#[test]
fn definitions_under_a_duplicate_key_exist() {
    let text = format!(
        "version: 1\nrules: [{{id: u.a, enabled: false}}]\nrules: [{{id: b, enabled: flase}}]\n\
         templates: []\ntemplates: [{{id: t, rules: [{{id: a, {KEY}, {PIN}}}]}}]\n\
         use: [{{id: u, template: t}}]"
    );
    // The switch and the rule of the instance have the same id, whatever other errors there are.
    assert_eq!(places(&errors_of(&text)), [(3, ""), (3, "rules[0].enabled"), (5, ""), (6, "")]);
}

#[test]
fn errors_of_plugins_and_policies_are_reported_together() {
    let mut texts = PolicyFileSet::default();
    texts.submit_policy(
        "p.yaml",
        "version: 1\nuse: [{id: u, template: t}, {id: v, template: tt}]\nframeworks: {mien: {}}",
    );
    texts.submit_framework(
        "f.yaml",
        "version: 1\nframework: mine\ntemplates: [{id: t, rules: [{id: r, enabled: no}]}]\nhints: {shard: x}",
    );
    let found_errors = found(&texts);
    let places: Vec<_> = found_errors.iter().map(|one| (&*one.file, one.path.as_str())).collect();
    assert_eq!(
        places,
        [
            ("p.yaml", "use[1].template"),
            ("p.yaml", "frameworks.mien"),
            ("f.yaml", ""),
            ("f.yaml", "templates[0].rules[0].enabled"),
            ("f.yaml", "hints.shard"),
        ],
        "{found_errors:#?}"
    );
    assert_eq!(found_errors[2].found, "the field detect is missing");
    // A plugin with an unreadable name may be the missing one.
    let mut texts = PolicyFileSet::default();
    texts.submit_policy("p.yaml", "version: 1\nframeworks: {mine: {}}");
    texts.submit_framework("f.yaml", "version: 1\nframwork: mine\ndetect: {keys: []}");
    assert_eq!(found(&texts).iter().map(|one| &*one.file).collect::<Vec<_>>(), ["f.yaml"]);
}

#[test]
fn switch_of_a_missing_rule_is_refused() {
    let text = "version: 1\nrules:\n- {id: idle-copies-otu, enabled: false}\n";
    let found_errors = errors_of(text);
    assert_eq!(
        found_errors[0].to_string(),
        "policy.yaml:3:8: rules[0].id: there is no rule \"idle-copies-otu\" to disable; did you mean \
            \"idle-copies-out\"? (the id of a built-in rule, of a rule in a plugin given with the policy, \
            or of another rule in the policy)"
    );
    let mut texts = PolicyFileSet::default();
    texts.submit_policy("policy.yaml", text);
    assert!(texts.compile(None, &NoFacts, built_in()).is_err());
    // A stored policy stays accepted: the rule may have existed when it was applied.
    let mut stored = PolicyFileSet::default();
    stored.add_stored_policy("policy.yaml", text);
    assert_eq!(stored.compile(None, &NoFacts, built_in()).unwrap(), above(text, built_in()));
}

#[test]
fn harmless_errors_are_reported_for_submitted_but_not_for_stored_files() {
    let plugin = format!(
        "version: 1\nframework: mine\ndetect: {{user_agents: [{{pattern: mine, confidence: 1}}]}}\nrules:\n\
         - {{id: theirs, enabled: false}}\n- {{id: m, {KEY}, {PIN}}}\n"
    );
    let switch = "version: 1\nrules:\n- {id: scans-pass-by, enabled: false}\n";
    let idle = format!("environments: {{staging: {{rules: [{{id: a, framework: keras, {KEY}, {PIN}}}]}}}}\n");
    let mut texts = PolicyFileSet::default();
    texts.add_stored_policy("stored.yaml", &format!("{switch}{idle}"));
    texts.submit_framework("plugin.yaml", &plugin);
    let found_errors = found(&texts);
    assert_eq!(
        found_errors.iter().map(|one| &*one.file).collect::<Vec<_>>(),
        ["plugin.yaml"],
        "{found_errors:#?}"
    );
    let mut texts = PolicyFileSet::default();
    texts.submit_policy("given.yaml", &format!("{switch}{idle}"));
    texts.add_stored_framework("plugin.yaml", &plugin);
    let found_errors = found(&texts);
    assert_eq!(
        places(&found_errors),
        [(3, "rules[0].id"), (4, "environments.staging.rules[0].framework")],
        "{found_errors:#?}"
    );
    // Harmful errors are reported for stored files as well.
    let mut texts = PolicyFileSet::default();
    texts.add_stored_policy("stored.yaml", "version: 1\nuse: [{id: a, template: gone}]");
    texts.submit_framework("plugin.yaml", &plugin.replace("theirs", "idle-copies-out"));
    assert_eq!(places(&found(&texts)), [(2, "use[0].template")]);
}

#[test]
fn removed_words_are_refused_in_submitted_but_accepted_in_stored_files() {
    let once = "{type: intelligent_cache, parameters: {min_reads: 3, bypass_one_pass: true}}";
    let rule = |id: &str, action: &str| format!("{{id: {id}, {KEY}, actions: [{action}]}}");
    let template = format!(
        "templates:\n- id: t\n  parameters: [{{name: n, kind: count}}]\n  rules: [{}]\n\
         use: [{{id: u, template: t, parameters: {{n: 3}}}}]\n",
        rule("r", &once.replace("reads: 3", "reads: \"${n}\""))
    );
    let retain = "{type: retain, target: dataset, parameters: {keep_last: 1, delete: true, grace: 0s}}";
    let text = format!("version: 1\nrules:\n- {}\n- {}\n{template}", rule("a", once), rule("b", retain));
    let mut given = PolicyFileSet::default();
    given.submit_policy("policy.yaml", &text);
    assert_eq!(
        places(&found(&given)),
        [
            (3, "rules[0].actions[0].parameters.bypass_one_pass"),
            (4, "rules[1].actions[0].target"),
            (8, "templates[0].rules[0].actions[0].parameters.bypass_one_pass"),
        ]
    );
    let mut stored = PolicyFileSet::default();
    stored.add_stored_policy("policy.yaml", &text);
    let program = stored.compile(None, &NoFacts, built_in()).unwrap();
    let requests = |id: &str| {
        let rule = program.rules().iter().find(|one| &*one.rule.id == id).unwrap();
        rule.actions().map(|(_, request)| request.clone()).collect::<Vec<_>>()
    };
    for id in ["a", "u.r"] {
        assert!(matches!(requests(id)[..], [ActionRequest::Copy { min_reads: 3, .. }]), "{:?}", requests(id));
    }
    let nothing = |retain: &RetentionRequest| retain.keep_last == u32::MAX && !retain.delete;
    assert!(
        matches!(&requests("b")[..], [ActionRequest::Retain(retain)] if nothing(retain)),
        "{:?}",
        requests("b")
    );
    // Other unknown words are refused in stored files as well.
    let mut wrong = PolicyFileSet::default();
    wrong.add_stored_policy("policy.yaml", &text.replace("bypass_one_pass", "bypass_one"));
    assert!(wrong.compile(None, &NoFacts, built_in()).is_err());
}

#[test]
fn search_for_errors_ends_at_the_limit_of_diagnostics() {
    let switches = |profile: usize, rules: usize| {
        let switches: String =
            (0..rules).map(|n| format!("    - {{id: p{profile}-{n}, enabled: false}}\n")).collect();
        format!("  p{profile}:\n    conditions: {{gpu_count: 9}}\n    rules:\n{switches}")
    };
    let text = |last: usize| {
        let profiles: String = (0..4).map(|n| switches(n, RULES_MAX)).collect();
        format!("version: 1\nhardware_profiles:\n{profiles}{}", switches(4, last))
    };
    let wrong = ParsedPolicy::parse("many.yaml", &text(1)).unwrap_err().to_string();
    assert!(
        wrong
            .contains("hardware_profiles.p4.rules: a list has too many rules (at most 4000 rules in a file)"),
        "{wrong}"
    );
    let custom = [ParsedPolicy::parse("many.yaml", &text(0)).unwrap()];
    let wrong = Program::errors(&layers(&custom, built_in()), &PossibleDefinitions::default());
    assert_eq!(wrong.len(), DIAGNOSTICS_MAX);
}

#[test]
fn switch_of_a_rule_in_any_section_is_accepted() {
    let own = format!("rules: [{{id: a, {KEY}, {PIN}}}]");
    for text in [
        // Rules that are built in, of plugins (even of a disabled one), and of instances.
        "rules: [{id: idle-copies-out, enabled: false}]".to_owned(),
        "frameworks: {mosaicml: {enabled: false}}\nrules: [{id: mosaicml-index, enabled: false}]".to_owned(),
        format!(
            "templates: [{{id: t, {own}}}]\nuse: [{{id: u, template: t}}]\n\
             environments: {{staging: {{rules: [{{id: u.a, enabled: false}}]}}}}"
        ),
        // Rules of another section, whether it applies to this server or not.
        format!("rules: [{{id: a, enabled: false}}]\nenvironments: {{staging: {{{own}}}}}"),
        format!(
            "rules: [{{id: a, enabled: false}}]\nhardware_profiles: {{big: {{conditions: {{gpu_count: 9}}, \
             {own}}}}}"
        ),
        format!(
            "environments: {{staging: {{rules: [{{id: a, enabled: false}}]}}}}\n\
             frameworks: {{pytorch: {{{own}}}}}"
        ),
        // A defined rule that is switched off for a while is no switch.
        format!("rules: [{{id: a, enabled: false, {KEY}, {PIN}}}]"),
    ] {
        let found_errors = errors_of(&format!("version: 1\n{text}"));
        assert!(found_errors.is_empty(), "{text}\n{found_errors:#?}");
    }
}

#[test]
fn printed_programs_with_switched_off_rules_are_valid_policies() {
    let mut texts = PolicyFileSet::default();
    texts.submit_policy(
        "1.yaml",
        &format!(
            "version: 1\nrules:\n- {{id: theirs, enabled: false}}\n\
             - {{id: mine, enabled: false, stance: observe, {KEY}, {PIN}}}"
        ),
    );
    texts.submit_policy(
        "2.yaml",
        &format!(
            "version: 1\nrules:\n- {{id: theirs, {KEY}, actions: [{{type: spill}}]}}\n\
             - {{id: idle-copies-out, enabled: false}}"
        ),
    );
    let program = texts.compile(None, &NoFacts, built_in()).unwrap();
    for text in [program.to_yaml(), program.to_json()["policy"].to_string()] {
        let mut again = PolicyFileSet::default();
        again.submit_policy("printed", &text);
        let again =
            again.compile(None, &NoFacts, built_in()).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert_eq!(again, program);
        assert_eq!(again.to_json()["policy"], program.to_json()["policy"]);
    }
    assert!(program.to_yaml().contains("  - id: mine\n    enabled: false\n"), "{}", program.to_yaml());
}
