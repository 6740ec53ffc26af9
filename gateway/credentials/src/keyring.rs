//! All access keys: those of the catalogue, the root's, and one for commands on this host.
//!
//! The catalogue is authoritative and answers from memory. Secrets are cached after they were opened, at most
//! one for each credential, and a credential that changed is opened again. The root's credentials are one
//! record under a name that no access key can have. The record is replaced as a whole, so a power failure
//! leaves the old or the new one. The local key exists only in memory and in `admin.json`, and is generated
//! at every start.

use super::sealer::{Sealer, SealerError};
use crate::quota::{QuotaChange, parse_request, quota_info, used_info};
use mlgw_api::{AccessKeyRole, KeyChange, KeyInfo, NewKey, QuotaInfo};
use mlgw_auth::KeySource;
use mlgw_auth::key::SigningAccessKey;
use mlgw_auth::principal::{BadGlob, Principal};
use mlgw_common::Secret;
use mlgw_common::random;
use mlgw_common::{Clock, Timestamp};
use mlgw_formats::command::{Change, Command, PutCredential, Reject};
use mlgw_formats::schema;
use mlgw_formats::schema::Credential;
use mlgw_metadata::catalogue::ProposeError;
use mlgw_metadata::{Catalogue, ReadError};
use mlgw_wire::access::OWNER;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Mutex;
use zeroize::Zeroizing;

/// Name of the record of the root's credentials. No access key contains `@`.
const ROOT_RECORD: &str = "@root";
/// Maximum number of globs of one key, and the maximum length of each.
const GLOBS_MAX: usize = 100;
const GLOB_BYTES_MAX: usize = 1024;
/// Maximum length of a description.
const DESCRIPTION_BYTES_MAX: usize = 256;

/// An access key id and its secret.
#[derive(Clone, Debug)]
pub struct RootCredentials {
    /// The access key id.
    pub access_key: String,
    /// The secret.
    pub secret: Secret,
}

/// Error of opening the keyring.
#[derive(Debug, thiserror::Error)]
pub enum OpenKeyringError {
    /// The root's secret does not open, or the system gives no random bytes.
    #[error(transparent)]
    Sealer(#[from] SealerError),
    /// The root credentials of the environment are not valid.
    #[error("MLGW_ROOT_ACCESS_KEY_ID or MLGW_ROOT_SECRET_ACCESS_KEY: {0}")]
    InvalidKey(String),
    /// The root credentials could not be stored.
    #[error("cannot store the root credentials: {0}")]
    Propose(#[from] ProposeError),
}

/// Error of creating, changing or deleting a key.
#[derive(Debug, thiserror::Error)]
pub enum ChangeKeyError {
    /// There is no key of that name.
    #[error("no such access key: {0}")]
    NoSuchKey(String),
    /// A key of that name already exists.
    #[error("the access key {0} already exists")]
    Exists(String),
    /// A part of the request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The root key and the local key cannot be changed by requests.
    #[error("{0} cannot be changed: the root key is set by MLGW_ROOT_ACCESS_KEY_ID at start")]
    Fixed(String),
    /// The secret could not be sealed.
    #[error(transparent)]
    Sealer(#[from] SealerError),
    /// The catalogue refused the change.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The catalogue cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl From<BadGlob> for ChangeKeyError {
    fn from(error: BadGlob) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// All access keys. Clones share them.
#[derive(Clone)]
pub struct Keyring {
    inner: Arc<KeyringState>,
}

struct KeyringState {
    catalogue: Catalogue,
    sealer: Sealer,
    clock: Arc<dyn Clock>,
    root: Arc<SigningAccessKey>,
    local: Arc<SigningAccessKey>,
    opened: RwLock<HashMap<String, OpenedKey>>,
    /// Held while a key is checked and then changed.
    changing: Mutex<()>,
}

/// A key and the record that it was opened from.
struct OpenedKey {
    record: Arc<Credential>,
    key: Arc<SigningAccessKey>,
}

impl Keyring {
    /// Opens the keyring of `catalogue`. `given` replaces the root's credentials. Without `given`, the stored
    /// credentials are used, or new ones are generated.
    ///
    /// # Errors
    /// See [`OpenKeyringError`].
    pub async fn open(
        catalogue: Catalogue,
        sealer: Sealer,
        clock: Arc<dyn Clock>,
        given: Option<RootCredentials>,
    ) -> Result<Self, OpenKeyringError> {
        let kept = match catalogue.credential(ROOT_RECORD) {
            Some(record) => Some(open_root(&sealer, &record)?),
            None => None,
        };
        let root = match (given, kept) {
            (Some(given), kept) => {
                check_access_key(&given.access_key).map_err(OpenKeyringError::InvalidKey)?;
                check_secret(given.secret.expose()).map_err(OpenKeyringError::InvalidKey)?;
                let same = |kept: &RootCredentials| {
                    kept.access_key == given.access_key && kept.secret.expose() == given.secret.expose()
                };
                if !kept.as_ref().is_some_and(same) {
                    store_root(&catalogue, &sealer, clock.now(), &given).await?;
                }
                given
            }
            (None, Some(kept)) => kept,
            (None, None) => {
                let made = RootCredentials { access_key: generate_access_key()?, secret: generate_secret()? };
                store_root(&catalogue, &sealer, clock.now(), &made).await?;
                made
            }
        };
        let local = format!("mlgw-local-{}", generate_access_key()?);
        let inner = KeyringState {
            catalogue,
            sealer,
            clock,
            root: Arc::new(admin_key(&root.access_key, root.secret)),
            local: Arc::new(admin_key(&local, generate_secret()?)),
            opened: RwLock::default(),
            changing: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the root's key.
    #[must_use]
    pub fn root(&self) -> &Arc<SigningAccessKey> {
        &self.inner.root
    }

    /// Returns the key for commands on this host.
    #[must_use]
    pub fn local(&self) -> &Arc<SigningAccessKey> {
        &self.inner.local
    }

    /// Returns the number of keys except the local one.
    #[must_use]
    pub fn count(&self) -> usize {
        let kept = self.inner.catalogue.credentials();
        1 + kept.iter().filter(|record| record.access_key != ROOT_RECORD).count()
    }

    /// Returns all keys except the local one: the root's first, then the others by access key.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn list(&self) -> Result<Vec<KeyInfo>, ChangeKeyError> {
        let kept = self.inner.catalogue.credentials();
        let kept = kept.iter().filter(|record| record.access_key != ROOT_RECORD);
        std::iter::once(Ok(self.root_info())).chain(kept.map(|record| self.info(record))).collect()
    }

    /// Returns the key `access_key`, or `None` if it does not exist.
    ///
    /// # Errors
    /// When the catalogue cannot be read.
    pub fn show(&self, access_key: &str) -> Result<Option<KeyInfo>, ChangeKeyError> {
        if access_key == self.inner.root.principal.access_key {
            return Ok(Some(self.root_info()));
        }
        self.record(access_key).map(|record| self.info(&record)).transpose()
    }

    /// Creates a key and returns it with its secret. The secret is not returned again.
    ///
    /// # Errors
    /// See [`ChangeKeyError`].
    pub async fn create(&self, new: NewKey) -> Result<(KeyInfo, Secret), ChangeKeyError> {
        let access_key = new.access_key.map_or_else(generate_access_key, Ok)?;
        let secret = new.secret_access_key.map_or_else(generate_secret, |secret| Ok(Secret::new(secret)))?;
        check_access_key(&access_key).map_err(ChangeKeyError::Invalid)?;
        check_secret(secret.expose()).map_err(ChangeKeyError::Invalid)?;
        let quota = parse_request(&new.quota).map_err(ChangeKeyError::Invalid)?;
        let _changing = self.inner.changing.lock().await;
        if self.record(&access_key).is_some() || self.is_fixed(&access_key) {
            return Err(ChangeKeyError::Exists(access_key));
        }
        let record = Credential {
            secret_sealed: self.inner.sealer.seal(&access_key, secret.expose())?,
            role: stored_role(new.role.unwrap_or(AccessKeyRole::Read)) as i32,
            buckets: new.buckets,
            prefixes: new.prefixes,
            owner: OWNER.to_owned(),
            description: new.description,
            created_ms: self.inner.clock.now().as_millis(),
            disabled: false,
            quota: None,
            access_key,
        };
        let access_key = record.access_key.clone();
        self.put(record).await?;
        // No client has its secret yet.
        Ok((self.change_quota(&access_key, quota).await?, secret))
    }

    /// Changes a key and returns it before and after the change. When this returns, no storage node of a
    /// cluster accepts the key as it was before: [`Catalogue::until_applied_elsewhere`].
    ///
    /// # Errors
    /// See [`ChangeKeyError`].
    pub async fn update(
        &self,
        access_key: &str,
        change: KeyChange,
    ) -> Result<(KeyInfo, KeyInfo), ChangeKeyError> {
        let is_quota_only = change.is_quota_only();
        let changed = self.update_alone(access_key, change).await?;
        if !is_quota_only {
            self.inner.catalogue.until_applied_elsewhere().await;
        }
        Ok(changed)
    }

    /// Changes a key, and nothing else meanwhile.
    async fn update_alone(
        &self,
        access_key: &str,
        change: KeyChange,
    ) -> Result<(KeyInfo, KeyInfo), ChangeKeyError> {
        let quota = parse_request(&change.quota).map_err(ChangeKeyError::Invalid)?;
        let _changing = self.inner.changing.lock().await;
        let before = self.changeable(access_key)?;
        let before_change = self.info(&before)?;
        if change.is_quota_only() {
            return Ok((before_change, self.change_quota(access_key, quota).await?));
        }
        let mut record = (*before).clone();
        if let Some(role) = change.role {
            record.role = stored_role(role) as i32;
        }
        record.buckets = change.buckets.unwrap_or(record.buckets);
        record.prefixes = change.prefixes.unwrap_or(record.prefixes);
        record.description = change.description.unwrap_or(record.description);
        record.disabled = change.disabled.unwrap_or(record.disabled);
        self.put(record).await?;
        Ok((before_change, self.change_quota(access_key, quota).await?))
    }

    /// Deletes a key and returns it as it was. When this returns, no storage node of a cluster accepts the
    /// key: [`Catalogue::until_applied_elsewhere`].
    ///
    /// # Errors
    /// See [`ChangeKeyError`].
    pub async fn delete(&self, access_key: &str) -> Result<KeyInfo, ChangeKeyError> {
        let deleted = self.delete_alone(access_key).await?;
        self.inner.catalogue.until_applied_elsewhere().await;
        Ok(deleted)
    }

    /// Deletes a key, and nothing else meanwhile.
    async fn delete_alone(&self, access_key: &str) -> Result<KeyInfo, ChangeKeyError> {
        let _changing = self.inner.changing.lock().await;
        let before = self.info(&*self.changeable(access_key)?)?;
        match self.inner.catalogue.delete_credential(access_key).await {
            Err(ProposeError::Rejected(Reject::NoSuchCredential)) => {
                return Err(ChangeKeyError::NoSuchKey(access_key.to_owned()));
            }
            other => other?,
        };
        self.inner.opened.write().remove(access_key);
        Ok(before)
    }

    fn changeable(&self, access_key: &str) -> Result<Arc<Credential>, ChangeKeyError> {
        if self.is_fixed(access_key) {
            return Err(ChangeKeyError::Fixed(access_key.to_owned()));
        }
        self.record(access_key).ok_or_else(|| ChangeKeyError::NoSuchKey(access_key.to_owned()))
    }

    /// True for the root's key and the local one, which no request changes.
    #[must_use]
    pub fn is_fixed(&self, access_key: &str) -> bool {
        let fixed = [&self.inner.root, &self.inner.local];
        fixed.into_iter().any(|key| key.principal.access_key == access_key)
    }

    async fn put(&self, credential: Credential) -> Result<(), ChangeKeyError> {
        assert!(!self.is_fixed(&credential.access_key), "the root key is not stored among the others");
        check_record(&credential)?;
        let put = PutCredential { credential };
        self.inner.catalogue.propose(Command::from(Change::PutCredential(put))).await?;
        Ok(())
    }

    /// Changes the quota of a key, if there is a change, and returns the key after it.
    async fn change_quota(&self, access_key: &str, quota: QuotaChange) -> Result<KeyInfo, ChangeKeyError> {
        if !quota.is_empty() {
            self.inner.catalogue.change_key_quota(access_key, |before| quota.apply(before)).await?;
        }
        let record = self.record(access_key);
        self.info(&*record.ok_or_else(|| ChangeKeyError::NoSuchKey(access_key.to_owned()))?)
    }

    fn info(&self, record: &Credential) -> Result<KeyInfo, ChangeKeyError> {
        let usage = self.inner.catalogue.payer_usage(&record.access_key)?;
        Ok(KeyInfo {
            access_key: record.access_key.clone(),
            role: api_role(record),
            buckets: record.buckets.clone(),
            prefixes: record.prefixes.clone(),
            description: record.description.clone(),
            created: Some(Timestamp(record.created_ms).to_string()),
            disabled: record.disabled,
            root: false,
            quota: quota_info(record.quota),
            used: Some(used_info(&usage)),
        })
    }

    fn record(&self, access_key: &str) -> Option<Arc<Credential>> {
        if access_key == ROOT_RECORD { None } else { self.inner.catalogue.credential(access_key) }
    }

    fn root_info(&self) -> KeyInfo {
        KeyInfo {
            access_key: self.inner.root.principal.access_key.clone(),
            role: AccessKeyRole::Admin,
            buckets: Vec::new(),
            prefixes: Vec::new(),
            description: "root".to_owned(),
            created: None,
            disabled: false,
            root: true,
            quota: QuotaInfo::default(),
            used: None,
        }
    }

    fn open_record(&self, record: &Credential) -> Result<SigningAccessKey, ChangeKeyError> {
        let secret = self.inner.sealer.open_secret(&record.access_key, &record.secret_sealed)?;
        let role = api_role(record);
        let principal =
            Principal::new(&record.access_key, &record.owner, role, &record.buckets, &record.prefixes)?;
        Ok(SigningAccessKey { principal: Arc::new(principal), secret: secret.into() })
    }
}

impl KeySource for Keyring {
    fn find(&self, access_key: &str) -> Option<Arc<SigningAccessKey>> {
        let inner = &self.inner;
        if let Some(key) =
            [&inner.root, &inner.local].into_iter().find(|k| k.principal.access_key == access_key)
        {
            return Some(Arc::clone(key));
        }
        let record = self.record(access_key).filter(|record| !record.disabled)?;
        if let Some(opened) = inner.opened.read().get(access_key)
            && (Arc::ptr_eq(&opened.record, &record) || opened.record == record)
        {
            return Some(Arc::clone(&opened.key));
        }
        match self.open_record(&record) {
            Ok(key) => {
                let key = Arc::new(key);
                let opened = OpenedKey { record, key: Arc::clone(&key) };
                inner.opened.write().insert(access_key.to_owned(), opened);
                Some(key)
            }
            Err(error) => {
                tracing::error!(access_key, %error, "an access key is unusable");
                None
            }
        }
    }
}

fn admin_key(access_key: &str, secret: Secret) -> SigningAccessKey {
    SigningAccessKey {
        principal: Arc::new(Principal::unrestricted(access_key, OWNER, AccessKeyRole::Admin)),
        secret,
    }
}

fn open_root(sealer: &Sealer, record: &Credential) -> Result<RootCredentials, SealerError> {
    let opened = sealer.open_secret(ROOT_RECORD, &record.secret_sealed)?;
    let (access_key, secret) = opened
        .split_once('\n')
        .ok_or_else(|| SealerError::DoesNotOpen { access_key: ROOT_RECORD.to_owned() })?;
    Ok(RootCredentials { access_key: access_key.to_owned(), secret: Secret::new(secret) })
}

async fn store_root(
    catalogue: &Catalogue,
    sealer: &Sealer,
    now: Timestamp,
    root: &RootCredentials,
) -> Result<(), OpenKeyringError> {
    let both = Zeroizing::new(format!("{}\n{}", root.access_key, root.secret.expose()));
    let credential = Credential {
        access_key: ROOT_RECORD.to_owned(),
        secret_sealed: sealer.seal(ROOT_RECORD, &both)?,
        role: stored_role(AccessKeyRole::Admin) as i32,
        owner: OWNER.to_owned(),
        description: "root".to_owned(),
        created_ms: now.as_millis(),
        ..Credential::default()
    };
    catalogue.propose(Command::from(Change::PutCredential(PutCredential { credential }))).await?;
    Ok(())
}

const fn stored_role(role: AccessKeyRole) -> schema::Role {
    match role {
        AccessKeyRole::Read => schema::Role::Read,
        AccessKeyRole::Write => schema::Role::Write,
        AccessKeyRole::Admin => schema::Role::Admin,
    }
}

fn api_role(record: &Credential) -> AccessKeyRole {
    match record.role() {
        schema::Role::Read => AccessKeyRole::Read,
        schema::Role::Write => AccessKeyRole::Write,
        schema::Role::Admin => AccessKeyRole::Admin,
    }
}

fn check_record(record: &Credential) -> Result<(), ChangeKeyError> {
    let invalid = |reason: String| Err(ChangeKeyError::Invalid(reason));
    let globs = || record.buckets.iter().chain(&record.prefixes);
    if record.buckets.len() > GLOBS_MAX || record.prefixes.len() > GLOBS_MAX {
        return invalid(format!(
            "an access key has at most {GLOBS_MAX} bucket globs and {GLOBS_MAX} prefix globs"
        ));
    }
    if globs().any(|glob| glob.is_empty() || glob.len() > GLOB_BYTES_MAX) {
        return invalid(format!("a glob has 1 to {GLOB_BYTES_MAX} bytes"));
    }
    if record.description.len() > DESCRIPTION_BYTES_MAX {
        return invalid(format!("a description has at most {DESCRIPTION_BYTES_MAX} bytes"));
    }
    Principal::new("", "", AccessKeyRole::Read, &record.buckets, &record.prefixes)?;
    Ok(())
}

/// Allows letters, digits and characters that are no separators of a signature.
fn check_access_key(access_key: &str) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if !(3..=128).contains(&access_key.len()) || !access_key.bytes().all(plain) {
        return Err("an access key id has 3 to 128 letters, digits, '-', '_' and '.'".to_owned());
    }
    Ok(())
}

fn check_secret(secret: &str) -> Result<(), String> {
    if !(8..=128).contains(&secret.len()) || !secret.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("a secret access key has 8 to 128 visible ASCII characters".to_owned());
    }
    Ok(())
}

/// Generates an access key id like AWS's: 20 capitals and digits, about 100 bits.
fn generate_access_key() -> Result<String, SealerError> {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let random: [u8; 20] = random()?;
    Ok(random.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect())
}

/// Generates a secret of 40 characters that need no quotes in any shell, about 200 bits.
fn generate_secret() -> Result<Secret, SealerError> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnopqrstuvwxyzACDEFGH";
    let random = Zeroizing::new(random::<40>()?);
    Ok(Secret::new(random.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect::<String>()))
}

#[cfg(test)]
mod tests;
