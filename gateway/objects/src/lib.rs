//! The object layer: reads, writes, copies, deletes and lists objects in buckets.
//!
//! This layer stands between a protocol and storage. It names no type of HTTP and no error of S3: a protocol
//! checks the request, calls this layer and maps [`ObjectError`] to its own codes. Background work calls the
//! same functions.
//!
//! Invariants: the bytes of a body are durable in segments before the catalogue names them, and a change is
//! durable in the catalogue before its function returns `Ok`. After a power failure an object is therefore
//! complete or absent. Memory of requests is granted before it is used ([`memory`]).

pub mod body_target;
pub mod commit;
pub mod compressor;
pub mod delete;
pub mod error;
pub mod etag;
pub mod extents;
mod ingest;
pub mod list;
pub mod md5_lanes;
pub mod memory;
pub mod metrics;
pub mod multipart;
pub mod put;
pub mod quota;
pub mod read;
pub mod reader;
pub mod stages;

pub use error::{ObjectError, ResourceShortage};
pub use ingest::CONNECTION_BLOCKS;
pub use metrics::ObjectMetrics;

use compressor::Compressor;
use etag::EtagSource;
use md5_lanes::Md5Hasher;
use mlgw_formats::schema::{Bucket, BucketState};
use mlgw_metadata::Catalogue;
use mlgw_segments::tiers::Tiers;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Changes of objects that carry the term of the duty node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermedChanges {
    /// Those of remote-backed buckets. Changes of local buckets are those of clients, of any node.
    OfRemoteBacked,
    /// All of them, because jobs of the duty node make them.
    All,
}

/// Operations on the objects of a store, with the handles that they use. Clones share them.
#[derive(Clone)]
pub struct ObjectLayer {
    /// Records of buckets, objects and uploads.
    pub catalogue: Catalogue,
    /// Segments and the memory tier.
    pub tiers: Tiers,
    /// Compresses chunks that a rule selects.
    pub compressor: Arc<Compressor>,
    /// Computes MD5s of several bodies side by side.
    pub hasher: Md5Hasher,
    /// Source of the ETag of a new body.
    pub etags: EtagSource,
    /// Counts waits and refusals.
    pub metrics: Arc<ObjectMetrics>,
    /// Term of the duty node of a cluster.
    pub duty_term: Option<u64>,
    /// The changes that carry this term.
    pub termed: TermedChanges,
}

impl ObjectLayer {
    /// Returns the objects of `catalogue` with their bytes in `tiers`. Must be called within a tokio runtime,
    /// on which MD5s are computed.
    #[must_use]
    pub fn new(catalogue: Catalogue, tiers: Tiers, etags: EtagSource) -> Self {
        let (compressor, metrics, hasher) =
            (Arc::default(), Arc::default(), Md5Hasher::new(Handle::current()));
        let termed = TermedChanges::OfRemoteBacked;
        Self { catalogue, tiers, compressor, hasher, etags, metrics, duty_term: None, termed }
    }

    /// Returns the bucket `name`.
    ///
    /// # Errors
    /// [`ObjectError::NoSuchBucket`].
    pub fn bucket(&self, name: &str) -> Result<Arc<Bucket>, ObjectError> {
        let bucket = self.catalogue.bucket(name).filter(|bucket| bucket.state() == BucketState::Active);
        bucket.ok_or_else(|| ObjectError::NoSuchBucket(name.to_owned()))
    }
}
