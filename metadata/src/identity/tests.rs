//! A log and a state are opened exactly when both are this server's and no acknowledged entry is missing.

use super::{ExpectedServer, KnownVoters, Mismatch, StateFacts, StatesByGroup, judge};
use crate::durability::Durability;
use crate::store::log_facts::{GroupFacts, LogFacts};
use crate::store::wal::WalWriters;
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeId, NodeName};
use mlgw_formats::schema::meta::Timeline;
use proptest::prelude::*;

fn identity(cluster: u64, node: u64, incarnation: u64) -> Identity {
    Identity { cluster: ClusterId(cluster), node: NodeName(node), incarnation: Incarnation(incarnation) }
}

fn expected(marking: bool, floor: u64) -> ExpectedServer {
    let lineage =
        Lineage { own: identity(1, 2, 3), earlier: vec![Incarnation(7)], marking, ..Lineage::default() };
    ExpectedServer { lineage, floor }
}

fn log(identity: Option<Identity>, first: u64, end: u64) -> LogFacts {
    let group = GroupFacts { first: Some(first), end, purged: first, committed: end };
    LogFacts { identity, groups: vec![group], ..LogFacts::default() }
}

fn state(timeline: Option<(u64, u64)>, reach: u64) -> StateFacts {
    let timeline = timeline.map(|(cluster, incarnation)| Timeline { cluster, incarnation });
    StateFacts { timeline, reach, voters: KnownVoters::One(NodeId(1)) }
}

/// The states of a catalogue with one group.
fn only(state: StateFacts) -> StatesByGroup {
    [(0, state)].into()
}

#[test]
fn only_our_own_log_and_state_are_opened() {
    let (own, earlier) = (identity(1, 2, 3), identity(1, 2, 7));
    let foreign = [identity(1, 2, 8), identity(1, 9, 3), identity(9, 2, 3)];
    let opens = |marking, log_of, timeline| {
        judge(&expected(marking, 0), &log(log_of, 0, 10), &only(state(timeline, 5)), Durability::Full).is_ok()
    };
    assert!(opens(false, Some(own), Some((1, 3))));
    for marking in [false, true] {
        for found in foreign {
            assert!(!opens(marking, Some(found), Some((1, 3))), "{found}");
        }
        for timeline in [(1, 8), (9, 3)] {
            assert!(!opens(marking, Some(own), Some(timeline)), "{timeline:?}");
        }
        // An unmarked catalogue, or one of an earlier timeline, is accepted by the start that marks it.
        for (log_of, timeline) in [(None, Some((1, 3))), (Some(own), None), (None, None)] {
            assert_eq!(opens(marking, log_of, timeline), marking, "{log_of:?} {timeline:?}");
        }
        for (log_of, timeline) in [(earlier, (1, 3)), (own, (1, 7)), (earlier, (1, 7))] {
            assert_eq!(opens(marking, Some(log_of), Some(timeline)), marking, "{log_of} {timeline:?}");
        }
    }
}

#[test]
fn a_state_may_be_ahead_of_its_log_only_if_others_vote() {
    let opens = |voters: KnownVoters, durability| {
        let ahead = StateFacts { reach: 11, voters, ..state(Some((1, 3)), 0) };
        let facts = only(ahead.seen_by(NodeId(1)));
        judge(&expected(false, 0), &log(Some(identity(1, 2, 3)), 0, 10), &facts, durability).is_ok()
    };
    assert!(!opens(KnownVoters::One(NodeId(1)), Durability::Full), "an acknowledged entry is lost");
    assert!(!opens(KnownVoters::Unknown, Durability::Full));
    assert!(opens(KnownVoters::Others, Durability::Full));
    assert!(opens(KnownVoters::One(NodeId(2)), Durability::Full), "this node is a learner");
    assert!(opens(KnownVoters::One(NodeId(1)), Durability::Os));
    let stale = StateFacts { reach: 5, voters: KnownVoters::Others, ..state(Some((1, 3)), 0) };
    let gap =
        judge(&expected(false, 0), &log(Some(identity(1, 2, 3)), 6, 10), &only(stale), Durability::Full);
    assert!(matches!(gap, Err(Mismatch::StaleState { .. })), "a gap is never accepted: {gap:?}");
}

#[test]
fn a_log_is_accepted_if_all_of_its_writers_are_this_server() {
    let (own, earlier, foreign) = (Incarnation(3), Incarnation(7), Incarnation(8));
    let opens = |marking, writer: Option<Incarnation>, named: &[Incarnation], unnamed| {
        let writers = WalWriters { named: named.iter().copied().collect(), unnamed };
        let log = LogFacts { writer, writers, ..log(Some(identity(1, 2, 3)), 0, 10) };
        judge(&expected(marking, 0), &log, &only(state(Some((1, 3)), 5)), Durability::Full).is_ok()
    };
    for marking in [false, true] {
        assert!(opens(marking, Some(own), &[own], false));
        // Unneeded files of an earlier timeline may still exist.
        assert!(opens(marking, Some(own), &[own, earlier], false));
        assert!(opens(marking, None, &[], false), "a log whose tables an earlier version wrote");
        assert!(!opens(marking, Some(foreign), &[], false));
        assert!(!opens(marking, Some(own), &[foreign, own], false));
        assert_eq!(opens(marking, Some(earlier), &[earlier], false), marking);
        assert_eq!(opens(marking, Some(own), &[own], true), marking);
    }
}

#[test]
fn a_group_without_a_state_may_have_no_entries() {
    let groups = [3, 0, 7].map(|end| GroupFacts { end, ..GroupFacts::default() });
    let log = LogFacts { identity: Some(identity(1, 2, 3)), groups: groups.into(), ..LogFacts::default() };
    let judged = |ids: &[u32]| {
        let states = ids.iter().map(|id| (*id, state(Some((1, 3)), 0))).collect();
        judge(&expected(false, 0), &log, &states, Durability::Full)
    };
    assert_eq!(judged(&[0, 2]), Ok(()), "the node never had group 1");
    assert_eq!(judged(&[0, 1, 2, 5]), Ok(()), "a new group has no rows in the log");
    assert_eq!(judged(&[0, 1]), Err(Mismatch::LostState { group: 2 }));
}

#[test]
fn a_new_state_has_no_timeline_yet() {
    let own = Some(identity(1, 2, 3));
    assert_eq!(judge(&expected(false, 0), &log(own, 0, 10), &only(state(None, 0)), Durability::Full), Ok(()));
}

proptest! {
    #[test]
    fn a_catalogue_opens_exactly_when_no_entry_is_missing(
        first in 0u64..20, length in 0u64..20, reach in 0u64..40, committed in 0u64..40, floor in 0u64..40,
        synced: bool,
    ) {
        let end = first + length;
        let group = GroupFacts {
            first: (length > 0).then_some(first), end, purged: first, committed,
        };
        let log = LogFacts { identity: Some(identity(1, 2, 3)), groups: vec![group], ..LogFacts::default() };
        let state = state(Some((1, 3)), reach);
        let missing_between = reach < first;
        let missing_behind = end < reach.max(committed).max(floor);
        let durability = if synced { Durability::Full } else { Durability::Os };
        let checked = judge(&expected(false, floor), &log, &only(state), durability);
        prop_assert_eq!(checked.is_ok(), !(missing_between || synced && missing_behind));
        if let Err(Mismatch::LostTail { end: named, .. }) = checked {
            prop_assert!(named == end && end < floor);
        }
    }
}
