//! Canonical request of SigV4, and the verification of a signature over it.
//!
//! The path is signed as it was sent. An intermediary may have re-encoded it, so a signature that does not
//! match is checked again over the path decoded and encoded in SigV4's form, which names the same key. Valid
//! signatures do not pay for the second check.

use super::scope::CredentialScope;
use super::signing_key::SigningKey;
use super::time::AmzDate;
use super::{AuthRequest, mismatch, percent};
use crate::key::SigningAccessKey;
use http::{HeaderMap, HeaderName};
use mlgw_common::hex;
use mlgw_common::limits::REQUEST_HEADERS_MAX;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::query::Query;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::sync::Arc;

/// Components of a signature, as the client sent them.
pub(super) struct SignatureClaim<'a> {
    pub(super) scope: CredentialScope<'a>,
    pub(super) date: AmzDate,
    /// Names of the signed headers, lower-case, separated by `;`.
    pub(super) signed_headers: &'a str,
    /// Hash of the payload, or the constant in its place.
    pub(super) payload: &'a str,
    pub(super) signature: &'a str,
}

/// Verifies the claim's signature and returns the signing key, for chunk signatures.
pub(super) fn verify(
    request: &AuthRequest<'_>,
    claim: &SignatureClaim<'_>,
    key: &Arc<SigningAccessKey>,
) -> Result<Arc<SigningKey>, S3Error> {
    check_headers_signed(request, claim.signed_headers)?;
    let kept = request.rules.keys.get(&claim.scope, key);
    let new = kept.is_none();
    let signing =
        kept.unwrap_or_else(|| Arc::new(SigningKey::derive(key.secret.expose().as_bytes(), &claim.scope)));
    let mut canonical = Vec::with_capacity(1024);
    let path = request.head.uri.path();
    write(request, claim, path, &mut canonical);
    if !claim.is_signed_by(&signing, &canonical) {
        let other = percent::path(path);
        let mut again = Vec::new();
        write(request, claim, &other, &mut again);
        if other == path || !claim.is_signed_by(&signing, &again) {
            return Err(claim.mismatch(&canonical));
        }
    }
    if new {
        request.rules.keys.insert(&claim.scope, key, &signing);
    }
    Ok(signing)
}

impl SignatureClaim<'_> {
    /// Returns the parts of the string to sign, except the hash at its end.
    fn preamble(&self) -> [&[u8]; 5] {
        ["AWS4-HMAC-SHA256\n", self.date.as_str(), "\n", self.scope.text, "\n"].map(str::as_bytes)
    }

    fn is_signed_by(&self, signing: &SigningKey, canonical: &[u8]) -> bool {
        let hash = hex::encode(&Sha256::digest(canonical).into());
        let [a, b, c, d, e] = self.preamble();
        let right = hex::encode(&signing.sign(&[a, b, c, d, e, &hash]));
        hex::is_same(&right, self.signature.as_bytes())
    }

    fn mismatch(&self, canonical: &[u8]) -> S3Error {
        let hash = hex::encode(&Sha256::digest(canonical).into());
        let to_sign = [&self.preamble().concat()[..], &hash].concat();
        mismatch(self.scope.access_key, self.signature, &to_sign)
            .field("CanonicalRequest", String::from_utf8_lossy(canonical))
    }
}

/// Checks that the host and all headers with an effect in S3 are signed. Otherwise a copied signature could
/// be reused for a different request.
fn check_headers_signed(request: &AuthRequest<'_>, signed_headers: &str) -> Result<(), S3Error> {
    let mut seen: Vec<&str> = signed_headers.split(';').collect();
    // Clients sort them. A search among a thousand unsorted names would be quadratic.
    if !seen.is_sorted() {
        seen.sort_unstable();
    }
    // A repeated header name would be hashed repeatedly.
    if seen.len() > REQUEST_HEADERS_MAX || seen.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(S3Error::new(Code::SignatureDoesNotMatch));
    }
    let amz = request.head.headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with("x-amz-"));
    let missing: Vec<&str> =
        std::iter::once("host").chain(amz).filter(|name| seen.binary_search(name).is_err()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(S3Error::new(Code::AccessDenied)
        .message("There were headers present in the request which were not signed")
        .field("HeadersNotSigned", missing.join(", ")))
}

fn write(request: &AuthRequest<'_>, claim: &SignatureClaim<'_>, path: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(request.head.method.as_str().as_bytes());
    out.push(b'\n');
    out.extend_from_slice(path.as_bytes());
    out.push(b'\n');
    write_query(request.query, out);
    out.push(b'\n');
    for name in claim.signed_headers.split(';') {
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        if name == "host" {
            write_value(request.host(), out);
        } else {
            write_values(&request.head.headers, name, out);
        }
        out.push(b'\n');
    }
    out.push(b'\n');
    out.extend_from_slice(claim.signed_headers.as_bytes());
    out.push(b'\n');
    out.extend_from_slice(claim.payload.as_bytes());
}

/// Appends the query, re-encoded and sorted, without the signature itself.
fn write_query(query: &Query<'_>, out: &mut Vec<u8>) {
    let parameters = query.parameters();
    let signed = parameters.iter().filter(|parameter| parameter.name != "X-Amz-Signature");
    let mut pairs: Vec<(Cow<'_, str>, Cow<'_, str>)> = Vec::with_capacity(parameters.len());
    pairs.extend(signed.map(|p| (percent::component(p.sent_name), percent::component(p.value))));
    if !pairs.is_sorted() {
        pairs.sort_unstable();
    }
    for (i, (name, value)) in pairs.iter().enumerate() {
        if i > 0 {
            out.push(b'&');
        }
        out.extend_from_slice(name.as_bytes());
        out.push(b'=');
        out.extend_from_slice(value.as_bytes());
    }
}

fn write_values(headers: &HeaderMap, name: &str, out: &mut Vec<u8>) {
    for (i, value) in headers.get_all(name).iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_value(value.as_bytes(), out);
    }
}

/// Appends a header's value, trimmed and with each run of spaces replaced by one space. S3 collapses spaces
/// only, not other white space.
fn write_value(value: &[u8], out: &mut Vec<u8>) {
    let mut space = false;
    for &byte in value.trim_ascii() {
        if byte != b' ' || !space {
            out.push(byte);
        }
        space = byte == b' ';
    }
}

#[cfg(test)]
mod tests {
    use super::{Query, write_query, write_value};

    fn query(raw: &str) -> String {
        let mut out = Vec::new();
        write_query(&Query::parse(raw), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_query_is_sorted_by_name_and_then_by_value() {
        assert_eq!(query("b=2&a=2&a=1&a-b=3"), "a=1&a=2&a-b=3&b=2");
        assert_eq!(
            query("prefix=somePrefix&marker=someMarker&max-keys=20"),
            "marker=someMarker&max-keys=20&prefix=somePrefix"
        );
    }

    #[test]
    fn a_name_alone_has_an_empty_value() {
        assert_eq!(query("uploads"), "uploads=");
        assert_eq!(query("uploads="), "uploads=");
        assert_eq!(query("&acl&"), "acl=");
        assert_eq!(query(""), "");
    }

    #[test]
    fn the_signature_itself_is_not_signed() {
        assert_eq!(query("X-Amz-Date=d&X-Amz-Signature=00"), "X-Amz-Date=d");
    }

    #[test]
    fn runs_of_spaces_in_a_header_are_collapsed() {
        for (sent, signed) in [("a", "a"), (" a  b\tc  ", "a b\tc"), ("\"a   b\"", "\"a b\""), ("   ", "")] {
            let mut out = Vec::new();
            write_value(sent.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), signed);
        }
    }
}
