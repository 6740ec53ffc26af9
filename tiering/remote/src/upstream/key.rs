//! Key of one encrypted object in an upstream.
//!
//! Each object has a random key of its own, created when the object is about to be stored. The same key may
//! store the same bytes of the same segment again, for example after a crash, because the stored bytes are
//! then the same; any other reuse would break the cipher. The caller stores the key, sealed, so that it
//! survives a power failure, before the object counts as stored.

use std::fmt;

use aes_gcm::{Aes256Gcm, KeyInit as _};
use zeroize::Zeroizing;

/// Length of a key in bytes.
pub const REPLICA_KEY_BYTES: usize = 32;

/// Key of one object. It is wiped from memory when dropped, and no message shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplicaKey(Zeroizing<[u8; REPLICA_KEY_BYTES]>);

impl ReplicaKey {
    /// Creates a random key.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn new_random() -> Result<Self, getrandom::Error> {
        let mut key = Zeroizing::new([0; REPLICA_KEY_BYTES]);
        getrandom::fill(key.as_mut())?;
        Ok(Self(key))
    }

    /// Wraps a key that was stored.
    #[must_use]
    pub fn new(key: Zeroizing<[u8; REPLICA_KEY_BYTES]>) -> Self {
        Self(key)
    }

    /// Returns the key bytes, to seal and store them.
    #[must_use]
    pub fn expose(&self) -> &[u8; REPLICA_KEY_BYTES] {
        &self.0
    }

    pub(super) fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new(self.expose().into())
    }
}

impl fmt::Debug for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplicaKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::ReplicaKey;
    use zeroize::Zeroizing;

    #[test]
    fn a_key_is_restored_and_never_shown() {
        let key = ReplicaKey::new(Zeroizing::new([0xA7; 32]));
        assert_eq!(ReplicaKey::new(Zeroizing::new(*key.expose())), key);
        let shown = format!("{key:?}");
        assert!(!shown.contains("a7") && !shown.contains("A7") && !shown.contains("167"), "{shown}");
        assert_ne!(ReplicaKey::new_random().expect("random"), ReplicaKey::new_random().expect("random"));
    }
}
