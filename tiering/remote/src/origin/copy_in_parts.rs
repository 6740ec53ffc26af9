//! Copies of large objects at an origin behind a fence, in parts.
//!
//! A change of an origin has a limited time, in which not every origin copies gigabytes. So a large object is
//! copied as an upload: each part is a change of its own, and the object exists when the upload is completed.
//! All parts are of the version whose description was read, because each one names its ETag.
//!
//! The ETag of the copy is that of an upload, as for clients that copy in parts themselves. The length of the
//! copy is compared, because an origin may ignore the ranges of the parts.
//!
//! The upload of a copy that fails or is cancelled is aborted. One that cannot be aborted, because the origin
//! or the permission is gone, stays at the origin, as when such a client ends: its parts are no object. So
//! does one whose completion has an unknown outcome, since an origin that still completes it may lose parts
//! of the object by an abort. Each of them is logged with its id, and a lifecycle rule of the origin removes
//! it.

use super::{Origin, OriginCopyReceipt, OriginError, OriginUploadRef, complete_document, strong_validator};
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_common::ByteSize;
use mlgw_common::header_text::{disposition, latin1, metadata_to_wire};
use mlgw_common::limits::{COPIED_PART_BYTES, FENCED_COPY_BYTES_MAX, PUT_BYTES_MAX};
use mlgw_formats::schema::{ObjectVersion, Pair};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

const SOURCE_CONDITIONS: &str = "x-amz-copy-source-if-";
const SOURCE_IF_MATCH: &str = "x-amz-copy-source-if-match";
const SOURCE_RANGE: &str = "x-amz-copy-source-range";
const METADATA_DIRECTIVE: &str = "x-amz-metadata-directive";
const TAGGING_DIRECTIVE: &str = "x-amz-tagging-directive";
const TAGGING: &str = "x-amz-tagging";
/// Header that a copy never takes from its source.
const WEBSITE_REDIRECT: &str = "x-amz-website-redirect-location";

/// Checks that a copy has a size that S3 allows.
pub(super) fn check_size(object: &ObjectVersion) -> Result<(), OriginError> {
    if object.size <= PUT_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "The specified copy source is larger than the maximum allowable size for a copy source: \
         {PUT_BYTES_MAX}"
    );
    Err(OriginError::refused(400, "InvalidRequest", &message))
}

/// Copies the version `object` of `source`, with the headers of a CopyObject.
pub(super) async fn copy_in_parts<O: Origin + Clone>(
    origin: &O,
    key: &str,
    source: &str,
    headers: &HeaderMap,
    object: &ObjectVersion,
) -> Result<OriginCopyReceipt, OriginError> {
    let Some(etag) = strong_validator(object) else {
        let message = format!(
            "In a cluster an object of more than {} with a weak ETag is copied in parts, by UploadPartCopy.",
            ByteSize(FENCED_COPY_BYTES_MAX)
        );
        return Err(OriginError::refused(400, "InvalidRequest", &message));
    };
    let tags = match is_replaced(headers, TAGGING_DIRECTIVE) {
        true => None,
        false => Some(tags_of(origin, source, object).await?),
    };
    let parts = CopyHeaders::of(headers, object, &etag, tags.as_deref())?;
    let id = origin.create_upload(key, &parts.create).await?.id;
    let mut upload = CopyUpload { origin, key, id, is_kept: false };
    let document = match copy_parts(origin, upload.named(), source, &parts, object.size).await {
        Ok(copied) => complete_document(
            copied.iter().map(|(number, etag, checksums)| (*number, etag.as_str(), checksums.clone())),
        ),
        Err(error) => {
            upload.abort().await;
            return Err(error);
        }
    };
    // Also if this call is cancelled meanwhile: the origin may complete it.
    upload.is_kept = true;
    match origin.complete(upload.named(), &parts.complete, document).await {
        Ok(copied) => confirm(origin, key, object.size, &copied).await.map(|()| copied),
        Err(error) if error.is_undone() => {
            upload.is_kept = false;
            upload.abort().await;
            Err(error)
        }
        Err(error) => {
            tracing::warn!(%error, key, upload = upload.id,
                "an origin did not confirm that a copy is complete: its upload may stay there");
            Err(error)
        }
    }
}

/// Checks that the origin shows the copy, with all bytes.
async fn confirm(
    origin: &dyn Origin,
    key: &str,
    bytes: u64,
    copied: &OriginCopyReceipt,
) -> Result<(), OriginError> {
    let unconfirmed = |why: String| Err(OriginError::Unconfirmed(why));
    match origin.head(key).await {
        Err(error) => unconfirmed(format!("the check after the copy failed: {error}")),
        Ok(found) if found.size != bytes => {
            unconfirmed(format!("after the copy the object has {} bytes instead of {bytes}", found.size))
        }
        Ok(found) if found.etag != copied.etag => {
            unconfirmed(format!("after the copy the object has the ETag {:?}", found.etag))
        }
        Ok(_) => Ok(()),
    }
}

/// The upload of a copy. It is aborted in the background if it is dropped, unless it is kept.
struct CopyUpload<'a, O: Origin + Clone> {
    origin: &'a O,
    key: &'a str,
    id: String,
    /// True if it was aborted, or may be complete.
    is_kept: bool,
}

impl<O: Origin + Clone> CopyUpload<'_, O> {
    fn named(&self) -> OriginUploadRef<'_> {
        OriginUploadRef { key: self.key, id: &self.id }
    }

    async fn abort(mut self) {
        abort(self.origin, self.named()).await;
        // Only now: if this call is cancelled, the upload is aborted in the background.
        self.is_kept = true;
    }
}

impl<O: Origin + Clone> Drop for CopyUpload<'_, O> {
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.is_kept, tokio::runtime::Handle::try_current()) {
            let (origin, key, id) = (self.origin.clone(), self.key.to_owned(), std::mem::take(&mut self.id));
            runtime.spawn(async move { abort(&origin, OriginUploadRef { key: &key, id: &id }).await });
        }
    }
}

/// A copied part: its number, its ETag without quotes, and its checksums.
type CopiedPart = (u32, String, Vec<Pair>);

async fn copy_parts(
    origin: &dyn Origin,
    upload: OriginUploadRef<'_>,
    source: &str,
    headers: &CopyHeaders,
    bytes: u64,
) -> Result<Vec<CopiedPart>, OriginError> {
    let (mut parts, mut first) = (Vec::new(), 0);
    for number in 1.. {
        if first == bytes {
            break;
        }
        let end = bytes.min(first + COPIED_PART_BYTES);
        let of_part = headers.of_part(number, first, end)?;
        let copied = origin.copy_part(upload, number, source, &of_part).await?;
        parts.push((number, copied.etag, copied.checksums));
        first = end;
    }
    Ok(parts)
}

async fn abort(origin: &dyn Origin, upload: OriginUploadRef<'_>) {
    if let Err(error) = origin.abort(upload).await {
        tracing::warn!(%error, key = upload.key, upload = upload.id,
            "the upload of a copy that failed stays at the origin");
    }
}

/// Returns the tags of the source. An origin without tags may refuse the request.
async fn tags_of(
    origin: &dyn Origin,
    source: &str,
    object: &ObjectVersion,
) -> Result<Vec<Pair>, OriginError> {
    match origin.tags(source).await {
        Err(error) if object.tag_count == 0 && error.is_undone() && !error.is_transient() => Ok(Vec::new()),
        read => read,
    }
}

/// The headers of the requests of a copy in parts.
struct CopyHeaders {
    create: HeaderMap,
    /// Conditions on the source, for the first part.
    source_conditions: HeaderMap,
    /// Condition that the source is the version that is copied.
    is_version: HeaderValue,
    complete: HeaderMap,
}

impl CopyHeaders {
    /// Distributes the headers of a CopyObject of `object`. `tags` are those of the source if the copy keeps
    /// them.
    fn of(
        headers: &HeaderMap,
        object: &ObjectVersion,
        etag: &str,
        tags: Option<&[Pair]>,
    ) -> Result<Self, OriginError> {
        let mut all = Self {
            create: HeaderMap::new(),
            source_conditions: HeaderMap::new(),
            is_version: header_value(&format!("\"{etag}\""))?,
            complete: HeaderMap::new(),
        };
        for (name, value) in headers {
            let to = match name.as_str() {
                METADATA_DIRECTIVE | TAGGING_DIRECTIVE => continue,
                TAGGING if tags.is_some() => continue,
                "if-match" | "if-none-match" => &mut all.complete,
                name if name.starts_with(SOURCE_CONDITIONS) => &mut all.source_conditions,
                _ => &mut all.create,
            };
            to.append(name.clone(), value.clone());
        }
        if !is_replaced(headers, METADATA_DIRECTIVE) {
            describe(object, &mut all.create)?;
        }
        if let Some(tags) = tags.filter(|tags| !tags.is_empty()) {
            let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let pair = |tag: &Pair| format!("{}={}", encoded(&tag.name), encoded(&tag.value));
            let query = tags.iter().map(pair).collect::<Vec<_>>().join("&");
            all.create.insert(TAGGING, header_value(&query)?);
        }
        Ok(all)
    }

    /// Returns the headers of the part with the bytes from `first` to before `end`.
    fn of_part(&self, number: u32, first: u64, end: u64) -> Result<HeaderMap, OriginError> {
        let mut headers = if number == 1 { self.source_conditions.clone() } else { HeaderMap::new() };
        let condition = headers.get(SOURCE_IF_MATCH).and_then(|condition| condition.to_str().ok());
        let version = self.is_version.to_str().unwrap_or_default();
        // A condition that excludes this version is left as it is, and the origin finds that it fails.
        if condition.is_none_or(|condition| condition.trim() == "*" || condition.contains(version)) {
            headers.insert(SOURCE_IF_MATCH, self.is_version.clone());
        }
        headers.insert(SOURCE_RANGE, header_value(&format!("bytes={first}-{}", end - 1))?);
        Ok(headers)
    }
}

/// True if a directive of a copy is `REPLACE`: the copy gets what the request has, not what the source has.
fn is_replaced(headers: &HeaderMap, directive: &str) -> bool {
    headers.get(directive).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"REPLACE"))
}

/// Adds stored headers and user metadata of the source, except headers that the request has.
fn describe(object: &ObjectVersion, headers: &mut HeaderMap) -> Result<(), OriginError> {
    let stored = object.headers.iter().filter(|pair| !pair.name.starts_with(':'));
    for Pair { name, value } in stored.filter(|pair| pair.name != WEBSITE_REDIRECT) {
        let name = header_name(name)?;
        let bytes = latin1(value).and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
        let value = bytes.map_or_else(|| header_value(&disposition(value)), Ok)?;
        headers.entry(name).or_insert(value);
    }
    for Pair { name, value } in &object.metadata {
        headers.insert(header_name(&format!("x-amz-meta-{name}"))?, header_value(&metadata_to_wire(value))?);
    }
    Ok(())
}

fn header_name(name: &str) -> Result<HeaderName, OriginError> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|error| OriginError::InvalidResponse(error.to_string()))
}

fn header_value(text: &str) -> Result<HeaderValue, OriginError> {
    HeaderValue::from_str(text).map_err(|error| OriginError::InvalidResponse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use crate::origin::test_origin::{TestOrigin, UPLOAD_ETAG};
    use crate::origin::{FencedOrigin, Origin as _, OriginCopyReceipt, OriginError, OriginFence};
    use http::HeaderMap;
    use mlgw_common::limits::{COPIED_PART_BYTES, FENCED_COPY_BYTES_MAX, PUT_BYTES_MAX};
    use mlgw_common::time::{Instant, sleep, timeout};
    use mlgw_formats::schema::{EtagKind, ObjectVersion, Pair};
    use std::sync::Arc;
    use std::time::Duration;

    /// An origin with an object of this size.
    fn origin_with(size: u64) -> TestOrigin {
        let object = ObjectVersion {
            size,
            etag: "aa".to_owned(),
            headers: vec![Pair::new("content-type", "text/x"), Pair::new("cache-control", "no-store")],
            metadata: vec![Pair::new("shape", "r\u{fc}nd")],
            ..ObjectVersion::default()
        };
        TestOrigin { object, completed_bytes: size, ..TestOrigin::default() }
    }

    /// Copies the object of an origin behind an open fence.
    async fn copy(
        origin: &TestOrigin,
        headers: &[(&'static str, &str)],
    ) -> Result<OriginCopyReceipt, OriginError> {
        let fence = OriginFence::new();
        fence.open();
        fence.extend(Instant::now() + Duration::from_secs(60));
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = headers.collect();
        FencedOrigin::new(Arc::new(origin.clone()), fence).copy("to", "from", &headers).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_object_is_copied_in_parts_with_its_description_and_a_small_one_at_once() {
        let small = origin_with(FENCED_COPY_BYTES_MAX);
        assert_eq!(copy(&small, &[]).await.unwrap().etag, "aa");
        assert_eq!(small.names(), ["head from", "copy"]);

        let large = origin_with(FENCED_COPY_BYTES_MAX + 1);
        assert_eq!(copy(&large, &[]).await.unwrap().etag, UPLOAD_ETAG);
        let expected = ["head from", "tags", "create", "part 1", "part 2", "part 3", "part 4", "part 5"];
        assert_eq!(large.names()[..8], expected);
        assert_eq!(large.names()[8..], ["complete 5", "head to"]);
        let range = |part: &str| large.header(part, "x-amz-copy-source-range").unwrap();
        assert_eq!(range("part 1"), format!("bytes=0-{}", COPIED_PART_BYTES - 1));
        assert_eq!(range("part 5"), format!("bytes={FENCED_COPY_BYTES_MAX}-{FENCED_COPY_BYTES_MAX}"));
        for part in &expected[3..8] {
            let version = large.header(part, "x-amz-copy-source-if-match");
            assert_eq!(version.as_deref(), Some("\"aa\""), "{part} is of the version that was described");
        }
        let described = |header: &str| large.header("create", header);
        assert_eq!(described("content-type").as_deref(), Some("text/x"));
        assert_eq!(described("cache-control").as_deref(), Some("no-store"));
        assert!(described("x-amz-meta-shape").is_some_and(|shape| shape.starts_with("=?UTF-8?")));
        assert_eq!(described("x-amz-tagging").as_deref(), Some("a%20b=c%26d"));
    }

    #[tokio::test(start_paused = true)]
    async fn directives_and_conditions_of_a_copy_keep_their_meaning_in_parts() {
        let origin = origin_with(2 * FENCED_COPY_BYTES_MAX);
        let headers = [
            ("x-amz-metadata-directive", "REPLACE"),
            ("content-type", "text/y"),
            ("x-amz-tagging-directive", "REPLACE"),
            ("x-amz-tagging", "e=f"),
            ("x-amz-storage-class", "COLD"),
            ("if-none-match", "*"),
            ("x-amz-copy-source-if-match", "\"aa\", \"bb\""),
            ("x-amz-copy-source-if-unmodified-since", "Sat, 28 Nov 2026 10:00:00 GMT"),
        ];
        copy(&origin, &headers).await.unwrap();
        assert!(!origin.names().contains(&"tags".to_owned()));
        let created = |header: &str| origin.header("create", header);
        assert_eq!(created("content-type").as_deref(), Some("text/y"));
        assert_eq!((created("cache-control"), created("x-amz-meta-shape")), (None, None));
        assert_eq!(created("x-amz-tagging").as_deref(), Some("e=f"));
        assert_eq!(created("x-amz-storage-class").as_deref(), Some("COLD"));
        assert_eq!((created("x-amz-metadata-directive"), created("if-none-match")), (None, None));
        assert_eq!(origin.header("complete 8", "if-none-match").as_deref(), Some("*"));
        let since = |part| origin.header(part, "x-amz-copy-source-if-unmodified-since");
        assert!(since("part 1").is_some() && since("part 2").is_none());
        let version = |part| origin.header(part, "x-amz-copy-source-if-match").unwrap();
        assert_eq!((version("part 1"), version("part 8")), ("\"aa\"".to_owned(), "\"aa\"".to_owned()));
        let excluding = origin_with(2 * FENCED_COPY_BYTES_MAX);
        copy(&excluding, &[("x-amz-copy-source-if-match", "\"cc\"")]).await.unwrap();
        let sent = excluding.header("part 1", "x-amz-copy-source-if-match");
        assert_eq!(sent.as_deref(), Some("\"cc\""), "the origin finds that it fails");
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_in_parts_that_fails_leaves_no_upload_and_what_is_not_allowed_begins_none() {
        let mut origin = origin_with(2 * FENCED_COPY_BYTES_MAX);
        origin.changes_at = 2;
        assert_eq!(copy(&origin, &[]).await, Err(OriginError::Changed));
        assert_eq!(origin.names()[2..], ["create", "part 1", "part 2", "abort"]);

        let too_large = origin_with(PUT_BYTES_MAX + 1);
        let mut weak = origin_with(2 * FENCED_COPY_BYTES_MAX);
        weak.object.etag_kind = EtagKind::Weak.into();
        for (origin, word) in [(too_large, "5368709120"), (weak, "UploadPartCopy")] {
            let error = copy(&origin, &[]).await.unwrap_err();
            let OriginError::Refused { status: 400, code, message } = &error else { panic!("{error:?}") };
            assert!(code == "InvalidRequest" && message.contains(word), "{message}");
            assert_eq!(origin.names(), ["head from"]);
        }
        let largest = origin_with(PUT_BYTES_MAX);
        copy(&largest, &[]).await.unwrap();
        assert!(largest.names().contains(&"complete 20".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_is_aborted_only_if_it_is_certainly_not_complete() {
        let refused = OriginError::Denied("no".to_owned());
        for (error, is_aborted) in [(refused, true), (OriginError::TimedOut, false)] {
            let origin =
                TestOrigin { completion: Err(error.clone()), ..origin_with(2 * FENCED_COPY_BYTES_MAX) };
            assert_eq!(copy(&origin, &[]).await, Err(error));
            sleep(Duration::from_secs(60)).await;
            let last = if is_aborted { "abort" } else { "complete 8" };
            assert_eq!(origin.names().pop().as_deref(), Some(last));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_that_makes_another_object_of_the_parts_does_not_confirm_the_copy() {
        let whole = 2 * FENCED_COPY_BYTES_MAX;
        // It copied the whole object as each part, or not all of the parts.
        for completed_bytes in [8 * whole, whole - 1] {
            let lying = TestOrigin { completed_bytes, ..origin_with(whole) };
            let copied = copy(&lying, &[]).await;
            let Err(OriginError::Unconfirmed(why)) = &copied else { panic!("{copied:?}") };
            assert!(why.contains("bytes"), "{why}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_is_cancelled_leaves_no_upload_that_is_certainly_not_complete() {
        let large = origin_with(2 * FENCED_COPY_BYTES_MAX);
        let slow = TestOrigin { answers_after: Duration::from_secs(10), ..large };
        assert!(timeout(Duration::from_secs(25), copy(&slow, &[])).await.is_err());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(slow.names()[2..], ["create", "part 1", "part 2", "abort"]);

        // The completion is cancelled: it may have an effect.
        let large = origin_with(2 * FENCED_COPY_BYTES_MAX);
        let slow = TestOrigin { completes_after: Duration::from_secs(10), ..large };
        assert!(timeout(Duration::from_secs(5), copy(&slow, &[])).await.is_err());
        sleep(Duration::from_secs(60)).await;
        assert_eq!(slow.names().pop().as_deref(), Some("complete 8"));

        // The abort itself is cancelled.
        let large = TestOrigin { changes_at: 1, ..origin_with(2 * FENCED_COPY_BYTES_MAX) };
        let slow = TestOrigin { answers_after: Duration::from_secs(10), ..large };
        assert!(timeout(Duration::from_secs(25), copy(&slow, &[])).await.is_err());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(slow.names()[2..], ["create", "part 1", "abort", "abort"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_without_permission_does_not_request_the_size() {
        let origin = origin_with(1);
        let fenced = FencedOrigin::new(Arc::new(origin.clone()), OriginFence::new());
        assert!(fenced.copy("to", "from", &HeaderMap::new()).await.is_err());
        assert_eq!(origin.names(), [""; 0]);
    }
}
