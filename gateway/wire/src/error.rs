//! Errors as S3 clients know them: one table of codes, one way to put them on the wire.
//!
//! A client decides by code and status what to do (retry, correct, give up), so both are AWS's
//! own. Text that came from a request is escaped before it is sent back, and what went wrong
//! inside (the cause) is for the log only: it is never part of an answer.

mod code;

pub use code::Code;

use super::xml::{PROLOG, Unprintable, element_into};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use std::borrow::Cow;
use std::fmt;

/// A refusal: its code, what a person reads, and what the answer carries beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Error {
    code: Code,
    message: Cow<'static, str>,
    fields: Vec<(&'static str, String)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    cause: Option<Box<str>>,
    short_of: Option<&'static str>,
}

impl S3Error {
    /// Seconds after which a client told to slow down may come back.
    pub const RETRY_AFTER_SECS: &str = "1";

    /// An error with its code's own message.
    #[must_use]
    pub const fn new(code: Code) -> Self {
        Self {
            code,
            message: Cow::Borrowed(code.message()),
            fields: Vec::new(),
            headers: Vec::new(),
            cause: None,
            short_of: None,
        }
    }

    /// Our own failure: the client reads `InternalError`, the log reads `cause`.
    #[must_use]
    pub fn internal(cause: impl fmt::Display) -> Self {
        Self::new(Code::InternalError).caused_by(cause)
    }

    /// A request for something that mlgw does not offer, by its name.
    #[must_use]
    pub fn not_implemented(what: impl fmt::Display) -> Self {
        Self::new(Code::NotImplemented)
            .message(format!("{what}: a functionality that this server does not implement."))
    }

    /// `InvalidArgument` for the argument `name` that had `value`.
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

    /// `InvalidRange` for a range that an object of `size` bytes does not have. s3torchconnector
    /// reads the size from the answer, also when it is 0.
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

    /// `PreconditionFailed` for the header or field that did not hold.
    #[must_use]
    pub fn precondition_failed(condition: impl Into<String>) -> Self {
        Self::new(Code::PreconditionFailed).field("Condition", condition)
    }

    /// The same error with another text.
    #[must_use]
    pub fn message(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message = message.into();
        self
    }

    /// The same error with one more element in its XML.
    #[must_use]
    pub fn field(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }

    /// The same error with one more header in its answer.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The same error with a cause for the log.
    #[must_use]
    pub fn caused_by(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string().into());
        self
    }

    /// The same error, because something is short: `name` is that of the shortage.
    #[must_use]
    pub const fn short_of(mut self, name: &'static str) -> Self {
        self.short_of = Some(name);
        self
    }

    /// The name of what is short, if that is why. It is for logs; the answer does not carry it.
    #[must_use]
    pub const fn shortage(&self) -> Option<&'static str> {
        self.short_of
    }

    /// The code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The status of the answer.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.code.status()
    }

    /// What a person reads.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.message
    }

    /// The value of an element of the XML, if the error has it.
    #[must_use]
    pub fn get(&self, field: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| *name == field).map(|(_, value)| value.as_str())
    }

    /// What went wrong inside, for the log.
    #[must_use]
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// The `Error` document. Answers that began as 200 (CopyObject, CompleteMultipartUpload) end
    /// with it, so it can be had without the XML declaration.
    #[must_use]
    pub fn to_xml(&self, declaration: bool, resource: &str, request_id: &str) -> String {
        let mut out = String::with_capacity(256 + self.message.len());
        if declaration {
            out.push_str(PROLOG);
        }
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

    /// The answer to a request for `resource` (its path). An answer to HEAD is this one without
    /// its body; 304 has neither body nor type.
    #[must_use]
    pub fn into_response<B: From<Bytes>>(self, resource: &str, request_id: &str) -> Response<B> {
        let unchanged = self.code == Code::NotModified;
        let body = if unchanged { Bytes::new() } else { self.to_xml(true, resource, request_id).into() };
        let mut response = Response::new(B::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        if !unchanged {
            // Exactly this value: s3torchconnector reads the body of no other.
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
    fn an_error_is_xml_with_its_fields_and_nothing_of_the_request_unescaped() {
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
    fn an_unsatisfiable_range_tells_the_size_even_of_an_empty_object() {
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
    fn slow_down_says_when_to_come_back() {
        let response = S3Error::new(Code::SlowDown).into_response::<Bytes>("/b/k", "id");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn the_cause_is_for_the_log_only() {
        let error = S3Error::internal("disk 7 is on fire");
        assert!(error.to_string().contains("disk 7"));
        assert!(!error.to_xml(false, "/b/k", "id").contains("disk 7"));
    }
}
