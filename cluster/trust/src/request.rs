//! Key of a node, and the request for a certificate: its public key, with a proof that the sender has the
//! private key. The private key never leaves the node.
//!
//! Bytes of a request: version 1, the 65 bytes of the uncompressed point on the curve P-256, and an ECDSA
//! signature (ASN.1) over a fixed text and the point. The encodings of X.509 are not used for it, because its
//! parsers would need a further dependency.

use mlgw_common::hex;
use mlgw_common::limits::CERTIFICATE_REQUEST_BYTES_MAX;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey as _};
use rustls::pki_types::PrivatePkcs8KeyDer;
use sha2::{Digest as _, Sha256};
use std::fmt;
use zeroize::Zeroizing;

/// Version of the encoding of a request.
const VERSION: u8 = 1;

/// Text before the public key in the signed bytes, so that the signature is of no use for anything else.
const SIGNED_TEXT: &[u8] = b"mlgw certificate request 1\0";

/// Bytes of an uncompressed point on the curve P-256.
const POINT_BYTES: usize = 65;

/// Error of a key that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key cannot be used: {0}")]
pub struct NodeKeyError(pub(crate) String);

/// SHA-256 of the public key of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PublicKeyHash(pub [u8; 32]);

impl fmt::Display for PublicKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::text(&self.0))
    }
}

/// Key pair of a node: ECDSA on the curve P-256.
#[derive(Debug)]
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// Generates a key.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn generate() -> Result<Self, NodeKeyError> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
            .map(Self)
            .map_err(|error| NodeKeyError(error.to_string()))
    }

    /// Decodes a key from PKCS #8.
    ///
    /// # Errors
    /// If the bytes are no key of this kind.
    pub fn of_der(der: &[u8]) -> Result<Self, NodeKeyError> {
        let der = PrivatePkcs8KeyDer::from(der);
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256);
        pair.map(Self).map_err(|error| NodeKeyError(error.to_string()))
    }

    /// The private key in PKCS #8.
    #[must_use]
    pub fn der(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(self.0.serialize_der())
    }

    /// Hash of the public key.
    #[must_use]
    pub fn public_hash(&self) -> PublicKeyHash {
        PublicKeyHash(Sha256::digest(self.0.public_key_raw()).into())
    }

    /// Makes a request for a certificate.
    ///
    /// # Errors
    /// If the key cannot sign.
    pub fn request(&self) -> Result<CertificateRequest, NodeKeyError> {
        let point: [u8; POINT_BYTES] = self
            .0
            .public_key_raw()
            .try_into()
            .map_err(|_| NodeKeyError("its public key has another length".to_owned()))?;
        let signature = self.sign(&signed_bytes(&point))?;
        Ok(CertificateRequest { point, signature })
    }

    /// Signs bytes.
    pub(crate) fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>, NodeKeyError> {
        self.0.sign(bytes).map_err(|error| NodeKeyError(error.to_string()))
    }

    pub(crate) const fn pair(&self) -> &KeyPair {
        &self.0
    }
}

/// Request for a certificate whose signature was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRequest {
    point: [u8; POINT_BYTES],
    signature: Vec<u8>,
}

/// Error of bytes that are no request for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCertificateRequest {
    /// They have a length that no request has.
    #[error("a certificate request cannot have {0} bytes")]
    Length(usize),
    /// A later version made it.
    #[error("the certificate request has version {0}, and this node supports {VERSION}: upgrade it")]
    Version(u8),
    /// The signature is not one of the key.
    #[error("the certificate request is not signed by its key")]
    Signature,
}

impl CertificateRequest {
    /// Bytes of the request.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&[VERSION], &self.point[..], &self.signature].concat()
    }

    /// Decodes a request and verifies its signature.
    ///
    /// # Errors
    /// See [`BadCertificateRequest`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadCertificateRequest> {
        let length = BadCertificateRequest::Length(bytes.len());
        if bytes.len() > CERTIFICATE_REQUEST_BYTES_MAX {
            return Err(length);
        }
        let (&version, rest) = bytes.split_first().ok_or(length)?;
        if version != VERSION {
            return Err(BadCertificateRequest::Version(version));
        }
        let (&point, signature) = rest.split_first_chunk::<POINT_BYTES>().ok_or(length)?;
        webpki::ring::ECDSA_P256_SHA256
            .verify_signature(&point, &signed_bytes(&point), signature)
            .map_err(|_| BadCertificateRequest::Signature)?;
        Ok(Self { point, signature: signature.to_vec() })
    }

    /// Hash of the public key.
    #[must_use]
    pub fn public_hash(&self) -> PublicKeyHash {
        PublicKeyHash(Sha256::digest(self.point).into())
    }
}

impl PublicKeyData for CertificateRequest {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn signed_bytes(point: &[u8; POINT_BYTES]) -> Vec<u8> {
    [SIGNED_TEXT, point].concat()
}

#[cfg(test)]
mod tests {
    use super::{BadCertificateRequest, CertificateRequest, NodeKey};
    use mlgw_common::limits::CERTIFICATE_REQUEST_BYTES_MAX;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_read_back_and_has_the_key_of_its_sender() {
        let key = NodeKey::generate().unwrap();
        let request = key.request().unwrap();
        let read = CertificateRequest::decode(&request.encode()).unwrap();
        assert_eq!(read, request);
        assert_eq!(read.public_hash(), key.public_hash());
        let again = NodeKey::of_der(&key.der()).unwrap();
        assert_eq!(again.public_hash(), key.public_hash());
        assert!(NodeKey::of_der(b"no key").is_err());
        assert!(request.encode().len() <= CERTIFICATE_REQUEST_BYTES_MAX);
    }

    #[test]
    fn a_request_for_the_key_of_another_is_refused() {
        let (own, other) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
        let stolen = other.request().unwrap();
        let forged = CertificateRequest { point: stolen.point, signature: own.request().unwrap().signature };
        let refused = CertificateRequest::decode(&forged.encode());
        assert_eq!(refused, Err(BadCertificateRequest::Signature));
    }

    #[test]
    fn other_versions_and_lengths_are_refused() {
        let mut bytes = NodeKey::generate().unwrap().request().unwrap().encode();
        bytes[0] = 2;
        assert_eq!(CertificateRequest::decode(&bytes), Err(BadCertificateRequest::Version(2)));
        assert_eq!(CertificateRequest::decode(&[]), Err(BadCertificateRequest::Length(0)));
        assert_eq!(CertificateRequest::decode(&[1; 65]), Err(BadCertificateRequest::Length(65)));
        let long = CERTIFICATE_REQUEST_BYTES_MAX + 1;
        assert_eq!(CertificateRequest::decode(&vec![1; long]), Err(BadCertificateRequest::Length(long)));
    }

    proptest! {
        #[test]
        fn a_changed_request_is_refused(at in 0_usize..136, change in 1_u8..) {
            let mut bytes = NodeKey::generate().unwrap().request().unwrap().encode();
            let at = at % bytes.len();
            bytes[at] ^= change;
            prop_assert!(CertificateRequest::decode(&bytes).is_err());
        }
    }
}
