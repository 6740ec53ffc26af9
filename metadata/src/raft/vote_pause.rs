//! Pause of a member after its start, in which it neither votes nor asks for votes.
//!
//! A voter that has answered an append of a leader refuses its vote for a while, on which the lease of that
//! leader rests ([`super::lease`]). openraft keeps the refusal in memory, so a member that restarts would
//! vote at once. Its vote is stored: if it was for another leader, the member waits after a start for as long
//! as it may have refused before. A leader that hands its leadership over needs no such votes, and gets them.
//!
//! Nothing is stored here. A start after a power failure is a start like any other.

use mlgw_common::time::{Instant, sleep_until};
use mlgw_formats::log_types::Vote;
use std::time::Duration;

/// Time for which a voter refuses its vote after the last append of its leader, as openraft does.
pub(super) const fn votes_refused(election_timeout_max_ms: u64) -> Duration {
    Duration::from_millis(election_timeout_max_ms)
}

/// End of the pause of a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VotePause {
    end: Option<Instant>,
}

impl VotePause {
    /// The pause of the member `node` that starts now with a stored vote.
    pub(super) fn after_start(node: u64, stored: Option<Vote>, election_timeout_max_ms: u64) -> Self {
        // A vote that is not for an established leader was given when the refusal was over.
        let has_followed = stored.is_some_and(|vote| vote.committed && vote.leader_id.node_id != node);
        Self { end: has_followed.then(|| Instant::now() + votes_refused(election_timeout_max_ms)) }
    }

    /// True if the member may vote.
    pub(super) fn is_over(self) -> bool {
        self.end.is_none_or(|end| Instant::now() > end)
    }

    /// Waits until the pause is over.
    pub(super) async fn over(self) {
        while let Some(end) = self.end
            && !self.is_over()
        {
            sleep_until(end + Duration::from_millis(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::held_commits::NeededCommits;
    use super::super::in_process::InProcess;
    use super::super::lease::MemberLease;
    use super::super::remote::{MemberNetwork, RemoteNetwork};
    use super::VotePause;
    use futures_util::FutureExt as _;
    use mlgw_common::time::Instant;
    use mlgw_formats::log_types::{Leadership, Vote};
    use openraft::BasicNode;
    use openraft::network::{RPCOption, RaftNetworkFactory as _, RaftNetworkV2 as _};
    use openraft::raft::VoteRequest;
    use std::sync::Arc;
    use std::time::Duration;

    const REFUSED_MS: u64 = 2000;

    #[tokio::test(start_paused = true)]
    async fn only_a_member_that_followed_another_one_pauses() {
        let vote = |node_id, committed| Some(Vote { leader_id: Leadership { term: 5, node_id }, committed });
        for stored in [None, vote(1, false), vote(2, true)] {
            assert!(VotePause::after_start(2, stored, REFUSED_MS).is_over(), "{stored:?}");
        }
        let (pause, begun) = (VotePause::after_start(2, vote(1, true), REFUSED_MS), Instant::now());
        assert!(!pause.is_over());
        pause.over().await;
        assert!(begun.elapsed() > Duration::from_millis(REFUSED_MS), "{:?}", begun.elapsed());
        assert!(pause.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_asks_for_votes_after_its_pause_unless_its_leader_hands_over() {
        let followed = Vote { leader_id: Leadership { term: 5, node_id: 1 }, committed: true };
        let vote_pause = VotePause::after_start(2, Some(followed), REFUSED_MS);
        let network = RemoteNetwork { peers: InProcess::default().peers(2), group: 0 };
        let member_lease = Arc::new(MemberLease::new(REFUSED_MS));
        let mut network = MemberNetwork {
            network,
            vote_pause,
            member_lease,
            heartbeats: None,
            needed_commits: NeededCommits::default(),
        };
        let mut other = network.new_client(1, &BasicNode { addr: String::new() }).await;
        let own = Vote { leader_id: Leadership { term: 6, node_id: 2 }, committed: false };
        let request = || VoteRequest::new(own, None);
        let option = || RPCOption::new(Duration::from_secs(1));
        assert!(other.pre_vote(request(), option()).now_or_never().is_none());
        assert!(other.vote(request(), option()).now_or_never().is_none());
        let transfer = VoteRequest { leadership_transfer: true, ..request() };
        let called = other.vote(transfer, option()).now_or_never();
        assert!(called.is_some_and(|called| called.is_err()), "it was called and is not reachable");
        vote_pause.over().await;
        assert!(other.pre_vote(request(), option()).now_or_never().is_some());
    }
}
