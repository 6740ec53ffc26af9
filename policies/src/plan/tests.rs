//! Tests that orders equal those of the libraries (PyTorch 2.15, NumPy 2.4), and that stored plans are read
//! back.

use super::{InvalidAccessPlan, Plan, PlanSchedule, Sampler, StoredPlanError};
use proptest::collection::vec;
use proptest::{prop_assert, prop_assert_eq, proptest};

fn keys(count: u32) -> Vec<String> {
    (0..count).map(|number| format!("train/{number:07}.jpg")).collect()
}

fn plan(count: u32, reading: PlanSchedule) -> Plan {
    Plan::new(keys(count).iter().map(String::as_str), reading).unwrap()
}

fn orders(count: u32, reading: PlanSchedule) -> Vec<Vec<u32>> {
    plan(count, reading).epochs().collect()
}

/// Folds a long order to a number, like the Python code that made the expected values.
fn fold(order: &[u32]) -> u64 {
    order.iter().fold(0, |sum: u64, item| sum.wrapping_mul(1_000_003).wrapping_add(u64::from(*item)))
}

#[test]
fn torch_distributed_sampler_gives_the_expected_order() {
    let reading = |rank| PlanSchedule {
        sampler: Sampler::TorchDistributed,
        seed: 42,
        first_epoch: 3,
        ranks: 3,
        rank,
        ..PlanSchedule::default()
    };
    // DistributedSampler(range(10), num_replicas=3, rank=r, seed=42) after set_epoch(3).
    for (rank, order) in [(0, [7, 3, 0, 1]), (1, [6, 4, 8, 7]), (2, [5, 9, 2, 6])] {
        assert_eq!(orders(10, reading(Some(rank))), [order]);
        assert_eq!(
            orders(10, PlanSchedule { drop_last: true, ..reading(Some(rank)) }),
            [order[..3].to_vec()],
            "with drop_last"
        );
    }
    assert_eq!(orders(10, reading(None)), [[7, 6, 5, 3, 4, 9, 0, 8, 2, 1, 7, 6]]);
    // Two items for five ranks.
    let few = |rank| PlanSchedule { ranks: 5, ..reading(Some(rank)) };
    let dealt: Vec<_> = (0..5).flat_map(|rank| orders(2, few(rank))).collect();
    assert_eq!(dealt, [[1], [0], [1], [0], [1]]);
    // torch.randperm(100000) of manual_seed(2**40 + 12): only the low half of the seed counts.
    let long = PlanSchedule { seed: (1 << 40) + 9, ranks: 1, ..reading(None) };
    assert_eq!(fold(&orders(100_000, long)[0]), 15_727_217_226_874_807_264);
}

#[test]
fn ranks_take_turns_without_shuffle() {
    let reading = |rank| PlanSchedule { ranks: 3, rank: Some(rank), ..PlanSchedule::default() };
    assert_eq!(orders(10, reading(1)), [[1, 4, 7, 0]]);
    assert_eq!(orders(10, PlanSchedule { drop_last: true, ..reading(2) }), [[2, 5, 8]]);
}

#[test]
fn torch_random_loader_gives_the_expected_orders() {
    let reading =
        PlanSchedule { sampler: Sampler::TorchRandom, seed: 7, epochs: 3, ..PlanSchedule::default() };
    // DataLoader(range(10), shuffle=True, generator=g.manual_seed(7)), read three times.
    let epochs =
        [[1, 3, 5, 7, 9, 4, 6, 2, 8, 0], [5, 1, 6, 0, 9, 7, 8, 4, 3, 2], [4, 3, 2, 8, 1, 0, 6, 5, 9, 7]];
    assert_eq!(orders(10, reading), epochs);
    assert_eq!(orders(10, PlanSchedule { first_epoch: 2, epochs: 1, ..reading }), [epochs[2]]);
}

#[test]
fn numpy_permutation_gives_the_expected_order() {
    let reading = PlanSchedule {
        sampler: Sampler::NumpyPermutation,
        seed: 42,
        first_epoch: 3,
        ..PlanSchedule::default()
    };
    assert_eq!(orders(10, reading), [[2, 4, 1, 8, 9, 6, 5, 7, 0, 3]]);
    let long = PlanSchedule { seed: 12, first_epoch: 0, ..reading };
    assert_eq!(fold(&orders(100_000, long)[0]), 14_921_443_357_850_168_182);
}

#[test]
fn keys_may_be_listed_more_than_once() {
    let plan =
        Plan::new(["b", "a", "b", "b"], PlanSchedule { epochs: 2, ..PlanSchedule::default() }).unwrap();
    assert_eq!(plan.keys().iter().collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(plan.epochs().collect::<Vec<_>>(), [[0, 1, 0, 0], [0, 1, 0, 0]]);
    assert_eq!(plan.epoch_length(), 4);
}

#[test]
fn invalid_plans_are_refused() {
    let wrong = |count: u32, reading: PlanSchedule| {
        Plan::new(keys(count).iter().map(String::as_str), reading).unwrap_err()
    };
    let plain = PlanSchedule::default();
    assert_eq!(wrong(0, plain), InvalidAccessPlan::Empty);
    assert_eq!(wrong(5, PlanSchedule { ranks: 7, drop_last: true, ..plain }), InvalidAccessPlan::Empty);
    assert_eq!(wrong(5, PlanSchedule { epochs: 0, ..plain }), InvalidAccessPlan::Epochs(0));
    assert_eq!(wrong(5, PlanSchedule { ranks: 0, ..plain }), InvalidAccessPlan::Ranks(0));
    assert_eq!(
        wrong(5, PlanSchedule { ranks: 2, rank: Some(2), ..plain }),
        InvalidAccessPlan::Rank { rank: 2, ranks: 2 }
    );
    let random = PlanSchedule { sampler: Sampler::TorchRandom, ranks: 2, ..plain };
    assert_eq!(wrong(5, random), InvalidAccessPlan::RanksUnsupported);
}

#[test]
fn stored_format_is_stable() {
    let reading = PlanSchedule {
        sampler: Sampler::TorchDistributed,
        seed: 300,
        first_epoch: 1,
        epochs: 90,
        ranks: 8,
        rank: Some(3),
        drop_last: true,
    };
    let listed: Vec<_> = ["a/1", "a/2", "a/2", "b"].into_iter().cycle().take(8).collect();
    let bytes = Plan::new(listed, reading).unwrap().to_bytes();
    let body = b"\x01\x01\x01\xac\x02\x01\x5a\x08\x04\x03\x00\x03a/1\
        \x02\x012\x00\x01b\x08\x00\x01\x01\x02\x00\x01\x01\x02";
    assert_eq!(&bytes[..bytes.len() - 8], body);
    assert_eq!(Plan::from_bytes(&[9]).unwrap_err(), StoredPlanError::Version(9));
    for length in 0..bytes.len() {
        assert_eq!(Plan::from_bytes(&bytes[..length]).unwrap_err(), StoredPlanError::Damaged);
    }
}

proptest! {
    #[test]
    fn stored_plans_are_read_back(
        listed in vec("[a-c/é]{0,6}", 1..30),
        seed: u64,
        ranks in 1..4_u32,
        flip in 0..200_usize,
    ) {
        let rank = (seed % 2 == 0).then_some(ranks - 1);
        let reading = PlanSchedule { seed, ranks, rank, ..PlanSchedule::default() };
        let plan = Plan::new(listed.iter().map(String::as_str), reading).unwrap();
        let mut bytes = plan.to_bytes();
        prop_assert_eq!(&Plan::from_bytes(&bytes).unwrap(), &plan);
        let at = flip % bytes.len();
        bytes[at] ^= 1 << (flip % 8);
        prop_assert!(Plan::from_bytes(&bytes).is_err());
    }

    #[test]
    fn ranks_together_read_the_order_of_the_job(
        count in 1..60_u32, ranks in 1..9_u32, seed: u64, drop_last: bool
    ) {
        let sampler = Sampler::TorchDistributed;
        let all = PlanSchedule { sampler, seed, ranks, drop_last, ..PlanSchedule::default() };
        let Ok(plan) = Plan::new(keys(count).iter().map(String::as_str), all) else { return Ok(()) };
        let whole = plan.epochs().next().unwrap();
        prop_assert_eq!(whole.len(), plan.epoch_length() as usize);
        for rank in 0..ranks {
            let its: Vec<u32> = whole.iter().copied().skip(rank as usize).step_by(ranks as usize).collect();
            prop_assert_eq!(orders(count, PlanSchedule { rank: Some(rank), ..all }), vec![its]);
        }
    }
}
