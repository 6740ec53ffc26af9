//! Takes the bytes of a new body and makes them durable, chunk by chunk.
//!
//! A chunk is buffered here until it is whole and only then appended, so a slow client never holds
//! a segment; several chunks may be on their way to the disk while the next one fills. All memory
//! for it comes out of one budget. A body is admitted, before any of it is read, with what it needs
//! to go on whatever happens; without that it is refused with [`Shortage::Memory`]. Beyond that it takes what
//! there is, and where there is nothing it appends smaller chunks, one at a time. So the server
//! never grows past its limit and nobody who was admitted is stuck. Where the MD5 of the body is
//! wanted from here, each chunk is hashed beside its append, together with those of others where that
//! can be, and its memory is held until both are done. Where a rule wants it, chunks are compressed before that (`packing`). A body that is given up (client
//! gone, wrong checksum) leaves bytes that nothing refers to, which compaction frees.

mod packing;

use crate::compressor::Compression;
use crate::lockstep::{Hasher, Left, Stopped, Stream};
use crate::memory::{Account, Held};
use crate::put::Target;
use crate::stages::stage;
use crate::{ObjectError, Objects, Shortage};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesOrdered;
use md5::{Digest, Md5};
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, OWN_SEGMENT_BYTES_MIN, SMALL_BODY_BYTES};
use mlgw_common::{BodyId, BucketId, ObjectKey, PartNumber};
use mlgw_metadata::schema::Extent;
use mlgw_tiering::{AppendError, Appended, Chunk, Hold, Placement};
use packing::Packing;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Chunks of one body that may be on their way to the disk at once. Four of 1 MiB keep a device
/// that syncs in 2 ms busy at 2 GB/s.
const IN_FLIGHT_MAX: usize = 4;
/// What a connection holds of a body beside us: the piece that it handed out and the one that it
/// reads, each of the HTTP library's buffer of 64 KiB at most.
pub const CONNECTION_BLOCKS: u32 = 2;

/// Whose bytes these are.
#[derive(Clone)]
pub struct Destination {
    /// The bucket.
    pub bucket: BucketId,
    /// The key.
    pub key: ObjectKey,
    /// The body.
    pub body: BodyId,
    /// The part, of a multipart upload.
    pub part: Option<PartNumber>,
}

impl Destination {
    /// Returns the destination of `body`, which becomes an object or a part at `target`.
    #[must_use]
    pub fn of(target: Target<'_>, body: BodyId) -> Self {
        let Target { bucket, key, part } = target;
        Self { bucket: bucket.bucket_id(), key: key.clone(), body, part: part.map(|(_, number)| number) }
    }
}

/// Chunks that are durable in segments, in the order of their body.
#[derive(Default)]
pub struct Durable {
    /// Where they are.
    pub extents: Vec<Extent>,
    /// Keep their segments as they are, until the catalogue names the chunks.
    pub holds: Vec<Hold>,
    /// The MD5 of the body, if it was wanted from here.
    pub md5: Option<[u8; 16]>,
}

impl Durable {
    fn push(&mut self, appended: Appended) {
        let held = self.holds.last().is_some_and(|last| last.segment() == appended.hold.segment());
        if !held {
            self.holds.push(appended.hold);
        }
        self.extents.push(appended.extent);
    }
}

/// One body, or one part, on its way to the disk.
pub struct Ingest {
    objects: Arc<Objects>,
    memory: Account,
    destination: Destination,
    placement: Placement,
    /// A small body that came in one piece: it needs no buffer of ours.
    whole: Option<Bytes>,
    buffer: BytesMut,
    /// Held from the admission to the end: one block of the buffer and what the connection holds. The
    /// charge of its connection covers a small body.
    _admitted: Option<Held>,
    /// Further blocks of the buffer.
    more: Option<Held>,
    /// Chunks under way, in the order of the body: appended, and hashed where that is wanted. They are tasks, so that they go on while the
    /// client is waited for.
    in_flight: FuturesOrdered<JoinHandle<Result<Appended, ObjectError>>>,
    md5: WantedMd5,
    stored: Durable,
    /// Chunks that were waited for.
    settled: u64,
    appended_bytes: u64,
    expected_bytes: Option<u64>,
    /// How it is compressed, if it is and that still looks worth it.
    compression: Option<Compression>,
}

/// The MD5 of a body, while it comes.
enum WantedMd5 {
    /// Not from here.
    No,
    /// Nothing was hashed yet. Where there is but one chunk it is hashed at its end: a small one with others of its kind, a
    /// larger one by itself, as it would come too late for others to go with it.
    OfOneChunk,
    /// That of a body of more chunks.
    InLockstep(Stream),
}

impl WantedMd5 {
    /// The stream to which a chunk goes that is not the last.
    fn stream(&mut self, hasher: &Hasher) -> Option<&mut Stream> {
        if matches!(self, Self::OfOneChunk) {
            *self = Self::InLockstep(hasher.open());
        }
        match self {
            Self::InLockstep(stream) => Some(stream),
            _ => None,
        }
    }

    /// The MD5, given the last chunk.
    async fn finish(self, hasher: &Hasher, last: Bytes) -> Result<FoundMd5, Stopped> {
        Ok(match self {
            Self::No => FoundMd5::No,
            Self::OfOneChunk if last.len() <= SMALL_BODY_BYTES => FoundMd5::Soon(hasher.leave(last)),
            Self::OfOneChunk => FoundMd5::Now(Md5::digest(&last).into()),
            Self::InLockstep(stream) => FoundMd5::Now(stream.finish(last).await?),
        })
    }
}

/// The MD5 of a body at its end.
enum FoundMd5 {
    No,
    Now([u8; 16]),
    /// The longer it is not asked for, the more go with it.
    Soon(Left),
}

impl FoundMd5 {
    fn digest(self) -> Option<[u8; 16]> {
        match self {
            Self::No => None,
            Self::Now(md5) => Some(md5),
            Self::Soon(left) => Some(left.digest()),
        }
    }
}

impl Ingest {
    /// Admits a body of `expected_bytes`, when that is known, before any of it is read. With `md5`, that of the body
    /// is computed.
    ///
    /// # Errors
    /// [`Shortage::Memory`] when there is none for too long.
    pub async fn begin(
        objects: &Arc<Objects>,
        memory: &Account,
        destination: Destination,
        expected_bytes: Option<u64>,
        md5: bool,
    ) -> Result<Self, ObjectError> {
        let placement = placement(destination.part, expected_bytes);
        let admitted = match expected_bytes {
            Some(bytes) if bytes <= SMALL_BODY_BYTES as u64 => None,
            Some(bytes) if bytes <= BLOCK_BYTES => Some(memory.hold(1).await?),
            _ => Some(memory.hold(1 + CONNECTION_BLOCKS).await?),
        };
        let md5 = match md5 {
            true if expected_bytes.is_some_and(|bytes| bytes > CHUNK_BYTES_MAX) => {
                WantedMd5::InLockstep(objects.hasher.open())
            }
            true => WantedMd5::OfOneChunk,
            false => WantedMd5::No,
        };
        Ok(Self {
            objects: objects.clone(),
            memory: memory.clone(),
            destination,
            placement,
            whole: None,
            buffer: BytesMut::new(),
            _admitted: admitted,
            more: None,
            in_flight: FuturesOrdered::new(),
            md5,
            stored: Durable::default(),
            settled: 0,
            appended_bytes: 0,
            expected_bytes,
            compression: None,
        })
    }

    /// The same body, compressed where that pays.
    pub(crate) fn compressed(mut self, compression: Option<Compression>) -> Self {
        self.compression = compression;
        self
    }

    /// Takes the next bytes of the body.
    ///
    /// # Errors
    /// [`ObjectError::NoRoom`]; [`Shortage::Disk`] while room is being made.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<(), ObjectError> {
        assert!(self.whole.is_none() || bytes.is_empty(), "more than was expected");
        let is_whole = self.expected_bytes == Some(bytes.len() as u64);
        if is_whole && bytes.len() <= SMALL_BODY_BYTES && self.buffer.is_empty() {
            self.whole = Some(bytes);
            return Ok(());
        }
        while !bytes.is_empty() {
            if self.buffer.len() == self.granted_bytes() {
                self.make_room().await?;
            }
            let room = self.granted_bytes() - self.buffer.len();
            let piece = bytes.split_to(room.min(bytes.len()));
            self.reserve(piece.len());
            self.buffer.extend_from_slice(&piece);
            if self.buffer.len() as u64 == CHUNK_BYTES_MAX {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Appends what is left and waits until all of it is durable.
    ///
    /// # Errors
    /// As [`Ingest::push`].
    pub async fn finish(mut self) -> Result<Durable, ObjectError> {
        let (last, _memory) = self.take_chunk().unzip();
        let hashed = last.as_ref().filter(|_| !matches!(self.md5, WantedMd5::No));
        let hashed = hashed.map(|chunk| chunk.data.stored().clone()).unwrap_or_default();
        let packing = self.packing();
        // The last chunk needs no task: nothing is left to do but to wait for it.
        let append = async {
            let Some(chunk) = last else { return Ok(None) };
            let (chunk, _packed) = match packing {
                Some(packing) => Box::pin(packing.pack(chunk)).await,
                None => (chunk, None),
            };
            stage("append", self.objects.tiers.hot.append(chunk)).await.map(Some)
        };
        let md5 = std::mem::replace(&mut self.md5, WantedMd5::No).finish(&self.objects.hasher, hashed);
        let (last, md5) = join(append, md5).await;
        let last = last.map_err(|error| self.objects.append_failed(error))?;
        self.stored.md5 = md5.map_err(hashing_stopped)?.digest();
        while !self.in_flight.is_empty() {
            self.settle_one().await?;
        }
        if let Some(last) = last {
            self.stored.push(last);
        }
        if self.placement == Placement::Own && self.destination.part.is_none() {
            self.objects.tiers.hot.finish_own(self.destination.body);
        }
        Ok(self.stored)
    }

    /// Lets the buffer grow block by block, never beyond the memory that was granted for it.
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

    /// How large the buffer may become with the memory at hand.
    fn granted_bytes(&self) -> usize {
        (1 + self.more.as_ref().map_or(0, Held::blocks)) * BLOCK_BYTES as usize
    }

    /// Makes room in the buffer: with more memory, or by appending what is there.
    async fn make_room(&mut self) -> Result<(), ObjectError> {
        let granted_bytes = self.granted_bytes() as u64;
        let left = self.expected_bytes.map(|all| all.saturating_sub(self.appended_bytes + granted_bytes));
        let granted = wishes(granted_bytes, left).into_iter().find_map(|blocks| self.memory.try_hold(blocks));
        match (granted, &mut self.more) {
            (Some(blocks), Some(more)) => more.merge(blocks),
            (Some(blocks), none) => *none = Some(blocks),
            (None, _) => {
                self.memory.throttled();
                self.flush().await?;
                // The one block that is ours is free again only when nothing is on its way.
                while !self.in_flight.is_empty() {
                    self.settle_one().await?;
                }
            }
        }
        Ok(())
    }

    /// Sends the buffered chunk on its way to the disk.
    async fn flush(&mut self) -> Result<(), ObjectError> {
        if self.in_flight.len() == IN_FLIGHT_MAX {
            self.settle_one().await?;
        }
        let Some((mut chunk, memory)) = self.take_chunk() else { return Ok(()) };
        let hashed = self.hash(chunk.data.stored());
        let (mut packing, mut packed) = (self.packing(), None);
        if chunk.offset == 0
            && let Some(of_first) = packing.take()
        {
            (chunk, packed) = Box::pin(of_first.pack(chunk)).await;
            // Where it does not pay, no other chunk is tried.
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

    /// Who compresses the next chunk, if it is to be.
    fn packing(&self) -> Option<Packing> {
        let compression = self.compression?;
        let (compressor, memory) = (Arc::clone(&self.objects.compressor), self.memory.clone());
        Some(Packing { compressor, memory, compression })
    }

    /// Has a chunk hashed that is not the last, if that is wanted. It waits for chunks of other bodies only where that
    /// keeps no memory from anybody.
    fn hash(&mut self, data: &Bytes) -> Option<impl Future<Output = Result<(), Stopped>> + use<>> {
        let stream = self.md5.stream(&self.objects.hasher)?;
        let hashed = stream.push(data.clone());
        if !self.memory.has_plenty() {
            stream.hurry_all();
        }
        Some(hashed)
    }

    /// Waits for the oldest chunk under way.
    async fn settle_one(&mut self) -> Result<(), ObjectError> {
        if let WantedMd5::InLockstep(stream) = &self.md5 {
            stream.hurry(self.settled + 1);
        }
        let Some(appended) = stage("append", self.in_flight.next()).await else { return Ok(()) };
        self.settled += 1;
        self.stored.push(appended.map_err(|_| ObjectError::internal("an append panicked"))??);
        Ok(())
    }

    /// The buffered chunk, if there is one, with the memory that it holds.
    fn take_chunk(&mut self) -> Option<(Chunk, Option<Held>)> {
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
        self.appended_bytes += chunk.data.logical_bytes() as u64;
        Some((chunk, self.more.take()))
    }
}

/// How many blocks more a buffer of `granted_bytes` would have, the best first: what its chunk still lacks of the bytes
/// that are `left`, where that is known, for then they are copied once; as many as it has, for then they are copied
/// about twice; one.
fn wishes(granted_bytes: u64, left: Option<u64>) -> [u32; 3] {
    let lacks = CHUNK_BYTES_MAX - granted_bytes;
    let blocks = |bytes: u64| bytes.min(lacks).div_ceil(BLOCK_BYTES).max(1) as u32;
    [blocks(left.unwrap_or(granted_bytes)), blocks(granted_bytes), 1]
}

/// A large body, and the parts of an upload beyond its first stretch, get segments of their own.
/// Where a part lies in its upload is not known until the upload is completed; parts of one upload
/// have one size, so number times size is where it will be.
fn placement(part: Option<PartNumber>, expected_bytes: Option<u64>) -> Placement {
    let bytes = expected_bytes.unwrap_or(0);
    let end = part.map_or(bytes, |part| u64::from(part.get()).saturating_mul(bytes));
    let beyond = match part {
        Some(_) => end > OWN_SEGMENT_BYTES_MIN,
        None => end >= OWN_SEGMENT_BYTES_MIN,
    };
    if beyond { Placement::Own } else { Placement::Shared }
}

fn hashing_stopped(_: Stopped) -> ObjectError {
    ObjectError::Stopping
}

impl Objects {
    /// Waits until the disks have room for `bytes` more.
    ///
    /// # Errors
    /// [`ObjectError::NoRoom`], or [`Shortage::Disk`] while room is being made.
    pub async fn room_for(&self, bytes: u64) -> Result<(), ObjectError> {
        self.tiers.hot.room_for(bytes).await.map_err(|error| self.append_failed(error))
    }

    fn append_failed(&self, error: AppendError) -> ObjectError {
        match error {
            AppendError::Full => {
                self.metrics.throttle(Shortage::Disk);
                ObjectError::NoRoom
            }
            AppendError::NoRoomYet => {
                self.metrics.throttle(Shortage::Disk);
                Shortage::Disk.into()
            }
            AppendError::Stopping => ObjectError::Stopping,
            error => ObjectError::internal(format!("bytes could not be stored: {error}")),
        }
    }
}

#[cfg(test)]
mod tests;
