//! ListObjects and ListObjectsV2 of bound buckets: the origin's own pages, into which is merged what it has not yet.
//!
//! A page has a validator, the hash of its document: who has it, says so in `If-None-Match`, and is told when it is still the same.

use super::{Fronted, merge, told};
use crate::auth::hex;
use crate::body::Algorithm;
use crate::s3::conditions::names;
use crate::s3::error::S3Error;
use crate::s3::list::{Item, Listing, Page, open_token, token, write_v1, write_v2};
use crate::s3::request::Request;
use crate::s3::response::{S3Result, empty, etag_value, long_xml};
use http::{HeaderValue, StatusCode, header};
use mlgw_common::ObjectKey;
use mlgw_metadata::schema::{Binding, ObjectSummary, ObjectVersion};
use mlgw_tiering::origin::{ListLine, ListQuery};
use serde::{Deserialize, Serialize};

/// What no key that belongs to a group comes behind.
pub(super) const LAST_CHARACTER: char = '\u{10FFFF}';

/// ListObjects.
///
/// # Errors
/// Those of S3.
pub(super) async fn list_objects(request: &Request<'_>, fronted: &Fronted) -> S3Result {
    let listing = Listing::of(request, "max-keys")?;
    let marker = request.query.get("marker")?.unwrap_or_default();
    let mut start_after = marker.to_string();
    // A marker that is a group stands for all of it.
    if listing.common_prefix(&marker).is_some_and(|group| group == marker) {
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

/// The answer with its validator, or that it is still the same; the origin was asked just now.
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
    if listing.max_keys == 0 {
        return Ok((Page::default(), None));
    }
    if let Some(queue) = &fronted.queue {
        return merge::page(listing, fronted, queue, token.unwrap_or(start_after)).await;
    }
    let (start_after, token) = Onward::open(token, &fronted.binding, start_after);
    let query = ListQuery {
        prefix: listing.prefix.to_string(),
        delimiter: listing.delimiter.as_deref().unwrap_or_default().to_owned(),
        start_after,
        token,
        max_keys: listing.max_keys,
    };
    let mut found = fronted.bound.list(query).await.map_err(|error| told(error, fronted))?;
    found.next = found.next.map(|token| Onward::behind(found.lines.last(), token, &fronted.binding).text());
    let items = found.lines.into_iter().filter_map(|line| item(line, fronted)).collect();
    Ok((Page { items, truncated: found.next.is_some() }, found.next))
}

/// Where a listing goes on: the origin's own word for it, and the name behind which it does where the bucket was bound elsewhere meanwhile.
#[derive(Deserialize, Serialize)]
struct Onward {
    #[serde(rename = "u")]
    upstream: String,
    #[serde(rename = "p")]
    prefix: String,
    #[serde(rename = "a")]
    behind: String,
    #[serde(rename = "t")]
    token: String,
}

impl Onward {
    fn behind(last: Option<&ListLine>, token: String, binding: &Binding) -> Self {
        let behind = match last {
            Some(ListLine::Object(key, _)) => key.clone(),
            Some(ListLine::Group(group)) => format!("{group}{LAST_CHARACTER}"),
            None => String::new(),
        };
        Self { upstream: binding.upstream.clone(), prefix: binding.prefix.clone(), behind, token }
    }

    fn text(&self) -> String {
        // Of four strings: it cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What an origin is asked with: behind which name, or with which token.
    fn open(text: Option<String>, binding: &Binding, start_after: String) -> (String, Option<String>) {
        let Some(text) = text else { return (start_after, None) };
        match serde_json::from_str::<Self>(&text) {
            Ok(onward) if onward.upstream == binding.upstream && onward.prefix == binding.prefix => {
                (String::new(), Some(onward.token))
            }
            Ok(onward) => (onward.behind, None),
            // The bare word, as it was given before.
            Err(_) => (String::new(), Some(text)),
        }
    }
}

/// A line as it is shown here. What is no key here, such as the prefix of the binding itself, is not shown.
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

#[cfg(test)]
mod tests {
    use super::{LAST_CHARACTER, Onward};
    use mlgw_metadata::schema::Binding;
    use mlgw_tiering::origin::ListLine;

    #[test]
    fn a_listing_goes_on_by_the_origins_word_or_behind_the_last_name_where_that_is_another_one() {
        let at = |upstream: &str| Binding { upstream: upstream.to_owned(), ..Binding::default() };
        let object = ListLine::Object("a \"ü".into(), Box::default());
        let group = ListLine::Group("b/".into());
        for (last, behind) in [(object, "a \"ü".to_owned()), (group, format!("b/{LAST_CHARACTER}"))] {
            let text = Onward::behind(Some(&last), "x=".into(), &at("old")).text();
            let open = |binding| Onward::open(Some(text.clone()), &binding, "s".into());
            assert_eq!(open(at("old")), (String::new(), Some("x=".into())));
            assert_eq!(open(at("new")), (behind.clone(), None));
            assert_eq!(open(Binding { prefix: "p/".into(), ..at("old") }), (behind, None));
        }
        assert_eq!(Onward::open(None, &at("old"), "s".into()), ("s".into(), None));
        assert_eq!(
            Onward::open(Some("x=".into()), &at("old"), "s".into()),
            (String::new(), Some("x=".into()))
        );
    }
}
