//! The state of a replica that a node follows, or has closed, since its start.
//!
//! - The right to append is granted once, over nothing. It belongs to the stream of the writer, and ends with
//!   the stream, with the first fault and with a request to close. Nothing gives it back.
//! - At most one call on the file is in progress: its creation, or a write with its sync. It begins only
//!   while the right exists.
//! - Only synced lengths count. After a call that failed the length is unknown.
//! - The answer to a request to close is that of a final state: the right has ended, and so has the call in
//!   progress.
//!
//! All of this is in memory, so a restart ends all rights: a replica that is not known here and has a file,
//! or the empty file of a closed one, is never opened. After a power loss closed replicas are read from the
//! disk.

use crate::rules::{ReplicationRule, ReplicationRules};

/// State of a replica. The default is that of one that was closed before it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowedState {
    may_append: bool,
    /// True while the file is created, or written and synced.
    is_writing: bool,
    /// True if this process has created the file, and no call on it has failed.
    is_known: bool,
    /// Synced length.
    pub synced: u64,
    /// Reason for which the right ended, unless the stream ended cleanly.
    pub fault: Option<String>,
    rules: ReplicationRules,
}

impl FollowedState {
    /// Grants the right to append, and begins the creation of the file. `None` if the replica was opened or
    /// closed before.
    #[must_use]
    pub fn open(before: Option<&Self>) -> Option<Self> {
        Self::open_by(before, ReplicationRules::ALL)
    }

    pub(crate) fn open_by(before: Option<&Self>, rules: ReplicationRules) -> Option<Self> {
        let opened = Self { may_append: true, is_writing: true, is_known: true, rules, ..Self::default() };
        before.is_none().then_some(opened)
    }

    #[cfg(test)]
    pub(crate) fn closed_by(rules: ReplicationRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// True while the stream of the writer may append.
    #[must_use]
    pub const fn may_append(&self) -> bool {
        self.may_append
    }

    /// True if the synced length does not change any more.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        !self.may_append && (!self.is_writing || !self.rules.has(ReplicationRule::CloseAwaitsWrite))
    }

    /// Synced length, if this process has written all of the file.
    #[must_use]
    pub fn known_length(&self) -> Option<u64> {
        self.is_known.then_some(self.synced)
    }

    /// Begins a write and its sync. Returns false if the right to append has ended.
    pub fn begin_write(&mut self) -> bool {
        assert!(!self.is_writing, "a replica is written by one call at a time");
        self.is_writing = self.may_append;
        self.is_writing
    }

    /// Ends the call in progress: the file is synced up to `length`.
    pub fn succeed(&mut self, length: u64) {
        assert!(self.is_writing, "a call ends after it began");
        assert!(length > self.synced, "the synced length of a replica only grows");
        (self.is_writing, self.synced) = (false, length);
    }

    /// Ends the call in progress with a fault. The right to append ends, and the length of the file is
    /// unknown.
    pub fn fail(&mut self, fault: &str) {
        (self.is_writing, self.is_known) = (false, false);
        self.end_right(fault);
    }

    /// Ends the right to append. The first fault is kept.
    pub fn end_right(&mut self, fault: &str) {
        if std::mem::take(&mut self.may_append) {
            self.fault = Some(fault.to_owned());
        }
    }

    /// Ends the right to append because the stream ended cleanly.
    pub const fn complete(&mut self) {
        self.may_append = false;
    }

    /// Ends the right to append for ever, because the segment is to be sealed.
    pub fn close(&mut self) {
        if self.rules.has(ReplicationRule::CloseEndsRight) {
            self.end_right("the replica was closed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FollowedState;

    /// A replica whose header was created.
    fn created() -> FollowedState {
        let mut state = FollowedState::open(None).unwrap();
        assert!(state.may_append() && !state.is_final());
        state.succeed(64);
        state
    }

    #[test]
    fn the_right_is_granted_once_and_never_after_a_close() {
        let mut state = created();
        assert_eq!(FollowedState::open(Some(&state)), None);
        state.complete();
        assert_eq!((state.is_final(), state.fault.clone()), (true, None));
        assert_eq!(FollowedState::open(Some(&state)), None);
        let closed = FollowedState::default();
        assert_eq!((closed.is_final(), closed.known_length()), (true, None));
        assert_eq!(FollowedState::open(Some(&closed)), None);
    }

    #[test]
    fn a_close_is_final_after_the_write_in_progress() {
        let mut state = created();
        assert!(state.begin_write());
        state.close();
        assert!(!state.may_append() && !state.is_final());
        state.succeed(100);
        assert_eq!((state.is_final(), state.known_length()), (true, Some(100)));
        assert!(!state.begin_write());
        assert!(state.is_final(), "a write that did not begin is not awaited");
    }

    #[test]
    fn a_fault_ends_the_right_and_the_first_one_is_kept() {
        let mut state = created();
        assert!(state.begin_write());
        state.fail("no disk");
        assert_eq!((state.is_final(), state.known_length()), (true, None));
        state.end_right("the stream broke off");
        assert_eq!(state.fault.as_deref(), Some("no disk"));

        let mut ended = created();
        ended.end_right("the stream broke off");
        ended.close();
        assert_eq!(ended.fault.as_deref(), Some("the stream broke off"));
        assert_eq!(ended.known_length(), Some(64), "the file is as it was synced");
    }
}
