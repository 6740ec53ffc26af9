//! The table of request headers.

use crate::operation::Operation;
use HeaderElsewhere::{HasEffect, Refused as RefusedElsewhere, RefusedOnWrites};
use HeaderRule::{AlwaysMet, Honoured, HonouredValues, MetByValues, Owner, Refused, StorageClass, Token};
use Operation as O;

/// Treatment of one header, or of a family of headers with a common prefix.
pub(super) struct HeaderRow {
    /// Name in lower case; for a family, the common prefix.
    pub(super) name: &'static str,
    pub(super) rule: HeaderRule,
    /// Reason, for the documentation.
    pub(super) reason: &'static str,
}

/// Treatment of a header.
#[derive(Clone, Copy)]
pub(super) enum HeaderRule {
    /// These operations implement the header.
    Honoured(&'static [Operation], HeaderElsewhere),
    /// These operations implement the header, for these values.
    HonouredValues(&'static [Operation], &'static [&'static str]),
    /// The requested behavior is always in effect.
    AlwaysMet,
    /// The requested behavior is always in effect for these values; others are refused.
    MetByValues(&'static [&'static str]),
    /// The value must be the only storage class.
    StorageClass,
    /// The value must be the only owner.
    Owner,
    /// The header carries temporary credentials, which are never valid here.
    Token,
    /// mlgw does not implement the requested feature.
    Refused,
}

/// Treatment of a header on operations for which it has no meaning.
#[derive(Clone, Copy)]
pub(super) enum HeaderElsewhere {
    /// The header has this effect, at AWS and here.
    HasEffect(&'static str),
    /// Refused on writes, which would otherwise ignore the header.
    RefusedOnWrites,
    /// Refused.
    Refused,
}

/// AWS's storage classes beside `STANDARD`.
pub(super) const STORAGE_CLASSES: &[&str] = &[
    "DEEP_ARCHIVE",
    "EXPRESS_ONEZONE",
    "FSX_ONTAP",
    "FSX_OPENZFS",
    "GLACIER",
    "GLACIER_IR",
    "INTELLIGENT_TIERING",
    "ONEZONE_IA",
    "OUTPOSTS",
    "REDUCED_REDUNDANCY",
    "SNOW",
    "STANDARD_IA",
];

const READS: &[Operation] = &[O::GetObject, O::HeadObject];
const COPIES: &[Operation] = &[O::CopyObject, O::UploadPartCopy];
const BODIES: &[Operation] = &[O::PutObject, O::UploadPart, O::PostObject];
const ANY: &[Operation] = &[];
/// Operations that set the headers, metadata and tags of a version.
const DESCRIBING: &[Operation] = &[O::PutObject, O::PostObject, O::CopyObject, O::CreateMultipartUpload];
const CONDITIONAL: &[Operation] = &[
    O::GetObject,
    O::HeadObject,
    O::PutObject,
    O::PostObject,
    O::CopyObject,
    O::CompleteMultipartUpload,
    O::DeleteObject,
];
const WHOLE: &[Operation] = &[O::PutObject, O::UploadPart, O::PostObject, O::CompleteMultipartUpload];

const NOTHING: HeaderElsewhere = HasEffect("no effect");

const fn row(name: &'static str, rule: HeaderRule, reason: &'static str) -> HeaderRow {
    HeaderRow { name, rule, reason }
}

/// Headers by name, sorted.
#[rustfmt::skip]
pub(super) const ROWS: &[HeaderRow] = &[
    row("accept", AlwaysMet, "each response has one representation"),
    row("accept-encoding", AlwaysMet, "objects are sent as they are stored"),
    row("authorization", Honoured(ANY, HasEffect("authentication")), "SigV4"),
    row("cache-control", Honoured(DESCRIBING, HasEffect(
        "no effect, because this server is the origin")), "stored with the object"),
    row("connection", Honoured(ANY, HasEffect("lifetime of the connection")), "HTTP"),
    row("content-disposition", Honoured(DESCRIBING, NOTHING), "stored with the object"),
    row("content-encoding", Honoured(DESCRIBING, HasEffect(
        "encoding of the request body")), "stored without `aws-chunked`"),
    row("content-language", Honoured(DESCRIBING, NOTHING), "stored with the object"),
    row("content-length", Honoured(ANY, HasEffect("length of the body")), "a mismatch is `IncompleteBody`"),
    row("content-md5", Honoured(ANY, HasEffect("MD5 of the body")), "a mismatch is `BadDigest`"),
    row("content-range", Refused, "a partial write would replace the whole object"),
    row("content-type", Honoured(DESCRIBING, HasEffect(
        "boundary of a form, else no effect")), "stored with the object"),
    row("date", Honoured(ANY, HasEffect("time of signing")), "used if there is no x-amz-date"),
    row("expect", Honoured(ANY, HasEffect("requests 100 Continue")), "HTTP"),
    row("expires", Honoured(DESCRIBING, NOTHING), "stored with the object"),
    row("host", Honoured(ANY, HasEffect("bucket of a virtual-hosted-style request")), "HTTP"),
    row("if-match", Honoured(CONDITIONAL, RefusedOnWrites), "412 if the condition fails"),
    row("if-modified-since", Honoured(READS, RefusedOnWrites), "304 if the condition fails"),
    row("if-none-match", Honoured(CONDITIONAL, RefusedOnWrites), "304 or 412 if the condition fails"),
    row("if-range", Honoured(READS, NOTHING), "the whole object if the version differs"),
    row("if-unmodified-since", Honoured(READS, RefusedOnWrites), "412 if the condition fails"),
    row("origin", AlwaysMet, "no bucket has a CORS configuration"),
    row("range", Honoured(READS, HasEffect("no effect, as in HTTP")), "206"),
    row("transfer-encoding", Honoured(ANY, HasEffect("encoding of the request body")), "HTTP"),
    row("user-agent", AlwaysMet, "informational"),
    row("x-amz-acl", MetByValues(&["private", "bucket-owner-full-control"]),
        "there is one owner, and there are no ACLs"),
    row("x-amz-api-version", MetByValues(&["2006-03-01"]), "S3 has one API version"),
    row("x-amz-bucket-object-lock-enabled", MetByValues(&["false"]), "object lock is not supported"),
    row("x-amz-bypass-governance-retention", AlwaysMet, "no object is under retention"),
    row("x-amz-checksum-algorithm", Honoured(&[O::CopyObject, O::CreateMultipartUpload], NOTHING),
        "algorithm of the stored checksum"),
    row("x-amz-checksum-crc32", Honoured(WHOLE, HasEffect("checksum of the body")),
        "a mismatch is `BadDigest`"),
    row("x-amz-checksum-crc32c", Honoured(WHOLE, HasEffect("checksum of the body")),
        "a mismatch is `BadDigest`"),
    row("x-amz-checksum-crc64nvme", Honoured(WHOLE, HasEffect("checksum of the body")),
        "a mismatch is `BadDigest`"),
    row("x-amz-checksum-mode", HonouredValues(READS, &["ENABLED", "DISABLED"]),
        "returns the checksums if `ENABLED`"),
    row("x-amz-checksum-sha1", Honoured(WHOLE, HasEffect("checksum of the body")),
        "a mismatch is `BadDigest`"),
    row("x-amz-checksum-sha256", Honoured(WHOLE, HasEffect("checksum of the body")),
        "a mismatch is `BadDigest`"),
    row("x-amz-checksum-type", Honoured(&[O::CreateMultipartUpload, O::CompleteMultipartUpload], NOTHING),
        "composite or full object"),
    row("x-amz-content-sha256", Honoured(ANY, HasEffect("signed hash of the body, or its signing mode")),
        "a mismatch is `XAmzContentSHA256Mismatch`"),
    row("x-amz-copy-source", Honoured(COPIES, RefusedElsewhere), "turns a PUT into a copy"),
    row("x-amz-copy-source-if-match", Honoured(COPIES, RefusedElsewhere), "412 if the condition fails"),
    row("x-amz-copy-source-if-modified-since", Honoured(COPIES, RefusedElsewhere),
        "412 if the condition fails"),
    row("x-amz-copy-source-if-none-match", Honoured(COPIES, RefusedElsewhere), "412 if the condition fails"),
    row("x-amz-copy-source-if-unmodified-since", Honoured(COPIES, RefusedElsewhere),
        "412 if the condition fails"),
    row("x-amz-copy-source-range", Honoured(&[O::UploadPartCopy], RefusedElsewhere), "range to copy"),
    row("x-amz-date", Honoured(ANY, HasEffect("time of signing")), "SigV4"),
    row("x-amz-decoded-content-length", Honoured(ANY, HasEffect("length of an aws-chunked body")),
        "a mismatch is `IncompleteBody`"),
    row("x-amz-expected-bucket-owner", Owner, "there is one owner"),
    row("x-amz-if-match-last-modified-time", Honoured(&[O::DeleteObject], RefusedElsewhere),
        "412 if the condition fails"),
    row("x-amz-if-match-size", Honoured(&[O::DeleteObject], RefusedElsewhere), "412 if the condition fails"),
    row("x-amz-max-parts", Honoured(&[O::GetObjectAttributes], NOTHING), "size of a page of parts"),
    row("x-amz-metadata-directive", Honoured(&[O::CopyObject], NOTHING), "`COPY` or `REPLACE`"),
    row("x-amz-mfa", Refused, "MFA is not supported"),
    row("x-amz-mp-object-size", Honoured(&[O::CompleteMultipartUpload], NOTHING),
        "another size is `InvalidRequest`"),
    row("x-amz-object-attributes", Honoured(&[O::GetObjectAttributes], NOTHING), "attributes to return"),
    row("x-amz-object-lock-legal-hold", MetByValues(&["OFF"]), "object lock is not supported"),
    row("x-amz-object-ownership", MetByValues(&["BucketOwnerEnforced"]), "there is one owner"),
    row("x-amz-optional-object-attributes", MetByValues(&["RestoreStatus"]),
        "no object is archived or being restored"),
    row("x-amz-part-number-marker", Honoured(&[O::GetObjectAttributes], NOTHING), "start of a page of parts"),
    row("x-amz-request-payer", AlwaysMet, "requests are not charged"),
    row("x-amz-sdk-checksum-algorithm", Honoured(BODIES, HasEffect("checksum of the body")),
        "must match the checksum that is sent"),
    row("x-amz-security-token", Token, "no temporary credentials are issued"),
    row("x-amz-source-expected-bucket-owner", Owner, "there is one owner"),
    row("x-amz-storage-class", StorageClass, "tiers are not storage classes"),
    row("x-amz-tagging", Honoured(DESCRIBING, NOTHING), "tags of the object"),
    row("x-amz-tagging-directive", Honoured(&[O::CopyObject], NOTHING), "`COPY` or `REPLACE`"),
    row("x-amz-te", AlwaysMet, "encodings that the client accepts"),
    row("x-amz-trailer", Honoured(BODIES, HasEffect(
        "names of the trailers")), "a body without them is `MalformedTrailerError`"),
    row("x-amz-user-agent", AlwaysMet, "informational"),
    row("x-amz-website-redirect-location", Honoured(DESCRIBING, NOTHING), "stored with the object"),
    row("x-mlgw-batch-size", Honoured(ANY, HasEffect("batch size of the workload")),
        "number of objects read at once"),
    row("x-mlgw-gpu-count", Honoured(ANY, HasEffect("accelerators of the workload")),
        "number of accelerators that read"),
    row("x-mlgw-split-keys", Honoured(&[O::CreateBucket], RefusedElsewhere),
        "keys at which the bucket is split into ranges"),
    row("x-mlgw-workload", Honoured(ANY, HasEffect("name of the workload")),
        "selects the lane and the rules"),
];

/// Families of headers, for names without a row of their own.
#[rustfmt::skip]
pub(super) const PREFIXES: &[HeaderRow] = &[
    row("amz-sdk-", AlwaysMet, "SDK diagnostics"),
    row("x-amz-meta-", Honoured(DESCRIBING, NOTHING), "metadata of the object"),
    row("x-amz-checksum-", Refused, "unsupported checksum algorithm"),
    row("x-amz-copy-source-server-side-encryption-", Refused,
        "encryption with customer keys is not supported"),
    row("x-amz-grant-", Refused, "there are no ACLs"),
    row("x-amz-object-lock-", Refused, "object lock is not supported"),
    row("x-amz-sdk-", AlwaysMet, "SDK diagnostics"),
    row("x-amz-server-side-encryption", Refused, "encryption requested by a client is not supported"),
];
