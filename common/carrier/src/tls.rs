//! TLS settings of the client: which certificate authorities it trusts.

use crate::settings::{Authorities, SettingError};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// Returns TLS settings that trust `authorities`.
///
/// # Errors
/// The file has no usable certificate, or a machine that must have authorities has none.
pub(crate) fn client_config(authorities: Authorities<'_>) -> Result<ClientConfig, SettingError> {
    let roots = match authorities {
        Authorities::None => RootCertStore::empty(),
        Authorities::File(path) => authorities_of(path)?,
        Authorities::MachineIfAny => authorities_of_machine().0,
        Authorities::Machine => match authorities_of_machine() {
            (roots, errors) if roots.is_empty() => return Err(fault(no_authorities(&errors))),
            (roots, _) => roots,
        },
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

/// Returns the authorities of the machine, and the errors of unreadable files. Certificates that cannot be
/// parsed are left out: a server that needs one is refused later.
fn authorities_of_machine() -> (RootCertStore, Vec<rustls_native_certs::Error>) {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    (roots, found.errors)
}

fn no_authorities(errors: &[rustls_native_certs::Error]) -> String {
    let errors: String = errors.iter().map(|error| format!(" ({error})")).collect();
    format!("is not set and this machine trusts no authority{errors}; install ca-certificates or set it")
}
