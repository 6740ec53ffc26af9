//! An upload that is not complete.

use crate::s3::client::{S3Client, S3Request};
use crate::s3::path::RemotePath;
use http::Method;

/// An upload that is not complete. Its parts take space until it is completed or aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenUpload {
    pub(super) object: RemotePath,
    pub(super) id: String,
}

impl OpenUpload {
    /// Returns a request for the upload.
    pub(super) fn request(&self, method: Method) -> S3Request {
        S3Request::new(method, self.object.clone()).with_query("uploadId", &self.id)
    }

    /// Aborts the upload. A failure is not reported: the command has failed already, and the upload may be
    /// gone.
    pub(super) async fn abort(&self, client: &S3Client) {
        let _ = client.document(&self.request(Method::DELETE)).await;
    }
}
