//! What of the tiers reads what others wrote, compiled from its own files without what uses it: settings of
//! upstreams, lanes of disks, the answers of origins, and the lines of the log of decisions.
#![allow(dead_code, unused_imports, reason = "decoders without their users")]

#[path = "../../../tiering/src/upstream"]
pub mod upstream {
    mod settings;

    pub use settings::{Addressing, CredentialSource, EtagTrust, UpstreamKind, UpstreamSettings};
}

#[path = "../../../tiering/src/fair"]
pub mod fair {
    mod lane;

    pub use lane::Lane;
}

#[path = "../../../tiering/src/decisions"]
pub mod decisions {
    mod entry;
    mod lines;
    mod words;

    pub use entry::{Decided, Entry, What, Why};
    pub use words::{Kind, Outcome, Place, Reason};

    use mlgw_common::Timestamp;
    use std::collections::BTreeMap;

    /// The entries of a file, and why lines of it are passed over.
    ///
    /// # Errors
    /// The number of a newer format.
    pub fn read(text: &[u8]) -> Result<(BTreeMap<u64, Entry>, Option<String>), u32> {
        let mut found = BTreeMap::new();
        let passed_over = lines::read(text, &mut found)?;
        Ok((found, passed_over))
    }

    /// The lines of entries.
    ///
    /// # Panics
    /// Never: they are of numbers and text.
    #[must_use]
    pub fn write(entries: &[Entry]) -> Vec<u8> {
        lines::of(entries).expect("numbers and text")
    }

    /// Whether the entry counts a decision of now as one more of the same; then it has counted it.
    pub fn count_on(entry: &mut Entry, now: Timestamp, decided: &Decided<'_>, error: &str) -> bool {
        let is_alike = entry.is_alike(now, decided);
        if is_alike {
            entry.add(now, decided, error);
        }
        is_alike
    }
}

#[path = "../../../tiering/src/origin"]
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

pub use fair::Lane;
