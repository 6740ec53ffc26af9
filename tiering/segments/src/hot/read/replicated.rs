//! Reads of a node with peers: from the local disk, or else from a replica on another node.
//!
//! Another replica is read when the local disk fails, has damage or lacks the bytes, and, for reads of
//! clients, at the same time as the local disk if that does not answer soon. The first answer that verifies
//! is returned. Damage of the local replica is recorded also if another one answered, or none was asked. The
//! rows of this node may be older than the segment: then the read waits for the newest ones. Nothing is
//! stored.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::{Buf as _, Bytes};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::{Instant, timeout};
use mlgw_formats::schema::SegmentRecord;
use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_record::{RecordAddress, RecordOwner};

use super::compressed::blocking;
use super::error::SegmentReadError;
use super::other_replica::{OTHER_REPLICA_AFTER, OtherReplicas};
use super::{ReadPlan, SegmentReader, SegmentReaderInner};
use crate::fair::{Lane, ServiceClass};
use crate::hot::map::BoxFuture;
use crate::hot::metrics::add;

/// The result of a read.
pub(super) trait ReplicatedAnswer: Sized + Send + 'static {
    /// Reads it from the local disk, for a request that arrived at this time. Blocks the calling thread.
    fn from_disk(
        reader: &SegmentReaderInner,
        plan: &ReadPlan,
        arrived: Instant,
    ) -> Result<Self, SegmentReadError>;

    /// Verifies a record of another replica: its header, and its payload from the first to the last block of
    /// the plan.
    fn from_record(
        plan: &ReadPlan,
        place: RecordAddress,
        head: &[u8],
        payload: Bytes,
    ) -> Result<Self, SegmentReadError>;
}

impl ReplicatedAnswer for Bytes {
    fn from_disk(
        reader: &SegmentReaderInner,
        plan: &ReadPlan,
        arrived: Instant,
    ) -> Result<Self, SegmentReadError> {
        reader.bytes_from_disk(plan, arrived)
    }

    fn from_record(
        plan: &ReadPlan,
        place: RecordAddress,
        head: &[u8],
        payload: Bytes,
    ) -> Result<Self, SegmentReadError> {
        if plan.location.is_compressed() {
            return plan.decompress_record(place, head, &payload);
        }
        plan.verify(place, head, &payload)?;
        Ok(plan.narrow_to_request(payload, plan.payload.start))
    }
}

impl ReplicatedAnswer for (RecordOwner, Payload) {
    fn from_disk(
        reader: &SegmentReaderInner,
        plan: &ReadPlan,
        _arrived: Instant,
    ) -> Result<Self, SegmentReadError> {
        reader.chunk_from_disk(plan)
    }

    fn from_record(
        plan: &ReadPlan,
        place: RecordAddress,
        head: &[u8],
        payload: Bytes,
    ) -> Result<Self, SegmentReadError> {
        plan.verify_whole(place, head, payload)
    }
}

/// A read of the local disk in progress.
struct LocalRead<T> {
    result: BoxFuture<'static, Result<T, SegmentReadError>>,
    /// True from the time at which a thread executes it.
    is_running: Arc<AtomicBool>,
}

impl<T: ReplicatedAnswer> LocalRead<T> {
    fn new(reader: &Arc<SegmentReaderInner>, plan: &ReadPlan, turn: ServiceClass) -> Self {
        let (reader, plan, arrived) = (reader.clone(), plan.clone(), Instant::now());
        let is_running = Arc::new(AtomicBool::new(false));
        let running = is_running.clone();
        let result = Box::pin(async move {
            let (on_thread, segment, bytes) = (reader.clone(), plan.location.segment, plan.bytes());
            let work = move || {
                running.store(true, Relaxed);
                T::from_disk(&on_thread, &plan, arrived)
            };
            reader.reads.run(segment, reader.queue_of(segment), turn, bytes, work).await
        });
        Self { result, is_running }
    }

    /// Ends the wait for the result. A read that a thread executes keeps its slot at the disk until it ends.
    fn abandon(self, reader: &Arc<SegmentReaderInner>) {
        if self.is_running.load(Relaxed) {
            let (reader, result) = (reader.clone(), self.result);
            tokio::spawn(async move {
                if let Err(error) = result.await {
                    reader.record_damage(&error);
                }
            });
        }
    }
}

impl SegmentReader {
    /// Waits until this node knows each of `segments`, or knows that it was released. Returns at once on a
    /// node without peers.
    ///
    /// # Errors
    /// [`SegmentReadError::NoReplica`] if no leader confirms which rows are the newest.
    pub(in crate::hot) async fn await_known(&self, segments: &[SegmentId]) -> Result<(), SegmentReadError> {
        let Some(others) = &self.inner.others else { return Ok(()) };
        for segment in segments {
            others.newest_record(*segment).await?;
        }
        Ok(())
    }

    /// Takes all permits for reads of other replicas.
    #[cfg(test)]
    pub(in crate::hot) fn block_other_replicas(&self) -> Vec<tokio::sync::SemaphorePermit<'_>> {
        let others = self.inner.others.as_deref();
        others.map_or_else(Vec::new, |others| std::iter::from_fn(move || others.try_permit()).collect())
    }

    /// Blocks the threads that open a file until the result is dropped.
    #[cfg(test)]
    pub(in crate::hot) fn block_opening(&self) -> std::sync::mpsc::Sender<()> {
        let (end, until) = std::sync::mpsc::channel();
        let (begin, begun) = std::sync::mpsc::channel();
        let inner = self.inner.clone();
        std::thread::spawn(move || {
            inner.files.while_closed(|| {
                begin.send(()).expect("the caller waits for the begin");
                // Ends with an error when the sender is dropped.
                let _ = until.recv();
            });
        });
        begun.recv().expect("the thread begins");
        end
    }
}

impl SegmentReaderInner {
    /// Reads from the local disk or from another replica.
    pub(super) async fn read_replicated<T: ReplicatedAnswer>(
        self: &Arc<Self>,
        others: &OtherReplicas,
        plan: &ReadPlan,
        turn: ServiceClass,
    ) -> Result<T, SegmentReadError> {
        let mut local = LocalRead::new(self, plan, turn);
        let read = match turn.lane {
            Lane::Checkpoint | Lane::Inference | Lane::Training => {
                timeout(OTHER_REPLICA_AFTER, &mut local.result).await
            }
            Lane::Background => Ok(local.result.as_mut().await),
        };
        match read {
            Ok(read) => self.or_instead(others, plan, turn, read).await,
            Err(_) => self.read_either(others, plan, turn, local).await,
        }
    }

    /// Returns the answer of the local disk, or else reads from other nodes.
    async fn or_instead<T: ReplicatedAnswer>(
        self: &Arc<Self>,
        others: &OtherReplicas,
        plan: &ReadPlan,
        turn: ServiceClass,
        read: Result<T, SegmentReadError>,
    ) -> Result<T, SegmentReadError> {
        match read {
            Ok(answer) => Ok(answer),
            Err(error) => self.read_instead(others, plan, turn, error).await,
        }
    }

    /// Reads from other nodes what the local disk, which failed with `error`, did not answer.
    async fn read_instead<T: ReplicatedAnswer>(
        self: &Arc<Self>,
        others: &OtherReplicas,
        plan: &ReadPlan,
        turn: ServiceClass,
        mut error: SegmentReadError,
    ) -> Result<T, SegmentReadError> {
        let segment = plan.location.segment;
        match &error {
            SegmentReadError::Corrupt { .. }
            | SegmentReadError::Gone { .. }
            | SegmentReadError::Io { .. } => {}
            SegmentReadError::Unreachable { .. } | SegmentReadError::NoReplica { .. } => return Err(error),
        }
        let Ok(known) = others.record(segment) else { return Err(error) };
        let record = if let Some(record) = known {
            record
        } else {
            let newer = others.newest_record(segment).await?;
            let record = newer.ok_or(SegmentReadError::Gone { segment })?;
            // The file may be here: only its record was missing.
            match LocalRead::new(self, plan, turn).result.await {
                Ok(answer) => return Ok(answer),
                Err(again) => error = again,
            }
            record
        };
        if record.is_at_upstream() {
            return Err(SegmentReadError::Gone { segment });
        }
        if !record.is_owned_by(others.node()) {
            // The file may have been replaced or removed since it was opened.
            self.files.invalidate(segment);
        }
        let Some(_permit) = others.permit().await else {
            // The client is to retry, and the damage is known already.
            self.record_damage(&error);
            return Err(SegmentReadError::NoReplica { segment });
        };
        let answer = self.read_other(others, &record, plan).await;
        self.answer_instead(others, &record, answer, error)
    }

    /// Reads from another node while the local disk does not answer, also while the read of the other node
    /// waits for its permit. The first success is returned.
    async fn read_either<T: ReplicatedAnswer>(
        self: &Arc<Self>,
        others: &OtherReplicas,
        plan: &ReadPlan,
        turn: ServiceClass,
        mut local: LocalRead<T>,
    ) -> Result<T, SegmentReadError> {
        let known = others.record(plan.location.segment).ok().flatten();
        let record = known.filter(|record| !others.sources(record).is_empty());
        let permit = if record.is_some() {
            tokio::select! {
                read = &mut local.result => return self.or_instead(others, plan, turn, read).await,
                permit = others.permit() => permit,
            }
        } else {
            None
        };
        let (Some(record), Some(_permit)) = (record, permit) else {
            return self.or_instead(others, plan, turn, local.result.await).await;
        };
        let mut other = Box::pin(self.read_other(others, &record, plan));
        tokio::select! {
            read = &mut local.result => match read {
                Ok(answer) => Ok(answer),
                Err(error) => self.answer_instead(others, &record, other.await, error),
            },
            answer = &mut other => match answer {
                Some(answer) => {
                    local.abandon(self);
                    Ok(answer)
                }
                None => local.result.await.map_err(|error| others.unanswered(&record, error)),
            },
        }
    }

    /// Returns the answer of another node, or the error of the read if there is none. The local disk failed
    /// with `error`.
    fn answer_instead<T>(
        &self,
        others: &OtherReplicas,
        record: &SegmentRecord,
        answer: Option<T>,
        error: SegmentReadError,
    ) -> Result<T, SegmentReadError> {
        match answer {
            Some(answer) => {
                self.record_damage(&error);
                Ok(answer)
            }
            None => Err(others.unanswered(record, error)),
        }
    }

    /// Reads from one node after the other, until bytes verify. While a node does not answer, the next one is
    /// read at the same time.
    async fn read_other<T: ReplicatedAnswer>(
        &self,
        others: &OtherReplicas,
        record: &SegmentRecord,
        plan: &ReadPlan,
    ) -> Option<T> {
        let (health, mut sources) = (others.health(), others.sources(record).into_iter());
        let (mut reads, mut unanswered) = (FuturesUnordered::new(), BTreeSet::new());
        loop {
            if let Some(node) = sources.next() {
                let Some(read) = health.begin(node) else { continue };
                unanswered.insert(node);
                reads.push(async move {
                    let _read = read;
                    (node, read_at(others, record, plan, node).await)
                });
            }
            match timeout(OTHER_REPLICA_AFTER, reads.next()).await {
                Ok(Some((node, Ok(answer)))) => {
                    health.record_answer(node);
                    add(&self.metrics.reads_other_replica, 1);
                    add(&self.metrics.read_bytes_other_replica, plan.bytes());
                    return Some(answer);
                }
                Ok(Some((node, Err(error)))) => {
                    unanswered.remove(&node);
                    tracing::debug!(segment = %record.segment_id(), %node, %error, "reading another replica");
                }
                Ok(None) if sources.len() == 0 => return None,
                Ok(None) => {}
                Err(_) => unanswered.iter().for_each(|node| health.record_late(*node)),
            }
        }
    }
}

/// Reads from a node and verifies the bytes.
async fn read_at<T: ReplicatedAnswer>(
    others: &OtherReplicas,
    record: &SegmentRecord,
    plan: &ReadPlan,
    node: NodeId,
) -> Result<T, SegmentReadError> {
    let segment = record.segment_id();
    let fetched = fetch_record(others, record, plan, node).await;
    let (head, payload) = fetched.map_err(|source| SegmentReadError::Io { segment, source })?;
    let place = plan.place(record.seed());
    if !plan.location.is_compressed() || plan.is_small() {
        return T::from_record(plan, place, &head, payload);
    }
    // Without a slot of a disk, since the local one may not respond: the permits of these reads bound the
    // threads.
    let plan = plan.clone();
    blocking(segment, move || T::from_record(&plan, place, &head, payload)).await
}

/// Fetches the header of a record and the requested blocks: in one request, or, from the middle of a long
/// record, in two parallel ones.
async fn fetch_record(
    others: &OtherReplicas,
    record: &SegmentRecord,
    plan: &ReadPlan,
    node: NodeId,
) -> io::Result<(Bytes, Bytes)> {
    if plan.is_one_read() {
        let mut head = others.fetch(node, record, plan.record()).await?;
        let mut payload = head.split_off(plan.location.head_bytes as usize);
        payload.advance(plan.payload.start);
        return Ok((head, payload));
    }
    let [head, blocks] = plan.head_and_blocks();
    tokio::try_join!(others.fetch(node, record, head), others.fetch(node, record, blocks))
}
