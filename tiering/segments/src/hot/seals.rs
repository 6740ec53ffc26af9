//! Seals and marks on their way to the catalogue: one task sends them, one after the other.
//!
//! A seal is repeated until the catalogue accepts it or stops. Recovery replaces those that were lost with
//! the process; a lost mark only costs a start some reading.

use std::sync::Arc;
use std::time::Duration;

use mlgw_common::ids::SegmentId;
use mlgw_formats::schema::Replica;
use tokio::sync::{mpsc, oneshot};

use super::map::{MapError, SegmentMap};
use super::metrics::{HotCounters, add};

/// Pause before a command is repeated that the overloaded catalogue postponed.
const CATALOGUE_RETRY: Duration = Duration::from_millis(100);

/// A request to the sealing task.
pub(super) enum SealRequest {
    /// Seal a segment.
    Seal {
        /// The segment.
        id: SegmentId,
        /// Its length.
        length: u64,
        /// The replicas that have this length; empty if the record's list stays.
        replicas: Vec<Replica>,
    },
    /// Mark a segment as whole up to a length.
    Mark(SegmentId, u64),
    /// Reply when all earlier requests are done.
    Flush(oneshot::Sender<()>),
}

/// Sends seals to the catalogue, one after the other, until all senders are dropped. Calls `sealed` after
/// each.
pub(super) async fn run_seals(
    map: Arc<dyn SegmentMap>,
    metrics: Arc<HotCounters>,
    mut requests: mpsc::UnboundedReceiver<SealRequest>,
    sealed: impl Fn(),
) {
    while let Some(request) = requests.recv().await {
        match request {
            SealRequest::Seal { id, length, replicas } => {
                seal(&*map, &metrics, id, length, replicas).await;
                sealed();
            }
            SealRequest::Mark(id, length) => {
                if let Err(error) = map.mark(id, length).await {
                    tracing::debug!(segment = %id, %error,
                        "failed to mark the synced length of a segment; the next start reads more of it");
                }
            }
            // The requester may be gone.
            SealRequest::Flush(done) => drop(done.send(())),
        }
    }
}

async fn seal(
    map: &dyn SegmentMap,
    metrics: &HotCounters,
    id: SegmentId,
    length: u64,
    replicas: Vec<Replica>,
) {
    loop {
        match map.seal(id, length, replicas.clone()).await {
            Ok(()) => return add(&metrics.segments_sealed, 1),
            // Also while the outcome is unknown: a repeated seal changes nothing.
            Err(MapError::Overloaded) => mlgw_common::time::sleep(CATALOGUE_RETRY).await,
            Err(MapError::Stopping) => {
                return tracing::warn!(segment = %id,
                    "segment not sealed because the catalogue is stopping; the next start seals it");
            }
            Err(MapError::SealedElsewhere) => {
                return tracing::info!(segment = %id, length,
                    "a recovery has sealed the segment at another length, which has all acknowledged bytes");
            }
            Err(error @ MapError::Refused(_)) => {
                return tracing::error!(segment = %id, length, %error, "failed to seal a segment");
            }
        }
    }
}
