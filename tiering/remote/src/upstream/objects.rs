//! Objects by their names: how a segment is named in a store, whether it is there, which ones are.
//!
//! Names that no segment has are passed over: a prefix may have been used before.

use mlgw_common::Incarnation;
use mlgw_common::ids::SegmentId;

use super::error::{Fault, UpstreamError};
use super::metrics::{Op, Outcome, add};
use super::{ObjectId, Upstream};

/// Where segments lie, below the prefix.
pub(super) const SEGMENTS_DIR: &str = "segments/";

/// The name of an object, below the prefix.
pub(super) fn object_name(id: ObjectId) -> String {
    format!("{SEGMENTS_DIR}{}", file_name(id))
}

/// Its last part.
fn file_name(id: ObjectId) -> String {
    format!("{}{:016x}.seg", stem(id.segment, id.incarnation), id.copy)
}

/// The beginning of the names of all objects of a segment that an incarnation stored.
pub(super) fn stem(segment: SegmentId, incarnation: Incarnation) -> String {
    match incarnation {
        Incarnation(0) => format!("{:016x}-", segment.0),
        Incarnation(incarnation) => format!("{:016x}-{incarnation:016x}-", segment.0),
    }
}

/// The object of such a name; nothing when it is none.
fn id_of(name: &str) -> Option<ObjectId> {
    let (segment, rest) = name.strip_suffix(".seg")?.split_once('-')?;
    let (incarnation, copy) = rest.split_once('-').unwrap_or(("0", rest));
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (segment, incarnation) = (SegmentId(number(segment)?), Incarnation(number(incarnation)?));
    let id = ObjectId { segment, incarnation, copy: number(copy)? };
    (file_name(id) == name).then_some(id)
}

impl Upstream {
    /// Length of an object; none when it is not there. Of a bucket that is not there, most stores say the
    /// same; a read tells the two apart.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn length(&self, id: ObjectId) -> Result<Option<u64>, UpstreamError> {
        let name = object_name(id);
        match self.ask(Op::Stat, 0, 0, || self.operator.stat(&name)).await {
            Ok(found) => Ok(Some(found.content_length())),
            Err(Fault::Gone) => Ok(None),
            Err(fault) => Err(fault.about(&self.name, id.segment)),
        }
    }

    /// Removes an object; that it was not there is no error.
    ///
    /// # Errors
    /// When the store cannot be asked, or refuses; [`UpstreamError::NotOwner`] when the prefix does not carry
    /// this server's mark.
    pub async fn remove(&self, id: ObjectId) -> Result<(), UpstreamError> {
        self.may_destroy().await?;
        let name = object_name(id);
        match self.ask(Op::Delete, 0, 0, || self.operator.delete(&name)).await {
            Ok(()) | Err(Fault::Gone) => Ok(()),
            Err(fault) => Err(fault.about(&self.name, id.segment)),
        }
    }

    /// Ends an upload of an object that was begun and is not gone on with; that there is none is no error.
    ///
    /// # Errors
    /// As [`Upstream::remove`].
    pub async fn abort(&self, id: ObjectId, upload: &str) -> Result<(), UpstreamError> {
        self.may_destroy().await?;
        let Some(multiparts) = &self.multiparts else { return Ok(()) };
        let aborted = multiparts.abort(&self.meter, &object_name(id), upload).await;
        aborted.map_err(|fault| fault.about(&self.name, id.segment))
    }

    /// The objects that are there, in no order.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub async fn list(&self) -> Result<Vec<ObjectId>, UpstreamError> {
        // No segment is meant: 0 is none.
        self.list_all().await.map_err(|fault| fault.about(&self.name, SegmentId(0)))
    }

    pub(super) async fn list_all(&self) -> Result<Vec<ObjectId>, Fault> {
        match self.ask(Op::List, 0, 0, || self.operator.list(SEGMENTS_DIR)).await {
            Ok(entries) => Ok(entries.iter().filter_map(|entry| id_of(entry.name())).collect()),
            // A directory of which nothing was ever stored.
            Err(Fault::Gone) => Ok(Vec::new()),
            Err(fault) => Err(fault),
        }
    }

    /// Has `work` done, again and again while that may help.
    pub(super) async fn ask<T, W>(
        &self,
        op: Op,
        sent_bytes: u64,
        asked_bytes: u64,
        mut work: impl FnMut() -> W,
    ) -> Result<T, Fault>
    where
        W: IntoFuture<Output = opendal::Result<T>>,
    {
        let mut tries = 0;
        loop {
            match self.once(op, sent_bytes, asked_bytes, work()).await {
                Err(error) if error.is_temporary() && tries < self.tuning.retries => {
                    let pause = self.tuning.pause(tries, chance());
                    tries += 1;
                    add(&self.meter.metrics.retries, 1);
                    tracing::debug!(
                        upstream = self.name,
                        op = op.name(),
                        tries,
                        error = error.message(),
                        "again"
                    );
                    tokio::time::sleep(pause).await;
                }
                done => return done.map_err(|error| Fault::of(&error, self.has_http())),
            }
        }
    }

    /// Of a store with HTTP each request is metered on the wire; of one without, here.
    async fn once<T>(
        &self,
        op: Op,
        sent_bytes: u64,
        asked_bytes: u64,
        work: impl IntoFuture<Output = opendal::Result<T>>,
    ) -> opendal::Result<T> {
        if self.has_http() {
            return work.into_future().await;
        }
        let ticket = self.meter.begin(op, sent_bytes, asked_bytes).await;
        let done = work.into_future().await;
        match &done {
            Ok(_) => ticket.end(Outcome::Ok, asked_bytes),
            Err(error) => ticket.end(Fault::of(error, false).outcome(), 0),
        }
        done
    }
}

/// Between 0 and 1; no random bytes are no reason not to try again.
fn chance() -> f64 {
    f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX)
}
