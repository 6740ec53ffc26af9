//! Classifies an origin's ETag: the MD5 of the bytes, an opaque name of a version, or a weak one. Pure.
//!
//! An ETag is an MD5 where it is 32 hexadecimal digits, unless the answer names an encryption whose ETags are
//! none (`aws:kms`, `aws:kms:dsse`, a customer key) or the upstream is configured so. Always: bytes are
//! compared with an ETag exactly if it is an MD5.

use super::OriginError;
use crate::upstream::EtagTrust;
use http::HeaderMap;
use mlgw_formats::schema::{EtagKind, ObjectVersion};

/// What a weak ETag begins with.
const WEAK: &str = "W/\"";

/// An MD5.
pub(crate) type Md5Sum = [u8; 16];

/// An ETag as an answer states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Etag {
    /// Its text without quotes and without the sign of a weak one.
    pub text: String,
    /// Its worth.
    pub kind: EtagKind,
}

impl Etag {
    /// Reads the ETag of an answer; nothing where there is none, or an empty one.
    pub(crate) fn of(headers: &HeaderMap, trust: EtagTrust) -> Option<Self> {
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

    /// The MD5 that it is, if it is one.
    pub(crate) fn md5(&self) -> Option<Md5Sum> {
        (self.kind == EtagKind::Plain).then(|| md5_digits(&self.text)).flatten()
    }
}

/// The MD5 of an origin's object, where its ETag is one.
#[must_use]
pub fn md5_of(object: &ObjectVersion) -> Option<Md5Sum> {
    (object.etag_kind() == EtagKind::Plain).then(|| md5_digits(&object.etag)).flatten()
}

/// The validator of an origin's object in a condition that compares weakly, such as `If-None-Match`.
pub fn weak_validator(object: &ObjectVersion) -> String {
    match object.etag_kind() {
        EtagKind::Weak => format!("W/\"{}\"", object.etag),
        EtagKind::Plain | EtagKind::Opaque => object.etag.clone(),
    }
}

/// The ETag for `If-Match`, which a weak one never matches.
pub fn strong_validator(object: &ObjectVersion) -> Option<String> {
    (object.etag_kind() != EtagKind::Weak).then(|| object.etag.clone())
}

/// An ETag without its quotes and without the sign of a weak one.
pub(super) fn unquoted(etag: &str) -> &str {
    let etag = etag.trim();
    let strong = if etag.starts_with(WEAK) { &etag[WEAK.len() - 1..] } else { etag };
    strong.trim_matches('"')
}

/// The MD5 in 32 hexadecimal digits, of either case.
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

/// Judges the answer with which an origin acknowledges bytes that were sent to it, whose MD5 is `sent` where
/// that is known. Says whether the ETag leaves the write unproven.
///
/// # Errors
/// [`OriginError::Unconfirmed`] where there is no ETag, or the MD5 of other bytes.
pub(super) fn judge_written(
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
            "it answered with the ETag {:?}, which is not the MD5 of what was sent; {}",
            etag.text,
            hint(upstream)
        ))),
        _ => Ok(true),
    }
}

/// Advice for an origin whose ETags look like MD5s but are not.
#[must_use]
pub fn hint(upstream: &str) -> String {
    format!("if its ETags are no MD5s, set upstream.{upstream}.etag = \"opaque\"")
}

#[cfg(test)]
mod tests {
    use super::{Etag, judge_written, md5_digits, strong_validator, weak_validator};
    use crate::origin::OriginError;
    use crate::upstream::EtagTrust;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use mlgw_formats::schema::{EtagKind, ObjectVersion};

    const HELLO: &str = "5d41402abc4b2a76b9719d911017c592";

    fn etag(lines: &[(&'static str, &str)], trust: EtagTrust) -> Option<Etag> {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        Etag::of(&lines.iter().map(line).collect::<HeaderMap>(), trust)
    }

    #[test]
    fn an_etag_is_an_md5_unless_something_speaks_against_it() {
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
    fn only_the_md5_of_what_was_sent_proves_a_write() {
        let judged = |text: &str, sent: Option<&str>| {
            let etag = etag(&[("etag", text)], EtagTrust::Auto);
            judge_written(etag.as_ref(), sent.and_then(md5_digits), "lake")
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
    fn what_is_not_32_digits_is_no_md5() {
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
