//! The world of a schedule, for tests only: groups with the rows of all positions of their logs, nodes that
//! have applied some of them, commands on their way, and runners.

use crate::apply::is_released;
use crate::apply::memory_group::MemoryGroup;
use crate::catalogue::groups::SYSTEM_GROUP;
use crate::catalogue::guest_steps::{self, GuestGroups, UnfencedSegments};
use crate::catalogue::options::ProposeError;
use crate::catalogue::testing::{SimAnswer, delete, extent, put, version};
use crate::view::{MemoryRows, RowReader as _};
use fastrand::Rng;
use mlgw_common::{BodyId, NodeId, SegmentId};
use mlgw_formats::command::{
    AssignGroup, Change, CreateSegment, FenceSegment, MirrorBucket, ObjectChange, ObjectCommand, PutNode,
    PutPartition, PutSet, Reject, RelocateExtent, RemoveSegment, Reply, SealSegment,
};
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::{Counter, MetaRow};
use mlgw_formats::schema::set::{MemberPlace, group_row, row};
use mlgw_formats::schema::usage::segment_row;
use mlgw_formats::schema::{
    Extent, GroupSet, Node, NodeSet, ObjectVersion, SegmentRecord, SegmentState, decode, segment,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const OBJECT_GROUPS: [u32; 2] = [1, 2];
/// Sets, with one node each: that whose id is greater by one.
const SETS: [u32; 3] = [0, 1, 2];
const NODES: [u64; 3] = [1, 2, 3];
/// The bucket of all objects.
const BUCKET: u64 = 1;
/// Last events that a failure shows.
const EVENTS_SHOWN: usize = 60;

/// The rules of the end of a guest; false for one that a test leaves out.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestRules {
    /// A node acknowledges a chunk only if the group may refer to its segment by rows that the node reads
    /// after it has created the segment.
    pub(super) checks_set: bool,
    /// The end of a guest is rejected if its set has a segment that the proposer has not read.
    pub(super) names_segment: bool,
    /// A removal names only groups that have released the segment.
    pub(super) names_groups: bool,
}

impl GuestRules {
    pub(super) const ALL: Self = Self { checks_set: true, names_segment: true, names_groups: true };
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) ended: u64,
    /// Ends of guests that were not proposed, or were rejected.
    pub(super) not_ended: u64,
    pub(super) removed: u64,
    pub(super) written: u64,
    /// Writes that were rejected because of a fence.
    pub(super) fenced: u64,
    pub(super) left: u64,
    pub(super) joined: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.ended += other.ended;
        self.not_ended += other.not_ended;
        self.removed += other.removed;
        self.written += other.written;
        self.fenced += other.fenced;
        self.left += other.left;
        self.joined += other.joined;
    }
}

type Outcome = Result<Reply, ProposeError>;

type Answer = SimAnswer<Reply>;

/// A command on its way to a group.
struct Sent {
    group: u32,
    node: u64,
    change: Change,
    answer: Answer,
}

/// The rows of a group after each entry of its log.
struct SimGroup(Vec<Arc<MemoryRows>>);

impl SimGroup {
    fn rows(&self) -> &Arc<MemoryRows> {
        &self.0[self.last()]
    }

    fn last(&self) -> usize {
        self.0.len() - 1
    }

    fn apply(&mut self, change: Change) -> Result<Reply, Reject> {
        let (rows, index) = (MemoryRows::clone(self.rows()), self.last() as u64);
        let mut next = MemoryGroup { rows, index };
        let outcome = next.apply(change);
        self.0.push(Arc::new(next.rows));
        outcome
    }
}

/// Progress of a node in the groups.
#[derive(Default)]
struct SimNode {
    /// Position by group. A member that was stopped keeps it.
    applied: BTreeMap<u32, usize>,
    /// The groups that have a member on the node.
    running: BTreeSet<u32>,
}

/// State that runners share with the world.
struct Shared {
    groups: BTreeMap<u32, SimGroup>,
    nodes: BTreeMap<u64, SimNode>,
    network: Vec<Sent>,
}

impl Shared {
    /// The rows of a group on a node; `None` if it has no member there.
    fn rows(&self, node: u64, group: u32) -> Option<Arc<MemoryRows>> {
        let of = &self.nodes[&node];
        of.running.contains(&group).then(|| self.groups[&group].0[of.applied[&group]].clone())
    }

    /// The rows of the system group on a node.
    fn system(&self, node: u64) -> Arc<MemoryRows> {
        self.rows(node, SYSTEM_GROUP).expect("every node has the system group")
    }

    /// Applies a command at once, and its node applies it with everything before.
    fn apply(&mut self, node: u64, group: u32, change: Change) -> Result<Reply, Reject> {
        let of = self.groups.get_mut(&group).expect("commands are sent to groups that exist");
        let outcome = of.apply(change);
        let last = of.last();
        self.advance(node, group, last);
        outcome
    }

    fn advance(&mut self, node: u64, group: u32, to: usize) {
        let of = self.nodes.get_mut(&node).expect("nodes are not removed");
        if of.running.contains(&group) {
            let applied = of.applied.entry(group).or_default();
            *applied = to.max(*applied);
        }
    }
}

fn of_group(system: &MemoryRows, group: u32) -> GroupSet {
    let known = system.get(&group_row(group)).unwrap();
    known.map_or(GroupSet::first(group), |value| decode(&value).unwrap())
}

fn segments(system: &MemoryRows) -> Vec<SegmentRecord> {
    let rows = system.range(&Family::Segment.start(), &Family::Segment.end(), usize::MAX).unwrap();
    rows.iter().map(|(_, value)| decode(value).unwrap()).collect()
}

/// The groups as a node sees them.
#[derive(Clone)]
struct NodeGroups {
    node: u64,
    shared: Arc<Mutex<Shared>>,
    rules: GuestRules,
}

impl GuestGroups for NodeGroups {
    async fn read_unfenced(&self, group: u32, set: u32) -> Result<Option<UnfencedSegments>, ProposeError> {
        let (system, rows) = {
            let shared = self.shared.lock();
            (shared.system(self.node), shared.rows(self.node, group))
        };
        let rows = rows.ok_or(Reject::SegmentInUse)?;
        let next: Option<Vec<u8>> = system.get(&MetaRow::NextSegment.row()).unwrap();
        let next = next.map_or(1, |value| decode::<Counter>(&value).unwrap().next.max(1));
        Ok(guest_steps::unfenced_segments(SegmentId(next), &segments(&system), &*rows, set).unwrap())
    }

    async fn propose_to(&self, group: u32, change: Change) -> Outcome {
        let change = match change {
            Change::EndGuest(mut end) if !self.rules.names_segment => {
                end.next_segment = u64::MAX;
                Change::EndGuest(end)
            }
            other => other,
        };
        let answer = Answer::default();
        let sent = Sent { group, node: self.node, change, answer: answer.clone() };
        self.shared.lock().network.push(sent);
        answer.await
    }
}

impl NodeGroups {
    /// The groups that may refer to a segment by the rows of the node.
    fn referrers(&self, set: u32) -> Vec<u32> {
        let system = self.shared.lock().system(self.node);
        OBJECT_GROUPS.into_iter().filter(|group| of_group(&system, *group).may_refer_to(set)).collect()
    }

    /// Fences a segment and removes it, as `Catalogue::fence_segment` and `Catalogue::remove_segment` do.
    async fn remove(&self, record: &SegmentRecord) -> Outcome {
        let segment = record.segment_id();
        for group in self.referrers(record.set) {
            self.propose_to(group, Change::FenceSegment(FenceSegment { segment: segment.0 })).await?;
        }
        let mut released_in = self.referrers(record.set);
        for group in &released_in {
            let rows = self.shared.lock().rows(self.node, *group);
            if !rows.is_some_and(|rows| is_released(&*rows, segment).unwrap()) {
                return Err(Reject::SegmentInUse.into());
            }
        }
        if !self.rules.names_groups {
            released_in = OBJECT_GROUPS.into();
        }
        let remove = RemoveSegment { segment: segment.0, released_in };
        self.propose_to(SYSTEM_GROUP, Change::RemoveSegment(remove)).await
    }
}

struct Runner {
    is_end: bool,
    steps: Pin<Box<dyn Future<Output = Result<bool, ProposeError>> + Send>>,
}

/// A segment that its creator appends to.
#[derive(Clone, Copy)]
struct OwnSegment {
    node: u64,
    segment: SegmentId,
    set: u32,
}

pub(super) struct World {
    rng: Rng,
    rules: GuestRules,
    shared: Arc<Mutex<Shared>>,
    runners: Vec<Runner>,
    /// All segments that were created.
    created: Vec<OwnSegment>,
    /// Objects: their group, key, and only extent.
    objects: BTreeMap<String, (u32, u64, Extent)>,
    next: u64,
    trace: Vec<String>,
    pub(super) seen: Seen,
}

impl World {
    pub(super) fn new(seed: u64, rules: GuestRules) -> Self {
        let first = || SimGroup(vec![Arc::default()]);
        let groups = std::iter::once(SYSTEM_GROUP).chain(OBJECT_GROUPS).map(|group| (group, first()));
        let mut shared = Shared { groups: groups.collect(), nodes: BTreeMap::new(), network: Vec::new() };
        for node in NODES {
            let running: BTreeSet<u32> = shared.groups.keys().copied().collect();
            let applied = running.iter().map(|group| (*group, 0)).collect();
            shared.nodes.insert(node, SimNode { applied, running });
        }
        let mut changes = Vec::new();
        for id in NODES {
            changes.push(Change::PutNode(PutNode { node: Node { id, ..Node::default() } }));
        }
        for set in SETS {
            changes.push(Change::PutSet(PutSet { set, nodes: vec![u64::from(set) + 1], changes: 0 }));
        }
        for group in OBJECT_GROUPS {
            // Each group owns keys: those of a bucket, or all others.
            let bucket_id = if group == OBJECT_GROUPS[0] { 0 } else { BUCKET };
            changes.push(Change::PutPartition(PutPartition { bucket_id, key: Vec::new(), group }));
        }
        for change in changes {
            shared.apply(NODES[0], SYSTEM_GROUP, change).expect("the world begins");
        }
        for group in OBJECT_GROUPS {
            let mirror = MirrorBucket { bucket_id: BUCKET, epoch: 1, ..MirrorBucket::default() };
            shared.apply(NODES[0], group, Change::MirrorBucket(mirror)).expect("the world begins");
        }
        for node in NODES {
            let last: Vec<_> = shared.groups.iter().map(|(group, of)| (*group, of.last())).collect();
            last.into_iter().for_each(|(group, last)| shared.advance(node, group, last));
        }
        Self {
            rng: Rng::with_seed(seed),
            rules,
            shared: Arc::new(Mutex::new(shared)),
            runners: Vec::new(),
            created: Vec::new(),
            objects: BTreeMap::new(),
            next: 1,
            trace: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Lets one thing happen. Returns a violation with the last events.
    pub(super) fn act(&mut self) -> Result<(), String> {
        match self.rng.u8(0..100) {
            0..5 => self.create_segment(),
            5..15 => self.append(),
            15..24 => self.delete(),
            24..27 => self.assign(),
            27..36 => self.begin_end(),
            36..42 => self.begin_removal(),
            42..47 => self.change_part(),
            47..49 => self.drop_answer(),
            49 => self.kill_runner(),
            50..68 => self.advance(),
            _ => self.deliver(),
        }
        self.poll();
        self.check()
    }

    fn note(&mut self, event: String) {
        self.trace.push(event);
    }

    fn violated(&self, what: &str) -> Result<(), String> {
        let last = &self.trace[self.trace.len().saturating_sub(EVENTS_SHOWN)..];
        Err(format!("{what}, after {last:#?}"))
    }

    fn any_node(&mut self) -> u64 {
        NODES[self.rng.usize(..NODES.len())]
    }

    fn any_group(&mut self) -> u32 {
        OBJECT_GROUPS[self.rng.usize(..OBJECT_GROUPS.len())]
    }

    fn groups_of(&self, node: u64) -> NodeGroups {
        NodeGroups { node, shared: self.shared.clone(), rules: self.rules }
    }

    /// A node creates a segment in a set, and has applied that then.
    fn create_segment(&mut self) {
        let (node, set) = (self.any_node(), SETS[self.rng.usize(..SETS.len())]);
        let create = CreateSegment { node, set, location: "d".into(), ..CreateSegment::default() };
        let created = self.shared.lock().apply(node, SYSTEM_GROUP, Change::CreateSegment(create));
        let Ok(Reply::Segment(record)) = created else { panic!("{created:?}") };
        let segment = record.segment_id();
        self.created.push(OwnSegment { node, segment, set });
        self.note(format!("node {node} creates segment {segment} in set {set}"));
    }

    /// A node appends a chunk to a segment that it has created, and proposes a record that refers to it: a
    /// new object, or one whose chunk is moved.
    fn append(&mut self) {
        let Some(OwnSegment { node, segment, set }) = self.rng.choice(&self.created).copied() else { return };
        let (group, system) = (self.any_group(), self.shared.lock().system(node));
        // A hold of the chunk keeps the segment until the node has read the rows.
        let is_there = system.get(&segment::row(segment)).unwrap().is_some();
        let may_refer = of_group(&system, group).may_refer_to(set);
        if !is_there || (self.rules.checks_set && !may_refer) {
            return;
        }
        self.next += 1;
        let to = Extent { offset: self.next, ..extent(segment.0, 10) };
        let moved = self.objects.iter().filter(|(_, (of, ..))| *of == group);
        let moved: Vec<_> = moved.map(|(key, of)| (key.clone(), of.clone())).collect();
        let change = match self.rng.choice(&moved).cloned().filter(|_| self.rng.bool()) {
            Some((key, (_, body_id, from))) => {
                let base = RelocateExtent { bucket_id: BUCKET, key, body_id, part: 0, page: None, from, to };
                Change::RelocateExtent(base)
            }
            None => {
                let body = BodyId(self.next);
                let version = ObjectVersion { extents: vec![to], ..version(body, 10) };
                object(&format!("k{}", body.0), put(version))
            }
        };
        self.send(group, node, change);
    }

    fn delete(&mut self) {
        let keys: Vec<_> = self.objects.iter().map(|(key, (group, ..))| (key.clone(), *group)).collect();
        if let Some((key, group)) = self.rng.choice(&keys).cloned() {
            let node = self.any_node();
            self.send(group, node, object(&key, delete()));
        }
    }

    fn send(&mut self, group: u32, node: u64, change: Change) {
        let sent = Sent { group, node, change, answer: Answer::default() };
        self.shared.lock().network.push(sent);
    }

    /// A group is assigned to a set.
    fn assign(&mut self) {
        let (group, set) = (self.any_group(), SETS[self.rng.usize(..SETS.len())]);
        let mut shared = self.shared.lock();
        let changes = of_group(shared.groups[&SYSTEM_GROUP].rows(), group).changes;
        let assign = Change::AssignGroup(AssignGroup { group, set, changes });
        let outcome = shared.apply(NODES[0], SYSTEM_GROUP, assign);
        drop(shared);
        self.note(format!("group {group} to set {set}: {outcome:?}"));
    }

    /// A node that has a member of a group begins to end that the group is a guest.
    fn begin_end(&mut self) {
        let (node, group) = (self.any_node(), self.any_group());
        let shared = self.shared.lock();
        let of = of_group(&shared.system(node), group);
        let has_member = shared.nodes[&node].running.contains(&group);
        drop(shared);
        let Some(set) = self.rng.choice(&of.guest_of).copied().filter(|_| has_member) else { return };
        self.note(format!("node {node} begins to end {group} in {set}, {of:?}"));
        let groups = self.groups_of(node);
        let steps = Box::pin(async move { guest_steps::end_guest(&groups, &of, set).await });
        self.runners.push(Runner { is_end: true, steps });
    }

    /// A node seals a segment and begins to remove it.
    fn begin_removal(&mut self) {
        let node = self.any_node();
        let known = segments(&self.shared.lock().system(node));
        let Some(record) = self.rng.choice(&known).cloned() else { return };
        if record.state() == SegmentState::Open {
            let seal = SealSegment { segment: record.id, length: 4096, ..SealSegment::default() };
            let sealed = self.shared.lock().apply(node, SYSTEM_GROUP, Change::SealSegment(seal));
            self.note(format!("segment {}: {sealed:?}", record.id));
        }
        self.note(format!("node {node} begins to remove segment {}", record.id));
        let groups = self.groups_of(node);
        let steps = Box::pin(async move { groups.remove(&record).await.map(|_| true) });
        self.runners.push(Runner { is_end: false, steps });
    }

    /// A node leaves a group in which it has no place, or gets a member again, which has its former rows.
    fn change_part(&mut self) {
        let (node, group) = (self.any_node(), self.any_group());
        let mut shared = self.shared.lock();
        let system = shared.system(node);
        let set = |id: u32| system.get(&row(id)).unwrap().map(|value| decode::<NodeSet>(&value).unwrap());
        let sets: BTreeMap<u32, NodeSet> = SETS.into_iter().filter_map(|id| Some((id, set(id)?))).collect();
        let has_place =
            of_group(&system, group).place(NodeId(node), |id| sets.get(&id)) != MemberPlace::Leaves;
        let running = &mut shared.nodes.get_mut(&node).expect("nodes are not removed").running;
        let is_changed = if has_place { running.insert(group) } else { running.remove(&group) };
        drop(shared);
        if is_changed {
            self.note(format!("node {node} has a member of group {group}: {has_place}"));
            self.seen.joined += u64::from(has_place);
            self.seen.left += u64::from(!has_place);
        }
    }

    /// Drops the answer of a command, which may still arrive.
    fn drop_answer(&mut self) {
        let shared = self.shared.lock();
        if let Some(sent) = self.rng.choice(shared.network.iter()) {
            sent.answer.give(Err(ProposeError::UnknownOutcome));
        }
    }

    fn kill_runner(&mut self) {
        if !self.runners.is_empty() {
            let index = self.rng.usize(..self.runners.len());
            self.runners.swap_remove(index);
        }
    }

    /// A node applies some entries of a group.
    fn advance(&mut self) {
        let node = self.any_node();
        let group = self.rng.u32(0..=2);
        let mut shared = self.shared.lock();
        let (applied, last) = (shared.nodes[&node].applied[&group], shared.groups[&group].last());
        let to = self.rng.usize(applied..=last);
        shared.advance(node, group, to);
    }

    /// Lets a command arrive: any one, or the newest one, so that most commands are not late.
    fn deliver(&mut self) {
        let mut shared = self.shared.lock();
        let Some(newest) = shared.network.len().checked_sub(1) else { return };
        let index = if self.rng.u8(0..3) == 0 { self.rng.usize(..=newest) } else { newest };
        let Sent { group, node, change, answer } = shared.network.remove(index);
        let of = shared.groups.get_mut(&group).expect("commands are sent to groups that exist");
        let outcome = of.apply(change.clone());
        let last = of.last();
        // A proposer usually waits until its node has applied the command.
        if self.rng.u8(0..4) > 0 {
            shared.advance(node, group, last);
        }
        drop(shared);
        self.note(format!("{change:?} of node {node} in group {group}: {outcome:?}"));
        self.record(group, &change, &outcome);
        answer.give(outcome.map_err(ProposeError::from));
    }

    /// Keeps account of the objects.
    fn record(&mut self, group: u32, change: &Change, outcome: &Result<Reply, Reject>) {
        self.seen.fenced += u64::from(matches!(outcome, Err(Reject::SegmentFenced { .. })));
        if outcome.is_err() {
            return;
        }
        match change {
            Change::Object(ObjectCommand { key, change: Some(ObjectChange::Put(put)), .. }) => {
                self.seen.written += 1;
                let extent = put.version.extents[0].clone();
                self.objects.insert(key.clone(), (group, put.version.body_id, extent));
            }
            Change::Object(ObjectCommand { key, change: Some(ObjectChange::Delete(_)), .. }) => {
                self.objects.remove(key);
            }
            Change::RelocateExtent(relocate) => {
                self.seen.written += 1;
                if let Some((_, _, extent)) = self.objects.get_mut(&relocate.key) {
                    extent.clone_from(&relocate.to);
                }
            }
            _ => {}
        }
    }

    /// Lets the runners go on, and takes the outcomes of those that end.
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let mut ended = Vec::new();
        self.runners.retain_mut(|runner| match runner.steps.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                ended.push((runner.is_end, outcome));
                false
            }
        });
        for (is_end, outcome) in ended {
            let has_ended = outcome == Ok(true);
            self.seen.ended += u64::from(is_end && has_ended);
            self.seen.not_ended += u64::from(is_end && !has_ended);
            self.seen.removed += u64::from(!is_end && has_ended);
        }
    }

    /// Checks the references of all groups.
    fn check(&self) -> Result<(), String> {
        let shared = self.shared.lock();
        let system = shared.groups[&SYSTEM_GROUP].rows().clone();
        for group in OBJECT_GROUPS {
            let (of, rows) = (of_group(&system, group), shared.groups[&group].rows());
            for OwnSegment { segment, set, .. } in &self.created {
                if rows.get(&segment_row(*segment)).unwrap().is_none() {
                    continue;
                }
                if system.get(&segment::row(*segment)).unwrap().is_none() {
                    return self.violated(&format!("group {group} refers to the removed segment {segment}"));
                }
                if !of.may_refer_to(*set) {
                    return self.violated(&format!("{of:?} refers to segment {segment} of set {set}"));
                }
            }
        }
        Ok(())
    }
}

/// A command for an object.
fn object(key: &str, change: ObjectChange) -> Change {
    let (bucket_id, epoch, key) = (BUCKET, 1, key.to_owned());
    Change::Object(ObjectCommand { bucket_id, epoch, key, change: Some(change), ..ObjectCommand::default() })
}
