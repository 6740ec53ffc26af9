//! The world of a schedule, for tests only: groups with rows, commands on their way, and allotments that run.

use crate::apply::memory_group::MemoryGroup;
use crate::catalogue::allotment_steps::{self, AllotmentGroups};
use crate::catalogue::allotments::owner_of_key;
use crate::catalogue::groups::SYSTEM_GROUP;
use crate::catalogue::options::ProposeError;
use crate::catalogue::testing::{SimAnswer, delete, put, version};
use crate::view::RowReader as _;
use fastrand::Rng;
use mlgw_common::BodyId;
use mlgw_formats::command::{
    Change, MirrorBucket, NeededRoom, ObjectChange, ObjectCommand, PutCredential, Reject, Reply, SetKeyQuota,
};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::{Credential, ObjectVersion, Payer, Quota, SliceState, credential, decode};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const KEY: &str = "AK";
const OBJECT_GROUPS: [u32; 3] = [1, 2, 3];

/// Allotments that run at once, each on another node.
const RUNNERS_MAX: usize = 3;

/// Largest quota and largest object, in bytes.
const QUOTA_MAX: u64 = 150;
const OBJECT_BYTES_MAX: u64 = 20;

/// Most actions until a healthy world is at rest.
const CALM_ACTIONS: usize = 2_000;

/// Last events that a failure shows.
const EVENTS_SHOWN: usize = 60;

/// The rules of allotments; false for one that a test leaves out.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllotmentRules {
    /// Each allotment has a number of its own.
    pub(super) own_numbers: bool,
    /// The whole quota is divided only among all groups.
    pub(super) all_groups: bool,
}

impl AllotmentRules {
    pub(super) const ALL: Self = Self { own_numbers: true, all_groups: true };
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) written: u64,
    /// Writes whose slice was full.
    pub(super) full: u64,
    /// Requests for room that the quota does not have.
    pub(super) exceeded: u64,
    pub(super) divided: u64,
    /// Commands that arrived after their proposer had given them up.
    pub(super) late: u64,
    /// Changes of the quota.
    pub(super) changed: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.written += other.written;
        self.full += other.full;
        self.exceeded += other.exceeded;
        self.divided += other.divided;
        self.late += other.late;
        self.changed += other.changed;
    }
}

type Outcome = Result<Reply, ProposeError>;

type Answer = SimAnswer<Reply>;

/// A command on its way to a group.
struct Sent {
    group: u32,
    change: Change,
    answer: Answer,
}

#[derive(Default)]
struct SimGroup(MemoryGroup);

impl SimGroup {
    fn apply(&mut self, change: Change) -> Result<Reply, Reject> {
        self.0.apply(change)
    }

    fn payer(&self) -> Payer {
        let row = self.0.rows.get(&payer_row(KEY)).unwrap();
        row.map(|value| decode(&value).unwrap()).unwrap_or_default()
    }

    fn state(&self) -> SliceState {
        let payer = self.payer();
        SliceState::new(payer.slice.unwrap_or_default().limits, &payer.usage)
    }
}

type Groups = BTreeMap<u32, SimGroup>;

/// The quota in the system group.
fn quota_in(groups: &Groups) -> Option<Quota> {
    let row = groups[&SYSTEM_GROUP].0.rows.get(&credential::row(KEY)).unwrap()?;
    decode::<Credential>(&row).unwrap().quota
}

/// The groups as a runner sees them.
struct SimGroups {
    groups: Arc<Mutex<Groups>>,
    network: Arc<Mutex<Vec<Sent>>>,
    rules: AllotmentRules,
    /// Groups that the runner divides the quota among, if the rule is left out.
    some_groups: BTreeSet<u32>,
    /// True if the runner has old rows.
    is_behind: bool,
}

impl SimGroups {
    async fn send(&self, group: u32, change: Change) -> Outcome {
        let answer = Answer::default();
        self.network.lock().push(Sent { group, change, answer: answer.clone() });
        answer.await
    }

    /// Sets the quota in all groups and divides it.
    async fn change_quota(&self, quota: Quota) -> Outcome {
        for group in [SYSTEM_GROUP].into_iter().chain(OBJECT_GROUPS) {
            let set = SetKeyQuota { access_key: KEY.into(), quota: Some(quota) };
            self.send(group, Change::SetKeyQuota(set)).await?;
        }
        allotment_steps::divide(self, &owner_of_key(KEY), None).await.map(|()| Reply::Done)
    }
}

impl AllotmentGroups for SimGroups {
    fn quota(&self) -> Option<Quota> {
        quota_in(&self.groups.lock())
    }

    fn ids(&self) -> BTreeSet<u32> {
        if self.rules.all_groups { OBJECT_GROUPS.into() } else { self.some_groups.clone() }
    }

    fn known(&self, group: u32) -> SliceState {
        if self.is_behind { SliceState::default() } else { self.groups.lock()[&group].state() }
    }

    async fn propose(&self, group: u32, change: Change) -> Outcome {
        match change {
            Change::BeginAllotment(_) if !self.rules.own_numbers => Ok(Reply::Allotment { number: 1 }),
            change => self.send(group, change).await,
        }
    }
}

struct Runner {
    /// True if it changes the quota.
    changes_quota: bool,
    running: Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

pub(super) struct World {
    rng: Rng,
    rules: AllotmentRules,
    is_calm: bool,
    groups: Arc<Mutex<Groups>>,
    network: Arc<Mutex<Vec<Sent>>>,
    runners: Vec<Runner>,
    /// A group without a leader.
    down: Option<u32>,
    /// True from the beginning of a change of the quota until it has ended.
    is_changing: bool,
    /// Most that the slices may be together; `None` from a change of the quota until no allotment runs.
    allowed: Option<u64>,
    objects: Vec<(u32, String)>,
    next_body: u64,
    trace: Vec<String>,
    pub(super) seen: Seen,
}

impl World {
    pub(super) fn new(seed: u64, rules: AllotmentRules) -> Self {
        let mut groups: Groups = (0..=3).map(|group| (group, SimGroup::default())).collect();
        let put =
            PutCredential { credential: Credential { access_key: KEY.into(), ..Credential::default() } };
        let system = groups.get_mut(&SYSTEM_GROUP).expect("the system group is one of them");
        system.apply(Change::PutCredential(put)).unwrap();
        for group in OBJECT_GROUPS {
            let mirror = MirrorBucket { bucket_id: 1, epoch: 1, ..MirrorBucket::default() };
            groups.get_mut(&group).expect("each group exists").apply(Change::MirrorBucket(mirror)).unwrap();
        }
        Self {
            rng: Rng::with_seed(seed),
            rules,
            is_calm: false,
            groups: Arc::new(Mutex::new(groups)),
            network: Arc::default(),
            runners: Vec::new(),
            down: None,
            is_changing: false,
            allowed: None,
            objects: Vec::new(),
            next_body: 1,
            trace: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Lets one thing happen. Returns a violation with the last events.
    pub(super) fn act(&mut self) -> Result<(), String> {
        match self.rng.u8(0..100) {
            _ if !self.has_quota() && !self.is_changing => self.begin_change(),
            0..2 => self.kill_runner(),
            2..8 => self.fail_command(),
            8..10 => self.begin_change(),
            10..13 => self.begin_allotment(None),
            13..30 => self.write(),
            30..42 => self.delete(),
            _ => self.deliver(),
        }
        self.poll();
        self.check()
    }

    /// Ends all faults. Then the whole quota can be used, in any group, and nothing more.
    pub(super) fn calm_down(&mut self) -> Result<(), String> {
        self.note("calm".into());
        self.is_calm = true;
        self.until_at_rest()?;
        for _ in 0..CALM_ACTIONS {
            if !self.is_changing && self.has_quota() {
                break;
            }
            self.begin_change();
            self.until_at_rest()?;
        }
        // What was deleted while the usage was over the quota is not free.
        self.begin_allotment(None);
        self.until_at_rest()?;
        let (limit, held) = (self.quota_bytes(), self.held());
        if held > limit.max(self.used()) {
            return self.violated(&format!("the slices have {held} bytes together, and the quota {limit}"));
        }
        while let Some(rest) = limit.checked_sub(self.used()).filter(|rest| *rest > 0) {
            let (group, size) = (self.any_group(), self.rng.u64(1..=rest));
            if self.write_in(group, size).is_err() {
                self.begin_allotment(Some(needed(group, size)));
                self.until_at_rest()?;
                if let Err(why) = self.write_in(group, size) {
                    return self.violated(&format!("{size} of {rest} bytes do not fit in {group}: {why}"));
                }
            }
            self.check()?;
        }
        let (group, before) = (self.any_group(), self.seen.exceeded);
        if self.write_in(group, 1).is_ok() {
            return self.violated("a byte more than the quota was written");
        }
        self.begin_allotment(Some(needed(group, 1)));
        self.until_at_rest()?;
        match self.seen.exceeded > before {
            true => Ok(()),
            false => self.violated("the quota is not reported as exceeded"),
        }
    }

    /// Divides a quota, without faults from then on.
    pub(super) fn divide_calmly(&mut self, bytes: u64) -> Result<(), String> {
        self.is_calm = true;
        self.change_to(Quota { bytes: Some(bytes), objects: None });
        self.until_at_rest()
    }

    /// Takes the leader away from a group, or gives every group one.
    pub(super) fn take_down(&mut self, group: Option<u32>) {
        self.down = group;
    }

    /// Writes an object after an allotment for it. Returns true if it was written.
    pub(super) fn writes_with_room(&mut self, group: u32, size: u64) -> Result<bool, String> {
        self.begin_allotment(Some(needed(group, size)));
        self.until_at_rest()?;
        let is_written = self.write_in(group, size).is_ok();
        self.check()?;
        Ok(is_written)
    }

    /// Lets everything arrive and end.
    fn until_at_rest(&mut self) -> Result<(), String> {
        for _ in 0..CALM_ACTIONS {
            self.poll();
            if self.runners.is_empty() && self.network.lock().is_empty() {
                return Ok(());
            }
            self.deliver();
            self.check()?;
        }
        self.violated("an allotment does not end")
    }

    fn note(&mut self, event: String) {
        self.trace.push(event);
    }

    fn violated(&self, what: &str) -> Result<(), String> {
        let last = &self.trace[self.trace.len().saturating_sub(EVENTS_SHOWN)..];
        Err(format!("{what}, after {last:#?}"))
    }

    fn any_group(&mut self) -> u32 {
        OBJECT_GROUPS[self.rng.usize(..OBJECT_GROUPS.len())]
    }

    fn sim_groups(&mut self) -> SimGroups {
        let left_out = self.any_group();
        SimGroups {
            groups: Arc::clone(&self.groups),
            network: Arc::clone(&self.network),
            rules: self.rules,
            some_groups: OBJECT_GROUPS.into_iter().filter(|group| *group != left_out).collect(),
            is_behind: !self.is_calm && self.rng.u8(0..4) == 0,
        }
    }

    fn kill_runner(&mut self) {
        if !self.runners.is_empty() {
            let index = self.rng.usize(..self.runners.len());
            if self.runners.swap_remove(index).changes_quota {
                // Commands that set a quota are not late: that is not what this simulation is about.
                self.network.lock().retain(|sent| !matches!(sent.change, Change::SetKeyQuota(_)));
            }
            self.note("a runner is killed".into());
        }
    }

    /// Lets a command fail: it was not proposed, or its outcome is unknown; then it may arrive later.
    fn fail_command(&mut self) {
        let mut network = self.network.lock();
        if network.is_empty() {
            return;
        }
        let index = self.rng.usize(..network.len());
        if network[index].answer.is_given() {
            return;
        }
        if matches!(network[index].change, Change::SetKeyQuota(_)) || self.rng.bool() {
            let sent = network.remove(index);
            sent.answer.give(Err(ProposeError::NotLeader { leader: None }));
        } else {
            network[index].answer.give(Err(ProposeError::UnknownOutcome));
        }
    }

    fn begin_allotment(&mut self, needed: Option<NeededRoom>) {
        if self.runners.len() >= RUNNERS_MAX {
            return;
        }
        let groups = self.sim_groups();
        let running = Box::pin(async move {
            let divided = allotment_steps::divide(&groups, &owner_of_key(KEY), needed).await;
            divided.map(|()| Reply::Done)
        });
        self.runners.push(Runner { changes_quota: false, running });
    }

    /// Changes the quota, or continues an interrupted change; one at a time.
    fn begin_change(&mut self) {
        if self.runners.iter().any(|runner| runner.changes_quota) {
            return;
        }
        let current = quota_in(&self.groups.lock());
        let quota = match current.filter(|_| self.is_changing) {
            Some(interrupted) => interrupted,
            None => Quota { bytes: Some(self.rng.u64(..=QUOTA_MAX)), objects: None },
        };
        self.change_to(quota);
    }

    fn change_to(&mut self, quota: Quota) {
        (self.is_changing, self.allowed) = (true, None);
        self.note(format!("the quota becomes {quota:?}"));
        let groups = self.sim_groups();
        let running = Box::pin(async move { groups.change_quota(quota).await });
        self.runners.push(Runner { changes_quota: true, running });
    }

    fn write(&mut self) {
        let (group, size) = (self.any_group(), self.rng.u64(1..=OBJECT_BYTES_MAX));
        match self.write_in(group, size) {
            Err(Reject::SliceFull { .. }) => {
                self.seen.full += 1;
                self.begin_allotment(Some(needed(group, size)));
            }
            Ok(()) | Err(Reject::QuotaExceeded { .. }) => {}
            Err(other) => panic!("unexpected rejection of a write: {other}"),
        }
    }

    fn write_in(&mut self, group: u32, size: u64) -> Result<(), Reject> {
        self.next_body += 1;
        let name = format!("k{}", self.next_body);
        let version = ObjectVersion { payer: KEY.into(), ..version(BodyId(self.next_body), size) };
        self.object_command(group, &name, put(version))?;
        self.note(format!("{size} bytes in group {group}"));
        self.seen.written += 1;
        self.objects.push((group, name));
        Ok(())
    }

    fn delete(&mut self) {
        if !self.objects.is_empty() {
            let index = self.rng.usize(..self.objects.len());
            let (group, name) = self.objects.swap_remove(index);
            self.object_command(group, &name, delete()).expect("an object can be deleted");
        }
    }

    fn object_command(&mut self, group: u32, key: &str, change: ObjectChange) -> Result<(), Reject> {
        let (key, change) = (key.to_owned(), Some(change));
        let command = ObjectCommand { bucket_id: 1, epoch: 1, key, change, ..ObjectCommand::default() };
        self.apply(group, Change::Object(command)).map(drop)
    }

    fn apply(&self, group: u32, change: Change) -> Result<Reply, Reject> {
        self.groups.lock().get_mut(&group).expect("commands are sent to groups that exist").apply(change)
    }

    /// Lets a command arrive: any one, or the newest one, so that most commands are not late.
    fn deliver(&mut self) {
        let sent = {
            let mut network = self.network.lock();
            let Some(newest) = network.len().checked_sub(1) else { return };
            let is_any = self.is_calm || self.rng.u8(0..3) == 0;
            network.remove(if is_any { self.rng.usize(..=newest) } else { newest })
        };
        if self.down == Some(sent.group) {
            sent.answer.give(Err(ProposeError::NotLeader { leader: None }));
            return;
        }
        self.seen.late += u64::from(sent.answer.is_given());
        let outcome = self.apply(sent.group, sent.change.clone());
        self.note(format!("{:?} in group {}: {outcome:?}", sent.change, sent.group));
        sent.answer.give(outcome.map_err(ProposeError::from));
    }

    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut index = 0;
        while index < self.runners.len() {
            match self.runners[index].running.as_mut().poll(&mut context) {
                Poll::Pending => index += 1,
                Poll::Ready(outcome) => {
                    let Runner { changes_quota, .. } = self.runners.swap_remove(index);
                    self.ended(changes_quota, &outcome);
                }
            }
        }
    }

    fn ended(&mut self, changes_quota: bool, outcome: &Outcome) {
        self.note(format!("a runner ends: {outcome:?}"));
        match outcome {
            Ok(_) if changes_quota => {
                self.seen.changed += 1;
                self.is_changing = false;
            }
            Ok(_) => self.seen.divided += 1,
            Err(ProposeError::Rejected(Reject::QuotaExceeded { .. })) => self.seen.exceeded += 1,
            Err(_) => {}
        }
    }

    fn used(&self) -> u64 {
        let groups = self.groups.lock();
        OBJECT_GROUPS.iter().map(|group| groups[group].payer().usage.bytes).sum()
    }

    /// Slices of all groups together: the quota where there is none, and the usage where that is higher.
    fn held(&self) -> u64 {
        let groups = self.groups.lock();
        let mut sum = 0u64;
        for group in OBJECT_GROUPS {
            let payer = groups[&group].payer();
            let slice = payer.slice.and_then(|slice| slice.limits.bytes);
            let limit = slice.or(payer.quota.and_then(|quota| quota.bytes)).unwrap_or(u64::MAX);
            sum = sum.saturating_add(limit.max(payer.usage.bytes));
        }
        sum
    }

    fn check(&mut self) -> Result<(), String> {
        let held = self.held();
        if let Some(allowed) = self.allowed.filter(|allowed| held > *allowed) {
            return self.violated(&format!("the slices have {held} bytes together, and may have {allowed}"));
        }
        if !self.is_changing && !self.may_grow() {
            self.allowed = Some(held.max(self.quota_bytes()));
        }
        Ok(())
    }

    fn has_quota(&self) -> bool {
        quota_in(&self.groups.lock()).is_some()
    }

    fn quota_bytes(&self) -> u64 {
        quota_in(&self.groups.lock()).and_then(|quota| quota.bytes).unwrap_or_default()
    }

    /// True while an allotment may have lowered slices and not yet raised others.
    fn may_grow(&self) -> bool {
        let sets_slice = |sent: &Sent| matches!(sent.change, Change::SetSlice(_));
        !self.runners.is_empty() || self.network.lock().iter().any(sets_slice)
    }
}

fn needed(group: u32, bytes: u64) -> NeededRoom {
    NeededRoom { group, bytes, objects: 1, allotment: 0 }
}
