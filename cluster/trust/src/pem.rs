//! Certificates as PEM text in lines of 64 characters, as OpenSSL writes them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----\n";
const END: &str = "-----END CERTIFICATE-----\n";

/// Encodes a certificate.
pub(crate) fn encode(certificate: &CertificateDer<'_>) -> String {
    let base64 = BASE64_STANDARD.encode(certificate);
    let mut text = String::with_capacity(base64.len() / 64 * 65 + 128);
    text.push_str(BEGIN);
    for (at, character) in base64.char_indices() {
        if at > 0 && at % 64 == 0 {
            text.push('\n');
        }
        text.push(character);
    }
    text.push('\n');
    text.push_str(END);
    text
}

/// Decodes exactly one certificate; `None` for any other text.
pub(crate) fn decode(text: &str) -> Option<CertificateDer<'static>> {
    let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes());
    let certificate = certificates.next()?.ok()?;
    certificates.next().is_none().then_some(certificate)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};
    use rustls::pki_types::CertificateDer;

    #[test]
    fn a_certificate_is_read_back_and_equals_other_encoders() {
        let made = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap().cert;
        assert_eq!(encode(made.der()), made.pem().replace("\r\n", "\n"));
        for length in [0, 1, 47, 48, 49, 200] {
            let certificate = CertificateDer::from(vec![7; length]);
            assert_eq!(decode(&encode(&certificate)), Some(certificate));
        }
        let one = encode(made.der());
        for text in ["", "garbage", &one[..one.len() / 2], &one.repeat(2)] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
