//! States, checkpoints and node descriptions of other servers and other times, and states rebuilt from
//! checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use super::logs::{ForeignLogs, LOG_DAMAGES, clone_of, sites};
use super::site::{BUCKET, TestSite, assert_same, copy_directory, replace, snapshot, temp_dir};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::runtime;

/// A directory of the same server at an earlier time, and those of another server and of a restored copy.
struct ForeignDirectories {
    earlier: PathBuf,
    other: PathBuf,
    restored: PathBuf,
}

/// A replacement of files of the directory: its description, and the function that applies it.
type CatalogueDamage = (&'static str, fn(&Path, &ForeignDirectories));

const CATALOGUE_DAMAGES: &[CatalogueDamage] = &[
    ("the state of another server", |dir, of| replace_part(dir, &of.other, "catalogue/group-0")),
    ("the state of a restored copy", |dir, of| replace_part(dir, &of.restored, "catalogue/group-0")),
    ("an earlier state", |dir, of| replace_part(dir, &of.earlier, "catalogue/group-0")),
    ("no state", |dir, _| fs::remove_dir_all(dir.join("catalogue/group-0")).expect("removed")),
    ("the catalogue of another server", |dir, of| replace_part(dir, &of.other, "catalogue")),
    ("the catalogue of a restored copy", |dir, of| replace_part(dir, &of.restored, "catalogue")),
    ("an earlier catalogue", |dir, of| replace_part(dir, &of.earlier, "catalogue")),
    ("no catalogue", |dir, _| fs::remove_dir_all(dir.join("catalogue")).expect("removed")),
    ("the description of another server", |dir, of| replace_part(dir, &of.other, "node.json")),
    ("the description of a restored copy", |dir, of| replace_part(dir, &of.restored, "node.json")),
    ("the floor of another server", |dir, of| replace_part(dir, &of.other, "catalogue/floor")),
    ("an earlier floor", |dir, of| replace_part(dir, &of.earlier, "catalogue/floor")),
    ("no floor", |dir, _| fs::remove_file(dir.join("catalogue/floor")).expect("removed")),
    ("the checkpoints of another server", |dir, of| replace_part(dir, &of.other, "checkpoints")),
    ("the checkpoints of a restored copy", |dir, of| replace_part(dir, &of.restored, "checkpoints")),
    ("earlier checkpoints", |dir, of| replace_part(dir, &of.earlier, "checkpoints")),
];

fn replace_part(dir: &Path, from: &Path, what: &str) {
    match from.join(what).is_dir() {
        true => replace(&dir.join(what), &from.join(what)),
        false => drop(fs::copy(from.join(what), dir.join(what)).expect("copied")),
    }
}

/// A server with checkpoints, and the directories of others.
fn site_with_others(room: &Path) -> (TestSite, ForeignDirectories) {
    let mut site = TestSite::filled(room, "x", 1);
    with_checkpoint(&site);
    let backup = room.join("backup");
    assert_eq!(site.run_store_verb(&["backup", "D", &backup.display().to_string()]).1, Some(0));
    let mut restored = TestSite { objects: site.objects.clone(), ..TestSite::new(room, "restored") };
    assert_eq!(restored.run_store_verb(&["restore", &backup.display().to_string(), "D"]).1, Some(0));
    let server = restored.start();
    restored.put(&server, "later", 10, 4);
    server.stop();
    with_checkpoint(&restored);
    let other = TestSite::filled(room, "other", 2);
    with_checkpoint(&other);
    let earlier = room.join("earlier");
    copy_directory(&site.data(), &earlier);
    let server = site.start();
    site.put(&server, "last", 10, 3);
    server.stop();
    with_checkpoint(&site);
    (site, ForeignDirectories { earlier, other: other.data(), restored: restored.data() })
}

/// Runs a server until it has made a checkpoint of everything.
fn with_checkpoint(site: &TestSite) {
    let newest = || {
        let names = fs::read_dir(site.data().join("checkpoints")).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse::<u64>().ok()).max()
    };
    let before = newest();
    let server = site.setup().with("catalogue.checkpoint_interval", "50ms").start();
    let client = server.client();
    while newest() == before {
        runtime().block_on(client.create_bucket("for-a-checkpoint")).ok();
        runtime().block_on(client.put("for-a-checkpoint", "key", full_body("bytes"))).expect("stored");
    }
    server.stop();
}

#[test]
fn with_any_foreign_catalogue_a_start_serves_everything_or_refuses_and_a_check_agrees() {
    let room = temp_dir();
    let (site, others) = site_with_others(room.path());
    let mut wrong = Vec::new();
    for (what, harm) in CATALOGUE_DAMAGES {
        let tried = clone_of(&site, &room.path().join("tried"));
        harm(&tried.data(), &others);
        let damage = tried.damage_kinds();
        let before = [snapshot(&tried.hot), snapshot(&tried.cold)];
        match tried.setup().try_start() {
            Ok(server) => {
                let unread = tried.unreadable_or_wrong(&server);
                if !unread.is_empty() {
                    wrong.push(format!("{what}: it starts without {unread:?}; a check finds {damage:?}"));
                }
                if !damage.is_empty() {
                    wrong.push(format!("{what}: it starts; a check finds {damage:?}"));
                }
            }
            Err(failure) => {
                if damage.is_empty() {
                    wrong.push(format!("{what}: a check finds nothing: {}", failure.log));
                }
                for (before, dir) in before.iter().zip([&tried.hot, &tried.cold]) {
                    assert_same(before, &snapshot(dir), what);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    site.assert_serves_all();
}

#[test]
fn nothing_is_rebuilt_from_the_checkpoints_of_another_server() {
    let room = temp_dir();
    let (site, others) = site_with_others(room.path());
    for foreign in [&others.other, &others.restored] {
        for verb in [&["repair", "D"][..], &["rebuild", "D"], &["rebuild", "D", "--without-log"]] {
            let tried = clone_of(&site, &room.path().join("tried"));
            replace_part(&tried.data(), foreign, "checkpoints");
            damage_a_table(&tried.data());
            let (before, theirs) =
                (snapshot(&tried.data().join("catalogue")), snapshot(&tried.data().join("checkpoints")));
            let (output, status) = tried.run_store_verb(verb);
            assert_eq!(status, Some(1), "{verb:?}: {output}");
            assert_same(&before, &snapshot(&tried.data().join("catalogue")), &output);
            assert_same(&theirs, &snapshot(&tried.data().join("checkpoints")), &output);
            replace_part(&tried.data(), &site.data(), "checkpoints");
            let (output, status) = tried.run_store_verb(&["repair", "D"]);
            assert_eq!(status, Some(0), "{output}");
            let server = tried.start();
            assert_eq!(tried.unreadable_or_wrong(&server), [""; 0]);
            server.stop();
        }
    }
}

fn damage_a_table(dir: &Path) {
    let group = dir.join("catalogue/group-0");
    let state = fs::read_dir(group).expect("listed").flatten().map(|e| e.path()).max().expect("a state");
    let tables = fs::read_dir(state).expect("listed").flatten().map(|e| e.path());
    let tables = tables.filter(|path| path.extension().is_some_and(|extension| extension == "sst"));
    let table = tables.max_by_key(|path| fs::metadata(path).expect("exists").len()).expect("a table");
    let mut bytes = fs::read(&table).expect("read");
    bytes[50] ^= 0x10;
    fs::write(table, bytes).expect("written");
}

#[test]
fn with_any_foreign_log_a_rebuild_restores_everything_or_refuses() {
    let room = temp_dir();
    let (sites, logs) = sites(room.path());
    let mut wrong = Vec::new();
    for (base, site) in &sites {
        for (what, harm) in LOG_DAMAGES {
            let case = format!("{base}: {what}");
            let tried = rebuilt(site, &room.path().join("tried"), &logs, *harm);
            let Some((mut tried, output)) = tried else { continue };
            let server = match tried.setup().try_start() {
                Ok(server) => server,
                Err(failure) => {
                    wrong.push(format!("{case}: no start after {output}: {}", failure.log));
                    continue;
                }
            };
            let lost = tried.unreadable_or_wrong(&server);
            if !lost.is_empty() {
                wrong.push(format!("{case}: {output}: without {lost:?}"));
                continue;
            }
            tried.put(&server, "after", 12, 7);
            server.stop();
            let server = tried.start();
            assert_eq!(tried.unreadable_or_wrong(&server), [""; 0], "{case}");
            server.stop();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A copy of a server whose state was rebuilt beside such a log, and the output of the verb; `None` if the
/// verb refused.
fn rebuilt(
    site: &TestSite,
    home: &Path,
    logs: &ForeignLogs,
    harm: fn(&Path, &ForeignLogs),
) -> Option<(TestSite, String)> {
    let tried = clone_of(site, home);
    harm(&tried.log(), logs);
    let before = snapshot(&tried.data().join("catalogue"));
    let (output, status) = tried.run_store_verb(&["rebuild", "D"]);
    if status != Some(0) {
        assert_same(&before, &snapshot(&tried.data().join("catalogue")), &output);
        return None;
    }
    Some((tried, output))
}

#[test]
fn writes_after_a_rebuild_without_the_log_do_not_collide_with_lost_ones() {
    let room = temp_dir();
    let (site, _) = site_with_others(room.path());
    let mut tried = clone_of(&site, &room.path().join("tried"));
    let mut server = tried.start();
    tried.put(&server, "lost", 12, 8);
    server.kill();
    fs::remove_dir_all(tried.log()).expect("removed");
    let identity = || fs::read_to_string(tried.data().join("node.json")).expect("read");
    let before = identity();
    let (output, status) = tried.run_store_verb(&["rebuild", "D", "--without-log"]);
    assert_eq!(status, Some(0), "{output}");
    assert_ne!(before, identity(), "a new incarnation");
    let server = tried.start();
    let lost = tried.unreadable_or_wrong(&server);
    assert!(lost.iter().all(|key| key.starts_with("lost")) && lost.len() == 12, "{lost:?}");
    tried.objects.retain(|key, _| !lost.contains(key));
    tried.put(&server, "after", 12, 9);
    for key in &lost {
        let content = TestContent { id: 99, length: 2_000 };
        runtime().block_on(server.client().put(BUCKET, key, full_body(content.bytes()))).expect("stored");
        tried.objects.insert(key.clone(), content);
    }
    server.stop();
    tried.assert_serves_all();
    tried.assert_undamaged();
}

#[test]
fn the_checkpoint_directory_of_another_server_is_refused_unchanged() {
    let room = temp_dir();
    let (site, others) = site_with_others(room.path());
    let fresh = TestSite::new(room.path(), "fresh");
    for theirs in [&others.other, &others.restored] {
        let dir = theirs.join("checkpoints");
        for marked in [true, false] {
            if !marked {
                fs::remove_file(dir.join("owner")).expect("one existed");
            }
            let before = snapshot(&dir);
            for site in [&site, &fresh] {
                let setup = site
                    .setup()
                    .with("catalogue.checkpoint_dir", dir.display())
                    .with("catalogue.checkpoint_interval", "50ms");
                let Err(failure) = setup.try_start() else { panic!("the server starts") };
                assert!(failure.log.contains(&dir.display().to_string()), "{}", failure.log);
                assert_same(&before, &snapshot(&dir), &failure.log);
                if site.data().join("catalogue/group-0").exists() {
                    let data = site.data().display().to_string();
                    let (output, status) = setup.store(&["check", &data]);
                    assert_eq!(status, Some(1), "{output}");
                }
            }
        }
    }
    site.assert_serves_all();
}
