//! Applies commands: a pure function of the state and the command.
//!
//! Invariant: the same commands in the same order produce the same rows on every member and after every
//! restart. Nothing here reads a clock, draws a random number or touches a file. The work of one command is
//! bounded, so a group never stalls behind it.

mod authority;
mod bucket;
mod conditions;
mod dataset;
mod duty;
mod fence;
#[cfg(test)]
mod golden_tests;
mod job;
#[cfg(test)]
mod job_tests;
mod join_token;
#[cfg(test)]
mod membership_model_tests;
#[cfg(test)]
mod membership_tests;
#[cfg(test)]
pub(crate) mod memory_group;
mod modified;
mod node;
mod object;
mod object_command;
mod object_target;
mod policy;
#[cfg(test)]
mod policy_tests;
mod quota;
#[cfg(test)]
mod quota_tests;
mod ranges;
mod rebalance;
mod release;
mod relocate;
mod segment;
mod set;
#[cfg(test)]
mod set_tests;
#[cfg(test)]
mod slice_tests;
mod system;
mod upload;
mod usage;

use crate::store_error::StoreError;
use crate::view::{ApplyError, RowReader, View};
use mlgw_common::{SegmentId, Seq};
use mlgw_formats::command::{Change, Command, Reject, Reply};
use mlgw_formats::schema::usage::segment_row;

/// Maximum number of commands of one log entry that get distinct numbers from [`seq_of`].
pub const SEQ_COMMANDS: u64 = 1 << 12;

// A batch has a tag beside its commands.
const _: () = assert!((mlgw_common::limits::BATCH_COMMANDS_MAX as u64) < SEQ_COMMANDS);

/// Sequence number of the command at `position` in the log entry `index`; unique within a group.
#[must_use]
pub const fn seq_of(index: u64, position: usize) -> Seq {
    assert!((position as u64) < SEQ_COMMANDS, "a log entry has at most as many commands as order numbers");
    Seq(index * SEQ_COMMANDS + position as u64)
}

/// Applies one command. A rejected command changes nothing.
///
/// # Errors
/// If the store fails, or the command or a record that it reads is of a later version. The view must be
/// discarded then.
pub fn apply(view: &mut View<'_>, command: &Command, seq: Seq) -> Result<Result<Reply, Reject>, StoreError> {
    assert!(view.is_settled(), "a command begins after the previous one was kept or rolled back");
    match change(view, command, seq) {
        Ok(reply) => {
            view.keep_changes();
            Ok(Ok(reply))
        }
        Err(ApplyError::Reject(reject)) => {
            view.roll_back();
            Ok(Err(reject))
        }
        Err(ApplyError::Store(error)) => Err(error),
    }
}

fn change(view: &mut View<'_>, command: &Command, seq: Seq) -> Result<Reply, ApplyError> {
    // Never a rejection: members that know the command would apply it, and their states would differ.
    let Some(change) = &command.change else {
        return Err(StoreError("the log has a command that this version does not know".into()).into());
    };
    match change {
        Change::Object(command) => object_command::apply(view, command, seq),
        Change::CreateBucket(command) => bucket::create(view, command),
        Change::SetBucketState(command) => bucket::set_state(view, command),
        Change::RebindBucket(command) => bucket::rebind(view, command),
        Change::RemoveBucket(command) => bucket::remove(view, command),
        Change::MirrorBucket(command) => bucket::mirror(view, command),
        Change::FreezeBucket(command) => bucket::freeze(view, *command),
        Change::ThawBucket(command) => bucket::thaw(view, *command),
        Change::SetBucketTerm(command) => bucket::set_term(view, *command),
        Change::DropBucket(command) => bucket::drop(view, *command),
        Change::ReleaseBody(command) => release::step(view, *command),
        Change::LeaseBodies(command) => system::lease_bodies(view, *command),
        Change::BeginIncarnation(command) => system::begin_incarnation(view, *command),
        Change::CreateSegment(command) => segment::create(view, command),
        Change::SealSegment(command) => segment::seal(view, command),
        Change::MarkSegment(command) => segment::mark(view, *command),
        Change::FenceSegment(command) => segment::fence(view, *command),
        Change::RelocateExtent(command) => relocate::apply(view, command),
        Change::RemoveSegment(command) => segment::remove(view, command),
        Change::PlaceSegment(command) => segment::place(view, command),
        Change::SetReplicas(command) => segment::set_replicas(view, command),
        Change::PutCredential(command) => system::put_credential(view, command),
        Change::DeleteCredential(command) => system::delete_credential(view, command),
        Change::PutNode(command) => node::put(view, command),
        Change::CreateJoinToken(command) => join_token::create(view, command),
        Change::RemoveJoinToken(command) => join_token::remove(view, *command),
        Change::AdmitNode(command) => node::admit(view, command),
        Change::ReportNode(command) => node::report(view, command),
        Change::SetNodeRole(command) => node::set_role(view, *command),
        Change::DrainNode(command) => node::drain(view, *command),
        Change::RemoveNode(command) => node::remove(view, *command),
        Change::PutAuthority(command) => authority::put(view, command),
        Change::RemoveAuthority(command) => authority::remove(view, *command),
        Change::PutUploadKey(command) => system::put_upload_key(view, command),
        Change::PutPartition(command) => ranges::put_partition(view, command),
        Change::SetDuty(command) => duty::set(view, *command),
        Change::PutSet(command) => set::put(view, command),
        Change::AssignGroup(command) => set::assign(view, *command),
        Change::EndGuest(command) => set::end_guest(view, *command),
        Change::RequestRebalance(command) => rebalance::request(view, command),
        Change::EndRebalance(command) => rebalance::end(view, command),
        // Neither changes a row: members digest their rows after the first, the second identifies its batch.
        Change::CompareRows(_) | Change::TagBatch(_) => Ok(Reply::Done),
        Change::SetClusterVersion(command) => system::set_cluster_version(view, *command),
        Change::PutDataset(command) => dataset::put(view, command),
        Change::DeleteDataset(command) => dataset::delete(view, command),
        Change::CreateJob(command) => job::create(view, command),
        Change::StepJob(command) => job::step(view, command),
        Change::PutPolicy(command) => policy::put(view, command),
        Change::SetBucketQuota(command) => quota::set_bucket_quota(view, command),
        Change::SetKeyQuota(command) => quota::set_key_quota(view, command),
        Change::BeginAllotment(command) => quota::begin_allotment(view, command),
        Change::SetSlice(command) => quota::set_slice(view, command),
    }
}

/// True if no record of the group with these rows refers to `segment`, and none ever will again.
///
/// # Errors
/// If the store fails.
pub(crate) fn is_released(rows: &dyn RowReader, segment: SegmentId) -> Result<bool, StoreError> {
    let view = View::new(rows);
    Ok(fence::is_fenced(&view, segment)? && !view.has(&segment_row(segment))?)
}

/// Rejection of a command that no correct proposer sends.
fn malformed(what: impl Into<String>) -> ApplyError {
    ApplyError::Reject(Reject::Malformed { what: what.into() })
}
