//! ListMultipartUploads: pages of uploads, ordered by key and then by creation.
//!
//! Upload ids have no order, so a marker is decrypted and compared by its body id.

use super::write_checksum;
use crate::Gateway;
use crate::list::{ListingParameters, write_owner};
use crate::request::AuthenticatedRequest;
use crate::response::{S3Result, long_xml};
use mlgw_common::{BodyId, Timestamp};
use mlgw_formats::schema::{Bucket, Upload};
use mlgw_objects::list::after_prefix;
use mlgw_objects::put::STORAGE_CLASS;
use mlgw_wire::error::S3Error;
use mlgw_wire::xml::Xml;
use std::borrow::Cow;
use std::sync::Arc;

/// ListMultipartUploads.
///
/// # Errors
/// Those of S3.
pub fn list_uploads(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let listing = ListingParameters::parse(request, "max-uploads")?;
    let markers = UploadMarkers::parse(gateway, request)?;
    let page = MultipartUploadPage::read(gateway, &bucket, &listing, &markers)?;
    uploads_response(gateway, request, &bucket, &listing, &markers, &page)
}

/// Position at which a page of uploads begins.
pub(crate) struct UploadMarkers<'a> {
    pub(crate) key: Cow<'a, str>,
    /// Ignored without a key marker.
    id: Cow<'a, str>,
    /// Upload of the key marker after which the page begins. Without it the page begins after the key.
    body: Option<BodyId>,
}

impl<'a> UploadMarkers<'a> {
    /// Parses the markers of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for an id that was never issued.
    pub(crate) fn parse(gateway: &Gateway, request: &AuthenticatedRequest<'a>) -> Result<Self, S3Error> {
        let key = request.query.get("key-marker")?.unwrap_or_default();
        let id = request.query.get("upload-id-marker")?.filter(|_| !key.is_empty()).unwrap_or_default();
        let invalid = || S3Error::invalid_argument("Invalid uploadId marker", "upload-id-marker", &*id);
        let body = match &*id {
            "" => None,
            id => Some(gateway.upload_ids.body(id).ok_or_else(invalid)?),
        };
        Ok(Self { key, id, body })
    }
}

/// Returns the response of ListMultipartUploads.
///
/// # Errors
/// `SlowDown` if there is no memory for the response.
pub(crate) fn uploads_response(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    bucket: &Bucket,
    listing: &ListingParameters<'_>,
    markers: &UploadMarkers<'_>,
    page: &MultipartUploadPage,
) -> S3Result {
    let id_of = |body: u64| gateway.upload_ids.id(BodyId(body));
    let mut out = Xml::new("ListMultipartUploadsResult");
    out.text("Bucket", &bucket.name).text("KeyMarker", &listing.encode_name(&markers.key));
    out.text("UploadIdMarker", &markers.id);
    if let Some((key, body)) = page.next() {
        out.text("NextKeyMarker", &listing.encode_name(key));
        out.text("NextUploadIdMarker", &body.map(id_of).unwrap_or_default());
    }
    out.text("Prefix", &listing.encode_name(&listing.keys.prefix));
    listing.write_parameters(&mut out);
    out.value("MaxUploads", listing.keys.max_keys).value("IsTruncated", page.truncated);
    for upload in &page.uploads {
        out.open("Upload").text("Key", &listing.encode_name(&upload.key));
        out.text("UploadId", &id_of(upload.body_id));
        write_owner(&mut out, "Initiator", &upload.owner);
        write_owner(&mut out, "Owner", &upload.owner);
        out.text("StorageClass", STORAGE_CLASS).time("Initiated", Timestamp(upload.initiated_ms));
        write_checksum(&mut out, upload);
        out.close("Upload");
    }
    for group in &page.groups {
        out.open("CommonPrefixes").text("Prefix", &listing.encode_name(group)).close("CommonPrefixes");
    }
    long_xml(request.memory, out.finish("ListMultipartUploadsResult"))
}

/// Page of uploads, ordered by key and then by creation.
#[derive(Default)]
pub(crate) struct MultipartUploadPage {
    uploads: Vec<Upload>,
    groups: Vec<String>,
    truncated: bool,
    /// Last key or common prefix of the page; for a key, with the body id of its upload.
    last: Option<(String, Option<u64>)>,
}

impl MultipartUploadPage {
    fn read(
        gateway: &Gateway,
        bucket: &Bucket,
        listing: &ListingParameters<'_>,
        markers: &UploadMarkers<'_>,
    ) -> Result<Self, S3Error> {
        let mut page = Self::default();
        let reader = gateway.objects.catalogue.reader();
        // No upload has id 0, so the scan begins with the first upload of the key itself.
        let scan_from = |from: &[u8]| reader.uploads(bucket.bucket_id(), Some((from, Some(BodyId(0)))));
        let mut scan = scan_from(markers.key.as_bytes().max(listing.keys.prefix.as_bytes()));
        while let Some((_, upload)) = scan.next().transpose()? {
            if !upload.key.starts_with(&*listing.keys.prefix) {
                break;
            }
            let groups = page.groups.len();
            if !page.try_add(upload, listing, markers) {
                break;
            }
            let group = page.groups.get(groups);
            match group.map(|group| after_prefix(group)) {
                Some(Some(next)) => scan = scan_from(&next),
                Some(None) => break,
                None => {}
            }
        }
        Ok(page)
    }

    /// Returns the page of these uploads, which are ordered and all begin with the listing's prefix.
    pub(crate) fn of(
        uploads: impl Iterator<Item = Upload>,
        listing: &ListingParameters<'_>,
        markers: &UploadMarkers<'_>,
    ) -> Self {
        let mut page = Self::default();
        for upload in uploads {
            if !page.try_add(upload, listing, markers) {
                break;
            }
        }
        page
    }

    /// Adds the next upload, unless it is on an earlier page or its common prefix is on this one. Returns
    /// false if the page is full.
    fn try_add(
        &mut self,
        upload: Upload,
        listing: &ListingParameters<'_>,
        markers: &UploadMarkers<'_>,
    ) -> bool {
        let group = listing.keys.common_prefix(&upload.key).map(str::to_owned);
        let is_here = group.is_some() && self.groups.last() == group.as_ref();
        if is_here || is_on_earlier_page(&upload, group.as_deref(), markers) {
            return true;
        }
        if self.uploads.len() + self.groups.len() >= listing.keys.max_keys {
            self.truncated = listing.keys.max_keys > 0;
            return false;
        }
        match group {
            None => {
                self.last = Some((upload.key.clone(), Some(upload.body_id)));
                self.uploads.push(upload);
            }
            Some(group) => {
                self.last = Some((group.clone(), None));
                self.groups.push(group);
            }
        }
        true
    }

    fn next(&self) -> Option<(&str, Option<u64>)> {
        let (key, body) = self.last.as_ref().filter(|_| self.truncated)?;
        Some((key, *body))
    }
}

/// True if an upload was on an earlier page, which ended at the markers.
fn is_on_earlier_page(upload: &Upload, group: Option<&str>, markers: &UploadMarkers<'_>) -> bool {
    if markers.key.is_empty() {
        return false;
    }
    match upload.key.as_str().cmp(&markers.key) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => markers.body.is_none_or(|body| upload.body_id <= body.get()),
        std::cmp::Ordering::Greater => group == Some(&*markers.key),
    }
}
