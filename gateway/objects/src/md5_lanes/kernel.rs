//! The compression function of MD5 (RFC 1321, 3.4) over several streams at once, one in each lane.
//!
//! Every step of MD5 depends on the one before, so a single stream leaves most of a processor idle. The
//! function is written once, over vectors of any number of lanes, and compiled for each instruction set.
//! [`Level`] selects the instruction set of this processor. Pure.

use fearless_simd::{Level, Simd, SimdInt, dispatch, u32x4, u32x8};
use std::array::from_fn;

/// The unit of compression.
pub(super) type Md5Block = [u8; 64];

/// The state before the first block.
pub(super) const INITIAL: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// Rotations of the steps of each round, repeated.
const ROTATIONS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The constant of each step of each round: 2^32 times the absolute sine of its number.
const SINES: [[u32; 16]; 4] = [
    [
        0xd76a_a478,
        0xe8c7_b756,
        0x2420_70db,
        0xc1bd_ceee,
        0xf57c_0faf,
        0x4787_c62a,
        0xa830_4613,
        0xfd46_9501,
        0x6980_98d8,
        0x8b44_f7af,
        0xffff_5bb1,
        0x895c_d7be,
        0x6b90_1122,
        0xfd98_7193,
        0xa679_438e,
        0x49b4_0821,
    ],
    [
        0xf61e_2562,
        0xc040_b340,
        0x265e_5a51,
        0xe9b6_c7aa,
        0xd62f_105d,
        0x0244_1453,
        0xd8a1_e681,
        0xe7d3_fbc8,
        0x21e1_cde6,
        0xc337_07d6,
        0xf4d5_0d87,
        0x455a_14ed,
        0xa9e3_e905,
        0xfcef_a3f8,
        0x676f_02d9,
        0x8d2a_4c8a,
    ],
    [
        0xfffa_3942,
        0x8771_f681,
        0x6d9d_6122,
        0xfde5_380c,
        0xa4be_ea44,
        0x4bde_cfa9,
        0xf6bb_4b60,
        0xbebf_bc70,
        0x289b_7ec6,
        0xeaa1_27fa,
        0xd4ef_3085,
        0x0488_1d05,
        0xd9d4_d039,
        0xe6db_99e5,
        0x1fa2_7cf8,
        0xc4ac_5665,
    ],
    [
        0xf429_2244,
        0x432a_ff97,
        0xab94_23a7,
        0xfc93_a039,
        0x655b_59c3,
        0x8f0c_cc92,
        0xffef_f47d,
        0x8584_5dd1,
        0x6fa8_7e4f,
        0xfe2c_e6e0,
        0xa301_4314,
        0x4e08_11a1,
        0xf753_7e82,
        0xbd3a_f235,
        0x2ad7_d2bb,
        0xeb86_d391,
    ],
];

/// Compresses the blocks of four lanes, each into its state. All lanes have the same number of blocks.
pub(super) fn compress_4(level: Level, states: &mut [[u32; 4]; 4], lanes: [&[Md5Block]; 4]) {
    dispatch!(level, simd => compress_with::<_, u32x4<_>, 4>(simd, states, lanes));
}

/// Compresses the blocks of eight lanes, like [`compress_4`].
pub(super) fn compress_8(level: Level, states: &mut [[u32; 4]; 8], lanes: [&[Md5Block]; 8]) {
    dispatch!(level, simd => compress_with::<_, u32x8<_>, 8>(simd, states, lanes));
}

/// Compresses the blocks of `L` lanes. It is compiled for each instruction set because it is inlined into the
/// call. All functions that it calls must be inlined, too.
#[inline(always)]
fn compress_with<S, V, const L: usize>(simd: S, states: &mut [[u32; 4]; L], lanes: [&[Md5Block]; L])
where
    S: Simd,
    V: SimdInt<S, Element = u32, Array = [u32; L]>,
{
    let count = lanes[0].len();
    assert!(lanes.iter().all(|blocks| blocks.len() == count), "all lanes have the same number of blocks");
    let lanes = lanes.map(|blocks| &blocks[..count]);
    let mut state: [V; 4] = from_fn(|word| V::simd_from(simd, from_fn(|lane| states[lane][word])));
    for at in 0..count {
        let blocks = lanes.map(|blocks| blocks[at].as_chunks::<4>().0);
        let word = |word: usize| V::simd_from(simd, blocks.map(|block| u32::from_le_bytes(block[word])));
        compress_block(&mut state, &from_fn(word));
    }
    for (lane, out) in states.iter_mut().enumerate() {
        *out = state.map(|word| word[lane]);
    }
}

#[inline(always)]
fn compress_block<S: Simd, V: SimdInt<S, Element = u32>>(state: &mut [V; 4], block: &[V; 16]) {
    let before = *state;
    round::<0, S, V>(state, |step| block[step], |b, c, d| d ^ (b & (c ^ d)));
    round::<1, S, V>(state, |step| block[(5 * step + 1) % 16], |b, c, d| c ^ (d & (b ^ c)));
    round::<2, S, V>(state, |step| block[(3 * step + 5) % 16], |b, c, d| b ^ c ^ d);
    round::<3, S, V>(state, |step| block[7 * step % 16], |b, c, d| c ^ (b | !d));
    state.iter_mut().zip(before).for_each(|(word, before)| *word += before);
}

/// Runs sixteen steps, each with a word of the block and the mixing function of the round.
#[inline(always)]
fn round<const ROUND: usize, S: Simd, V: SimdInt<S, Element = u32>>(
    state: &mut [V; 4],
    block: impl Fn(usize) -> V,
    mix: impl Fn(V, V, V) -> V,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..16 {
        // `b` is the result of the step before. All terms that do not depend on it are added first.
        let sum = (a + SINES[ROUND][step] + block(step)) + mix(b, c, d);
        let bits = ROTATIONS[ROUND][step % 4];
        let next = ((sum << bits) | (sum >> (32 - bits))) + b;
        (a, d, c, b) = (d, c, b, next);
    }
    *state = [a, b, c, d];
}
