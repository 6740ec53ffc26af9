//! Reads bytes of a segment's file as they are, for a client of another node, which verifies them.
//!
//! The segment may be open: then the file has what was written so far. The bytes stay in the page cache, as
//! those of reads of this node do. A file whose reads hang is refused, as for reads of this node. A read
//! holds no reference to the tier, which can be dropped meanwhile. The permit of a read belongs to its bytes:
//! the number of permits bounds the memory also when the other node receives slowly. Nothing is stored.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use mlgw_common::ids::SegmentId;
use tokio::sync::OwnedSemaphorePermit;

use super::SegmentReader;
use super::error::SegmentReadError;
use super::slow_reads::FileReadTracker;
use crate::fair::{DiskQueue, ServiceClass};
use crate::hot::dirs::SegmentDirs;
use crate::hot::files::OpenSegmentFile;
use crate::hot::map::SegmentLocation;

/// A read of a file that has not begun.
pub(in crate::hot) struct RawRead {
    reads: Arc<FileReadTracker>,
    file: RawFile,
    segment: SegmentId,
    range: Range<u64>,
}

/// The file of a segment.
struct RawFile {
    /// The file, if it is open.
    opened: Option<Arc<OpenSegmentFile>>,
    /// The directories in which it is otherwise.
    dirs: SegmentDirs,
    place: SegmentLocation,
}

impl SegmentReader {
    /// Returns the read of a range of the file of a segment.
    pub(in crate::hot) fn raw(
        &self,
        dirs: SegmentDirs,
        segment: SegmentId,
        place: SegmentLocation,
        range: Range<u64>,
    ) -> RawRead {
        let opened = self.inner.files.get(segment).filter(|opened| opened.seed == place.seed);
        let reads = self.inner.reads.clone();
        RawRead { reads, file: RawFile { opened, dirs, place }, segment, range }
    }
}

impl RawRead {
    /// Reads the bytes when the turn at the disk has come. The permit is given back when the last slice of
    /// the bytes is dropped, and not before the thread is done: a disk that does not respond takes few
    /// threads.
    ///
    /// # Errors
    /// When the disk fails or does not respond, there is no file of the segment, or the range is not in it.
    pub(in crate::hot) async fn run(
        self,
        queue: DiskQueue,
        permit: OwnedSemaphorePermit,
    ) -> io::Result<Bytes> {
        let Self { reads, file, segment, range } = self;
        let size = range.end - range.start;
        let work = move || match file.read(segment, range) {
            Ok(bytes) => Ok(Bytes::from_owner(PermittedBytes { bytes, _permit: permit })),
            Err(source) => Err(SegmentReadError::Io { segment, source }),
        };
        let read = reads.run(segment, &queue, ServiceClass::default(), size, work).await;
        read.map_err(|error| match error {
            SegmentReadError::Io { source, .. } => source,
            other => io::Error::other(other),
        })
    }
}

/// Bytes in memory, with the permit of their read.
struct PermittedBytes {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl RawFile {
    fn read(&self, segment: SegmentId, range: Range<u64>) -> io::Result<Vec<u8>> {
        // A request for a client is for at most 2 MiB.
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = if let Some(opened) = &self.opened {
            opened.count_read();
            opened.file.read_exact_at(&mut bytes, range.start)
        } else {
            self.dirs.open_verified(segment, &self.place)?.read_exact_at(&mut bytes, range.start)
        };
        match read {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let what = format!("byte {} of segment {segment} is beyond the end of the file", range.end);
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
            }
            Err(error) => Err(error),
        }
    }
}
