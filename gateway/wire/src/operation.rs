//! Which S3 operation a request asks for: one table for each method at each level, first match wins.
//!
//! Every operation of the S3 API that a client can send has a row, also those that mlgw does not
//! offer, so that the answer can name what is missing instead of doing something else. No row falls through:
//! [`check_query`] refuses the parameters that the chosen operation does not take.

mod parameters;
mod table;

pub use parameters::check_query;

use crate::access::Action;
use http::Method;
use table::When;

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
    ListObjectVersions: Full List,
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
    GetBucketAbac: None List,
    PutBucketAbac: None Admin,
    PutObjectAcl: None Write,
    PutObjectRetention: None Write,
    PutObjectLegalHold: None Write,
    GetObjectTorrent: None Read,
    GetObjectAnnotation: None Read,
    PutObjectAnnotation: None Write,
    DeleteObjectAnnotation: None Write,
    UpdateObjectEncryption: None Write,
    RestoreObject: None Write,
    SelectObjectContent: None Read,
    RenameObject: None Write,
    AppendObject: None Write,
    WriteGetObjectResponse: None Write,
    /// No operation of S3 has this method at this place.
    Unknown: None Admin,
}

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
        let matches = |when: When| match when {
            When::Query(name) => shape.query(name).is_some(),
            When::QueryIs(name, value) => shape.query(name) == Some(value),
            When::QueryAndCopySource(name) => {
                shape.query(name).is_some() && shape.has_header("x-amz-copy-source")
            }
            When::Header(name) => shape.has_header(name),
        };
        let Some(table) = table::of(method.as_str(), level) else { return Operation::Unknown };
        table.rows.iter().find(|row| matches(row.0)).map_or(table.plain, |row| row.1)
    }
}

#[cfg(test)]
mod tests {
    use super::table::{SUBRESOURCES, TABLES, When};
    use super::{Level, Operation, Shape};
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
        let has = |op| TABLES.iter().any(|t| t.plain == op || t.rows.iter().any(|row| row.1 == op));
        for op in Operation::ALL {
            assert!(has(*op), "{} has no row", op.name());
        }
    }

    #[test]
    fn there_is_one_table_for_each_method_at_each_level_and_no_row_twice() {
        for (at, table) in TABLES.iter().enumerate() {
            assert!(TABLES[..at].iter().all(|t| (t.method, t.level) != (table.method, table.level)));
            for (at, (when, op)) in table.rows.iter().enumerate() {
                let hidden = table.rows[..at].iter().any(
                    |(earlier, _)| matches!((earlier, when), (When::Query(a), When::Query(b)) if a == b),
                );
                assert!(!hidden, "{} can never match", op.name());
            }
        }
    }

    #[test]
    fn every_name_that_makes_an_operation_is_known_as_a_sub_resource() {
        assert!(SUBRESOURCES.is_sorted_by(|a, b| a < b));
        let names = TABLES.iter().flat_map(|table| table.rows).filter_map(|row| row.0.parameter());
        for name in names.filter(|name| *name != "list-type") {
            assert!(SUBRESOURCES.contains(&name), "{name}");
        }
    }
}
