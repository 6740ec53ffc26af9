//! The aws-chunked framing: `size[;chunk-signature=…]` CR LF, that many bytes, CR LF; at the end a chunk of
//! size 0 and the trailers.
//!
//! A pure state machine: pieces of input go in and slices of them come out, independent of where the input is
//! split. Bytes are returned as they arrive, including those of a signed chunk: its signature is verified at
//! its end, and a body whose end was not reached is never used. A chunk of any size is therefore not buffered
//! here.

use super::trailer::{BodyTrailer, Trailers};
use bytes::{Buf, Bytes};
use mlgw_auth::ChunkSigner;
use mlgw_common::limits::CHUNK_LINE_BYTES_MAX;
use mlgw_wire::error::{Code, S3Error};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;

/// Decoder of one body.
pub struct ChunkDecoder {
    input: Bytes,
    state: ChunkDecoderState,
    /// Decoded bytes that the head declared and no chunk header has announced yet.
    unannounced: u64,
    /// A line whose end has not arrived yet; after the last chunk, the trailers.
    line: Vec<u8>,
    signed: Option<ChunkSignatureState>,
    ready: VecDeque<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkDecoderState {
    /// In the line that begins a chunk.
    Line,
    /// In a chunk; the number of bytes that are left of it.
    Data(u64),
    /// After a chunk; the number of bytes of CR LF that are left.
    DataEnd(usize),
    /// After the line of the last chunk.
    Trailer,
}

struct ChunkSignatureState {
    signer: ChunkSigner,
    trailer: bool,
    /// Signature of the current chunk.
    signature: Vec<u8>,
    sha256: Sha256,
}

/// Parsed line that begins a chunk.
#[derive(Debug, PartialEq, Eq)]
struct ChunkHeader<'a> {
    bytes: u64,
    signature: Option<&'a [u8]>,
}

impl ChunkDecoder {
    /// Returns a decoder for a body of `bytes` decoded bytes without signatures.
    #[must_use]
    pub fn unsigned(bytes: u64) -> Self {
        Self::new(bytes, None)
    }

    /// Returns a decoder for a body of `bytes` decoded bytes whose chunks are signed.
    #[must_use]
    pub fn signed(bytes: u64, signer: ChunkSigner) -> Self {
        let (trailer, signature, sha256) = (false, Vec::new(), Sha256::new());
        Self::new(bytes, Some(ChunkSignatureState { signer, trailer, signature, sha256 }))
    }

    /// Returns a decoder for a body of `bytes` decoded bytes whose chunks and trailers are signed.
    #[must_use]
    pub fn signed_with_trailer(bytes: u64, signer: ChunkSigner) -> Self {
        let (trailer, signature, sha256) = (true, Vec::new(), Sha256::new());
        Self::new(bytes, Some(ChunkSignatureState { signer, trailer, signature, sha256 }))
    }

    fn new(unannounced: u64, signed: Option<ChunkSignatureState>) -> Self {
        let (line, ready) = (Vec::new(), VecDeque::new());
        Self { input: Bytes::new(), state: ChunkDecoderState::Line, unannounced, line, signed, ready }
    }

    /// Adds the next piece of the body. To be called only after [`ChunkDecoder::next`] has returned `None`.
    pub fn feed(&mut self, input: Bytes) {
        assert!(self.input.is_empty(), "a piece is fed only after the previous one is consumed");
        self.input = input;
    }

    /// Returns the next decoded bytes, or `None` if more input is needed.
    ///
    /// # Errors
    /// `IncompleteBody` for wrong framing or lengths, `SignatureDoesNotMatch`. Bytes returned before are
    /// invalid then.
    #[expect(clippy::should_implement_trait, reason = "more input may be fed after no output")]
    pub fn next(&mut self) -> Result<Option<Bytes>, S3Error> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Ok(Some(data));
            }
            if self.input.is_empty() {
                return Ok(None);
            }
            match self.state {
                ChunkDecoderState::Line => self.read_line()?,
                ChunkDecoderState::Data(left) => self.read_data(left)?,
                ChunkDecoderState::DataEnd(left) => self.read_data_end(left)?,
                ChunkDecoderState::Trailer => self.read_trailer()?,
            }
        }
    }

    /// Ends the body and returns its trailers, after verifying their signature.
    ///
    /// # Errors
    /// Returns an error if the framing is not at its end, or if the trailers are malformed or wrongly signed.
    pub fn end(&mut self) -> Result<Vec<BodyTrailer>, S3Error> {
        assert!(
            self.input.is_empty() && self.ready.is_empty(),
            "a body ends only after all of its input is read"
        );
        if self.state != ChunkDecoderState::Trailer {
            return Err(incomplete());
        }
        assert_eq!(self.unannounced, 0, "the last chunk comes after all bytes");
        let trailers = Trailers::parse(&self.line)?;
        let malformed = || S3Error::new(Code::MalformedTrailerError);
        match (&mut self.signed, &trailers.signature) {
            (Some(signed), Some(signature)) if signed.trailer => {
                let sha256 = Sha256::digest(trailers.signed_text()).into();
                signed.signer.verify_trailer(&sha256, signature.as_bytes())?;
            }
            // Trailers must be signed in a signed body, and only there.
            (Some(_), None) if !trailers.lines.is_empty() => return Err(malformed()),
            (_, Some(_)) => return Err(malformed()),
            (_, None) => {}
        }
        Ok(trailers.lines)
    }

    fn read_line(&mut self) -> Result<(), S3Error> {
        let newline = memchr::memchr(b'\n', &self.input);
        let taken = newline.map_or(self.input.len(), |at| at + 1);
        if self.line.len() + taken > CHUNK_LINE_BYTES_MAX {
            return Err(incomplete());
        }
        self.line.extend_from_slice(&self.input[..taken]);
        self.input.advance(taken);
        if newline.is_none() {
            return Ok(());
        }
        let line = std::mem::take(&mut self.line);
        self.begin_chunk(&ChunkHeader::parse(&line)?)?;
        // Keeps the line's allocation for the next line.
        self.line = line;
        self.line.clear();
        Ok(())
    }

    fn begin_chunk(&mut self, head: &ChunkHeader<'_>) -> Result<(), S3Error> {
        self.unannounced = self.unannounced.checked_sub(head.bytes).ok_or_else(incomplete)?;
        if let Some(signed) = &mut self.signed {
            signed.signature.clear();
            signed.signature.extend_from_slice(head.signature.ok_or_else(incomplete)?);
        }
        if head.bytes > 0 {
            self.state = ChunkDecoderState::Data(head.bytes);
            return Ok(());
        }
        if self.unannounced > 0 {
            return Err(incomplete());
        }
        self.end_chunk()?;
        self.state = ChunkDecoderState::Trailer;
        Ok(())
    }

    fn read_data(&mut self, left: u64) -> Result<(), S3Error> {
        assert!(left > 0 && !self.input.is_empty(), "a chunk in progress has bytes left, and input");
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(self.input.len());
        let data = self.input.split_to(taken);
        let left = left - taken as u64;
        if let Some(signed) = &mut self.signed {
            signed.sha256.update(&data);
        }
        self.ready.push_back(data);
        if left > 0 {
            self.state = ChunkDecoderState::Data(left);
            return Ok(());
        }
        self.state = ChunkDecoderState::DataEnd(2);
        self.end_chunk()
    }

    /// Verifies the signature of a chunk, if the body is signed.
    fn end_chunk(&mut self) -> Result<(), S3Error> {
        let Some(signed) = &mut self.signed else { return Ok(()) };
        let sha256 = signed.sha256.finalize_reset().into();
        signed.signer.verify_chunk(&sha256, &signed.signature)
    }

    fn read_data_end(&mut self, left: usize) -> Result<(), S3Error> {
        assert!(matches!(left, 1 | 2), "CR LF has two bytes");
        let expected = if left == 2 { b'\r' } else { b'\n' };
        if self.input.get_u8() != expected {
            return Err(incomplete());
        }
        self.state = if left == 2 { ChunkDecoderState::DataEnd(1) } else { ChunkDecoderState::Line };
        Ok(())
    }

    fn read_trailer(&mut self) -> Result<(), S3Error> {
        if self.line.len() + self.input.len() > CHUNK_LINE_BYTES_MAX {
            return Err(S3Error::new(Code::MalformedTrailerError));
        }
        self.line.extend_from_slice(&self.input);
        self.input.clear();
        Ok(())
    }
}

impl<'a> ChunkHeader<'a> {
    /// Parses a line with its CR LF: a size in hexadecimal, and extensions. All extensions except the
    /// signature are ignored.
    fn parse(line: &'a [u8]) -> Result<Self, S3Error> {
        let line = line.strip_suffix(b"\r\n").ok_or_else(incomplete)?;
        let mut parts = line.split(|b| *b == b';');
        let bytes = parts.next().and_then(size).ok_or_else(incomplete)?;
        let signature = parts.find_map(|extension| extension.strip_prefix(b"chunk-signature="));
        Ok(Self { bytes, signature })
    }
}

fn size(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |n, b| {
        let digit = char::from(*b).to_digit(16)?;
        n.checked_mul(16)?.checked_add(u64::from(digit))
    })
}

fn incomplete() -> S3Error {
    S3Error::new(Code::IncompleteBody)
}

#[cfg(test)]
mod tests {
    use super::{ChunkDecoder, ChunkHeader};
    use bytes::Bytes;
    use mlgw_common::limits::CHUNK_LINE_BYTES_MAX;
    use mlgw_wire::error::{Code, S3Error};
    use proptest::prelude::*;

    /// Decodes an unsigned body that arrives in the given pieces.
    fn decode<'a>(
        bytes: u64,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(Vec<u8>, usize), S3Error> {
        let mut decoder = ChunkDecoder::unsigned(bytes);
        let mut out = Vec::new();
        for piece in pieces {
            decoder.feed(Bytes::copy_from_slice(piece));
            while let Some(data) = decoder.next()? {
                assert!(!data.is_empty());
                out.extend_from_slice(&data);
            }
        }
        Ok((out, decoder.end()?.len()))
    }

    #[test]
    fn the_line_of_a_chunk() {
        let plain = |bytes| Ok(ChunkHeader { bytes, signature: None });
        assert_eq!(ChunkHeader::parse(b"0\r\n"), plain(0));
        assert_eq!(ChunkHeader::parse(b"00fF\r\n"), plain(255));
        assert_eq!(ChunkHeader::parse(b"a;name=value;flag\r\n"), plain(10));
        assert_eq!(
            ChunkHeader::parse(b"1;x=y;chunk-signature=ab\r\n"),
            Ok(ChunkHeader { bytes: 1, signature: Some(b"ab") })
        );
        for bad in
            [&b"\r\n"[..], b"a\n", b"a", b"x\r\n", b"-1\r\n", b"+1\r\n", b" 1\r\n", b"11111111111111111\r\n"]
        {
            assert_eq!(ChunkHeader::parse(bad).unwrap_err().code(), Code::IncompleteBody, "{bad:?}");
        }
    }

    #[test]
    fn bodies_are_decoded_with_and_without_trailers() {
        assert_eq!(decode(0, [&b"0\r\n\r\n"[..]]), Ok((vec![], 0)));
        let whole = b"5\r\nhello\r\n1\r\n!\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n";
        assert_eq!(decode(6, [&whole[..]]), Ok((b"hello!".to_vec(), 1)));
    }

    #[test]
    fn wrong_framing_and_wrong_lengths_are_incomplete_bodies() {
        for (bytes, body) in [
            (10, "A\ndummy data\r\n0\r\n\r\n"),
            (10, "A\r\ndummy data0\r\n\r\n"),
            (10, "A\r\nXYZ\r\ndummy data\r\n0\r\n\r\n"),
            (10, "B\r\ndummy data\r\n0\r\n\r\n"),
            (10, "A\r\ndummy data\r\n0\r\n"),
            (10, "A\r\ndummy data\r\n0\r\na:b\r\n"),
            (10, "A\r\n"),
            (10, ""),
            (10, "J\r\ndummy data\r\n0\r\n\r\n"),
            (9, "A\r\ndummy data\r\n0\r\n\r\n"),
            (11, "A\r\ndummy data\r\n0\r\n\r\n"),
        ] {
            let error = decode(bytes, [body.as_bytes()]).unwrap_err();
            assert_eq!(error.code(), Code::IncompleteBody, "{bytes} {body:?}");
        }
    }

    #[test]
    fn lines_have_a_limit() {
        let long = "0".repeat(CHUNK_LINE_BYTES_MAX);
        assert_eq!(decode(1, [long.as_bytes(), b"1\r\n"]).unwrap_err().code(), Code::IncompleteBody);
        let trailer = format!("0\r\na:{long}");
        assert_eq!(decode(0, [trailer.as_bytes()]).unwrap_err().code(), Code::MalformedTrailerError);
    }

    proptest! {
        #[test]
        fn a_body_decodes_the_same_for_every_split(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend_from_slice(format!("{:x};ext=1\r\n", chunk.len()).as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n");
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len())).collect();
            cuts.extend([0, wire.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &wire[cut[0]..cut[1]]);
            let body = chunks.concat();
            prop_assert_eq!(decode(body.len() as u64, pieces), Ok((body, 1)));
        }

        #[test]
        fn arbitrary_bytes_cause_no_panic(
            bytes in 0u64..100,
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..30),
                    "[0-9a-f]{1,2}\r\n|\r\n|0\r\n|;chunk-signature=|a:b\r\n".prop_map(String::into_bytes),
                ],
                0..12,
            ),
        ) {
            let _ = decode(bytes, pieces.iter().map(Vec::as_slice));
        }
    }
}
