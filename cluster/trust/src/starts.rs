//! Judgment of the start that a peer states at a handshake. Pure.
//!
//! A node counts its starts, on disk, before it votes. A peer that states a lower counter than before runs on
//! an old copy of its disk; one that states the same counter with another nonce is one of two copies; one of
//! another timeline was restored or rebuilt. Each lacks votes and acknowledgements that it gave, so it must
//! not take part under this id. Timelines have random numbers without an order, so every other one is
//! refused.

use mlgw_common::limits::NODES_MAX;
use mlgw_common::{Incarnation, NodeId};

/// One start of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeStart {
    /// The timeline of its data directory.
    pub incarnation: Incarnation,
    /// Number of the start, from 1.
    pub counter: u64,
    /// Random number of the start.
    pub nonce: u64,
}

/// Start that may take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartVerdict {
    /// It is the known one.
    Known,
    /// It is the first or a later one, to be stored before it is answered.
    Newer,
}

/// Reason to refuse a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    /// The counter is lower than the known one.
    #[error(
        "node {node} states start {stated}, but start {known} is known: it runs on an old copy of its disk; \
         remove it and let it join under a new id, with an empty data directory"
    )]
    Older {
        /// The node.
        node: NodeId,
        /// Counter that it states.
        stated: u64,
        /// Counter that is known.
        known: u64,
    },
    /// The counter is the known one, and the nonce is not.
    #[error(
        "node {node} states start {counter} with another nonce: two copies of its disk run; stop both, \
         remove it and let one join under a new id, with an empty data directory"
    )]
    Copied {
        /// The node.
        node: NodeId,
        /// The counter.
        counter: u64,
    },
    /// The timeline is not the known one.
    #[error(
        "node {node} is of timeline {stated}, but {known} is known: its disk was restored or rebuilt; remove \
         it and let it join under a new id, with an empty data directory"
    )]
    OtherTimeline {
        /// The node.
        node: NodeId,
        /// Timeline that it states.
        stated: Incarnation,
        /// Timeline that is known.
        known: Incarnation,
    },
    /// Too many nodes are known.
    #[error("node {node} is unknown, and {NODES_MAX} nodes are known, the maximum: remove some")]
    TooManyNodes {
        /// The node.
        node: NodeId,
    },
}

/// Judges the start that a node states by the one that is known of it.
///
/// # Errors
/// See [`StartRefusal`].
pub const fn judge_start(
    node: NodeId,
    known: Option<NodeStart>,
    stated: NodeStart,
) -> Result<StartVerdict, StartRefusal> {
    let Some(known) = known else { return Ok(StartVerdict::Newer) };
    if known.incarnation.0 != stated.incarnation.0 {
        let (stated, known) = (stated.incarnation, known.incarnation);
        return Err(StartRefusal::OtherTimeline { node, stated, known });
    }
    if stated.counter < known.counter {
        let (stated, known) = (stated.counter, known.counter);
        return Err(StartRefusal::Older { node, stated, known });
    }
    if stated.counter > known.counter {
        return Ok(StartVerdict::Newer);
    }
    if stated.nonce != known.nonce {
        return Err(StartRefusal::Copied { node, counter: stated.counter });
    }
    Ok(StartVerdict::Known)
}

#[cfg(test)]
mod tests {
    use super::{NodeStart, StartRefusal, StartVerdict, judge_start};
    use mlgw_common::{Incarnation, NodeId};

    const NODE: NodeId = NodeId(7);

    fn start(incarnation: u64, counter: u64, nonce: u64) -> NodeStart {
        NodeStart { incarnation: Incarnation(incarnation), counter, nonce }
    }

    #[test]
    fn a_start_is_accepted_once_and_never_after_a_later_one() {
        let known = Some(start(5, 10, 99));
        assert_eq!(judge_start(NODE, None, start(1, 1, 1)), Ok(StartVerdict::Newer));
        assert_eq!(judge_start(NODE, known, start(5, 10, 99)), Ok(StartVerdict::Known));
        assert_eq!(judge_start(NODE, known, start(5, 11, 1)), Ok(StartVerdict::Newer));
        let older = StartRefusal::Older { node: NODE, stated: 9, known: 10 };
        assert_eq!(judge_start(NODE, known, start(5, 9, 99)), Err(older));
        let copied = StartRefusal::Copied { node: NODE, counter: 10 };
        assert_eq!(judge_start(NODE, known, start(5, 10, 98)), Err(copied));
        for incarnation in [4, 6] {
            let (stated, known_timeline) = (Incarnation(incarnation), Incarnation(5));
            let other = StartRefusal::OtherTimeline { node: NODE, stated, known: known_timeline };
            assert_eq!(judge_start(NODE, known, start(incarnation, 11, 1)), Err(other));
        }
    }

    #[test]
    fn each_refusal_names_the_node_and_the_remedy() {
        for refusal in [
            StartRefusal::Older { node: NODE, stated: 9, known: 10 },
            StartRefusal::Copied { node: NODE, counter: 9 },
            StartRefusal::OtherTimeline { node: NODE, stated: Incarnation(1), known: Incarnation(2) },
        ] {
            let text = refusal.to_string();
            assert!(text.contains("node 7") && text.contains("join under a new id"), "{text}");
        }
    }
}
