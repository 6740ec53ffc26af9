//! Sends the body of a request to an origin.
//!
//! Invariant: an origin never has all of a body before its length, signatures and checksums are verified.
//! Of a short body nothing is sent before that. The last piece of a long body is held back; if verification
//! fails the connection is closed instead, so that the origin discards the write. A short body is in memory
//! and can be sent again; of a long body at most a few pieces are in memory, on either side.

use super::write::pass;
use super::{Fronted, told_of_write};
use crate::Upload;
use crate::request::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream;
use http::{HeaderMap, HeaderName};
use mlgw_body::{Body, Digests, Terms};
use mlgw_common::ObjectKey;
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, SMALL_BODY_BYTES};
use mlgw_formats::checksum::Algorithm;
use mlgw_listener::pace::Incoming;
use mlgw_objects::CONNECTION_BLOCKS;
use mlgw_objects::memory::blocks_of;
use mlgw_remote::origin::{Content, OriginError, Streamed, Trailer, Written};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::values::header_value;
use std::pin::pin;
use tokio::sync::{mpsc, oneshot};

/// MD5 is computed only if the client sends one: the ETag is the origin's.
const TERMS: Terms = Terms { md5: false, md5_apart: false, ..Terms::object(None) };
/// Memory of a long body: the piece that is held back, the piece after it, and the buffer of the connection
/// to the origin, which is at most 16 pieces and about 400 KiB.
const STREAM_BLOCKS: u32 = CONNECTION_BLOCKS + 2 + 7;

/// Target of a body.
#[derive(Clone, Copy)]
pub(super) enum To<'a> {
    /// An object.
    Object(&'a ObjectKey),
    /// A part of the upload with this id.
    Part(&'a ObjectKey, &'a str, u32),
}

impl To<'_> {
    async fn put(
        &self,
        fronted: &Fronted,
        headers: &HeaderMap,
        content: Content,
    ) -> Result<Written, OriginError> {
        match self {
            Self::Object(key) => fronted.bound.put(key, headers, content).await,
            Self::Part(key, id, number) => fronted.bound.put_part(key, id, *number, headers, content).await,
        }
    }
}

/// Sends the body of a request to the origin.
///
/// # Errors
/// Errors of the body; `SlowDown` if memory is short; errors of the origin.
pub(super) async fn send(
    request: &Request<'_>,
    fronted: &Fronted,
    upload: Upload<'_>,
    to: To<'_>,
    headers: HeaderMap,
) -> Result<Written, S3Error> {
    let body = Body::new(upload.incoming, request.head, upload.payload, TERMS)?;
    let bytes = body.decoded_length().ok_or_else(|| S3Error::new(Code::MissingContentLength))?;
    let is_short = bytes <= BLOCK_BYTES || (bytes <= CHUNK_BYTES_MAX && request.memory.has_plenty());
    match is_short {
        true => send_whole(request, fronted, body, bytes, to, headers).await,
        false => send_stream(request, fronted, body, bytes, to, headers).await,
    }
}

async fn send_whole(
    request: &Request<'_>,
    fronted: &Fronted,
    mut body: Body<&mut Incoming>,
    bytes: u64,
    to: To<'_>,
    mut headers: HeaderMap,
) -> Result<Written, S3Error> {
    let _memory = match bytes <= SMALL_BODY_BYTES as u64 {
        true => None,
        false => Some(request.memory.reserve(blocks_of(bytes) + CONNECTION_BLOCKS).await?),
    };
    let first = body.next().await?.unwrap_or_default();
    let whole = if first.len() as u64 == bytes {
        // The end is read as well: only then is everything verified.
        let end = body.next().await?;
        assert!(end.is_none(), "a body has no more bytes than its head says");
        first
    } else {
        let mut whole = BytesMut::with_capacity(usize::try_from(bytes).unwrap_or(0));
        whole.extend_from_slice(&first);
        while let Some(piece) = body.next().await? {
            whole.extend_from_slice(&piece);
        }
        whole.freeze()
    };
    if let Some((algorithm, value)) = declared(&body.finish()) {
        headers.insert(HeaderName::from_static(algorithm.header()), header_value(&value));
    }
    pass(request, &["content-md5"], &mut headers);
    let sent = to.put(fronted, &headers, Content::Whole(whole)).await;
    sent.map_err(|error| told_of_write(error, fronted))
}

async fn send_stream(
    request: &Request<'_>,
    fronted: &Fronted,
    body: Body<&mut Incoming>,
    bytes: u64,
    to: To<'_>,
    mut headers: HeaderMap,
) -> Result<Written, S3Error> {
    let _memory = request.memory.reserve(STREAM_BLOCKS).await?;
    let (pieces, mut queue) = mpsc::channel(1);
    let (told, value) = oneshot::channel();
    let mut trailer = None;
    if let Some(algorithm) = body.declared_algorithm() {
        let name = HeaderName::from_static(algorithm.header());
        match request.head.headers.get(&name) {
            Some(value) => drop(headers.insert(name, value.clone())),
            None => {
                let value_bytes = BASE64.encode(vec![0; algorithm.value_bytes()]).len();
                trailer = Some(Trailer { name, value_bytes, value });
            }
        }
    }
    if trailer.is_none() {
        pass(request, &["content-md5"], &mut headers);
    }
    let queue = stream::poll_fn(move |cx| queue.poll_recv(cx));
    let content = Content::Stream(Streamed { bytes, pieces: queue.boxed(), trailer });
    let putting = pin!(to.put(fronted, &headers, content));
    let pumping = pin!(pump(body, pieces, told));
    let sent = match select(pumping, putting).await {
        Either::Left((Ok(()), putting)) => putting.await,
        // The origin lacks the last piece, and the connection to it is closed now.
        Either::Left((Err(wrong), _)) => return Err(wrong),
        Either::Right((Ok(_), _)) => {
            Err(OriginError::Nonsense("it acknowledged what it had not all of".to_owned()))
        }
        Either::Right((refused, _)) => refused,
    };
    sent.map_err(|error| told_of_write(error, fronted))
}

/// Passes the pieces of a body on, each once the next one has arrived, and the last once everything is
/// verified.
async fn pump(
    mut body: Body<&mut Incoming>,
    pieces: mpsc::Sender<Result<Bytes, OriginError>>,
    told: oneshot::Sender<String>,
) -> Result<(), S3Error> {
    let mut held: Option<Bytes> = None;
    while let Some(piece) = body.next().await? {
        if let Some(before) = held.replace(piece) {
            hand_on(&pieces, before).await;
        }
    }
    if let Some((_, value)) = declared(&body.finish()) {
        // The receiver is dropped if the checksum was sent in a header.
        let _ = told.send(value);
    }
    if let Some(last) = held {
        hand_on(&pieces, last).await;
    }
    Ok(())
}

/// Passes a piece on. If the receiver is closed this future never completes: the sending side reports the
/// cause.
async fn hand_on(pieces: &mpsc::Sender<Result<Bytes, OriginError>>, piece: Bytes) {
    if pieces.send(Ok(piece)).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns the checksum that the client declared, as text.
fn declared(digests: &Digests) -> Option<(Algorithm, String)> {
    let algorithm = digests.declared?;
    Some((algorithm, BASE64.encode(digests.checksum(algorithm)?)))
}
