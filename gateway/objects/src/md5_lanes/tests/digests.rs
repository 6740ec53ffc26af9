//! Tests digests of streams of all lengths and pieces, alone and side by side, with every instruction set of
//! this processor.

use crate::md5_lanes::state::{Md5State, update_all};
use fearless_simd::{Level, Simd as _};
use md5::{Digest as _, Md5};
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns the best instruction set of this processor and those below it.
fn levels() -> Vec<Level> {
    let best = Level::new();
    let mut levels = vec![best];
    #[cfg(target_arch = "x86_64")]
    {
        levels.extend(best.as_sse2().map(|simd| simd.level()));
        levels.extend(best.as_sse4_2().map(|simd| simd.level()));
        levels.extend(best.as_avx2().map(|simd| simd.level()));
    }
    levels
}

/// Generates a stream: its bytes, and the offsets at which they are cut.
fn stream() -> impl Strategy<Value = (Vec<u8>, Vec<usize>)> {
    let bytes = prop_oneof![vec(any::<u8>(), 0..200), vec(any::<u8>(), 0..5000)];
    (bytes, vec(0..5000usize, 0..6))
}

/// Returns the pieces between the cuts, some of them empty.
fn pieces((bytes, cuts): &(Vec<u8>, Vec<usize>)) -> Vec<&[u8]> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| *cut.min(&bytes.len())).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect()
}

proptest! {
    #[test]
    fn streams_side_by_side_have_the_same_digests_as_alone(streams in vec(stream(), 1..=8)) {
        for level in levels() {
            let mut md5s: Vec<_> = streams.iter().map(|_| Md5State::new()).collect();
            let pieces: Vec<_> = streams.iter().map(pieces).collect();
            for turn in 0..pieces.iter().map(Vec::len).max().unwrap() {
                let lanes = md5s.iter_mut().zip(&pieces);
                update_all(level, lanes.filter_map(|(md5, pieces)| Some((md5, *pieces.get(turn)?))));
            }
            for (md5, (bytes, _)) in md5s.into_iter().zip(&streams) {
                prop_assert_eq!(md5.finish(), <[u8; 16]>::from(Md5::digest(bytes)), "{:?}", level);
            }
        }
    }
}

#[test]
fn every_length_around_the_end_of_a_block_is_padded_right() {
    let bytes: Vec<u8> = (0..=200).collect();
    for length in 0..=200 {
        let mut md5 = Md5State::new();
        update_all(Level::new(), [(&mut md5, &bytes[..length])].into_iter());
        assert_eq!(md5.finish(), <[u8; 16]>::from(Md5::digest(&bytes[..length])), "{length} bytes");
    }
}
