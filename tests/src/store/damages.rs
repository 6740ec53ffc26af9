//! Damages, each with the finding that a check reports and a flag for those that repair fixes.

use super::directories::VICTIM;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The directory that is damaged: that of a stopped server, or that of a killed one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DamagedBase {
    Stopped,
    Killed,
}

/// A damage: its name, the directory it is applied to, the kind that a check reports, true if repair fixes
/// it, and the function that applies it to the directory (its second argument is an older copy of the
/// directory).
pub(super) type Damage = (&'static str, DamagedBase, &'static str, bool, fn(&Path, &Path));

use DamagedBase::{Killed, Stopped};

pub(super) const DAMAGES: &[Damage] = &[
    ("a bit of a segment's header", Stopped, "segment-header", true, |d, _| flip(&victim(d).0, 41)),
    ("a bit of a record's header", Stopped, "record-head", false, |d, _| flip_victim(d, 30)),
    ("a bit of a record's key", Stopped, "record-head", false, |d, _| flip_victim(d, 61)),
    ("a bit of a record's table", Stopped, "record-head", false, |d, _| {
        flip_victim(d, 60 + VICTIM.len() + 1)
    }),
    ("a bit of a block", Stopped, "block", false, |d, _| flip_victim(d, 60 + VICTIM.len() + 2000)),
    ("a segment cut short", Stopped, "segment-short", false, |d, _| {
        let (path, at) = victim(d);
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(at as u64 + 100).unwrap();
    }),
    ("a segment that was not sealed yet cut short", Killed, "record-head", false, |d, _| {
        let path = newest_segments(d).remove(0);
        let length = fs::metadata(&path).unwrap().len();
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length / 2).unwrap();
    }),
    ("a segment missing", Stopped, "segment-missing", false, |d, _| fs::remove_file(victim(d).0).unwrap()),
    ("two segments under each other's name", Stopped, "segment-header", true, |d, _| {
        let segments = newest_segments(d);
        swap(&segments[0], &segments[1]);
    }),
    ("an older copy of a segment", Stopped, "segment-short", false, |d, _| {
        let (path, at) = victim(d);
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..at]).unwrap();
    }),
    ("a bit of a table", Stopped, "table", true, |d, _| flip(&files(&state(d), ".sst")[0], 50)),
    ("a table cut short", Stopped, "table", true, |d, _| {
        let path = files(&state(d), ".sst").remove(0);
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(200).unwrap();
    }),
    ("a table missing", Stopped, "table", true, |d, _| {
        fs::remove_file(&files(&state(d), ".sst")[0]).unwrap()
    }),
    ("a bit of the MANIFEST", Stopped, "manifest", true, |d, _| flip(&files(&state(d), "MANIFEST")[0], 30)),
    ("a MANIFEST missing", Stopped, "manifest", true, |d, _| {
        fs::remove_file(&files(&state(d), "MANIFEST")[0]).unwrap();
    }),
    ("a bit of CURRENT", Stopped, "current", true, |d, _| flip(&state(d).join("CURRENT"), 2)),
    ("the log's CURRENT missing", Stopped, "current", true, |d, _| {
        fs::remove_file(d.join("catalogue/log/CURRENT")).unwrap();
    }),
    ("the log's MANIFEST cut short", Stopped, "stale-log", true, |d, _| {
        let path = files(&d.join("catalogue/log"), "MANIFEST").remove(0);
        let kept = records_with_tables(&path)[1];
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(kept as u64).unwrap();
    }),
    ("the state missing", Stopped, "store", true, |d, _| fs::remove_dir_all(state(d)).unwrap()),
    ("a bit of the log", Killed, "log", false, |d, _| {
        // Within a command: a record without a command could be left out.
        let path = files(&d.join("catalogue/log"), ".log").remove(0);
        let bytes = fs::read(&path).unwrap();
        flip(&path, bytes.windows(4).position(|window| window == b"kk-1").unwrap());
    }),
    ("an older log", Killed, "stale-log", false, |d, old| replace(d, old, "catalogue/log")),
    ("the log missing", Killed, "log", false, |d, _| fs::remove_dir_all(d.join("catalogue/log")).unwrap()),
    ("an older catalogue", Stopped, "lost-tail", false, |d, old| replace(d, old, "catalogue")),
    ("a bit of node.json", Stopped, "node-description", true, |d, _| flip(&d.join("node.json"), 1)),
    ("node.json missing", Stopped, "node-description", true, |d, _| {
        fs::remove_file(d.join("node.json")).unwrap();
    }),
    ("another secrets.key", Stopped, "sealed-secret", false, |d, _| {
        let path = d.join("secrets.key");
        let text = fs::read_to_string(&path).unwrap();
        let (head, key) = text.trim_end().rsplit_once(' ').unwrap();
        fs::write(path, format!("{head} {}\n", key.chars().rev().collect::<String>())).unwrap();
    }),
    ("a bit of secrets.key", Stopped, "secrets-key", false, |d, _| flip(&d.join("secrets.key"), 3)),
    ("secrets.key missing", Stopped, "secrets-key", false, |d, _| {
        fs::remove_file(d.join("secrets.key")).unwrap();
    }),
    ("secrets.key for all to read", Stopped, "secrets-key", true, |d, _| {
        fs::set_permissions(d.join("secrets.key"), fs::Permissions::from_mode(0o644)).unwrap();
    }),
    ("a bit of a checkpoint", Stopped, "copy", true, |d, _| {
        let newest = files(&d.join("checkpoints"), "checkpoint-")
            .into_iter()
            .max_by_key(|path| checkpoint_number(path))
            .unwrap();
        flip(&files(&newest.join("group-0/state-1"), ".sst")[0], 50);
    }),
];

/// The number of a checkpoint; 0 for one that was cut short.
fn checkpoint_number(checkpoint: &Path) -> u64 {
    checkpoint.to_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap_or(0)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Offsets of the records of a MANIFEST that name tables. The first one names the tables of the last stop,
/// and the second one the table with the entries that only the write-ahead log had then. A record has a head
/// of 7 bytes (checksum, length, type). One without a table is shorter than checksums and keys of a table.
fn records_with_tables(path: &Path) -> Vec<usize> {
    const HEAD: usize = 7;
    const TABLE_BYTES_MIN: usize = 64;
    let bytes = fs::read(path).unwrap();
    assert!(bytes.len() < 32 << 10, "records of a MANIFEST cross no block here");
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let length = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        if length >= TABLE_BYTES_MIN {
            found.push(at);
        }
        at += HEAD + length;
    }
    found
}

fn flip_victim(dir: &Path, into: usize) {
    let (path, at) = victim(dir);
    flip(&path, at + into);
}

/// The segment that holds the victim, and the offset of its record.
fn victim(dir: &Path) -> (PathBuf, usize) {
    for path in files(&dir.join("segments"), ".seg") {
        let bytes = fs::read(&path).unwrap();
        // The key begins 60 bytes into the record, the magic 4 bytes into it.
        let key = VICTIM.as_bytes();
        let found = bytes
            .windows(key.len())
            .enumerate()
            .find(|(at, window)| *window == key && *at >= 60 && bytes[at - 56..at - 52] == *b"mlgC");
        if let Some((at, _)) = found {
            return (path, at - 60);
        }
    }
    panic!("no segment in {} holds the victim", dir.display());
}

/// The segments with the highest ids of those that hold records, the largest of the last two first.
fn newest_segments(dir: &Path) -> Vec<PathBuf> {
    let mut segments = files(&dir.join("segments"), ".seg");
    segments.retain(|path| fs::metadata(path).unwrap().len() > 1000);
    segments.sort();
    let mut newest = segments.split_off(segments.len() - 2);
    newest.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).unwrap().len()));
    newest
}

/// The entries of a directory whose names have this mark, largest first.
fn files(dir: &Path, mark: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.file_name().unwrap().to_str().unwrap().contains(mark));
    found.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).unwrap().len()));
    assert!(!found.is_empty(), "nothing like {mark} in {}", dir.display());
    found
}

fn state(dir: &Path) -> PathBuf {
    files(&dir.join("catalogue/group-0"), "state-").into_iter().max().unwrap()
}

fn swap(one: &Path, other: &Path) {
    let aside = one.with_extension("aside");
    fs::rename(one, &aside).unwrap();
    fs::rename(other, one).unwrap();
    fs::rename(&aside, other).unwrap();
}

fn replace(dir: &Path, old: &Path, what: &str) {
    fs::remove_dir_all(dir.join(what)).unwrap();
    super::directories::copy_directory(&old.join(what), &dir.join(what));
}
