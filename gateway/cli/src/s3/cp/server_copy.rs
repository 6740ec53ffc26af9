//! Copies inside the server: the bytes do not pass through this host.

use super::copy_run::{CopyRun, ItemFailure};
use super::multipart::{self, CopySource, complete, copy_part};
use super::parts::{check_fits_parts, copy_part_bytes, parts_of};
use crate::s3::client::{S3Request, copy_source};
use crate::s3::failure::S3Failure;
use crate::s3::path::RemotePath;
use crate::s3::reader::{head, size_of, strong_etag};
use crate::s3::xml::{PartReceipt, parse_etag, parse_tags};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderValue, Method};

/// Headers of an object, besides user metadata, that a copy keeps.
const KEPT_HEADERS: [&str; 7] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    "x-amz-storage-class",
];

/// Problem of a large source whose version cannot be named.
const NO_STRONG_ETAG: &str = "the server gives no strong ETag, so a copy in parts could mix versions; copy \
                              it through this host";

/// Copies an object. `listed_bytes` is its size, if it is known. Returns the size; 0 if it stays unknown.
///
/// # Errors
/// The server refused it.
pub(super) async fn object(
    run: &CopyRun<'_>,
    from: &RemotePath,
    listed_bytes: Option<u64>,
    to: &RemotePath,
) -> Result<u64, ItemFailure> {
    let part_bytes = |bytes| copy_part_bytes(bytes, run.settings.part_bytes);
    if let Some(bytes) = listed_bytes.filter(|bytes| part_bytes(*bytes).is_none()) {
        return copy_whole(run, from, to, bytes).await;
    }
    let failed = |failure| run.failure(failure, from);
    // The failure of a HEAD has no code; the copy has a document that explains it.
    let Ok(headers) = head(run.client, from).await else { return copy_whole(run, from, to, 0).await };
    let bytes = size_of(&headers).map_err(failed)?;
    if listed_bytes.is_none() {
        run.set_total(bytes);
    }
    check_fits_parts(bytes).map_err(|problem| ItemFailure::unsuitable(from, problem))?;
    match part_bytes(bytes) {
        None => copy_whole(run, from, to, bytes).await,
        Some(part_bytes) => {
            let large = LargeObject { object: from, headers: &headers, bytes, part_bytes };
            copy_in_parts(run, &large, to).await
        }
    }
}

/// A source that is copied in parts.
struct LargeObject<'a> {
    object: &'a RemotePath,
    headers: &'a HeaderMap,
    bytes: u64,
    part_bytes: u64,
}

async fn copy_whole(
    run: &CopyRun<'_>,
    from: &RemotePath,
    to: &RemotePath,
    bytes: u64,
) -> Result<u64, ItemFailure> {
    let _slot = run.slot(0).await;
    let request = S3Request::new(Method::PUT, to.clone())
        .with_header("x-amz-copy-source", copy_source(from))
        .with_long_timeout();
    let failed = |failure| run.failure(failure, from);
    let document = run.client.document(&request).await.map_err(failed)?.into_body();
    parse_etag(&document, "CopyObjectResult").map_err(|error| failed(S3Failure::InvalidResponse(error)))?;
    run.add_progress(bytes);
    Ok(bytes)
}

async fn copy_in_parts(
    run: &CopyRun<'_>,
    from: &LargeObject<'_>,
    to: &RemotePath,
) -> Result<u64, ItemFailure> {
    // Without a condition the parts could be those of several versions.
    let etag =
        strong_etag(from.headers).ok_or_else(|| ItemFailure::unsuitable(from.object, NO_STRONG_ETAG))?;
    let mut headers = kept_headers(from.headers);
    if from.headers.contains_key("x-amz-tagging-count") {
        headers.insert("x-amz-tagging", tags(run, from.object).await?);
    }
    let upload = multipart::create(run, to, headers).await?;
    let source = CopySource { object: from.object, etag };
    let parts = stream::iter(parts_of(from.bytes, from.part_bytes)).map(|part| async {
        let _slot = run.slot(0).await;
        copy_part(run, &upload, &source, part).await
    });
    let completed = async {
        let mut parts: Vec<PartReceipt> = parts.buffer_unordered(run.parallel()).try_collect().await?;
        parts.sort_by_key(|part| part.number);
        complete(run, &upload, &parts, HeaderMap::new()).await?;
        Ok(from.bytes)
    };
    let completed = completed.await;
    multipart::end(run, &upload, completed).await
}

/// Returns the headers that a copy of an object keeps.
fn kept_headers(headers: &HeaderMap) -> HeaderMap {
    let is_kept = |name: &str| KEPT_HEADERS.contains(&name) || name.starts_with("x-amz-meta-");
    let kept = headers.iter().filter(|(name, _)| is_kept(name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the tags of an object as the value of a header.
async fn tags(run: &CopyRun<'_>, object: &RemotePath) -> Result<HeaderValue, ItemFailure> {
    let failed = |failure| run.failure(failure, object);
    let request = S3Request::new(Method::GET, object.clone()).with_query("tagging", "");
    let document = run.client.document(&request).await.map_err(failed)?.into_body();
    let tags = parse_tags(&document).map_err(|error| failed(S3Failure::InvalidResponse(error)))?;
    HeaderValue::from_str(&tags).map_err(|error| failed(S3Failure::Invalid(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::{kept_headers, object};
    use crate::canned_server::{CannedServer, response};
    use crate::s3::cp::copy_run::{CopyRun, CopySettings};
    use crate::s3::path::RemotePath;
    use http::{HeaderMap, HeaderName, HeaderValue};

    #[test]
    fn parts_are_copied_only_of_a_version_with_a_name() {
        for etag in [&[][..], &[("etag", "W/\"e\"")]] {
            let headers = [&[("content-length", "20000000")], etag].concat();
            let server = CannedServer::start(vec![response("200 OK", &headers, "")]);
            let (client, part_bytes) = (server.client(), Some(8 << 20));
            let settings = CopySettings { parallel: 1, part_bytes, content_type: None, quiet: true };
            let run = CopyRun::new(&client, settings);
            let (from, to) = (RemotePath::new("b", "k"), RemotePath::new("b", "l"));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let refused = runtime.block_on(object(&run, &from, None, &to)).unwrap_err().error();
            assert!(refused.to_string().contains("the server gives no strong ETag"), "{refused}");
            assert!(server.requests()[0].starts_with("head /b/k "));
        }
    }

    #[test]
    fn a_copy_keeps_what_describes_the_object() {
        let all = ["content-type", "x-amz-meta-a", "etag", "content-length", "x-amz-request-id", "expires"];
        let pairs = all.map(|name| (HeaderName::from_static(name), HeaderValue::from_static("v")));
        let kept = kept_headers(&HeaderMap::from_iter(pairs));
        let mut names: Vec<_> = kept.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "expires", "x-amz-meta-a"]);
    }
}
