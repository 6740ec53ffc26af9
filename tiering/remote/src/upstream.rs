//! Remote tier: whole segments spilled to an object store.
//!
//! A sealed segment is one object, `segments/<id>-<copy>.seg`, byte for byte its file or that file encrypted
//! ([`encrypted_frames`]). A segment counts as stored only after it was read back and compared ([`put`]).
//! Reads fetch the requested range and nothing more ([`read`]). Every request goes through a budget and a
//! gate that adapts to the capacity of the store ([`rate_budget`], [`gate`], [`meter`]); both are independent
//! of opendal and serve every client of a store. Each operation may be repeated. A power failure leaves an
//! object whole or absent: an unfinished upload is aborted by this gateway if possible, and otherwise by the
//! rules of the store (docs/decisions/2026-11-22-upstreams.md).

mod check;
pub(crate) mod client;
mod encrypted_frames;
mod error;
pub mod fake;
mod gate;
mod key;
mod meter;
mod metrics;
mod objects;
mod operator;
mod owner;
mod permissions;
mod proof;
mod put;
mod rate_budget;
mod read;
mod resumable_upload;
mod settings;
mod source;
#[cfg(test)]
pub(crate) mod tests;
mod throttle;
mod upload;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backon::ExponentialBuilder;
use mlgw_common::ids::{Generation, SegmentId};
use mlgw_common::limits::MIB;
use mlgw_common::{Incarnation, SystemClock};
use opendal::{HttpTransporter, Operator};

pub use check::CheckStep;
pub use error::UpstreamError;
pub use gate::{GatePermit, StoreLoad, UpstreamGate};
pub use key::{REPLICA_KEY_BYTES, ReplicaKey};
pub use metrics::{UpstreamMetrics, UpstreamOp, UpstreamOutcome};
pub use owner::{OWNER_MARK_NAME, PrefixOwnership};
pub use permissions::CheckVerb;
pub use put::StoredSegment;
pub use rate_budget::UpstreamBudget;
pub use resumable_upload::UploadResumption;
pub use settings::{BucketAddressing, CredentialSource, EtagTrust, UpstreamKind, UpstreamSettings};
pub use throttle::{ThrottleFuture, ThrottleHook};

use crate::origin::s3::S3Origin;
use client::UpstreamClient;
use error::UpstreamFault;
use meter::UpstreamMeter;
use operator::{Connected, connect};
use owner::PrefixOwner;
use resumable_upload::ResumableUploads;
use wire::{MeteredTransport, RequestSender};

/// Identity of an object of an upstream: the segment, the incarnation of the server that stored it, and a
/// random number. No object is ever overwritten, not even by a second server that was restored from a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Segment.
    pub segment: SegmentId,
    /// Incarnation; 0 for an object written by a version whose object names had none.
    pub incarnation: Incarnation,
    /// Random number.
    pub copy: u64,
}

impl ObjectId {
    /// Creates a new identity for `segment`, stored by `incarnation`.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn new_random(segment: SegmentId, incarnation: Incarnation) -> Result<Self, getrandom::Error> {
        Ok(Self { segment, incarnation, copy: getrandom::u64()? })
    }
}

/// Copy of a segment in an upstream.
#[derive(Clone, Copy, Debug)]
pub struct SegmentObject<'a> {
    /// Identity of the object.
    pub id: ObjectId,
    /// Generation of the segment.
    pub generation: Generation,
    /// Length of the sealed segment file.
    pub bytes: u64,
    /// Key of the object, if it is encrypted.
    pub key: Option<&'a ReplicaKey>,
}

/// Object store to which segments are spilled.
pub struct Upstream {
    name: String,
    kind: UpstreamKind,
    encrypt: bool,
    operator: Operator,
    /// S3 stores only: client for uploads that resume after a crash.
    resumable_uploads: Option<ResumableUploads>,
    meter: Arc<UpstreamMeter>,
    tuning: UpstreamTuning,
    endpoint: Option<String>,
    proxy: Option<String>,
    dir: Option<PathBuf>,
    timeout: Duration,
    /// Prefix of all keys.
    prefix: String,
    /// `None` if the server has no identity.
    owner: Option<PrefixOwner>,
}

/// Concurrency and retry parameters.
#[derive(Clone, Copy, Debug)]
struct UpstreamTuning {
    /// Bytes of one part of an upload, and of one piece that is read back.
    part_bytes: u64,
    /// Concurrent parts of one upload.
    concurrent_parts: usize,
    /// Wait before the first retry.
    retry_first: Duration,
    /// Maximum wait before later retries.
    retry_max: Duration,
    /// Maximum number of retries of a request.
    retries: usize,
}

impl Default for UpstreamTuning {
    fn default() -> Self {
        Self {
            // At 100 MB/s on one connection a part takes 80 ms, more than twice the round trip that it costs.
            // 10,000 parts, the maximum of S3, are 80 GiB. All kinds of stores accept parts of 5 MiB and
            // more. A segment of 256 MiB has 32 parts.
            part_bytes: 8 * MIB,
            // Four parts of an upload are in flight, one waits to be sent, and one is being read: 48 MiB of
            // memory. Four connections fill the bandwidth that a gateway has for background work.
            concurrent_parts: 4,
            // 0.1, 0.2, … 3.2 s, randomly shortened by up to a half: a caller waits 3 to 6 s for the error of
            // a store that is down. The caller retries a store that is down for longer.
            retry_first: Duration::from_millis(100),
            retry_max: Duration::from_secs(10),
            retries: 6,
        }
    }
}

impl UpstreamTuning {
    /// Returns the waits before the retries. They double; each is at random between a half and all, so that
    /// clients that failed at the same moment do not retry at the same moment.
    fn waits(&self) -> ExponentialBuilder {
        // The jitter adds up to as much again.
        ExponentialBuilder::new()
            .with_min_delay(self.retry_first / 2)
            .with_max_delay(self.retry_max / 2)
            .with_max_times(self.retries)
            .with_jitter()
    }
}

impl Upstream {
    /// Opens the upstream that `settings` describe. Sends nothing to the store.
    ///
    /// # Errors
    /// [`UpstreamError::Setting`] with the name of the invalid setting and advice.
    pub fn open(settings: &UpstreamSettings) -> Result<Self, UpstreamError> {
        let connected = connect(settings)?;
        if connected.endpoint.is_none() {
            return Ok(Self::with_operator(settings, connected, UpstreamTuning::default()));
        }
        let client = UpstreamClient::new(settings).map_err(|fault| UpstreamError::Setting {
            upstream: settings.name.clone(),
            setting: fault.setting,
            fault: fault.problem,
        })?;
        let mut upstream = Self::with_carrier(settings, connected, UpstreamTuning::default(), client);
        upstream.resumable_uploads = resumable_uploads(settings)?;
        Ok(upstream)
    }

    /// Creates an upstream whose requests are sent by `sender`.
    fn with_carrier(
        settings: &UpstreamSettings,
        connected: Connected,
        tuning: UpstreamTuning,
        sender: impl RequestSender,
    ) -> Self {
        let mut upstream = Self::with_operator(settings, connected, tuning);
        let wire = MeteredTransport::new(sender, upstream.meter.clone(), settings.timeout);
        let operator = upstream.operator;
        let context = operator.base_context().with_http_transport(HttpTransporter::new(wire));
        upstream.operator = operator.with_context(context);
        upstream
    }

    /// Creates an upstream without HTTP.
    fn with_operator(settings: &UpstreamSettings, connected: Connected, tuning: UpstreamTuning) -> Self {
        let budget = UpstreamBudget::new(settings.bytes_per_second, settings.requests_per_second);
        let meter = Arc::new(UpstreamMeter::new(Arc::new(budget)));
        Self {
            name: settings.name.clone(),
            kind: settings.kind,
            encrypt: settings.encrypt,
            operator: connected.operator,
            resumable_uploads: None,
            meter,
            tuning,
            endpoint: connected.endpoint,
            proxy: settings.proxy.clone(),
            dir: connected.dir,
            timeout: settings.timeout,
            prefix: settings.prefix.clone(),
            owner: None,
        }
    }

    /// Name of the upstream.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if segments are encrypted before they are stored; each then needs a [`ReplicaKey`].
    #[must_use]
    pub fn encrypts(&self) -> bool {
        self.encrypt
    }

    /// Request budget, to share with other clients of the same store.
    #[must_use]
    pub fn budget(&self) -> Arc<UpstreamBudget> {
        self.meter.budget.clone()
    }

    /// Counters of requests since the upstream was opened.
    #[must_use]
    pub fn metrics(&self) -> UpstreamMetrics {
        self.meter.snapshot()
    }

    fn has_http(&self) -> bool {
        self.endpoint.is_some()
    }

    /// Classifies an error of this store.
    fn fault_of(&self, error: &opendal::Error) -> UpstreamFault {
        if self.has_http() {
            UpstreamFault::from_opendal(error)
        } else {
            UpstreamFault::from_directory(error)
        }
    }
}

/// Creates the S3 client that bypasses opendal; `None` for other kinds of stores.
fn resumable_uploads(settings: &UpstreamSettings) -> Result<Option<ResumableUploads>, UpstreamError> {
    if settings.kind != UpstreamKind::S3 {
        return Ok(None);
    }
    // The meter already applies the budget.
    let unlimited = Arc::new(UpstreamBudget::new(0, 0));
    let origin = S3Origin::new(settings, unlimited, Arc::new(SystemClock), None).map_err(|fault| {
        UpstreamError::Setting { upstream: settings.name.clone(), setting: "endpoint", fault }
    })?;
    Ok(Some(ResumableUploads { origin: Arc::new(origin), prefix: settings.prefix.clone() }))
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}
