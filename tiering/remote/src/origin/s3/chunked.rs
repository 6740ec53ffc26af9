//! aws-chunked framing with a checksum trailer, as clients send it if the checksum is known only at the end.
//! Pure except for the stream that it frames.

use crate::origin::{ChecksumTrailer, OriginBody, OriginError};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use mlgw_common::limits::CHUNK_BYTES_MAX;

/// Returns the length of the framed form of a body of `bytes` bytes.
pub(super) fn framed_length(bytes: u64, trailer: &ChecksumTrailer) -> u64 {
    let framed = |chunk: u64| if chunk == 0 { 0 } else { head(chunk).len() as u64 + chunk + 2 };
    let whole = bytes / CHUNK_BYTES_MAX;
    let end = "0\r\n".len() + trailer.name.as_str().len() + ":\r\n\r\n".len() + trailer.value_bytes;
    whole * framed(CHUNK_BYTES_MAX) + framed(bytes % CHUNK_BYTES_MAX) + end as u64
}

fn head(chunk: u64) -> String {
    format!("{chunk:x}\r\n")
}

/// Frames a body of `bytes` bytes.
pub(super) fn framed(bytes: u64, pieces: OriginBody, trailer: ChecksumTrailer) -> OriginBody {
    let state = ChunkFraming { pieces, left: bytes, in_chunk: 0, rest: Bytes::new(), trailer: Some(trailer) };
    futures_util::stream::try_unfold(state, |mut state| async {
        Ok(state.next().await?.map(|piece| (piece, state)))
    })
    .boxed()
}

/// State of a body that is being framed.
struct ChunkFraming {
    pieces: OriginBody,
    /// Bytes of the body not yet framed.
    left: u64,
    /// Bytes missing in the current chunk.
    in_chunk: u64,
    /// Bytes received and not yet framed.
    rest: Bytes,
    trailer: Option<ChecksumTrailer>,
}

impl ChunkFraming {
    async fn next(&mut self) -> Result<Option<Bytes>, OriginError> {
        if self.left == 0 {
            return self.end().await;
        }
        while self.rest.is_empty() {
            match self.pieces.next().await {
                Some(piece) => self.rest = piece?,
                None => return Ok(None),
            }
        }
        assert!(self.in_chunk <= self.left, "a chunk ends within the body");
        let mut out = BytesMut::new();
        if self.in_chunk == 0 {
            self.in_chunk = self.left.min(CHUNK_BYTES_MAX);
            out.extend_from_slice(head(self.in_chunk).as_bytes());
        }
        let piece = self.rest.split_to(self.rest.len().min(usize::try_from(self.in_chunk).unwrap_or(0)));
        out.extend_from_slice(&piece);
        self.in_chunk -= piece.len() as u64;
        self.left -= piece.len() as u64;
        if self.in_chunk == 0 {
            out.extend_from_slice(b"\r\n");
        }
        Ok(Some(out.freeze()))
    }

    async fn end(&mut self) -> Result<Option<Bytes>, OriginError> {
        let Some(trailer) = self.trailer.take() else { return Ok(None) };
        let value = trailer.value.await;
        let value =
            value.map_err(|_| OriginError::InvalidResponse("the checksum of the body is missing".into()))?;
        Ok(Some(format!("0\r\n{}:{value}\r\n\r\n", trailer.name).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::{framed, framed_length};
    use crate::origin::ChecksumTrailer;
    use bytes::Bytes;
    use futures_util::TryStreamExt as _;
    use futures_util::stream::{self, StreamExt as _};
    use http::HeaderName;
    use mlgw_common::limits::CHUNK_BYTES_MAX;
    use tokio::sync::oneshot;

    async fn frame(bytes: usize, piece: usize) -> Vec<u8> {
        let (value_sender, value) = oneshot::channel();
        value_sender.send("AAAAAA==".to_owned()).unwrap();
        let name = HeaderName::from_static("x-amz-checksum-crc32");
        let trailer = ChecksumTrailer { name, value_bytes: 8, value };
        let pieces = vec![7_u8; bytes];
        let pieces: Vec<_> = pieces.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let expected = framed_length(bytes as u64, &trailer);
        let framed = framed(bytes as u64, stream::iter(pieces).boxed(), trailer);
        let framed = framed.try_collect::<Vec<_>>().await.unwrap().concat();
        assert_eq!(framed.len() as u64, expected, "{bytes}");
        framed
    }

    #[tokio::test]
    async fn a_body_is_framed_in_chunks_followed_by_its_checksum() {
        let small = frame(5, 2).await;
        assert_eq!(small, b"5\r\n\x07\x07\x07\x07\x07\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n");
        for bytes in [CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, 3 * CHUNK_BYTES_MAX] {
            let framed = frame(bytes as usize, 300_001).await;
            assert!(framed.starts_with(b"100000\r\n\x07") && framed.ends_with(b"==\r\n\r\n"));
            assert_eq!(framed.iter().filter(|byte| **byte == 7).count() as u64, bytes);
        }
    }
}
