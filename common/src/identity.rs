//! Identity of a server and of its timeline, as recorded in a directory, a log or an upstream prefix.
//!
//! A cluster id is made once, at the first start. A node id identifies a member. An incarnation is made at
//! the first start and again by every restore, rebuild and recovery, because from then on the catalogue may
//! allocate ids that the older timeline allocates too. Data with different identities is never mixed: data of
//! another cluster or node is foreign; data of an earlier incarnation of this node may be read but not
//! changed. The numbers are random and not 0.

use crate::ids::NodeId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = BadIdentity;

            fn from_str(text: &str) -> Result<Self, BadIdentity> {
                hexadecimal(text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

random_id! {
    /// A cluster; an embedded server is a cluster of one node.
    ClusterId
}
random_id! {
    /// A member of a cluster, by the name that its first start made.
    NodeName
}
random_id! {
    /// A timeline of a cluster: a new one begins with each restore, rebuild and recovery.
    Incarnation
}

/// A text that is not an id: not exactly 16 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an id of 16 hexadecimal digits")]
pub struct BadIdentity(String);

fn hexadecimal(text: &str) -> Result<u64, BadIdentity> {
    let number = u64::from_str_radix(text, 16).ok();
    number.filter(|number| format!("{number:016x}") == text).ok_or_else(|| BadIdentity(text.to_owned()))
}

/// Owner of data on disk or at an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeName,
    /// The timeline.
    pub incarnation: Incarnation,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.cluster, self.node, self.incarnation)
    }
}

impl FromStr for Identity {
    type Err = BadIdentity;

    fn from_str(text: &str) -> Result<Self, BadIdentity> {
        let bad = || BadIdentity(text.to_owned());
        let mut words = text.split('-');
        let mut word = || words.next().ok_or_else(bad);
        let (cluster, node, incarnation) = (word()?.parse()?, word()?.parse()?, word()?.parse()?);
        if words.next().is_some() {
            return Err(bad());
        }
        Ok(Self { cluster, node, incarnation })
    }
}

/// Relation of an identity to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// This server and this timeline.
    Own,
    /// This server, but an earlier timeline.
    Earlier,
    /// Another server, or a timeline of this one that it does not descend from.
    Foreign,
}

/// The identity of a server with the timelines that it descends from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The identity.
    pub own: Identity,
    /// The number of the server in its cluster.
    pub node: NodeId,
    /// Earlier incarnations, the oldest first.
    pub earlier: Vec<Incarnation>,
    /// True if directories, log and state of this server may still lack a mark: its first start with marks,
    /// or the first one after a restore, has not finished.
    pub marking: bool,
}

impl Default for Lineage {
    fn default() -> Self {
        Self { own: Identity::default(), node: NodeId::SINGLE, earlier: Vec::new(), marking: false }
    }
}

impl Lineage {
    /// Relation of `found` to this server.
    #[must_use]
    pub fn kinship(&self, found: &Identity) -> Kinship {
        if *found == self.own {
            return Kinship::Own;
        }
        // A recovered server has another cluster than its earlier timelines, whose random numbers are unique.
        let is_here = found.node == self.own.node;
        if is_here && self.earlier.contains(&found.incarnation) { Kinship::Earlier } else { Kinship::Foreign }
    }

    /// True if a segment whose header has this cluster and incarnation was written by this server or by a
    /// timeline that it descends from.
    #[must_use]
    pub fn has_written(&self, cluster: ClusterId, incarnation: Incarnation) -> bool {
        (cluster, incarnation) == (self.own.cluster, self.own.incarnation)
            || self.earlier.contains(&incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::{ClusterId, Identity, Incarnation, Kinship, Lineage, NodeName};
    use proptest::prelude::*;

    fn identity(cluster: u64, node: u64, incarnation: u64) -> Identity {
        Identity { cluster: ClusterId(cluster), node: NodeName(node), incarnation: Incarnation(incarnation) }
    }

    proptest! {
        #[test]
        fn a_written_identity_is_read_back(cluster: u64, node: u64, incarnation: u64) {
            let identity = identity(cluster, node, incarnation);
            prop_assert_eq!(identity.to_string().parse(), Ok(identity));
            let json = serde_json::to_string(&identity).unwrap();
            prop_assert_eq!(serde_json::from_str::<Identity>(&json).unwrap(), identity);
        }

        #[test]
        fn any_other_text_is_refused(text in "[0-9a-fA-F+-]{0,52}") {
            if let Ok(read) = text.parse::<Identity>() {
                prop_assert_eq!(read.to_string(), text);
            }
        }
    }

    #[test]
    fn kinship_requires_the_same_node_and_a_known_timeline() {
        let own = identity(1, 2, 3);
        let lineage = Lineage { own, earlier: vec![Incarnation(7)], ..Lineage::default() };
        for (found, kinship) in [
            (identity(1, 2, 3), Kinship::Own),
            (identity(1, 2, 7), Kinship::Earlier),
            (identity(1, 2, 8), Kinship::Foreign),
            (identity(1, 4, 3), Kinship::Foreign),
            (identity(1, 4, 7), Kinship::Foreign),
            (identity(5, 2, 3), Kinship::Foreign),
            (identity(5, 2, 7), Kinship::Earlier),
        ] {
            assert_eq!(lineage.kinship(&found), kinship, "{found}");
        }
        assert!(lineage.has_written(ClusterId(1), Incarnation(7)));
        assert!(!lineage.has_written(ClusterId(1), Incarnation(8)));
        assert!(!lineage.has_written(ClusterId(5), Incarnation(3)));
        assert!(lineage.has_written(ClusterId(5), Incarnation(7)), "before a recovery");
    }
}
