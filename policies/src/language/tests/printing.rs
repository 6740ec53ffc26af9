//! Tests of printed programs and of the documentation's tables.

use super::{above, alone, built_in, layers};
use crate::language::{
    ActionKind, ConditionType, Operator, PROPERTIES, ParsedPolicy, Program, Setting, Word, language_tables,
    recipes, schema,
};
use serde_json::Value as Json;

#[test]
fn printed_programs_compile_to_the_same_program() {
    let built_in = built_in();
    for (name, _, text) in recipes() {
        let program = above(text, built_in);
        let yaml = program.to_yaml();
        let again =
            ParsedPolicy::parse("printed.yaml", &yaml).unwrap_or_else(|wrong| panic!("{wrong}\n{yaml}"));
        assert_eq!(Program::compile(&layers(&[again], built_in)).unwrap(), program, "{name}\n{yaml}");
        let json = program.to_json()["policy"].to_string();
        let again =
            ParsedPolicy::parse("printed.json", &json).unwrap_or_else(|wrong| panic!("{wrong}\n{json}"));
        assert_eq!(Program::compile(&layers(&[again], built_in)).unwrap(), program, "{name}\n{json}");
    }
}

#[test]
fn printed_program_has_the_exact_text() {
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
fn schema_and_tables_contain_every_word() {
    let (schema, tables) = (schema().to_string(), language_tables());
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
