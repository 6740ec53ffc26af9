//! Tests that the built-in files parse, compile, and detect what they should.

use super::{above, built_in, layers};
use crate::language::{
    ActionKind, FRAMEWORKS, Framework, Hint, Layer, ParsedPolicy, Program, Stance, Word, recipes,
};

#[test]
fn every_recipe_compiles_above_the_defaults() {
    let built_in = built_in();
    for (name, file, text) in recipes() {
        let policy = ParsedPolicy::parse(file, text).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(policy.name.as_deref(), Some(*name));
        assert!(policy.description.is_some(), "{name}");
        let program =
            Program::compile(&layers(&[policy], built_in)).unwrap_or_else(|wrong| panic!("{wrong}"));
        let own = program.rules().iter().filter(|rule| rule.source.layer == Layer::Custom).count();
        assert!(own >= 3, "{name} has {own} rules");
    }
}

#[test]
fn recipes_together_use_every_action() {
    let built_in = built_in();
    let programs: Vec<_> = recipes().iter().map(|(_, _, text)| above(text, built_in)).collect();
    for kind in ActionKind::ALL {
        let mut rules = programs.iter().flat_map(Program::rules);
        assert!(rules.any(|rule| rule.actions().any(|(action, _)| action.kind == *kind)), "{kind}");
    }
}

#[test]
fn built_in_rules_only_report_actions_that_a_person_must_request() {
    let built_in = built_in();
    let program = Program::compile(&layers(&[], built_in)).unwrap();
    assert!(program.rules().len() > 15);
    assert!(program.rules().iter().all(|rule| rule.rule.priority < 0), "a user's rules take precedence");
    for (action, _) in program.rules().iter().flat_map(|rule| rule.actions()) {
        let expected = match action.kind {
            ActionKind::Spill | ActionKind::Evict | ActionKind::Retain | ActionKind::Compress => {
                Stance::Observe
            }
            _ => Stance::Act,
        };
        assert_eq!(action.stance, Some(expected), "{}", action.kind);
    }
}

#[test]
fn rules_of_a_plugin_are_bound_to_its_framework() {
    for (name, file, text) in FRAMEWORKS {
        let framework = Framework::parse(file, text).unwrap();
        assert_eq!(*framework.name, **name);
        assert!(!framework.rules.is_empty(), "{name}");
        assert!(framework.rules.iter().all(|rule| rule.framework.as_deref() == Some(*name)), "{name}");
    }
}

/// The first 512 bytes of a tar.
fn tar() -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[257..262].copy_from_slice(b"ustar");
    bytes
}

/// Key, first bytes, user agent, and the frameworks for which they are evidence.
type Case<'a> = (&'a str, Option<&'a [u8]>, Option<&'a str>, &'a [&'a str]);

#[test]
fn frameworks_are_detected_by_key_content_and_user_agent() {
    let built_in = built_in();
    let program = Program::compile(&layers(&[], built_in)).unwrap();
    let safetensors: &[u8] = b"\x58\x01\x00\x00\x00\x00\x00\x00{\"__metadata__\"";
    let tar = tar();
    let cases: &[Case<'_>] = &[
        ("run/step-10/__0_0.distcp", None, None, &["pytorch"]),
        ("run/step-10/.metadata", None, None, &["pytorch"]),
        ("models/resnet.pt", Some(b"PK\x03\x04rest"), None, &["pytorch"]),
        ("data/1.jpg", None, Some("s3torchconnector/1.4.2 ua/2.1 os/linux lang/python#3.11"), &["pytorch"]),
        ("data/train.tfrecord-00001-of-00100", None, None, &["tensorflow"]),
        ("m/ckpt-100.data-00000-of-00002", None, None, &["tensorflow"]),
        ("llama/model-00001-of-00004.safetensors", Some(safetensors), None, &["huggingface"]),
        ("weights", Some(safetensors), None, &["huggingface"]),
        ("x", None, Some("unknown/None; hf_hub/0.30.1; python/3.11"), &["huggingface"]),
        ("laion/00042.tar", Some(&tar), None, &["webdataset"]),
        ("imagenet/train-000123.tar", None, None, &["webdataset"]),
        ("c4/shard.00017.mds.zstd", None, None, &["mosaicml"]),
        ("c4/index.json", Some(b"{\"shards\": [{"), None, &["mosaicml"]),
        ("runs/epoch=3-step=1200.ckpt", None, None, &["lightning"]),
        ("global_step100/mp_rank_00_model_states.pt", None, None, &["pytorch", "lightning"]),
        ("photos/cat.jpg", Some(b"\xff\xd8\xff\xe0"), Some("aws-cli/2.15"), &[]),
        ("archive.zip", Some(b"PK\x03\x04"), Some("Boto3/1.34"), &[]),
        ("backup.tar", None, None, &[]),
    ];
    for (key, bytes, agent, expected) in cases {
        let found: Vec<_> = program.detect(key, *bytes, *agent).map(|(name, _)| name).collect();
        assert_eq!(found, *expected, "{key}");
    }
}

#[test]
fn evidence_of_several_kinds_is_combined() {
    let text = "
version: 1
framework: mine
detect:
  keys: [{pattern: \"*.x\", confidence: 0.5}, {pattern: \"a*\", confidence: 0.4}]
  magic: [{offset: 1, hex: \"61 62\", confidence: 0.5}]
  user_agents: [{pattern: /mine/, confidence: 0.2}]
hints: {shards: \"*.x\", indexes: [\"*.i\", \"*.j\"]}
";
    let mine = Framework::parse("mine.yaml", text).unwrap();
    let sure = |key, bytes, agent| mine.detect.confidence(key, bytes, agent);
    assert!((sure("a.x", None, None) - 0.5).abs() < 1e-9);
    assert!((sure("a.x", Some(b"-ab"), None) - 0.75).abs() < 1e-9);
    assert!((sure("a.x", Some(b"-ab"), Some("so mine/1")) - 0.8).abs() < 1e-9);
    assert!(sure("b", Some(b""), Some("")).abs() < 1e-9);
    assert!(mine.has_hint(Hint::Indexes, "b.j") && !mine.has_hint(Hint::Models, "b.x"));
}

#[test]
fn custom_plugin_replaces_the_built_in_one() {
    let built_in = built_in();
    let text = "{\"version\": 1, \"framework\": \"pytorch\", \"detect\": {\"keys\": [{\"pattern\": \
        \"*.mine\", \"confidence\": 1}]}}";
    let own = [Framework::parse("own.json", text).unwrap()];
    let all = crate::language::Layers { frameworks: &own, ..layers(&[], built_in) };
    let program = Program::compile(&all).unwrap();
    assert_eq!(program.detect("a.mine", None, None).collect::<Vec<_>>(), [("pytorch", 1.0)]);
    assert_eq!(program.detect("a.pt", None, None).count(), 0);
    assert!(program.rules().iter().all(|rule| !rule.rule.id.starts_with("pytorch")));
}
