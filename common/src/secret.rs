//! Secrets that are wiped from memory when dropped and never printed, and the removal of secrets from URLs.

use std::borrow::Cow;
use std::fmt;
use zeroize::Zeroizing;

/// A secret, such as a secret access key.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a secret.
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

/// The text of a setting or message without the secrets of a URL in it: the password before the host and the
/// values of the query. Any other text is returned unchanged.
#[must_use]
pub fn hide_url_secrets(text: &str) -> Cow<'_, str> {
    let Some(begin) = text.find("://").map(|at| at + 3) else { return Cow::Borrowed(text) };
    let rest = &text[begin..];
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let at = authority.rfind('@').or_else(|| rest.rfind('@').filter(|at| is_user(&rest[..*at])));
    let (user, host) = at.map_or((None, rest), |at| (Some(&rest[..at]), &rest[at + 1..]));
    let (host, query) = host.split_once('?').map_or((host, None), |(host, query)| (host, Some(query)));
    if user.is_none() && query.is_none() {
        return Cow::Borrowed(text);
    }
    let user = user.map(|user| match user.split_once(':') {
        Some((name, _password)) => format!("{name}:…@"),
        None => "…@".to_owned(),
    });
    let query = if query.is_some() { "?…" } else { "" };
    Cow::Owned(format!("{}{}{host}{query}", &text[..begin], user.unwrap_or_default()))
}

/// True if the text between a URL's `://` and an `@` can be a user and a password. A path may contain an `@`
/// too. A text with a `/` counts as a password, unless the part before the `/` is a host and a port.
fn is_user(text: &str) -> bool {
    let Some((authority, _path)) = text.split_once('/') else { return true };
    authority.split_once(':').is_some_and(|(_, port)| port.bytes().any(|byte| !byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{Secret, hide_url_secrets};

    #[test]
    fn the_password_and_query_of_a_url_are_hidden() {
        for (url, shown) in [
            ("http://user:pass@proxy:3128", "http://user:…@proxy:3128"),
            ("https://user:p@ss:w@host/path@x", "https://user:…@host/path@x"),
            ("http://user:p/a?ss@host", "http://user:…@host"),
            ("https://host/c?sig=a@b", "https://host/c?…"),
            ("http://user:p/ss@host/", "http://user:…@host/"),
            ("http://token@host", "http://…@host"),
            ("https://host/container?sv=1&sig=abc", "https://host/container?…"),
            ("http://user:pass@host/?token=a", "http://user:…@host/?…"),
            ("http://host:9000/a@b", "http://host:9000/a@b"),
            ("http://host/a@b", "http://host/a@b"),
            ("http://host:9000", "http://host:9000"),
            ("user:pass@host", "user:pass@host"),
            ("my bucket?", "my bucket?"),
        ] {
            assert_eq!(hide_url_secrets(url), shown, "{url}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Secret::new("wJalrXUtnFEMI");
        assert_eq!(secret.expose(), "wJalrXUtnFEMI");
        assert!(!format!("{secret:?}").contains("wJal"));
    }
}
