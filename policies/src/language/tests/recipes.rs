//! Tests of the recipes: typical accesses, and the rules of the recipe that match them.

use super::{above, built_in};
use crate::facts::tests::{ReportedFacts, reported_facts};
use crate::language::{
    Condition, EffectiveRule, Fact, FactList, Facts, Layer, Match, Property, Value, ValueKind, fact_of_key,
    recipes,
};
use std::time::Duration;

/// An access to a key, with additional facts.
struct KeyAccess<'a>(&'a str, &'a [(Property, &'a str, Fact<'a>)]);

impl Facts for KeyAccess<'_> {
    fn fact(&self, property: Property, name: &str) -> Option<Fact<'_>> {
        let given = self.1.iter().find(|one| (one.0, one.1) == (property, name));
        given.map(|one| one.2).or_else(|| fact_of_key(self.0, property))
    }
}

/// Returns the ids of the recipe's own rules that match.
fn matched(recipe: &str, access: &KeyAccess<'_>) -> Vec<String> {
    let text = recipes().iter().find(|(name, _, _)| *name == recipe).unwrap().2;
    let program = above(text, built_in());
    let own = |rule: &&EffectiveRule| !matches!(rule.source.layer, Layer::BuiltIn | Layer::Framework);
    program.matching(access).filter(own).map(|rule| rule.rule.id.to_string()).collect()
}

fn check(recipe: &str, key: &str, facts: &[(Property, &str, Fact<'_>)], expected: &[&str]) {
    assert_eq!(matched(recipe, &KeyAccess(key, facts)), expected, "{recipe}: {key}");
}

const fn days(days: u64) -> Fact<'static> {
    Fact::Duration(Duration::from_secs(days * 86_400))
}

const TRAINING: (Property, &str, Fact<'_>) = (Property::Phase, "", Fact::Text("training"));
const INFERENCE: (Property, &str, Fact<'_>) = (Property::Phase, "", Fact::Text("inference"));
const SHUFFLED: (Property, &str, Fact<'_>) = (Property::Pattern, "", Fact::Text("shuffled"));
const SHARDS: (Property, &str, Fact<'_>) = (Property::Pattern, "", Fact::Text("shard-shuffled"));
const NEWEST: (Property, &str, Fact<'_>) = (Property::CheckpointGeneration, "", Fact::Number(0.0));
const OLDER: (Property, &str, Fact<'_>) = (Property::CheckpointGeneration, "", Fact::Number(2.0));
const SMALL: (Property, &str, Fact<'_>) = (Property::Size, "", Fact::Bytes(100 << 10));
const LARGE: (Property, &str, Fact<'_>) = (Property::Size, "", Fact::Bytes(2 << 30));
const CHECKPOINT: (Property, &str, Fact<'_>) = (Property::Type, "", Fact::Text("checkpoint"));
const MODEL: (Property, &str, Fact<'_>) = (Property::Type, "", Fact::Text("model"));

#[test]
fn frameworks() {
    check("pytorch", "imagenet/n01/1.jpg", &[TRAINING, SHUFFLED, SMALL], &["samples-of-epochs"]);
    check("pytorch", "pile/00.bin", &[TRAINING, SHARDS, LARGE], &["shards-of-epochs"]);
    check("pytorch", "run/step-9/__3_0.distcp", &[NEWEST], &["torch-checkpoints"]);
    check("pytorch", "imagenet/val/1.jpg", &[SMALL], &["validation-sets"]);
    let weights = (Property::ModelFileKind, "", Fact::Text("weights"));
    let detected = (Property::Framework, "", Fact::List(&["pytorch"]));
    check("pytorch", "m.pt", &[INFERENCE, weights, detected], &["torch-models-load"]);
    check("pytorch", "m.pt", &[INFERENCE, weights], &[]);
    check("tensorflow", "c4/train.tfrecord-00001-of-01024", &[SHARDS], &["records-interleaved"]);
    check("tensorflow", "m/ckpt-100.index", &[], &["checkpoint-index", "checkpoints-kept"]);
    check("tensorflow", "resnet/1/saved_model.pb", &[INFERENCE], &["saved-models"]);
    check("huggingface", "llama/model-00001-of-00004.safetensors", &[LARGE], &["safetensors-load"]);
    check("huggingface", "llama/tokenizer.json", &[SMALL], &["small-files-of-models"]);
    check("huggingface", "wiki/train-0.parquet", &[LARGE, SHUFFLED], &["columns"]);
    check("huggingface", "out/checkpoint-500/optimizer.pt", &[OLDER], &["trainer-checkpoints"]);
    let epoch = (Property::EpochCount, "", Fact::Number(1.0));
    let all = ["laion.ahead", "shards-to-their-end", "shards-kept-between-epochs"];
    check("webdataset", "laion/00042.tar", &[SHARDS, epoch], &all);
    check("webdataset", "imagenet/train-000001.tar", &[SHARDS], &["imagenet.ahead", "shards-to-their-end"]);
    check("webdataset", "laion/wids.json", &[SMALL], &["shard-indexes"]);
    check("mosaicml", "c4/index.json", &[SMALL], &["streaming-index"]);
    check("mosaicml", "c4/shard.00001.mds.zstd", &[LARGE], &["streaming-shards"]);
    let rare = [(Property::Frequency, "", Fact::Number(0.0)), (Property::Recency, "", days(0))];
    check("mosaicml", "c4/part.mds", &rare, &["rare-streams"]);
    check("mosaicml", "c4/part.jpg", &[rare[0], (Property::Recency, "", days(3))], &[]);
}

#[test]
fn life_cycles() {
    check("checkpoints", "runs/llama/step-1/a.pt", &[CHECKPOINT, NEWEST], &["newest-stays", "llama.retain"]);
    check("checkpoints", "scratch/x.ckpt", &[CHECKPOINT, OLDER], &["scratch.retain"]);
    let saving = (Property::Phase, "", Fact::Text("checkpoint_save"));
    check("checkpoints", "else/x.ckpt", &[saving], &["writes-first"]);
    let optimizer = (Property::ModelFileKind, "", Fact::Text("optimizer_state"));
    check("checkpoints", "else/optim.pt", &[optimizer, OLDER], &["optimizer-state-packed"]);
    let released = (Property::Tag, "stage", Fact::Text("production"));
    check("inference", "m/1.safetensors", &[MODEL, released], &["released-models"]);
    let agent = (Property::UserAgent, "", Fact::Text("vllm/0.8 boto3"));
    let weights = (Property::ModelFileKind, "", Fact::Text("weights"));
    let two = (Property::Workloads, "", Fact::Number(2.0));
    check("inference", "m/1.safetensors", &[agent, weights, two], &["serving-lane", "replicas-start"]);
    let old = (Property::Tag, "stage", Fact::Text("archived"));
    let idle = (Property::Recency, "", days(100));
    check("inference", "m/0.safetensors", &[MODEL, old, idle], &["retired-models"]);
}

#[test]
fn places() {
    let three = (Property::Workloads, "", Fact::Number(3.0));
    check("research", "wiki/1.txt", &[three], &["shared-datasets"]);
    let tuning = (Property::Phase, "", Fact::Text("tuning"));
    check("research", "wiki/1.txt", &[tuning, SHUFFLED], &["sweeps"]);
    let unknown = (Property::Pattern, "", Fact::Text("unknown"));
    let look = (Property::UserAgent, "", Fact::Text("Boto3/1.34.1"));
    check("research", "wiki/1.txt", &[unknown, look], &["looked-at-once"]);
    let idle = (Property::Recency, "", days(100));
    check("research", "scratch/me/1.bin", &[idle], &["forgotten-runs"]);
    check("production", "m/1", &[INFERENCE], &["serving-before-training"]);
    check("production", "m/1", &[(Property::Tags, "", Fact::List(&["golden"]))], &["golden-data"]);
    let full = (Property::HotFill, "", Fact::Percent(80.0));
    let sample = (Property::Type, "", Fact::Text("sample"));
    check("production", "a/1", &[full, idle, sample], &["make-room"]);
    let slow = (Property::UpstreamLatency, "", Fact::Duration(Duration::from_secs(1)));
    check("production", "a/1", &[slow], &["slow-upstream"]);
    let bucket = (Property::Bucket, "", Fact::Text("models"));
    let release = (Property::MetadataEntry, "release", Fact::Text("2.1"));
    check("production", "a/1", &[bucket, release], &["releases-near"]);
    let again = (Property::Reads, "", Fact::Number(2.0));
    check("general", "a/1", &[SMALL, again], &["small-files"]);
    check("general", "a/1", &[LARGE, (Property::Pattern, "", Fact::Text("one-pass"))], &["large-scans"]);
    let often = (Property::Frequency, "", Fact::Number(50.0));
    check("general", "a/1", &[often, (Property::Tier, "", Fact::Text("cold"))], &["hot-objects"]);
    check("general", "a/1.csv", &[(Property::Age, "", days(2))], &["logs-packed"]);
    check("general", "out/_temporary-0", &[], &["temporary"]);
}

/// Returns the words in the value of a condition.
fn words(condition: &Condition) -> Vec<&str> {
    match &condition.value {
        Value::List(items) => items.iter().filter_map(Value::text).collect(),
        one => one.text().into_iter().collect(),
    }
}

/// True if a word exists for which all of these conditions on one property hold.
fn may_hold(conditions: &[&Condition], reported: &ReportedFacts) -> bool {
    let property = conditions[0].property;
    reported[&property].iter().any(|word| {
        let facts = FactList(vec![(property, "", Fact::Text(word))]);
        conditions.iter().all(|one| one.holds(&facts).1)
    })
}

/// Checks that every property and word of a rule can occur. The error is the first one that cannot.
fn check_can_match(rule: &EffectiveRule, reported: &ReportedFacts) -> Result<(), String> {
    let conditions = &rule.rule.conditions;
    for one in conditions {
        let Some(known) = reported.get(&one.property) else { return Err(one.word()) };
        if !matches!(one.property.row().kind, ValueKind::Word(_)) {
            continue;
        }
        if let Some(never) = words(one).into_iter().find(|word| !known.contains(*word)) {
            return Err(format!("{} {never}", one.word()));
        }
        let same: Vec<&Condition> = match rule.rule.matching {
            Match::All => conditions.iter().filter(|other| other.property == one.property).collect(),
            Match::Any | Match::Threshold(_) => vec![one],
        };
        if !may_hold(&same, reported) {
            return Err(one.word());
        }
    }
    Ok(())
}

#[test]
fn every_built_in_and_recipe_rule_can_match() {
    let reported = reported_facts();
    let mut own = 0;
    for (name, _, text) in recipes() {
        let program = above(text, built_in());
        for rule in program.rules() {
            let id = &rule.rule.id;
            assert_eq!(check_can_match(rule, &reported), Ok(()), "{name}: {id}");
            own += usize::from(rule.source.layer == Layer::Custom);
        }
    }
    assert!(own > 30, "{own} rules of recipes were checked");
}

#[test]
fn rules_on_facts_that_never_occur_are_found() {
    let text = "version: 1\nrules:\n- {id: r, conditions: [{type: access_pattern, property: pattern, \
        operator: in, value: [random, batch]}, {type: access_pattern, property: reads, operator: exists}], \
        actions: [{type: pin}]}";
    let program = above(text, built_in());
    let rule = program.rules().iter().find(|rule| &*rule.rule.id == "r").unwrap();
    let mut reported = reported_facts();
    assert_eq!(check_can_match(rule, &reported), Ok(()));
    reported.get_mut(&Property::Pattern).unwrap().remove("batch");
    assert_eq!(check_can_match(rule, &reported), Err("pattern batch".to_owned()));
    reported.remove(&Property::Pattern);
    assert_eq!(check_can_match(rule, &reported), Err("pattern".to_owned()));
}
