//! PutObject, DeleteObject and DeleteObjects of buckets in write-back mode, and reads of objects that their
//! origins do not have yet.
//!
//! Invariant: a success means that the write is durable here and visible to every later request.
//! Conditional writes, and writes that have no record here, go through to the origin after all writes that
//! were acknowledged before.

use super::Fronted;
use super::write::{CONDITIONS, delete_one, many};
use crate::delete;
use crate::get::{GetError, answer_get, answer_head_request};
use crate::object_headers::{self, check_metadata};
use crate::put::put_answer;
use crate::put::{BodySource, writer};
use crate::request::Request;
use crate::response::{S3Response, S3Result, empty};
use crate::{Gateway, Upload};
use http::{HeaderValue, StatusCode, header};
use mlgw_body::Body;
use mlgw_cache::writeback::record::{Facts, MARK, Mark, Timelines, name_of};
use mlgw_cache::writeback::{Place, Queue, Turn, write_of};
use mlgw_common::limits::LOOK_AGAIN_MAX;
use mlgw_common::{BodyId, ObjectKey};
use mlgw_formats::command::{Conditions, PutObject};
use mlgw_formats::schema::{ObjectVersion, Pair};
use mlgw_objects::Shortage;
use mlgw_objects::put::{Description, Stored, Target, put_of};
use mlgw_objects::read::Found;
use mlgw_objects::reader::ReadError;
use mlgw_wire::elements::Doomed;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::operation::Operation;
use mlgw_wire::target::check_version;
use std::sync::Arc;
use std::time::Duration;

/// Time that a request which goes through waits for the writes before it. Clients give up after a minute.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of looks for a record that the catalogue no longer has while the queue still lists its write, and
/// the delay between looks. The queue forgets the write shortly after.
const LOOKS: usize = 1000;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// True if a PutObject is queued here; otherwise it goes through.
pub(super) fn takes(gateway: &Gateway, request: &Request<'_>) -> bool {
    let length = ["x-amz-decoded-content-length", header::CONTENT_LENGTH.as_str()]
        .iter()
        .find_map(|name| request.head.headers.get(*name)?.to_str().ok()?.trim().parse().ok());
    // An empty body may be sent without a length.
    !is_conditional(request) && gateway.writeback.fits(length.unwrap_or(0))
}

/// True if a request has conditions, which only the origin can evaluate.
pub(super) fn is_conditional(request: &Request<'_>) -> bool {
    let of_delete = ["x-amz-if-match-size", "x-amz-if-match-last-modified-time"];
    CONDITIONS.iter().chain(&of_delete).any(|name| request.head.headers.contains_key(*name))
}

/// PutObject.
///
/// # Errors
/// Those of S3; `SlowDown` if too many bytes stay dirty for too long.
pub(super) async fn put_object(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
    queue: &Arc<Queue>,
    upload: Upload<'_>,
) -> S3Result {
    let (key, after) = (request.key()?, queue.acked());
    let description = object_headers::description(request)?;
    let body =
        BodySource(Body::new(upload.incoming, request.head, upload.payload, gateway.body_terms(None))?);
    let bytes = body.0.decoded_length().ok_or_else(|| S3Error::new(Code::MissingContentLength))?;
    let id = gateway.objects.catalogue.body_id().await?;
    check_with_mark(&description, fronted, id)?;
    // A write that is not at its origin yet counts toward the quotas of its bucket and writer, as any
    // object.
    gateway.objects.check_quota(&fronted.bucket, &name_of(id), request.principal.payer(), Some(bytes))?;
    let place = place(gateway, bytes).await?;
    let name = name_of(id);
    let compression = gateway.compression(request, &fronted.bucket, key, Some(bytes), &description);
    let target = Target { bucket: &fronted.bucket, key: &name, part: None };
    let stored = gateway.objects.store(request.memory, target, body, compression).await?;
    let object = stored.object(description, writer(&request.principal), request.now.as_millis());
    let answer = put_answer(&object);
    let facts = Facts::of_write(key.clone(), after, false, queue.known_etag(key));
    put(gateway, fronted, queue, (name, facts, place), object, Some(stored)).await?;
    Ok(answer)
}

/// Checks that the metadata leaves room for the mark that is added at the origin.
pub(super) fn check_with_mark(
    description: &Description,
    fronted: &Fronted,
    id: BodyId,
) -> Result<(), S3Error> {
    let none = Timelines::default();
    let timelines = fronted.queue.as_deref().map_or(&none, Queue::timelines);
    // With an ETag of the maximum length.
    let mark = Mark::new(&fronted.bucket, timelines, id, &"0".repeat(34));
    let with_mark: Vec<Pair> =
        description.metadata.iter().cloned().chain([Pair::new(MARK, mark.text())]).collect();
    check_metadata(&with_mark)
}

/// Reserves a share of the dirty budget for a write of `bytes` bytes.
///
/// # Errors
/// `SlowDown` if none becomes free for too long.
pub(super) async fn place(gateway: &Gateway, bytes: u64) -> Result<Place, S3Error> {
    gateway.writeback.place(bytes).await.ok_or_else(|| {
        gateway.objects.metrics.throttle(Shortage::Dirty);
        Shortage::Dirty.into()
    })
}

/// Name of a write's record, facts about the write, and its share of the dirty budget.
pub(super) type New = (ObjectKey, Facts, Place);

/// Makes a write of at most one body durable and adds it to the queue.
async fn put(
    gateway: &Arc<Gateway>,
    fronted: &Fronted,
    queue: &Arc<Queue>,
    new: New,
    mut object: ObjectVersion,
    stored: Option<Stored>,
) -> Result<(), S3Error> {
    let (gateway, bucket, name) = (gateway.clone(), fronted.bucket.clone(), new.0.clone());
    new.1.put(&mut object.headers);
    // A delete takes a record here for a while, which no quota may refuse.
    let is_exempt = new.1.deleted;
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
    commit(fronted, queue, new, None, durable).await.map(drop)
}

/// Makes a write durable and adds it to the queue. Both complete even if the client disconnects: a durable
/// record that is not in the queue would be found only at the next start, and be ordered after writes made
/// meanwhile. `turn` is the turn of the key, if the caller holds it already.
pub(super) async fn commit(
    fronted: &Fronted,
    queue: &Arc<Queue>,
    (name, facts, place): New,
    turn: Option<Turn>,
    durable: impl Future<Output = Result<(ObjectVersion, u64), S3Error>> + Send + 'static,
) -> Result<ObjectVersion, S3Error> {
    let (queue, pass) = (queue.clone(), fronted.pass.clone());
    let committed = tokio::spawn(async move {
        let _pass = pass;
        let _turn = match turn {
            Some(turn) => turn,
            None => queue.turn(&facts.key).await,
        };
        let (object, seq) = durable.await?;
        queue.add(write_of(name, facts, seq, &object, Some(place)));
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
    request: &Request<'_>,
    fronted: &Fronted,
    queue: &Arc<Queue>,
) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    delete(gateway, request, fronted, queue, request.key()?.clone(), queue.acked()).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn delete(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
    queue: &Arc<Queue>,
    key: ObjectKey,
    after: u64,
) -> Result<(), S3Error> {
    let place = place(gateway, 0).await?;
    let id = gateway.objects.catalogue.body_id().await?;
    let object = ObjectVersion {
        body_id: id.get(),
        modified_ms: request.now.as_millis(),
        owner: request.principal.owner.clone(),
        ..ObjectVersion::default()
    };
    let knew = queue.known_etag(&key);
    let facts = Facts::of_write(key, after, true, knew);
    put(gateway, fronted, queue, (name_of(id), facts, place), object, None).await
}

/// DeleteObjects. Keys with conditions are deleted at the origin.
///
/// # Errors
/// Those of S3; the error of a single key is in the answer's document.
pub(super) async fn delete_objects(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
    queue: &Arc<Queue>,
    upload: Upload<'_>,
) -> S3Result {
    let after = queue.acked();
    let document = delete::read_document(request, upload).await?;
    // Collected eagerly: the compiler does not find the futures of a borrowing closure to be `Send`.
    let deletes: Vec<_> = document
        .objects
        .iter()
        .map(|doomed| delete_doomed(gateway, request, fronted, queue, doomed, after))
        .collect();
    let results = many(&document, deletes).await;
    delete::answer(&document, gateway, request, results)
}

async fn delete_doomed(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
    queue: &Arc<Queue>,
    doomed: &Doomed,
    after: u64,
) -> Result<(), S3Error> {
    let key = delete::key_of(doomed, request)?;
    if [&doomed.etag, &doomed.size, &doomed.modified].iter().all(|condition| condition.is_none()) {
        return delete(gateway, request, fronted, queue, key, after).await;
    }
    let _turn = turn_of_conditions(queue, &key).await?;
    wait(fronted, Some(&key)).await?;
    delete_one(request, fronted, doomed).await
}

/// Waits for the turn to evaluate the conditions of a write of a key.
///
/// # Errors
/// `OperationAborted` if that takes too long.
pub(super) async fn turn_of_conditions(queue: &Queue, key: &ObjectKey) -> Result<Turn, S3Error> {
    let turn = tokio::time::timeout(PATIENCE, queue.turn_of_conditions(key)).await;
    turn.map_err(|_| {
        S3Error::new(Code::OperationAborted)
            .message("Another write of this key that has conditions is under way.")
    })
}

/// Waits until a request may go through: the origin has all writes that were acknowledged before. Requests
/// that neither show nor change the namespace do not wait. Returns the turn that the caller holds until its
/// request is done.
///
/// # Errors
/// `ServiceUnavailable` if that takes too long; `OperationAborted` while the key has a conflict that an
/// operator has to resolve.
pub(super) async fn through(
    request: &Request<'_>,
    operation: Operation,
    fronted: &Fronted,
) -> Result<Option<Turn>, S3Error> {
    let turn = match (&fronted.queue, &request.target.key) {
        (Some(queue), Some(key)) if is_conditional(request) => Some(turn_of_conditions(queue, key).await?),
        _ => None,
    };
    match operation {
        Operation::CreateMultipartUpload
        | Operation::UploadPart
        | Operation::UploadPartCopy
        | Operation::AbortMultipartUpload => {}
        _ => wait(fronted, request.target.key.as_ref()).await?,
    }
    Ok(turn)
}

async fn wait(fronted: &Fronted, key: Option<&ObjectKey>) -> Result<(), S3Error> {
    let Some(queue) = &fronted.queue else { return Ok(()) };
    if tokio::time::timeout(PATIENCE, queue.through(queue.acked())).await.is_err() {
        return Err(too_long(fronted));
    }
    match key.filter(|key| queue.is_contested(key)) {
        None => Ok(()),
        Some(key) => Err(S3Error::new(Code::OperationAborted).message(format!(
            "Somebody else wrote {:?} at the upstream {:?} before what was written here was there. Write it anew or delete it, or see `mlgw bucket flush {}`.",
            key.as_str(), fronted.binding.upstream, fronted.bucket.name
        ))),
    }
}

fn too_long(fronted: &Fronted) -> S3Error {
    let why = format!(
        "This goes through to the upstream {:?}, which has not everything yet that was written before.",
        fronted.binding.upstream
    );
    S3Error::new(Code::ServiceUnavailable).message(why)
}

/// GetObject of an object that the origin does not have yet; `None` if the origin is up to date.
///
/// # Errors
/// Those of S3.
pub(super) async fn get_object(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
) -> Result<Option<S3Response>, S3Error> {
    for _ in 0..LOOK_AGAIN_MAX {
        let Some(found) = find(gateway, request, fronted).await? else { return Ok(None) };
        match answer_get(gateway, request, &found).await {
            // The origin has it now, or it was written again.
            Err(GetError::Read(ReadError::Missing(_))) => {}
            done => return Ok(Some(from_here(done?))),
        }
    }
    Err(S3Error::new(Code::SlowDown))
}

/// HeadObject of an object that the origin does not have yet; `None` if the origin is up to date.
///
/// # Errors
/// Those of S3.
pub(super) async fn head_object(
    gateway: &Arc<Gateway>,
    request: &Request<'_>,
    fronted: &Fronted,
) -> Result<Option<S3Response>, S3Error> {
    let Some(found) = find(gateway, request, fronted).await? else { return Ok(None) };
    answer_head_request(gateway, request, &found).map(Some)
}

fn from_here(mut response: S3Response) -> S3Response {
    response.headers_mut().insert("x-mlgw-cache", HeaderValue::from_static("hit; tier=hot"));
    response
}

async fn find(gateway: &Gateway, request: &Request<'_>, fronted: &Fronted) -> Result<Option<Found>, S3Error> {
    check_version(request.query.raw("versionId"))?;
    find_key(gateway, request.key()?, fronted).await
}

/// Returns the object of a key if the origin does not have it yet; `None` if the origin is up to date.
///
/// # Errors
/// `NoSuchKey` if the key is deleted.
pub(super) async fn find_key(
    gateway: &Gateway,
    key: &ObjectKey,
    fronted: &Fronted,
) -> Result<Option<Found>, S3Error> {
    let Some(queue) = &fronted.queue else { return Ok(None) };
    for _ in 0..LOOKS {
        let Some(write) = queue.latest(key) else { return Ok(None) };
        if write.facts.deleted {
            return Err(S3Error::new(Code::NoSuchKey).field("Key", key.as_str()));
        }
        if let Some(mut object) = gateway.objects.current(fronted.bucket.bucket_id(), &write.name)? {
            Facts::take(&mut object.headers);
            return Ok(Some(Found { bucket: fronted.bucket.clone(), key: write.name.clone(), object }));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(S3Error::internal("the record of a dirty object is gone"))
}
