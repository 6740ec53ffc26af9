//! Heads of requests: target, query, operation, headers, ranges, sources of copies, split keys. Properties:
//! a range is inside of its object; a decoded key is valid; split keys ascend; a query whose operation writes
//! an object or a bucket contains no sub-resource.

use crate::input::Input;
use http::request::Parts;
use mlgw_common::ObjectKey;
use mlgw_wire::copy_source::{CopySource, source_range};
use mlgw_wire::headers::{check_headers, hoist};
use mlgw_wire::operation::{Operation, RequestView, check_query};
use mlgw_wire::query::Query;
use mlgw_wire::range;
use mlgw_wire::split_keys::parse_split_keys;
use mlgw_wire::target::RequestTarget;

/// The parts of a request that determine its operation.
struct Seen<'a>(&'a Parts, &'a Query<'a>);

impl RequestView for Seen<'_> {
    fn query(&self, name: &str) -> Option<&str> {
        self.1.raw(name)
    }

    fn has_header(&self, name: &str) -> bool {
        self.0.headers.contains_key(name)
    }
}

/// True if an operation replaces or deletes the target of its path.
fn is_plain_write(operation: Operation) -> bool {
    use Operation as O;
    matches!(operation, O::PutObject | O::CopyObject | O::DeleteObject | O::CreateBucket | O::DeleteBucket)
}

/// The input: the size of an object, then a head.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let size = u64::from(input.u16());
    let Some(mut head) = input.head() else { return };
    let domains = ["localhost".to_owned(), "s3.example.com".to_owned()];
    let Ok(target) = RequestTarget::parse(&head, &domains) else { return };
    if let Some(key) = &target.key {
        assert_eq!(ObjectKey::new(key.as_str()).as_ref(), Ok(key));
    }
    let query = head.uri.query().unwrap_or_default().to_owned();
    let query = Query::parse(&query);
    for name in ["prefix", "max-keys", "partNumber", "uploadId", "continuation-token", "versionId"] {
        let _ = (query.get(name), query.get_non_empty(name), query.number(name));
    }
    let operation = Operation::select(&head.method, target.level(), &Seen(&head, &query));
    if check_query(&head.method, target.level(), operation, &query).is_ok() && is_plain_write(operation) {
        for name in ["acl", "tagging", "restore", "annotation", "uploads", "policy", "versioning"] {
            assert!(!query.has(name), "{operation:?} with ?{name}");
        }
    }
    let _ = check_headers(&head.headers, operation);
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(Ok(Some(range))) = text("range").map(|range| range::parse(range, size)) {
        assert!(range.start < range.end && range.end <= size);
    }
    if let Some(Ok(range)) = text("x-amz-copy-source-range").map(|range| source_range(range, size)) {
        assert!(range.start < range.end && range.end <= size);
    }
    if let Some(Ok(source)) = text("x-amz-copy-source").map(CopySource::parse) {
        assert_eq!(ObjectKey::new(source.key.as_str()), Ok(source.key));
    }
    if let Ok(keys) = parse_split_keys(&head.headers) {
        assert!(keys.as_slice().is_sorted_by(|a, b| a.as_bytes() < b.as_bytes()));
    }
    let _ = hoist(&mut head.headers, &query);
}
