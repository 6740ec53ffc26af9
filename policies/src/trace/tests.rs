//! Round trips with pieces of any length; a torn trace is a prefix; a damaged trace is an error and never a
//! different event.

use super::{BLOCK_BYTES_MAX, KEY_BYTES_MAX, TraceEnd, TraceError, TraceReader, TraceWriter};
use crate::access::{Access, Caller, Op};
use proptest::prelude::*;
use std::ops::Range;

/// An access that owns its key.
#[derive(Clone, Debug, PartialEq)]
struct OwnedAccess {
    at_us: u64,
    caller: Caller,
    bucket: u64,
    key: String,
    op: Op,
    size: u64,
    range: Range<u64>,
}

impl OwnedAccess {
    fn of(access: &Access<'_>) -> Self {
        Self {
            at_us: access.at_us,
            caller: access.caller,
            bucket: access.bucket,
            key: access.key.to_owned(),
            op: access.op,
            size: access.size,
            range: access.range.clone(),
        }
    }

    fn access(&self) -> Access<'_> {
        Access {
            at_us: self.at_us,
            caller: self.caller,
            bucket: self.bucket,
            key: &self.key,
            op: self.op,
            size: self.size,
            range: self.range.clone(),
        }
    }
}

fn written(events: &[OwnedAccess], keys_max: usize, flush_every: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = TraceWriter::with_keys_max(7, keys_max, &mut out);
    for (at, event) in events.iter().enumerate() {
        assert!(writer.write(&event.access(), &mut out));
        if at % flush_every == flush_every - 1 {
            writer.flush(&mut out);
        }
    }
    writer.flush(&mut out);
    out
}

fn read(bytes: &[u8], piece: usize) -> (Vec<OwnedAccess>, Result<TraceEnd, TraceError>) {
    let mut reader = TraceReader::new();
    let mut events = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        reader.push(piece);
        loop {
            match reader.read() {
                Ok(Some(access)) => events.push(OwnedAccess::of(&access)),
                Ok(None) => break,
                Err(error) => return (events, Err(error)),
            }
        }
    }
    (events, Ok(reader.finish()))
}

prop_compose! {
    fn event()(
        after_us in prop_oneof![0..10_000_u64, Just(0), 0..1_u64 << 40],
        caller in (0..5_u64, 0..3_u64),
        bucket in 0..3_u64,
        key in prop_oneof![
            "[ab]{1,2}/[0-9]{1,2}", "\\PC{0,40}", "dätä/é{0,5}", Just("k".repeat(KEY_BYTES_MAX)),
        ],
        op in prop_oneof![8 => Just(Op::Read), 1 => Just(Op::Write), 1 => Just(Op::Delete)],
        size in prop_oneof![Just(100_u64), Just(1 << 30), any::<u64>()],
        part in prop::option::weighted(0.6, (0..12_u64, prop_oneof![Just(10_u64), 0..100_u64, any::<u64>()])),
    ) -> OwnedAccess {
        let range = part.map_or(0..size, |(start, bytes)| start * 10..(start * 10).saturating_add(bytes));
        let caller = Caller { id: caller.0, family: caller.1 };
        OwnedAccess { at_us: after_us, caller, bucket, key, op, size, range }
    }
}

fn events() -> impl Strategy<Value = Vec<OwnedAccess>> {
    prop::collection::vec(event(), 0..120).prop_map(|mut events| {
        let mut now_us = 0;
        for event in &mut events {
            now_us += event.at_us;
            event.at_us = now_us;
        }
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn written_events_are_read_back(
        events in events(), keys_max in 1..40_usize, flush_every in 1..60_usize, piece in 1..3000_usize,
    ) {
        let bytes = written(&events, keys_max, flush_every);
        let (found, end) = read(&bytes, piece);
        prop_assert_eq!(&found, &events);
        let blocks = events.len().div_ceil(flush_every) as u32;
        let end = end.unwrap();
        prop_assert!(end.events == events.len() as u64 && end.torn_bytes == 0 && end.blocks >= blocks);
    }

    /// A trace that is cut anywhere yields a prefix of its events, without the loss of a whole block.
    #[test]
    fn a_torn_trace_is_a_prefix(
        events in events(), flush_every in 1..30_usize, cut in any::<prop::sample::Index>()
    ) {
        let bytes = written(&events, 1 << 20, flush_every);
        let cut = cut.index(bytes.len() + 1);
        let (found, end) = read(&bytes[..cut], 1000);
        prop_assert_eq!(&found[..], &events[..found.len()]);
        let end = end.unwrap();
        prop_assert!(found.len() % flush_every == 0 || found.len() == events.len() || found.len() > 30);
        prop_assert!(cut == bytes.len() || found.is_empty() || end.torn_bytes <= BLOCK_BYTES_MAX as u64);
    }

    /// After a bit flip, the events before the error are those that were written.
    #[test]
    fn a_damaged_trace_gives_no_other_events(
        events in events(), flush_every in 1..30_usize, bit in any::<prop::sample::Index>(),
    ) {
        let mut bytes = written(&events, 1 << 20, flush_every);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (found, end) = read(&bytes, usize::MAX);
        prop_assert_eq!(&found[..], &events[..found.len()]);
        // A length field that became greater than the rest of the file looks like a torn end.
        prop_assert!(end.is_err() || end.unwrap().torn_bytes > 0);
    }

    /// Arbitrary content of a block with a valid checksum is processed in bounded time and without a panic.
    #[test]
    fn nonsense_is_refused(payload in prop::collection::vec(any::<u8>(), 1..300), count in 1..400_u32) {
        let mut bytes = Vec::new();
        let _ = TraceWriter::new(0, &mut bytes);
        let begin = bytes.len();
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(5_u64.to_le_bytes());
        let covered = [&bytes[begin..], &payload].concat();
        bytes.extend(mlgw_common::checksum::crc32c(&covered).to_le_bytes());
        bytes.extend(payload);
        let (found, end) = read(&bytes, 100);
        prop_assert!(found.len() <= 300 && (end.is_err() || found.len() == count as usize));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read(&bytes, 7).0.is_empty());
    }
}

#[test]
fn errors_name_the_damaged_block() {
    let event = |at_us| OwnedAccess {
        at_us,
        caller: Caller { id: 1, family: 2 },
        bucket: 3,
        key: format!("k{at_us}"),
        op: Op::Read,
        size: 10,
        range: 0..10,
    };
    let events: Vec<_> = (0..100).map(event).collect();
    let mut bytes = written(&events, 1000, 10);
    let target = bytes.len() / 2;
    bytes[target] ^= 1;
    let (found, end) = read(&bytes, 4096);
    let Err(TraceError::Damaged { block, offset, .. }) = end else { panic!("{end:?}") };
    assert_eq!(found.len(), 10 * block as usize);
    assert!(offset <= target as u64 && target < bytes.len() && (3..7).contains(&block));
}

#[test]
fn other_versions_and_other_files_are_distinguished() {
    let mut bytes = Vec::new();
    let _ = TraceWriter::new(0, &mut bytes);
    bytes[8] = 2;
    let crc = mlgw_common::checksum::crc32c(&bytes[..20]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(read(&bytes, 100).1, Err(TraceError::UnknownVersion(2)));
    assert_eq!(read(b"{\"json\": 1}", 100).1, Err(TraceError::NoTrace));
    assert_eq!(read(b"mlgw", 100).1, Ok(TraceEnd { events: 0, blocks: 0, torn_bytes: 4 }));
}

/// Uses more callers, buckets and keys than the dictionary can hold.
#[test]
fn the_dictionary_is_reset_when_it_is_full() {
    let event = |at_us: u64| OwnedAccess {
        at_us,
        caller: Caller { id: at_us, family: 2 },
        bucket: at_us / 2,
        key: format!("{at_us}"),
        op: Op::Read,
        size: 10,
        range: 0..10,
    };
    let events: Vec<_> = (0..140_000).map(event).collect();
    let (found, end) = read(&written(&events, 1 << 20, usize::MAX), 1 << 20);
    assert_eq!(end.map(|end| end.events), Ok(140_000));
    assert!(found == events);
}

/// The encoding of version 1 must not change.
#[test]
fn the_format_of_version_1_is_stable() {
    let caller = Caller { id: 1, family: 2 };
    let event = |at_us, key: &str, op, range| OwnedAccess {
        at_us,
        caller,
        bucket: 9,
        key: key.to_owned(),
        op,
        size: 300,
        range,
    };
    let events = [
        event(1000, "a/1", Op::Read, 0..300),
        event(1001, "a/2", Op::Read, 100..200),
        event(1003, "a/2", Op::Read, 200..300),
        event(1003, "a/1", Op::Delete, 0..300),
    ];
    let bytes = written(&events, 100, 100);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = [
        "6d6c677774726163",
        "0100",
        "0000",
        "0700000000000000",
        "HEADERCRC",
        "32000000",
        "00000000",
        "04000000",
        "e803000000000000",
        "BLOCKCRC",
        // Read of caller 0, key 0, size 300.
        "40",
        "00",
        "00",
        "0100000000000000",
        "0200000000000000",
        "00",
        "0900000000000000",
        "00",
        "03",
        "612f31",
        "ac02",
        // Read of 100 bytes from offset 100, key 1, which shares a prefix with key 0.
        "78",
        "01",
        "00",
        "02",
        "01",
        "32",
        "c801",
        "64",
        // Read of the next 100 bytes of the same key.
        "34",
        "02",
        "00",
        // Deletion of key 0.
        "32",
        "00",
        "01",
    ];
    let header = format!("{:08x}", mlgw_common::checksum::crc32c(&bytes[..20]).swap_bytes());
    let covered = [&bytes[24..44], &bytes[48..]].concat();
    let block = format!("{:08x}", mlgw_common::checksum::crc32c(&covered).swap_bytes());
    assert_eq!(hex, expected.concat().replace("HEADERCRC", &header).replace("BLOCKCRC", &block));
    assert_eq!(read(&bytes, 9).0, events);
}
