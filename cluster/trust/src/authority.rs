//! The cluster's own certificate authority (CA), which signs the certificates of its nodes. It is created
//! with the cluster; `mlgw cluster rotate-ca` replaces it.
//!
//! Its certificate and private key are a row of the catalogue; the key is sealed there by the caller. Nothing
//! is stored here.

use crate::certificate::CertifiedNode;
use crate::request::{CertificateRequest, NodeKey, NodeKeyError};
use crate::validity::Validity;
use mlgw_common::limits::AUTHORITY_DAYS;
use mlgw_common::{ClusterId, NodeId, RandomError, Timestamp, hex, random};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::time::Duration;
use webpki::EndEntityCert;
use zeroize::Zeroizing;

/// Error of an authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// Its key cannot be used.
    #[error("the cluster's authority: {0}")]
    Key(#[from] NodeKeyError),
    /// Certificate and key do not match.
    #[error("the certificate of the cluster's authority does not match its key: restore the catalogue's row")]
    Pair,
    /// A certificate cannot be made.
    #[error("no certificate can be made: {0}")]
    Sign(String),
    /// The system gives no random bytes.
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// SHA-256 of the certificate of an authority, by which a joining node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AuthorityHash(pub [u8; 32]);

impl AuthorityHash {
    /// Hash of a certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for AuthorityHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::text(&self.0))
    }
}

/// Certificate of a node, as the authority returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The node.
    pub node: CertifiedNode,
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Its validity.
    pub validity: Validity,
}

/// Authority of a cluster.
#[derive(Debug)]
pub struct ClusterAuthority {
    cluster: ClusterId,
    certificate: CertificateDer<'static>,
    key: NodeKey,
}

impl ClusterAuthority {
    /// Makes an authority with a new key.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn create(cluster: ClusterId, now: Timestamp) -> Result<Self, AuthorityError> {
        let key = NodeKey::generate()?;
        let mut params = authority_params(cluster);
        limit(&mut params, Validity::of_days(now, AUTHORITY_DAYS));
        params.serial_number = Some(serial()?);
        let certificate = params.self_signed(key.pair()).map_err(sign_error)?;
        Self::open(cluster, certificate.into(), &key.der())
    }

    /// Opens an authority that was stored.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn open(
        cluster: ClusterId,
        certificate: CertificateDer<'static>,
        key: &[u8],
    ) -> Result<Self, AuthorityError> {
        let key = NodeKey::of_der(key)?;
        if !is_pair(&certificate, &key) {
            return Err(AuthorityError::Pair);
        }
        Ok(Self { cluster, certificate, key })
    }

    /// Its certificate.
    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its private key in PKCS #8, to be sealed.
    #[must_use]
    pub fn key(&self) -> Zeroizing<Vec<u8>> {
        self.key.der()
    }

    /// Hash of its certificate.
    #[must_use]
    pub fn hash(&self) -> AuthorityHash {
        AuthorityHash::of(&self.certificate)
    }

    /// Signs a certificate for a node.
    ///
    /// # Errors
    /// See [`AuthorityError`].
    pub fn sign(
        &self,
        request: &CertificateRequest,
        node: NodeId,
        now: Timestamp,
    ) -> Result<IssuedCertificate, AuthorityError> {
        assert!(node.0 != 0, "nodes are numbered from 1");
        let named = CertifiedNode { cluster: self.cluster, node };
        let validity = Validity::of_node(now);
        let mut params = CertificateParams::new(vec![named.domain()]).map_err(sign_error)?;
        params.distinguished_name = common_name(&format!("mlgw node {node}"));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        limit(&mut params, validity);
        params.serial_number = Some(serial()?);
        let own = authority_params(self.cluster);
        let issuer = Issuer::from_params(&own, self.key.pair());
        let certificate = params.signed_by(request, &issuer).map_err(sign_error)?.into();
        debug_assert_eq!(CertifiedNode::of_certificate(&certificate), Ok(named));
        Ok(IssuedCertificate { node: named, certificate, validity })
    }
}

/// True if the certificate has the public key of `key`.
pub(crate) fn is_pair(certificate: &CertificateDer<'_>, key: &NodeKey) -> bool {
    let text = b"mlgw key of a certificate\0";
    let (Ok(certificate), Ok(signature)) = (EndEntityCert::try_from(certificate), key.sign(text)) else {
        return false;
    };
    certificate.verify_signature(webpki::ring::ECDSA_P256_SHA256, text, &signature).is_ok()
}

/// Parameters of an authority's certificate without its times. Certificates are signed with the same ones, so
/// they must not change.
fn authority_params(cluster: ClusterId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(&format!("mlgw cluster {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn limit(params: &mut CertificateParams, validity: Validity) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    params.not_before = epoch + since(validity.not_before_ms);
    params.not_after = epoch + since(validity.not_after_ms);
}

/// Serial number of 16 random bytes, positive.
fn serial() -> Result<SerialNumber, AuthorityError> {
    let mut bytes: [u8; 16] = random()?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn sign_error(error: rcgen::Error) -> AuthorityError {
    AuthorityError::Sign(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{AuthorityError, AuthorityHash, ClusterAuthority};
    use crate::certificate::CertifiedNode;
    use crate::request::NodeKey;
    use mlgw_common::{ClusterId, NodeId, Timestamp};

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    #[test]
    fn an_authority_is_opened_again_and_signs() {
        let made = ClusterAuthority::create(ClusterId(5), NOW).unwrap();
        let opened = ClusterAuthority::open(ClusterId(5), made.certificate().clone(), &made.key()).unwrap();
        assert_eq!(opened.hash(), AuthorityHash::of(made.certificate()));
        let request = NodeKey::generate().unwrap().request().unwrap();
        let issued = opened.sign(&request, NodeId(7), NOW).unwrap();
        let named = CertifiedNode { cluster: ClusterId(5), node: NodeId(7) };
        assert_eq!(CertifiedNode::of_certificate(&issued.certificate), Ok(named));
        assert_ne!(issued.certificate, opened.sign(&request, NodeId(7), NOW).unwrap().certificate, "serials");
    }

    #[test]
    fn a_certificate_of_another_key_is_refused() {
        let [one, two] = [1, 2].map(|_| ClusterAuthority::create(ClusterId(5), NOW).unwrap());
        let mixed = ClusterAuthority::open(ClusterId(5), one.certificate().clone(), &two.key());
        assert_eq!(mixed.unwrap_err(), AuthorityError::Pair);
        let no_key = ClusterAuthority::open(ClusterId(5), one.certificate().clone(), b"no key");
        assert!(matches!(no_key, Err(AuthorityError::Key(_))));
    }
}
