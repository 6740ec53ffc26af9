//! Detected phases of complete lifecycles, compared with their labels.

use crate::labelled::lifecycles::{Lifecycle, LifecycleSettings, LifecycleTrace};
use crate::naming::Naming;
use mlgw_policies::access::{Access, Op};
use mlgw_policies::checkpoints::{CheckpointIndex, Limits as GroupLimits};
use mlgw_policies::engine::{CacheEngine, Options};
use mlgw_policies::facts::{AccessFacts, KeyContext};
use mlgw_policies::language::{Fact, FactList, Facts, NoFacts, Phase, Program, Property, Word as _};
use mlgw_policies::workloads::{AccessContext, DatasetRole, WorkloadIdentity, WorkloadLimits, Workloads};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn program() -> Program {
    Program::compile_built_in().unwrap()
}

/// Detected phase of each request, and the final state.
struct LifecycleReplay {
    trace: LifecycleTrace,
    found: Vec<Option<Phase>>,
    workloads: Workloads,
    engine: CacheEngine,
}

fn replay(lives: LifecycleSettings, program: &Program) -> LifecycleReplay {
    replay_until(lives, program, None)
}

/// Like [`replay`], up to the last request of a phase.
fn replay_until(lives: LifecycleSettings, program: &Program, phase: Option<Phase>) -> LifecycleReplay {
    let mut trace = lives.generate();
    let end = trace.requests.iter().rposition(|(_, other)| Some(*other) == phase);
    trace.requests.truncate(end.map_or(usize::MAX, |end| end + 1));
    let options = Options { capacity_bytes: 1 << 36, blocks_max: 1 << 18, block_bytes: 8 << 20, seed: 0 };
    let (mut engine, mut known) = (CacheEngine::new(options), Workloads::new(WorkloadLimits::default()));
    let mut groups = CheckpointIndex::new(GroupLimits::default());
    let mut found = Vec::new();
    for (family, name) in &trace.names {
        let identity = WorkloadIdentity { name: Some(name.as_str().into()), ..WorkloadIdentity::default() };
        known.set_identity(0, *family, identity, &engine, program);
    }
    for (request, _) in &trace.requests {
        let access = trace.scene.access(request);
        let seen = engine.observe(&access);
        for block in request.range.start >> 23..=(request.range.end.max(1) - 1) >> 23 {
            engine.read(seen, &access, block as u32);
        }
        let checkpoint = match access.op {
            Op::Write => groups.record_write(access.at_us, access.bucket, access.key, access.size),
            _ => None,
        };
        let what = AccessContext { engine: &engine, seen, program, checkpoint, is_validation: false };
        known.record(&access, &what);
        found.push(known.get(access.caller.family).and_then(|workload| workload.phase));
    }
    LifecycleReplay { trace, found, workloads: known, engine }
}

/// For each lifecycle: requests, correct ones, stretches with one phase, detected stretches, and stretches
/// of the detected phase.
type Scores = BTreeMap<&'static str, [usize; 5]>;

/// Minimum number of requests of a stretch that must be detected.
const STRETCH_MIN: usize = 8;

fn score(replay: &LifecycleReplay, scores: &mut Scores) {
    for number in 0..replay.trace.lifecycles.len() {
        let requests = replay.trace.requests.iter().zip(&replay.found);
        let mine: Vec<_> =
            requests.filter(|((request, _), _)| usize::from(request.stream) == number).collect();
        let name = match replay.trace.lifecycles[number] {
            Lifecycle::Finetune => "finetune",
            Lifecycle::Pretrain => "pretrain",
            Lifecycle::Evaluate => "evaluate",
            Lifecycle::Serve => "serve",
            Lifecycle::Search => "search",
        };
        let score = scores.entry(name).or_default();
        let mut saves = BTreeMap::<&str, bool>::new();
        for stretch in mine.chunk_by(|((_, one), _), ((_, other), _)| one == other) {
            let phase = stretch[0].0.1;
            let right = stretch.iter().filter(|(_, found)| **found == Some(phase)).count();
            score[0] += stretch.len();
            score[1] += right;
            if phase == Phase::CheckpointSave {
                // Other ranks read while a checkpoint is written: all of its writes are one stretch.
                let key = replay.trace.scene.keys.name(stretch[0].0.0.key);
                *saves.entry(key.rsplit_once('/').unwrap().0).or_default() |= right > 0;
            } else if stretch.len() >= STRETCH_MIN {
                score[2] += 1;
                score[3] += usize::from(right > 0);
            }
        }
        score[2] += saves.len();
        score[3] += saves.values().filter(|is_found| **is_found).count();
        score[4] += mine.chunk_by(|(_, one), (_, other)| one == other).count();
    }
}

fn mean(scores: &Scores) -> f64 {
    let shares = scores.values().map(|[all, right, ..]| *right as f64 / *all as f64);
    shares.sum::<f64>() / scores.len() as f64
}

#[test]
fn phases_are_detected() {
    let program = program();
    let mut detected = BTreeSet::new();
    for (case, naming, time_scale) in [
        ("as they are", Naming::Plain, 1.0),
        ("ten times as long", Naming::Plain, 10.0),
        ("renamed", Naming::Renamed { seed: 5 }, 1.0),
    ] {
        let mut scores = Scores::new();
        for seed in 700..716 {
            let replay = replay(LifecycleSettings { seed, naming, time_scale }, &program);
            detected.extend(replay.found.iter().flatten().copied());
            score(&replay, &mut scores);
        }
        let share = mean(&scores);
        println!("{case}: {share:.3} {scores:?}");
        assert!(share >= 0.9, "{case}: {share} {scores:?}");
        assert!(scores.values().all(|[_, _, are, found, _]| are == found), "{case}: {scores:?}");
    }
    assert!(detected.iter().eq(Phase::ALL), "every phase occurs: {detected:?}");
}

#[test]
fn the_activity_of_a_workload_is_tracked() {
    let program = program();
    let mut replayed =
        replay(LifecycleSettings { seed: 7, naming: Naming::Plain, time_scale: 1.0 }, &program);
    let end_us = replayed.trace.requests.last().unwrap().0.at_us;
    let family = |name: &str| replayed.trace.names.iter().find(|(_, other)| other == name).unwrap().0;
    let finetune = replayed.workloads.get(family("finetune")).unwrap().clone();
    let names = |role| finetune.datasets_with_role(role).map(|set| &*set.name).collect::<Vec<_>>();
    assert_eq!(names(DatasetRole::Training), ["set/train/img_#.jpg"]);
    assert_eq!(names(DatasetRole::Validation), ["set/val/img_#.jpg"]);
    assert_eq!(names(DatasetRole::Evaluation), ["set/test/img_#.jpg"]);
    assert!(
        names(DatasetRole::Model).contains(&"base/model-#-of-#.safetensors"),
        "{:?}",
        names(DatasetRole::Model)
    );
    let mine =
        || {
            replayed.trace.requests.iter().filter(|(request, _)| {
                replayed.trace.scene.access(request).caller.family == family("finetune")
            })
        };
    let epochs = mine()
        .collect::<Vec<_>>()
        .chunk_by(|a, b| (a.1 == Phase::Validation) == (b.1 == Phase::Validation))
        .count()
        / 2;
    assert_eq!(finetune.with_current_epochs(&replayed.engine, end_us).epochs as usize, epochs);
    let folders: BTreeSet<_> = mine()
        .filter(|(_, phase)| *phase == Phase::CheckpointSave)
        .map(|(request, _)| replayed.trace.scene.keys.name(request.key).rsplit_once('/').unwrap().0)
        .collect();
    assert_eq!(finetune.saves as usize, folders.len());
    assert!(finetune.save_interval_us.is_some() && finetune.saved_us.is_some());
    let training = mine().filter(|(_, phase)| *phase == Phase::Training).count() as f64;
    let batch = finetune.batch_size().unwrap();
    assert!((training / finetune.batches as f64 / batch - 1.0).abs() < 0.2, "{batch}");
    assert!(finetune.items_per_second(finetune.last_us) > 1.0);
    assert_eq!(finetune.evidence(), "after training it reads a dataset that it did not read between passes");
    let totals = replayed.workloads.totals(&replayed.engine, end_us, 9);
    assert_eq!((totals.workloads, totals.decisions), (replayed.trace.names.len(), 9));
    assert_eq!(totals.active, totals.phases.iter().map(|(_, count)| count).sum::<usize>());
    assert!(totals.epochs >= finetune.epochs.into() && totals.batches > finetune.batches);
}

#[test]
fn batch_size_is_derived_from_pauses() {
    let program = program();
    let lives = LifecycleSettings { seed: 11, naming: Naming::Plain, time_scale: 1.0 };
    let replayed = replay(lives, &program);
    let (family, _) = replayed.trace.names.iter().find(|(_, name)| name == "sweep-0").unwrap();
    // Batches have eight objects.
    let found = replayed.workloads.get(*family).unwrap().batch_size().unwrap();
    assert!((7.0..=10.0).contains(&found), "{found}");
}

/// Facts as a server requests them, at the last access of a lifecycle in a phase.
#[test]
fn rules_receive_the_facts_of_a_workload() {
    let program = program();
    let lives = LifecycleSettings { seed: 7, naming: Naming::Plain, time_scale: 1.0 };
    let replayed = replay_until(lives, &program, Some(Phase::Tuning));
    let mut groups = CheckpointIndex::new(GroupLimits::default());
    let mut engine = replayed.engine;
    let access = replayed.trace.scene.access(&replayed.trace.requests.last().unwrap().0);
    let seen = engine.observe(&access);
    let facts = AccessFacts::new(
        &access,
        &engine,
        seen,
        &replayed.workloads,
        KeyContext::default(),
        &program,
        &NoFacts,
    );
    let fact = |property| facts.fact(property, "");
    assert_eq!(fact(Property::Phase), Some(Fact::Text("tuning")));
    assert_eq!(fact(Property::Pattern), Some(Fact::Text("shuffled")));
    assert_eq!(fact(Property::Dataset), Some(Fact::Text("sweep/train/img_#.jpg")));
    assert_eq!(fact(Property::Framework), Some(Fact::List(&[])));
    assert_eq!(fact(Property::Workers), Some(Fact::Number(1.0)));
    assert!(fact(Property::EpochCount).and_then(|it| it.size()).is_some_and(|epochs| epochs >= 1.0));
    assert!(fact(Property::Workloads).and_then(|it| it.size()).is_some_and(|readers| readers >= 1.0));
    assert!(fact(Property::Frequency).and_then(|it| it.size()).is_some_and(|reads| reads > 0.0));
    assert!(matches!(fact(Property::WorkloadName), Some(Fact::Text(name)) if name.starts_with("sweep-")));
    assert_eq!((fact(Property::Tier), fact(Property::ModelFileKind)), (None, None));
    // Facts from the server take precedence.
    let mine = FactList(vec![(Property::Frequency, "", Fact::Number(5.0))]);
    let facts =
        AccessFacts::new(&access, &engine, seen, &replayed.workloads, KeyContext::default(), &program, &mine);
    assert_eq!(facts.fact(Property::Frequency, ""), Some(Fact::Number(5.0)));
    // The announced number of accelerators takes precedence over the server's.
    let mine = FactList(vec![(Property::GpuCount, "", Fact::Number(2.0))]);
    let mut known = replayed.workloads;
    for (gpu_count, expected) in [(None, 2.0), (Some(64), 64.0)] {
        let identity = WorkloadIdentity { gpu_count, ..WorkloadIdentity::default() };
        known.set_identity(access.at_us, access.caller.family, identity, &engine, &program);
        let facts = AccessFacts::new(&access, &engine, seen, &known, KeyContext::default(), &program, &mine);
        assert_eq!(facts.fact(Property::GpuCount, ""), Some(Fact::Number(expected)));
    }

    let key = "runs/x/checkpoint-5/__0_0.distcp";
    groups.record_write(1, 1, key, 10);
    groups.record_write(2, 1, "runs/x/checkpoint-5/.metadata", 10);
    let access = Access { key, ..access };
    let seen = engine.observe(&access);
    let mut of_key = KeyContext::default();
    (of_key.bucket, of_key.key, of_key.checkpoints) = (1, key, Some(&groups));
    let facts = AccessFacts::new(&access, &engine, seen, &known, of_key, &program, &NoFacts);
    for (property, value) in [
        (Property::Type, Fact::Text("checkpoint")),
        (Property::ModelFileKind, Fact::Text("checkpoint")),
        (Property::CheckpointGeneration, Fact::Number(0.0)),
        (Property::Framework, Fact::List(&["pytorch"])),
    ] {
        assert_eq!(facts.fact(property, ""), Some(value));
    }
}
