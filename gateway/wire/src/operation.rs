//! Selection of the S3 operation of a request: one table for each method at each level, first match wins.
//!
//! Every operation of the S3 API that a client can send has a row, including those that mlgw does not offer,
//! so that the response names the missing feature instead of doing something else. No row falls through:
//! [`check_query`] refuses the parameters that the selected operation does not accept.

mod parameters;
mod table;

pub use parameters::check_query;

use crate::access::RequiredPermission;
use http::Method;
use table::RowCondition;

/// Kind of resource that the path of a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceLevel {
    /// `/`
    Service,
    /// `/bucket`
    Bucket,
    /// `/bucket/key`
    Object,
}

macro_rules! operations {
    (
        full { $($full:ident: $full_action:ident,)* }
        absent { $($absent:ident: $absent_action:ident,)* }
        none { $($(#[$doc:meta])* $none:ident: $none_action:ident,)* }
    ) => {
        /// An operation of the S3 API, under AWS's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "AWS's own names, documented by AWS")]
        pub enum Operation {
            $($full,)* $($absent,)* $($(#[$doc])* $none,)*
        }

        /// An operation that mlgw offers. A match over this type has no catch-all arm, so that an operation
        /// without a handler does not compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "AWS's own names, documented by AWS")]
        pub enum Supported {
            $($full,)*
        }

        /// A read of a configuration that no bucket or object has. A match over this type has no catch-all
        /// arm, so that a read without an answer does not compile.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "AWS's own names, documented by AWS")]
        pub enum AbsentConfiguration {
            $($absent,)*
        }

        impl Operation {
            /// All operations, in the order of their discriminants.
            pub const ALL: &[Operation] =
                &[$(Operation::$full,)* $(Operation::$absent,)* $(Operation::$none,)*];

            /// Returns AWS's name of the operation.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Operation::$full => stringify!($full),)*
                    $(Operation::$absent => stringify!($absent),)*
                    $(Operation::$none => stringify!($none),)*
                }
            }

            /// Returns the level of support for the operation.
            #[must_use]
            #[inline]
            pub const fn support(self) -> Support {
                match self {
                    $(Operation::$full => Support::Full(Supported::$full),)*
                    $(Operation::$absent => Support::Absent(AbsentConfiguration::$absent),)*
                    $(Operation::$none => Support::None,)*
                }
            }

            /// Returns the permission that a caller needs.
            #[must_use]
            #[inline]
            pub const fn action(self) -> RequiredPermission {
                match self {
                    $(Operation::$full => RequiredPermission::$full_action,)*
                    $(Operation::$absent => RequiredPermission::$absent_action,)*
                    $(Operation::$none => RequiredPermission::$none_action,)*
                }
            }
        }
    };
}

/// Level of support for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Same behavior as AWS.
    Full(Supported),
    /// Same response as AWS for a bucket or object without such a configuration.
    Absent(AbsentConfiguration),
    /// `NotImplemented`.
    None,
}

operations! {
    full {
        ListBuckets: List,
        CreateBucket: Admin,
        HeadBucket: List,
        DeleteBucket: Admin,
        GetBucketLocation: List,
        ListObjects: List,
        ListObjectsV2: List,
        ListObjectVersions: List,
        ListMultipartUploads: List,
        DeleteObjects: Write,
        PostObject: Write,
        GetObject: Read,
        HeadObject: Read,
        PutObject: Write,
        CopyObject: Write,
        DeleteObject: Write,
        GetObjectAttributes: Read,
        GetObjectTagging: Read,
        PutObjectTagging: Write,
        DeleteObjectTagging: Write,
        CreateMultipartUpload: Write,
        UploadPart: Write,
        UploadPartCopy: Write,
        CompleteMultipartUpload: Write,
        AbortMultipartUpload: Write,
        ListParts: Read,
    }
    absent {
        GetBucketAcl: List,
        GetBucketVersioning: List,
        GetBucketPolicy: List,
        GetBucketPolicyStatus: List,
        GetBucketCors: List,
        GetBucketLifecycleConfiguration: List,
        GetBucketEncryption: List,
        GetBucketTagging: List,
        GetBucketWebsite: List,
        GetBucketLogging: List,
        GetBucketNotificationConfiguration: List,
        GetBucketReplication: List,
        GetBucketRequestPayment: List,
        GetBucketAccelerateConfiguration: List,
        GetBucketOwnershipControls: List,
        GetPublicAccessBlock: List,
        GetObjectLockConfiguration: List,
        GetObjectAcl: Read,
        GetObjectRetention: Read,
        GetObjectLegalHold: Read,
    }
    none {
        PutBucketAcl: Admin,
        PutBucketVersioning: Admin,
        PutBucketPolicy: Admin,
        DeleteBucketPolicy: Admin,
        PutBucketCors: Admin,
        DeleteBucketCors: Admin,
        PutBucketLifecycleConfiguration: Admin,
        DeleteBucketLifecycle: Admin,
        PutBucketEncryption: Admin,
        DeleteBucketEncryption: Admin,
        PutBucketTagging: Admin,
        DeleteBucketTagging: Admin,
        PutBucketWebsite: Admin,
        DeleteBucketWebsite: Admin,
        PutBucketLogging: Admin,
        PutBucketNotificationConfiguration: Admin,
        PutBucketReplication: Admin,
        DeleteBucketReplication: Admin,
        PutBucketRequestPayment: Admin,
        PutBucketAccelerateConfiguration: Admin,
        PutBucketOwnershipControls: Admin,
        DeleteBucketOwnershipControls: Admin,
        PutPublicAccessBlock: Admin,
        DeletePublicAccessBlock: Admin,
        PutObjectLockConfiguration: Admin,
        BucketAnalyticsConfiguration: Admin,
        BucketInventoryConfiguration: Admin,
        BucketMetricsConfiguration: Admin,
        BucketIntelligentTieringConfiguration: Admin,
        BucketMetadataConfiguration: Admin,
        CreateSession: Admin,
        GetBucketAbac: List,
        PutBucketAbac: Admin,
        PutObjectAcl: Write,
        PutObjectRetention: Write,
        PutObjectLegalHold: Write,
        GetObjectTorrent: Read,
        GetObjectAnnotation: Read,
        PutObjectAnnotation: Write,
        DeleteObjectAnnotation: Write,
        UpdateObjectEncryption: Write,
        RestoreObject: Write,
        SelectObjectContent: Read,
        RenameObject: Write,
        AppendObject: Write,
        WriteGetObjectResponse: Write,
        /// No operation of S3 has this method at this level.
        Unknown: Admin,
    }
}

/// View of a request for the selection of its operation.
pub trait RequestView {
    /// Returns the value of a query parameter; empty if the parameter has no value.
    fn query(&self, name: &str) -> Option<&str>;
    /// True if the request has the header.
    fn has_header(&self, name: &str) -> bool;
}

impl Operation {
    /// Returns the operation of a request with `method` at `level` and the query and headers of `shape`.
    #[must_use]
    pub fn select(method: &Method, level: ResourceLevel, shape: &impl RequestView) -> Operation {
        let matches = |when: RowCondition| match when {
            RowCondition::Query(name) => shape.query(name).is_some(),
            RowCondition::QueryIs(name, value) => shape.query(name) == Some(value),
            RowCondition::QueryAndCopySource(name) => {
                shape.query(name).is_some() && shape.has_header("x-amz-copy-source")
            }
            RowCondition::Header(name) => shape.has_header(name),
        };
        let Some(table) = table::table_for(method.as_str(), level) else { return Operation::Unknown };
        table.rows.iter().find(|row| matches(row.0)).map_or(table.plain, |row| row.1)
    }
}

#[cfg(test)]
mod tests {
    use super::table::{RowCondition, SUBRESOURCES, TABLES};
    use super::{Operation, RequestView, ResourceLevel};
    use http::Method;

    struct Request(&'static [(&'static str, &'static str)], &'static [&'static str]);

    impl RequestView for Request {
        fn query(&self, name: &str) -> Option<&str> {
            self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
        }
        fn has_header(&self, name: &str) -> bool {
            self.1.contains(&name)
        }
    }

    #[test]
    fn a_sub_resource_wins_over_the_plain_operation() {
        let of = |m: Method, level, q, h| Operation::select(&m, level, &Request(q, h));
        assert_eq!(of(Method::GET, ResourceLevel::Object, &[], &[]), Operation::GetObject);
        assert_eq!(of(Method::GET, ResourceLevel::Object, &[("uploadId", "7")], &[]), Operation::ListParts);
        assert_eq!(
            of(Method::PUT, ResourceLevel::Object, &[], &["x-amz-copy-source"]),
            Operation::CopyObject
        );
        assert_eq!(
            of(
                Method::PUT,
                ResourceLevel::Object,
                &[("uploadId", "7"), ("partNumber", "1")],
                &["x-amz-copy-source"]
            ),
            Operation::UploadPartCopy
        );
        assert_eq!(
            of(Method::GET, ResourceLevel::Bucket, &[("list-type", "2")], &[]),
            Operation::ListObjectsV2
        );
        assert_eq!(
            of(Method::GET, ResourceLevel::Bucket, &[("list-type", "1")], &[]),
            Operation::ListObjects
        );
        assert_eq!(of(Method::PATCH, ResourceLevel::Object, &[], &[]), Operation::Unknown);
    }

    #[test]
    fn every_operation_is_in_a_table() {
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
                let hidden = table.rows[..at].iter().any(|(earlier, _)| {
                    matches!((earlier, when), (RowCondition::Query(a), RowCondition::Query(b)) if a == b)
                });
                assert!(!hidden, "{} can never match", op.name());
            }
        }
    }

    #[test]
    fn every_name_that_selects_an_operation_is_a_known_sub_resource() {
        assert!(SUBRESOURCES.is_sorted_by(|a, b| a < b));
        let names = TABLES.iter().flat_map(|table| table.rows).filter_map(|row| row.0.parameter());
        for name in names.filter(|name| *name != "list-type") {
            assert!(SUBRESOURCES.contains(&name), "{name}");
        }
    }
}
