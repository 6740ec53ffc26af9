//! HTTPS: the certificate in force, and the task that reloads it after a change.
//!
//! The files are checked every second. A new pair is loaded completely and validated before it replaces the
//! one in force. A pair that does not load, or whose halves do not match, is refused and logged, and the old
//! one stays in force. Open connections keep the certificate with which they began.

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;

/// Interval between checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Error of a certificate and key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or parsed.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// Reason of the failure.
        reason: String,
    },
    /// The certificate and the key do not match.
    #[error("{cert} and {key}: {source}")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Error of the TLS library.
        source: rustls::Error,
    },
}

/// The certificate in force. Clones share it.
#[derive(Clone, Debug)]
pub struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    config: Arc<ArcSwap<ServerConfig>>,
}

impl Certificate {
    /// Loads the pair.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = Arc::new(ArcSwap::from_pointee(load(cert, key)?));
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), config })
    }

    /// Returns an acceptor with the certificate in force.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Loads the files again. On failure the pair in force stays.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.store(Arc::new(load(&self.cert, &self.key)?));
        Ok(())
    }

    /// Reloads changed files until the task is dropped.
    pub async fn watch(self) {
        let mut known = self.stamps();
        let mut looks = mlgw_common::time::interval(CHECK_INTERVAL);
        loop {
            looks.tick().await;
            let now = self.stamps();
            if now == known {
                continue;
            }
            known = now;
            match self.reload() {
                Ok(()) => tracing::info!(cert = %self.cert.display(), "loaded a new certificate"),
                Err(error) => tracing::error!(%error,
                    "rejected the new certificate; the old one stays in use"),
            }
        }
    }

    /// Returns stamps of both files: inode, length and modification time. They change when a file is written
    /// or replaced, or a link points to another file. `None` for a file that cannot be read.
    fn stamps(&self) -> [Option<(u64, u64, i64, i64)>; 2] {
        [&self.cert, &self.key].map(|path| {
            let of = std::fs::metadata(path).ok()?;
            Some((of.ino(), of.len(), of.mtime(), of.mtime_nsec()))
        })
    }
}

fn load(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| file_error(cert, &error))?;
    if chain.is_empty() {
        return Err(TlsError::File {
            path: cert.to_owned(),
            reason: "it contains no certificate".to_owned(),
        });
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error(key, &error))?;
    let pair = |source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config =
        builder.map_err(pair)?.with_no_client_auth().with_single_cert(chain, private).map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn file_error(path: &Path, error: &pem::Error) -> TlsError {
    let reason = match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "it contains no private key in PEM format".to_owned(),
        other => format!("it is not valid PEM: {other}"),
    };
    TlsError::File { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::Certificate;
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    fn write_pair(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let (cert_path, key_path) = (dir.join("cert.pem"), dir.join("key.pem"));
        std::fs::write(&cert_path, cert.pem()).unwrap();
        std::fs::write(&key_path, signing_key.serialize_pem()).unwrap();
        (cert_path, key_path)
    }

    #[test]
    fn a_changed_pair_is_loaded_and_a_bad_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = write_pair(dir.path(), "a.example");
        let certificate = Certificate::load(&cert, &key).unwrap();
        let first = certificate.config.load_full();
        let stamps = certificate.stamps();
        let old_key = std::fs::read(&key).unwrap();
        write_pair(dir.path(), "b.example");
        assert_ne!(certificate.stamps(), stamps);
        std::fs::write(&key, old_key).unwrap();
        let refused = certificate.reload().unwrap_err().to_string();
        assert!(refused.contains("cert.pem") && refused.contains("key.pem"), "{refused}");
        assert!(Arc::ptr_eq(&first, &certificate.config.load_full()), "the old one stays");
        write_pair(dir.path(), "c.example");
        certificate.reload().unwrap();
        assert!(!Arc::ptr_eq(&first, &certificate.config.load_full()));
    }

    #[test]
    fn an_invalid_certificate_is_refused_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = write_pair(dir.path(), "a.example");
        let refused = Certificate::load(&dir.path().join("none.pem"), &key).unwrap_err().to_string();
        assert!(refused.contains("none.pem"), "{refused}");
        std::fs::write(&cert, "nothing").unwrap();
        let refused = Certificate::load(&cert, &key).unwrap_err().to_string();
        assert!(refused.ends_with("cert.pem: it contains no certificate"), "{refused}");
    }
}
