//! XML documents that clients send, read as a whole within their size limit and the memory budget.

use super::IncomingBody;
use super::request::AuthenticatedRequest;
use bytes::Bytes;
use mlgw_body::{BodyTerms, RequestBody, read_all};
use mlgw_common::limits::{SMALL_BODY_BYTES, XML_BODY_BYTES_MAX};
use mlgw_objects::CONNECTION_BLOCKS;
use mlgw_objects::memory::{MemoryGrant, blocks_of};
use mlgw_wire::error::S3Error;
use std::ops::Deref;

/// A document with its memory grant.
pub struct ReceivedDocument {
    bytes: Bytes,
    _memory: Option<MemoryGrant>,
}

impl Deref for ReceivedDocument {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Terms for the body of a document.
pub const DOCUMENT_TERMS: BodyTerms = BodyTerms::document(XML_BODY_BYTES_MAX as u64);

/// Reads the document of a request.
///
/// # Errors
/// Errors of the body; `SlowDown` if memory is short.
pub async fn read(
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
    terms: BodyTerms,
) -> Result<ReceivedDocument, S3Error> {
    let body = RequestBody::new(upload.incoming, request.head, upload.payload, terms)?;
    let bytes_max = body.decoded_length().unwrap_or(terms.bytes_max);
    let memory = match bytes_max <= SMALL_BODY_BYTES as u64 {
        true => None,
        // One copy for the received bytes and one for the parsed document.
        false => Some(request.memory.reserve(2 * blocks_of(bytes_max) + CONNECTION_BLOCKS).await?),
    };
    Ok(ReceivedDocument { bytes: read_all(body).await?, _memory: memory })
}
