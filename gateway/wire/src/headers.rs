//! Treatment of request headers: one table of all known headers, so that none is ignored by accident.
//!
//! A client that requests encryption, a lock or a grant and gets a 200 relies on it. Each header of S3 is
//! therefore honored, has no effect because its request is already met, or is refused by name. An `x-amz-*`
//! or `x-mlgw-*` header that is not in the table is refused too. Other headers (proxies, tracing, SDK
//! diagnostics) have no meaning for an object store and are accepted.

mod hoist;
mod table;

pub use hoist::hoist;

use super::error::{Code, S3Error};
use super::operation::Operation;
use crate::access::{OWNER, RequiredPermission};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_common::limits::{REQUEST_HEAD_BYTES_MAX, REQUEST_HEADERS_MAX};
use std::fmt::Write as _;
use table::{HeaderElsewhere, HeaderRow, HeaderRule, PREFIXES, ROWS};

/// Checks the size of a request's head: its total bytes and the number of its header lines. The second limit
/// only affects lines so short that they take more memory than they have bytes.
///
/// # Errors
/// `RequestHeaderSectionTooLarge`.
pub fn check_size(head: &Parts) -> Result<(), S3Error> {
    // The separator `: ` and the line end.
    let lines = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let target = head.uri.path_and_query().map_or(1, |target| target.as_str().len());
    let bytes = head.method.as_str().len() + target + lines.sum::<usize>();
    if bytes > REQUEST_HEAD_BYTES_MAX || head.headers.len() > REQUEST_HEADERS_MAX {
        return Err(head_too_large());
    }
    Ok(())
}

/// Returns the error for a head that is too large.
#[must_use]
pub fn head_too_large() -> S3Error {
    S3Error::new(Code::RequestHeaderSectionTooLarge)
        .field("MaxSizeAllowed", REQUEST_HEAD_BYTES_MAX.to_string())
        .field("MaxHeadersAllowed", REQUEST_HEADERS_MAX.to_string())
}

/// Checks that no header of a request for `operation` would be ignored.
///
/// # Errors
/// `NotImplemented` with the name of the first header that is refused, or AWS's own code for the few headers
/// that have one.
pub fn check_headers(headers: &HeaderMap, operation: Operation) -> Result<(), S3Error> {
    headers.iter().try_for_each(|(name, value)| check(find(name.as_str()), name, value, operation))
}

/// Same as [`check_headers`], for an origin that has storage classes of its own.
///
/// # Errors
/// Same as [`check_headers`].
pub fn check_headers_for_origin(headers: &HeaderMap, operation: Operation) -> Result<(), S3Error> {
    headers.iter().try_for_each(|(name, value)| match find(name.as_str()) {
        Some(row) if matches!(row.rule, HeaderRule::StorageClass) => Ok(()),
        row => check(row, name, value, operation),
    })
}

fn check(
    row: Option<&HeaderRow>,
    name: &HeaderName,
    value: &HeaderValue,
    operation: Operation,
) -> Result<(), S3Error> {
    let name = name.as_str();
    match row {
        Some(row) => row.check(name, value, operation),
        None if name.starts_with("x-amz-") || name.starts_with("x-mlgw-") => Err(refused_header(name)),
        None => Ok(()),
    }
}

/// Returns the table as a Markdown page for the documentation.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from("| header | handling | operations | reason |\n| --- | --- | --- | --- |\n");
    for (row, star) in ROWS.iter().map(|row| (row, "")).chain(PREFIXES.iter().map(|row| (row, "*"))) {
        let operations: Vec<&str> = row.rule.operations().iter().map(|op| op.name()).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| `{}{star}` | {} | {} | {} |",
            row.name,
            row.rule.words(),
            operations.join(", "),
            row.reason
        );
    }
    page.push_str("| any other `x-amz-*` or `x-mlgw-*` | refused | | unknown header |\n");
    page
}

fn find(name: &str) -> Option<&'static HeaderRow> {
    match ROWS.binary_search_by(|row| row.name.cmp(name)) {
        Ok(at) => Some(&ROWS[at]),
        Err(_) => PREFIXES.iter().find(|row| name.starts_with(row.name)),
    }
}

fn refused_header(name: &str) -> S3Error {
    S3Error::new(Code::NotImplemented)
        .message(format!("The header {name} implies functionality that is not implemented."))
        .field("Header", name)
}

impl HeaderRow {
    fn check(&self, name: &str, value: &HeaderValue, operation: Operation) -> Result<(), S3Error> {
        let is = |values: &[&str]| values.iter().any(|v| value.as_bytes().eq_ignore_ascii_case(v.as_bytes()));
        match self.rule {
            HeaderRule::Honoured(operations, elsewhere) if !operations.contains(&operation) => {
                match elsewhere {
                    HeaderElsewhere::HasEffect(_) => Ok(()),
                    HeaderElsewhere::RefusedOnWrites
                        if matches!(
                            operation.action(),
                            RequiredPermission::Read | RequiredPermission::List
                        ) =>
                    {
                        Ok(())
                    }
                    HeaderElsewhere::RefusedOnWrites | HeaderElsewhere::Refused => Err(refused_header(name)),
                }
            }
            HeaderRule::HonouredValues(_, values) | HeaderRule::MetByValues(values) if !is(values) => {
                Err(refused_header(name))
            }
            HeaderRule::Honoured(..)
            | HeaderRule::HonouredValues(..)
            | HeaderRule::AlwaysMet
            | HeaderRule::MetByValues(_) => Ok(()),
            HeaderRule::StorageClass if is(&["STANDARD"]) => Ok(()),
            HeaderRule::StorageClass if is(table::STORAGE_CLASSES) => Err(refused_header(name)),
            HeaderRule::StorageClass => Err(S3Error::new(Code::InvalidStorageClass)),
            HeaderRule::Owner if is(&[OWNER]) => Ok(()),
            HeaderRule::Owner => Err(S3Error::new(Code::AccessDenied)),
            HeaderRule::Token => Err(S3Error::new(Code::InvalidToken)),
            HeaderRule::Refused => Err(refused_header(name)),
        }
    }
}

impl HeaderRule {
    const fn operations(self) -> &'static [Operation] {
        match self {
            Self::Honoured(operations, _) | Self::HonouredValues(operations, _) => operations,
            Self::AlwaysMet
            | Self::MetByValues(_)
            | Self::StorageClass
            | Self::Owner
            | Self::Token
            | Self::Refused => &[],
        }
    }

    fn words(self) -> String {
        match self {
            Self::Honoured(_, HeaderElsewhere::HasEffect(nothing)) => {
                format!("honored; other operations: {nothing}")
            }
            Self::Honoured(_, HeaderElsewhere::RefusedOnWrites) => {
                "honored; other writes: refused".to_owned()
            }
            Self::Honoured(_, HeaderElsewhere::Refused) => "honored; other operations: refused".to_owned(),
            Self::HonouredValues(_, values) => {
                format!("honored: `{}`; other values: refused", values.join("`, `"))
            }
            Self::AlwaysMet => "no effect".to_owned(),
            Self::MetByValues(values) => {
                format!("no effect: `{}`; other values: refused", values.join("`, `"))
            }
            Self::StorageClass => "no effect: `STANDARD`; other values: refused".to_owned(),
            Self::Owner => "honored: the owner's ID; other values: `AccessDenied`".to_owned(),
            Self::Token => "refused with `InvalidToken`".to_owned(),
            Self::Refused => "refused".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::table::{PREFIXES, ROWS};
    use super::{OWNER, REQUEST_HEAD_BYTES_MAX, REQUEST_HEADERS_MAX, check_headers, check_size, markdown};
    use crate::error::Code;
    use crate::operation::Operation;
    use http::{HeaderMap, HeaderName, HeaderValue};

    fn check(operation: Operation, pairs: &[(&'static str, &'static str)]) -> Result<(), (Code, String)> {
        let pairs = pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
        let headers: HeaderMap = pairs.collect();
        check_headers(&headers, operation)
            .map_err(|e| (e.code(), e.get("Header").unwrap_or_default().to_owned()))
    }

    #[test]
    fn a_head_is_limited_by_its_bytes() {
        let check = |lines: usize, value: usize| {
            let mut request = http::Request::get("/b/k?a=b");
            for line in 0..lines {
                request = request.header(format!("x-{line:04}"), "v".repeat(value));
            }
            check_size(&request.body(()).unwrap().into_parts().0).map_err(|error| error.code())
        };
        for (lines, value) in [(0, 0), (1, 60_000), (100, 600), (1000, 40), (REQUEST_HEADERS_MAX, 1)] {
            assert_eq!(check(lines, value), Ok(()), "{lines} lines of {value}");
        }
        let refused = Err(Code::RequestHeaderSectionTooLarge);
        for (lines, value) in
            [(1, REQUEST_HEAD_BYTES_MAX), (100, 700), (1000, 60), (REQUEST_HEADERS_MAX + 1, 1)]
        {
            assert_eq!(check(lines, value), refused, "{lines} lines of {value}");
        }
        // The target counts, too.
        let long = http::Request::get(format!("/b/{}", "k".repeat(60_000))).header("x", "v".repeat(10_000));
        let long = check_size(&long.body(()).unwrap().into_parts().0);
        assert_eq!(long.map_err(|error| error.code()), refused);
    }

    #[test]
    fn the_table_can_be_searched() {
        assert!(ROWS.is_sorted_by(|a, b| a.name < b.name), "sorted, each header once");
        for row in ROWS.iter().chain(PREFIXES) {
            assert_eq!(row.name, row.name.to_lowercase());
            assert!(!row.reason.is_empty(), "{}", row.name);
        }
    }

    #[test]
    fn common_sdk_headers_are_accepted_on_every_operation() {
        let botocore = [
            ("host", "localhost:9000"),
            ("accept-encoding", "identity"),
            ("user-agent", "Boto3/1.44 md/Botocore#1.44 ua/2.1"),
            ("amz-sdk-invocation-id", "5d0f4f35-0b0e-4b5e-9a1e-3a9d1b9a7f1e"),
            ("amz-sdk-request", "attempt=1; max=5"),
            ("authorization", "AWS4-HMAC-SHA256 Credential=a"),
            ("x-amz-date", "20260101T000000Z"),
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
            ("x-amz-user-agent", "aws-sdk-js/3.0"),
            ("x-amz-te", "append-md5"),
            ("x-amz-api-version", "2006-03-01"),
            ("x-amzn-trace-id", "Root=1"),
            ("expect", "100-continue"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-mlgw-batch-size", "256"),
            ("x-mlgw-gpu-count", "8"),
            ("x-mlgw-workload", "train"),
        ];
        for operation in Operation::ALL {
            assert_eq!(check(*operation, &botocore), Ok(()), "{}", operation.name());
        }
    }

    #[test]
    fn sdk_headers_of_each_operation_are_accepted() {
        for (operation, headers) in [
            (
                Operation::PutObject,
                &[
                    ("content-encoding", "aws-chunked"),
                    ("transfer-encoding", "chunked"),
                    ("x-amz-decoded-content-length", "5"),
                    ("x-amz-trailer", "x-amz-checksum-crc32"),
                    ("x-amz-sdk-checksum-algorithm", "CRC32"),
                    ("x-amz-meta-mtime", "1"),
                    ("x-amz-acl", "private"),
                    ("x-amz-storage-class", "STANDARD"),
                    ("x-amz-tagging", "a=b"),
                    ("if-none-match", "*"),
                ][..],
            ),
            (
                Operation::GetObject,
                &[("x-amz-checksum-mode", "ENABLED"), ("range", "bytes=0-1"), ("if-match", "\"a\"")],
            ),
            (
                Operation::CopyObject,
                &[
                    ("x-amz-copy-source", "b/k"),
                    ("x-amz-copy-source-if-match", "\"a\""),
                    ("x-amz-metadata-directive", "REPLACE"),
                    ("x-amz-tagging-directive", "COPY"),
                    ("x-amz-checksum-algorithm", "SHA256"),
                ],
            ),
            (
                Operation::CompleteMultipartUpload,
                &[
                    ("x-amz-mp-object-size", "9"),
                    ("x-amz-checksum-type", "FULL_OBJECT"),
                    ("if-match", "\"a\""),
                ],
            ),
            (
                Operation::GetObjectAttributes,
                &[
                    ("x-amz-object-attributes", "ETag"),
                    ("x-amz-max-parts", "1"),
                    ("x-amz-part-number-marker", "0"),
                ],
            ),
            (
                Operation::DeleteObject,
                &[("x-amz-if-match-size", "1"), ("x-amz-if-match-last-modified-time", "x")],
            ),
            (
                Operation::CreateBucket,
                &[
                    ("x-amz-bucket-object-lock-enabled", "False"),
                    ("x-amz-object-ownership", "BucketOwnerEnforced"),
                    ("x-mlgw-split-keys", "g,p"),
                ],
            ),
            (
                Operation::ListObjectsV2,
                &[
                    ("x-amz-request-payer", "requester"),
                    ("x-amz-optional-object-attributes", "RestoreStatus"),
                ],
            ),
        ] {
            assert_eq!(check(operation, headers), Ok(()), "{}", operation.name());
        }
    }

    #[test]
    fn unsupported_headers_are_refused_by_name() {
        for (name, value) in [
            ("x-amz-server-side-encryption", "AES256"),
            ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
            ("x-amz-copy-source-server-side-encryption-customer-key", "a"),
            ("x-amz-acl", "public-read"),
            ("x-amz-grant-read", "id=1"),
            ("x-amz-object-lock-mode", "GOVERNANCE"),
            ("x-amz-object-lock-legal-hold", "ON"),
            ("x-amz-bucket-object-lock-enabled", "true"),
            ("x-amz-mfa", "1 2"),
            ("x-amz-storage-class", "GLACIER"),
            ("x-amz-checksum-xxhash3", "AA=="),
            ("x-amz-nobody-knows", "1"),
            ("x-mlgw-nobody-knows", "1"),
            ("x-mlgw-cache", "hit"),
            ("x-mlgw-split-keys", "g,p"),
            ("content-range", "bytes 0-1/2"),
            ("if-modified-since", "Tue, 14 Nov 2023 22:13:20 GMT"),
        ] {
            let expected = Err((Code::NotImplemented, name.to_owned()));
            assert_eq!(check(Operation::PutObject, &[(name, value)]), expected, "{name}");
        }
    }

    #[test]
    fn a_condition_is_never_dropped_from_a_write() {
        for operation in [Operation::UploadPart, Operation::PutObjectTagging, Operation::CreateBucket] {
            let refused = check(operation, &[("if-match", "\"a\"")]);
            assert_eq!(refused, Err((Code::NotImplemented, "if-match".to_owned())), "{}", operation.name());
        }
        assert_eq!(check(Operation::ListObjectsV2, &[("if-none-match", "\"a\"")]), Ok(()));
    }

    #[test]
    fn some_headers_have_codes_of_their_own() {
        let code = |name, value| check(Operation::PutObject, &[(name, value)]).map_err(|(code, _)| code);
        assert_eq!(code("x-amz-security-token", "t"), Err(Code::InvalidToken));
        assert_eq!(code("x-amz-expected-bucket-owner", "111122223333"), Err(Code::AccessDenied));
        assert_eq!(code("x-amz-expected-bucket-owner", OWNER), Ok(()));
        assert_eq!(code("x-amz-storage-class", "TEPID"), Err(Code::InvalidStorageClass));
    }

    #[test]
    fn the_page_has_every_row() {
        let page = markdown();
        for row in ROWS.iter().chain(PREFIXES) {
            assert!(page.contains(&format!("| `{}", row.name)), "{}", row.name);
        }
    }
}
