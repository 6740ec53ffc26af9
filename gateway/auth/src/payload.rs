//! `x-amz-content-sha256`: requirements on the body.

use super::ChunkSigner;
use mlgw_common::hex;
use mlgw_wire::error::{Code, S3Error};

/// The header's name.
pub(super) const HEADER: &str = "x-amz-content-sha256";

/// Value for an unsigned body.
pub(super) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Requirements of a signature on the body.
#[derive(Debug)]
pub enum BodyRequirement {
    /// No requirements.
    Unsigned,
    /// The body has this SHA-256.
    Sha256([u8; 32]),
    /// The body is aws-chunked and each chunk has a signature; the flag is true if signed trailers follow.
    SignedChunks(ChunkSigner, bool),
    /// The body is aws-chunked without signatures; trailers follow.
    UnsignedTrailer,
}

impl BodyRequirement {
    /// Returns true if the body is aws-chunked, so that it can have trailers.
    #[must_use]
    pub const fn is_chunked(&self) -> bool {
        matches!(self, Self::SignedChunks(..) | Self::UnsignedTrailer)
    }
}

/// Parsed value of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentSha256 {
    Unsigned,
    Sha256([u8; 32]),
    SignedChunks { trailer: bool },
    UnsignedTrailer,
}

impl ContentSha256 {
    /// Parses the header's value.
    pub(super) fn parse(value: &str) -> Result<Self, S3Error> {
        match value {
            UNSIGNED => Ok(Self::Unsigned),
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Ok(Self::UnsignedTrailer),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => Ok(Self::SignedChunks { trailer: false }),
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => Ok(Self::SignedChunks { trailer: true }),
            "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"
            | "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER" => Err(S3Error::not_implemented(value)),
            _ => hex::decode(value.as_bytes()).map(Self::Sha256).ok_or_else(|| {
                S3Error::invalid_argument(
                    "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, \
                     STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a \
                     valid sha256 value.",
                    HEADER,
                    value,
                )
            }),
        }
    }

    /// Returns the requirements of a request whose signature, if any, cannot sign chunks.
    pub(super) fn unsigned(self) -> Result<BodyRequirement, S3Error> {
        match self {
            Self::Unsigned => Ok(BodyRequirement::Unsigned),
            Self::Sha256(hash) => Ok(BodyRequirement::Sha256(hash)),
            Self::UnsignedTrailer => Ok(BodyRequirement::UnsignedTrailer),
            Self::SignedChunks { .. } => Err(S3Error::new(Code::InvalidRequest).message(
                "Requests without a SigV4 signature don't support this x-amz-content-sha256 value. Please \
                 use UNSIGNED-PAYLOAD or STREAMING-UNSIGNED-PAYLOAD-TRAILER.",
            )),
        }
    }

    /// Returns the requirements of a request with a SigV4 signature; `signer` starts the chain of chunk
    /// signatures.
    pub(super) fn signed(self, signer: impl FnOnce() -> ChunkSigner) -> BodyRequirement {
        match self {
            Self::Unsigned => BodyRequirement::Unsigned,
            Self::Sha256(hash) => BodyRequirement::Sha256(hash),
            Self::UnsignedTrailer => BodyRequirement::UnsignedTrailer,
            Self::SignedChunks { trailer } => BodyRequirement::SignedChunks(signer(), trailer),
        }
    }
}
