//! `node.json`: the format of a data directory and the identity of the server that owns it.
//!
//! Format 5 has a server that was recovered from a node of a cluster and has not taken over: it is one
//! without peers. Format 4 has a node of a cluster: its number, its role, the directory of its catalogue, and
//! a count of its starts. Format 3 has the number alone. A server without peers has format 2 and is node 1.
//! Format 2 has the identity: cluster, node, incarnation, and the incarnations that this one descends from.
//! Format 1 had a node only. The first start of this version adds the rest to such a directory. While
//! `marking` is set, parts of the directory may still lack the identity, because a first start or a restore
//! is unfinished.
//!
//! The count of starts of a node with peers is raised, with a new random nonce, before anything else at a
//! start. Peers keep the highest count that they saw, so they refuse a node whose disk was copied, emptied or
//! set back. The file is replaced as a whole and synced, so a crash leaves the old description or the
//! new one. A start after an interrupted one continues with the written identity.

use crate::catalogue_dir::CatalogueName;
use mlgw_common::limits::INCARNATIONS_MAX;
use mlgw_common::private_file;
use mlgw_common::random;
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeId, NodeName, Timestamp, regular};
use mlgw_credentials::SealerError;
use serde::{Deserialize, Serialize};
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// The format of a server without peers. Format 1 is read as well.
const FORMAT: u32 = 2;

/// The format of a recovered server that has not taken over, and the last one that this version knows.
const RECOVERED_FORMAT: u32 = 5;

/// The first format of a node with peers, which has its number alone.
const NUMBERED_FORMAT: u32 = 3;

/// The format of a node with peers.
const CLUSTER_FORMAT: u32 = 4;

/// The number of the node that starts a cluster.
const FIRST_NODE: NonZeroU64 = NonZeroU64::MIN;

/// Name of the file that describes a directory.
pub const NODE_FILE: &str = "node.json";

/// Error of a data directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another server uses it.
    #[error("{path} is in use by another mlgw server{process}: stop it, or use another data directory")]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process, if known.
        process: String,
    },
    /// A later version wrote it.
    #[error(
        "{path} has format {found}, but this mlgw supports {RECOVERED_FORMAT} at most: use the newer version \
         that wrote it"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Its description is missing or damaged.
    #[error("{path} is not a valid description of a data directory: {reason}; restore it from a backup")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Reason of the failure.
        reason: String,
    },
    /// A restore into it did not end.
    #[error(
        "{path} has a part of a backup: its restore did not end, so nothing in it is used. Empty the \
         directory, and that of the segments if it is elsewhere; then restore the backup again, or start \
         with the empty directories"
    )]
    UnfinishedRestore {
        /// The directory.
        path: PathBuf,
    },
    /// There is no room for another timeline in `node.json`.
    #[error(
        "this directory was restored, rebuilt or recovered {INCARNATIONS_MAX} times, the maximum: copy its \
         objects to a new server"
    )]
    Incarnations,
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The key that seals secrets cannot be used.
    #[error(transparent)]
    Sealer(#[from] SealerError),
}

/// Part of a node in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectoryRole {
    /// It stores objects.
    #[default]
    Storage,
    /// It forwards requests and has no objects.
    Gateway,
}

/// A start of a node with peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartStamp {
    /// Number of the start; 0 before the first one.
    pub counter: u64,
    /// Random number of the start, in hexadecimal digits.
    #[serde(with = "nonce_text")]
    pub nonce: u64,
}

/// The nonce as text, because JSON readers round large numbers.
mod nonce_text {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(nonce: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{nonce:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let nonce = u64::from_str_radix(&text, 16).ok().filter(|nonce| format!("{nonce:016x}") == text);
        nonce.ok_or_else(|| serde::de::Error::custom("the nonce has not 16 hexadecimal digits"))
    }
}

/// Identity that a cluster gives to a new node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenIdentity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The cluster's timeline.
    pub incarnation: Incarnation,
    /// The timelines that it descends from, the oldest first.
    pub earlier: Vec<Incarnation>,
    /// Number of the node.
    pub id: NonZeroU64,
    /// Part of the node.
    pub role: DirectoryRole,
}

/// Contents of `node.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    /// Format of all files in the directory.
    pub format: u32,
    /// The cluster. 0 in a directory of format 1.
    #[serde(default)]
    pub cluster: ClusterId,
    /// This node's name, generated at its first start.
    pub node: NodeName,
    /// This node's number in its cluster; `None` before format 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<NonZeroU64>,
    /// Its role. Every node stores before format 4.
    #[serde(default, skip_serializing_if = "is_default")]
    pub role: DirectoryRole,
    /// The directory of the catalogue. Before format 4 it is the first one.
    #[serde(default, skip_serializing_if = "CatalogueName::is_first")]
    pub catalogue: CatalogueName,
    /// The last start; `None` before format 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartStamp>,
    /// The timeline. 0 in a directory of format 1.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// The timelines that this one descends from, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Incarnation>,
    /// True for a recovered server that has not taken over: write-back, rules and jobs are stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovered: bool,
    /// True if parts of the directory may still lack the identity.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marking: bool,
    /// Time of the node's first start.
    pub created: String,
}

impl NodeDescription {
    /// Returns a new server's description.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn first(now: Timestamp) -> Result<Self, SealerError> {
        Ok(Self {
            format: FORMAT,
            cluster: ClusterId(random_id()?),
            node: NodeName(random_id()?),
            id: None,
            role: DirectoryRole::Storage,
            catalogue: CatalogueName::FIRST,
            start: None,
            incarnation: Incarnation(random_id()?),
            earlier: Vec::new(),
            recovered: false,
            marking: true,
            created: now.to_string(),
        })
    }

    /// Returns the description of a server from its identity alone.
    #[must_use]
    pub fn of_identity(identity: Identity, now: Timestamp) -> Self {
        Self {
            format: FORMAT,
            cluster: identity.cluster,
            node: identity.node,
            id: None,
            role: DirectoryRole::Storage,
            catalogue: CatalogueName::FIRST,
            start: None,
            incarnation: identity.incarnation,
            earlier: Vec::new(),
            recovered: false,
            marking: false,
            created: now.to_string(),
        }
    }

    /// Returns the description of a new node that joins a cluster.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn joined(given: &GivenIdentity, now: Timestamp) -> Result<Self, SealerError> {
        assert!(given.cluster.0 != 0 && given.incarnation.0 != 0, "a cluster has an identity");
        Ok(Self {
            format: CLUSTER_FORMAT,
            cluster: given.cluster,
            id: Some(given.id),
            role: given.role,
            // A repair without `node.json` then sees that the node had peers.
            catalogue: CatalogueName::FIRST.next(),
            start: Some(StartStamp::default()),
            incarnation: given.incarnation,
            earlier: given.earlier.clone(),
            ..Self::first(now)?
        })
    }

    /// Returns the description of this server as the first node of a cluster, whose catalogue is in another
    /// directory. Its identity stays.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn clustered(&self, catalogue: CatalogueName) -> Result<Self, SealerError> {
        assert!(self.has_identity() && !self.is_clustered(), "a server becomes the first node once");
        Ok(Self {
            format: CLUSTER_FORMAT,
            id: Some(FIRST_NODE),
            catalogue,
            start: Some(StartStamp { counter: 0, nonce: random_id()? }),
            ..self.clone()
        })
    }

    /// Returns the description of this node of a cluster as a server without peers, with another cluster id.
    ///
    /// # Errors
    /// When the system gives no random bytes, or the node had [`INCARNATIONS_MAX`] timelines.
    pub fn recovered(self) -> Result<Self, DataDirError> {
        assert!(self.is_clustered() && !self.recovered, "a node of a cluster is recovered once");
        let next = self.next_incarnation()?;
        Ok(Self {
            format: RECOVERED_FORMAT,
            cluster: ClusterId(random_id()?),
            id: None,
            catalogue: CatalogueName::FIRST,
            start: None,
            recovered: true,
            ..next
        })
    }

    /// Returns the description of a recovered server that takes over.
    #[must_use]
    pub fn taken_over(self) -> Self {
        Self { format: FORMAT, recovered: false, ..self }
    }

    /// Returns true if the node is a member of a cluster.
    #[must_use]
    pub const fn is_clustered(&self) -> bool {
        self.id.is_some()
    }

    /// Returns the description for the next start. Only a node with peers counts its starts.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub(super) fn started(self) -> Result<Self, SealerError> {
        if !self.is_clustered() {
            return Ok(self);
        }
        let before = self.start.unwrap_or_default().counter;
        assert!(before < u64::MAX, "a node starts fewer times");
        let start = Some(StartStamp { counter: before + 1, nonce: random_id()? });
        Ok(Self { format: CLUSTER_FORMAT, start, ..self })
    }

    /// Returns this description in the current format: one of format 1 gets a cluster and an incarnation.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub(super) fn upgraded(self) -> Result<Self, SealerError> {
        if self.has_identity() {
            return Ok(self);
        }
        Ok(Self {
            format: FORMAT,
            cluster: ClusterId(random_id()?),
            incarnation: Incarnation(random_id()?),
            marking: true,
            ..self
        })
    }

    /// Returns the description of the next timeline of this server.
    ///
    /// # Errors
    /// When the system gives no random bytes, or the server had [`INCARNATIONS_MAX`] timelines.
    pub fn next_incarnation(self) -> Result<Self, DataDirError> {
        let mut node = self.upgraded()?;
        if node.earlier.len() >= INCARNATIONS_MAX {
            return Err(DataDirError::Incarnations);
        }
        node.earlier.push(node.incarnation);
        Ok(Self { incarnation: Incarnation(random_id()?), marking: true, ..node })
    }

    /// Returns true if this description has an identity, which is the case from format 2 on.
    #[must_use]
    pub const fn has_identity(&self) -> bool {
        self.format >= 2
    }

    /// Returns the identity with its history, or `None` for a directory of format 1.
    #[must_use]
    pub fn lineage(&self) -> Option<Lineage> {
        let own = Identity { cluster: self.cluster, node: self.node, incarnation: self.incarnation };
        self.has_identity().then(|| Lineage {
            own,
            node: self.node_id(),
            earlier: self.earlier.clone(),
            marking: self.marking,
        })
    }

    /// Returns this node's number in its cluster.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.id.map_or(NodeId::SINGLE, |id| NodeId(id.get()))
    }

    /// Reads the description of a directory, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// When it is of a later format, damaged or unreadable.
    pub fn read(dir: &Path) -> Result<Option<Self>, DataDirError> {
        /// The fields that every version's file has.
        #[derive(Deserialize)]
        struct Any {
            format: u32,
        }
        let path = dir.join(NODE_FILE);
        let damaged = |reason: String| DataDirError::Damaged { path: path.clone(), reason };
        let text = match regular::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(DataDirError::Io { path, source }),
        };
        let Any { format } = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        if format > RECOVERED_FORMAT {
            return Err(DataDirError::Newer { path, found: format });
        }
        let node: Self = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        if node.has_identity() && (node.cluster.0 == 0 || node.incarnation.0 == 0) {
            return Err(damaged("the cluster or the incarnation is missing".to_owned()));
        }
        node.check_fields().map_err(|reason| damaged(reason.to_owned()))?;
        Ok(Some(node))
    }

    /// Checks that the file has exactly the fields of its format: a version that does not know a field would
    /// take the node for another one, or open another catalogue.
    fn check_fields(&self) -> Result<(), &'static str> {
        if self.recovered != (self.format == RECOVERED_FORMAT) {
            return Err("format 5, and no other, has a recovered server");
        }
        if self.id.is_some() != (NUMBERED_FORMAT..=CLUSTER_FORMAT).contains(&self.format) {
            return Err("the formats 3 and 4, and no other, have the node's number");
        }
        if self.start.is_some() != (self.format == CLUSTER_FORMAT) {
            return Err("format 4, and no other, has a count of starts");
        }
        let has_place = !self.catalogue.is_first() || self.role != DirectoryRole::Storage;
        if has_place && self.format != CLUSTER_FORMAT {
            return Err("only format 4 has a role and names the catalogue");
        }
        Ok(())
    }

    /// Replaces the description of a directory, durably.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), DataDirError> {
        assert!(self.has_identity(), "a description that is written names cluster and incarnation");
        assert_eq!(self.check_fields(), Ok(()), "a description that is written is read again");
        let path = dir.join(NODE_FILE);
        let text = format!("{}\n", serde_json::json!(self));
        private_file::write(dir, &path, text.as_bytes()).map_err(|source| DataDirError::Io { path, source })
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns a random number that is not 0.
fn random_id() -> Result<u64, SealerError> {
    Ok(u64::from_be_bytes(random()?).max(1))
}

#[cfg(test)]
mod tests {
    use super::{DirectoryRole, NODE_FILE, NodeDescription, StartStamp};
    use crate::catalogue_dir::CatalogueName;
    use mlgw_common::{ClusterId, Incarnation, Kinship, NodeId, NodeName, Timestamp};
    use std::num::NonZeroU64;

    #[test]
    fn a_description_of_format_1_gets_an_identity_and_keeps_its_node() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"format":1,"node":"00ff00ff00ff00ff","created":"2026-11-20T00:00:00.000Z"}"#;
        std::fs::write(dir.path().join(NODE_FILE), text).unwrap();
        let old = NodeDescription::read(dir.path()).unwrap().unwrap();
        assert_eq!(old.lineage(), None);
        let new = old.clone().upgraded().unwrap();
        new.write(dir.path()).unwrap();
        assert_eq!(NodeDescription::read(dir.path()).unwrap().as_ref(), Some(&new));
        assert_eq!((new.node, &new.created, new.marking), (old.node, &old.created, true));
        assert_eq!(new.clone().upgraded().unwrap(), new, "a second upgrade changes nothing");
    }

    #[test]
    fn a_restored_directory_descends_from_the_one_that_was_backed_up() {
        let original = NodeDescription { marking: false, ..NodeDescription::first(Timestamp(0)).unwrap() };
        let restored = original.clone().next_incarnation().unwrap();
        let (parent, child) = (original.lineage().unwrap(), restored.lineage().unwrap());
        assert_eq!(child.kinship(&parent.own), Kinship::Earlier);
        assert_eq!(parent.kinship(&child.own), Kinship::Foreign);
        assert!(child.marking);
        let second = original.next_incarnation().unwrap().lineage().unwrap();
        assert_eq!(child.kinship(&second.own), Kinship::Foreign, "siblings are foreign");
    }

    #[test]
    fn the_number_of_a_node_is_read_from_format_3_only() {
        let dir = tempfile::tempdir().unwrap();
        let read = |format: u32, id: &str| {
            let identity =
                r#""cluster":"0000000000000001","node":"00ff00ff00ff00ff","incarnation":"0000000000000002""#;
            let text = format!(r#"{{"format":{format},{identity}{id},"created":""}}"#);
            std::fs::write(dir.path().join(NODE_FILE), text).unwrap();
            NodeDescription::read(dir.path()).ok().flatten()
        };
        let lineage = |format, id| read(format, id)?.lineage();
        assert_eq!(lineage(2, "").unwrap().node, NodeId::SINGLE);
        assert_eq!(lineage(3, r#","id":7"#).unwrap().node, NodeId(7));
        let written = read(3, r#","id":7"#).unwrap();
        written.write(dir.path()).unwrap();
        assert_eq!(NodeDescription::read(dir.path()).unwrap(), Some(written));
        assert_eq!(read(3, ""), None);
        assert_eq!(read(3, r#","id":0"#), None);
        assert_eq!(read(2, r#","id":7"#), None);
        assert_eq!(read(4, r#","id":7"#), None, "format 4 counts starts");
        assert_eq!(read(5, r#","id":7"#), None, "a recovered server has no number");
        assert!(read(5, r#","recovered":true"#).unwrap().recovered);
        assert_eq!(read(5, ""), None);
        assert_eq!(read(2, r#","recovered":true"#), None);
        assert_eq!(read(6, ""), None, "a later version");
        let start = r#","id":7,"start":{"counter":3,"nonce":"00000000000000ff"}"#;
        assert_eq!(read(3, start), None);
        assert_eq!(read(3, r#","id":7,"catalogue":"catalogue-1""#), None);
        assert_eq!(read(2, r#","catalogue":"catalogue-1""#), None);
        let read = read(4, &format!(r#"{start},"role":"gateway","catalogue":"catalogue-2""#)).unwrap();
        assert_eq!(read.start, Some(StartStamp { counter: 3, nonce: 255 }));
        assert_eq!((read.role, read.catalogue.to_string()), (DirectoryRole::Gateway, "catalogue-2".into()));
    }

    #[test]
    fn a_description_of_format_4_has_these_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let node = NodeDescription {
            format: 4,
            cluster: ClusterId(1),
            node: NodeName(2),
            id: NonZeroU64::new(1),
            role: DirectoryRole::Storage,
            catalogue: CatalogueName::FIRST.next(),
            start: Some(StartStamp { counter: 7, nonce: 255 }),
            incarnation: Incarnation(3),
            earlier: vec![Incarnation(4)],
            recovered: false,
            marking: false,
            created: "2026-11-20T00:00:00.000Z".to_owned(),
        };
        node.write(dir.path()).unwrap();
        let expected = concat!(
            r#"{"catalogue":"catalogue-1","cluster":"0000000000000001","#,
            r#""created":"2026-11-20T00:00:00.000Z","#,
            r#""earlier":["0000000000000004"],"format":4,"id":1,"incarnation":"0000000000000003","#,
            r#""node":"0000000000000002","#,
            r#""start":{"counter":7,"nonce":"00000000000000ff"}}"#,
            "\n"
        );
        assert_eq!(std::fs::read_to_string(dir.path().join(NODE_FILE)).unwrap(), expected);
        assert_eq!(NodeDescription::read(dir.path()).unwrap(), Some(node));
    }

    #[test]
    fn each_start_of_a_node_with_peers_has_a_higher_count_and_another_nonce() {
        let alone = NodeDescription::first(Timestamp(0)).unwrap();
        assert_eq!(alone.clone().started().unwrap(), alone, "a server without peers counts nothing");
        let node = alone.clustered(CatalogueName::FIRST.next()).unwrap();
        let stamps: Vec<StartStamp> = (0..3)
            .scan(node.clone(), |node, _| {
                *node = node.clone().started().unwrap();
                node.start
            })
            .collect();
        assert_eq!(stamps.iter().map(|of| of.counter).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(stamps[0].nonce != stamps[1].nonce && stamps[1].nonce != stamps[2].nonce);
        let numbered = NodeDescription { format: 3, start: None, catalogue: CatalogueName::FIRST, ..node };
        let upgraded = numbered.started().unwrap();
        assert_eq!((upgraded.format, upgraded.start.unwrap().counter), (4, 1));
    }

    #[test]
    fn a_description_with_an_empty_identity_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for text in [
            r#"{"format":2,"node":"00ff00ff00ff00ff","created":""}"#,
            r#"{"format":2,"cluster":"0000000000000000","node":"00ff00ff00ff00ff",
                "incarnation":"0000000000000001","created":""}"#,
            r#"{"format":2,"cluster":"1","node":"00ff00ff00ff00ff","incarnation":"2","created":""}"#,
        ] {
            std::fs::write(dir.path().join(NODE_FILE), text).unwrap();
            assert!(NodeDescription::read(dir.path()).is_err(), "{text}");
        }
    }
}
