//! Multipart uploads at an S3 origin. Upload ids are those of the origin.

use super::outgoing::{OutgoingBody, as_connection_lost};
use super::transport::OriginPatience;
use super::write::xml_headers;
use super::{OriginRequest, S3Origin, head, results, success, xml};
use crate::origin::retry::RetrySafety;
use crate::origin::{
    CreatedOriginUpload, OriginContent, OriginCopyReceipt, OriginError, OriginUploadRef, OriginWriteReceipt,
    PartPage, UploadPage, UploadsQuery,
};
use bytes::Bytes;
use http::{HeaderMap, Method};

impl S3Origin {
    pub(super) async fn create_upload(
        &self,
        key: &str,
        headers: &HeaderMap,
    ) -> Result<CreatedOriginUpload, OriginError> {
        let url = self.base.object_with(key, &[("uploads", "")]);
        // A retry that creates a second upload would leave the first one until it is aborted.
        let (again, success) = (RetrySafety::IfUndone, success::WRITTEN);
        let (operation, method) = ("create_upload", Method::POST);
        let request = OriginRequest {
            operation,
            method,
            url: &url,
            headers,
            retry_safety: again,
            patience: OriginPatience::Usual,
            success,
        };
        let (head, body) =
            self.send_with_retries(&request, || OutgoingBody::in_memory(Bytes::new())).await?.into_parts();
        let document =
            self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await.map_err(as_connection_lost)?;
        Ok(CreatedOriginUpload {
            id: results::upload_id(&document)?,
            headers: head::client_headers(&head.headers),
        })
    }

    pub(super) async fn put_part(
        &self,
        upload: OriginUploadRef<'_>,
        number: u32,
        headers: &HeaderMap,
        content: OriginContent,
    ) -> Result<OriginWriteReceipt, OriginError> {
        self.write("put_part", &self.part_url(upload, number), headers, content).await
    }

    pub(super) async fn copy_part(
        &self,
        upload: OriginUploadRef<'_>,
        number: u32,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<OriginCopyReceipt, OriginError> {
        self.make_copy(&self.part_url(upload, number), source, headers).await
    }

    pub(super) async fn complete(
        &self,
        upload: OriginUploadRef<'_>,
        headers: &HeaderMap,
        document: Bytes,
    ) -> Result<OriginCopyReceipt, OriginError> {
        let url = self.base.object_with(upload.key, &[("uploadId", upload.id)]);
        let mut with_type = xml_headers();
        with_type.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        // Some origins forget a completed upload, so that a retry would fail with NoSuchUpload.
        let (again, success) = (RetrySafety::IfUndone, success::WRITTEN);
        let (operation, method) = ("complete", Method::POST);
        let request = OriginRequest {
            operation,
            method,
            url: &url,
            headers: &with_type,
            retry_safety: again,
            patience: OriginPatience::Long,
            success,
        };
        let answer = self.send_with_retries(&request, || OutgoingBody::in_memory(document.clone())).await?;
        self.copy_receipt(answer).await
    }

    pub(super) async fn abort(&self, upload: OriginUploadRef<'_>) -> Result<(), OriginError> {
        let url = self.base.object_with(upload.key, &[("uploadId", upload.id)]);
        let headers = HeaderMap::new();
        let (again, success) = (RetrySafety::IfUndone, success::EMPTY);
        let (operation, method) = ("abort", Method::DELETE);
        let request = OriginRequest {
            operation,
            method,
            url: &url,
            headers: &headers,
            retry_safety: again,
            patience: OriginPatience::Usual,
            success,
        };
        let answer = self.send_with_retries(&request, OutgoingBody::empty).await?;
        self.check_no_document(answer).await.map(drop)
    }

    pub(super) async fn list_parts(
        &self,
        upload: OriginUploadRef<'_>,
        after: u32,
        max: usize,
    ) -> Result<PartPage, OriginError> {
        let (marker, most) = (after.to_string(), max.to_string());
        let query = [("max-parts", &*most), ("part-number-marker", &*marker), ("uploadId", upload.id)];
        let url = self.base.object_with(upload.key, &query);
        results::parts(&self.read_document("list_parts", &url, &HeaderMap::new()).await?.1)?
            .within(after, max)
    }

    pub(super) async fn list_uploads(&self, query: &UploadsQuery) -> Result<UploadPage, OriginError> {
        let UploadsQuery { keys, id_marker } = query;
        let max = keys.max_keys.to_string();
        let mut pairs = vec![("uploads", ""), ("encoding-type", "url"), ("max-uploads", &max)];
        let filled = [
            ("prefix", &keys.prefix),
            ("delimiter", &keys.delimiter),
            ("key-marker", &keys.start_after),
            ("upload-id-marker", id_marker),
        ];
        pairs.extend(
            filled.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (*name, value.as_str())),
        );
        let document =
            self.read_document("list_uploads", &self.base.bucket(&pairs), &HeaderMap::new()).await?.1;
        results::uploads(&document)?.within(query)
    }

    fn part_url(&self, upload: OriginUploadRef<'_>, number: u32) -> String {
        self.base.object_with(upload.key, &[("partNumber", &number.to_string()), ("uploadId", upload.id)])
    }
}
