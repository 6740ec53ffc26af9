//! Enumerations of the decision log. They are closed: a reader knows all of their words.

use mlgw_common::{SegmentTier, words};

words! {
    [serde]
    /// Action of a decision.
    DecisionKind {
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
    [serde]
    /// Location of data.
    DecisionPlace {
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

impl From<SegmentTier> for DecisionPlace {
    fn from(tier: SegmentTier) -> Self {
        match tier {
            SegmentTier::Hot => Self::Hot,
            SegmentTier::Cold => Self::Cold,
            SegmentTier::Upstream => Self::Upstream,
        }
    }
}

words! {
    [serde]
    /// Reason of a decision.
    DecisionReason {
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
    [serde]
    /// Outcome of an action.
    DecisionOutcome {
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
