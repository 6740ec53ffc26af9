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
    /// The requested behaviour is always in effect.
    AlwaysMet,
    /// The requested behaviour is always in effect for these values; others are refused.
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

const NOTHING: HeaderElsewhere = HasEffect("nothing");

const fn row(name: &'static str, rule: HeaderRule, reason: &'static str) -> HeaderRow {
    HeaderRow { name, rule, reason }
}

/// Headers by name, sorted.
#[rustfmt::skip]
pub(super) const ROWS: &[HeaderRow] = &[
    row("accept", AlwaysMet, "each answer has one form"),
    row("accept-encoding", AlwaysMet, "objects are sent as they are stored"),
    row("authorization", Honoured(ANY, HasEffect("who asks")), "SigV4"),
    row("cache-control", Honoured(DESCRIBING, HasEffect("nothing: we are the origin")), "stored with the object"),
    row("connection", Honoured(ANY, HasEffect("how the connection goes on")), "HTTP"),
    row("content-disposition", Honoured(DESCRIBING, NOTHING), "stored with the object"),
    row("content-encoding", Honoured(DESCRIBING, HasEffect("how the body travels")), "stored without `aws-chunked`"),
    row("content-language", Honoured(DESCRIBING, NOTHING), "stored with the object"),
    row("content-length", Honoured(ANY, HasEffect("the body's length")), "a body of another length is `IncompleteBody`"),
    row("content-md5", Honoured(ANY, HasEffect("the body's MD5")), "another one is `BadDigest`"),
    row("content-range", Refused, "a write of part of an object would replace the whole"),
    row("content-type", Honoured(DESCRIBING, HasEffect("the form's boundary, or nothing")), "stored with the object"),
    row("date", Honoured(ANY, HasEffect("when it was signed")), "when there is no x-amz-date"),
    row("expect", Honoured(ANY, HasEffect("whether to send 100 Continue")), "HTTP"),
    row("expires", Honoured(DESCRIBING, NOTHING), "stored with the object"),
    row("host", Honoured(ANY, HasEffect("which bucket, with virtual-hosted style")), "HTTP"),
    row("if-match", Honoured(CONDITIONAL, RefusedOnWrites), "412 when it does not hold"),
    row("if-modified-since", Honoured(READS, RefusedOnWrites), "304 when it does not hold"),
    row("if-none-match", Honoured(CONDITIONAL, RefusedOnWrites), "304 or 412 when it does not hold"),
    row("if-range", Honoured(READS, NOTHING), "the whole object when it is another one"),
    row("if-unmodified-since", Honoured(READS, RefusedOnWrites), "412 when it does not hold"),
    row("origin", AlwaysMet, "no bucket has a CORS configuration"),
    row("range", Honoured(READS, HasEffect("nothing, as HTTP has it")), "206"),
    row("transfer-encoding", Honoured(ANY, HasEffect("how the body travels")), "HTTP"),
    row("user-agent", AlwaysMet, "asks for nothing"),
    row("x-amz-acl", MetByValues(&["private", "bucket-owner-full-control"]), "there is one owner and there are no ACLs"),
    row("x-amz-api-version", MetByValues(&["2006-03-01"]), "S3 has one version"),
    row("x-amz-bucket-object-lock-enabled", MetByValues(&["false"]), "object lock is not offered"),
    row("x-amz-bypass-governance-retention", AlwaysMet, "nothing is retained"),
    row("x-amz-checksum-algorithm", Honoured(&[O::CopyObject, O::CreateMultipartUpload], NOTHING), "which checksum to keep"),
    row("x-amz-checksum-crc32", Honoured(WHOLE, HasEffect("the body's checksum")), "another one is `BadDigest`"),
    row("x-amz-checksum-crc32c", Honoured(WHOLE, HasEffect("the body's checksum")), "another one is `BadDigest`"),
    row("x-amz-checksum-crc64nvme", Honoured(WHOLE, HasEffect("the body's checksum")), "another one is `BadDigest`"),
    row("x-amz-checksum-mode", HonouredValues(READS, &["ENABLED", "DISABLED"]), "whether checksums are told"),
    row("x-amz-checksum-sha1", Honoured(WHOLE, HasEffect("the body's checksum")), "another one is `BadDigest`"),
    row("x-amz-checksum-sha256", Honoured(WHOLE, HasEffect("the body's checksum")), "another one is `BadDigest`"),
    row("x-amz-checksum-type", Honoured(&[O::CreateMultipartUpload, O::CompleteMultipartUpload], NOTHING), "composite or of the full object"),
    row("x-amz-content-sha256", Honoured(ANY, HasEffect("what the signature says of the body")), "another one is `XAmzContentSHA256Mismatch`"),
    row("x-amz-copy-source", Honoured(COPIES, RefusedElsewhere), "makes a copy of a PUT"),
    row("x-amz-copy-source-if-match", Honoured(COPIES, RefusedElsewhere), "412 when it does not hold"),
    row("x-amz-copy-source-if-modified-since", Honoured(COPIES, RefusedElsewhere), "412 when it does not hold"),
    row("x-amz-copy-source-if-none-match", Honoured(COPIES, RefusedElsewhere), "412 when it does not hold"),
    row("x-amz-copy-source-if-unmodified-since", Honoured(COPIES, RefusedElsewhere), "412 when it does not hold"),
    row("x-amz-copy-source-range", Honoured(&[O::UploadPartCopy], RefusedElsewhere), "which bytes to copy"),
    row("x-amz-date", Honoured(ANY, HasEffect("when it was signed")), "SigV4"),
    row("x-amz-decoded-content-length", Honoured(ANY, HasEffect("the length of an aws-chunked body")), "a body of another length is `IncompleteBody`"),
    row("x-amz-expected-bucket-owner", Owner, "there is one owner"),
    row("x-amz-if-match-last-modified-time", Honoured(&[O::DeleteObject], RefusedElsewhere), "412 when it does not hold"),
    row("x-amz-if-match-size", Honoured(&[O::DeleteObject], RefusedElsewhere), "412 when it does not hold"),
    row("x-amz-max-parts", Honoured(&[O::GetObjectAttributes], NOTHING), "length of a page of parts"),
    row("x-amz-metadata-directive", Honoured(&[O::CopyObject], NOTHING), "`COPY` or `REPLACE`"),
    row("x-amz-mfa", Refused, "no second factor is kept"),
    row("x-amz-mp-object-size", Honoured(&[O::CompleteMultipartUpload], NOTHING), "another size is `InvalidRequest`"),
    row("x-amz-object-attributes", Honoured(&[O::GetObjectAttributes], NOTHING), "what to tell"),
    row("x-amz-object-lock-legal-hold", MetByValues(&["OFF"]), "object lock is not offered"),
    row("x-amz-object-ownership", MetByValues(&["BucketOwnerEnforced"]), "there is one owner"),
    row("x-amz-optional-object-attributes", MetByValues(&["RestoreStatus"]), "nothing is archived, so nothing is being restored"),
    row("x-amz-part-number-marker", Honoured(&[O::GetObjectAttributes], NOTHING), "where a page of parts begins"),
    row("x-amz-request-payer", AlwaysMet, "nobody is charged"),
    row("x-amz-sdk-checksum-algorithm", Honoured(BODIES, HasEffect("the body's checksum")), "must agree with the checksum sent"),
    row("x-amz-security-token", Token, "no temporary credentials are issued"),
    row("x-amz-source-expected-bucket-owner", Owner, "there is one owner"),
    row("x-amz-storage-class", StorageClass, "tiers are not storage classes"),
    row("x-amz-tagging", Honoured(DESCRIBING, NOTHING), "the object's tags"),
    row("x-amz-tagging-directive", Honoured(&[O::CopyObject], NOTHING), "`COPY` or `REPLACE`"),
    row("x-amz-te", AlwaysMet, "what a client could decode in an answer"),
    row("x-amz-trailer", Honoured(BODIES, HasEffect("which trailers follow")), "a body without them is `MalformedTrailerError`"),
    row("x-amz-user-agent", AlwaysMet, "asks for nothing"),
    row("x-amz-website-redirect-location", Honoured(DESCRIBING, NOTHING), "stored with the object"),
    row("x-mlgw-batch-size", Honoured(ANY, HasEffect("the workload's batch size")), "objects read at once"),
    row("x-mlgw-gpu-count", Honoured(ANY, HasEffect("the workload's accelerators")), "how many read"),
    row("x-mlgw-workload", Honoured(ANY, HasEffect("the workload's name")), "chooses the lane and the rules"),
];

/// Families of headers, for names without a row of their own.
#[rustfmt::skip]
pub(super) const PREFIXES: &[HeaderRow] = &[
    row("amz-sdk-", AlwaysMet, "diagnostics of an SDK"),
    row("x-amz-meta-", Honoured(DESCRIBING, NOTHING), "the object's metadata"),
    row("x-amz-checksum-", Refused, "an algorithm that is not offered"),
    row("x-amz-copy-source-server-side-encryption-", Refused, "encryption with a client's key is not offered"),
    row("x-amz-grant-", Refused, "there are no ACLs"),
    row("x-amz-object-lock-", Refused, "object lock is not offered"),
    row("x-amz-sdk-", AlwaysMet, "diagnostics of an SDK"),
    row("x-amz-server-side-encryption", Refused, "encryption asked for by a client is not offered"),
];
