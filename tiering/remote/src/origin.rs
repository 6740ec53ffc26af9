//! Buckets of others that are fronted here.
//!
//! What is asked of one is a trait, so that everything above it is tested against origins that fail in every
//! way. Keys are bytes as their owner wrote them: `a//b`, `../c` and `d/` are three keys like any others, and
//! pages come in byte order. The one that speaks S3 is a client of our own, because libraries for many stores
//! tidy keys up.
//!
//! Nothing here is kept, so nothing is lost when power fails.

mod digest;
mod error;
mod etag;
mod metrics;
mod rate;
mod read;
mod retry;
pub mod s3;
mod write;

pub use digest::Md5Check;
pub use error::OriginError;
pub use etag::{Etag, hint, md5_of};
pub use etag::{strong_validator, weak_validator};
pub use metrics::OriginMetrics;
pub use read::{Body, GetQuery, Got, ListLine, ListPage, ListQuery, Part};
pub use write::{
    Begun, Content, Document, Made, PartLine, PartPage, Streamed, Trailer, UploadLine, UploadOf, UploadPage,
    UploadsQuery, Written, complete_document,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use mlgw_formats::schema::{ObjectVersion, Pair};
use std::ops::Range;

/// An answer of an origin.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, OriginError>>;

/// A bucket of somebody else's.
pub trait Origin: Send + Sync + 'static {
    /// A page of keys, in byte order.
    fn list<'a>(&'a self, query: &'a ListQuery) -> Answer<'a, ListPage>;

    /// What the object is like, with its checksums.
    fn head<'a>(&'a self, key: &'a str) -> Answer<'a, ObjectVersion>;

    /// The object or a range of it: one round trip until its first bytes.
    fn get<'a>(&'a self, key: &'a str, query: &'a GetQuery) -> Answer<'a, Got>;

    /// What the object is like, and which of its bytes are its part `number`.
    fn head_part<'a>(&'a self, key: &'a str, number: u32) -> Answer<'a, (ObjectVersion, Range<u64>)> {
        let _ = (key, number);
        no_writes()
    }

    /// For messages: which it is.
    fn name(&self) -> &str;

    /// What was asked of it.
    fn metrics(&self) -> OriginMetrics;

    /// Writes an object whole.
    fn put<'a>(&'a self, key: &'a str, headers: &'a HeaderMap, content: Content) -> Answer<'a, Written> {
        let _ = (key, headers, content);
        no_writes()
    }

    /// Deletes an object, if there is one.
    fn delete<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> Answer<'a, Written> {
        let _ = (key, headers);
        no_writes()
    }

    /// Copies the object `source` of this origin.
    fn copy<'a>(&'a self, key: &'a str, source: &'a str, headers: &'a HeaderMap) -> Answer<'a, Made> {
        let _ = (key, source, headers);
        no_writes()
    }

    /// The tags of an object.
    fn tags<'a>(&'a self, key: &'a str) -> Answer<'a, Vec<Pair>> {
        let _ = key;
        no_writes()
    }

    /// Gives an object these tags and no others.
    fn set_tags<'a>(&'a self, key: &'a str, tags: &'a [Pair]) -> Answer<'a, ()> {
        let _ = (key, tags);
        no_writes()
    }

    /// What GetObjectAttributes says of an object.
    fn attributes<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> Answer<'a, Document> {
        let _ = (key, headers);
        no_writes()
    }

    /// Begins an upload in parts.
    fn create_upload<'a>(&'a self, key: &'a str, headers: &'a HeaderMap) -> Answer<'a, Begun> {
        let _ = (key, headers);
        no_writes()
    }

    /// Writes a part of an upload.
    fn put_part<'a>(
        &'a self,
        upload: UploadOf<'a>,
        number: u32,
        headers: &'a HeaderMap,
        content: Content,
    ) -> Answer<'a, Written> {
        let _ = (upload, number, headers, content);
        no_writes()
    }

    /// Writes a part of an upload that is a copy of the object `source` of this origin, or of a range of it.
    fn copy_part<'a>(
        &'a self,
        upload: UploadOf<'a>,
        number: u32,
        source: &'a str,
        headers: &'a HeaderMap,
    ) -> Answer<'a, Made> {
        let _ = (upload, number, source, headers);
        no_writes()
    }

    /// Makes an upload an object, of the parts that a CompleteMultipartUpload document names.
    fn complete<'a>(
        &'a self,
        upload: UploadOf<'a>,
        headers: &'a HeaderMap,
        document: Bytes,
    ) -> Answer<'a, Made> {
        let _ = (upload, headers, document);
        no_writes()
    }

    /// Ends an upload; its parts are discarded.
    fn abort<'a>(&'a self, upload: UploadOf<'a>) -> Answer<'a, ()> {
        let _ = upload;
        no_writes()
    }

    /// The parts of an upload behind the number `after`.
    fn list_parts<'a>(&'a self, upload: UploadOf<'a>, after: u32, max: usize) -> Answer<'a, PartPage> {
        let _ = (upload, after, max);
        no_writes()
    }

    /// The uploads that have not ended.
    fn list_uploads<'a>(&'a self, query: &'a UploadsQuery) -> Answer<'a, UploadPage> {
        let _ = query;
        no_writes()
    }
}

/// What an origin says that can be read only.
fn no_writes<'a, T: Send + 'a>() -> Answer<'a, T> {
    Box::pin(async { Err(OriginError::refused(501, "NotImplemented", "This origin can be read only.")) })
}
