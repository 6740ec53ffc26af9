//! Signing keys: derived from a secret for one day, region and service, and cached.
//!
//! Deriving a key takes four HMACs, more than verifying with it. A cached key is looked up by the whole
//! credential and belongs to one [`SigningAccessKey`] in memory: after a change of the secret there is
//! another `SigningAccessKey`, and the cached key of the old one is not used again. Only keys that verified a
//! signature are cached, so that unauthenticated clients cannot displace the keys of others.

use super::scope::CredentialScope;
use crate::key::SigningAccessKey;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::RwLock;
use sha2::Sha256;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// Maximum number of cached keys: half a megabyte at about 400 bytes each. A server sees a few per access key
/// and day.
const CACHED_KEYS_MAX: usize = 1024;

/// An HMAC-SHA256 keyed for one scope.
pub(super) struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// Derives the key of `scope` from `secret`.
    pub(super) fn derive(secret: &[u8], scope: &CredentialScope<'_>) -> Self {
        let mut first = Vec::with_capacity(4 + secret.len());
        first.extend_from_slice(b"AWS4");
        first.extend_from_slice(secret);
        let day = hmac_sha256(&first, scope.day.as_bytes());
        let region = hmac_sha256(&day, scope.region.as_bytes());
        let service = hmac_sha256(&region, scope.service.as_bytes());
        Self(keyed(&hmac_sha256(&service, b"aws4_request")))
    }

    /// Returns the signature over the concatenation of `parts`.
    pub(super) fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac = self.0.clone();
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    match Hmac::new_from_slice(key) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    }
}

fn hmac_sha256(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mut mac = keyed(key);
    mac.update(data);
    mac.finalize().into_bytes().into()
}

/// Cache of recently used signing keys.
#[derive(Default)]
pub(super) struct SigningKeys(RwLock<HashMap<Box<str>, CachedSigningKey>>);

struct CachedSigningKey {
    /// Key that the signing key was derived from. The weak reference prevents reuse of its address by another
    /// `SigningAccessKey`.
    key: Weak<SigningAccessKey>,
    signing: Arc<SigningKey>,
}

impl SigningKeys {
    /// Returns the cached key of this credential, if it was derived from exactly this `key`.
    pub(super) fn get(
        &self,
        scope: &CredentialScope<'_>,
        key: &Arc<SigningAccessKey>,
    ) -> Option<Arc<SigningKey>> {
        let kept = self.0.read();
        let kept = kept.get(scope.credential)?;
        std::ptr::eq(kept.key.as_ptr(), Arc::as_ptr(key)).then(|| Arc::clone(&kept.signing))
    }

    /// Caches a key that has verified a signature.
    pub(super) fn insert(
        &self,
        scope: &CredentialScope<'_>,
        key: &Arc<SigningAccessKey>,
        signing: &Arc<SigningKey>,
    ) {
        let mut kept = self.0.write();
        if kept.len() >= CACHED_KEYS_MAX {
            // Most entries are of past days; those in use are derived again at four HMACs each.
            kept.clear();
        }
        let entry = CachedSigningKey { key: Arc::downgrade(key), signing: Arc::clone(signing) };
        kept.insert(scope.credential.into(), entry);
        assert!(kept.len() <= CACHED_KEYS_MAX, "the cache of signing keys is bounded");
    }
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKeys({} cached)", self.0.read().len())
    }
}
