//! Sends the body of a request to an origin.
//!
//! Invariant: an origin never has all of a body before its length, signatures and checksums are verified.
//! Of a short body nothing is sent before that. The last piece of a long body is held back; if verification
//! fails the connection is closed instead, so that the origin discards the write. A short body is in memory
//! and can be sent again; of a long body at most a few pieces are in memory, on either side.

use super::passed_headers::pass_headers;
use super::{RemoteBackedBucket, origin_write_error};
use crate::IncomingBody;
use crate::client_body::ReceivedClientBody;
use crate::request::AuthenticatedRequest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream;
use http::{HeaderMap, HeaderName};
use mlgw_body::{BodyTerms, Digests, RequestBody};
use mlgw_common::ObjectKey;
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, SMALL_BODY_BYTES};
use mlgw_formats::checksum::Algorithm;
use mlgw_objects::CONNECTION_BLOCKS;
use mlgw_objects::memory::blocks_of;
use mlgw_remote::origin::{ChecksumTrailer, OriginContent, OriginError, OriginWriteReceipt, Streamed};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::values::header_value;
use std::pin::pin;
use tokio::sync::{mpsc, oneshot};

/// MD5 is computed only if the client sends one: the ETag is the origin's.
const TERMS: BodyTerms = BodyTerms { md5: false, allows_separate_md5: false, ..BodyTerms::object(None) };
/// Memory of a long body: the piece that is held back, the piece after it, and the buffer of the connection
/// to the origin, which is at most 16 pieces and about 400 KiB.
const STREAM_BLOCKS: u32 = CONNECTION_BLOCKS + 2 + 7;

/// Target of a body.
#[derive(Clone, Copy)]
pub(super) enum RemoteBodyTarget<'a> {
    /// An object.
    Object(&'a ObjectKey),
    /// A part of the upload with this id.
    Part(&'a ObjectKey, &'a str, u32),
}

impl RemoteBodyTarget<'_> {
    async fn put(
        &self,
        remote_backed: &RemoteBackedBucket,
        headers: &HeaderMap,
        content: OriginContent,
    ) -> Result<OriginWriteReceipt, OriginError> {
        match self {
            Self::Object(key) => remote_backed.cached.put(key, headers, content).await,
            Self::Part(key, id, number) => {
                remote_backed.cached.put_part(key, id, *number, headers, content).await
            }
        }
    }
}

/// Sends the body of a request to the origin.
///
/// # Errors
/// Errors of the body; `SlowDown` if memory is short; errors of the origin.
pub(super) async fn send(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    upload: IncomingBody<'_>,
    to: RemoteBodyTarget<'_>,
    headers: HeaderMap,
) -> Result<OriginWriteReceipt, S3Error> {
    let body = RequestBody::new(upload.incoming, request.head, upload.payload, TERMS)?;
    let bytes = body.decoded_length().ok_or_else(|| S3Error::new(Code::MissingContentLength))?;
    let is_short = bytes <= BLOCK_BYTES || (bytes <= CHUNK_BYTES_MAX && request.memory.has_plenty());
    match is_short {
        true => send_whole(request, remote_backed, body, bytes, to, headers).await,
        false => send_stream(request, remote_backed, body, bytes, to, headers).await,
    }
}

async fn send_whole(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    mut body: RequestBody<&mut ReceivedClientBody>,
    bytes: u64,
    to: RemoteBodyTarget<'_>,
    mut headers: HeaderMap,
) -> Result<OriginWriteReceipt, S3Error> {
    let _memory = match bytes <= SMALL_BODY_BYTES as u64 {
        true => None,
        false => Some(request.memory.reserve(blocks_of(bytes) + CONNECTION_BLOCKS).await?),
    };
    let first = body.next().await?.unwrap_or_default();
    let whole = if first.len() as u64 == bytes {
        // The end is read as well: only then is everything verified.
        let end = body.next().await?;
        assert!(end.is_none(), "a body has exactly the declared length");
        first
    } else {
        let mut whole = BytesMut::with_capacity(usize::try_from(bytes).unwrap_or(0));
        whole.extend_from_slice(&first);
        while let Some(piece) = body.next().await? {
            whole.extend_from_slice(&piece);
        }
        whole.freeze()
    };
    if let Some((algorithm, value)) = declared_checksum(&body.finish()) {
        headers.insert(HeaderName::from_static(algorithm.header()), header_value(&value));
    }
    pass_headers(request, &["content-md5"], &mut headers);
    let sent = to.put(remote_backed, &headers, OriginContent::Whole(whole)).await;
    sent.map_err(|error| origin_write_error(error, remote_backed))
}

async fn send_stream(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    body: RequestBody<&mut ReceivedClientBody>,
    bytes: u64,
    to: RemoteBodyTarget<'_>,
    mut headers: HeaderMap,
) -> Result<OriginWriteReceipt, S3Error> {
    let _memory = request.memory.reserve(STREAM_BLOCKS).await?;
    let (pieces, mut queue) = mpsc::channel(1);
    let (checksum_sender, value) = oneshot::channel();
    let mut trailer = None;
    if let Some(algorithm) = body.declared_algorithm() {
        let name = HeaderName::from_static(algorithm.header());
        match request.head.headers.get(&name) {
            Some(value) => drop(headers.insert(name, value.clone())),
            None => {
                let value_bytes = BASE64.encode(vec![0; algorithm.value_bytes()]).len();
                trailer = Some(ChecksumTrailer { name, value_bytes, value });
            }
        }
    }
    if trailer.is_none() {
        pass_headers(request, &["content-md5"], &mut headers);
    }
    let queue = stream::poll_fn(move |cx| queue.poll_recv(cx));
    let content = OriginContent::Streaming(Streamed { bytes, pieces: queue.boxed(), trailer });
    let putting = pin!(to.put(remote_backed, &headers, content));
    let pumping = pin!(forward_body(body, pieces, checksum_sender));
    let sent = match select(pumping, putting).await {
        Either::Left((Ok(()), putting)) => putting.await,
        // The origin lacks the last piece, and the connection to it is closed now.
        Either::Left((Err(wrong), _)) => return Err(wrong),
        Either::Right((Ok(_), _)) => Err(OriginError::InvalidResponse(
            "it acknowledged the upload before it had received the whole body".to_owned(),
        )),
        Either::Right((refused, _)) => refused,
    };
    sent.map_err(|error| origin_write_error(error, remote_backed))
}

/// Passes the pieces of a body on, each once the next one has arrived, and the last once everything is
/// verified.
async fn forward_body(
    mut body: RequestBody<&mut ReceivedClientBody>,
    pieces: mpsc::Sender<Result<Bytes, OriginError>>,
    checksum_sender: oneshot::Sender<String>,
) -> Result<(), S3Error> {
    let mut held: Option<Bytes> = None;
    while let Some(piece) = body.next().await? {
        if let Some(before) = held.replace(piece) {
            forward_piece(&pieces, before).await;
        }
    }
    if let Some((_, value)) = declared_checksum(&body.finish()) {
        // The receiver is dropped if the checksum was sent in a header.
        let _ = checksum_sender.send(value);
    }
    if let Some(last) = held {
        forward_piece(&pieces, last).await;
    }
    Ok(())
}

/// Passes a piece on. If the receiver is closed this future never completes: the sending side reports the
/// cause.
async fn forward_piece(pieces: &mpsc::Sender<Result<Bytes, OriginError>>, piece: Bytes) {
    if pieces.send(Ok(piece)).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns the checksum that the client declared, as text.
fn declared_checksum(digests: &Digests) -> Option<(Algorithm, String)> {
    let algorithm = digests.declared?;
    Some((algorithm, BASE64.encode(digests.checksum(algorithm)?)))
}
