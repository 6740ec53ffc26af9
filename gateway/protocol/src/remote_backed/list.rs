//! ListObjects and ListObjectsV2 of remote-backed buckets: the origin's own pages, merged with writes that
//! it does not have yet.
//!
//! A page has an ETag, the hash of its document. A client that sends it in `If-None-Match` gets 304 if the
//! page is unchanged.

use super::listed_line::shown_item;
use super::listing_token::{LAST_CHARACTER, OriginListingToken};
use super::{RemoteBackedBucket, merge, origin_error};
use crate::conditions::has_etag;
use crate::list::{ListingParameters, decode_token, encode_token, write_v1, write_v2};
use crate::request::AuthenticatedRequest;
use crate::response::{S3Result, empty, long_xml};
use http::{HeaderValue, StatusCode, header};
use mlgw_common::hex;
use mlgw_formats::checksum::Algorithm;
use mlgw_objects::list::Page;
use mlgw_remote::origin::ListQuery;
use mlgw_wire::error::S3Error;
use mlgw_wire::values::etag_value;

/// ListObjects.
///
/// # Errors
/// Those of S3.
pub(super) async fn list_objects(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let listing = ListingParameters::parse(request, "max-keys")?;
    let marker = request.query.get("marker")?.unwrap_or_default();
    let mut start_after = marker.to_string();
    // A marker that is a common prefix covers all keys of its group.
    if listing.keys.common_prefix(&marker).is_some_and(|group| group == marker) {
        start_after.push(LAST_CHARACTER);
    }
    let (page, _) = page(&listing, remote_backed, start_after, None).await?;
    with_etag(request, write_v1(&remote_backed.bucket.name, &listing, &marker, &page))
}

/// ListObjectsV2.
///
/// # Errors
/// Those of S3.
pub(super) async fn list_objects_v2(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let listing = ListingParameters::parse(request, "max-keys")?;
    let start_after = request.query.get("start-after")?.unwrap_or_default().into_owned();
    let token = request.query.get_non_empty("continuation-token")?;
    let token = token.map(|token| decode_token(&token)).transpose()?;
    let (page, next) = page(&listing, remote_backed, start_after, token).await?;
    let next = next.map(|next| encode_token(&next));
    with_etag(request, write_v2(request, &remote_backed.bucket.name, &listing, &page, next.as_deref())?)
}

/// Returns the response with its ETag, or 304. The page was just read from the origin, hence `Age: 0`.
fn with_etag(request: &AuthenticatedRequest<'_>, document: String) -> S3Result {
    let etag = hex::text(&Algorithm::Sha256.digest(document.as_bytes()));
    let known = request.header(header::IF_NONE_MATCH.as_str())?;
    let mut response = match known.is_some_and(|known| has_etag(known, &etag)) {
        true => empty(StatusCode::NOT_MODIFIED),
        false => long_xml(request.memory, document)?,
    };
    response.headers_mut().insert(header::ETAG, etag_value(&etag));
    response.headers_mut().insert(header::AGE, HeaderValue::from_static("0"));
    Ok(response)
}

async fn page(
    listing: &ListingParameters<'_>,
    remote_backed: &RemoteBackedBucket,
    start_after: String,
    token: Option<String>,
) -> Result<(Page, Option<String>), S3Error> {
    if listing.keys.max_keys == 0 {
        return Ok((Page::default(), None));
    }
    if let Some(queue) = &remote_backed.queue {
        return merge::page(listing, remote_backed, queue, token.unwrap_or(start_after)).await;
    }
    let (start_after, token) = OriginListingToken::decode(token, &remote_backed.binding, start_after);
    let query = ListQuery {
        prefix: listing.keys.prefix.to_string(),
        delimiter: listing.keys.delimiter.as_deref().unwrap_or_default().to_owned(),
        start_after,
        token,
        max_keys: listing.keys.max_keys,
    };
    let mut found =
        remote_backed.cached.list(query).await.map_err(|error| origin_error(error, remote_backed))?;
    found.next = found
        .next
        .map(|token| OriginListingToken::after(found.lines.last(), token, &remote_backed.binding).encode());
    let items = found.lines.into_iter().filter_map(|line| shown_item(line, remote_backed)).collect();
    Ok((Page { items, truncated: found.next.is_some() }, found.next))
}
