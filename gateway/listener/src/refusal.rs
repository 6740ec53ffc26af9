//! Refuses a connection: sends an error answer without having read the request.
//!
//! Invariant: the answer has an `<Error>` document with a request id, as every other refusal.

use super::linger::linger;
use mlgw_common::hex;
use mlgw_common::random;
use mlgw_wire::error::{Code, S3Error};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

/// Time limit of the TLS handshake and of reading the answer, for a refused client.
pub(super) const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);
/// The same limit while so many connections are refused that others would not be answered.
pub(super) const CROWDED_REFUSAL_TIMEOUT: Duration = Duration::from_millis(100);

/// Answers with `error` in HTTP/1.1 and closes.
pub(super) async fn send(io: impl AsyncRead + AsyncWrite + Unpin, error: S3Error, patience: Duration) {
    // The outcome is ignored: a client that does not read its answer is closed anyway.
    let _ = mlgw_common::time::timeout(patience, answer(io, &error)).await;
}

/// Writes the answer and gives the client time to read it.
async fn answer(mut io: impl AsyncRead + AsyncWrite + Unpin, error: &S3Error) {
    // The id is as long as that of a request in a small cluster. It is random and equals one of those with a
    // chance of 1 in 2^72.
    let id = random::<9>().map(|id| hex::text(&id).to_uppercase()).unwrap_or_default();
    let body = error.to_document("", &id);
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
    if io.write_all(answer.as_bytes()).await.is_ok() {
        linger(io).await;
    }
}
