//! Settings of the HTTP client.

use std::path::Path;
use std::time::Duration;

/// Settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientSettings<'a> {
    /// Certificate authorities to trust.
    pub authorities: Authorities<'a>,
    /// URL of an HTTP proxy, with user and password if it needs them. Metadata services of clouds are reached
    /// directly.
    pub proxy: Option<&'a str>,
    /// Time to connect, TLS included.
    pub connect_timeout: Duration,
    /// Time after which an idle connection is closed. Object stores close theirs after 20 s and more.
    pub idle_timeout: Duration,
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct SettingError {
    /// Name of the setting.
    pub setting: &'static str,
    /// The problem, and what to do about it. Contains no password.
    pub problem: String,
}

/// Certificate authorities that a client trusts.
#[derive(Clone, Copy, Debug)]
pub enum Authorities<'a> {
    /// No authority: every URL is `http`. No file is read.
    None,
    /// The authorities of a PEM file.
    File(&'a Path),
    /// The machine's authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`. To have none is an error.
    Machine,
    /// The machine's authorities, if it has any: the endpoint is `http`, but credentials may come by `https`.
    MachineIfAny,
}

impl<'a> Authorities<'a> {
    /// Returns the authorities to trust for an endpoint. `None` is the endpoint of the vendor, by `https`.
    #[must_use]
    pub fn for_endpoint(ca_file: Option<&'a Path>, endpoint: Option<&str>) -> Self {
        match (ca_file, endpoint) {
            (Some(path), _) => Self::File(path),
            (None, Some(endpoint)) if is_plain_http(endpoint) => Self::MachineIfAny,
            (None, _) => Self::Machine,
        }
    }
}

fn is_plain_http(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("http"))
}

#[cfg(test)]
mod tests {
    use super::Authorities;

    #[test]
    fn an_endpoint_without_tls_needs_no_authorities() {
        for (endpoint, may_have_none) in
            [(Some("http://h"), true), (Some("HTTP://h"), true), (Some("https://h"), false), (None, false)]
        {
            let authorities = Authorities::for_endpoint(None, endpoint);
            assert_eq!(matches!(authorities, Authorities::MachineIfAny), may_have_none, "{endpoint:?}");
        }
    }
}
