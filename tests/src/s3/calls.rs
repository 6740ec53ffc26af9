//! The operations that the tests use, one function each.

use http::Method;

use super::sign::{encode, path};
use super::{Answer, Body, Client, Failure, whole, xml};

/// A row of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) etag: String,
    pub(crate) size: u64,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartListed {
    pub(crate) number: u32,
    pub(crate) etag: String,
    pub(crate) size: u64,
}

fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

impl Client {
    async fn get_path(&self, path: &str) -> Result<Answer, Failure> {
        self.call(Method::GET, path, &[], whole("")).await
    }

    pub(crate) async fn create_bucket(&self, bucket: &str) -> Result<(), Failure> {
        self.call(Method::PUT, &format!("/{bucket}"), &[], whole("")).await.map(|_| ())
    }

    /// PutObject; returns the ETag.
    pub(crate) async fn put(&self, bucket: &str, key: &str, body: Body) -> Result<String, Failure> {
        Ok(self.call(Method::PUT, &path(bucket, key), &[], body).await?.etag())
    }

    pub(crate) async fn get(&self, bucket: &str, key: &str) -> Result<Answer, Failure> {
        self.get_path(&path(bucket, key)).await
    }

    /// GetObject of the bytes `first..=last`.
    pub(crate) async fn get_range(
        &self,
        bucket: &str,
        key: &str,
        (first, last): (u64, u64),
    ) -> Result<Answer, Failure> {
        let range = [("range", format!("bytes={first}-{last}"))];
        self.call(Method::GET, &path(bucket, key), &range, whole("")).await
    }

    pub(crate) async fn head(&self, bucket: &str, key: &str) -> Result<Answer, Failure> {
        self.call(Method::HEAD, &path(bucket, key), &[], whole("")).await
    }

    pub(crate) async fn delete(&self, bucket: &str, key: &str) -> Result<(), Failure> {
        self.call(Method::DELETE, &path(bucket, key), &[], whole("")).await.map(|_| ())
    }

    /// CopyObject within a bucket; returns the ETag.
    pub(crate) async fn copy(&self, bucket: &str, from: &str, to: &str) -> Result<String, Failure> {
        let source = [("x-amz-copy-source", path(bucket, from))];
        let answer = self.call(Method::PUT, &path(bucket, to), &source, whole("")).await?;
        Ok(unquoted(&xml::read::<xml::WithEtag>(&answer.body)?.etag))
    }

    /// ListObjectsV2 over all its pages.
    pub(crate) async fn list(&self, bucket: &str, page_keys: u32) -> Result<Vec<Listed>, Failure> {
        let mut out = Vec::new();
        let mut token = String::new();
        loop {
            let page = self.get_path(&format!("/{bucket}?{token}list-type=2&max-keys={page_keys}")).await?;
            let page: xml::ListBucketResult = xml::read(&page.body)?;
            out.extend(page.contents.into_iter().map(|row| Listed {
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
    pub(crate) async fn create_upload(&self, bucket: &str, key: &str) -> Result<String, Failure> {
        let target = format!("{}?uploads=", path(bucket, key));
        let answer = self.call(Method::POST, &target, &[], whole("")).await?;
        Ok(xml::read::<xml::InitiateMultipartUploadResult>(&answer.body)?.upload_id)
    }

    /// UploadPart; returns the ETag.
    pub(crate) async fn put_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u32,
        body: Body,
    ) -> Result<String, Failure> {
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
    ) -> Result<String, Failure> {
        let rows: String = parts
            .iter()
            .map(|(number, etag)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag></Part>")
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>");
        let target = format!("{}?uploadId={}", path(bucket, key), encode(upload));
        let answer = self.call(Method::POST, &target, &[], whole(body)).await?;
        Ok(unquoted(&xml::read::<xml::WithEtag>(&answer.body)?.etag))
    }

    pub(crate) async fn abort(&self, bucket: &str, key: &str, upload: &str) -> Result<(), Failure> {
        let target = format!("{}?uploadId={}", path(bucket, key), encode(upload));
        self.call(Method::DELETE, &target, &[], whole("")).await.map(|_| ())
    }

    /// ListParts over all its pages.
    pub(crate) async fn list_parts(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
    ) -> Result<Vec<PartListed>, Failure> {
        let mut out = Vec::new();
        let mut marker = 0;
        loop {
            let upload = encode(upload);
            let target = format!("{}?part-number-marker={marker}&uploadId={upload}", path(bucket, key));
            let page: xml::ListPartsResult = xml::read(&self.get_path(&target).await?.body)?;
            out.extend(page.parts.into_iter().map(|part| PartListed {
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
    pub(crate) async fn list_uploads(&self, bucket: &str) -> Result<Vec<String>, Failure> {
        let page = self.get_path(&format!("/{bucket}?max-uploads=1000&uploads=")).await?;
        let page: xml::ListUploadsResult = xml::read(&page.body)?;
        Ok(page.uploads.into_iter().map(|upload| upload.upload_id).collect())
    }
}
