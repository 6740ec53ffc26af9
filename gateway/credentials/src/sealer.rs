//! Seals secrets with AES-256-GCM under the key in `secrets.key`.
//!
//! Every seal uses a fresh random nonce. The access key is authenticated with the secret, so a sealed secret
//! moved to another access key does not open. The key file is written under another name and synced. It is
//! then renamed and its directory synced before the key is used. A power failure therefore leaves no file or
//! a complete one, and never a secret without its key. A file that others could read is refused.

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use mlgw_common::{private_file, random, regular};
use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Name of the key file in the data directory.
pub const FILE_NAME: &str = "secrets.key";
/// First bytes of the file. The number is the format's version.
const HEADER: &str = "mlgw-secrets-key 1 ";
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
/// First byte of a sealed secret.
const SEALED_VERSION: u8 = 1;

/// Error of sealing or opening secrets.
#[derive(Debug, thiserror::Error)]
pub enum SealerError {
    /// The key file cannot be used.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Others may read the key.
    #[error(
        "{path} has mode {mode:o}: other users can read the key that encrypts all secrets; run `chmod 600 \
         {path}`"
    )]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file is not a key of this version.
    #[error("{path} is not a key file of this version; restore it from a backup")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The key file is missing, although secrets are sealed with it.
    #[error(
        "{path} is missing, but the secrets of this directory are encrypted with it; restore it from a backup"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The system gives no random bytes.
    #[error(transparent)]
    Random(#[from] mlgw_common::RandomError),
    /// A sealed secret does not open under this key and access key.
    #[error("cannot decrypt the secret of {access_key}: it was encrypted with another key, or is damaged")]
    DoesNotOpen {
        /// Access key of the secret.
        access_key: String,
    },
}

/// Seals and opens secrets. Clones seal with the same key.
#[derive(Clone)]
pub struct Sealer {
    cipher: Aes256Gcm,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer(…)")
    }
}

impl Sealer {
    /// Returns the sealer of a data directory that was used before.
    ///
    /// # Errors
    /// See [`SealerError`].
    pub fn open(dir: &Path) -> Result<Self, SealerError> {
        let path = dir.join(FILE_NAME);
        match read_key(&path)? {
            Some(key) => Self::of_key(&key, path),
            None => Err(SealerError::Missing { path }),
        }
    }

    /// Returns the sealer of a data directory that is used for the first time. A missing key is generated.
    /// The caller holds the directory's lock.
    ///
    /// # Errors
    /// See [`SealerError`].
    pub fn open_or_create(dir: &Path) -> Result<Self, SealerError> {
        let path = dir.join(FILE_NAME);
        let key = match read_key(&path)? {
            Some(key) => key,
            None => create_key(dir, &path)?,
        };
        Self::of_key(&key, path)
    }

    /// Returns the text of the key file, which another node of the cluster installs.
    ///
    /// # Errors
    /// See [`SealerError`].
    pub fn export_key(dir: &Path) -> Result<Zeroizing<String>, SealerError> {
        let path = dir.join(FILE_NAME);
        let key = read_key(&path)?.ok_or(SealerError::Missing { path })?;
        Ok(text_of_key(&key))
    }

    /// Writes the key of a cluster into the directory of a node that has sealed nothing yet. A key that is
    /// already there is replaced, durably. The caller holds the directory's lock.
    ///
    /// # Errors
    /// When `text` is no key file, or it cannot be written.
    pub fn install_key(dir: &Path, text: &str) -> Result<Self, SealerError> {
        let path = dir.join(FILE_NAME);
        let key = key_of_text(text).ok_or_else(|| SealerError::Damaged { path: path.clone() })?;
        write_key(dir, &path, &key)?;
        Self::of_key(&key, path)
    }

    fn of_key(key: &[u8], path: PathBuf) -> Result<Self, SealerError> {
        let cipher = Aes256Gcm::new_from_slice(key).map_err(|_| SealerError::Damaged { path })?;
        Ok(Self { cipher })
    }

    /// Seals the secret of `access_key`.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn seal(&self, access_key: &str, secret: &str) -> Result<Vec<u8>, SealerError> {
        assert!(!secret.is_empty(), "a secret has characters");
        let nonce: [u8; NONCE_BYTES] = random()?;
        let payload = Payload { msg: secret.as_bytes(), aad: access_key.as_bytes() };
        let does_not = |_| SealerError::DoesNotOpen { access_key: access_key.to_owned() };
        let sealed = self.cipher.encrypt(&Nonce::from(nonce), payload).map_err(does_not)?;
        let mut out = Vec::with_capacity(1 + NONCE_BYTES + sealed.len());
        out.push(SEALED_VERSION);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        Ok(out)
    }

    /// Opens the sealed secret of `access_key`.
    ///
    /// # Errors
    /// When it was sealed for another access key or with another key, or is damaged.
    pub fn open_secret(&self, access_key: &str, sealed: &[u8]) -> Result<Zeroizing<String>, SealerError> {
        let does_not = || SealerError::DoesNotOpen { access_key: access_key.to_owned() };
        let Some((&SEALED_VERSION, rest)) = sealed.split_first() else { return Err(does_not()) };
        let Some((nonce, sealed)) = rest.split_first_chunk::<NONCE_BYTES>() else { return Err(does_not()) };
        let payload = Payload { msg: sealed, aad: access_key.as_bytes() };
        let opened = self.cipher.decrypt(&Nonce::from(*nonce), payload).map_err(|_| does_not())?;
        String::from_utf8(opened).map(Zeroizing::new).map_err(|_| does_not())
    }
}

fn read_key(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, SealerError> {
    let io = |source| SealerError::Io { path: path.to_owned(), source };
    let mode = match std::fs::metadata(path) {
        Ok(metadata) => metadata.mode() & 0o7777,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    if mode & 0o077 != 0 {
        return Err(SealerError::Permissions { path: path.to_owned(), mode });
    }
    let text = Zeroizing::new(regular::read_to_string(path).map_err(io)?);
    key_of_text(&text).map(Some).ok_or_else(|| SealerError::Damaged { path: path.to_owned() })
}

fn key_of_text(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    text.trim_end().strip_prefix(HEADER).and_then(from_hex)
}

fn text_of_key(key: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(HEADER.len() + 2 * KEY_BYTES + 1));
    text.push_str(HEADER);
    for byte in key {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    text
}

fn from_hex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    if text.len() != 2 * KEY_BYTES || !text.is_ascii() {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok();
    (0..KEY_BYTES).map(byte).collect::<Option<Vec<u8>>>().map(Zeroizing::new)
}

fn create_key(dir: &Path, path: &Path) -> Result<Zeroizing<Vec<u8>>, SealerError> {
    let key = Zeroizing::new(random::<KEY_BYTES>()?.to_vec());
    write_key(dir, path, &key)?;
    Ok(key)
}

fn write_key(dir: &Path, path: &Path, key: &[u8]) -> Result<(), SealerError> {
    let written = private_file::write(dir, path, text_of_key(key).as_bytes());
    written.map_err(|source| SealerError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::{FILE_NAME, Sealer, SealerError};
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn an_installed_key_opens_the_secrets_of_its_origin() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sealed = Sealer::open_or_create(here.path()).unwrap().seal("AK", "secret").unwrap();
        let text = Sealer::export_key(here.path()).unwrap();
        Sealer::open_or_create(there.path()).unwrap();
        let installed = Sealer::install_key(there.path(), &text).unwrap();
        assert_eq!(*installed.open_secret("AK", &sealed).unwrap(), "secret");
        assert_eq!(*Sealer::open(there.path()).unwrap().open_secret("AK", &sealed).unwrap(), "secret");
        assert_eq!(std::fs::metadata(there.path().join(FILE_NAME)).unwrap().mode() & 0o777, 0o600);
        for wrong in ["", "mlgw-secrets-key 2 00", &text[1..], &text[..text.len() - 2]] {
            assert!(matches!(Sealer::install_key(there.path(), wrong), Err(SealerError::Damaged { .. })));
        }
        assert_eq!(*Sealer::export_key(there.path()).unwrap(), *text, "a refused text changes nothing");
    }

    #[test]
    fn a_secret_opens_only_under_its_access_key_and_its_key_file() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sealer = Sealer::open_or_create(here.path()).unwrap();
        let sealed = sealer.seal("AK", "secret").unwrap();
        assert_eq!(*sealer.open_secret("AK", &sealed).unwrap(), "secret");
        assert!(sealer.open_secret("AK2", &sealed).is_err());
        assert!(Sealer::open_or_create(there.path()).unwrap().open_secret("AK", &sealed).is_err());
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(sealer.open_secret("AK", &damaged).is_err(), "byte {at}");
            assert!(sealer.open_secret("AK", &sealed[..at]).is_err(), "cut to {at}");
        }
    }

    #[test]
    fn two_seals_of_a_secret_differ() {
        let dir = tempfile::tempdir().unwrap();
        let sealer = Sealer::open_or_create(dir.path()).unwrap();
        assert_ne!(sealer.seal("AK", "secret").unwrap(), sealer.seal("AK", "secret").unwrap());
    }

    #[test]
    fn the_key_file_is_private_and_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let sealed = Sealer::open_or_create(dir.path()).unwrap().seal("AK", "secret").unwrap();
        let path = dir.path().join(FILE_NAME);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = Sealer::open(dir.path()).unwrap();
        assert_eq!(*again.open_secret("AK", &sealed).unwrap(), "secret");
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let refused = Sealer::open(dir.path()).unwrap_err();
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }

    #[test]
    fn a_key_file_that_is_missing_or_truncated_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Sealer::open(dir.path()), Err(SealerError::Missing { .. })));
        std::fs::write(dir.path().join(FILE_NAME), "mlgw-secrets-key 1 00").unwrap();
        std::fs::set_permissions(dir.path().join(FILE_NAME), Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(Sealer::open_or_create(dir.path()), Err(SealerError::Damaged { .. })));
    }

    #[test]
    fn an_interrupted_first_start_does_not_prevent_the_next() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secrets.key.new"), "half").unwrap();
        assert!(Sealer::open_or_create(dir.path()).is_ok());
    }
}
