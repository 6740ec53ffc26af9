//! The stream from the primary of an open segment to one of its followers.
//!
//! The frames of a batch are made once and shared by all streams. Small pieces of their payloads are joined,
//! large ones are not copied. A stream takes frames without waiting, since the segment bounds what a follower
//! may lack. Its answers are synced lengths, in order. A stream that has ended is never continued: the
//! follower has lost its right to append, and with a power loss every stream ends.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use mlgw_common::ids::NodeId;
use mlgw_common::limits::CHUNK_BYTES_MAX;
use mlgw_common::time::timeout;
use mlgw_formats::append_frames::{APPEND_PAYLOAD_BYTES_MAX, AppendAnswerDecoder, AppendHead};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use mlgw_formats::segment_record::HEAD_BYTES_MAX;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

use super::{ReplicaBytes, SegmentPeers};

/// Longest time until a follower has created its file.
pub(super) const OPEN_MAX: Duration = Duration::from_secs(1);

/// Pieces of a payload below this size are joined: each piece is encrypted and written on its own, which
/// costs more than to copy it.
const SMALL_PIECE_BYTES: usize = 32 << 10;

/// Maximum size of joined pieces.
const JOINED_BYTES_MAX: usize = 128 << 10;

// Each record fits into a frame.
const _: () = assert!(HEAD_BYTES_MAX + CHUNK_BYTES_MAX as usize <= APPEND_PAYLOAD_BYTES_MAX);

/// The bytes of a frame: its head, and the pieces of its payload.
pub(in crate::hot) type EncodedFrame = Arc<[Bytes]>;

/// Returns the frames of records that begin at `offset` in the file, each given as its head and its payload.
/// A frame ends with a record.
pub(in crate::hot) fn encode_frames(
    mut offset: u64,
    records: impl Iterator<Item = (Bytes, Bytes)>,
) -> Vec<EncodedFrame> {
    let (mut frames, mut payload, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (head, stored) in records {
        let record_bytes = head.len() + stored.len();
        if bytes + record_bytes > APPEND_PAYLOAD_BYTES_MAX {
            frames.push(encode_frame(offset, &mut payload));
            offset += bytes as u64;
            bytes = 0;
        }
        bytes += record_bytes;
        payload.extend([head, stored]);
    }
    if bytes > 0 {
        frames.push(encode_frame(offset, &mut payload));
    }
    frames
}

fn encode_frame(offset: u64, payload: &mut Vec<Bytes>) -> EncodedFrame {
    let head = AppendHead::of(offset, payload).encode();
    joined(&head, payload.drain(..))
}

/// Joins the small pieces that follow each other.
fn joined(head: &[u8], pieces: impl Iterator<Item = Bytes>) -> EncodedFrame {
    let (mut all, mut small) = (Vec::new(), BytesMut::from(head));
    for piece in pieces {
        let is_small = piece.len() < SMALL_PIECE_BYTES;
        if !small.is_empty() && (!is_small || small.len() + piece.len() > JOINED_BYTES_MAX) {
            all.push(small.split().freeze());
        }
        match is_small {
            true => small.extend_from_slice(&piece),
            false => all.push(piece),
        }
    }
    if !small.is_empty() {
        all.push(small.freeze());
    }
    all.into()
}

/// A stream whose follower has created its file.
pub(in crate::hot) struct OpenedLink {
    pub(super) node: NodeId,
    /// Frames to send. The stream ends when this is dropped.
    pub(super) frames: mpsc::UnboundedSender<EncodedFrame>,
    pub(super) answers: LinkAnswers,
}

/// Opens the stream to a follower. `request` is an encoded
/// [`OpenReplica`](mlgw_formats::segment_calls::OpenReplica).
pub(super) async fn open_link(
    peers: Arc<dyn SegmentPeers>,
    node: NodeId,
    request: Bytes,
) -> io::Result<OpenedLink> {
    let (frames, queued) = mpsc::unbounded_channel();
    let opening = async {
        let answers = peers.append(node, request, sent_bytes(queued)).await?;
        let mut answers = LinkAnswers { bytes: answers, decoder: AppendAnswerDecoder::default() };
        match answers.next().await? {
            SEGMENT_HEADER_BYTES => Ok(answers),
            length => Err(io::Error::other(format!("a new replica has {length} bytes"))),
        }
    };
    let answers = timeout(OPEN_MAX, opening).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    Ok(OpenedLink { node, frames, answers })
}

fn sent_bytes(mut queued: mpsc::UnboundedReceiver<EncodedFrame>) -> ReplicaBytes {
    Box::pin(stream::poll_fn(move |cx| queued.poll_recv(cx)).flat_map(pieces))
}

fn pieces(frame: EncodedFrame) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::iter((0..frame.len()).map(move |piece| Ok(frame[piece].clone())))
}

/// The answers of a follower.
pub(super) struct LinkAnswers {
    bytes: ReplicaBytes,
    decoder: AppendAnswerDecoder,
}

impl LinkAnswers {
    /// Returns the last length that the follower has synced.
    pub(super) async fn next(&mut self) -> io::Result<u64> {
        loop {
            if let Some(length) = self.decoder.last_length().map_err(io::Error::other)? {
                return Ok(length);
            }
            match self.bytes.next().await {
                Some(bytes) => self.decoder.push(bytes?),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{JOINED_BYTES_MAX, SMALL_PIECE_BYTES, encode_frames, joined, sent_bytes};
    use bytes::Bytes;
    use futures_util::StreamExt as _;
    use mlgw_formats::append_frames::{APPEND_PAYLOAD_BYTES_MAX, AppendDecoder};

    #[tokio::test]
    async fn records_are_sent_in_order_and_a_frame_ends_with_a_record() {
        let record = |n: usize| (Bytes::from(vec![n as u8; 100]), Bytes::from(vec![n as u8; n << 18]));
        let records: Vec<(Bytes, Bytes)> = (0..10).map(record).collect();
        let (frames, queued) = tokio::sync::mpsc::unbounded_channel();
        for frame in encode_frames(64, records.iter().cloned()) {
            frames.send(frame).unwrap();
        }
        drop(frames);
        let (mut sent, mut decoder) = (sent_bytes(queued), AppendDecoder::default());
        let mut received = Vec::new();
        while let Some(bytes) = sent.next().await {
            decoder.push(bytes.unwrap());
            while let Some(frame) = decoder.next_frame().unwrap() {
                received.push(frame);
            }
        }
        assert!(received.len() > 2 && decoder.is_between_frames());
        let mut ends = vec![64];
        for (head, stored) in &records {
            ends.push(ends[ends.len() - 1] + (head.len() + stored.len()) as u64);
        }
        let mut end = 64;
        for frame in &received {
            assert_eq!(frame.offset, end);
            end = frame.end();
            assert!(ends.contains(&end) && end - frame.offset <= APPEND_PAYLOAD_BYTES_MAX as u64);
        }
        let content = |(head, stored): &(Bytes, Bytes)| [head.as_ref(), stored.as_ref()].concat();
        let expected: Vec<u8> = records.iter().flat_map(content).collect();
        let bytes: Vec<u8> = received.into_iter().flat_map(|frame| frame.payload.concat()).collect();
        assert!(bytes == expected);
    }

    #[test]
    fn small_pieces_are_joined_and_large_ones_are_sent_as_they_are() {
        let piece = |byte: u8, length: usize| Bytes::from(vec![byte; length]);
        let large = piece(3, SMALL_PIECE_BYTES);
        let pieces = [piece(1, 100), piece(2, 4_096), large.clone(), piece(4, 100), piece(5, 4_096)];
        let sent = joined(b"head", pieces.iter().cloned());
        let lengths: Vec<usize> = sent.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [4_200, SMALL_PIECE_BYTES, 4_196]);
        assert_eq!(sent[1].as_ptr(), large.as_ptr(), "it is not copied");
        assert!(sent.concat() == [b"head".as_slice(), &pieces.concat()].concat());

        let many = std::iter::repeat_n(piece(6, SMALL_PIECE_BYTES - 1), 9);
        let sent = joined(b"head", many);
        assert!(sent.len() > 2 && sent.iter().all(|bytes| bytes.len() <= JOINED_BYTES_MAX));
        assert_eq!(sent.concat().len(), 4 + 9 * (SMALL_PIECE_BYTES - 1));
    }
}
