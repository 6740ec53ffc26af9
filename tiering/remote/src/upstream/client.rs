//! The HTTP client of one store: whom it trusts, through which proxy it goes, how long it waits for a
//! connection.
//!
//! TLS is rustls with ring, whatever else of this process or its tests uses. Neither proxies nor authorities
//! are taken from the environment behind the configuration's back; the machine's authorities are trusted
//! unless a file names others. Redirects are not followed but for WebHDFS, whose name node sends every reader
//! on to a data node.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, NoProxy, Proxy};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;

use super::settings::{UpstreamKind, UpstreamSettings};

/// How long a connection is kept for the next request. Stores close idle ones after 20 s and more; one that
/// is closed as a request is sent costs a retry.
const IDLE_MAX: Duration = Duration::from_secs(15);
/// Where machines in clouds ask for their own credentials: never through a proxy.
const METADATA_HOSTS: &str =
    "169.254.169.254,169.254.170.2,169.254.170.23,metadata.google.internal,100.100.100.200";
/// From a name node to a data node is one; some gateways add another.
const REDIRECTS_MAX: usize = 3;

/// A setting of the client that cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {fault}")]
pub(crate) struct ClientFault {
    /// The setting.
    pub(crate) setting: &'static str,
    /// What is wrong with it, and what to do.
    pub(crate) fault: String,
}

/// The client that `settings` describe.
///
/// # Errors
/// When the file of authorities has none, or the proxy is no URL.
pub(crate) fn client(settings: &UpstreamSettings) -> Result<Client, ClientFault> {
    let follows = settings.kind == UpstreamKind::WebHdfs;
    let mut builder = Client::builder()
        .user_agent(concat!("mlgw/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls(settings)?)
        .http1_only()
        .redirect(if follows { Policy::limited(REDIRECTS_MAX) } else { Policy::none() })
        .connect_timeout(settings.timeout)
        .pool_idle_timeout(IDLE_MAX)
        .no_proxy();
    if let Some(url) = &settings.proxy {
        // What the library says of it may have the password in it.
        let proxy = Proxy::all(url).map_err(|_| ClientFault {
            setting: "proxy",
            fault: "is no URL; write it as http://host:port".to_owned(),
        })?;
        builder = builder.proxy(proxy.no_proxy(NoProxy::from_string(METADATA_HOSTS)));
    }
    builder.build().map_err(|error| ClientFault { setting: "endpoint", fault: error.to_string() })
}

fn tls(settings: &UpstreamSettings) -> Result<ClientConfig, ClientFault> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientFault { setting: "ca_file", fault: error.to_string() })?;
    if let Some(path) = &settings.ca_file {
        return Ok(builder.with_root_certificates(authorities(path)?).with_no_client_auth());
    }
    match Verifier::new(provider) {
        Ok(verifier) => {
            Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
        }
        // Without TLS nobody is to be trusted.
        Err(_) if settings.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://")) => {
            Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
        }
        Err(error) => Err(ClientFault {
            setting: "ca_file",
            fault: format!(
                "is not set and this machine trusts no authority ({error}); install ca-certificates or set it"
            ),
        }),
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, ClientFault> {
    let fault =
        |said: String| ClientFault { setting: "ca_file", fault: format!("{}: {said}", path.display()) };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| fault(error.to_string()))? {
        let certificate = certificate.map_err(|error| fault(error.to_string()))?;
        roots.add(certificate).map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fault("has no certificate; it must be a PEM file of certificates".to_owned()));
    }
    Ok(roots)
}
