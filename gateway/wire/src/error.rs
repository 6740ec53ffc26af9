//! S3 errors: one table of codes and one encoding on the wire.
//!
//! Clients decide by code and status whether to retry, correct or give up, so both are AWS's own. Text from a
//! request is escaped before it is sent back. The internal cause of an error is for the log only and never
//! part of a response.

mod code;

pub use code::Code;

use super::xml::{PROLOG, Unprintable, element_into};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use std::borrow::Cow;
use std::fmt;

/// An error response: its code, its message, and further elements and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Error {
    code: Code,
    message: Cow<'static, str>,
    fields: Vec<(&'static str, String)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    cause: Option<Box<str>>,
    shortage: Option<&'static str>,
}

impl S3Error {
    /// Value of `Retry-After` of a `SlowDown` response, in seconds.
    pub const RETRY_AFTER_SECS: &str = "1";

    /// Returns an error with the default message of its code.
    #[must_use]
    pub const fn new(code: Code) -> Self {
        Self {
            code,
            message: Cow::Borrowed(code.message()),
            fields: Vec::new(),
            headers: Vec::new(),
            cause: None,
            shortage: None,
        }
    }

    /// Returns an internal error: the client receives `InternalError`, the log receives `cause`.
    #[must_use]
    pub fn internal(cause: impl fmt::Display) -> Self {
        Self::new(Code::InternalError).caused_by(cause)
    }

    /// Returns the error for a named feature that mlgw does not offer.
    #[must_use]
    pub fn not_implemented(what: impl fmt::Display) -> Self {
        Self::new(Code::NotImplemented)
            .message(format!("{what}: this server does not implement this functionality."))
    }

    /// Returns `InvalidArgument` for the argument `name` with `value`.
    #[must_use]
    pub fn invalid_argument(
        message: impl Into<Cow<'static, str>>,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        Self::new(Code::InvalidArgument)
            .message(message)
            .field("ArgumentName", name)
            .field("ArgumentValue", value)
    }

    /// Returns `InvalidRange` for a range outside an object of `size` bytes. s3torchconnector reads the size
    /// from the response, also if it is 0.
    #[must_use]
    pub fn invalid_range(requested: impl Into<String>, size: u64) -> Self {
        let error = Self::new(Code::InvalidRange)
            .field("RangeRequested", requested)
            .field("ActualObjectSize", size.to_string());
        match HeaderValue::from_str(&format!("bytes */{size}")) {
            Ok(value) => error.header(http::header::CONTENT_RANGE, value),
            Err(_) => error,
        }
    }

    /// Returns `PreconditionFailed` for the header or field that did not hold.
    #[must_use]
    pub fn precondition_failed(condition: impl Into<String>) -> Self {
        Self::new(Code::PreconditionFailed).field("Condition", condition)
    }

    /// Replaces the message.
    #[must_use]
    pub fn message(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message = message.into();
        self
    }

    /// Adds an element to the XML.
    #[must_use]
    pub fn field(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// Adds a header to the response.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sets the cause for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string().into());
        self
    }

    /// Sets the name of the shortage that caused the error.
    #[must_use]
    pub const fn with_shortage(mut self, name: &'static str) -> Self {
        self.shortage = Some(name);
        self
    }

    /// Returns the name of the shortage that caused the error, if one did. For logs only; not part of the
    /// response.
    #[must_use]
    pub const fn shortage(&self) -> Option<&'static str> {
        self.shortage
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Returns the status of the response.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// Returns the message.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.message
    }

    /// Returns the value of an element of the XML, if the error has it.
    #[must_use]
    pub fn get(&self, field: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| *name == field).map(|(_, value)| value.as_str())
    }

    /// Returns the internal cause, for the log.
    #[must_use]
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// Returns the `Error` document with its XML declaration.
    #[must_use]
    pub fn to_document(&self, resource: &str, request_id: &str) -> String {
        self.write_element(PROLOG.to_owned(), resource, request_id)
    }

    /// Returns the `Error` document without its XML declaration. Responses that began with status 200
    /// (CopyObject, CompleteMultipartUpload) end with it.
    #[must_use]
    pub fn to_element(&self, resource: &str, request_id: &str) -> String {
        self.write_element(String::new(), resource, request_id)
    }

    fn write_element(&self, mut out: String, resource: &str, request_id: &str) -> String {
        out.reserve(256 + self.message.len());
        out.push_str("<Error>");
        let mut element = |tag: &str, value: &str| element_into(&mut out, tag, value, Unprintable::Replaced);
        element("Code", self.code.as_str());
        element("Message", &self.message);
        for (name, value) in &self.fields {
            element(name, value);
        }
        element("Resource", resource);
        element("RequestId", request_id);
        element("HostId", request_id);
        out.push_str("</Error>");
        out
    }

    /// Returns the response to a request for `resource` (its path). A response to HEAD is the same without
    /// its body; a 304 has neither body nor content type.
    #[must_use]
    pub fn into_response<B: From<Bytes>>(self, resource: &str, request_id: &str) -> Response<B> {
        let unchanged = self.code == Code::NotModified;
        let body = if unchanged { Bytes::new() } else { self.to_document(resource, request_id).into() };
        let mut response = Response::new(B::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        if !unchanged {
            // Exactly this value is required: s3torchconnector ignores bodies of other types.
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        }
        if self.code == Code::SlowDown {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(Self::RETRY_AFTER_SECS));
        }
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

impl From<std::convert::Infallible> for S3Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl From<Code> for S3Error {
    fn from(code: Code) -> Self {
        Self::new(code)
    }
}

impl fmt::Display for S3Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)?;
        self.cause.as_ref().map_or(Ok(()), |cause| write!(f, " ({cause})"))
    }
}

impl std::error::Error for S3Error {}

#[cfg(test)]
mod tests {
    use super::{Code, S3Error};
    use bytes::Bytes;
    use http::StatusCode;

    #[test]
    fn an_error_is_xml_with_its_fields_and_request_text_is_escaped() {
        let error = S3Error::invalid_argument("bad & <ugly>", "max-keys", "\"x\"\u{1}");
        let response = error.into_response::<Bytes>("/b/a<b&c>", "4442587FB7D0A2F9");
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(response.headers()["content-type"], "application/xml");
        assert_eq!(
            std::str::from_utf8(response.body()).unwrap(),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>InvalidArgument</Code>\
             <Message>bad &amp; &lt;ugly&gt;</Message><ArgumentName>max-keys</ArgumentName>\
             <ArgumentValue>&quot;x&quot;\u{FFFD}</ArgumentValue><Resource>/b/a&lt;b&amp;c&gt;</Resource>\
             <RequestId>4442587FB7D0A2F9</RequestId><HostId>4442587FB7D0A2F9</HostId></Error>"
        );
    }

    #[test]
    fn an_unsatisfiable_range_reports_the_size_even_of_an_empty_object() {
        let response = S3Error::invalid_range("bytes=0-1", 0).into_response::<Bytes>("/b/k", "id");
        assert_eq!(response.status(), StatusCode::RANGE_NOT_SATISFIABLE);
        assert_eq!(response.headers()["content-range"], "bytes */0");
        let body = std::str::from_utf8(response.body()).unwrap();
        assert!(
            body.contains("<RangeRequested>bytes=0-1</RangeRequested><ActualObjectSize>0</ActualObjectSize>")
        );
    }

    #[test]
    fn not_modified_has_neither_body_nor_type() {
        let same = S3Error::new(Code::NotModified).into_response::<Bytes>("/b/k", "id");
        assert_eq!((same.status(), same.body().len()), (StatusCode::NOT_MODIFIED, 0));
        assert!(!same.headers().contains_key("content-type"));
    }

    #[test]
    fn slow_down_carries_retry_after() {
        let response = S3Error::new(Code::SlowDown).into_response::<Bytes>("/b/k", "id");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn the_cause_is_for_the_log_only() {
        let error = S3Error::internal("disk 7 is on fire");
        assert!(error.to_string().contains("disk 7"));
        assert!(!error.to_element("/b/k", "id").contains("disk 7"));
    }
}
