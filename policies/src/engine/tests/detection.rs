//! Tests: detection on labelled traffic, from seeds that were not used for tuning.

use crate::rehearse::detection::Detection;

#[test]
fn nineteen_of_twenty_are_told_in_time() {
    let found = Detection::from_seeds(1000..1012);
    let (mean, worst) = found.f1_of_all();
    assert!(mean >= 0.95, "{mean} {worst:?}");
    assert!(found.missed_mean() <= 0.02 && found.within(0.02) >= 0.95, "{:?}", found.missed);
}
