//! Announcements of commits: appends without entries that only advance the commit index of a follower. They
//! wait a moment for the next append, which advances it as well.
//!
//! openraft sends every follower an announcement as soon as an entry is committed. With one client that is a
//! second call for each command, beside the next command of the same client. So an announcement waits up to
//! [`HOLD_MAX`] for a later append of its stream, which then replaces it. It is sent at once if a follower
//! waits for the commit ([`NeededCommits`]). The first append of a stream does not wait: the leader learns by
//! it which entries the follower has.
//!
//! A follower that applies an entry later serves no older reads: a read waits for the entry that its leader
//! names. openraft takes the time of an append before the append waits, so the wait never extends a lease.
//! Nothing is stored here.

use futures_util::stream::{self, Stream, StreamExt as _};
use mlgw_common::time::{Instant, sleep_until};
use mlgw_formats::log_types::{LogId, RaftTypes};
use openraft::raft::AppendEntriesRequest;
use std::time::Duration;
use tokio::sync::watch;

/// Longest time that an announcement waits. The next command of one client comes within a few milliseconds.
const HOLD_MAX: Duration = Duration::from_millis(5);

type Append = AppendEntriesRequest<RaftTypes>;

/// The commits for which followers of a group wait. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NeededCommits(watch::Sender<Needed>);

#[derive(Clone, Copy, Debug, Default)]
struct Needed {
    /// The last committed entry that a follower waits for.
    index: u64,
    /// Proposals of followers that are not answered. Their entries are needed as soon as they are committed.
    proposals: usize,
}

/// A proposal of a follower. It ends when this is dropped.
#[must_use]
pub(super) struct FollowerProposal(NeededCommits);

impl Drop for FollowerProposal {
    fn drop(&mut self) {
        self.0.0.send_modify(|needed| needed.proposals -= 1);
    }
}

impl NeededCommits {
    /// Records that a follower waits until it may apply the entry `index`, which is committed.
    pub(super) fn need(&self, index: u64) {
        self.0.send_if_modified(|needed| {
            let is_later = index > needed.index;
            needed.index = index.max(needed.index);
            is_later
        });
    }

    /// The last entry that [`Self::need`] has recorded.
    #[cfg(test)]
    pub(super) fn needed(&self) -> u64 {
        self.0.borrow().index
    }

    /// Begins a proposal of a follower.
    pub(super) fn begin_proposal(&self) -> FollowerProposal {
        self.0.send_modify(|needed| needed.proposals += 1);
        FollowerProposal(self.clone())
    }

    /// The appends of one stream to a follower, in order, without the announcements that a later append
    /// replaced. Each one must be read after the one before has succeeded.
    pub(super) fn hold<S>(&self, appends: S) -> impl Stream<Item = Append> + Send + Unpin + use<S>
    where
        S: Stream<Item = Append> + Send + Unpin + 'static,
    {
        let needed = self.0.subscribe();
        let stream = HeldStream { appends: Some(appends), needed, announced: 0, previous_last: None };
        Box::pin(stream::unfold(stream, HeldStream::next))
    }
}

struct HeldStream<S> {
    /// `None` after its end.
    appends: Option<S>,
    needed: watch::Receiver<Needed>,
    /// The highest commit index of an append of this stream that did not wait any more.
    announced: u64,
    /// The last entry of the append before, which its follower has; `None` before the first append.
    previous_last: Option<Option<LogId>>,
}

impl<S: Stream<Item = Append> + Unpin> HeldStream<S> {
    async fn next(mut self) -> Option<(Append, Self)> {
        let mut append = self.appends.as_mut()?.next().await?;
        let until = Instant::now() + HOLD_MAX;
        while self.only_announces(&append)
            && let Some(appends) = &mut self.appends
        {
            let announced = self.announced;
            tokio::select! {
                biased;
                later = appends.next() => match later {
                    Some(later) => append = later,
                    None => self.appends = None,
                },
                // An error means that the group has ended.
                _ = self.needed.wait_for(|of| of.index > announced || of.proposals > 0) => break,
                () = sleep_until(until) => break,
            }
        }
        self.announced = self.announced.max(append.leader_commit.map_or(0, |id| id.index));
        self.previous_last = Some(append.entries.last().map(|entry| entry.log_id).or(append.prev_log_id));
        Some((append, self))
    }

    fn only_announces(&self, append: &Append) -> bool {
        append.entries.is_empty() && self.previous_last == Some(append.prev_log_id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lease::MemberLease;
    use super::super::peers::{MemberLane, MemberPeers, PeerFuture, SnapshotBytes};
    use super::super::remote::{MemberNetwork, RemoteNetwork};
    use super::super::vote_pause::VotePause;
    use super::{Append, HOLD_MAX, NeededCommits};
    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use futures_util::stream::{Stream, StreamExt as _, iter, poll_fn};
    use mlgw_common::NodeId;
    use mlgw_common::time::{Instant, sleep};
    use mlgw_formats::log_types::{Leadership, LogId, RaftLogEntry, Vote};
    use mlgw_formats::member_calls::{EmptyReply, MemberAnswer, MemberCall, MemberReply, MemberRequest};
    use openraft::network::{RPCOption, RaftNetworkFactory as _, RaftNetworkV2 as _};
    use openraft::{BasicNode, EntryPayload};
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    const LEADERSHIP: Leadership = Leadership { term: 1, node_id: 1 };

    fn id(index: u64) -> LogId {
        LogId { leader_id: LEADERSHIP, index }
    }

    /// An append after the entry `previous` up to the entry `last`.
    fn append(previous: u64, last: u64, committed: u64) -> Append {
        let entry = |index| RaftLogEntry { log_id: id(index), payload: EntryPayload::Blank };
        Append {
            vote: Vote { leader_id: LEADERSHIP, committed: true },
            prev_log_id: Some(id(previous)),
            entries: (previous + 1..=last).map(entry).collect(),
            leader_commit: Some(id(committed)),
        }
    }

    /// The arguments of [`append`].
    fn indexes(append: &Append) -> [u64; 3] {
        let previous = append.prev_log_id.unwrap().index;
        let last = previous + append.entries.len() as u64;
        [previous, last, append.leader_commit.unwrap().index]
    }

    /// A stream of appends, held until followers need their commits.
    fn held(
        needed: &NeededCommits,
    ) -> (UnboundedSender<Append>, impl Stream<Item = [u64; 3]> + Unpin + use<>) {
        let (sender, mut appends) = unbounded_channel();
        let held = needed.hold(poll_fn(move |cx| appends.poll_recv(cx)));
        (sender, held.map(|append| indexes(&append)))
    }

    /// Such a stream that has sent the entries 7 to `last`. None of them is committed.
    async fn held_after(
        needed: &NeededCommits,
        last: u64,
    ) -> (UnboundedSender<Append>, impl Stream<Item = [u64; 3]> + Unpin + use<>) {
        let (sender, mut held) = held(needed);
        sender.send(append(6, last, 6)).unwrap();
        assert_eq!(held.next().await, Some([6, last, 6]));
        (sender, held)
    }

    #[tokio::test(start_paused = true)]
    async fn an_announcement_is_replaced_by_the_next_entries() {
        let needed = NeededCommits::default();
        let (sender, mut held) = held_after(&needed, 7).await;
        sender.send(append(7, 7, 7)).unwrap();
        assert_eq!(held.next().now_or_never(), None, "it waits");
        sender.send(append(7, 8, 7)).unwrap();
        assert_eq!(held.next().now_or_never(), Some(Some([7, 8, 7])));
        sender.send(append(8, 8, 8)).unwrap();
        drop(sender);
        assert_eq!(held.next().now_or_never(), Some(Some([8, 8, 8])), "none follows");
        assert_eq!(held.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_announcement_does_not_wait_longer_for_later_ones() {
        let needed = NeededCommits::default();
        let (sender, mut held) = held_after(&needed, 9).await;
        let begun = Instant::now();
        let announcing = async {
            for committed in 7..=9 {
                sender.send(append(9, 9, committed)).unwrap();
                sleep(Duration::from_millis(1)).await;
            }
        };
        let (sent, ()) = tokio::join!(held.next(), announcing);
        assert_eq!(sent, Some([9, 9, 9]));
        // Timers are as exact as a millisecond.
        let waited = begun.elapsed();
        assert!(waited >= HOLD_MAX && waited <= HOLD_MAX + Duration::from_millis(1), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_that_a_follower_needs_is_announced_at_once() {
        let needed = NeededCommits::default();
        let (sender, mut held) = held_after(&needed, 9).await;
        sender.send(append(9, 9, 7)).unwrap();
        needed.need(6);
        assert_eq!(held.next().now_or_never(), None, "it needs an entry whose commit it knows");
        // The entry of another command is committed with the one that is needed.
        sender.send(append(9, 9, 8)).unwrap();
        needed.need(7);
        assert_eq!(held.next().now_or_never(), Some(Some([9, 9, 8])));
        needed.need(9);
        sender.send(append(9, 9, 9)).unwrap();
        assert_eq!(held.next().now_or_never(), Some(Some([9, 9, 9])), "also if it was needed before");
        sender.send(append(9, 9, 9)).unwrap();
        assert_eq!(held.next().now_or_never(), None, "the follower knows it");
    }

    #[tokio::test(start_paused = true)]
    async fn commits_are_announced_at_once_while_a_proposal_of_a_follower_is_not_answered() {
        let needed = NeededCommits::default();
        let (sender, mut held) = held_after(&needed, 8).await;
        let proposal = needed.begin_proposal();
        sender.send(append(8, 8, 7)).unwrap();
        assert_eq!(held.next().now_or_never(), Some(Some([8, 8, 7])));
        drop(proposal);
        sender.send(append(8, 8, 8)).unwrap();
        assert_eq!(held.next().now_or_never(), None, "it waits");
    }

    #[tokio::test(start_paused = true)]
    async fn an_append_that_finds_out_what_a_follower_has_does_not_wait() {
        let needed = NeededCommits::default();
        let (sender, mut held) = held(&needed);
        let begun = Instant::now();
        for (previous, committed) in [(3, 3), (5, 5)] {
            sender.send(append(previous, previous, committed)).unwrap();
            assert_eq!(held.next().await, Some([previous, previous, committed]));
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    /// Peers that record the number of entries of each append, and have them.
    #[derive(Default)]
    struct RecordingPeers(Mutex<Vec<usize>>);

    impl MemberPeers for RecordingPeers {
        fn call(&self, _node: NodeId, _lane: MemberLane, call: Bytes, _deadline: Instant) -> PeerFuture<'_> {
            let (_, request) = MemberCall::read(call).unwrap();
            let MemberRequest::Append(append) = request else { panic!("{request:?}") };
            self.0.lock().push(append.decode_entries().unwrap().len());
            let appended = MemberAnswer::encode_reply(MemberReply::Appended(EmptyReply {}));
            Box::pin(async { Ok(appended) })
        }

        fn send_snapshot(&self, _node: NodeId, _head: Bytes, _body: SnapshotBytes) -> PeerFuture<'_> {
            panic!("no snapshot is sent");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_sends_no_announcement_before_entries_that_follow_at_once() {
        let peers = Arc::<RecordingPeers>::default();
        let network = RemoteNetwork { peers: Arc::clone(&peers) as Arc<dyn MemberPeers>, group: 0 };
        let mut network = MemberNetwork {
            network,
            vote_pause: VotePause::default(),
            member_lease: Arc::new(MemberLease::new(1000)),
            heartbeats: None,
            needed_commits: NeededCommits::default(),
        };
        let mut other = network.new_client(2, &BasicNode::default()).await;
        let appends = iter([append(6, 7, 6), append(7, 7, 7), append(7, 9, 7)]);
        let answers = other.stream_append(appends, RPCOption::new(Duration::from_secs(1))).await.unwrap();
        assert!(answers.collect::<Vec<_>>().await.iter().all(Result::is_ok));
        assert_eq!(*peers.0.lock(), [1, 2]);
    }
}
