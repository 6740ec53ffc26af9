//! PutObject, DeleteObject and DeleteObjects of buckets in write-back mode, and reads of objects that their
//! origins do not have yet.
//!
//! Invariant: a success means that the write is durable here and visible to every later request.
//! Conditional writes, and writes that have no record here, go through to the origin after all writes that
//! were acknowledged before.

use super::RemoteBackedBucket;
use super::write_through::{CONDITIONS, delete_many, delete_one};
use crate::delete;
use crate::get::{answer_get, answer_head_request};
use crate::object_headers::{self, check_metadata};
use crate::put::put_response;
use crate::put::{BodySource, writer};
use crate::request::AuthenticatedRequest;
use crate::response::{S3Response, S3Result, empty};
use crate::{Gateway, IncomingBody};
use http::{HeaderValue, StatusCode, header};
use mlgw_body::RequestBody;
use mlgw_cache::writeback::record::{Timelines, WRITE_MARK_NAME, WriteFacts, WriteMark, record_name};
use mlgw_cache::writeback::{DirtyShare, KeyTurn, WriteBackQueue, write_of_record};
use mlgw_common::limits::LOOKUP_RETRIES_MAX;
use mlgw_common::{BodyId, ObjectKey};
use mlgw_formats::command::{Conditions, PutObject};
use mlgw_formats::schema::{ObjectVersion, Pair};
use mlgw_objects::ResourceShortage;
use mlgw_objects::body_target::BodyTarget;
use mlgw_objects::put::{Description, UncommittedBody, put_of};
use mlgw_objects::read::FoundObject;
use mlgw_wire::elements::ObjectToDelete;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::object_errors::taken_over;
use mlgw_wire::operation::Operation;
use mlgw_wire::target::check_version;
use std::sync::Arc;
use std::time::Duration;

/// Time that a request which goes through waits for the writes before it. Clients give up after a minute.
const THROUGH_WAIT_MAX: Duration = Duration::from_secs(30);
/// Number of looks for a record that the catalogue no longer has while the queue still lists its write, and
/// the delay between looks. The queue forgets the write shortly after.
const RECORD_LOOKUPS_MAX: usize = 1000;
const RECORD_LOOKUP_INTERVAL: Duration = Duration::from_millis(1);

/// True if a PutObject is queued here; otherwise it goes through.
pub(super) fn can_queue(gateway: &Gateway, request: &AuthenticatedRequest<'_>) -> bool {
    let length = ["x-amz-decoded-content-length", header::CONTENT_LENGTH.as_str()]
        .iter()
        .find_map(|name| request.head.headers.get(*name)?.to_str().ok()?.trim().parse().ok());
    // An empty body may be sent without a length.
    !is_conditional(request) && gateway.writeback.fits(length.unwrap_or(0))
}

/// True if a request has conditions, which only the origin can evaluate.
pub(super) fn is_conditional(request: &AuthenticatedRequest<'_>) -> bool {
    let of_delete = ["x-amz-if-match-size", "x-amz-if-match-last-modified-time"];
    CONDITIONS.iter().chain(&of_delete).any(|name| request.head.headers.contains_key(*name))
}

/// PutObject.
///
/// # Errors
/// Those of S3; `SlowDown` if too many bytes stay dirty for too long.
pub(super) async fn put_object(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    queue: &Arc<WriteBackQueue>,
    upload: IncomingBody<'_>,
) -> S3Result {
    let (key, after) = (request.key()?, queue.acked());
    let description = object_headers::parse_description(request)?;
    let body = BodySource(RequestBody::new(
        upload.incoming,
        request.head,
        upload.payload,
        gateway.body_terms(None),
    )?);
    let bytes = body.0.decoded_length().ok_or_else(|| S3Error::new(Code::MissingContentLength))?;
    let id = gateway.objects.catalogue.body_id().await?;
    check_metadata_with_mark(&description, remote_backed, id)?;
    // A write that is not at its origin yet counts toward the quotas of its bucket and writer, as any
    // object.
    gateway.objects.check_quota(
        &remote_backed.bucket,
        &record_name(id),
        request.principal.payer(),
        Some(bytes),
    )?;
    let place = reserve_dirty(gateway, bytes).await?;
    let name = record_name(id);
    let compression = gateway.compression(request, &remote_backed.bucket, key, Some(bytes), &description);
    let target = BodyTarget { bucket: &remote_backed.bucket, key: &name, part: None };
    let stored = gateway.objects.store(request.memory, target, body, compression).await?;
    let object = stored.object(description, writer(&request.principal), request.now.as_millis());
    let answer = put_response(&object);
    let facts = WriteFacts::of_write(key.clone(), after, queue.known_etag(key));
    commit_put(gateway, remote_backed, queue, (name, facts, place), object, Some(stored)).await?;
    Ok(answer)
}

/// Checks that the metadata leaves room for the mark that is added at the origin.
pub(super) fn check_metadata_with_mark(
    description: &Description,
    remote_backed: &RemoteBackedBucket,
    id: BodyId,
) -> Result<(), S3Error> {
    let none = Timelines::default();
    let timelines = remote_backed.queue.as_deref().map_or(&none, WriteBackQueue::timelines);
    // With an ETag of the maximum length.
    let mark = WriteMark::new(&remote_backed.bucket, timelines, id, &"0".repeat(34));
    let with_mark: Vec<Pair> =
        description.metadata.iter().cloned().chain([Pair::new(WRITE_MARK_NAME, mark.text())]).collect();
    check_metadata(&with_mark)
}

/// Reserves a share of the dirty budget for a write of `bytes` bytes.
///
/// # Errors
/// `SlowDown` if none becomes free for too long.
pub(super) async fn reserve_dirty(gateway: &Gateway, bytes: u64) -> Result<DirtyShare, S3Error> {
    gateway.writeback.acquire_share(bytes).await.ok_or_else(|| {
        gateway.objects.metrics.throttle(ResourceShortage::Dirty);
        ResourceShortage::Dirty.into()
    })
}

/// Name of a write's record, facts about the write, and its share of the dirty budget.
pub(super) type NewWrite = (ObjectKey, WriteFacts, DirtyShare);

/// Makes a write of at most one body durable and adds it to the queue.
async fn commit_put(
    gateway: &Arc<Gateway>,
    remote_backed: &RemoteBackedBucket,
    queue: &Arc<WriteBackQueue>,
    new: NewWrite,
    mut object: ObjectVersion,
    stored: Option<UncommittedBody>,
) -> Result<(), S3Error> {
    let (gateway, bucket, name) = (gateway.clone(), remote_backed.bucket.clone(), new.0.clone());
    new.1.put(&mut object.headers);
    assert_eq!(new.1.is_delete, stored.is_none(), "a write has a body, and a delete has none");
    // A delete takes a record here for a while, which no quota may refuse.
    let is_exempt = new.1.is_delete;
    let durable = async move {
        let known = object.clone();
        // Keeps the bytes allocated until the record names them.
        let (extents, _stored) = match stored {
            Some(mut stored) => (std::mem::take(&mut stored.extents), Some(stored)),
            None => (Vec::new(), None),
        };
        let put = PutObject { is_exempt, ..put_of(object, extents, Conditions::default()) };
        let seq = gateway.objects.propose_put(&bucket, &name, put).await?;
        Ok((known, seq))
    };
    commit(remote_backed, queue, new, None, durable).await.map(drop)
}

/// Checks that no other node of the cluster has taken the queue over.
fn check_served_here(queue: &WriteBackQueue) -> Result<(), S3Error> {
    match queue.bucket_at_origin().is_served_here() {
        true => Ok(()),
        false => Err(taken_over()),
    }
}

/// Makes a write durable and adds it to the queue. Both complete even if the client disconnects: a durable
/// record that is not in the queue would be found only at the next start, and be ordered after writes made
/// meanwhile. `turn` is the turn of the key, if the caller holds it already.
///
/// If another node of the cluster may have read the records before this one was there, the write is not
/// acknowledged: that node would not send it.
pub(super) async fn commit(
    remote_backed: &RemoteBackedBucket,
    queue: &Arc<WriteBackQueue>,
    (name, facts, place): NewWrite,
    turn: Option<KeyTurn>,
    durable: impl Future<Output = Result<(ObjectVersion, u64), S3Error>> + Send + 'static,
) -> Result<ObjectVersion, S3Error> {
    let (queue, pass) = (queue.clone(), remote_backed.write_pass.clone());
    let committed = tokio::spawn(async move {
        let _pass = pass;
        let _turn = match turn {
            Some(turn) => turn,
            None => queue.key_turn(&facts.key).await,
        };
        check_served_here(&queue)?;
        let (object, seq) = durable.await?;
        queue.add(write_of_record(name, facts, seq, &object, Some(place)));
        check_served_here(&queue)?;
        Ok(object)
    });
    committed.await.map_err(S3Error::internal)?
}

/// DeleteObject.
///
/// # Errors
/// Those of S3; `SlowDown` if too many bytes stay dirty for too long.
pub(super) async fn delete_object(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    queue: &Arc<WriteBackQueue>,
) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    delete(gateway, request, remote_backed, queue, request.key()?.clone(), queue.acked()).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn delete(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    queue: &Arc<WriteBackQueue>,
    key: ObjectKey,
    after: u64,
) -> Result<(), S3Error> {
    let place = reserve_dirty(gateway, 0).await?;
    let id = gateway.objects.catalogue.body_id().await?;
    let object = ObjectVersion {
        body_id: id.get(),
        modified_ms: request.now.as_millis(),
        owner: request.principal.owner.clone(),
        ..ObjectVersion::default()
    };
    let known_etag = queue.known_etag(&key);
    let facts = WriteFacts::of_deletion(key, after, known_etag);
    commit_put(gateway, remote_backed, queue, (record_name(id), facts, place), object, None).await
}

/// DeleteObjects. Keys with conditions are deleted at the origin.
///
/// # Errors
/// Those of S3; the error of a single key is in the response's document.
pub(super) async fn delete_objects(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    queue: &Arc<WriteBackQueue>,
    upload: IncomingBody<'_>,
) -> S3Result {
    let after = queue.acked();
    let document = delete::read_document(request, upload).await?;
    // Collected eagerly: the compiler does not find the futures of a borrowing closure to be `Send`.
    let deletes: Vec<_> = document
        .objects
        .iter()
        .map(|entry| delete_entry(gateway, request, remote_backed, queue, entry, after))
        .collect();
    let results = delete_many(&document, deletes).await;
    delete::answer(&document, gateway, request, results)
}

async fn delete_entry(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    queue: &Arc<WriteBackQueue>,
    entry: &ObjectToDelete,
    after: u64,
) -> Result<(), S3Error> {
    let key = delete::key_of(entry, request)?;
    if [&entry.etag, &entry.size, &entry.modified].iter().all(|condition| condition.is_none()) {
        return delete(gateway, request, remote_backed, queue, key, after).await;
    }
    let _turn = condition_turn(queue, &key).await?;
    wait_to_change(remote_backed, Some(&key)).await?;
    delete_one(request, remote_backed, entry).await
}

/// Waits for the turn to evaluate the conditions of a write of a key.
///
/// # Errors
/// `OperationAborted` if that takes too long.
pub(super) async fn condition_turn(queue: &WriteBackQueue, key: &ObjectKey) -> Result<KeyTurn, S3Error> {
    let turn = mlgw_common::time::timeout(THROUGH_WAIT_MAX, queue.condition_turn(key)).await;
    turn.map_err(|_| {
        S3Error::new(Code::OperationAborted).message(
            "A conflicting conditional operation is currently in progress against this resource. Try \
                 again.",
        )
    })
}

/// Waits until a request may go through: the origin has all writes that were acknowledged before, and none
/// that it did not answer in time can undo the requested change. Requests that neither show nor change the
/// namespace do not wait. Returns the turn that the caller holds until its request is done.
///
/// # Errors
/// `ServiceUnavailable` if that takes too long; `OperationAborted` while the key has a conflict that an
/// operator has to resolve.
pub(super) async fn wait_before_origin(
    request: &AuthenticatedRequest<'_>,
    operation: Operation,
    remote_backed: &RemoteBackedBucket,
) -> Result<Option<KeyTurn>, S3Error> {
    let turn = match (&remote_backed.queue, &request.target.key) {
        (Some(queue), Some(key)) if is_conditional(request) => Some(condition_turn(queue, key).await?),
        _ => None,
    };
    match operation {
        Operation::CreateMultipartUpload
        | Operation::UploadPart
        | Operation::UploadPartCopy
        | Operation::AbortMultipartUpload => {}
        Operation::GetObjectTagging | Operation::GetObjectAttributes => {
            wait_for_queue(remote_backed, request.target.key.as_ref()).await?;
        }
        _ => wait_to_change(remote_backed, request.target.key.as_ref()).await?,
    }
    Ok(turn)
}

/// Waits until the origin has all writes, and no unanswered write of the key can undo a change of it.
async fn wait_to_change(remote_backed: &RemoteBackedBucket, key: Option<&ObjectKey>) -> Result<(), S3Error> {
    let waited = async {
        wait_for_queue(remote_backed, key).await?;
        let queue_of_key = remote_backed.queue.as_ref().zip(key);
        // Not a sleep of zero, which takes up to a millisecond.
        if let Some(pause) =
            queue_of_key.and_then(|(queue, key)| queue.bucket_at_origin().unanswered_for(key))
        {
            mlgw_common::time::sleep(pause).await;
        }
        Ok::<(), S3Error>(())
    };
    let waited = mlgw_common::time::timeout(THROUGH_WAIT_MAX, waited).await;
    waited.unwrap_or_else(|_| Err(queue_timeout_error(remote_backed)))
}

async fn wait_for_queue(remote_backed: &RemoteBackedBucket, key: Option<&ObjectKey>) -> Result<(), S3Error> {
    let Some(queue) = &remote_backed.queue else { return Ok(()) };
    if mlgw_common::time::timeout(THROUGH_WAIT_MAX, queue.wait_until_sent(queue.acked())).await.is_err() {
        return Err(queue_timeout_error(remote_backed));
    }
    match key.filter(|key| queue.is_contested(key)) {
        None => Ok(()),
        Some(key) => Err(S3Error::new(Code::OperationAborted).message(format!(
            "Another client wrote {:?} at the upstream {:?} before this server had sent its own write. \
             Write the object again or delete it, or run `mlgw bucket flush {}`.",
            key.as_str(),
            remote_backed.binding.upstream,
            remote_backed.bucket.name
        ))),
    }
}

fn queue_timeout_error(remote_backed: &RemoteBackedBucket) -> S3Error {
    let why = format!(
        "The request goes to the upstream {:?}, which does not have all earlier writes yet. Try again.",
        remote_backed.binding.upstream
    );
    S3Error::new(Code::ServiceUnavailable).message(why)
}

/// GetObject of an object that the origin does not have yet; `None` if the origin is up to date.
///
/// # Errors
/// Those of S3; `SlowDown` if the object is written again during each attempt.
pub(super) async fn get_object(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> Result<Option<S3Response>, S3Error> {
    for _ in 0..LOOKUP_RETRIES_MAX {
        let Some(found) = find(gateway, request, remote_backed).await? else { return Ok(None) };
        match answer_get(gateway, request, &found).await {
            // The origin has it now, or it was written again.
            Err(error) if error.is_missing() => {}
            done => return Ok(Some(with_hit_header(done?))),
        }
    }
    Err(attempts_exhausted(gateway))
}

/// Returns the refusal of a request during whose attempts the object was written again each time.
pub(super) fn attempts_exhausted(gateway: &Gateway) -> S3Error {
    gateway.objects.metrics.throttle(ResourceShortage::WriteBack);
    ResourceShortage::WriteBack.into()
}

/// HeadObject of an object that the origin does not have yet; `None` if the origin is up to date.
///
/// # Errors
/// Those of S3.
pub(super) async fn head_object(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> Result<Option<S3Response>, S3Error> {
    for _ in 0..LOOKUP_RETRIES_MAX {
        let Some(found) = find(gateway, request, remote_backed).await? else { return Ok(None) };
        match answer_head_request(gateway, request, &found) {
            Err(error) if error.is_missing() => {}
            done => return Ok(Some(done?)),
        }
    }
    Err(attempts_exhausted(gateway))
}

fn with_hit_header(mut response: S3Response) -> S3Response {
    response.headers_mut().insert("x-mlgw-cache", HeaderValue::from_static("hit; tier=hot"));
    response
}

async fn find(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> Result<Option<FoundObject>, S3Error> {
    check_version(request.query.raw("versionId"))?;
    find_dirty(gateway, request.key()?, remote_backed).await
}

/// Returns the object of a key if the origin does not have it yet; `None` if the origin is up to date.
///
/// # Errors
/// `NoSuchKey` if the key is deleted.
pub(super) async fn find_dirty(
    gateway: &Gateway,
    key: &ObjectKey,
    remote_backed: &RemoteBackedBucket,
) -> Result<Option<FoundObject>, S3Error> {
    let Some(queue) = &remote_backed.queue else { return Ok(None) };
    for _ in 0..RECORD_LOOKUPS_MAX {
        let Some(write) = queue.latest(key) else { return Ok(None) };
        if write.facts.is_delete {
            return Err(S3Error::new(Code::NoSuchKey).field("Key", key.as_str()));
        }
        if let Some(mut object) = gateway.objects.current(remote_backed.bucket.bucket_id(), &write.name)? {
            WriteFacts::take(&mut object.headers);
            return Ok(Some(FoundObject {
                bucket: remote_backed.bucket.clone(),
                key: write.name.clone(),
                object,
            }));
        }
        mlgw_common::time::sleep(RECORD_LOOKUP_INTERVAL).await;
    }
    Err(S3Error::internal("the record of a dirty object is missing"))
}
