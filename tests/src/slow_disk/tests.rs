//! Data written through the slow disk is in its backing directory, whatever the kernel's caching, and calls
//! take time. `pace` tests the amount of time: no test here fails on a slow machine.

use mlgw_common::time::Instant;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, statvfs};

use super::{Caching, DiskPace, SlowDisk};
use crate::seed::Rng;

const NO_DELAY: DiskPace = DiskPace { bytes_per_second: 0, seek: Duration::ZERO };
/// Longer than one request of the kernel, and not a multiple of any block size.
const LENGTH: usize = (3 << 20) + 4711;
const BLOCK: usize = 4096;

struct MountedDisk {
    backing: tempfile::TempDir,
    mount_point: tempfile::TempDir,
    disk: Option<SlowDisk>,
}

impl MountedDisk {
    fn new(pace: DiskPace, caching: Caching) -> Self {
        let [backing, on] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let disk = SlowDisk::mount(backing.path(), on.path(), pace, caching);
        let disk = disk.expect("mounting needs /dev/fuse, and root or fusermount3 (package fuse3)");
        Self { backing, mount_point: on, disk: Some(disk) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount_point.path().join(name)
    }

    fn backing_path(&self, name: &str) -> PathBuf {
        self.backing.path().join(name)
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.disk.take().map(SlowDisk::unmount) {
            eprintln!("unmounting {}: {error}", self.mount_point.path().display());
        }
    }
}

fn each_caching(test: fn(&MountedDisk)) {
    for caching in [Caching::Direct, Caching::PageCache] {
        eprintln!("{caching:?}");
        test(&MountedDisk::new(NO_DELAY, caching));
    }
}

fn names(dir: &Path) -> Vec<String> {
    let name = |found: io::Result<fs::DirEntry>| found.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

fn random(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..LENGTH.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(LENGTH).collect()
}

fn errors<T>(results: impl IntoIterator<Item = io::Result<T>>) -> Vec<Option<ErrorKind>> {
    results.into_iter().map(|result| result.err().map(|error| error.kind())).collect()
}

#[test]
fn written_data_is_in_the_backing_directory_and_can_be_read_back() {
    each_caching(|at| {
        let (path, bytes) = (at.path("segment"), random(1));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path).unwrap();
        for (n, piece) in bytes.chunks(1 << 20).enumerate() {
            file.write_all_at(piece, (n as u64) << 20).unwrap();
        }
        file.sync_data().unwrap();
        assert!(fs::read(at.backing_path("segment")).unwrap() == bytes);
        assert!(fs::read(&path).unwrap() == bytes);
        let mut middle = vec![0; 70_000];
        file.read_exact_at(&mut middle, 1_000_001).unwrap();
        assert!(middle == bytes[1_000_001..1_070_001]);
        assert_eq!(file.read_at(&mut middle, LENGTH as u64 - 10).unwrap(), 10);
        assert_eq!(file.read_at(&mut middle, LENGTH as u64).unwrap(), 0);
        let [shown, below] = [&path, &at.backing_path("segment")].map(|path| fs::metadata(path).unwrap());
        assert_eq!((shown.len(), shown.mode(), shown.nlink()), (below.len(), below.mode(), below.nlink()));
        assert_eq!((shown.ino(), shown.modified().unwrap()), (below.ino(), below.modified().unwrap()));
        assert_eq!(errors([options.open(&path)]), [Some(ErrorKind::AlreadyExists)]);
    });
}

#[test]
fn direct_writes_and_appends_arrive_at_their_offsets() {
    each_caching(|at| {
        let path = at.path("segment");
        fs::write(&path, b"").unwrap();
        let flags = OFlags::DIRECT.bits().cast_signed();
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(&path).unwrap();
        let bytes = random(2);
        let mut memory = vec![0; 9 * BLOCK];
        let aligned = memory.as_ptr().align_offset(BLOCK);
        memory[aligned..aligned + 8 * BLOCK].copy_from_slice(&bytes[..8 * BLOCK]);
        for block in [1, 0] {
            let piece = &memory[aligned + block * 4 * BLOCK..][..4 * BLOCK];
            direct.write_all_at(piece, (block * 4 * BLOCK) as u64).unwrap();
        }
        let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
        io::Write::write_all(&mut appending, b"the end").unwrap();
        let expected = [&bytes[..8 * BLOCK], b"the end"].concat();
        assert!(fs::read(at.backing_path("segment")).unwrap() == expected);
        assert!(fs::read(&path).unwrap() == expected);
    });
}

#[test]
fn names_are_made_moved_and_removed_in_the_backing_directory() {
    each_caching(|at| {
        let [cold, one, two] = ["cold", "cold/one", "cold/two"].map(|name| at.path(name));
        fs::create_dir(&cold).unwrap();
        for (path, text) in [(&one, "1"), (&two, "2")] {
            fs::write(path, text).unwrap();
        }
        fs::hard_link(&two, at.path("linked")).unwrap();
        fs::rename(&one, &two).unwrap();
        File::open(&cold).unwrap().sync_all().unwrap();
        assert_eq!((names(&cold), names(&at.backing_path("cold"))), (vec!["two".into()], vec!["two".into()]));
        assert_eq!(names(at.backing.path()), ["cold", "linked"]);
        let texts = ["cold/two", "linked"].map(|name| fs::read_to_string(at.backing_path(name)).unwrap());
        assert_eq!(texts, ["1", "2"]);
        assert_eq!(
            errors([fs::remove_dir(&cold), fs::remove_file(&one), fs::rename(&one, &two)]),
            [Some(ErrorKind::DirectoryNotEmpty), Some(ErrorKind::NotFound), Some(ErrorKind::NotFound)]
        );
        fs::remove_file(&two).unwrap();
        fs::rename(&cold, at.path("warm")).unwrap();
        fs::write(at.path("warm/three"), "3").unwrap();
        assert_eq!(names(&at.backing_path("warm")), ["three"]);
        fs::remove_file(at.path("warm/three")).unwrap();
        fs::remove_dir(at.path("warm")).unwrap();
        assert_eq!(
            (names(at.mount_point.path()), names(at.backing.path())),
            (vec!["linked".into()], vec!["linked".into()])
        );
    });
}

#[test]
fn a_removed_file_stays_usable_while_open_and_its_name_is_free() {
    each_caching(|at| {
        let path = at.path("segment");
        fs::write(&path, b"old").unwrap();
        let old = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!at.backing_path("segment").exists());
        fs::write(&path, b"newer").unwrap();
        old.write_all_at(b"!", 3).unwrap();
        old.sync_all().unwrap();
        let mut text = [0; 4];
        old.read_exact_at(&mut text, 0).unwrap();
        assert_eq!((&text, old.metadata().unwrap().nlink()), (b"old!", 0));
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    });
}

#[test]
fn a_directory_can_be_emptied_while_it_is_listed() {
    each_caching(|at| {
        for n in 0..300 {
            fs::write(at.path(&format!("{n:016x}.seg")), b"x").unwrap();
        }
        for entry in fs::read_dir(at.mount_point.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        assert_eq!(names(at.backing.path()), [""; 0]);
    });
}

#[test]
fn lengths_change_in_the_backing_directory() {
    each_caching(|at| {
        let (path, length) = (at.path("segment"), || fs::metadata(at.backing_path("segment")).unwrap().len());
        let file = File::create(&path).unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        file.set_len(5_000).unwrap();
        assert_eq!(length(), 5_000);
        fallocate(&file, FallocateFlags::empty(), 0, 8_192).unwrap();
        assert_eq!((length(), fs::metadata(&path).unwrap().len()), (8_192, 8_192));
        let expected = [[7; 5_000].as_slice(), &[0; 3_192]].concat();
        assert!(fs::read(&path).unwrap() == expected);
        fs::write(&path, b"").unwrap();
        assert_eq!((length(), fs::metadata(&path).unwrap().len()), (0, 0));
    });
}

#[test]
fn free_space_is_that_of_the_backing_file_system() {
    each_caching(|at| {
        let [shown, below] = [&at.mount_point, &at.backing].map(|dir| statvfs(dir.path()).unwrap());
        assert_eq!((shown.f_blocks, shown.f_frsize), (below.f_blocks, below.f_frsize));
        assert_eq!((shown.f_files, shown.f_bavail > 0), (below.f_files, below.f_bavail > 0));
    });
}

/// The bytes that a program reads from a file that changes below, unseen by the kernel: immediately, and
/// after it has dropped the file from the page cache.
fn read_changed_file(caching: Caching) -> [u8; 2] {
    let at = MountedDisk::new(NO_DELAY, caching);
    let path = at.path("segment");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.write_all_at(&[b'o'; BLOCK], 0).unwrap();
    let below = OpenOptions::new().write(true).open(at.backing_path("segment")).unwrap();
    below.write_all_at(&[b'n'; BLOCK], 0).unwrap();
    let first = || {
        let mut byte = [0];
        file.read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    };
    let at_once = first();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    [at_once, first()]
}

#[test]
fn only_the_page_cache_serves_reads_and_only_until_it_is_dropped() {
    assert_eq!(read_changed_file(Caching::Direct), [b'n', b'n']);
    assert_eq!(read_changed_file(Caching::PageCache), [b'o', b'n']);
}

/// Checks that three calls on an idle disk take at least three times `least` (a seek, or a seek and a
/// transfer).
fn assert_takes_at_least(least: Duration, call: impl Fn(&MountedDisk, &File) -> io::Result<()>) {
    let at = MountedDisk::new(SLOW, Caching::Direct);
    fs::write(at.backing_path("a"), [1; TRANSFER]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(at.path("a")).unwrap();
    let begun = Instant::now();
    for _ in 0..3 {
        call(&at, &file).unwrap();
    }
    assert!(begun.elapsed() >= 3 * least, "{:?}", begun.elapsed());
}

const SEEK: Duration = Duration::from_millis(10);
const SLOW: DiskPace = DiskPace { bytes_per_second: 10_000_000, seek: SEEK };
/// Bytes whose transfer takes as long as a seek.
const TRANSFER: usize = 100_000;

#[test]
fn reads_writes_and_syncs_take_at_least_their_time() {
    assert_takes_at_least(2 * SEEK, |_, file| file.write_all_at(&[2; TRANSFER], 0));
    assert_takes_at_least(2 * SEEK, |_, file| file.read_exact_at(&mut [0; TRANSFER], 0));
    assert_takes_at_least(SEEK, |_, file| file.sync_data());
    assert_takes_at_least(SEEK, |at, _| File::open(at.mount_point.path())?.sync_all());
}
