//! Requests that are answered without authentication, because their clients do not sign them for S3.
//!
//! A browser's preflight carries no signature. A call of IAM or STS carries the signature of another
//! service. No response depends on which buckets exist, so a client without a key cannot discover names.

use super::Gateway;
use super::client_body::ReceivedClientBody;
use super::request::{Query, RequestTarget};
use super::response::{S3Response, S3Result, xml};
use http::request::Parts;
use http::{HeaderName, Method, StatusCode, header};
use mlgw_auth::BodyRequirement;
use mlgw_body::{BodyTerms, RequestBody, read_all};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::operation::ResourceLevel;
use mlgw_wire::values::header_value;
use mlgw_wire::xml::Xml;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// Longest body of an IAM or STS call that is read to find its name, in bytes.
const CALL_BYTES_MAX: u64 = 8 << 10;
/// Longest name of a call; AWS has none as long.
const CALL_NAME_MAX: usize = 64;

const BUCKET_REGION: HeaderName = HeaderName::from_static("x-amz-bucket-region");

/// True if a request is a preflight or a call of another service.
pub(super) fn is_unsigned_call(head: &Parts, target: &RequestTarget, query: &Query<'_>) -> bool {
    head.method == Method::OPTIONS
        || (target.level() == ResourceLevel::Service && is_other_service_call(head, query))
}

/// Answers a request for which [`is_unsigned_call`] is true.
///
/// # Errors
/// Always `AccessForbidden` or `BadRequest` for a preflight; `NotImplemented` for a call without a valid
/// name.
pub(super) async fn answer(
    head: &Parts,
    query: &Query<'_>,
    incoming: &mut Option<ReceivedClientBody>,
) -> S3Result {
    if head.method == Method::OPTIONS {
        return Err(preflight(head));
    }
    refuse_call(head, query, incoming).await
}

/// Returns `AccessDenied` for a request without a signature. The response names the region, because clients
/// discover it this way.
pub(super) fn denied(gateway: &Gateway, target: &RequestTarget) -> S3Error {
    let error = S3Error::new(Code::AccessDenied);
    match target.bucket {
        Some(_) => error.header(BUCKET_REGION, header_value(&gateway.config.region)),
        None => error,
    }
}

/// Returns the response to a preflight. No bucket has CORS rules, so none is granted.
fn preflight(head: &Parts) -> S3Error {
    let bad = |why| S3Error::new(Code::BadRequest).message(why);
    if !head.headers.contains_key(header::ORIGIN) {
        return bad("Insufficient information. Origin request header needed.");
    }
    let Some(method) = head.headers.get(header::ACCESS_CONTROL_REQUEST_METHOD) else {
        return bad("Invalid Access-Control-Request-Method: null");
    };
    let method = String::from_utf8_lossy(method.as_bytes()).into_owned();
    S3Error::new(Code::AccessForbidden).field("Method", method).field("ResourceType", "OBJECT")
}

/// True if a request without a bucket has the form of AWS's query protocol, which IAM and STS use.
fn is_other_service_call(head: &Parts, query: &Query<'_>) -> bool {
    let content_type = head.headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
    let form = b"application/x-www-form-urlencoded";
    let is_form = content_type
        .and_then(|value| value.get(..form.len()))
        .is_some_and(|value| value.eq_ignore_ascii_case(form));
    (head.method == Method::POST && is_form) || query.has("Action")
}

/// Refuses a call and names it in the response.
async fn refuse_call(head: &Parts, query: &Query<'_>, incoming: &mut Option<ReceivedClientBody>) -> S3Result {
    let unnamed = || S3Error::not_implemented("IAM and STS");
    if let Some(action) = query.raw("Action") {
        return action_name(action).map(|name| not_implemented(&name)).ok_or_else(unnamed);
    }
    let incoming = incoming.as_mut().ok_or_else(unnamed)?;
    let terms = BodyTerms::document(CALL_BYTES_MAX);
    let body = read_all(RequestBody::new(incoming, head, BodyRequirement::Unsigned, terms)?).await?;
    let text = std::str::from_utf8(&body).map_err(|_| unnamed())?;
    let form = Query::parse(text.trim_end());
    form.raw("Action").and_then(action_name).map(|name| not_implemented(&name)).ok_or_else(unnamed)
}

/// Decodes the name of a call; `None` if the text cannot be a name.
fn action_name(encoded: &str) -> Option<Cow<'_, str>> {
    let name = percent_decode_str(encoded).decode_utf8().ok()?;
    let fits = (1..=CALL_NAME_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric());
    fits.then_some(name)
}

/// Returns a refusal in the form of the query protocol. Clients of that protocol read the nested `Error`,
/// S3 clients the outer code.
fn not_implemented(name: &str) -> S3Response {
    let error = S3Error::not_implemented(name);
    let (code, text) = (error.code().as_str(), error.text());
    let mut out = Xml::new("ErrorResponse");
    out.open("Error").text("Type", "Sender").text("Code", code).text("Message", text).close("Error");
    out.text("Code", code).text("Message", text);
    let mut response = xml(out.finish("ErrorResponse"));
    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
    response
}

#[cfg(test)]
mod tests {
    use super::{action_name, is_other_service_call, preflight};
    use http::request::Parts;
    use mlgw_wire::error::Code;
    use mlgw_wire::query::Query;

    fn head(method: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().method(method).uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_preflight_is_refused_and_an_incomplete_one_is_a_bad_request() {
        let (origin, method) = (("origin", "http://a"), ("access-control-request-method", "PUT"));
        for (headers, code) in [
            (&[origin, method][..], Code::AccessForbidden),
            (&[origin], Code::BadRequest),
            (&[method], Code::BadRequest),
            (&[], Code::BadRequest),
        ] {
            assert_eq!(preflight(&head("OPTIONS", headers)).code(), code, "{headers:?}");
        }
    }

    #[test]
    fn calls_of_other_services_are_recognized_by_their_form() {
        let form = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");
        for (method, headers, query, is) in [
            ("POST", &[form][..], "", true),
            ("POST", &[("content-type", "Application/X-WWW-Form-URLEncoded")], "", true),
            ("GET", &[], "Action=GetCallerIdentity&Version=2011-06-15", true),
            ("GET", &[form], "", false),
            ("POST", &[("content-type", "multipart/form-data; boundary=a")], "", false),
            ("GET", &[], "action=x", false),
        ] {
            let found = is_other_service_call(&head(method, headers), &Query::parse(query));
            assert_eq!(found, is, "{method} {headers:?} ?{query}");
        }
    }

    #[test]
    fn only_valid_call_names_are_echoed() {
        assert_eq!(action_name("AssumeRole%57ithSAML").as_deref(), Some("AssumeRoleWithSAML"));
        for text in ["", "a%20b", "<script>", "%ff", &"a".repeat(65)] {
            assert_eq!(action_name(text), None, "{text}");
        }
    }
}
