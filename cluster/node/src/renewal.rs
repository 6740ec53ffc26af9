//! Renewal of the certificate of this node.
//!
//! A member has the rows of the system group and the key of the cluster, so it signs its next certificate by
//! itself: also alone, and also after the last one has ended. An authority that is added is trusted at once,
//! and signs this node's certificate when all nodes have reported that they trust it ([`crate::rotation`]). A
//! certificate is stored before it is used, as one file with the authorities, so a power loss leaves the old
//! one or the next one. What is reported of it is in use.

use crate::authorities::{AuthorityState, has_signed, held_authorities};
use crate::authority::{AuthorityRowError, open_record, signer_first, signing_record, trusted_authorities};
use mlgw_common::time::{Instant, sleep, timeout};
use mlgw_common::{CheckedClock, Clock as _, Timestamp};
use mlgw_credentials::Sealer;
use mlgw_formats::schema::{AuthorityRecord, Node};
use mlgw_metadata::{BarrierError, BarrierScope, Catalogue, ReadError};
use mlgw_transport::{ClusterTransport, TransportError};
use mlgw_trust::{
    AuthorityError, CertificateAge, CredentialsError, IssuedCertificate, NodeCredentials, NodeFiles,
    NodeFilesError,
};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::task::{JoinError, spawn_blocking};

/// Longest time between checks. A change of a node, such as the trust in a new authority, is one earlier.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Wait after a check that failed.
const RETRY_INTERVAL: Duration = Duration::from_mins(1);

/// Interval between warnings.
const WARN_INTERVAL: Duration = Duration::from_hours(1);

/// Error of a renewal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewalError {
    /// The rows cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The authority cannot be opened.
    #[error(transparent)]
    Row(#[from] AuthorityRowError),
    /// There is no authority.
    #[error("the catalogue has no authority of the cluster: restore it from a backup")]
    NoAuthority,
    /// The rows may be old.
    #[error("the authorities of the cluster cannot be confirmed: {0}")]
    Barrier(#[from] BarrierError),
    /// The authority cannot sign.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The files of the node cannot be read or written.
    #[error(transparent)]
    Files(#[from] NodeFilesError),
    /// The parts do not match each other.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The transport does not accept the certificate.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The task failed.
    #[error("the renewal failed: {0}")]
    Task(#[from] JoinError),
}

/// Work on the certificate of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateWork {
    /// None.
    Nothing,
    /// The certificate stays; other authorities are trusted.
    Trust,
    /// Another authority is to sign, because the one that signed is replaced.
    Replace,
    /// The certificate is to be signed again, because of its age.
    Renew,
}

/// Returns the authority that signs the next certificate: that of [`signing_record`], but never an older one
/// than signed the last one.
fn next_signer<'a>(
    held: &NodeCredentials,
    records: &'a [AuthorityRecord],
    nodes: &[Arc<Node>],
) -> Option<&'a AuthorityRecord> {
    let newest = records.last()?;
    if has_signed(newest, held) { Some(newest) } else { signing_record(records, nodes, held.node().node) }
}

/// Decides what is to be done with the certificate in `held`. `records` are those of the authorities, the
/// newest last. Pure.
#[must_use]
pub(crate) fn certificate_work(
    held: &NodeCredentials,
    records: &[AuthorityRecord],
    nodes: &[Arc<Node>],
    now: Timestamp,
) -> CertificateWork {
    // A member without rows has received nothing yet.
    let Some(signer) = next_signer(held, records, nodes) else { return CertificateWork::Nothing };
    let is_signer_trusted = records.iter().any(|record| has_signed(record, held));
    match held.validity().age(now) {
        // A certificate that begins later was signed while the clock of this machine was ahead.
        CertificateAge::NotYetValid | CertificateAge::ExpiresSoon | CertificateAge::Expired => {
            CertificateWork::Renew
        }
        _ if !is_signer_trusted => CertificateWork::Replace,
        CertificateAge::RenewalDue if has_signed(signer, held) => CertificateWork::Renew,
        CertificateAge::Fresh | CertificateAge::RenewalDue if !has_signed(signer, held) => {
            CertificateWork::Replace
        }
        CertificateAge::Fresh | CertificateAge::RenewalDue if is_same_set(held, records) => {
            CertificateWork::Nothing
        }
        CertificateAge::Fresh | CertificateAge::RenewalDue => CertificateWork::Trust,
    }
}

/// True if the node trusts exactly the authorities of the records.
fn is_same_set(held: &NodeCredentials, records: &[AuthorityRecord]) -> bool {
    let is_recorded =
        |authority: &CertificateDer<'_>| records.iter().any(|record| record.certificate[..] == authority[..]);
    held.authorities().len() == records.len() && held.authorities().iter().all(is_recorded)
}

/// End of the certificate of this node, for its status.
#[derive(Debug)]
pub(crate) struct CertificateEnd(AtomicI64);

impl CertificateEnd {
    pub(crate) fn new(credentials: &NodeCredentials) -> Self {
        Self(AtomicI64::new(credentials.validity().not_after_ms))
    }

    /// Time from which the certificate is not valid any more.
    pub(crate) fn get(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, credentials: &NodeCredentials) {
        self.0.store(credentials.validity().not_after_ms, Ordering::Relaxed);
    }
}

/// Renews the certificate of this node, and gives it to the transport.
pub(crate) struct CertificateRenewal {
    /// The catalogue with the authorities.
    pub(crate) catalogue: Catalogue,
    /// Opens the key of an authority.
    pub(crate) sealer: Sealer,
    /// The files of this node.
    pub(crate) files: NodeFiles,
    /// The transport that uses the certificate.
    pub(crate) transport: ClusterTransport,
    /// Clock.
    pub(crate) clock: CheckedClock,
    /// End of the certificate, kept up to date.
    pub(crate) end: Arc<CertificateEnd>,
    /// Authorities of the certificate, kept up to date.
    pub(crate) authorities: Arc<AuthorityState>,
}

impl CertificateRenewal {
    /// Checks the certificate from now on, and after changes of nodes. Ends when the future is dropped.
    pub(crate) async fn run(self, credentials: NodeCredentials) {
        let mut held = credentials;
        let mut warned: Option<Instant> = None;
        loop {
            let changed = self.catalogue.node_changed();
            let checked = self.check(&held).await;
            let is_checked = checked.is_ok();
            match checked {
                Ok(next) => held = next.unwrap_or(held),
                Err(error) => {
                    tracing::error!(%error, "no new certificate was stored; the next attempt is in a minute");
                }
            }
            if warned.is_none_or(|warned| warned.elapsed() >= WARN_INTERVAL) {
                warned = Some(Instant::now());
                warn_of_end(&held, self.clock.now());
            }
            // A clock that was just wrong may change again.
            match held.validity().age(self.clock.now()) {
                CertificateAge::Fresh | CertificateAge::RenewalDue if is_checked => {
                    // Whether the time or a change ended the wait makes no difference.
                    let _ = timeout(CHECK_INTERVAL, changed).await;
                }
                _ => sleep(RETRY_INTERVAL).await,
            }
        }
    }

    /// Does what is due, and returns the next credentials, which the transport uses from then on.
    ///
    /// # Errors
    /// See [`RenewalError`].
    pub(crate) async fn check(
        &self,
        held: &NodeCredentials,
    ) -> Result<Option<NodeCredentials>, RenewalError> {
        if let Some(skew_ms) = self.clock.refused_skew_ms() {
            tracing::warn!(skew_ms, "the clock of this node deviates: its certificate is not renewed now");
            return Ok(None);
        }
        let Some(next) = self.renew(held, self.clock.now()).await? else {
            self.authorities.set(held_authorities(held, &self.catalogue.authorities()?));
            return Ok(None);
        };
        self.transport.set_credentials(&next)?;
        self.end.set(&next);
        self.authorities.set(held_authorities(&next, &self.catalogue.authorities()?));
        let (expires, authorities) = (self.end.get(), next.authorities().len());
        tracing::info!(%expires, authorities, "the certificate of this node is stored and in use");
        Ok(Some(next))
    }

    fn work(&self, held: &NodeCredentials, now: Timestamp) -> Result<CertificateWork, RenewalError> {
        let (records, nodes) = (self.catalogue.authorities()?, self.catalogue.nodes());
        Ok(certificate_work(held, &records, &nodes, now))
    }

    /// Does what is due at `now`, and returns the next credentials, which are stored then.
    async fn renew(
        &self,
        held: &NodeCredentials,
        now: Timestamp,
    ) -> Result<Option<NodeCredentials>, RenewalError> {
        let mut work = self.work(held, now)?;
        if matches!(work, CertificateWork::Trust | CertificateWork::Replace) {
            // The rows of a member may be older than its certificate. A renewal for its age does not wait: a
            // node whose certificate has ended reaches no other node.
            self.catalogue.barrier(BarrierScope::System).await?;
            work = self.work(held, now)?;
        }
        match work {
            CertificateWork::Nothing => return Ok(None),
            CertificateWork::Trust | CertificateWork::Replace | CertificateWork::Renew => {}
        }
        let (catalogue, sealer, files) = (self.catalogue.clone(), self.sealer.clone(), self.files.clone());
        let held = held.clone();
        let stored = spawn_blocking(move || {
            if work == CertificateWork::Trust {
                store_authorities(&catalogue, &files, &held)
            } else {
                store_next(&catalogue, &sealer, &files, &held, now)
            }
        });
        stored.await?.map(Some)
    }
}

/// Signs the next certificate for the key of this node, and stores it.
fn store_next(
    catalogue: &Catalogue,
    sealer: &Sealer,
    files: &NodeFiles,
    held: &NodeCredentials,
    now: Timestamp,
) -> Result<NodeCredentials, RenewalError> {
    let node = held.node();
    let records = catalogue.authorities()?;
    let signer = next_signer(held, &records, &catalogue.nodes()).ok_or(RenewalError::NoAuthority)?;
    let authority = open_record(signer, sealer, node.cluster)?;
    // The key is read again: a certificate for a key that is lost would prevent the next start.
    let key = Arc::new(files.key()?);
    let request = key.request().map_err(NodeFilesError::from)?;
    let issued = authority.sign(&request, node.node, now)?;
    let authorities = signer_first(authority.certificate(), trusted_authorities(catalogue)?);
    let next = NodeCredentials::new(key, issued.certificate.clone(), issued.validity, authorities)?;
    files.store_certificate(&issued, next.authorities())?;
    Ok(next)
}

/// Stores the certificate of this node with the authorities that are trusted now.
fn store_authorities(
    catalogue: &Catalogue,
    files: &NodeFiles,
    held: &NodeCredentials,
) -> Result<NodeCredentials, RenewalError> {
    let issued = IssuedCertificate {
        node: held.node(),
        certificate: held.certificate().clone(),
        validity: held.validity(),
    };
    let signer = held.authorities().first().ok_or(CredentialsError::Authorities(0))?;
    let authorities = signer_first(signer, trusted_authorities(catalogue)?);
    let key = Arc::clone(held.key());
    let next = NodeCredentials::new(key, issued.certificate.clone(), issued.validity, authorities)?;
    files.store_certificate(&issued, next.authorities())?;
    Ok(next)
}

/// Warns if the certificate ends within 30 days: its renewal fails for months then.
fn warn_of_end(held: &NodeCredentials, now: Timestamp) {
    let expires = Timestamp(held.validity().not_after_ms);
    match held.validity().age(now) {
        CertificateAge::ExpiresSoon => tracing::warn!(
            %expires,
            "the certificate of this node ends within 30 days: repair the cause that the log names"
        ),
        CertificateAge::Expired => tracing::warn!(
            %expires,
            "the certificate of this node has ended, so other nodes refuse it: repair the cause that the log \
             names"
        ),
        CertificateAge::NotYetValid | CertificateAge::Fresh | CertificateAge::RenewalDue => {}
    }
}

#[cfg(test)]
mod tests;
