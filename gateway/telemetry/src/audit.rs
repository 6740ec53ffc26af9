//! Audit log: one JSON line for each change made through the admin API.
//!
//! A line contains the caller, its address, the action, the states before and after, and the outcome; never a
//! secret. Invariant: the line is on stable media before the caller receives the response. A file that
//! reaches its maximum length is renamed and a new one is begun; the oldest files are deleted. A power loss
//! may leave a partial last line, whose change was never acknowledged.

use crate::rotating::RotatingFile;
use mlgw_config::Audit;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Name of the current file, in the data directory's `audit`.
pub const FILE_NAME: &str = "audit.log";

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditLine {
    /// Time of the change, RFC 3339.
    pub time: String,
    /// Access key of the caller.
    pub who: String,
    /// Address of the caller.
    pub from: String,
    /// The action, such as `access.key.create`.
    pub action: String,
    /// The resource of the action.
    pub resource: String,
    /// State before the change; null if there was none.
    pub before: serde_json::Value,
    /// State after the change; null if there is none.
    pub after: serde_json::Value,
    /// `done`, or the reason of a failure.
    pub outcome: String,
}

/// Writer of the audit log. Clones share the file.
#[derive(Clone, Debug)]
pub struct AuditLog {
    file: Option<Arc<Mutex<RotatingFile>>>,
}

impl AuditLog {
    /// Opens the log in `dir`, which is created if it does not exist.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn open(dir: &Path, settings: &Audit) -> io::Result<Self> {
        if !settings.enabled {
            return Ok(Self { file: None });
        }
        let rotating = RotatingFile::open(dir, FILE_NAME, settings.file_bytes_max.0, settings.files_max)?;
        Ok(Self { file: Some(Arc::new(Mutex::new(rotating))) })
    }

    /// Writes a line and syncs it.
    ///
    /// # Errors
    /// Returns an error if the line may not be on stable media.
    pub async fn write(&self, line: AuditLine) -> io::Result<()> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        let written = tokio::task::spawn_blocking(move || {
            let mut file = file.lock();
            file.append(&text)?;
            file.sync()
        });
        written.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::{AuditLine, AuditLog, FILE_NAME};
    use mlgw_common::ByteSize;
    use mlgw_config::Audit;
    use std::path::Path;

    fn line(resource: &str) -> AuditLine {
        AuditLine {
            time: "2026-11-20T00:00:00.000Z".into(),
            who: "AK".into(),
            from: "127.0.0.1:1".into(),
            action: "bucket.create".into(),
            resource: resource.into(),
            before: serde_json::Value::Null,
            after: serde_json::json!({"name": resource}),
            outcome: "done".into(),
        }
    }

    fn open(dir: &Path, bytes: u64, files: u64) -> AuditLog {
        let settings = Audit { enabled: true, file_bytes_max: ByteSize(bytes), files_max: files };
        AuditLog::open(dir, &settings).unwrap()
    }

    fn resources(dir: &Path, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(dir.join(name)).unwrap();
        let whole = text.lines().filter_map(|line| serde_json::from_str::<AuditLine>(line).ok());
        whole.map(|line| line.resource).collect()
    }

    #[tokio::test]
    async fn lines_survive_restarts_and_a_torn_line_damages_no_other() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), 1 << 20, 3).write(line("a")).await.unwrap();
        let path = dir.path().join(FILE_NAME);
        let torn = std::fs::read_to_string(&path).unwrap() + "{\"time\":\"20";
        std::fs::write(&path, torn).unwrap();
        open(dir.path(), 1 << 20, 3).write(line("b")).await.unwrap();
        assert_eq!(resources(dir.path(), FILE_NAME), ["a", "b"]);
    }

    #[tokio::test]
    async fn files_rotate_at_their_length_and_the_oldest_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path(), 1, 3);
        for resource in ["a", "b", "c", "d"] {
            log.write(line(resource)).await.unwrap();
        }
        assert_eq!(resources(dir.path(), FILE_NAME), ["d"]);
        assert_eq!(resources(dir.path(), "audit.log.1"), ["c"]);
        assert_eq!(resources(dir.path(), "audit.log.2"), ["b"]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        let single = open(dir.path(), 1, 1);
        single.write(line("e")).await.unwrap();
        assert_eq!(resources(dir.path(), FILE_NAME), ["e"]);
    }

    #[tokio::test]
    async fn a_log_that_is_off_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Audit { enabled: false, file_bytes_max: ByteSize(1), files_max: 1 };
        AuditLog::open(&dir.path().join("audit"), &settings).unwrap().write(line("a")).await.unwrap();
        assert!(!dir.path().join("audit").exists());
    }
}
