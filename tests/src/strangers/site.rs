//! A server with directories that can be mixed up with those of another one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::content::TestContent;
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup, runtime};
pub(super) use crate::store::copy_directory;

pub(super) const BUCKET: &str = "strangers";

/// The expected objects by key.
pub(super) type SiteObjects = BTreeMap<String, TestContent>;

/// Names and bytes of the files below a directory.
pub(super) type FileSnapshot = BTreeMap<PathBuf, Vec<u8>>;

/// A server's directories and objects. Clones are other configurations of the same server.
#[derive(Clone)]
pub(super) struct TestSite {
    pub(super) home: PathBuf,
    pub(super) hot: PathBuf,
    pub(super) cold: PathBuf,
    pub(super) objects: SiteObjects,
}

/// A directory in memory for the sites of a test.
pub(super) fn temp_dir() -> TempDir {
    crate::crashes::directory_in_memory()
}

impl TestSite {
    /// A server that was never started.
    pub(super) fn new(room: &Path, name: &str) -> Self {
        let home = room.join(name);
        let (hot, cold) = (home.join("hot"), home.join("cold"));
        for dir in [&hot, &cold] {
            fs::create_dir_all(dir).expect("made");
        }
        Self { home, hot, cold, objects: SiteObjects::new() }
    }

    /// A server with sealed segments in both tiers. Sites with other `seed`s have the same keys, lengths and
    /// segment ids.
    pub(super) fn filled(room: &Path, name: &str, seed: u64) -> Self {
        let mut site = Self::new(room, name);
        let server = site.start();
        runtime().block_on(server.client().create_bucket(BUCKET)).expect("made");
        site.put(&server, "cold", 12, seed);
        server.stop();
        let server = site.start();
        site.run_command(&["tier", "drain", "hot", "--wait"]);
        site.put(&server, "hot", 12, seed);
        server.stop();
        site
    }

    pub(super) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.data().join("catalogue/log")
    }

    pub(super) fn setup(&self) -> ServerSetup {
        ServerSetup::new(self.data())
            .with("hot.dir", self.hot.display())
            .with("cold.dirs", self.cold.display())
            .with("cold.move_bytes_per_second", "10GiB")
            .with("hot.segment_bytes", "1MiB")
            .with("memory.capacity", "0")
    }

    /// The same server with another hot directory.
    pub(super) fn with_hot(&self, dir: &Path) -> Self {
        Self { hot: dir.to_owned(), ..self.clone() }
    }

    /// The same server with another cold directory.
    pub(super) fn with_cold(&self, dir: &Path) -> Self {
        Self { cold: dir.to_owned(), ..self.clone() }
    }

    pub(super) fn start(&self) -> ServerProcess {
        self.setup().start()
    }

    /// Runs a command against the running server; panics unless it succeeds. Returns its output.
    pub(super) fn run_command(&self, words: &[&str]) -> String {
        let (output, status) = self.setup().command(words);
        assert_eq!(status, Some(0), "{words:?}: {output}");
        output
    }

    /// Puts objects of every size, with the keys `KIND-0`, `KIND-1` and so on.
    pub(super) fn put(&mut self, server: &ServerProcess, kind: &str, count: u64, seed: u64) {
        let client = server.client();
        runtime().block_on(async {
            for n in 0..count {
                let length = [100, 5_000, 70_000, 400_000, 1_100_000][(n % 5) as usize];
                let content = TestContent { id: seed * 1_000_000 + n, length };
                let key = format!("{kind}-{n}");
                client.put(BUCKET, &key, full_body(content.bytes())).await.expect("stored");
                self.objects.insert(key, content);
            }
        });
    }

    /// Runs a `store` verb with these arguments, in which `D` is replaced by the data directory.
    pub(super) fn run_store_verb(&self, words: &[&str]) -> (String, Option<i32>) {
        let data = self.data().display().to_string();
        let words: Vec<&str> =
            words.iter().map(|word| if *word == "D" { data.as_str() } else { word }).collect();
        self.setup().store(&words)
    }

    /// The kinds of damage that a check finds.
    pub(super) fn damage_kinds(&self) -> Vec<String> {
        let (output, status) = self.run_store_verb(&["check", "D", "--output", "json"]);
        let document = serde_json::Deserializer::from_str(&output).into_iter::<serde_json::Value>().next();
        let document = document.and_then(Result::ok).unwrap_or_else(|| panic!("{output}"));
        let findings = document["findings"].as_array().expect("findings");
        let damage = findings.iter().filter(|finding| finding["severity"] == "damage");
        let kinds: Vec<String> =
            damage.map(|finding| finding["kind"].as_str().expect("a kind").to_owned()).collect();
        assert_eq!(status, Some(i32::from(!kinds.is_empty())), "{output}");
        kinds
    }

    /// Asserts that a check finds no damage.
    pub(super) fn assert_undamaged(&self) {
        assert_eq!(self.damage_kinds(), [""; 0], "{}", self.run_store_verb(&["check", "D"]).0);
    }

    /// Starts the server and asserts that it serves every object and no other.
    pub(super) fn assert_serves_all(&self) {
        let server = self.start();
        assert_eq!(self.unreadable_or_wrong(&server), [""; 0]);
        let listed = runtime().block_on(server.client().list(BUCKET, 1000)).expect("listed");
        assert_eq!(listed.len(), self.objects.len());
        server.stop();
    }

    /// The objects that cannot be read or have other bytes.
    pub(super) fn unreadable_or_wrong(&self, server: &ServerProcess) -> Vec<String> {
        let client = server.client();
        let read = |(key, content): (&String, &TestContent)| {
            (!matches!(runtime().block_on(read_object(&client, key, *content)), ReadResult::Right))
                .then(|| key.clone())
        };
        self.objects.iter().filter_map(read).collect()
    }

    /// The objects that cannot be read. Panics if an object has other bytes.
    pub(super) fn unreadable(&self, server: &ServerProcess) -> Vec<String> {
        let client = server.client();
        let read = |(key, content): (&String, &TestContent)| match runtime()
            .block_on(read_object(&client, key, *content))
        {
            ReadResult::Right => None,
            ReadResult::Fails => Some(key.clone()),
            ReadResult::Wrong(why) => panic!("{key} is served as valid: {why}"),
        };
        self.objects.iter().filter_map(read).collect()
    }

    /// Asserts that the server does not start, that its log contains each of `words`, and, if there is a data
    /// directory, that `store check` finds damage as well. Returns the log. Nothing in `untouched` changes.
    pub(super) fn assert_refused(&self, words: &[&str], untouched: &[&Path]) -> String {
        let before: Vec<FileSnapshot> = untouched.iter().map(|dir| snapshot(dir)).collect();
        if self.data().exists() {
            assert_ne!(self.damage_kinds(), [""; 0], "a check finds nothing");
        }
        let same = |what: &str| {
            for (dir, before) in untouched.iter().zip(&before) {
                assert_same(before, &snapshot(dir), &format!("{} after {what}", dir.display()));
            }
        };
        same("a check");
        let Err(failure) = self.setup().try_start() else { panic!("the server starts") };
        for word in words {
            assert!(failure.log.contains(word), "no {word:?} in\n{}", failure.log);
        }
        same("a start");
        failure.log
    }
}

/// The result of a read of an object.
enum ReadResult {
    Right,
    Fails,
    Wrong(String),
}

async fn read_object(client: &S3TestClient, key: &str, content: TestContent) -> ReadResult {
    match client.get(BUCKET, key).await {
        Ok(answer) => content.difference(&answer.body).map_or(ReadResult::Right, ReadResult::Wrong),
        Err(CallFailure::Refused { .. } | CallFailure::NoResponse(_)) => ReadResult::Fails,
    }
}

/// Names and bytes of all files below `dir`, except the ballast and the lock file.
pub(super) fn snapshot(dir: &Path) -> FileSnapshot {
    let mut found = FileSnapshot::new();
    add_files(dir, &mut found);
    found
}

fn add_files(dir: &Path, found: &mut FileSnapshot) {
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("listed").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            add_files(&path, found);
        } else if !["ballast", "LOCK"].contains(&name.as_str()) {
            // Reading a pipe would block forever.
            let bytes = if path.is_file() { fs::read(&path).expect("read") } else { Vec::new() };
            found.insert(path, bytes);
        }
    }
}

pub(super) fn assert_same(before: &FileSnapshot, after: &FileSnapshot, what: &str) {
    let names = |of: &FileSnapshot| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(before), names(after), "{what}");
    for (path, bytes) in before {
        assert!(after[path] == *bytes, "{what}: {} has other bytes", path.display());
    }
}

/// The segment files in a directory, in order.
pub(super) fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir).expect("listed").flatten().map(|e| e.path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    found.sort();
    found
}

/// Replaces `to` by a copy of `from`.
pub(super) fn replace(to: &Path, from: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).expect("removed");
    }
    copy_directory(from, to);
}
