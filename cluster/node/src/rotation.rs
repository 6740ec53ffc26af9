//! Replacement of the authority of the cluster: `mlgw cluster rotate-ca`.
//!
//! A new authority is recorded beside the old one. Each node trusts both as soon as it reads the row, and
//! reports that. When all nodes trust the new one, it signs: each node replaces its certificate, and reports
//! that too. When all certificates are of the new one, the leader of the system group removes the old one.
//!
//! - No node presents a certificate of an authority that another node does not trust: a node that is down
//!   reports nothing, so both steps wait until it returns or is removed.
//! - A node with a certificate of the newest authority never goes back to an older one.
//! - The rows of authorities and nodes are the only state, so after a power loss at any point the nodes
//!   continue where they were.

use crate::authorities::{AuthorityChange, authority_change};
use crate::authority::{AuthorityRowError, create_record};
use crate::facts::SYSTEM_GROUP;
use crate::node::ClusterNode;
use mlgw_common::Clock as _;
use mlgw_formats::cluster_version::ROTATION_CLUSTER_VERSION;
use mlgw_formats::command::Reject;
use mlgw_metadata::{BarrierError, BarrierScope, Catalogue, ProposeError, ReadError};
use tokio::task::{JoinError, spawn_blocking};

/// Error of the begin of a replacement.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// A node does not know the reports that the replacement needs.
    #[error(
        "the cluster has version {has}, and replacing its authority needs version \
         {ROTATION_CLUSTER_VERSION}: upgrade every node first"
    )]
    Version {
        /// The version of the cluster.
        has: u32,
    },
    /// The cluster has no authority yet.
    #[error("the cluster has no authority yet: try again when its first node serves")]
    NoAuthority,
    /// The clock of this node deviates: the certificate would begin and end at other times.
    #[error("the clock of this node deviates by {0} ms from those of the others: check its time service")]
    ClockSkew(i64),
    /// The rows of this node may be old.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// The catalogue cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The new authority was not made.
    #[error(transparent)]
    Row(#[from] AuthorityRowError),
    /// The new authority was not recorded.
    #[error("the new authority was not recorded: {0}")]
    Propose(#[from] ProposeError),
    /// The task that makes the authority failed.
    #[error("the new authority was not made: {0}")]
    Task(#[from] JoinError),
}

impl ClusterNode {
    /// Begins to replace the authority of the cluster, and returns what is left to do. A replacement that is
    /// under way is continued by the nodes themselves, and no other one is begun.
    ///
    /// # Errors
    /// See [`RotationError`].
    pub async fn rotate_authority(&self) -> Result<AuthorityChange, RotationError> {
        let catalogue = &self.shared.catalogue;
        catalogue.barrier(BarrierScope::System).await?;
        let has = catalogue.cluster_version();
        if has < ROTATION_CLUSTER_VERSION {
            return Err(RotationError::Version { has });
        }
        let records = catalogue.authorities()?;
        if let Some(change) = authority_change(&records, &catalogue.nodes()) {
            return Ok(change);
        }
        if let Some(skew_ms) = self.shared.clock.refused_skew_ms() {
            return Err(RotationError::ClockSkew(skew_ms));
        }
        let newest = records.last().ok_or(RotationError::NoAuthority)?.number;
        let (sealer, cluster) = (self.shared.sealer.clone(), self.shared.cluster);
        let now = self.shared.clock.now();
        let record = spawn_blocking(move || create_record(&sealer, cluster, now)).await??;
        match catalogue.put_authority(record.record, newest).await {
            Ok(authority) => tracing::info!(authority, "replacing the authority of the cluster"),
            // Another operator was quicker, or the row may have been written.
            Err(
                ProposeError::UnknownOutcome
                | ProposeError::Rejected(Reject::AuthorityChanged { .. } | Reject::TooManyAuthorities),
            ) => catalogue.barrier(BarrierScope::System).await?,
            Err(error) => return Err(error.into()),
        }
        let change = authority_change(&catalogue.authorities()?, &catalogue.nodes());
        change.ok_or(RotationError::Propose(ProposeError::UnknownOutcome))
    }
}

/// Removes the older authority if every node has reported a certificate of the newest one, and this node
/// leads the system group.
pub(crate) async fn end_rotation(catalogue: &Catalogue) {
    if catalogue.members(SYSTEM_GROUP).is_err() || older_authority(catalogue).is_none() {
        return;
    }
    // A new leader may not have applied the rows of its predecessor yet.
    if catalogue.barrier(BarrierScope::System).await.is_err() {
        return;
    }
    let Some(older) = older_authority(catalogue) else { return };
    match catalogue.remove_authority(older).await {
        Ok(()) => tracing::info!(authority = older, "the replaced authority of the cluster is removed"),
        Err(error) => tracing::warn!(%error, "the replaced authority of the cluster was not removed yet"),
    }
}

/// Number of the older authority, if no node needs it.
fn older_authority(catalogue: &Catalogue) -> Option<u64> {
    let records = catalogue.authorities().ok()?;
    let change = authority_change(&records, &catalogue.nodes())?;
    let is_done = change.without_trust.is_empty() && change.without_certificate.is_empty();
    is_done.then(|| records.first().map(|record| record.number))?
}
