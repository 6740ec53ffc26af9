//! Options of a catalogue, and the errors and metrics of its calls.

use crate::durability::Durability;
use crate::identity::{ExpectedServer, Mismatch};
use crate::raft::peers::MemberPeers;
use mlgw_common::histogram::Durations;
use mlgw_common::{BucketId, Clock, NodeId, ObjectKey, SplitKeys};
use mlgw_formats::cluster_version::CLUSTER_VERSION;
use mlgw_formats::command::Reject;
use mlgw_formats::schema::Bucket;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Handler that is called once, with a line for the log, when durability cannot be guaranteed.
pub type FatalHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// Location and interval of the copies from which a catalogue can be rebuilt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Directory of the checkpoints; created if it does not exist.
    pub dir: PathBuf,
    /// Time from one checkpoint to the next, if anything changed. A checkpoint is also made before each purge
    /// of the log.
    pub every: Duration,
}

/// Options for opening a catalogue.
#[derive(Clone)]
pub struct CatalogueOptions {
    /// The catalogue's directory; created if it does not exist.
    pub dir: PathBuf,
    /// This node.
    pub node: NodeId,
    /// The newest cluster version that this build knows. Tests lower it to stand for an older build.
    pub cluster_version: u32,
    /// Point at which a command counts as durable.
    pub durability: Durability,
    /// Clock for the commands that the catalogue itself proposes.
    pub clock: Arc<dyn Clock>,
    /// Bytes of log beyond which the state is flushed and the log purged.
    pub log_bytes_max: u64,
    /// Bytes of the caches that all groups share: a quarter for objects, the rest for RocksDB's block cache.
    pub cache_bytes: usize,
    /// Bytes of the memtables of all groups, at least
    /// [`MEMTABLE_BYTES_MIN`](mlgw_common::limits::MEMTABLE_BYTES_MIN) for each.
    pub memtable_bytes: usize,
    /// Number of object groups; group 0 is one of them. Groups that exist already stay.
    pub groups: u32,
    /// Start keys of ranges when the catalogue is created: bucket, key, group.
    pub partitions: Vec<(u64, Vec<u8>, u32)>,
    /// Interval at which unflushed tombstones are counted. A pause in deletions of this length triggers a
    /// flush and a compaction.
    pub tombstone_check: Duration,
    /// Checkpoints to rebuild the catalogue from; `None` disables them.
    pub checkpoints: Option<CheckpointOptions>,
    /// The server that the catalogue must belong to; `None` skips the check.
    pub expected: Option<ExpectedServer>,
    /// Called when a write or sync of the log or state fails. It should not return; if it does, every waiting
    /// and later command fails with [`ProposeError::Stopping`].
    pub fatal: FatalHandler,
    /// The other nodes of the cluster. `None` for a server without peers, whose groups have one voter. With
    /// peers nothing is created: a new directory stays empty until a leader adds the node.
    pub peers: Option<Arc<dyn MemberPeers>>,
    /// True if reads of [`Catalogue::begin_read`](crate::catalogue::Catalogue::begin_read) use leases.
    pub lease_reads: bool,
}

impl CatalogueOptions {
    /// Options for one group in `dir`: durable, with modest memory, ending the process when durability cannot
    /// be guaranteed.
    #[must_use]
    pub fn new(dir: PathBuf, clock: Arc<dyn Clock>) -> Self {
        Self {
            dir,
            node: NodeId::SINGLE,
            cluster_version: CLUSTER_VERSION,
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
                tracing::error!(why, "the catalogue cannot guarantee durability; stopping");
                std::process::abort();
            }),
            peers: None,
            lease_reads: false,
        }
    }
}

/// Properties of a bucket to create.
#[derive(Clone, Debug)]
pub struct NewBucket {
    /// Name of the bucket.
    pub name: mlgw_common::BucketName,
    /// Owner id.
    pub owner: String,
    /// LocationConstraint of the bucket; empty means us-east-1.
    pub region: String,
    /// Remote bucket that backs this one, if it is remote-backed.
    pub binding: Option<mlgw_formats::schema::Binding>,
    /// Keys at which the bucket is split into ranges, which are spread over the object groups. With one
    /// object group they have no effect.
    pub split_keys: SplitKeys,
}

/// Error of opening a catalogue.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("{path}: {source}")]
    Directory {
        /// The path.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A store does not open or cannot be read: disk or format.
    #[error("the catalogue's store: {0}")]
    Store(String),
    /// Raft did not start.
    #[error("the catalogue's Raft group did not start: {0}")]
    Raft(String),
    /// The log or the state is not this server's, or they do not fit each other.
    #[error("the catalogue in {path} was not opened: {source}; nothing was changed; run `mlgw store check`")]
    Mismatch {
        /// The catalogue's directory.
        path: PathBuf,
        /// The difference that was found.
        source: Mismatch,
    },
}

/// Error of a proposed command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The state did not allow the command; nothing changed.
    #[error(transparent)]
    Rejected(#[from] Reject),
    /// Too many commands wait; nothing changed; retry later.
    #[error("too many commands wait for the catalogue")]
    Overloaded,
    /// Another node leads the group of the command; nothing changed.
    #[error("{}", not_leader(*.leader))]
    NotLeader {
        /// The leader, if this node knows it.
        leader: Option<NodeId>,
    },
    /// The command may have been applied, or may be applied later: its group changed its leader, or lost most
    /// of its members, meanwhile. Read the state behind a barrier before you propose it again.
    #[error("the catalogue lost its leader meanwhile: it is unknown whether the command takes effect")]
    UnknownOutcome,
    /// Not every node knows the command; nothing changed.
    #[error(
        "the cluster has version {has}, and this change needs version {needs}: upgrade every node and \
         finalize the upgrade"
    )]
    NotFinalized {
        /// The command's version.
        needs: u32,
        /// The cluster's version.
        has: u32,
    },
    /// The catalogue is stopping; nothing changed.
    #[error("the catalogue is stopping")]
    Stopping,
}

fn not_leader(leader: Option<NodeId>) -> String {
    match leader {
        Some(node) => format!("node {node} leads this part of the catalogue"),
        None => "this part of the catalogue has no leader".to_owned(),
    }
}

/// Groups that a barrier waits for.
#[derive(Clone, Copy, Debug)]
pub enum BarrierScope<'a> {
    /// The system group: buckets, access keys and everything else that concerns the whole cluster.
    System,
    /// The group of a key.
    Key(BucketId, &'a ObjectKey),
    /// The groups of all keys of a bucket.
    Bucket(BucketId),
    /// Every group that holds objects.
    AllGroups,
    /// These groups.
    Groups(&'a BTreeSet<u32>),
}

/// Error of a barrier: a read may miss acknowledged changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// Another node leads the group.
    #[error("{}", not_leader(*.leader))]
    NotLeader {
        /// The leader, if this node knows it.
        leader: Option<NodeId>,
    },
    /// Too few members of the group answered in time.
    #[error("too few nodes respond")]
    NoQuorum,
    /// The catalogue is stopping.
    #[error("the catalogue is stopping")]
    Stopping,
}

/// Error of creating a bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateBucketError {
    /// The name is taken.
    #[error("the bucket exists")]
    Exists(Arc<Bucket>),
    /// The owner has the maximum number of buckets.
    #[error("the owner has too many buckets")]
    TooMany,
    /// The name is being created or deleted; retry later.
    #[error("the name is being created or deleted")]
    Busy,
    /// See [`ProposeError`].
    #[error(transparent)]
    Propose(ProposeError),
}

/// Error of deleting a bucket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeleteBucketError {
    /// No bucket has this name.
    #[error("the bucket does not exist")]
    NoSuchBucket,
    /// The bucket still has objects.
    #[error("the bucket is not empty")]
    NotEmpty,
    /// See [`ProposeError`].
    #[error(transparent)]
    Propose(ProposeError),
}

/// Metrics for `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogueMetrics {
    /// Log entries applied since open, over all groups.
    pub entries_applied: u64,
    /// Commands applied since open.
    pub commands_applied: u64,
    /// Commands rejected since open.
    pub commands_rejected: u64,
    /// Duration of each log sync since open, from its first byte written to its end.
    pub log_syncs: Durations,
    /// Time that commands waited for their batch.
    pub commit_wait: Durations,
    /// Bytes appended to the log since open.
    pub log_bytes_appended: u64,
    /// Bytes of log that are not purged yet.
    pub log_bytes: u64,
    /// Raft snapshots taken (state flushed and log purged) since open; not the checkpoints of
    /// [`CheckpointOptions`].
    pub snapshots: u64,
    /// Applied batches that a member has sent to the leader on another node with a tag, since open.
    pub batches_tagged: u64,
    /// Snapshots of other members that have replaced the state of a group since open.
    pub snapshots_installed: u64,
    /// Quotas that this node has divided among object groups since open.
    pub quota_divisions: u64,
    /// Commands waiting to be proposed.
    pub queued: u64,
    /// Bodies waiting in the release queue.
    pub releases_waiting: u64,
    /// Object reads that missed the object cache and went to the store.
    pub object_misses: u64,
    /// Bytes of objects in memory.
    pub object_cache_bytes: u64,
}
