//! PostObject: an upload from an HTML form.
//!
//! The form's fields come before its file and are bounded; they carry the signature of a policy
//! that says what the form may do. Then the file is stored as any other body, and its fields count
//! as the headers of a PUT.

use super::error::{Code, S3Error};
use super::headers::check_headers;
use super::object_headers::{Description, check_tags};
use super::operation::Operation;
use super::put::{put_version, store};
use super::request::{Query, Request, Target};
use super::response::{S3Response, S3Result, empty, etag_value, header_value, xml};
use super::tagging::TaggingDocument;
use super::xml::Xml;
use super::{Gateway, conditions};
use crate::auth::{Payload, post};
use crate::body::{Body, Terms};
use crate::credentials::Action;
use bytes::Bytes;
use futures_util::stream::{Stream, poll_fn};
use futures_util::{StreamExt, TryStreamExt};
use http::request::Parts;
use http::{HeaderName, StatusCode, header};
use http_body::{Body as _, Frame};
use http_body_util::StreamBody;
use hyper::body::Incoming;
use mlgw_common::limits::{POST_FORM_BYTES_MAX, PUT_BYTES_MAX};
use mlgw_common::{ObjectKey, Timestamp};
use mlgw_metadata::command::Conditions;
use multer::{Constraints, Field, Multipart, SizeLimit};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

/// Most fields of a form before its file.
const FIELDS_MAX: usize = 100;

/// PostObject.
///
/// # Errors
/// Those of S3.
pub async fn post_object(
    gateway: &Arc<Gateway>,
    head: &Parts,
    target: &Target,
    incoming: Incoming,
    now: Timestamp,
) -> S3Result {
    let bucket = gateway.bucket(target.bucket.as_deref().unwrap_or_default())?;
    let mut form = Form::open(head, incoming)?;
    let file = form.read_fields().await?;
    form.fill_in(file.file_name().unwrap_or_default());
    let fields = post::Fields::new(&form.fields)?;
    let grant = post::verify(&fields, &bucket.name, &gateway.keyring, now, &gateway.config.rules)?;
    let principal = grant.principal.ok_or_else(|| S3Error::new(Code::AccessDenied))?;
    let key = key(&fields)?;
    if !principal.allows(Action::Write, Some(&bucket.name), Some(key.as_str())) {
        return Err(S3Error::new(Code::AccessDenied));
    }
    let head = form.as_head()?;
    check_headers(&head.headers, Operation::PostObject)?;
    let request = Request { head: &head, target, query: &Query::default(), principal, now };
    let mut description = Description::of(&request)?;
    if let Some(document) = fields.get("tagging") {
        description.tags = TaggingDocument::tags(document.as_bytes())?;
        check_tags(&description.tags)?;
    }
    let conditions: Conditions = conditions::of_write(&request)?;
    let terms = Terms {
        bytes_max: (*grant.length.end()).min(PUT_BYTES_MAX),
        length_required: false,
        ..Terms::object(None)
    };
    let frames = file.into_stream().map_ok(Frame::data);
    let body = Body::new(StreamBody::new(frames), &head, Payload::Unsigned, terms)?;
    let stored = store(gateway, &bucket, &key, body, None).await?;
    if stored.bytes < *grant.length.start() {
        return Err(S3Error::new(Code::EntityTooSmall)
            .field("ProposedSize", stored.bytes.to_string())
            .field("MinSizeAllowed", grant.length.start().to_string()));
    }
    let object = stored.object(description, &request.principal.owner, now.as_millis());
    let etag = object.etag.clone();
    put_version(gateway, &bucket, &key, object, stored.extents, conditions).await?;
    Ok(answer(&fields, &bucket.name, &key, &etag))
}

fn key(fields: &post::Fields<'_>) -> Result<ObjectKey, S3Error> {
    let key = fields.get("key").unwrap_or_default();
    ObjectKey::new(key).map_err(|_| match key.is_empty() {
        true => {
            let why = "Bucket POST must contain a field named 'key'. If it is specified, please check the \
                       order of the fields.";
            S3Error::invalid_argument(why, "key", "")
        }
        false => S3Error::new(Code::KeyTooLongError),
    })
}

/// A form being read.
struct Form {
    parts: Multipart<'static>,
    fields: Vec<(String, String)>,
}

impl Form {
    fn open(head: &Parts, incoming: Incoming) -> Result<Self, S3Error> {
        let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let boundary = content_type.and_then(|value| multer::parse_boundary(value).ok());
        let boundary = boundary.ok_or_else(|| {
            let why = "Bucket POST must be of the enclosure-type multipart/form-data";
            S3Error::new(Code::PreconditionFailed).message(why)
        })?;
        let limits = SizeLimit::new().for_field("file", u64::MAX).per_field(POST_FORM_BYTES_MAX as u64);
        let constraints = Constraints::new().size_limit(limits);
        let parts = Multipart::with_constraints(one_by_one(incoming), boundary, constraints);
        Ok(Self { parts, fields: Vec::new() })
    }

    /// Reads the fields up to the file.
    async fn read_fields(&mut self) -> Result<Field<'static>, S3Error> {
        let mut bytes = 0;
        while let Some(field) = self.parts.next_field().await.map_err(malformed)? {
            let name = field.name().unwrap_or_default().to_owned();
            if name.eq_ignore_ascii_case("file") {
                return Ok(field);
            }
            let value = field.text().await.map_err(malformed)?;
            bytes += name.len() + value.len();
            if bytes > POST_FORM_BYTES_MAX || self.fields.len() == FIELDS_MAX {
                return Err(S3Error::new(Code::MaxPostPreDataLengthExceeded));
            }
            self.fields.push((name, value));
        }
        let why = "POST requires exactly one file upload per request.";
        Err(S3Error::invalid_argument(why, "file", "0"))
    }

    /// Puts the file's name where the key asks for it, before the policy is checked.
    fn fill_in(&mut self, file_name: &str) {
        // Browsers may send a whole path as the name of a file.
        let name = file_name.rsplit(['/', '\\']).next().unwrap_or_default();
        let keys = self.fields.iter_mut().filter(|(field, _)| field.eq_ignore_ascii_case("key"));
        keys.for_each(|(_, key)| *key = key.replace("${filename}", name));
    }

    /// The fields as the headers of a PUT.
    fn as_head(&self) -> Result<Parts, S3Error> {
        let mut head = http::Request::new(()).into_parts().0;
        for (name, value) in &self.fields {
            let form_only = ["key", "policy", "tagging", "success_action_redirect", "success_action_status"];
            let lower = name.to_ascii_lowercase();
            let signs = ["x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"];
            if form_only.contains(&&*lower) || signs.contains(&&*lower) {
                continue;
            }
            let name = if lower == "acl" { "x-amz-acl" } else { &lower };
            // A field that cannot be a header is one for the page's own use.
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                head.headers.insert(name, header_value(value));
            }
        }
        Ok(head)
    }
}

/// The frames of a body, at most one for each time the stream is looked at: the form's parser
/// takes all that is ready, which would be unbounded otherwise.
fn one_by_one(mut incoming: Incoming) -> impl Stream<Item = Result<Bytes, hyper::Error>> + Send + 'static {
    let mut rested = true;
    let frames = poll_fn(move |cx| {
        rested = !rested;
        if rested {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = Pin::new(&mut incoming).poll_frame(cx);
        if frame.is_pending() {
            // Nothing came, so there is nothing to rest from.
            rested = true;
        }
        frame
    });
    frames.filter_map(async |frame| frame.map(|frame| frame.into_data().ok()).transpose()).boxed()
}

fn malformed(error: multer::Error) -> S3Error {
    match error {
        multer::Error::FieldSizeExceeded { .. } | multer::Error::StreamSizeExceeded { .. } => {
            S3Error::new(Code::MaxPostPreDataLengthExceeded)
        }
        error => S3Error::new(Code::MalformedPOSTRequest).caused_by(error),
    }
}

/// The answer that the form asks for: a redirection, or a status.
fn answer(fields: &post::Fields<'_>, bucket: &str, key: &ObjectKey, etag: &str) -> S3Response {
    let show = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let redirect = fields.get("success_action_redirect").or_else(|| fields.get("redirect"));
    if let Some(url) = redirect.filter(|url| !url.is_empty()) {
        let join = if url.contains('?') { '&' } else { '?' };
        let query = format!("bucket={}&key={}&etag=%22{}%22", show(bucket), show(key.as_str()), show(etag));
        let mut response = empty(StatusCode::SEE_OTHER);
        response.headers_mut().insert(header::LOCATION, header_value(&format!("{url}{join}{query}")));
        return response;
    }
    let location = format!("/{bucket}/{}", show(key.as_str()));
    let mut response = match fields.get("success_action_status") {
        Some("200") => empty(StatusCode::OK),
        Some("201") => {
            let mut out = Xml::new("PostResponse");
            out.text("Location", &location).text("Bucket", bucket).text("Key", key.as_str()).etag(etag);
            let mut response = xml(out.finish("PostResponse"));
            *response.status_mut() = StatusCode::CREATED;
            response
        }
        _ => empty(StatusCode::NO_CONTENT),
    };
    response.headers_mut().insert(header::ETAG, etag_value(etag));
    response.headers_mut().insert(header::LOCATION, header_value(&location));
    response
}
