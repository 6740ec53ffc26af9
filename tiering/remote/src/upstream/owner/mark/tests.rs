//! Ownership decisions as a table, and marks with random content.

use super::{
    FoundMark, PrefixClaim, PrefixContent, PrefixMark, PrefixOwnership, check_may_adopt, compare,
    decide_claim,
};
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeName};
use proptest::prelude::*;

fn identity(cluster: u64, node: u64, incarnation: u64) -> Identity {
    Identity { cluster: ClusterId(cluster), node: NodeName(node), incarnation: Incarnation(incarnation) }
}

fn found(owner: Identity, nonce: u64) -> FoundMark {
    FoundMark::Intact(PrefixMark { owner, nonce })
}

/// Returns a server of cluster 1, node 2, in incarnation 9, which descends from 7.
fn lineage() -> Lineage {
    Lineage { own: identity(1, 2, 9), earlier: vec![Incarnation(7)], ..Lineage::default() }
}

const NONCE: u64 = 0xA;

#[test]
fn only_the_last_start_of_the_owner_deletes_and_only_a_start_of_the_owner_takes_over() {
    let (own, earlier, unknown) = (identity(1, 2, 9), identity(1, 2, 7), identity(1, 2, 8));
    let (node, cluster) = (identity(1, 3, 9), identity(4, 2, 9));
    let left = PrefixClaim::Leave;
    for (found, compared, claimed) in [
        (found(own, NONCE), PrefixOwnership::Own, left(PrefixOwnership::Own)),
        (found(own, NONCE + 1), PrefixOwnership::Superseded(own), PrefixClaim::Write),
        (found(earlier, NONCE), PrefixOwnership::Earlier(earlier), left(PrefixOwnership::Earlier(earlier))),
        (
            found(earlier, NONCE + 1),
            PrefixOwnership::Earlier(earlier),
            left(PrefixOwnership::Earlier(earlier)),
        ),
        (
            found(unknown, NONCE),
            PrefixOwnership::Superseded(unknown),
            left(PrefixOwnership::Superseded(unknown)),
        ),
        (found(node, NONCE), PrefixOwnership::Foreign(node), left(PrefixOwnership::Foreign(node))),
        (found(cluster, NONCE), PrefixOwnership::Foreign(cluster), left(PrefixOwnership::Foreign(cluster))),
        (FoundMark::Damaged, PrefixOwnership::Damaged, left(PrefixOwnership::Damaged)),
    ] {
        assert_eq!(compare(&found, &lineage(), NONCE), compared, "{found:?}");
        for content in [PrefixContent::NoSegments, PrefixContent::Segments] {
            assert_eq!(decide_claim(&found, &lineage(), NONCE, content), claimed, "{found:?}");
        }
    }
    assert_eq!(compare(&FoundMark::Absent, &lineage(), NONCE), PrefixOwnership::Missing);
}

#[test]
fn a_prefix_without_a_mark_is_marked_unless_an_earlier_incarnation_may_use_it() {
    let first = Lineage { earlier: Vec::new(), ..lineage() };
    let (empty, full) = (PrefixContent::NoSegments, PrefixContent::Segments);
    for (lineage, content, expected) in [
        (&first, empty, PrefixClaim::Write),
        (&first, full, PrefixClaim::Write),
        (&lineage(), empty, PrefixClaim::Write),
        (&lineage(), full, PrefixClaim::Leave(PrefixOwnership::Missing)),
    ] {
        assert_eq!(decide_claim(&FoundMark::Absent, lineage, NONCE, content), expected);
    }
}

#[test]
fn an_operator_adopts_any_prefix_except_that_of_another_server() {
    for (found, may) in [
        (FoundMark::Absent, true),
        (FoundMark::Damaged, true),
        (found(identity(1, 2, 9), 1), true),
        (found(identity(1, 2, 7), 1), true),
        (found(identity(1, 2, 8), 1), true),
        (found(identity(1, 3, 9), 1), false),
        (found(identity(4, 2, 9), 1), false),
    ] {
        assert_eq!(check_may_adopt(&found, &lineage()).is_ok(), may, "{found:?}");
    }
}

#[test]
fn advice_names_both_servers_and_the_verb() {
    let own = identity(1, 2, 9);
    assert_eq!(PrefixOwnership::Own.advice("lake", "pre/mlgw-owner", &own), None);
    for ownership in [
        PrefixOwnership::Earlier(identity(1, 2, 7)),
        PrefixOwnership::Superseded(identity(1, 2, 8)),
        PrefixOwnership::Foreign(identity(4, 2, 9)),
    ] {
        let advice = ownership.advice("lake", "pre/mlgw-owner", &own).unwrap();
        let other = ownership.other().unwrap().to_string();
        assert!(advice.contains(&own.to_string()) && advice.contains(&other), "{advice}");
        assert!(advice.contains("mlgw upstream adopt lake"), "{advice}");
    }
    for ownership in [PrefixOwnership::Missing, PrefixOwnership::Damaged] {
        let advice = ownership.advice("lake", "pre/mlgw-owner", &own).unwrap();
        assert!(advice.contains("pre/mlgw-owner") && advice.contains("mlgw upstream adopt lake"), "{advice}");
    }
}

fn any_identity() -> impl Strategy<Value = Identity> {
    (0..3u64, 0..3u64, 0..4u64).prop_map(|(cluster, node, incarnation)| identity(cluster, node, incarnation))
}

proptest! {
    #[test]
    fn a_mark_survives_a_round_trip_and_no_other_text_parses(
        cluster: u64, node: u64, incarnation: u64, nonce: u64, at in 0usize..120, bit in 0u8..8,
    ) {
        let mark = PrefixMark { owner: identity(cluster, node, incarnation), nonce };
        let mut text = mark.text().into_bytes();
        prop_assert_eq!(PrefixMark::parse(&text), Some(mark));
        prop_assert_eq!(PrefixMark::parse(&text[..text.len() - 1]), None);
        let at = at % text.len();
        text[at] ^= 1 << bit;
        prop_assert_eq!(PrefixMark::parse(&text), None);
    }

    /// Two servers never both hold one mark, unless they are the same start of the same server.
    #[test]
    fn one_mark_has_one_owner(
        one in any_identity(), other in any_identity(), of in any_identity(),
        nonces in (0..3u64, 0..3u64, 0..3u64), earlier in 0..4u64,
    ) {
        let lineage = |own| Lineage { own, earlier: vec![Incarnation(earlier)], ..Lineage::default() };
        let mark = found(of, nonces.2);
        let holds = |own, nonce| compare(&mark, &lineage(own), nonce) == PrefixOwnership::Own;
        if holds(one, nonces.0) && holds(other, nonces.1) {
            prop_assert_eq!((one, nonces.0), (other, nonces.1));
        }
    }
}
