//! Key and certificate of this node, and the authorities that it trusts.

use crate::authority::is_pair;
use crate::certificate::{BadCertificate, CertifiedNode};
use crate::request::NodeKey;
use crate::validity::Validity;
use mlgw_common::limits::TRUSTED_AUTHORITIES_MAX;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;

/// Credentials of this node. Clones share the key.
#[derive(Clone, Debug)]
pub struct NodeCredentials {
    pub(crate) node: CertifiedNode,
    pub(crate) key: Arc<NodeKey>,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) validity: Validity,
    pub(crate) authorities: Vec<CertificateDer<'static>>,
}

/// Error of credentials that do not match each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// The certificate does not identify a node.
    #[error("the certificate of this node: {0}")]
    Certificate(#[from] BadCertificate),
    /// The certificate is of another key.
    #[error("the certificate of this node does not match its key")]
    Pair,
    /// There is no authority, or too many.
    #[error("there are {0} certificates of authorities, instead of 1 to {TRUSTED_AUTHORITIES_MAX}")]
    Authorities(usize),
}

impl NodeCredentials {
    /// Combines a key, its certificate and the authorities, the one that signed the certificate first.
    ///
    /// # Errors
    /// See [`CredentialsError`].
    pub fn new(
        key: Arc<NodeKey>,
        certificate: CertificateDer<'static>,
        validity: Validity,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Self, CredentialsError> {
        if authorities.is_empty() || authorities.len() > TRUSTED_AUTHORITIES_MAX {
            return Err(CredentialsError::Authorities(authorities.len()));
        }
        let node = CertifiedNode::of_certificate(&certificate)?;
        if !is_pair(&certificate, &key) {
            return Err(CredentialsError::Pair);
        }
        Ok(Self { node, key, certificate, validity, authorities })
    }

    /// Node and cluster in the certificate.
    #[must_use]
    pub const fn node(&self) -> CertifiedNode {
        self.node
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &Arc<NodeKey> {
        &self.key
    }

    /// The certificate.
    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Validity of the certificate.
    #[must_use]
    pub const fn validity(&self) -> Validity {
        self.validity
    }

    /// Certificates of the authorities, the one that signed this node's certificate first.
    #[must_use]
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }
}
