//! Access log: one JSON line per sampled request, in files of bounded length.
//!
//! The log is off while `access_log.one_in` is 0. A request never waits for it: its line enters a bounded
//! queue, and if the queue is full the line is dropped and counted. A separate thread writes the lines. Lines
//! are not synced: a power loss loses the last ones, and a stopping server writes the queued ones.

use super::request_record::{RequestEnding, RequestNotes};
use crate::rotating::RotatingFile;
use mlgw_common::NodeId;
use mlgw_common::limits::ACCESS_LOG_QUEUE_LINES;
use mlgw_config::AccessLogSection;
use parking_lot::Mutex;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Name of the current file.
const FILE_NAME: &str = "access.log";
/// Target size of a write in bytes.
const WRITE_BYTES: usize = 64 * 1024;

/// Fields of a line.
#[derive(Debug, Serialize)]
pub(super) struct AccessLogLine {
    time: String,
    request_id: String,
    from: String,
    /// Number of the node that forwarded the request, if it was not received from its client.
    #[serde(skip_serializing_if = "Option::is_none")]
    forwarded_by: Option<u64>,
    /// Number of the member that answered, if the request was forwarded to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    forwarded_to: Option<u64>,
    access_key: Option<String>,
    method: String,
    operation: &'static str,
    bucket: Option<String>,
    path: String,
    status: u16,
    /// S3 code of an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    /// Name of the shortage that caused the error, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    short_of: Option<&'static str>,
    bytes_in: u64,
    bytes_out: u64,
    first_byte_ms: f64,
    took_ms: f64,
    user_agent: String,
}

impl AccessLogLine {
    pub(super) fn new(notes: RequestNotes, ending: &RequestEnding) -> Self {
        Self {
            time: notes.time.to_string(),
            request_id: notes.id,
            from: notes.peer.to_string(),
            forwarded_by: notes.forwarded_by.map(NodeId::get),
            forwarded_to: notes.forwarded_to.map(NodeId::get),
            access_key: notes.access_key,
            method: notes.method,
            operation: ending.operation.name(),
            bucket: notes.bucket,
            path: notes.path,
            status: ending.status,
            error: ending.failure.map(|failure| failure.code.as_str()),
            short_of: ending.failure.and_then(|failure| failure.shortage),
            bytes_in: ending.bytes_in,
            bytes_out: ending.bytes_out,
            first_byte_ms: millis(ending.first_byte),
            took_ms: millis(ending.took),
            user_agent: notes.user_agent,
        }
    }
}

fn millis(took: Duration) -> f64 {
    took.as_micros() as f64 / 1e3
}

/// Queues lines for the writer thread.
#[derive(Debug)]
pub struct AccessLog {
    one_in: AtomicU64,
    writer: Mutex<Option<AccessLogThread>>,
    lines: Option<SyncSender<Box<AccessLogLine>>>,
    counts: Arc<AccessLogCounts>,
}

#[derive(Debug, Default)]
struct AccessLogCounts {
    written: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct AccessLogThread(JoinHandle<()>);

impl AccessLog {
    /// Returns a log that is switched off.
    #[must_use]
    pub fn off() -> Self {
        Self { one_in: AtomicU64::new(0), writer: Mutex::new(None), lines: None, counts: Arc::default() }
    }

    /// Starts a log in `dir`, which is created with the first line.
    ///
    /// # Errors
    /// Returns the error of the operating system if the thread cannot be started.
    pub fn start(dir: &Path, settings: &AccessLogSection) -> io::Result<Self> {
        let (lines, incoming) = sync_channel(ACCESS_LOG_QUEUE_LINES);
        let counts = Arc::<AccessLogCounts>::default();
        let file = LogFile {
            dir: dir.to_owned(),
            bytes_max: settings.file_bytes_max.0,
            files_max: settings.files_max,
            counts: Arc::clone(&counts),
            open: None,
            failing: false,
        };
        let thread = std::thread::Builder::new().name("access-log".into());
        let thread = thread.spawn(move || file.write_all(&incoming))?;
        let one_in = AtomicU64::new(settings.one_in);
        Ok(Self { one_in, writer: Mutex::new(Some(AccessLogThread(thread))), lines: Some(lines), counts })
    }

    /// Changes the sampling: one line per `one_in` requests; 0 for none.
    pub fn set_one_in(&self, one_in: u64) {
        self.one_in.store(one_in, Relaxed);
    }

    /// True if the request with this number gets a line.
    #[must_use]
    pub fn is_sampled(&self, number: u64) -> bool {
        match self.one_in.load(Relaxed) {
            0 => false,
            one_in => number.is_multiple_of(one_in),
        }
    }

    /// Returns the numbers of lines written and dropped.
    #[must_use]
    pub fn lines(&self) -> (u64, u64) {
        (self.counts.written.load(Relaxed), self.counts.dropped.load(Relaxed))
    }

    pub(super) fn write(&self, line: AccessLogLine) {
        let taken = self.lines.as_ref().is_some_and(|lines| lines.try_send(Box::new(line)).is_ok());
        if !taken {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

impl Drop for AccessLog {
    /// Writes the queued lines and ends the thread.
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(AccessLogThread(thread)) = self.writer.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the access log thread panicked");
        }
    }
}

/// The current file and its state.
struct LogFile {
    dir: PathBuf,
    bytes_max: u64,
    files_max: u64,
    counts: Arc<AccessLogCounts>,
    open: Option<RotatingFile>,
    /// True if the last write failed; consecutive failures are logged once.
    failing: bool,
}

impl LogFile {
    fn write_all(mut self, incoming: &Receiver<Box<AccessLogLine>>) {
        let mut text = Vec::new();
        while let Ok(first) = incoming.recv() {
            let (mut next, mut count) = (Some(first), 0);
            while let Some(line) = next {
                // Serialization of strings and numbers does not fail.
                if serde_json::to_writer(&mut text, &line).is_ok() {
                    text.push(b'\n');
                    count += 1;
                }
                next = if text.len() < WRITE_BYTES { incoming.try_recv().ok() } else { None };
            }
            self.write(&text, count);
            text.clear();
        }
    }

    fn write(&mut self, text: &[u8], count: u64) {
        match self.append(text) {
            Ok(()) => {
                self.counts.written.fetch_add(count, Relaxed);
                self.failing = false;
            }
            Err(error) => {
                self.counts.dropped.fetch_add(count, Relaxed);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, dir = %self.dir.display(), "failed to write the access log");
                }
                // The file is reopened for the next lines, which also terminates a partially written line.
                self.open = None;
            }
        }
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        let file = match &mut self.open {
            Some(file) => file,
            none => none.insert(RotatingFile::open(&self.dir, FILE_NAME, self.bytes_max, self.files_max)?),
        };
        file.append(text)
    }
}

#[cfg(test)]
mod tests {
    use super::{AccessLog, AccessLogLine, FILE_NAME};
    use crate::GatewayMetrics;
    use crate::observed::Arrival;
    use mlgw_common::limits::ACCESS_LOG_QUEUE_LINES;
    use mlgw_common::{ByteSize, NodeId, Timestamp};
    use mlgw_config::AccessLogSection;
    use std::path::Path;
    use std::sync::Arc;

    fn settings(one_in: u64) -> AccessLogSection {
        AccessLogSection { one_in, dir: None, file_bytes_max: ByteSize(1 << 20), files_max: 2 }
    }

    fn line(path: &str) -> AccessLogLine {
        AccessLogLine {
            time: "t".into(),
            request_id: "r".into(),
            from: "127.0.0.1:1".into(),
            forwarded_by: None,
            forwarded_to: None,
            access_key: Some("AK".into()),
            method: "GET".into(),
            operation: "GetObject",
            bucket: Some("b".into()),
            path: path.into(),
            status: 200,
            error: None,
            short_of: None,
            bytes_in: 0,
            bytes_out: 5,
            first_byte_ms: 0.031,
            took_ms: 0.5,
            user_agent: "a \"quoted\"\nagent".into(),
        }
    }

    fn lines(dir: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(dir.join(FILE_NAME)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn one_in_n_requests_is_sampled() {
        let log = AccessLog::off();
        assert!(!log.is_sampled(0) && !log.is_sampled(1));
        log.set_one_in(1);
        assert!(log.is_sampled(0) && log.is_sampled(1));
        log.set_one_in(100);
        assert_eq!((0..1000).filter(|number| log.is_sampled(*number)).count(), 10);
    }

    #[test]
    fn queued_lines_are_written_before_the_log_ends() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("access");
        let log = AccessLog::start(&dir, &settings(1)).unwrap();
        assert!(!dir.exists(), "no directory is created before the first line");
        for path in ["/b/1", "/b/2", "/b/3"] {
            log.write(line(path));
        }
        drop(log);
        let found = lines(&dir);
        assert_eq!(
            found.iter().map(|line| line["path"].as_str().unwrap()).collect::<Vec<_>>(),
            ["/b/1", "/b/2", "/b/3"]
        );
        assert_eq!(found[0]["user_agent"], "a \"quoted\"\nagent");
        assert_eq!(found[0]["first_byte_ms"], 0.031);
    }

    #[test]
    fn both_nodes_of_a_forwarded_request_log_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut metrics = GatewayMetrics::new(0);
        metrics.access_log = AccessLog::start(dir.path(), &settings(1)).unwrap();
        let metrics = Arc::new(metrics);
        let (peer, time) = ("192.0.2.7:50123".parse().unwrap(), Timestamp(5));
        let head = http::Request::get("/b/k").body(()).unwrap().into_parts().0;
        for (forwarded_by, forwarded_to) in [(None, Some(NodeId(2))), (Some(NodeId(9)), None), (None, None)] {
            let mut observed = metrics.begin();
            observed.record_arrival(Arrival { number: 0, id: "0A", time, peer, forwarded_by }, &head);
            forwarded_to.into_iter().for_each(|member| observed.record_forwarding(member));
            let ending = observed.record_response_head(&head.headers, 200, &mut http::HeaderMap::new());
            observed.finish(ending, || ("", ""));
        }
        drop(Arc::into_inner(metrics));
        let found = lines(dir.path());
        let of = |at: usize, name| found[at].get(name).map(|node: &serde_json::Value| node.as_u64().unwrap());
        let nodes = [0, 1, 2].map(|at| (of(at, "forwarded_by"), of(at, "forwarded_to")));
        assert_eq!(nodes, [(None, Some(2)), (Some(9), None), (None, None)]);
        assert!(found.iter().all(|line| line["from"] == "192.0.2.7:50123" && line["request_id"] == "0A"));
    }

    /// The directory is a file, so no write succeeds, and the queue fills because the writer is slower than
    /// this loop. In both cases every line is counted and no caller waits.
    #[test]
    fn lines_that_cannot_be_written_are_dropped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let blocked = dir.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let log = AccessLog::start(&blocked, &settings(1)).unwrap();
        let total = ACCESS_LOG_QUEUE_LINES as u64 + 100;
        for _ in 0..total {
            log.write(line("/b/k"));
        }
        let counts = std::sync::Arc::clone(&log.counts);
        drop(log);
        assert_eq!(counts.dropped.load(super::Relaxed), total);
        assert_eq!(counts.written.load(super::Relaxed), 0);
    }
}
