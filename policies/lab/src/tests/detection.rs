//! Tests: detection on labeled traffic, from seeds that were not used for tuning.

use crate::detection::Detection;

#[test]
fn phases_are_detected_in_95_percent() {
    let found = Detection::from_seeds(1000..1012);
    let (mean, worst) = found.f1_of_all();
    assert!(mean >= 0.95, "{mean} {worst:?}");
    assert!(found.missed_mean() <= 0.02 && found.within(0.02) >= 0.95, "{:?}", found.missed);
}
