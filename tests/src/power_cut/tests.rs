//! Tests of the model, on programs small enough to enumerate every outcome by hand.

use std::collections::BTreeSet;

use super::{CrashTree, CutStyle, NO_SYNCS_IGNORED, PowerCut, crash_state};
use crate::disk::Disk;
use crate::recording::{Ino, InodeShape, ROOT, Recording};

const FILE: InodeShape = InodeShape { directory: false, mode: 0o644 };
const DIRECTORY: InodeShape = InodeShape { directory: true, mode: 0o755 };

fn at_end(recording: &Recording, style: CutStyle, seed: u64) -> CrashTree {
    crash_state(recording, PowerCut { at: recording.position(), style, seed }, NO_SYNCS_IGNORED)
}

/// All contents of `path` over many seeds; `None` where it is missing.
fn outcomes(disk: &Disk, path: &str) -> BTreeSet<Option<Vec<u8>>> {
    let content = |seed| {
        let tree = at_end(disk.recording(), CutStyle::Mixed, seed);
        tree.paths().get(path).map(|image| image.as_ref().expect("a file").read(0, 1 << 20))
    };
    (0..400).map(content).collect()
}

fn create_file(disk: &mut Disk, dir: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = disk.create(dir, name, FILE).expect("new");
    disk.write(ino, 0, data).expect("written");
    ino
}

#[test]
fn a_synced_file_in_a_synced_directory_survives_every_cut() {
    let mut disk = Disk::new();
    let ino = create_file(&mut disk, ROOT, "a", b"hello");
    disk.sync(ino).expect("synced");
    disk.sync_names(ROOT).expect("synced");
    assert_eq!(outcomes(&disk, "a"), BTreeSet::from([Some(b"hello".to_vec())]));
}

#[test]
fn a_synced_file_whose_directory_was_not_synced_may_be_gone_but_never_torn() {
    let mut disk = Disk::new();
    let ino = create_file(&mut disk, ROOT, "a", b"hello");
    disk.sync(ino).expect("synced");
    assert_eq!(outcomes(&disk, "a"), BTreeSet::from([None, Some(b"hello".to_vec())]));
}

#[test]
fn an_unsynced_write_is_kept_dropped_or_torn_at_sectors() {
    let mut disk = Disk::new();
    let ino = create_file(&mut disk, ROOT, "a", &[1; 1024]);
    disk.sync(ino).expect("synced");
    disk.sync_names(ROOT).expect("synced");
    disk.write(ino, 256, &[2; 512]).expect("written");
    let mixed = |first: u8, second: u8| {
        let mut data = vec![1; 1024];
        data[256..512].fill(first);
        data[512..768].fill(second);
        Some(data)
    };
    let expected = BTreeSet::from([mixed(1, 1), mixed(1, 2), mixed(2, 1), mixed(2, 2)]);
    assert_eq!(outcomes(&disk, "a"), expected);
}

#[test]
fn a_rename_leaves_the_old_file_or_the_new_one_and_never_neither() {
    let mut disk = Disk::new();
    let old = create_file(&mut disk, ROOT, "current", b"old");
    disk.sync(old).expect("synced");
    disk.sync_names(ROOT).expect("synced");
    let new = create_file(&mut disk, ROOT, "temporary", b"new");
    disk.sync(new).expect("synced");
    disk.rename((ROOT, "temporary"), (ROOT, "current")).expect("renamed");
    let expected = BTreeSet::from([Some(b"old".to_vec()), Some(b"new".to_vec())]);
    assert_eq!(outcomes(&disk, "current"), expected);
    disk.sync_names(ROOT).expect("synced");
    assert_eq!(outcomes(&disk, "current"), BTreeSet::from([Some(b"new".to_vec())]));
    assert_eq!(outcomes(&disk, "temporary"), BTreeSet::from([None]));
}

#[test]
fn a_rename_never_overtakes_earlier_changes_of_its_directory() {
    let mut disk = Disk::new();
    let target = create_file(&mut disk, ROOT, "manifest", b"m");
    disk.sync(target).expect("synced");
    let temporary = create_file(&mut disk, ROOT, "temporary", b"manifest");
    disk.sync(temporary).expect("synced");
    disk.rename((ROOT, "temporary"), (ROOT, "current")).expect("renamed");
    for seed in 0..400 {
        let paths = at_end(disk.recording(), CutStyle::Mixed, seed).paths();
        assert!(!paths.contains_key("current") || paths.contains_key("manifest"), "seed {seed}");
    }
}

#[test]
fn an_unlinked_name_can_come_back_until_its_directory_is_synced() {
    let mut disk = Disk::new();
    let ino = create_file(&mut disk, ROOT, "a", b"x");
    disk.sync(ino).expect("synced");
    disk.sync_names(ROOT).expect("synced");
    disk.remove(ROOT, "a", false).expect("removed");
    assert_eq!(outcomes(&disk, "a"), BTreeSet::from([None, Some(b"x".to_vec())]));
    disk.sync_names(ROOT).expect("synced");
    assert_eq!(outcomes(&disk, "a"), BTreeSet::from([None]));
}

#[test]
fn a_directory_without_a_durable_name_takes_synced_files_along() {
    let mut disk = Disk::new();
    let dir = disk.create(ROOT, "d", DIRECTORY).expect("made");
    let ino = create_file(&mut disk, dir, "a", b"x");
    disk.sync(ino).expect("synced");
    disk.sync_names(dir).expect("synced");
    assert_eq!(outcomes(&disk, "d/a"), BTreeSet::from([None, Some(b"x".to_vec())]));
    disk.sync_names(ROOT).expect("synced");
    assert_eq!(outcomes(&disk, "d/a"), BTreeSet::from([Some(b"x".to_vec())]));
}

#[test]
fn a_sync_after_a_failed_one_does_not_restore_the_forgotten_pages() {
    let mut disk = Disk::new();
    let ino = create_file(&mut disk, ROOT, "a", b"x");
    disk.sync(ino).expect("synced");
    disk.sync_names(ROOT).expect("synced");
    disk.write(ino, 0, b"y").expect("written");
    disk.fail_once(crate::disk::DiskFault { call: crate::disk::DiskCall::Sync, matches: |_| true, skip: 0 });
    assert_eq!(disk.sync(ino), Err(libc::EIO));
    disk.sync(ino).expect("the second sync succeeds");
    let kept = BTreeSet::from([Some(b"x".to_vec()), Some(b"y".to_vec())]);
    assert_eq!(outcomes(&disk, "a"), kept);
    assert_eq!(disk.failed_paths(), ["a"]);
}

#[test]
fn an_ignored_class_of_syncs_makes_nothing_durable() {
    let mut disk = Disk::new();
    let ino = create_file(&mut disk, ROOT, "a", b"x");
    disk.sync(ino).expect("synced");
    disk.sync_names(ROOT).expect("synced");
    let cut = PowerCut { at: disk.recording().position(), style: CutStyle::DropAll, seed: 1 };
    let without_names = crash_state(disk.recording(), cut, |_, names| names).paths();
    assert!(without_names.is_empty());
    let without_data =
        crash_state(disk.recording(), PowerCut { seed: 2, ..cut }, |path, names| !names && path == "a");
    assert_ne!(without_data.paths()["a"].as_ref().expect("a file").read(0, 10), b"x");
}

#[test]
fn a_cut_is_decided_by_its_seed_and_position_alone() {
    let mut disk = Disk::new();
    for n in 0..20 {
        let ino = create_file(&mut disk, ROOT, &format!("f{n}"), &[n; 3000]);
        if n % 3 == 0 {
            disk.sync(ino).expect("synced");
        }
    }
    let recording = disk.recording();
    for seed in 0..50 {
        for at in [0, 7, recording.position()] {
            let cut = PowerCut { at, style: CutStyle::PerFile, seed };
            assert_eq!(
                crash_state(recording, cut, NO_SYNCS_IGNORED).paths(),
                crash_state(recording, cut, NO_SYNCS_IGNORED).paths()
            );
        }
    }
}

#[test]
fn a_state_written_out_has_the_names_bytes_and_links_of_the_model() {
    let mut disk = Disk::new();
    let dir = disk.create(ROOT, "d", DIRECTORY).expect("made");
    let ino = create_file(&mut disk, dir, "a", b"hello");
    disk.allocate(ino, (0, 4096), false, false).expect("allocated");
    disk.link(ino, ROOT, "b").expect("linked");
    let tree = at_end(disk.recording(), CutStyle::KeepAll, 0);
    let out = tempfile::tempdir().expect("a directory");
    tree.write_to(out.path()).expect("written");
    let bytes = std::fs::read(out.path().join("b")).expect("exists");
    assert_eq!((bytes.len(), &bytes[..6]), (4096, &b"hello\0"[..]));
    let links = std::os::unix::fs::MetadataExt::nlink(&out.path().join("d/a").metadata().expect("exists"));
    assert_eq!(links, 2);
}

#[test]
fn a_disk_can_begin_with_the_state_that_a_cut_left_of_another() {
    let mut disk = Disk::new();
    let dir = disk.create(ROOT, "d", DIRECTORY).expect("made");
    let ino = create_file(&mut disk, dir, "a", b"hello");
    disk.allocate(ino, (0, 4096), false, false).expect("allocated");
    disk.link(ino, ROOT, "b").expect("linked");
    let left = at_end(disk.recording(), CutStyle::KeepAll, 0);
    let next = Disk::from_tree(&left);
    let lost = at_end(next.recording(), CutStyle::DropAll, 1);
    assert_eq!(lost.paths(), left.paths());
}
