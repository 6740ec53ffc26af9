//! A workload of clients: puts, overwrites, uploads, copies, deletes and reads, several at a time.
//!
//! Each worker has keys of its own, from which it copies, and all workers share a few contended keys. The
//! seed determines the operations of a worker; the machine determines the interleaving of the workers, and
//! the history records it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;

use crate::check::BUCKET;
use crate::content::TestContent;
use crate::history::{ExpectedBody, History, HistoryItem, ItemValue, NOW, OperationId};
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::seed::Rng;
use crate::server::ServerProcess;

mod upload;

/// Amount of work, and sizes of the bodies.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadPlan {
    /// Number of the round on one directory: part of every body's id, so that rounds have distinct bodies.
    pub(crate) round: u64,
    pub(crate) workers: u64,
    /// Operations of each worker; `usize::MAX` to run until the server is gone.
    pub(crate) steps: usize,
    /// Sizes of bodies: one of these bounds is picked, then a size below it.
    pub(crate) sizes: &'static [u64],
    /// Ratio of uploads that begin with a part of the smallest full size: 1 in `full_part_in`.
    pub(crate) full_part_in: u64,
    /// True if some requests may be refused until the origin has the earlier writes.
    pub(crate) is_written_back: bool,
}

/// Mostly small sizes, some of several chunks: each crash state costs as much as the workload's megabytes.
pub(crate) const SIZES: &[u64] = &[1, 300, 5_000, 5_000, 70_000, 200_000, 2_500_000];

/// The smallest part that may not be an upload's last.
const PART_BYTES: usize = 5 << 20;

const OWN_KEYS: u64 = 5;
const SHARED_KEYS: u64 = 3;

/// Creates the bucket and records it in the history.
pub(crate) async fn create_bucket(client: &S3TestClient, history: &History) -> Result<(), CallFailure> {
    let act = history.send(HistoryItem::Bucket, ItemValue::Present(None));
    client.create_bucket(BUCKET).await?;
    history.acknowledge(act);
    Ok(())
}

/// Runs the plan. The first failure of each worker ends that worker and is returned.
pub(crate) async fn run(
    client: &S3TestClient,
    history: &Arc<History>,
    plan: &WorkloadPlan,
    rng: &Rng,
) -> Vec<CallFailure> {
    let stop = Arc::new(AtomicBool::new(false));
    let workers = (0..plan.workers).map(|number| {
        let worker = WorkloadWorker {
            client: client.clone(),
            history: history.clone(),
            plan: plan.clone(),
            rng: rng.fork(plan.round << 8 | number),
            number,
            bodies: 0,
            stop: stop.clone(),
        };
        tokio::spawn(worker.run())
    });
    let ends = join_all(workers).await;
    ends.into_iter().filter_map(|end| end.expect("a worker panicked").err()).collect()
}

/// The moment of a kill: after this many responses and then a short delay, in the middle of the server's
/// work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KillPoint {
    answers: usize,
    delay: Duration,
}

impl KillPoint {
    pub(crate) fn choose(rng: &mut Rng, answers_max: u64) -> Self {
        let answers = usize::try_from(3 + rng.below(answers_max)).expect("small");
        Self { answers, delay: Duration::from_micros(rng.below(4000)) }
    }
}

/// Runs the plan until the server is killed; the plan must last longer than that. Returns the number of
/// responses.
pub(crate) async fn run_until_killed(
    server: &mut ServerProcess,
    history: &Arc<History>,
    plan: &WorkloadPlan,
    rng: &Rng,
    kill: KillPoint,
) -> usize {
    let client = server.client();
    let mut answers = history.answers();
    let before = *answers.borrow();
    let load = run(&client, history, plan, rng);
    tokio::pin!(load);
    tokio::select! {
        early = &mut load => panic!("failed before any kill: {early:?}\n{}", server.log()),
        seen = answers.wait_for(|now| *now >= before + kill.answers) => drop(seen.expect("still open")),
    }
    // The workers are separate tasks and continue meanwhile.
    mlgw_common::time::sleep(kill.delay).await;
    server.kill();
    for failure in load.await {
        assert!(failure.status().is_none(), "refused under load: {failure:?}\n{}", server.log());
    }
    *history.answers().borrow() - before
}

struct WorkloadWorker {
    client: S3TestClient,
    history: Arc<History>,
    plan: WorkloadPlan,
    rng: Rng,
    number: u64,
    bodies: u64,
    stop: Arc<AtomicBool>,
}

impl WorkloadWorker {
    async fn run(mut self) -> Result<(), CallFailure> {
        for _ in 0..self.plan.steps {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            match self.step().await {
                // As a client would that tries again later: the history keeps the request as one that may
                // have taken effect.
                Err(failure) if self.plan.is_written_back && failure.is_before_earlier_writes() => {}
                Err(failure) => {
                    self.stop.store(true, Ordering::Relaxed);
                    return Err(failure);
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), CallFailure> {
        match self.rng.below(20) {
            0..=8 => self.put().await,
            9..=10 => self.delete().await,
            11..=12 => self.copy().await,
            13..=15 => self.upload().await,
            _ => self.read().await,
        }
    }

    fn own_key(&mut self) -> String {
        // Awkward on purpose: mlgw treats a key as bytes, never as a path.
        let shapes = ["plain", "a//b", "../up", "später", "with space+plus%", "trailing/"];
        let which = self.rng.below(OWN_KEYS);
        format!("w{}/{}", self.number, shapes[usize::try_from(which).expect("small") % shapes.len()])
    }

    fn any_key(&mut self) -> String {
        if self.rng.chance(1, 5) { format!("shared/{}", self.rng.below(SHARED_KEYS)) } else { self.own_key() }
    }

    fn content(&mut self) -> TestContent {
        let bound = *self.rng.pick(self.plan.sizes);
        let length = usize::try_from(self.rng.below(bound)).expect("fits");
        self.content_of(length)
    }

    fn content_of(&mut self, length: usize) -> TestContent {
        self.bodies += 1;
        TestContent { id: self.plan.round << 48 | self.number << 32 | self.bodies, length }
    }

    /// The value of this worker's own key, known because no other worker writes it.
    fn own_value(&self, key: &str) -> Option<ExpectedBody> {
        match self.history.allowed(&HistoryItem::Object(key.to_owned()), NOW).as_slice() {
            [ItemValue::Present(Some(stored))] => Some(stored.clone()),
            _ => None,
        }
    }

    fn send_object(&self, key: &str, value: ItemValue) -> OperationId {
        self.history.send(HistoryItem::Object(key.to_owned()), value)
    }

    async fn put(&mut self) -> Result<(), CallFailure> {
        let (key, content) = (self.any_key(), self.content());
        let stored = ExpectedBody::plain(content);
        let act = self.send_object(&key, ItemValue::Present(Some(stored.clone())));
        let etag = self.client.put(BUCKET, &key, full_body(content.bytes())).await?;
        self.history.acknowledge(act);
        assert_eq!(etag, stored.etag, "PUT {key:?} returns the MD5");
        Ok(())
    }

    async fn delete(&mut self) -> Result<(), CallFailure> {
        let key = self.any_key();
        let act = self.send_object(&key, ItemValue::Absent);
        self.client.delete(BUCKET, &key).await?;
        self.history.acknowledge(act);
        Ok(())
    }

    async fn copy(&mut self) -> Result<(), CallFailure> {
        let (from, to) = (self.own_key(), self.any_key());
        let Some(source) = self.own_value(&from).filter(|_| from != to) else { return Ok(()) };
        // A copy of an upload's object is a plain object: its ETag is the MD5 of the whole.
        let copied = match source.pieces.as_slice() {
            [only] => ExpectedBody::plain(*only),
            _ => return Ok(()),
        };
        let act = self.send_object(&to, ItemValue::Present(Some(copied.clone())));
        let etag = self.client.copy(BUCKET, &from, &to).await?;
        self.history.acknowledge(act);
        assert_eq!(etag, copied.etag, "the copy of {from:?} has its bytes");
        Ok(())
    }

    /// Reads a key under load; the body must be whole.
    async fn read(&mut self) -> Result<(), CallFailure> {
        let key = self.own_key();
        let known = self.own_value(&key);
        match (self.client.get(BUCKET, &key).await, known) {
            (Ok(answer), Some(stored)) => {
                assert_eq!(answer.etag(), stored.etag, "GET {key:?} returns this worker's write");
                assert!(answer.body == stored.bytes(), "GET {key:?} returns bytes that were not written");
                Ok(())
            }
            (Err(failure), Some(_)) => Err(failure),
            (Err(failure), None) if !failure.is_not_found() => Err(failure),
            (Ok(_) | Err(_), None) => Ok(()),
        }
    }
}
