//! Decisions: moves, retentions and evictions, with their reasons.
//!
//! Field names and their order are a stable interface for programs.

use crate::words::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A decision, or several similar ones in quick succession merged into one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DecisionInfo {
    /// Node that decided; absent on a server without peers.
    pub node: Option<u64>,
    /// Sequence number; later decisions of the same node have greater numbers.
    pub seq: u64,
    /// Time of the first merged decision.
    pub time: String,
    /// Time of the last merged decision.
    pub until: String,
    /// Action.
    pub kind: DecisionAction,
    /// Segment, if the decision is about one.
    pub segment: Option<u64>,
    /// Bucket, if the decision is about objects; its id after `#` if the bucket is gone.
    pub bucket: Option<String>,
    /// Key of the object, key of the first of several objects, or their common prefix.
    pub key: Option<String>,
    /// Number of merged decisions; repeated attempts are counted each.
    pub count: u64,
    /// Location before the action.
    pub from: DecisionLocation,
    /// Destination of the action.
    pub to: DecisionLocation,
    /// Total bytes.
    pub bytes: u64,
    /// Reason of the action.
    pub reason: DecisionTrigger,
    /// Job that carried out the action, if any.
    pub job: Option<u64>,
    /// Rule that demanded the action, if any.
    pub rule: Option<String>,
    /// Outcome of the action.
    pub outcome: DecisionResult,
    /// Error of the last failed attempt.
    pub error: Option<String>,
}

/// A list of decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DecisionList {
    /// Decisions of all nodes, newest first.
    pub decisions: Vec<DecisionInfo>,
    /// Nodes of the cluster whose decisions are missing.
    pub silent: Vec<SilentNode>,
}

/// A node whose part is missing in a list of the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilentNode {
    /// Id of the node.
    pub node: u64,
    /// Its name; may be empty.
    pub name: String,
    /// Reason for which it has given no answer.
    pub reason: String,
}

words! {
    /// Action of a decision.
    DecisionAction {
        /// Move a segment with the only copy of its data to a slower tier.
        Spill = "spill",
        /// Move data to a faster tier.
        Promote = "promote",
        /// Append the live chunks of a segment to other segments of the same tier.
        Relocate = "relocate",
        /// Compress objects that are stored raw.
        Compress = "compress",
        /// Remove a segment without references.
        Release = "release",
        /// Keep a clean copy of fetched data.
        Keep = "keep",
        /// Evict clean copies, to make room or by a job.
        Evict = "evict",
        /// Evict all clean copies of a dataset.
        Clear = "clear",
        /// Delete the objects of a checkpoint that no rule retains.
        Delete = "delete",
        /// Import an object of an upstream.
        Import = "import",
        /// Write an object back to its origin.
        Persist = "persist",
        /// Move an object of a remote-backed bucket to another origin.
        Migrate = "migrate",
    }
}

words! {
    /// Location of data before or after the action of a decision.
    DecisionLocation {
        /// Segments on the local disk.
        Hot = "hot",
        /// Segments on slower disks.
        Cold = "cold",
        /// Segments in object stores.
        Upstream = "upstream",
        /// Clean copies of the objects of remote-backed buckets.
        Copies = "copies",
        /// Origins: buckets of other object stores.
        Origin = "origin",
        /// No location: the target of a removal.
        Nowhere = "-",
    }
}

words! {
    /// Reason of a decision.
    DecisionTrigger {
        /// A tier is above its watermark.
        Watermark = "watermark",
        /// An operator drains a tier.
        Drain = "drain",
        /// The dead share of a segment is large enough.
        Compaction = "compaction",
        /// An explicit request for the action.
        Requested = "asked",
        /// Writes are refused for lack of space, or soon will be.
        Pressure = "pressure",
        /// No record refers to the segment.
        Dead = "dead",
        /// The data is read often enough to stay in a fast tier.
        Heat = "heat",
        /// The data is pinned.
        Pin = "pin",
        /// A client read the data.
        Read = "read",
        /// A job of a dataset.
        Job = "job",
        /// Write-back of the bucket.
        WriteBack = "write_back",
        /// The policy engine ranked the data against other data.
        Policy = "policy",
        /// A rule of the policy.
        Rule = "rule",
        /// The group of the objects moved to another set of nodes.
        Rebalance = "rebalance",
    }
}

words! {
    /// Outcome of the action of a decision.
    DecisionResult {
        /// Done.
        Done = "done",
        /// Postponed: the target has no room.
        NoRoom = "no_room",
        /// Postponed: the budget is used up.
        OverBudget = "over_budget",
        /// Refused: the data does not verify and is left for repair.
        Damaged = "damaged",
        /// Refused: another program changed the data at the origin, and an operator must decide.
        Foreign = "foreign",
        /// Failed; retried unless an operator must act.
        Failed = "failed",
    }
}
