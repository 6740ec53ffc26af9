//! Access journal: records the accesses that the policy engine receives, so that the engine regains its
//! knowledge after a restart.
//!
//! The journal consists of files `journal/000001.mlgwtrace` and so on in the data directory;
//! [`AccessJournal::open`] replays them to the engine. The number of files is limited and the oldest are
//! removed, so old accesses are forgotten. No read or write of a client waits for the journal. A damaged file
//! is replayed up to the damage. A power loss destroys the accesses of the last seconds. No stored data
//! depends on the journal.

use crate::trace_files::{PIECES_WAITING_MAX, file_name, files, write};
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_common::limits::{ACCESS_JOURNAL_FILE_BYTES, KIB};
use mlgw_common::regular;
use mlgw_policies::trace::{HEADER_BYTES, TraceReader};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::task::JoinHandle as Task;

/// Interval at which buffered accesses are passed to the disk.
const FLUSH_EVERY: Duration = Duration::from_secs(5);
const PIECE_BYTES: usize = 256 * KIB as usize;
/// Directory of the journal in the data directory, and its name in directories of earlier servers.
const DIRECTORY: &str = "journal";
const EARLIER_DIRECTORY: &str = "diary";

/// Access journal of a server.
pub struct AccessJournal {
    policy_driver: PolicyDriver,
    /// Flush task and writer thread; `None` if the journal is disabled.
    writing: Option<(Task<()>, JoinHandle<io::Result<()>>)>,
}

impl AccessJournal {
    /// Replays the journal to the engine, and records further accesses in at most about `bytes_max` bytes,
    /// rounded up to two files or more. With 0 nothing is recorded and the journal is removed. Must be called
    /// within a tokio runtime, before the first request.
    ///
    /// # Errors
    /// If the directory cannot be created or read. An unreadable file is skipped.
    pub fn open(data_dir: &Path, policy_driver: PolicyDriver, bytes_max: u64) -> io::Result<Self> {
        let dir = directory(data_dir)?;
        if bytes_max == 0 {
            remove_directory(&dir)?;
            return Ok(Self { policy_driver, writing: None });
        }
        fs::create_dir_all(&dir)?;
        let known = files(&dir)?;
        let mut replayed = 0;
        for (number, _) in &known {
            let path = dir.join(file_name(*number));
            match replay_file(&path, &policy_driver) {
                Ok(accesses) => replayed += accesses,
                Err(error) => {
                    tracing::warn!(
                        file = %path.display(), %error,
                        "cannot read the rest of an access journal file"
                    )
                }
            }
        }
        tracing::info!(accesses = replayed, "access journal replayed");
        let last = known.last().map_or(0, |(number, _)| *number);
        let writing = begin(dir, last, bytes_max.div_ceil(ACCESS_JOURNAL_FILE_BYTES).max(2), &policy_driver)?;
        Ok(Self { policy_driver, writing: Some(writing) })
    }

    /// Writes all buffered accesses to disk and closes the journal. Blocks the calling thread.
    pub fn close(self) {
        let Some((flushing, writer)) = self.writing else { return };
        flushing.abort();
        self.policy_driver.end_access_journal();
        if let Ok(Err(error)) = writer.join() {
            tracing::warn!(%error, "the last accesses are missing in the access journal");
        }
    }
}

/// Returns the directory of the journal. That of an earlier server takes its name; it is removed if both
/// exist, because an earlier server ran in between and its accesses are older.
fn directory(data_dir: &Path) -> io::Result<PathBuf> {
    let (dir, earlier) = (data_dir.join(DIRECTORY), data_dir.join(EARLIER_DIRECTORY));
    if dir.try_exists()? {
        remove_directory(&earlier)?;
    } else if earlier.try_exists()? {
        fs::rename(earlier, &dir)?;
    }
    Ok(dir)
}

fn remove_directory(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn begin(
    dir: PathBuf,
    after: u64,
    files_max: u64,
    policy_driver: &PolicyDriver,
) -> io::Result<(Task<()>, JoinHandle<io::Result<()>>)> {
    let (pieces, taken) = sync_channel(PIECES_WAITING_MAX);
    let writer =
        thread::Builder::new().name("journal".into()).spawn(move || write(&dir, after, files_max, &taken))?;
    // If the disk cannot keep up, pieces are dropped; the engine has received their accesses all the same.
    policy_driver.start_access_journal(
        ACCESS_JOURNAL_FILE_BYTES,
        Box::new(move |piece| pieces.try_send(piece).is_ok()),
    );
    let policy_driver = policy_driver.clone();
    let flushing = tokio::spawn(async move {
        loop {
            mlgw_common::time::sleep(FLUSH_EVERY).await;
            if !policy_driver.flush_access_journal() {
                tracing::warn!("access journal stopped: the disk is too slow");
                policy_driver.end_access_journal();
                return;
            }
        }
    });
    Ok((flushing, writer))
}

/// Replays a file to the engine. Returns the number of accesses.
fn replay_file(path: &Path, policy_driver: &PolicyDriver) -> io::Result<u64> {
    let (mut file, mut reader) = (regular::open(path)?, TraceReader::new());
    let mut piece = vec![0; PIECE_BYTES];
    let mut accesses = 0;
    let head = file.read(&mut piece[..HEADER_BYTES])?;
    reader.push(&piece[..head]);
    if reader.read().map_err(io::Error::other)?.is_some() {
        return Err(io::Error::other("the header is missing"));
    }
    // Not even the header of the file reached the disk.
    let Some(began_ms) = reader.began_ms() else { return Ok(0) };
    loop {
        let bytes = file.read(&mut piece)?;
        reader.push(&piece[..bytes]);
        while let Some(access) = reader.read().map_err(io::Error::other)? {
            policy_driver.replay(began_ms, &access);
            accesses += 1;
        }
        if bytes == 0 {
            return Ok(accesses);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AccessJournal, DIRECTORY, EARLIER_DIRECTORY};
    use mlgw_cache::policy_driver::PolicyDriver;
    use mlgw_cache::policy_driver::{ObservedRequest, PolicyRequestContext};
    use mlgw_common::limits::{ACCESS_JOURNAL_FILE_BYTES, MIB};
    use mlgw_common::{BucketId, Clock as _, ObjectKey, SystemClock};
    use mlgw_policies::language::{Phase, Program};
    use mlgw_policies::{Caller, Op};
    use std::path::Path;
    use std::sync::Arc;

    fn new_policy_driver() -> PolicyDriver {
        PolicyDriver::new(1 << 16, Arc::new(Program::compile_built_in().unwrap()), &SystemClock)
    }

    fn open(dir: &Path, bytes_max: u64) -> AccessJournal {
        AccessJournal::open(dir, new_policy_driver(), bytes_max).unwrap()
    }

    /// Reads a dataset once, in order.
    fn pass(policy_driver: &PolicyDriver, objects: u64) {
        for n in 0..objects {
            let key = ObjectKey::new(&format!("train/{n:05}.jpg")).unwrap();
            let context = PolicyRequestContext::of_caller(Caller { id: 1, family: 2 });
            policy_driver.record_access(
                &ObservedRequest { context, bucket: BucketId(3), key: &key, op: Op::Read, size: 10 },
                0..10,
            );
        }
    }

    fn known(policy_driver: &PolicyDriver) -> Option<(u32, Option<Phase>, u64)> {
        policy_driver.with_engine(|decider, _| {
            let workload = decider.workloads.get(2)?;
            Some((workload.datasets[0].passes, workload.phase, workload.items))
        })
    }

    #[tokio::test]
    async fn knowledge_survives_a_restart_and_counting_continues() {
        let room = tempfile::tempdir().unwrap();
        let first = open(room.path(), 16 * MIB);
        (0..2).for_each(|_| pass(&first.policy_driver, 300));
        let before = known(&first.policy_driver);
        let began_ms = first.policy_driver.began_ms();
        first.close();
        let second = open(room.path(), 16 * MIB);
        assert!(before.is_some() && known(&second.policy_driver) == before);
        assert!(
            second.policy_driver.began_ms() >= began_ms
                && second.policy_driver.began_ms() < began_ms + 3_600_000
        );
        pass(&second.policy_driver, 300);
        let (passes, phase, _) = known(&second.policy_driver).unwrap();
        assert_eq!((passes, phase), (before.unwrap().0 + 1, Some(Phase::Training)));
        second.close();
        let none = open(room.path(), 0);
        assert_eq!(known(&none.policy_driver), None);
        assert_eq!(known(&open(room.path(), 16 * MIB).policy_driver), None, "no access is left");
    }

    #[tokio::test]
    async fn reads_of_watched_checkpoints_survive_a_restart() {
        let room = tempfile::tempdir().unwrap();
        let touched = |policy_driver: &PolicyDriver| {
            let at_us =
                policy_driver.with_engine(|decider, _| decider.watched.last_used_us(3, "run/step-100/"))?;
            Some(policy_driver.began_ms() + at_us / 1000)
        };
        let first = open(room.path(), 16 * MIB);
        pass(&first.policy_driver, 10);
        let (key, context) = (
            ObjectKey::new("run/step-100/.metadata").unwrap(),
            PolicyRequestContext::of_caller(Caller { id: 1, family: 2 }),
        );
        let before_ms = SystemClock.now().as_millis();
        first.policy_driver.record_access(
            &ObservedRequest { context, bucket: BucketId(3), key: &key, op: Op::Read, size: 10 },
            0..10,
        );
        first.close();
        let policy_driver = new_policy_driver();
        policy_driver.with_engine(|decider, _| decider.watched.set(std::iter::once((3, "run/step-100/"))));
        let second = AccessJournal::open(room.path(), policy_driver, 16 * MIB).unwrap();
        let touched_ms = touched(&second.policy_driver).expect("it was read");
        assert!(
            touched_ms.abs_diff(u64::try_from(before_ms).unwrap()) < 3_600_000,
            "{touched_ms} {before_ms}"
        );
    }

    #[tokio::test]
    async fn the_journal_of_an_earlier_server_is_replayed() {
        let room = tempfile::tempdir().unwrap();
        let journal = open(room.path(), 16 * MIB);
        pass(&journal.policy_driver, 100);
        journal.close();
        std::fs::rename(room.path().join(DIRECTORY), room.path().join(EARLIER_DIRECTORY)).unwrap();
        let journal = open(room.path(), 16 * MIB);
        assert!(known(&journal.policy_driver).is_some());
        journal.close();
        let earlier = room.path().join(EARLIER_DIRECTORY);
        assert!(!earlier.exists());
        std::fs::create_dir(&earlier).unwrap();
        open(room.path(), 16 * MIB).close();
        assert!(!earlier.exists(), "one journal is kept");
    }

    #[tokio::test]
    async fn the_size_is_limited_and_damage_costs_only_the_rest_of_a_file() {
        let room = tempfile::tempdir().unwrap();
        for round in 0..4 {
            let journal = open(room.path(), ACCESS_JOURNAL_FILE_BYTES);
            pass(&journal.policy_driver, 100 + round);
            journal.close();
        }
        let mut names: Vec<_> =
            room.path().join(DIRECTORY).read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert_eq!(names.len(), 2, "{names:?}");
        let bytes = std::fs::read(&names[0]).unwrap();
        std::fs::write(&names[0], &bytes[..bytes.len() / 2]).unwrap();
        assert!(known(&open(room.path(), ACCESS_JOURNAL_FILE_BYTES).policy_driver).is_some());
    }
}
