//! Upload ids: the form in which clients receive the body id of a multipart upload.
//!
//! Body ids are numbers, and some clients parse ids that look like numbers. Therefore an upload id is a
//! letter followed by the encrypted body id: one block of AES-128 in hexadecimal. The key is in the
//! catalogue, hence the same on every member and after a restore. Half of the block is zeros, which
//! distinguishes an issued id from an invented one. Uploads that were created before there was a key keep
//! their ids: the sixteen hexadecimal digits of the body id.
//!
//! Invariants: a body id has exactly one upload id, and an issued upload id names its body for as long as
//! the catalogue exists. The module keeps no state, so nothing is lost at a power failure.

use aes_gcm::aes::Aes128;
use aes_gcm::aes::cipher::{BlockCipherDecrypt as _, BlockCipherEncrypt as _, KeyInit as _};
use mlgw_common::BodyId;
use mlgw_common::hex;
use mlgw_common::limits::UPLOAD_KEY_BYTES;
use mlgw_common::random;
use mlgw_formats::schema::meta::UploadKey;
use mlgw_metadata::Catalogue;

/// First letter of an id. No number begins with it in any notation.
const ID_PREFIX: char = 'u';
const BLOCK_BYTES: usize = 16;
/// Digits of an id from before there was a key.
const UNENCRYPTED_DIGITS: usize = 16;

/// Translates between body ids and upload ids.
#[derive(Clone)]
pub struct UploadIds {
    cipher: Aes128,
    /// First body id that is encrypted.
    first_encrypted: u64,
}

impl UploadIds {
    /// Returns the ids of a catalogue. Creates the key if the catalogue has none yet, so this must precede
    /// the first upload.
    ///
    /// # Errors
    /// Fails if the key cannot be read or stored, or the system provides no random bytes.
    pub async fn open(catalogue: &Catalogue) -> Result<Self, mlgw_metadata::OpenError> {
        let store = |error: &dyn std::fmt::Display| mlgw_metadata::OpenError::Store(error.to_string());
        let candidate = random::<UPLOAD_KEY_BYTES>().map_err(|error| store(&error))?;
        let key = catalogue.upload_key(candidate).await?;
        Self::from_key(&key).ok_or_else(|| store(&"the key of upload IDs has the wrong length"))
    }

    fn from_key(key: &UploadKey) -> Option<Self> {
        let cipher = Aes128::new_from_slice(&key.key).ok()?;
        Some(Self { cipher, first_encrypted: key.bodies_from })
    }

    /// Returns the upload id of a body.
    #[must_use]
    pub fn id(&self, body: BodyId) -> String {
        if body.get() < self.first_encrypted {
            return format!("{:016x}", body.get());
        }
        let mut block = [0; BLOCK_BYTES];
        block[..size_of::<u64>()].copy_from_slice(&body.get().to_be_bytes());
        let mut block = block.into();
        self.cipher.encrypt_block(&mut block);
        let mut id = String::with_capacity(1 + 2 * BLOCK_BYTES);
        id.push(ID_PREFIX);
        id.push_str(&hex::text(&block));
        id
    }

    /// Returns the body of an upload id, or `None` for an id that was never issued.
    #[must_use]
    pub fn body(&self, id: &str) -> Option<BodyId> {
        let body = match id.strip_prefix(ID_PREFIX) {
            Some(digits) => self.decrypted(digits)?,
            None if id.len() == UNENCRYPTED_DIGITS => BodyId(u64::from_str_radix(id, 16).ok()?),
            None => return None,
        };
        // Each id has one form only.
        Some(body).filter(|body| self.id(*body) == id)
    }

    fn decrypted(&self, digits: &str) -> Option<BodyId> {
        let mut block = hex::decode::<BLOCK_BYTES>(digits.as_bytes())?.into();
        self.cipher.decrypt_block(&mut block);
        let (number, zeros) = block.split_first_chunk::<8>()?;
        zeros.iter().all(|byte| *byte == 0).then_some(BodyId(u64::from_be_bytes(*number)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{BodyId, UploadIds, UploadKey};
    use proptest::prelude::any;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use std::collections::HashSet;

    /// Returns the ids of a catalogue whose key was created when `bodies_from` was the next body id.
    pub(crate) fn ids(key: u8, bodies_from: u64) -> UploadIds {
        UploadIds::from_key(&UploadKey { key: vec![key; 16], bodies_from }).unwrap()
    }

    proptest! {
        #[test]
        fn an_id_names_its_body_and_is_no_number(
            body in any::<u64>(), key in any::<u8>(), from in any::<u64>(),
        ) {
            let ids = ids(key, from);
            let id = ids.id(BodyId(body));
            prop_assert_eq!(ids.body(&id), Some(BodyId(body)));
            if body >= from {
                prop_assert!(id.starts_with('u') && id.len() == 33 && id.parse::<f64>().is_err(), "{}", id);
                prop_assert_eq!(ids.body(&format!("{body:016x}")), None,
                    "the plain number is not an upload ID");
                prop_assert_eq!(ids.body(&id.to_uppercase()), None);
            }
        }

        #[test]
        fn an_id_that_was_never_issued_names_no_body(id in "u[0-9a-f]{32}|[0-9a-f]{16}|.{0,40}") {
            prop_assert_eq!(ids(1, 1).body(&id).map(|body| ids(1, 1).id(body)), None);
        }
    }

    #[test]
    fn uploads_from_before_there_was_a_key_keep_their_ids() {
        let ids = ids(1, 0x0500);
        assert_eq!(ids.body("00000000000004ff"), Some(BodyId(0x04ff)));
        assert_eq!(ids.id(BodyId(0x04ff)), "00000000000004ff");
        assert_eq!(ids.body("0000000000000500"), None);
        for other in ["00000000000004FF", "4ff", "+0000000000004ff", "", "u"] {
            assert_eq!(ids.body(other), None, "{other}");
        }
    }

    #[test]
    fn ids_differ_between_catalogues_and_are_not_ordered() {
        let of = |key| (1..1000).map(|body| ids(key, 1).id(BodyId(body))).collect::<Vec<_>>();
        let (one, other) = (of(1), of(2));
        assert_eq!(one.iter().chain(&other).collect::<HashSet<_>>().len(), 2 * 999);
        assert!(!one.is_sorted());
    }

    #[test]
    fn ids_have_these_characters_by_the_formats_page() {
        // Clients keep them over upgrades, so this never changes.
        assert_eq!(ids(7, 1).id(BodyId(1220)), "u49e5a132a53fb81b1366244d1cafc565");
    }
}
