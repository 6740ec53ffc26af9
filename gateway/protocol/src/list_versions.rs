//! ListObjectVersions of a bucket that never had versioning: each object has one version, `null`, which is
//! the latest.
//!
//! Tools use this listing to empty buckets. The page is that of [`super::list`], in another document.

use super::Gateway;
use super::list::{ListingParameters, OwnerElement, write_details};
use super::request::AuthenticatedRequest;
use super::response::{S3Result, long_xml};
use mlgw_objects::list::{ListedItem, Page};
use mlgw_wire::error::S3Error;
use mlgw_wire::xml::Xml;
use std::sync::Arc;

/// Id of the only version of an object.
const VERSION_ID: &str = "null";

/// ListObjectVersions.
///
/// # Errors
/// Those of S3.
pub(super) fn list_object_versions(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let listing = ListingParameters::parse(request, "max-keys")?;
    let key_marker = request.query.get("key-marker")?.unwrap_or_default();
    let version_marker = request.query.get("version-id-marker")?;
    check_version_marker(version_marker.as_deref(), &key_marker)?;
    let page = gateway.objects.list(bucket.bucket_id(), &listing.keys, &key_marker)?;
    let version_marker = version_marker.as_deref().unwrap_or_default();
    long_xml(request.memory, document(&bucket.name, &listing, &key_marker, version_marker, &page))
}

/// Checks the marker at which a page begins within the versions of a key.
fn check_version_marker(marker: Option<&str>, key_marker: &str) -> Result<(), S3Error> {
    let why = match marker {
        None => return Ok(()),
        Some("") => "A version-id marker cannot be empty.",
        Some(_) if key_marker.is_empty() => "A version-id marker cannot be specified without a key marker.",
        Some(VERSION_ID) => return Ok(()),
        Some(_) => "Invalid version id specified",
    };
    Err(S3Error::invalid_argument(why, "version-id-marker", marker.unwrap_or_default()))
}

fn document(
    bucket: &str,
    listing: &ListingParameters<'_>,
    key_marker: &str,
    version_marker: &str,
    page: &Page,
) -> String {
    let mut out = Xml::new("ListVersionsResult");
    out.text("Name", bucket).text("Prefix", &listing.encode_name(&listing.keys.prefix));
    out.text("KeyMarker", &listing.encode_name(key_marker)).text("VersionIdMarker", version_marker);
    if let (true, Some(last)) = (page.truncated, page.items.last()) {
        out.text("NextKeyMarker", &listing.encode_name(last.name()));
        if matches!(last, ListedItem::Object(..)) {
            out.text("NextVersionIdMarker", VERSION_ID);
        }
    }
    out.value("MaxKeys", listing.keys.max_keys);
    listing.write_parameters(&mut out);
    out.value("IsTruncated", page.truncated);
    for item in &page.items {
        match item {
            ListedItem::Object(key, summary) => {
                out.open("Version").text("Key", &listing.encode_name(key.as_str()));
                out.text("VersionId", VERSION_ID).value("IsLatest", true);
                write_details(&mut out, summary, OwnerElement::Shown);
                out.close("Version");
            }
            ListedItem::CommonPrefix(group) => {
                out.open("CommonPrefixes")
                    .text("Prefix", &listing.encode_name(group))
                    .close("CommonPrefixes");
            }
        }
    }
    out.finish("ListVersionsResult")
}

#[cfg(test)]
mod tests {
    use super::check_version_marker;

    #[test]
    fn a_version_marker_is_valid_only_as_null_with_a_key_marker() {
        for (marker, key, good) in [
            (None, "", true),
            (None, "k", true),
            (Some("null"), "k", true),
            (Some("null"), "", false),
            (Some(""), "k", false),
            (Some("3sL4kqtJlcpXroDTDmJ"), "k", false),
        ] {
            assert_eq!(check_version_marker(marker, key).is_ok(), good, "{marker:?} {key:?}");
        }
    }
}
