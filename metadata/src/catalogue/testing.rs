//! Helpers of this crate's tests: catalogues in temporary directories, versions to put, and the answers of
//! simulations.

use super::{Catalogue, CatalogueOptions, Durability, NewBucket, ProposeError};
use mlgw_common::clock::ManualClock;
use mlgw_common::{BodyId, BucketName, ObjectKey, SplitKeys, Timestamp};
use mlgw_formats::command::{Command, Conditions, DeleteObject, ObjectChange, PutObject, Reply};
use mlgw_formats::schema::{Bucket, Extent, ObjectVersion};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

pub(crate) const NOW: Timestamp = Timestamp(1_700_000_000_000);

pub(crate) fn options(dir: &Path) -> CatalogueOptions {
    let clock = Arc::new(ManualClock::new(NOW));
    CatalogueOptions {
        durability: Durability::Full,
        fatal: Arc::new(|why| tracing::error!(why, "fatal")),
        ..CatalogueOptions::new(dir.to_owned(), clock)
    }
}

/// The warnings and errors that are logged while it is the subscriber.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoggedWarnings(Arc<Mutex<Vec<String>>>);

impl LoggedWarnings {
    /// Returns the lines since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Subscriber for LoggedWarnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Vec::new();
        event.record(&mut |field: &Field, value: &dyn Debug| fields.push(format!("{field}={value:?}")));
        self.0.lock().push(fields.join(" "));
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Outcome of a command in a simulation, once its proposer has it.
pub(crate) struct SimAnswer<T>(Arc<Mutex<Option<Result<T, ProposeError>>>>);

impl<T> Default for SimAnswer<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for SimAnswer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> SimAnswer<T> {
    /// Gives the proposer an outcome, unless it has one.
    pub(crate) fn give(&self, outcome: Result<T, ProposeError>) {
        self.0.lock().get_or_insert(outcome);
    }

    /// True if the proposer has an outcome.
    pub(crate) fn is_given(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl<T: Clone> Future for SimAnswer<T> {
    type Output = Result<T, ProposeError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.lock().clone().map_or(Poll::Pending, Poll::Ready)
    }
}

pub(crate) fn name(name: &str) -> BucketName {
    BucketName::new(name).unwrap()
}

pub(crate) fn key(key: &str) -> ObjectKey {
    ObjectKey::new(key).unwrap()
}

pub(crate) async fn bucket(catalogue: &Catalogue, bucket: &str) -> Arc<Bucket> {
    catalogue.create_bucket(new_bucket(bucket)).await.unwrap()
}

pub(crate) fn new_bucket(bucket: &str) -> NewBucket {
    let (name, owner, region) = (name(bucket), "o".to_owned(), String::new());
    NewBucket { name, owner, region, binding: None, split_keys: SplitKeys::default() }
}

pub(crate) fn extent(segment: u64, bytes: u64) -> Extent {
    Extent {
        segment,
        offset: 64,
        head_bytes: 80,
        stored_bytes: bytes,
        logical_bytes: bytes,
        ..Extent::default()
    }
}

pub(crate) fn version(body: BodyId, size: u64) -> ObjectVersion {
    ObjectVersion {
        body_id: body.0,
        size,
        modified_ms: NOW.0,
        etag: format!("{:032x}", body.0),
        owner: "o".into(),
        extents: if size > 0 { vec![extent(1, size)] } else { vec![] },
        ..ObjectVersion::default()
    }
}

pub(crate) fn put(version: ObjectVersion) -> ObjectChange {
    ObjectChange::Put(PutObject { version, pages: vec![], ..PutObject::default() })
}

pub(crate) fn delete() -> ObjectChange {
    ObjectChange::Delete(DeleteObject { conditions: Conditions::default() })
}

pub(crate) async fn do_put(catalogue: &Catalogue, bucket: &Bucket, object: &str, size: u64) -> Reply {
    let body = catalogue.body_id().await.unwrap();
    let command = Command::object(bucket, &key(object), NOW, put(version(body, size)));
    catalogue.propose(command).await.unwrap()
}
