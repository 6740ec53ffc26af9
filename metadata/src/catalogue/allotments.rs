//! Allotments: divide a quota that counts in several groups into slices, one for each group.
//!
//! The slices of a quota never exceed it together, except while a new quota, or a restored backup, was not
//! divided yet. An allotment has a number, which the system group allocates. First it *claims* the slices:
//! each group takes part from then on, and its slice falls. Then it *grants* what is
//! left of the quota. A group rejects claims of earlier allotments than its own, and grants of any other one.
//! So no late command of an allotment raises a slice that a later one has claimed, and any node may begin
//! one at any time: after a crash, a lost reply or a change of the duty node, the next one decides anew. If a
//! group does not answer, the others keep together what they have.
//!
//! Requests are served by the leader of the system group: an allotment is a saga whose rows are the slices. A
//! command that is refused because its slice is full waits for one, and is proposed again. The leader also
//! divides the quotas whose slices do not fit their usage any more.
//!
//! The steps are in `allotment_steps.rs`, and the decision is in `slice_shares.rs`.

use super::allotment_steps::{self, AllotmentGroups, has_room};
use super::inner::{CatalogueInner, propose_error};
use super::options::ProposeError;
use super::read;
use super::slice_shares::is_due;
use super::stop_signal::StopSignal;
use crate::store_error::ReadError;
use mlgw_common::BucketId;
use mlgw_common::limits::ALLOTMENT_LOCKS;
use mlgw_common::time::{Instant, sleep, timeout};
use mlgw_formats::cluster_version::SLICES_CLUSTER_VERSION;
use mlgw_formats::command::{
    BeginAllotment, Change, Command, NeededRoom, ObjectCommand, QuotaOwner, QuotaSubject, Reject, Reply,
};
use mlgw_formats::schema::quota::payer_row;
use mlgw_formats::schema::usage::bucket_row;
use mlgw_formats::schema::{BucketState, BucketUsage, Mirror, Payer, Quota, QuotaSlice, SliceState, bucket};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// Longest time that a command waits for room in its slice.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(3);

/// Pause before room is requested again after a failure.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Pause between two searches for quotas that should be divided again.
const SEARCH_PAUSE: Duration = Duration::from_secs(5);

/// Allotments of this node.
#[derive(Default)]
pub(super) struct Allotments {
    /// Locks by owner of a quota: one allotment of a quota at a time runs on this node.
    locks: [Mutex<()>; ALLOTMENT_LOCKS],
    /// Locks by owner: one write of this node at a time requests room, and the others of that owner then find
    /// what it got. So they do not use up the calls to the leader.
    request_locks: [Mutex<()>; ALLOTMENT_LOCKS],
    divided: AtomicU64,
}

impl Allotments {
    /// Number of quotas that were divided since open.
    pub(super) fn divided(&self) -> u64 {
        self.divided.load(Ordering::Relaxed)
    }

    async fn lock(&self, owner: &QuotaOwner) -> MutexGuard<'_, ()> {
        self.locks[lock_index(owner)].lock().await
    }

    fn request_lock(&self, owner: &QuotaOwner) -> &Mutex<()> {
        &self.request_locks[lock_index(owner)]
    }
}

fn lock_index(owner: &QuotaOwner) -> usize {
    let mut hasher = DefaultHasher::new();
    owner.hash(&mut hasher);
    usize::try_from(hasher.finish() % ALLOTMENT_LOCKS as u64).unwrap_or_default()
}

/// A slice that has no room for a command.
pub(super) struct FullSlice {
    owner: QuotaOwner,
    needed: NeededRoom,
}

impl FullSlice {
    /// Returns the full slice that a rejection of a command in `group` names.
    pub(super) fn of(reject: &Reject, bucket_id: u64, group: u32) -> Option<Self> {
        let Reject::SliceFull { of, bytes, objects, allotment } = reject else { return None };
        let owner = match of {
            QuotaSubject::Bucket => owner_of_bucket(bucket_id),
            QuotaSubject::Key(access_key) => owner_of_key(access_key),
        };
        let needed = NeededRoom { group, bytes: *bytes, objects: *objects, allotment: *allotment };
        Some(Self { owner, needed })
    }
}

pub(super) const fn owner_of_bucket(bucket_id: u64) -> QuotaOwner {
    QuotaOwner { bucket_id, access_key: String::new() }
}

pub(super) fn owner_of_key(access_key: &str) -> QuotaOwner {
    QuotaOwner { bucket_id: 0, access_key: access_key.to_owned() }
}

/// The groups of the quota of an owner.
struct OwnerGroups<'c> {
    catalogue: &'c CatalogueInner,
    owner: &'c QuotaOwner,
}

impl AllotmentGroups for OwnerGroups<'_> {
    fn quota(&self) -> Option<Quota> {
        self.catalogue.quota_of(self.owner)
    }

    fn ids(&self) -> BTreeSet<u32> {
        self.catalogue.groups_of_owner(self.owner)
    }

    fn known(&self, group: u32) -> SliceState {
        let slice = self.catalogue.slice_in(self.owner, group);
        slice.map_or_else(|_| SliceState::default(), |(state, _)| state)
    }

    async fn propose(&self, group: u32, change: Change) -> Result<Reply, ProposeError> {
        self.catalogue.propose_to(group, Arc::new(Command::from(change))).await
    }
}

impl CatalogueInner {
    /// Divides a quota, on this node, which leads the system group.
    pub(super) async fn run_allotment(&self, begin: BeginAllotment) -> Result<Reply, ProposeError> {
        let _alone = self.allotments.lock(&begin.owner).await;
        self.groups.system().leadership().map_err(propose_error)?;
        if let Some(needed) = &begin.needed
            && self.was_granted(&begin.owner, needed)
        {
            return Ok(Reply::Done);
        }
        let groups = OwnerGroups { catalogue: self, owner: &begin.owner };
        let divided = allotment_steps::divide(&groups, &begin.owner, begin.needed);
        // Its write does not wait longer. Any step may be the last one.
        let divided = match begin.needed {
            Some(_) => timeout(ROOM_WAIT_MAX, divided).await.unwrap_or(Err(ProposeError::Overloaded)),
            None => divided.await,
        };
        divided?;
        self.allotments.divided.fetch_add(1, Ordering::Relaxed);
        Ok(Reply::Done)
    }

    /// Returns true if a later allotment than the one of the full slice has made room.
    fn was_granted(&self, owner: &QuotaOwner, needed: &NeededRoom) -> bool {
        let (Some(quota), Ok((state, allotment))) =
            (self.quota_of(owner), self.slice_in(owner, needed.group))
        else {
            return false;
        };
        allotment > needed.allotment && has_room(&quota, &state, needed)
    }

    /// Divides a quota that was changed, if it counts in several groups. If that fails, the leader of the
    /// system group divides it later. A server without peers needs no agreement about its version.
    pub(super) async fn divide_changed(self: &Arc<Self>, owner: QuotaOwner) {
        let groups = self.groups_of_owner(&owner);
        if self.quota_of(&owner).is_none() || groups.len() < 2 {
            return;
        }
        let may_raise = self.opener.peers.is_none() && self.resident.known_version >= SLICES_CLUSTER_VERSION;
        if may_raise && self.resident.cluster_version() < SLICES_CLUSTER_VERSION {
            let raised = self.raise_cluster_version(SLICES_CLUSTER_VERSION).await;
            if let Err(error) = raised {
                tracing::warn!(%error, "a quota is not divided");
            }
        }
        if self.resident.cluster_version() < SLICES_CLUSTER_VERSION {
            return;
        }
        let begin = BeginAllotment { owner, ..BeginAllotment::default() };
        if let Err(error) = self.lead_saga(Change::BeginAllotment(begin)).await {
            tracing::warn!(%error, "a quota was not divided among all groups; it is divided later");
        }
    }

    /// Proposes an object command whose slice was full again, each time after a division, for a while. While
    /// another write requests room for the same quota, this one waits for that, and is proposed then.
    pub(super) async fn propose_with_room(
        self: &Arc<Self>,
        group: u32,
        object: &ObjectCommand,
        command: &Arc<Command>,
        mut full: FullSlice,
    ) -> Result<Reply, ProposeError> {
        let deadline = Instant::now() + ROOM_WAIT_MAX;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let lock = self.allotments.request_lock(&full.owner);
            let is_over = match lock.try_lock() {
                Ok(_alone) => timeout(left, self.request_room(full)).await,
                Err(_) => timeout(left, lock.lock()).await.map(|_| Ok(())),
            };
            is_over.unwrap_or(Err(ProposeError::Overloaded))?;
            let refused = match self.propose_current(group, object, command).await {
                Err(ProposeError::Rejected(refused)) => refused,
                outcome => return outcome,
            };
            full = FullSlice::of(&refused, object.bucket_id, group).ok_or(refused)?;
        }
    }

    /// Requests a division from the leader of the system group. Returns an error only if no division helps.
    async fn request_room(self: &Arc<Self>, full: FullSlice) -> Result<(), ProposeError> {
        let FullSlice { owner, needed } = full;
        let begin = BeginAllotment { owner, after: 0, needed: Some(needed) };
        match self.lead_saga(Change::BeginAllotment(begin)).await {
            Ok(_) => Ok(()),
            Err(ProposeError::Rejected(exceeded @ Reject::QuotaExceeded { .. })) => Err(exceeded.into()),
            Err(error) => {
                tracing::debug!(group = needed.group, %error, "a quota was not divided");
                sleep(ROOM_PAUSE).await;
                Ok(())
            }
        }
    }

    /// The quota of an owner, by the rows of the system group.
    fn quota_of(&self, owner: &QuotaOwner) -> Option<Quota> {
        match owner.bucket_id {
            0 => self.resident.credential(&owner.access_key)?.quota,
            id => self.bucket_by_id(id)?.quota,
        }
    }

    /// Ids of the groups in which the quota of an owner counts.
    fn groups_of_owner(&self, owner: &QuotaOwner) -> BTreeSet<u32> {
        match owner.bucket_id {
            0 => self.object_groups(),
            id => self.groups_of(BucketId(id)),
        }
    }

    /// The slice and the usage of a group, with the number of its newest allotment.
    pub(super) fn slice_in(&self, owner: &QuotaOwner, group: u32) -> Result<(SliceState, u64), ReadError> {
        let state = self.state_of_group(group)?;
        let (slice, usage) = match owner.bucket_id {
            0 => {
                let payer = read::<Payer>(&state, &payer_row(&owner.access_key))?.unwrap_or_default();
                (payer.slice, payer.usage)
            }
            id => {
                let mirror = read::<Mirror>(&state, &bucket::mirror_row(BucketId(id)))?;
                let usage = read::<BucketUsage>(&state, &bucket_row(BucketId(id)))?;
                (mirror.and_then(|mirror| mirror.slice), usage.unwrap_or_default())
            }
        };
        let QuotaSlice { limits, allotment } = slice.unwrap_or_default();
        Ok((SliceState::new(limits, &usage), allotment))
    }

    /// Owners of quotas that count in several groups, and these groups.
    fn owners_of_divided_quotas(&self) -> Vec<(QuotaOwner, Arc<BTreeSet<u32>>)> {
        let buckets: Vec<_> = self.resident.buckets.read().values().cloned().collect();
        let is_active = |bucket: &mlgw_formats::schema::Bucket| bucket.state() == BucketState::Active;
        let limited = buckets.iter().filter(|bucket| bucket.quota.is_some() && is_active(bucket));
        let of_buckets =
            limited.map(|bucket| (owner_of_bucket(bucket.id), Arc::new(self.groups_of(bucket.bucket_id()))));
        let credentials = self.resident.credentials();
        let keys: Vec<_> = credentials.iter().filter(|key| key.quota.is_some()).collect();
        // The groups of all ranges are collected once.
        let all = if keys.is_empty() { Arc::default() } else { Arc::new(self.object_groups()) };
        let of_keys = keys.iter().map(|key| (owner_of_key(&key.access_key), Arc::clone(&all)));
        of_buckets.chain(of_keys).filter(|(_, groups)| groups.len() > 1).collect()
    }

    /// Divides the quotas whose slices do not fit their usage, if this node leads the system group. The
    /// failure of one does not stop the others.
    pub(super) async fn divide_due_quotas(&self) -> Result<(), ProposeError> {
        let is_known = self.resident.cluster_version() >= SLICES_CLUSTER_VERSION;
        if !is_known || !self.leads_system_group() {
            return Ok(());
        }
        let mut result = Ok(());
        for (owner, groups) in self.owners_of_divided_quotas() {
            let Some(quota) = self.quota_of(&owner) else { continue };
            let states = groups.iter().map(|group| Ok(self.slice_in(&owner, *group)?.0));
            // The leader is in the first set, and has all groups.
            let Ok(states) = states.collect::<Result<Vec<_>, ReadError>>() else { continue };
            if is_due(&quota, &states) {
                let begin = BeginAllotment { owner, ..BeginAllotment::default() };
                result = result.and(self.run_allotment(begin).await.map(drop));
            }
            tokio::task::yield_now().await;
        }
        result
    }
}

/// Divides quotas whose slices do not fit their usage, at intervals, until the catalogue stops.
pub(super) async fn keep_divided(catalogue: Weak<CatalogueInner>, stop: Arc<StopSignal>) {
    loop {
        tokio::select! {
            () = sleep(SEARCH_PAUSE) => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = catalogue.upgrade() else { return };
        tokio::select! {
            divided = inner.divide_due_quotas() => if let Err(error) = divided {
                tracing::debug!(%error, "quotas were not divided; retrying");
            },
            () = stop.cancelled() => return,
        }
    }
}
