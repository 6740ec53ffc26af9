//! Records accesses as a trace while they happen, with a hash over what was decided on them.
//!
//! Always: nobody who reads or writes waits for whoever takes the pieces; a recording that they cannot keep
//! up with ends. A file of a recording is a trace by itself, whose times count from when the engine began.

use mlgw_policies::trace::{BLOCK_BYTES_MAX, TraceWriter};
use mlgw_policies::{Access, Fingerprint};

/// What is to be written.
#[derive(Debug)]
pub enum Piece {
    /// Another file begins.
    File,
    /// Bytes of the file that was begun last.
    Bytes(Vec<u8>),
}

/// Takes pieces, in their order. It must not wait. Says whether it took it; if it did not the recording is
/// over.
pub type Sink = Box<dyn FnMut(Piece) -> bool + Send>;

/// What was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Accesses.
    pub accesses: u64,
    /// What was decided meanwhile.
    pub decided: Fingerprint,
    /// Whether it ended because pieces came faster than they were taken.
    pub fell_behind: bool,
    /// Bytes that copies could take.
    pub capacity_bytes: u64,
}

/// A recording.
pub(super) struct Recorder {
    writer: TraceWriter,
    began_ms: u64,
    out: Vec<u8>,
    file_bytes: u64,
    file_bytes_max: u64,
    sink: Sink,
    recorded: Recorded,
}

impl Recorder {
    /// Begins one, in files of about so many bytes.
    pub(super) fn new(began_ms: u64, file_bytes_max: u64, sink: Sink) -> Self {
        let mut out = Vec::new();
        let writer = TraceWriter::new(began_ms, &mut out);
        let recorded = Recorded::default();
        let mut recorder = Self { writer, began_ms, out, file_bytes: 0, file_bytes_max, sink, recorded };
        recorder.give(Piece::File);
        recorder
    }

    /// Looks up what [`Self::note`] will need of an access.
    pub(super) fn bring_near(&self, access: &Access<'_>) {
        self.writer.bring_near(access);
    }

    pub(super) fn note(&mut self, access: &Access<'_>) {
        if self.recorded.fell_behind {
            return;
        }
        self.recorded.accesses += u64::from(self.writer.write(access, &mut self.out));
        if self.out.len() >= BLOCK_BYTES_MAX / 2 {
            self.hand_on();
        }
        if self.file_bytes >= self.file_bytes_max {
            self.flush();
            self.give(Piece::File);
            self.file_bytes = 0;
            self.writer = TraceWriter::new(self.began_ms, &mut self.out);
        }
    }

    /// What is decided meanwhile.
    pub(super) fn decided(&mut self) -> &mut Fingerprint {
        &mut self.recorded.decided
    }

    /// Hands on all there is.
    pub(super) fn flush(&mut self) {
        self.writer.flush(&mut self.out);
        self.hand_on();
    }

    pub(super) fn recorded(&self) -> Recorded {
        self.recorded
    }

    fn hand_on(&mut self) {
        if !self.out.is_empty() {
            self.file_bytes += self.out.len() as u64;
            let bytes = std::mem::take(&mut self.out);
            self.give(Piece::Bytes(bytes));
        }
    }

    fn give(&mut self, piece: Piece) {
        self.recorded.fell_behind = self.recorded.fell_behind || !(self.sink)(piece);
    }
}
