//! Multipart uploads.

use bytes::Bytes;
use md5::{Digest as _, Md5};

use super::answers::{acknowledged, holds, instead, no_success};
use super::http::{Answer, Request};
use super::lie::{Lie, On};
use super::store::{Manner, Store};
use crate::content::hex;

fn document(text: String) -> Answer {
    Answer::of(200).with("content-type", "application/xml").body(text)
}

fn no_upload() -> Answer {
    Answer::error(404, "NoSuchUpload")
}

pub(super) fn begin(store: &mut Store, request: &Request) -> Answer {
    let id = store.begin(&request.key, request.kept());
    if store.lies(|lie| lie.on() == On::Begin).is_some() {
        return Answer { is_lost: true, ..Answer::of(200) };
    }
    document(format!(
        "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
    ))
}

pub(super) fn put_part(store: &mut Store, request: &Request, id: &str) -> Answer {
    let number = request.query("partNumber").and_then(|number| number.parse().ok()).expect("a number");
    let bytes = match store.lies(|lie| lie.on() == On::Part).map(|lie| instead(lie, &request.body)) {
        None => request.body.clone(),
        Some(Ok(bytes)) => bytes,
        Some(Err(answer)) => return answer,
    };
    let etag = store.etag(&bytes);
    let Some(upload) = store.uploads.get_mut(id) else { return no_upload() };
    upload.parts.insert(number, (bytes, etag.clone()));
    acknowledged(&etag)
}

pub(super) fn complete(store: &mut Store, request: &Request, id: &str) -> Answer {
    if !store.uploads.contains_key(id) {
        return no_upload();
    }
    if !holds(store, request) {
        return Answer::error(412, "PreconditionFailed");
    }
    let lie = store.lies(|lie| lie.on() == On::Complete);
    let is_right = matches!(lie, None | Some(Lie::StoresHalf(_) | Lie::StoresNothing(_)));
    if let Some(lie) = lie.filter(|_| !is_right) {
        return no_success(lie);
    }
    let document_text = String::from_utf8_lossy(&request.body).into_owned();
    let upload = &store.uploads[id];
    let names = |etag: &str| document_text.contains(etag);
    if !upload.parts.values().all(|(_, etag)| names(etag)) {
        return Answer::error(400, "InvalidPart");
    }
    let pieces: Vec<Bytes> = upload.parts.values().map(|(bytes, _)| bytes.clone()).collect();
    let sums: Vec<u8> = pieces.iter().flat_map(|bytes| Md5::digest(bytes).to_vec()).collect();
    let mut etag = format!("{}-{}", hex(&Md5::digest(&sums)), pieces.len());
    if store.manner == Manner::Versions {
        etag = store.etag(&sums);
    }
    let mut bytes = Bytes::from(pieces.concat());
    if matches!(lie, Some(Lie::StoresHalf(_))) {
        bytes.truncate(bytes.len() / 2);
    }
    if !matches!(lie, Some(Lie::StoresNothing(_))) {
        let upload = store.uploads.remove(id).expect("it is there");
        store.put(&upload.key, bytes, upload.headers, Some(etag.clone()));
    }
    document(format!(
        "<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
    ))
}

pub(super) fn abort(store: &mut Store, id: &str) -> Answer {
    match store.uploads.remove(id) {
        Some(_) => Answer::of(204),
        None => no_upload(),
    }
}

pub(super) fn list_parts(store: &Store, request: &Request, id: &str) -> Answer {
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

pub(super) fn list(store: &Store, request: &Request) -> Answer {
    let prefix = request.query("prefix").unwrap_or_default();
    let line = |(id, upload): (&String, &super::store::Upload)| {
        format!("<Upload><Key>{}</Key><UploadId>{id}</UploadId></Upload>", upload.key)
    };
    let uploads = store.uploads.iter().filter(|(_, upload)| upload.key.starts_with(prefix));
    let lines: String = uploads.map(line).collect();
    document(format!(
        "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{lines}</ListMultipartUploadsResult>"
    ))
}
