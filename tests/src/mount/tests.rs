//! Tests that the mounted file system records the calls of real programs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use rustix::fs::FallocateFlags;

use super::Mount;
use crate::disk::{Disk, DiskCall, DiskFault, DiskTrouble};
use crate::power_cut::{CutStyle, NO_SYNCS_IGNORED, PowerCut, crash_state};
use crate::recording::DiskEvent;

/// Writes a journal as databases do: append, then sync if `sync`, then acknowledge. Returns the
/// acknowledged bytes.
fn journal(mount: &Mount, records: u8, sync: bool) -> usize {
    let path = mount.path().join("journal");
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("opened");
    File::open(mount.path()).expect("opened").sync_all().expect("synced");
    for n in 0..records {
        file.write_all(&[n; 100]).expect("written");
        if sync {
            file.sync_data().expect("synced");
        }
    }
    usize::from(records) * 100
}

#[test]
fn a_program_that_syncs_before_it_acknowledges_loses_nothing_and_another_is_detected() {
    for sync in [true, false] {
        let mount = Mount::new();
        let answered = journal(&mount, 20, sync);
        let disk = mount.disk();
        let recording = disk.recording();
        let lost = (0..50).any(|seed| {
            let cut = PowerCut { at: recording.position(), style: CutStyle::Mixed, seed };
            let paths = crash_state(recording, cut, NO_SYNCS_IGNORED).paths();
            let image = paths["journal"].clone().expect("a file");
            let expected: Vec<u8> = (0..20).flat_map(|n| [n; 100]).collect();
            image.read(0, answered) != expected
        });
        assert_eq!(lost, !sync);
    }
}

#[test]
fn every_kind_of_change_arrives_in_order() {
    let mount = Mount::new();
    let root = mount.path();
    fs::create_dir(root.join("d")).expect("made");
    let file = File::create(root.join("d/a")).expect("made");
    file.write_all_at(b"hello", 10).expect("written");
    file.set_len(12).expect("cut");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8192).expect("allocated");
    file.sync_all().expect("synced");
    fs::hard_link(root.join("d/a"), root.join("b")).expect("linked");
    fs::rename(root.join("b"), root.join("d/c")).expect("renamed");
    fs::remove_file(root.join("d/a")).expect("removed");
    File::open(root.join("d")).expect("opened").sync_all().expect("synced");
    assert_eq!(fs::read(root.join("d/c")).expect("read").len(), 8192);
    assert_eq!(&fs::read(root.join("d/c")).expect("read")[10..13], b"he\0");
    let disk = mount.disk();
    let kinds: Vec<&str> = disk.recording().events.iter().map(kind).collect();
    assert_eq!(
        kinds,
        ["name", "name", "write", "resize", "resize", "sync", "name", "rename", "unname", "sync names"]
    );
}

fn kind(event: &DiskEvent) -> &'static str {
    match event {
        DiskEvent::AddName { .. } => "name",
        DiskEvent::RemoveName { .. } => "unname",
        DiskEvent::Rename { .. } => "rename",
        DiskEvent::Write { .. } => "write",
        DiskEvent::Resize { .. } => "resize",
        DiskEvent::Zero { .. } => "zero",
        DiskEvent::Sync { .. } => "sync",
        DiskEvent::SyncFailed { .. } => "sync failed",
        DiskEvent::SyncNames { .. } => "sync names",
    }
}

#[test]
fn opening_with_truncation_and_permissions_reach_the_recording() {
    let mount = Mount::new();
    let path = mount.path().join("a");
    fs::write(&path, b"long before").expect("written");
    fs::write(&path, b"short").expect("written again");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
    assert_eq!(fs::read(&path).expect("read"), b"short");
    let disk = mount.disk();
    let recording = disk.recording();
    let out = tempfile::tempdir().expect("a directory");
    let cut = PowerCut { at: recording.position(), style: CutStyle::KeepAll, seed: 0 };
    crash_state(recording, cut, NO_SYNCS_IGNORED).write_to(out.path()).expect("written");
    assert_eq!(fs::read(out.path().join("a")).expect("exists"), b"short");
    let mode = fs::metadata(out.path().join("a")).expect("exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn each_kind_of_call_fails_once_if_requested_and_then_succeeds() {
    let mount = Mount::new();
    let path = mount.path().join("segments-1");
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("made");
    file.write_all_at(b"abc", 0).expect("written");
    let matches = |path: &str| path.starts_with("segments");
    for call in [DiskCall::Write, DiskCall::Sync, DiskCall::Read] {
        mount.disk().fail_once(DiskFault { call, matches, skip: 1 });
        let attempt = || match call {
            DiskCall::Write => file.write_all_at(b"abc", 0),
            DiskCall::Sync => file.sync_data(),
            DiskCall::Read => file.read_exact_at(&mut [0; 3], 0),
        };
        let errors: Vec<Option<i32>> =
            (0..3).map(|_| attempt().err().and_then(|error| error.raw_os_error())).collect();
        assert_eq!(errors, [None, Some(libc::EIO), None], "{call:?}");
    }
    assert_eq!(mount.disk().failed_paths().len(), 3);
}

#[test]
fn a_disk_is_full_or_fails_below_a_directory_until_that_is_ended() {
    let mount = Mount::new();
    let (dir, path) = (mount.path().join("d"), mount.path().join("d/a"));
    fs::create_dir(&dir).expect("made");
    fs::write(&path, b"abc").expect("written");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
    let errno = |done: std::io::Result<()>| done.err().and_then(|error| error.raw_os_error());
    fs::write(mount.path().join("old"), b"12").expect("written");
    mount.disk().set_trouble(DiskTrouble::Full { free_bytes: 0 });
    assert_eq!(rustix::fs::statvfs(mount.path()).expect("known").f_bavail, 0);
    assert_eq!(errno(file.write_all_at(b"d", 3)), Some(libc::ENOSPC));
    assert_eq!(errno(file.write_all_at(b"xyz", 0)), None, "no space is needed");
    fs::remove_file(mount.path().join("old")).expect("removed");
    assert_eq!(errno(file.write_all_at(b"def", 3)), Some(libc::ENOSPC));
    assert_eq!(errno(file.write_all_at(b"de", 3)), None, "two bytes are free");
    file.set_len(3).expect("shorter");

    // Space that a file has got is its own, also beyond its end.
    let keep = FallocateFlags::KEEP_SIZE;
    let allocate = |offset, bytes| rustix::fs::fallocate(&file, keep, offset, bytes).map_err(io::Error::from);
    assert_eq!(errno(allocate(0, 6)), Some(libc::ENOSPC));
    assert_eq!(errno(allocate(0, 5)), None, "two bytes are free");
    assert_eq!(file.metadata().expect("known").len(), 3);
    assert_eq!(errno(fs::write(mount.path().join("other"), b"x")), Some(libc::ENOSPC));
    assert_eq!(errno(file.write_all_at(b"de", 3)), None, "no space is needed");
    assert_eq!(errno(file.write_all_at(b"f", 5)), Some(libc::ENOSPC));
    file.set_len(3).expect("shorter");
    assert_eq!(errno(fs::write(mount.path().join("other"), b"xy")), None, "its space is free again");

    mount.disk().set_trouble(DiskTrouble::Failing { below: "d".to_owned() });
    assert_eq!(errno(file.write_all_at(b"x", 0)), Some(libc::EIO));
    assert_eq!(errno(file.read_exact_at(&mut [0; 3], 0)), Some(libc::EIO));
    assert_eq!(errno(file.sync_data()), Some(libc::EIO));
    assert_eq!(errno(fs::remove_file(&path)), Some(libc::EIO));
    fs::write(mount.path().join("b"), b"beside it").expect("written");

    mount.disk().set_trouble(DiskTrouble::None);
    assert_eq!(fs::read(&path).expect("read"), b"xyz");
    fs::remove_file(&path).expect("removed");
}

#[test]
fn a_disk_takes_the_place_of_another_one() {
    let mut mount = Mount::new();
    fs::write(mount.path().join("lost"), b"not synced").expect("written");
    let tree = {
        let disk = mount.disk();
        let cut = PowerCut { at: disk.recording().position(), style: CutStyle::DropAll, seed: 0 };
        crash_state(disk.recording(), cut, NO_SYNCS_IGNORED)
    };
    mount.replace_disk(Disk::from_tree(&tree));
    assert_eq!(fs::read_dir(mount.path()).expect("listed").count(), 0);
    fs::write(mount.path().join("new"), b"kept").expect("written");
    assert_eq!(fs::read(mount.path().join("new")).expect("read"), b"kept");
}

#[test]
fn a_directory_can_be_emptied_while_it_is_listed() {
    let mount = Mount::new();
    for n in 0..300 {
        fs::write(mount.path().join(format!("file-{n}")), b"x").expect("written");
    }
    for entry in fs::read_dir(mount.path()).expect("listed") {
        fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    assert_eq!(fs::read_dir(mount.path()).expect("listed").count(), 0);
}
