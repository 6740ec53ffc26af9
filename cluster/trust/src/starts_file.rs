//! Starts of the other nodes on disk: `starts.json`, which is read whole at a start and replaced as a whole.
//!
//! Invariant: a start that [`PeerStarts::admit`] accepted is on stable media. The file is made when the node
//! becomes a member and must exist afterwards: a node that lost it does not know whom to refuse. A power loss
//! leaves the file before or after an acceptance; before it, the peer was not answered.

use crate::starts::{NodeStart, StartRefusal, StartVerdict, judge_start};
use mlgw_common::limits::{NODES_MAX, STARTS_FILE_BYTES_MAX};
use mlgw_common::{ClusterId, Incarnation, NodeId, private_file};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Format of the file.
const FORMAT: u32 = 1;

/// Name of the file.
const STARTS_FILE: &str = "starts.json";

/// Error of the file of starts.
#[derive(Debug, thiserror::Error)]
pub enum StartsFileError {
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// It does not exist.
    #[error(
        "{path} is missing, so old copies of other nodes cannot be refused: restore it, or remove this \
             node and let it join under a new id"
    )]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Its content is not valid.
    #[error("{path} is damaged: {reason}; restore it, or remove this node and let it join under a new id")]
    Damaged {
        /// The path.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// The start is refused.
    #[error(transparent)]
    Refused(#[from] StartRefusal),
}

/// Contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct StartsContents {
    format: u32,
    cluster: ClusterId,
    nodes: Vec<StartEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StartEntry {
    node: u64,
    incarnation: Incarnation,
    counter: u64,
    /// 16 hexadecimal digits, like an incarnation.
    nonce: Incarnation,
}

/// Starts of the other nodes.
#[derive(Debug)]
pub struct PeerStarts {
    dir: PathBuf,
    cluster: ClusterId,
    known: Mutex<BTreeMap<NodeId, NodeStart>>,
}

impl PeerStarts {
    /// Makes the file of a new member, in the folder `dir`, and opens it; an existing file stays.
    ///
    /// # Errors
    /// See [`StartsFileError`].
    pub fn create(dir: &Path, cluster: ClusterId) -> Result<Self, StartsFileError> {
        if !dir.join(STARTS_FILE).exists() {
            let starts = Self { dir: dir.to_owned(), cluster, known: Mutex::default() };
            starts.write(&BTreeMap::new())?;
        }
        Self::open(dir, cluster)
    }

    /// Reads the file in the folder `dir`.
    ///
    /// # Errors
    /// See [`StartsFileError`].
    pub fn open(dir: &Path, cluster: ClusterId) -> Result<Self, StartsFileError> {
        let path = dir.join(STARTS_FILE);
        let io = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => StartsFileError::Missing { path: path.clone() },
            _ => StartsFileError::Io { path: path.clone(), source },
        };
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(io)?;
        file.take(STARTS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
        let damaged = |reason| StartsFileError::Damaged { path: path.clone(), reason };
        let known = decode_starts(&bytes, cluster).map_err(damaged)?;
        Ok(Self { dir: dir.to_owned(), cluster, known: Mutex::new(known) })
    }

    /// Accepts the start of a node, which is then on stable media, or refuses it. Blocks while it syncs a new
    /// one.
    ///
    /// # Errors
    /// See [`StartsFileError`].
    pub fn admit(&self, node: NodeId, stated: NodeStart) -> Result<StartVerdict, StartsFileError> {
        let mut known = self.known.lock();
        let verdict = judge_start(node, known.get(&node).copied(), stated)?;
        if verdict == StartVerdict::Known {
            return Ok(verdict);
        }
        if !known.contains_key(&node) && known.len() >= NODES_MAX {
            return Err(StartRefusal::TooManyNodes { node }.into());
        }
        let mut next = known.clone();
        next.insert(node, stated);
        self.write(&next)?;
        *known = next;
        Ok(verdict)
    }

    /// The known start of a node.
    #[must_use]
    pub fn known(&self, node: NodeId) -> Option<NodeStart> {
        self.known.lock().get(&node).copied()
    }

    /// Removes nodes. Only ids that are refused for ever may be removed here.
    ///
    /// # Errors
    /// See [`StartsFileError`].
    pub fn forget(&self, removed: &[NodeId]) -> Result<(), StartsFileError> {
        let mut known = self.known.lock();
        let mut next = known.clone();
        next.retain(|node, _| !removed.contains(node));
        if next.len() < known.len() {
            self.write(&next)?;
            *known = next;
        }
        Ok(())
    }

    fn write(&self, known: &BTreeMap<NodeId, NodeStart>) -> Result<(), StartsFileError> {
        let path = self.dir.join(STARTS_FILE);
        let text = encode_starts(self.cluster, known);
        let text = text.map_err(|reason| StartsFileError::Damaged { path: path.clone(), reason })?;
        private_file::write(&self.dir, &path, text.as_bytes())
            .map_err(|source| StartsFileError::Io { path, source })
    }
}

fn encode_starts(cluster: ClusterId, known: &BTreeMap<NodeId, NodeStart>) -> Result<String, String> {
    let entry = |(node, start): (&NodeId, &NodeStart)| StartEntry {
        node: node.0,
        incarnation: start.incarnation,
        counter: start.counter,
        nonce: Incarnation(start.nonce),
    };
    let contents = StartsContents { format: FORMAT, cluster, nodes: known.iter().map(entry).collect() };
    let text = serde_json::to_string(&contents).map_err(|error| error.to_string())?;
    Ok(format!("{text}\n"))
}

/// Decodes the contents of `starts.json` of a cluster. Pure.
///
/// # Errors
/// The reason for which they are not valid.
pub fn decode_starts(bytes: &[u8], cluster: ClusterId) -> Result<BTreeMap<NodeId, NodeStart>, String> {
    if bytes.len() as u64 > STARTS_FILE_BYTES_MAX {
        return Err(format!("it has more than {STARTS_FILE_BYTES_MAX} bytes"));
    }
    let contents: StartsContents = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if contents.format != FORMAT {
        let found = contents.format;
        return Err(format!(
            "it has format {found}, but this mlgw supports {FORMAT}: use the version that wrote it"
        ));
    }
    if contents.cluster != cluster {
        return Err(format!("it is of cluster {}, and this node is in {cluster}", contents.cluster));
    }
    if contents.nodes.len() > NODES_MAX {
        return Err(format!("it has {} nodes, more than {NODES_MAX}", contents.nodes.len()));
    }
    let mut known = BTreeMap::new();
    for entry in contents.nodes {
        let start =
            NodeStart { incarnation: entry.incarnation, counter: entry.counter, nonce: entry.nonce.0 };
        if entry.node == 0 || known.insert(NodeId(entry.node), start).is_some() {
            return Err(format!("it has node {} twice, or node 0", entry.node));
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests;
