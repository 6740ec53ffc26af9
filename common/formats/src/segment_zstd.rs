//! Compression of chunks with zstd, block by block. Pure but for the memory that is kept for the next time.
//!
//! Each block of 64 KiB is a frame of its own, so that a range is read without the blocks before it; a block
//! that does not become smaller is stored as it came, which its length says. Decoding trusts nothing: any
//! bytes give exactly the bytes that the block stands for or [`Undecodable`], and nothing is allocated by
//! what they say.

use crate::schema::Encoding;
use bytes::Bytes;
use mlgw_common::limits::{BLOCK_BYTES, CHUNK_BYTES_MAX, UNPACKERS_KEPT_MAX};
use parking_lot::Mutex;
use zstd_safe::{CCtx, DCtx};

use crate::segment_payload::Payload;

const BLOCK: usize = BLOCK_BYTES as usize;
/// What every frame that we write begins with. The library would take frames of formats that came before it,
/// too.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The bytes of a block are not what it was compressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block cannot be decompressed to the bytes that it stands for")]
pub struct Undecodable;

/// `chunk` compressed with so much effort, 1 to 19; nothing when that makes it no smaller. Takes
/// milliseconds.
///
/// # Panics
/// When the chunk is longer than a chunk may be: callers cut chunks.
#[must_use]
pub fn compress(chunk: &[u8], level: u32) -> Option<Payload> {
    assert!(chunk.len() as u64 <= CHUNK_BYTES_MAX, "a chunk holds at most 1 MiB");
    let mut context = CCtx::try_create()?;
    let level = i32::try_from(level).unwrap_or(i32::MAX).clamp(1, zstd_safe::max_c_level());
    // What a block must be smaller than is all the room that it gets.
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
    // What is kept holds no more memory than it takes.
    let stored = Bytes::from(stored.into_boxed_slice());
    let (encoding, logical_bytes) = (Encoding::Zstd, chunk.len());
    (logical_bytes > 0).then_some(Payload { stored, encoding, extra: extra.into(), logical_bytes })
}

/// Decompresses blocks. Kept for the next who decompresses: making one takes longer than a small block.
pub struct Unpacker(Option<DCtx<'static>>);

static KEPT: Mutex<Vec<DCtx<'static>>> = Mutex::new(Vec::new());

impl Unpacker {
    /// One that was kept, or a new one.
    #[must_use]
    pub fn take() -> Self {
        let kept = KEPT.lock().pop();
        Self(kept.or_else(DCtx::try_create))
    }

    /// Fills `out`, which is as long as what the block stands for, from the block as `stored`.
    ///
    /// # Errors
    /// When `stored` is anything else than that.
    pub fn unpack(&mut self, stored: &[u8], out: &mut [u8]) -> Result<(), Undecodable> {
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

impl Drop for Unpacker {
    fn drop(&mut self) {
        let mut kept = KEPT.lock();
        if kept.len() < UNPACKERS_KEPT_MAX {
            kept.extend(self.0.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Payload, Undecodable, Unpacker, compress};
    use mlgw_common::limits::CHUNK_BYTES_MAX;
    use proptest::prelude::*;

    /// `length` bytes that no compression makes smaller.
    fn bytes_of(body: u64, length: usize) -> Vec<u8> {
        let mut state = body.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(length)
        .collect()
    }

    /// `length` bytes of words that differ between bodies and along the way: what compression pays for.
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

    /// What a compressed chunk was.
    fn unpacked(payload: &Payload) -> Result<Vec<u8>, Undecodable> {
        let (mut out, mut at) = (vec![0; payload.logical_bytes()], 0);
        for (block, length) in out.chunks_mut(BLOCK).zip(lengths(payload)) {
            Unpacker::take().unpack(&payload.stored[at..at + length], block)?;
            at += length;
        }
        assert_eq!(at, payload.stored_bytes());
        Ok(out)
    }

    #[test]
    fn what_has_no_pattern_stays_as_it_is() {
        for length in [0, 1, 100, BLOCK, BLOCK + 1, CHUNK_BYTES_MAX as usize] {
            assert_eq!(compress(&bytes_of(1, length), 3), None, "{length}");
        }
    }

    #[test]
    fn of_a_chunk_only_those_blocks_are_compressed_that_become_smaller() {
        let chunk = [bytes_of(1, BLOCK), text_of(1, BLOCK), bytes_of(2, 100)].concat();
        let payload = compress(&chunk, 3).unwrap();
        let lengths = lengths(&payload);
        assert!(lengths[0] == BLOCK && lengths[1] < BLOCK / 2 && lengths[2] == 100, "{lengths:?}");
        assert_eq!(unpacked(&payload), Ok(chunk));
    }

    #[test]
    fn more_effort_gains_more() {
        let stored = |level| compress(&text_of(1, 1 << 20), level).unwrap().stored_bytes();
        assert!(stored(19) < stored(1), "{} {}", stored(19), stored(1));
    }

    #[test]
    fn a_length_that_is_not_that_of_the_block_is_refused() {
        let payload = compress(&text_of(1, 10_000), 3).unwrap();
        for length in [0, 1, 9_999, 10_001, BLOCK] {
            assert_eq!(
                Unpacker::take().unpack(&payload.stored, &mut vec![0; length]),
                Err(Undecodable),
                "{length}"
            );
        }
        let twice = [&payload.stored[..], &payload.stored[..]].concat();
        assert_eq!(Unpacker::take().unpack(&twice, &mut [0; 20_000]), Err(Undecodable), "two frames");
        assert_eq!(Unpacker::take().unpack(&payload.stored[1..], &mut [0; 10_000]), Err(Undecodable));
        // zstd 0.7 wrote such frames.
        let older = [&[0x27, 0xb5, 0x2f, 0xfd], &payload.stored[4..]].concat();
        assert_eq!(Unpacker::take().unpack(&older, &mut [0; 10_000]), Err(Undecodable));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_chunk_is_what_it_was(
            pieces in prop::collection::vec((any::<u64>(), 0usize..150_000, any::<bool>()), 0..8), level in 1u32..8,
        ) {
            let piece = |(seed, length, text): (u64, usize, bool)| {
                if text { text_of(seed, length) } else { bytes_of(seed, length) }
            };
            let mut chunk = pieces.into_iter().map(piece).collect::<Vec<_>>().concat();
            chunk.truncate(CHUNK_BYTES_MAX as usize);
            if let Some(payload) = compress(&chunk, level) {
                prop_assert!(payload.stored_bytes() < chunk.len());
                prop_assert!(unpacked(&payload) == Ok(chunk));
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
            if Unpacker::take().unpack(&stored, &mut out).is_ok() && stored.len() == length {
                prop_assert_eq!(out, stored);
            }
        }
    }
}
