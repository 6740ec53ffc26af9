//! Client interface of the object stores behind remote-backed buckets.
//!
//! An origin is a trait, so that the layers above are tested against origins that fail in every way. Keys are
//! bytes as their owner wrote them: `a//b`, `../c` and `d/` are three valid keys, and pages come in byte
//! order. The S3 client is our own, because the libraries that support many stores normalise keys.
//!
//! Nothing here is kept on disk, so nothing is lost at a power failure.

mod change_body;
mod copy_in_parts;
mod digest;
mod error;
mod etag;
mod fence;
mod fenced;
mod metrics;
mod rate;
mod read;
mod retry;
pub mod s3;
#[cfg(test)]
mod test_origin;
mod write;

pub use digest::Md5Check;
pub use error::OriginError;
pub use etag::{Etag, md5_of, opaque_etag_hint};
pub use etag::{strong_validator, weak_validator};
pub use fence::OriginFence;
pub use fenced::FencedOrigin;
pub use metrics::OriginMetrics;
pub use read::{GetQuery, ListLine, ListPage, ListQuery, ObjectPart, OriginBody, OriginObject};
pub use write::{
    ChecksumTrailer, CreatedOriginUpload, OriginContent, OriginCopyReceipt, OriginDocument, OriginUploadRef,
    OriginWriteReceipt, PartLine, PartPage, Streamed, UploadLine, UploadPage, UploadsQuery,
    complete_document,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use mlgw_formats::schema::{ObjectVersion, Pair};
use std::ops::Range;

/// Pending result of a request to an origin.
pub type OriginFuture<'a, T> = BoxFuture<'a, Result<T, OriginError>>;

/// Bucket of an object store that other programs own.
pub trait Origin: Send + Sync + 'static {
    /// Returns a page of keys, in byte order.
    fn list<'a>(&'a self, query: &'a ListQuery) -> OriginFuture<'a, ListPage>;

    /// Returns the metadata of an object, with its checksums.
    fn head<'a>(&'a self, key: &'a str) -> OriginFuture<'a, ObjectVersion>;

    /// Reads an object or a range of it. The first bytes arrive after one round trip.
    fn get<'a>(&'a self, key: &'a str, query: &'a GetQuery) -> OriginFuture<'a, OriginObject>;

    /// Returns the metadata of an object and the byte range of its part `number`.
    fn head_part<'a>(&'a self, key: &'a str, number: u32) -> OriginFuture<'a, (ObjectVersion, Range<u64>)> {
        let _ = (key, number);
        read_only()
    }

    /// Name of the origin, for messages.
    fn name(&self) -> &str;

    /// Counters of the requests sent to the origin.
    fn metrics(&self) -> OriginMetrics;

    /// Writes a whole object.
    fn put<'a>(
        &'a self,
        key: &'a str,
        headers: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        let _ = (key, headers, content);
        read_only()
    }

    /// Deletes an object. A missing object is no error.
    fn delete<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> OriginFuture<'a, OriginWriteReceipt> {
        let _ = (key, headers);
        read_only()
    }

    /// Copies the object `source` of this origin to `key`.
    fn copy<'a>(
        &'a self,
        key: &'a str,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        let _ = (key, source, headers);
        read_only()
    }

    /// Returns the tags of an object.
    fn tags<'a>(&'a self, key: &'a str) -> OriginFuture<'a, Vec<Pair>> {
        let _ = key;
        read_only()
    }

    /// Replaces the tags of an object.
    fn set_tags<'a>(&'a self, key: &'a str, tags: &'a [Pair]) -> OriginFuture<'a, ()> {
        let _ = (key, tags);
        read_only()
    }

    /// Returns the answer to GetObjectAttributes.
    fn attributes<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> OriginFuture<'a, OriginDocument> {
        let _ = (key, headers);
        read_only()
    }

    /// Creates a multipart upload.
    fn create_upload<'a>(
        &'a self,
        key: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, CreatedOriginUpload> {
        let _ = (key, headers);
        read_only()
    }

    /// Writes a part of a multipart upload.
    fn put_part<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        number: u32,
        headers: &'a HeaderMap,
        content: OriginContent,
    ) -> OriginFuture<'a, OriginWriteReceipt> {
        let _ = (upload, number, headers, content);
        read_only()
    }

    /// Writes a part of a multipart upload as a copy of the object `source` of this origin, or of a range of
    /// it.
    fn copy_part<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        number: u32,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        let _ = (upload, number, source, headers);
        read_only()
    }

    /// Completes a multipart upload from the parts that a CompleteMultipartUpload document names.
    fn complete<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        headers: &'a HeaderMap,
        document: Bytes,
    ) -> OriginFuture<'a, OriginCopyReceipt> {
        let _ = (upload, headers, document);
        read_only()
    }

    /// Aborts a multipart upload; its parts are discarded.
    fn abort<'a>(&'a self, upload: OriginUploadRef<'a>) -> OriginFuture<'a, ()> {
        let _ = upload;
        read_only()
    }

    /// Lists parts of a multipart upload whose number is greater than `after`.
    fn list_parts<'a>(
        &'a self,
        upload: OriginUploadRef<'a>,
        after: u32,
        max: usize,
    ) -> OriginFuture<'a, PartPage> {
        let _ = (upload, after, max);
        read_only()
    }

    /// Lists multipart uploads in progress.
    fn list_uploads<'a>(&'a self, query: &'a UploadsQuery) -> OriginFuture<'a, UploadPage> {
        let _ = query;
        read_only()
    }
}

/// Fails with `NotImplemented`: the default of every write on a read-only origin.
fn read_only<'a, T: Send + 'a>() -> OriginFuture<'a, T> {
    Box::pin(async { Err(OriginError::refused(501, "NotImplemented", "This origin is read-only.")) })
}
