//! The catalogue as the rest of the program sees it: propose, read, shut down.
//!
//! [`Catalogue`] is cheap to clone. Reads answer from the applied state without asking Raft: with
//! one voter that is linearizable. Names, access keys and segments are small and read by every
//! request, so they are kept in memory as well, changed before the command is answered.

pub mod options;
pub mod reader;

pub use options::{
    CatalogueMetrics, CatalogueOptions, Completed, CreateBucketError, DeleteBucketError, Durability, Fatal,
    NewBucket, OpenError, ProposeError, ReadError,
};
pub use reader::{Entry, ObjectScan, PageScan, PartScan, Reader, UploadScan};

use crate::command::{Command, Reply};
use crate::schema::{
    Bucket, BucketUsage, Credential, ObjectVersion, Part, SegmentRecord, SegmentUsage, Upload,
};
use crate::schema::segment::SegmentSummary;
use mlgw_common::{BodyId, BucketId, BucketName, ObjectKey, PartNumber, SegmentId};
use std::sync::Arc;

/// The catalogue. Clones share it.
#[derive(Clone)]
pub struct Catalogue {
    inner: Arc<()>,
}

impl Catalogue {
    /// Opens or creates the catalogue in `options.dir`. What the log holds has been applied when
    /// this returns, and interrupted bucket creations and deletions have been resumed.
    ///
    /// # Errors
    /// When the directory cannot be read or written, or holds what this version does not know.
    pub async fn open(options: CatalogueOptions) -> Result<Self, OpenError> {
        let _ = options;
        todo!()
    }

    /// Makes a change and waits until it is durable and applied. The group is found from the
    /// command. Object commands that meet a stale epoch or a frozen bucket are tried again with
    /// the bucket as it is now; every other rejection is the caller's. Dropping the future does
    /// not take the command back.
    ///
    /// # Errors
    /// When the command was rejected, or when too many wait already, or when the catalogue stops.
    pub async fn propose(&self, command: Command) -> Result<Reply, ProposeError> {
        let _ = command;
        todo!()
    }

    /// Creates a bucket in every object group.
    ///
    /// # Errors
    /// When the name is taken or the owner has too many.
    pub async fn create_bucket(&self, bucket: NewBucket) -> Result<Arc<Bucket>, CreateBucketError> {
        let _ = bucket;
        todo!()
    }

    /// Deletes an empty bucket. Uploads in progress go with it.
    ///
    /// # Errors
    /// When there is none or it is not empty.
    pub async fn delete_bucket(&self, name: &BucketName) -> Result<(), DeleteBucketError> {
        let _ = name;
        todo!()
    }

    /// The bucket `name`, unless it is still being created.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        let _ = name;
        todo!()
    }

    /// At most `max` buckets of `owner` (or of all owners), by name, beginning after `after`.
    #[must_use]
    pub fn buckets(&self, owner: Option<&str>, after: Option<&str>, max: usize) -> Vec<Arc<Bucket>> {
        let _ = (owner, after, max);
        todo!()
    }

    /// The current version of `key`: one point read.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn object(&self, bucket: BucketId, key: &ObjectKey) -> Result<Option<ObjectVersion>, ReadError> {
        let _ = (bucket, key);
        todo!()
    }

    /// A reader for scans; it holds the state of each group open, so keep it for one request.
    #[must_use]
    pub fn reader(&self) -> Reader {
        todo!()
    }

    /// The upload `body` of `key`.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn upload(&self, bucket: BucketId, key: &ObjectKey, body: BodyId) -> Result<Option<Upload>, ReadError> {
        let _ = (bucket, key, body);
        todo!()
    }

    /// A part with all its extents, of an upload or of the object that it became.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn part(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
        number: PartNumber,
    ) -> Result<Option<Part>, ReadError> {
        let _ = (bucket, key, body, number);
        todo!()
    }

    /// What a completed upload answered, if the current version of `key` is still its body.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn completed(&self, bucket: BucketId, key: &ObjectKey, body: BodyId) -> Result<Completed, ReadError> {
        let _ = (bucket, key, body);
        todo!()
    }

    /// A body id that was never given before.
    ///
    /// # Errors
    /// When a new range of ids had to be leased and could not be.
    pub async fn body_id(&self) -> Result<BodyId, ProposeError> {
        todo!()
    }

    /// What a bucket holds, summed over its groups.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn usage(&self, bucket: BucketId) -> Result<BucketUsage, ReadError> {
        let _ = bucket;
        todo!()
    }

    /// What is referenced in a segment, summed over the groups.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn segment_usage(&self, segment: SegmentId) -> Result<SegmentUsage, ReadError> {
        let _ = segment;
        todo!()
    }

    /// All segments, by id.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn segments(&self) -> Result<Vec<SegmentRecord>, ReadError> {
        todo!()
    }

    /// A segment in short form, from memory.
    #[must_use]
    pub fn segment(&self, id: SegmentId) -> Option<SegmentSummary> {
        let _ = id;
        todo!()
    }

    /// An access key, from memory.
    #[must_use]
    pub fn credential(&self, access_key: &str) -> Option<Arc<Credential>> {
        let _ = access_key;
        todo!()
    }

    /// All access keys, in order.
    #[must_use]
    pub fn credentials(&self) -> Vec<Arc<Credential>> {
        todo!()
    }

    /// Figures for `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> CatalogueMetrics {
        todo!()
    }

    /// Stops: no new commands, those under way finish, everything is flushed and synced, so that
    /// the next open has nothing to replay. Clones answer [`ProposeError::Stopping`] afterwards.
    pub async fn shutdown(self) {
        let _ = self.inner;
        todo!()
    }
}
