//! Raft groups: openraft over the log and state stores. No other module uses openraft.
//!
//! There is one [`group::Group`] per Raft group. Commands reach the log in batches, and a batch is one log
//! entry. The Raft core is woken once per batch, and the thread that applied a batch sends its replies. A new
//! entry stays in memory until it is applied, so applying it needs no decoding.

mod answering_voters;
mod barrier;
mod election_clock;
pub(crate) mod error;
pub(crate) mod group;
pub(crate) mod heartbeats;
pub(crate) mod held_commits;
#[cfg(test)]
pub(crate) mod in_process;
mod last_append;
mod leader_calls;
mod leadership;
mod lease;
#[cfg(test)]
mod lease_tests;
mod limiter;
pub(crate) mod log;
#[cfg(test)]
mod log_tests;
mod lone_voter;
pub(crate) mod machine;
#[cfg(test)]
mod member_tests;
pub(crate) mod members;
pub(crate) mod network;
mod outcomes;
pub(crate) mod peers;
#[cfg(test)]
mod proposal_tests;
pub(crate) mod purge;
pub(crate) mod queue;
mod read_index;
mod recency;
pub(crate) mod remote;
mod remote_proposals;
pub(crate) mod replay;
pub(crate) mod row_digests;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod snapshot_receiver;
mod snapshot_sender;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod suite_tests;
#[cfg(test)]
mod upgrade_tests;
mod vote_pause;
