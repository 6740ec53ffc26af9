//! A memory limit for a server: a cgroup of version 1 or 2, whichever the machine supports.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup of this test, removed when dropped. Its server must be stopped first.
pub(super) struct MemoryLimit {
    dir: PathBuf,
    events: &'static str,
}

impl MemoryLimit {
    /// Creates a group whose processes together may use `bytes` of memory.
    ///
    /// # Errors
    /// The reasons why neither version can be created.
    pub(super) fn new(bytes: u64) -> Result<Self, String> {
        Self::named("limits", bytes)
    }

    /// Like [`MemoryLimit::new`], with a name that is unique among the tests of this process.
    ///
    /// # Errors
    /// See [`MemoryLimit::new`].
    pub(super) fn named(test: &str, bytes: u64) -> Result<Self, String> {
        let name = format!("mlgw-test-{}-{test}", std::process::id());
        version_1(&name, bytes)
            .or_else(|first| version_2(&name, bytes).map_err(|second| format!("{first}; {second}")))
    }

    /// Returns the shell command that moves its process into the group.
    pub(super) fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs || exit 99", self.dir.display())
    }

    /// Returns the number of processes that the kernel killed for lack of memory.
    pub(super) fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join(self.events)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Returns the peak memory in bytes, the page cache included.
    pub(super) fn peak(&self) -> u64 {
        let read = |name| fs::read_to_string(self.dir.join(name)).ok();
        let text = read("memory.peak").or_else(|| read("memory.max_usage_in_bytes")).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Returns the anonymous memory of the processes in bytes. The kernel cannot reclaim it, unlike the
    /// page cache.
    pub(super) fn anonymous_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        // Version 1 has the first field, version 2 the second.
        value("total_rss ").or_else(|| value("anon ")).unwrap_or(0)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("removing {}: {error}", self.dir.display());
        }
    }
}

fn version_1(name: &str, bytes: u64) -> Result<MemoryLimit, String> {
    let dir = Path::new("/sys/fs/cgroup/memory").join(name);
    make(&dir, "memory.limit_in_bytes", bytes)?;
    // Swap must not extend the limit, where the kernel accounts for it.
    drop(fs::write(dir.join("memory.memsw.limit_in_bytes"), bytes.to_string()));
    Ok(MemoryLimit { dir, events: "memory.oom_control" })
}

fn version_2(name: &str, bytes: u64) -> Result<MemoryLimit, String> {
    let root = Path::new("/sys/fs/cgroup");
    drop(fs::write(root.join("cgroup.subtree_control"), "+memory"));
    let dir = root.join(name);
    make(&dir, "memory.max", bytes)?;
    drop(fs::write(dir.join("memory.swap.max"), "0"));
    Ok(MemoryLimit { dir, events: "memory.events" })
}

fn make(dir: &Path, file: &str, bytes: u64) -> Result<(), String> {
    let parent = dir.parent().expect("below the root of cgroups");
    if !parent.join("cgroup.procs").exists() {
        return Err(format!("{} is not a cgroup", parent.display()));
    }
    fs::create_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    fs::write(dir.join(file), bytes.to_string()).map_err(|error| {
        drop(fs::remove_dir(dir));
        format!("{}/{file}: {error}", dir.display())
    })
}
