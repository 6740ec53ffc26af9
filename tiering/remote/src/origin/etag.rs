//! Classification of an origin's ETags: an MD5 of the bytes, an opaque version name, or a weak ETag. Pure.
//!
//! An ETag is an MD5 if it consists of 32 hexadecimal digits. Exceptions: the response names an encryption
//! whose ETags are not MD5s (`aws:kms`, `aws:kms:dsse`, a customer key), or the upstream is configured as
//! opaque. Invariant: bytes are compared with an ETag exactly if the ETag is an MD5.

use super::OriginError;
use crate::upstream::EtagTrust;
use http::HeaderMap;
use mlgw_formats::schema::{EtagKind, ObjectVersion};

/// Prefix of a weak ETag.
const WEAK: &str = "W/\"";

/// MD5 digest.
pub(crate) type Md5Sum = [u8; 16];

/// ETag of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etag {
    /// Text without quotes and without the `W/` prefix.
    pub text: String,
    /// Strength of the ETag as proof.
    pub kind: EtagKind,
}

impl Etag {
    /// Reads the ETag of a response. Returns `None` if it is missing or empty.
    pub(crate) fn from_headers(headers: &HeaderMap, trust: EtagTrust) -> Option<Self> {
        let text = headers.get(http::header::ETAG)?.to_str().ok()?.trim();
        let is_weak = text.starts_with(WEAK);
        let text = unquoted(text);
        let kind = match () {
            () if is_weak => EtagKind::Weak,
            () if trust == EtagTrust::Opaque || names_encryption(headers) => EtagKind::Opaque,
            () => EtagKind::Plain,
        };
        (!text.is_empty()).then(|| Self { text: text.to_owned(), kind })
    }

    /// Returns the MD5 if the ETag is one.
    pub(crate) fn md5(&self) -> Option<Md5Sum> {
        (self.kind == EtagKind::Plain).then(|| md5_digits(&self.text)).flatten()
    }
}

/// Returns the MD5 of an origin's object, if its ETag is one.
#[must_use]
pub fn md5_of(object: &ObjectVersion) -> Option<Md5Sum> {
    (object.etag_kind() == EtagKind::Plain).then(|| md5_digits(&object.etag)).flatten()
}

/// Returns the validator of an origin's object for a condition that compares weakly, such as `If-None-Match`.
pub fn weak_validator(object: &ObjectVersion) -> String {
    match object.etag_kind() {
        EtagKind::Weak => format!("W/\"{}\"", object.etag),
        EtagKind::Plain | EtagKind::Opaque => object.etag.clone(),
    }
}

/// Returns the ETag for `If-Match`; `None` for a weak ETag, which never matches.
pub fn strong_validator(object: &ObjectVersion) -> Option<String> {
    (object.etag_kind() != EtagKind::Weak).then(|| object.etag.clone())
}

/// Returns an ETag without its quotes and without the `W/` prefix.
pub(super) fn unquoted(etag: &str) -> &str {
    let etag = etag.trim();
    let strong = if etag.starts_with(WEAK) { &etag[WEAK.len() - 1..] } else { etag };
    strong.trim_matches('"')
}

/// Parses an MD5 of 32 hexadecimal digits in either case.
pub(crate) fn md5_digits(text: &str) -> Option<Md5Sum> {
    let digits = text.as_bytes();
    let mut sum = [0; 16];
    if digits.len() != 2 * sum.len() {
        return None;
    }
    for (byte, pair) in sum.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        *byte = digit(0)? << 4 | digit(1)?;
    }
    Some(sum)
}

fn names_encryption(headers: &HeaderMap) -> bool {
    let kms = headers.get("x-amz-server-side-encryption");
    kms.is_some_and(|kind| kind.as_bytes().starts_with(b"aws:kms"))
        || headers.contains_key("x-amz-server-side-encryption-customer-algorithm")
}

/// Checks the response that acknowledges bytes sent to an origin. `sent` is the MD5 of the bytes if it is
/// known. Returns true if the ETag leaves the write unproven.
///
/// # Errors
/// [`OriginError::Unconfirmed`] if there is no ETag, or if it is the MD5 of other bytes.
pub(super) fn check_write_etag(
    etag: Option<&Etag>,
    sent: Option<Md5Sum>,
    upstream: &str,
) -> Result<bool, OriginError> {
    let Some(etag) = etag else {
        return Err(OriginError::Unconfirmed("it answered 200 without an ETag".to_owned()));
    };
    match (etag.md5(), sent) {
        (Some(stored), Some(sent)) if stored == sent => Ok(false),
        (Some(_), Some(_)) => Err(OriginError::Unconfirmed(format!(
            "it answered with the ETag {:?}, which is not the MD5 of the sent data; {}",
            etag.text,
            opaque_etag_hint(upstream)
        ))),
        _ => Ok(true),
    }
}

/// Advice for an origin whose ETags look like MD5s but are not.
#[must_use]
pub fn opaque_etag_hint(upstream: &str) -> String {
    format!("if its ETags are not MD5s, set upstream.{upstream}.etag = \"opaque\"")
}

#[cfg(test)]
mod tests {
    use super::{Etag, check_write_etag, md5_digits, strong_validator, weak_validator};
    use crate::origin::OriginError;
    use crate::upstream::EtagTrust;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use mlgw_formats::schema::{EtagKind, ObjectVersion};

    const HELLO: &str = "5d41402abc4b2a76b9719d911017c592";

    fn etag(lines: &[(&'static str, &str)], trust: EtagTrust) -> Option<Etag> {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        Etag::from_headers(&lines.iter().map(line).collect::<HeaderMap>(), trust)
    }

    #[test]
    fn an_etag_is_an_md5_unless_encryption_or_configuration_excludes_it() {
        let sse = "x-amz-server-side-encryption";
        let customer = "x-amz-server-side-encryption-customer-algorithm";
        let quoted = format!("\"{HELLO}\"");
        let upper = format!("\"{}\"", HELLO.to_uppercase());
        for (lines, trust, is_md5, kind) in [
            (vec![("etag", &*quoted)], EtagTrust::Auto, true, EtagKind::Plain),
            (vec![("etag", HELLO)], EtagTrust::Auto, true, EtagKind::Plain),
            (vec![("etag", &*upper)], EtagTrust::Auto, true, EtagKind::Plain),
            (vec![("etag", &*quoted), (sse, "AES256")], EtagTrust::Auto, true, EtagKind::Plain),
            (vec![("etag", &*quoted), (sse, "aws:kms")], EtagTrust::Auto, false, EtagKind::Opaque),
            (vec![("etag", &*quoted), (sse, "aws:kms:dsse")], EtagTrust::Auto, false, EtagKind::Opaque),
            (vec![("etag", &*quoted), (customer, "AES256")], EtagTrust::Auto, false, EtagKind::Opaque),
            (vec![("etag", &*quoted)], EtagTrust::Opaque, false, EtagKind::Opaque),
            (vec![("etag", "\"abc-2\"")], EtagTrust::Auto, false, EtagKind::Plain),
            (vec![("etag", "W/\"v1\"")], EtagTrust::Auto, false, EtagKind::Weak),
        ] {
            let found = etag(&lines, trust).unwrap();
            assert_eq!((found.md5().is_some(), found.kind), (is_md5, kind), "{lines:?} {trust:?}");
            assert!(!found.text.contains(['"', '/']), "{found:?}");
        }
        for lines in [&[][..], &[("etag", "")], &[("etag", "\"\"")], &[("etag", "W/\"\"")]] {
            assert_eq!(etag(lines, EtagTrust::Auto), None, "{lines:?}");
        }
    }

    #[test]
    fn only_the_md5_of_the_sent_bytes_proves_a_write() {
        let judged = |text: &str, sent: Option<&str>| {
            let etag = etag(&[("etag", text)], EtagTrust::Auto);
            check_write_etag(etag.as_ref(), sent.and_then(md5_digits), "lake")
        };
        assert_eq!(judged(HELLO, Some(HELLO)), Ok(false));
        assert_eq!(judged("v1", Some(HELLO)), Ok(true));
        assert_eq!(judged(HELLO, None), Ok(true));
        assert!(matches!(judged("", Some(HELLO)), Err(OriginError::Unconfirmed(_))));
        let Err(OriginError::Unconfirmed(why)) = judged(HELLO, Some(&HELLO.replace('5', "6"))) else {
            panic!("confirmed")
        };
        assert!(why.contains("upstream.lake.etag = \"opaque\""), "{why}");
    }

    #[test]
    fn text_that_is_not_32_digits_is_not_an_md5() {
        for text in ["", "5d41402abc4b2a76b9719d911017c59", "5d41402abc4b2a76b9719d911017c59g", "é1"] {
            assert_eq!(md5_digits(text), None, "{text}");
        }
    }

    #[test]
    fn a_weak_etag_is_compared_weakly_only() {
        let weak = ObjectVersion { etag: "v".into(), etag_kind: 2, ..ObjectVersion::default() };
        assert_eq!((weak_validator(&weak), strong_validator(&weak)), ("W/\"v\"".to_owned(), None));
        let strong = ObjectVersion { etag_kind: 0, ..weak };
        assert_eq!((weak_validator(&strong), strong_validator(&strong)), ("v".to_owned(), Some("v".into())));
    }
}
