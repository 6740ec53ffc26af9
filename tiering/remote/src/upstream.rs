//! Object stores of others: whole segments spilled to them.
//!
//! A sealed segment is one object, `segments/<id>-<copy>.seg`, byte for byte its file or that file encrypted
//! (`frames.rs`). Nothing counts as stored before it was read back and compared (`put.rs`); reads fetch the
//! range that is asked for and nothing more (`read.rs`). Every request goes through a budget and a gate that
//! adapts to what the store bears (`budget.rs`, `gate.rs`, `meter.rs`), which know nothing of opendal and
//! serve every client of a store. Each operation may be repeated. Power failure leaves an object whole or not
//! at all: what was sent of one that is not finished is taken back when we can, and by the store's own rules
//! when we cannot (docs/decisions/2026-11-22-upstreams.md).

mod budget;
mod check;
pub(crate) mod client;
mod connect;
mod error;
pub mod fake;
mod frames;
mod gate;
mod key;
mod meter;
mod metrics;
mod multipart;
mod objects;
mod owner;
mod permissions;
mod prove;
mod put;
mod read;
mod settings;
mod source;
#[cfg(test)]
pub(crate) mod tests;
mod upload;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::ids::{Generation, SegmentId};
use mlgw_common::limits::MIB;
use mlgw_common::{Incarnation, SystemClock};
use opendal::{HttpTransporter, Operator};

pub use budget::Budget;
pub use check::{CheckStep, CheckVerb};
pub use error::UpstreamError;
pub use gate::{Gate, Load, Pass};
pub use key::{REPLICA_KEY_BYTES, ReplicaKey};
pub use metrics::{Op, Outcome, UpstreamMetrics};
pub use multipart::Resumed;
pub use owner::{MARK_NAME, Ownership};
pub use put::{Before, Stored, Wait};
pub use settings::{Addressing, CredentialSource, EtagTrust, UpstreamKind, UpstreamSettings};

use crate::origin::s3::S3Origin;
use client::UpstreamClient;
use connect::{Connected, connect};
use meter::Meter;
use multipart::Multiparts;
use owner::Owner;
use wire::{RequestSender, Wire};

/// An object of an upstream: the segment, the incarnation of the server that stored it, and a random number.
/// No object is ever written over, not even by a second server that was restored from a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// The segment.
    pub segment: SegmentId,
    /// The incarnation; 0 for an object of a version whose names had none.
    pub incarnation: Incarnation,
    /// The number, drawn at random.
    pub copy: u64,
}

impl ObjectId {
    /// A fresh one for `segment`, stored by `incarnation`.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn fresh(segment: SegmentId, incarnation: Incarnation) -> Result<Self, getrandom::Error> {
        Ok(Self { segment, incarnation, copy: getrandom::u64()? })
    }
}

/// What of a segment is in an upstream.
#[derive(Clone, Copy, Debug)]
pub struct SegmentObject<'a> {
    /// Which object.
    pub id: ObjectId,
    /// Its generation.
    pub generation: Generation,
    /// Length of its sealed file.
    pub bytes: u64,
    /// The key of the object, when it is encrypted.
    pub key: Option<&'a ReplicaKey>,
}

/// A store that segments are spilled to.
pub struct Upstream {
    name: String,
    kind: UpstreamKind,
    encrypt: bool,
    operator: Operator,
    /// At a store that speaks S3, for uploads that are gone on with after a crash.
    multiparts: Option<Multiparts>,
    meter: Arc<Meter>,
    tuning: Tuning,
    endpoint: Option<String>,
    proxy: Option<String>,
    dir: Option<PathBuf>,
    timeout: Duration,
    /// What keys begin with there.
    prefix: String,
    /// None where the server has no identity.
    owner: Option<Owner>,
}

/// How much is done at once, and how patiently.
#[derive(Clone, Copy, Debug)]
struct Tuning {
    /// Bytes of one part of an upload, and of one piece that is read back.
    part_bytes: u64,
    /// Parts of one upload under way.
    parts_at_once: usize,
    /// How long the first repetition waits.
    retry_first: Duration,
    /// How long the later ones wait at most.
    retry_max: Duration,
    /// How often a request is repeated.
    retries: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            // At 100 MB/s to one connection a part takes 80 ms, more than twice the round trip that it costs;
            // 10,000 parts, the most that S3 takes, are 80 GiB; all kinds take parts of 5 MiB and more. A
            // segment of 256 MiB is 32 parts.
            part_bytes: 8 * MIB,
            // Of one upload four parts are under way, one waits to be sent, and one is being read: 48 MiB of
            // memory. Four connections fill what a gateway has to give to the background.
            parts_at_once: 4,
            // 0.1, 0.2, … 3.2 s, of which up to a half is left out by chance: a client waits 3 to 6 s before
            // it hears of a store that is down. What is down longer is tried again by whoever asked.
            retry_first: Duration::from_millis(100),
            retry_max: Duration::from_secs(10),
            retries: 6,
        }
    }
}

impl Tuning {
    /// How long to wait before the repetition that follows `tries` others: twice as long each time, of which
    /// a share between a half and all, by `chance`, so that those who failed together do not come back
    /// together.
    fn pause(&self, tries: usize, chance: f64) -> Duration {
        let doubled = self.retry_first.saturating_mul(1 << tries.min(20));
        doubled.min(self.retry_max).mul_f64(0.5 + chance / 2.0)
    }
}

impl Upstream {
    /// The upstream that `settings` describe. Nothing is asked of it yet.
    ///
    /// # Errors
    /// When a setting cannot be; it says which, and what to do.
    pub fn open(settings: &UpstreamSettings) -> Result<Self, UpstreamError> {
        let connected = connect(settings)?;
        if connected.endpoint.is_none() {
            return Ok(Self::over(settings, connected, Tuning::default()));
        }
        let client = UpstreamClient::new(settings).map_err(|fault| UpstreamError::Setting {
            upstream: settings.name.clone(),
            setting: fault.setting,
            fault: fault.problem,
        })?;
        let mut upstream = Self::over_http(settings, connected, Tuning::default(), client);
        upstream.multiparts = multiparts(settings)?;
        Ok(upstream)
    }

    /// An upstream whose requests `sender` sends.
    fn over_http(
        settings: &UpstreamSettings,
        connected: Connected,
        tuning: Tuning,
        sender: impl RequestSender,
    ) -> Self {
        let mut upstream = Self::over(settings, connected, tuning);
        let wire = Wire::new(sender, upstream.meter.clone(), settings.timeout);
        let operator = upstream.operator;
        let context = operator.base_context().with_http_transport(HttpTransporter::new(wire));
        upstream.operator = operator.with_context(context);
        upstream
    }

    /// It has no HTTP.
    fn over(settings: &UpstreamSettings, connected: Connected, tuning: Tuning) -> Self {
        let budget = Budget::new(settings.bytes_per_second, settings.requests_per_second);
        let meter = Arc::new(Meter::new(Arc::new(budget)));
        Self {
            name: settings.name.clone(),
            kind: settings.kind,
            encrypt: settings.encrypt,
            operator: connected.operator,
            multiparts: None,
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

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether segments are to be encrypted before they are stored there: then each needs a [`ReplicaKey`].
    #[must_use]
    pub fn encrypts(&self) -> bool {
        self.encrypt
    }

    /// What may be asked of it, for others who ask the same store.
    #[must_use]
    pub fn budget(&self) -> Arc<Budget> {
        self.meter.budget.clone()
    }

    /// What was asked of it since it was opened.
    #[must_use]
    pub fn metrics(&self) -> UpstreamMetrics {
        self.meter.snapshot()
    }

    fn has_http(&self) -> bool {
        self.endpoint.is_some()
    }
}

/// The way past opendal, to a store that speaks S3.
fn multiparts(settings: &UpstreamSettings) -> Result<Option<Multiparts>, UpstreamError> {
    if settings.kind != UpstreamKind::S3 {
        return Ok(None);
    }
    // The meter has the budget.
    let unbound = Arc::new(Budget::new(0, 0));
    let origin = S3Origin::new(settings, unbound, Arc::new(SystemClock)).map_err(|fault| {
        UpstreamError::Setting { upstream: settings.name.clone(), setting: "endpoint", fault }
    })?;
    Ok(Some(Multiparts { origin: Arc::new(origin), prefix: settings.prefix.clone() }))
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}
