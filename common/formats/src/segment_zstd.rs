//! Compression of chunks with zstd, block by block. Pure, except for a pool of decompression contexts.
//!
//! Each block of 64 KiB is a frame of its own, so that a range can be read without the blocks before it. A
//! block that does not shrink is stored raw; its stored length equals its logical length then. Decoding does
//! not trust its input: any bytes return either exactly the original block or [`Undecodable`], and no
//! allocation depends on lengths in the input.

use crate::schema::Encoding;
use bytes::Bytes;
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, IDLE_DECOMPRESSORS_MAX};
use parking_lot::Mutex;
use zstd_safe::{CCtx, DCtx};

use crate::segment_payload::Payload;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Magic number of the frames that mlgw writes. The library would also accept frames of older zstd formats.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The stored bytes of a block do not decompress to its original bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block does not decompress to its original length")]
pub struct Undecodable;

/// Compresses `chunk` at `level`, 1 to 19. Returns `None` if the result is not smaller. Takes milliseconds.
///
/// # Panics
/// Panics if the chunk is longer than [`CHUNK_BYTES_MAX`]; callers split data into chunks.
#[must_use]
pub fn compress(chunk: &[u8], level: u32) -> Option<Payload> {
    assert!(chunk.len() as u64 <= CHUNK_BYTES_MAX, "a chunk holds at most 1 MiB");
    let mut context = CCtx::try_create()?;
    let level = i32::try_from(level).unwrap_or(i32::MAX).clamp(1, zstd_safe::max_c_level());
    // The output buffer is one byte shorter than the block: a frame that does not fit does not save space.
    let mut room = [0; BLOCK];
    let (mut stored, mut extra) = (Vec::with_capacity(chunk.len() / 2), Vec::new());
    for block in chunk.chunks(BLOCK) {
        let smaller = context.compress(&mut room[..block.len() - 1], block, level);
        let bytes = smaller.map_or(block, |length| &room[..length]);
        extra.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        stored.extend_from_slice(bytes);
        if stored.len() + extra.len() >= chunk.len() {
            return None;
        }
    }
    // Drops the vector's spare capacity, because the payload may be kept for long.
    let stored = Bytes::from(stored.into_boxed_slice());
    let (encoding, logical_bytes) = (Encoding::Zstd, chunk.len());
    (logical_bytes > 0).then_some(Payload { stored, encoding, extra: extra.into(), logical_bytes })
}

/// A zstd decompression context from a pool: creating one takes longer than decompressing a small block.
pub struct BlockDecompressor(Option<DCtx<'static>>);

static CONTEXT_POOL: Mutex<Vec<DCtx<'static>>> = Mutex::new(Vec::new());

impl BlockDecompressor {
    /// Takes a context from the pool, or creates one.
    #[must_use]
    pub fn take() -> Self {
        let kept = CONTEXT_POOL.lock().pop();
        Self(kept.or_else(DCtx::try_create))
    }

    /// Decompresses the block `stored` into `out`, whose length is the block's logical length.
    ///
    /// # Errors
    /// Returns [`Undecodable`] if `stored` does not decode to exactly `out.len()` bytes.
    pub fn decompress(&mut self, stored: &[u8], out: &mut [u8]) -> Result<(), Undecodable> {
        if stored.len() == out.len() {
            out.copy_from_slice(stored);
            return Ok(());
        }
        let is_one_frame =
            stored.starts_with(&MAGIC) && zstd_safe::find_frame_compressed_size(stored) == Ok(stored.len());
        let context = self.0.as_mut().filter(|_| is_one_frame).ok_or(Undecodable)?;
        let length = context.decompress(out, stored).map_err(|_| Undecodable)?;
        if length == out.len() { Ok(()) } else { Err(Undecodable) }
    }
}

impl Drop for BlockDecompressor {
    fn drop(&mut self) {
        let mut kept = CONTEXT_POOL.lock();
        if kept.len() < IDLE_DECOMPRESSORS_MAX {
            kept.extend(self.0.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, BlockDecompressor, Payload, Undecodable, compress};
    use mlgw_common::limits::CHUNK_BYTES_MAX;
    use proptest::prelude::*;

    /// Returns `length` bytes that do not compress.
    fn bytes_of(body: u64, length: usize) -> Vec<u8> {
        let mut state = body.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(length)
        .collect()
    }

    /// Returns `length` bytes of compressible text that differs between bodies and along the way.
    fn text_of(body: u64, length: usize) -> Vec<u8> {
        let words = ["epoch", "loss", "step", "shard", "sample", "batch", "gradient", "0.125", "7", "\n"];
        let chosen =
            bytes_of(body, length / 2 + 1).into_iter().map(|byte| words[usize::from(byte) % words.len()]);
        let mut text = chosen.collect::<Vec<_>>().join(" ").into_bytes();
        text.truncate(length);
        text
    }

    fn lengths(payload: &Payload) -> Vec<usize> {
        let (lengths, rest) = payload.extra.as_chunks::<4>();
        assert!(rest.is_empty());
        lengths.iter().map(|length| u32::from_le_bytes(*length) as usize).collect()
    }

    /// Returns the decompressed bytes of a chunk.
    fn decompress_chunk(payload: &Payload) -> Result<Vec<u8>, Undecodable> {
        let (mut out, mut at) = (vec![0; payload.logical_bytes()], 0);
        for (block, length) in out.chunks_mut(BLOCK).zip(lengths(payload)) {
            BlockDecompressor::take().decompress(&payload.stored[at..at + length], block)?;
            at += length;
        }
        assert_eq!(at, payload.stored_bytes());
        Ok(out)
    }

    #[test]
    fn incompressible_chunks_are_left_raw() {
        for length in [0, 1, 100, BLOCK, BLOCK + 1, CHUNK_BYTES_MAX as usize] {
            assert_eq!(compress(&bytes_of(1, length), 3), None, "{length}");
        }
    }

    #[test]
    fn only_blocks_that_shrink_are_compressed() {
        let chunk = [bytes_of(1, BLOCK), text_of(1, BLOCK), bytes_of(2, 100)].concat();
        let payload = compress(&chunk, 3).unwrap();
        let lengths = lengths(&payload);
        assert!(lengths[0] == BLOCK && lengths[1] < BLOCK / 2 && lengths[2] == 100, "{lengths:?}");
        assert_eq!(decompress_chunk(&payload), Ok(chunk));
    }

    #[test]
    fn higher_levels_compress_better() {
        let stored = |level| compress(&text_of(1, 1 << 20), level).unwrap().stored_bytes();
        assert!(stored(19) < stored(1), "{} {}", stored(19), stored(1));
    }

    #[test]
    fn a_wrong_block_length_is_rejected() {
        let payload = compress(&text_of(1, 10_000), 3).unwrap();
        for length in [0, 1, 9_999, 10_001, BLOCK] {
            assert_eq!(
                BlockDecompressor::take().decompress(&payload.stored, &mut vec![0; length]),
                Err(Undecodable),
                "{length}"
            );
        }
        let twice = [&payload.stored[..], &payload.stored[..]].concat();
        assert_eq!(
            BlockDecompressor::take().decompress(&twice, &mut [0; 20_000]),
            Err(Undecodable),
            "two frames"
        );
        assert_eq!(
            BlockDecompressor::take().decompress(&payload.stored[1..], &mut [0; 10_000]),
            Err(Undecodable)
        );
        // zstd 0.7 wrote frames with this magic number.
        let older = [&[0x27, 0xb5, 0x2f, 0xfd], &payload.stored[4..]].concat();
        assert_eq!(BlockDecompressor::take().decompress(&older, &mut [0; 10_000]), Err(Undecodable));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_chunk_round_trips(
            pieces in prop::collection::vec((any::<u64>(), 0usize..150_000, any::<bool>()), 0..8),
            level in 1u32..8,
        ) {
            let piece = |(seed, length, text): (u64, usize, bool)| {
                if text { text_of(seed, length) } else { bytes_of(seed, length) }
            };
            let mut chunk = pieces.into_iter().map(piece).collect::<Vec<_>>().concat();
            chunk.truncate(CHUNK_BYTES_MAX as usize);
            if let Some(payload) = compress(&chunk, level) {
                prop_assert!(payload.stored_bytes() < chunk.len());
                prop_assert!(decompress_chunk(&payload) == Ok(chunk));
            }
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(
            mut stored in prop::collection::vec(any::<u8>(), 0..400), magic: bool, length in 0usize..70_000,
        ) {
            if magic && stored.len() >= 4 {
                stored[..4].copy_from_slice(&super::MAGIC);
            }
            let mut out = vec![0; length];
            if BlockDecompressor::take().decompress(&stored, &mut out).is_ok() && stored.len() == length {
                prop_assert_eq!(out, stored);
            }
        }
    }
}
