//! Tests that the schema and the reader agree: each refuses what the other refuses, except for errors that a
//! schema cannot express.

use super::{above, built_in, parse};
use crate::language::{
    DEFAULTS, Diagnostic, Diagnostics, FRAMEWORKS, Framework, ParsedPolicy, framework_schema, recipes, schema,
};
use regex::Regex;
use serde_json::{Value as Json, json};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

/// True if `instance` is valid by `schema`. Supports the keywords that the generated schemas use.
fn holds(root: &Json, schema: &Json, instance: &Json) -> bool {
    if let Some(name) = schema["$ref"].as_str() {
        return holds(root, &root["$defs"][name.trim_start_matches("#/$defs/")], instance);
    }
    let branch = match &schema["if"] {
        Json::Null => &Json::Null,
        condition if holds(root, condition, instance) => &schema["then"],
        _ => &schema["else"],
    };
    let types = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    types.iter().any(|name| is_of_type(name, instance))
        && (branch.is_null() || holds(root, branch, instance))
        && (schema["const"].is_null() || schema["const"] == *instance)
        && schema["enum"].as_array().is_none_or(|words| words.contains(instance))
        && schema["oneOf"]
            .as_array()
            .is_none_or(|all| all.iter().filter(|one| holds(root, one, instance)).count() == 1)
        && instance.as_str().is_none_or(|text| text_holds(schema, text))
        && instance.as_f64().is_none_or(|size| {
            let number = |name: &str| schema[name].as_f64();
            number("minimum").is_none_or(|low| low <= size)
                && number("maximum").is_none_or(|high| size <= high)
                && number("exclusiveMinimum").is_none_or(|low| low < size)
        })
        && instance.as_array().is_none_or(|items| {
            is_within(schema, "Items", items.len())
                && items.iter().all(|item| schema["items"].is_null() || holds(root, &schema["items"], item))
        })
        && instance.as_object().is_none_or(|fields| {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            is_within(schema, "Properties", fields.len())
                && required.iter().all(|name| fields.contains_key(name.as_str().unwrap()))
                && fields.iter().all(|(name, value)| field_holds(root, schema, name, value))
        })
}

fn is_of_type(name: &Json, instance: &Json) -> bool {
    match name.as_str() {
        None => true,
        Some("object") => instance.is_object(),
        Some("array") => instance.is_array(),
        Some("string") => instance.is_string(),
        Some("boolean") => instance.is_boolean(),
        Some("integer") => instance.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("number") => instance.is_number(),
        Some(other) => panic!("{other}"),
    }
}

fn is_within(schema: &Json, what: &str, count: usize) -> bool {
    let bound = |side: &str| schema[format!("{side}{what}")].as_u64();
    bound("min").is_none_or(|low| low <= count as u64) && bound("max").is_none_or(|high| count as u64 <= high)
}

fn text_holds(schema: &Json, text: &str) -> bool {
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Regex>> = RefCell::default();
    }
    is_within(schema, "Length", text.chars().count())
        && schema["pattern"].as_str().is_none_or(|pattern| {
            COMPILED.with_borrow_mut(|known| {
                let compiled =
                    known.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).unwrap());
                compiled.is_match(text)
            })
        })
}

fn field_holds(root: &Json, schema: &Json, name: &str, value: &Json) -> bool {
    (schema["propertyNames"].is_null() || holds(root, &schema["propertyNames"], &name.into()))
        && match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Json::Null, Json::Bool(false)) => false,
            (Json::Null, Json::Null) => true,
            (Json::Null, other) => holds(root, other, value),
            (known, _) => holds(root, known, value),
        }
}

/// Converts a file to JSON as an editor would see it.
fn json_of(text: &str) -> Json {
    use crate::language::findings::Findings;
    use crate::language::parser::parse;
    use crate::language::tree::{DocumentNode, NodeData};
    fn of(node: &DocumentNode) -> Json {
        match &node.data {
            NodeData::Unknown => panic!("an alias"),
            NodeData::List(items) => items.iter().map(of).collect(),
            NodeData::Map(entries) => {
                Json::Object(entries.iter().map(|one| (one.key.to_string(), of(&one.value))).collect())
            }
            NodeData::Scalar(one) if one.is_plain => {
                serde_json::from_str(&one.text).unwrap_or_else(|_| (&*one.text).into())
            }
            NodeData::Scalar(one) => (&*one.text).into(),
        }
    }
    of(&parse(text, &mut Findings::new("p")).unwrap())
}

#[test]
fn published_schemas_are_current() {
    for (published, is, command) in [
        (include_str!("../../../../docs/policy.schema.json"), schema(), "policy schema"),
        (
            include_str!("../../../../docs/framework.schema.json"),
            framework_schema(),
            "policy schema --framework",
        ),
    ] {
        let published: Json = serde_json::from_str(published).unwrap();
        assert!(published == is, "`mlgw {command}` differs from its file in docs");
    }
}

#[test]
fn recipes_and_printed_programs_satisfy_the_schema() {
    let (schema, built_in) = (schema(), built_in());
    for (name, _, text) in recipes() {
        assert!(holds(&schema, &schema, &json_of(text)), "{name}");
        let printed = above(text, built_in).to_json();
        assert!(holds(&schema, &schema, &printed["policy"]), "{name}");
    }
    assert!(holds(&schema, &schema, &json_of(DEFAULTS.1)));
    let plugins = framework_schema();
    for (name, _, text) in FRAMEWORKS {
        assert!(holds(&plugins, &plugins, &json_of(text)), "{name}");
    }
}

#[test]
fn schema_and_reader_refuse_the_same_documents() {
    let schema = schema();
    let good = "{version: 1, rules: [{id: r, conditions: [{type: file_context, property: size, \
        operator: less_than, value: 1MiB}], actions: [{type: prefetch, parameters: {depth: 4}}]}]}";
    parse(good);
    for (from, to, expected) in [
        ("version: 1", "version: 2", false),
        ("1MiB", "1", false),
        ("1MiB", "1.5 gb", true),
        ("less_than", "matches", false),
        ("less_than", "in", false),
        ("size", "phase", false),
        ("depth: 4", "depth: 0", false),
        ("depth: 4", "depth: 1.5", false),
        ("depth: 4", "strategy: adaptive", true),
        ("depth: 4", "strategy: eager", false),
        ("prefetch", "pin", false),
        ("id: r", "id: r, match: {threshold: 0.5}", true),
        ("id: r", "id: r, match: {threshold: 0}", false),
        ("id: r", "id: \"r r\"", false),
        ("id: r, ", "", false),
        ("id: r", "id: 7", true),
        ("id: r", "id: r, enabled: false", true),
        ("id: r", "id: r, enabled: true", true),
        ("actions: [{type: prefetch, parameters: {depth: 4}}]", "actions: []", false),
        ("actions: [{type: prefetch, parameters: {depth: 4}}]", "enabled: false, actions: []", true),
        (", actions: [{type: prefetch, parameters: {depth: 4}}]", "", false),
        (", actions: [{type: prefetch, parameters: {depth: 4}}]", ", enabled: true", false),
        (", actions: [{type: prefetch, parameters: {depth: 4}}]", ", enabled: false", true),
        ("[{type: file_context, property: size, operator: less_than, value: 1MiB}]", "[]", false),
        (
            "[{type: file_context, property: size, operator: less_than, value: 1MiB}]",
            "[], enabled: false",
            true,
        ),
        ("rules:", "templates: [{id: t, rules: []}], rules:", false),
        ("rules:", "templates: [{id: t}], rules:", false),
        (
            "rules:",
            "templates: [], use: [], frameworks: {}, environments: {}, hardware_profiles: {}, settings: {}, \
             rules:",
            true,
        ),
        (
            "rules:",
            "templates: [{id: t, parameters: [{name: a, kind: count, default: x}], rules: [{}]}], rules:",
            false,
        ),
        ("rules:", "hardware_profiles: {big: {conditions: {}}}, rules:", false),
        ("rules:", "hardware_profiles: {big: {settings: {}}}, rules:", false),
        ("rules:", "hardware_profiles: {big: {conditions: {gpu_count: \">= 8\"}}}, rules:", true),
        ("rules:", "hardware_profiles: {big: {conditions: {gpu_count: 8}}}, rules:", true),
        ("rules:", "hardware_profiles: {big: {conditions: {memory: 8}}}, rules:", false),
        ("rules:", "hardware_profiles: {big: {conditions: {environment: \"> staging\"}}}, rules:", false),
        ("rules:", "hardware_profiles: {\"a b\": {conditions: {gpu_count: 8}}}, rules:", false),
        ("rules:", "settings: {pin_max: 101%}, rules:", false),
        ("rules:", "settings: {pin_max: 100.0 %}, rules:", true),
    ] {
        let text = good.replacen(from, to, 1);
        assert_eq!(holds(&schema, &schema, &json_of(&text)), expected, "schema: {text}");
        assert_eq!(ParsedPolicy::parse("p", &text).is_ok(), expected, "reader: {text}");
    }
}

/// Errors that a schema cannot express: those that only several values show together, those of the pattern
/// compiler, ranges of values with units, and those of a template's rules with inserted parameters.
const INEXPRESSIBLE: &[&str] = &[
    "duplicate id",
    "duplicate field",
    "is not a valid pair",
    "conflicts with",
    "no condition of the rule has a weight above 0",
    "is not a valid pattern",
    "is not a parameter of the template",
    "is out of range",
    "is not a valid magic",
];

/// Returns copies of a document, each with one value removed or replaced by another one.
fn mutations(document: &Json) -> Vec<Json> {
    fn pointers(at: &str, json: &Json, found: &mut Vec<String>) {
        found.push(at.to_owned());
        match json {
            Json::Object(fields) => fields.iter().for_each(|(name, one)| {
                pointers(&format!("{at}/{}", name.replace('/', "~1")), one, found);
            }),
            Json::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, one)| pointers(&format!("{at}/{index}"), one, found));
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    pointers("", document, &mut all);
    let others = [
        json!(""),
        json!("x"),
        json!("no name"),
        json!("5"),
        json!("5%"),
        json!("500%"),
        json!("5MiB"),
        json!("5s"),
        json!(-1),
        json!(0),
        json!(0.5),
        json!(7),
        json!(20_000),
        json!(1e300),
        json!(true),
        json!(false),
        json!([]),
        json!({}),
        json!([1]),
        json!(["x", "y"]),
        json!({"x": 1}),
        json!([{}]),
    ];
    let mut spoilt = Vec::new();
    for pointer in all {
        for other in &others {
            let mut document = document.clone();
            *document.pointer_mut(&pointer).unwrap() = other.clone();
            spoilt.push(document);
        }
        let mut without = document.clone();
        if let Some((of, name)) = pointer.rsplit_once('/') {
            match without.pointer_mut(of).unwrap() {
                Json::Object(fields) => drop(fields.remove(&name.replace("~1", "/"))),
                Json::Array(items) => drop(items.remove(name.parse().unwrap())),
                _ => unreachable!("only lists and maps contain other values"),
            }
            spoilt.push(without);
        }
        let mut more = document.clone();
        if let Json::Object(fields) = more.pointer_mut(&pointer).unwrap() {
            fields.insert("strange".to_owned(), json!("x"));
            spoilt.push(more);
        }
    }
    spoilt
}

fn is_unsaid(one: &Diagnostic) -> bool {
    one.path.starts_with("templates[0].rules[") || INEXPRESSIBLE.iter().any(|what| one.found.contains(what))
}

fn agree(schema: &Json, document: &Json, read: impl Fn(&str) -> Result<(), Diagnostics>) {
    assert!(holds(schema, schema, document) && read(&document.to_string()).is_ok(), "{document}");
    let mut apart = BTreeSet::new();
    for spoilt in mutations(document) {
        let is_right = holds(schema, schema, &spoilt);
        match read(&spoilt.to_string()) {
            Ok(()) if !is_right => drop(apart.insert(format!("refused by the schema alone: {spoilt}"))),
            Err(wrong) if is_right && !wrong.0.iter().any(is_unsaid) => {
                apart.insert(format!("refused by the reader alone: {wrong}"));
            }
            _ => {}
        }
    }
    assert!(
        apart.is_empty(),
        "{} of them:\n{}",
        apart.len(),
        apart.into_iter().take(40).collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn schema_and_reader_agree_on_mutated_policies() {
    let condition = json!({
        "type": "file_context", "property": "size", "operator": "less_than", "value": "1MiB", "weight": 0.5
    });
    let rule = json!({
        "id": "r", "name": "R", "description": "of it", "priority": 7, "enabled": true, "stance": "observe",
        "framework": "pytorch", "match": {"threshold": 0.5},
        "conditions": [
            condition,
            {"type": "file_context", "property": "tags.team", "operator": "in", "value": ["a", "b"]},
            {"type": "file_pattern", "property": "name", "operator": "matches", "value": "*.tar"},
            {"type": "access_pattern", "property": "reads", "operator": "between", "value": [1, 5]},
            {"type": "workload_context", "property": "phase", "operator": "equals", "value": "training"},
            {"type": "system_context", "property": "tier_fill.hot", "operator": "exists", "value": false},
        ],
        "actions": [
            {
                "type": "prefetch", "target": "dataset", "stance": "act",
                "parameters": {"depth": 4, "bytes": "1MiB", "strategy": "adaptive"}
            },
            {"type": "spill", "target": "prefix:x", "parameters": {"after": "1h"}},
            {"type": "stream", "parameters": {"keep": true}},
        ],
    });
    let template = |default: Json| {
        json!({
            "id": "t", "name": "T", "description": "of it", "category": "c",
            "parameters": [
                {"name": "a", "kind": "count", "default": default, "description": "d", "required": false}
            ],
            "rules": [{"id": "u", "enabled": false}],
        })
    };
    let document = json!({
        "version": 1, "name": "all", "description": "of it",
        "settings": {
            "evaluation": "all", "pin_max": "10%", "prefetch.training": "aggressive",
            "detection_confidence": 0.5, "prefetch_depth_max": 9, "prefetch_bytes_max": "1GiB",
            "workload_idle": "1m"
        },
        "rules": [rule, {"id": "off", "enabled": false}],
        "templates": [template(json!(5))],
        "use": [{"id": "u", "template": "t", "parameters": {"a": 5}}],
        "frameworks": {"pytorch": {"enabled": true, "rules": []}},
        "environments": {"staging": {"settings": {"learning": "off"}, "rules": []}},
        "hardware_profiles": {"big": {
            "conditions": {
                "gpu_count": ">= 8", "memory": "< 1GiB", "environment": "staging", "tier_fill.hot": "> 5%"
            },
            "settings": {}, "rules": []
        }},
    });
    agree(&schema(), &document, |text| ParsedPolicy::parse("p.json", text).map(drop));
}

#[test]
fn schema_and_reader_agree_on_mutated_plugins() {
    let document = json!({
        "version": 1, "framework": "mine", "description": "of it",
        "detect": {
            "keys": [{"pattern": "*.mine", "confidence": 0.5}],
            "magic": [{"offset": 4, "hex": "50 4b", "confidence": 0.5}, {"text": "PK", "confidence": 1}],
            "user_agents": [{"pattern": "/mine/", "confidence": 0.5}],
        },
        "hints": {"shards": "*.mine", "models": ["a*", "b*"]},
        "rules": [{"id": "off", "enabled": false}],
        "templates": [], "use": [],
    });
    agree(&framework_schema(), &document, |text| Framework::parse("f.json", text).map(drop));
}
