//! The schema of policies, validation of files, and matches of keys.

use super::{mlgw, temp_dir, write};
use std::path::Path;

const POLICY: &str = "version: 1
rules:
- id: tars
  conditions:
  - {type: file_pattern, property: name, operator: matches, value: '*.tar'}
  - {type: file_context, property: size, operator: greater_than, value: 1KiB}
  actions:
  - {type: promote}
- id: busy
  conditions:
  - {type: access_pattern, property: frequency, operator: greater_than, value: 10}
  actions:
  - {type: pin, target: dataset}
";

#[test]
fn schemas_contain_the_vocabulary() {
    let room = temp_dir();
    let policy = mlgw(room.path(), "policy schema").document();
    assert_eq!(policy["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let text = policy.to_string();
    for word in
        ["file_context", "checkpoint_generation", "greater_or_equal", "intelligent_cache", "keep_last"]
    {
        assert!(text.contains(word), "{word}");
    }
    let plugin = mlgw(room.path(), "policy schema --framework").document();
    assert!(plugin["properties"]["detect"]["properties"]["magic"].is_object(), "{plugin}");
}

#[test]
fn validate_accepts_a_valid_file_and_lists_every_error_of_an_invalid_one() {
    let room = temp_dir();
    write(room.path(), "good.yaml", POLICY);
    let wrong = POLICY.replace("property: size", "property: siez").replace("pin,", "pinn,");
    write(room.path(), "bad.yaml", &wrong);
    let good = mlgw(room.path(), "policy validate good.yaml");
    let expected = "good.yaml is valid: a policy with 2 rules, 0 templates and 0 settings.\n";
    assert_eq!((good.stdout.as_str(), good.status), (expected, 0), "{}", good.stderr);
    let both = mlgw(room.path(), "policy validate good.yaml bad.yaml");
    assert_eq!((both.status, both.stderr.as_str()), (1, "mlgw: 1 of 2 files is invalid\n"));
    let first = both.stdout.lines().nth(1).expect("a diagnostic");
    let expected = "bad.yaml:6:36: rules[0].conditions[1].property: unknown file_context property \"siez\"; \
                    did you mean \"size\"? (one of size, type, extension, path, name, key, bucket, tags, \
                    tags.NAME, metadata, metadata.NAME, model_file_kind, checkpoint_generation, age, tier)";
    assert_eq!(first, expected);
    assert!(both.stdout.contains("did you mean \"pin\"?"), "{}", both.stdout);
    let document = mlgw(room.path(), "policy validate bad.yaml --output json").document();
    assert_eq!(document[0]["diagnostics"][0]["nearest"], "size");
    assert_eq!(document[0]["diagnostics"].as_array().map(Vec::len), Some(2), "{document:#}");
}

#[test]
fn unreadable_files_have_statuses_of_their_own() {
    let room = temp_dir();
    let missing = mlgw(room.path(), "policy validate none.yaml");
    assert_eq!((missing.status, missing.stderr.as_str()), (2, "mlgw: none.yaml: no such file\n"));
    let directory = mlgw(room.path(), "policy validate .");
    assert_eq!(directory.status, 1, "{}", directory.stderr);
    assert_eq!(mlgw(room.path(), "policy validate").status, 2);
}

#[test]
fn plugins_are_validated_as_such() {
    let room = temp_dir();
    let plugin = "version: 1\nframework: mine\ndetect:\n  keys: [{pattern: '*.mine', confidence: 0.9}]\n";
    write(room.path(), "mine.yaml", plugin);
    let output = mlgw(room.path(), "policy validate mine.yaml");
    assert!(
        output.stdout.starts_with("mine.yaml is valid: a framework with"),
        "{}{}",
        output.stdout,
        output.stderr
    );
    write(room.path(), "mine.yaml", &plugin.replace("confidence", "confidense"));
    let output = mlgw(room.path(), "policy validate mine.yaml");
    assert!(
        output.status == 1 && output.stdout.contains("did you mean \"confidence\"?"),
        "{}",
        output.stdout
    );
}

#[test]
fn policies_use_templates_of_plugins_given_with_them() {
    let room = temp_dir();
    let plugin = "version: 1\nframework: mine\ndetect:\n  keys: [{pattern: '*.mine', confidence: 0.9}]\n\
        templates:\n- id: keep\n  rules:\n  - {id: it, conditions: [{type: file_pattern, property: name, \
        operator: matches, value: '*.mine'}], actions: [{type: pin}]}\n";
    write(room.path(), "mine.yaml", plugin);
    write(room.path(), "p.yaml", "version: 1\nuse:\n- {id: kept, template: keep}\n");
    write(room.path(), "keys", "a.mine\n");
    assert_eq!(mlgw(room.path(), "policy validate p.yaml").status, 1);
    let output = mlgw(room.path(), "policy validate p.yaml --framework mine.yaml");
    assert_eq!((output.status, output.stdout.lines().count()), (0, 2), "{}{}", output.stdout, output.stderr);
    let words = "policy test p.yaml --framework mine.yaml --environment staging --keys keys --output json";
    let tested = mlgw(room.path(), words).document();
    assert_eq!(tested["keys"][0]["frameworks"][0], "mine");
    assert_eq!(mlgw(room.path(), "policy test p.yaml --environment research --keys keys").status, 2);
    let small = "--profile epochs --objects 20 --epochs 2 --cache .5 --policy mlgw";
    let words = format!("policy simulate p.yaml {small} --framework mine.yaml --environment staging");
    assert_eq!(mlgw(room.path(), &words).status, 0);
    let drawn = mlgw(room.path(), &format!("policy simulate {small} --plot a.png"));
    assert!(drawn.status == 2 && drawn.stderr.contains("ends in .svg"), "{}", drawn.stderr);
    assert!(!room.path().join("a.png").exists());
}

#[test]
fn every_included_recipe_and_plugin_is_valid() {
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies");
    for folder in ["recipes", "frameworks"] {
        let entries = std::fs::read_dir(policies.join(folder)).expect("a folder");
        let files: Vec<_> = entries
            .map(|entry| format!("{folder}/{}", entry.expect("a file").file_name().display()))
            .collect();
        let output = mlgw(&policies, &format!("policy validate {}", files.join(" ")));
        assert_eq!(output.status, 0, "{}{}", output.stdout, output.stderr);
        assert_eq!(output.stdout.lines().count(), files.len());
    }
}

#[test]
fn keys_of_a_list_match_by_the_facts_they_contain() {
    let room = temp_dir();
    write(room.path(), "p.yaml", POLICY);
    write(room.path(), "keys", "a/1.tar\ns3://lake/b/2.jpg\n");
    let output = mlgw(room.path(), "policy test p.yaml --keys keys");
    let rule = |name: &str| {
        let line = output.stdout.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{}{}", output.stdout, output.stderr))
            .split_whitespace()
            .collect::<Vec<_>>()
    };
    assert_eq!(rule("tars "), ["tars", "0", "of", "2", "1", "size"]);
    assert_eq!(rule("busy "), ["busy", "0", "of", "2", "2", "frequency"]);
    let document = mlgw(room.path(), "policy test p.yaml --keys keys --output json").document();
    assert_eq!((&document["tried"], &document["keys"][1]["bucket"]), (&2.into(), &"lake".into()));
}

#[test]
fn files_of_a_directory_match_by_size_and_first_bytes() {
    let room = temp_dir();
    write(room.path(), "p.yaml", POLICY);
    std::fs::create_dir_all(room.path().join("data/train")).expect("made");
    write(room.path(), "data/train/0.tar", &"x".repeat(2000));
    write(room.path(), "data/train/1.tar", "short");
    let document = mlgw(room.path(), "policy test p.yaml --files data --output json").document();
    let keys = document["keys"].as_array().expect("keys");
    let matches = |key: &serde_json::Value| {
        key["matched"].as_array().expect("a list").iter().any(|one| one["rule"] == "tars")
    };
    let found: Vec<_> = keys.iter().map(|key| (key["key"].as_str().expect("a key"), matches(key))).collect();
    assert_eq!(found, [("train/0.tar", true), ("train/1.tar", false)]);
    let rules = document["rules"].as_array().expect("rules");
    let tars = rules.iter().find(|rule| rule["rule"] == "tars").expect("the rule");
    assert_eq!((&tars["matched"], &tars["of"]), (&1.into(), &2.into()));
}
