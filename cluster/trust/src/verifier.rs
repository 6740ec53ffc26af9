//! Verification of the certificates of peers in TLS.
//!
//! [`NodeVerifier`] accepts nodes of one cluster, signed by one of its authorities. Which node it is, the
//! caller reads from the certificate afterwards. [`JoinVerifier`] is of a node that joins: it knows nothing
//! but the hash of the authority, and accepts any node that this authority signed.

use crate::authority::AuthorityHash;
use crate::certificate::CertifiedNode;
use mlgw_common::ClusterId;
use rustls::SignatureScheme;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible,
};
use std::sync::Arc;
use subtle::ConstantTimeEq as _;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

/// Error of a certificate of a node that cannot be accepted, in the words of an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum RefusedCertificate {
    #[error("the certificate is of cluster {found}, and this node is in {own}")]
    Cluster { own: ClusterId, found: ClusterId },
    #[error("the certificate: {0}")]
    Name(#[from] crate::certificate::BadCertificate),
    #[error("the certificate is not signed by an authority of this cluster")]
    Authority,
    #[error(
        "no certificate of the server has the hash of the join token: use a token of that cluster, and a new \
         one if its authority was replaced since"
    )]
    TokenAuthority,
}

/// Verification of signatures in handshakes, alike in all verifiers: those of TLS 1.3.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, dss, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.algorithms.supported_schemes()
        }
    };
}

/// Verifier of nodes of one cluster.
#[derive(Debug)]
pub(crate) struct NodeVerifier {
    cluster: ClusterId,
    authorities: Vec<TrustAnchor<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl NodeVerifier {
    /// Makes a verifier that trusts `authorities`.
    ///
    /// # Errors
    /// If one of them is no certificate.
    pub(crate) fn new(cluster: ClusterId, authorities: &[CertificateDer<'_>]) -> Result<Self, webpki::Error> {
        let anchor = |authority| Ok(anchor_from_trusted_cert(authority)?.to_owned());
        let authorities = authorities.iter().map(anchor).collect::<Result<_, webpki::Error>>()?;
        Ok(Self { cluster, authorities, algorithms: algorithms() })
    }

    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), Error> {
        verify_chain(certificate, &self.authorities, chain, now, usage, RefusedCertificate::Authority)?;
        let found = CertifiedNode::of_certificate(certificate).map_err(|error| refused(error.into()))?;
        if found.cluster != self.cluster {
            return Err(refused(RefusedCertificate::Cluster { own: self.cluster, found: found.cluster }));
        }
        Ok(())
    }
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end_entity, intermediates, now, KeyUsage::server_auth())?;
        Ok(ServerCertVerified::assertion())
    }

    verify_signatures!();
}

impl ClientCertVerifier for NodeVerifier {
    /// A node without a certificate may connect: it is served nothing but `join`.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(end_entity, intermediates, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    verify_signatures!();
}

/// Verifier of the server that a joining node dials.
#[derive(Debug)]
pub(crate) struct JoinVerifier {
    authority: AuthorityHash,
    algorithms: WebPkiSupportedAlgorithms,
}

impl JoinVerifier {
    pub(crate) fn new(authority: AuthorityHash) -> Self {
        Self { authority, algorithms: algorithms() }
    }
}

impl ServerCertVerifier for JoinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_known = |certificate: &&CertificateDer<'_>| {
            AuthorityHash::of(certificate).0.ct_eq(&self.authority.0).into()
        };
        let authority = intermediates.iter().find(is_known);
        let authority = authority.ok_or_else(|| refused(RefusedCertificate::TokenAuthority))?;
        let anchor = anchor_from_trusted_cert(authority)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let not_signed = RefusedCertificate::TokenAuthority;
        verify_chain(end_entity, &[anchor], &[], now, KeyUsage::server_auth(), not_signed)?;
        CertifiedNode::of_certificate(end_entity).map_err(|error| refused(error.into()))?;
        Ok(ServerCertVerified::assertion())
    }

    verify_signatures!();
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::ring::default_provider().signature_verification_algorithms
}

/// Verifies that one of `anchors` signed the certificate; `not_signed` is the error if none did.
fn verify_chain(
    certificate: &CertificateDer<'_>,
    anchors: &[TrustAnchor<'_>],
    chain: &[CertificateDer<'_>],
    now: UnixTime,
    usage: KeyUsage,
    not_signed: RefusedCertificate,
) -> Result<(), Error> {
    let parsed = EndEntityCert::try_from(certificate)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let supported = algorithms().all;
    parsed.verify_for_usage(supported, anchors, chain, now, usage, None, None).map_err(
        |error| match error {
            webpki::Error::CertExpired { time, not_after } => {
                Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after })
            }
            webpki::Error::CertNotValidYet { time, not_before } => {
                Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before })
            }
            webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => refused(not_signed),
            other => Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(other)))),
        },
    )?;
    Ok(())
}

fn refused(reason: RefusedCertificate) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(reason))))
}
