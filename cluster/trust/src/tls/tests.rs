//! Tests of TLS between two nodes in memory: which certificates each side accepts.

use super::{NodeCredentials, join_client_config, tls_reason};
use crate::authority::{AuthorityHash, ClusterAuthority};
use crate::request::NodeKey;
use crate::validity::Validity;
use mlgw_common::{Clock as _, ClusterId, NodeId, SystemClock, Timestamp};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};
use std::sync::Arc;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn authority(cluster: u64) -> ClusterAuthority {
    ClusterAuthority::create(ClusterId(cluster), SystemClock.now()).unwrap()
}

/// Credentials of node `node`, signed `days_ago`.
fn credentials_of(authority: &ClusterAuthority, node: u64, days_ago: i64) -> NodeCredentials {
    let key = NodeKey::generate().unwrap();
    let now = Timestamp(SystemClock.now().0 - days_ago * DAY_MS);
    let issued = authority.sign(&key.request().unwrap(), NodeId(node), now).unwrap();
    let authorities = vec![authority.certificate().clone()];
    NodeCredentials::new(Arc::new(key), issued.certificate, issued.validity, authorities).unwrap()
}

/// Completes a TLS handshake in memory: the certificate of the client that the server got, or the error of
/// the side that refused.
fn connect(client: ClientConfig, server: ServerConfig) -> Result<Option<CertificateDer<'static>>, Error> {
    let name = ServerName::try_from("node.mlgw.internal").unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            server.read_tls(&mut unread).unwrap();
            server.process_new_packets()?;
        }
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        let mut unread = &bytes[..];
        while !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            client.process_new_packets()?;
        }
    }
    Ok(server.peer_certificates().and_then(|chain| chain.first()).map(|first| first.clone().into_owned()))
}

fn between(
    client: &NodeCredentials,
    server: &NodeCredentials,
) -> Result<Option<CertificateDer<'static>>, Error> {
    connect(client.client_config().unwrap(), server.server_config().unwrap())
}

#[test]
fn nodes_of_one_cluster_accept_each_other() {
    let authority = authority(5);
    let (one, two) = (credentials_of(&authority, 1, 0), credentials_of(&authority, 2, 0));
    assert_eq!(between(&one, &two).unwrap().as_ref(), Some(&one.certificate));
}

#[test]
fn nodes_of_another_authority_or_cluster_are_refused() {
    let (own, other) = (authority(5), authority(5));
    let mine = credentials_of(&own, 1, 0);
    let refused = between(&mine, &credentials_of(&other, 2, 0)).unwrap_err();
    let refused = tls_reason(&refused);
    assert!(refused.contains("not signed by an authority of this cluster"), "{refused}");

    // The same authorities, but a certificate of another cluster.
    let elsewhere = authority(6);
    let mut theirs = credentials_of(&elsewhere, 2, 0);
    let mut trusting = mine.clone();
    trusting.authorities.push(elsewhere.certificate().clone());
    theirs.authorities.push(own.certificate().clone());
    let refused = between(&trusting, &theirs).unwrap_err();
    let refused = tls_reason(&refused);
    assert!(refused.contains("is of cluster 0000000000000006"), "{refused}");
    let refused = between(&theirs, &trusting).unwrap_err();
    let refused = tls_reason(&refused);
    assert!(refused.contains("is of cluster 0000000000000005"), "{refused}");
}

#[test]
fn a_server_refuses_a_client_of_another_authority() {
    let (own, other) = (authority(5), authority(5));
    let server = credentials_of(&own, 1, 0);
    let mut client = credentials_of(&other, 2, 0);
    // The client accepts the server, so that it is the server that refuses.
    client.authorities.push(own.certificate().clone());
    let refused = between(&client, &server).unwrap_err();
    let refused = tls_reason(&refused);
    assert!(refused.contains("not signed by an authority of this cluster"), "{refused}");
}

#[test]
fn an_expired_certificate_is_refused_on_both_sides() {
    let authority = authority(5);
    let (valid, old) = (credentials_of(&authority, 1, 0), credentials_of(&authority, 2, 400));
    for refused in [between(&valid, &old).unwrap_err(), between(&old, &valid).unwrap_err()] {
        let refused = tls_reason(&refused);
        assert!(refused.contains("certificate expired"), "{refused}");
    }
}

#[test]
fn both_authorities_are_accepted_while_they_are_replaced() {
    let (old, new) = (authority(5), authority(5));
    let mut one = credentials_of(&old, 1, 0);
    let mut two = credentials_of(&new, 2, 0);
    one.authorities.push(new.certificate().clone());
    two.authorities.push(old.certificate().clone());
    between(&one, &two).unwrap();
    between(&two, &one).unwrap();
}

#[test]
fn a_joining_node_accepts_the_authority_of_its_token_only() {
    let (own, other) = (authority(5), authority(5));
    let server = credentials_of(&own, 1, 0);
    let joining = |hash| connect(join_client_config(hash).unwrap(), server.server_config().unwrap());
    assert_eq!(joining(own.hash()).unwrap(), None, "without a certificate");
    let refused = joining(other.hash()).unwrap_err();
    let refused = tls_reason(&refused);
    assert!(refused.contains("hash of the join token"), "{refused}");
}

#[test]
fn a_server_that_only_shows_the_authority_is_refused() {
    // Anybody has the public certificate of the authority; only a certificate that it signed counts.
    let (own, forger) = (authority(5), authority(5));
    let mut server = credentials_of(&forger, 1, 0);
    server.authorities = vec![own.certificate().clone()];
    let refused = connect(join_client_config(own.hash()).unwrap(), server.server_config().unwrap());
    assert!(tls_reason(&refused.unwrap_err()).contains("hash of the join token"));

    // Nor does the hash of the server's own certificate make it an authority.
    let leaf = AuthorityHash::of(&server.certificate);
    server.authorities = vec![server.certificate.clone()];
    assert!(connect(join_client_config(leaf).unwrap(), server.server_config().unwrap()).is_err());
}

#[test]
fn credentials_that_do_not_match_are_refused() {
    let authority = authority(5);
    let (one, two) = (credentials_of(&authority, 1, 0), credentials_of(&authority, 2, 0));
    let validity = Validity::of_node(SystemClock.now());
    let authorities = one.authorities.clone();
    let mixed = NodeCredentials::new(one.key.clone(), two.certificate.clone(), validity, authorities);
    assert_eq!(mixed.unwrap_err(), crate::CredentialsError::Pair);
    let none = NodeCredentials::new(one.key.clone(), one.certificate.clone(), validity, Vec::new());
    assert_eq!(none.unwrap_err(), crate::CredentialsError::Authorities(0));
}
