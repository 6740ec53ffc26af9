//! Keys at which a new bucket is split into ranges, validated once.
//!
//! Invariant: there are at most [`SPLIT_KEYS_MAX`] object keys, and each is after the one before it in the
//! order of bytes. Each is the first key of a range; the keys before all of them are a range too.

use crate::limits::SPLIT_KEYS_MAX;
use crate::names::{NameError, ObjectKey};

/// Reason that split keys were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitKeysError {
    /// There are more keys than allowed.
    #[error("a bucket may have at most {SPLIT_KEYS_MAX} split keys, not {0}")]
    TooMany(usize),
    /// A key is no object key: its number, from 1 on, and the reason.
    #[error("split key {0}: {1}")]
    Key(usize, NameError),
    /// The key with this number, from 1 on, is not after the one before it.
    #[error("split key {0} is not after the one before it in the order of bytes")]
    NotAscending(usize),
}

/// Keys at which a new bucket is split; none leaves it whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitKeys(Vec<ObjectKey>);

impl SplitKeys {
    /// Validates `keys`.
    ///
    /// # Errors
    /// The first defect.
    pub fn new<K: AsRef<[u8]>>(keys: &[K]) -> Result<Self, SplitKeysError> {
        if keys.len() > SPLIT_KEYS_MAX {
            return Err(SplitKeysError::TooMany(keys.len()));
        }
        let mut valid: Vec<ObjectKey> = Vec::with_capacity(keys.len());
        for (number, key) in (1..).zip(keys) {
            let key = ObjectKey::from_bytes(key.as_ref()).map_err(|why| SplitKeysError::Key(number, why))?;
            if valid.last().is_some_and(|before| before.as_bytes() >= key.as_bytes()) {
                return Err(SplitKeysError::NotAscending(number));
            }
            valid.push(key);
        }
        Ok(Self(valid))
    }

    /// The keys, ascending.
    #[must_use]
    pub fn as_slice(&self) -> &[ObjectKey] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::{SplitKeys, SplitKeysError};
    use crate::limits::{KEY_LEN_MAX, SPLIT_KEYS_MAX};
    use crate::names::{NameError, ObjectKey};

    #[test]
    fn split_keys_are_object_keys_that_ascend_by_their_bytes() {
        let keys = ["a", "a\0", "a,b", "b", "\u{e9}", "\u{1F600}"];
        let valid = SplitKeys::new(&keys).unwrap();
        assert!(valid.as_slice().iter().map(ObjectKey::as_str).eq(keys));
        let whole: [&str; 0] = [];
        assert_eq!(SplitKeys::new(&whole), Ok(SplitKeys::default()));
        let long = "k".repeat(KEY_LEN_MAX + 1);
        for (keys, why) in [
            (&["b", "a"][..], SplitKeysError::NotAscending(2)),
            (&["a", "b", "b"], SplitKeysError::NotAscending(3)),
            (&[""], SplitKeysError::Key(1, NameError::KeyEmpty)),
            (&["a", ""], SplitKeysError::Key(2, NameError::KeyEmpty)),
            (&[long.as_str()], SplitKeysError::Key(1, NameError::KeyTooLong)),
        ] {
            assert_eq!(SplitKeys::new(keys), Err(why));
        }
        let not_utf8 = SplitKeys::new(&[&b"a"[..], b"\xff"]);
        assert_eq!(not_utf8, Err(SplitKeysError::Key(2, NameError::KeyNotUtf8)));
    }

    #[test]
    fn a_bucket_has_at_most_63_split_keys() {
        let keys: Vec<String> = (0..=SPLIT_KEYS_MAX).map(|i| format!("{i:02}")).collect();
        assert!(SplitKeys::new(&keys[1..]).is_ok());
        assert_eq!(SplitKeys::new(&keys), Err(SplitKeysError::TooMany(64)));
    }
}
