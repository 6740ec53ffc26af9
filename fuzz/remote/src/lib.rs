//! The decoders of responses of other object stores, and the settings of upstreams, compiled from their own
//! files without the clients around them.
#![allow(dead_code, unused_imports, reason = "decoders without their users")]

#[path = "../../../tiering/remote/src/upstream"]
pub mod upstream {
    mod settings;

    pub use settings::{BucketAddressing, CredentialSource, EtagTrust, UpstreamKind, UpstreamSettings};
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

        /// Decoders of the S3 origin client, by operation.
        pub mod answers {
            use super::{chunked, head, refusal, results, xml};
            use crate::origin::{
                ChecksumTrailer, ListLine, ListPage, ListQuery, OriginBody, OriginCopyReceipt, OriginError,
                PartPage, UploadPage, UploadsQuery, retry,
            };
            use crate::upstream::EtagTrust;
            use backon::BackoffBuilder as _;
            use http::{HeaderMap, StatusCode};
            use mlgw_formats::schema::{ObjectVersion, Pair};
            use std::ops::Range;
            use std::time::Duration;

            type Result<T> = std::result::Result<T, OriginError>;

            /// Decodes a page of keys.
            pub fn list(document: &[u8], query: &ListQuery) -> Result<ListPage> {
                xml::parse_list_page(document)?.within(query)
            }

            /// Removes a prefix from the name of a line.
            pub fn strip(line: &mut ListLine, prefix: &str) -> Result<()> {
                line.strip(prefix)
            }

            /// Decodes a page of parts.
            pub fn parts(document: &[u8], after: u32, max: usize) -> Result<PartPage> {
                results::parts(document)?.within(after, max)
            }

            /// Decodes a page of uploads.
            pub fn uploads(document: &[u8], query: &UploadsQuery) -> Result<UploadPage> {
                results::uploads(document)?.within(query)
            }

            /// Decodes the result of a copy or of a completed upload.
            pub fn made(document: &[u8]) -> Result<OriginCopyReceipt> {
                results::parse_copy_receipt(document)
            }

            /// Decodes the id of a created upload.
            pub fn upload_id(document: &[u8]) -> Result<String> {
                results::upload_id(document)
            }

            /// Decodes tags.
            pub fn tags(document: &[u8]) -> Result<Vec<Pair>> {
                results::tags(document)
            }

            /// Encodes a document of tags.
            pub fn tagging(tags: &[Pair]) -> Result<String> {
                results::tagging(tags)
            }

            /// Decodes the description of an object, and the range of the bytes that follow.
            pub fn described(status: StatusCode, headers: &HeaderMap) -> Result<(ObjectVersion, Range<u64>)> {
                head::object_and_range(status, headers, EtagTrust::Auto)
            }

            /// Returns an ETag without its quotes.
            #[must_use]
            pub fn unquoted(etag: &str) -> String {
                head::unquoted(etag)
            }

            /// Returns the headers of a response that are passed on to clients.
            #[must_use]
            pub fn known(headers: &HeaderMap) -> HeaderMap {
                head::client_headers(headers)
            }

            /// Returns the error that an unsuccessful response means.
            #[must_use]
            pub fn refusal(status: StatusCode, headers: &HeaderMap, document: &[u8]) -> OriginError {
                refusal::error_of_response(status, headers, document)
            }

            /// Returns the time to wait before the next attempt, if there is to be one.
            #[must_use]
            pub fn wait(error: &OriginError, failures: u32) -> Option<Duration> {
                retry::jittered(error, retry::WAITS.build().nth(failures as usize - 1), 1.0)
            }

            /// Returns the length of a framed body, and the body.
            #[must_use]
            pub fn framed(bytes: u64, pieces: OriginBody, trailer: ChecksumTrailer) -> (u64, OriginBody) {
                (chunked::framed_length(bytes, &trailer), chunked::framed(bytes, pieces, trailer))
            }
        }
    }

    pub use error::OriginError;
    pub use etag::{Etag, md5_of};
    pub use read::{GetQuery, ListLine, ListPage, ListQuery, ObjectPart, OriginBody, OriginObject};
    pub use write::{
        ChecksumTrailer, CreatedOriginUpload, OriginContent, OriginCopyReceipt, OriginDocument,
        OriginUploadRef, OriginWriteReceipt, PartLine, PartPage, Streamed, UploadLine, UploadPage,
        UploadsQuery,
    };
}
