//! Documents that clients send: XML bodies, read whole within their limit and the memory budget.

use super::error::S3Error;
use super::request::Request;
use super::{Gateway, Upload};
use crate::body::{Body, Terms, read_all};
use bytes::Bytes;
use mlgw_common::limits::XML_BODY_BYTES_MAX;
use std::ops::Deref;
use tokio::sync::OwnedSemaphorePermit;

/// A document, with the memory that it holds.
pub struct Document {
    bytes: Bytes,
    _memory: OwnedSemaphorePermit,
}

impl Deref for Document {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a document is held to.
pub const TERMS: Terms = Terms::document(XML_BODY_BYTES_MAX as u64);

/// Reads the document of a request.
///
/// # Errors
/// Whatever is wrong with the body, `SlowDown` when memory is short.
pub async fn read(
    gateway: &Gateway,
    request: &Request<'_>,
    upload: Upload<'_>,
    terms: Terms,
) -> Result<Document, S3Error> {
    let body = Body::new(upload.incoming, request.head, upload.payload, terms)?;
    let bytes_max = body.decoded_length().unwrap_or(terms.bytes_max);
    let memory = gateway.memory.document(bytes_max, &gateway.metrics).await?;
    Ok(Document { bytes: read_all(body).await?, _memory: memory })
}
