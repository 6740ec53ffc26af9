//! The operations that the tests use, one function each.

use http::Method;

use super::sign::{encode, path};
use super::{CallFailure, ClientBody, S3ClientResponse, S3TestClient, full_body, xml};

/// A row of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedRow {
    pub(crate) key: String,
    pub(crate) etag: String,
    pub(crate) size: u64,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPartRow {
    pub(crate) number: u32,
    pub(crate) etag: String,
    pub(crate) size: u64,
}

fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

impl S3TestClient {
    async fn get_path(&self, path: &str) -> Result<S3ClientResponse, CallFailure> {
        self.call(Method::GET, path, &[], full_body("")).await
    }

    pub(crate) async fn create_bucket(&self, bucket: &str) -> Result<(), CallFailure> {
        self.call(Method::PUT, &format!("/{bucket}"), &[], full_body("")).await.map(|_| ())
    }

    /// PutObject; returns the ETag.
    pub(crate) async fn put(&self, bucket: &str, key: &str, body: ClientBody) -> Result<String, CallFailure> {
        Ok(self.call(Method::PUT, &path(bucket, key), &[], body).await?.etag())
    }

    pub(crate) async fn get(&self, bucket: &str, key: &str) -> Result<S3ClientResponse, CallFailure> {
        self.get_path(&path(bucket, key)).await
    }

    /// GetObject of the bytes `first..=last`.
    pub(crate) async fn get_range(
        &self,
        bucket: &str,
        key: &str,
        (first, last): (u64, u64),
    ) -> Result<S3ClientResponse, CallFailure> {
        let range = [("range", format!("bytes={first}-{last}"))];
        self.call(Method::GET, &path(bucket, key), &range, full_body("")).await
    }

    pub(crate) async fn head(&self, bucket: &str, key: &str) -> Result<S3ClientResponse, CallFailure> {
        self.call(Method::HEAD, &path(bucket, key), &[], full_body("")).await
    }

    pub(crate) async fn delete(&self, bucket: &str, key: &str) -> Result<(), CallFailure> {
        self.call(Method::DELETE, &path(bucket, key), &[], full_body("")).await.map(|_| ())
    }

    /// CopyObject within a bucket; returns the ETag.
    pub(crate) async fn copy(&self, bucket: &str, from: &str, to: &str) -> Result<String, CallFailure> {
        let source = [("x-amz-copy-source", path(bucket, from))];
        let answer = self.call(Method::PUT, &path(bucket, to), &source, full_body("")).await?;
        Ok(unquoted(&xml::parse::<xml::EtagResult>(&answer.body)?.etag))
    }

    /// ListObjectsV2 over all its pages.
    pub(crate) async fn list(&self, bucket: &str, page_keys: u32) -> Result<Vec<ListedRow>, CallFailure> {
        let mut out = Vec::new();
        let mut token = String::new();
        loop {
            let page = self.get_path(&format!("/{bucket}?{token}list-type=2&max-keys={page_keys}")).await?;
            let page: xml::ListBucketResult = xml::parse(&page.body)?;
            out.extend(page.contents.into_iter().map(|row| ListedRow {
                key: row.key,
                etag: unquoted(&row.etag),
                size: row.size,
            }));
            match page.next_continuation_token {
                Some(next) if page.is_truncated => token = format!("continuation-token={}&", encode(&next)),
                _ => return Ok(out),
            }
        }
    }

    /// CreateMultipartUpload; returns the upload id.
    pub(crate) async fn create_upload(&self, bucket: &str, key: &str) -> Result<String, CallFailure> {
        let target = format!("{}?uploads=", path(bucket, key));
        let answer = self.call(Method::POST, &target, &[], full_body("")).await?;
        Ok(xml::parse::<xml::InitiateMultipartUploadResult>(&answer.body)?.upload_id)
    }

    /// UploadPart; returns the ETag.
    pub(crate) async fn put_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u32,
        body: ClientBody,
    ) -> Result<String, CallFailure> {
        let target = format!("{}?partNumber={number}&uploadId={}", path(bucket, key), encode(upload));
        Ok(self.call(Method::PUT, &target, &[], body).await?.etag())
    }

    /// CompleteMultipartUpload with these parts; returns the ETag.
    pub(crate) async fn complete(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[(u32, String)],
    ) -> Result<String, CallFailure> {
        let rows: String = parts
            .iter()
            .map(|(number, etag)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag></Part>")
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>");
        let target = format!("{}?uploadId={}", path(bucket, key), encode(upload));
        let answer = self.call(Method::POST, &target, &[], full_body(body)).await?;
        Ok(unquoted(&xml::parse::<xml::EtagResult>(&answer.body)?.etag))
    }

    pub(crate) async fn abort(&self, bucket: &str, key: &str, upload: &str) -> Result<(), CallFailure> {
        let target = format!("{}?uploadId={}", path(bucket, key), encode(upload));
        self.call(Method::DELETE, &target, &[], full_body("")).await.map(|_| ())
    }

    /// ListParts over all its pages.
    pub(crate) async fn list_parts(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
    ) -> Result<Vec<ListedPartRow>, CallFailure> {
        let mut out = Vec::new();
        let mut marker = 0;
        loop {
            let upload = encode(upload);
            let target = format!("{}?part-number-marker={marker}&uploadId={upload}", path(bucket, key));
            let page: xml::ListPartsResult = xml::parse(&self.get_path(&target).await?.body)?;
            out.extend(page.parts.into_iter().map(|part| ListedPartRow {
                number: part.part_number,
                etag: unquoted(&part.etag),
                size: part.size,
            }));
            match page.next_part_number_marker {
                Some(next) if page.is_truncated => marker = next,
                _ => return Ok(out),
            }
        }
    }

    /// The ids of the first page of ListMultipartUploads.
    pub(crate) async fn list_uploads(&self, bucket: &str) -> Result<Vec<String>, CallFailure> {
        let page = self.get_path(&format!("/{bucket}?max-uploads=1000&uploads=")).await?;
        let page: xml::ListUploadsResult = xml::parse(&page.body)?;
        Ok(page.uploads.into_iter().map(|upload| upload.upload_id).collect())
    }
}
