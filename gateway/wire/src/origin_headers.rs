//! Headers of requests to an origin: description, digests and conditions of a stored object.

use super::checksums::{kind_name, wire_value};
use super::tags::format_tags_query;
use super::values::{etag_value, header_value, metadata_value, stored_value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use mlgw_formats::checksum;
use mlgw_formats::schema::{Checksum, ChecksumKind, ObjectVersion, Pair};
use std::ops::{Deref, DerefMut};

/// Headers of a request to an origin, set by their meaning. Background work uses them without naming HTTP.
#[derive(Clone, Debug, Default)]
pub struct OriginHeaders(HeaderMap);

impl OriginHeaders {
    /// Returns the condition that there is no object.
    #[must_use]
    pub fn if_absent() -> Self {
        Self(HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("*"))]))
    }

    /// Returns the condition that the object has this ETag.
    #[must_use]
    pub fn if_match(etag: &str) -> Self {
        Self(HeaderMap::from_iter([(header::IF_MATCH, etag_value(etag))]))
    }

    /// Adds the description of an object ([`describe`]).
    pub fn describe(&mut self, version: &ObjectVersion) {
        describe(version, &mut self.0);
    }

    /// Adds the MD5 of the bytes of the request.
    pub fn add_md5(&mut self, md5: &[u8; 16]) {
        self.0.insert("content-md5", header_value(&BASE64.encode(md5)));
    }

    /// Adds a checksum of the bytes of the request.
    pub fn add_checksum(&mut self, checksum: &Checksum) {
        let algorithm = checksum::algorithm_from_stored(checksum.algorithm());
        let name = HeaderName::from_static(algorithm.header());
        self.0.insert(name, header_value(&wire_value(checksum, 0)));
    }

    /// Adds the checksums of a whole object.
    pub fn add_object_checksums(&mut self, version: &ObjectVersion) {
        let of_whole = |checksum: &&Checksum| checksum.kind() == ChecksumKind::FullObject;
        version.checksums.iter().filter(of_whole).for_each(|checksum| self.add_checksum(checksum));
    }

    /// Announces algorithm and type of the checksum that an upload gets when it is completed.
    pub fn announce_checksum(&mut self, checksum: &Checksum) {
        let algorithm = checksum::algorithm_from_stored(checksum.algorithm());
        self.0.insert("x-amz-checksum-algorithm", HeaderValue::from_static(algorithm.name()));
        self.0.insert("x-amz-checksum-type", HeaderValue::from_static(kind_name(checksum.kind())));
    }
}

impl Deref for OriginHeaders {
    type Target = HeaderMap;

    fn deref(&self) -> &HeaderMap {
        &self.0
    }
}

impl DerefMut for OriginHeaders {
    fn deref_mut(&mut self) -> &mut HeaderMap {
        &mut self.0
    }
}

/// Adds the headers of a PUT that describe an object: stored headers, user metadata and tags.
pub fn describe(version: &ObjectVersion, headers: &mut HeaderMap) {
    let stored = version.headers.iter().filter(|pair| !pair.name.starts_with(':'));
    describe_as(stored, &version.metadata, headers);
    if !version.tags.is_empty() {
        headers.append("x-amz-tagging", header_value(&format_tags_query(&version.tags)));
    }
}

/// Adds stored headers and user metadata as headers of a request to an origin.
pub fn describe_as<'a>(
    stored: impl IntoIterator<Item = &'a Pair>,
    metadata: &[Pair],
    headers: &mut HeaderMap,
) {
    for pair in stored {
        if let Ok(name) = HeaderName::from_bytes(pair.name.as_bytes()) {
            let value = stored_value(&name, &pair.value);
            headers.append(name, value);
        }
    }
    for pair in metadata {
        if let Ok(name) = HeaderName::from_bytes(format!("x-amz-meta-{}", pair.name).as_bytes()) {
            headers.append(name, metadata_value(&pair.value));
        }
    }
}
