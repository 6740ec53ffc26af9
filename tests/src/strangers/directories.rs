//! Whole directories of segments: those of another server or another timeline, without their disk, without
//! their owner mark.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::site::{TestSite, assert_same, copy_directory, segments, snapshot, temp_dir};

/// The owner mark of a directory.
const MARK: &str = "owner";

fn remove_mark(dir: &Path) {
    fs::remove_file(dir.join(MARK)).expect("one existed");
}

#[test]
fn the_directories_of_another_server_are_refused_everywhere_and_unchanged() {
    let room = temp_dir();
    let (x, y) = (TestSite::filled(room.path(), "x", 1), TestSite::filled(room.path(), "y", 2));
    let fresh = TestSite::new(room.path(), "fresh");
    let theirs = [y.home.as_path()];
    // With their marks, and as a server of an earlier version leaves them.
    for marked in [true, false] {
        if !marked {
            remove_mark(&y.hot);
            remove_mark(&y.cold);
        }
        for site in [&x, &fresh] {
            for dir in [&y.hot, &y.cold] {
                let name = dir.display().to_string();
                site.with_hot(dir).assert_refused(&[&name], &theirs);
                site.with_cold(dir).assert_refused(&[&name], &theirs);
            }
        }
        let before = snapshot(&y.home);
        for wrong in [x.with_hot(&y.hot), x.with_cold(&y.cold)] {
            for verb in [&["repair", "D"][..], &["rebuild", "D"]] {
                let (output, _) = wrong.run_store_verb(verb);
                assert_same(&before, &snapshot(&y.home), &format!("{verb:?}: {output}"));
            }
            for dir in [&y.hot, &y.cold] {
                let (output, status) =
                    wrong.run_store_verb(&["repair", "D", "--adopt", &dir.display().to_string()]);
                assert_eq!(status, Some(1), "{output}");
                assert_same(&before, &snapshot(&y.home), &output);
            }
        }
    }
    y.assert_serves_all();
    y.assert_undamaged();
    x.assert_serves_all();
    x.assert_undamaged();
}

#[test]
fn directories_that_two_servers_swapped_are_refused_by_both() {
    let room = temp_dir();
    let (x, y) = (TestSite::filled(room.path(), "x", 1), TestSite::filled(room.path(), "y", 2));
    let all = [x.home.as_path(), y.home.as_path()];
    let (x_swapped, y_swapped) = (x.with_cold(&y.cold), y.with_cold(&x.cold));
    let untouched = [&x.hot, &x.cold, &y.hot, &y.cold].map(|dir| dir.as_path());
    for (site, name) in [(&x_swapped, &y.cold), (&y_swapped, &x.cold)] {
        let output = site.assert_refused(&["belongs to the server"], &untouched);
        assert!(output.contains(&name.display().to_string()), "{output}");
    }
    // A server's own two directories, in each other's place, are still its own.
    let crossed = TestSite { hot: x.cold.clone(), cold: x.hot.clone(), ..x.clone() };
    crossed.assert_serves_all();
    x.assert_serves_all();
    y.assert_serves_all();
    all.iter().for_each(|dir| assert!(dir.is_dir()));
}

#[test]
fn a_restored_copy_and_its_original_refuse_each_others_directories() {
    let room = temp_dir();
    let original = TestSite::filled(room.path(), "original", 1);
    let backup = room.path().join("backup");
    let (output, status) = original.run_store_verb(&["backup", "D", &backup.display().to_string()]);
    assert_eq!(status, Some(0), "{output}");
    let mut restored =
        TestSite { objects: original.objects.clone(), ..TestSite::new(room.path(), "restored") };
    let (output, status) = restored.run_store_verb(&["restore", &backup.display().to_string(), "D"]);
    assert_eq!(status, Some(0), "{output}");
    // Before the first start of the restored copy, and after it.
    for start in [false, true] {
        if start {
            let server = restored.start();
            restored.put(&server, "restored", 3, 5);
            server.stop();
            // The cold directory was marked while it was empty.
            assert!(restored.cold.join(MARK).exists());
        }
        let theirs = [original.home.as_path()];
        restored.with_hot(&original.hot).assert_refused(&["an earlier timeline of this server"], &theirs);
        restored.with_cold(&original.cold).assert_refused(&["an earlier timeline of this server"], &theirs);
    }
    let theirs = [restored.home.as_path()];
    original.with_hot(&restored.hot).assert_refused(&["belongs to the server"], &theirs);
    original.with_cold(&restored.cold).assert_refused(&["belongs to the server"], &theirs);
    original.assert_serves_all();
    restored.assert_serves_all();
    original.assert_undamaged();
    restored.assert_undamaged();
}

#[test]
fn an_unmounted_disk_is_refused_and_everything_is_served_after_its_return() {
    let room = temp_dir();
    let site = TestSite::filled(room.path(), "x", 1);
    // Also after a kill: the end of an open segment must not be decided while its disk is not mounted.
    for killed in [false, true] {
        let mut site = site.clone();
        if killed {
            let mut server = site.start();
            site.put(&server, "killed", 5, 9);
            server.kill();
        }
        for dir in [site.hot.clone(), site.cold.clone()] {
            let unmounted = dir.with_extension("away");
            // An empty mount point, and one that was marked by a start before the mount.
            for marked in [false, true] {
                fs::rename(&dir, &unmounted).expect("renamed");
                fs::create_dir(&dir).expect("made");
                if marked {
                    fs::copy(unmounted.join(MARK), dir.join(MARK)).expect("copied");
                }
                let name = dir.display().to_string();
                site.assert_refused(&[&name, "mount its disk"], &[&site.hot, &site.cold, &unmounted]);
                fs::remove_dir_all(&dir).expect("removed");
                fs::rename(&unmounted, &dir).expect("renamed");
            }
        }
        site.assert_undamaged();
        site.assert_serves_all();
    }
}

#[test]
fn a_directory_without_a_readable_mark_is_marked_if_it_is_the_servers_own() {
    let room = temp_dir();
    let site = TestSite::filled(room.path(), "x", 1);
    let mark = fs::read(site.hot.join(MARK)).expect("a mark");
    for dir in [&site.hot, &site.cold] {
        let path = dir.join(MARK);
        let before = || snapshot(&site.home);
        // Lost mark: every file is the server's own, and a start verifies that.
        remove_mark(dir);
        site.assert_serves_all();
        assert!(fs::read(&path).expect("marked") == mark, "the same mark again");
        let wrong: [&[u8]; 5] =
            [b"", &mark[..mark.len() / 2], &mark[..mark.len() - 1], b"not a mark", &[0; 4096]];
        for bytes in wrong {
            fs::write(&path, bytes).expect("written");
            let output = site.assert_refused(&["the mark in", "--adopt"], &[&site.hot, &site.cold]);
            assert!(output.contains(&dir.display().to_string()), "{output}");
            let files = segments(dir).len();
            let (output, status) =
                site.run_store_verb(&["repair", "D", "--adopt", &dir.display().to_string()]);
            assert_eq!(status, Some(0), "{output}");
            assert!(output.contains(&format!("{files} segments verified")), "{output}");
            assert!(fs::read(&path).expect("marked") == mark, "{output}");
            drop(before());
        }
        // An object that is not a regular file is not a mark, and a start does not replace it.
        for pipe in [false, true] {
            fs::remove_file(&path).expect("removed");
            match pipe {
                false => fs::create_dir(&path).expect("made"),
                true => assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success()),
            }
            let log = site.setup().try_start().err().expect("refused").log;
            assert!(log.contains("the mark in"), "{log}");
            assert_ne!(site.damage_kinds(), [""; 0]);
            let (output, status) =
                site.run_store_verb(&["repair", "D", "--adopt", &dir.display().to_string()]);
            assert_eq!(status, Some(0), "{output}");
            assert!(fs::read(&path).expect("marked") == mark, "{output}");
        }
        site.assert_serves_all();
    }
    site.assert_undamaged();
}

#[test]
fn adopting_verifies_and_names_conflicting_files() {
    let room = temp_dir();
    let (x, y) = (TestSite::filled(room.path(), "x", 1), TestSite::filled(room.path(), "y", 2));
    let adopt = |dir: &Path| x.run_store_verb(&["repair", "D", "--adopt", &dir.display().to_string()]);
    for (dir, theirs) in [(&x.hot, &y.hot), (&x.cold, &y.cold)] {
        remove_mark(dir);
        // One file of the other server among the own ones, under the same name.
        let (own, foreign) = shared_name(dir, theirs);
        let kept = fs::read(&own).expect("read");
        fs::copy(&foreign, &own).expect("copied");
        let name = own.file_name().expect("a name").to_string_lossy().into_owned();
        x.assert_refused(&[&name], &[dir]);
        let before = snapshot(dir);
        let (output, status) = adopt(dir);
        assert_eq!(status, Some(1), "{output}");
        assert!(output.contains(&name), "{output}");
        assert_same(&before, &snapshot(dir), &output);
        // All of the other server's files.
        fs::rename(dir, dir.with_extension("own")).expect("renamed");
        copy_directory(theirs, dir);
        fs::remove_file(dir.join(MARK)).expect("removed");
        let before = snapshot(dir);
        let (output, status) = adopt(dir);
        assert_eq!(status, Some(1), "{output}");
        assert_same(&before, &snapshot(dir), &output);
        // No segment files: only the mark names the owner.
        fs::remove_dir_all(dir).expect("removed");
        fs::create_dir(dir).expect("created");
        fs::copy(theirs.join(MARK), dir.join(MARK)).expect("copied");
        let before = snapshot(dir);
        let (output, status) = adopt(dir);
        assert_eq!(status, Some(1), "{output}");
        assert_same(&before, &snapshot(dir), &output);
        fs::remove_dir_all(dir).expect("removed");
        fs::rename(dir.with_extension("own"), dir).expect("renamed");

        fs::write(&own, kept).expect("written");
        let (output, status) = adopt(dir);
        assert_eq!(status, Some(0), "{output}");
    }
    let (output, status) = adopt(&x.home);
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("neither hot.dir nor one of cold.dirs"), "{output}");
    x.assert_serves_all();
    x.assert_undamaged();
}

#[test]
fn adopting_the_empty_directory_gives_up_a_lost_disk_and_serves_the_rest() {
    let room = temp_dir();
    let x = TestSite::filled(room.path(), "x", 1);
    for marked in [false, true] {
        let mut site = x.clone();
        let home = room.path().join(format!("copy-{marked}"));
        copy_directory(&x.home, &home);
        site = TestSite { hot: home.join("hot"), cold: home.join("cold"), home, ..site };
        for segment in segments(&site.hot) {
            fs::remove_file(segment).expect("removed");
        }
        if !marked {
            remove_mark(&site.hot);
        }
        site.assert_refused(&["--adopt"], &[&site.hot, &site.cold]);
        let (output, status) =
            site.run_store_verb(&["repair", "D", "--adopt", &site.hot.display().to_string()]);
        assert_eq!(status, Some(0), "{output}");
        assert!(output.contains("missing"), "{output}");
        for _ in 0..2 {
            let server = site.start();
            let unread = site.unreadable(&server);
            assert!(unread.iter().all(|key| key.starts_with("hot")) && unread.len() == 12, "{unread:?}");
            server.stop();
        }
    }
}

/// Two segment files with the same name, one in each directory.
fn shared_name(own: &Path, theirs: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let names = |path: &std::path::PathBuf| theirs.join(path.file_name().expect("a name"));
    let pairs = segments(own).into_iter().map(|path| (path.clone(), names(&path)));
    let big = |path: &Path| fs::metadata(path).is_ok_and(|found| found.len() > 1000);
    pairs
        .into_iter()
        .find(|(own, theirs)| big(own) && big(theirs))
        .expect("both servers use the same numbering")
}
