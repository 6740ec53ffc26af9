//! Versions of a cluster: what every member can read.
//!
//! A version names the commands, and the fields of commands and records, that a build knows. A cluster keeps
//! the version of its oldest member: it rises when every node has reported that it knows a later
//! one. No node proposes a command of a later version, so members of different builds never apply the same
//! log differently. A member that finds a later command in the log stops.

use crate::command::{Change, Command};

/// The newest version that this build knows.
pub const CLUSTER_VERSION: u32 = 8;

/// The newest version of the build before this one.
pub const PREVIOUS_CLUSTER_VERSION: u32 = CLUSTER_VERSION - 1;

/// The version of a catalogue that names none.
pub const FIRST_CLUSTER_VERSION: u32 = 1;

/// The first version with several nodes: commands of membership, and the later fields of nodes.
pub const MEMBERSHIP_CLUSTER_VERSION: u32 = 2;

/// The first version with several replicas of a segment.
pub const REPLICATION_CLUSTER_VERSION: u32 = 3;

/// The first version in which every storage node serves: buckets that are split into ranges when they are
/// created, freezes and thaws that name the epoch of their bucket, and a Last-Modified that grows although
/// the clocks of nodes differ.
pub const SERVING_CLUSTER_VERSION: u32 = 4;

/// The first version in which a voter that restarted does not vote while a leader may rely on what it
/// answered before, so that leaders may read by lease, and in which one call has the heartbeats of several
/// groups. No command needs it.
pub const LEASES_CLUSTER_VERSION: u32 = 5;

/// The first version in which nodes report the authorities of their certificates, so that the authority of
/// the cluster can be replaced.
pub const ROTATION_CLUSTER_VERSION: u32 = 5;

/// The first version in which the row of a node names the node that takes its place, and a drained node is
/// removed only while it is draining.
pub const REPLACEMENT_CLUSTER_VERSION: u32 = 5;

/// The first version whose duty node may change: the row of the duty node, and the terms of commands.
pub const DUTY_CLUSTER_VERSION: u32 = 5;

/// The first version with sets of nodes.
pub const SETS_CLUSTER_VERSION: u32 = 6;

/// The first version in which mirrors and drops of buckets name the run of their saga.
pub const SAGA_RUNS_CLUSTER_VERSION: u32 = 7;

/// The first version in which quotas are divided among object groups.
pub const SLICES_CLUSTER_VERSION: u32 = 7;

/// The first version in which the members of a group compare their rows in the background.
pub const COMPARISON_CLUSTER_VERSION: u32 = 7;

/// The first version in which a batch that is proposed to a leader on another node has a tag.
pub const TAGS_CLUSTER_VERSION: u32 = 8;

const _: () = assert!(FIRST_CLUSTER_VERSION < MEMBERSHIP_CLUSTER_VERSION);
const _: () = assert!(MEMBERSHIP_CLUSTER_VERSION < REPLICATION_CLUSTER_VERSION);
const _: () = assert!(REPLICATION_CLUSTER_VERSION < SERVING_CLUSTER_VERSION);
const _: () = assert!(SERVING_CLUSTER_VERSION < LEASES_CLUSTER_VERSION);
const _: () = assert!(LEASES_CLUSTER_VERSION == ROTATION_CLUSTER_VERSION);
const _: () = assert!(ROTATION_CLUSTER_VERSION == REPLACEMENT_CLUSTER_VERSION);
const _: () = assert!(REPLACEMENT_CLUSTER_VERSION == DUTY_CLUSTER_VERSION);
const _: () = assert!(DUTY_CLUSTER_VERSION < SETS_CLUSTER_VERSION);
const _: () = assert!(SETS_CLUSTER_VERSION < SAGA_RUNS_CLUSTER_VERSION);
const _: () = assert!(SAGA_RUNS_CLUSTER_VERSION == SLICES_CLUSTER_VERSION);
const _: () = assert!(SLICES_CLUSTER_VERSION == COMPARISON_CLUSTER_VERSION);
const _: () = assert!(COMPARISON_CLUSTER_VERSION < TAGS_CLUSTER_VERSION);
const _: () = assert!(TAGS_CLUSTER_VERSION <= CLUSTER_VERSION);

/// Error of a command that this build does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log has a command of cluster version {needs}, and this mlgw knows version {known} at most")]
pub struct LaterCommand {
    /// The command's version.
    pub needs: u32,
    /// The newest version of this build.
    pub known: u32,
}

impl Change {
    /// Returns the cluster version from which every member knows this command and its fields. That of
    /// [`Change::SetClusterVersion`] is the one that it sets: a member that does not know it stops there,
    /// before the commands that it allows.
    #[must_use]
    pub const fn cluster_version(&self) -> u32 {
        match self {
            Self::Object(object) if object.grows_times => SERVING_CLUSTER_VERSION,
            Self::CreateBucket(create) if !create.splits.is_empty() => SERVING_CLUSTER_VERSION,
            Self::FreezeBucket(freeze) if freeze.epoch.is_some() => SERVING_CLUSTER_VERSION,
            Self::ThawBucket(thaw) if thaw.epoch.is_some() => SERVING_CLUSTER_VERSION,
            Self::MirrorBucket(mirror) if mirror.run.is_some() => SAGA_RUNS_CLUSTER_VERSION,
            Self::DropBucket(drop) if drop.run.is_some() => SAGA_RUNS_CLUSTER_VERSION,
            Self::ReportNode(report) if report.has_authorities() => ROTATION_CLUSTER_VERSION,
            Self::DrainNode(drain) if drain.replaced_by != 0 => REPLACEMENT_CLUSTER_VERSION,
            Self::RemoveNode(remove) if remove.is_drained => REPLACEMENT_CLUSTER_VERSION,
            Self::PutNode(put) if put.node.replaced_by != 0 => REPLACEMENT_CLUSTER_VERSION,
            Self::PutNode(put) if put.node.has_authorities() => ROTATION_CLUSTER_VERSION,
            Self::BeginAllotment(_) | Self::SetSlice(_) => SLICES_CLUSTER_VERSION,
            Self::PutSet(_) | Self::AssignGroup(_) | Self::EndGuest(_) => SETS_CLUSTER_VERSION,
            Self::RequestRebalance(_) | Self::EndRebalance(_) => SETS_CLUSTER_VERSION,
            Self::CreateSegment(create) if create.set != 0 => SETS_CLUSTER_VERSION,
            Self::CompareRows(_) => COMPARISON_CLUSTER_VERSION,
            Self::TagBatch(_) => TAGS_CLUSTER_VERSION,
            Self::SetDuty(_) | Self::SetBucketTerm(_) => DUTY_CLUSTER_VERSION,
            _ if self.has_duty_term() => DUTY_CLUSTER_VERSION,
            Self::SetReplicas(_) => REPLICATION_CLUSTER_VERSION,
            Self::PlaceSegment(place) if place.changes.is_some() => REPLICATION_CLUSTER_VERSION,
            Self::CreateSegment(create) if !create.followers.is_empty() => REPLICATION_CLUSTER_VERSION,
            Self::SealSegment(seal) if !seal.replicas.is_empty() => REPLICATION_CLUSTER_VERSION,
            Self::RemoveSegment(remove) if !remove.released_in.is_empty() => REPLICATION_CLUSTER_VERSION,
            Self::SetClusterVersion(set) => set.version,
            Self::PutNode(put) if put.node.has_membership_fields() => MEMBERSHIP_CLUSTER_VERSION,
            Self::CreateJoinToken(_)
            | Self::RemoveJoinToken(_)
            | Self::AdmitNode(_)
            | Self::PutAuthority(_)
            | Self::RemoveAuthority(_)
            | Self::ReportNode(_)
            | Self::SetNodeRole(_)
            | Self::DrainNode(_)
            | Self::RemoveNode(_) => MEMBERSHIP_CLUSTER_VERSION,
            Self::Object(_)
            | Self::CreateBucket(_)
            | Self::SetBucketState(_)
            | Self::RemoveBucket(_)
            | Self::MirrorBucket(_)
            | Self::FreezeBucket(_)
            | Self::ThawBucket(_)
            | Self::DropBucket(_)
            | Self::ReleaseBody(_)
            | Self::LeaseBodies(_)
            | Self::CreateSegment(_)
            | Self::SealSegment(_)
            | Self::PutCredential(_)
            | Self::DeleteCredential(_)
            | Self::PutNode(_)
            | Self::PutPartition(_)
            | Self::MarkSegment(_)
            | Self::FenceSegment(_)
            | Self::RelocateExtent(_)
            | Self::RemoveSegment(_)
            | Self::PlaceSegment(_)
            | Self::PutDataset(_)
            | Self::DeleteDataset(_)
            | Self::CreateJob(_)
            | Self::StepJob(_)
            | Self::SetBucketQuota(_)
            | Self::SetKeyQuota(_)
            | Self::RebindBucket(_)
            | Self::PutPolicy(_)
            | Self::PutUploadKey(_)
            | Self::BeginIncarnation(_) => FIRST_CLUSTER_VERSION,
        }
    }

    /// True if the command names a term of duty.
    const fn has_duty_term(&self) -> bool {
        match self {
            Self::Object(object) => object.duty_term.is_some(),
            Self::CreateJob(create) => create.duty_term.is_some(),
            Self::StepJob(step) => step.duty_term.is_some(),
            Self::PutPolicy(put) => put.duty_term.is_some(),
            Self::RebindBucket(rebind) => rebind.duty_term.is_some(),
            _ => false,
        }
    }
}

/// Checks that a build that knows `known` can apply a command of the log.
///
/// # Errors
/// If the command is of a later version.
pub fn check_known(command: &Command, known: u32) -> Result<(), LaterCommand> {
    // A command without a change was of a later version too: its tag is unknown, so the version is as well.
    let needs = command.change.as_ref().map_or(known.saturating_add(1), Change::cluster_version);
    if needs <= known { Ok(()) } else { Err(LaterCommand { needs, known }) }
}

#[cfg(test)]
mod tests {
    use super::{
        CLUSTER_VERSION, COMPARISON_CLUSTER_VERSION, DUTY_CLUSTER_VERSION, LaterCommand,
        MEMBERSHIP_CLUSTER_VERSION, REPLACEMENT_CLUSTER_VERSION, REPLICATION_CLUSTER_VERSION,
        ROTATION_CLUSTER_VERSION, SAGA_RUNS_CLUSTER_VERSION, SERVING_CLUSTER_VERSION, SETS_CLUSTER_VERSION,
        SLICES_CLUSTER_VERSION, TAGS_CLUSTER_VERSION, check_known,
    };
    use crate::command::{
        AssignGroup, BeginAllotment, Change, Command, CompareRows, CreateBucket, CreateJob, CreateSegment,
        DrainNode, DropBucket, EndGuest, EndRebalance, FreezeBucket, LeaseBodies, MirrorBucket,
        ObjectCommand, PlaceSegment, PutNode, PutPolicy, PutSet, RebindBucket, RemoveNode, RemoveSegment,
        ReportNode, RequestRebalance, SealSegment, SetBucketTerm, SetClusterVersion, SetDuty, SetReplicas,
        SetSlice, SplitKey, StepJob, TagBatch, ThawBucket,
    };
    use crate::schema::{Duty, Node, Rebalance, Replica};

    #[test]
    fn a_command_of_a_later_version_is_unknown() {
        let set = |version| Command::from(Change::SetClusterVersion(SetClusterVersion { version }));
        assert_eq!(check_known(&set(2), 2), Ok(()));
        assert_eq!(check_known(&set(3), 2), Err(LaterCommand { needs: 3, known: 2 }));
        let lease = Command::from(Change::LeaseBodies(LeaseBodies { count: 1 }));
        assert_eq!(check_known(&lease, CLUSTER_VERSION), Ok(()));
        assert!(check_known(&Command { change: None }, CLUSTER_VERSION).is_err());
    }

    #[test]
    fn a_build_of_version_1_knows_no_command_of_membership() {
        let later = Err(LaterCommand { needs: MEMBERSHIP_CLUSTER_VERSION, known: 1 });
        let remove = Change::RemoveNode(RemoveNode { node: 2, now_ms: 5, is_drained: false });
        assert_eq!(check_known(&Command::from(remove), 1), later);
        let put = |node| Command::from(Change::PutNode(PutNode { node }));
        let first = Node { id: 1, address: "h:1".into(), joined_ms: 5, ..Node::default() };
        assert_eq!(check_known(&put(first.clone()), 1), Ok(()));
        assert_eq!(check_known(&put(Node { role: 1, ..first }), 1), later);
    }
    #[test]
    fn a_build_of_version_2_knows_one_replica_of_each_segment() {
        let later = Err(LaterCommand { needs: REPLICATION_CLUSTER_VERSION, known: 2 });
        let set = Command::from(Change::SetReplicas(SetReplicas::default()));
        assert_eq!(check_known(&set, 2), later);
        let place = |changes| PlaceSegment { segment: 1, changes, ..PlaceSegment::default() };
        let place = |changes| Command::from(Change::PlaceSegment(place(changes)));
        assert_eq!(check_known(&place(None), 1), Ok(()));
        assert_eq!(check_known(&place(Some(0)), 2), later);
        let seal =
            |replicas| Command::from(Change::SealSegment(SealSegment { segment: 1, length: 5, replicas }));
        assert_eq!(check_known(&seal(vec![]), 1), Ok(()));
        assert_eq!(check_known(&seal(vec![Replica::default()]), 2), later);
        let remove =
            |released_in| Command::from(Change::RemoveSegment(RemoveSegment { segment: 1, released_in }));
        assert_eq!(check_known(&remove(vec![]), 1), Ok(()));
        assert_eq!(check_known(&remove(vec![1]), 2), later);
        let create = |followers| CreateSegment { followers, ..CreateSegment::default() };
        let create = |followers| Command::from(Change::CreateSegment(create(followers)));
        assert_eq!(check_known(&create(vec![]), 1), Ok(()));
        assert_eq!(check_known(&create(vec![Replica::default()]), 2), later);
    }

    #[test]
    fn a_build_of_version_3_does_not_split_buckets() {
        let create = |splits| CreateBucket { group: Some(1), splits, ..CreateBucket::default() };
        let create = |splits| Command::from(Change::CreateBucket(create(splits)));
        assert_eq!(check_known(&create(vec![]), 1), Ok(()));
        let split = create(vec![SplitKey { key: "m".into(), group: 2 }]);
        assert_eq!(check_known(&split, 3), Err(LaterCommand { needs: SERVING_CLUSTER_VERSION, known: 3 }));
        assert_eq!(check_known(&split, 4), Ok(()));
    }

    #[test]
    fn a_build_of_version_3_knows_no_epoch_of_a_freeze_and_no_times_that_grow() {
        let freeze = |epoch| Change::FreezeBucket(FreezeBucket { bucket_id: 1, epoch });
        let thaw = |epoch| Change::ThawBucket(ThawBucket { bucket_id: 1, epoch });
        let object = |grows_times| Change::Object(ObjectCommand { grows_times, ..ObjectCommand::default() });
        for known in [freeze(None), thaw(None), object(false)] {
            assert_eq!(check_known(&Command::from(known), 1), Ok(()));
        }
        let unknown = Err(LaterCommand { needs: SERVING_CLUSTER_VERSION, known: 3 });
        for later in [freeze(Some(0)), thaw(Some(0)), object(true)] {
            let later = Command::from(later);
            assert_eq!(check_known(&later, 3), unknown);
            assert_eq!(check_known(&later, 4), Ok(()));
        }
    }

    #[test]
    fn a_build_of_version_4_reports_no_authorities() {
        let report = |authority, trusted_authority| {
            let report = ReportNode { node: 2, authority, trusted_authority, ..ReportNode::default() };
            Command::from(Change::ReportNode(report))
        };
        assert_eq!(check_known(&report(0, 0), 2), Ok(()));
        let unknown = Err(LaterCommand { needs: ROTATION_CLUSTER_VERSION, known: 4 });
        for later in [report(1, 0), report(0, 1)] {
            assert_eq!(check_known(&later, 4), unknown);
            assert_eq!(check_known(&later, 5), Ok(()));
        }
        for node in [
            Node { id: 1, authority: 1, ..Node::default() },
            Node { id: 1, replaced_by: 2, ..Node::default() },
        ] {
            assert_eq!(check_known(&Command::from(Change::PutNode(PutNode { node })), 4), unknown);
        }
    }

    #[test]
    fn a_build_of_version_4_replaces_no_nodes() {
        let drain = |replaced_by| {
            Command::from(Change::DrainNode(DrainNode { node: 2, is_draining: true, replaced_by }))
        };
        assert_eq!(check_known(&drain(0), 2), Ok(()));
        let unknown = Err(LaterCommand { needs: REPLACEMENT_CLUSTER_VERSION, known: 4 });
        assert_eq!(check_known(&drain(3), 4), unknown);
        assert_eq!(check_known(&drain(3), 5), Ok(()));
        let remove = |is_drained| {
            Command::from(Change::RemoveNode(RemoveNode { node: 2, is_drained, ..RemoveNode::default() }))
        };
        assert_eq!(check_known(&remove(false), 2), Ok(()));
        assert_eq!(check_known(&remove(true), 4), unknown);
        assert_eq!(check_known(&remove(true), 5), Ok(()));
    }

    #[test]
    fn a_build_of_version_4_knows_no_terms_of_duty() {
        let step = |duty_term| Command::from(Change::StepJob(StepJob { duty_term, ..StepJob::default() }));
        assert_eq!(check_known(&step(None), 1), Ok(()));
        let create =
            |duty_term| Command::from(Change::CreateJob(CreateJob { duty_term, ..CreateJob::default() }));
        assert_eq!(check_known(&create(None), 1), Ok(()));
        let put =
            |duty_term| Command::from(Change::PutPolicy(PutPolicy { duty_term, ..PutPolicy::default() }));
        assert_eq!(check_known(&put(None), 1), Ok(()));
        let rebind = |duty_term| {
            Command::from(Change::RebindBucket(RebindBucket { duty_term, ..RebindBucket::default() }))
        };
        assert_eq!(check_known(&rebind(None), 1), Ok(()));
        let set = Command::from(Change::SetDuty(SetDuty { duty: Duty::FIRST }));
        let begins = Command::from(Change::SetBucketTerm(SetBucketTerm { bucket_id: 1, duty_term: 1 }));
        let object = Command::from(Change::Object(ObjectCommand::default()));
        assert_eq!(check_known(&object, 1), Ok(()));
        let of_term = [step(Some(0)), create(Some(0)), put(Some(0)), rebind(Some(0))];
        for later in of_term.into_iter().chain([set, begins, object.of_term(Some(0))]) {
            let unknown = LaterCommand { needs: DUTY_CLUSTER_VERSION, known: 4 };
            assert_eq!(check_known(&later, 4), Err(unknown));
            assert_eq!(check_known(&later, 5), Ok(()));
        }
    }

    #[test]
    fn a_build_of_version_5_knows_no_sets() {
        let put = Change::PutSet(PutSet { set: 0, nodes: vec![1], changes: 0 });
        let assign = Change::AssignGroup(AssignGroup { group: 1, set: 0, changes: 0 });
        let create = |set| Change::CreateSegment(CreateSegment { set, ..CreateSegment::default() });
        assert_eq!(check_known(&Command::from(create(0)), 1), Ok(()));
        let rebalance = Rebalance::default();
        let request = Change::RequestRebalance(RequestRebalance { rebalance: rebalance.clone() });
        let end = Change::EndRebalance(EndRebalance { rebalance });
        let guest = Change::EndGuest(EndGuest { group: 1, set: 1, changes: 1, next_segment: 1 });
        for later in [put, assign, guest, create(1), request, end].map(Command::from) {
            let unknown = LaterCommand { needs: SETS_CLUSTER_VERSION, known: 5 };
            assert_eq!(check_known(&later, 5), Err(unknown));
            assert_eq!(check_known(&later, 6), Ok(()));
        }
    }

    #[test]
    fn a_build_of_version_6_knows_no_runs_of_sagas() {
        let mirror = |run| Change::MirrorBucket(MirrorBucket { run, ..MirrorBucket::default() });
        let drop = |run| Change::DropBucket(DropBucket { run, ..DropBucket::default() });
        for former in [mirror(None), drop(None)].map(Command::from) {
            assert_eq!(check_known(&former, 1), Ok(()));
        }
        for later in [mirror(Some(1)), drop(Some(1))].map(Command::from) {
            let unknown = LaterCommand { needs: SAGA_RUNS_CLUSTER_VERSION, known: 6 };
            assert_eq!(check_known(&later, 6), Err(unknown));
            assert_eq!(check_known(&later, 7), Ok(()));
        }
    }

    #[test]
    fn a_build_of_version_6_divides_no_quotas() {
        let (begin, set) = (BeginAllotment::default(), SetSlice::default());
        for later in [Change::BeginAllotment(begin), Change::SetSlice(set)].map(Command::from) {
            let unknown = LaterCommand { needs: SLICES_CLUSTER_VERSION, known: 6 };
            assert_eq!(check_known(&later, 6), Err(unknown));
            assert_eq!(check_known(&later, 7), Ok(()));
        }
    }

    #[test]
    fn a_build_of_version_6_compares_no_rows() {
        let compare = Command::from(Change::CompareRows(CompareRows {}));
        let unknown = LaterCommand { needs: COMPARISON_CLUSTER_VERSION, known: 6 };
        assert_eq!(check_known(&compare, 6), Err(unknown));
        assert_eq!(check_known(&compare, 7), Ok(()));
    }

    #[test]
    fn a_build_of_version_7_tags_no_batches() {
        let tag = Command::from(Change::TagBatch(TagBatch { node: 1, number: 1 }));
        let unknown = LaterCommand { needs: TAGS_CLUSTER_VERSION, known: 7 };
        assert_eq!(check_known(&tag, 7), Err(unknown));
        assert_eq!(check_known(&tag, 8), Ok(()));
    }
}
