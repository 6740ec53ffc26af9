//! A text that is wiped from memory when dropped, and that no message shows.

use std::fmt;
use zeroize::Zeroizing;

/// A secret, such as a secret access key.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

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

impl From<Zeroizing<String>> for Secret {
    fn from(secret: Zeroizing<String>) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
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
