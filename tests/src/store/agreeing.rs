//! A start and `store check` agree: if a check finds nothing, a start serves everything; if a start refuses,
//! a check finds the reason.
//!
//! Every file of a data directory is replaced by a directory, a named pipe and an empty file, and is
//! truncated. Nothing may hang, whatever is in a file's place.

use super::directories::{BUCKET, ExpectedObjects, copy_directory, directories, setup};
use super::{check, damage_in, path_text, run_store_json};
use crate::server::{StartFailure, runtime};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A damage done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileDamage {
    Directory,
    Pipe,
    Empty,
    /// Its last 20 bytes are cut off.
    Cut,
}

const FILE_DAMAGES: [FileDamage; 4] =
    [FileDamage::Directory, FileDamage::Pipe, FileDamage::Empty, FileDamage::Cut];

impl FileDamage {
    fn apply_to(self, path: &Path) {
        let length = fs::metadata(path).map_or(0, |found| found.len());
        if matches!(self, Self::Directory | Self::Pipe) {
            drop(fs::remove_file(path));
        }
        match self {
            Self::Directory => fs::create_dir(path).expect("made"),
            Self::Pipe => {
                let made = Command::new("mkfifo").arg(path).status().expect("mkfifo is part of coreutils");
                assert!(made.success());
            }
            Self::Empty => fs::write(path, "").expect("written"),
            Self::Cut => {
                let file = fs::OpenOptions::new().write(true).open(path).expect("opened");
                file.set_len(length.saturating_sub(20)).expect("cut");
            }
        }
    }
}

/// Every file below a directory, as a relative path.
fn files_below(dir: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir.join(below)).expect("listed") {
        let entry = entry.expect("listed");
        let path = below.join(entry.file_name());
        if entry.file_type().expect("known").is_dir() {
            files_below(dir, &path, found);
        } else {
            found.push(path);
        }
    }
}

/// The files to damage: one of each kind, and those that a start creates only later.
fn files_to_damage(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    files_below(dir, Path::new(""), &mut all);
    all.sort();
    // There are many segments, tables and the like; files of one kind differ only in the numbers in their
    // names.
    let kind = |path: &Path| -> String {
        let text = path.to_string_lossy().into_owned();
        text.split(['/', '-', '.']).filter(|word| word.parse::<u64>().is_err()).collect::<Vec<_>>().join("/")
    };
    let mut kinds = std::collections::BTreeMap::new();
    for path in all {
        // Checkpoints are copies: a start does not read them, and a repair cannot use a damaged one.
        let is_judged = !path.starts_with("checkpoints") && !path.starts_with("start-reserve");
        let is_of_process = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("LOG"));
        if is_judged && !is_of_process {
            kinds.insert(kind(&path), path);
        }
    }
    let later =
        ["deletions", "spacings", "scrub.json", "flash.json", "upstream-leftovers.json", "admin.json"];
    let later = later.into_iter().chain(["decisions.jsonl", "decisions.1.jsonl"]).map(PathBuf::from);
    let mut victims: Vec<PathBuf> = kinds.into_values().chain(later).collect();
    victims.sort();
    victims.dedup();
    victims
}

/// True if a server starts and serves everything, false if it starts and objects are missing.
fn serves_all(dir: &Path, objects: &ExpectedObjects) -> Result<bool, StartFailure> {
    let server = setup(dir).try_start()?;
    let all = runtime().block_on(async {
        let client = server.client();
        for (key, bytes) in objects {
            if client.get(BUCKET, key).await.is_ok_and(|found| found.body == *bytes) {
                continue;
            }
            return false;
        }
        true
    });
    server.stop();
    Ok(all)
}

#[test]
fn a_start_and_a_check_agree_whatever_is_in_a_files_place() {
    let made = directories();
    let mut disagreements = Vec::new();
    for (base, from) in [("stopped", &made.stopped), ("killed", &made.killed)] {
        for victim in files_to_damage(from) {
            for fate in FILE_DAMAGES {
                let dir = made.temp_dir.path().join("tried");
                copy_directory(from, &dir);
                if fate == FileDamage::Cut && !dir.join(&victim).exists() {
                    fs::remove_dir_all(&dir).expect("removed");
                    continue;
                }
                fate.apply_to(&dir.join(&victim));
                let case = format!("{base}: {} {fate:?}", victim.display());
                if victim == Path::new("LOCK") {
                    // A check that cannot take the lock reports only that.
                    let refused = super::run_store(&["check", path_text(&dir)]);
                    let starts = serves_all(&dir, &made.objects);
                    if refused.status.code() == Some(0) && starts.is_err() {
                        disagreements.push(case);
                    }
                } else {
                    let found = check(&dir);
                    // A start may repair the damage it finds, so the check comes first.
                    match serves_all(&dir, &made.objects) {
                        Err(_) if found.is_empty() => {
                            disagreements.push(format!("{case}: only the start refuses"))
                        }
                        Ok(false) if found.is_empty() => {
                            disagreements
                                .push(format!("{case}: something is lost, and a check finds nothing"));
                        }
                        Ok(true) if !found.is_empty() => {
                            disagreements.push(format!("{case}: all is served, and a check finds {found:?}"));
                        }
                        _ => {}
                    }
                }
                fs::remove_dir_all(&dir).expect("removed");
            }
        }
    }
    assert!(disagreements.is_empty(), "{disagreements:#?}");
}

#[test]
fn files_of_a_wrong_type_are_repaired_in_place_of_small_files_and_logs() {
    let made = directories();
    for name in ["flash.json", "decisions.jsonl", "deletions", "audit/audit.log", "admin.json"] {
        for fate in [FileDamage::Directory, FileDamage::Pipe] {
            let dir = made.temp_dir.path().join("tried");
            copy_directory(&made.stopped, &dir);
            fate.apply_to(&dir.join(name));
            assert!(serves_all(&dir, &made.objects).is_err(), "{name} {fate:?}");
            let (repaired, _) = run_store_json(&["repair", path_text(&dir)]);
            assert_eq!(damage_in(&repaired["left"]["findings"]), [""; 0], "{name} {fate:?}: {repaired:#}");
            assert!(serves_all(&dir, &made.objects).is_ok_and(|all| all), "{name} {fate:?}");
            fs::remove_dir_all(&dir).expect("removed");
        }
    }
}
