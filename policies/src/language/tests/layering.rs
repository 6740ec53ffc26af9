//! Tests of layers: custom files, environments, hardware profiles, frameworks and template instances.

use super::{above, built_in, layers, parse};
use crate::language::{
    Environment, Fact, FactList, Layer, Layers, NoFacts, Parameter, Phase, PolicyFileSet, Program, Property,
    Setting, Stance, Strategy, Value,
};

const POLICY: &str = "
version: 1
settings: {prefetch: balanced, pin_max: 10%}
rules:
- {id: idle-copies-out, enabled: false}
- id: shards-ahead
  priority: 7
  conditions: [{type: file_context, property: key, operator: exists}]
  actions: [{type: spill}]
environments:
  production:
    settings: {pin_max: 20%, checkpoint_keep: 9}
    rules:
    - id: shards-ahead
      conditions: [{type: file_context, property: key, operator: exists}]
      actions: [{type: pin}]
    - id: in-production
      conditions: [{type: file_context, property: key, operator: exists}]
      actions: [{type: pin}]
  staging:
    settings: {checkpoint_keep: 5}
hardware_profiles:
  large:
    conditions: {gpu_count: \">= 8\", memory: \"> 1GiB\"}
    settings: {checkpoint_keep: 7, prefetch_depth_max: 99}
";

fn rule<'p>(program: &'p Program, id: &str) -> Option<&'p crate::language::EffectiveRule> {
    program.rules().iter().find(|one| &*one.rule.id == id)
}

#[test]
fn rules_of_stronger_layers_replace_weaker_ones() {
    let built_in = built_in();
    let program = above(POLICY, built_in);
    let shards = rule(&program, "shards-ahead").unwrap();
    assert_eq!((shards.source.layer, shards.source.to_string().as_str()), (Layer::Custom, "policy.yaml:6"));
    assert_eq!(shards.rule.priority, 7);
    assert_eq!(shards.rule.actions[0].stance, Some(Stance::Act));
    assert!(rule(&program, "idle-copies-out").is_none());
    assert_eq!(&*program.switched_off()[0].0.id, "idle-copies-out");
    assert_eq!(rule(&program, "in-production").unwrap().source.layer, Layer::Environment);
    assert_eq!(rule(&program, "epochs-shared").unwrap().source.layer, Layer::BuiltIn);
    assert_eq!(rule(&program, "mosaicml-index").unwrap().source.layer, Layer::Framework);
}

#[test]
fn settings_come_from_the_strongest_layer() {
    let built_in = built_in();
    let program = above(POLICY, built_in);
    let value = |setting| program.settings().value(setting, None).cloned();
    assert_eq!(value(Setting::PinMax), Some(Value::Percent(10.0)));
    assert_eq!(value(Setting::CheckpointKeep), Some(Value::Number(9.0)));
    assert_eq!(value(Setting::PrefetchDepthMax), Some(Value::Number(64.0)));
    // A value for one phase in a weaker layer does not precede a value for all in a stronger layer.
    assert_eq!(program.settings().prefetch(Some(Phase::Tuning)), Strategy::Balanced);
    let defaults = Program::compile(&layers(&[], built_in)).unwrap();
    assert_eq!(defaults.settings().prefetch(Some(Phase::Tuning)), Strategy::Conservative);
    assert_eq!(defaults.settings().prefetch(Some(Phase::Training)), Strategy::Adaptive);
}

#[test]
fn hardware_profiles_apply_to_matching_machines() {
    let built_in = built_in();
    let custom = [parse(POLICY)];
    let compiled = |gpus, environment| {
        let machine = FactList(vec![
            (Property::GpuCount, "", Fact::Number(gpus)),
            (Property::Memory, "", Fact::Bytes(64 << 30)),
        ]);
        let all = Layers { environment, machine: &machine, ..layers(&custom, built_in) };
        Program::compile(&all).unwrap()
    };
    let keep = |program: &Program| program.settings().size(Setting::CheckpointKeep) as u32;
    let depth = |program: &Program| program.settings().size(Setting::PrefetchDepthMax) as u32;
    let large = compiled(8.0, None);
    assert_eq!((keep(&large), depth(&large)), (7, 99));
    assert_eq!(depth(&compiled(4.0, None)), 64);
    // The environment is stronger than the hardware profile.
    let staged = compiled(16.0, Some(Environment::Staging));
    assert_eq!((keep(&staged), depth(&staged)), (5, 99));
    assert!(rule(&staged, "in-production").is_none());
}

#[test]
fn first_of_several_files_is_strongest() {
    let built_in = built_in();
    let custom = [parse("version: 1\nsettings: {pin_max: 1%}"), parse(POLICY)];
    let program = Program::compile(&layers(&custom, built_in)).unwrap();
    assert_eq!(program.settings().value(Setting::PinMax, None), Some(&Value::Percent(1.0)));
    assert_eq!(rule(&program, "shards-ahead").unwrap().rule.priority, 7);
}

#[test]
fn rules_are_tried_by_priority_and_then_by_id() {
    let built_in = built_in();
    let program = above(POLICY, built_in);
    let keys: Vec<_> = program.rules().iter().map(|one| (-one.rule.priority, one.rule.id.clone())).collect();
    assert!(keys.is_sorted());
}

#[test]
fn frameworks_are_disabled_and_extended() {
    let built_in = built_in();
    let program = above(
        "
version: 1
frameworks:
  mosaicml: {enabled: false}
  webdataset: {enabled: false}
  pytorch:
    rules:
    - id: mine
      conditions: [{type: file_context, property: key, operator: exists}]
      actions: [{type: compress}]
",
        built_in,
    );
    assert!(rule(&program, "mosaicml-index").is_none());
    assert!(program.frameworks().iter().all(|one| &*one.name != "mosaicml"));
    let mine = rule(&program, "mine").unwrap();
    assert_eq!(mine.rule.framework.as_deref(), Some("pytorch"));
    assert_eq!(program.disabled_frameworks(), ["mosaicml".into(), "webdataset".into()]);
    assert_eq!(above(&program.to_yaml(), built_in), program);
    assert_eq!(above(&program.to_json()["policy"].to_string(), built_in), program);
    // A person wrote the rule, so it acts.
    assert_eq!((mine.source.layer, mine.rule.actions[0].stance), (Layer::Custom, Some(Stance::Act)));
}

#[test]
fn instances_expand_to_rules_with_their_parameters() {
    let built_in = built_in();
    let program = above(
        "
version: 1
templates:
- id: t
  parameters:
  - {name: exts, kind: list}
  - {name: depth, kind: count, default: 3}
  - {name: room, kind: bytes, default: 64MiB}
  - {name: act, kind: text, default: prefetch}
  rules:
  - id: ahead
    name: ${depth} shards ahead
    conditions: [{type: file_context, property: extension, operator: in, value: \"${exts}\"}]
    actions: [{type: \"${act}\", parameters: {depth: \"${depth}\", bytes: \"${room}\"}}]
use:
- {id: a, template: t, parameters: {exts: [tar, tgz]}}
- {id: b, template: t, parameters: {exts: [mds], depth: 5, room: 1GiB}}
",
        built_in,
    );
    let a = rule(&program, "a.ahead").unwrap();
    assert_eq!(a.rule.conditions[0].value.to_string(), "[tar, tgz]");
    assert_eq!(
        (a.rule.name.as_deref(), a.source.to_string().as_str()),
        (Some("3 shards ahead"), "policy.yaml:16")
    );
    let b = &rule(&program, "b.ahead").unwrap().rule.actions[0];
    assert_eq!(b.parameters[0].1, Value::Number(5.0));
    assert_eq!(b.parameters[1].1, Value::Bytes(1 << 30));
}

#[test]
fn templates_of_plugins_delete_only_on_request_of_an_instance() {
    let deletes = |is_plugin: bool, delete: &str, default: &str, given: &str| {
        let template = format!(
            "templates:\n- id: t\n  parameters:\n  - {{name: d, kind: boolean, default: {default}}}\n  \
             - {{name: other, kind: boolean, default: true}}\n  rules:\n  - id: r\n    \
             conditions: [{{type: file_context, property: key, operator: exists}}]\n    \
             actions: [{{type: retain, parameters: {{delete: {delete}}}}}]\n"
        );
        let instance = format!("use: [{{id: u, template: t, parameters: {{{given}}}}}]\n");
        let mut texts = PolicyFileSet::default();
        if is_plugin {
            let detect = "detect: {keys: [{pattern: x, confidence: 1}]}";
            // A submitted template that always deletes is refused. A stored one stays accepted, but deletes
            // nothing.
            texts.add_stored_framework(
                "f.yaml",
                &format!("version: 1\nframework: mine\n{detect}\n{template}"),
            );
            texts.submit_policy("p.yaml", &format!("version: 1\n{instance}"));
        } else {
            texts.submit_policy("p.yaml", &format!("version: 1\n{template}{instance}"));
        }
        let program = texts.compile(None, &NoFacts, built_in()).unwrap_or_else(|wrong| panic!("{wrong}"));
        rule(&program, "u.r").unwrap().rule.actions[0].flag(Parameter::Delete)
    };
    let by_parameter = "\"${d}\"";
    assert!(!deletes(true, by_parameter, "true", ""), "the instance does not request deletion");
    assert!(!deletes(true, by_parameter, "true", "other: true"));
    assert!(!deletes(true, "true", "false", "d: true"), "the template deletes regardless of the request");
    assert!(
        deletes(true, by_parameter, "false", "d: true") && !deletes(true, by_parameter, "true", "d: false")
    );
    assert!(
        deletes(false, by_parameter, "true", "") && deletes(false, "true", "false", ""),
        "the user's own policy requests deletion"
    );
}
