//! Recorder of accesses as a trace, with a fingerprint of the decisions about them.
//!
//! Invariants: no reader or writer waits for the sink; a recording with which the sink cannot keep up ends.
//! Each file of a recording is a complete trace, whose times count from the engine's origin of time.

use mlgw_policies::trace::{BLOCK_BYTES_MAX, TraceWriter};
use mlgw_policies::{Access, DecisionFingerprint};

/// Output of a recording.
#[derive(Debug)]
pub enum RecordedTracePiece {
    /// Start of another file.
    File,
    /// Bytes of the current file.
    Bytes(Vec<u8>),
}

/// Consumer of the pieces, in order. It must not block. It returns false if it does not accept a piece; the
/// recording then ends.
pub type RecordedTraceSink = Box<dyn FnMut(RecordedTracePiece) -> bool + Send>;

/// Summary of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceRecordingSummary {
    /// Number of accesses.
    pub accesses: u64,
    /// Fingerprint of the decisions during the recording.
    pub decided: DecisionFingerprint,
    /// True if the recording ended because the sink did not keep up.
    pub fell_behind: bool,
    /// Maximum bytes of copies.
    pub capacity_bytes: u64,
}

/// Recording in progress.
pub(super) struct AccessRecorder {
    writer: TraceWriter,
    began_ms: u64,
    out: Vec<u8>,
    file_bytes: u64,
    file_bytes_max: u64,
    sink: RecordedTraceSink,
    recorded: TraceRecordingSummary,
}

impl AccessRecorder {
    /// Begins a recording, in files of about `file_bytes_max` bytes.
    pub(super) fn new(began_ms: u64, file_bytes_max: u64, sink: RecordedTraceSink) -> Self {
        let mut out = Vec::new();
        let writer = TraceWriter::new(began_ms, &mut out);
        let recorded = TraceRecordingSummary::default();
        let mut recorder = Self { writer, began_ms, out, file_bytes: 0, file_bytes_max, sink, recorded };
        recorder.send(RecordedTracePiece::File);
        recorder
    }

    /// Prefetches the memory that [`Self::record`] will need for an access.
    pub(super) fn bring_near(&self, access: &Access<'_>) {
        self.writer.prefetch_memory(access);
    }

    pub(super) fn record(&mut self, access: &Access<'_>) {
        if self.recorded.fell_behind {
            return;
        }
        self.recorded.accesses += u64::from(self.writer.write(access, &mut self.out));
        if self.out.len() >= BLOCK_BYTES_MAX / 2 {
            self.pass_on_bytes();
        }
        if self.file_bytes >= self.file_bytes_max {
            self.flush();
            self.send(RecordedTracePiece::File);
            self.file_bytes = 0;
            self.writer = TraceWriter::new(self.began_ms, &mut self.out);
        }
    }

    /// Returns the fingerprint of the decisions.
    pub(super) fn decided(&mut self) -> &mut DecisionFingerprint {
        &mut self.recorded.decided
    }

    /// Passes on everything recorded so far.
    pub(super) fn flush(&mut self) {
        self.writer.flush(&mut self.out);
        self.pass_on_bytes();
    }

    pub(super) fn recorded(&self) -> TraceRecordingSummary {
        self.recorded
    }

    fn pass_on_bytes(&mut self) {
        if !self.out.is_empty() {
            self.file_bytes += self.out.len() as u64;
            let bytes = std::mem::take(&mut self.out);
            self.send(RecordedTracePiece::Bytes(bytes));
        }
    }

    fn send(&mut self, piece: RecordedTracePiece) {
        self.recorded.fell_behind = self.recorded.fell_behind || !(self.sink)(piece);
    }
}
