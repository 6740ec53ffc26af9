//! TLS settings of both sides of a connection: TLS 1.3 only, with the cluster's own authorities, and without
//! the resumption of sessions, so that every connection verifies a certificate.

use crate::authority::AuthorityHash;
use crate::credentials::NodeCredentials;
use crate::verifier::{JoinVerifier, NodeVerifier};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, Error, OtherError, ServerConfig};
use std::sync::Arc;

/// The protocol inside TLS of a connection that many requests share.
const PROTOCOL: &[u8] = b"h2";
/// The protocol inside TLS of a connection that carries one request at a time.
pub const EXCLUSIVE_PROTOCOL: &[u8] = b"mlgw-exclusive/1";
/// The protocol inside TLS of a connection that carries many short requests at a time.
pub const MULTIPLEXED_PROTOCOL: &[u8] = b"mlgw-multiplexed/1";

impl NodeCredentials {
    /// Settings with which this node dials others.
    ///
    /// # Errors
    /// If a certificate or the key cannot be used.
    pub fn client_config(&self) -> Result<ClientConfig, Error> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(&[&TLS13])?;
        let builder = builder.dangerous().with_custom_certificate_verifier(self.verifier()?);
        Ok(finish(builder.with_client_auth_cert(self.chain(), self.private_key())?))
    }

    /// Settings with which this node accepts connections. A client without a certificate is accepted, one
    /// with a certificate of others is not.
    ///
    /// # Errors
    /// If a certificate or the key cannot be used.
    pub fn server_config(&self) -> Result<ServerConfig, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(&[&TLS13])?;
        let builder = builder.with_client_cert_verifier(self.verifier()?);
        let mut config = builder.with_single_cert(self.chain(), self.private_key())?;
        let protocols = [PROTOCOL, EXCLUSIVE_PROTOCOL, MULTIPLEXED_PROTOCOL];
        config.alpn_protocols = protocols.map(<[u8]>::to_vec).to_vec();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// The certificate and its authority, which a joining node compares with its token.
    fn chain(&self) -> Vec<CertificateDer<'static>> {
        std::iter::once(&self.certificate).chain(self.authorities.first()).cloned().collect()
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.der().to_vec()).into()
    }

    fn verifier(&self) -> Result<Arc<NodeVerifier>, Error> {
        let verifier = NodeVerifier::new(self.node.cluster, &self.authorities);
        verifier.map(Arc::new).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))
    }
}

/// Settings with which a node without a certificate dials a member: it knows only the hash of the authority.
///
/// # Errors
/// If TLS 1.3 is not available.
pub fn join_client_config(authority: AuthorityHash) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&TLS13])?;
    let builder =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(JoinVerifier::new(authority)));
    Ok(finish(builder.with_no_client_auth()))
}

/// Text of an error of TLS for an operator: the reason of a verifier of this package, or that of rustls.
#[must_use]
pub fn tls_reason(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(reason))) => reason.to_string(),
        Error::InvalidCertificate(reason) => reason.to_string(),
        Error::AlertReceived(alert) => {
            format!("the other side refuses this one ({alert:?}); the reason is in its log")
        }
        other => other.to_string(),
    }
}

fn finish(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    config
}

#[cfg(test)]
mod tests;
