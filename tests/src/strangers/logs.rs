//! The write-ahead log: stale, emptied, removed, cut, another server's, another timeline's.
//!
//! With any replacement of the log, a start serves everything or refuses and changes nothing, and a check
//! agrees with the start. Accepting the loss of the log's tail names every object that is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::site::{BUCKET, FileSnapshot, TestSite, assert_same, copy_directory, replace, snapshot, temp_dir};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::runtime;

/// Logs of the same server at an earlier time, of another server, and of another timeline.
pub(super) struct ForeignLogs {
    earlier: PathBuf,
    /// The logs of a server that has done less, and of one that has done more.
    less: PathBuf,
    more: PathBuf,
    /// The log of a restored copy that continued.
    restored: PathBuf,
}

/// A replacement of a log: its description, and the function that applies it.
pub(super) type LogDamage = (&'static str, fn(&Path, &ForeignLogs));

pub(super) const LOG_DAMAGES: &[LogDamage] = &[
    ("an earlier log", |log, logs| replace(log, &logs.earlier)),
    ("the log of a server that has done less", |log, logs| replace(log, &logs.less)),
    ("the log of a server that has done more", |log, logs| replace(log, &logs.more)),
    ("the log of a restored copy", |log, logs| replace(log, &logs.restored)),
    ("its write-ahead logs emptied", |log, _| {
        for file in write_ahead_logs(log) {
            fs::write(file, "").expect("emptied");
        }
    }),
    ("its write-ahead logs removed", |log, _| {
        for file in write_ahead_logs(log) {
            fs::remove_file(file).expect("removed");
        }
    }),
    ("its write-ahead logs cut in half", |log, _| {
        for file in write_ahead_logs(log) {
            let length = fs::metadata(&file).expect("exists").len();
            fs::OpenOptions::new()
                .write(true)
                .open(file)
                .and_then(|file| file.set_len(length / 2))
                .expect("cut");
        }
    }),
    ("another server's write-ahead log", |log, logs| replace_newest_write_ahead_log(log, &logs.less)),
    ("a longer write-ahead log of another server", |log, logs| {
        replace_newest_write_ahead_log(log, &logs.more)
    }),
    ("an earlier write-ahead log", |log, logs| replace_newest_write_ahead_log(log, &logs.earlier)),
    ("the log removed", |log, _| fs::remove_dir_all(log).expect("removed")),
    ("an empty directory", |log, _| {
        fs::remove_dir_all(log).expect("removed");
        fs::create_dir(log).expect("made");
    }),
];

fn write_ahead_logs(log: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(log).expect("listed").flatten().map(|e| e.path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    found.sort();
    found
}

/// Replaces the newest write-ahead log of `log` by that of `of`.
fn replace_newest_write_ahead_log(log: &Path, of: &Path) {
    let newest = |dir: &Path| write_ahead_logs(dir).pop().expect("one exists");
    fs::copy(newest(of), newest(log)).expect("copied");
}

/// A server that was stopped and one that was killed after more writes, and logs to replace theirs.
pub(super) fn sites(room: &Path) -> ([(&'static str, TestSite); 2], ForeignLogs) {
    let mut site = TestSite::filled(room, "x", 1);
    let backup = room.join("backup");
    assert_eq!(site.run_store_verb(&["backup", "D", &backup.display().to_string()]).1, Some(0));
    let keep = |name: &str, site: &TestSite| {
        let kept = room.join(name);
        copy_directory(&site.log(), &kept);
        kept
    };
    let earlier = keep("earlier", &site);
    let mut restored = TestSite { objects: site.objects.clone(), ..TestSite::new(room, "restored") };
    assert_eq!(restored.run_store_verb(&["restore", &backup.display().to_string(), "D"]).1, Some(0));
    let (mut less, mut more) = (TestSite::new(room, "less"), TestSite::filled(room, "more", 2));
    runtime().block_on(async {
        let server = less.start();
        server.client().create_bucket(BUCKET).await.expect("made");
        server.stop();
    });
    for site in [&mut restored, &mut less, &mut more] {
        let mut server = site.start();
        site.put(&server, "later", 40, 4);
        server.kill();
    }
    let logs = ForeignLogs {
        earlier,
        less: keep("less.log", &less),
        more: keep("more.log", &more),
        restored: keep("restored.log", &restored),
    };
    let mut server = site.start();
    site.put(&server, "killed", 30, 3);
    // The floor is updated within a second; segments carry data as fresh as the last write before it.
    mlgw_common::time::block_for(std::time::Duration::from_millis(1500));
    server.kill();
    let killed = clone_of(&site, &room.join("killed"));
    let server = site.start();
    site.put(&server, "stopped", 5, 6);
    server.stop();
    ([("killed", killed), ("stopped", site)], logs)
}

/// A copy of a server's directories.
pub(super) fn clone_of(site: &TestSite, home: &Path) -> TestSite {
    if home.exists() {
        fs::remove_dir_all(home).expect("removed");
    }
    copy_directory(&site.home, home);
    TestSite {
        home: home.to_owned(),
        hot: home.join("hot"),
        cold: home.join("cold"),
        objects: site.objects.clone(),
    }
}

/// The files of the log; empty if there is no log.
fn log_snapshot(site: &TestSite) -> FileSnapshot {
    if site.log().exists() { snapshot(&site.log()) } else { FileSnapshot::new() }
}

#[test]
fn with_any_foreign_log_a_start_serves_everything_or_refuses_and_a_check_agrees() {
    let room = temp_dir();
    let (sites, logs) = sites(room.path());
    let mut wrong = Vec::new();
    for (base, site) in &sites {
        for (what, harm) in LOG_DAMAGES {
            let case = format!("{base}: {what}");
            let tried = clone_of(site, &room.path().join("tried"));
            harm(&tried.log(), &logs);
            let damage = tried.damage_kinds();
            let before = [log_snapshot(&tried), snapshot(&tried.hot)];
            match tried.setup().try_start() {
                Ok(server) => {
                    let unread = tried.unreadable_or_wrong(&server);
                    if !unread.is_empty() || !damage.is_empty() {
                        wrong.push(format!("{case}: it starts without {unread:?}; a check finds {damage:?}"));
                    }
                }
                Err(failure) => {
                    if damage.is_empty() {
                        wrong.push(format!("{case}: a check finds nothing: {}", failure.log));
                    }
                    if !failure.log.contains("mlgw store") {
                        wrong.push(format!("{case}: the refusal does not name a remedy: {}", failure.log));
                    }
                    for (before, after) in before.iter().zip([log_snapshot(&tried), snapshot(&tried.hot)]) {
                        assert_same(before, &after, &case);
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn accepting_a_lost_tail_names_missing_objects_and_later_writes_are_intact() {
    let room = temp_dir();
    let (sites, logs) = sites(room.path());
    let mut wrong = Vec::new();
    for (base, site) in &sites {
        for (what, harm) in LOG_DAMAGES {
            let case = format!("{base}: {what}");
            let mut tried = clone_of(site, &room.path().join("tried"));
            harm(&tried.log(), &logs);
            if tried.damage_kinds().is_empty() {
                let (output, status) = tried.run_store_verb(&["repair", "D", "--accept-lost-tail"]);
                assert_eq!(status, Some(1), "{case}: nothing is lost: {output}");
                continue;
            }
            let (output, status) = tried.run_store_verb(&["repair", "D", "--accept-lost-tail"]);
            if what.contains("server") || what.contains("copy") {
                // Another server's log is not a log that lost its tail.
                if status == Some(0) {
                    wrong.push(format!("{case}: accepted: {output}"));
                }
                continue;
            }
            if status != Some(0) {
                wrong.push(format!("{case}: not accepted: {output}"));
                continue;
            }
            let server = match tried.setup().try_start() {
                Ok(server) => server,
                Err(failure) => {
                    wrong.push(format!("{case}: no start after {output}: {}", failure.log));
                    continue;
                }
            };
            let named: BTreeSet<String> = output.lines().filter_map(missing_key).collect();
            let lost: BTreeSet<String> = tried.unreadable_or_wrong(&server).into_iter().collect();
            if !lost.is_subset(&named) {
                let unnamed: Vec<_> = lost.difference(&named).collect();
                wrong.push(format!("{case}: missing and not named: {unnamed:?}; {output}"));
            }
            // Later writes must not collide with the lost ones, in segments or in the catalogue.
            tried.objects.retain(|key, _| !lost.contains(key));
            tried.put(&server, "after", 12, 7);
            for key in &lost {
                let content = TestContent { id: 77, length: 3_000 };
                runtime()
                    .block_on(server.client().put(BUCKET, key, full_body(content.bytes())))
                    .expect("stored");
                tried.objects.insert(key.clone(), content);
            }
            drop(server);
            let server = tried.start();
            let unread = tried.unreadable_or_wrong(&server);
            if !unread.is_empty() {
                wrong.push(format!("{case}: written later and wrong: {unread:?}"));
            }
            server.stop();
            let damage = tried.damage_kinds();
            if !damage.is_empty() {
                wrong.push(format!("{case}: {}", tried.run_store_verb(&["check", "D"]).0));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The key named by a line of the list of missing objects.
fn missing_key(line: &str) -> Option<String> {
    let (_, key) = line.strip_prefix("missing ")?.split_once("key \"")?;
    Some(key.trim_end_matches('"').to_owned())
}
