//! The XML of responses, limited to the elements that the tests read.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::CallFailure;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListBucketResult {
    #[serde(default)]
    pub(super) contents: Vec<Contents>,
    pub(super) is_truncated: bool,
    pub(super) next_continuation_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Contents {
    pub(super) key: String,
    #[serde(rename = "ETag")]
    pub(super) etag: String,
    pub(super) size: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct InitiateMultipartUploadResult {
    pub(super) upload_id: String,
}

/// The response of CompleteMultipartUpload, CopyObject and UploadPartCopy.
#[derive(Debug, Deserialize)]
pub(super) struct EtagResult {
    #[serde(rename = "ETag")]
    pub(super) etag: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListPartsResult {
    #[serde(rename = "Part", default)]
    pub(super) parts: Vec<Part>,
    pub(super) is_truncated: bool,
    pub(super) next_part_number_marker: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Part {
    pub(super) part_number: u32,
    #[serde(rename = "ETag")]
    pub(super) etag: String,
    pub(super) size: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListUploadsResult {
    #[serde(rename = "Upload", default)]
    pub(super) uploads: Vec<Upload>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Upload {
    pub(super) upload_id: String,
}

/// Parses the XML of a response.
///
/// # Errors
/// The XML is not a response of this operation; an `<Error>` in a 200 response is one such case.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, CallFailure> {
    let text = String::from_utf8_lossy(body);
    quick_xml::de::from_str(&text).map_err(|error| CallFailure::NoResponse(format!("{error} in {text}")))
}
