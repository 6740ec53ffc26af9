//! Files of a node in the folder `cluster` of its data directory.
//!
//! `node.key` has the private key (PKCS #8 in base64, readable by its owner only). `certificate.json` has the
//! certificate, its validity and the authorities in one file, so that they change together. `starts.json` is
//! that of [`crate::PeerStarts`]. Each is replaced as a whole and synced: a power loss leaves the old one or
//! the new one. A key without a certificate is what an interrupted join leaves; the next one uses the key
//! again, so the cluster recognizes the node.

use crate::authority::IssuedCertificate;
use crate::certificate::CertifiedNode;
use crate::credentials::{CredentialsError, NodeCredentials};
use crate::pem;
use crate::request::{NodeKey, NodeKeyError};
use crate::validity::Validity;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use mlgw_common::limits::NODE_FILE_BYTES_MAX;
use mlgw_common::{ClusterId, NodeId, private_file};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Format of `certificate.json`.
const FORMAT: u32 = 1;
/// First line of `node.key`.
const KEY_BEGIN: &str = "mlgw-node-key 1 ";
const CERTIFICATE_FILE: &str = "certificate.json";

/// Error of the files of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeFilesError {
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A later version wrote a file.
    #[error(
        "{path} has format {found}, but this mlgw supports {FORMAT} at most: use the newer version that \
         wrote it"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// A file is damaged.
    #[error("{path} is damaged: {reason}; restore it, or remove this node and let it join under a new id")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// There is a certificate but no key.
    #[error(
        "{path} is missing, but there is a certificate: restore it, or remove this node and let it join \
             under a new id"
    )]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// A key cannot be made.
    #[error(transparent)]
    Key(#[from] NodeKeyError),
}

/// Contents of `certificate.json`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CertificateFile {
    format: u32,
    cluster: ClusterId,
    node: u64,
    validity: Validity,
    certificate: String,
    authorities: Vec<String>,
}

/// The format alone, which every version of the file has.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

/// Files of a node.
#[derive(Clone, Debug)]
pub struct NodeFiles {
    dir: PathBuf,
}

impl NodeFiles {
    /// Name of the file with the private key.
    pub const KEY_FILE: &str = "node.key";

    /// Files in the folder `dir`, which is created if it is missing.
    ///
    /// # Errors
    /// See [`NodeFilesError`].
    pub fn new(dir: &Path) -> Result<Self, NodeFilesError> {
        let io = |source| NodeFilesError::Io { path: dir.to_owned(), source };
        if !dir.is_dir() {
            std::fs::create_dir(dir).map_err(io)?;
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new("."))).and_then(|parent| parent.sync_all()).map_err(io)?;
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the key of this node, and makes and stores one if there is none.
    ///
    /// # Errors
    /// See [`NodeFilesError`].
    pub fn key(&self) -> Result<NodeKey, NodeFilesError> {
        if let Some(key) = self.stored_key()? {
            return Ok(key);
        }
        let path = self.dir.join(Self::KEY_FILE);
        if self.dir.join(CERTIFICATE_FILE).exists() {
            return Err(NodeFilesError::NoKey { path });
        }
        let key = NodeKey::generate()?;
        let base64 = Zeroizing::new(BASE64_STANDARD.encode(&*key.der()));
        let text = Zeroizing::new(format!("{KEY_BEGIN}{}\n", *base64));
        self.write(&path, text.as_bytes())?;
        Ok(key)
    }

    fn stored_key(&self) -> Result<Option<NodeKey>, NodeFilesError> {
        let path = self.dir.join(Self::KEY_FILE);
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let damaged = |reason: String| NodeFilesError::Damaged { path: path.clone(), reason };
        let text = std::str::from_utf8(&bytes).ok();
        let base64 = text.and_then(|text| text.strip_suffix('\n')?.strip_prefix(KEY_BEGIN));
        let base64 = base64.ok_or_else(|| damaged(format!("it does not begin with {KEY_BEGIN:?}")))?;
        let der = BASE64_STANDARD.decode(base64).map(Zeroizing::new);
        let der = der.map_err(|error| damaged(error.to_string()))?;
        NodeKey::of_der(&der).map(Some).map_err(|error| damaged(error.to_string()))
    }

    /// Stores a certificate and the authorities, the one that signed it first. Durable when it returns.
    ///
    /// # Errors
    /// See [`NodeFilesError`].
    pub fn store_certificate(
        &self,
        issued: &IssuedCertificate,
        authorities: &[CertificateDer<'_>],
    ) -> Result<(), NodeFilesError> {
        let path = self.dir.join(CERTIFICATE_FILE);
        let file = CertificateFile {
            format: FORMAT,
            cluster: issued.node.cluster,
            node: issued.node.node.0,
            validity: issued.validity,
            certificate: pem::encode(&issued.certificate),
            authorities: authorities.iter().map(pem::encode).collect(),
        };
        let text = serde_json::to_string_pretty(&file)
            .map_err(|error| NodeFilesError::Damaged { path: path.clone(), reason: error.to_string() })?;
        self.write(&path, format!("{text}\n").as_bytes())
    }

    /// Loads the credentials of this node; `None` if it has no certificate yet.
    ///
    /// # Errors
    /// See [`NodeFilesError`].
    pub fn credentials(&self) -> Result<Option<NodeCredentials>, NodeFilesError> {
        let path = self.dir.join(CERTIFICATE_FILE);
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let key = self
            .stored_key()?
            .ok_or_else(|| NodeFilesError::NoKey { path: self.dir.join(Self::KEY_FILE) })?;
        let damaged = |reason: String| NodeFilesError::Damaged { path: path.clone(), reason };
        let head: FormatOnly = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if head.format > FORMAT {
            return Err(NodeFilesError::Newer { path, found: head.format });
        }
        let file: CertificateFile =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let decoded = |text: &String| {
            pem::decode(text).ok_or_else(|| damaged("it has a text that is no certificate".to_owned()))
        };
        let authorities = file.authorities.iter().map(decoded).collect::<Result<Vec<_>, _>>()?;
        let certificate = decoded(&file.certificate)?;
        let stated = CertifiedNode { cluster: file.cluster, node: NodeId(file.node) };
        let loaded = NodeCredentials::new(Arc::new(key), certificate, file.validity, authorities)
            .map_err(|error: CredentialsError| damaged(error.to_string()))?;
        if loaded.node() != stated {
            return Err(damaged("its node is not the one in the certificate".to_owned()));
        }
        Ok(Some(loaded))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), NodeFilesError> {
        let io = |source| NodeFilesError::Io { path: path.to_owned(), source };
        private_file::write(&self.dir, path, bytes).map_err(io)
    }
}

/// Reads a small file; `None` if there is none.
fn read(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, NodeFilesError> {
    let io = |source| NodeFilesError::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(NODE_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > NODE_FILE_BYTES_MAX {
        let reason = format!("it has more than {NODE_FILE_BYTES_MAX} bytes");
        return Err(NodeFilesError::Damaged { path: path.to_owned(), reason });
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::{NodeFiles, NodeFilesError};
    use crate::authority::ClusterAuthority;
    use mlgw_common::{ClusterId, NodeId, Timestamp};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    fn joined(dir: &Path) -> NodeFiles {
        let files = NodeFiles::new(&dir.join("cluster")).unwrap();
        let authority = ClusterAuthority::create(ClusterId(5), NOW).unwrap();
        let request = files.key().unwrap().request().unwrap();
        let issued = authority.sign(&request, NodeId(7), NOW).unwrap();
        files.store_certificate(&issued, &[authority.certificate().clone()]).unwrap();
        files
    }

    #[test]
    fn credentials_are_loaded_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::new(&dir.path().join("cluster")).unwrap();
        assert!(files.credentials().unwrap().is_none());
        let key = files.key().unwrap().public_hash();
        assert_eq!(files.key().unwrap().public_hash(), key, "an interrupted join keeps its key");
        assert!(files.credentials().unwrap().is_none());
        joined(dir.path());
        let loaded = NodeFiles::new(&dir.path().join("cluster")).unwrap().credentials().unwrap().unwrap();
        assert_eq!((loaded.node().node, loaded.node().cluster), (NodeId(7), ClusterId(5)));
        assert_eq!(loaded.key().public_hash(), key);
        let mode = |name| files.dir().join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("node.key"), mode("certificate.json")), (0o600, 0o600));
    }

    #[test]
    fn damaged_and_newer_files_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let files = joined(dir.path());
        let path = files.dir().join("certificate.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let refused = |text: &str| {
            std::fs::write(&path, text).unwrap();
            files.credentials().unwrap_err()
        };
        let newer = refused(&text.replace("\"format\": 1", "\"format\": 2"));
        assert!(matches!(newer, NodeFilesError::Newer { found: 2, .. }), "{newer}");
        for (from, to, reason) in [
            ("\"node\": 7", "\"node\": 8", "not the one in the certificate"),
            ("BEGIN CERTIFICATE", "BEGIN SOMETHING", "no certificate"),
            ("{", "[", "certificate.json is damaged"),
        ] {
            let error = refused(&text.replace(from, to)).to_string();
            assert!(error.contains(reason) && error.contains("certificate.json"), "{error}");
        }
        let error = refused(&"x".repeat(1 << 20)).to_string();
        assert!(error.contains("more than"), "{error}");
        std::fs::write(&path, &text).unwrap();
        std::fs::write(files.dir().join("node.key"), "mlgw-node-key 1 !\n").unwrap();
        assert!(files.credentials().unwrap_err().to_string().contains("node.key is damaged"));
        std::fs::remove_file(files.dir().join("node.key")).unwrap();
        assert!(matches!(files.credentials(), Err(NodeFilesError::NoKey { .. })));
        assert!(matches!(files.key(), Err(NodeFilesError::NoKey { .. })), "no second key is made");
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (one, two) = (joined(one.path()), joined(two.path()));
        std::fs::copy(two.dir().join("node.key"), one.dir().join("node.key")).unwrap();
        assert!(one.credentials().unwrap_err().to_string().contains("does not match its key"));
    }
}
