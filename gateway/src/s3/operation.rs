//! Which S3 operation a request asks for: one table, first match wins.
//!
//! Every operation of the S3 API that a client can send has a row, also those that mlgw does not
//! offer, so that the answer can name what is missing instead of doing something else.

use crate::credentials::Action;
use http::Method;

/// What the path of a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// `/`
    Service,
    /// `/bucket`
    Bucket,
    /// `/bucket/key`
    Object,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident: $support:ident $action:ident,)*) => {
        /// An operation of the S3 API, under the name AWS gives it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "AWS's own names, documented by AWS")]
        pub enum Operation {
            $($name,)*
        }

        impl Operation {
            /// Every operation, in the order of their discriminants.
            pub const ALL: &[Operation] = &[$(Operation::$name,)*];

            /// AWS's name of the operation.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Operation::$name => stringify!($name),)* }
            }

            /// Whether mlgw answers the operation, or only names it.
            #[must_use]
            pub const fn support(self) -> Support {
                match self { $(Operation::$name => Support::$support,)* }
            }

            /// The right that a caller needs.
            #[must_use]
            pub const fn action(self) -> Action {
                match self { $(Operation::$name => Action::$action,)* }
            }
        }
    };
}

/// How far mlgw supports an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Does what AWS does.
    Full,
    /// Answers as AWS does for a bucket or object without such a configuration.
    Absent,
    /// Answers `NotImplemented`.
    None,
}

operations! {
    ListBuckets: Full List,
    CreateBucket: Full Admin,
    HeadBucket: Full List,
    DeleteBucket: Full Admin,
    GetBucketLocation: Full List,
    ListObjects: Full List,
    ListObjectsV2: Full List,
    ListObjectVersions: None List,
    ListMultipartUploads: Full List,
    DeleteObjects: Full Write,
    PostObject: Full Write,

    GetObject: Full Read,
    HeadObject: Full Read,
    PutObject: Full Write,
    CopyObject: Full Write,
    DeleteObject: Full Write,
    GetObjectAttributes: Full Read,
    GetObjectTagging: Full Read,
    PutObjectTagging: Full Write,
    DeleteObjectTagging: Full Write,
    CreateMultipartUpload: Full Write,
    UploadPart: Full Write,
    UploadPartCopy: Full Write,
    CompleteMultipartUpload: Full Write,
    AbortMultipartUpload: Full Write,
    ListParts: Full Read,

    GetBucketAcl: Absent List,
    GetBucketVersioning: Absent List,
    GetBucketPolicy: Absent List,
    GetBucketPolicyStatus: Absent List,
    GetBucketCors: Absent List,
    GetBucketLifecycleConfiguration: Absent List,
    GetBucketEncryption: Absent List,
    GetBucketTagging: Absent List,
    GetBucketWebsite: Absent List,
    GetBucketLogging: Absent List,
    GetBucketNotificationConfiguration: Absent List,
    GetBucketReplication: Absent List,
    GetBucketRequestPayment: Absent List,
    GetBucketAccelerateConfiguration: Absent List,
    GetBucketOwnershipControls: Absent List,
    GetPublicAccessBlock: Absent List,
    GetObjectLockConfiguration: Absent List,
    GetObjectAcl: Absent Read,
    GetObjectRetention: Absent Read,
    GetObjectLegalHold: Absent Read,

    PutBucketAcl: None Admin,
    PutBucketVersioning: None Admin,
    PutBucketPolicy: None Admin,
    DeleteBucketPolicy: None Admin,
    PutBucketCors: None Admin,
    DeleteBucketCors: None Admin,
    PutBucketLifecycleConfiguration: None Admin,
    DeleteBucketLifecycle: None Admin,
    PutBucketEncryption: None Admin,
    DeleteBucketEncryption: None Admin,
    PutBucketTagging: None Admin,
    DeleteBucketTagging: None Admin,
    PutBucketWebsite: None Admin,
    DeleteBucketWebsite: None Admin,
    PutBucketLogging: None Admin,
    PutBucketNotificationConfiguration: None Admin,
    PutBucketReplication: None Admin,
    DeleteBucketReplication: None Admin,
    PutBucketRequestPayment: None Admin,
    PutBucketAccelerateConfiguration: None Admin,
    PutBucketOwnershipControls: None Admin,
    DeleteBucketOwnershipControls: None Admin,
    PutPublicAccessBlock: None Admin,
    DeletePublicAccessBlock: None Admin,
    PutObjectLockConfiguration: None Admin,
    BucketAnalyticsConfiguration: None Admin,
    BucketInventoryConfiguration: None Admin,
    BucketMetricsConfiguration: None Admin,
    BucketIntelligentTieringConfiguration: None Admin,
    BucketMetadataConfiguration: None Admin,
    CreateSession: None Admin,
    PutObjectAcl: None Write,
    PutObjectRetention: None Write,
    PutObjectLegalHold: None Write,
    GetObjectTorrent: None Read,
    RestoreObject: None Write,
    SelectObjectContent: None Read,
    RenameObject: None Write,
    AppendObject: None Write,
    WriteGetObjectResponse: None Write,
    /// No operation of S3 has this method at this place.
    Unknown: None Admin,
}

/// What makes a row match besides method and level.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// The query has this name (with any value, or none).
    Query(&'static str),
    /// The query has this name with this value.
    QueryIs(&'static str, &'static str),
    /// The query has the first name and the request carries `x-amz-copy-source`.
    QueryAndCopySource(&'static str),
    /// The request has this header.
    Header(&'static str),
}

type Row = (&'static str, Level, When, Operation);

/// Sub-resources come before the plain operation of the same method and level.
#[rustfmt::skip]
const ROWS: &[Row] = {
    use Level::{Bucket, Object, Service};
    use Operation as O;
    use When::{Always, Header, Query, QueryAndCopySource, QueryIs};
    &[
        ("GET", Object, Query("attributes"), O::GetObjectAttributes),
        ("GET", Object, Query("tagging"), O::GetObjectTagging),
        ("GET", Object, Query("acl"), O::GetObjectAcl),
        ("GET", Object, Query("retention"), O::GetObjectRetention),
        ("GET", Object, Query("legal-hold"), O::GetObjectLegalHold),
        ("GET", Object, Query("torrent"), O::GetObjectTorrent),
        ("GET", Object, Query("uploadId"), O::ListParts),
        ("GET", Object, Always, O::GetObject),
        ("HEAD", Object, Always, O::HeadObject),
        ("PUT", Object, QueryAndCopySource("uploadId"), O::UploadPartCopy),
        ("PUT", Object, Query("uploadId"), O::UploadPart),
        ("PUT", Object, Query("tagging"), O::PutObjectTagging),
        ("PUT", Object, Query("acl"), O::PutObjectAcl),
        ("PUT", Object, Query("retention"), O::PutObjectRetention),
        ("PUT", Object, Query("legal-hold"), O::PutObjectLegalHold),
        ("PUT", Object, Query("renameObject"), O::RenameObject),
        ("PUT", Object, Query("append"), O::AppendObject),
        ("PUT", Object, Header("x-amz-write-offset-bytes"), O::AppendObject),
        ("PUT", Object, Header("x-amz-copy-source"), O::CopyObject),
        ("PUT", Object, Always, O::PutObject),
        ("POST", Object, Query("uploads"), O::CreateMultipartUpload),
        ("POST", Object, Query("uploadId"), O::CompleteMultipartUpload),
        ("POST", Object, Query("restore"), O::RestoreObject),
        ("POST", Object, Query("select"), O::SelectObjectContent),
        ("DELETE", Object, Query("uploadId"), O::AbortMultipartUpload),
        ("DELETE", Object, Query("tagging"), O::DeleteObjectTagging),
        ("DELETE", Object, Always, O::DeleteObject),

        ("GET", Bucket, Query("location"), O::GetBucketLocation),
        ("GET", Bucket, Query("uploads"), O::ListMultipartUploads),
        ("GET", Bucket, Query("versions"), O::ListObjectVersions),
        ("GET", Bucket, Query("acl"), O::GetBucketAcl),
        ("GET", Bucket, Query("versioning"), O::GetBucketVersioning),
        ("GET", Bucket, Query("policyStatus"), O::GetBucketPolicyStatus),
        ("GET", Bucket, Query("policy"), O::GetBucketPolicy),
        ("GET", Bucket, Query("cors"), O::GetBucketCors),
        ("GET", Bucket, Query("lifecycle"), O::GetBucketLifecycleConfiguration),
        ("GET", Bucket, Query("encryption"), O::GetBucketEncryption),
        ("GET", Bucket, Query("tagging"), O::GetBucketTagging),
        ("GET", Bucket, Query("website"), O::GetBucketWebsite),
        ("GET", Bucket, Query("logging"), O::GetBucketLogging),
        ("GET", Bucket, Query("notification"), O::GetBucketNotificationConfiguration),
        ("GET", Bucket, Query("replication"), O::GetBucketReplication),
        ("GET", Bucket, Query("requestPayment"), O::GetBucketRequestPayment),
        ("GET", Bucket, Query("accelerate"), O::GetBucketAccelerateConfiguration),
        ("GET", Bucket, Query("ownershipControls"), O::GetBucketOwnershipControls),
        ("GET", Bucket, Query("publicAccessBlock"), O::GetPublicAccessBlock),
        ("GET", Bucket, Query("object-lock"), O::GetObjectLockConfiguration),
        ("GET", Bucket, Query("analytics"), O::BucketAnalyticsConfiguration),
        ("GET", Bucket, Query("inventory"), O::BucketInventoryConfiguration),
        ("GET", Bucket, Query("metrics"), O::BucketMetricsConfiguration),
        ("GET", Bucket, Query("intelligent-tiering"), O::BucketIntelligentTieringConfiguration),
        ("GET", Bucket, Query("metadataConfiguration"), O::BucketMetadataConfiguration),
        ("GET", Bucket, Query("metadataTable"), O::BucketMetadataConfiguration),
        ("GET", Bucket, Query("session"), O::CreateSession),
        ("GET", Bucket, QueryIs("list-type", "2"), O::ListObjectsV2),
        ("GET", Bucket, Always, O::ListObjects),
        ("HEAD", Bucket, Always, O::HeadBucket),
        ("PUT", Bucket, Query("acl"), O::PutBucketAcl),
        ("PUT", Bucket, Query("versioning"), O::PutBucketVersioning),
        ("PUT", Bucket, Query("policy"), O::PutBucketPolicy),
        ("PUT", Bucket, Query("cors"), O::PutBucketCors),
        ("PUT", Bucket, Query("lifecycle"), O::PutBucketLifecycleConfiguration),
        ("PUT", Bucket, Query("encryption"), O::PutBucketEncryption),
        ("PUT", Bucket, Query("tagging"), O::PutBucketTagging),
        ("PUT", Bucket, Query("website"), O::PutBucketWebsite),
        ("PUT", Bucket, Query("logging"), O::PutBucketLogging),
        ("PUT", Bucket, Query("notification"), O::PutBucketNotificationConfiguration),
        ("PUT", Bucket, Query("replication"), O::PutBucketReplication),
        ("PUT", Bucket, Query("requestPayment"), O::PutBucketRequestPayment),
        ("PUT", Bucket, Query("accelerate"), O::PutBucketAccelerateConfiguration),
        ("PUT", Bucket, Query("ownershipControls"), O::PutBucketOwnershipControls),
        ("PUT", Bucket, Query("publicAccessBlock"), O::PutPublicAccessBlock),
        ("PUT", Bucket, Query("object-lock"), O::PutObjectLockConfiguration),
        ("PUT", Bucket, Query("analytics"), O::BucketAnalyticsConfiguration),
        ("PUT", Bucket, Query("inventory"), O::BucketInventoryConfiguration),
        ("PUT", Bucket, Query("metrics"), O::BucketMetricsConfiguration),
        ("PUT", Bucket, Query("intelligent-tiering"), O::BucketIntelligentTieringConfiguration),
        ("PUT", Bucket, Query("metadataInventoryTable"), O::BucketMetadataConfiguration),
        ("PUT", Bucket, Query("metadataJournalTable"), O::BucketMetadataConfiguration),
        ("PUT", Bucket, Always, O::CreateBucket),
        ("POST", Bucket, Query("delete"), O::DeleteObjects),
        ("POST", Bucket, Query("metadataConfiguration"), O::BucketMetadataConfiguration),
        ("POST", Bucket, Query("metadataTable"), O::BucketMetadataConfiguration),
        ("POST", Bucket, Always, O::PostObject),
        ("DELETE", Bucket, Query("policy"), O::DeleteBucketPolicy),
        ("DELETE", Bucket, Query("cors"), O::DeleteBucketCors),
        ("DELETE", Bucket, Query("lifecycle"), O::DeleteBucketLifecycle),
        ("DELETE", Bucket, Query("encryption"), O::DeleteBucketEncryption),
        ("DELETE", Bucket, Query("tagging"), O::DeleteBucketTagging),
        ("DELETE", Bucket, Query("website"), O::DeleteBucketWebsite),
        ("DELETE", Bucket, Query("replication"), O::DeleteBucketReplication),
        ("DELETE", Bucket, Query("ownershipControls"), O::DeleteBucketOwnershipControls),
        ("DELETE", Bucket, Query("publicAccessBlock"), O::DeletePublicAccessBlock),
        ("DELETE", Bucket, Query("analytics"), O::BucketAnalyticsConfiguration),
        ("DELETE", Bucket, Query("inventory"), O::BucketInventoryConfiguration),
        ("DELETE", Bucket, Query("metrics"), O::BucketMetricsConfiguration),
        ("DELETE", Bucket, Query("intelligent-tiering"), O::BucketIntelligentTieringConfiguration),
        ("DELETE", Bucket, Query("metadataConfiguration"), O::BucketMetadataConfiguration),
        ("DELETE", Bucket, Query("metadataTable"), O::BucketMetadataConfiguration),
        ("DELETE", Bucket, Always, O::DeleteBucket),

        ("GET", Service, Always, O::ListBuckets),
        ("POST", Service, Query("WriteGetObjectResponse"), O::WriteGetObjectResponse),
    ]
};

/// What a request shows of itself for the choice of its operation.
pub trait Shape {
    /// The value of a query parameter; empty when it has a name only.
    fn query(&self, name: &str) -> Option<&str>;
    /// Whether the request has a header.
    fn has_header(&self, name: &str) -> bool;
}

impl Operation {
    /// The operation that `method` at `level` asks for, given the rest of the request.
    #[must_use]
    pub fn of(method: &Method, level: Level, shape: &impl Shape) -> Operation {
        let matches = |when: &When| match *when {
            When::Always => true,
            When::Query(name) => shape.query(name).is_some(),
            When::QueryIs(name, value) => shape.query(name) == Some(value),
            When::QueryAndCopySource(name) => {
                shape.query(name).is_some() && shape.has_header("x-amz-copy-source")
            }
            When::Header(name) => shape.has_header(name),
        };
        ROWS.iter()
            .find(|(m, l, when, _)| *l == level && *m == method.as_str() && matches(when))
            .map_or(Operation::Unknown, |row| row.3)
    }
}

#[cfg(test)]
mod tests {
    use super::{Level, Operation, ROWS, Shape, When};
    use http::Method;

    struct Request(&'static [(&'static str, &'static str)], &'static [&'static str]);

    impl Shape for Request {
        fn query(&self, name: &str) -> Option<&str> {
            self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
        }
        fn has_header(&self, name: &str) -> bool {
            self.1.contains(&name)
        }
    }

    #[test]
    fn a_sub_resource_wins_over_the_plain_operation() {
        let of = |m: Method, level, q, h| Operation::of(&m, level, &Request(q, h));
        assert_eq!(of(Method::GET, Level::Object, &[], &[]), Operation::GetObject);
        assert_eq!(of(Method::GET, Level::Object, &[("uploadId", "7")], &[]), Operation::ListParts);
        assert_eq!(of(Method::PUT, Level::Object, &[], &["x-amz-copy-source"]), Operation::CopyObject);
        assert_eq!(
            of(Method::PUT, Level::Object, &[("uploadId", "7"), ("partNumber", "1")], &["x-amz-copy-source"]),
            Operation::UploadPartCopy
        );
        assert_eq!(of(Method::GET, Level::Bucket, &[("list-type", "2")], &[]), Operation::ListObjectsV2);
        assert_eq!(of(Method::GET, Level::Bucket, &[("list-type", "1")], &[]), Operation::ListObjects);
        assert_eq!(of(Method::PATCH, Level::Object, &[], &[]), Operation::Unknown);
    }

    #[test]
    fn every_operation_can_be_asked_for() {
        for op in Operation::ALL.iter().filter(|op| **op != Operation::Unknown) {
            assert!(ROWS.iter().any(|row| row.3 == *op), "{} has no row", op.name());
        }
    }

    #[test]
    fn no_row_is_hidden_behind_an_earlier_plain_one() {
        for (i, (method, level, _, op)) in ROWS.iter().enumerate() {
            let hidden =
                ROWS[..i].iter().any(|r| r.0 == *method && r.1 == *level && matches!(r.2, When::Always));
            assert!(!hidden, "{} can never match", op.name());
        }
    }
}
