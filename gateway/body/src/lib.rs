//! Decoding and verification of request bodies against the promises of their heads.
//!
//! [`RequestBody::next`] returns the bytes of the object, decoded from any framing, without copies where the
//! framing allows it. They are hashed once, as they pass; only the MD5 of a small or a long body is left to
//! the code that stores it and is verified with [`BodyMd5::verify`]. The end of the body is reported only
//! after its length, signatures and checksums have been verified. Invariant: **code that commits only after
//! `None` never stores a body other than the one that the client sent**. Until then bytes may be stored, but
//! no record may refer to them.
//!
//! No input is trusted before it is counted: lengths are checked against their limits by the head alone, and
//! framing lines and buffered data have limits of their own.

pub mod chunked;
mod declared;
pub mod encoding;
pub mod form;
mod hashes;
mod trailer;

#[cfg(test)]
mod tests;

pub use declared::declared_algorithm;
use mlgw_formats::checksum::Algorithm;

use bytes::{Bytes, BytesMut};
use chunked::ChunkDecoder;
use declared::DeclaredChecksums;
use hashes::BodyHasher;
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Version};
use mlgw_auth::BodyRequirement;
use mlgw_common::limits::{CHUNK_BYTES_MAX, PUT_BYTES_MAX, SMALL_BODY_BYTES};
use mlgw_wire::error::{Code, S3Error};
use std::future::poll_fn;
use std::ops::RangeInclusive;
use std::pin::Pin;

/// Lengths of bodies whose MD5 is computed while they are read. Such a body is too long to be hashed in one
/// step at its end, and it is a single chunk, so there are no further chunks to hash in a batch with others.
/// The MD5 of all other bodies may be computed separately.
const INLINE_MD5_LENGTHS: RangeInclusive<u64> = SMALL_BODY_BYTES as u64 + 1..=CHUNK_BYTES_MAX;

const _: () = assert!((SMALL_BODY_BYTES as u64) < CHUNK_BYTES_MAX, "a small body is less than a chunk");

/// Requirements of an operation on its body.
#[derive(Clone, Copy, Debug)]
pub struct BodyTerms {
    /// Maximum decoded bytes.
    pub bytes_max: u64,
    /// Error for a longer body.
    pub too_large: Code,
    /// True if the head must state the length of the body, over HTTP/1. A truncated document is not
    /// well-formed, but a truncated object would be stored as a different object.
    pub length_required: bool,
    /// True if the MD5 is required (as the ETag of an object or part).
    pub md5: bool,
    /// True if the MD5 may be computed separately, by the code that stores the body.
    pub allows_separate_md5: bool,
    /// True if `x-amz-checksum-*` headers describe this body. Those of CompleteMultipartUpload describe the
    /// object.
    pub checksum_headers: bool,
    /// A checksum that is computed in addition to the client's.
    pub extra_checksum: Option<Algorithm>,
    /// Checksum that is computed if the client declares none.
    pub default_checksum: Option<Algorithm>,
}

impl BodyTerms {
    /// Returns the terms for the bytes of an object or part.
    #[must_use]
    pub const fn object(also: Option<Algorithm>) -> Self {
        Self {
            bytes_max: PUT_BYTES_MAX,
            too_large: Code::EntityTooLarge,
            length_required: true,
            md5: true,
            allows_separate_md5: true,
            checksum_headers: true,
            extra_checksum: also,
            default_checksum: None,
        }
    }

    /// Returns the terms for an XML document (or a form) of at most `bytes_max` bytes.
    #[must_use]
    pub const fn document(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            too_large: Code::MaxMessageLengthExceeded,
            length_required: false,
            md5: false,
            allows_separate_md5: false,
            checksum_headers: true,
            extra_checksum: None,
            default_checksum: None,
        }
    }
}

/// Length and hashes of a whole, verified body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Length of the body in decoded bytes.
    pub bytes: u64,
    /// MD5 of the body, if the terms or the client required it.
    pub md5: BodyMd5,
    /// Checksums of the body: the one that the client declared and those that the terms require.
    pub checksums: Vec<(Algorithm, Vec<u8>)>,
    /// Algorithm that the client declared, in a header or as a trailer.
    pub declared: Option<Algorithm>,
}

impl Digests {
    /// Returns the body's checksum by `algorithm`, if it was computed.
    #[must_use]
    pub fn checksum(&self, algorithm: Algorithm) -> Option<&[u8]> {
        self.checksums.iter().find(|(a, _)| *a == algorithm).map(|(_, value)| value.as_slice())
    }
}

/// MD5 of a body, with the place of its computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyMd5 {
    /// Not required and not computed.
    #[default]
    NotComputed,
    /// Computed while the body was read, and equal to the client's value if there is one.
    InlineMd5([u8; 16]),
    /// To be computed by the code that stores the body, and to be compared with the client's value.
    SeparateMd5 {
        /// MD5 in the client's `Content-MD5` header.
        declared: Option<[u8; 16]>,
    },
}

impl BodyMd5 {
    /// Verifies the separately computed MD5, if one is required, and returns the MD5. No record may refer to
    /// the body before this succeeds.
    ///
    /// # Errors
    /// `BadDigest` if the MD5 differs from the client's value.
    ///
    /// # Panics
    /// Panics if the MD5 was to be computed separately and is `None`.
    pub fn verify(self, separate: Option<[u8; 16]>) -> Result<Option<[u8; 16]>, S3Error> {
        match self {
            Self::NotComputed => Ok(None),
            Self::InlineMd5(md5) => Ok(Some(md5)),
            Self::SeparateMd5 { declared } => {
                let Some(found) = separate else {
                    panic!("the MD5 of this body is computed by the code that stores it")
                };
                declared::check_md5(declared, found)?;
                Ok(Some(found))
            }
        }
    }
}

/// Body of an incoming request.
pub struct RequestBody<B> {
    incoming: B,
    framing: BodyFraming,
    /// Length that the head declares.
    length: Option<u64>,
    bytes: u64,
    terms: BodyTerms,
    sha256: Option<[u8; 32]>,
    declared: DeclaredChecksums,
    has_separate_md5: bool,
    hashes: BodyHasher,
    /// Set once the whole body has been verified.
    digests: Option<Digests>,
}

enum BodyFraming {
    Identity,
    Chunked(Box<ChunkDecoder>),
}

impl<B> RequestBody<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    S3Error: From<B::Error>,
{
    /// Starts a body that is verified against its head and its signature.
    ///
    /// # Errors
    /// Returns an error if the head contradicts itself or declares more than `terms` allow.
    pub fn new(
        incoming: B,
        head: &Parts,
        payload: BodyRequirement,
        terms: BodyTerms,
    ) -> Result<Self, S3Error> {
        let headers = &head.headers;
        if terms.length_required && !is_framed(head) {
            // The following bytes may belong to the body and not to the next request.
            let close = HeaderValue::from_static("close");
            return Err(S3Error::new(Code::MissingContentLength).header(CONNECTION, close));
        }
        let chunked = payload.is_chunked();
        let declared = match terms.checksum_headers {
            true => DeclaredChecksums::parse(headers, &payload)?,
            false => DeclaredChecksums::parse_md5(headers)?,
        };
        let length = if chunked { Some(decoded_length(headers)?) } else { plain_length(headers, &incoming) };
        match length {
            // An HTTP/2 body ends with its stream, so it is complete without a length.
            None if terms.length_required && head.version < Version::HTTP_2 => {
                return Err(S3Error::new(Code::MissingContentLength));
            }
            Some(bytes) if bytes > terms.bytes_max => return Err(too_large(&terms, bytes)),
            _ => {}
        }
        let sha256 = if let BodyRequirement::Sha256(hash) = &payload { Some(*hash) } else { None };
        let framing = match (payload, length) {
            (BodyRequirement::SignedChunks(signer, true), Some(bytes)) => {
                BodyFraming::Chunked(Box::new(ChunkDecoder::signed_with_trailer(bytes, signer)))
            }
            (BodyRequirement::SignedChunks(signer, false), Some(bytes)) => {
                BodyFraming::Chunked(Box::new(ChunkDecoder::signed(bytes, signer)))
            }
            (BodyRequirement::UnsignedTrailer, Some(bytes)) => {
                BodyFraming::Chunked(Box::new(ChunkDecoder::unsigned(bytes)))
            }
            _ => BodyFraming::Identity,
        };
        let is_md5_needed = terms.md5 || declared.md5.is_some();
        let is_inline = length.is_some_and(|bytes| INLINE_MD5_LENGTHS.contains(&bytes));
        let md5_apart = is_md5_needed && terms.allows_separate_md5 && !is_inline;
        let checksums = [declared.algorithm().or(terms.default_checksum), terms.extra_checksum];
        let mut hashes = BodyHasher::new(checksums);
        if is_md5_needed && !md5_apart {
            hashes.add_md5();
        }
        if sha256.is_some() {
            hashes.add_sha256();
        }
        let (bytes, digests) = (0, None);
        Ok(Self {
            incoming,
            framing,
            length,
            bytes,
            terms,
            sha256,
            declared,
            has_separate_md5: md5_apart,
            hashes,
            digests,
        })
    }

    /// True if the code that stores this body must compute its MD5, for [`BodyMd5::verify`].
    #[must_use]
    pub fn has_separate_md5(&self) -> bool {
        self.has_separate_md5
    }

    /// Returns the length in decoded bytes that the head declares.
    #[must_use]
    pub fn decoded_length(&self) -> Option<u64> {
        self.length
    }

    /// Returns the algorithm of the checksum that the client declared, in a header or as a trailer.
    #[must_use]
    pub fn declared_algorithm(&self) -> Option<Algorithm> {
        self.declared.algorithm()
    }

    /// Returns the next decoded bytes, never empty, or `None` after the last once the whole body has been
    /// verified. The future may be dropped and the call repeated without losing bytes.
    ///
    /// # Errors
    /// AWS's code for the defect. No byte of the body may be used then.
    pub async fn next(&mut self) -> Result<Option<Bytes>, S3Error> {
        loop {
            if self.digests.is_some() {
                return Ok(None);
            }
            if let BodyFraming::Chunked(decoder) = &mut self.framing
                && let Some(data) = decoder.next()?
            {
                return self.count(data).map(Some);
            }
            match poll_fn(|cx| Pin::new(&mut self.incoming).poll_frame(cx)).await {
                Some(Ok(frame)) => {
                    // HTTP trailers are ignored: S3's trailers are within the body.
                    let Ok(data) = frame.into_data() else { continue };
                    if let BodyFraming::Chunked(decoder) = &mut self.framing {
                        decoder.feed(data);
                    } else if !data.is_empty() {
                        return self.count(data).map(Some);
                    }
                }
                Some(Err(error)) => return Err(error.into()),
                None => self.digests = Some(self.verify()?),
            }
        }
    }

    /// Returns length and hashes of the body. To be called after [`RequestBody::next`] has returned `None`.
    ///
    /// # Panics
    /// Panics if the end of the body was not reached, because the body is not verified before.
    #[must_use]
    pub fn finish(self) -> Digests {
        let Some(digests) = self.digests else { panic!("a body is finished only at its end") };
        digests
    }

    fn count(&mut self, data: Bytes) -> Result<Bytes, S3Error> {
        assert!(!data.is_empty(), "a piece of a body has bytes");
        self.bytes += data.len() as u64;
        if self.length.is_some_and(|length| self.bytes > length) {
            return Err(S3Error::new(Code::IncompleteBody));
        }
        if self.bytes > self.terms.bytes_max {
            return Err(too_large(&self.terms, self.bytes));
        }
        self.hashes.update(&data);
        Ok(data)
    }

    /// Verifies at the end of the body what can only be verified there.
    fn verify(&mut self) -> Result<Digests, S3Error> {
        let trailers = match &mut self.framing {
            BodyFraming::Identity => Vec::new(),
            BodyFraming::Chunked(decoder) => decoder.end()?,
        };
        if self.length.is_some_and(|length| self.bytes != length) {
            return Err(S3Error::new(Code::IncompleteBody));
        }
        let trailer = self.declared.trailer(&trailers)?;
        let found = std::mem::take(&mut self.hashes).finish();
        declared::check_sha256(self.sha256, found.sha256)?;
        let md5 = match found.md5 {
            Some(found) => {
                declared::check_md5(self.declared.md5, found)?;
                BodyMd5::InlineMd5(found)
            }
            None if self.has_separate_md5 => BodyMd5::SeparateMd5 { declared: self.declared.md5 },
            None => BodyMd5::NotComputed,
        };
        let declared = self.declared.algorithm();
        for expected in self.declared.checksum.iter().chain(trailer.iter()) {
            declared::check_checksum(expected, &found.checksums)?;
        }
        Ok(Digests { bytes: self.bytes, md5, checksums: found.checksums, declared })
    }
}

/// Reads a whole small body. Its length is bounded by its terms.
///
/// # Errors
/// Same as [`RequestBody::next`].
///
/// # Panics
/// Panics if its MD5 is to be computed separately.
pub async fn read_all<B>(mut body: RequestBody<B>) -> Result<Bytes, S3Error>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    S3Error: From<B::Error>,
{
    assert!(!body.has_separate_md5(), "no code would check it");
    let Some(first) = body.next().await? else { return Ok(Bytes::new()) };
    let Some(second) = body.next().await? else { return Ok(first) };
    let mut all = BytesMut::from(&first[..]);
    all.extend_from_slice(&second);
    while let Some(more) = body.next().await? {
        all.extend_from_slice(&more);
    }
    Ok(all.freeze())
}

/// Returns the length of the object in an aws-chunked body. The error is the one for the header that it
/// replaces.
fn decoded_length(headers: &HeaderMap) -> Result<u64, S3Error> {
    let value = headers.get("x-amz-decoded-content-length").and_then(|value| value.to_str().ok());
    value.and_then(number).ok_or_else(|| S3Error::new(Code::MissingContentLength))
}

/// True if the end of the body is well-defined. Without `Content-Length` and `Transfer-Encoding` an HTTP/1
/// body is empty, although the client may only have omitted the length.
fn is_framed(head: &Parts) -> bool {
    head.version >= Version::HTTP_2
        || head.headers.contains_key(CONTENT_LENGTH)
        || head.headers.contains_key(TRANSFER_ENCODING)
}

fn plain_length<B: http_body::Body>(headers: &HeaderMap, incoming: &B) -> Option<u64> {
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(number);
    declared.or_else(|| incoming.size_hint().exact())
}

/// Parses a decimal number without a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn too_large(terms: &BodyTerms, bytes: u64) -> S3Error {
    S3Error::new(terms.too_large)
        .field("ProposedSize", bytes.to_string())
        .field("MaxSizeAllowed", terms.bytes_max.to_string())
}
