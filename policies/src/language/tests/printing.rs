//! Programs printed back, the schema, and the documentation's tables.

use super::{above, alone, built_in, layers, parse};
use crate::language::{
    ActionKind, ConditionType, DEFAULTS, FRAMEWORKS, Operator, PROPERTIES, PolicyFile, Program, Setting,
    Word, framework_schema, printed, recipes, schema,
};
use serde_json::Value as Json;

#[test]
fn what_is_printed_compiles_to_the_same_program() {
    let built_in = built_in();
    for (name, _, text) in recipes() {
        let program = above(text, built_in);
        let yaml = program.to_yaml();
        let again =
            PolicyFile::parse("printed.yaml", &yaml).unwrap_or_else(|wrong| panic!("{wrong}\n{yaml}"));
        assert_eq!(Program::compile(&layers(&[again], built_in)).unwrap(), program, "{name}\n{yaml}");
        let json = program.to_json()["policy"].to_string();
        let again =
            PolicyFile::parse("printed.json", &json).unwrap_or_else(|wrong| panic!("{wrong}\n{json}"));
        assert_eq!(Program::compile(&layers(&[again], built_in)).unwrap(), program, "{name}\n{json}");
    }
}

#[test]
fn printed_to_the_letter() {
    let program = alone(
        "
version: 1
settings: {prefetch.training: aggressive}
rules:
- id: r
  name: \"A \\\"name\\\"\"
  priority: 5
  match: {threshold: 0.6}
  conditions:
  - {type: file_pattern, property: name, operator: matches, value: \"*.tar\", weight: 0.5}
  - {type: file_context, property: tags.team, operator: in, value: [vision, \"8\"]}
  actions:
  - {type: prefetch, target: dataset, parameters: {bytes: 1024KiB, depth: 4}}
  - {type: compress, stance: observe}
- {id: gone, enabled: false}
",
    );
    let yaml = program.to_yaml();
    let rules = &yaml[yaml.find("rules:").unwrap()..];
    assert_eq!(
        rules,
        "rules:
  # from policy.yaml:5
  - id: r
    name: \"A \\\"name\\\"\"
    priority: 5
    match: {threshold: 0.6}
    conditions:
      - {type: file_pattern, property: name, operator: matches, value: \"*.tar\", weight: 0.5}
      - {type: file_context, property: tags.team, operator: in, value: [vision, \"8\"]}
    actions:
      - {type: prefetch, target: dataset, stance: act, parameters: {bytes: 1MiB, depth: 4}}
      - {type: compress, target: object, stance: observe}
  - {enabled: false, id: gone}  # from policy.yaml:15
"
    );
    assert!(yaml.contains("  prefetch.training: aggressive  # from policy.yaml:3\n"), "{yaml}");
    assert!(yaml.contains("  prefetch: adaptive  # default\n"), "{yaml}");
    let json = program.to_json();
    assert_eq!(json["from"]["rules"]["r"]["line"], 5);
    assert_eq!(json["from"]["settings"]["prefetch"], Json::Null);
}

#[test]
fn schema_and_tables_know_every_word() {
    let (schema, tables) = (schema().to_string(), printed());
    let mut words: Vec<&str> = PROPERTIES.iter().map(|row| row.word.trim_end_matches('.')).collect();
    words.extend(ConditionType::WORDS.iter().chain(Operator::WORDS).chain(ActionKind::WORDS));
    words.extend(ActionKind::ALL.iter().flat_map(|one| one.rows()).map(|row| row.parameter.name()));
    words.extend(Setting::all().map(|one| one.row().word));
    words.push("chunked_streaming");
    for word in words {
        assert!(schema.contains(word), "schema: {word}");
        assert!(tables.contains(word), "tables: {word}");
    }
}

/// Whether `instance` is what `schema` says, of the keywords that ours uses.
fn holds(root: &Json, schema: &Json, instance: &Json) -> bool {
    if let Some(name) = schema["$ref"].as_str() {
        return holds(root, &root["$defs"][name.trim_start_matches("#/$defs/")], instance);
    }
    let number = |name: &str| schema[name].as_f64();
    let types = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    let of_type = |name: &Json| match name.as_str() {
        None => true,
        Some("object") => instance.is_object(),
        Some("array") => instance.is_array(),
        Some("string") => instance.is_string(),
        Some("boolean") => instance.is_boolean(),
        Some("integer") => instance.is_i64(),
        Some("number") => instance.is_number(),
        Some(other) => panic!("{other}"),
    };
    types.iter().any(of_type)
        && (schema["const"].is_null() || schema["const"] == *instance)
        && schema["enum"].as_array().is_none_or(|words| words.contains(instance))
        && schema["oneOf"]
            .as_array()
            .is_none_or(|all| all.iter().filter(|one| holds(root, one, instance)).count() == 1)
        && schema["pattern"]
            .as_str()
            .zip(instance.as_str())
            .is_none_or(|(pattern, text)| regex::Regex::new(pattern).unwrap().is_match(text))
        && instance.as_f64().is_none_or(|size| {
            number("minimum").is_none_or(|low| low <= size)
                && number("maximum").is_none_or(|high| size <= high)
                && number("exclusiveMinimum").is_none_or(|low| low < size)
        })
        && instance.as_array().is_none_or(|items| {
            number("minItems").is_none_or(|low| low <= items.len() as f64)
                && number("maxItems").is_none_or(|high| items.len() as f64 <= high)
                && items.iter().all(|item| schema["items"].is_null() || holds(root, &schema["items"], item))
        })
        && instance.as_object().is_none_or(|fields| {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            required.iter().all(|name| fields.contains_key(name.as_str().unwrap()))
                && fields.iter().all(|(name, value)| match &schema["properties"][name] {
                    Json::Null => match &schema["additionalProperties"] {
                        Json::Bool(false) => false,
                        Json::Null => true,
                        other => holds(root, other, value),
                    },
                    known => holds(root, known, value),
                })
        })
}

/// A file as JSON, the way that an editor would look at it.
fn json_of(text: &str) -> Json {
    use crate::language::diagnostic::Findings;
    use crate::language::tree::{Data, Node, parse};
    fn of(node: &Node) -> Json {
        match &node.data {
            Data::List(items) => items.iter().map(of).collect(),
            Data::Map(entries) => {
                Json::Object(entries.iter().map(|one| (one.key.to_string(), of(&one.value))).collect())
            }
            Data::Scalar(one) if one.plain => {
                serde_json::from_str(&one.text).unwrap_or_else(|_| (&*one.text).into())
            }
            Data::Scalar(one) => (&*one.text).into(),
        }
    }
    of(&parse(text, &mut Findings::new("p")).unwrap())
}

#[test]
fn recipes_and_printed_programs_are_what_the_schema_says() {
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
fn what_the_schema_refuses_the_reader_refuses() {
    let schema = schema();
    let good = "{version: 1, rules: [{id: r, conditions: [{type: file_context, property: size, operator: less_than, value: 1MiB}], actions: [{type: prefetch, parameters: {depth: 4}}]}]}";
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
    ] {
        let text = good.replacen(from, to, 1);
        assert_eq!(holds(&schema, &schema, &json_of(&text)), expected, "schema: {text}");
        assert_eq!(PolicyFile::parse("p", &text).is_ok(), expected, "reader: {text}");
    }
}
