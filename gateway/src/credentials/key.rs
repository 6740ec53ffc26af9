//! An access key in memory: whose it is, what it may do, and its secret.

use super::Principal;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The owner of everything: one account, whose keys differ in their rights only.
pub const OWNER: &str = "b8f6e9d1a4c37205eb90d5c64f3a1e7728c0b9f5d6e3a184907f2c5b1d8e6a43";

/// A secret access key: wiped when dropped, never shown.
#[derive(Clone)]
pub struct Secret(pub(super) Zeroizing<String>);

impl Secret {
    /// Takes a secret in.
    #[must_use]
    pub fn new(secret: impl Into<String>) -> Self {
        Self(Zeroizing::new(secret.into()))
    }

    /// The secret itself, to sign with.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// An access key that may sign requests.
#[derive(Clone, Debug)]
pub struct Key {
    /// Whose it is and what it may do.
    pub principal: Arc<Principal>,
    /// What it signs with.
    pub secret: Secret,
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Secret::new("wJalrXUtnFEMI");
        assert_eq!(secret.expose(), "wJalrXUtnFEMI");
        assert!(!format!("{secret:?}").contains("wJal"));
    }
}
