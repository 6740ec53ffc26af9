//! The catalogue: the metadata of buckets, objects, uploads and segments, and the location of every object's
//! bytes.
//!
//! Every change is a [`Command`](mlgw_formats::command::Command) that is proposed to a Raft group and applied
//! by a pure function ([`apply`]) to an ordered map of rows ([`schema`](mlgw_formats::schema)). The embedded
//! default is one group with one voter and runs the same code as a cluster. Only the module `raft` uses
//! openraft, and only the module `store` uses RocksDB.
//!
//! Invariant: a command that was answered is on stable media (unless the caller chose [`Durability::Os`]) and
//! visible to every read that begins afterwards. After a power loss, [`Catalogue::open`] replays the synced
//! log before it returns.

pub mod apply;
pub mod catalogue;
pub mod clean;
pub mod copy;
mod durability;
pub mod identity;
pub mod offline;
mod raft;
mod row_cache;
mod store;
pub mod store_error;
pub mod view;

pub use catalogue::{
    BarrierError, BarrierScope, CallRefused, Catalogue, CatalogueMetrics, CatalogueOptions,
    ChangeMembersError, CheckpointOptions, ChunkOwner, CompareRowsError, CreateBucketError, CutError,
    DeadSet, DeleteBucketError, FatalHandler, GroupChunk, GroupChunks, GroupMembers, IncomingSnapshot,
    KnownComparison, MemberLane, MemberPeers, MemberRole, MemberStatus, NewBucket, ObjectScan, OffSetUsages,
    OpenError, PageScan, PartScan, PeerError, PeerFuture, Pin, ProposeError, ReadLeases, Reader, Reference,
    RowComparison, RowComparisonCounts, SegmentUsages, SnapshotBytes, StoredVersion, UploadScan, UsageOf,
};
pub use clean::{CleanBatch, CleanIndex, CleanIndexError};
pub use durability::Durability;
pub use store_error::ReadError;
