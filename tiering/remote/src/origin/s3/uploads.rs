//! Multipart uploads at an S3 origin. Upload ids are those of the origin.

use super::outgoing::{Outgoing, broken};
use super::write::xml_headers;
use super::{Asked, S3Origin, accepted, head, results, xml};
use crate::origin::retry::Again;
use crate::origin::{
    Begun, Content, Made, OriginError, PartPage, UploadOf, UploadPage, UploadsQuery, Written,
};
use bytes::Bytes;
use http::{HeaderMap, Method};

impl S3Origin {
    pub(super) async fn create_upload(&self, key: &str, headers: &HeaderMap) -> Result<Begun, OriginError> {
        let url = self.base.object_with(key, &[("uploads", "")]);
        // A retry that creates a second upload would leave the first one until it is aborted.
        let (again, success) = (Again::IfUndone, accepted::WRITTEN);
        let (operation, method) = ("create_upload", Method::POST);
        let asked = Asked { operation, method, url: &url, headers, again, long: false, success };
        let (head, body) = self.again(&asked, || Outgoing::whole(Bytes::new())).await?.into_parts();
        let document = self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await.map_err(broken)?;
        Ok(Begun { id: results::upload_id(&document)?, headers: head::known(&head.headers) })
    }

    pub(super) async fn put_part(
        &self,
        upload: UploadOf<'_>,
        number: u32,
        headers: &HeaderMap,
        content: Content,
    ) -> Result<Written, OriginError> {
        self.write("put_part", &self.part_url(upload, number), headers, content).await
    }

    pub(super) async fn copy_part(
        &self,
        upload: UploadOf<'_>,
        number: u32,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<Made, OriginError> {
        self.make_copy(&self.part_url(upload, number), source, headers).await
    }

    pub(super) async fn complete(
        &self,
        upload: UploadOf<'_>,
        headers: &HeaderMap,
        document: Bytes,
    ) -> Result<Made, OriginError> {
        let url = self.base.object_with(upload.key, &[("uploadId", upload.id)]);
        let mut with_type = xml_headers();
        with_type.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        // Some origins forget a completed upload, so that a retry would fail with NoSuchUpload.
        let (again, success) = (Again::IfUndone, accepted::WRITTEN);
        let (operation, method) = ("complete", Method::POST);
        let asked = Asked { operation, method, url: &url, headers: &with_type, again, long: true, success };
        let answer = self.again(&asked, || Outgoing::whole(document.clone())).await?;
        self.made(answer).await
    }

    pub(super) async fn abort(&self, upload: UploadOf<'_>) -> Result<(), OriginError> {
        let url = self.base.object_with(upload.key, &[("uploadId", upload.id)]);
        let headers = HeaderMap::new();
        let (again, success) = (Again::IfUndone, accepted::EMPTY);
        let (operation, method) = ("abort", Method::DELETE);
        let asked = Asked { operation, method, url: &url, headers: &headers, again, long: false, success };
        let answer = self.again(&asked, Outgoing::nothing).await?;
        self.nothing(answer).await.map(drop)
    }

    pub(super) async fn list_parts(
        &self,
        upload: UploadOf<'_>,
        after: u32,
        max: usize,
    ) -> Result<PartPage, OriginError> {
        let (marker, most) = (after.to_string(), max.to_string());
        let query = [("max-parts", &*most), ("part-number-marker", &*marker), ("uploadId", upload.id)];
        let url = self.base.object_with(upload.key, &query);
        results::parts(&self.read("list_parts", &url, &HeaderMap::new()).await?.1)?.within(after, max)
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
        let document = self.read("list_uploads", &self.base.bucket(&pairs), &HeaderMap::new()).await?.1;
        results::uploads(&document)?.within(query)
    }

    fn part_url(&self, upload: UploadOf<'_>, number: u32) -> String {
        self.base.object_with(upload.key, &[("partNumber", &number.to_string()), ("uploadId", upload.id)])
    }
}
