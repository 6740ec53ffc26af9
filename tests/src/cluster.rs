//! Clusters of the shipped server, made by the commands that an operator uses: three storage nodes and a
//! gateway. The first node was a server without peers before.
//!
//! - `testbed`: makes a cluster, and starts, stops and kills its nodes;
//! - `view`: the cluster as one of its nodes describes it;
//! - `writers`: clients that write without pause while nodes are killed, and keep what was acknowledged;
//! - `segment_files`: compares the segment files of nodes;
//! - `rows`: compares the rows of nodes;
//! - `growing`: every node answers for all objects, and each node gets its part in the Raft groups;
//! - `access_keys`: changes of access keys and their rights apply on every node at once;
//! - `policies`: every node runs a policy as soon as it is applied;
//! - `serving`: every storage node serves at once what another one stored, also without its own copy;
//! - `long_reads`: slow reads of objects that are deleted meanwhile;
//! - `kills`: each storage node is killed while clients use all nodes;
//! - `appends`: open segments are replicated: nodes are killed, paused or lose their disk during writes;
//! - `replicas`: sealed segments are copied to every storage node, repaired there and removed;
//! - `residency`: the bytes of a dataset by node;
//! - `certificates`: the authority of the certificates of nodes is replaced;
//! - `disks`: the disk of the segments of a running node is lost and replaced;
//! - `leaving`: nodes are drained and removed, or lost and removed;
//! - `five`: sets of nodes: three storage nodes become five and then four;
//! - `bytes`: the bytes of groups follow them to the nodes of their sets;
//! - `losses`: without a gateway, and without the node that has the duty;
//! - `majority`: two of three voters are down;
//! - `lost_groups`: two of five nodes are down, and with them some groups;
//! - `duty`: the duty node is killed, paused or stopped, and another one takes over;
//! - `duty_fitness`: the duty goes past a node that lacks an upstream;
//! - `recovery`: the last of three nodes becomes a server of its own;
//! - `backup`: a cluster is backed up through one of its nodes, destroyed, and restored;
//! - `balancer`: haproxy in front of the nodes; one of them stops and another one is killed;
//! - `clocks`: nodes whose clocks deviate;
//! - `full_disks`: one full node, all of them, and a node with a slow disk;
//! - `figures`: status and metrics of every node;
//! - `restarts`: all nodes stop and start, in any order and at new addresses;
//! - `joining`: tokens, and the directories of new nodes;
//! - `refusals`: copied directories, and settings that contradict the cluster;
//! - `upgrade`: nodes of two versions, while the cluster is upgraded;
//! - `settings`: settings that differ between the nodes;
//! - `histories`: what clients observe while nodes and their network fail is linearizable.
//!
//! Nothing is synchronized by time: a test waits for a condition, and fails after a long limit.

mod access_keys;
mod appends;
mod backup;
mod balancer;
mod bytes;
mod certificates;
mod clocks;
mod disks;
mod duty;
mod duty_fitness;
mod figures;
mod five;
mod full_disks;
mod growing;
mod histories;
mod joining;
mod kills;
mod leaving;
mod long_reads;
mod losses;
mod lost_groups;
mod majority;
mod policies;
mod recovery;
mod refusals;
mod replicas;
mod residency;
mod restarts;
mod rows;
mod segment_files;
mod serving;
mod settings;
pub(crate) mod testbed;
mod upgrade;
mod view;
mod whole;
mod writers;
