//! No query with a sub-resource leads to the plain operation.

use super::check_query;
use crate::error::Code;
use crate::operation::table::{SUBRESOURCES, TABLES};
use crate::operation::{Operation, RequestView, ResourceLevel, Support};
use crate::query::Query;
use http::Method;
use proptest::{prop_assert, prop_assert_eq, proptest};

struct TestRequestView<'a>(&'a Query<'a>, &'a [&'a str]);

impl RequestView for TestRequestView<'_> {
    fn query(&self, name: &str) -> Option<&str> {
        self.0.raw(name)
    }
    fn has_header(&self, name: &str) -> bool {
        self.1.contains(&name)
    }
}

/// Returns the operation of a request, or the code and argument of its error.
fn select_operation(
    method: &str,
    level: ResourceLevel,
    query: &str,
    headers: &[&str],
) -> Result<Operation, (Code, String)> {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let query = Query::parse(query);
    let operation = Operation::select(&method, level, &TestRequestView(&query, headers));
    match check_query(&method, level, operation, &query) {
        Ok(()) => Ok(operation),
        Err(error) => {
            let argument = error.get("ArgumentName").or_else(|| error.get("ResourceType"));
            Err((error.code(), argument.unwrap_or_default().to_owned()))
        }
    }
}

const LEVELS: [ResourceLevel; 3] = [ResourceLevel::Service, ResourceLevel::Bucket, ResourceLevel::Object];
const METHODS: [&str; 5] = ["GET", "HEAD", "PUT", "POST", "DELETE"];

/// True if a request gets the operation that its method has without a query.
fn is_plain(method: &str, level: ResourceLevel, outcome: &Result<Operation, (Code, String)>) -> bool {
    let plain = TABLES.iter().find(|table| table.method == method && table.level == level);
    plain.is_some_and(|table| *outcome == Ok(table.plain))
}

#[test]
fn no_sub_resource_selects_a_plain_operation_at_any_level() {
    for method in METHODS {
        for level in LEVELS {
            for name in SUBRESOURCES {
                for query in
                    [(*name).to_owned(), format!("{name}=x"), format!("x-id=X&{name}&versionId=null")]
                {
                    let outcome = select_operation(method, level, &query, &[]);
                    assert!(!is_plain(method, level, &outcome), "{method} {level:?} ?{query}: {outcome:?}");
                }
            }
        }
    }
}

#[test]
fn two_sub_resources_are_never_one_operation() {
    for table in TABLES {
        for one in SUBRESOURCES {
            for other in SUBRESOURCES.iter().filter(|other| *other != one) {
                let outcome = select_operation(table.method, table.level, &format!("{one}&{other}"), &[]);
                let offered = outcome.as_ref().is_ok_and(|operation| operation.support() != Support::None);
                assert!(!offered, "{} {:?} ?{one}&{other}: {outcome:?}", table.method, table.level);
            }
        }
    }
}

#[test]
fn queries_that_once_deleted_or_replaced_data_are_refused() {
    use ResourceLevel::{Bucket, Object};
    let refused = |method, level, query: &str| select_operation(method, level, query, &[]).unwrap_err();
    for name in ["acl", "retention", "legal-hold", "torrent", "restore", "attributes", "encryption"] {
        assert_eq!(refused("DELETE", Object, name), (Code::MethodNotAllowed, name.to_owned()));
    }
    assert_eq!(
        select_operation("DELETE", Object, "annotation&annotationName=n", &[]),
        Ok(Operation::DeleteObjectAnnotation)
    );
    for name in ["restore", "torrent", "uploads", "attributes", "policy"] {
        assert_eq!(refused("PUT", Object, name), (Code::MethodNotAllowed, name.to_owned()));
    }
    for name in ["acl", "versioning", "logging", "versions", "uploads", "location", "policyStatus", "abac"] {
        assert_eq!(refused("DELETE", Bucket, name), (Code::MethodNotAllowed, name.to_owned()));
    }
    assert_eq!(refused("PUT", Object, "versionId=null"), (Code::InvalidArgument, "versionId".to_owned()));
    assert_eq!(refused("POST", Bucket, "acl"), (Code::MethodNotAllowed, "acl".to_owned()));
    assert_eq!(select_operation("GET", Bucket, "abac", &[]), Ok(Operation::GetBucketAbac));
    for name in ["location", "policy", "versioning", "versions"] {
        assert_eq!(refused("GET", Object, name), (Code::MethodNotAllowed, name.to_owned()));
    }
    assert_eq!(refused("HEAD", Object, "acl"), (Code::MethodNotAllowed, "acl".to_owned()));
    assert_eq!(refused("DELETE", Object, "%61cl"), (Code::MethodNotAllowed, "acl".to_owned()));
}

#[test]
fn incomplete_or_repeated_parameters_are_refused() {
    use ResourceLevel::Object;
    for (method, query) in [
        ("PUT", "partNumber=1"),
        ("PUT", "uploadId=7"),
        ("DELETE", "partNumber=1"),
        ("DELETE", "uploadId=7&partNumber=1"),
        ("POST", "uploadId=7&partNumber=1"),
        ("DELETE", "annotationName=n"),
        ("GET", "annotationName=n"),
        ("PUT", "uploadId=7&partNumber=1&partNumber=2"),
        ("PUT", "uploadId=7&uploadId=8&partNumber=1"),
        ("DELETE", "versionId=null&versionId=7"),
    ] {
        let refused = select_operation(method, Object, query, &[]).map_err(|(code, _)| code);
        assert_eq!(refused, Err(Code::InvalidArgument), "{method} ?{query}");
    }
    let copied =
        select_operation("PUT", Object, "uploadId=7", &["x-amz-copy-source"]).map_err(|(code, _)| code);
    assert_eq!(copied, Err(Code::InvalidArgument));
}

#[test]
fn queries_of_common_clients_are_accepted() {
    use Operation as O;
    use ResourceLevel::{Bucket, Object};
    for (method, level, query, operation) in [
        ("PUT", Object, "x-id=PutObject", O::PutObject),
        ("PUT", Object, "uploadId=7&partNumber=1&x-id=UploadPart", O::UploadPart),
        ("GET", Object, "partNumber=1&versionId=null&response-content-type=a", O::GetObject),
        ("GET", Object, "whatever=1", O::GetObject),
        ("GET", Bucket, "list-type=2&prefix=a&metadata=true", O::ListObjectsV2),
        ("DELETE", Object, "versionId=null&x-id=DeleteObject", O::DeleteObject),
        ("DELETE", Object, "uploadId=7", O::AbortMultipartUpload),
        ("DELETE", Object, "tagging&versionId=null", O::DeleteObjectTagging),
        ("PUT", Object, "tagging=&versionId=null", O::PutObjectTagging),
        ("POST", Object, "uploads=&x-id=CreateMultipartUpload", O::CreateMultipartUpload),
        ("POST", Bucket, "delete&x-id=DeleteObjects", O::DeleteObjects),
        ("PUT", Object, "AWSAccessKeyId=a&Expires=1&Signature=b&response-expires=c", O::PutObject),
        (
            "PUT",
            Object,
            "X-Amz-Algorithm=a&X-Amz-Credential=b&X-Amz-Date=c&X-Amz-Expires=9&X-Amz-SignedHeaders=host\
             &X-Amz-Signature=d&x-amz-meta-a=b&x-amz-copy-source=b%2Fk",
            O::PutObject,
        ),
    ] {
        assert_eq!(select_operation(method, level, query, &[]), Ok(operation), "{method} ?{query}");
    }
}

#[test]
fn headers_that_select_an_operation_are_refused_in_unsigned_queries() {
    for name in
        ["x-amz-copy-source", "X-Amz-Copy-Source", "x-amz-copy-source-range", "x-amz-write-offset-bytes"]
    {
        let refused = select_operation("PUT", ResourceLevel::Object, &format!("{name}=b%2Fk"), &[]);
        assert_eq!(refused, Err((Code::InvalidArgument, name.to_owned())));
    }
}

proptest! {
    #[test]
    fn unknown_names_are_refused_on_writes_and_ignored_on_reads(
        name in "[a-zA-Z][a-zA-Z-]{0,14}", value in "[a-z0-9]{0,4}", at in 0..3_usize,
    ) {
        let known = SUBRESOURCES.contains(&&*name)
            || name.to_ascii_lowercase().starts_with("x-")
            || name.starts_with("response-")
            || ["AWSAccessKeyId", "Expires", "Signature", "versionId", "list-type"].contains(&&*name);
        if known {
            return Ok(());
        }
        for method in METHODS {
            let outcome = select_operation(method, LEVELS[at], &format!("{name}={value}"), &[]);
            let reads = matches!(method, "GET" | "HEAD");
            if reads && TABLES.iter().any(|table| table.method == method && table.level == LEVELS[at]) {
                prop_assert!(is_plain(method, LEVELS[at], &outcome) || name == "annotationName");
            } else {
                prop_assert!(outcome.is_err(), "{} ?{}: {:?}", method, name, outcome);
            }
        }
    }

    #[test]
    fn writes_accept_only_their_own_parameters(
        name in "[a-z]{1,12}", row in 0..1000_usize,
    ) {
        let writes: Vec<_> = TABLES.iter().filter(|table| !matches!(table.method, "GET" | "HEAD")).collect();
        let table = writes[row % writes.len()];
        let named = table.rows.iter().filter_map(|row| row.0.parameter());
        for query in named.map(|own| format!("{own}=1&{name}=2&partNumber=3")).chain([format!("{name}=2")]) {
            if SUBRESOURCES.contains(&&*name) {
                continue;
            }
            let outcome = select_operation(table.method, table.level, &query, &[]);
            let changes =
                outcome.as_ref().is_ok_and(|operation| matches!(operation.support(), Support::Full(_)));
            prop_assert_eq!(changes, false, "{} ?{}", table.method, query);
        }
    }
}
