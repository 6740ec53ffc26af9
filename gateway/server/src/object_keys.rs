//! Keys of encrypted objects in upstreams, sealed like the secrets of access keys.
//!
//! The label contains the segment of the key. No access key contains a space, so labels of both kinds differ.
//! With the catalogue but without `secrets.key`, encrypted data in an upstream cannot be read.

use mlgw_common::SegmentId;
use mlgw_credentials::Sealer;
use mlgw_remote::upstream::{REPLICA_KEY_BYTES, ReplicaKey};
use mlgw_segments::hot::SealKeys;
use std::fmt::Write as _;
use std::io;
use zeroize::Zeroizing;

/// Seals and opens the keys.
pub(super) struct ObjectKeys(pub(super) Sealer);

fn label(segment: SegmentId) -> String {
    format!("segment {segment}")
}

impl SealKeys for ObjectKeys {
    fn seal(&self, segment: SegmentId, key: &ReplicaKey) -> io::Result<Vec<u8>> {
        let mut text = Zeroizing::new(String::with_capacity(2 * REPLICA_KEY_BYTES));
        for byte in key.expose() {
            let _ = write!(text, "{byte:02x}");
        }
        self.0.seal(&label(segment), &text).map_err(io::Error::other)
    }

    fn open(&self, segment: SegmentId, sealed: &[u8]) -> io::Result<ReplicaKey> {
        let text = self.0.open_secret(&label(segment), sealed).map_err(io::Error::other)?;
        let mut key = Zeroizing::new([0; REPLICA_KEY_BYTES]);
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "not a key of an object");
        for (at, byte) in key.iter_mut().enumerate() {
            let digits = text.get(2 * at..2 * at + 2).ok_or_else(damaged)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| damaged())?;
        }
        if text.len() == 2 * REPLICA_KEY_BYTES { Ok(ReplicaKey::new(key)) } else { Err(damaged()) }
    }
}

#[cfg(test)]
mod tests {
    use super::ObjectKeys;
    use mlgw_common::SegmentId;
    use mlgw_credentials::Sealer;
    use mlgw_remote::upstream::ReplicaKey;
    use mlgw_segments::hot::SealKeys as _;

    #[test]
    fn a_key_opens_for_its_segment_only() {
        let dir = tempfile::tempdir().unwrap();
        let sealer = Sealer::open_or_create(dir.path()).unwrap();
        let keys = ObjectKeys(sealer.clone());
        let key = ReplicaKey::new_random().unwrap();
        let sealed = keys.seal(SegmentId(7), &key).unwrap();
        assert_eq!(keys.open(SegmentId(7), &sealed).unwrap(), key);
        assert!(keys.open(SegmentId(8), &sealed).is_err());
        let secret = sealer.seal("segment 7", "not hex").unwrap();
        assert!(keys.open(SegmentId(7), &secret).is_err(), "of another kind");
        assert!(!sealed.windows(8).any(|window| key.expose().windows(8).any(|of| of == window)));
    }
}
