//! MD5 of bytes sent to an origin, for comparison with the ETag of the response.
//!
//! The MD5 is computed only if it is not already known: a Content-MD5 was verified when the body was
//! received.

use crate::origin::Streamed;
use crate::origin::digest::md5_sum;
use crate::origin::etag::Md5Sum;
use crate::upstream::EtagTrust;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::StreamExt as _;
use http::HeaderMap;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;
use std::sync::Arc;

/// MD5 of the bytes sent.
pub(super) enum SentMd5 {
    /// Not needed: it will not be compared.
    Unneeded,
    /// Known.
    Known(Md5Sum),
    /// Computed while the bytes are sent.
    Computed(Option<Arc<Mutex<Md5>>>),
}

impl SentMd5 {
    /// Chooses the method for a request with these headers.
    pub(super) fn for_headers(headers: &HeaderMap, trust: EtagTrust) -> Self {
        if trust == EtagTrust::Opaque {
            return Self::Unneeded;
        }
        let stated = headers.get("content-md5").and_then(|stated| BASE64.decode(stated).ok());
        let stated = stated.and_then(|stated| Md5Sum::try_from(stated).ok());
        stated.map_or(Self::Computed(None), Self::Known)
    }

    /// Adds a body that was entirely in memory.
    pub(super) fn add_whole(&mut self, bytes: &[u8]) {
        assert!(!matches!(self, Self::Computed(Some(_))), "a body is either in memory or a stream");
        if let Self::Computed(_) = self {
            *self = Self::Known(md5_sum(bytes));
        }
    }

    /// Wraps a stream so that its bytes are added as they pass.
    pub(super) fn observe(&mut self, streamed: Streamed) -> Streamed {
        let Self::Computed(computed) = self else { return streamed };
        assert!(computed.is_none(), "a request has one body");
        let so_far = Arc::new(Mutex::new(Md5::new()));
        *computed = Some(so_far.clone());
        let pieces = streamed.pieces.inspect(move |piece| {
            if let Ok(piece) = piece {
                so_far.lock().update(piece);
            }
        });
        Streamed { pieces: pieces.boxed(), ..streamed }
    }

    /// Returns the MD5 of all bytes sent, if it is known.
    pub(super) fn finish(self) -> Option<Md5Sum> {
        match self {
            Self::Unneeded | Self::Computed(None) => None,
            Self::Known(sum) => Some(sum),
            Self::Computed(Some(so_far)) => Some(so_far.lock().clone().finalize().into()),
        }
    }
}
