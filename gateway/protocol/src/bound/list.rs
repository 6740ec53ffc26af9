//! ListObjects and ListObjectsV2 of remote-backed buckets: the origin's own pages, merged with writes that
//! it does not have yet.
//!
//! A page has an ETag, the hash of its document. A client that sends it in `If-None-Match` gets 304 if the
//! page is unchanged.

use super::onward::{LAST_CHARACTER, Onward};
use super::{Fronted, merge, told};
use crate::conditions::names;
use crate::list::{Listing, open_token, token, write_v1, write_v2};
use crate::request::Request;
use crate::response::{S3Result, empty, long_xml};
use http::{HeaderValue, StatusCode, header};
use mlgw_common::ObjectKey;
use mlgw_common::hex;
use mlgw_formats::checksum::Algorithm;
use mlgw_formats::schema::{ObjectSummary, ObjectVersion};
use mlgw_objects::list::{Item, Page};
use mlgw_remote::origin::{ListLine, ListQuery};
use mlgw_wire::error::S3Error;
use mlgw_wire::values::etag_value;

/// ListObjects.
///
/// # Errors
/// Those of S3.
pub(super) async fn list_objects(request: &Request<'_>, fronted: &Fronted) -> S3Result {
    let listing = Listing::of(request, "max-keys")?;
    let marker = request.query.get("marker")?.unwrap_or_default();
    let mut start_after = marker.to_string();
    // A marker that is a common prefix covers all keys of its group.
    if listing.keys.common_prefix(&marker).is_some_and(|group| group == marker) {
        start_after.push(LAST_CHARACTER);
    }
    let (page, _) = page(&listing, fronted, start_after, None).await?;
    validated(request, write_v1(&fronted.bucket.name, &listing, &marker, &page))
}

/// ListObjectsV2.
///
/// # Errors
/// Those of S3.
pub(super) async fn list_objects_v2(request: &Request<'_>, fronted: &Fronted) -> S3Result {
    let listing = Listing::of(request, "max-keys")?;
    let start_after = request.query.get("start-after")?.unwrap_or_default().into_owned();
    let asked = request.query.get_filled("continuation-token")?;
    let asked = asked.map(|token| open_token(&token)).transpose()?;
    let (page, next) = page(&listing, fronted, start_after, asked).await?;
    let next = next.map(|next| token(&next));
    validated(request, write_v2(request, &fronted.bucket.name, &listing, &page, next.as_deref())?)
}

/// Returns the response with its ETag, or 304. The page was just read from the origin, hence `Age: 0`.
fn validated(request: &Request<'_>, document: String) -> S3Result {
    let etag = hex::text(&Algorithm::Sha256.of(document.as_bytes()));
    let known = request.header(header::IF_NONE_MATCH.as_str())?;
    let mut response = match known.is_some_and(|known| names(known, &etag)) {
        true => empty(StatusCode::NOT_MODIFIED),
        false => long_xml(request.memory, document)?,
    };
    response.headers_mut().insert(header::ETAG, etag_value(&etag));
    response.headers_mut().insert(header::AGE, HeaderValue::from_static("0"));
    Ok(response)
}

async fn page(
    listing: &Listing<'_>,
    fronted: &Fronted,
    start_after: String,
    token: Option<String>,
) -> Result<(Page, Option<String>), S3Error> {
    if listing.keys.max_keys == 0 {
        return Ok((Page::default(), None));
    }
    if let Some(queue) = &fronted.queue {
        return merge::page(listing, fronted, queue, token.unwrap_or(start_after)).await;
    }
    let (start_after, token) = Onward::open(token, &fronted.binding, start_after);
    let query = ListQuery {
        prefix: listing.keys.prefix.to_string(),
        delimiter: listing.keys.delimiter.as_deref().unwrap_or_default().to_owned(),
        start_after,
        token,
        max_keys: listing.keys.max_keys,
    };
    let mut found = fronted.bound.list(query).await.map_err(|error| told(error, fronted))?;
    found.next = found.next.map(|token| Onward::behind(found.lines.last(), token, &fronted.binding).text());
    let items = found.lines.into_iter().filter_map(|line| item(line, fronted)).collect();
    Ok((Page { items, truncated: found.next.is_some() }, found.next))
}

/// Returns an origin's line as shown here; `None` if its name is not a valid key, such as the binding's own
/// prefix.
pub(super) fn item(line: ListLine, fronted: &Fronted) -> Option<Item> {
    match line {
        ListLine::Group(group) => Some(Item::CommonPrefix(group)),
        ListLine::Object(key, object) => {
            let key = ObjectKey::from_bytes(key.as_bytes()).ok()?;
            Some(Item::Object(key, summary(*object, &fronted.bucket.owner)))
        }
    }
}

fn summary(object: ObjectVersion, owner: &str) -> ObjectSummary {
    ObjectSummary {
        size: object.size,
        modified_ms: object.modified_ms,
        etag: object.etag,
        storage_class: object.storage_class,
        owner: owner.to_owned(),
        part_count: object.part_count,
        ..ObjectSummary::default()
    }
}
