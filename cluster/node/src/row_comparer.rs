//! Compares the rows of the groups that this node leads, one group after the other.
//!
//! A result is known on all members, so the next leader of a group continues the interval of the last one.
//! Nothing is stored: after a start the first comparison comes one interval later.

use mlgw_common::time::{Instant, sleep};
use mlgw_metadata::Catalogue;
use std::collections::BTreeMap;
use std::time::Duration;

/// Fraction of the interval after which groups that are due are looked for, and the longest such time.
const LOOKS_PER_INTERVAL: u32 = 4;
const LOOK_MAX: Duration = Duration::from_secs(30);

/// Compares until the future is dropped. An interval of zero turns it off.
pub(crate) async fn compare_rows(catalogue: Catalogue, interval: Duration) {
    if interval.is_zero() {
        return;
    }
    let begun = Instant::now();
    loop {
        sleep((interval / LOOKS_PER_INTERVAL).min(LOOK_MAX)).await;
        if !catalogue.has_row_comparisons() {
            continue;
        }
        let known = catalogue.row_comparisons();
        let known = known.into_iter().map(|(group, known)| (group, known.known_since)).collect();
        let is_led = |group: &u32| catalogue.leader(*group) == Some(catalogue.node());
        let groups = catalogue.groups().into_iter().filter(is_led);
        for group in due(groups, &known, begun, interval, Instant::now()) {
            if let Err(error) = catalogue.compare_rows(group).await {
                // Most often another node leads it now.
                tracing::debug!(group, %error, "the rows of a group are not compared");
            }
        }
    }
}

/// The groups whose last comparison, or the start of this node, is an interval ago.
fn due(
    groups: impl Iterator<Item = u32>,
    known: &BTreeMap<u32, Instant>,
    begun: Instant,
    interval: Duration,
    now: Instant,
) -> Vec<u32> {
    let since = |group: &u32| known.get(group).copied().unwrap_or(begun);
    groups.filter(|group| now.saturating_duration_since(since(group)) >= interval).collect()
}

#[cfg(test)]
mod tests {
    use super::due;
    use mlgw_common::time::Instant;
    use std::time::Duration;

    #[test]
    fn a_group_is_compared_an_interval_after_its_last_comparison_or_the_start() {
        let (begun, interval) = (Instant::now(), Duration::from_secs(60));
        let known = [(1, begun + Duration::from_secs(50)), (2, begun + Duration::from_secs(10))].into();
        let at =
            |secs| due([0, 1, 2].into_iter(), &known, begun, interval, begun + Duration::from_secs(secs));
        assert_eq!(at(59), [] as [u32; 0]);
        assert_eq!(at(60), [0]);
        assert_eq!(at(70), [0, 2]);
        assert_eq!(at(110), [0, 1, 2]);
    }
}
