//! Commands of sets of nodes. All are of group 0 and of cluster version 6.

use crate::schema::Rebalance;

/// Creates a set, or replaces its nodes, if it was changed the expected number of times: compare and set.
/// Repeatable. Replies with [`Reply::Done`](super::Reply::Done).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PutSet {
    /// Id of the set. The first set is created before all others.
    #[prost(uint32, tag = "1")]
    pub set: u32,
    /// Ids of its nodes from now on, all different. Those that are added store data and serve.
    #[prost(uint64, repeated, tag = "2")]
    pub nodes: Vec<u64>,
    /// Expected number of changes; 0 creates the set.
    #[prost(uint64, tag = "3")]
    pub changes: u64,
}

/// Assigns an object group to a set, if its set was changed the expected number of times: compare and set.
/// Repeatable. The group stays a guest of the set that it leaves, unless that is the first one. Replies with
/// [`Reply::Done`](super::Reply::Done).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AssignGroup {
    /// Id of the group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Id of the set.
    #[prost(uint32, tag = "2")]
    pub set: u32,
    /// Expected number of changes; 0 for a group that was never assigned.
    #[prost(uint64, tag = "3")]
    pub changes: u64,
}

/// Ends that a group is a guest of a set, if its set was changed the expected number of times: compare and
/// set. Repeatable. The group has released every segment of the set that existed when `next_segment` was
/// read: no record of it refers to one, and none ever will. Rejected if the set has a later segment. Replies
/// with [`Reply::Done`](super::Reply::Done).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EndGuest {
    /// Id of the group.
    #[prost(uint32, tag = "1")]
    pub group: u32,
    /// Id of the set.
    #[prost(uint32, tag = "2")]
    pub set: u32,
    /// Expected number of changes.
    #[prost(uint64, tag = "3")]
    pub changes: u64,
    /// Id that the next segment had before the segments of the set were listed.
    #[prost(uint64, tag = "4")]
    pub next_segment: u64,
}

/// Requests a rebalance: it replaces one that was requested before and has not ended. Repeatable. Replies
/// with [`Reply::Done`](super::Reply::Done).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RequestRebalance {
    /// The request.
    #[prost(message, required, tag = "1")]
    pub rebalance: Rebalance,
}

/// Ends a rebalance, unless another one was requested meanwhile: then it changes nothing. Repeatable. Replies
/// with [`Reply::Done`](super::Reply::Done).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EndRebalance {
    /// The request that is done.
    #[prost(message, required, tag = "1")]
    pub rebalance: Rebalance,
}

#[cfg(test)]
mod tests {
    use super::EndGuest;
    use crate::schema::golden;

    #[test]
    fn the_end_of_a_guest_has_these_bytes() {
        let end = EndGuest { group: 3, set: 2, changes: 300, next_segment: 7 };
        golden::check(&end, "01 0803 1002 18ac02 2007");
    }
}
