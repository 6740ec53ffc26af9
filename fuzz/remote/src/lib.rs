//! The decoders of what other object stores answer, and the settings of upstreams, compiled from their own files
//! without the clients around them.
#![allow(dead_code, unused_imports, reason = "decoders without their users")]

#[path = "../../../tiering/remote/src/upstream"]
pub mod upstream {
    mod settings;

    pub use settings::{Addressing, CredentialSource, EtagTrust, UpstreamKind, UpstreamSettings};
}

#[path = "../../../tiering/remote/src/origin"]
pub mod origin {
    mod error;
    mod etag;
    mod read;
    mod retry;
    mod write;

    pub mod s3 {
        mod chunked;
        mod head;
        mod refusal;
        mod results;
        mod xml;

        /// What the client of an S3 origin makes of its answers, by the operation.
        pub mod answers {
            use super::{chunked, head, refusal, results, xml};
            use crate::origin::{
                Body, ListLine, ListPage, ListQuery, Made, OriginError, PartPage, Trailer, UploadPage,
                UploadsQuery, retry,
            };
            use crate::upstream::EtagTrust;
            use http::{HeaderMap, StatusCode};
            use mlgw_formats::schema::{ObjectVersion, Pair};
            use std::ops::Range;
            use std::time::Duration;

            type Result<T> = std::result::Result<T, OriginError>;

            /// A page of keys.
            pub fn list(document: &[u8], query: &ListQuery) -> Result<ListPage> {
                xml::page(document)?.within(query)
            }

            /// Takes a prefix off a line of it.
            pub fn strip(line: &mut ListLine, prefix: &str) -> Result<()> {
                line.strip(prefix)
            }

            /// A page of parts.
            pub fn parts(document: &[u8], after: u32, max: usize) -> Result<PartPage> {
                results::parts(document)?.within(after, max)
            }

            /// A page of uploads.
            pub fn uploads(document: &[u8], query: &UploadsQuery) -> Result<UploadPage> {
                results::uploads(document)?.within(query)
            }

            /// A copy, or an upload that was completed.
            pub fn made(document: &[u8]) -> Result<Made> {
                results::made(document)
            }

            /// An upload that was begun.
            pub fn upload_id(document: &[u8]) -> Result<String> {
                results::upload_id(document)
            }

            /// Tags.
            pub fn tags(document: &[u8]) -> Result<Vec<Pair>> {
                results::tags(document)
            }

            /// The document of tags.
            pub fn tagging(tags: &[Pair]) -> Result<String> {
                results::tagging(tags)
            }

            /// What an object is like, and which bytes of it follow.
            pub fn described(status: StatusCode, headers: &HeaderMap) -> Result<(ObjectVersion, Range<u64>)> {
                head::described(status, headers, EtagTrust::Auto)
            }

            /// An ETag without its quotes.
            #[must_use]
            pub fn unquoted(etag: &str) -> String {
                head::unquoted(etag)
            }

            /// What clients know of a head.
            #[must_use]
            pub fn known(headers: &HeaderMap) -> HeaderMap {
                head::known(headers)
            }

            /// What an answer means that is no success.
            #[must_use]
            pub fn refusal(status: StatusCode, headers: &HeaderMap, document: &[u8]) -> OriginError {
                refusal::refusal(status, headers, document)
            }

            /// How long to wait after it.
            #[must_use]
            pub fn wait(error: &OriginError, failures: u32) -> Option<Duration> {
                retry::wait(error, failures, 1.0)
            }

            /// The length of a framed body, and the body.
            #[must_use]
            pub fn framed(bytes: u64, pieces: Body, trailer: Trailer) -> (u64, Body) {
                (chunked::length(bytes, &trailer), chunked::framed(bytes, pieces, trailer))
            }
        }
    }

    pub use error::OriginError;
    pub use etag::{Etag, md5_of};
    pub use read::{Body, GetQuery, Got, ListLine, ListPage, ListQuery, Part};
    pub use write::{
        Begun, Content, Document, Made, PartLine, PartPage, Streamed, Trailer, UploadLine, UploadOf,
        UploadPage, UploadsQuery, Written,
    };
}
