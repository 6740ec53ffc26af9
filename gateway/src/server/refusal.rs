//! Tells a client that its connection cannot be served: an answer without having read the request.

use super::linger::linger;
use crate::s3::error::S3Error;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// How long a refused client may take to agree on keys, and to read its answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// The same where so many are being refused that others would not even be answered.
pub(super) const IN_A_CROWD: Duration = Duration::from_millis(100);

/// Says `error`, which asks the client to come again, in HTTP/1.1 and closes.
pub(super) async fn say(io: impl AsyncRead + AsyncWrite + Unpin, error: S3Error, patience: Duration) {
    // What comes of it is the client's affair.
    let _ = tokio::time::timeout(patience, answer(io, &error)).await;
}

/// Writes the answer and leaves the client time to read it.
async fn answer(mut io: impl AsyncRead + AsyncWrite + Unpin, error: &S3Error) {
    let body = error.to_xml(true, "", "");
    let answer = format!(
        "HTTP/1.1 {}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nRetry-After: {}\r\n\
         Connection: close\r\nServer: mlgw\r\n\r\n{body}",
        error.status(),
        body.len(),
        S3Error::RETRY_AFTER_SECS,
    );
    if io.write_all(answer.as_bytes()).await.is_ok() {
        linger(io).await;
    }
}
