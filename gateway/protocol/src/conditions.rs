//! `If-*` headers. Conditions of reads are evaluated here; those of writes are passed to the catalogue,
//! which evaluates them at the moment of the write.
//!
//! The conditions of a write are also checked before its body is read, so that a client need not send
//! gigabytes to be refused. Only the catalogue's result is final.

use super::request::AuthenticatedRequest;
use http::{HeaderMap, HeaderName, header};
use mlgw_common::Timestamp;
use mlgw_formats::command::{Conditions, EtagCondition};
use mlgw_formats::schema::ObjectVersion;
use mlgw_wire::error::{Code, S3Error};

/// Header names of the conditions of a read, or of those on the source of a copy.
pub struct ReadConditions {
    if_match: HeaderName,
    if_none_match: HeaderName,
    if_modified_since: HeaderName,
    if_unmodified_since: HeaderName,
}

/// The conditions of GET and HEAD.
pub static READ_CONDITIONS: ReadConditions = ReadConditions {
    if_match: header::IF_MATCH,
    if_none_match: header::IF_NONE_MATCH,
    if_modified_since: header::IF_MODIFIED_SINCE,
    if_unmodified_since: header::IF_UNMODIFIED_SINCE,
};

/// The conditions on the source of a copy.
pub static COPY_SOURCE_CONDITIONS: ReadConditions = ReadConditions {
    if_match: HeaderName::from_static("x-amz-copy-source-if-match"),
    if_none_match: HeaderName::from_static("x-amz-copy-source-if-none-match"),
    if_modified_since: HeaderName::from_static("x-amz-copy-source-if-modified-since"),
    if_unmodified_since: HeaderName::from_static("x-amz-copy-source-if-unmodified-since"),
};

/// Result of the conditions of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadConditionResult {
    /// The object is to be sent.
    Send,
    /// The client's copy is up to date.
    NotModified,
    /// A condition does not hold; the name of its header.
    Failed(&'static str),
}

impl ReadConditions {
    /// Evaluates the conditions in the order of RFC 9110 section 13.2.2.
    #[must_use]
    pub fn check(&self, headers: &HeaderMap, etag: &str, modified: Timestamp) -> ReadConditionResult {
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        // HTTP dates have a resolution of one second.
        let modified_secs = modified.as_secs();
        match (text(&self.if_match), text(&self.if_unmodified_since).and_then(parse_date)) {
            (Some(wanted), _) if !has_etag(wanted, etag) => return ReadConditionResult::Failed("If-Match"),
            (None, Some(since)) if modified_secs > since => {
                return ReadConditionResult::Failed("If-Unmodified-Since");
            }
            _ => {}
        }
        match (text(&self.if_none_match), text(&self.if_modified_since).and_then(parse_date)) {
            (Some(unwanted), _) if has_etag(unwanted, etag) => ReadConditionResult::NotModified,
            (None, Some(since)) if modified_secs <= since => ReadConditionResult::NotModified,
            _ => ReadConditionResult::Send,
        }
    }
}

/// True if a header's list of ETags contains `etag`, quoted or not, weak or strong, or is `*`.
#[must_use]
pub fn has_etag(header: &str, etag: &str) -> bool {
    header.split(',').map(unquote).any(|one| one == "*" || one == etag)
}

/// Returns an ETag without white space, weak prefix and quotes.
#[must_use]
pub fn unquote(etag: &str) -> &str {
    let etag = etag.trim();
    etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')
}

/// Parses an HTTP date to seconds since the Unix epoch. A malformed date counts as absent.
fn parse_date(text: &str) -> Option<i64> {
    let time = httpdate::parse_http_date(text).ok()?;
    let secs = time.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
    i64::try_from(secs).ok()
}

/// Parses the conditions of a write. AWS accepts only `*` in `If-None-Match`; here other ETags are compared
/// as well, which refuses exactly what the client asks to be refused.
///
/// # Errors
/// `InvalidArgument` if a header is not UTF-8.
pub fn write_conditions(request: &AuthenticatedRequest<'_>) -> Result<Conditions, S3Error> {
    let if_match = request.header(header::IF_MATCH.as_str())?.map(parse_etags);
    let if_none_match = request.header(header::IF_NONE_MATCH.as_str())?.map(parse_etags);
    Ok(Conditions { if_match, if_none_match, ..Conditions::default() })
}

/// Parses a header's list of ETags.
#[must_use]
pub fn parse_etags(header: &str) -> EtagCondition {
    match unquote(header) {
        "*" => EtagCondition::any(),
        _ => EtagCondition::one_of(header.split(',').map(|etag| unquote(etag).to_owned()).collect()),
    }
}

/// Checks the conditions of a write against the current version.
///
/// # Errors
/// `PreconditionFailed`, or `NoSuchKey` for `If-Match` on a missing key.
pub fn check_write(conditions: &Conditions, current: Option<&ObjectVersion>) -> Result<(), S3Error> {
    let Some(object) = current else {
        return match conditions.if_match {
            Some(_) => Err(S3Error::new(Code::NoSuchKey)),
            None => Ok(()),
        };
    };
    if conditions.if_match.as_ref().is_some_and(|wanted| !wanted.contains(&object.etag)) {
        return Err(S3Error::precondition_failed("If-Match"));
    }
    if conditions.if_none_match.as_ref().is_some_and(|unwanted| unwanted.contains(&object.etag)) {
        return Err(S3Error::precondition_failed("If-None-Match"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{READ_CONDITIONS, ReadConditionResult};
    use http::HeaderMap;
    use mlgw_common::Timestamp;

    const MODIFIED: &str = "Tue, 14 Nov 2023 22:13:20 GMT";
    const BEFORE: &str = "Tue, 14 Nov 2023 22:13:19 GMT";

    fn check(headers: &[(&'static str, &str)]) -> ReadConditionResult {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        READ_CONDITIONS.check(&map, "abc", Timestamp(1_700_000_000_999))
    }

    #[test]
    fn etags_match_quoted_or_not_and_in_lists() {
        for same in ["abc", "\"abc\"", "W/\"abc\"", "\"x\", \"abc\"", "*"] {
            assert_eq!(check(&[("if-match", same)]), ReadConditionResult::Send, "{same}");
            assert_eq!(check(&[("if-none-match", same)]), ReadConditionResult::NotModified, "{same}");
        }
        assert_eq!(check(&[("if-match", "\"x\"")]), ReadConditionResult::Failed("If-Match"));
        assert_eq!(check(&[("if-none-match", "\"x\"")]), ReadConditionResult::Send);
    }

    #[test]
    fn dates_have_whole_seconds_and_yield_to_etags() {
        assert_eq!(check(&[("if-modified-since", MODIFIED)]), ReadConditionResult::NotModified);
        assert_eq!(check(&[("if-modified-since", BEFORE)]), ReadConditionResult::Send);
        assert_eq!(check(&[("if-unmodified-since", MODIFIED)]), ReadConditionResult::Send);
        assert_eq!(
            check(&[("if-unmodified-since", BEFORE)]),
            ReadConditionResult::Failed("If-Unmodified-Since")
        );
        assert_eq!(check(&[("if-match", "abc"), ("if-unmodified-since", BEFORE)]), ReadConditionResult::Send);
        assert_eq!(
            check(&[("if-none-match", "x"), ("if-modified-since", MODIFIED)]),
            ReadConditionResult::Send
        );
        assert_eq!(check(&[("if-modified-since", "yesterday")]), ReadConditionResult::Send);
    }
}
