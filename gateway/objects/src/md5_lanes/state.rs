//! The state of an MD5, and its update for one stream or several at once.
//!
//! Invariant: the digest does not depend on how the bytes are cut into pieces or which streams are updated
//! together. An incomplete block is buffered until the bytes after it arrive. Pure.

use super::kernel::{INITIAL, Md5Block, compress_4, compress_8};
use fearless_simd::Level;
use md5::block_api::compress;
use std::array::from_fn;

/// The MD5 of a stream of bytes.
pub(super) struct Md5State {
    state: [u32; 4],
    bytes: u64,
    /// The incomplete block, from its front.
    rest: Md5Block,
}

impl Md5State {
    /// Returns the state before the first byte.
    pub(super) fn new() -> Self {
        Self { state: INITIAL, bytes: 0, rest: [0; 64] }
    }

    /// Returns the digest of all bytes (RFC 1321, 3.1 and 3.2: a one, zeros, and the length in bits).
    pub(super) fn finish(mut self) -> [u8; 16] {
        let rest = self.rest_bytes();
        let mut end = [0; 128];
        end[..rest].copy_from_slice(&self.rest[..rest]);
        end[rest] = 0x80;
        let length = if rest < 56 { 64 } else { 128 };
        end[length - 8..length].copy_from_slice(&self.bytes.wrapping_mul(8).to_le_bytes());
        compress(&mut self.state, end[..length].as_chunks().0);
        let mut digest = [0; 16];
        digest
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(self.state)
            .for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        digest
    }

    fn rest_bytes(&self) -> usize {
        (self.bytes % 64) as usize
    }

    /// Consumes the bytes at both ends of `bytes` that are not a whole block, and returns the whole blocks
    /// between. The caller compresses the returned blocks next.
    fn take_ends<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [Md5Block] {
        let rest = self.rest_bytes();
        self.bytes += bytes.len() as u64;
        if rest > 0 {
            let head = bytes.split_off(..bytes.len().min(64 - rest)).unwrap_or_default();
            self.rest[rest..rest + head.len()].copy_from_slice(head);
            if rest + head.len() < 64 {
                return &[];
            }
            compress(&mut self.state, &[self.rest]);
        }
        let (blocks, tail) = bytes.as_chunks();
        self.rest[..tail.len()].copy_from_slice(tail);
        blocks
    }
}

/// Adds the next bytes of each stream. Streams are compressed side by side while several have blocks left.
pub(super) fn update_all<'a>(level: Level, streams: impl Iterator<Item = (&'a mut Md5State, &'a [u8])>) {
    let lanes = streams.map(|(running, bytes)| {
        let blocks = running.take_ends(bytes);
        HashLane { state: &mut running.state, blocks }
    });
    let mut lanes: Vec<HashLane> = lanes.collect();
    loop {
        lanes.retain(|lane| !lane.blocks.is_empty());
        match &mut lanes[..] {
            [] => return,
            [lane] => compress(lane.state, std::mem::take(&mut lane.blocks)),
            few if few.len() <= 4 => in_lockstep(few, |states, blocks| compress_4(level, states, blocks)),
            many => in_lockstep(many, |states, blocks| compress_8(level, states, blocks)),
        }
    }
}

/// The blocks to compress of a stream.
struct HashLane<'a> {
    state: &'a mut [u32; 4],
    blocks: &'a [Md5Block],
}

/// Compresses as many blocks of the first `L` lanes as each of them has. If there are fewer lanes, the last
/// one is computed several times at no extra cost.
fn in_lockstep<const L: usize>(
    lanes: &mut [HashLane<'_>],
    compress: impl Fn(&mut [[u32; 4]; L], [&[Md5Block]; L]),
) {
    let used = lanes.len().min(L);
    let lanes = &mut lanes[..used];
    let count = lanes.iter().map(|lane| lane.blocks.len()).min().unwrap_or_default();
    let mut states: [[u32; 4]; L] = from_fn(|at| *lanes[at.min(used - 1)].state);
    let blocks: [&[Md5Block]; L] = from_fn(|at| &lanes[at.min(used - 1)].blocks[..count]);
    compress(&mut states, blocks);
    for (lane, state) in lanes.iter_mut().zip(states) {
        *lane.state = state;
        lane.blocks = &lane.blocks[count..];
    }
}
