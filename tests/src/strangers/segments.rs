//! Single segment files in the place of others: another server's, another timeline's, of an earlier format.
//!
//! Their data is never served, checks report them, and nothing ever removes or renames them, except to set
//! them aside.

use mlgw_common::time::Instant;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::site::{BUCKET, SiteObjects, TestSite, replace, segments, snapshot, temp_dir};
use crate::server::runtime;

/// True if these bytes are those of the file `path`, or of a file that was set aside from its name.
fn is_kept(path: &Path, bytes: &[u8]) -> bool {
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    let entries = fs::read_dir(path.parent().expect("a directory")).expect("listed").flatten();
    let mut same = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name));
    same.any(|entry| fs::read(entry.path()).is_ok_and(|found| found == bytes))
}

/// The files with records in `dir` for which `theirs` has a file of the same name with other bytes; with
/// those bytes.
fn same_named_files(dir: &Path, theirs: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let with_records =
        segments(dir).into_iter().filter(|path| fs::metadata(path).is_ok_and(|of| of.len() > 1000));
    let both = with_records.filter_map(|path| {
        let foreign = fs::read(theirs.join(path.file_name().expect("a name"))).ok()?;
        (foreign.len() > 1000 && fs::read(&path).is_ok_and(|own| own != foreign)).then_some((path, foreign))
    });
    both.collect()
}

/// The segment of a directory of the first format.
fn format_1_segment(room: &Path) -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/format-1.tgz");
    let unpacked = Command::new("tar")
        .args(["--extract", "--gzip", "--file"])
        .arg(&file)
        .arg("--directory")
        .arg(room)
        .status();
    assert!(unpacked.expect("tar").success());
    let large = segments(&room.join("data/segments")).into_iter();
    large.map(|path| fs::read(path).expect("read")).max_by_key(Vec::len).expect("a segment")
}

/// Waits until the segment of this name has been removed.
fn wait_until_gone(site: &TestSite, path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while path.exists() {
        assert!(Instant::now() < deadline, "{} is not removed", path.display());
        site.run_command(&["tier", "compact", "--dead-percent", "1", "--wait"]);
    }
}

#[test]
fn another_servers_segment_is_neither_served_nor_removed() {
    let room = temp_dir();
    let (x, y) = (TestSite::filled(room.path(), "x", 1), TestSite::filled(room.path(), "y", 2));
    let tried = TestSite { home: room.path().join("tried"), ..x.clone() };
    let tried = TestSite { hot: tried.home.join("hot"), cold: tried.home.join("cold"), ..tried };
    let old = format_1_segment(room.path());
    for (tier, own, theirs) in [("hot", &x.hot, &y.hot), ("cold", &x.cold, &y.cold)] {
        let pairs = same_named_files(own, theirs);
        assert!(!pairs.is_empty(), "the two servers made other segments");
        let ((first, of_y), (last, _)) = (pairs[0].clone(), pairs[pairs.len() - 1].clone());
        for (path, foreign) in [(first, of_y), (last, old.clone())] {
            replace(&tried.home, &x.home);
            let dir = if tier == "hot" { &tried.hot } else { &tried.cold };
            let path = dir.join(path.file_name().expect("a name"));
            let own_bytes = fs::read(&path).expect("read");
            fs::write(&path, &foreign).expect("written");
            let found = tried.damage_kinds();
            assert!(found.iter().any(|kind| kind == "segment-header"), "{found:?}");
            let (output, status) = tried.run_store_verb(&["repair", "D"]);
            assert_eq!(status, Some(1), "{output}");
            assert!(fs::read(&path).is_ok_and(|bytes| bytes == foreign), "a repair changed it: {output}");

            let server = tried.start();
            let unread = tried.unreadable(&server);
            assert!(!unread.is_empty(), "{}", path.display());
            let (output, _) = tried.setup().command(&["--output", "json", "tier", "scrub", tier, "--wait"]);
            let scrubbed = serde_json::Deserializer::from_str(&output).into_iter::<Value>().next();
            let bad = &scrubbed.expect("a document").expect("a document")["bad"];
            assert!(bad.as_array().is_some_and(|bad| !bad.is_empty()), "{output}");
            assert_eq!(tried.unreadable(&server), unread, "after the scrub");
            server.stop();

            // The right file is put back: reading the wrong one has lost nothing.
            fs::write(&path, &own_bytes).expect("written");
            let server = tried.start();
            assert_eq!(tried.unreadable(&server), [""; 0]);
            server.stop();

            // Nothing refers to the segment any more: its record is removed, the other server's file stays.
            fs::write(&path, &foreign).expect("written");
            let server = tried.start();
            for key in &unread {
                runtime().block_on(server.client().delete(BUCKET, key)).expect("deleted");
            }
            wait_until_gone(&tried, &path);
            assert!(is_kept(&path, &foreign), "{} was removed", path.display());
            server.stop();
            let left: SiteObjects = x
                .objects
                .iter()
                .filter(|(key, _)| !unread.contains(key))
                .map(|(k, c)| (k.clone(), *c))
                .collect();
            let left = TestSite { objects: left, ..tried.clone() };
            left.assert_serves_all();
            assert!(is_kept(&path, &foreign), "{} was removed by a start", path.display());
        }
    }
}

#[test]
fn a_foreign_file_in_the_place_of_an_open_segment_is_set_aside() {
    let room = temp_dir();
    let (mut x, mut y) = (TestSite::new(room.path(), "x"), TestSite::new(room.path(), "y"));
    for (site, seed) in [(&mut x, 1), (&mut y, 2)] {
        let mut server = site.start();
        runtime().block_on(server.client().create_bucket(BUCKET)).expect("made");
        site.put(&server, "killed", 12, seed);
        server.kill();
    }
    let pairs = same_named_files(&x.hot, &y.hot);
    assert!(!pairs.is_empty());
    let (path, foreign) = pairs.last().cloned().expect("one exists");
    let own = fs::read(&path).expect("read");
    fs::write(&path, &foreign).expect("written");
    assert_ne!(x.damage_kinds(), [""; 0]);
    let server = x.start();
    assert!(!x.unreadable(&server).is_empty());
    server.stop();
    assert!(is_kept(&path, &foreign) && !path.exists(), "the segment is set aside");
    fs::write(&path, own).expect("written");
    x.assert_serves_all();
}

#[test]
fn segments_of_the_original_copied_into_a_restored_copy_change_nothing() {
    let room = temp_dir();
    let mut original = TestSite::filled(room.path(), "original", 1);
    let backup = room.path().join("backup");
    assert_eq!(original.run_store_verb(&["backup", "D", &backup.display().to_string()]).1, Some(0));
    let mut restored =
        TestSite { objects: original.objects.clone(), ..TestSite::new(room.path(), "restored") };
    assert_eq!(restored.run_store_verb(&["restore", &backup.display().to_string(), "D"]).1, Some(0));
    // Each runs the same job, with other bytes.
    for (site, seed) in [(&mut original, 10), (&mut restored, 20)] {
        let server = site.start();
        site.put(&server, "run", 20, seed);
        server.stop();
    }
    for (site, donor) in [(&restored, &original), (&original, &restored)] {
        let tried_home = room.path().join("tried");
        replace(&tried_home, &site.home);
        let tried = TestSite {
            hot: tried_home.join("hot"),
            cold: tried_home.join("cold"),
            home: tried_home,
            ..site.clone()
        };
        let mut theirs: Vec<_> =
            [&donor.hot, &donor.cold].into_iter().flat_map(|dir| segments(dir)).collect();
        // Segments that both have from before the backup are the same.
        let is_shared = |path: &PathBuf| {
            let name = path.file_name().expect("a name");
            [&site.hot, &site.cold].iter().any(|dir| dir.join(name).exists())
        };
        theirs.retain(|path| !is_shared(path));
        assert!(theirs.len() > 2, "{theirs:?}");
        for path in &theirs {
            fs::copy(path, tried.hot.join(path.file_name().expect("a name"))).expect("copied");
        }
        for _ in 0..2 {
            let server = tried.start();
            assert_eq!(tried.unreadable(&server), [""; 0]);
            tried.run_command(&["tier", "compact", "--dead-percent", "1", "--wait"]);
            assert_eq!(tried.unreadable(&server), [""; 0]);
            server.stop();
        }
        for path in &theirs {
            let bytes = fs::read(path).expect("read");
            let name = path.file_name().expect("a name");
            let is_there = [&tried.hot, &tried.cold].iter().any(|dir| is_kept(&dir.join(name), &bytes));
            assert!(is_there, "{} was removed", path.display());
        }
        assert_eq!(tried.damage_kinds(), [""; 0]);
    }
}

#[test]
fn a_repair_renames_only_the_servers_own_segments() {
    let room = temp_dir();
    let (x, y) = (TestSite::filled(room.path(), "x", 1), TestSite::filled(room.path(), "y", 2));
    let own = segments(&x.hot);
    let own: Vec<&PathBuf> =
        own.iter().filter(|path| fs::metadata(path).is_ok_and(|of| of.len() > 1000)).collect();
    let (first, second) = (own[0], own[1]);
    let theirs = y.hot.join(second.file_name().expect("a name"));
    let foreign = fs::read(&theirs).expect("read");
    let kept = fs::read(first).expect("read");
    // The other server's second segment under the name of the first, and no second one.
    fs::write(first, &foreign).expect("written");
    let moved = second.with_extension("moved");
    fs::rename(second, &moved).expect("renamed");
    let before = snapshot(&x.hot);
    let (output, status) = x.run_store_verb(&["repair", "D"]);
    assert_eq!(status, Some(1), "{output}");
    super::site::assert_same(&before, &snapshot(&x.hot), &output);
    // Its own two segments under each other's name.
    fs::write(second, kept).expect("written");
    fs::rename(&moved, first).expect("renamed");
    let (output, status) = x.run_store_verb(&["repair", "D"]);
    assert_eq!(status, Some(0), "{output}");
    x.assert_serves_all();
}
