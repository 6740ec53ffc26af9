//! Format of an encrypted segment in an upstream: AES-256-GCM in frames of 64 KiB.
//!
//! A header of 64 bytes is followed by the segment file in frames, each sealed separately and followed by its
//! tag. The last frame holds the rest; an empty file has one empty frame. The nonce is the frame number; each
//! object has its own key, so no key is used twice with the same nonce. The whole header (segment,
//! generation, frame size, plain length), the frame number and the last-frame flag are authenticated with
//! each frame. A frame that is flipped, swapped, repeated, cut off or from another object therefore does not
//! open. Offsets in the segment are preserved: the position of a byte in the object follows from its offset
//! alone, and a range is read by fetching the frames that contain it. Pure functions on bytes;
//! docs/FORMATS.md describes every byte.

use std::io;
use std::ops::Range;

use aes_gcm::aead::AeadInOut as _;
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use bytes::Bytes;
use mlgw_common::checksum::crc32c;
use mlgw_common::ids::{Generation, SegmentId};
use mlgw_common::limits::KIB;

use super::key::ReplicaKey;

/// Plain bytes of a frame, equal to the block in which reads are verified.
pub(super) const FRAME_BYTES: u64 = 64 * KIB;
/// Length of the header.
pub(super) const HEADER_BYTES: u64 = 64;
/// Length of the tag after each frame.
const TAG_BYTES: u64 = 16;
/// Format version that this program writes.
const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"mlgw-enc";
const CRC_AT: usize = HEADER_BYTES as usize - 4;
/// Length of the data authenticated with a frame: the header, the frame number, the last-frame flag.
const AAD_BYTES: usize = HEADER_BYTES as usize + 9;

/// Fault of stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameFault {
    /// The length is wrong.
    #[error("{got} bytes instead of {wanted}")]
    Length {
        /// Expected length in bytes.
        wanted: u64,
        /// Actual length in bytes.
        got: u64,
    },
    /// The header differs from the expected one.
    #[error("the header is damaged or belongs to another object")]
    Header,
    /// The frame does not decrypt.
    #[error("frame {0} cannot be decrypted: it is damaged, moved or encrypted with another key")]
    Frame(u64),
}

/// Frames of one encrypted object: seals and opens them.
pub(super) struct SegmentCipher {
    cipher: Aes256Gcm,
    header: [u8; HEADER_BYTES as usize],
    plain_bytes: u64,
}

impl SegmentCipher {
    /// Creates the frames of the object of a segment whose file has `plain_bytes` bytes.
    pub(super) fn new(
        segment: SegmentId,
        generation: Generation,
        plain_bytes: u64,
        key: &ReplicaKey,
    ) -> Self {
        Self { cipher: key.cipher(), header: header(segment, generation, plain_bytes), plain_bytes }
    }

    /// Returns the length of the object.
    pub(super) fn object_bytes(&self) -> u64 {
        HEADER_BYTES + self.plain_bytes + self.frame_count() * TAG_BYTES
    }

    fn frame_count(&self) -> u64 {
        self.plain_bytes.div_ceil(FRAME_BYTES).max(1)
    }

    /// Returns the range of a frame in the file.
    fn plain_range_of(&self, frame: u64) -> Range<u64> {
        frame * FRAME_BYTES..((frame + 1) * FRAME_BYTES).min(self.plain_bytes)
    }

    /// Returns the range of a frame and its tag in the object.
    fn stored_range_of(&self, frame: u64) -> Range<u64> {
        let plain = self.plain_range_of(frame);
        let before = HEADER_BYTES + frame * TAG_BYTES;
        before + plain.start..before + plain.end + TAG_BYTES
    }

    /// Returns the frames that contain a range of the file, which must not be empty.
    fn frames_of(&self, plain: &Range<u64>) -> Range<u64> {
        assert!(plain.start < plain.end && plain.end <= self.plain_bytes, "outside the file");
        plain.start / FRAME_BYTES..plain.end.div_ceil(FRAME_BYTES)
    }

    /// Returns the range of the object to read for a range of the file. If it contains the first frame, it
    /// contains the header as well.
    pub(super) fn stored_range(&self, plain: &Range<u64>) -> Range<u64> {
        let frames = self.frames_of(plain);
        let start = if frames.start == 0 { 0 } else { self.stored_range_of(frames.start).start };
        start..self.stored_range_of(frames.end - 1).end
    }

    /// Returns a range of the object. `read` fills a buffer with the bytes of the file at an offset.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(super) fn seal(
        &self,
        range: Range<u64>,
        mut read: impl FnMut(&mut [u8], u64) -> io::Result<()>,
    ) -> io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity((range.end - range.start) as usize);
        append_overlap(&mut out, &self.header, 0, &range);
        let first = range.start.saturating_sub(HEADER_BYTES) / (FRAME_BYTES + TAG_BYTES);
        let mut frame = vec![0; (FRAME_BYTES + TAG_BYTES) as usize];
        for number in first..self.frame_count() {
            let (plain, stored) = (self.plain_range_of(number), self.stored_range_of(number));
            if stored.start >= range.end {
                break;
            }
            frame.resize((stored.end - stored.start) as usize, 0);
            let (bytes, tag) = frame.split_at_mut((plain.end - plain.start) as usize);
            read(bytes, plain.start)?;
            let sealed = self.cipher.encrypt_inout_detached(
                &nonce(number),
                &self.associated_data(number),
                (&mut *bytes).into(),
            );
            // Encryption fails only for a frame of 64 GiB or more.
            tag.copy_from_slice(&sealed.map_err(|_| io::ErrorKind::InvalidInput)?);
            append_overlap(&mut out, &frame, stored.start, &range);
        }
        assert!(out.len() as u64 == range.end - range.start, "a sealed range has the requested length");
        Ok(out)
    }

    /// Decrypts a range of the file from the bytes of its [`Self::stored_range`].
    ///
    /// # Errors
    /// [`FrameFault`] if the bytes are not those that were sealed there.
    pub(super) fn open(&self, plain: &Range<u64>, stored: &[u8]) -> Result<Bytes, FrameFault> {
        let (frames, range) = (self.frames_of(plain), self.stored_range(plain));
        let (wanted, got) = (range.end - range.start, stored.len() as u64);
        if wanted != got {
            return Err(FrameFault::Length { wanted, got });
        }
        if frames.start == 0 && stored[..HEADER_BYTES as usize] != self.header {
            return Err(FrameFault::Header);
        }
        let first = self.plain_range_of(frames.start).start;
        let mut out = Vec::with_capacity((frames.end - frames.start) as usize * FRAME_BYTES as usize);
        for number in frames {
            let at = self.stored_range_of(number);
            let frame = &stored[(at.start - range.start) as usize..(at.end - range.start) as usize];
            self.open_frame(number, frame, &mut out)?;
        }
        Ok(Bytes::from(out).slice((plain.start - first) as usize..(plain.end - first) as usize))
    }

    fn open_frame(&self, number: u64, frame: &[u8], out: &mut Vec<u8>) -> Result<(), FrameFault> {
        let fault = FrameFault::Frame(number);
        let (bytes, tag) = frame.split_last_chunk::<{ TAG_BYTES as usize }>().ok_or(fault)?;
        let begin = out.len();
        out.extend_from_slice(bytes);
        let (nonce, tag) = (nonce(number), Tag::from(*tag));
        let opened = &mut out[begin..];
        let done =
            self.cipher.decrypt_inout_detached(&nonce, &self.associated_data(number), opened.into(), &tag);
        done.map_err(|_| fault)
    }

    /// Returns the data authenticated with a frame.
    fn associated_data(&self, frame: u64) -> [u8; AAD_BYTES] {
        let mut bound = [0; AAD_BYTES];
        bound[..HEADER_BYTES as usize].copy_from_slice(&self.header);
        bound[HEADER_BYTES as usize..AAD_BYTES - 1].copy_from_slice(&frame.to_le_bytes());
        bound[AAD_BYTES - 1] = u8::from(frame + 1 == self.frame_count());
        bound
    }
}

fn header(segment: SegmentId, generation: Generation, plain_bytes: u64) -> [u8; HEADER_BYTES as usize] {
    let mut out = [0; HEADER_BYTES as usize];
    out[..8].copy_from_slice(&MAGIC);
    out[8..10].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&generation.0.to_le_bytes());
    out[16..24].copy_from_slice(&segment.0.to_le_bytes());
    out[24..28].copy_from_slice(&(FRAME_BYTES as u32).to_le_bytes());
    out[32..40].copy_from_slice(&plain_bytes.to_le_bytes());
    let crc = crc32c(&out[..CRC_AT]);
    out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    out
}

fn nonce(frame: u64) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&frame.to_be_bytes());
    nonce.into()
}

/// Appends the part of `bytes`, which begin at offset `at`, that lies in `range`.
fn append_overlap(out: &mut Vec<u8>, bytes: &[u8], at: u64, range: &Range<u64>) {
    let end = at + bytes.len() as u64;
    let (from, to) = (range.start.max(at), range.end.min(end));
    if from < to {
        out.extend_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zeroize::Zeroizing;

    const SEGMENT: SegmentId = SegmentId(0x0123_4567_89AB_CDEF);

    fn key(of: u8) -> ReplicaKey {
        ReplicaKey::new(Zeroizing::new([of; 32]))
    }

    fn frames(plain_bytes: u64) -> SegmentCipher {
        SegmentCipher::new(SEGMENT, Generation(3), plain_bytes, &key(1))
    }

    fn content(bytes: u64) -> Vec<u8> {
        (0..bytes).map(|n| (n % 251) as u8 ^ (n >> 16) as u8).collect()
    }

    fn sealed(frames: &SegmentCipher, plain: &[u8], range: Range<u64>) -> Vec<u8> {
        let read = |out: &mut [u8], at: u64| {
            out.copy_from_slice(&plain[at as usize..at as usize + out.len()]);
            Ok(())
        };
        frames.seal(range, read).expect("sealed")
    }

    fn object(frames: &SegmentCipher, plain: &[u8]) -> Vec<u8> {
        sealed(frames, plain, 0..frames.object_bytes())
    }

    fn opened(frames: &SegmentCipher, object: &[u8], plain: Range<u64>) -> Result<Bytes, FrameFault> {
        let stored = frames.stored_range(&plain);
        let end = (stored.end as usize).min(object.len());
        frames.open(&plain, &object[(stored.start as usize).min(end)..end])
    }

    const LENGTHS: [u64; 7] =
        [1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 2 * FRAME_BYTES, 3 * FRAME_BYTES + 77, 100];

    #[test]
    fn the_bytes_of_version_1_stay_as_they_are() {
        let frames = frames(5);
        let object = object(&frames, b"plain");
        assert_eq!(
            object.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
            "6d6c67772d656e630100000003000000efcdab89674523010000010000000000\
             0500000000000000000000000000000000000000000000000000000033\
             91db3acf59f9b51b7aa358cd3fb754f4cb7d014af0598bb4"
        );
    }

    #[test]
    fn an_empty_file_has_one_frame_and_object_lengths_match() {
        assert_eq!(object(&frames(0), b"").len() as u64, HEADER_BYTES + TAG_BYTES);
        for bytes in LENGTHS {
            let frames = frames(bytes);
            assert_eq!(object(&frames, &content(bytes)).len() as u64, frames.object_bytes(), "{bytes}");
        }
    }

    #[test]
    fn a_swapped_cut_repeated_or_foreign_frame_is_rejected() {
        let bytes = 3 * FRAME_BYTES;
        let (frames, plain) = (frames(bytes), content(bytes));
        let good = object(&frames, &plain);
        let whole = |object: &[u8]| opened(&frames, object, 0..bytes);
        assert_eq!(whole(&good).expect("whole"), plain);
        let at =
            |frame| frames.stored_range_of(frame).start as usize..frames.stored_range_of(frame).end as usize;
        let mut swapped = good.clone();
        swapped[at(0)].copy_from_slice(&good[at(1)]);
        swapped[at(1)].copy_from_slice(&good[at(0)]);
        assert_eq!(whole(&swapped), Err(FrameFault::Frame(0)));
        let mut repeated = good.clone();
        repeated[at(2)].copy_from_slice(&good[at(1)]);
        assert_eq!(whole(&repeated), Err(FrameFault::Frame(2)));
        assert!(matches!(whole(&good[..at(2).start]), Err(FrameFault::Length { .. })));
        // The object is cut at the end of a frame and its length is stated accordingly: the last frame was
        // not sealed as the last one.
        let shorter = SegmentCipher::new(SEGMENT, Generation(3), 2 * FRAME_BYTES, &key(1));
        assert_eq!(opened(&shorter, &good, FRAME_BYTES..2 * FRAME_BYTES), Err(FrameFault::Frame(1)));
        for (segment, generation, key_of) in [(1, 3, 1), (SEGMENT.0, 4, 1), (SEGMENT.0, 3, 2)] {
            let other = SegmentCipher::new(SegmentId(segment), Generation(generation), bytes, &key(key_of));
            assert_eq!(
                opened(&other, &good, FRAME_BYTES..FRAME_BYTES + 1),
                Err(FrameFault::Frame(1)),
                "{segment} {generation} {key_of}"
            );
        }
    }

    proptest! {
        #[test]
        fn every_range_of_the_file_and_every_part_of_the_object_is_right(
            bytes in prop::sample::select(&LENGTHS[..]),
            places: [u64; 4],
        ) {
            let (frames, plain) = (frames(bytes), content(bytes));
            let good = object(&frames, &plain);
            let [one, other, third, fourth] = places;
            let (from, to) = (one % bytes, other % bytes);
            let range = from.min(to)..from.max(to) + 1;
            let read = opened(&frames, &good, range.clone());
            prop_assert_eq!(read.expect("it decrypts"), &plain[range.start as usize..range.end as usize]);
            let (from, to) = (third % frames.object_bytes(), fourth % frames.object_bytes());
            let part = from.min(to)..from.max(to) + 1;
            prop_assert_eq!(
                sealed(&frames, &plain, part.clone()), &good[part.start as usize..part.end as usize]
            );
        }

        #[test]
        fn no_flipped_bit_goes_unseen(bytes in prop::sample::select(&LENGTHS[..]), at: usize, bit in 0u8..8) {
            let (frames, plain) = (frames(bytes), content(bytes));
            let mut bad = object(&frames, &plain);
            let at = at % bad.len();
            bad[at] ^= 1 << bit;
            prop_assert!(opened(&frames, &bad, 0..bytes).is_err(), "{at}");
        }

        #[test]
        fn every_truncation_is_detected(bytes in prop::sample::select(&LENGTHS[..]), at: usize) {
            let (frames, plain) = (frames(bytes), content(bytes));
            let good = object(&frames, &plain);
            prop_assert!(opened(&frames, &good[..at % good.len()], 0..bytes).is_err());
        }
    }
}
