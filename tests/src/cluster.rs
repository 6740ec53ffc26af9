//! Clusters of the shipped server, made by the commands that an operator uses: the store of the cluster, two
//! more storage nodes, and a gateway.
//!
//! - `testbed`: makes a cluster, and starts, stops and kills its nodes;
//! - `view`: the cluster as one of its nodes describes it;
//! - `growing`: every node answers for all objects, and each node gets its part in the Raft groups;
//! - `segment_files`: compares the segment files of nodes;
//! - `appends`: open segments are replicated: nodes are killed, paused or lose their disk during writes;
//! - `replicas`: sealed segments are copied to every storage node, repaired there and removed;
//! - `losses`: nodes are killed under load, one at a time;
//! - `majority`: two of three voters are down;
//! - `restarts`: all nodes stop and start, in any order and at new addresses;
//! - `joining`: tokens, and the directories of new nodes;
//! - `refusals`: copied directories, and settings that contradict the cluster.
//!
//! Nothing is synchronized by time: a test waits for a condition, and fails after a long limit.

mod appends;
mod growing;
mod joining;
mod losses;
mod majority;
mod refusals;
mod replicas;
mod restarts;
mod segment_files;
pub(crate) mod testbed;
mod view;
