//! Tables that select a request's operation: one for each method at each level, first match wins.

use super::{Operation, ResourceLevel};
use Operation as O;
use ResourceLevel::{Bucket, Object, Service};
use RowCondition::{Header, Query, QueryAndCopySource, QueryIs};

/// The operations of one method at one level.
pub(super) struct OperationTable {
    pub(super) method: &'static str,
    pub(super) level: ResourceLevel,
    /// The operation of a request that no row matches.
    pub(super) plain: Operation,
    /// Sub-resources and headers that select an operation, in order.
    pub(super) rows: &'static [(RowCondition, Operation)],
}

/// The condition of a row.
#[derive(Clone, Copy)]
pub(super) enum RowCondition {
    /// The query has this name (with any value, or none).
    Query(&'static str),
    /// The query has this name with this value.
    QueryIs(&'static str, &'static str),
    /// The query has the name and the request carries `x-amz-copy-source`.
    QueryAndCopySource(&'static str),
    /// The request has this header.
    Header(&'static str),
}

impl RowCondition {
    /// Returns the query parameter of the row's condition.
    pub(super) const fn parameter(self) -> Option<&'static str> {
        match self {
            Query(name) | QueryIs(name, _) | QueryAndCopySource(name) => Some(name),
            Header(_) => None,
        }
    }
}

/// Returns the table for requests with `method` at `level`, or `None` if S3 has no such request.
pub(super) fn table_for(method: &str, level: ResourceLevel) -> Option<&'static OperationTable> {
    TABLES.iter().find(|table| table.level == level && table.method == method)
}

/// Sorted names of all sub-resources of S3. A request with one that selects no operation is refused, because
/// the plain operation would replace or delete data unintentionally.
pub(super) const SUBRESOURCES: &[&str] = &[
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "annotation",
    "append",
    "attributes",
    "cors",
    "defaultObjectAcl",
    "delete",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataAnnotationTable",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versioning",
    "versions",
    "website",
];

/// All tables. Those of objects come first, GET first among them, because most requests use them.
#[rustfmt::skip]
pub(super) const TABLES: &[OperationTable] = &[
    OperationTable { method: "GET", level: Object, plain: O::GetObject, rows: &[
        (Query("attributes"), O::GetObjectAttributes),
        (Query("tagging"), O::GetObjectTagging),
        (Query("acl"), O::GetObjectAcl),
        (Query("retention"), O::GetObjectRetention),
        (Query("legal-hold"), O::GetObjectLegalHold),
        (Query("torrent"), O::GetObjectTorrent),
        (Query("uploadId"), O::ListParts),
        (Query("annotation"), O::GetObjectAnnotation),
    ] },
    OperationTable { method: "HEAD", level: Object, plain: O::HeadObject, rows: &[] },
    OperationTable { method: "PUT", level: Object, plain: O::PutObject, rows: &[
        (QueryAndCopySource("uploadId"), O::UploadPartCopy),
        (Query("uploadId"), O::UploadPart),
        (Query("tagging"), O::PutObjectTagging),
        (Query("acl"), O::PutObjectAcl),
        (Query("retention"), O::PutObjectRetention),
        (Query("legal-hold"), O::PutObjectLegalHold),
        (Query("renameObject"), O::RenameObject),
        (Query("append"), O::AppendObject),
        (Query("annotation"), O::PutObjectAnnotation),
        (Query("encryption"), O::UpdateObjectEncryption),
        (Header("x-amz-write-offset-bytes"), O::AppendObject),
        (Header("x-amz-copy-source"), O::CopyObject),
    ] },
    OperationTable { method: "POST", level: Object, plain: O::Unknown, rows: &[
        (Query("uploads"), O::CreateMultipartUpload),
        (Query("uploadId"), O::CompleteMultipartUpload),
        (Query("restore"), O::RestoreObject),
        (Query("select"), O::SelectObjectContent),
    ] },
    OperationTable { method: "DELETE", level: Object, plain: O::DeleteObject, rows: &[
        (Query("uploadId"), O::AbortMultipartUpload),
        (Query("tagging"), O::DeleteObjectTagging),
        (Query("annotation"), O::DeleteObjectAnnotation),
    ] },
    OperationTable { method: "GET", level: Bucket, plain: O::ListObjects, rows: &[
        (Query("location"), O::GetBucketLocation),
        (Query("uploads"), O::ListMultipartUploads),
        (Query("versions"), O::ListObjectVersions),
        (Query("acl"), O::GetBucketAcl),
        (Query("versioning"), O::GetBucketVersioning),
        (Query("policyStatus"), O::GetBucketPolicyStatus),
        (Query("policy"), O::GetBucketPolicy),
        (Query("cors"), O::GetBucketCors),
        (Query("lifecycle"), O::GetBucketLifecycleConfiguration),
        (Query("encryption"), O::GetBucketEncryption),
        (Query("tagging"), O::GetBucketTagging),
        (Query("website"), O::GetBucketWebsite),
        (Query("logging"), O::GetBucketLogging),
        (Query("notification"), O::GetBucketNotificationConfiguration),
        (Query("replication"), O::GetBucketReplication),
        (Query("requestPayment"), O::GetBucketRequestPayment),
        (Query("accelerate"), O::GetBucketAccelerateConfiguration),
        (Query("ownershipControls"), O::GetBucketOwnershipControls),
        (Query("publicAccessBlock"), O::GetPublicAccessBlock),
        (Query("object-lock"), O::GetObjectLockConfiguration),
        (Query("analytics"), O::BucketAnalyticsConfiguration),
        (Query("inventory"), O::BucketInventoryConfiguration),
        (Query("metrics"), O::BucketMetricsConfiguration),
        (Query("intelligent-tiering"), O::BucketIntelligentTieringConfiguration),
        (Query("metadataConfiguration"), O::BucketMetadataConfiguration),
        (Query("metadataTable"), O::BucketMetadataConfiguration),
        (Query("session"), O::CreateSession),
        (QueryIs("list-type", "2"), O::ListObjectsV2),
        (Query("abac"), O::GetBucketAbac),
    ] },
    OperationTable { method: "HEAD", level: Bucket, plain: O::HeadBucket, rows: &[] },
    OperationTable { method: "PUT", level: Bucket, plain: O::CreateBucket, rows: &[
        (Query("acl"), O::PutBucketAcl),
        (Query("versioning"), O::PutBucketVersioning),
        (Query("policy"), O::PutBucketPolicy),
        (Query("cors"), O::PutBucketCors),
        (Query("lifecycle"), O::PutBucketLifecycleConfiguration),
        (Query("encryption"), O::PutBucketEncryption),
        (Query("tagging"), O::PutBucketTagging),
        (Query("website"), O::PutBucketWebsite),
        (Query("logging"), O::PutBucketLogging),
        (Query("notification"), O::PutBucketNotificationConfiguration),
        (Query("replication"), O::PutBucketReplication),
        (Query("requestPayment"), O::PutBucketRequestPayment),
        (Query("accelerate"), O::PutBucketAccelerateConfiguration),
        (Query("ownershipControls"), O::PutBucketOwnershipControls),
        (Query("publicAccessBlock"), O::PutPublicAccessBlock),
        (Query("object-lock"), O::PutObjectLockConfiguration),
        (Query("analytics"), O::BucketAnalyticsConfiguration),
        (Query("inventory"), O::BucketInventoryConfiguration),
        (Query("metrics"), O::BucketMetricsConfiguration),
        (Query("intelligent-tiering"), O::BucketIntelligentTieringConfiguration),
        (Query("metadataInventoryTable"), O::BucketMetadataConfiguration),
        (Query("metadataJournalTable"), O::BucketMetadataConfiguration),
        (Query("abac"), O::PutBucketAbac),
        (Query("metadataAnnotationTable"), O::BucketMetadataConfiguration),
    ] },
    OperationTable { method: "POST", level: Bucket, plain: O::PostObject, rows: &[
        (Query("delete"), O::DeleteObjects),
        (Query("metadataConfiguration"), O::BucketMetadataConfiguration),
        (Query("metadataTable"), O::BucketMetadataConfiguration),
        (Header("x-amz-request-route"), O::WriteGetObjectResponse),
    ] },
    OperationTable { method: "DELETE", level: Bucket, plain: O::DeleteBucket, rows: &[
        (Query("policy"), O::DeleteBucketPolicy),
        (Query("cors"), O::DeleteBucketCors),
        (Query("lifecycle"), O::DeleteBucketLifecycle),
        (Query("encryption"), O::DeleteBucketEncryption),
        (Query("tagging"), O::DeleteBucketTagging),
        (Query("website"), O::DeleteBucketWebsite),
        (Query("replication"), O::DeleteBucketReplication),
        (Query("ownershipControls"), O::DeleteBucketOwnershipControls),
        (Query("publicAccessBlock"), O::DeletePublicAccessBlock),
        (Query("analytics"), O::BucketAnalyticsConfiguration),
        (Query("inventory"), O::BucketInventoryConfiguration),
        (Query("metrics"), O::BucketMetricsConfiguration),
        (Query("intelligent-tiering"), O::BucketIntelligentTieringConfiguration),
        (Query("metadataConfiguration"), O::BucketMetadataConfiguration),
        (Query("metadataTable"), O::BucketMetadataConfiguration),
    ] },
    OperationTable { method: "GET", level: Service, plain: O::ListBuckets, rows: &[] },
];
