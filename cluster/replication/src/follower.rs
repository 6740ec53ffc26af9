//! One replica of an open segment, at a follower or at the primary itself.
//!
//! - The right to append is granted once per segment and node, by Open, over nothing: not over a file and not
//!   over a closed marker. It is in memory only, so a node that restarted refuses appends.
//! - An append carries the granted epoch and begins at the end of the file. Only synced lengths are
//!   acknowledged.
//! - Close ends the right, waits for writes in progress, syncs, is made durable, and then states the length.
//!   Without a file it makes a closed marker. The highest epoch of a Close is kept.
//! - After Close only copies of a recovery are written, unless a later Close has fenced that recovery.
//! - The file is cut off only when the seal is applied at this node.
//!
//! The driver carries effects out in the order in which they were returned, one after the other for each
//! segment, and reports their ends. A power cut takes what was not synced; the state is then made anew by
//! [`FollowerReplica::at_start`] from what the disk holds.

use crate::epoch::SegmentEpoch;
use crate::rules::{ReplicationRule, ReplicationRules};
use crate::stretch::Stretch;

/// A replica as the disk holds it at the start of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaOnDisk {
    /// Length of the file, if there is one.
    pub file_bytes: Option<u64>,
    /// Highest epoch of a Close, if there was one.
    pub closed: Option<SegmentEpoch>,
}

/// Reason why a file is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenRefusal {
    /// There is a file.
    FileExists,
    /// The segment was closed here.
    Closed,
}

/// Reason why an append is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendRefusal {
    /// The node may not append to this segment, or not with this epoch: the primary drops the replica.
    NoRight,
    /// The file ends elsewhere: the primary continues there. The synced length is acknowledged again, since
    /// its acknowledgement may have been lost with the last connection.
    WrongOffset {
        /// End of the file.
        end: u64,
        /// Synced length.
        synced: u64,
    },
}

/// Length of a closed replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedLength {
    /// The node has written all of the file since it started, and this length is synced.
    Synced(u64),
    /// The node restarted, or its disk failed: the driver scans the file on the device, past damage.
    Scan,
}

/// Work for the driver of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaEffect {
    /// Create the file, sync its header and its directory, and report [`FollowerReplica::created`].
    Create,
    /// Answer Open: the file is open.
    Opened,
    /// Answer Open: it is refused.
    OpenRefused(OpenRefusal),
    /// Write the bytes of the append there, and report [`FollowerReplica::written`].
    Write(Stretch),
    /// Sync the file, and report [`FollowerReplica::synced`] with this length.
    Sync {
        /// Length that was written before.
        length: u64,
    },
    /// Acknowledge to the primary that the file is synced up to here.
    Acknowledge {
        /// Synced length.
        length: u64,
    },
    /// Answer an append: it is refused.
    AppendRefused(AppendRefusal),
    /// Make the epoch durable beside the file or, without one, as a closed marker; then report
    /// [`FollowerReplica::close_persisted`].
    PersistClose {
        /// Epoch of the Close.
        epoch: SegmentEpoch,
    },
    /// Answer Close.
    Closed {
        /// Epoch of the Close.
        epoch: SegmentEpoch,
        /// Length of the file.
        length: ClosedLength,
    },
    /// Answer Close: a later one was answered.
    CloseRefused {
        /// Highest epoch so far.
        closed: SegmentEpoch,
    },
    /// Answer Close or a copy: the seal is applied here.
    IsSealed {
        /// Length of the segment.
        length: u64,
    },
    /// Write verified records from another replica there, sync, and report [`FollowerReplica::copied`].
    WriteCopy {
        /// Epoch of the recovery.
        epoch: SegmentEpoch,
        /// Bytes to write.
        stretch: Stretch,
    },
    /// Answer a copy: it is synced.
    Copied {
        /// Epoch of the recovery.
        epoch: SegmentEpoch,
        /// Bytes that were written.
        stretch: Stretch,
    },
    /// Answer a copy: a later recovery has fenced its own, or the replica is not closed.
    CopyRefused,
    /// Cut the file off here.
    Truncate {
        /// Length of the file.
        length: u64,
    },
}

/// A replica of a segment that is, or was, appended to.
#[derive(Clone, Debug)]
pub struct FollowerReplica {
    has_file: bool,
    /// Epoch in which this process may append.
    granted: Option<SegmentEpoch>,
    /// Highest epoch of a Close that is durable.
    closed: Option<SegmentEpoch>,
    closing: Option<ClosingReplica>,
    /// True if this process has written all of the file.
    knows_length: bool,
    /// End of the file with the writes in progress.
    end: u64,
    written: u64,
    synced: u64,
    is_syncing: bool,
    copies_in_progress: u32,
    sealed: Option<u64>,
    rules: ReplicationRules,
}

#[derive(Clone, Copy, Debug)]
struct ClosingReplica {
    epoch: SegmentEpoch,
    is_persisting: bool,
}

impl FollowerReplica {
    /// Returns the state of a replica when its node starts, or first has to do with the segment.
    #[must_use]
    pub fn at_start(disk: ReplicaOnDisk) -> Self {
        Self::by(disk, ReplicationRules::ALL)
    }

    pub(crate) fn by(disk: ReplicaOnDisk, rules: ReplicationRules) -> Self {
        let end = disk.file_bytes.unwrap_or(0);
        Self {
            has_file: disk.file_bytes.is_some(),
            granted: None,
            closed: disk.closed,
            closing: None,
            knows_length: false,
            end,
            written: end,
            synced: 0,
            is_syncing: false,
            copies_in_progress: 0,
            sealed: None,
            rules,
        }
    }

    /// True if the replica takes appends of its primary.
    #[must_use]
    pub const fn may_append(&self) -> bool {
        self.granted.is_some()
    }

    /// Highest epoch of a Close that is durable.
    #[must_use]
    pub const fn closed_epoch(&self) -> Option<SegmentEpoch> {
        self.closed
    }

    /// Opens the replica for a primary.
    pub fn open(&mut self, epoch: SegmentEpoch) -> Vec<ReplicaEffect> {
        let is_closed = self.closed.is_some() || self.closing.is_some() || self.sealed.is_some();
        if self.rules.has(ReplicationRule::OpenOnlyOnce) {
            if is_closed {
                return vec![ReplicaEffect::OpenRefused(OpenRefusal::Closed)];
            }
            if self.has_file {
                return vec![ReplicaEffect::OpenRefused(OpenRefusal::FileExists)];
            }
        }
        (self.has_file, self.knows_length, self.granted) = (true, true, Some(epoch));
        vec![ReplicaEffect::Create]
    }

    /// Records that the file was created and has its header of this length.
    pub fn created(&mut self, length: u64) -> Vec<ReplicaEffect> {
        (self.end, self.written) = (self.end.max(length), self.written.max(length));
        self.synced = self.synced.max(length);
        let mut effects = vec![ReplicaEffect::Opened];
        effects.extend(self.advance());
        effects
    }

    /// Appends whole records of a primary, which begin at an offset.
    pub fn append(&mut self, epoch: SegmentEpoch, stretch: Stretch) -> Vec<ReplicaEffect> {
        let ends = self.rules.has(ReplicationRule::RightEndsWithRestart);
        if !ends && self.granted.is_none() && self.has_file && self.closed.is_none() && self.closing.is_none()
        {
            (self.granted, self.knows_length) = (Some(epoch), true);
        }
        if self.granted != Some(epoch) || !self.knows_length {
            return vec![ReplicaEffect::AppendRefused(AppendRefusal::NoRight)];
        }
        if stretch.from != self.end && self.rules.has(ReplicationRule::OffsetIsEnd) {
            let refusal = AppendRefusal::WrongOffset { end: self.end, synced: self.synced };
            return vec![ReplicaEffect::AppendRefused(refusal)];
        }
        self.end = stretch.to;
        vec![ReplicaEffect::Write(stretch)]
    }

    /// Records that a write has ended, and with it all writes up to a length.
    pub fn written(&mut self, length: u64) -> Vec<ReplicaEffect> {
        assert!(length <= self.end, "no more is written than was appended");
        self.written = self.written.max(length);
        let mut effects = self.advance();
        if !self.rules.has(ReplicationRule::AcknowledgeSynced) {
            effects.push(ReplicaEffect::Acknowledge { length });
        }
        effects
    }

    /// Records that a sync has ended that began when this length was written.
    pub fn synced(&mut self, length: u64) -> Vec<ReplicaEffect> {
        assert!(length <= self.written, "no more is synced than was written");
        self.is_syncing = false;
        self.synced = self.synced.max(length);
        let mut effects = Vec::new();
        if self.knows_length {
            effects.push(ReplicaEffect::Acknowledge { length });
        }
        effects.extend(self.advance());
        effects
    }

    /// Records that a write or sync failed: nothing more is appended, and the length is no longer known.
    pub fn failed(&mut self) -> Vec<ReplicaEffect> {
        (self.granted, self.knows_length, self.closing, self.is_syncing) = (None, false, None, false);
        (self.written, self.synced) = (self.end, 0);
        vec![ReplicaEffect::AppendRefused(AppendRefusal::NoRight)]
    }

    /// Closes the replica for a recovery.
    pub fn close(&mut self, epoch: SegmentEpoch) -> Vec<ReplicaEffect> {
        if let Some(length) = self.sealed {
            return vec![ReplicaEffect::IsSealed { length }];
        }
        let highest = self.closed.max(self.closing.map(|closing| closing.epoch));
        if let Some(closed) = highest.filter(|highest| epoch < *highest) {
            return vec![ReplicaEffect::CloseRefused { closed }];
        }
        if self.rules.has(ReplicationRule::NothingAfterClose) {
            self.granted = None;
        }
        self.closing = Some(ClosingReplica { epoch, is_persisting: false });
        self.advance()
    }

    /// Records that the epoch of a Close is durable.
    pub fn close_persisted(&mut self, epoch: SegmentEpoch) -> Vec<ReplicaEffect> {
        self.closed = self.closed.max(Some(epoch));
        match self.closing.filter(|closing| closing.epoch == epoch) {
            Some(_) if self.rules.has(ReplicationRule::CloseIsDurable) => self.closing_ended(epoch),
            _ => Vec::new(),
        }
    }

    /// Writes records that a recovery copies from another replica.
    pub fn copy(&mut self, epoch: SegmentEpoch, stretch: Stretch) -> Vec<ReplicaEffect> {
        if let Some(length) = self.sealed {
            return vec![ReplicaEffect::IsSealed { length }];
        }
        let highest = self.closed.max(self.closing.map(|closing| closing.epoch));
        let is_old = self.rules.has(ReplicationRule::OldCopiesRefused)
            && highest.is_some_and(|highest| epoch < highest);
        if self.closed.is_none() || is_old {
            return vec![ReplicaEffect::CopyRefused];
        }
        // A copy behind the end leaves a hole where the bytes are bad everywhere, so the next Close scans.
        (self.has_file, self.knows_length) = (true, false);
        self.end = self.end.max(stretch.to);
        self.copies_in_progress += 1;
        vec![ReplicaEffect::WriteCopy { epoch, stretch }]
    }

    /// Records that a copy is written and synced.
    pub fn copied(&mut self, epoch: SegmentEpoch, stretch: Stretch) -> Vec<ReplicaEffect> {
        assert!(self.copies_in_progress > 0, "a copy is in progress");
        self.copies_in_progress -= 1;
        self.written = self.written.max(stretch.to);
        self.synced = self.synced.max(stretch.to);
        let mut effects = vec![ReplicaEffect::Copied { epoch, stretch }];
        effects.extend(self.advance());
        effects
    }

    /// Records that this node has applied the segment's seal, which names its replica.
    pub fn sealed(&mut self, length: u64) -> Vec<ReplicaEffect> {
        (self.granted, self.closing, self.sealed) = (None, None, Some(length));
        match self.end > length {
            true => vec![ReplicaEffect::Truncate { length }],
            false => Vec::new(),
        }
    }

    /// Syncs and closes what can be synced and closed now.
    fn advance(&mut self) -> Vec<ReplicaEffect> {
        let mut effects = Vec::new();
        let closes_synced = self.closing.is_none() || self.rules.has(ReplicationRule::CloseSyncs);
        let must_sync = closes_synced && (self.knows_length || self.closing.is_some());
        if must_sync && !self.is_syncing && self.synced < self.written {
            self.is_syncing = true;
            effects.push(ReplicaEffect::Sync { length: self.written });
        }
        let Some(closing) = self.closing.filter(|closing| !closing.is_persisting) else { return effects };
        let is_quiet = self.copies_in_progress == 0 && self.written == self.end;
        let is_synced = self.synced == self.written && !self.is_syncing;
        let waits_for_writes = !is_quiet && self.rules.has(ReplicationRule::CloseEndsWrites);
        let waits_for_sync = !is_synced && self.rules.has(ReplicationRule::CloseSyncs);
        if waits_for_writes || waits_for_sync {
            return effects;
        }
        let epoch = closing.epoch;
        self.closing = Some(ClosingReplica { epoch, is_persisting: true });
        let makes_marker = self.has_file || self.rules.has(ReplicationRule::MarkerWithoutFile);
        if makes_marker {
            effects.push(ReplicaEffect::PersistClose { epoch });
        }
        if !makes_marker || !self.rules.has(ReplicationRule::CloseIsDurable) {
            effects.extend(self.closing_ended(epoch));
        }
        effects
    }

    fn closing_ended(&mut self, epoch: SegmentEpoch) -> Vec<ReplicaEffect> {
        self.closing = None;
        let syncs = self.rules.has(ReplicationRule::CloseSyncs);
        let length = match self.knows_length {
            true if syncs => ClosedLength::Synced(self.synced),
            true => ClosedLength::Synced(self.written),
            false => ClosedLength::Scan,
        };
        vec![ReplicaEffect::Closed { epoch, length }]
    }
}

#[cfg(test)]
mod tests;
