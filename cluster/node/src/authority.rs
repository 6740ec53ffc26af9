//! The authority of the cluster in the catalogue: its certificate, and its private key sealed with the key of
//! the cluster.
//!
//! Every member can open it, so every member admits nodes and renews its own certificate. While an authority
//! is replaced there are two ([`crate::rotation`]). All copies of the private key in memory are wiped. The
//! row is one command of the catalogue, so after a power loss it is complete or absent.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use mlgw_common::{ClusterId, NodeId, Timestamp};
use mlgw_credentials::{Sealer, SealerError};
use mlgw_formats::command::Reject;
use mlgw_formats::schema::{AuthorityRecord, Node};
use mlgw_metadata::{BarrierError, BarrierScope, Catalogue, ProposeError, ReadError};
use mlgw_trust::{AuthorityError, AuthorityHash, CertifiedNode, ClusterAuthority};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Name under which the key is sealed. No access key has an '@', so neither opens as the other.
const SEALED_NAME: &str = "@authority";

/// Number of the key of the cluster: that of its first node, which no command replaces yet.
const CLUSTER_KEY: u32 = 1;

/// Error of the authority in the catalogue.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityRowError {
    /// The row cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The row was not written.
    #[error("the cluster's authority was not recorded: {0}")]
    Propose(#[from] ProposeError),
    /// Another node may have recorded an authority, and its row cannot be read yet.
    #[error("the cluster's authority cannot be read now: {0}; start this node again")]
    Barrier(#[from] BarrierError),
    /// The key cannot be sealed or opened.
    #[error("the key of the cluster's authority: {0}; restore the key file of the cluster, secrets.key")]
    Seal(#[from] SealerError),
    /// The opened key is no key.
    #[error("the key of the cluster's authority is damaged: restore the catalogue from a backup")]
    Encoding,
    /// The authority cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

/// Opens the authority that signs certificates of `node`; `None` if there is none.
///
/// # Errors
/// See [`AuthorityRowError`].
pub(crate) fn open_authority(
    catalogue: &Catalogue,
    sealer: &Sealer,
    named: CertifiedNode,
) -> Result<Option<ClusterAuthority>, AuthorityRowError> {
    let records = catalogue.authorities()?;
    let record = signing_record(&records, &catalogue.nodes(), named.node);
    record.map(|record| open_record(record, sealer, named.cluster)).transpose()
}

/// Opens the authority of a record.
///
/// # Errors
/// See [`AuthorityRowError`].
pub(crate) fn open_record(
    record: &AuthorityRecord,
    sealer: &Sealer,
    cluster: ClusterId,
) -> Result<ClusterAuthority, AuthorityRowError> {
    let key = open_key(sealer, &record.sealed_key)?;
    let certificate = CertificateDer::from(record.certificate.clone());
    Ok(ClusterAuthority::open(cluster, certificate, &key)?)
}

/// A new authority, and its record.
pub(crate) struct NewAuthority {
    authority: ClusterAuthority,
    pub(crate) record: AuthorityRecord,
}

/// Makes an authority that is not recorded yet.
///
/// # Errors
/// See [`AuthorityRowError`].
pub(crate) fn create_record(
    sealer: &Sealer,
    cluster: ClusterId,
    now: Timestamp,
) -> Result<NewAuthority, AuthorityRowError> {
    let authority = ClusterAuthority::create(cluster, now)?;
    let record = AuthorityRecord {
        certificate: authority.certificate().to_vec(),
        sealed_key: seal_key(sealer, &authority.key())?,
        cluster_key: CLUSTER_KEY,
        created_ms: now.as_millis(),
        ..AuthorityRecord::default()
    };
    Ok(NewAuthority { authority, record })
}

/// Creates the authority of a cluster that has none, and opens the one of any other. `named` is the node that
/// creates it.
///
/// # Errors
/// See [`AuthorityRowError`].
pub(crate) async fn create_authority(
    catalogue: &Catalogue,
    sealer: &Sealer,
    named: CertifiedNode,
    now: Timestamp,
) -> Result<ClusterAuthority, AuthorityRowError> {
    if let Some(authority) = open_authority(catalogue, sealer, named)? {
        return Ok(authority);
    }
    let NewAuthority { authority, record } = create_record(sealer, named.cluster, now)?;
    match catalogue.put_authority(record, 0).await {
        Ok(_) => Ok(authority),
        // Another node was quicker, or this row may have been written.
        Err(
            error @ (ProposeError::Rejected(Reject::AuthorityChanged { .. }) | ProposeError::UnknownOutcome),
        ) => {
            catalogue.barrier(BarrierScope::System).await?;
            open_authority(catalogue, sealer, named)?.ok_or(AuthorityRowError::Propose(error))
        }
        Err(error) => Err(error.into()),
    }
}

/// Certificates of all authorities, the newest first.
///
/// # Errors
/// If the rows cannot be read.
pub(crate) fn trusted_authorities(
    catalogue: &Catalogue,
) -> Result<Vec<CertificateDer<'static>>, AuthorityRowError> {
    let records = catalogue.authorities()?.into_iter().rev();
    Ok(records.map(|record| CertificateDer::from(record.certificate)).collect())
}

/// Hash of the authority whose certificates the members present, for a token; `None` if there is none.
///
/// # Errors
/// If the row cannot be read.
pub(crate) fn presented_authority_hash(
    catalogue: &Catalogue,
) -> Result<Option<AuthorityHash>, AuthorityRowError> {
    let records = catalogue.authorities()?;
    // Node 0 is none: all nodes count.
    let presented = signing_record(&records, &catalogue.nodes(), NodeId(0));
    Ok(presented.map(|record| AuthorityHash::of(&CertificateDer::from(&record.certificate[..]))))
}

/// Returns the authority that signs certificates of `node`: the newest one if all other nodes trust it, and
/// the one before it until then. `records` are those of the authorities, the newest last.
pub(crate) fn signing_record<'a>(
    records: &'a [AuthorityRecord],
    nodes: &[Arc<Node>],
    node: NodeId,
) -> Option<&'a AuthorityRecord> {
    let newest = records.last()?;
    let others = nodes.iter().filter(|other| other.is_staying() && other.node_id() != node);
    match records.iter().rev().nth(1) {
        Some(before) if !others.clone().all(|other| other.trusted_authority >= newest.number) => Some(before),
        _ => Some(newest),
    }
}

/// Certificates that a node stores with one that `signer` signed: `signer` first, then the others. Between
/// two reads of the rows another authority may have become the newest.
pub(crate) fn signer_first(
    signer: &CertificateDer<'static>,
    trusted: Vec<CertificateDer<'static>>,
) -> Vec<CertificateDer<'static>> {
    let others = trusted.into_iter().filter(|certificate| certificate != signer);
    std::iter::once(signer.clone()).chain(others).collect()
}

/// Seals the private key of an authority.
///
/// # Errors
/// When the system gives no random bytes.
pub(crate) fn seal_key(sealer: &Sealer, key: &[u8]) -> Result<Vec<u8>, SealerError> {
    let text = Zeroizing::new(BASE64_STANDARD.encode(key));
    sealer.seal(SEALED_NAME, &text)
}

fn open_key(sealer: &Sealer, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, AuthorityRowError> {
    let text = sealer.open_secret(SEALED_NAME, sealed)?;
    BASE64_STANDARD.decode(text.as_bytes()).map(Zeroizing::new).map_err(|_| AuthorityRowError::Encoding)
}

#[cfg(test)]
mod tests {
    use super::{
        AuthorityRowError, SEALED_NAME, create_authority, open_authority, open_key, presented_authority_hash,
        seal_key, signer_first, trusted_authorities,
    };
    use mlgw_common::{ClusterId, NodeId, SystemClock, Timestamp};
    use mlgw_credentials::Sealer;
    use mlgw_formats::cluster_version::MEMBERSHIP_CLUSTER_VERSION;
    use mlgw_formats::schema::AuthorityRecord;
    use mlgw_metadata::{Catalogue, CatalogueOptions};
    use mlgw_trust::{CertifiedNode, ClusterAuthority};
    use std::path::Path;
    use std::sync::Arc;

    const CLUSTER: ClusterId = ClusterId(5);
    const NAMED: CertifiedNode = CertifiedNode { cluster: CLUSTER, node: NodeId(1) };
    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    async fn catalogue(dir: &Path) -> Catalogue {
        let options = CatalogueOptions::new(dir.join("catalogue"), Arc::new(SystemClock));
        let catalogue = Catalogue::open(options).await.unwrap();
        catalogue.raise_cluster_version(MEMBERSHIP_CLUSTER_VERSION).await.unwrap();
        catalogue
    }

    #[tokio::test]
    async fn an_authority_is_created_once_and_opened_by_every_node_with_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = catalogue(dir.path()).await;
        let sealer = Sealer::open_or_create(dir.path()).unwrap();
        assert!(open_authority(&catalogue, &sealer, NAMED).unwrap().is_none());
        assert_eq!(presented_authority_hash(&catalogue).unwrap(), None);
        let create = || create_authority(&catalogue, &sealer, NAMED, NOW);
        let (one, two) = tokio::join!(create(), create());
        let hash = one.unwrap().hash();
        assert_eq!(two.unwrap().hash(), hash, "the slower one opens that of the other");
        assert_eq!(create().await.unwrap().hash(), hash);
        let opened = open_authority(&catalogue, &sealer, NAMED).unwrap().unwrap();
        assert_eq!(opened.hash(), hash);
        assert_eq!(presented_authority_hash(&catalogue).unwrap(), Some(hash));
        assert_eq!(trusted_authorities(&catalogue).unwrap(), [opened.certificate().clone()]);
        let elsewhere = tempfile::tempdir().unwrap();
        let other = Sealer::open_or_create(elsewhere.path()).unwrap();
        let refused = open_authority(&catalogue, &other, NAMED).unwrap_err();
        assert!(matches!(refused, AuthorityRowError::Seal(_)), "{refused}");
        catalogue.shutdown().await;
    }

    #[tokio::test]
    async fn the_newest_authority_signs_and_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = catalogue(dir.path()).await;
        let sealer = Sealer::open_or_create(dir.path()).unwrap();
        let first = create_authority(&catalogue, &sealer, NAMED, NOW).await.unwrap();
        let second = ClusterAuthority::create(CLUSTER, NOW).unwrap();
        let record = AuthorityRecord {
            certificate: second.certificate().to_vec(),
            sealed_key: seal_key(&sealer, &second.key()).unwrap(),
            ..AuthorityRecord::default()
        };
        catalogue.put_authority(record, 1).await.unwrap();
        let opened = open_authority(&catalogue, &sealer, NAMED).unwrap().unwrap();
        assert_eq!(opened.hash(), second.hash());
        let trusted = trusted_authorities(&catalogue).unwrap();
        assert_eq!(trusted, [second.certificate().clone(), first.certificate().clone()]);
        let reordered = signer_first(first.certificate(), trusted);
        assert_eq!(reordered, [first.certificate().clone(), second.certificate().clone()]);
        catalogue.shutdown().await;
    }

    #[test]
    fn a_sealed_key_is_no_secret_of_an_access_key() {
        let dir = tempfile::tempdir().unwrap();
        let sealer = Sealer::open_or_create(dir.path()).unwrap();
        let authority = ClusterAuthority::create(CLUSTER, NOW).unwrap();
        let sealed = seal_key(&sealer, &authority.key()).unwrap();
        assert_eq!(*open_key(&sealer, &sealed).unwrap(), *authority.key());
        assert!(sealer.open_secret("authority", &sealed).is_err());
        let garbage = sealer.seal(SEALED_NAME, "not base64!").unwrap();
        assert!(matches!(open_key(&sealer, &garbage), Err(AuthorityRowError::Encoding)));
    }
}
