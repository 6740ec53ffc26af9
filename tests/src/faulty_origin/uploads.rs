//! Multipart uploads.

use bytes::Bytes;
use md5::{Digest as _, Md5};

use super::dispatch::{acknowledged, are_conditions_met, stored_instead, wrong_response};
use super::http::{FaultyOriginRequest, FaultyOriginResponse};
use super::response_fault::{FaultOperation, ResponseFault};
use super::store::{OriginNaming, OriginState};
use crate::content::hex;

fn document(text: String) -> FaultyOriginResponse {
    FaultyOriginResponse::of(200).with("content-type", "application/xml").body(text)
}

fn no_upload() -> FaultyOriginResponse {
    FaultyOriginResponse::error(404, "NoSuchUpload")
}

pub(super) fn begin(store: &mut OriginState, request: &FaultyOriginRequest) -> FaultyOriginResponse {
    let id = store.begin(&request.key, request.stored_headers());
    if store.take_fault(|lie| lie.operation() == FaultOperation::CreateUpload).is_some() {
        return FaultyOriginResponse { is_dropped: true, ..FaultyOriginResponse::of(200) };
    }
    document(format!(
        "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
    ))
}

pub(super) fn put_part(
    store: &mut OriginState,
    request: &FaultyOriginRequest,
    id: &str,
) -> FaultyOriginResponse {
    let number = request.query("partNumber").and_then(|number| number.parse().ok()).expect("a number");
    let bytes = match store
        .take_fault(|lie| lie.operation() == FaultOperation::Part)
        .map(|lie| stored_instead(lie, &request.body))
    {
        None => request.body.clone(),
        Some(Ok(bytes)) => bytes,
        Some(Err(answer)) => return answer,
    };
    let etag = store.etag(&bytes);
    let Some(upload) = store.uploads.get_mut(id) else { return no_upload() };
    upload.parts.insert(number, (bytes, etag.clone()));
    acknowledged(&etag)
}

pub(super) fn complete(
    store: &mut OriginState,
    request: &FaultyOriginRequest,
    id: &str,
) -> FaultyOriginResponse {
    if !store.uploads.contains_key(id) {
        return no_upload();
    }
    if !are_conditions_met(store, request) {
        return FaultyOriginResponse::error(412, "PreconditionFailed");
    }
    let lie = store.take_fault(|lie| lie.operation() == FaultOperation::Complete);
    let is_right = matches!(lie, None | Some(ResponseFault::StoresHalf(_) | ResponseFault::StoresNothing(_)));
    if let Some(lie) = lie.filter(|_| !is_right) {
        return wrong_response(lie);
    }
    let document_text = String::from_utf8_lossy(&request.body).into_owned();
    let upload = &store.uploads[id];
    let names = |etag: &str| document_text.contains(etag);
    if !upload.parts.values().all(|(_, etag)| names(etag)) {
        return FaultyOriginResponse::error(400, "InvalidPart");
    }
    let pieces: Vec<Bytes> = upload.parts.values().map(|(bytes, _)| bytes.clone()).collect();
    let sums: Vec<u8> = pieces.iter().flat_map(|bytes| Md5::digest(bytes).to_vec()).collect();
    let mut etag = format!("{}-{}", hex(&Md5::digest(&sums)), pieces.len());
    if store.naming == OriginNaming::Versions {
        etag = store.etag(&sums);
    }
    let mut bytes = Bytes::from(pieces.concat());
    if matches!(lie, Some(ResponseFault::StoresHalf(_))) {
        bytes.truncate(bytes.len() / 2);
    }
    if !matches!(lie, Some(ResponseFault::StoresNothing(_))) {
        let upload = store.uploads.remove(id).expect("it exists");
        store.put(&upload.key, bytes, upload.headers, Some(etag.clone()));
    }
    document(format!(
        "<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
    ))
}

pub(super) fn abort(store: &mut OriginState, id: &str) -> FaultyOriginResponse {
    match store.uploads.remove(id) {
        Some(_) => FaultyOriginResponse::of(204),
        None => no_upload(),
    }
}

pub(super) fn list_parts(
    store: &OriginState,
    request: &FaultyOriginRequest,
    id: &str,
) -> FaultyOriginResponse {
    let after: u32 = request.query("part-number-marker").and_then(|number| number.parse().ok()).unwrap_or(0);
    let Some(upload) = store.uploads.get(id) else { return no_upload() };
    let part = |(number, (bytes, etag)): (&u32, &(Bytes, String))| {
        format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etag}&quot;</ETag><Size>{}</Size></Part>",
            bytes.len()
        )
    };
    let parts: String = upload.parts.iter().filter(|(number, _)| **number > after).map(part).collect();
    document(format!("<ListPartsResult><IsTruncated>false</IsTruncated>{parts}</ListPartsResult>"))
}

pub(super) fn list(store: &OriginState, request: &FaultyOriginRequest) -> FaultyOriginResponse {
    let prefix = request.query("prefix").unwrap_or_default();
    let line = |(id, upload): (&String, &super::store::StoredUpload)| {
        format!("<Upload><Key>{}</Key><UploadId>{id}</UploadId></Upload>", upload.key)
    };
    let uploads = store.uploads.iter().filter(|(_, upload)| upload.key.starts_with(prefix));
    let lines: String = uploads.map(line).collect();
    document(format!(
        "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{lines}</ListMultipartUploadsResult>"
    ))
}
