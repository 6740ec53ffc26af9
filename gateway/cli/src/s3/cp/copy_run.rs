//! State of one copy command: its limits, its progress, and its open uploads.

use super::open_upload::OpenUpload;
use crate::output::counted;
use crate::progress::CommandProgress;
use crate::s3::client::S3Client;
use crate::s3::failure::S3Failure;
use crate::s3::path::RemotePath;
use crate::terminal_text::printable;
use crate::{CliError, print_stderr};
use http::HeaderValue;
use mlgw_common::ByteSize;
use mlgw_common::limits::MIB;
use mlgw_common::time::timeout;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Memory for the bodies of all uploads in progress. A single part may be larger.
const BODIES_BYTES_MAX: u64 = 256 * MIB;
/// Time limit for aborting open uploads at the end.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a copy.
#[derive(Clone, Debug)]
pub(super) struct CopySettings {
    /// Maximum number of requests at once.
    pub(super) parallel: u32,
    /// Size of parts, if it is given.
    pub(super) part_bytes: Option<u64>,
    /// Content type, if it is given.
    pub(super) content_type: Option<HeaderValue>,
    /// True if no progress is printed.
    pub(super) quiet: bool,
}

/// One copy command.
pub(super) struct CopyRun<'a> {
    pub(super) client: &'a S3Client,
    pub(super) settings: CopySettings,
    slots: Semaphore,
    uploads: RefCell<Vec<OpenUpload>>,
    progress: CommandProgress,
    report: Cell<CopyReport>,
    /// Bytes that were transferred, those of failed objects included.
    transferred: Cell<u64>,
    /// Bytes of all objects, if they are known.
    total: Cell<Option<u64>>,
}

/// Amount that was copied: complete objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct CopyReport {
    objects: u64,
    bytes: u64,
}

impl fmt::Display for CopyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", counted(self.objects, "object"), ByteSize(self.bytes).human())
    }
}

/// Failure to copy one item.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ItemFailure {
    /// Other items are not affected.
    Item(CliError),
    /// Other items would fail in the same way.
    Command(CliError),
}

impl ItemFailure {
    /// Returns the error of a command that copies this item alone.
    pub(super) fn error(self) -> CliError {
        match self {
            Self::Item(error) | Self::Command(error) => error,
        }
    }

    /// Returns the failure of one item, whose name the message has.
    pub(super) fn item(message: &str) -> Self {
        Self::Item(CliError::Failed(printable(message).into_owned()))
    }

    /// Returns the failure of an operation on a local file.
    pub(super) fn local(path: &Path, error: &io::Error) -> Self {
        let failure = Self::item(&format!("{}: {error}", path.display()));
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Command(failure.error())
            }
            _ => failure,
        }
    }

    /// Returns the failure to copy an object that its target cannot hold.
    pub(super) fn unsuitable(object: &RemotePath, problem: &str) -> Self {
        Self::item(&format!("{object}: {problem}"))
    }
}

impl<'a> CopyRun<'a> {
    pub(super) fn new(client: &'a S3Client, settings: CopySettings) -> Self {
        assert!(settings.parallel > 0, "a copy without requests would wait forever");
        Self {
            client,
            slots: Semaphore::new(settings.parallel as usize),
            progress: CommandProgress::new(settings.quiet),
            settings,
            uploads: RefCell::default(),
            report: Cell::default(),
            transferred: Cell::default(),
            total: Cell::default(),
        }
    }

    /// Maximum number of requests at once.
    pub(super) const fn parallel(&self) -> usize {
        self.settings.parallel as usize
    }

    /// Waits for the permission to send a request with a body of this size. Large bodies take several
    /// permits.
    pub(super) async fn slot(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.slots.acquire_many(slots_of(bytes, self.settings.parallel)).await.ok()
    }

    /// Returns the failure of a request for an object.
    pub(super) fn failure(&self, failure: S3Failure, object: &RemotePath) -> ItemFailure {
        let concerns_all = failure.concerns_all_objects();
        let error = self.client.error(failure, object);
        if concerns_all { ItemFailure::Command(error) } else { ItemFailure::Item(error) }
    }

    /// Sets the number of bytes of all objects.
    pub(super) fn set_total(&self, bytes: u64) {
        self.total.set(Some(bytes));
    }

    /// Adds transferred bytes to the progress.
    pub(super) fn add_progress(&self, bytes: u64) {
        let bytes = self.transferred.get() + bytes;
        self.transferred.set(bytes);
        match self.total.get().filter(|total| *total > 0) {
            Some(total) => self.progress.step("copying", bytes, total),
            None => {
                let report = CopyReport { bytes, ..self.report.get() };
                self.progress.line(bytes, 0, || format!("copied {report}"));
            }
        }
    }

    /// Counts a copied object of this size.
    pub(super) fn add_object(&self, bytes: u64) {
        let CopyReport { objects, bytes: before } = self.report.get();
        self.report.set(CopyReport { objects: objects + 1, bytes: before + bytes });
    }

    /// Prints the failure of one item of several.
    pub(super) fn warn(&self, message: &str) {
        self.progress.done();
        print_stderr(&format!("mlgw: {message}"));
    }

    /// Registers an upload to abort it if the command ends before it is complete.
    pub(super) fn add_upload(&self, upload: OpenUpload) {
        self.uploads.borrow_mut().push(upload);
    }

    /// Unregisters an upload that is complete or aborted.
    pub(super) fn remove_upload(&self, upload: &OpenUpload) {
        self.uploads.borrow_mut().retain(|open| open != upload);
    }

    /// Aborts all open uploads and clears the progress.
    pub(super) async fn end(&self) {
        let uploads = self.uploads.take();
        let aborts = async {
            for upload in &uploads {
                upload.abort(self.client).await;
            }
        };
        if timeout(ABORT_TIMEOUT, aborts).await.is_err() {
            self.warn("uploads that are not complete could not be aborted; their parts take space");
        }
        self.progress.done();
    }

    pub(super) const fn report(&self) -> CopyReport {
        self.report.get()
    }

    /// Adds to an error the amount that was copied before.
    pub(super) fn with_report(&self, error: CliError) -> CliError {
        let report = self.report();
        if report.objects == 0 {
            return error;
        }
        error.map_message(|message| format!("{message} (copied before: {report})"))
    }
}

/// Returns the number of permits that a body takes.
fn slots_of(bytes: u64, parallel: u32) -> u32 {
    let slots = bytes.saturating_mul(u64::from(parallel)).div_ceil(BODIES_BYTES_MAX);
    u32::try_from(slots).unwrap_or(parallel).clamp(1, parallel)
}

#[cfg(test)]
mod tests {
    use super::{BODIES_BYTES_MAX, CopyReport, ItemFailure, slots_of};
    use std::io::{Error, ErrorKind};
    use std::path::Path;

    #[test]
    fn bodies_in_progress_fit_the_memory() {
        for parallel in [1, 8, 64] {
            for bytes in [0, 1, 16 << 20, 64 << 20, 200 << 20] {
                let at_once = u64::from(parallel / slots_of(bytes, parallel));
                assert!(at_once >= 1 && at_once * bytes <= BODIES_BYTES_MAX, "{parallel} {bytes}");
            }
        }
        assert_eq!((slots_of(16 << 20, 8), slots_of(64 << 20, 8), slots_of(u64::MAX, 8)), (1, 2, 8));
    }

    #[test]
    fn a_full_disk_ends_the_command_and_a_bad_name_does_not() {
        let failure = |kind| ItemFailure::local(Path::new("f"), &Error::from(kind));
        assert!(matches!(failure(ErrorKind::StorageFull), ItemFailure::Command(_)));
        assert!(matches!(failure(ErrorKind::NotADirectory), ItemFailure::Item(_)));
        assert_eq!(failure(ErrorKind::NotADirectory).error().status(), 1);
    }

    #[test]
    fn a_file_name_does_not_control_the_terminal() {
        let failure = ItemFailure::local(Path::new("f\x1b[2J\n"), &Error::from(ErrorKind::NotFound));
        let message = failure.error().to_string();
        assert!(message.starts_with("f\\u{1b}[2J\\n: "), "{message}");
    }

    #[test]
    fn a_report_counts_objects_and_bytes() {
        assert_eq!(CopyReport { objects: 1, bytes: 5 }.to_string(), "1 object, 5 B");
        assert_eq!(CopyReport { objects: 2, bytes: 2 << 20 }.to_string(), "2 objects, 2.0 MiB");
    }
}
