//! Torn ends of synthetic MANIFESTs, and of RocksDB's own.

use super::{options, state::StateDb};
use crate::view::{RowChanges, RowReader};
use mlgw_common::checksum::crc32c;
use mlgw_formats::manifest::{SECTOR_BYTES, torn_record_offset};
use mlgw_formats::wal_frames::{BLOCK_BYTES, FIRST, FULL, HEAD_BYTES, LAST, MIDDLE, mask_crc};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

/// Appends a record as RocksDB does.
fn append(file: &mut Vec<u8>, mut record: &[u8]) {
    let mut first = true;
    loop {
        let left = BLOCK_BYTES - file.len() % BLOCK_BYTES;
        if left < HEAD_BYTES {
            file.resize(file.len() + left, 0);
            continue;
        }
        let (now, later) = record.split_at(record.len().min(left - HEAD_BYTES));
        let kind = match (first, later.is_empty()) {
            (true, true) => FULL,
            (true, false) => FIRST,
            (false, false) => MIDDLE,
            (false, true) => LAST,
        };
        let covered = [&[kind], now].concat();
        file.extend(mask_crc(crc32c(&covered)).to_le_bytes());
        file.extend(u16::try_from(now.len()).expect("less than a block").to_le_bytes());
        file.extend(covered);
        if later.is_empty() {
            return;
        }
        (record, first) = (later, false);
    }
}

/// Offset of the next record: a remainder of a block that is too small for a header is padding.
fn next_record(file: &[u8]) -> usize {
    let left = BLOCK_BYTES - file.len() % BLOCK_BYTES;
    file.len() + if left < HEAD_BYTES { left } else { 0 }
}

#[test]
fn a_lost_append_after_block_padding_is_cut_after_the_padding() {
    let mut file = Vec::new();
    append(&mut file, &vec![7; BLOCK_BYTES - HEAD_BYTES - 6]);
    let end = file.len();
    append(&mut file, b"lost");
    file[end..].fill(0);
    append(&mut file, b"not lost");
    assert_eq!((BLOCK_BYTES - end, torn_record_offset(&file)), (6, Some(BLOCK_BYTES)));
}

/// A file whose second record's frame begins `before` bytes before the end of a sector, with genuine zeros
/// there.
fn with_zeros_ahead_of_a_sector(before: usize) -> (Vec<u8>, usize) {
    let mut file = Vec::new();
    append(&mut file, &vec![7; SECTOR_BYTES - HEAD_BYTES - before]);
    let begin = file.len();
    for salt in 0_u32.. {
        file.truncate(begin);
        append(&mut file, &[&salt.to_le_bytes()[..], &[9; 700]].concat());
        if file[begin..begin + before].iter().all(|byte| *byte == 0) {
            return (file, begin);
        }
    }
    unreachable!("one of 65,536 checksums begins so")
}

#[test]
fn zeros_at_the_start_of_a_checksum_do_not_turn_corruption_into_a_torn_end() {
    for before in 1..=2 {
        let (file, begin) = with_zeros_ahead_of_a_sector(before);
        assert_eq!(torn_record_offset(&file), None);
        for at in (begin + before)..file.len() {
            let mut rotten = file.clone();
            rotten[at] ^= 1;
            assert_eq!(torn_record_offset(&rotten), None, "{before} bytes, rot at {at} of {}", file.len());
        }
    }
}

#[test]
fn a_lost_start_of_a_checksum_is_a_torn_end() {
    for before in 1..=3 {
        let mut file = Vec::new();
        append(&mut file, &vec![7; SECTOR_BYTES - HEAD_BYTES - before]);
        let begin = file.len();
        append(&mut file, &[9; 700]);
        file[begin..begin + before].fill(0);
        assert_eq!(torn_record_offset(&file), Some(begin), "{before} bytes");
    }
}

#[test]
fn a_lost_append_is_a_torn_end_wherever_it_begins() {
    for before in 1..20 {
        let mut file = Vec::new();
        append(&mut file, &vec![7; SECTOR_BYTES - HEAD_BYTES - before]);
        let begin = file.len();
        append(&mut file, &[9; 70]);
        file[begin..].fill(0);
        append(&mut file, b"not lost");
        assert_eq!(torn_record_offset(&file), Some(begin), "{before} bytes");
    }
}

#[test]
fn zeros_at_the_end_of_a_record_do_not_turn_corruption_into_a_torn_end() {
    for beyond in 1..=2 {
        let mut file = Vec::new();
        let mut record = vec![7; SECTOR_BYTES - HEAD_BYTES];
        record.resize(record.len() + beyond, 0);
        append(&mut file, &record);
        let mut rotten = file.clone();
        rotten[100] ^= 1;
        assert_eq!(torn_record_offset(&rotten), None, "{beyond} bytes");
        // Nonzero bytes that were lost there are detected.
        record.truncate(record.len() - beyond);
        record.resize(record.len() + beyond, 5);
        file.clear();
        append(&mut file, &record);
        let end = file.len();
        file[end - beyond..].fill(0);
        assert_eq!(torn_record_offset(&file), Some(0), "{beyond} bytes");
    }
}

/// `file` after a power cut during which all bytes beyond `synced` were unsynced: sectors for which `lost`
/// returns true keep their old contents, which are zeros.
fn tear(file: &[u8], synced: usize, mut lost: impl FnMut() -> bool) -> Vec<u8> {
    let mut torn = file.to_vec();
    let mut at = synced;
    while at < torn.len() {
        let end = torn.len().min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
        if lost() {
            torn[at..end].fill(0);
        }
        at = end;
    }
    torn
}

fn records(sizes: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let record = prop_oneof![
        4 => prop::collection::vec(1..=u8::MAX, 1..2000),
        1 => (sizes, 1..=u8::MAX).prop_map(|(size, byte)| vec![byte; size]),
    ];
    prop::collection::vec(record, 1..6)
}

proptest! {
    #[test]
    fn a_torn_end_is_cut_and_synced_records_stay(
        synced in records(20_000..100_000),
        unsynced in records(20_000..100_000),
        lost in prop::collection::vec(prop::bool::weighted(0.3), 1..64),
    ) {
        let mut file = Vec::new();
        synced.iter().for_each(|record| append(&mut file, record));
        let durable = file.len();
        unsynced.iter().for_each(|record| append(&mut file, record));
        prop_assert_eq!(torn_record_offset(&file), None);

        let mut fates = lost.iter().copied().cycle();
        let torn = tear(&file, durable, || fates.next().unwrap_or_default());
        let keep = torn_record_offset(&torn).unwrap_or(torn.len());
        prop_assert!(keep >= durable, "{} of {} synced bytes kept", keep, durable);
        prop_assert_eq!(&torn[..keep], &file[..keep], "only what was written is left");
        prop_assert_eq!(torn_record_offset(&torn[..keep]), None);
    }

    #[test]
    fn a_lost_append_ends_the_file_although_later_ones_were_written(
        synced in records(1000..40_000),
        unsynced in records(1000..40_000),
        lost in prop::collection::vec(prop::bool::weighted(0.5), 5),
    ) {
        let mut file = Vec::new();
        synced.iter().for_each(|record| append(&mut file, record));
        let mut expected = None;
        for (record, lost) in unsynced.iter().zip(lost) {
            let (end, begin) = (file.len(), next_record(&file));
            append(&mut file, record);
            if lost {
                file[end..].fill(0);
                expected.get_or_insert(begin);
            }
        }
        prop_assert_eq!(torn_record_offset(&file), expected);
    }

    #[test]
    fn corruption_is_not_a_torn_end(
        records in records(1000..40_000), at in any::<prop::sample::Index>(), bit in 0..8_u8,
    ) {
        let mut file = Vec::new();
        records.iter().for_each(|record| append(&mut file, record));
        let at = at.index(file.len());
        file[at] ^= 1_u8 << bit;
        // Corruption may make a sector with a single nonzero byte look like one that was never written.
        prop_assume!(file[at] != 0);
        prop_assert_eq!(torn_record_offset(&file), None);
    }

    #[test]
    fn arbitrary_bytes_are_parsed(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(torn_record_offset(&bytes).is_none_or(|keep| keep < bytes.len()));
    }
}

fn open(dir: &Path) -> Result<StateDb, crate::store_error::StoreError> {
    StateDb::open(dir, &options::cache(1 << 20), 1 << 20)
}

/// Key that makes RocksDB write a long record, which contains the first and the last key of a table.
fn key(flush: usize) -> Vec<u8> {
    let mut key = vec![b'k'; if flush.is_multiple_of(3) { 40_000 } else { 700 }];
    key.extend((flush as u64).to_be_bytes());
    key
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

fn manifest(dir: &Path) -> std::path::PathBuf {
    dir.join(fs::read_to_string(dir.join("CURRENT")).expect("read").trim_end())
}

#[test]
fn a_store_with_a_torn_manifest_opens_with_all_synced_rows() {
    const FLUSHES: usize = 7;
    let home = tempfile::tempdir().expect("a directory");
    let (dir, at) = (home.path().join("store"), |name: String| home.path().join(name));
    let store = open(&dir).expect("opens");
    let mut cut = 0;
    let mut synced = fs::metadata(manifest(&dir)).expect("there").len() as usize;
    for flush in 0..FLUSHES {
        store.write(&RowChanges::from([(key(flush), Some(b"value".to_vec()))])).expect("written");
        store.flush().expect("flushed");
        let whole = fs::read(manifest(&dir)).expect("read");
        for seed in 0..12_u64 {
            let copied = at(format!("{flush}-{seed}"));
            copy(&dir, &copied);
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let torn = tear(&whole, synced, || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 62 == 0
            });
            cut += usize::from(torn_record_offset(&torn).is_some());
            fs::write(manifest(&copied), torn).expect("written");
            let recovered =
                open(&copied).unwrap_or_else(|error| panic!("flush {flush}, seed {seed}: {error}"));
            for earlier in 0..flush {
                assert!(recovered.get(&key(earlier)).expect("read").is_some(), "flush {flush}, seed {seed}");
            }
        }
        synced = whole.len();
    }
    assert!(cut > FLUSHES, "only {cut} were torn");
}

#[test]
fn a_store_with_a_corrupt_manifest_is_refused_and_unchanged() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path()).expect("opens");
    store.write(&RowChanges::from([(key(1), Some(b"value".to_vec()))])).expect("written");
    store.flush().expect("flushed");
    drop(store);
    let path = manifest(dir.path());
    let mut bytes = fs::read(&path).expect("read");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, &bytes).expect("written");
    let error = open(dir.path()).err().expect("refused");
    assert!(error.to_string().contains("checksum mismatch"), "{error}");
    assert_eq!(fs::read(&path).expect("read"), bytes);
}
