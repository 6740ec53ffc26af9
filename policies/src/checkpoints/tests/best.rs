//! Tests: the best checkpoints stay if names contain a measure, even if no rule keeps any.

use super::{MINUTE_US, NEWEST, new};
use crate::checkpoints::{CheckpointIndex, RetentionRule};
use proptest::collection::vec;
use proptest::prelude::{prop_assert, proptest};

fn written(keys: &[String]) -> CheckpointIndex {
    let mut known = new();
    for (at, key) in keys.iter().enumerate() {
        known.record_write(MINUTE_US * (at as u64 + 1), 1, key, 10);
    }
    known.mark_quiet(u64::MAX);
    known
}

/// Returns the checkpoints of a single run that stay.
fn stay(keys: &[&str], keep: RetentionRule) -> Vec<String> {
    let known = written(&keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>());
    assert_eq!(known.series().count(), 1, "{keys:?}");
    let goes = known.retain(known.series().next().unwrap().id, keep, &|_| None);
    let is_gone = |key: &&str| known.group_of(1, key).is_some_and(|one| goes.contains(&one.id));
    keys.iter().filter(|key| !is_gone(key)).map(|key| (*key).to_owned()).collect()
}

#[test]
fn the_best_by_a_measure_in_names_stays() {
    for (keys, expected) in [
        (
            &["epoch=1-val_loss=0.10.ckpt", "epoch=2-val_loss=0.50.ckpt", "epoch=3-val_loss=0.90.ckpt"][..],
            &[0, 2][..],
        ),
        (&["m_epoch_1_acc_0.91.pth", "m_epoch_2_acc_0.99.pth", "m_epoch_3_acc_0.5.pth"], &[1, 2]),
        // One by each measure.
        (
            &[
                "epoch=1-loss=0.1-f1=0.2.ckpt",
                "epoch=2-loss=0.5-f1=0.9.ckpt",
                "epoch=3-loss=0.4-f1=0.3.ckpt",
                "epoch=4-loss=0.6-f1=0.4.ckpt",
            ],
            &[0, 1, 3],
        ),
        // Either end may be good.
        (
            &["epoch=1-score=1.ckpt", "epoch=2-score=9.ckpt", "epoch=3-score=5.ckpt", "epoch=4-score=4.ckpt"],
            &[0, 1, 3],
        ),
        (&["epoch=1-loss=-2.5.ckpt", "epoch=2-loss=-0.5.ckpt", "epoch=3-loss=-0.1.ckpt"], &[0, 2]),
        // The good end of these is unknown, or they are not measures.
        (&["epoch=1.ckpt", "epoch=2.ckpt", "epoch=3.ckpt"], &[2]),
        (&["epoch=1-samples=9.ckpt", "epoch=2-samples=19.ckpt", "epoch=3-samples=29.ckpt"], &[2]),
    ] {
        let expected: Vec<_> = expected.iter().map(|at| keys[*at].to_owned()).collect();
        assert_eq!(stay(keys, NEWEST), expected, "{keys:?}");
    }
}

#[test]
fn a_measure_may_be_in_the_name_of_a_folder_or_of_a_file_in_it() {
    let files = |folder: &str, file: &str| {
        [format!("r/{folder}/__0_0.distcp"), format!("r/{folder}/{file}"), format!("r/{folder}/.metadata")]
    };
    for names in [
        [
            ("step-1-val_loss=0.1", "a.json"),
            ("step-2-val_loss=0.4", "a.json"),
            ("step-3-val_loss=0.2", "a.json"),
        ],
        [("step-1", "val_loss=0.1.pt"), ("step-2", "val_loss=0.4.pt"), ("step-3", "val_loss=0.2.pt")],
    ] {
        let keys = names.map(|(folder, file)| files(folder, file)).concat();
        let known = written(&keys);
        let goes = known.retain(known.series().next().unwrap().id, NEWEST, &|_| None);
        let steps: Vec<_> = goes.into_iter().filter_map(|id| known.group(id)?.step).collect();
        assert_eq!(steps, [2], "{names:?}");
    }
}

#[test]
fn a_rule_that_keeps_the_best_names_the_measure() {
    let keys = ["epoch=1-loss=0.1.ckpt", "epoch=2-loss=0.2.ckpt", "epoch=3-loss=0.3.ckpt"];
    let known = written(&keys.map(str::to_owned));
    let series = known.series().next().unwrap().id;
    // By another measure, in which the second one is the best.
    let keep = RetentionRule { best: 1, ..NEWEST };
    let goes = known.retain(series, keep, &|one| Some(one.step?.abs_diff(2) as f64));
    assert_eq!(goes.into_iter().filter_map(|id| known.group(id)?.step).collect::<Vec<_>>(), [1]);
}

proptest! {
    #[test]
    fn no_deleted_checkpoint_has_a_lower_loss_than_one_that_stays(losses in vec(0..100_u32, 2..30)) {
        let loss = |loss: &u32| f64::from(*loss) / 100.0;
        let name = |(at, of): (usize, &u32)| format!("epoch={at}-val_loss={:.2}.ckpt", loss(of));
        let keys: Vec<_> = losses.iter().enumerate().map(name).collect();
        let known = written(&keys);
        let goes = known.retain(known.series().next().unwrap().id, NEWEST, &|_| None);
        let lowest = *losses.iter().min().unwrap();
        let steps: Vec<_> = goes.into_iter().filter_map(|id| known.group(id)?.step).collect();
        prop_assert!((0..losses.len()).any(|at| losses[at] == lowest && !steps.contains(&(at as u64))));
        prop_assert!(losses.len() - steps.len() <= 2, "the best and the newest stay");
    }
}
