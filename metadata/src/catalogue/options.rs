//! How a catalogue is opened, and what its calls can fail with.

use crate::identity::{Expected, Mismatch};
use mlgw_common::Clock;
use mlgw_common::histogram::Durations;
use mlgw_formats::command::{Reject, Written};
use mlgw_formats::schema::Bucket;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What to do when durability cannot be kept; called once, with a line for the log.
pub type Fatal = Arc<dyn Fn(&str) + Send + Sync>;

/// When a command counts as durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When its log entry was synced: it survives power loss.
    #[default]
    Full,
    /// When its log entry was written: it survives the process, not the machine.
    Os,
}

/// Where and how often copies of the catalogue are made that it can be rebuilt from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Their directory; made when there is none.
    pub dir: PathBuf,
    /// How long after one the next is made, if anything changed. One is also made before each purge
    /// of the log.
    pub every: Duration,
}

/// How to open a catalogue.
#[derive(Clone)]
pub struct CatalogueOptions {
    /// Its directory; made when there is none.
    pub dir: PathBuf,
    /// When a command counts as durable.
    pub durability: Durability,
    /// The time of day, for what the catalogue itself proposes.
    pub clock: Arc<dyn Clock>,
    /// Bytes of log beyond which the state is flushed and the log purged.
    pub log_bytes_max: u64,
    /// Bytes of the caches that all groups share: a quarter for objects, the rest for blocks of RocksDB's.
    pub cache_bytes: usize,
    /// Bytes of each group's memtable.
    pub memtable_bytes: usize,
    /// Number of object groups when the catalogue is created; group 0 is one of them.
    pub groups: u32,
    /// Where object groups other than 0 begin, when the catalogue is created: bucket, key, group.
    pub partitions: Vec<(u64, Vec<u8>, u32)>,
    /// How often deleted rows that are in memory only are looked at; so long is a pause of deleting, in
    /// which they go to a table and are compacted.
    pub tombstone_check: Duration,
    /// Where checkpoints to rebuild it from are kept; nothing: there are none.
    pub checkpoints: Option<CheckpointOptions>,
    /// The server that the catalogue must belong to; none where that is not checked.
    pub expected: Option<Expected>,
    /// Called when a log or state write or sync fails. It should not return; when it does, every
    /// waiting and later command answers [`ProposeError::Stopping`].
    pub fatal: Fatal,
}

impl CatalogueOptions {
    /// One group in `dir`, durable, with modest memory, that ends the process when durability
    /// cannot be kept.
    #[must_use]
    pub fn new(dir: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self {
            dir,
            durability: Durability::Full,
            clock,
            log_bytes_max: 64 << 20,
            cache_bytes: 64 << 20,
            memtable_bytes: 32 << 20,
            groups: 1,
            partitions: Vec::new(),
            tombstone_check: Duration::from_secs(5),
            checkpoints: None,
            expected: None,
            fatal: Arc::new(|why| {
                tracing::error!(why, "the catalogue cannot keep what it promised; stopping");
                std::process::abort();
            }),
        }
    }
}

/// A bucket to create.
#[derive(Clone, Debug)]
pub struct NewBucket {
    /// Its name.
    pub name: mlgw_common::BucketName,
    /// Owner id.
    pub owner: String,
    /// Its LocationConstraint; empty is us-east-1.
    pub region: String,
    /// What it fronts, if it is to be bound.
    pub binding: Option<mlgw_formats::schema::Binding>,
}

/// Why a catalogue did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("{path}: {source}")]
    Directory {
        /// Which path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A store does not open or cannot be read: disk or format.
    #[error("the catalogue's store: {0}")]
    Store(String),
    /// Raft did not start.
    #[error("the catalogue's log: {0}")]
    Raft(String),
    /// Log or state are not this server's, or do not fit each other.
    #[error("the catalogue in {path} is not opened: {source}; nothing was changed; see `mlgw store check`")]
    Mismatch {
        /// The catalogue's directory.
        path: PathBuf,
        /// How they differ.
        source: Mismatch,
    },
}

/// Why a command was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Its state did not allow it; nothing changed.
    #[error(transparent)]
    Rejected(#[from] Reject),
    /// Too many commands wait; nothing changed; retry later.
    #[error("too many commands wait for the catalogue")]
    Overloaded,
    /// The catalogue stops; whether the command will have been done is unknown.
    #[error("the catalogue is stopping")]
    Stopping,
}

/// Why a read failed: repair the store; retrying does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the catalogue cannot be read: {0}")]
pub struct ReadError(pub String);

/// Why a bucket was not created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateBucketError {
    /// The name is taken.
    #[error("the bucket exists")]
    Exists(Arc<Bucket>),
    /// The owner has as many as allowed.
    #[error("the owner has too many buckets")]
    TooMany,
    /// The name is being created or deleted; retry later.
    #[error("the name is being created or deleted")]
    Busy,
    /// See [`ProposeError`].
    #[error(transparent)]
    Propose(ProposeError),
}

/// Why a bucket was not deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteBucketError {
    /// There is none.
    #[error("the bucket does not exist")]
    NoSuchBucket,
    /// Objects are left.
    #[error("the bucket is not empty")]
    NotEmpty,
    /// See [`ProposeError`].
    #[error(transparent)]
    Propose(ProposeError),
}

/// Whether an upload was completed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The current version has its body; this is what completing it answers.
    Yes(Written),
    /// It is not known, or another version is current by now.
    No,
}

/// Figures for `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogueMetrics {
    /// Log entries applied since open, over all groups.
    pub entries_applied: u64,
    /// Commands applied since open.
    pub commands_applied: u64,
    /// Commands rejected since open.
    pub commands_rejected: u64,
    /// Syncs of the log since open, each from its first byte written to its end.
    pub log_syncs: Durations,
    /// How long commands waited for their batch.
    pub commit_wait: Durations,
    /// Bytes appended to the log since open.
    pub log_bytes_appended: u64,
    /// Bytes of log that are not purged yet.
    pub log_bytes: u64,
    /// Snapshots taken (state flushed and log purged) since open.
    pub snapshots: u64,
    /// Commands waiting to be proposed.
    pub queued: u64,
    /// Bodies waiting in the release queue.
    pub releases_waiting: u64,
    /// Objects that were read from the store, because they were not in memory.
    pub object_misses: u64,
    /// Bytes of objects in memory.
    pub object_cache_bytes: u64,
}
