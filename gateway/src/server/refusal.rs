//! Tells a client that its connection cannot be served: an answer without having read the request.
//!
//! Always: the answer has an `<Error>` document with a request id, as every other refusal.

use crate::auth::hex;
use crate::credentials::random;
use crate::s3::error::{Code, S3Error};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// How long a refused client may take to read its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers with `error` in HTTP/1.1 and closes.
pub(super) async fn say(io: impl AsyncRead + AsyncWrite + Unpin, error: S3Error) {
    // What comes of it is the client's affair.
    let _ = tokio::time::timeout(PATIENCE, answer(io, &error)).await;
}

/// Writes the answer, then reads what the client still sends: closing with unread bytes would
/// reset the connection and take the answer with it.
async fn answer(mut io: impl AsyncRead + AsyncWrite + Unpin, error: &S3Error) -> io::Result<()> {
    // As long as those of requests, and not one of them but by a chance of one in 2^72.
    let id = random::<9>().map(|id| hex::text(&id).to_uppercase()).unwrap_or_default();
    let body = error.to_xml(true, "", &id);
    let again = match error.code() {
        Code::SlowDown => format!("Retry-After: {}\r\n", S3Error::RETRY_AFTER_SECS),
        _ => String::new(),
    };
    let answer = format!(
        "HTTP/1.1 {}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n{again}\
         x-amz-request-id: {id}\r\nConnection: close\r\nServer: mlgw\r\n\r\n{body}",
        error.status(),
        body.len(),
    );
    io.write_all(answer.as_bytes()).await?;
    io.shutdown().await?;
    let mut rest = [0; 4096];
    while io.read(&mut rest).await? > 0 {}
    Ok(())
}
