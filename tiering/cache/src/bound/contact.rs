//! Lookup of objects whose metadata is unknown or expired: one request to the origin, however many callers
//! need it, and a shared result.

use super::fetch::Begun;
use super::order::Ticket;
use super::{BoundBucket, CacheState, Opened, block};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_common::limits::COPY_BLOCK_BYTES;
use mlgw_formats::schema::Copy;
use mlgw_remote::origin::{GetQuery, OriginError, Part, weak_validator};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Compares times by the second, because headers have whole seconds and listings have milliseconds.
pub(super) fn is_other_second(one_ms: i64, other_ms: i64) -> bool {
    one_ms.div_euclid(1000) != other_ms.div_euclid(1000)
}

/// Key of a shared lookup. The flag is set for a lookup of metadata with checksums, which a response with
/// bytes may lack. The ticket separates lookups that began after a write from those that began before it.
type Asked = (BucketId, ObjectKey, bool, Ticket);
type Answer = Shared<BoxFuture<'static, Result<Contact, OriginError>>>;

/// Lookups in flight.
#[derive(Default)]
pub(super) struct Contacts(Mutex<HashMap<Asked, Answer>>);

/// Result of a lookup.
#[derive(Clone)]
struct Contact {
    copy: Copy,
    state: CacheState,
    begun: Begun,
}

impl BoundBucket {
    /// Looks an object up at the origin: with the first bytes of `part`, or only its metadata without a part.
    pub(super) async fn contact(
        &self,
        key: &ObjectKey,
        part: Option<Part>,
        known: Option<Copy>,
    ) -> Result<Opened, OriginError> {
        let ticket = self.ticket(key);
        let asked = (self.id, key.clone(), part.is_none(), ticket);
        let answer = {
            let mut contacts = self.inner.contacts.0.lock();
            if let Some(answer) = contacts.get(&asked) {
                answer.clone()
            } else if let Some(copy) = self.learned(key, part.is_none(), known.as_ref()) {
                return Ok(self.opened(copy, CacheState::Hit));
            } else {
                let answer = self.begin(asked.clone(), part, known);
                contacts.insert(asked, answer.clone());
                answer
            }
        };
        let Contact { copy, state, begun } = answer.await?;
        let Begun { tail, claim, rest } = begun;
        Ok(Opened { tail, rest, claim: Mutex::new(claim), ..self.opened(copy, state) })
    }

    /// Returns a ticket, which must be taken before the origin is contacted. If the bucket was moved to
    /// another origin, the ticket is void: nothing that the old origin answers is stored.
    pub(super) fn ticket(&self, key: &ObjectKey) -> Ticket {
        if self.is_current() { self.inner.order.ticket(self.id, key) } else { Ticket::VOID }
    }

    /// Returns a future that resolves when the lookup of this key in flight ends; `None` if there is none.
    pub(super) fn asked_for(&self, key: &ObjectKey) -> Option<impl Future<Output = ()> + Send + use<>> {
        let ticket = self.ticket(key);
        let contacts = self.inner.contacts.0.lock();
        let of = |about| contacts.get(&(self.id, key.clone(), about, ticket));
        let answer = of(false).or_else(|| of(true)).cloned()?;
        Some(async move { drop(answer.await) })
    }

    /// Returns metadata that another lookup obtained since `known` was read. A caller that must revalidate
    /// does so even if `known` is fresh.
    fn learned(&self, key: &ObjectKey, with_checksums: bool, known: Option<&Copy>) -> Option<Copy> {
        let copy = self.inner.copies.find(self.id, key)?;
        let is_new = known.is_none_or(|known| copy.validated_ms > known.validated_ms);
        (is_new && self.is_fresh(&copy) && (copy.with_checksums || !with_checksums)).then_some(copy)
    }

    /// Starts a lookup. It continues even if the first caller goes away, because others may wait for it.
    fn begin(&self, asked: Asked, part: Option<Part>, known: Option<Copy>) -> Answer {
        let bucket = self.clone();
        let task = tokio::spawn(async move {
            let answer = bucket.ask(&asked.1, part, known, asked.3).await;
            bucket.inner.contacts.0.lock().remove(&asked);
            answer
        });
        let joined = task.map(|ended| {
            ended.unwrap_or_else(|stopped| {
                Err(OriginError::Unreachable(format!("it was given up: {stopped}")))
            })
        });
        joined.boxed().shared()
    }

    async fn ask(
        &self,
        key: &ObjectKey,
        part: Option<Part>,
        known: Option<Copy>,
        ticket: Ticket,
    ) -> Result<Contact, OriginError> {
        let answer = match part {
            Some(part) => self.ask_for(key, part, known.as_ref(), ticket).await,
            None => self.ask_about(key, ticket).await,
        };
        match answer {
            Err(OriginError::NoSuchKey) => {
                let now = self.inner.clock.now();
                self.inner.order.with(ticket, self.id, key, now, |holds| {
                    if holds {
                        self.inner.copies.forget(self.id, key);
                        self.inner.absent.insert((self.id, key.clone()), now);
                    }
                });
                Err(OriginError::NoSuchKey)
            }
            Err(error) => self.stand_in(key, known, error),
            told => told,
        }
    }

    /// Returns the known copy although the origin request failed, if it may still be served.
    fn stand_in(
        &self,
        key: &ObjectKey,
        known: Option<Copy>,
        error: OriginError,
    ) -> Result<Contact, OriginError> {
        let Some(known) = known else { return Err(error) };
        // Meanwhile more blocks may have been kept, or the version may have changed.
        let copy = self.inner.copies.find(self.id, key).unwrap_or(known);
        if !self.may_be_stale(&copy, &error) {
            return Err(error);
        }
        tracing::debug!(origin = self.origin.name(), %error, "a copy is used though it holds no more");
        Ok(Contact { copy, state: CacheState::Stale, begun: Begun::default() })
    }

    async fn ask_about(&self, key: &ObjectKey, ticket: Ticket) -> Result<Contact, OriginError> {
        let object = self.origin.head(&self.there(key)).await?;
        let now_ms = self.inner.clock.now().as_millis();
        let said = Copy { object, validated_ms: now_ms, with_checksums: true, read_ms: now_ms };
        let copy = self.note(key, said, ticket);
        Ok(Contact { copy, state: CacheState::Miss, begun: Begun::default() })
    }

    /// Records metadata from the origin. It is recorded as expired if the key was written meanwhile.
    fn note(&self, key: &ObjectKey, said: Copy, ticket: Ticket) -> Copy {
        let validated_ms = said.validated_ms;
        let noted = self.inner.order.with(ticket, self.id, key, self.inner.clock.now(), |holds| {
            let validated_ms = if holds { validated_ms } else { 0 };
            self.inner.copies.note(self.id, key, Copy { validated_ms, ..said })
        });
        Copy { validated_ms, ..noted }
    }

    async fn ask_for(
        &self,
        key: &ObjectKey,
        part: Part,
        known: Option<&Copy>,
        ticket: Ticket,
    ) -> Result<Contact, OriginError> {
        let asking = self.place(&self.inner.asking).await?;
        let query = self.query(part, known);
        let asked_ms = self.inner.clock.now().as_millis();
        match self.origin.get(&self.there(key), &query).await {
            Ok(got) => {
                self.check_length(key, known, &got.object).await?;
                let with_checksums = query.part == Part::Whole;
                let said = Copy {
                    object: got.object.clone(),
                    validated_ms: asked_ms,
                    with_checksums,
                    read_ms: asked_ms,
                };
                let copy = self.note(key, said, ticket);
                let begun = self.take(key, &copy, got, asking).await?;
                Ok(Contact { copy, state: CacheState::Miss, begun })
            }
            Err(OriginError::NotModified(modified_ms)) => match known {
                // The bytes are the same, but other metadata changed.
                Some(known)
                    if modified_ms.is_some_and(|ms| is_other_second(ms, known.object.modified_ms)) =>
                {
                    self.ask_about(key, ticket).await
                }
                Some(known) => {
                    let said = Copy { validated_ms: asked_ms, ..known.clone() };
                    let copy = self.note(key, said, ticket);
                    Ok(Contact { copy, state: CacheState::Hit, begun: Begun::default() })
                }
                None => Err(OriginError::Nonsense("it has not changed, and nobody asked whether".into())),
            },
            // The object is empty, or the range lies behind its end; its metadata shows which.
            Err(OriginError::OutOfRange(_)) => self.ask_about(key, ticket).await,
            Err(error) => Err(error),
        }
    }

    /// Chooses the part to request: the block that is read first, or the whole object if it may be small.
    fn query(&self, part: Part, known: Option<&Copy>) -> GetQuery {
        let known = known.map(|copy| &copy.object);
        let first = match (part, known) {
            (Part::Whole, None) => return GetQuery::of(Part::Whole),
            (Part::Last(bytes), None) => return GetQuery::of(Part::Last(bytes)),
            (Part::Whole, Some(_)) => 0,
            (Part::Range { first, .. } | Part::From(first), _) => first,
            (Part::Last(bytes), Some(object)) => object.size.saturating_sub(bytes),
        };
        let number = block::of(first);
        let has_it =
            known.filter(|object| object.size == 0 || self.inner.copies.block(object, number).is_some());
        let part = match known {
            Some(object) if object.size <= COPY_BLOCK_BYTES && number == 0 => Part::Whole,
            _ => Part::Range { first: number * COPY_BLOCK_BYTES, end: (number + 1) * COPY_BLOCK_BYTES },
        };
        GetQuery { part, if_match: None, if_none_match: has_it.map(weak_validator) }
    }
}
