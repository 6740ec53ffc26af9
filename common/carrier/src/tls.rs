//! TLS settings of the client: which certificate authorities it trusts.

use crate::settings::{ClientSettings, SettingError};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// Trusts the authorities in the `ca_file` of the settings, or else those of the machine.
///
/// # Errors
/// The file has no usable certificate; or none is set, the machine trusts none, and TLS is needed.
pub(crate) fn client_config(settings: &ClientSettings<'_>) -> Result<ClientConfig, SettingError> {
    let roots = match settings.ca_file {
        Some(path) => authorities_of(path)?,
        None => authorities_of_machine(settings)?,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| fault(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn fault(problem: String) -> SettingError {
    SettingError { setting: "ca_file", problem }
}

fn authorities_of(path: &Path) -> Result<RootCertStore, SettingError> {
    let fault = |problem: String| fault(format!("{}: {problem}", path.display()));
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

/// Certificates of the machine that cannot be parsed are left out: a server that needs one is refused later.
fn authorities_of_machine(settings: &ClientSettings<'_>) -> Result<RootCertStore, SettingError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() && settings.needs_tls {
        let errors: String = found.errors.iter().map(|error| format!(" ({error})")).collect();
        return Err(fault(format!(
            "is not set and this machine trusts no authority{errors}; install ca-certificates or set it"
        )));
    }
    Ok(roots)
}
