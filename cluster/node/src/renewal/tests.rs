//! Tests of the renewal of certificates: the decision, and its effect with a real catalogue and transport.

use super::{
    CertificateEnd, CertificateRenewal, CertificateWork, RenewalError, certificate_work, held_authorities,
    next_signer,
};
use crate::admission::tests::TestMember;
use crate::authorities::HeldAuthorities;
use crate::rotation::end_rotation;
use mlgw_common::{CheckedClock, Clock as _, ClusterId, NodeId, Timestamp};
use mlgw_formats::cluster_version::CLUSTER_VERSION;
use mlgw_formats::schema::{AuthorityRecord, Node, RecordedStart};
use mlgw_metadata::catalogue::NodeReport;
use mlgw_trust::{AuthorityHash, ClusterAuthority, NodeCredentials, NodeFilesError, NodeKey};
use std::sync::Arc;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;
const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn after(days: i64) -> Timestamp {
    Timestamp(NOW.0 + days * DAY_MS)
}

fn authority() -> ClusterAuthority {
    ClusterAuthority::create(ClusterId(5), NOW).unwrap()
}

fn record(authority: &ClusterAuthority, number: u64) -> AuthorityRecord {
    AuthorityRecord { number, certificate: authority.certificate().to_vec(), ..AuthorityRecord::default() }
}

/// Another node, which trusts the authorities up to this number.
fn other(trusted_authority: u64) -> [Arc<Node>; 1] {
    [Arc::new(Node { id: 8, trusted_authority, ..Node::default() })]
}

/// Credentials that the first of `authorities` signed at [`NOW`].
fn credentials(authorities: &[&ClusterAuthority]) -> NodeCredentials {
    let key = Arc::new(NodeKey::generate().unwrap());
    let issued = authorities[0].sign(&key.request().unwrap(), NodeId(7), NOW).unwrap();
    let certificates = authorities.iter().map(|authority| authority.certificate().clone()).collect();
    NodeCredentials::new(key, issued.certificate, issued.validity, certificates).unwrap()
}

#[test]
fn the_age_of_a_certificate_decides() {
    let authority = authority();
    let (held, records) = (credentials(&[&authority]), [record(&authority, 1)]);
    for (days, work) in [
        (-1, CertificateWork::Renew),
        (0, CertificateWork::Nothing),
        (243, CertificateWork::Nothing),
        (244, CertificateWork::Renew),
        (340, CertificateWork::Renew),
        (400, CertificateWork::Renew),
    ] {
        assert_eq!(certificate_work(&held, &records, &other(0), after(days)), work, "{days}");
        assert_eq!(certificate_work(&held, &[], &[], after(days)), CertificateWork::Nothing, "no rows yet");
    }
}

#[test]
fn an_added_authority_is_trusted_at_once_and_signs_when_every_node_trusts_it() {
    let (old, new) = (authority(), authority());
    let records = [record(&old, 1), record(&new, 2)];
    let (alone, both, moved) = (credentials(&[&old]), credentials(&[&old, &new]), credentials(&[&new, &old]));
    let work = |held: &NodeCredentials, trusted, days| {
        certificate_work(held, &records, &other(trusted), after(days))
    };
    assert_eq!(work(&alone, 1, 0), CertificateWork::Trust);
    assert_eq!(work(&both, 1, 0), CertificateWork::Nothing, "the other node does not trust it");
    assert_eq!(work(&both, 2, 0), CertificateWork::Replace);
    assert_eq!(work(&alone, 2, 0), CertificateWork::Replace);
    assert_eq!(work(&moved, 2, 0), CertificateWork::Nothing);
    assert_eq!(work(&moved, 1, 0), CertificateWork::Nothing, "a node that has joined meanwhile");
    assert_eq!(work(&both, 1, 300), CertificateWork::Renew, "by the old one");
    assert_eq!(next_signer(&both, &records, &other(1)).unwrap().number, 1);
    assert_eq!(next_signer(&moved, &records, &other(1)).unwrap().number, 2, "never back");
    assert_eq!(held_authorities(&both, &records), HeldAuthorities { signer: 1, trusted: 2 });
    assert_eq!(held_authorities(&alone, &records), HeldAuthorities { signer: 1, trusted: 1 });
    assert_eq!(held_authorities(&both, &records[1..]), HeldAuthorities { signer: 0, trusted: 2 });
}

#[test]
fn an_authority_that_is_removed_signs_nothing_and_is_not_trusted() {
    let (old, new) = (authority(), authority());
    let records = [record(&new, 2)];
    let work = |held: &NodeCredentials| certificate_work(held, &records, &other(1), NOW);
    assert_eq!(work(&credentials(&[&old, &new])), CertificateWork::Replace);
    assert_eq!(work(&credentials(&[&new, &old])), CertificateWork::Trust);
    assert_eq!(work(&credentials(&[&new])), CertificateWork::Nothing);
}

/// The renewal of a member with a transport, and its first credentials.
async fn renewal(member: &TestMember) -> (CertificateRenewal, NodeCredentials) {
    let held = member.certify();
    let (transport, _) = member.transport(held.clone()).await;
    let renewal = CertificateRenewal {
        catalogue: member.catalogue.clone(),
        sealer: member.sealer.clone(),
        files: member.files(),
        transport,
        clock: CheckedClock::alone(member.clock.clone()),
        end: Arc::new(CertificateEnd::new(&held)),
        authorities: Arc::default(),
    };
    (renewal, held)
}

fn pass(member: &TestMember, days: i64) {
    member.clock.set(Timestamp(member.clock.now().0 + days * DAY_MS));
}

#[tokio::test]
async fn a_renewed_certificate_is_of_the_same_node_and_key_and_is_stored() {
    let member = TestMember::new().await;
    let (renewal, mut held) = renewal(&member).await;
    assert!(renewal.check(&held).await.unwrap().is_none(), "it is fresh");
    // Two thirds of the validity, and then a node that was down for more than all of it.
    for days in [244, 400] {
        pass(&member, days);
        let next = renewal.check(&held).await.unwrap().unwrap();
        assert_eq!((next.node(), next.key().public_hash()), (held.node(), held.key().public_hash()));
        assert_ne!(next.certificate(), held.certificate());
        assert_eq!(next.authorities(), held.authorities());
        assert!(next.validity().not_after_ms > held.validity().not_after_ms);
        let stored = member.files().credentials().unwrap().unwrap();
        assert_eq!((stored.certificate(), stored.validity()), (next.certificate(), next.validity()));
        assert_eq!(renewal.end.get(), Timestamp(next.validity().not_after_ms));
        assert!(renewal.check(&next).await.unwrap().is_none());
        held = next;
    }
    renewal.transport.stop().await;
    member.stop().await;
}

#[tokio::test]
async fn an_authority_is_replaced_when_all_nodes_report_it_and_only_then() {
    let member = TestMember::new().await;
    member.catalogue.raise_cluster_version(CLUSTER_VERSION).await.unwrap();
    let (renewal, held) = renewal(&member).await;
    let report = |node, authority, trusted_authority| report(&member, node, authority, trusted_authority);
    report(1, 1, 1).await;
    member.admit(2).await;
    report(2, 1, 1).await;
    let new = member.add_authority(1).await;
    let trusting = renewal.check(&held).await.unwrap().unwrap();
    assert_eq!(trusting.certificate(), held.certificate());
    let hashes = |credentials: &NodeCredentials| -> Vec<AuthorityHash> {
        credentials.authorities().iter().map(AuthorityHash::of).collect()
    };
    assert_eq!(hashes(&trusting), [member.authority, new.hash()], "the one that signed comes first");
    assert_eq!(hashes(&member.files().credentials().unwrap().unwrap()), hashes(&trusting));
    assert_eq!(renewal.authorities.get(), HeldAuthorities { signer: 1, trusted: 2 });
    report(1, 1, 2).await;
    assert!(renewal.check(&trusting).await.unwrap().is_none(), "node 2 has not reported");
    end_rotation(&member.catalogue).await;
    report(2, 1, 2).await;
    let signed = renewal.check(&trusting).await.unwrap().unwrap();
    assert_ne!(signed.certificate(), held.certificate());
    assert_eq!(hashes(&signed), [new.hash(), member.authority]);
    assert_eq!(renewal.authorities.get(), HeldAuthorities { signer: 2, trusted: 2 });
    report(1, 2, 2).await;
    end_rotation(&member.catalogue).await;
    assert_eq!(member.catalogue.authorities().unwrap().len(), 2, "node 2 uses the old one");
    report(2, 2, 2).await;
    end_rotation(&member.catalogue).await;
    assert_eq!(member.catalogue.authorities().unwrap().len(), 1);
    let last = renewal.check(&signed).await.unwrap().unwrap();
    assert_eq!((last.certificate(), hashes(&last)), (signed.certificate(), vec![new.hash()]));
    assert!(renewal.check(&last).await.unwrap().is_none());
    renewal.transport.stop().await;
    member.stop().await;
}

/// Records the report of a node about its authorities.
async fn report(member: &TestMember, node: u64, authority: u64, trusted_authority: u64) {
    let report = NodeReport {
        node: NodeId(node),
        address: "a:1".to_owned(),
        cluster_version: CLUSTER_VERSION,
        build: "b".to_owned(),
        start: RecordedStart { incarnation: 1, counter: 1, nonce: 1 },
        key_hash: Vec::new(),
        is_serving: true,
        authority,
        trusted_authority,
    };
    member.catalogue.report_node(report).await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_fails_leaves_the_stored_certificate() {
    let member = TestMember::new().await;
    let (renewal, held) = renewal(&member).await;
    pass(&member, 250);
    let (key, aside) = (member.files().dir().join("node.key"), member.dir.path().join("aside"));
    std::fs::rename(&key, &aside).unwrap();
    let error = renewal.check(&held).await.unwrap_err();
    assert!(matches!(error, RenewalError::Files(NodeFilesError::NoKey { .. })), "{error}");
    assert_eq!(renewal.end.get(), Timestamp(held.validity().not_after_ms));
    std::fs::rename(&aside, &key).unwrap();
    assert_eq!(member.files().credentials().unwrap().unwrap().certificate(), held.certificate());
    assert!(renewal.check(&held).await.unwrap().is_some(), "the next attempt");
    renewal.transport.stop().await;
    member.stop().await;
}
