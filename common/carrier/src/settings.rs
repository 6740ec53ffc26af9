//! Settings of the HTTP client.

use std::path::Path;
use std::time::Duration;

/// Settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientSettings<'a> {
    /// PEM file of the certificate authorities to trust instead of the machine's.
    pub ca_file: Option<&'a Path>,
    /// URL of an HTTP proxy, with user and password if it needs them. Metadata services of clouds are reached
    /// directly.
    pub proxy: Option<&'a str>,
    /// True if some URLs are `https`. A machine without certificate authorities is an error then.
    pub needs_tls: bool,
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
