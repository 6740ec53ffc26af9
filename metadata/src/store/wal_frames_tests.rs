//! Frames of write-ahead logs that RocksDB has written.

use mlgw_formats::wal_frames::{WalRecords, read_records};
use rocksdb::{DB, Options};

/// Write-ahead log of a store with these values, one write each.
fn write_ahead_log(values: &[Vec<u8>]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    options.create_if_missing(true);
    let db = DB::open(&options, dir.path()).unwrap();
    for value in values {
        db.put(b"k", value).unwrap();
    }
    drop(db);
    let mut logs: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.path()).collect();
    logs.retain(|path| path.extension().is_some_and(|e| e == "log"));
    assert_eq!(logs.len(), 1);
    std::fs::read(&logs[0]).unwrap()
}

#[test]
fn records_of_a_real_log_are_read_whatever_their_length() {
    let values: Vec<Vec<u8>> = [0, 1, 100, 32_000, 40_000, 200_000].iter().map(|&n| vec![7u8; n]).collect();
    let bytes = write_ahead_log(&values);
    let WalRecords { records, first_defect: bad_at } = read_records(&bytes);
    assert_eq!((records.len(), bad_at), (values.len(), None));
    for ((_, record), value) in records.iter().zip(&values) {
        assert!(record.ends_with(value));
    }
}

#[test]
fn a_flipped_bit_is_detected_and_later_records_are_found() {
    let values: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 3000]).collect();
    let bytes = write_ahead_log(&values);
    let whole = read_records(&bytes);
    for at in (0..bytes.len()).step_by(977) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        let found = read_records(&damaged);
        assert!(found.first_defect.is_some_and(|bad| bad <= at), "byte {at}");
        assert!(found.records.len() + 2 >= whole.records.len(), "byte {at}");
        assert!(found.records.iter().all(|record| whole.records.contains(record)), "byte {at}");
    }
    let cut = read_records(&bytes[..bytes.len() - 1]);
    assert_eq!(cut.records.len(), values.len() - 1);
    assert!(cut.first_defect.is_some() && cut.first_record_after_defect().is_none());
}
