//! Stores the bytes of a new body, chunk by chunk.
//!
//! A chunk is appended only after it is completely buffered, so a slow client never keeps a segment busy.
//! Several chunks may be in flight to the disk while the next one fills. Each chunk is hashed while it is
//! appended. If a rule selects the object, the chunk is compressed before the append ([`packing`]).
//!
//! Invariants: memory is reserved before it is used. A body is admitted before any of it is read. It then has
//! enough memory to finish, or it fails with [`ResourceShortage::Memory`]. It takes more memory where more is
//! free. Where none is free it appends smaller chunks, one at a time. The server therefore stays within its
//! limit and no admitted body is stuck.
//!
//! If power fails or the body is abandoned, its bytes are in segments without a reference. Compaction frees
//! them.

mod packing;

use crate::body_target::BodyTarget;
use crate::compressor::Compression;
use crate::md5_lanes::{Md5Hasher, Md5Stream, PendingMd5, Stopped};
use crate::memory::{Account, MemoryGrant};
use crate::stages::stage;
use crate::{ObjectError, ObjectLayer, ResourceShortage};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesOrdered;
use md5::{Digest, Md5};
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, DEDICATED_SEGMENT_BYTES_MIN, SMALL_BODY_BYTES};
use mlgw_common::{BodyId, BucketId, ObjectKey, PartNumber};
use mlgw_formats::schema::Extent;
use mlgw_segments::hot::{AppendError, AppendedChunk, Chunk, Placement, SegmentHold};
use packing::Packing;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Maximum number of chunks of one body in flight to the disk. Four of 1 MiB keep a device that syncs in 2 ms
/// busy at 2 GB/s.
const IN_FLIGHT_MAX: usize = 4;
/// Blocks charged for the connection of a body: the piece that it handed out and the one that it reads, each
/// at most 64 KiB.
pub const CONNECTION_BLOCKS: u32 = 2;

const _: () = assert!(CHUNK_BYTES_MAX.is_multiple_of(BLOCK_BYTES), "a chunk fills whole blocks");
const _: () = assert!(SMALL_BODY_BYTES as u64 <= BLOCK_BYTES, "a small body is a part of a block");

/// The object or part that a body becomes.
#[derive(Clone)]
pub(crate) struct Destination {
    /// The bucket.
    pub(crate) bucket: BucketId,
    /// The key.
    pub(crate) key: ObjectKey,
    /// The body.
    pub(crate) body: BodyId,
    /// The part, of a multipart upload.
    pub(crate) part: Option<PartNumber>,
}

impl Destination {
    /// Returns the destination of `body` at `target`.
    #[must_use]
    pub(crate) fn of(target: BodyTarget<'_>, body: BodyId) -> Self {
        let BodyTarget { bucket, key, part } = target;
        Self { bucket: bucket.bucket_id(), key: key.clone(), body, part: part.map(|(_, number)| number) }
    }
}

/// Chunks that are durable in segments, in the order of the body.
#[derive(Default)]
pub(crate) struct DurableChunks {
    /// Extents of the chunks.
    pub(crate) extents: Vec<Extent>,
    /// Holds that keep the segments until the catalogue has recorded the chunks.
    pub(crate) holds: Vec<SegmentHold>,
    /// The MD5 of the body, if it was requested.
    pub(crate) md5: Option<[u8; 16]>,
}

impl DurableChunks {
    fn push(&mut self, appended: AppendedChunk) {
        let held = self.holds.last().is_some_and(|last| last.segment() == appended.hold.segment());
        if !held {
            self.holds.push(appended.hold);
        }
        self.extents.push(appended.extent);
    }
}

/// A body that is being stored.
pub(crate) struct Ingest {
    objects: Arc<ObjectLayer>,
    memory: Account,
    destination: Destination,
    placement: Placement,
    /// A small body that arrived in one piece and needs no buffer.
    whole: Option<Bytes>,
    buffer: BytesMut,
    /// Memory from the admission to the end: one block of the buffer and the blocks of the connection. A
    /// small body is covered by the slot of its connection.
    _admitted: Option<MemoryGrant>,
    /// Memory for further blocks of the buffer.
    extra_blocks: Option<MemoryGrant>,
    /// Chunks that are being appended and hashed, in the order of the body. They are tasks, so that they
    /// proceed while the ingest waits for the client.
    in_flight: FuturesOrdered<JoinHandle<Result<AppendedChunk, ObjectError>>>,
    md5: IngestMd5,
    stored: DurableChunks,
    /// Chunks that have completed.
    finished: u64,
    appended_bytes: u64,
    expected_bytes: Option<u64>,
    /// The settings of compression, until the first chunk misses the ratio of the rule.
    compression: Option<Compression>,
}

/// The state of the MD5 of a body.
enum IngestMd5 {
    /// Not requested.
    No,
    /// No chunk was hashed yet. The MD5 of a body of one chunk is computed at its end. A small body is hashed
    /// together with others. A larger one is hashed alone, because it is too late for others to join.
    OfOneChunk,
    /// MD5 of a body of several chunks, being computed.
    InLockstep(Md5Stream),
}

impl IngestMd5 {
    /// Returns the stream for a chunk that is not the last, or `None` if no MD5 was requested.
    fn stream(&mut self, hasher: &Md5Hasher) -> Option<&mut Md5Stream> {
        if matches!(self, Self::OfOneChunk) {
            *self = Self::InLockstep(hasher.open());
        }
        match self {
            Self::InLockstep(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the MD5, given the last chunk.
    async fn finish(self, hasher: &Md5Hasher, last: Bytes) -> Result<IngestDigest, Stopped> {
        Ok(match self {
            Self::No => IngestDigest::No,
            Self::OfOneChunk if last.len() <= SMALL_BODY_BYTES => IngestDigest::Soon(hasher.submit(last)),
            Self::OfOneChunk => IngestDigest::Now(Md5::digest(&last).into()),
            Self::InLockstep(stream) => IngestDigest::Now(stream.finish(last).await?),
        })
    }
}

/// The MD5 of a complete body.
enum IngestDigest {
    No,
    Now([u8; 16]),
    /// Computed when the digest is requested, together with other bodies that are pending by then.
    Soon(PendingMd5),
}

impl IngestDigest {
    fn digest(self) -> Option<[u8; 16]> {
        match self {
            Self::No => None,
            Self::Now(md5) => Some(md5),
            Self::Soon(left) => Some(left.digest()),
        }
    }
}

impl Ingest {
    /// Admits a body of `expected_bytes`, if known, before any of it is read.
    ///
    /// # Errors
    /// [`ResourceShortage::Memory`] when no memory becomes free within the time limit.
    pub(crate) async fn begin(
        objects: &Arc<ObjectLayer>,
        memory: &Account,
        destination: Destination,
        expected_bytes: Option<u64>,
    ) -> Result<Self, ObjectError> {
        let placement = placement(destination.part, expected_bytes);
        let admitted = match expected_bytes {
            Some(bytes) if bytes <= SMALL_BODY_BYTES as u64 => None,
            Some(bytes) if bytes <= BLOCK_BYTES => Some(memory.reserve(1).await?),
            _ => Some(memory.reserve(1 + CONNECTION_BLOCKS).await?),
        };
        Ok(Self {
            objects: objects.clone(),
            memory: memory.clone(),
            destination,
            placement,
            whole: None,
            buffer: BytesMut::new(),
            _admitted: admitted,
            extra_blocks: None,
            in_flight: FuturesOrdered::new(),
            md5: IngestMd5::No,
            stored: DurableChunks::default(),
            finished: 0,
            appended_bytes: 0,
            expected_bytes,
            compression: None,
        })
    }

    /// Returns the same ingest, which also computes the MD5 of the body.
    pub(crate) fn with_md5(mut self) -> Self {
        assert_eq!(self.appended_bytes, 0, "an MD5 covers the body from its first byte");
        self.md5 = match self.expected_bytes {
            Some(bytes) if bytes > CHUNK_BYTES_MAX => IngestMd5::InLockstep(self.objects.hasher.open()),
            _ => IngestMd5::OfOneChunk,
        };
        self
    }

    /// Returns the same ingest with compression, which stops if the first chunk misses the ratio.
    pub(crate) fn compressed(mut self, compression: Option<Compression>) -> Self {
        self.compression = compression;
        self
    }

    /// Appends the next bytes of the body to the buffer and flushes full chunks.
    ///
    /// # Errors
    /// [`ObjectError::NoRoom`]; [`ResourceShortage::Disk`] while room is being made.
    pub(crate) async fn push(&mut self, mut bytes: Bytes) -> Result<(), ObjectError> {
        assert!(self.whole.is_none() || bytes.is_empty(), "the body has at most the expected length");
        let is_whole = self.expected_bytes == Some(bytes.len() as u64);
        if is_whole && bytes.len() <= SMALL_BODY_BYTES && self.buffer.is_empty() {
            self.whole = Some(bytes);
            return Ok(());
        }
        while !bytes.is_empty() {
            if self.buffer.len() == self.granted_bytes() {
                self.make_room().await?;
            }
            let room = self.granted_bytes().saturating_sub(self.buffer.len());
            assert!(room > 0, "the buffer is within its memory and has room for the next bytes");
            let piece = bytes.split_to(room.min(bytes.len()));
            self.reserve(piece.len());
            self.buffer.extend_from_slice(&piece);
            if self.buffer.len() as u64 == CHUNK_BYTES_MAX {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Appends the remaining bytes and waits until the whole body is durable.
    ///
    /// # Errors
    /// Those of [`Ingest::push`].
    pub(crate) async fn finish(mut self) -> Result<DurableChunks, ObjectError> {
        let (last, _memory) = self.take_chunk().unzip();
        let hashed = last.as_ref().filter(|_| !matches!(self.md5, IngestMd5::No));
        let hashed = hashed.map(|chunk| chunk.data.stored().clone()).unwrap_or_default();
        let packing = self.packing();
        // The last chunk needs no task, because no other work is left.
        let append = async {
            let Some(chunk) = last else { return Ok(None) };
            let (chunk, _packed) = match packing {
                Some(packing) => Box::pin(packing.pack(chunk)).await,
                None => (chunk, None),
            };
            stage("append", self.objects.tiers.hot.append(chunk)).await.map(Some)
        };
        let md5 = std::mem::replace(&mut self.md5, IngestMd5::No).finish(&self.objects.hasher, hashed);
        let (last, md5) = join(append, md5).await;
        let last = last.map_err(|error| self.objects.append_failed(error))?;
        self.stored.md5 = md5.map_err(hashing_stopped)?.digest();
        while !self.in_flight.is_empty() {
            self.finish_one().await?;
        }
        if let Some(last) = last {
            self.stored.push(last);
        }
        let durable: u64 = self.stored.extents.iter().map(|extent| extent.logical_bytes).sum();
        assert_eq!(durable, self.appended_bytes, "the extents of a body cover all of its bytes");
        if self.placement == Placement::Own && self.destination.part.is_none() {
            self.objects.tiers.hot.seal_own(self.destination.body);
        }
        Ok(self.stored)
    }

    /// Grows the capacity of the buffer for `bytes` more, within the reserved memory.
    fn reserve(&mut self, bytes: usize) {
        if self.buffer.capacity() - self.buffer.len() < bytes {
            let left = self.expected_bytes.map_or(u64::MAX, |all| all.saturating_sub(self.appended_bytes));
            let whole = self.granted_bytes().min(usize::try_from(left).unwrap_or(usize::MAX));
            let missing = whole.saturating_sub(self.buffer.len()).max(bytes);
            let mut larger = BytesMut::with_capacity(self.buffer.len() + missing);
            larger.extend_from_slice(&self.buffer);
            self.buffer = larger;
        }
    }

    /// Returns the size that the buffer may have with the reserved memory.
    fn granted_bytes(&self) -> usize {
        (1 + self.extra_blocks.as_ref().map_or(0, MemoryGrant::blocks)) * BLOCK_BYTES as usize
    }

    /// Makes room in the buffer: reserves more memory, or appends what is buffered.
    async fn make_room(&mut self) -> Result<(), ObjectError> {
        let granted_bytes = self.granted_bytes() as u64;
        let left = self.expected_bytes.map(|all| all.saturating_sub(self.appended_bytes + granted_bytes));
        let granted = block_counts_to_try(granted_bytes, left)
            .into_iter()
            .find_map(|blocks| self.memory.try_reserve(blocks));
        match (granted, &mut self.extra_blocks) {
            (Some(blocks), Some(more)) => more.merge(blocks),
            (Some(blocks), none) => *none = Some(blocks),
            (None, _) => {
                self.memory.count_throttled();
                self.flush().await?;
                // The reserved block is free again when no chunk is in flight.
                while !self.in_flight.is_empty() {
                    self.finish_one().await?;
                }
            }
        }
        Ok(())
    }

    /// Appends the buffered chunk in a task.
    async fn flush(&mut self) -> Result<(), ObjectError> {
        if self.in_flight.len() == IN_FLIGHT_MAX {
            self.finish_one().await?;
        }
        let Some((mut chunk, memory)) = self.take_chunk() else { return Ok(()) };
        let hashed = self.hash(chunk.data.stored());
        let (mut packing, mut packed) = (self.packing(), None);
        if chunk.offset == 0
            && let Some(of_first) = packing.take()
        {
            (chunk, packed) = Box::pin(of_first.pack(chunk)).await;
            // If the first chunk misses the ratio, no other chunk is compressed.
            self.compression = self.compression.filter(|_| packed.is_some());
        }
        let objects = Arc::clone(&self.objects);
        self.in_flight.push_back(tokio::spawn(async move {
            let (chunk, packed) = match packing {
                Some(packing) => packing.pack(chunk).await,
                None => (chunk, packed),
            };
            let appended = objects.tiers.hot.append(chunk).await;
            let appended = appended.map_err(|error| objects.append_failed(error));
            if let Some(hashed) = hashed {
                hashed.await.map_err(hashing_stopped)?;
            }
            drop((memory, packed));
            appended
        }));
        Ok(())
    }

    /// Returns the compression of the next chunk, if any.
    fn packing(&self) -> Option<Packing> {
        let compression = self.compression?;
        let (compressor, memory) = (Arc::clone(&self.objects.compressor), self.memory.clone());
        Some(Packing { compressor, memory, compression })
    }

    /// Hashes a chunk that is not the last, if the MD5 is requested. The chunk waits for chunks of other
    /// bodies only where memory is plentiful.
    fn hash(&mut self, data: &Bytes) -> Option<impl Future<Output = Result<(), Stopped>> + use<>> {
        let stream = self.md5.stream(&self.objects.hasher)?;
        let hashed = stream.push(data.clone());
        if !self.memory.has_plenty() {
            stream.expedite_all();
        }
        Some(hashed)
    }

    /// Waits for the oldest chunk in flight.
    async fn finish_one(&mut self) -> Result<(), ObjectError> {
        if let IngestMd5::InLockstep(stream) = &self.md5 {
            stream.expedite(self.finished + 1);
        }
        let Some(appended) = stage("append", self.in_flight.next()).await else { return Ok(()) };
        self.finished += 1;
        self.stored.push(appended.map_err(|_| ObjectError::internal("an append panicked"))??);
        Ok(())
    }

    /// Takes the buffered chunk with its memory, or `None` if the buffer is empty.
    fn take_chunk(&mut self) -> Option<(Chunk, Option<MemoryGrant>)> {
        let data = self.whole.take().unwrap_or_else(|| std::mem::take(&mut self.buffer).freeze());
        if data.is_empty() {
            return None;
        }
        let chunk = Chunk {
            bucket: self.destination.bucket,
            key: self.destination.key.clone(),
            body: self.destination.body,
            part: self.destination.part,
            offset: self.appended_bytes,
            placement: self.placement,
            data: data.into(),
        };
        let bytes = chunk.data.logical_bytes() as u64;
        assert!(bytes <= CHUNK_BYTES_MAX, "a buffer is at most one chunk");
        self.appended_bytes += bytes;
        Some((chunk, self.extra_blocks.take()))
    }
}

/// Returns the numbers of blocks that a buffer of `granted_bytes` tries to add, best first. The first
/// completes the chunk or the `left` bytes of the body, so bytes are copied once. If `left` is not known, it
/// doubles the buffer, so bytes are copied about twice. The last is one block.
fn block_counts_to_try(granted_bytes: u64, left: Option<u64>) -> [u32; 3] {
    assert!(granted_bytes < CHUNK_BYTES_MAX, "a buffer of a whole chunk is appended and does not grow");
    let lacks = CHUNK_BYTES_MAX - granted_bytes;
    let blocks = |bytes: u64| bytes.min(lacks).div_ceil(BLOCK_BYTES).max(1) as u32;
    [blocks(left.unwrap_or(granted_bytes)), blocks(granted_bytes), 1]
}

/// Returns the placement of a body. A large body gets its own segment, and so do the parts of an upload
/// beyond [`DEDICATED_SEGMENT_BYTES_MIN`]. The offset of a part is known only when the upload is completed.
/// Parts have one size, so the end of a part is estimated as number times size.
fn placement(part: Option<PartNumber>, expected_bytes: Option<u64>) -> Placement {
    let bytes = expected_bytes.unwrap_or(0);
    let end = part.map_or(bytes, |part| u64::from(part.get()).saturating_mul(bytes));
    let beyond = match part {
        Some(_) => end > DEDICATED_SEGMENT_BYTES_MIN,
        None => end >= DEDICATED_SEGMENT_BYTES_MIN,
    };
    if beyond { Placement::Own } else { Placement::Shared }
}

fn hashing_stopped(_: Stopped) -> ObjectError {
    ObjectError::Stopping
}

impl ObjectLayer {
    /// Waits until the disks have room for `bytes` more.
    ///
    /// # Errors
    /// [`ObjectError::NoRoom`], or [`ResourceShortage::Disk`] while room is being made.
    pub async fn room_for(&self, bytes: u64) -> Result<(), ObjectError> {
        self.tiers.hot.wait_for_body_room(bytes).await.map_err(|error| self.append_failed(error))
    }

    fn append_failed(&self, error: AppendError) -> ObjectError {
        match error {
            AppendError::Full => {
                self.metrics.throttle(ResourceShortage::Disk);
                ObjectError::NoRoom
            }
            AppendError::NoRoomYet => {
                self.metrics.throttle(ResourceShortage::Disk);
                ResourceShortage::Disk.into()
            }
            AppendError::Stopping => ObjectError::Stopping,
            AppendError::NoQuorum => ObjectError::TooFewReplicas(error.to_string()),
            AppendError::OtherSet => ObjectError::OtherSet(error.to_string()),
            AppendError::Io => {
                let what = format!("a chunk could not be stored: {error}");
                match self.tiers.hot.has_peers() {
                    true => ObjectError::DiskFailed(what),
                    false => ObjectError::Internal(what),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
