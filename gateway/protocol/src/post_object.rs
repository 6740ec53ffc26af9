//! PostObject: an upload from an HTML form.
//!
//! The fields of the form precede its file and are limited in size. They carry the signature of a policy
//! that restricts the form. The file is then stored as any other body, and its fields count as the headers
//! of a PUT.

use super::object_headers;
use super::request::{AuthenticatedRequest, Query, RequestTarget};
use super::response::{S3Response, S3Result, empty, xml};
use super::{Gateway, RequestTimes, access_hooks, barriers, conditions, member, remote_backed, unsigned};
use crate::client_body::ReceivedClientBody;
use crate::put::{BodySource, writer};
use http::request::Parts;
use http::{StatusCode, header};
use http_body_util::StreamBody;
use mlgw_auth::{BodyRequirement, post};
use mlgw_body::form::Form;
use mlgw_body::{BodyTerms, RequestBody};
use mlgw_common::ObjectKey;
use mlgw_common::limits::PUT_BYTES_MAX;
use mlgw_formats::command::Conditions;
use mlgw_objects::body_target::BodyTarget;
use mlgw_objects::memory::Account;
use mlgw_policies::Op;
use mlgw_wire::access::RequiredPermission;
use mlgw_wire::elements::TaggingDocument;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::headers::check_headers;
use mlgw_wire::operation::Operation;
use mlgw_wire::tags::check_tags;
use mlgw_wire::values::{etag_value, header_value};
use mlgw_wire::xml::Xml;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::sync::Arc;

/// PostObject.
///
/// # Errors
/// Those of S3.
pub(crate) async fn post_object(
    gateway: &Arc<Gateway>,
    memory: &Account,
    head: &Parts,
    target: &RequestTarget,
    incoming: ReceivedClientBody,
    times: RequestTimes,
) -> S3Result {
    let (name, now) = (target.bucket.as_deref().unwrap_or_default(), times.now);
    // The sender is unknown until the fields have been read, and they may never arrive.
    let unproven = memory.reserve_form()?;
    let mut form = Form::open(head, incoming)?;
    let file = form.read_fields().await?;
    let fields = form.fields()?;
    let verify = || post::verify(&fields, name, &gateway.keyring, times.received, &gateway.config.rules);
    barriers::until_recent(gateway).await.map_err(barriers::unavailable)?;
    let grant = barriers::authenticate(gateway, verify(), verify).await?;
    let principal = grant.principal.ok_or_else(|| unsigned::denied(gateway, target))?;
    drop(unproven);
    let key = key(&fields)?;
    if !principal.allows(RequiredPermission::Write, Some(name), Some(key.as_str())) {
        return Err(S3Error::new(Code::AccessDenied));
    }
    member::check_clock(gateway)?;
    // Not earlier, so that a form without a signature cannot discover names of buckets or upstreams.
    barriers::until_system(gateway).await?;
    let bucket = gateway.objects.bucket(name)?;
    if let Some(binding) = &bucket.binding {
        return Err(remote_backed::not_offered(&bucket.name, binding, "PostObject"));
    }
    let (query, fields_head) = (Query::default(), form.as_head());
    check_headers(&fields_head.headers, Operation::PostObject)?;
    // The form describes the object. The client is the sender of the HTTP request.
    let sender = AuthenticatedRequest { head, target, query: &query, principal, memory, now };
    let request = AuthenticatedRequest { head: &fields_head, principal: sender.principal.clone(), ..sender };
    let mut description = object_headers::parse_description(&request)?;
    if let Some(document) = fields.get("tagging") {
        description.tags = TaggingDocument::tags(document.as_bytes())?;
        check_tags(&description.tags)?;
    }
    let conditions: Conditions = conditions::write_conditions(&request)?;
    let terms = BodyTerms {
        bytes_max: (*grant.length.end()).min(PUT_BYTES_MAX),
        length_required: false,
        ..gateway.new_object_terms()
    };
    let file = StreamBody::new(Box::pin(file.frames()));
    let body = BodySource(RequestBody::new(file, &fields_head, BodyRequirement::Unsigned, terms)?);
    let (objects, length) = (&gateway.objects, body.0.decoded_length());
    objects.ask_quota_usage(&bucket, request.principal.payer()).await;
    objects.check_quota(&bucket, &key, request.principal.payer(), length)?;
    let compression = gateway.compression(&sender, &bucket, &key, length, &description);
    let place = BodyTarget { bucket: &bucket, key: &key, part: None };
    let stored = objects.store(memory, place, body, compression).await?;
    if stored.bytes < *grant.length.start() {
        return Err(S3Error::new(Code::EntityTooSmall)
            .field("ProposedSize", stored.bytes.to_string())
            .field("MinSizeAllowed", grant.length.start().to_string()));
    }
    let object = stored.object(description, writer(&request.principal), now.as_millis());
    let (etag, size) = (object.etag.clone(), object.size);
    objects.put_version(&bucket, &key, object, stored.extents, conditions).await?;
    access_hooks::record_access(gateway, &sender, bucket.bucket_id(), &key, Op::Write, size);
    Ok(answer(&fields, &bucket.name, &key, &etag))
}

fn key(fields: &post::FormFields<'_>) -> Result<ObjectKey, S3Error> {
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

/// Returns the response that the form requests: a redirection, or a status.
fn answer(fields: &post::FormFields<'_>, bucket: &str, key: &ObjectKey, etag: &str) -> S3Response {
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
