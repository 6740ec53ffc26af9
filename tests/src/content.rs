//! Self-describing object bodies.
//!
//! A body is determined by its id and length alone, so a reader can distinguish an intact body from a torn or
//! misplaced one without a copy: the first 16 bytes hold id and length, and the rest is derived from them.

use std::fmt;

use bytes::Bytes;
use md5::{Digest, Md5};

use crate::seed::mix;

/// Two bodies of at least this many bytes differ if their ids or lengths differ.
pub(crate) const IDENTITY_BYTES: usize = 16;

/// Identity of a body: the id of the write (key and version) that produced it, and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TestContent {
    pub(crate) id: u64,
    pub(crate) length: usize,
}

impl TestContent {
    pub(crate) fn bytes(self) -> Bytes {
        let mut out = Vec::with_capacity(self.length + 24);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&(self.length as u64).to_le_bytes());
        let mut word = mix(self.id ^ (self.length as u64).rotate_left(40));
        while out.len() < self.length {
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            out.extend_from_slice(&mix(word).to_le_bytes());
        }
        out.truncate(self.length);
        Bytes::from(out)
    }

    /// The content that a body claims to be; `None` for a body shorter than 16 bytes.
    pub(crate) fn parse_identity(body: &[u8]) -> Option<Self> {
        let id = u64::from_le_bytes(body.get(..8)?.try_into().ok()?);
        let length = u64::from_le_bytes(body.get(8..16)?.try_into().ok()?);
        Some(Self { id, length: usize::try_from(length).ok()? })
    }

    /// Describes the difference between `body` and this content, for a failure report; `None` if they are
    /// equal.
    pub(crate) fn difference(self, body: &[u8]) -> Option<String> {
        let expected = self.bytes();
        if expected == body {
            return None;
        }
        let at = expected.iter().zip(body).position(|(a, b)| a != b);
        Some(format!(
            "expected {self}, found {} bytes that claim {:?}, first difference at {at:?}",
            body.len(),
            Self::parse_identity(body)
        ))
    }

    /// The ETag of a plain PUT: the MD5 in hex, without quotes.
    pub(crate) fn etag(self) -> String {
        hex(&Md5::digest(self.bytes()))
    }

    /// The ETag of a completed upload with these parts: the MD5 of the MD5s, then the number of parts.
    pub(crate) fn etag_of_parts(parts: &[Self]) -> String {
        let mut all = Md5::new();
        for part in parts {
            all.update(Md5::digest(part.bytes()));
        }
        format!("{}-{}", hex(&all.finalize()), parts.len())
    }
}

impl fmt::Display for TestContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x} ({} bytes)", self.id, self.length)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

mod tests {
    use super::TestContent;

    #[test]
    fn a_body_is_recognised_and_a_torn_body_is_detected() {
        let content = TestContent { id: 42, length: 5000 };
        let mut body = content.bytes().to_vec();
        assert_eq!(TestContent::parse_identity(&body), Some(content));
        assert_eq!(content.difference(&body), None);
        body[4000] ^= 1;
        assert!(content.difference(&body).expect("differs").contains("4000"));
    }

    #[test]
    fn short_bodies_have_their_length() {
        for length in [0, 1, 7, 8, 15, 16, 17] {
            assert_eq!(TestContent { id: 9, length }.bytes().len(), length);
        }
        assert_eq!(TestContent { id: 9, length: 0 }.etag(), "d41d8cd98f00b204e9800998ecf8427e");
    }
}
