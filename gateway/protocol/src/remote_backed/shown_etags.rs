//! Translation between the ETags that clients are shown of marked objects and the origin's own ETags.
//!
//! An object that was written back, or moved here from another upstream, is shown with the ETag that its
//! writer or first readers received. The origin may have another one. Invariants: a condition that names
//! the shown ETag reaches the origin with the origin's ETag. A copy that keeps a description does not keep
//! the mark, which belongs to the source.

use super::RemoteBackedBucket;
use super::passed_headers::pass_headers;
use crate::conditions::{has_etag, unquote};
use crate::object_headers::WEBSITE_REDIRECT;
use crate::request::AuthenticatedRequest;
use http::{HeaderMap, HeaderName};
use mlgw_cache::writeback::record::{WriteMark, unmarked};
use mlgw_common::ObjectKey;
use mlgw_formats::schema::ObjectVersion;
use mlgw_wire::origin_headers::describe;
use mlgw_wire::values::header_value;
use std::borrow::Cow;

/// Header of the condition that the source of a copy is of this version.
pub(super) const IF_MATCH: &str = "x-amz-copy-source-if-match";

/// Passes conditional headers of a key on, with the origin's ETags.
pub(super) async fn pass_conditions(
    request: &AuthenticatedRequest<'_>,
    names: &[&'static str],
    remote_backed: &RemoteBackedBucket,
    key: &ObjectKey,
    to: &mut HeaderMap,
) {
    let mut headers = HeaderMap::new();
    pass_headers(request, names, &mut headers);
    for (name, value) in &headers {
        let text = value.to_str().unwrap_or_default();
        let value = match has_etags(name, text) {
            true => header_value(&origin_etags(text, remote_backed, key).await),
            false => value.clone(),
        };
        to.append(name.clone(), value);
    }
}

fn has_etags(name: &HeaderName, value: &str) -> bool {
    name.as_str().contains("match") && !name.as_str().contains("match-") && value.trim() != "*"
}

/// Translates a list of ETags to the origin's.
pub(super) async fn origin_etags<'t>(
    text: &'t str,
    remote_backed: &RemoteBackedBucket,
    key: &ObjectKey,
) -> Cow<'t, str> {
    // If the metadata cannot be read now, the ETags are assumed to be the origin's.
    let Ok(opened) = remote_backed.cached.head(key).await else { return Cow::Borrowed(text) };
    translate_etags(text, &opened.object)
}

fn translate_etags<'t>(text: &'t str, object: &ObjectVersion) -> Cow<'t, str> {
    let shown = unmarked(object).map(|shown| shown.etag).filter(|shown| *shown != object.etag);
    let Some(shown) = shown else { return Cow::Borrowed(text) };
    let one = |etag: &str| match unquote(etag) == shown {
        true => format!("\"{}\"", object.etag),
        false => etag.trim().to_owned(),
    };
    Cow::Owned(text.split(',').map(one).collect::<Vec<_>>().join(", "))
}

/// Sets headers so that a copy at the origin keeps the description of `object` without the mark, and copies
/// this version only.
pub(super) fn keep_source_description(
    object: &ObjectVersion,
    to: &RemoteBackedBucket,
    headers: &mut HeaderMap,
) {
    let mark = to.queue.as_ref().map(|queue| WriteMark::of_write_through(&to.bucket, queue.timelines()));
    write_kept_description(object, mark, headers);
}

fn write_kept_description(object: &ObjectVersion, mark: Option<WriteMark>, headers: &mut HeaderMap) {
    let Some(mut shown) = unmarked(object) else { return };
    // The origin would not copy it, and the request may set another.
    shown.headers.retain(|pair| pair.name != WEBSITE_REDIRECT);
    describe(&ObjectVersion { tags: Vec::new(), ..shown }, headers);
    if let Some(mark) = mark {
        mark.put(headers);
    }
    headers.insert("x-amz-metadata-directive", header_value("REPLACE"));
    // The client's condition is narrowed to this version. If it excludes this version, it is left as it is,
    // and the origin finds that it fails.
    let condition = headers.get(IF_MATCH).and_then(|condition| condition.to_str().ok());
    if condition.is_none_or(|condition| has_etag(condition, &object.etag)) {
        headers.insert(IF_MATCH, header_value(&format!("\"{}\"", object.etag)));
    }
}

#[cfg(test)]
mod tests {
    use super::{IF_MATCH, has_etags, header_value, translate_etags, write_kept_description};
    use http::{HeaderMap, HeaderName};
    use mlgw_cache::writeback::record::{Timelines, WRITE_MARK_NAME, WriteMark};
    use mlgw_common::BodyId;
    use mlgw_formats::schema::{Bucket, ObjectVersion, Pair};

    #[test]
    fn a_shown_etag_is_translated_to_the_origins() {
        let mark = WriteMark::new(&Bucket::default(), &Timelines::default(), BodyId(1), "aa-2").text();
        let metadata = vec![Pair::new(WRITE_MARK_NAME, mark)];
        let marked = ObjectVersion { etag: "raw".into(), metadata, ..ObjectVersion::default() };
        for (given, expected) in [
            ("\"aa-2\"", "\"raw\""),
            ("aa-2", "\"raw\""),
            ("\"x\", W/\"aa-2\"", "\"x\", \"raw\""),
            ("\"raw\"", "\"raw\""),
            ("\"aa-22\"", "\"aa-22\""),
        ] {
            assert_eq!(translate_etags(given, &marked), expected, "{given}");
        }
        let plain = ObjectVersion { etag: "raw".into(), ..ObjectVersion::default() };
        assert_eq!(translate_etags("\"aa-2\"", &plain), "\"aa-2\"");
    }

    #[test]
    fn a_copy_that_keeps_a_description_requires_the_described_version() {
        let mark = WriteMark::new(&Bucket::default(), &Timelines::default(), BodyId(1), "aa-2").text();
        let metadata = vec![Pair::new(WRITE_MARK_NAME, mark), Pair::new("by", "us")];
        let marked = ObjectVersion { etag: "raw".into(), metadata, ..ObjectVersion::default() };
        for (condition, expected) in
            [(None, "\"raw\""), (Some("\"raw\", \"x\""), "\"raw\""), (Some("\"x\""), "\"x\"")]
        {
            let mut headers: HeaderMap = condition
                .map(|condition| (HeaderName::from_static(IF_MATCH), header_value(condition)))
                .into_iter()
                .collect();
            write_kept_description(&marked, None, &mut headers);
            assert_eq!(headers[IF_MATCH], expected, "{condition:?}");
            assert_eq!(
                (&headers["x-amz-meta-by"], &headers["x-amz-metadata-directive"]),
                (&header_value("us"), &header_value("REPLACE"))
            );
            assert!(!headers.contains_key("x-amz-meta-mlgw-write"));
        }
        let (plain, mut headers) = (ObjectVersion::default(), HeaderMap::new());
        write_kept_description(&plain, None, &mut headers);
        assert!(headers.is_empty(), "the origin does that itself");
    }

    #[test]
    fn only_lists_of_etags_are_translated() {
        let names = |name: &'static str, value| has_etags(&HeaderName::from_static(name), value);
        assert!(names("if-match", "\"a\"") && names("x-amz-copy-source-if-none-match", "a"));
        assert!(!names("if-none-match", " * ") && !names("x-amz-copy-source-if-modified-since", "a"));
        assert!(!names("x-amz-if-match-size", "1") && !names("x-amz-if-match-last-modified-time", "x"));
    }
}
