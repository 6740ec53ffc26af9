//! Access traces: recordings of the accesses that the policy engine receives, for simulations. No trace is
//! recorded unless an operator starts one.
//!
//! The files `traces/NAME/000001.mlgwtrace` and so on in the data directory are each a complete trace. At
//! most one recording runs at a time. It takes at most the permitted number of bytes, removing its oldest
//! files, and never delays an access. The newest [`TRACES_MAX`] traces are kept. A recording ends with the
//! server. A power loss destroys what was not on disk yet, and a torn block at the end of the last file.

use crate::trace_files::{PIECES_WAITING_MAX, file_name, files, write};
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_cache::policy_driver::TraceRecordingSummary;
use mlgw_common::limits::{TRACE_BYTES_MIN, TRACE_FILE_BYTES, TRACES_MAX};
use mlgw_common::regular;
use mlgw_common::{Clock, Timestamp};
use parking_lot::Mutex;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

const NAME_BYTES_MAX: usize = 64;

/// Access traces of a server.
pub struct AccessTraces {
    dir: PathBuf,
    policy_driver: PolicyDriver,
    clock: Arc<dyn Clock>,
    running: Mutex<Option<TraceRecording>>,
}

struct TraceRecording {
    name: String,
    since: Timestamp,
    bytes_max: u64,
    writer: JoinHandle<io::Result<()>>,
}

/// A trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Name of the trace.
    pub name: String,
    /// Numbers and lengths in bytes of the files, sorted by number.
    pub files: Vec<(u64, u64)>,
    /// Start of the recording and its limit in bytes, while the trace is being recorded.
    pub recording: Option<(Timestamp, u64)>,
    /// Counters of the recording, while it runs or when it has just ended.
    pub recorded: Option<TraceRecordingSummary>,
}

/// Error of an operation on traces.
#[derive(Debug, thiserror::Error)]
pub enum AccessTraceError {
    /// The name is malformed.
    #[error(
        "invalid trace name {0:?}: expected 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit"
    )]
    BadName(String),
    /// The limit is less than two files.
    #[error("a trace needs at least {TRACE_BYTES_MIN} bytes, not {0}")]
    TooSmall(u64),
    /// A trace with this name exists.
    #[error("the trace {0:?} already exists")]
    Exists(String),
    /// A trace is being recorded.
    #[error("the trace {0:?} is being recorded: stop it first")]
    Busy(String),
    /// No trace has this name.
    #[error("no such trace: {0:?}")]
    NoSuchTrace(String),
    /// The trace has no such file.
    #[error("the trace {0:?} has no file {1}; old files are removed to make room")]
    NoSuchFile(String, u64),
    /// No trace is being recorded.
    #[error("no trace is being recorded")]
    Idle,
    /// The disk failed.
    #[error("the traces in {0}: {1}")]
    Io(String, io::Error),
}

impl AccessTraces {
    /// Creates the recorder for the accesses of this policy driver.
    #[must_use]
    pub fn new(data_dir: &Path, policy_driver: PolicyDriver, clock: Arc<dyn Clock>) -> Self {
        Self { dir: data_dir.join("traces"), policy_driver, clock, running: Mutex::default() }
    }

    /// Starts a recording. Returns the trace, and the names of old traces that were removed to keep their
    /// number limited. Blocks the calling thread.
    ///
    /// # Errors
    /// See [`AccessTraceError`]; then nothing is recorded.
    pub fn start(&self, name: &str, bytes_max: u64) -> Result<(Trace, Vec<String>), AccessTraceError> {
        check(name)?;
        if bytes_max < TRACE_BYTES_MIN {
            return Err(AccessTraceError::TooSmall(bytes_max));
        }
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            return Err(AccessTraceError::Busy(running.name.clone()));
        }
        let dir = self.dir.join(name);
        if dir.exists() {
            return Err(AccessTraceError::Exists(name.to_owned()));
        }
        let gone = self.make_room().map_err(|error| self.failed(error))?;
        fs::create_dir_all(&dir).map_err(|error| self.failed(error))?;
        let (pieces, taken) = sync_channel(PIECES_WAITING_MAX);
        let files_max = bytes_max / TRACE_FILE_BYTES;
        let writer =
            thread::Builder::new().name("trace".into()).spawn(move || write(&dir, 0, files_max, &taken));
        let writer = writer.map_err(|error| self.failed(error))?;
        let sink = move |piece| pieces.try_send(piece).is_ok();
        if !self.policy_driver.start_recording(TRACE_FILE_BYTES, Box::new(sink)) {
            return Err(AccessTraceError::Busy("another".to_owned()));
        }
        let since = self.clock.now();
        *running = Some(TraceRecording { name: name.to_owned(), since, bytes_max, writer });
        let recording = Some((since, bytes_max));
        Ok((Trace { name: name.to_owned(), recording, ..Trace::default() }, gone))
    }

    /// Ends the recording and waits until all of it is on disk. Blocks the calling thread.
    ///
    /// # Errors
    /// If no recording runs, or a write failed; the part on disk remains valid.
    pub fn stop(&self) -> Result<Trace, AccessTraceError> {
        let mut running = self.running.lock();
        let TraceRecording { name, writer, .. } = running.take().ok_or(AccessTraceError::Idle)?;
        let recorded = self.policy_driver.end_recording();
        let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer thread failed")));
        written.map_err(|error| self.failed(error))?;
        drop(running);
        Ok(Trace { recorded, ..self.show(&name)? })
    }

    /// Returns all traces, oldest first. Blocks the calling thread.
    ///
    /// # Errors
    /// I/O errors.
    pub fn list(&self) -> Result<Vec<Trace>, AccessTraceError> {
        let names = self.names().map_err(|error| self.failed(error))?;
        names.iter().map(|(_, name)| self.show(name)).collect()
    }

    /// Returns one trace. Blocks the calling thread.
    ///
    /// # Errors
    /// If no trace has this name; I/O errors.
    pub fn show(&self, name: &str) -> Result<Trace, AccessTraceError> {
        check(name)?;
        let files = match files(&self.dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(AccessTraceError::NoSuchTrace(name.to_owned()));
            }
            files => files.map_err(|error| self.failed(error))?,
        };
        let running = self.running.lock();
        let running = running.as_ref().filter(|running| running.name == name);
        let recording = running.map(|running| (running.since, running.bytes_max));
        let recorded = recording.and_then(|_| self.policy_driver.recorded());
        Ok(Trace { name: name.to_owned(), files, recording, recorded })
    }

    /// Reads a file of a trace. Blocks the calling thread.
    ///
    /// # Errors
    /// If the file does not exist; I/O errors.
    pub fn read(&self, name: &str, number: u64) -> Result<Vec<u8>, AccessTraceError> {
        check(name)?;
        match regular::read(&self.dir.join(name).join(file_name(number))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(AccessTraceError::NoSuchFile(name.to_owned(), number))
            }
            bytes => bytes.map_err(|error| self.failed(error)),
        }
    }

    /// Returns the paths of a complete trace's files, in order of time. Blocks the calling thread.
    ///
    /// # Errors
    /// If no trace has this name, or it is being recorded; I/O errors.
    pub fn paths(&self, name: &str) -> Result<Vec<PathBuf>, AccessTraceError> {
        let trace = self.show(name)?;
        if trace.recording.is_some() {
            return Err(AccessTraceError::Busy(trace.name));
        }
        let dir = self.dir.join(name);
        Ok(trace.files.iter().map(|(number, _)| dir.join(file_name(*number))).collect())
    }

    /// Removes the oldest traces until there is room for one more. Returns their names.
    fn make_room(&self) -> io::Result<Vec<String>> {
        let mut names = self.names()?;
        let mut gone = Vec::new();
        while names.len() >= TRACES_MAX {
            let (_, oldest) = names.remove(0);
            fs::remove_dir_all(self.dir.join(&oldest))?;
            gone.push(oldest);
        }
        Ok(gone)
    }

    /// Returns the names of all traces with their modification times, oldest first.
    fn names(&self) -> io::Result<Vec<(std::time::SystemTime, String)>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().into_string().ok().filter(|name| check(name).is_ok());
            if let Some(name) = name.filter(|_| entry.path().is_dir()) {
                names.push((entry.metadata()?.modified()?, name));
            }
        }
        names.sort();
        Ok(names)
    }

    fn failed(&self, error: io::Error) -> AccessTraceError {
        AccessTraceError::Io(self.dir.display().to_string(), error)
    }
}

fn check(name: &str) -> Result<(), AccessTraceError> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let begins = name.bytes().next().is_some_and(is_plain);
    let rest = name.bytes().all(|byte| is_plain(byte) || byte == b'-' || byte == b'_');
    let is_one = begins && rest && name.len() <= NAME_BYTES_MAX;
    if is_one { Ok(()) } else { Err(AccessTraceError::BadName(name.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::{AccessTraceError, AccessTraces};
    use crate::trace_files::write;
    use mlgw_cache::policy_driver::PolicyDriver;
    use mlgw_cache::policy_driver::{ObservedRequest, PolicyRequestContext, RecordedTracePiece};
    use mlgw_common::limits::{TRACE_BYTES_MIN, TRACES_MAX};
    use mlgw_common::{BucketId, ObjectKey, SystemClock};
    use mlgw_policies::trace::TraceReader;
    use mlgw_policies::{Caller, Op};
    use std::fs;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    fn traces(dir: &std::path::Path) -> AccessTraces {
        AccessTraces::new(
            dir,
            PolicyDriver::new(
                1 << 16,
                Arc::new(mlgw_policies::language::Program::compile_built_in().unwrap()),
                &SystemClock,
            ),
            Arc::new(SystemClock),
        )
    }

    fn record_read(traces: &AccessTraces, name: &str) {
        let key = ObjectKey::new(name).unwrap();
        let context = PolicyRequestContext::of_caller(Caller { id: 1, family: 2 });
        traces.policy_driver.record_access(
            &ObservedRequest { context, bucket: BucketId(3), key: &key, op: Op::Read, size: 10 },
            0..10,
        );
    }

    #[test]
    fn accesses_between_start_and_stop_are_recorded() {
        let room = tempfile::tempdir().unwrap();
        let traces = traces(room.path());
        record_read(&traces, "before");
        traces.start("one", TRACE_BYTES_MIN).unwrap();
        assert!(
            matches!(traces.start("two", TRACE_BYTES_MIN), Err(AccessTraceError::Busy(name)) if name == "one")
        );
        record_read(&traces, "a");
        record_read(&traces, "b");
        assert_eq!(traces.show("one").unwrap().recorded.unwrap().accesses, 2);
        assert!(matches!(traces.paths("one"), Err(AccessTraceError::Busy(_))), "its files come and go");
        let stopped = traces.stop().unwrap();
        record_read(&traces, "behind");
        assert_eq!(
            (stopped.recorded.unwrap().accesses, stopped.recording, stopped.files.len()),
            (2, None, 1)
        );
        let mut reader = TraceReader::new();
        reader.push(&traces.read("one", 1).unwrap());
        let mut keys = Vec::new();
        while let Some(access) = reader.read().unwrap() {
            keys.push(access.key.to_owned());
        }
        assert_eq!(keys, ["a", "b"]);
        assert_eq!(traces.paths("one").unwrap(), [room.path().join("traces/one/000001.mlgwtrace")]);
        assert!(matches!(traces.start("one", TRACE_BYTES_MIN), Err(AccessTraceError::Exists(_))));
        assert!(matches!(traces.stop(), Err(AccessTraceError::Idle)));
        assert!(matches!(traces.read("one", 2), Err(AccessTraceError::NoSuchFile(_, 2))));
        assert!(matches!(traces.show("none"), Err(AccessTraceError::NoSuchTrace(_))));
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        let room = tempfile::tempdir().unwrap();
        let traces = traces(room.path());
        for name in ["", "..", "a/b", "A", "-a", &"a".repeat(65), "a.b"] {
            assert!(
                matches!(traces.start(name, TRACE_BYTES_MIN), Err(AccessTraceError::BadName(_))),
                "{name}"
            );
            assert!(matches!(traces.read(name, 1), Err(AccessTraceError::BadName(_))), "{name}");
        }
        assert!(matches!(traces.start("a", TRACE_BYTES_MIN - 1), Err(AccessTraceError::TooSmall(_))));
        assert!(traces.list().unwrap().is_empty());
    }

    #[test]
    fn the_oldest_files_and_traces_are_removed() {
        let room = tempfile::tempdir().unwrap();
        let (pieces, taken) = channel();
        for byte in 0..5 {
            pieces.send(RecordedTracePiece::File).unwrap();
            pieces.send(RecordedTracePiece::Bytes(vec![byte; 3])).unwrap();
        }
        drop(pieces);
        let dir = room.path().join("traces/a");
        fs::create_dir_all(&dir).unwrap();
        write(&dir, 0, 2, &taken).unwrap();
        let traces = traces(room.path());
        assert_eq!(traces.show("a").unwrap().files, [(4, 3), (5, 3)]);
        let mut gone = Vec::new();
        for n in 0..TRACES_MAX {
            gone.extend(traces.start(&format!("t{n}"), TRACE_BYTES_MIN).unwrap().1);
            traces.stop().unwrap();
        }
        assert_eq!(gone, ["a"]);
        assert_eq!(traces.list().unwrap().len(), TRACES_MAX);
    }
}
