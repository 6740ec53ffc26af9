//! Properties that hold for every text.

use super::{alone, built_in, layers};
use crate::language::{FRAMEWORKS, Framework, ParsedPolicy, Program, recipes};
use proptest::prelude::*;

/// Compiles as much as can be read. No text may cause a panic.
fn compile(text: &str) -> Option<Program> {
    let built_in = built_in();
    let policy = ParsedPolicy::parse("p.yaml", text).ok()?;
    Program::compile(&layers(&[policy], built_in)).ok()
}

/// Checks that the printed form of a program compiles to the same program.
fn round_trip(text: &str) -> Result<(), TestCaseError> {
    let Some(program) = compile(text) else { return Ok(()) };
    let yaml = program.to_yaml();
    let again = compile(&yaml);
    prop_assert_eq!(again.as_ref(), Some(&program), "{}\n{}", text, yaml);
    let json = program.to_json()["policy"].to_string();
    let again = compile(&json);
    prop_assert_eq!(again.as_ref(), Some(&program), "{}\n{}", text, json);
    Ok(())
}

fn operator_and_value() -> impl Strategy<Value = String> {
    let number = "-?[0-9]{1,6}(\\.[0-9]{1,4})?";
    prop_oneof![
        number.prop_map(|n| format!("property: reads, operator: greater_than, value: {n}")),
        "[0-9]{1,6}(\\.[0-9]{1,3})?(B|KiB|MB|GiB)"
            .prop_map(|n| format!("property: size, operator: less_than, value: {n}")),
        "[0-9]{1,4}(\\.[0-9])?(us|ms|s|m|h|d)"
            .prop_map(|n| format!("property: recency, operator: not_equals, value: {n}")),
        any::<String>().prop_map(|text| format!("property: name, operator: equals, value: {text:?}")),
        "[a-z*?]{1,9}".prop_map(|text| format!("property: key, operator: matches, value: \"{text}\"")),
        proptest::collection::vec("[a-zA-Z0-9 .~]{1,5}", 1..4)
            .prop_map(|items| format!("property: bucket, operator: in, value: {items:?}")),
    ]
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        compile(&text);
        let _ = Framework::parse("f.yaml", &text);
    }

    #[test]
    fn no_yaml_like_text_panics(text in "[-a-c:{}\\[\\], \n\"'#|>&*!%@`~?0-9.]{0,60}") {
        compile(&text);
    }

    #[test]
    fn no_mutated_recipe_panics(
        which in 0..recipes().len(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<char>(), 0..4_u8), 1..6),
    ) {
        let mut text: Vec<char> = recipes()[which].2.chars().collect();
        for (at, with, how) in edits {
            let at = at.index(text.len());
            match how {
                0 => text[at] = with,
                1 => { text.remove(at); }
                2 => text.insert(at, with),
                _ => { let part: Vec<_> = text[at..(at + 40).min(text.len())].to_vec(); text.extend(part); }
            }
        }
        round_trip(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn no_mutated_plugin_panics(
        which in 0..FRAMEWORKS.len(), at in any::<prop::sample::Index>(), with in any::<char>()
    ) {
        let mut text: Vec<char> = FRAMEWORKS[which].2.chars().collect();
        let at = at.index(text.len());
        text[at] = with;
        let _ = Framework::parse("f.yaml", &text.into_iter().collect::<String>());
    }

    #[test]
    fn printed_policies_compile_to_the_same_program(
        rules in proptest::collection::vec(
            (operator_and_value(), -100..100_i32, 0..3_u8, 0.01..1.0_f64, any::<String>()), 1..5
        ),
        pin in 0..=100_u8,
    ) {
        let mut text =
            format!("version: 1\nsettings: {{pin_max: {pin}%, prefetch.training: balanced}}\nrules:\n");
        for (n, (condition, priority, how, weight, name)) in rules.iter().enumerate() {
            let is_of_accesses = condition.contains("reads") || condition.contains("recency");
            let of = if is_of_accesses { "access_pattern" } else { "file_context" };
            let how = match how {
                0 => "all".to_owned(),
                1 => "any".to_owned(),
                _ => format!("{{threshold: {weight}}}"),
            };
            let name: String = name.chars().map(|c| format!("\\U{:08x}", u32::from(c))).collect();
            text.push_str(&format!(
                "- id: r{n}\n  name: \"{name}\"\n  priority: {priority}\n  match: {how}\n  \
                 conditions: [{{type: {of}, {condition}, weight: {weight}}}]\n  \
                 actions: [{{type: pin}}, {{type: evict, stance: observe}}]\n"
            ));
        }
        round_trip(&text)?;
    }
}

#[test]
fn printed_extreme_numbers_parse_to_the_same_number() {
    let text = "{version: 1, rules: [{id: r, conditions: [{type: access_pattern, property: reads, \
        operator: in, value: [9007199254740992, -0.1, 1e-7]}], actions: [{type: pin}]}]}";
    round_trip(text).unwrap();
    assert_eq!(alone(text).rules().len(), 1);
}

/// To be run manually: `cargo test --release -p mlgw-policies -- --ignored --nocapture long_texts`.
#[test]
#[ignore = "measures"]
fn long_texts_parse_in_linear_time() {
    let n = 1 << 20;
    let texts = [
        ("spaces", " ".repeat(n)),
        ("comments", "#\n".repeat(n / 2)),
        ("open lists", "[".repeat(n)),
        ("dashes", "- ".repeat(n / 2)),
        ("questions", "? ".repeat(n / 2)),
        ("colons", ": ".repeat(n / 2)),
        ("keys", (0..n / 12).map(|n| format!("k{n}: 1\n")).collect()),
        ("same keys", "k: 1\n".repeat(n / 5)),
        ("items", format!("[{}]", "1,".repeat(n / 2))),
        ("words", "a ".repeat(n / 2)),
        ("lines", "a\n".repeat(n / 2)),
        ("quoted", format!("\"{}\"", "\\u0041".repeat(n / 7))),
        ("block", format!("a: |\n{}", "  x\n".repeat(n / 4))),
        ("folded", format!("a: >\n{}", "  x\n\n".repeat(n / 5))),
        ("directives", format!("{}---\na: 1", "%TAG !a! b\n".repeat(n / 12))),
        ("deep indents", (0..1400).map(|n| format!("{}a:\n", " ".repeat(n))).collect()),
        ("braces", "{a: ".repeat(n / 4)),
        ("key in flow", format!("{{{}: 1}}", "a ".repeat(n / 2 - 4))),
        (
            "unknown fields",
            format!("version: 1\n{}", (0..n / 16).map(|n| format!("rulex{n}: 1\n")).collect::<String>()),
        ),
    ];
    for (name, text) in texts {
        let start = mlgw_common::time::Instant::now();
        let text = &text[..text.len().min(n)];
        let wrong = ParsedPolicy::parse("p", text).map(|_| ()).map_err(|wrong| wrong.0[0].found.clone());
        println!("{name}: {:?} for {} bytes: {wrong:?}", start.elapsed(), text.len());
    }
}
