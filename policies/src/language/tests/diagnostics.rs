//! Tests of the exact text of diagnostics.

use super::{built_in, layers};
use crate::language::{Framework, ParsedPolicy, Program};

fn wrong(text: &str) -> String {
    match ParsedPolicy::parse("policy.yaml", text) {
        Ok(_) => "nothing".to_owned(),
        Err(wrong) => wrong.to_string(),
    }
}

/// Returns a file with one rule that has this condition and action.
fn with(condition: &str, action: &str) -> String {
    format!("version: 1\nrules:\n- id: r\n  conditions:\n  - {condition}\n  actions:\n  - {action}\n")
}

const CONDITION: &str = "{type: file_context, property: key, operator: exists}";
const ACTION: &str = "{type: pin}";

#[test]
fn conditions() {
    for (condition, message) in [
        (
            "{type: file_contxt, property: size, operator: exists}",
            "policy.yaml:5:12: rules[0].conditions[0].type: unknown condition type \"file_contxt\"; did you \
                mean \"file_context\"? (one of file_context, file_pattern, access_pattern, \
                workload_context, system_context)",
        ),
        (
            "{type: file_pattern, property: nam, operator: matches, value: x}",
            "policy.yaml:5:36: rules[0].conditions[0].property: unknown file_pattern property \"nam\"; did \
                you mean \"name\"? (one of extension, path, name, key)",
        ),
        (
            "{type: file_context, property: size, operator: bigger, value: 1MiB}",
            "policy.yaml:5:52: rules[0].conditions[0].operator: unknown operator \"bigger\" (one of equals, \
                not_equals, contains, matches, greater_than, less_than, greater_or_equal, less_or_equal, \
                in, not_in, between, exists)",
        ),
        (
            "{type: file_context, property: size, operator: matches, value: 1MiB}",
            "policy.yaml:5:52: rules[0].conditions[0].operator: \"matches\" does not fit size, \
             which is bytes (one of equals, not_equals, greater_than, less_than, greater_or_equal, \
             less_or_equal, in, not_in, between, exists)",
        ),
        (
            "{type: file_context, property: size, operator: less_than, value: 64}",
            "policy.yaml:5:70: rules[0].conditions[0].value: \"64\" has no unit (bytes with a unit, \
             such as 64MiB or 1.5GB)",
        ),
        (
            "{type: access_pattern, property: reads, operator: less_than, value: \"64\"}",
            "policy.yaml:5:73: rules[0].conditions[0].value: \"64\" is quoted (a number such as 8 or 0.5, \
                without a unit)",
        ),
        (
            "{type: workload_context, property: phase, operator: equals, value: trainig}",
            "policy.yaml:5:72: rules[0].conditions[0].value: unknown word \"trainig\"; did you mean \
                \"training\"? (one of initialization, training, validation, checkpoint_save, evaluation, \
                inference, tuning)",
        ),
        (
            "{type: access_pattern, property: reads, operator: between, value: [5, 1]}",
            "policy.yaml:5:71: rules[0].conditions[0].value: a list is not a valid pair (two values, the \
                smaller first)",
        ),
        (
            "{type: file_context, property: name, operator: in, value: []}",
            "policy.yaml:5:63: rules[0].conditions[0].value: a list is empty (one or more: a text)",
        ),
        (
            "{type: file_pattern, property: name, operator: matches, value: \"/(/\"}",
            "policy.yaml:5:68: rules[0].conditions[0].value: \"/(/\" is not a valid pattern: unclosed group \
                (a glob, or /a regular expression/)",
        ),
    ] {
        assert_eq!(wrong(&with(condition, ACTION)), message);
    }
}

#[test]
fn fields_of_conditions() {
    for (condition, message) in [
        (
            "{type: file_context, property: name, operator: equals}",
            "policy.yaml:5:5: rules[0].conditions[0]: the field value is missing",
        ),
        (
            "{type: file_context, property: name, operator: equals, value: x, wieght: 1}",
            "policy.yaml:5:70: rules[0].conditions[0].wieght: unknown field \"wieght\"; did you mean \
                \"weight\"? (one of type, property, operator, value, weight)",
        ),
        (
            "{type: file_context, property: name, operator: equals, value: x, weight: 2}",
            "policy.yaml:5:78: rules[0].conditions[0].weight: \"2\" is not a valid number (a number from 0 \
                to 1)",
        ),
    ] {
        assert_eq!(wrong(&with(condition, ACTION)), message);
    }
}

#[test]
fn actions() {
    for (action, message) in [
        (
            "{type: prefech}",
            "policy.yaml:7:12: rules[0].actions[0].type: unknown action \"prefech\"; did you mean \
                \"prefetch\"? (one of cache, intelligent_cache, prefetch, stream, coordinate, compress, \
                prioritize, promote, pin, unpin, spill, evict, retain)",
        ),
        (
            "{type: replicate}",
            "policy.yaml:7:12: rules[0].actions[0].type: \"replicate\" is reserved (another action until \
                clusters are supported)",
        ),
        (
            "{type: prefetch, parameters: {depht: 4}}",
            "policy.yaml:7:35: rules[0].actions[0].parameters.depht: unknown field \"depht\"; did you mean \
                \"depth\"? (one of depth, bytes, strategy, next)",
        ),
        (
            "{type: prefetch, parameters: {depth: 4096}}",
            "policy.yaml:7:42: rules[0].actions[0].parameters.depth: \"4096\" is out of range (from 1 to \
             1024)",
        ),
        (
            "{type: spill, parameters: {after: 10}}",
            "policy.yaml:7:39: rules[0].actions[0].parameters.after: \"10\" has no unit (a time with a unit, \
             such as 30s, 15m, 2h or 7d)",
        ),
        (
            "{type: pin, target: datasets}",
            "policy.yaml:7:25: rules[0].actions[0].target: unknown target \"datasets\"; did you mean \
                \"dataset\"? (one of object, dataset, checkpoint_group, prefix:PREFIX)",
        ),
        (
            "{type: retain, target: dataset}",
            "policy.yaml:7:28: rules[0].actions[0].target: \"dataset\" has no checkpoints (checkpoint_group, \
             prefix:PREFIX or no target)",
        ),
        (
            "{type: pin, stance: watch}",
            "policy.yaml:7:25: rules[0].actions[0].stance: unknown stance \"watch\" (one of observe, act)",
        ),
        (
            "{type: pin}\n  - {type: unpin}",
            "policy.yaml:8:5: rules[0].actions[1]: unpin conflicts with pin (a rule has at most one action \
                for the pin of a target)",
        ),
    ] {
        assert_eq!(wrong(&with(CONDITION, action)), message);
    }
}

#[test]
fn the_rest_of_a_file() {
    for (text, message) in [
        ("rules: []", "policy.yaml:1:1: the field version is missing"),
        ("version: 2", "policy.yaml:1:10: version: \"2\" is not a supported version (1)"),
        (
            "version: 1\nrule: []",
            "policy.yaml:2:1: rule: unknown field \"rule\"; did you mean \"rules\"? (one of version, name, \
                description, settings, rules, templates, use, frameworks, environments, hardware_profiles)",
        ),
        (
            "version: 1\nsettings: {evaluation: al}",
            "policy.yaml:2:24: settings.evaluation: unknown word \"al\"; did you mean \"all\"? (one of all, \
                first)",
        ),
        (
            "version: 1\nsettings: {prefetch.trainin: balanced}",
            "policy.yaml:2:12: settings.prefetch.trainin: unknown setting \"prefetch.trainin\"; did you \
                mean \"prefetch.training\"? (one of evaluation, optimization, prefetch, cache, learning, \
                learning_step_max, prefetch_depth_min, prefetch_depth_max, prefetch_bytes_max, \
                checkpoint_keep, pin_max, detection_confidence, workload_idle)",
        ),
        (
            "version: 1\nenvironments: {prod: {}}",
            "policy.yaml:2:16: environments.prod: unknown environment \"prod\"; did you mean \
                \"production\"? (one of development, staging, production)",
        ),
        (
            "version: 1\nhardware_profiles: {big: {conditions: {gpu_count: \">= many\"}}}",
            "policy.yaml:2:51: hardware_profiles.big.conditions.gpu_count: \">= many\" is not a comparison \
                (a sign (>=, <=, !=, >, < or =) and a value: a number such as 8 or 0.5, without a unit)",
        ),
        (
            "version: 1\nrules:\n- {id: a, enabled: false}\n- {id: a, enabled: false}",
            "policy.yaml:4:3: rules[1]: duplicate id \"a\" (each id once)",
        ),
        (
            "version: 1\nrules:\n- {id: \"a b\", enabled: false}",
            "policy.yaml:3:8: rules[0].id: \"a b\" is not a valid name (letters, digits, '-', '_' and '.', \
                at most 64)",
        ),
        (
            "version: 1\nrules:\n- {id: a, conditions: [], actions: [{type: pin}]}",
            "policy.yaml:3:23: rules[0].conditions: a list would match everything (at least one condition; \
                `exists` of `key` matches every object)",
        ),
        (
            "version: 1\nrules:\n- {id: a, priority: 1.5, enabled: false}",
            "policy.yaml:3:21: rules[0].priority: \"1.5\" is not a whole number (a whole number such as 8)",
        ),
        (
            "version: 1\nrules:\n- {id: a, match: {threshold: 0}, enabled: false}",
            "policy.yaml:3:30: rules[0].match.threshold: \"0\" would match everything (more than 0, \
             at most 1)",
        ),
        (
            "[1]",
            "policy.yaml:1:1: a list is not a map (a map with version, name, description, settings, rules, \
                templates, use, frameworks, environments, hardware_profiles)",
        ),
    ] {
        assert_eq!(wrong(text), message);
    }
}

#[test]
fn all_errors_are_reported_in_the_order_of_the_text() {
    let text = with("{type: file_context, property: sise, operator: equal, value: 1}", "{type: pinn}");
    let found = ParsedPolicy::parse("policy.yaml", &text).unwrap_err();
    let places: Vec<_> = found.0.iter().map(|one| (one.line, one.path.as_str())).collect();
    assert_eq!(
        places,
        [
            (5, "rules[0].conditions[0].property"),
            (5, "rules[0].conditions[0].operator"),
            // The value is checked against the property and operator that were clearly meant.
            (5, "rules[0].conditions[0].value"),
            (7, "rules[0].actions[0].type"),
        ]
    );
    assert_eq!(found.0[3].nearest.as_deref(), Some("pin"));
}

#[test]
fn frameworks() {
    for (text, message) in [
        (
            "version: 1\nframework: f\ndetect: {}",
            "f.yaml:3:9: detect: a map detects nothing (one of keys, magic, user_agents)",
        ),
        (
            "version: 1\nframework: f\ndetect: {magic: [{hex: \"5\", confidence: 1}]}",
            "f.yaml:3:24: detect.magic[0].hex: \"5\" is not a valid magic (pairs of hexadecimal digits such \
                as \"50 4b 03 04\", or a text; it ends within the first 512 bytes)",
        ),
        (
            "version: 1\nframework: f\ndetect: {keys: [{pattern: \"*\"}]}",
            "f.yaml:3:17: detect.keys[0]: the field confidence is missing",
        ),
        (
            "version: 1\nframework: f\ndetect: {keys: []}\nhints: {shard: x}",
            "f.yaml:4:9: hints.shard: unknown field \"shard\"; did you mean \"shards\"? (one of shards, \
                indexes, checkpoints, checkpoint_last, models, validation)",
        ),
    ] {
        assert_eq!(Framework::parse("f.yaml", text).unwrap_err().to_string(), message);
    }
}

const TEMPLATE: &str = "
version: 1
templates:
- id: t
  parameters: [{name: depth, kind: count}, {name: key, kind: text, default: k}]
  rules:
  - id: r
    conditions: [{type: file_context, property: key, operator: equals, value: \"${key}\"}]
    actions: [{type: prefetch, parameters: {depth: \"${depth}\"}}]
";

#[test]
fn templates() {
    let built_in = built_in();
    for (rest, message) in [
        (
            "use: [{id: u, template: tt, parameters: {depth: 1}}]",
            "policy.yaml:10:25: use[0].template: unknown template \"tt\"; did you mean \"t\"? (one of t, \
                pytorch-map-dataset, webdataset-shards, checkpoint-retention)",
        ),
        ("use: [{id: u, template: t}]", "policy.yaml:10:7: use[0]: the field parameters.depth is missing"),
        (
            "use: [{id: u, template: t, parameters: {depth: deep}}]",
            "policy.yaml:10:48: use[0].parameters.depth: \"deep\" is not a whole number (a whole number \
                such as 8)",
        ),
        (
            "use: [{id: u, template: t, parameters: {depth: 1, keys: x}}]",
            "policy.yaml:10:51: use[0].parameters.keys: unknown field \"keys\"; did you mean \"key\"? (one \
                of depth, key)",
        ),
        (
            "use: [{id: u, template: t, parameters: {depth: 9999}}]",
            "policy.yaml:9:52: templates.t(u).rules[0].actions[0].parameters.depth: \"9999\" is out of range \
             (from 1 to 1024)",
        ),
    ] {
        let policy = ParsedPolicy::parse("policy.yaml", &format!("{TEMPLATE}{rest}")).unwrap();
        let found = Program::compile(&layers(&[policy], built_in)).unwrap_err();
        assert_eq!(found.to_string(), message);
    }
    assert_eq!(
        wrong(&TEMPLATE.replace("${key}", "${kee}")),
        "policy.yaml:8:79: templates[0].rules: \"${kee}\" is not a parameter of the template; did you mean \
            \"key\"? (one of depth, key)"
    );
    // A template whose parameters all have defaults is checked before it is used.
    assert_eq!(
        wrong(&TEMPLATE.replace("kind: count", "kind: count, default: 9999")),
        "policy.yaml:9:52: templates[0].rules[0].actions[0].parameters.depth: \"9999\" is out of range (from \
         1 to 1024)"
    );
}

#[test]
fn errors_that_only_all_layers_together_show() {
    let built_in = built_in();
    for (text, message) in [
        (
            "version: 1\nframeworks: {pytroch: {enabled: false}}",
            "policy.yaml:2:14: frameworks.pytroch: unknown framework \"pytroch\"; did you mean \"pytorch\"? \
                (one of pytorch, tensorflow, huggingface, webdataset, mosaicml, lightning)",
        ),
        (
            "version: 1\nrules:\n- {id: a, framework: keras, enabled: false}",
            "policy.yaml:3:22: rules[0].framework: unknown framework \"keras\" (one of pytorch, tensorflow, \
                huggingface, webdataset, mosaicml, lightning)",
        ),
    ] {
        let policy = ParsedPolicy::parse("policy.yaml", text).unwrap();
        let found = Program::compile(&layers(&[policy], built_in)).unwrap_err();
        assert_eq!(found.to_string(), message);
    }
}

#[test]
fn short_text_cannot_expand_to_a_large_program() {
    let built_in = built_in();
    let many = |rule: &str, n: usize| (0..n).map(|n| rule.replace('N', &n.to_string())).collect::<String>();
    let first_error = |text: &str| {
        let policy = ParsedPolicy::parse("policy.yaml", text).unwrap();
        Program::compile(&layers(&[policy], built_in))
            .unwrap_err()
            .0
            .first()
            .map(ToString::to_string)
            .unwrap()
    };
    let instances = format!(
        "version: 1\ntemplates:\n- id: t\n  parameters: [{{name: x, kind: text}}]\n  rules:\n  \
         - {{id: r, name: \"{}\", enabled: false}}\nuse:\n{}",
        "${x}".repeat(20_000),
        many(&format!("- {{id: uN, template: t, parameters: {{x: {}}}}}\n", "y".repeat(100)), 10)
    );
    assert_eq!(
        first_error(&instances),
        "policy.yaml:6:5: templates.t(u2).rules: the template instances are too long (at most 4194304 bytes)"
    );
    let rules = format!("version: 1\nrules:\n{}", many("- {id: rN, enabled: false}\n", 1001));
    assert_eq!(wrong(&rules), "policy.yaml:3:3: rules: a list of 1001 items is too long (at most 1000)");
    let condition = "  - {type: file_pattern, property: name, operator: matches, value: \"?N\"}\n";
    let patterns = format!(
        "version: 1\nrules:\n{}",
        many(&format!("- id: rN\n  actions: [{{type: pin}}]\n  conditions:\n{}", many(condition, 11)), 92)
    );
    assert!(
        wrong(&patterns).contains("is one pattern too many (at most 1000 patterns)"),
        "{}",
        wrong(&patterns)
    );
}

#[test]
fn number_of_diagnostics_is_bounded() {
    let settings: String = (0..500).map(|n| format!("  s{n}: 1\n")).collect();
    let found =
        ParsedPolicy::parse("policy.yaml", &format!("version: 1\nsettings:\n{settings}")).unwrap_err();
    assert_eq!(found.0.len(), 100);
}
