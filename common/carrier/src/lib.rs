//! HTTP client, TLS roots, request signing and the credentials file of AWS's tools, shared by everything that
//! sends requests to another server: origins, upstreams, the exporter of traces and the command line.
//!
//! Proxies come from the caller's settings alone, never from environment variables. So does a file of
//! certificate authorities. Without one the authorities are those of the machine, or those of `SSL_CERT_FILE`
//! and `SSL_CERT_DIR` if these are set. TLS is rustls with ring. Nothing is kept on disk.

mod client;
mod guarded;
mod profile;
mod proxy;
mod settings;
mod sign;
#[cfg(test)]
mod tests;
mod tls;

pub use aws_credential_types::Credentials;
pub use aws_sigv4::http_request::SignableBody;
pub use client::{Client, SendError, innermost};
pub use guarded::{PermitEnd, SendGuard, SendPermit};
pub use hyper::body::Incoming;
pub use profile::ProfileKeys;
pub use settings::{Authorities, ClientSettings, SettingError};
pub use sign::{SignError, SigningScope, sign};
