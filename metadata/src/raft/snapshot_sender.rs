//! Sending a snapshot: the files of a directory of hard links, each followed by its checksum.
//!
//! A thread of the blocking pool reads the files while the transport takes the pieces, so that memory holds a
//! few pieces only. The directory lives until the transfer has ended.

use super::peers::{PeerError, SnapshotBytes};
use super::remote::RemoteNetwork;
use super::snapshot::Snapshot;
use crate::store::links;
use bytes::Bytes;
use futures_util::StreamExt as _;
use mlgw_common::NodeId;
use mlgw_common::checksum::Crc32c;
use mlgw_common::limits::SNAPSHOT_PIECE_BYTES;
use mlgw_formats::log_types::Vote;
use mlgw_formats::member_calls::VoteRecord;
use mlgw_formats::member_snapshot::{SnapshotFile, SnapshotHead, SnapshotReply};
use mlgw_formats::schema;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Pieces between the reading thread and the transport.
const PIECES_AHEAD: usize = 4;

/// Sends a snapshot to the member on node `to`, and returns the member's vote after it was installed.
pub(crate) async fn send(
    network: &RemoteNetwork,
    to: NodeId,
    vote: &Vote,
    snapshot: Snapshot,
) -> Result<Vote, PeerError> {
    let not_sent = |error: &dyn std::fmt::Display| PeerError::NotSent(error.to_string());
    let dir = snapshot.snapshot.dir.ok_or_else(|| not_sent(&"the snapshot has no directory"))?;
    let files = files_of(dir.path()).map_err(|error| not_sent(&error))?;
    let head = SnapshotHead::new(network.group, VoteRecord::of(vote), &snapshot.meta, files.clone());
    let head = Bytes::from(schema::encode(&head));
    let (pieces, incoming) = channel(PIECES_AHEAD);
    let read_dir = dir.clone();
    // It ends with the last piece, or when the transport drops the body.
    tokio::task::spawn_blocking(move || read_files(read_dir.path(), &files, &pieces));
    let answer = network.peers.send_snapshot(to, head, body_of(incoming)).await?;
    drop(dir);
    let reply: SnapshotReply =
        schema::decode(&answer).map_err(|error| PeerError::Unknown(error.to_string()))?;
    Ok(reply.vote.vote())
}

/// Files of a directory of hard links, by name.
fn files_of(dir: &Path) -> io::Result<Vec<SnapshotFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !links::is_process_file(&name) {
            files.push(SnapshotFile { name, bytes: entry.metadata()?.len() });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn body_of(incoming: Receiver<io::Result<Bytes>>) -> SnapshotBytes {
    futures_util::stream::unfold(incoming, |mut incoming| async {
        let piece = incoming.recv().await?;
        Some((piece, incoming))
    })
    .boxed()
}

/// Reads the files into `pieces`, until the end or until the receiver is dropped.
fn read_files(dir: &Path, files: &[SnapshotFile], pieces: &Sender<io::Result<Bytes>>) {
    for file in files {
        if let Err(error) = read_file(&dir.join(&file.name), file.bytes, pieces) {
            let _ = pieces.blocking_send(Err(error));
            return;
        }
    }
}

fn read_file(path: &Path, length: u64, pieces: &Sender<io::Result<Bytes>>) -> io::Result<()> {
    let closed = || io::Error::new(io::ErrorKind::BrokenPipe, "the receiver is gone");
    let mut source = File::open(path)?;
    let (mut left, mut crc) = (length, Crc32c::default());
    while left > 0 {
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(SNAPSHOT_PIECE_BYTES);
        let mut piece = vec![0; room];
        source.read_exact(&mut piece)?;
        crc.update(&piece);
        left -= room as u64;
        pieces.blocking_send(Ok(Bytes::from(piece))).map_err(|_| closed())?;
    }
    let checksum = Bytes::copy_from_slice(&crc.finish().to_le_bytes());
    pieces.blocking_send(Ok(checksum)).map_err(|_| closed())
}
