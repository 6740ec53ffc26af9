//! Check of query parameters: no operation that changes data ignores one.
//!
//! A request that names a sub-resource must never fall through to the plain operation: `DELETE ?acl` would
//! delete the object. On PUT, POST and DELETE every parameter must therefore be the operation's own, or
//! belong to signing or to a client's bookkeeping; otherwise the request is refused. On GET and HEAD unknown
//! names are ignored, as at AWS, but names of sub-resources are refused there too.

use super::table::{self, SUBRESOURCES};
use super::{Operation, ResourceLevel, Support};
use crate::error::{Code, S3Error};
use crate::query::Query;
use http::Method;

/// Parameters of SigV2's query signatures. Other requests may carry them without effect.
const SIGV2_PARAMETERS: &[&str] = &["AWSAccessKeyId", "Expires", "Signature"];

/// Headers that select another operation than the plain one. In a query they are effective only in a
/// presigned URL, where they have been moved to the headers before this check.
const OPERATION_HEADERS: &[&str] = &["x-amz-copy-source", "x-amz-rename-source", "x-amz-write-offset-bytes"];

/// Checks the query of a request with `method` at `level` for `operation`.
///
/// # Errors
/// `MethodNotAllowed` for a sub-resource that selects no operation here, and if there is no operation at all;
/// `InvalidArgument` for any other parameter that the operation does not accept, that is repeated or missing.
pub fn check_query(
    method: &Method,
    level: ResourceLevel,
    operation: Operation,
    query: &Query<'_>,
) -> Result<(), S3Error> {
    if operation == Operation::Unknown {
        return Err(S3Error::new(Code::MethodNotAllowed).field("Method", method.as_str()));
    }
    // An operation that is not offered is refused by name, whatever the query contains.
    if query.is_empty() || operation.support() == Support::None {
        return check_complete(operation, query);
    }
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let presigned = query.has("X-Amz-Signature") || query.has("Signature");
    for (at, (name, value)) in query.iter().enumerate() {
        // Parameters that may be in any query need no further check on a read: they select no operation.
        if reads && is_allowed_anywhere(name) {
            continue;
        }
        if is_own(method, level, operation, name) {
            if !reads && query.iter().take(at).any(|(earlier, _)| earlier == name) {
                return Err(S3Error::invalid_argument(
                    format!("{name} is specified more than once."),
                    name,
                    value,
                ));
            }
        } else if is_allowed_anywhere(name) {
            if !reads && !presigned && is_operation_header(name) {
                let why = format!("{name} is a header; only a presigned URL may carry it in the query.");
                return Err(S3Error::invalid_argument(why, name, value));
            }
        } else if SUBRESOURCES.binary_search(&name).is_ok() {
            return Err(misplaced_sub_resource(method, level, operation, name));
        } else if !reads || name == "annotationName" {
            return Err(not_accepted(name, value));
        }
    }
    check_complete(operation, query)
}

/// True if a parameter has a meaning for the operation.
fn is_own(method: &Method, level: ResourceLevel, operation: Operation, name: &str) -> bool {
    selecting_parameters(method, level, operation).any(|own| own == name)
        || further_parameters(operation).contains(&name)
}

/// Returns the parameters that select an operation.
fn selecting_parameters(
    method: &Method,
    level: ResourceLevel,
    operation: Operation,
) -> impl Iterator<Item = &'static str> {
    let rows = table::table_for(method.as_str(), level).map_or(&[][..], |table| table.rows);
    rows.iter().filter(move |row| row.1 == operation).filter_map(|row| row.0.parameter())
}

/// Returns further parameters of an operation that changes data. Reads need no list: they ignore unknown
/// parameters.
const fn further_parameters(operation: Operation) -> &'static [&'static str] {
    use Operation as O;
    match operation {
        O::UploadPart | O::UploadPartCopy => &["partNumber"],
        O::DeleteObject | O::PutObjectTagging | O::DeleteObjectTagging => &["versionId"],
        _ => &[],
    }
}

/// True if a parameter may be in any query: headers of presigned URLs, signatures, names that SDKs add
/// (`x-id`), and overrides of response headers.
fn is_allowed_anywhere(name: &str) -> bool {
    let begins = |with: &str| name.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    begins("x-") || name.starts_with("response-") || SIGV2_PARAMETERS.contains(&name)
}

fn is_operation_header(name: &str) -> bool {
    OPERATION_HEADERS
        .iter()
        .any(|header| name.get(..header.len()).is_some_and(|n| n.eq_ignore_ascii_case(header)))
}

/// Returns the error for a sub-resource that is not the operation's own.
fn misplaced_sub_resource(
    method: &Method,
    level: ResourceLevel,
    operation: Operation,
    name: &str,
) -> S3Error {
    match selecting_parameters(method, level, operation).next() {
        Some(other) => {
            let why = format!("Conflicting query string parameters: {other}, {name}");
            S3Error::invalid_argument(why, "ResourceType", name)
        }
        None => {
            S3Error::new(Code::MethodNotAllowed).field("Method", method.as_str()).field("ResourceType", name)
        }
    }
}

fn not_accepted(name: &str, value: &str) -> S3Error {
    let why = match name {
        "versionId" => "This operation does not accept a version-id.".to_owned(),
        "partNumber" => "This operation does not accept partNumber without uploadId.".to_owned(),
        _ => format!("This operation does not accept the query parameter {name}."),
    };
    S3Error::invalid_argument(why, name, value)
}

/// Refuses an operation without one of its required parameters.
fn check_complete(operation: Operation, query: &Query<'_>) -> Result<(), S3Error> {
    if matches!(operation, Operation::UploadPart | Operation::UploadPartCopy) && !query.has("partNumber") {
        let why = "This operation does not accept uploadId without partNumber.";
        return Err(S3Error::invalid_argument(why, "partNumber", ""));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
