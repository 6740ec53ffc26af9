//! Ownership mark of a prefix: the object that names the server that may delete and overwrite segments there.
//!
//! A server claims the prefix once after each start: it creates the mark with `If-None-Match: *`, or renews
//! the nonce in its own mark with `If-Match`. It reads the mark again before each delete and each abort. Of
//! two servers with copies of one data directory, the one that started last holds the mark; the other one
//! stops deleting at its next comparison, and never claims again. A mark of an earlier incarnation is left
//! unchanged until an operator adopts the prefix. Reads never depend on the mark.
//!
//! Invariant: nothing is deleted unless the mark was read, is intact, and is the one that this process wrote.
//! A store that ignores conditions keeps the mark of the last writer, and the other servers detect that by
//! reading it.
//!
//! A crash between claim and use leaves a mark of this identity, which the next start renews.

mod mark;

pub use mark::PrefixOwnership;

use bytes::Bytes;
use mlgw_common::Lineage;
use parking_lot::Mutex;

use super::Upstream;
use super::error::{UpstreamError, UpstreamFault};
use super::metrics::UpstreamOp;
use mark::{FoundMark, PrefixClaim, PrefixContent, PrefixMark, check_may_adopt, compare, decide_claim};

/// Name of the mark, below the prefix. No listing of segments contains it, because those are below
/// `segments/`.
pub const OWNER_MARK_NAME: &str = "mlgw-owner";
/// Maximum number of writes of a claim. More are needed if another server writes at the same time, or if the
/// store does not keep what is written.
const CLAIM_TRIES: usize = 4;

/// Identity of this server, and the known state of the mark.
pub(super) struct PrefixOwner {
    lineage: Lineage,
    /// Nonce of this process. Locked while the mark is read or written.
    nonce: tokio::sync::Mutex<u64>,
    ownership: Mutex<PrefixOwnership>,
    /// True if the store honored a conditional write; `None` before the first claim.
    honours_conditions: Mutex<Option<bool>>,
}

/// Mark that was read, with the validator that a conditional write needs.
struct ReadMark {
    found: FoundMark,
    etag: Option<String>,
}

/// Condition under which a mark is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkCondition<'a> {
    /// No condition.
    None,
    /// No mark exists.
    IfAbsent,
    /// The mark has this ETag.
    IfMatch(&'a str),
}

impl PrefixOwner {
    fn ownership(&self) -> PrefixOwnership {
        self.ownership.lock().clone()
    }
}

impl Upstream {
    /// Restricts the upstream to the server of `lineage`, which then uses the prefix exclusively.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn owned_by(mut self, lineage: Lineage) -> Result<Self, getrandom::Error> {
        self.owner = Some(PrefixOwner {
            lineage,
            nonce: tokio::sync::Mutex::new(getrandom::u64()?),
            ownership: Mutex::new(PrefixOwnership::Unchecked { why: None }),
            honours_conditions: Mutex::new(None),
        });
        Ok(self)
    }

    /// Returns the relation of this server to the prefix as of the last comparison; `None` if the server has
    /// no identity.
    #[must_use]
    pub fn ownership(&self) -> Option<PrefixOwnership> {
        self.owner.as_ref().map(PrefixOwner::ownership)
    }

    /// Returns the fault of the mark of the prefix with advice; `None` if the mark is this server's.
    #[must_use]
    pub fn owner_advice(&self) -> Option<String> {
        let owner = self.owner.as_ref()?;
        owner.ownership().advice(&self.name, &self.mark_key(), &owner.lineage.own)
    }

    /// True if the store honors conditional writes; `None` before the first claim.
    #[must_use]
    pub fn honours_conditions(&self) -> Option<bool> {
        self.owner.as_ref().and_then(|owner| *owner.honours_conditions.lock())
    }

    /// Claims the prefix for this process, unless that was done or rejected before.
    ///
    /// # Errors
    /// The mark cannot be read or written; the claim may be retried.
    pub async fn claim(&self) -> Result<PrefixOwnership, UpstreamError> {
        let Some(owner) = &self.owner else { return Ok(PrefixOwnership::Own) };
        let nonce = owner.nonce.lock().await;
        match owner.ownership() {
            PrefixOwnership::Unchecked { .. } | PrefixOwnership::Damaged => {}
            known => return Ok(known),
        }
        let claimed = self.claim_with(owner, *nonce).await;
        self.record_ownership(owner, claimed)
    }

    /// Assigns the prefix to this server, whichever incarnation or copy of it the mark names.
    ///
    /// # Errors
    /// The mark names another server, or cannot be read or written.
    pub async fn adopt(&self) -> Result<(), UpstreamError> {
        let Some(owner) = &self.owner else { return Ok(()) };
        let mut nonce = owner.nonce.lock().await;
        let fresh = getrandom::u64().map_err(|error| {
            UpstreamFault::UnexpectedAnswer(error.to_string()).into_mark_error(&self.name)
        })?;
        let read = self.read_mark_with_etag().await.map_err(|fault| fault.into_mark_error(&self.name))?;
        let adopted = async {
            if let Err(foreign) = check_may_adopt(&read.found, &owner.lineage) {
                return Ok(foreign);
            }
            *nonce = fresh;
            match self.write_mark(&owner.mark(fresh), &read).await {
                Ok(()) | Err(UpstreamFault::ConditionFailed) => {}
                Err(fault) => return Err(fault),
            }
            Ok(compare(&self.read_mark().await?, &owner.lineage, fresh))
        };
        let adopted = adopted.await;
        match self.record_ownership(owner, adopted)? {
            PrefixOwnership::Own => Ok(()),
            other => Err(self.not_owner(&other, owner)),
        }
    }

    /// Checks that this server may delete objects and abort uploads below the prefix. Reads the mark each
    /// time.
    ///
    /// # Errors
    /// [`UpstreamError::NotOwner`], or the error of reading the mark.
    pub async fn check_may_delete(&self) -> Result<(), UpstreamError> {
        let Some(owner) = &self.owner else { return Ok(()) };
        let ownership = match owner.ownership() {
            PrefixOwnership::Own => {
                let nonce = owner.nonce.lock().await;
                let found = self.read_mark().await.map_err(|fault| fault.into_mark_error(&self.name))?;
                self.record_ownership(owner, Ok(compare(&found, &owner.lineage, *nonce)))?
            }
            known if known.is_final() => known,
            _ => self.claim().await?,
        };
        match ownership {
            PrefixOwnership::Own => Ok(()),
            other => Err(self.not_owner(&other, owner)),
        }
    }

    /// Checks that this server may store new objects below the prefix.
    ///
    /// # Errors
    /// [`UpstreamError::NotOwner`] if the prefix is another server's, or the error of reading the mark.
    pub(super) async fn check_may_store(&self) -> Result<(), UpstreamError> {
        let Some(owner) = &self.owner else { return Ok(()) };
        let ownership = self.claim().await?;
        if ownership.may_store() { Ok(()) } else { Err(self.not_owner(&ownership, owner)) }
    }

    async fn claim_with(&self, owner: &PrefixOwner, nonce: u64) -> Result<PrefixOwnership, UpstreamFault> {
        for _ in 0..CLAIM_TRIES {
            let read = self.read_mark_with_etag().await?;
            let descends = read.found == FoundMark::Absent && !owner.lineage.earlier.is_empty();
            let has_segments = descends && !self.list_all().await?.is_empty();
            let content = if has_segments { PrefixContent::Segments } else { PrefixContent::NoSegments };
            match decide_claim(&read.found, &owner.lineage, nonce, content) {
                PrefixClaim::Leave(ownership) => {
                    if ownership == PrefixOwnership::Own {
                        *owner.honours_conditions.lock() =
                            Some(self.probe_conditions(&owner.mark(nonce)).await?);
                    }
                    return Ok(ownership);
                }
                PrefixClaim::Write => match self.write_mark(&owner.mark(nonce), &read).await {
                    // The mark is read and evaluated again in the next iteration.
                    Ok(()) | Err(UpstreamFault::ConditionFailed) => {}
                    Err(fault) => return Err(fault),
                },
            }
        }
        Err(UpstreamFault::UnexpectedAnswer(format!(
            "the mark written to {} cannot be read back",
            self.mark_key()
        )))
    }

    /// Creates the mark again, which a store that honors conditions rejects.
    async fn probe_conditions(&self, mark: &PrefixMark) -> Result<bool, UpstreamFault> {
        let may_ask = self.operator.info().capability().write_with_if_not_exists;
        let absent = ReadMark { found: FoundMark::Absent, etag: None };
        let honours =
            may_ask && matches!(self.write_mark(mark, &absent).await, Err(UpstreamFault::ConditionFailed));
        if !honours {
            tracing::warn!(
                upstream = self.name,
                "this store does not support conditional writes: if two servers start at the same time with \
                 copies of one data directory, both may delete objects until the mark is compared again"
            );
        }
        Ok(honours)
    }

    async fn read_mark(&self) -> Result<FoundMark, UpstreamFault> {
        match self.with_retries(UpstreamOp::Read, 0, 0, || self.operator.read(OWNER_MARK_NAME)).await {
            Ok(bytes) => {
                let mark = PrefixMark::parse(&bytes.to_bytes());
                Ok(mark.map_or(FoundMark::Damaged, FoundMark::Intact))
            }
            Err(UpstreamFault::Missing) => Ok(FoundMark::Absent),
            Err(fault) => Err(fault),
        }
    }

    /// Reads the mark and its ETag, as far as the store supports conditions.
    async fn read_mark_with_etag(&self) -> Result<ReadMark, UpstreamFault> {
        let mut etag = None;
        if self.operator.info().capability().write_with_if_match {
            // The ETag is read before the content, so that a write under its condition replaces that content
            // or nothing.
            match self.with_retries(UpstreamOp::Stat, 0, 0, || self.operator.stat(OWNER_MARK_NAME)).await {
                Ok(found) => etag = found.etag().map(str::to_owned),
                Err(UpstreamFault::Missing) => return Ok(ReadMark { found: FoundMark::Absent, etag: None }),
                Err(fault) => return Err(fault),
            }
        }
        let found = self.read_mark().await?;
        Ok(ReadMark { found, etag: etag.filter(|_| found != FoundMark::Absent) })
    }

    /// Writes a mark on the condition that `read` is still current, as far as the store supports conditions.
    async fn write_mark(&self, mark: &PrefixMark, read: &ReadMark) -> Result<(), UpstreamFault> {
        assert!(read.etag.is_none() || read.found != FoundMark::Absent, "a missing mark has no ETag");
        let takes = self.operator.info().capability();
        let condition = match (&read.found, &read.etag) {
            (FoundMark::Absent, _) if takes.write_with_if_not_exists => MarkCondition::IfAbsent,
            (_, Some(etag)) if takes.write_with_if_match => MarkCondition::IfMatch(etag),
            _ => MarkCondition::None,
        };
        match self.send_mark(mark, condition).await {
            Err(UpstreamFault::UnexpectedAnswer(said))
                if said.contains("NotImplemented") && condition != MarkCondition::None =>
            {
                self.send_mark(mark, MarkCondition::None).await
            }
            sent => sent,
        }
    }

    async fn send_mark(&self, mark: &PrefixMark, condition: MarkCondition<'_>) -> Result<(), UpstreamFault> {
        let is_own = self.owner.as_ref().is_some_and(|owner| owner.lineage.own == mark.owner);
        assert!(is_own, "a server writes only its own mark");
        let text = Bytes::from(mark.text());
        let write = || {
            let write = self.operator.write_with(OWNER_MARK_NAME, text.clone());
            match condition {
                MarkCondition::None => write,
                MarkCondition::IfAbsent => write.if_not_exists(true),
                MarkCondition::IfMatch(etag) => write.if_match(etag),
            }
        };
        self.with_retries(UpstreamOp::Write, text.len() as u64, 0, write).await.map(drop)
    }

    /// Records the result of a comparison, and logs a change.
    fn record_ownership(
        &self,
        owner: &PrefixOwner,
        found: Result<PrefixOwnership, UpstreamFault>,
    ) -> Result<PrefixOwnership, UpstreamError> {
        let (ownership, error) = match found {
            Ok(ownership) => (ownership, None),
            Err(fault) => {
                let error = fault.into_mark_error(&self.name);
                (PrefixOwnership::Unchecked { why: Some(error.to_string()) }, Some(error))
            }
        };
        let before = std::mem::replace(&mut *owner.ownership.lock(), ownership.clone());
        if before != ownership {
            let (upstream, own) = (&self.name, &owner.lineage.own);
            match ownership.advice(upstream, &self.mark_key(), own) {
                None => tracing::info!(upstream, %own, "the prefix carries the mark of this server"),
                Some(advice) if error.is_some() => {
                    tracing::warn!(upstream, advice, "nothing is deleted in this upstream");
                }
                Some(advice) => tracing::error!(upstream, advice, "nothing is deleted in this upstream"),
            }
        }
        error.map_or(Ok(ownership), Err)
    }

    fn not_owner(&self, ownership: &PrefixOwnership, owner: &PrefixOwner) -> UpstreamError {
        let advice = ownership.advice(&self.name, &self.mark_key(), &owner.lineage.own);
        UpstreamError::NotOwner { upstream: self.name.clone(), advice: advice.unwrap_or_default() }
    }

    /// Returns the key of the mark in the bucket.
    fn mark_key(&self) -> String {
        format!("{}{OWNER_MARK_NAME}", self.prefix)
    }
}

impl PrefixOwner {
    fn mark(&self, nonce: u64) -> PrefixMark {
        PrefixMark { owner: self.lineage.own, nonce }
    }
}
