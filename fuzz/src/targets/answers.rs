//! Responses of an S3 origin, and the continuation tokens of its listings. Properties: a page is within the
//! limits of its query; a document or head that was decoded decodes to the same value after encoding; a
//! body that is framed for an origin can be decoded here.

use crate::input::{Input, run as wait};
use crate::listing_token;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use mlgw_auth::BodyRequirement;
use mlgw_body::{BodyTerms, RequestBody};
use mlgw_common::Timestamp;
use mlgw_common::header_text::metadata_to_wire;
use mlgw_formats::checksum::Algorithm;
use mlgw_formats::schema::{Binding, ChecksumAlgorithm, ChecksumKind, EtagKind, ObjectVersion, Pair};
use mlgw_remote::origin::s3::answers;
use mlgw_remote::origin::{
    ChecksumTrailer, ListLine, ListPage, ListQuery, OriginCopyReceipt, OriginError, UploadsQuery,
};
use mlgw_wire::xml::Xml;
use std::convert::Infallible;
use std::time::{Duration, UNIX_EPOCH};

/// The first byte selects the decoder.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 6 {
        0 => keys(input),
        1 => uploads_and_parts(input),
        2 => results(input.0),
        3 => heads(input),
        4 => framing(input),
        _ => tokens(input),
    }
}

/// Decodes a query, then the page that answers it.
fn keys(mut input: Input<'_>) {
    let (kind, max_keys) = (input.byte(), usize::from(input.byte()));
    let (prefix, start_after, token) = (input.text(), input.text(), input.text());
    let token = (kind % 2 == 1).then_some(token);
    let query = ListQuery { prefix, start_after, token, max_keys, ..ListQuery::default() };
    let Ok(page) = answers::list(input.0, &query) else { return };
    assert!(max_keys == 0 || page.lines.len() <= max_keys);
    assert!(page.lines.is_sorted_by(|a, b| a.name() <= b.name()));
    assert!(page.next.is_none() || page.next != query.token);
    for line in &page.lines {
        assert!(line.name().starts_with(&query.prefix) && !line.name().is_empty());
        if let (ListLine::Object(name, _), None) = (line, &query.token) {
            assert!(*name > query.start_after);
        }
        let mut stripped = line.clone();
        assert_eq!(answers::strip(&mut stripped, &query.prefix), Ok(()));
        assert_eq!(format!("{}{}", query.prefix, stripped.name()), line.name());
    }
    let next = page.next.as_deref();
    assert_ne!(next, Some(""));
    // A gateway whose origin is this one decodes the same page.
    if page.lines.iter().all(|line| is_text(line)) && next.is_none_or(is_printable) {
        assert_eq!(
            answers::list(written(&page).as_bytes(), &query).as_ref(),
            Ok(&page),
            "{}",
            written(&page)
        );
    }
}

/// True if all fields of a line can be encoded without loss.
fn is_text(line: &ListLine) -> bool {
    match line {
        ListLine::Object(_, object) => is_printable(&object.etag) && is_printable(&object.storage_class),
        ListLine::Group(_) => true,
    }
}

/// True if XML can represent the text.
fn is_printable(text: &str) -> bool {
    text.chars().all(|c| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{fffd}' | '\u{10000}'..))
}

/// Encodes a page as this server does.
fn written(page: &ListPage) -> String {
    let encoded = |name: &str| {
        percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
    };
    let mut out = Xml::new("ListBucketResult");
    out.text("EncodingType", "url").value("IsTruncated", page.next.is_some());
    out.optional("NextContinuationToken", page.next.as_deref());
    for line in &page.lines {
        match line {
            ListLine::Object(name, object) => {
                out.open("Contents").text("Key", &encoded(name)).value("Size", object.size);
                out.value("LastModified", Timestamp(object.modified_ms)).etag(&object.etag);
                out.text("StorageClass", &object.storage_class).close("Contents");
            }
            ListLine::Group(name) => {
                out.open("CommonPrefixes").text("Prefix", &encoded(name)).close("CommonPrefixes");
            }
        }
    }
    out.finish("ListBucketResult")
}

/// Decodes a query, then a page of uploads or of parts that answers it.
fn uploads_and_parts(mut input: Input<'_>) {
    let (after, max) = (u32::from(input.byte()), usize::from(input.byte()));
    let (prefix, start_after, id_marker) = (input.text(), input.text(), input.text());
    if let Ok(page) = answers::parts(input.0, after, max) {
        assert!(max == 0 || page.parts.len() <= max && page.next.is_none_or(|next| next > after));
        assert!(page.parts.is_sorted_by_key(|part| part.number));
        page.parts.iter().for_each(|part| quotes(&part.etag));
    }
    let keys = ListQuery { prefix, start_after, max_keys: max, ..ListQuery::default() };
    let query = UploadsQuery { keys, id_marker };
    if let Ok(page) = answers::uploads(input.0, &query) {
        assert!(max == 0 || page.uploads.len() + page.groups.len() <= max);
        assert!(page.uploads.is_sorted_by(|a, b| a.key <= b.key));
        assert!(page.uploads.iter().all(|upload| !upload.key.is_empty() && !upload.id.is_empty()));
        let mut names = page.uploads.iter().map(|upload| &upload.key).chain(&page.groups);
        assert!(names.all(|name| name.starts_with(&query.keys.prefix)));
        if let Some((key, id)) = page.next {
            assert!(key >= query.keys.start_after && (key, id) != (query.keys.start_after, query.id_marker));
        }
    }
}

/// Decodes small documents.
fn results(document: &[u8]) {
    match answers::made(document) {
        Ok(made) => copied(&made),
        Err(error) => retried(&error),
    }
    if let Ok(id) = answers::upload_id(document) {
        assert!(!id.is_empty());
    }
    if let Ok(tags) = answers::tags(document)
        && tags.iter().all(|tag| is_printable(&tag.name) && is_printable(&tag.value))
    {
        let written = answers::tagging(&tags).expect("tags are text");
        assert_eq!(answers::tags(written.as_bytes()), Ok(tags), "{written}");
    }
    let Some(text) = str::from_utf8(document).ok().filter(|text| is_printable(text)) else { return };
    let tags = [Pair::new(text, text)];
    let mut out = Xml::new("Tagging");
    out.open("TagSet").open("Tag").text("Key", text).text("Value", text).close("Tag").close("TagSet");
    for written in [out.finish("Tagging"), answers::tagging(&tags).expect("tags are text")] {
        assert_eq!(answers::tags(written.as_bytes()).as_deref(), Ok(&tags[..]), "{written}");
    }
}

/// Checks that the result of a copy is passed on without loss.
fn copied(made: &OriginCopyReceipt) {
    quotes(&made.etag);
    if is_printable(&made.etag) && made.checksums.iter().all(|checksum| is_printable(&checksum.value)) {
        let mut out = Xml::new("CopyObjectResult");
        out.etag(&made.etag).value("LastModified", Timestamp(made.modified_ms));
        made.checksums.iter().for_each(|checksum| _ = out.text(&checksum.name, &checksum.value));
        let written = out.finish("CopyObjectResult");
        assert_eq!(answers::made(written.as_bytes()).as_ref(), Ok(made), "{written}");
    }
}

/// Checks that an ETag survives quoting and unquoting.
fn quotes(etag: &str) {
    assert_eq!(answers::unquoted(&format!("\"{etag}\"")), etag);
}

/// Checks that the delay before a retry is bounded, whatever the origin requests.
fn retried(error: &OriginError) {
    for failures in [1, 4, u32::MAX] {
        assert!(answers::wait(error, failures).is_none_or(|wait| wait <= Duration::from_secs(7)));
    }
}

/// Decodes a status and headers, then the document of an error.
fn heads(mut input: Input<'_>) {
    let Ok(status) = StatusCode::from_u16(input.u16()) else { return };
    let Some(headers) = input.headers() else { return };
    let known = answers::known(&headers);
    assert!(known.keys().all(|name| known.get_all(name).iter().eq(headers.get_all(name))));
    if !status.is_success() {
        retried(&answers::refusal(status, &headers, input.0));
        return;
    }
    let Ok((object, range)) = answers::described(status, &headers) else { return };
    assert!(range.start <= range.end && range.end <= object.size);
    quotes(&object.etag);
    if status != StatusCode::PARTIAL_CONTENT {
        assert_eq!(range, 0..object.size);
        assert_eq!(answers::described(status, &head_of(&object)), Ok((object, range)));
    }
}

/// Returns the headers that describe an object.
fn head_of(object: &ObjectVersion) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut line = |name: &str, value: &str| {
        let name: HeaderName = name.parse().expect("it came as one");
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("it came as one"));
    };
    let is_weak = object.etag_kind() == EtagKind::Weak;
    line("etag", &format!("{}\"{}\"", if is_weak { "W/" } else { "" }, object.etag));
    if object.etag_kind() == EtagKind::Opaque {
        line("x-amz-server-side-encryption", "aws:kms");
    }
    line("x-amz-tagging-count", &object.tag_count.to_string());
    line("content-length", &object.size.to_string());
    let modified = Duration::from_millis(object.modified_ms.try_into().expect("since 1970"));
    line("last-modified", &httpdate::fmt_http_date(UNIX_EPOCH + modified));
    line("x-amz-storage-class", &object.storage_class);
    object.headers.iter().for_each(|pair| line(&pair.name, &pair.value));
    let carried = |pair: &Pair| metadata_to_wire(&pair.value).into_owned();
    object.metadata.iter().for_each(|pair| line(&format!("x-amz-meta-{}", pair.name), &carried(pair)));
    for checksum in &object.checksums {
        let name = match checksum.algorithm() {
            ChecksumAlgorithm::Crc32 => "x-amz-checksum-crc32",
            ChecksumAlgorithm::Crc32C => "x-amz-checksum-crc32c",
            ChecksumAlgorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
            ChecksumAlgorithm::Sha1 => "x-amz-checksum-sha1",
            _ => "x-amz-checksum-sha256",
        };
        let parts = if checksum.kind() == ChecksumKind::Composite { "-1" } else { "" };
        line(name, &format!("{}{parts}", BASE64.encode(&checksum.value)));
    }
    headers
}

/// Frames a body that has more or fewer bytes than stated, cut into pieces.
fn framing(mut input: Input<'_>) {
    let (kind, by, step) = (input.byte(), usize::from(input.byte()), input.byte());
    let came = input.0;
    let declared = match kind % 3 {
        0 => came.len(),
        1 => came.len() + by,
        _ => came.len().saturating_sub(by),
    };
    let sent = &came[..declared.min(came.len())];
    let checksum = BASE64.encode(Algorithm::Crc32.digest(sent));
    let (tell, value) = tokio::sync::oneshot::channel();
    tell.send(checksum.clone()).expect("it is waited for");
    let name = HeaderName::from_static("x-amz-checksum-crc32");
    let pieces: Vec<_> =
        input.pieces(step).into_iter().map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let pieces = futures_util::stream::iter(pieces).boxed();
    let trailer = ChecksumTrailer { name, value_bytes: checksum.len(), value };
    let (length, framed) = answers::framed(declared as u64, pieces, trailer);
    let framed: Vec<Bytes> = wait(framed.map(|piece| piece.expect("all came")).collect());
    let framed = framed.concat();
    assert_eq!(framed.len() as u64 == length, declared <= came.len(), "what breaks off is never whole");
    assert!(framed.len() as u64 <= length);
    let read = unframed(declared, &framed);
    assert_eq!(read.as_deref(), (declared <= came.len()).then_some(sent));
}

fn unframed(bytes: usize, framed: &[u8]) -> Option<Vec<u8>> {
    let head = http::Request::put("/b/k").header("x-amz-decoded-content-length", bytes);
    let head = head.header("transfer-encoding", "chunked").header("x-amz-trailer", "x-amz-checksum-crc32");
    let head = head.body(()).expect("our own head").into_parts().0;
    let frame = Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(framed)));
    let stream = StreamBody::new(futures_util::stream::iter([frame]));
    let mut body =
        RequestBody::new(stream, &head, BodyRequirement::UnsignedTrailer, BodyTerms::object(None)).ok()?;
    wait(async {
        let mut bytes = Vec::new();
        while let Some(more) = body.next().await.ok()? {
            bytes.extend_from_slice(&more);
        }
        Some(bytes)
    })
}

/// Checks tokens with an origin's token and a position, then an arbitrary token.
fn tokens(mut input: Input<'_>) {
    let kind = input.byte();
    let at = |input: &mut Input<'_>| Binding {
        upstream: input.text(),
        prefix: input.text(),
        ..Binding::default()
    };
    let (here, there) = (at(&mut input), at(&mut input));
    let (name, token, after) = (input.text(), input.text(), input.text());
    let (last, behind) = match kind % 3 {
        0 => (None, String::new()),
        1 => (Some(ListLine::Object(name.clone(), Box::default())), name),
        _ => (Some(ListLine::Group(name.clone())), listing_token::end_of_group(&name)),
    };
    let text = listing_token::token_after(last.as_ref(), &token, &here);
    assert_eq!(listing_token::decode_token(&text, &here, &after), (String::new(), Some(token)));
    if (&here.upstream, &here.prefix) != (&there.upstream, &there.prefix) {
        assert_eq!(listing_token::decode_token(&text, &there, &after), (behind, None));
    }
    let any = String::from_utf8_lossy(input.0);
    let (start_after, token) = listing_token::decode_token(&any, &here, &after);
    assert!(token.is_none() || start_after.is_empty(), "one or the other");
}
