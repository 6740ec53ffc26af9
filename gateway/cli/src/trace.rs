//! The command `mlgw trace …`.
//!
//! Import needs no server. A trace is written to a temporary file beside its destination and renamed when it
//! is complete, so a crash leaves no truncated trace.

mod served;

use super::CliError;
use super::output::Out;
use super::policy::unreadable;
use super::progress::CommandProgress;
use super::{Global, print_stderr, run_async};
use clap::{Subcommand, ValueEnum};
use mlgw_common::regular;
use mlgw_policies::trace::import::{ImportReport, LogFormat, LogImport};
use mlgw_policies::trace::{TraceError, TraceReader, TraceWriter};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Start recording the accesses of a server.
    Start(served::StartArgs),
    /// Stop the recording.
    Stop,
    /// List the traces of a server.
    List,
    /// Copy a trace of a server to a local file.
    Export(served::ExportArgs),
    /// Convert access logs to a trace, to simulate policies with.
    Import {
        /// Format of the logs.
        #[arg(long, value_enum)]
        from: LogWord,
        /// Logs in order of time; `-` for standard input.
        #[arg(required = true, value_name = "LOG")]
        logs: Vec<PathBuf>,
        /// Destination file of the trace.
        #[arg(value_name = "OUT")]
        to: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogWord {
    /// S3 server access logs.
    S3,
    /// This program's access log.
    Own,
}

/// Result of an import.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ImportedLogs {
    file: String,
    bytes: u64,
    lines: u64,
    accesses: u64,
    passed_over: u64,
    bad: u64,
    late: u64,
    /// Accesses with keys that the trace format cannot contain.
    refused: u64,
    first_bad: Vec<BadLogLine>,
}

/// A line that cannot be parsed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct BadLogLine {
    log: String,
    line: u64,
    what: String,
}

pub(super) fn run(command: TraceCommand, global: &Global, out: Out) -> Result<(), CliError> {
    match command {
        TraceCommand::Import { from, logs, to } => run_import(from, &logs, &to, out),
        TraceCommand::Start(args) => run_async(served::start(args, global, out)),
        TraceCommand::Stop => run_async(served::stop(global, out)),
        TraceCommand::List => run_async(served::list(global, out)),
        TraceCommand::Export(args) => run_async(served::export(args, global, out)),
    }
}

fn run_import(from: LogWord, logs: &[PathBuf], to: &Path, out: Out) -> Result<(), CliError> {
    let log = match from {
        LogWord::S3 => LogFormat::S3,
        LogWord::Own => LogFormat::Own,
    };
    check_destination(to)?;
    let progress = CommandProgress::new(out.quiet);
    let imported = import(log, logs, to, &progress);
    progress.done();
    let imported = imported?;
    for bad in &imported.first_bad {
        print_stderr(&format!("mlgw: {}:{}: {}", bad.log, bad.line, bad.what));
    }
    if imported.accesses == 0 {
        return Err(CliError::Failed(format!("no object access in {} lines: check --from", imported.lines)));
    }
    out.done(&imported, &sentence(&imported))
}

/// Refuses to overwrite a file that is not a trace. Such a file is probably a log, with the destination
/// omitted.
fn check_destination(to: &Path) -> Result<(), CliError> {
    let file = match regular::open(to) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(CliError::Usage(format!("{}: {error}", to.display())));
        }
        // It does not exist, or cannot be read: then it cannot be compared.
        Err(_) => return Ok(()),
    };
    let mut begin = Vec::new();
    file.take(HEADER_BYTES).read_to_end(&mut begin).map_err(|error| unreadable(to, &error))?;
    let mut reader = TraceReader::new();
    reader.push(&begin);
    match reader.read() {
        Err(TraceError::NoTrace) => Err(CliError::Usage(format!(
            "{} exists and is not a trace: the last argument is the destination",
            to.display()
        ))),
        _ => Ok(()),
    }
}

/// Bytes of a file that suffice to recognize a trace.
const HEADER_BYTES: u64 = 64;

fn sentence(imported: &ImportedLogs) -> String {
    format!(
        "{}: {} accesses from {} lines; {} skipped, {} bad, {} late.",
        imported.file, imported.accesses, imported.lines, imported.passed_over, imported.bad, imported.late
    )
}

fn import(
    log: LogFormat,
    logs: &[PathBuf],
    to: &Path,
    progress: &CommandProgress,
) -> Result<ImportedLogs, CliError> {
    let failed = |error: io::Error| CliError::Failed(format!("{}: {error}", to.display()));
    let beside = partial_path(to);
    let file = File::create(&beside).map_err(failed)?;
    let mut making =
        TraceImport { import: LogImport::new(log), file, writer: None, ready: Vec::new(), counts: (0, 0, 0) };
    let made = making.read_all(logs, progress).and_then(|begins| {
        making.file.sync_all().map_err(failed)?;
        Ok(begins)
    });
    let (accesses, refused, bytes) = making.counts;
    let kept = made.and_then(|begins| match accesses {
        0 => fs::remove_file(&beside).map_err(failed).map(|()| begins),
        _ => fs::rename(&beside, to).map_err(failed).map(|()| begins),
    });
    let begins = kept.inspect_err(|_| drop(fs::remove_file(&beside)))?;
    let ImportReport { lines, skipped: passed_over, bad, late, first_bad, .. } =
        making.import.report().clone();
    let place = |(line, what): (u64, mlgw_policies::trace::log_line::BadLine)| {
        let at = begins.partition_point(|begin| *begin < line).saturating_sub(1);
        BadLogLine { log: logs[at].display().to_string(), line: line - begins[at], what: what.to_string() }
    };
    let first_bad = first_bad.into_iter().map(place).collect();
    let file = to.display().to_string();
    Ok(ImportedLogs { file, bytes, lines, accesses, passed_over, bad, late, refused, first_bad })
}

/// Returns the path of a trace while it is incomplete.
fn partial_path(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    to.with_file_name(name)
}

/// A trace that is being written.
struct TraceImport {
    import: LogImport,
    file: File,
    writer: Option<TraceWriter>,
    /// Bytes to be written.
    ready: Vec<u8>,
    /// Numbers of written accesses, of refused accesses, and of bytes.
    counts: (u64, u64, u64),
}

impl TraceImport {
    /// Reads all logs. Returns the number of lines before each of them.
    fn read_all(&mut self, logs: &[PathBuf], progress: &CommandProgress) -> Result<Vec<u64>, CliError> {
        let (mut begins, mut lines) = (Vec::new(), 0);
        for path in logs {
            begins.push(lines);
            let unreadable = |error: io::Error| unreadable(path, &error);
            let (log, total): (Box<dyn Read>, u64) = match path {
                path if path == Path::new("-") => (Box::new(io::stdin().lock()), 0),
                path => {
                    let log = File::open(path).map_err(unreadable)?;
                    let total = log.metadata().map_err(unreadable)?.len();
                    (Box::new(log), total)
                }
            };
            let (stage, mut done) = (format!("importing {}", path.display()), 0);
            let (mut log, mut line) = (BufReader::new(log), Vec::new());
            while log.read_until(b'\n', &mut line).map_err(unreadable)? > 0 {
                // Invalid UTF-8 makes a line bad, not the whole log.
                self.import.line(&String::from_utf8_lossy(&line));
                done += line.len() as u64;
                line.clear();
                lines += 1;
                self.write()?;
                match total {
                    0 => progress.count("importing lines", lines, 0),
                    _ => progress.step(&stage, done, total),
                }
            }
        }
        self.import.end();
        self.write()?;
        if let Some(writer) = &mut self.writer {
            writer.flush(&mut self.ready);
        }
        self.put(0)?;
        Ok(begins)
    }

    /// Writes all imported accesses to the trace.
    fn write(&mut self) -> Result<(), CliError> {
        const WRITE_BYTES: usize = 1 << 20;
        while let Some(imported) = self.import.take() {
            let mut access = imported.access();
            // Times count from the first access, to the millisecond.
            let began_ms = access.at_us / 1000;
            let ready = &mut self.ready;
            let writer = self.writer.get_or_insert_with(|| TraceWriter::new(began_ms, ready));
            access.at_us -= writer.began_ms() * 1000;
            if writer.write(&access, ready) {
                self.counts.0 += 1;
            } else {
                self.counts.1 += 1;
            }
        }
        self.put(WRITE_BYTES)
    }

    fn put(&mut self, least: usize) -> Result<(), CliError> {
        if self.ready.len() > least {
            let written = self.file.write_all(&self.ready);
            written.map_err(|error| CliError::Failed(format!("cannot write the trace: {error}")))?;
            self.counts.2 += self.ready.len() as u64;
            self.ready.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{CommandProgress, check_destination, import};
    use mlgw_policies::trace::import::LogFormat;
    use std::fs;
    use std::path::Path;

    fn line(second: u32, key: &str) -> String {
        format!(
            "o b [06/Feb/2019:00:00:{second:02} +0000] 192.0.2.3 r id REST.GET.OBJECT {key} \"GET /{key} \
             HTTP/1.1\" 200 - 10 10 7 7 \"-\" \"agent\" -\n"
        )
    }

    #[test]
    fn bad_lines_are_reported_by_log_and_line() {
        let room = tempfile::tempdir().unwrap();
        let logs = [room.path().join("one.log"), room.path().join("two.log")];
        fs::write(&logs[0], line(1, "a") + &line(2, "b")).unwrap();
        fs::write(&logs[1], line(3, "a") + "not a log line\n").unwrap();
        let to = room.path().join("trace");
        let imported = import(LogFormat::S3, &logs, &to, &CommandProgress::new(true)).unwrap();
        assert_eq!((imported.lines, imported.accesses, imported.bad), (4, 3, 1));
        assert_eq!(imported.first_bad[0].log, logs[1].display().to_string());
        assert_eq!(imported.first_bad[0].line, 2);
        assert_eq!(imported.bytes, fs::metadata(&to).unwrap().len());
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 3, "no temporary file remains");
    }

    #[test]
    fn a_device_is_not_replaced_by_a_trace() {
        let refused = check_destination(Path::new("/dev/null")).unwrap_err();
        assert_eq!(refused.to_string(), "/dev/null: a device is at the path of a file");
        let room = tempfile::tempdir().unwrap();
        assert_eq!(check_destination(&room.path().join("trace")), Ok(()));
    }

    #[test]
    fn logs_without_accesses_leave_no_trace() {
        let room = tempfile::tempdir().unwrap();
        let log = [room.path().join("log")];
        fs::write(&log[0], "not a log line\n").unwrap();
        let imported =
            import(LogFormat::Own, &log, &room.path().join("trace"), &CommandProgress::new(true)).unwrap();
        assert_eq!((imported.accesses, imported.bad), (0, 1));
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 1);
    }
}
