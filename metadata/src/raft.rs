//! openraft over the stores: the only place that names it.
//!
//! One [`group::Group`] per Raft group. Commands reach the log in batches, one entry each; the
//! core is woken per batch, and the replies are handed out on the thread that applied it. An
//! entry just appended is kept in memory until it is applied, so that applying decodes nothing.

pub(crate) mod group;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod network;
pub(crate) mod queue;
pub(crate) mod replay;
mod room;
pub(crate) mod snapshot;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod suite_tests;
