//! Lookup of objects whose metadata is unknown or expired: one request to the origin, however many callers
//! need it, and a shared result.

use super::fetch::{StartedFetch, differ_in_seconds};
use super::write_order::WriteTicket;
use super::{CacheState, CachedBucket, OpenedObject, block};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_formats::schema::CopyRecord;
use mlgw_remote::origin::{GetQuery, ObjectPart, OriginError, OriginFence, weak_validator};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Key of a shared lookup. The flag is set for a lookup of metadata with checksums, which a response with
/// bytes may lack. The ticket separates lookups that began after a write from those that began before it.
type OriginLookupKey = (BucketId, ObjectKey, bool, WriteTicket);
type SharedOriginLookup = Shared<BoxFuture<'static, Result<OriginLookupResult, OriginError>>>;

/// Lookups in flight.
#[derive(Default)]
pub(super) struct OriginLookups(Mutex<HashMap<OriginLookupKey, SharedOriginLookup>>);

/// Result of a lookup.
#[derive(Clone)]
struct OriginLookupResult {
    copy: CopyRecord,
    state: CacheState,
    started: StartedFetch,
}

impl CachedBucket {
    /// Looks an object up at the origin: with the first bytes of `part`, or only its metadata without a part.
    pub(super) async fn look_up(
        &self,
        key: &ObjectKey,
        part: Option<ObjectPart>,
        known: Option<CopyRecord>,
    ) -> Result<OpenedObject, OriginError> {
        let ticket = self.ticket(key);
        let lookup_key = (self.id, key.clone(), part.is_none(), ticket);
        let answer = {
            let mut contacts = self.inner.contacts.0.lock();
            if let Some(answer) = contacts.get(&lookup_key) {
                answer.clone()
            } else if let Some(copy) = self.newer_copy(key, part, known.as_ref()) {
                return Ok(self.opened(copy, CacheState::Hit));
            } else {
                let answer = self.start_lookup(lookup_key.clone(), part, known);
                contacts.insert(lookup_key, answer.clone());
                answer
            }
        };
        let OriginLookupResult { copy, state, started: begun } = answer.await?;
        let StartedFetch { tail, reader_claim: claim, response_tail: rest } = begun;
        Ok(OpenedObject {
            tail,
            response_tail: rest,
            reader_claim: Mutex::new(claim),
            ..self.opened(copy, state)
        })
    }

    /// Returns a ticket, which must be taken before the origin is contacted. It is void while another node
    /// may still change the origin.
    pub(super) fn ticket(&self, key: &ObjectKey) -> WriteTicket {
        let ticket = self.own_writes_ticket(key);
        if self.is_settled() { ticket } else { ticket.voided() }
    }

    /// Returns a ticket that regards the writes of this node only. If the bucket was moved to another origin,
    /// the ticket is void: nothing that the old origin answers is stored.
    pub(super) fn own_writes_ticket(&self, key: &ObjectKey) -> WriteTicket {
        if self.is_current() { self.inner.write_order.ticket(self.id, key) } else { WriteTicket::VOID }
    }

    /// True if no other node can change the origin, also not by a request that it sent before.
    fn is_settled(&self) -> bool {
        !self.is_written || self.inner.fence.get().is_none_or(OriginFence::is_settled)
    }

    /// Returns a future that resolves when the lookup of this key in flight ends; `None` if there is none.
    pub(super) fn lookup_in_flight(
        &self,
        key: &ObjectKey,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let ticket = self.ticket(key);
        let contacts = self.inner.contacts.0.lock();
        let of = |about| contacts.get(&(self.id, key.clone(), about, ticket));
        let answer = of(false).or_else(|| of(true)).cloned()?;
        Some(async move { drop(answer.await) })
    }

    /// Returns metadata that another lookup obtained since `known` was read, for a lookup of `part`; for a
    /// lookup of metadata only, with checksums. A caller that must revalidate does so even if `known` is
    /// fresh.
    fn newer_copy(
        &self,
        key: &ObjectKey,
        part: Option<ObjectPart>,
        known: Option<&CopyRecord>,
    ) -> Option<CopyRecord> {
        let copy = self.inner.copies.find(self.id, key)?;
        let is_new = known.is_none_or(|known| copy.validated_ms > known.validated_ms);
        (is_new && self.is_fresh(&copy) && (copy.with_checksums || part.is_some())).then_some(copy)
    }

    /// Starts a lookup. It continues even if the first caller goes away, because others may wait for it.
    fn start_lookup(
        &self,
        lookup_key: OriginLookupKey,
        part: Option<ObjectPart>,
        known: Option<CopyRecord>,
    ) -> SharedOriginLookup {
        let bucket = self.clone();
        let task = tokio::spawn(async move {
            let answer = bucket.run_lookup(&lookup_key.1, part, known, lookup_key.3).await;
            let removed = bucket.inner.contacts.0.lock().remove(&lookup_key);
            assert!(removed.is_some(), "a lookup in flight is shared until it ends");
            answer
        });
        let joined = task.map(|ended| {
            ended.unwrap_or_else(|stopped| {
                Err(OriginError::Unreachable(format!("the request was cancelled: {stopped}")))
            })
        });
        joined.boxed().shared()
    }

    async fn run_lookup(
        &self,
        key: &ObjectKey,
        part: Option<ObjectPart>,
        known: Option<CopyRecord>,
        ticket: WriteTicket,
    ) -> Result<OriginLookupResult, OriginError> {
        let answer = match part {
            Some(part) => self.fetch_part(key, part, known.as_ref(), ticket).await,
            None => self.fetch_metadata(key, ticket).await,
        };
        match answer {
            Err(OriginError::NoSuchKey) => {
                let now = self.inner.clock.now();
                self.inner.write_order.apply(ticket, self.id, key, now, |holds| {
                    if holds && self.is_settled() {
                        self.inner.copies.forget(self.id, key);
                        self.inner.absent.insert((self.id, key.clone()), now);
                    }
                });
                Err(OriginError::NoSuchKey)
            }
            Err(error) => self.stale_copy(key, known, error),
            other => other,
        }
    }

    /// Returns the known copy although the origin request failed, if it may still be served.
    fn stale_copy(
        &self,
        key: &ObjectKey,
        known: Option<CopyRecord>,
        error: OriginError,
    ) -> Result<OriginLookupResult, OriginError> {
        let Some(known) = known else { return Err(error) };
        // Meanwhile more blocks may have been kept, or the version may have changed.
        let copy = self.inner.copies.find(self.id, key).unwrap_or(known);
        if !self.may_be_stale(&copy, &error) {
            return Err(error);
        }
        tracing::debug!(origin = self.origin.name(), %error, "serving an expired copy");
        Ok(OriginLookupResult { copy, state: CacheState::Stale, started: StartedFetch::default() })
    }

    async fn fetch_metadata(
        &self,
        key: &ObjectKey,
        ticket: WriteTicket,
    ) -> Result<OriginLookupResult, OriginError> {
        let requested_ms = self.inner.clock.now().as_millis();
        let object = self.origin.head(&self.origin_key(key)).await?;
        let (validated_ms, read_ms) = (requested_ms, requested_ms);
        let record = CopyRecord { object, validated_ms, with_checksums: true, read_ms };
        let copy = self.record_metadata(key, record, ticket);
        Ok(OriginLookupResult { copy, state: CacheState::Miss, started: StartedFetch::default() })
    }

    /// Records metadata from the origin. It is recorded as expired if the key was written meanwhile, or if
    /// another node may have the duty by now: the copies are those of the process.
    fn record_metadata(&self, key: &ObjectKey, record: CopyRecord, ticket: WriteTicket) -> CopyRecord {
        let validated_ms = record.validated_ms;
        let recorded = self.inner.write_order.apply(ticket, self.id, key, self.inner.clock.now(), |holds| {
            let validated_ms = if holds && self.is_settled() { validated_ms } else { 0 };
            self.inner.copies.record_metadata(self.id, key, CopyRecord { validated_ms, ..record })
        });
        CopyRecord { validated_ms, ..recorded }
    }

    async fn fetch_part(
        &self,
        key: &ObjectKey,
        part: ObjectPart,
        known: Option<&CopyRecord>,
        ticket: WriteTicket,
    ) -> Result<OriginLookupResult, OriginError> {
        let permit = self.acquire(&self.inner.request_permits).await?;
        let query = self.query_for(part, known);
        let requested_ms = self.inner.clock.now().as_millis();
        match self.origin.get(&self.origin_key(key), &query).await {
            Ok(got) => {
                self.check_length(key, known, &got.object).await?;
                let with_checksums = query.part == ObjectPart::Whole;
                let record = CopyRecord {
                    object: got.object.clone(),
                    validated_ms: requested_ms,
                    with_checksums,
                    read_ms: requested_ms,
                };
                let copy = self.record_metadata(key, record, ticket);
                let begun = self.take_response(key, &copy, got, permit).await?;
                Ok(OriginLookupResult { copy, state: CacheState::Miss, started: begun })
            }
            Err(OriginError::NotModified(modified_ms)) => match known {
                // The bytes are the same, but other metadata changed.
                Some(known)
                    if modified_ms.is_some_and(|ms| differ_in_seconds(ms, known.object.modified_ms)) =>
                {
                    self.fetch_metadata(key, ticket).await
                }
                Some(known) => {
                    let record = CopyRecord { validated_ms: requested_ms, ..known.clone() };
                    let copy = self.record_metadata(key, record, ticket);
                    Ok(OriginLookupResult { copy, state: CacheState::Hit, started: StartedFetch::default() })
                }
                None => Err(OriginError::InvalidResponse(
                    "it answered 304 Not Modified to an unconditional request".into(),
                )),
            },
            // The object is empty, or the range lies beyond its end; its metadata shows which.
            Err(OriginError::OutOfRange(_)) => self.fetch_metadata(key, ticket).await,
            Err(error) => Err(error),
        }
    }

    /// Chooses the part to request: the block that is read first, or the whole object if it may be small.
    fn query_for(&self, part: ObjectPart, known: Option<&CopyRecord>) -> GetQuery {
        let known = known.map(|copy| &copy.object);
        let first = match (part, known) {
            (ObjectPart::Whole, None) => return GetQuery::unconditional(ObjectPart::Whole),
            (ObjectPart::Last(bytes), None) => return GetQuery::unconditional(ObjectPart::Last(bytes)),
            (ObjectPart::Whole, Some(_)) => 0,
            (ObjectPart::Range { first, .. } | ObjectPart::From(first), _) => first,
            (ObjectPart::Last(bytes), Some(object)) => object.size.saturating_sub(bytes),
        };
        let number = block::number_at(first);
        let has_it = known
            .filter(|object| object.size == 0 || self.inner.copies.block_extents(object, number).is_some());
        let part = match known {
            Some(object) if object.size <= COPY_BLOCK_BYTES && number == 0 => ObjectPart::Whole,
            // The last block of the largest offset that a client can request ends beyond 64 bits.
            _ => ObjectPart::Range {
                first: number * COPY_BLOCK_BYTES,
                end: (number + 1).saturating_mul(COPY_BLOCK_BYTES),
            },
        };
        GetQuery { part, if_match: None, if_none_match: has_it.map(weak_validator) }
    }
}
