//! The world of a schedule, for tests only: groups with rows, commands on their way, and runners of sagas.

use crate::apply::memory_group::MemoryGroup;
use crate::catalogue::groups::SYSTEM_GROUP;
use crate::catalogue::options::ProposeError;
use crate::catalogue::saga_steps::{self, SagaGroups};
use crate::catalogue::testing::SimAnswer;
use crate::view::RowReader as _;
use fastrand::Rng;
use mlgw_common::BucketId;
use mlgw_formats::command::{
    Change, CreateBucket, DeleteObject, ObjectChange, ObjectCommand, PutObject, Reject, Reply,
};
use mlgw_formats::schema::{Bucket, BucketState, Mirror, ObjectVersion, bucket, decode, object};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

const NAME: &str = "data";
const OBJECT_GROUPS: [u32; 3] = [1, 2, 3];

/// Most actions until a healthy world is at rest.
const CALM_ACTIONS: usize = 2_000;

/// Last events that a failure shows.
const EVENTS_SHOWN: usize = 60;

/// The rules of sagas; false for one that a test leaves out.
#[derive(Clone, Copy, Debug)]
pub(super) struct SagaRules {
    /// Commands to the system group enter the log of the leadership of their runner only.
    pub(super) one_leadership: bool,
    /// Freezes and thaws name the epoch of their decision.
    pub(super) named_epochs: bool,
    /// Mirrors and drops name the run of their saga.
    pub(super) named_runs: bool,
    /// The leader searches for buckets between two states at intervals, not only when its leadership begins
    /// and after a step with an unknown outcome: such a step may be carried out after that.
    pub(super) looks_again: bool,
}

impl SagaRules {
    pub(super) const ALL: Self =
        Self { one_leadership: true, named_epochs: true, named_runs: true, looks_again: true };
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) created: u64,
    pub(super) removed: u64,
    /// Deletions of buckets that were not empty.
    pub(super) kept: u64,
    pub(super) written: u64,
    pub(super) resumed: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.created += other.created;
        self.removed += other.removed;
        self.kept += other.kept;
        self.written += other.written;
        self.resumed += other.resumed;
    }
}

type Outcome = Result<Reply, ProposeError>;

/// The outcome of a command, with its log index.
type Applied = Result<(Reply, u64), ProposeError>;

type Answer = SimAnswer<(Reply, u64)>;

/// A command on its way to a group.
struct Sent {
    group: u32,
    /// Leadership of the system group under which it was sent; `None` for commands of clients.
    term: Option<u64>,
    change: Change,
    answer: Answer,
}

/// The groups as the runner of a term sees them.
struct SimGroups {
    term: u64,
    current: Arc<AtomicU64>,
    network: Arc<Mutex<Vec<Sent>>>,
    rules: SagaRules,
}

impl SagaGroups for SimGroups {
    fn groups_of(&self, _: BucketId) -> BTreeSet<u32> {
        OBJECT_GROUPS.into()
    }

    fn named_epoch(&self, epoch: u64) -> Option<u64> {
        self.rules.named_epochs.then_some(epoch)
    }

    fn named_run(&self, run: u64) -> Option<u64> {
        self.rules.named_runs.then_some(run)
    }

    async fn begin_run(&self, change: Change) -> Result<(Reply, u64), ProposeError> {
        self.send(SYSTEM_GROUP, change).await
    }

    async fn propose(&self, group: u32, change: Change) -> Outcome {
        self.send(group, change).await.map(|(reply, _)| reply)
    }
}

impl SimGroups {
    /// Sends a step. Returns its reply and its log index.
    async fn send(&self, group: u32, change: Change) -> Applied {
        let leads = self.current.load(Ordering::Relaxed) == self.term;
        if !leads && self.rules.one_leadership {
            return Err(ProposeError::NotLeader { leader: None });
        }
        let answer = Answer::default();
        let sent = Sent { group, term: Some(self.term), change, answer: answer.clone() };
        self.network.lock().push(sent);
        answer.await
    }
}

struct Runner {
    term: u64,
    is_resuming: bool,
    saga: Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

pub(super) struct World {
    rng: Rng,
    rules: SagaRules,
    is_calm: bool,
    groups: BTreeMap<u32, MemoryGroup>,
    /// Leadership of the system group.
    term: Arc<AtomicU64>,
    network: Arc<Mutex<Vec<Sent>>>,
    runners: Vec<Runner>,
    /// True if the leader searches for interrupted sagas.
    resumes: bool,
    /// Acknowledged objects: bucket, group and key.
    objects: BTreeSet<(u64, u32, String)>,
    next_key: u64,
    trace: Vec<String>,
    pub(super) seen: Seen,
}

impl World {
    pub(super) fn new(seed: u64, rules: SagaRules) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            rules,
            is_calm: false,
            groups: (0..=3).map(|group| (group, MemoryGroup::default())).collect(),
            term: Arc::new(AtomicU64::new(1)),
            network: Arc::default(),
            runners: Vec::new(),
            resumes: false,
            objects: BTreeSet::new(),
            next_key: 1,
            trace: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Lets one thing happen. Returns a violation with the last events.
    pub(super) fn act(&mut self) -> Result<(), String> {
        match self.rng.u8(0..100) {
            0..2 => self.change_leader(),
            2..4 => self.kill_runner(),
            4..7 => self.drop_answer(),
            7..20 => self.begin_saga(),
            20..30 => self.send_object_command(),
            30..35 => self.resume(),
            _ => self.deliver()?,
        }
        self.poll();
        self.check()
    }

    /// Ends all faults: everything arrives, and broken sagas are resumed.
    pub(super) fn calm_down(&mut self) -> Result<(), String> {
        self.note("calm".into());
        self.is_calm = true;
        for _ in 0..CALM_ACTIONS {
            self.resume();
            self.deliver()?;
            self.poll();
            self.check()?;
            let is_at_rest = self.network.lock().is_empty() && self.runners.is_empty();
            let state = self.bucket().map(|bucket| bucket.state());
            if is_at_rest && state.is_none_or(|state| state == BucketState::Active) {
                return Ok(());
            }
        }
        self.violated(&format!("the bucket stays between two states: {:?}", self.bucket()))
    }

    fn current(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    fn note(&mut self, event: String) {
        self.trace.push(event);
    }

    fn violated(&self, what: &str) -> Result<(), String> {
        let last = &self.trace[self.trace.len().saturating_sub(EVENTS_SHOWN)..];
        Err(format!("{what}, after {last:#?}"))
    }

    fn row<M: prost::Message + Default>(&self, group: u32, row: &[u8]) -> Option<M> {
        self.groups[&group].rows.get(row).unwrap().map(|value| decode(&value).unwrap())
    }

    /// The bucket, as the system group has it.
    fn bucket(&self) -> Option<Bucket> {
        self.row(SYSTEM_GROUP, &bucket::row(NAME))
    }

    fn change_leader(&mut self) {
        let term = self.term.fetch_add(1, Ordering::Relaxed) + 1;
        self.note(format!("term {term}"));
        self.resumes = true;
        // The old runner may go on: it does not know yet.
        if self.rng.bool() {
            self.runners.clear();
        }
    }

    /// Kills the process of a runner. Its node loses the leadership.
    fn kill_runner(&mut self) {
        if !self.runners.is_empty() {
            let index = self.rng.usize(..self.runners.len());
            let killed = self.runners.swap_remove(index);
            self.note(format!("the runner of term {} is killed", killed.term));
            if killed.term == self.current() {
                self.change_leader();
            }
        }
    }

    /// Drops the answer of a command, which may still arrive.
    fn drop_answer(&mut self) {
        let network = self.network.lock();
        if let Some(sent) = self.rng.choice(network.iter()) {
            sent.answer.give(Err(ProposeError::UnknownOutcome));
        }
    }

    fn runs_alone(&self) -> bool {
        let current = self.current();
        self.runners.iter().all(|runner| runner.term != current)
    }

    fn run(&mut self, saga: impl Future<Output = Outcome> + Send + 'static, is_resuming: bool) {
        let term = self.current();
        self.runners.push(Runner { term, is_resuming, saga: Box::pin(saga) });
    }

    fn as_current(&self) -> SimGroups {
        let (current, network) = (Arc::clone(&self.term), Arc::clone(&self.network));
        SimGroups { term: self.current(), current, network, rules: self.rules }
    }

    /// Begins the creation or the deletion of the bucket, unless the leader runs a saga.
    fn begin_saga(&mut self) {
        if !self.runs_alone() {
            return;
        }
        let groups = self.as_current();
        match self.bucket() {
            None => {
                let create = CreateBucket { name: NAME.into(), owner: "o".into(), ..CreateBucket::default() };
                self.run(async move { saga_steps::create(&groups, create).await }, false);
            }
            Some(bucket) if bucket.state() == BucketState::Active => {
                self.run(async move { saga_steps::delete(&groups, &bucket).await }, false);
            }
            Some(_) => {}
        }
    }

    /// Resumes an interrupted saga, as a new leader does.
    fn resume(&mut self) {
        let looks = self.resumes || self.rules.looks_again;
        if !looks || !self.runs_alone() {
            return;
        }
        self.resumes = false;
        let groups = self.as_current();
        let Some(bucket) = self.bucket() else { return };
        if bucket.state() != BucketState::Active {
            let saga = async move { saga_steps::resume(&groups, &bucket).await };
            self.run(async move { saga.await.map(|()| Reply::Done) }, true);
            self.seen.resumed += 1;
        }
    }

    /// Sends a write or a deletion of an object, which may arrive late.
    fn send_object_command(&mut self) {
        let Some(bucket) = self.bucket().filter(|bucket| bucket.state() == BucketState::Active) else {
            return;
        };
        let group = OBJECT_GROUPS[self.rng.usize(..OBJECT_GROUPS.len())];
        let existing = self.objects.iter().find(|(id, at, _)| *id == bucket.id && *at == group);
        let (key, change) = match existing.cloned() {
            Some((.., key)) => (key, ObjectChange::Delete(DeleteObject::default())),
            None => {
                self.next_key += 1;
                let body_id = self.next_key;
                let version = ObjectVersion { body_id, owner: "o".into(), ..ObjectVersion::default() };
                (format!("k{body_id}"), ObjectChange::Put(PutObject { version, ..PutObject::default() }))
            }
        };
        let (bucket_id, epoch, change) = (bucket.id, bucket.epoch, Some(change));
        let change =
            Change::Object(ObjectCommand { bucket_id, epoch, key, change, ..ObjectCommand::default() });
        let sent = Sent { group, term: None, change, answer: Answer::default() };
        self.network.lock().push(sent);
    }

    /// Lets a command arrive: any one, or the newest one, so that most commands are not late. Commands to the
    /// system group stay in order, since their runner is its leader.
    fn deliver(&mut self) -> Result<(), String> {
        let sent = {
            let mut network = self.network.lock();
            if network.is_empty() {
                return Ok(());
            }
            let newest = network.len() - 1;
            let is_any = self.is_calm || self.rng.u8(0..4) == 0;
            let index = if is_any { self.rng.usize(..=newest) } else { newest };
            let (group, term) = (network[index].group, network[index].term);
            let is_before = |sent: &Sent| sent.group == SYSTEM_GROUP && sent.term == term;
            let first = network.iter().position(is_before).filter(|_| group == SYSTEM_GROUP);
            network.remove(first.unwrap_or(index))
        };
        let is_late = sent.term.is_some_and(|term| term != self.current());
        if sent.group == SYSTEM_GROUP && is_late && self.rules.one_leadership {
            sent.answer.give(Err(ProposeError::UnknownOutcome));
            return Ok(());
        }
        let outcome = self.apply(&sent);
        self.note(format!("{:?} of {:?} in group {}: {outcome:?}", sent.change, sent.term, sent.group));
        let applied = self.applied(&sent, &outcome);
        let index = self.groups[&sent.group].index;
        sent.answer.give(outcome.map(|reply| (reply, index)).map_err(ProposeError::from));
        applied
    }

    fn apply(&mut self, sent: &Sent) -> Result<Reply, Reject> {
        let group = self.groups.get_mut(&sent.group).expect("commands are sent to groups that exist");
        group.apply(sent.change.clone())
    }

    /// Keeps account of what was acknowledged.
    fn applied(&mut self, sent: &Sent, outcome: &Result<Reply, Reject>) -> Result<(), String> {
        match &sent.change {
            Change::Object(command) => {
                let of = (command.bucket_id, sent.group, command.key.clone());
                match (&command.change, outcome) {
                    (Some(ObjectChange::Put(_)), Ok(_)) => {
                        self.seen.written += 1;
                        self.objects.insert(of);
                        if self.bucket().is_none_or(|bucket| bucket.id != command.bucket_id) {
                            return self.violated("a write is acknowledged after the removal of its bucket");
                        }
                    }
                    (Some(ObjectChange::Delete(_)), Ok(_)) => drop(self.objects.remove(&of)),
                    _ => {}
                }
            }
            Change::RemoveBucket(remove) if outcome.is_ok() => {
                self.seen.removed += 1;
                if self.objects.iter().any(|(id, ..)| *id == remove.bucket_id) {
                    return self.violated("a bucket with acknowledged objects was removed");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Lets the runners go on, and takes the outcomes of those that end.
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut ended = Vec::new();
        self.runners.retain_mut(|runner| match runner.saga.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                ended.push((runner.term, runner.is_resuming, outcome));
                false
            }
        });
        for (term, is_resuming, outcome) in ended {
            self.note(format!("the saga of term {term} ends: {outcome:?}"));
            self.seen.created += u64::from(matches!(outcome, Ok(Reply::Bucket(_))));
            self.seen.kept += u64::from(outcome == Err(Reject::BucketNotEmpty.into()));
            let is_repeated = is_resuming && outcome.is_err() || saga_steps::is_broken_off(&outcome);
            self.resumes |= is_repeated && term == self.current();
        }
    }

    fn check(&self) -> Result<(), String> {
        for (id, group, key) in &self.objects {
            let row = object::row(BucketId(*id), key.as_bytes());
            if self.row::<ObjectVersion>(*group, &row).is_none() {
                return self.violated(&format!("group {group} has lost the acknowledged object {key}"));
            }
        }
        let Some(bucket) = self.bucket().filter(|bucket| bucket.state() == BucketState::Active) else {
            return Ok(());
        };
        for group in OBJECT_GROUPS {
            let mirror: Option<Mirror> = self.row(group, &bucket::mirror_row(bucket.bucket_id()));
            if mirror.is_none_or(|mirror| mirror.frozen || mirror.epoch != bucket.epoch) {
                return self.violated(&format!("the active bucket is not writable in group {group}"));
            }
        }
        Ok(())
    }
}
