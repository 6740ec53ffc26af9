//! Tests of the renewal of certificates: the decision, and its effect with a real catalogue and transport.

use super::{CertificateEnd, CertificateRenewal, CertificateWork, RenewalError, certificate_work};
use crate::admission::tests::TestMember;
use mlgw_common::{CheckedClock, Clock as _, ClusterId, NodeId, Timestamp};
use mlgw_formats::schema::AuthorityRecord;
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

fn record(authority: &ClusterAuthority, created: Timestamp) -> AuthorityRecord {
    let certificate = authority.certificate().to_vec();
    AuthorityRecord { certificate, created_ms: created.0, ..AuthorityRecord::default() }
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
    let (held, records) = (credentials(&[&authority]), [record(&authority, NOW)]);
    for (days, work) in [
        (-1, CertificateWork::Renew),
        (0, CertificateWork::Nothing),
        (243, CertificateWork::Nothing),
        (244, CertificateWork::Renew),
        (340, CertificateWork::Renew),
        (400, CertificateWork::Renew),
    ] {
        assert_eq!(certificate_work(&held, &records, after(days)), work, "{days}");
        assert_eq!(certificate_work(&held, &[], after(days)), CertificateWork::Nothing, "no rows yet");
    }
}

#[test]
fn an_added_authority_is_trusted_at_once_and_signs_a_day_later() {
    let (old, new) = (authority(), authority());
    let records = [record(&old, NOW), record(&new, after(10))];
    let (alone, both) = (credentials(&[&old]), credentials(&[&old, &new]));
    let work = |held: &NodeCredentials, days| certificate_work(held, &records, after(days));
    assert_eq!(work(&alone, 10), CertificateWork::Trust);
    assert_eq!(work(&both, 10), CertificateWork::Nothing);
    assert_eq!(work(&alone, 11), CertificateWork::Replace);
    assert_eq!(work(&both, 11), CertificateWork::Replace);
    assert_eq!(work(&credentials(&[&new, &old]), 11), CertificateWork::Nothing);
    let late = [record(&old, NOW), record(&new, after(300))];
    assert_eq!(certificate_work(&both, &late, after(300)), CertificateWork::Nothing, "a day later");
    assert_eq!(certificate_work(&both, &late, after(301)), CertificateWork::Replace);
    assert_eq!(certificate_work(&both, &late, after(340)), CertificateWork::Renew);
}

#[test]
fn an_authority_that_is_removed_signs_nothing_and_is_not_trusted() {
    let (old, new) = (authority(), authority());
    let records = [record(&new, NOW)];
    let work = |held: &NodeCredentials, days| certificate_work(held, &records, after(days));
    assert_eq!(work(&credentials(&[&old, &new]), 0), CertificateWork::Replace);
    assert_eq!(work(&credentials(&[&new, &old]), 0), CertificateWork::Trust);
    assert_eq!(work(&credentials(&[&new]), 0), CertificateWork::Nothing);
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
async fn a_change_of_the_authorities_is_stored() {
    let member = TestMember::new().await;
    let (renewal, held) = renewal(&member).await;
    let new = member.add_authority(1).await;
    let trusting = renewal.check(&held).await.unwrap().unwrap();
    assert_eq!(trusting.certificate(), held.certificate());
    let hashes = |credentials: &NodeCredentials| -> Vec<AuthorityHash> {
        credentials.authorities().iter().map(AuthorityHash::of).collect()
    };
    assert_eq!(hashes(&trusting), [member.authority, new.hash()], "the one that signed comes first");
    assert_eq!(hashes(&member.files().credentials().unwrap().unwrap()), hashes(&trusting));
    assert!(renewal.check(&trusting).await.unwrap().is_none());
    pass(&member, 1);
    let signed = renewal.check(&trusting).await.unwrap().unwrap();
    assert_ne!(signed.certificate(), held.certificate());
    assert_eq!(hashes(&signed), [new.hash(), member.authority]);
    member.catalogue.remove_authority(1).await.unwrap();
    let last = renewal.check(&signed).await.unwrap().unwrap();
    assert_eq!((last.certificate(), hashes(&last)), (signed.certificate(), vec![new.hash()]));
    assert!(renewal.check(&last).await.unwrap().is_none());
    renewal.transport.stop().await;
    member.stop().await;
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
