//! XML documents of requests, element by element. Their meaning is documented where they are used.
#![expect(missing_docs, reason = "the fields are S3's own elements")]

use crate::error::S3Error;
use crate::tags::check_tags;
use crate::xml_input::parse;
use mlgw_formats::checksum::Algorithm;
use mlgw_formats::schema::Pair;
use serde::Deserialize;

/// Document of CreateBucket.
#[derive(Deserialize)]
pub struct CreateDocument {
    #[serde(rename = "LocationConstraint")]
    pub location: Option<String>,
}

/// Document of DeleteObjects.
#[derive(Deserialize)]
pub struct DeleteDocument {
    #[serde(rename = "Quiet", default)]
    pub quiet: bool,
    #[serde(rename = "Object", default)]
    pub objects: Vec<ObjectToDelete>,
}

/// A key to delete, with its conditions.
#[derive(Deserialize)]
pub struct ObjectToDelete {
    #[serde(rename = "Key")]
    pub key: String,
    #[serde(rename = "VersionId")]
    pub version_id: Option<String>,
    #[serde(rename = "ETag")]
    pub etag: Option<String>,
    #[serde(rename = "Size")]
    pub size: Option<String>,
    #[serde(rename = "LastModifiedTime")]
    pub modified: Option<String>,
}

/// Document of CompleteMultipartUpload.
#[derive(Deserialize)]
pub struct CompleteDocument {
    #[serde(rename = "Part", default)]
    pub parts: Vec<ClientPart>,
}

/// A part as named by the client.
#[derive(Deserialize)]
pub struct ClientPart {
    #[serde(rename = "PartNumber")]
    pub number: u32,
    #[serde(rename = "ETag")]
    pub etag: String,
    #[serde(rename = "ChecksumCRC32")]
    pub crc32: Option<String>,
    #[serde(rename = "ChecksumCRC32C")]
    pub crc32c: Option<String>,
    #[serde(rename = "ChecksumCRC64NVME")]
    pub crc64nvme: Option<String>,
    #[serde(rename = "ChecksumSHA1")]
    pub sha1: Option<String>,
    #[serde(rename = "ChecksumSHA256")]
    pub sha256: Option<String>,
}

impl ClientPart {
    /// Returns the checksum of `algorithm` that the client sent, if there is one.
    #[must_use]
    pub fn client_checksum(&self, algorithm: Algorithm) -> Option<&str> {
        let stated = match algorithm {
            Algorithm::Crc32 => &self.crc32,
            Algorithm::Crc32c => &self.crc32c,
            Algorithm::Crc64Nvme => &self.crc64nvme,
            Algorithm::Sha1 => &self.sha1,
            Algorithm::Sha256 => &self.sha256,
        };
        // Some SDKs write an element for every algorithm, most of them empty.
        stated.as_deref().map(str::trim).filter(|stated| !stated.is_empty())
    }
}

/// Document of PutObjectTagging and of form uploads.
#[derive(Deserialize)]
pub struct TaggingDocument {
    #[serde(rename = "TagSet")]
    pub set: TagSetElement,
}

impl TaggingDocument {
    /// Parses and validates the tags of a document.
    ///
    /// # Errors
    /// `MalformedXML`, `InvalidTag`.
    pub fn tags(document: &[u8]) -> Result<Vec<Pair>, S3Error> {
        let document: Self = parse(document)?;
        let tags = document.set.tags.into_iter().map(|tag| Pair { name: tag.key, value: tag.value });
        let tags: Vec<Pair> = tags.collect();
        check_tags(&tags)?;
        Ok(tags)
    }
}

/// Content of [`TaggingDocument`].
#[derive(Deserialize)]
pub struct TagSetElement {
    #[serde(rename = "Tag", default)]
    pub tags: Vec<TagElement>,
}

/// A tag.
#[derive(Deserialize)]
pub struct TagElement {
    #[serde(rename = "Key")]
    pub key: String,
    #[serde(rename = "Value")]
    pub value: String,
}
